"""Arms can be told apart by everyone, in light and in dark, and on paper."""

import re
from itertools import combinations

import numpy as np
import pytest

from calibrl.text import style

STYLE = style()

# How linear RGB looks to people with normal sight and without one kind of cone (Machado et al., 2009).
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def palettes():
    """Each block that sets colours: the paper and the twelve arms."""
    found = []
    for block in re.findall(r"\{[^{}]*--arm-0:[^{}]*\}", STYLE):
        colours = dict(re.findall(r"--(paper|arm-\d+): (#\w+);", block))
        found.append((colours.pop("paper"), list(colours.values())))
    return found


def linear(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    c = np.array([int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_light_dark_and_print_are_all_there():
    # Light, dark by the system, dark by choice, print; the two dark ones are the same.
    assert len(palettes()) == 4
    assert palettes()[1] == palettes()[2]
    assert palettes()[0][1] == palettes()[3][1]


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(("paper", "arms"), palettes())
def test_arms_differ(paper, arms, sight):
    assert len(arms) == 12
    seen = [lab(np.array(SIGHT[sight]) @ linear(colour)) for colour in arms]
    # 2 is the least anyone sees side by side; marks and dashes help where lines are thin.
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 15


@pytest.mark.parametrize(("paper", "arms"), palettes())
def test_arms_stand_out_from_the_paper(paper, arms):
    def light(colour):
        return float(TO_XYZ[1] @ linear(colour)) + 0.05

    for colour in arms:
        # The least the accessibility guidelines (WCAG 2.1, 1.4.11) ask of graphics.
        assert max(light(colour), light(paper)) / min(light(colour), light(paper)) >= 3

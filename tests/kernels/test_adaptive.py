"""Bounds that follow their misses."""

import math

import numpy as np
import pytest

from calibrl.kernels import adaptive


def misses(z, tail, *, batch=1):
    """Which of z (n,) lay beyond the bound that was given before it came."""
    state, found = adaptive.start(tail), []
    for first in range(0, len(z), batch):
        new = z[first : first + batch]
        found.append(new > adaptive.bound_now(state))
        state = adaptive.follow(new, np.array([len(new)]), tail, state)
    return np.concatenate(found)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("tail", [0.05, 0.3])
@pytest.mark.parametrize("path", ["steady", "jump", "wave", "walk"])
def test_the_share_of_misses_is_right_in_the_long_run_whatever_outcomes_do(path, tail, batch):
    rng = np.random.default_rng(0)
    n = 700 * batch
    t = np.arange(n) / batch
    paths = {"jump": np.where(t > 300, 6.0, 0.0), "wave": 3 * np.sin(t / 20), "walk": np.cumsum(rng.normal(size=n)) / 9}
    z = rng.normal(size=n) + paths.get(path, 0.0)
    bound = (2 * np.abs(z).max() + 2) / (adaptive.STEP * 700)
    share = misses(z, tail, batch=batch).mean()
    assert abs(share - tail) < min(bound, 0.02)


def test_the_compiled_loop_is_the_plain_one():
    z, ends = np.random.default_rng(1).normal(size=50), np.array([3, 3, 10, 50])
    log = math.log(2 * len(adaptive.STEPS) * adaptive.MEMORY) + 1
    plain = adaptive._follow(z, ends, 0.1, adaptive.start(0.1), log, adaptive.MEMORY, adaptive.STEPS, adaptive.STEP)
    np.testing.assert_allclose(adaptive.follow(z, ends, 0.1, adaptive.start(0.1)), plain, rtol=1e-12)

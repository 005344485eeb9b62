"""The paper's diagnostics against loops that spell them out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import calibrl as cal

D = torch.float64
pits = st.lists(st.floats(0, 1), min_size=2, max_size=50)


@given(pits)
def test_reliability_curve_and_loss_are_the_printed_formula(values):
    levels = [0.1, 0.25, 0.5, 0.9]
    expected = [sum(v <= level for v in values) / len(values) for level in levels]
    curve = cal.diagnostics.reliability_curve(np.array(values), levels)
    np.testing.assert_allclose(curve.observed, expected)
    assert isinstance(curve.observed, np.ndarray)
    loss = sum((a - b) ** 2 for a, b in zip(expected, levels, strict=True))
    assert cal.calibration_loss(np.array(values), levels) == pytest.approx(loss)
    gap = np.mean(np.abs(np.array(expected) - levels))
    assert cal.diagnostics.calibration_error(np.array(values), levels) == pytest.approx(gap)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_coverage_counts_central_intervals(level):
    values, tail = np.linspace(0, 1, 10_001), (1 - level) / 2
    expected = np.mean([tail <= v <= 1 - tail for v in values])
    assert cal.diagnostics.coverage(values, level) == pytest.approx(expected)


@given(pits)
def test_histogram_agrees_with_numpy(values):
    ours = cal.diagnostics.pit_histogram(np.array(values), 8)
    np.testing.assert_allclose(ours, np.histogram(values, 8, (0, 1), density=True)[0])


def test_columns_and_gaps_are_kept_apart(generator):
    p = torch.rand(500, 3, generator=generator, dtype=D)
    p[::7, 1] = torch.nan
    curve = cal.diagnostics.reliability_curve(p)
    for j in range(3):
        some = p[:, j][~p[:, j].isnan()]
        torch.testing.assert_close(curve.observed[:, j], cal.diagnostics.reliability_curve(some).observed)
        assert torch.equal(cal.diagnostics.pit_histogram(p)[:, j], cal.diagnostics.pit_histogram(some, 20))
    p[:, 2] **= 3  # a curve of its own
    band = cal.diagnostics.reliability_band(p)
    assert torch.equal(band.low[:, 0], cal.diagnostics.reliability_band(p[:, 0]).low)
    observed = cal.diagnostics.reliability_curve(p).observed
    assert bool(((band.low < observed) & (observed < band.high)).all())


def test_the_noise_floor_is_what_a_perfect_forecaster_gets(generator):
    losses = [cal.calibration_loss(torch.rand(200, generator=generator, dtype=D)) for _ in range(3000)]
    assert np.mean(losses) == pytest.approx(cal.diagnostics.noise_floor(200), rel=0.06)
    wide = torch.rand(2000, 20, generator=generator, dtype=D)
    assert cal.calibration_loss(wide) == pytest.approx(cal.diagnostics.noise_floor(2000), rel=0.6)
    assert cal.diagnostics.calibration_error(wide) == pytest.approx(0.313 / math.sqrt(2000), rel=0.25)


@pytest.mark.parametrize("block", [1, 5])
def test_the_bootstrap_band_covers(generator, block):
    inside = []
    for _ in range(150):
        # Blocks of five rows that move together.
        p = torch.rand(400 // block, generator=generator, dtype=D).repeat_interleave(block)
        low, high = cal.diagnostics.reliability_band(
            p, [0.3, 0.7], confidence=0.9, draws=300, block=block, generator=generator
        )
        inside.append((low <= torch.tensor([0.3, 0.7])) & (torch.tensor([0.3, 0.7]) <= high))
    assert float(torch.stack(inside).double().mean()) == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("block", [1, 5])
def test_levels_come_in_any_order(generator, block):
    p = torch.rand(200, generator=generator, dtype=torch.float64)
    up, down = (
        cal.diagnostics.reliability_band(p, levels, block=block) for levels in ([0.1, 0.5, 0.9], [0.9, 0.5, 0.1])
    )
    assert torch.equal(down.low.flip(0), up.low)
    assert torch.equal(down.high.flip(0), up.high)


def test_gaps_do_not_shift_the_blocks_of_a_band():
    # Trajectories of four rows, all high or all low, the first row of each unseen.
    p = torch.tensor([math.nan, 0.2, 0.2, 0.2, math.nan, 0.8, 0.8, 0.8], dtype=D).repeat(25)
    band = cal.diagnostics.reliability_band(p, [0.5], block=4)
    whole = cal.diagnostics.reliability_band(p[~p.isnan()], [0.5], block=3)
    torch.testing.assert_close(band.low, whole.low)
    torch.testing.assert_close(band.high, whole.high)
    nobody = torch.full((400,), math.nan, dtype=D)
    assert torch.equal(cal.diagnostics.reliability_band(torch.cat([p, nobody]), [0.5], block=4).low, band.low)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: cal.diagnostics.reliability_band([0.5], block=0), "block 0"),
        (lambda: cal.diagnostics.reliability_band([0.5], draws=0), "draws 0"),
        (lambda: cal.diagnostics.noise_floor(0), "n 0.0 is not"),
        (lambda: cal.diagnostics.reliability_curve([0.5, 1.5]), "outside"),
        (lambda: cal.diagnostics.reliability_curve(torch.zeros(2, 2, 2)), "shape"),
        (lambda: cal.diagnostics.reliability_curve([math.nan, math.nan]), "no outcome was seen"),
        (lambda: cal.diagnostics.reliability_curve([0.5], [2.0]), "levels"),
        (lambda: cal.diagnostics.coverage([0.5], 90), "between 0 and 1"),
        (lambda: cal.diagnostics.pit_histogram([0.5], 0), "bins"),
        (lambda: cal.diagnostics.reliability_band([0.5], confidence=1.0), "confidence"),
    ],
)
def test_bad_input_is_refused(attempt, words):
    with pytest.raises(cal.CalibrlError, match=words):
        attempt()

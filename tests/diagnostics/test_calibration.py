"""The paper's diagnostics against loops that spell them out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

import calibrl as cal
from calibrl.diagnostics.calibration import share_interval

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


@pytest.mark.parametrize(("rows", "block"), [(10, 1), (20, 1), (400, 1), (400, 5)])
def test_the_band_covers_at_every_level(generator, rows, block):
    """From ten rows on: a bootstrap of those covered 40 % at the outer levels."""
    inside, levels = [], torch.tensor([0.05, 0.3, 0.7, 0.95], dtype=D)
    for _ in range(400):
        # Blocks of five rows that move together.
        p = torch.rand(rows // block, generator=generator, dtype=D).repeat_interleave(block)
        low, high = cal.diagnostics.reliability_band(p, levels, confidence=0.9, block=block)
        inside.append((low <= levels) & (levels <= high))
    covered = torch.stack(inside).double().mean(0)
    assert float(covered.min()) > 0.87
    assert rows < 400 or float(covered.max()) < 0.96


def test_shares_have_the_exact_interval_of_scipy():
    low, high = share_interval(np.array([0.0, 0.3, 1.0]), np.array([7, 10, 12]), 0.9)
    for j, (hits, n) in enumerate([(0, 7), (3, 10), (12, 12)]):
        exact = stats.binomtest(hits, n).proportion_ci(0.9, method="exact")
        assert (low[j], high[j]) == pytest.approx((exact.low, exact.high))


def autoregressive(rows, columns, phi, together, rng):
    """Standard normal rows that resemble the one before by phi, columns that go together by `together`."""
    noise = rng.normal(size=(rows, columns)) * math.sqrt(1 - together)
    noise += math.sqrt(together) * rng.normal(size=(rows, 1))
    noise[1:] *= math.sqrt(1 - phi**2)
    return torch.from_numpy(lfilter([1.0], [1.0, -phi], noise, axis=0))


@pytest.mark.parametrize(
    ("phi", "columns", "together", "least", "most"),
    [(0.0, 1, 0.0, 0.999, 1.0), (0.0, 6, 0.0, 0.999, 1.0), (0.8, 1, 0.0, 0.1, 0.25), (0.0, 20, 0.9, 0.04, 0.09)],
)
def test_rows_that_resemble_each_other_count_for_fewer(phi, columns, together, least, most):
    """What indicators of an autoregression share, Σ ρ_k with ρ_k from the bivariate normal, leaves one row in six."""
    p = torch.special.ndtr(autoregressive(1000, columns, phi, together, np.random.default_rng(0)))
    found = cal.diagnostics.effective_rows(p)
    assert least <= found.rows / p.numel() <= most
    assert cal.diagnostics.effective_rows(p, block=1).inflation == 1
    if phi:
        assert found.inflation == pytest.approx(1000 / cal.diagnostics.effective_rows(p, block=50).rows, rel=0.5)


@pytest.mark.parametrize(("phi", "columns", "together"), [(0.8, 1, 0.0), (0.0, 20, 0.9), (0.5, 3, 0.3)])
def test_calibrated_rows_that_depend_on_each_other_raise_few_alarms(phi, columns, together):
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(60):
        z = autoregressive(300, columns, phi, together, rng)
        found = cal.summary(torch.distributions.Normal(torch.zeros_like(z), 1.0), z)
        alarms += not found.verdict()[0].startswith("Calibrated")
    assert alarms <= 7
    wide = 1.6 * autoregressive(1000, columns, phi, together, rng)
    found = cal.summary(torch.distributions.Normal(torch.zeros_like(wide), 1.0), wide)
    assert found.verdict()[0].startswith("Over-confident")


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
        (lambda: cal.diagnostics.effective_rows([0.5], block=0), "block 0"),
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


def test_pits_that_are_all_alike_resemble_one_another_no_more_than_chance():
    """Nothing varies: there is no resemblance to be seen, and nothing to divide by."""
    assert cal.diagnostics.effective_rows(np.zeros(39)).inflation == 1

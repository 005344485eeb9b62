"""What outcomes say of forecasts known at a few levels only."""

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from calibrl import CalibrlError
from calibrl.diagnostics import quantile_summary

LEVELS = np.array([0.05, 0.1, 0.5, 0.9])


def test_the_numbers_are_those_of_numpy():
    generator = np.random.default_rng(0)
    y = generator.normal(size=400)
    q = generator.normal(0, 0.2, size=(400, 1)) + stats.norm.ppf(LEVELS)
    y[::7] = np.nan
    found = quantile_summary(q, LEVELS, y)
    seen = ~np.isnan(y)
    y, q = y[seen, None], q[seen]
    share = (y <= q).mean(0)
    assert found.n == seen.sum()
    assert found.observed == pytest.approx(tuple(share))
    assert found.calibration_loss == pytest.approx(((share - LEVELS) ** 2).sum())
    assert found.noise_floor == pytest.approx((LEVELS * (1 - LEVELS)).sum() / len(y))
    loss = np.where(y > q, LEVELS * (y - q), (1 - LEVELS) * (q - y))
    assert found.pinball == pytest.approx(loss.mean())
    # Of the levels only 0.1 and 0.9 are the ends of a central interval.
    assert found.coverage == {0.8: pytest.approx(((y >= q[:, 1:2]) & (y <= q[:, 3:])).mean())}
    assert found.width == {0.8: pytest.approx((q[:, 3] - q[:, 1]).mean())}


@pytest.mark.parametrize("n", [20, 300])
def test_a_calibrated_forecaster_is_called_wrong_once_in_a_hundred(n):
    generator = np.random.default_rng(1)
    q = np.tile(LEVELS, (n, 1))
    wrong = np.mean([quantile_summary(q, LEVELS, generator.random(n)).p_value < 0.01 for _ in range(500)])
    assert wrong <= 0.01 + 4 * np.sqrt(0.01 * 0.99 / 500)


@pytest.mark.parametrize(
    ("scale", "shift", "word"),
    [(2, 0, "Over-confident"), (0.4, 0, "Under-confident"), (1, 0.35, "Biased"), (1, 0, "Cali")],
)
def test_a_verdict_says_what_is_wrong(scale, shift, word):
    y = shift + scale * np.random.default_rng(2).normal(size=1000)
    q = np.tile(stats.norm.ppf([0.1, 0.5, 0.9]), (1000, 1))
    assert quantile_summary(q, [0.1, 0.5, 0.9], y).verdict()[0].startswith(word)


def test_counts_on_a_quantile_fall_on_the_side_that_fits():
    y = np.random.default_rng(3).poisson(2.0, 2000)
    levels = np.array([0.25, 0.5, 0.9])
    q = np.tile(stats.poisson.ppf(levels, 2.0), (2000, 1))
    found = quantile_summary(q, levels, y)
    assert found.calibration_loss == 0
    assert found.p_value > 0.5


def test_shapes_that_do_not_fit_and_no_outcome_are_refused():
    with pytest.raises(CalibrlError, match="do not belong together"):
        quantile_summary(np.zeros((3, 2)), [0.1], np.zeros(3))
    with pytest.raises(CalibrlError, match="no outcome was seen"):
        quantile_summary(np.zeros((3, 2)), [0.1, 0.9], np.full(3, np.nan))


@pytest.mark.parametrize("levels", [[0.05, 0.95], [0.05, 0.25, 0.5, 0.75, 0.95]])
def test_calibrated_rows_that_resemble_their_neighbours_raise_few_alarms(levels):
    """Of 100 autoregressive series (0.9) two thirds were called wrong; one that is too wide is still found."""
    rng = np.random.default_rng(0)
    q = np.tile(stats.norm.ppf(levels), (1000, 1))
    series = lfilter([1.0], [1.0, -0.9], rng.normal(size=(100, 1300)))[:, 300:] * np.sqrt(1 - 0.9**2)
    found = [quantile_summary(q, levels, y) for y in series]
    assert np.mean([one.p_value < 0.01 for one in found]) <= 0.04
    assert np.median([one.effective for one in found]) < 250
    assert "which say as much as" in found[0].verdict()[0]
    assert np.mean([quantile_summary(q, levels, 2 * y).p_value < 0.01 for y in series]) > 0.9
    assert quantile_summary(q, levels, series[0], block=1).effective == 1000
    assert quantile_summary(q, levels, np.sort(series[0])).effective == 1000  # sorting says nothing

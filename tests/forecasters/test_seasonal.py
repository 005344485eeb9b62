import numpy as np
import pytest
import torch

from calibrl import Calibrated, CalibrlError, Data, last_split
from calibrl.forecasters.seasonal import ExponentialSmoothing, SeasonalNaive
from tests import contracts

WEEK = np.array([1.0, 0.8, 0.9, 1.0, 1.3, 1.6, 0.4])
LEADS = 5


def history(n: int, *, seed: int, noise: float = 0.1, drift: float = 0.0, days: int = 56) -> Data:
    """Rows of series with a weekly pattern: x newest first, y the days after."""
    generator = np.random.default_rng(seed)
    start = generator.integers(7, size=(n, 1))
    at = start + np.arange(days + LEADS)
    values = WEEK[at % 7] * (1 + drift * np.arange(days + LEADS)) + noise * generator.standard_normal(at.shape)
    return Data(torch.from_numpy(values[:, :days][:, ::-1].copy()), torch.from_numpy(values[:, days:].copy()))


def test_the_same_weekday_s_mean_by_hand():
    x = torch.arange(56, dtype=torch.float64)[None] + 1
    model = SeasonalNaive(weeks=4)
    model.update(history(100, seed=0))
    # One day ahead is the weekday 6, 13, 20 and 27 days back; five ahead 2, 9, 16 and 23.
    np.testing.assert_allclose(model(x).mean[0, [0, 4]], [np.mean([7, 14, 21, 28]), np.mean([3, 10, 17, 24])])


@pytest.mark.parametrize("make", [SeasonalNaive, ExponentialSmoothing])
def test_a_weekly_pattern_is_found_with_its_spread(make):
    model = make()
    model.update(history(400, seed=0))
    fresh = history(400, seed=1)
    forecast = model(fresh.x)
    error = (forecast.mean - fresh.y).square().mean().sqrt()
    assert float(error) < 0.12, "little more than the noise of 0.1"
    assert float(forecast.stddev.mean()) == pytest.approx(float(error), rel=0.1)


def test_smoothing_follows_a_level_that_moves():
    steady, moving = ExponentialSmoothing(), ExponentialSmoothing()
    steady.update(history(300, seed=0, noise=0.3))
    moving.update(history(300, seed=0, noise=0.05, drift=0.02))
    assert moving.rate > steady.rate
    fresh = history(300, seed=1, noise=0.05, drift=0.02)
    naive = SeasonalNaive()
    naive.update(history(300, seed=0, noise=0.05, drift=0.02))
    errors = [float((model(fresh.x).mean - fresh.y).square().mean()) for model in (moving, naive)]
    assert errors[0] < errors[1]


def test_unknown_days_are_left_out():
    data = history(50, seed=0)
    x = data.x.clone()
    x[:, 6] = torch.nan
    for model in (SeasonalNaive(), ExponentialSmoothing()):
        model.update(data)
        forecast = model(x)
        assert bool(forecast.mean.isfinite().all())
    naive = SeasonalNaive(weeks=4)
    naive.update(data)
    np.testing.assert_allclose(naive(x).mean[:, 0], x[:, [13, 20, 27]].mean(1), rtol=1e-6)
    # Nothing at all on record is no demand to go by.
    assert bool((naive(torch.full((1, 56), torch.nan)).mean == 0).all())


@pytest.mark.parametrize("make", [SeasonalNaive, ExponentialSmoothing])
@pytest.mark.parametrize(
    "check",
    [contracts.check_answers, contracts.check_repeatable, contracts.check_leaves_chance_alone, contracts.check_unseen],
    ids=lambda check: check.__name__,
)
def test_it_is_a_forecaster(check, make):
    check(make, history(60, seed=1), history(30, seed=2))


def test_it_can_be_wrapped():
    model = Calibrated(SeasonalNaive(), split=last_split(0.3))
    model.update(history(200, seed=1))
    assert model(history(5, seed=2).x).batch_shape == (5, LEADS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SeasonalNaive(weeks=0), "nothing to average"),
        (lambda: ExponentialSmoothing(rates=(1.5,)), "between 0 and 1"),
        (lambda: SeasonalNaive().update(Data(torch.ones(4, 3), torch.ones(4, 1))), "do not reach back a week"),
        (lambda: SeasonalNaive().update(Data(torch.ones(4, 9), torch.full((4, 1), torch.nan))), "holds no outcome"),
        (lambda: SeasonalNaive()(torch.ones(4, 9)), "has learnt no rows"),
    ],
)
def test_bad_input_is_refused_in_words(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

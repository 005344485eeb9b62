import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from calibrl import Calibrated, CalibrlError, Data, HeldOut, last_split
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


def test_smoothing_redone_day_by_day():
    x = history(6, seed=3).x
    x[:, 4::7] = 0.0  # a weekday on which the shop is shut
    x[1, ::3] = x[2, 2::7] = torch.nan  # gaps, and a weekday without a record
    model = ExponentialSmoothing(alphas=(0.3,))
    model.update(history(50, seed=0))
    found = model(x).mean
    for row, answers in zip(x.tolist(), found.tolist(), strict=True):
        known = {back: units for back, units in enumerate(row) if units == units}
        overall = np.mean(list(known.values()))
        for lead, answer in enumerate(answers, start=1):
            # By how many days, in weeks' remainders, a day on record lies before the one that is forecast.
            same = [[units for back, units in known.items() if (lead + back) % 7 == k] for k in range(7)]
            season = [np.mean(units) if units else overall for units in same]
            share = [one / np.mean(season) for one in season]
            level = weights = 0.0
            for back, units in known.items():
                usual = share[(lead + back) % 7]
                if usual > 0.05:
                    level += 0.7**back * units / usual
                    weights += 0.7**back
            assert answer == pytest.approx(level / weights * share[0])


def test_smoothing_follows_a_level_that_moves():
    steady, moving = ExponentialSmoothing(), ExponentialSmoothing()
    steady.update(history(300, seed=0, noise=0.3))
    moving.update(history(300, seed=0, noise=0.05, drift=0.02))
    assert moving.alpha > steady.alpha
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


def test_the_spread_is_what_explains_squared_errors_best():
    data, fresh = history(300, seed=4, noise=0.3), history(5, seed=5)
    model = SeasonalNaive(weeks=2)
    model.update(data)

    def parts(x, lead):
        same = x[:, (7 - lead) % 7 :: 7].numpy()
        mean = same[:, :2].mean(1)
        return mean, np.stack([np.ones(len(x)), mean**2, same.var(1, ddof=1)], 1)

    for lead in range(1, LEADS + 1):
        mean, given = parts(data.x, lead)
        share, _ = nnls(given, (data.y[:, lead - 1].numpy() - mean) ** 2)
        np.testing.assert_allclose(model(fresh.x).stddev[:, lead - 1], np.sqrt(parts(fresh.x, lead)[1] @ share))


def test_it_can_be_wrapped():
    model = Calibrated(SeasonalNaive(), evidence=HeldOut(last_split(0.3)))
    model.update(history(200, seed=1))
    assert model(history(5, seed=2).x).batch_shape == (5, LEADS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SeasonalNaive(weeks=0), "nothing to average"),
        (lambda: ExponentialSmoothing(alphas=(1.5,)), "between 0 and 1"),
        (lambda: SeasonalNaive().update(Data(torch.ones(4, 3), torch.ones(4, 1))), "do not reach back a week"),
        (lambda: SeasonalNaive().update(Data(torch.ones(4, 9), torch.full((4, 1), torch.nan))), "holds no outcome"),
        (lambda: SeasonalNaive()(torch.ones(4, 9)), "has learnt no rows"),
    ],
)
def test_bad_input_is_refused_in_words(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

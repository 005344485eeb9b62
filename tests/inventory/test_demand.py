from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm, spearmanr
from torch.distributions import Gamma, Normal

from calibrl import CalibrlError, Empirical, Recalibrated, fit_isotonic
from calibrl.forecasters.densenet import Passes
from calibrl.inventory.demand import HISTORY, features, in_units, joint_ranks, levels, paths, zscores
from calibrl.inventory.problems import Periods
from tests.inventory.test_problems import sales


def seed(value: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(value)


@pytest.fixture
def passes():
    """Four forecasts of three days; days move together from pass to pass."""
    generator = seed(3)
    common = torch.randn(200, 4, 1, generator=generator)
    own = torch.randn(200, 4, 3, generator=generator)
    return Passes(50 + 10 * (0.9 * common + 0.44 * own))


@pytest.fixture
def mapping():
    """A map learnt from outcomes that scatter three times as much as forecast, and lie higher."""
    z = 0.5 + 3 * torch.randn(2000, 3, generator=seed(1), dtype=torch.float64)
    return fit_isotonic(z=z)


def test_paths_have_the_forecasts_margins(passes):
    found = paths(passes, 200, seed())
    assert found.shape == (4, 200, 3)
    assert (found == found.round()).all()
    levels = (np.arange(200) + 0.5) / 200
    for i in range(4):
        for lead in range(3):
            wanted = norm.ppf(levels, passes.loc[i, lead], passes.scale[i, lead])
            np.testing.assert_allclose(np.sort(found[i, :, lead]), wanted, atol=0.5 + 1e-4)


def test_recalibrated_paths_keep_their_ranks(passes, mapping):
    # So many units that rounding makes no ties.
    many = passes.times(torch.tensor(1e4))
    bare, honest = paths(many, 200, seed()), paths(Recalibrated(many, mapping), 200, seed())
    for i in range(4):
        for lead in range(3):
            order = np.argsort(bare[i, :, lead])
            assert (np.diff(honest[i, order, lead]) >= 0).all()
        together = spearmanr(bare[i])[0], spearmanr(honest[i])[0]
        np.testing.assert_allclose(together[1], together[0], atol=0.06)
        assert together[0][0, 1] > 0.6


def test_recalibrated_paths_have_the_honest_margins(passes, mapping):
    forecast = Recalibrated(passes, mapping)
    found = paths(forecast, 200, seed())
    wanted = forecast.icdf(((torch.arange(200, dtype=torch.float64) + 0.5) / 200)[:, None, None].expand(-1, 4, 3))
    np.testing.assert_allclose(np.sort(found, 1).transpose(1, 0, 2), wanted.clamp(min=0).round(), atol=1.0)
    assert (found >= 0).all()


def test_paths_of_other_forecasts_have_independent_days():
    found = paths(Normal(torch.full((2, 3), 100.0), torch.full((2, 3), 20.0)), 500, seed())
    assert abs(spearmanr(found[0])[0] - np.eye(3)).max() < 0.15
    drawn = paths(Empirical(100 + 20 * torch.randn(400, 2, 3, generator=seed())), 500, seed(1))
    assert drawn.shape == (2, 500, 3)
    assert drawn.mean() == pytest.approx(100, abs=2)


@given(count=st.sampled_from([2, 7, 200, 350]))
def test_every_path_has_a_place_of_its_own(count):
    forecast = Passes(torch.randn(200, 2, 3, generator=seed(4)))
    rank = joint_ranks(forecast, count, seed())
    assert rank.shape == (2, 3, count)
    np.testing.assert_array_equal(np.sort(rank.numpy(), -1), np.broadcast_to(np.arange(count), (2, 3, count)))


def test_one_path_is_refused(passes):
    with pytest.raises(CalibrlError, match="2 or more"):
        paths(passes, 1, seed())


def test_units_scale_forecasts_of_all_kinds(passes, mapping):
    level = torch.tensor([[1.0], [2.0], [3.0], [10.0]])
    for forecast in (passes, Normal(passes.loc, passes.scale), Recalibrated(passes, mapping)):
        found = in_units(forecast, level)
        torch.testing.assert_close(found.mean, forecast.mean * level, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(found.stddev, forecast.stddev * level, rtol=1e-3, atol=1e-3)
    with pytest.raises(CalibrlError, match="cannot be turned into units"):
        in_units(Gamma(level, level), level)


def test_counts_of_a_perfect_forecast_have_uniform_pits():
    generator = seed(5)
    mean = 0.5 + 3 * torch.rand(4000, 1, generator=generator, dtype=torch.float64)
    forecast = Normal(mean, torch.full_like(mean, 1.5))
    units = (mean + 1.5 * torch.randn(mean.shape, generator=generator, dtype=torch.float64)).round().clamp(min=0)
    assert float((units == 0).double().mean()) > 0.1
    z = zscores(forecast, units, generator)
    assert kstest(z.numpy().reshape(-1), "norm").pvalue > 0.01


def test_unknown_demand_is_not_judged():
    z = zscores(Normal(torch.zeros(2, 1), torch.ones(2, 1)), torch.tensor([[torch.nan], [0.0]]), seed())
    assert z.isnan().tolist() == [[True], [False]]


def test_periods_must_follow_each_other():
    with pytest.raises(CalibrlError, match="calibrate_from"):
        Periods("2024-01-01", "2024-03-01", "2024-02-01", "2024-04-01")


def test_periods_cut_rows_by_target_date():
    made = sales(np.random.default_rng(0).poisson(20, (2, 100)).astype(float))
    rows = features(made)
    when = Periods("2024-01-01", "2024-03-01", "2024-03-20", "2024-04-01")
    fit, held, test = rows.split(when, made)
    assert made.dates[(fit.day + 5).max()] == np.datetime64("2024-02-29")
    assert made.dates[(held.day + 1).min()] == np.datetime64("2024-03-01")
    assert made.dates[(held.day + 5).max()] == np.datetime64("2024-03-19")
    assert made.dates[test.day.min()] == np.datetime64("2024-03-19")
    assert made.dates[test.day.max()] == np.datetime64("2024-03-31")


@pytest.fixture
def made():
    units = np.random.default_rng(0).poisson(20, (3, 120)).astype(float)
    marks = {"holiday": np.zeros((3, 120), dtype=bool)}
    marks["holiday"][:, 60] = True
    promotion = np.zeros((3, 120))
    promotion[1, 70] = 1
    return sales(units, marks=marks, promotion=promotion, product=("a", "b", "a"))


def column(found, name):
    return found.data.x[:, found.names.index(name)].numpy()


def test_the_papers_features_are_what_they_say(made):
    found = features(made)
    scale = made.units.mean(1)
    # By hand, for one series and day.
    row = int(np.flatnonzero((found.series == 2) & (found.day == 50))[0])
    scaled = made.units[2] / scale[2]
    for k in range(4):
        assert column(found, f"{k} days back")[row] == pytest.approx(scaled[50 - k], rel=1e-6)
    for days in (7, 14, 28):
        assert column(found, f"{days}-day mean")[row] == pytest.approx(scaled[51 - days : 51].mean(), rel=1e-6)
    assert column(found, f"weekday {made.dates[50].item().weekday()}")[row] == 1
    assert sum(column(found, f"weekday {k}")[row] for k in range(7)) == 1
    assert sum(column(found, f"week {k}")[row] for k in range(53)) == 1
    np.testing.assert_allclose(found.data.y[row].numpy(), scaled[51:56], rtol=1e-6)
    np.testing.assert_allclose(found.units[row].numpy(), made.units[2, 51:56])
    assert len(found.names) == 4 + 3 + 7 + 53 + 2


def test_rows_come_in_the_order_of_days(made):
    found = features(made)
    assert (np.diff(found.day) >= 0).all()
    assert found.day.min() == 27
    assert found.day.max() == 119
    assert bool(found.data.y[-1].isnan().all())


def test_more_features_look_at_each_day_ahead(made):
    found = features(made, "plus")
    row = int(np.flatnonzero((found.series == 1) & (found.day == 66))[0])
    scaled = made.units[1] / made.units[1].mean()
    for lead in range(1, 6):
        assert column(found, f"+{lead}: same weekday")[row] == pytest.approx(scaled[66 + lead - 7], rel=1e-6)
        assert column(found, f"+{lead}: two weeks before")[row] == pytest.approx(scaled[66 + lead - 14], rel=1e-6)
        four = [scaled[66 + lead - 7 * week] for week in range(1, 5)]
        assert column(found, f"+{lead}: mean of four")[row] == pytest.approx(np.mean(four), rel=1e-6)
        assert column(found, f"+{lead}: promotion")[row] == float(66 + lead == 70)
    row = int(np.flatnonzero((found.series == 0) & (found.day == 57))[0])
    assert [column(found, f"+{lead}: holiday")[row] for lead in range(1, 6)] == [0, 0, 1, 0, 0]
    assert column(found, "product a")[row] == 1
    assert column(found, "product b")[row] == 0


def test_the_future_is_not_in_the_features(made):
    later = made.units.copy()
    later[:, 81:] = 999
    scale = np.ones(3)
    for recipe in ("paper", "plus", "history"):
        before, after = (features(replace(made, units=units), recipe, scale=scale) for units in (made.units, later))
        known = before.day <= 80
        torch.testing.assert_close(before.data.x[known], after.data.x[known], equal_nan=True)


def test_gaps_are_filled_and_never_learnt_as_zero(made):
    units = made.units.copy()
    units[0, 40:45] = np.nan
    units[1, 40:80] = np.nan
    found = features(replace(made, units=units))
    assert bool(found.data.x.isfinite().all())
    row = int(np.flatnonzero((found.series == 0) & (found.day == 44))[0])
    month = np.nanmean(units[0, 17:45]) / np.nanmean(units[0])
    assert column(found, "0 days back")[row] == pytest.approx(month, rel=1e-6)
    before = int(np.flatnonzero((found.series == 0) & (found.day == 39))[0])
    assert bool(found.data.y[before].isnan().all())
    # After 28 days without a record there is nothing to go by.
    assert not ((found.series == 1) & (found.day >= 68) & (found.day < 80)).any()


def test_a_day_that_sold_out_is_no_target(made):
    censored = np.zeros((3, 120), dtype=bool)
    censored[2, 55] = True
    found = features(replace(made, censored=censored))
    row = int(np.flatnonzero((found.series == 2) & (found.day == 52))[0])
    assert found.data.y[row].isnan().tolist() == [False, False, True, False, False]


def test_history_is_raw(made):
    found = features(made, "history")
    assert found.data.x.shape[1] == HISTORY
    row = int(np.flatnonzero((found.series == 0) & (found.day == 30))[0])
    assert bool(found.data.x[row, 31:].isnan().all())
    assert not bool(found.data.x[row, :31].isnan().any())


def test_periods_do_not_share_targets(made):
    found = features(made)
    early, late = found.targets_within(0, 79), found.targets_within(80, 119)
    assert (early.day + 5).max() == 79
    assert (late.day + 1).min() == 80
    decided = found.decided_for(80, 119)
    assert decided.day.min() == 79
    assert decided.day.max() == 118


def test_levels_are_those_of_the_training_days():
    found = sales([[2, 4, 100], [0, 0, 9]])
    np.testing.assert_array_equal(levels(found, "2024-01-03"), [3, 1])
    with pytest.raises(CalibrlError, match="no sales on record"):
        levels(found, "2024-01-01")


def test_unknown_recipes_are_refused(made):
    with pytest.raises(CalibrlError, match="known: paper, plus, history"):
        features(made, "papr")
    with pytest.raises(CalibrlError, match="looks no day ahead"):
        features(made, leads=0)

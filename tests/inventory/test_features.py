from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrl import CalibrlError
from calibrl.inventory.features import HISTORY, features, levels
from tests.inventory.test_problems import sales


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

"""From sales to honest demand: bridged days, sold-out days, calibrated margins, joint paths."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Normal

from calibrl import Data, Recalibrated, fit_isotonic
from calibrl.distributions import Rounded
from calibrl.errors import CalibrlError
from calibrl.inventory.files import read_sales
from calibrl.inventory.history import check_country, holidays_on, year_before
from calibrl.inventory.tills import Reading
from calibrl.shop import features
from calibrl.shop.demand import (
    BoostedDemand,
    DemandModel,
    Evened,
    LinearDemand,
    _data,
    correlation,
    fit_by_days,
    four_weeks,
    paths,
    ranks,
    train,
)
from calibrl.shop.features import _at_least, draw_at_least, make_record
from tests.contracts import check_answers, check_leaves_chance_alone, check_repeatable, check_two_batches, check_unseen
from tests.shop.conftest import small_shop


@pytest.fixture
def history(write):
    return read_sales(write(small_shop(200)))


# The record.


def test_an_odd_closure_does_not_lower_the_weekday(write):
    frame = small_shop(120)
    day = np.datetime64("2025-01-01") + 100
    shut = frame.with_columns(pl.when(pl.col("date") == day.item()).then(0).otherwise("units").alias("units"))
    record = make_record(read_sales(write(shut)))
    assert record.odd[:, 100].all()
    assert record.usual[:, 100] == pytest.approx(np.median(record.usual[:, [93, 86, 79, 72, 65]], 1))


def test_a_weekday_that_is_always_closed_is_no_odd_closure(history):
    record = make_record(history)
    sundays = np.flatnonzero(history.sales.weekday[: history.today + 1] == 6)
    assert not record.odd[:, sundays[4:]].any()
    assert (record.usual[:, sundays[4:]] == 0).all()
    x = features.rows(features.moving_sums(record), np.arange(3), np.full(3, record.today), 7)
    shut = x[..., features.SHUT] > 0
    ahead = history.sales.weekday[record.today + 1 : record.today + 8]
    assert (shut == (ahead == 6)).all()


def test_a_date_closed_two_years_running_is_closed_again(write):
    date = np.datetime64("2022-06-01") + np.arange(1290)
    open_day = ~np.isin([str(day)[5:] for day in date], ["12-25"])
    rows = {"date": date[open_day], "item": "a", "units": 20}
    frame = pl.concat([pl.DataFrame({**rows, "item": item}) for item in "abc"])
    record = make_record(read_sales(write(frame), today=np.datetime64("2025-12-11")))
    days = record.history.sales.dates
    ahead = np.flatnonzero(record.announced[0] & (days > np.datetime64("2025-01-01")))
    assert [str(days[k]) for k in ahead] == ["2025-12-25"]


@given(mean=st.floats(1, 200), above=st.floats(-2, 3))
def test_a_sold_out_day_counts_as_the_mean_of_days_that_sell_at_least_so_much(mean, above):
    spread = np.sqrt(mean + (0.2 * mean) ** 2 + 0.25)
    sold = max(0.0, mean + above * spread)
    found = float(_at_least(np.array([sold]), np.array([mean]))[0])
    truth = stats.truncnorm.mean((sold - mean) / spread, np.inf, loc=mean, scale=spread)
    assert found == pytest.approx(truth, rel=1e-6)


def test_demand_of_sold_out_days_is_drawn_from_the_days_that_sell_at_least_so_much():
    mean, sold = np.full(20_000, 30.0), np.full(20_000, 27.0)
    found = draw_at_least(sold, mean, np.random.default_rng(0))
    spread = np.sqrt(30 + 6.0**2 + 0.25)
    truth = stats.truncnorm((27 - 30) / spread, np.inf, loc=30, scale=spread)
    assert (found >= sold).all()
    assert stats.kstest(found, truth.cdf).pvalue > 0.01


def test_what_is_usual_does_not_climb_while_an_item_sells_out(write):
    date = np.datetime64("2024-01-01") + np.arange(500)
    record = make_record(read_sales(write(pl.DataFrame({"date": date, "item": "a", "units": 30, "in_stock": 0}))))
    assert (record.typical[0, 1:500] == 30).all()
    assert (record.usual[0, 60:500] == record.usual[0, 60]).all()
    assert 30 < record.usual[0, 60] < 40


def test_a_shelf_that_stood_empty_does_not_lower_the_weekday(write):
    frame = small_shop(200)
    gone = pl.col("date") > (np.datetime64("2025-01-01") + 160).item()
    empty = frame.with_columns(pl.when(gone).then(0).otherwise("units").alias("units"), (~gone).alias("in_stock"))
    record = make_record(read_sales(write(empty)))
    before, after = record.usual[:, 100:160].mean(1), record.usual[:, 161:200].mean(1)
    assert after == pytest.approx(before, rel=0.1)
    assert not record.odd[:, 161:200].any(1, where=record.history.sales.weekday[161:200] != 6).any()


# Features look back only.


def test_features_do_not_see_the_evening_after(history):
    evening = history.today - 30
    early = features.moving_sums(make_record(history.at(evening)))
    late = features.moving_sums(make_record(history))
    i = np.arange(3)
    at = np.full(3, evening)
    assert np.allclose(features.rows(early, i, at, 10), features.rows(late, i, at, 10))


# Forecasters.


def same_weekday():
    """The mean of the last four same weekdays, with a learnt spread."""
    return LinearDemand(slopes=lambda x, _: four_weeks(x))


@pytest.mark.parametrize("make", [LinearDemand, same_weekday, BoostedDemand])
@pytest.mark.parametrize(
    "check", [check_answers, check_repeatable, check_leaves_chance_alone, check_two_batches, check_unseen]
)
def test_forecasters_keep_the_contract(make, check, history):
    table = features.moving_sums(make_record(history))
    data, _ = _data(table, range(60, 170), 170, 3, np.random.default_rng(0))
    known = data[~data.y.isnan().any(1)]
    check(make, known[:100], known[100:])


def rows_of(n: int, rng: np.random.Generator, *, holiday: bool = False) -> Data:
    """Rows whose demand is 20 by the weekday's mean, 32 when the second regressor says so."""
    x = np.zeros((n, 1, features.LEAD_IN + 4))
    x[..., features.SCALE] = 20.0
    x[..., features.SPREAD] = 4.0
    x[..., features.HISTORY] = 52.0
    x[..., features.LEAD_IN + 2] = 1.0
    flag = rng.random(n) < 0.3
    x[:, 0, features.LEAD_IN + 1] = flag * holiday
    y = rng.poisson(20 * np.where(flag & holiday, 1.6, 1.0))
    return Data.of(x, y[:, None].astype(float))


def test_the_line_finds_the_median_and_the_spread():
    data = rows_of(4000, np.random.default_rng(0), holiday=True)
    model = LinearDemand()
    model.update(data)
    plain, special = (data.x[:, 0, features.LEAD_IN + 1] == k for k in (0, 1))
    forecast = model(data.x)
    median = forecast.icdf(torch.full((4000, 1), 0.5))
    assert abs(float(median[plain].mean()) - 20) <= 1
    assert abs(float(median[special].mean()) - 32) <= 1.5
    assert float(forecast.base.scale[plain].mean()) == pytest.approx(np.sqrt(20), rel=0.15)


def test_without_rows_the_line_is_the_same_weekday():
    data = rows_of(5, np.random.default_rng(0))
    median = LinearDemand()(data.x).icdf(torch.full((5, 1), 0.5))
    assert median.flatten().tolist() == [20.0] * 5


def test_trees_learn_what_a_line_cannot():
    rng = np.random.default_rng(1)
    n = 6000
    x = np.zeros((n, 1, features.LEAD_IN + 5))
    x[..., features.SCALE], x[..., features.SPREAD], x[..., features.HISTORY] = 20.0, 4.0, 52.0
    x[..., features.LEAD_IN + 2] = 1.0
    a, b = rng.random(n) < 0.5, rng.random(n) < 0.5
    x[:, 0, features.LEAD_IN], x[:, 0, features.LEAD_IN + 1] = a, b
    data = Data.of(x, rng.poisson(np.where(a ^ b, 40, 10))[:, None].astype(float))
    line, trees = LinearDemand(), BoostedDemand()
    line.update(data)
    trees.update(data)
    off = [float((model(data.x).icdf(torch.full((n, 1), 0.5)) - data.y).abs().mean()) for model in (line, trees)]
    assert off[1] < 0.5 * off[0]


# Calibration.


def test_sold_out_days_do_not_hide_demand(write):
    """Sales cut off at 13 where demand is Poisson(12): taken for demand they would forecast too little."""
    rng = np.random.default_rng(3)
    date = np.datetime64("2024-01-01") + np.arange(400)
    parts = []
    for k in range(12):
        demand = rng.poisson(12, 400)
        shelf = rng.choice([9, 13, 30], 400)
        parts.append(
            pl.DataFrame(
                {"date": date, "item": f"i{k:02d}", "units": np.minimum(demand, shelf), "in_stock": demand <= shelf}
            )
        )
    frame = pl.concat(parts)

    def upper(file: pl.DataFrame) -> float:
        of = features.moving_sums(make_record(read_sales(write(file))))
        demand = train(of, leads=1, rng=np.random.default_rng(0))
        return float(demand.forecast(of).icdf(torch.full((12, 1), 0.8)).mean())

    told, blind = upper(frame.with_columns(pl.col("in_stock").cast(pl.Int8))), upper(frame.drop("in_stock"))
    truth = stats.poisson.ppf(0.8, 12)
    assert abs(told - truth) <= 1.5
    assert blind < told - 1


def test_the_forecaster_is_not_trained_on_the_days_that_calibrate_it(write):
    frame = small_shop(200)
    later = np.datetime64("2025-01-01") + 200 - 200 // 4
    other = frame.with_columns(
        pl.when(pl.col("date") >= later.item()).then(3 * pl.col("units")).otherwise("units").alias("units")
    )

    def learnt(file: pl.DataFrame) -> DemandModel:
        of = features.moving_sums(make_record(read_sales(write(file))))
        return train(of, leads=2, rng=np.random.default_rng(0), make_forecaster=LinearDemand)

    one, two = learnt(frame), learnt(other)
    assert np.array_equal(one.model.forecaster.slope, two.model.forecaster.slope)
    high = torch.full((1, 2), 0.95, dtype=torch.float64)
    # What nineteen days in twenty stayed below is too low now. (Of the median that is not sure: weeks rose once.)
    assert (two.model.mapping(high) < one.model.mapping(high) - 0.02).all()


def shared_days(rng: np.random.Generator, days: int, shared: float, *, last: float = 0.0) -> np.ndarray:
    """(100, days): z-scores of a hundred items of variance 1, of which all share a part that lasts from day to day."""
    common = rng.normal(0, np.sqrt(1 - last**2), days)
    common[0] = rng.normal()
    for day in range(1, days):
        common[day] += last * common[day - 1]
    return np.sqrt(shared) * common + np.sqrt(1 - shared) * rng.normal(0, 1, (100, days))


def fitted(fit, z: np.ndarray):
    """A map of z (items, days) as evidence of one lead day."""
    return fit(z=torch.from_numpy(z.reshape(-1, 1)), weight=torch.ones(z.size, 1, dtype=torch.float64))


@pytest.mark.parametrize("last", [0.0, 0.5])
def test_days_that_all_items_share_count_as_days(last):
    """Sixteen days of a hundred items: intervals hold nine in ten of the days after, not of what was seen."""
    rng, days = np.random.default_rng(8), 16
    ends = torch.tensor([[0.05], [0.95]], dtype=torch.float64)
    held = {"by days": [], "by rows": []}
    for _ in range(150):
        z = shared_days(rng, days, 0.6, last=last)
        for name, fit in (("by days", fit_by_days(np.tile(np.arange(days), 100)[:, None])), ("by rows", fit_isotonic)):
            low, high = stats.norm.ppf(fitted(fit, z).inverse(ends).numpy().ravel())
            held[name].append(stats.norm.cdf(high) - stats.norm.cdf(low))
    assert np.mean(held["by rows"]) < 0.88
    assert abs(np.mean(held["by days"]) - 0.9) < 0.02


def test_many_days_of_independent_items_are_believed_as_they_are():
    rng, days = np.random.default_rng(3), 120
    z = 0.3 + 1.2 * shared_days(rng, days, 0.0)
    p = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)[:, None]
    by_days, by_rows = (fitted(fit, z) for fit in (fit_by_days(np.tile(np.arange(days), 100)[:, None]), fit_isotonic))
    assert by_days(p).numpy() == pytest.approx(by_rows(p).numpy(), abs=0.01)
    assert by_days(p).numpy().ravel() == pytest.approx(stats.norm.cdf(stats.norm.ppf(p.ravel()), 0.3, 1.2), abs=0.02)


def test_an_offset_of_few_days_widens_and_does_not_move():
    z = shared_days(np.random.default_rng(1), 8, 0.5)
    z, days = z - np.median(z) + 0.4, np.tile(np.arange(8), 100)[:, None]
    p = torch.tensor([[0.05], [0.5], [0.95]], dtype=torch.float64)
    by_days, by_rows = (stats.norm.ppf(fitted(fit, z).inverse(p).ravel()) for fit in (fit_by_days(days), fit_isotonic))
    assert by_rows[1] == pytest.approx(0.4, abs=0.1)
    assert abs(by_days[1]) < 0.1
    assert by_days[2] - by_days[0] > 1.15 * (by_rows[2] - by_rows[0])


def test_forecasts_cover_what_they_promise(write):
    """Trained on the past, calibrated on later days, judged on days after those."""
    rng = np.random.default_rng(5)
    date = np.datetime64("2024-01-01") + np.arange(420)
    weekday = (date.astype(int) + 3) % 7
    frame = pl.concat(
        [
            pl.DataFrame(
                {
                    "date": date,
                    "item": f"i{k:02d}",
                    "units": rng.negative_binomial(6, 6 / (6 + (5 + 4 * k) * (1 + 0.5 * (weekday == 5)))),
                }
            )
            for k in range(15)
        ]
    )
    history = read_sales(write(frame))
    demand = train(features.moving_sums(make_record(history.at(330))), leads=3, rng=rng)
    inside = []
    for evening in range(330, 415, 3):
        forecast = demand.forecast(features.moving_sums(make_record(history.at(evening))))
        low, high = (forecast.icdf(torch.full((15, 3), level)).numpy() for level in (0.05, 0.95))
        y = history.sales.units[:, evening + 1 : evening + 4]
        inside.append((low <= y) & (y <= high))
    assert 0.85 <= np.mean(inside) <= 0.96


# Paths.


def test_paths_keep_margins_and_ranks():
    rng = np.random.default_rng(0)
    rho = np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 1.0]])
    rank = ranks(rho, 2000, rng)
    assert (np.sort(rank, 0) == np.arange(2000)[:, None]).all()
    base = torch.distributions.Normal(torch.tensor([[50.0, 100, 10]]).double(), torch.tensor([[5.0, 10, 2]]).double())
    drawn = paths(base, rank, new=np.array([False]))
    assert drawn.shape == (1, 2000, 3)
    assert (drawn == np.rint(drawn)).all()
    assert drawn[0].mean(0) == pytest.approx([50, 100, 10], rel=0.01)
    assert drawn[0].std(0) == pytest.approx([5, 10, 2], rel=0.05)
    found = np.corrcoef(drawn[0].T)
    assert found[0, 1] == pytest.approx(0.8, abs=0.05)
    assert abs(found[0, 2]) < 0.06


def test_the_days_of_a_new_item_move_as_one():
    rank = ranks(np.eye(3), 500, np.random.default_rng(0))
    mean = torch.tensor([[20.0, 50, 100]]).double().expand(2, 3)
    known, new = paths(torch.distributions.Normal(mean, mean / 5), rank, new=np.array([False, True]))
    assert (np.sort(known, 0) == np.sort(new, 0)).all()
    assert np.corrcoef(new.T).min() > 0.99
    assert known.sum(1).std() == pytest.approx(np.sqrt(4**2 + 10**2 + 20**2), rel=0.1)
    assert new.sum(1).std() == pytest.approx(4 + 10 + 20, rel=0.02)


def test_paths_of_a_calibrated_forecast_are_its_quantiles():
    base = torch.distributions.Normal(torch.tensor([[20.0, 40], [200, 10]]).double(), torch.tensor(4.0).double())
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(0.5, 2, (400, 2)))
    forecast = Recalibrated(base, fit_isotonic(z=z))
    rank = np.stack([rng.permutation(99), rng.permutation(99)], 1)
    drawn = paths(forecast, rank, new=np.array([False, False]))
    for day in range(2):
        level = torch.from_numpy((rank[:, day] + 0.5) / 99)
        expected = forecast.icdf(level[:, None, None].expand(99, 2, 2))[..., day].T
        assert drawn[..., day] == pytest.approx(np.maximum(np.rint(expected.numpy()), 0))


def test_correlation_with_gaps_is_the_correlation():
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 20_000)
    z[rng.random(z.shape) < 0.2] = np.nan
    assert correlation(z)[0, 1] == pytest.approx(0.6, abs=0.03)


def test_an_item_that_is_new_to_a_store_gets_its_demand_in_the_others(write):
    frame = small_shop(120)
    stores = [frame.with_columns(units=pl.col("units") * k, store=pl.lit(store)) for k, store in ((1, "A"), (3, "B"))]
    new = pl.DataFrame({"date": [np.datetime64("2025-04-30").item()], "item": "bread", "units": [None], "store": "C"})
    history = read_sales(write(pl.concat([*stores, new.cast(dict(stores[0].schema))])))
    record = make_record(history)
    at = {key: k for k, key in enumerate(history.keys)}
    sold = record.usual[[at["bread", "A"], at["bread", "B"]], : record.today + 1].mean(1)
    assert record.prior[at["bread", "C"]] == pytest.approx(sold.mean(), rel=0.01)


def test_an_item_without_sales_gets_the_median_items_demand(write):
    frame = pl.concat(
        [
            small_shop(120),
            pl.DataFrame(
                {"date": [np.datetime64("2025-04-30").item()], "item": ["new"], "units": [None]},
                schema_overrides={"units": pl.Int64},
            ),
        ]
    )
    history = read_sales(write(frame))
    record = make_record(history)
    new = history.keys.index(("new", ""))
    others = np.delete(record.usual[:, : record.today + 1], new, 0).mean(1)
    assert record.prior[new] == pytest.approx(np.median(others), rel=0.05)
    of = features.moving_sums(record)
    forecast = train(of, leads=2, rng=np.random.default_rng(0)).forecast(of)
    assert float(forecast.mean[new, 0]) == pytest.approx(record.prior[new], rel=0.35)
    # The guess is as uncertain as it is large; below zero it is cut off.
    assert float(forecast.stddev[new, 0]) == pytest.approx(0.85 * record.prior[new], rel=0.1)


# Evening out.


class Wide:
    """N(100, 10) for every day."""

    def update(self, data): ...

    def __call__(self, x):
        return Rounded(Normal(torch.full(x.shape[:2], 100.0).double(), 10.0))


def kinds_of_days(rng, days=140, items=40):
    """Rows of one lead day: x with the level, weekday and distance to a holiday of each item on each day."""
    day = np.repeat(np.arange(days), items)
    x = np.zeros((len(day), 1, features.LEAD_IN + 1))
    x[:, 0, features.SCALE] = np.tile(np.geomspace(1, 1000, items), days)
    x[:, 0, features.WEEKDAY] = day % 7
    x[:, 0, features.NEAR] = np.where(day % 10 == 3, 1.0, np.where(day % 10 == 2, 0.5, 0.0))
    truth = np.where(x[:, 0, features.SCALE] > 250, 2.0, 1.0) * np.where(day % 7 == 6, 1.5, 1.0)
    truth = truth * np.where(day % 10 == 3, 2.0, 1.0)
    y = np.rint(100 + 10 * truth * rng.standard_normal(len(day)))[:, None]
    return Data(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(y.shape, dtype=torch.bool)), day[:, None], truth


def test_kinds_of_days_are_stretched_to_fit_alike():
    rng = np.random.default_rng(0)
    data, day, _ = kinds_of_days(rng)
    model = Evened(Wide())
    model.even(data, day, torch.Generator().manual_seed(0), holidays=200)
    fresh, _, truth = kinds_of_days(rng)
    ratio = model(fresh.x).base.scale.numpy()[:, 0] / truth
    # What all share is the map's to find: kinds agree with each other, but for the doubt left after some weeks.
    assert np.log(ratio).std() < 0.3 * np.log(truth).std()


def test_kinds_that_were_hardly_seen_stay_like_the_others():
    data, day, _ = kinds_of_days(np.random.default_rng(0), days=5)
    model = Evened(Wide())
    model.even(data, day, torch.Generator().manual_seed(0))
    # Four tenths of the way, in logarithms, after five days of eight that make a half; one day for a weekday.
    assert max(model.stretch[0]) < 2 ** (5 / 13) * 1.2
    assert np.abs(np.log(model.stretch[1])).max() < 0.15


def test_a_holiday_is_less_certain_the_fewer_were_seen():
    data, day, _ = kinds_of_days(np.random.default_rng(0), days=5)
    widths = []
    for holidays in (0, 8, 10_000):
        model = Evened(Wide())
        model.even(data, day, torch.Generator().manual_seed(0), holidays=holidays)
        widths.append(model.stretch[2][2])
    # Twice as wide without any, half of that (in logarithms) after eight days, as the days say after very many.
    assert widths[0] / widths[2] == pytest.approx(2.0, rel=1e-2)
    assert widths[1] / widths[2] == pytest.approx(2**0.5, rel=1e-2)


def test_forecasts_widen_while_the_latest_days_are_missed():
    rng = np.random.default_rng(0)
    z, day = rng.standard_normal((100 * 30, 1)), np.repeat(np.arange(100), 30)[:, None]
    model = Evened(Wide())
    model.adapt(z, day)
    calm = model.width
    assert 1 <= calm < 1.06
    model.adapt(np.where(day >= 86, 2 * z, z), day)
    assert 1.2 < model.width < 2
    # Two bad weeks long ago are forgotten.
    model.adapt(np.where(day < 14, 2 * z, z), day)
    assert model.width < 1.1


# Holidays, promotions, other columns.


def test_a_holiday_is_learnt_with_its_eve(write):
    days = np.datetime64("2023-06-01") + np.arange(700)
    rng = np.random.default_rng(0)
    off = holidays_on("DE", days)
    mean = np.where(off, 10.0, np.where(np.roll(off, -1), 60.0, 30.0))
    frame = pl.DataFrame({"date": days, "item": "bread", "units": rng.poisson(mean)})
    # The evening of 29 April 2025: 1 May is a holiday.
    history = read_sales(write(frame), today=np.datetime64("2025-04-29"), reading=Reading(country="DE"))
    sums = features.moving_sums(make_record(history))
    model = train(sums, leads=4, rng=np.random.default_rng(0))
    middle = model.forecast(sums).icdf(torch.tensor(0.5))[0]
    assert middle[0] == pytest.approx(60, rel=0.25)
    assert middle[1] == pytest.approx(10, rel=0.5)
    assert middle[2] == pytest.approx(30, rel=0.2)


def test_a_promotion_of_one_item_is_believed(write):
    rng = np.random.default_rng(0)
    days = np.datetime64("2025-01-01") + np.arange(301)
    promoted = rng.random(301) < 0.11
    promoted[300] = True
    units = rng.poisson(np.where(promoted, 60, 30)).astype(object)
    units[300] = None
    frame = pl.DataFrame({"date": days, "item": "cake", "units": list(units), "promotion": promoted.astype(int)})
    sums = features.moving_sums(make_record(read_sales(write(frame))))
    model = train(sums, leads=2, rng=np.random.default_rng(0))
    middle = model.forecast(sums).icdf(torch.tensor(0.5))[0]
    assert middle[0] == pytest.approx(60, rel=0.1)
    assert middle[1] == pytest.approx(30, rel=0.1)


def test_one_holiday_of_many_items_is_one_holiday(write):
    days = np.datetime64("2025-01-06") + np.arange(60)
    units, holiday = np.full(60, 30.0), np.zeros(60, dtype=int)
    effect = []
    for off in ([40], [32, 36, 40, 44, 48, 52]):
        units[off], holiday[off] = 60.0, 1
        one = {"date": days, "units": units, "holiday": holiday}
        frame = pl.concat([pl.DataFrame(one | {"item": [f"item {k}"] * 60}) for k in range(50)])
        sums = features.moving_sums(make_record(read_sales(write(frame))))
        effect.append(float(sums.effect["holiday"][0, 59]))
    # Doubled on one day: the shop is believed 1 in 5, and the item 1 in 5 of the rest. On six days: 6 in 10 of each.
    assert effect[0] == pytest.approx(1 + 1 / 5 + (4 / 5) * (1 / 5), abs=0.05)
    assert effect[1] == pytest.approx(1 + 6 / 10 + (4 / 10) * (6 / 10), abs=0.1)


def test_other_columns_are_learnt_from(write):
    rng = np.random.default_rng(0)
    days = np.datetime64("2025-01-01") + np.arange(260)
    warm = 15 + 10 * rng.standard_normal(260)
    units = rng.poisson(np.clip(40 + 2 * (warm - 15), 4, None)).astype(object)
    units[-1], warm[-1] = None, 30.0
    frame = pl.DataFrame({"date": days, "item": "ice", "units": list(units), "temperature": warm})
    medians = []
    for regressors in ((), ("temperature",)):
        history = read_sales(write(frame), reading=Reading(regressors=regressors))
        assert ("column temperature not used" in history.done) == (not regressors)
        sums = features.moving_sums(make_record(history))
        model = train(sums, leads=1, rng=np.random.default_rng(0))
        medians.append(float(model.forecast(sums).icdf(torch.tensor(0.5))[0, 0]))
    assert medians[0] < 50
    assert medians[1] > 1.4 * medians[0]
    with pytest.raises(CalibrlError, match="--regressor rain: no such column among date, item"):
        read_sales(write(frame), reading=Reading(regressors=("rain",)))


def test_days_around_a_holiday_are_compared_with_those_of_last_year():
    days = np.arange(np.datetime64("2018-03-26"), np.datetime64("2018-04-08"))
    back = year_before("DE", days)
    # Easter Sunday was 1 April 2018 and 16 April 2017; an ordinary day is 52 weeks back.
    easter = days == np.datetime64("2018-04-01")
    assert back[easter] == 350
    assert back[days == np.datetime64("2018-03-30")] == 350
    assert back[-1] == 364
    assert (year_before("", days) == 364).all()
    with pytest.raises(CalibrlError, match="'XX' is no country; write a code like DE"):
        check_country("xx")

"""The replay: honest about the past, exact in its shelves, paired in its differences."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrl.errors import CalibrlError
from calibrl.inventory.files import Item
from calibrl.inventory.history import AHEAD
from calibrl.shop import backtest
from calibrl.shop.backtest import backtest_frame
from calibrl.shop.commands import _show_backtest
from calibrl.shop.features import make_record
from calibrl.shop.files import Batch, read_shop
from calibrl.shop.page import COLORS, backtest_figure
from tests.shop.conftest import small_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    path = tmp_path_factory.mktemp("shop") / "sales.csv"
    small_shop(170).write_csv(path)
    items = path.with_name("items.csv")
    items.write_text("item,shelf_life\nbread,1\nmilk,3\nrolls,2\n")
    return read_shop(path, items=items)


@pytest.fixture(scope="module")
def replayed(shop):
    delivered = np.full(shop.history.sales.units.shape, 20.0)
    return backtest.run_backtest(shop, 14, delivered=delivered)


def test_real_deliveries_are_replayed_as_they_were(shop, replayed):
    """Bread keeps for a day: what is delivered is sold or thrown away by the evening."""
    demand = np.nan_to_num(shop.history.sales.units[0, shop.history.today - 13 : shop.history.today + 1])
    found = replayed.units[backtest.AS_DELIVERED]
    assert (found.sold[0] == np.minimum(demand, 20)).all()
    assert (found.unmet[0] == np.maximum(demand - 20, 0)).all()
    assert (found.wasted[0] == 20 - found.sold[0]).all()


def test_deliveries_of_long_ago_are_on_the_shelf_as_long_as_they_keep(tmp_path):
    """Wine keeps for a year and came twice, 168 days ago and in the warm-up, enough until the last three days; bread
    that came then is gone."""
    frame = small_shop(170, items=("bread", "wine"))
    frame.write_csv(tmp_path / "sales.csv")
    (tmp_path / "items.csv").write_text("item,shelf_life\nbread,1\nwine,365\n")
    shop = read_shop(tmp_path / "sales.csv", items=tmp_path / "items.csv")
    wine = np.nan_to_num(shop.history.sales.units[1, :-AHEAD])
    delivered = np.zeros(shop.history.sales.units.shape)
    delivered[1, 170 - 14 - backtest.WARM_UP] = 100
    delivered[1, 1] = wine[1:-3].sum() - 100
    delivered[0, 1] = 9_000
    delivered[0, 2:] = 20
    found = backtest.run_backtest(shop, 14, delivered=delivered).units[backtest.AS_DELIVERED]
    assert found.sold[1].tolist() == [*wine[-14:-3], 0, 0, 0]
    assert found.unmet[1, -3:].tolist() == wine[-3:].tolist()
    assert found.wasted[1].sum() == 0
    assert (found.sold[0] + found.wasted[0] == 20).all()


def test_all_policies_meet_the_same_demand(replayed):
    demand = [found.sold + found.unmet for found in replayed.units.values()]
    assert all((each == demand[0]).all() for each in demand)
    assert list(replayed.units) == [
        backtest.AS_DELIVERED,
        backtest.HEURISTIC,
        backtest.TUNED,
        backtest.EMPIRICAL,
        backtest.UNCALIBRATED,
        backtest.CALIBRATED,
    ]
    assert set(replayed.units) <= set(COLORS)


def test_planning_beats_a_fixed_delivery(replayed):
    assert replayed.money(backtest.CALIBRATED).sum() < replayed.money(backtest.AS_DELIVERED).sum()


def test_intervals_hold_what_they_promise(replayed):
    """Poisson demand, 36 open item-days: nine in ten, give or take what chance does to so few."""
    assert 0.75 <= replayed.held[backtest.CALIBRATED] <= 1.0


def test_intervals_are_those_of_the_day_they_are_compared_with(tmp_path):
    """Every weekday sells a number of its own, far from those of its neighbours."""
    date = np.datetime64("2025-01-01") + np.arange(120)
    units = np.array([20, 200, 60, 400, 100, 700, 40])[date.astype(int) % 7]
    pl.DataFrame({"date": date, "item": "bread", "units": units}).write_csv(tmp_path / "sales.csv")
    found = backtest.run_backtest(read_shop(tmp_path / "sales.csv"), 14)
    assert min(found.held.values()) > 0.9


def test_an_interval_holds_demand_or_does_not():
    drawn = np.tile(np.arange(101.0), (4, 1))
    drawn[3] = 0
    found = backtest._inside(drawn, np.array([50.0, 99.0, np.nan, 0.0]))
    assert np.array_equal(found, [1, 0, np.nan, np.nan], equal_nan=True)


def test_differences_are_paired(replayed):
    saved, low, high = replayed.saving(backtest.CALIBRATED, backtest.AS_DELIVERED)
    assert saved == pytest.approx(
        replayed.money(backtest.AS_DELIVERED).sum() - replayed.money(backtest.CALIBRATED).sum()
    )
    assert np.isnan(low)  # of two weeks
    assert np.isnan(high)
    assert replayed.saving(backtest.CALIBRATED, backtest.CALIBRATED)[0] == 0.0


def by_hand(count: int, wasted, unmet, days: int = 28) -> backtest.Backtest:
    """Two policies and `count` items of which a unit wasted costs 0.5, and one not sold 2; the second loses nothing."""
    shape = (count, days)
    nothing = np.zeros(shape, dtype=np.int64)
    units = {
        "a": backtest.DailyUnits(nothing, np.broadcast_to(wasted, shape), np.broadcast_to(unmet, shape)),
        "b": backtest.DailyUnits(nothing, nothing, nothing),
    }
    dates = np.datetime64("2025-01-01") + np.arange(days)
    return backtest.Backtest((Item(cost_of_waste=0.5, cost_of_lost_sale=2.0),) * count, dates, units)


def test_money_is_waste_and_lost_sales_at_their_costs():
    assert (by_hand(3, wasted=4, unmet=3).money("a") == 0.5 * 4 + 2.0 * 3).all()


def test_chance_is_that_of_weeks():
    """What all weeks have in common is certain, however much items and weekdays differ."""
    weekday, item = 1 + np.arange(28) % 7, np.arange(12)[:, None]
    assert by_hand(12, 0, weekday * item).saving("b", "a") == pytest.approx((2.0 * 4 * 28 * 66,) * 3)
    weeks = np.repeat([1, 2, 4, 5], 7)
    saved, low, high = by_hand(2, 0, weeks).saving("b", "a")
    off = 3.182446 * 28 * np.std([1, 2, 4, 5], ddof=1) * 2
    assert (saved - low, high - saved) == pytest.approx((off, off))


def test_the_interval_of_a_saving_holds_what_it_says():
    """Of weeks that differ by chance and days that all items share; 19 in 20, from four weeks on."""
    rng = np.random.default_rng(3)
    for weeks in (4, 8, 13):
        held = []
        for _ in range(400):
            bad = rng.gamma(2, 1, 7 * weeks) * np.repeat(rng.gamma(16, 0.25, weeks), 7)
            found = by_hand(15, 0, np.rint(100 * bad).astype(int), days=7 * weeks)
            _, low, high = found.saving("b", "a")
            held.append(low <= 100 * 8 * 2 * 15 * 7 * weeks <= high)
        assert np.mean(held) > 0.91, weeks


@pytest.mark.parametrize(("alike", "at_least"), [(0.0, 0.945), (0.4, 0.87)])
def test_weeks_that_are_alike_widen_the_interval(alike, at_least):
    """Autoregressive weeks: from eight on, the mean of all is held as often as simulated, not in 80 % as Student's."""
    rng, found = np.random.default_rng(0), []
    for weeks in (8, 13):
        x = rng.normal(size=(20_000, weeks)) * np.sqrt([1, *[1 - alike**2] * (weeks - 1)])
        for k in range(1, weeks):
            x[:, k] += alike * x[:, k - 1]
        found.append((np.abs(x.sum(1)) < backtest.margin(x)).mean())
    assert min(found) > at_least
    assert max(found) < 0.96


def test_two_weeks_cannot_tell_how_weeks_differ(replayed, capsys):
    _show_backtest(replayed)
    shown = capsys.readouterr().out
    assert "so few weeks cannot tell; replay four or more" in shown
    saved, _, _ = replayed.saving(backtest.CALIBRATED, backtest.AS_DELIVERED)
    assert f"{saved:,.0f}\n" in shown


def test_tables_and_figure_hold_every_policy(shop, replayed):
    frame = backtest_frame(replayed, shop.history.keys, stores=False)
    assert len(frame) == len(replayed.units) * 3
    total = frame.filter(pl.col("policy") == backtest.CALIBRATED)["cost"].sum()
    assert total == pytest.approx(replayed.money(backtest.CALIBRATED).sum(), abs=0.1)
    assert len(backtest_figure(replayed).axes) == 2


def test_the_best_simple_rule_is_tuned_on_the_weeks_before(shop, replayed):
    rules = {name: replayed.money(name).sum() for name in replayed.units if name not in backtest.PLANNED}
    assert rules[replayed.best_rule] == min(rules.values())
    start = shop.history.today - len(replayed.dates) - backtest.WARM_UP
    customers = backtest._customers(shop)
    chosen = backtest._tuned(shop, start, customers, 0)
    # What comes after does not matter.
    later = customers.copy()
    later[:, start + 1 :] *= 7
    assert backtest._tuned(shop, start, later, 0) == chosen
    for name, numbers in backtest.NUMBERS.items():
        assert set(chosen[name]) == set(shop.rules)
        assert set(chosen[name].values()) <= set(range(len(numbers)))


def test_past_weeks_are_laid_out_by_weekday():
    usual = np.arange(60.0)[None]
    weeks = backtest._past_weeks(usual, 59)
    assert weeks.shape == (1, 8, 28)
    # Tomorrow is day 60: a week before it is 53, then 46.
    assert weeks[0, :2, 0].tolist() == [53, 46]
    assert weeks[0, 0, :8].tolist() == [53, 54, 55, 56, 57, 58, 59, 53]


def test_the_replay_does_not_look_ahead(tmp_path):
    frame = small_shop(170)
    day = np.datetime64("2025-01-01") + 150
    frame.write_csv(tmp_path / "whole.csv")
    frame.filter(pl.col("date") <= day.item()).write_csv(tmp_path / "cut.csv")
    whole = backtest.run_backtest(read_shop(tmp_path / "whole.csv", today=day), 7)
    cut = backtest.run_backtest(read_shop(tmp_path / "cut.csv"), 7)
    for name, found in whole.units.items():
        assert (found.sold == cut.units[name].sold).all()
        assert (found.wasted == cut.units[name].wasted).all()
    assert backtest.STAND_IN in whole.units


def test_an_item_takes_part_from_its_first_row_on(tmp_path):
    frame = small_shop(170)
    day = np.datetime64("2025-01-01") + 160
    young = frame.filter((pl.col("item") != "rolls") | (pl.col("date") >= day.item()))
    young.write_csv(tmp_path / "sales.csv")
    shop = read_shop(tmp_path / "sales.csv")
    found = backtest.run_backtest(shop, 28, delivered=np.full(shop.history.sales.units.shape, 20.0))
    new = found.dates <= day
    for name, one in found.units.items():
        assert one.wasted[2, new].sum() == one.sold[2, new].sum() == one.unmet[2, new].sum() == 0, name
    assert (found.units[backtest.CALIBRATED].sold[2, ~new] > 0).sum() >= 7


def test_a_planned_item_takes_part_before_its_first_sale(write):
    text = "date,item,units\n" + "".join(f"2025-01-{k:02d},a,3\n" for k in range(1, 20)) + "2025-01-10,b,\n"
    history = read_shop(write(text)).history
    assert [history.at(evening).listed.tolist() for evening in (0, 18)] == [[True, True], [True, True]]
    late = read_shop(write(text.replace("2025-01-10,b,", "2025-01-10,b,4"))).history
    assert [late.at(evening).listed.tolist() for evening in (0, 8, 9)] == [[True, False], [True, False], [True, True]]


def test_an_item_off_the_list_is_not_ordered_in_the_replay(tmp_path):
    frame = small_shop(170)
    gone = frame.filter((pl.col("item") != "milk") | (pl.col("date") < (np.datetime64("2025-01-01") + 110).item()))
    gone.write_csv(tmp_path / "sales.csv")
    found = backtest.run_backtest(read_shop(tmp_path / "sales.csv"), 14)
    assert all(one.wasted[1].sum() == 0 for one in found.units.values())


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (slice(0, 120), r"replays 2025-06-06 to 2025-06-19, but no delivery is known of these days; add them"),
        (slice(164, 170), r"known from 2025-06-14 to 2025-06-19 only; add the others, or leave --deliveries out"),
        (slice(163, 170), r"known from 2025-06-13 to 2025-06-19 only; add the others, or try --backtest 7d"),
        (slice(150, 160), r"known from 2025-05-31 to 2025-06-09 only; add the others, or try --date 2025-06-09"),
    ],
)
def test_deliveries_that_do_not_cover_the_replay_are_refused(shop, known, message):
    delivered = np.zeros(shop.history.sales.units.shape)
    delivered[:, known] = 20.0
    with pytest.raises(CalibrlError, match=message):
        backtest.run_backtest(shop, 14, delivered=delivered)


def test_too_short_a_history_says_what_would_do(shop):
    with pytest.raises(CalibrlError, match=r"a backtest of 150 days needs 220 days of sales, the file has 170; try"):
        backtest.run_backtest(shop, 150)


def test_days_that_sold_out_do_not_make_past_deliveries_look_perfect(tmp_path):
    """Twelve a day are delivered and bread would sell about as many: sales alone know of no lost one."""
    frame = small_shop(170, items=("bread",))
    short = frame.with_columns(
        pl.col("units").clip(upper_bound=12), (pl.col("units") <= 12).cast(pl.Int8).alias("in_stock")
    )
    short.write_csv(tmp_path / "sales.csv")
    (tmp_path / "items.csv").write_text("item,shelf_life\nbread,1\n")
    shop = read_shop(tmp_path / "sales.csv", items=tmp_path / "items.csv")
    found = backtest.run_backtest(shop, 28, delivered=np.full(shop.history.sales.units.shape, 12.0))
    truth = frame.tail(24)["units"]  # four weeks of six days
    lost = int((truth - truth.clip(upper_bound=12)).sum())
    assert found.sold_out == int((truth > 12).sum())
    assert found.estimated == found.units[backtest.AS_DELIVERED].unmet.sum()
    assert 0.4 * lost <= found.estimated <= 1.6 * lost


def test_the_stand_in_expects_what_the_same_weekdays_sold_last(shop):
    sales, today = shop.history.sales, shop.history.today
    found = backtest._last_week(make_record(shop.history))
    assert found.shape == (3, 1, AHEAD)
    for ahead in range(AHEAD):
        day = today + 1 + ahead
        last = max(k for k in range(today + 1) if sales.weekday[k] == sales.weekday[day])
        assert (found[:, 0, ahead] == np.nan_to_num(sales.units[:, last])).all()


def test_a_planner_sees_when_a_unit_comes_and_how_long_it_keeps():
    """Two days of lead, three of life: on the shelf on the second day, sold up to the fourth."""
    shelves = backtest._Shelves((Item(shelf_life=3, lead_days=2),), seed=0, longest=99)
    shelves.order(np.array([0]), [5])
    for expected in (Batch(5, 2, 4), Batch(5, 1, 3), Batch(5, 0, 2), Batch(5, 0, 1)):
        assert shelves.batches(0) == (expected,)
        shelves.serve(np.array([0.0]))
    assert shelves.batches(0) == ()
    assert shelves.units(4).wasted.tolist() == [[0, 0, 0, 5]]


@given(
    life=st.integers(1, 6),
    lead=st.integers(1, 4),
    orders=st.lists(st.integers(0, 30), min_size=8, max_size=8),
    demand=st.lists(st.integers(0, 30).map(float), min_size=8, max_size=8),
)
def test_units_ordered_are_sold_wasted_left_or_under_way(life, lead, orders, demand):
    shelves = backtest._Shelves((Item(shelf_life=life, lead_days=lead),), seed=0, longest=99)
    for ordered, wanted in zip(orders, demand, strict=True):
        shelves.order(np.array([0]), [ordered])
        shelves.serve(np.array([wanted]))
    found = shelves.units(8)
    left = int(shelves.stock[0].sum()) + sum(shelves.coming[0])
    assert sum(orders) == found.sold.sum() + found.wasted.sum() + left
    batches = shelves.batches(0)
    assert sum(batch.units for batch in batches) == left
    assert all(batch.last >= max(1, batch.arrives) for batch in batches)

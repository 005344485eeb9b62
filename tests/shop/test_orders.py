"""Orders: when they come, the rules they obey, that they know nothing of the future, and how they are explained."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from calibrl.errors import CalibrlError
from calibrl.inventory.files import Item
from calibrl.inventory.history import AHEAD
from calibrl.inventory.policy import OrderUpTo
from calibrl.shop.demand import BoostedDemand
from calibrl.shop.files import Batch, read_shop
from calibrl.shop.orders import (
    SERVICE,
    _levels,
    _open_mean,
    _trend,
    best_order,
    expectation,
    intervals,
    lay_out,
    make_orders,
    schedule,
)
from calibrl.shop.page import orders_frame, reason, totals
from tests.shop.conftest import Write, small_shop

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
THURSDAY = np.datetime64("2026-05-28")


def on(*names: str) -> tuple[bool, ...]:
    return tuple(name in names for name in WEEKDAYS)


# The calendar.


@pytest.mark.parametrize(
    ("item", "first", "cover", "horizon"),
    [
        (Item(), 0, 1, 6),  # it keeps for three days, and three are planned beyond them
        (Item(lead_days=3), 2, 1, 8),
        (Item(delivery_days=on("Fri", "Mon")), 0, 3, 7),  # until the Friday after Monday's
        (Item(delivery_days=on("Thu")), 6, 7, 20),
        (Item(delivery_days=on("Fri"), lead_days=2), 7, 7, 21),
        (Item(delivery_days=on("Fri"), lead_days=14), 14, 7, 28),
        (Item(shelf_life=365), 0, 1, 17),
    ],
)
def test_the_next_delivery_the_days_it_must_last_and_those_to_plan_for(item, first, cover, horizon):
    found = schedule(item, THURSDAY)
    assert int(found.day[0]) == first
    assert len(found.cover) == cover
    assert found.horizon == horizon


def test_an_item_s_level_is_that_of_its_open_days_in_eight_weeks():
    """Day 0 is not one of the last 56 days, tonight is; days before its record began, and closed ones, do not count."""

    def level(days, *, sold, begun=(), closed=()):
        flags = [np.isin(np.arange(days + 1), list(which))[None] for which in (begun, closed)]
        usual = np.zeros((1, days + 1))
        usual[0, list(sold)] = list(sold.values())
        sales = SimpleNamespace(closed=flags[1])
        record = SimpleNamespace(today=days - 1, begun=~flags[0], usual=usual, history=SimpleNamespace(sales=sales))
        return _open_mean(record, 0)

    assert level(57, sold={0: 1000.0, 1: 56.0, 56: 112.0, 57: 1000.0}) == 3
    assert level(3, sold={0: 3.0, 2: 6.0, 3: 1000.0}) == 3
    assert level(4, sold={0: 9.0, 1: 5.0, 2: 9.0, 3: 7.0}, begun={0}, closed={2}) == 6
    assert level(2, sold={0: 9.0}, closed={0, 1}) == 0


@given(
    days=st.sets(st.sampled_from(WEEKDAYS), min_size=1),
    lead=st.integers(1, 14),
    life=st.integers(1, 400),
    ahead=st.integers(0, 6),
)
def test_two_deliveries_are_always_in_sight(days, lead, life, ahead):
    item = Item(delivery_days=on(*days), lead_days=lead, shelf_life=life)
    found = schedule(item, THURSDAY + ahead)
    assert len(found.day) >= 2
    assert found.day[0] >= lead - 1
    assert found.day[1] < found.horizon <= AHEAD
    assert (found.decided[1:] >= 0).all()
    weekday = (THURSDAY + ahead + 1 + found.day).astype(int) + 3
    assert all(WEEKDAYS[k % 7] in days for k in weekday)


@pytest.mark.parametrize(
    ("item", "closed", "first", "cover"),
    [
        (Item(), {2}, 0, 1),  # Friday comes and goes as ever
        (Item(), {0}, 1, 1),
        (Item(), {1, 2}, 0, 3),
        (Item(delivery_days=on("Fri", "Mon")), {0}, 0, 3),  # Friday's has to last for Saturday
        (Item(delivery_days=on("Fri", "Mon")), {0, 1, 2}, 3, 4),
        (Item(), set(range(AHEAD)), 0, 1),
        (Item(), set(range(AHEAD)) - {5}, 0, 1),  # one that is of use is not two
    ],
)
def test_a_delivery_for_closed_days_only_is_left_out(item, closed, first, cover):
    found = schedule(item, THURSDAY, np.isin(np.arange(AHEAD), list(closed)))
    assert int(found.day[0]) == first
    assert len(found.cover) == cover


# Planning.


def at_night(item: Item, mean: float = 20.0, stock: tuple[Batch, ...] = (), seed: int = 0):
    when = schedule(item, THURSDAY)
    paths = np.random.default_rng(seed).poisson(mean, (300, when.horizon)).astype(float)
    return lay_out(item, when, paths, stock)


@given(pack=st.integers(1, 24), minimum=st.integers(0, 60), mean=st.floats(0.2, 80), held=st.integers(0, 60))
def test_orders_obey_packs_and_minimum(pack, minimum, mean, held):
    item = Item(pack_size=pack, minimum_order=minimum)
    order = best_order(at_night(item, mean, (Batch(held, 0, 2),))).units
    assert order % pack == 0
    assert order == 0 or order >= minimum


def test_the_dearer_the_lost_sale_the_larger_the_order():
    orders = [best_order(at_night(Item(cost_of_lost_sale=cost))).units for cost in (0.2, 1.0, 5.0, 25.0)]
    assert orders == sorted(orders)
    assert orders[0] < orders[-1]


def test_a_batch_is_laid_out_by_the_day_it_comes_and_the_last_on_which_it_sells():
    """Days count from 0, tomorrow; what outlasts the horizon is kept apart, what comes after it is left out."""
    item = Item()
    h = schedule(item, THURSDAY).horizon
    here = (Batch(5, 0, 1), Batch(7, 0, 3), Batch(9, 0, h), Batch(11, 0, h + 1), Batch(13, 0, 99))
    coming = (Batch(15, 1, 1), Batch(17, 2, 4), Batch(19, h, h + 2), Batch(21, h + 1, h + 3))
    at = at_night(item, stock=(*here, *coming))
    shelf, under_way = np.zeros(h + 1), np.zeros((h, h + 1))
    shelf[[0, 2, h - 1, h]] = 5, 7, 9, 24
    under_way[[0, 1, h - 1], [0, 3, h]] = 15, 17, 19
    assert (at.opening == shelf).all()
    assert (at.arriving == under_way).all()
    assert at_night(item, stock=(*here, coming[-1])).arriving.shape == (0, h + 1)


def test_what_is_here_tonight_is_here_for_a_delivery_tomorrow():
    """No day is between."""
    assert at_night(Item(lead_days=1), stock=(Batch(30, 0, 5),)).position == 30


def test_demand_of_the_first_days_alone_is_ordered_for():
    """However little is asked for once the next delivery is there."""
    item = Item(delivery_days=on("Fri", "Mon"), cost_of_lost_sale=9.0)
    when = schedule(item, THURSDAY)
    demand = np.zeros((300, when.horizon))
    demand[:, :3] = 20.0
    assert best_order(lay_out(item, when, demand, ())).units == 60 if item.shelf_life >= 3 else 20 * item.shelf_life


def test_levels_are_quantiles_of_what_a_delivery_has_to_be_enough_for():
    """Ordered three days ahead for Fridays and Mondays; two days of life."""
    at = at_night(Item(lead_days=3, shelf_life=2, delivery_days=on("Fri", "Mon")))
    assert at.when.day.tolist() == [3, 7]
    assert at.when.decided.tolist() == [0, 4]
    day = at.paths.T
    surprise = [one - one.mean() for one in day]
    monday = day[3] + day[4] + surprise[1] + surprise[2]
    friday = day[7] + day[8] + surprise[5] + surprise[6]
    levels = _levels(at)
    assert (levels[0] == 0).all()
    assert levels[1:] == pytest.approx(np.stack([np.quantile(one, SERVICE) for one in (monday, friday)], 1))


def test_stock_that_keeps_is_subtracted_and_stock_that_expires_is_not():
    bare = best_order(at_night(Item())).units
    assert best_order(at_night(Item(), stock=(Batch(10, 0, 3),))).units == pytest.approx(bare - 10, abs=2)
    weekly = Item(delivery_days=on("Mon"), shelf_life=7)
    bare = best_order(at_night(weekly)).units
    assert best_order(at_night(weekly, stock=(Batch(40, 0, 1),))).units == bare  # gone before Monday
    assert best_order(at_night(weekly, stock=(Batch(200, 0, 30),))).units < bare - 80


def test_what_is_under_way_counts():
    item = Item(lead_days=2, shelf_life=5)
    coming = (Batch(40, 1, 5),)
    assert best_order(at_night(item, stock=coming)).units < best_order(at_night(item)).units


def test_an_order_lasts_until_the_delivery_after_next():
    daily, weekly = Item(shelf_life=10), Item(shelf_life=10, delivery_days=on("Fri"))
    assert best_order(at_night(weekly)).units > 6 * 20
    assert best_order(at_night(daily)).units < 3 * 20


@pytest.mark.parametrize("mean", [20, 2000])
@pytest.mark.parametrize(
    "item",
    [
        Item(lead_days=5, shelf_life=30),
        Item(lead_days=3, shelf_life=14, cost_of_lost_sale=20),
        Item(delivery_days=on("Fri", "Sat"), shelf_life=365),
    ],
)
def test_an_order_leaves_to_later_ones_what_they_can_bring(item, mean):
    """It has to last for a day, and whatever keeps longer can be ordered for the day after."""
    at = at_night(item, mean, stock=tuple(Batch(mean, day, day + 9) for day in range(1, item.lead_days)))
    assert len(at.when.cover) == 1
    spread = np.sqrt(mean * item.lead_days)
    assert mean <= best_order(at).units <= mean + 5 * spread


@pytest.mark.parametrize(
    ("item", "orders"),
    [
        (Item(shelf_life=2, pack_size=200), 0),
        (Item(shelf_life=2, minimum_order=500), 0),
        (Item(shelf_life=2, pack_size=200, cost_of_waste=0.05), 200),
        (Item(shelf_life=30, pack_size=200), 200),
        (Item(shelf_life=2, minimum_order=130, cost_of_waste=0.3), 0),  # 104 · 0.3 > 26
        (Item(shelf_life=2, minimum_order=65, cost_of_waste=0.3), 65),  # 39 · 0.3 < 26
        (Item(shelf_life=5, minimum_order=300, cost_of_waste=0.3), 0),  # 235 · 0.3 > 65
        (Item(shelf_life=5, minimum_order=200, cost_of_waste=0.3), 200),  # 135 · 0.3 < 65
        (Item(shelf_life=30, minimum_order=1000), 0),  # 610 > 390
        (Item(shelf_life=30, minimum_order=700), 700),  # 310 < 390
        (Item(shelf_life=365, minimum_order=1000), 1000),
    ],
)
def test_a_pack_too_large_for_what_is_sold_while_it_keeps_is_not_ordered(item, orders):
    """Two days sell 26: a pack of 200 that keeps no longer wastes 174 to save 26."""
    assert best_order(at_night(item, mean=13)).units == orders


@pytest.mark.parametrize(
    ("item", "stock"),
    [
        (Item(shelf_life=2, minimum_order=65, cost_of_waste=0.3), Batch(52, 0, 1)),
        (Item(shelf_life=10, minimum_order=300, cost_of_waste=0.3), Batch(40, 0, 4)),
        (Item(shelf_life=365, minimum_order=1000), Batch(500, 0, 300)),
    ],
)
def test_a_large_minimum_waits_until_the_shelf_is_empty(item, stock):
    assert best_order(at_night(item, mean=13, stock=(stock,))).units == 0


def test_a_day_that_sells_out_takes_nothing_from_what_comes_later():
    """Tomorrow sells the 20 that expire with it, the day after 20 of the 30 that come."""
    at = at_night(Item(shelf_life=3, lead_days=3), mean=20, stock=(Batch(20, 0, 1), Batch(30, 2, 5)))
    assert at.position == pytest.approx(10, abs=1)


@pytest.mark.parametrize("lead", [1, 2, 3, 5])
def test_with_a_long_lead_time_too_an_order_is_for_the_days_it_keeps(lead):
    """Two days sell 30, and the least one can order is 24: the next order waits until this one is sold."""
    item = Item(shelf_life=2, minimum_order=24, lead_days=lead, cost_of_waste=1.9)
    assert 26 <= best_order(at_night(item, mean=15)).units <= 29


def test_what_an_order_wastes_after_the_days_that_are_planned_is_foreseen():
    """A thousand that keep for thirty days, of which 390 are sold."""
    found = best_order(at_night(Item(shelf_life=30, minimum_order=1000, cost_of_waste=0.3), mean=13))
    assert found.units == 1000
    assert found.waste == pytest.approx(610, rel=0.02)


def test_no_other_order_costs_less():
    """All orders with all levels, where a day for which enough is left is worth what a day costs at best."""
    from calibrl.kernels import stock as kernel
    from calibrl.shop.orders import HOLDING

    at = at_night(Item(shelf_life=2, cost_of_lost_sale=2.0), mean=15)
    expected, price = at.paths.mean(0), np.array([2.0, 1.0, HOLDING])

    def judge(order: int, level) -> tuple[float, float]:
        return kernel.mean_cost(*at.given, order, level, expected, price)

    cost, spared = np.moveaxis([[judge(order, level) for order in range(61)] for level in _levels(at)], -1, 0)
    worth = cost - spared * (cost / (at.when.horizon + spared)).min()
    assert worth[:, best_order(at).units].min() <= worth.min() + 0.01 * cost.min()


@pytest.mark.parametrize("seed", [2, 15, 21])
def test_of_whole_packs_no_other_number_costs_less(seed):
    at = at_night(Item(shelf_life=1, pack_size=12))
    demand = np.random.default_rng(seed).negative_binomial(8, 8 / 608, (300, at.when.horizon)).astype(float)
    units = 12 * np.arange(300)
    cheapest = units[np.abs(units - demand[:, :1]).mean(0).argmin()]
    assert best_order(replace(at, paths=demand)).units == cheapest


def test_with_daily_deliveries_it_is_as_good_as_the_order_up_to_planner():
    rng = np.random.default_rng(0)
    item = Item()
    gaps = []
    for seed in range(6):
        at = at_night(item, mean=12.0 + 3 * seed, seed=seed)
        stock = np.array([2, 3, 0])
        here = replace(at, opening=np.array([2.0, 3, 0, *np.zeros(at.when.horizon - 2)]))
        theirs = int(OrderUpTo()(np.tile(at.paths, (1, 2))[:, :5], stock, rng=rng))
        gaps.append(best_order(here).units - theirs)
    assert np.abs(gaps).max() <= 4


def test_a_plan_says_what_to_expect():
    at = at_night(Item(shelf_life=1), mean=20)
    found = expectation(at, 20, np.full(len(at.when.day), 20.0))
    day = at.paths[:, 0]
    assert found.out == pytest.approx((day > 20).mean())
    assert found.lost == pytest.approx(np.maximum(day - 20, 0).mean())
    assert found.waste == pytest.approx(np.maximum(20 - day, 0).mean())


def test_what_is_under_way_is_not_wasted_of_the_order():
    at = at_night(Item(shelf_life=2, lead_days=2), stock=(Batch(90, 2, 3),))  # comes and expires with the order
    level = np.zeros(len(at.when.day))
    assert expectation(at, 0, level).waste == 0
    assert expectation(at, 10, level).waste == pytest.approx((100 - at.paths[:, 1:3].sum(1)).clip(0).mean() / 10)


# The whole way.


@pytest.fixture
def shop(write):
    return read_shop(write(small_shop(160)))


def test_learning_and_forecasting_keep_to_one_thread_and_leave_the_others_to_you(write, monkeypatch):
    seen, before = [], torch.get_num_threads()
    for name in ("update", "__call__"):
        plain = getattr(BoostedDemand, name)

        def watched(*given, plain=plain):
            seen.extend(pool["num_threads"] for pool in threadpool_info())
            seen.append(torch.get_num_threads())
            return plain(*given)

        monkeypatch.setattr(BoostedDemand, name, watched)
    torch.set_num_threads(2)
    try:
        make_orders(read_shop(write(small_shop(160))), n_paths=20)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_orders_are_repeatable_and_threads_change_nothing(shop):
    one, two = make_orders(shop, seed=3), make_orders(shop, seed=3, workers=2)
    assert [order.decision for order in one] == [order.decision for order in two]


def test_an_order_does_not_depend_on_rows_after_its_day(write):
    frame = small_shop(200)
    day = np.datetime64("2025-01-01") + 150
    early = frame.filter(pl.col("date") <= day.item())
    rng = np.random.default_rng(1)
    later = frame.with_columns(
        pl.when(pl.col("date") > day.item())
        .then(pl.Series(rng.integers(0, 900, len(frame))))
        .otherwise("units")
        .alias("units")
    )
    cut = orders_frame(make_orders(read_shop(write(early, "early.csv"))), stores=False)
    for other in (frame, later):
        whole = orders_frame(make_orders(read_shop(write(other), today=day)), stores=False)
        assert whole.equals(cut)


def test_an_item_that_is_first_sold_later_is_not_ordered(write):
    day = np.datetime64("2025-01-01") + 150
    new = pl.DataFrame({"date": [(day + k).item() for k in (1, 3, 5)], "item": "cake", "units": 7})
    frame = pl.concat([small_shop(200), new.cast({"units": pl.Int64})])
    shop = read_shop(write(frame), today=day)
    assert [order.key[0] for order in make_orders(shop)] == ["bread", "milk", "rolls"]
    assert shop.new_items == []


@pytest.mark.parametrize("ahead", [1, 4, 12, 40])
def test_a_new_item_is_ordered_for_the_first_day_it_is_planned_for(write, ahead):
    frame = small_shop(160)  # up to a Monday
    first = np.datetime64("2025-01-01") + 159 + ahead
    announced = pl.DataFrame({"date": [first.item()], "item": "cake", "units": [None]}).cast(dict(frame.schema))
    shop = read_shop(write(pl.concat([frame, announced])))
    cake = {order.key[0]: order for order in make_orders(shop)}.get("cake")
    assert shop.new_items == ([] if ahead > 28 else ["cake"])
    if ahead > 28:
        assert cake is None
    else:
        assert cake is not None
        assert cake.delivery == first
        assert cake.order_by == first - 1
        assert cake.decision.units > 0


def test_orders_follow_demand(write):
    frame = small_shop(160)
    orders = {order.key[0]: order for order in make_orders(read_shop(write(frame)))}
    # The file ends on a Monday: Tuesday sells 12, 24 and 36 on average.
    for name, mean in (("bread", 12), ("milk", 24), ("rolls", 36)):
        assert orders[name].quantile(0.5) == pytest.approx(mean, rel=0.25)
        assert mean <= orders[name].decision.units <= 2 * mean


def test_closed_tomorrow_orders_for_the_day_after(write):
    frame = small_shop(160).filter(pl.col("date") <= np.datetime64("2025-05-31").item())  # a Saturday
    for order, mean in zip(make_orders(read_shop(write(frame))), (12, 24, 36), strict=True):
        assert str(order.delivery) == "2025-06-02"
        assert order.decision.units >= mean
        assert reason(order).startswith("Monday 2 June should sell")
        assert f"order {order.decision.units} by Sunday" in reason(order)


def test_closed_for_weeks_orders_nothing(write):
    frame = small_shop(160)
    last = np.datetime64("2025-01-01") + 159
    plans = {"date": [(last + k).item() for k in range(1, 40)], "item": "bread", "units": None, "closed": 1}
    frame = pl.concat([frame.with_columns(pl.lit(0).alias("closed")), pl.DataFrame(plans)], how="vertical_relaxed")
    for order in make_orders(read_shop(write(frame))):
        assert order.decision.units == 0
        assert "Tuesday 10 June is closed" in reason(order)


@pytest.mark.parametrize(("weeks", "open_days", "marked"), [(3, 0, False), (4, 1, False), (6, 0, True), (6, 8, True)])
def test_a_shop_that_opens_again_after_its_holidays_orders_as_before(write, weeks, open_days, marked):
    opens = np.datetime64("2025-06-30")  # a Monday
    frame = small_shop(200).filter(pl.col("date") < (opens + open_days).item()).with_columns(closed=pl.lit(0))
    away = pl.col("date").is_between((opens - 7 * weeks).item(), opens.item(), closed="left")
    if marked:
        nothing = [
            pl.when(away).then(value).otherwise(name).alias(name) for name, value in (("units", 0), ("closed", 1))
        ]
        frame = frame.with_columns(nothing)
    else:
        frame = frame.filter(~away)
    orders = make_orders(read_shop(write(frame), today=opens + open_days - 1))
    first = (opens + open_days).astype("datetime64[D]").item()
    for order, mean in zip(orders, (12, 24, 36), strict=True):
        assert order.delivery == first
        assert order.quantile(0.5) == pytest.approx(mean, rel=0.3)
        assert mean <= order.decision.units
        assert order.shut.tolist() == [(first.weekday() + k) % 7 == 6 for k in range(len(order.shut))]


def test_reasons_of_a_young_item_compare_with_its_own_days(write):
    frame = small_shop(160)
    last = np.datetime64("2025-01-01") + 159
    new = pl.DataFrame({"date": [(last - k).item() for k in range(9) if k != 1], "item": "cake", "units": 20})
    orders = make_orders(read_shop(write(pl.concat([frame, new.cast(dict(frame.schema))]))))
    cake = next(order for order in orders if order.key[0] == "cake")
    assert cake.level == pytest.approx(20)
    assert cake.trend == 1
    assert "above an average day" not in reason(cake)


def test_an_item_out_of_stock_for_weeks_is_not_off_the_list(write):
    frame = small_shop(160)
    gone = (pl.col("item") == "milk") & (pl.col("date") > (np.datetime64("2025-01-01") + 124).item())
    sold = pl.when(gone).then(0).otherwise("units").alias("units")
    shop = read_shop(write(frame.with_columns(sold, (~gone).cast(int).alias("in_stock"))))
    assert shop.history.idle[1] <= 6  # Sundays since
    milk = make_orders(shop)[1]
    assert milk.decision.units >= 24
    assert milk.quantile(0.5) == pytest.approx(24, rel=0.3)
    assert "by what sold before it was out of stock on 24 of the last 28 days" in reason(milk)


def test_a_new_item_is_not_ordered_for_a_day_its_store_is_closed(write):
    frame = small_shop(151)  # up to a Saturday
    new = {"date": [np.datetime64("2025-05-31").item() - np.timedelta64(k, "D").item() for k in range(5)]}
    frame = pl.concat([frame, pl.DataFrame({**new, "item": "cake", "units": 15}).cast(dict(frame.schema))])
    orders = {order.key[0]: order for order in make_orders(read_shop(write(frame)))}
    assert [order.shut[:6].tolist() for order in orders.values()] == [[True] + [False] * 5] * 4


def test_an_item_nobody_bought_for_weeks_is_off_the_list(write):
    frame = small_shop(160).filter((pl.col("item") != "milk") | (pl.col("date") <= np.datetime64("2025-04-01").item()))
    orders = {order.key[0]: order for order in make_orders(read_shop(write(frame)))}
    assert orders["milk"].decision.units == 0
    assert reason(orders["milk"]).startswith("Not sold for 69 days")
    assert orders["bread"].decision.units > 0


@pytest.mark.parametrize(("days", "off"), [(28, False), (29, True)])
def test_an_item_is_off_the_list_after_more_than_four_weeks(write, days, off):
    last = np.datetime64("2025-01-01") + 59 - days
    gone = small_shop(60).filter((pl.col("item") != "milk") | (pl.col("date") <= last.item()))
    history = read_shop(write(gone)).history
    assert history.idle[1] == days
    assert history.discontinued.tolist() == [False, off, False]


@pytest.mark.parametrize("ahead", [1, 5, 15])
def test_an_item_of_the_season_is_ordered_for_the_day_it_is_planned_for_again(write, ahead):
    frame = small_shop(160).filter((pl.col("item") != "milk") | (pl.col("date") <= np.datetime64("2025-03-31").item()))
    again = np.datetime64("2025-01-01") + 159 + ahead
    announced = pl.DataFrame({"date": [again.item()], "item": "milk", "units": [None]}).cast(dict(frame.schema))
    milk = make_orders(read_shop(write(pl.concat([frame, announced]))))[1]
    assert milk.delivery == again
    assert milk.quantile(0.5) == pytest.approx(24 * (1.6 if ahead == 5 else 1), rel=0.3)  # the fifth is a Saturday
    assert milk.decision.units >= 24


BATCH = {"bread": 50, "cake": 12, "rolls": 30}


@pytest.mark.parametrize("items", [("rolls",), ("bread", "cake", "rolls")])
def test_goods_that_always_sell_out_are_ordered(write, items):
    date = np.datetime64("2026-03-01") + np.arange(92)
    parts = [pl.DataFrame({"date": date, "item": item, "units": BATCH[item], "in_stock": 0}) for item in items]
    for order in make_orders(read_shop(write(pl.concat(parts)))):
        batch = BATCH[order.key[0]]
        assert batch <= order.quantile(0.5) <= 1.5 * batch
        assert order.quantile(0.05) >= 0.85 * batch
        assert order.decision.units >= batch
        assert f"sold out on 28 of the last 28 days (how much beyond {batch} a day is unknown)" in reason(order)


@pytest.mark.parametrize("share", [1.0, 1.2, 1.4, 1.8])
def test_a_baker_whose_demand_is_known(write, share):
    """Demand is `share` times the batch that is baked every day; what sells is the smaller of the two."""
    rng = np.random.default_rng(4)
    date = np.datetime64("2025-01-01") + np.arange(240)
    parts = []
    for item, batch in BATCH.items():
        demand = rng.poisson(rng.gamma(1 / 0.15**2, share * batch * 0.15**2, len(date)))
        sold = {"units": np.minimum(demand, batch), "in_stock": (demand < batch).astype(int)}
        parts.append(pl.DataFrame({"date": date, "item": item, **sold}))
    for order in make_orders(read_shop(write(pl.concat(parts)))):
        batch = BATCH[order.key[0]]
        assert 0.85 * batch <= order.quantile(0.5) <= max(1.5, 1.2 * share) * batch
        assert order.decision.units >= batch


def test_a_shop_without_any_sales_orders_on_a_stated_guess(write):
    sales = write("date,item,units\n")
    items = write("item,shelf_life\nbread,2\n", "items.csv")
    shop = read_shop(sales, items=items, today=THURSDAY)
    (order,) = make_orders(shop)
    assert 1 <= order.decision.units <= 5
    assert "guess" in reason(order)


# Words.


def test_a_shop_that_opens_next_week_orders_for_its_first_day(write):
    sales = write("date,item,units\n2026-06-02,bread,\n2026-06-02,milk,\n")
    for order in make_orders(read_shop(sales, today=THURSDAY)):
        assert str(order.delivery) == "2026-06-02"
        assert order.decision.units > 0
    with pytest.raises(CalibrlError, match="nothing on or before 2026-04-28; the first row is of 2026-06-02"):
        read_shop(sales, today=THURSDAY - 30)


def test_reasons_are_sentences_with_the_numbers_of_the_order(shop):
    for order in make_orders(shop):
        words = reason(order)
        assert words[0].isupper()
        assert words.endswith(".")
        assert words.count(".") == 1 or re.search(r"\d\.\d", words)
        assert f"order {order.decision.units} " in words
        assert f"about {order.quantile(0.5):.0f} " in words


def test_reasons_name_packs_stock_and_minimum(shop):
    order = make_orders(shop)[0]
    item = replace(order.item, pack_size=6, minimum_order=12)
    small = replace(order, item=item, decision=replace(order.decision, units=12))
    small = replace(small, on_hand=9.0, expiring=0.0, promotion=True)
    words = reason(small)
    assert "2 packs of 6, the least one can order" in words
    assert "9 are on the shelf" in words
    assert "with the promotion (its first, judged by other items if there are any: unsure)" in words
    assert "on promotion on only 1 day before: unsure" in reason(replace(small, promoted=1))
    assert "unsure" not in reason(replace(small, promoted=10))
    waiting = replace(small, when=schedule(replace(item, delivery_days=on("Sat")), order.today), daily=np.ones(20))
    waiting = replace(waiting, shut=np.zeros(20, dtype=bool))
    assert "by Friday" in reason(waiting)


def test_what_is_under_way_is_not_on_the_shelf(shop):
    batches = [(Batch(9, 0, 3), Batch(4, 0, 1), Batch(7, 2, 8)), *shop.stock.batches[1:]]
    order = make_orders(replace(shop, stock=replace(shop.stock, batches=batches)))[0]
    assert (order.on_hand, order.under_way) == (13, 7)


def test_reasons_say_what_becomes_of_the_stock_before_a_later_delivery(shop):
    order = make_orders(shop)[0]
    item = replace(order.item, lead_days=3)
    later = replace(order, item=item, when=schedule(item, order.today), on_hand=9.0, position=4.0, expiring=2.0)
    later = replace(later, daily=np.ones(20), shut=np.zeros(20, dtype=bool))
    left = "9 are on the shelf, 2 of which expire before the delivery, of which 4 should be left on Thursday, so"
    assert left in reason(later)
    gone = replace(later, expiring=9.0, position=0.0, decision=replace(order.decision, out_before=0.9))
    words = "9 are on the shelf, all of which expire before the delivery, and the shelf will probably be empty before"
    assert f"{words} Thursday, so order" in reason(gone)


def test_reasons_say_why_nothing_is_ordered_for_an_empty_shelf(write):
    items = write("item,shelf_life,minimum_order\nbread,1,500\nmilk,1,\n", "items.csv")
    bread, milk, _ = make_orders(read_shop(write(small_shop(160)), items=items))
    assert "so nothing is ordered, because the smallest delivery, 500, would cost more than it saves (" in reason(bread)
    assert "because" not in reason(milk)
    assert "because" not in reason(replace(bread, decision=replace(bread.decision, out=0.1)))


def test_reasons_say_how_long_an_order_lasts_if_not_until_the_next_delivery(write):
    items = write("item,shelf_life,delivery_days\nbread,2,Tue Fri\nmilk,3,Tue Fri\nrolls,30,daily\n", "items.csv")
    bread, milk, rolls = make_orders(read_shop(write(small_shop(160)), items=items))  # Tuesday to Thursday
    assert f"order {bread.decision.units}, which can be sold until Wednesday (" in reason(bread)
    assert f"order {milk.decision.units} (" in reason(milk)
    assert "enough until about" not in reason(replace(rolls, decision=replace(rolls.decision, units=40)))
    assert "order 90, enough until about Wednesday (" in reason(
        replace(rolls, decision=replace(rolls.decision, units=90))
    )


def test_chances_have_their_article(shop):
    order = make_orders(shop)[0]
    for share, words in ((0.08, "an 8"), (0.11, "an 11"), (0.12, "a 12"), (0.18, "an 18"), (0.85, "an 85")):
        assert f"({words} % chance to run out" in reason(replace(order, decision=replace(order.decision, out=share)))


def test_days_a_week_ahead_have_their_date(write):
    sales = write(small_shop(160))  # up to Monday 9 June
    items = write("item,delivery_days,lead_days,shelf_life\nbread,Mon,7,14\nmilk,Mon,8,14\n", "items.csv")
    bread, milk, _ = make_orders(read_shop(sales, items=items))
    assert "nothing is on the shelf until Monday 16 June, so order" in reason(bread)
    assert "nothing is on the shelf until Monday 23 June, so order" in reason(milk)
    assert " by Sunday (" in reason(milk)


def test_a_row_says_until_when_the_order_lasts_and_the_reason_what_the_week_did(write):
    """A hundred a day, then a last week of 150; delivered on Mondays and Fridays."""
    date = np.datetime64("2025-01-01") + np.arange(90)  # until Monday, 31 March
    units = np.where(np.arange(90) < 83, 100, 150)
    sales = write(pl.DataFrame({"date": date, "item": "bread", "units": units}))
    items = write("item,delivery_days\nbread,Mon Fri\n", "items.csv")
    (bread,) = make_orders(read_shop(sales, items=items))
    row = orders_frame([bread], stores=False).row(0, named=True)
    assert [str(row[name]) for name in ("delivery", "lasts_until")] == ["2025-04-04", "2025-04-06"]
    assert bread.daily[list(bread.when.cover)].sum() == pytest.approx(bread.demand.mean())
    assert bread.trend == pytest.approx(1.5)
    assert "after a week 50 % above the month before" in reason(bread)


def test_a_trend_is_a_week_over_the_four_before_it():
    def trend(usual, begun=0):
        days = np.arange(len(usual))
        return _trend(SimpleNamespace(today=len(usual) - 1, begun=(days >= begun)[None], usual=np.array([usual])), 0)

    # 28 days of 1 but for the first, which makes their mean 2; the day before them does not count.
    assert trend([1000.0] + [29.0] + [1.0] * 27 + [6.0] * 7) == 3
    assert trend([2.0] * 14 + [6.0] * 7) == 3
    assert trend([2.0] * 13 + [6.0] * 7) == 1, "twenty days are too few"
    assert trend([2.0] * 15 + [6.0] * 7, begun=1) == 3
    assert trend([2.0] * 15 + [6.0] * 7, begun=2) == 1
    assert trend([0.0] * 30 + [6.0] * 7) == 1
    assert trend([0.02] * 14 + [0.06] * 7) == pytest.approx(3), "one that sells once in weeks has a trend too"


def test_an_interval_holds_its_share_and_no_more():
    drawn = np.random.default_rng(0).permuted(
        np.array([np.arange(100.0), np.maximum(np.arange(100.0) - 50, 0)]), axis=1
    )
    low, high = intervals(drawn, 0.9)
    # Of the slow seller's, half are 0, and what is not left out below is left out above.
    assert (low.tolist(), high.tolist()) == ([4, 0], [93, 39])
    assert [((drawn[k] >= low[k]) & (drawn[k] <= high[k])).sum() for k in range(2)] == [90, 90]


def test_an_order_knows_what_it_rests_on(write):
    date = np.datetime64("2026-03-01") + np.arange(61)
    parts = []
    for item, out in (("bread", 14), ("cake", 15)):
        flags = {
            "in_stock": (np.arange(61) < 60 - out).astype(int),
            "promotion": np.isin(np.arange(61), (3, 5, 40, 60)),
        }
        sold = pl.Series([*np.arange(100, 160), None], dtype=pl.Int64)
        parts.append(pl.DataFrame({"date": date, "item": item, "units": sold, **flags}))
    shop = read_shop(write(pl.concat(parts).with_columns(pl.col("promotion").cast(int))), today=date[59])
    first = make_orders(shop, n_paths=50)[0]
    start = first.when.cover.start
    batches = tuple((Batch(5, 0, start), Batch(7, 0, start + 1), Batch(9, 1, start + 3)) for _ in shop.rules)
    bread, cake = make_orders(replace(shop, stock=replace(shop.stock, batches=batches)), n_paths=50)
    assert (bread.expiring, bread.on_hand, bread.under_way) == (5, 12, 9)
    assert (bread.promoted, bread.promotion, bread.most_sold) == (3, True, 159)
    assert [(order.sold_out, order.mostly_sold_out) for order in (bread, cake)] == [(14, False), (15, True)]
    waste, lost = bread.decision.waste, bread.decision.lost
    assert bread.at_risk == bread.item.cost_of_waste * waste + bread.item.cost_of_lost_sale * lost > 0


def test_totals_are_sums(shop):
    orders = make_orders(shop)
    assert totals(orders).startswith(f"{sum(order.decision.units for order in orders):,} units of 3 items")


def test_other_processes_plan_the_same_orders(tmp_path, monkeypatch):
    small_shop(170).write_csv(tmp_path / "sales.csv")
    shop = read_shop(tmp_path / "sales.csv")
    monkeypatch.setattr("calibrl.shop.orders.PORTION", 2)
    here, elsewhere = (make_orders(shop, workers=2, backend=backend) for backend in ("threads", "processes"))
    assert [order.decision for order in here] == [order.decision for order in elsewhere]


def test_one_wild_day_is_left_aside_and_named(write: Write) -> None:
    """A slip of the pen yesterday, or on the same weekday of last week, changes the order by little, and is said."""
    sold = small_shop(120)
    day = sold["date"].unique().sort()
    plain = make_orders(read_shop(write(sold)))[0].decision.units
    for when in (day[-1], day[-6], day[-20]):
        wild = sold.with_columns(
            units=pl.when((pl.col("date") == when) & (pl.col("item") == "bread")).then(10_000).otherwise("units")
        )
        order = make_orders(read_shop(write(wild)))[0]
        assert order.decision.units == pytest.approx(plain, rel=0.3)
        assert f"leaving aside the 10,000 of {when:%A} {when.day} {when:%B}" in reason(order)


def test_a_new_level_is_believed_within_days(write: Write) -> None:
    """A kiosk of twelve loaves that now supplies a canteen."""
    sold = small_shop(150)
    since = sold["date"].unique().sort()[-14]
    more = sold.with_columns(
        units=pl.when((pl.col("date") >= since) & (pl.col("item") == "bread"))
        .then(40 * pl.col("units"))
        .otherwise("units")
    )
    order = make_orders(read_shop(write(more)))[0]
    assert order.decision.units > 200
    assert not order.exceptions


def test_stock_below_nothing_is_an_empty_shelf(write: Write) -> None:
    sales, today = write(small_shop(60)), small_shop(60)["date"].max()
    stock = write(f"item,units,expires\nbread,-4,{today + timedelta(2)}\nmilk,5,{today + timedelta(2)}\n", "stock.csv")
    shop = read_shop(sales, stock=stock)
    assert [sum(batch.units for batch in some) for some in shop.stock.batches] == [0, 5, 0]
    assert any("1 line of stock below 0 taken as an empty shelf" in note for note in shop.notes)

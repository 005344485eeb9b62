"""Orders: closed forms, the optimum of small stores, rules of packs and lead times, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calibrl.errors import CalibrlError
from calibrl.inventory.loop import Season, order_many, play, tune
from calibrl.inventory.policy import (
    PLANNERS,
    CrossEntropyOrders,
    Heuristic,
    Newsvendor,
    Oracle,
    OrderUpTo,
    RandomTrajectories,
    quantiles,
)
from calibrl.inventory.problems import Costs, Rules
from tests.kernels.references import closed_loop_reference

FORECASTS = {name: planner for name, planner in PLANNERS.items() if name != "oracle"}


def paths(mean=20, m=300, h=5, seed=0):
    return np.random.default_rng(seed).poisson(mean, (m, h)).astype(float)


def rng(seed=0):
    return np.random.default_rng(seed)


def season(planner, past):
    """One series' days, each with the paths forecast on the evening before."""
    ahead, demand = zip(*past, strict=True)
    return play(planner, np.stack(ahead)[None], np.array([demand]), shelf_life=3, seed=0)


def test_newsvendor_is_the_critical_fractile():
    demand = paths(50, m=4000)
    order = Newsvendor(costs=Costs(waste=1, unmet=3))(demand, [0])
    assert order == np.quantile(demand[:, 0], 0.75, method="inverted_cdf")
    assert order == pytest.approx(stats.poisson.ppf(0.75, 50), abs=1)
    assert Newsvendor(0.9)(demand, [5, 7, 0]) == np.quantile(demand[:, 0], 0.9, method="inverted_cdf") - 12


def test_what_does_not_keep_is_ordered_like_the_newsvendor():
    demand = paths(50, m=1000)
    for costs in (Costs(), Costs(waste=1, unmet=4), Costs(waste=5, unmet=1)):
        expected = Newsvendor(costs=costs)(demand, [0])
        assert OrderUpTo(costs=costs)(demand, [0]) == pytest.approx(expected, abs=1)
        assert CrossEntropyOrders(costs=costs)(demand, [0], rng=rng()) == pytest.approx(expected, abs=3)


def test_heuristic_stocks_up_to_a_multiple_of_expected_demand():
    demand = np.tile([20.0, 40.0, 60.0], (4, 1))
    assert Heuristic()(demand, [3, 4, 0]) == 30 - 7
    assert Heuristic(1.2)(demand, [30, 0, 0]) == 0
    # Two days later: 10 of the 30 are left on day 2, of which a third expire that day, and 5 more are delivered.
    later = Heuristic(1.5, rules=Rules(lead_days=2), issuing="fifo")
    assert later(demand, [10, 20, 0], incoming=[0, 5]) == 60 - 10 - 5


def test_the_best_first_order_of_a_search_is_the_best_there_is():
    """Tonight's order, against the reference's cost of every order with every level of a fine grid."""
    demand, stock = paths(12, m=200), np.array([2, 3, 0])
    planner = OrderUpTo(costs=Costs(waste=1, unmet=2))
    levels = np.repeat(np.quantile(demand, np.linspace(0.05, 0.99, 25), axis=0, method="inverted_cdf"), 26, axis=0)
    first = np.tile(np.arange(26.0), 25)
    costs = closed_loop_reference(
        first, levels, demand, stock, incoming=np.zeros(5), lead=1, pack=1, minimum=1, waste=1, unmet=2, issuing=0
    )
    order = planner(demand, stock)
    assert costs[first == order].min() <= 1.02 * costs.min()


@pytest.mark.parametrize("planner", [RandomTrajectories(), CrossEntropyOrders()], ids=lambda p: type(p).__name__)
def test_open_loop_searches_are_close_to_the_best_plan_of_many_more(planner):
    demand, stock = paths(12, m=100), np.array([2, 3, 0])
    plans = np.random.default_rng(1).integers(0, 20, (40_000, 5)).astype(float)
    costs = planner.open_loop_costs(planner.evening(demand, stock), plans)
    best = plans[costs <= np.quantile(costs, 0.0005), 0]
    order = planner(demand, stock, rng=rng())
    assert best.min() - 2 <= order <= best.max() + 2


def poisson_store(mean, most):
    """The exact store of goods that keep two days: next state's chances (S, A, S) and costs (S, A); state = units
    in their last day, action = order up to `most` in all."""
    demand = np.arange(60)
    chance = stats.poisson.pmf(demand, mean)
    to, cost = np.zeros((most + 1, most + 1, most + 1)), np.full((most + 1, most + 1), np.inf)
    for old in range(most + 1):
        for new in range(most + 1 - old):
            there = old + new
            cost[old, new] = chance @ np.maximum(demand - there, 0)
            for sold in range(there + 1):
                p = chance[sold] if sold < there else chance[there:].sum()
                gone = np.arange(max(0, sold - new), min(old, sold) + 1)
                each = stats.hypergeom.pmf(gone, there, old, sold) if there else np.ones(1)
                cost[old, new] += p * each @ (old - gone)
                np.add.at(to[old, new], new - (sold - gone), p * each)
    return to, cost


def test_order_up_to_is_all_but_optimal_in_a_store_that_can_be_solved():
    most, discount = 16, 0.98
    to, cost = poisson_store(5, most)
    best = np.zeros(most + 1)
    for _ in range(800):
        best = (cost + discount * to @ best).min(1)
    demand = paths(5, m=2000)

    def value(planner):
        orders = [min(planner(demand, [old, 0], rng=rng()), most - old) for old in range(most + 1)]
        rows = np.arange(most + 1)
        return np.linalg.solve(np.eye(most + 1) - discount * to[rows, orders], cost[rows, orders])[0]

    assert value(OrderUpTo()) <= 1.01 * best[0]
    base_stock = min(value(Newsvendor(q)) for q in np.linspace(0.4, 0.95, 23))
    assert best[0] < value(OrderUpTo()) < base_stock
    assert value(RandomTrajectories()) <= 1.12 * best[0]


def test_the_oracle_loses_nothing_where_nothing_need_be_lost():
    truth = np.random.default_rng(3).poisson(9, 40).astype(float)
    past = [(truth[None, t : t + 5], truth[t]) for t in range(35)]
    assert season(Oracle(), past).cost() == 0
    slow = season(Oracle(rules=Rules(lead_days=3)), past)
    assert slow.cost() == slow.unmet.sum() == truth[:2].sum()  # what was asked for before the first order could come


def test_the_oracle_makes_the_best_of_packs():
    truth = np.random.default_rng(3).poisson(9, 60).astype(float)
    rules = Rules(pack=6, minimum=12)
    past = [(truth[None, t : t + 5], truth[t]) for t in range(55)]
    known = season(Oracle(rules=rules), past)
    for factor in (1.0, 1.2, 1.5, 2.0):
        assert known.cost() < season(Heuristic(factor, rules=rules), past).cost()


@pytest.mark.parametrize("name", FORECASTS)
def test_orders_keep_the_rules_and_stop_when_the_shelf_is_full(name):
    demand = paths(20)
    planner = replace(FORECASTS[name], rules=Rules(pack=12, minimum=30))
    order = planner(demand, [0, 0, 0], rng=rng())
    assert order in (36, 48)
    assert isinstance(order, int)
    assert planner(demand, [30, 300, 0], rng=rng()) == 0


@pytest.mark.parametrize("name", FORECASTS)
def test_goods_on_their_way_count(name):
    planner = replace(FORECASTS[name], rules=Rules(lead_days=2))
    demand = paths(20)
    nothing = planner(demand, [0, 0, 0], rng=rng(), incoming=[20])
    enough = planner(demand, [0, 0, 0], rng=rng(), incoming=[20, 60])
    assert enough < nothing
    assert nothing <= 40


@pytest.mark.parametrize("name", FORECASTS)
def test_no_demand_no_order_and_seeds_repeat(name):
    planner = FORECASTS[name]
    assert planner(np.zeros((10, 5)), [0, 0, 0], rng=rng()) == 0
    demand = paths(30, seed=4)
    assert planner(demand, [1, 2, 0], rng=rng(7)) == planner(demand, [1, 2, 0], rng=rng(7))


def test_dearer_waste_means_smaller_orders():
    demand = paths(20)
    for make in (OrderUpTo, CrossEntropyOrders):
        orders = [make(costs=Costs(waste=w, unmet=1))(demand, [0, 0], rng=rng()) for w in (0.2, 1, 5)]
        assert orders[0] > orders[1] > orders[2]


def test_a_longer_life_means_larger_orders():
    demand = paths(20)
    orders = [OrderUpTo()(demand, np.zeros(life), rng=rng()) for life in (1, 2, 3)]
    assert orders[0] < orders[1] < orders[2]


@pytest.mark.parametrize("make", [OrderUpTo, RandomTrajectories, CrossEntropyOrders])
def test_a_pack_larger_than_a_days_demand_is_bought_when_lost_sales_are_dear(make):
    demand = paths(0.3)
    dear, cheap = (make(costs=Costs(unmet=unmet), rules=Rules(pack=12)) for unmet in (40, 1))
    assert dear(demand, [0, 0, 0], rng=rng()) == 12
    assert cheap(demand, [0, 0, 0], rng=rng()) == 0


def test_short_paths_are_carried_on_with_the_same_weekdays():
    days = np.arange(12.0)[None]
    planner = Heuristic()
    seen = planner.evening(days[:, :10], [0], incoming=[3]).carried_on(18)
    np.testing.assert_array_equal(seen.paths[0], [*range(10), *range(3, 10), 3])
    np.testing.assert_array_equal(seen.incoming, [3] + [0] * 17)
    np.testing.assert_array_equal(planner.evening(days[:, :3], [0]).carried_on(5).paths[0], [0, 1, 2, 0, 1])
    evening = planner.evening(days, [0])
    assert evening.carried_on(12) is evening


def test_the_smallest_problems_have_an_answer():
    for planner in FORECASTS.values():
        assert planner([[7.0]], [0], rng=rng()) in range(12)
        assert planner([[7.0, 3.0, 4.0]], [0, 0, 0], rng=rng()) in range(15)
    for candidates in (1, 2, 5, 400):
        assert OrderUpTo(candidates)([[7.0, 7.0, 7.0]], [0]) == 7


def test_lives_longer_than_the_paths_are_planned_for():
    demand = paths(20, m=50)
    assert 20 < OrderUpTo()(demand, np.zeros(30)) <= demand.max()
    assert OrderUpTo()(demand, np.append(np.zeros(25), [80, 0, 0])) == 0
    # Ages that outlive the horizon are one: what is expected does not depend on how they are told apart.
    planner = OrderUpTo(issuing="fifo")
    near, far = np.append(np.arange(8.0), 0), np.append(np.arange(8.0), np.zeros(6))
    evenings = [planner.evening(demand, on_hand) for on_hand in (np.append(near[:5], near[5:].sum()), far)]
    costs = [planner.closed_loop_costs(at, np.array([9.0]), np.full((1, 5), 30.0)) for at in evenings]
    np.testing.assert_allclose(*costs, rtol=1e-6)


@given(units=st.floats(0, 500), pack=st.integers(1, 20), minimum=st.integers(0, 60))
@settings(deadline=None)
def test_the_nearest_order_is_allowed_and_nearest(units, pack, minimum):
    rules = Rules(pack=pack, minimum=minimum)
    found = float(rules.nearest(units))
    allowed = np.array([0, *(q for q in range(0, 700, pack) if q >= max(minimum, 1))])
    assert found in allowed
    assert abs(found - units) == pytest.approx(np.abs(allowed - units).min(), abs=1e-9)


def test_many_series_are_ordered_as_one_by_one():
    demand = np.stack([paths(mean, m=80, seed=mean) for mean in (4, 20, 60)])
    stock = np.array([[1, 0, 0], [5, 2, 0], [0, 30, 0]])
    for planner in (OrderUpTo(), RandomTrajectories(200)):
        found = order_many(planner, demand, stock, [rng(i) for i in range(3)])
        assert found.tolist() == [planner(demand[i], stock[i], rng=rng(i)) for i in range(3)]
    found = order_many(Heuristic(rules=Rules(lead_days=2)), demand, stock, incoming=[[0, 5], [0, 0], [9]])
    assert found.shape == (3,)
    with pytest.raises(CalibrlError, match="stock of 2 series does not fit paths of 3"):
        order_many(OrderUpTo(), demand, stock[:2])


def test_a_season_conserves_units():
    truth = np.random.default_rng(0).poisson(15, 50).astype(float)
    past = [(paths(15, m=60, seed=t), truth[t]) for t in range(50)]
    for planner in (OrderUpTo(), Heuristic(rules=Rules(lead_days=3, pack=5)), OrderUpTo(issuing="lifo")):
        found = season(planner, past)
        assert found.shipped.sum() == found.sold.sum() + found.wasted.sum() + found.left.sum()
        assert (found.sold + found.unmet == truth).all()
    two, three, none = np.array([[2]]), np.array([[3]]), np.zeros((1, 1), dtype=np.int64)
    assert Season(none, none, wasted=two, unmet=three, left=none[0]).cost(Costs(waste=1, unmet=10)) == 32


def test_tuning_finds_the_cheapest_on_the_days_given():
    truth = np.random.default_rng(0).poisson(15, 60).astype(float)
    past = [(paths(15, m=60, seed=t), truth[t]) for t in range(60)]
    planners = [Heuristic(factor) for factor in (0.8, 1.0, 1.2, 1.4, 1.8)]
    ahead, demand = np.stack([paths for paths, _ in past])[None], truth[None]
    chosen = tune(planners, ahead, demand, shelf_life=3, seed=0)
    costs = [season(p, past).cost() for p in planners]
    assert chosen == planners[int(np.argmin(costs))]
    assert chosen.factor in (1.2, 1.4)
    with pytest.raises(CalibrlError, match="no planner"):
        tune([], ahead, demand, shelf_life=3, seed=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: OrderUpTo()(np.zeros((0, 5)), [0]), r"paths of shape \(0, 5\)"),
        (lambda: OrderUpTo()(np.zeros(5), [0]), r"paths of shape \(5,\)"),
        (lambda: OrderUpTo()([[1.0, np.nan]], [0]), "paths: nan is no number"),
        (lambda: OrderUpTo()([[1.0, np.inf]], [0]), "paths: inf"),
        (lambda: OrderUpTo()([[1.0, -2.0]], [0]), "paths: -2"),
        (lambda: OrderUpTo()([["many"]], [0]), "paths: not numbers"),
        (lambda: OrderUpTo()([[1.0]], []), r"stock of shape \(0,\)"),
        (lambda: OrderUpTo()([[1.0]], [-1, 0]), "stock: -1"),
        (lambda: OrderUpTo(rules=Rules(lead_days=3))([[1.0, 2.0]], [0]), "look 3 days ahead"),
        (lambda: OrderUpTo()([[1.0, 2.0]], [0], incoming=[1, 2, 3]), r"incoming of shape \(3,\)"),
        (lambda: OrderUpTo(issuing="oldest"), "'oldest' is unknown"),
        (lambda: OrderUpTo(0), "candidates 0"),
        (lambda: RandomTrajectories()([[1.0, 2.0]], [0]), "rng is None"),
        (lambda: RandomTrajectories(reach=0), "reach 0"),
        (lambda: RandomTrajectories(0), "trajectories 0"),
        (lambda: Heuristic(-1), "factor -1"),
        (lambda: Newsvendor(1.5), "quantile 1.5"),
        (lambda: Oracle()(paths(), [0]), "300 paths are a forecast"),
        (lambda: Rules(pack=0), "pack 0"),
        (lambda: Rules(minimum=-1), "minimum -1"),
        (lambda: Rules(lead_days=0), "lead_days 0"),
        (lambda: Rules(pack=2.5), "pack 2.5"),
        (lambda: Rules(minimum=np.nan), "minimum nan"),
    ],
)
def test_bad_input_is_refused_with_its_cure(call, words):
    with pytest.raises(CalibrlError, match=words) as problem:
        call()
    assert "\n" not in str(problem.value)


def test_a_share_of_whole_paths_is_not_rounded_up():
    # In float64, 0.07 · 100 is more than 7.
    assert quantiles(np.arange(1.0, 101.0), np.array([0.0, 0.07, 0.5, 1.0])).tolist() == [1, 7, 50, 100]

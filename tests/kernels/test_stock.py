"""The compiled plans against the plain reference, both against the exact store, and the best order against others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calibrl.inventory.problems import ISSUING, one_day
from calibrl.kernels import stock
from tests.kernels.references import closed_loop_reference, follow_reference, open_loop_reference

# (ages, days, lead), issuing: the paper's; what does not keep; and one that only the general kernel is made for.
CASES = [((3, 5, 1), 0), ((3, 5, 1), 1), ((3, 5, 1), 2), ((1, 3, 2), 0), *(((8, 9, 3), i) for i in range(3))]


def evening(ages, days, paths=70, seed=0):
    generator = np.random.default_rng(seed)
    demand = generator.poisson(9, (paths, days)).astype(float)
    demand[:, days // 2] = 0  # a closed day
    on_hand = np.append(generator.integers(0, 8, ages - 1), 0).astype(float)
    return generator, demand, on_hand


def costs_of(arrivals, demand, on_hand, **terms):
    return stock.open_loop_costs(
        arrivals.astype(np.float32), stock.in_blocks(demand), len(demand), on_hand.astype(np.float32), **terms
    )


def kernels(ages, days):
    return [False, True] if stock.fits(ages, days, 2) else [False]


@pytest.mark.parametrize(("size", "issuing"), CASES)
def test_fixed_plans_cost_what_the_reference_says(size, issuing):
    ages, days, _ = size
    generator, demand, on_hand = evening(ages, days)
    arrivals = generator.integers(0, 20, (40, days)).astype(float)
    expected = open_loop_reference(arrivals, demand, on_hand, waste=1.5, unmet=2.0, issuing=issuing)
    for small in kernels(ages, days):
        found = costs_of(arrivals, demand, on_hand, waste=1.5, unmet=2.0, issuing=issuing, small=small)
        np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.parametrize("issuing", range(3))
def test_giving_up_poor_plans_keeps_the_best(issuing):
    generator, demand, on_hand = evening(3, 5, paths=200)
    arrivals = generator.integers(0, 20, (400, 5)).astype(float)
    for small in kernels(3, 5):
        terms = {"waste": 1.0, "unmet": 1.0, "issuing": issuing, "small": small}
        whole = costs_of(arrivals, demand, on_hand, **terms)
        quick = costs_of(arrivals, demand, on_hand, give_up=True, **terms)
        assert quick.argmin() == whole.argmin()
        assert (quick == stock.GIVEN_UP).mean() > 0.5
        kept = quick < stock.GIVEN_UP
        np.testing.assert_array_equal(quick[kept], whole[kept])


@pytest.mark.parametrize(("size", "issuing"), CASES)
def test_policies_cost_what_the_reference_says(size, issuing):
    ages, days, lead = size
    generator, demand, on_hand = evening(ages, days)
    first = generator.integers(0, 20, 30).astype(float)
    # Off the grid of whole units, because float32 and float64 may round a tie to different packs.
    levels = generator.integers(0, 40 * lead, (30, days)) + 0.3
    demand += 0 if issuing else generator.random(demand.shape)
    incoming = np.pad(generator.integers(0, 9, lead).astype(float), (0, days - lead))
    terms = {"pack": 4.0, "minimum": 8.0, "waste": 1.5, "unmet": 2.0}
    terms |= {"lead": lead, "issuing": issuing}
    expected = closed_loop_reference(first, levels, demand, on_hand, incoming=incoming, **terms)
    given_units = (first.astype(np.float32), levels.astype(np.float32), stock.in_blocks(demand), len(demand))
    coming, shelf = incoming.astype(np.float32), on_hand.astype(np.float32)
    for small in kernels(ages, days):
        costs = stock.closed_loop_costs(*given_units, shelf, incoming=coming, small=small, **terms)
        np.testing.assert_allclose(costs, expected, rtol=1e-5)


@pytest.mark.parametrize("issuing", [1, 2])
@settings(deadline=None, max_examples=40)
@given(
    start=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    arrivals=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    demand=st.lists(st.integers(0, 9), min_size=4, max_size=4),
)
def test_the_reference_is_the_exact_store_where_nothing_is_drawn(issuing, start, arrivals, demand):
    on_hand, cost = np.array(start), 0.0
    for units, wanted in zip(arrivals, demand, strict=True):
        day = one_day(on_hand, wanted, units, issuing=ISSUING[issuing])
        on_hand, cost = day.stock, cost + 3 * day.wasted + 2 * day.unmet
    found = open_loop_reference(
        np.array([arrivals]), np.array([demand]), np.array(start), waste=3, unmet=2, issuing=issuing
    )
    assert found[0] == pytest.approx(cost)


def test_proportional_issuing_is_the_mean_of_random_draws():
    on_hand, demand = np.array([5, 0, 4]), 6
    generator = np.random.default_rng(0)
    days = [one_day(on_hand, demand, 3, rng=generator) for _ in range(4000)]
    planned = open_loop_reference(
        np.array([[3]]), np.array([[demand]]), on_hand, waste=1, unmet=1, issuing=stock.RANDOM
    )
    assert planned[0] == pytest.approx(np.mean([day.wasted + day.unmet for day in days]), abs=0.05)


def test_blocks_hold_all_paths():
    paths = np.arange(70.0 * 3).reshape(70, 3)
    blocks = stock.in_blocks(paths)
    assert blocks.shape == (2, 3, stock.BLOCK)
    np.testing.assert_array_equal(blocks.transpose(0, 2, 1).reshape(-1, 3)[:70], paths)
    assert (blocks[1, :, 70 - stock.BLOCK :] == 0).all()


# Between deliveries.


@given(seed=st.integers(0, 10_000))
def test_a_path_is_followed_as_described(seed):
    rng = np.random.default_rng(seed)
    h = int(rng.integers(4, 12))
    path = rng.poisson(6, h).astype(float)
    lead = int(rng.integers(1, 4))
    day = np.unique(np.concatenate([[lead - 1, lead], rng.integers(lead - 1, h, 3)]))
    day = day[day < h]
    decided = np.maximum(day - lead, -1)
    decided[1:] = np.maximum(decided[1:], 0)
    life = int(rng.integers(1, 6))
    opening = rng.poisson(2, h + 1).astype(float)
    arriving = rng.poisson(0.3, (h, h + 1)).astype(float) if rng.random() < 0.5 else np.zeros((0, h + 1))
    if len(arriving):
        arriving *= np.arange(h + 1) >= np.arange(h)[:, None]  # nothing arrives expired
    level = rng.uniform(0, 20, len(day))
    pack, minimum, order = int(rng.integers(1, 5)), int(rng.integers(0, 6)), int(rng.integers(0, 30))
    expected = np.full(h, 6.0)
    found = np.zeros(stock.COUNTS)
    room = np.zeros((2, h + 1)), np.zeros(len(day))
    given = path, opening, arriving, stock.Terms(day, decided, life, pack, minimum), order, level, expected
    stock.follow(*given, *room, found)
    truth = follow_reference(*given)
    assert found == pytest.approx(truth, abs=1e-9)


@given(wanted=st.floats(-5, 200), pack=st.integers(1, 24), minimum=st.integers(0, 50))
def test_orders_are_whole_packs_and_no_less_than_the_minimum(wanted, pack, minimum):
    order = stock.rounded_up(wanted, pack, minimum)
    if wanted <= 1e-9:
        assert order == 0
    else:
        assert order % pack == 0
        assert order >= max(wanted - 1e-6, minimum)
        assert order - pack < max(wanted, minimum)


@pytest.mark.parametrize(("waste", "lost"), [(1.0, 1.0), (1.0, 3.0), (4.0, 1.0)])
def test_goods_of_one_day_are_ordered_by_the_newsvendor_quantile(waste, lost):
    demand = np.sort(stats.poisson.ppf((np.arange(2000) + 0.5) / 2000, 30))
    paths = np.stack([demand, np.random.default_rng(0).permutation(demand)], 1)
    levels = np.quantile(paths, [0.5, 0.8], axis=0)
    terms = stock.Terms(np.array([0, 1]), np.array([-1, 0]), life=1, pack=1, minimum=0)
    price = np.array([lost, waste, 0.0])
    order, _ = stock.best_order(paths, np.zeros(3), np.zeros((0, 3)), terms, levels, 80, price)
    assert order == stats.poisson.ppf(lost / (lost + waste), 30)

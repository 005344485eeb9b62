"""A day of the store: conservation, the hypergeometric law, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calibrl.errors import CalibrlError
from calibrl.inventory import Costs, empty_shelf, one_day
from calibrl.inventory.problems import ISSUING

days = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=25)


@given(history=days, life=st.integers(1, 6), issuing=st.sampled_from(ISSUING), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_units_are_conserved_over_whole_histories(history, life, issuing, seed):
    rng = np.random.default_rng(seed)
    stock = empty_shelf(life)
    ordered = sold = wasted = 0
    for order, demand in history:
        there = int(stock.sum()) + order
        day = one_day(stock, demand, order, rng=rng, issuing=issuing)
        assert day.sold == min(there, demand)
        assert day.sold + day.unmet == demand
        assert day.stock.shape == (life,)
        assert day.stock[-1] == 0
        assert (day.stock >= 0).all()
        stock, ordered, sold, wasted = day.stock, ordered + order, sold + day.sold, wasted + day.wasted
        assert ordered == sold + wasted + stock.sum()


@given(history=days, life=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_oldest_first_wastes_least_and_newest_first_most(history, life, seed):
    wasted = {}
    for issuing in ISSUING:
        rng, stock, wasted[issuing] = np.random.default_rng(seed), empty_shelf(life), 0
        for order, _ in history:  # demand that never exceeds the stock: then the rules differ in waste alone
            day = one_day(stock, order // 2, order, rng=rng, issuing=issuing)
            stock, wasted[issuing] = day.stock, wasted[issuing] + day.wasted
    assert wasted["fifo"] <= wasted["random"] <= wasted["lifo"]


def test_ages_in_hand():
    stock = [3, 0, 4]
    oldest = one_day(stock, 5, 2, issuing="fifo")
    np.testing.assert_array_equal(oldest.stock, [0, 4, 0])
    assert (oldest.sold, oldest.wasted, oldest.unmet) == (5, 0, 0)
    newest = one_day(stock, 5, 2, issuing="lifo")
    np.testing.assert_array_equal(newest.stock, [0, 1, 0])
    assert (newest.sold, newest.wasted, newest.unmet) == (5, 3, 0)
    short = one_day(stock, 12, 2, issuing="lifo")
    assert (short.sold, short.wasted, short.unmet) == (9, 0, 3)
    assert short.cost(Costs(waste=1, unmet=4)) == 12


def test_random_sales_follow_the_multivariate_hypergeometric():
    stock, order, demand, draws = np.array([4, 2, 0]), 3, 5, 20_000
    law = stats.multivariate_hypergeom([4, 2, 3], demand)
    rng = np.random.default_rng(1)
    seen = np.zeros((5, 3, 4))
    for _ in range(draws):
        day = one_day(stock, demand, order, rng=rng)
        taken = [4 - day.wasted, 2 - day.stock[0], 3 - day.stock[1]]
        seen[tuple(taken)] += 1
    cells = [(a, b, demand - a - b) for a in range(5) for b in range(3) if 0 <= demand - a - b <= 3]
    expected = np.array([law.pmf(cell) for cell in cells]) * draws
    assert expected.sum() == pytest.approx(draws)
    assert stats.chisquare([seen[cell] for cell in cells], expected).pvalue > 1e-3


def test_what_is_left_of_each_age_has_the_hypergeometric_mean():
    rng = np.random.default_rng(2)
    wasted = [one_day([30, 20, 0], 40, 50, rng=rng).wasted for _ in range(4000)]
    # 60 of 100 units stay; 30 of the 100 are in their last day.
    law = stats.hypergeom(100, 30, 60)
    assert np.mean(wasted) == pytest.approx(law.mean(), abs=4 * law.std() / np.sqrt(4000))
    assert np.var(wasted) == pytest.approx(law.var(), rel=0.1)


def test_seeded_days_are_repeated():
    again = [one_day([9, 9, 0], 10, 9, rng=np.random.default_rng(3)).stock for _ in range(2)]
    np.testing.assert_array_equal(*again)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: empty_shelf(0), "shelf life 0 .* use 1"),
        (lambda: one_day([], 1, 1, issuing="fifo"), r"shape \(0,\)"),
        (lambda: one_day([[1, 2]], 1, 1, issuing="fifo"), r"shape \(1, 2\)"),
        (lambda: one_day([-1, 2], 1, 1, issuing="fifo"), "stock of -1 units"),
        (lambda: one_day([0.5, 2], 1, 1, issuing="fifo"), "stock of 0.5 units"),
        (lambda: one_day([np.nan, 2], 1, 1, issuing="fifo"), "stock of nan units"),
        (lambda: one_day([1, 2], -3, 1, issuing="fifo"), "demand -3"),
        (lambda: one_day([1, 2], 2.5, 1, issuing="fifo"), "demand 2.5 .* round"),
        (lambda: one_day([1, 2], np.nan, 1, issuing="fifo"), "demand nan"),
        (lambda: one_day([1, 2], 1, -1, issuing="fifo"), "order -1"),
        (lambda: one_day([1, 2], 1, 1, issuing="oldest"), "'oldest' is unknown; use one of random, fifo, lifo"),
        (lambda: one_day([1, 2], 1, 1), "rng is None"),
        (lambda: Costs(waste=-1), "cost of waste -1"),
        (lambda: Costs(waste=0, unmet=0), "both 0"),
    ],
)
def test_bad_input_is_refused_with_its_cure(call, words):
    with pytest.raises(CalibrlError, match=words) as problem:
        call()
    assert "\n" not in str(problem.value)

"""The delivery kernel against its plain reference, and against the newsvendor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrl.kernels import deliveries as kernel
from tests.kernels.references import follow_reference


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
    found = np.zeros(kernel.COUNTS)
    room = np.zeros((2, h + 1)), np.zeros(len(day))
    given = path, opening, arriving, kernel.Terms(day, decided, life, pack, minimum), order, level, expected
    kernel.follow(*given, *room, found)
    truth = follow_reference(*given)
    assert found == pytest.approx(truth, abs=1e-9)


@given(wanted=st.floats(-5, 200), pack=st.integers(1, 24), minimum=st.integers(0, 50))
def test_orders_are_whole_packs_and_no_less_than_the_minimum(wanted, pack, minimum):
    order = kernel.rounded_up(wanted, pack, minimum)
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
    terms = kernel.Terms(np.array([0, 1]), np.array([-1, 0]), life=1, pack=1, minimum=0)
    price = np.array([lost, waste, 0.0])
    order, _ = kernel.best_order(paths, np.zeros(3), np.zeros((0, 3)), terms, levels, 80, price)
    assert order == stats.poisson.ppf(lost / (lost + waste), 30)

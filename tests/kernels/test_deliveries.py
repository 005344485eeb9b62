"""The delivery kernel against a plain simulation written from its description, and against the newsvendor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrl.kernels import deliveries as kernel


def reference(path, opening, arriving, day, decided, life, order, level, expected, pack, minimum):
    """One path, day by day, with a dictionary of batches: last day → units; the order is apart, half a day before."""
    h = len(path)
    ours = day[0] + life - 1.5
    shelf = {e: float(u) for e, u in enumerate(opening)}
    brought = [float(order)] + [0.0] * (len(day) - 1)
    out = np.zeros(kernel.COUNTS)

    def opened(shelf, d):
        shelf = dict(shelf)
        if len(arriving):
            for e in range(h + 1):
                shelf[e] = shelf.get(e, 0.0) + arriving[d][e]
        for k, when in enumerate(day):
            if when == d:
                last = min(d + life - 1, h) if k else ours
                shelf[last] = shelf.get(last, 0.0) + brought[k]
        return shelf

    def after(shelf, sold):
        total = sum(shelf.values())
        return {e: u * (1 - sold / total) if total else 0.0 for e, u in shelf.items()}

    def foreseen(shelf, now, until):
        for d in range(now + 1, until):
            shelf = opened(shelf, d)
            shelf = {e: u for e, u in after(shelf, min(expected[d], sum(shelf.values()))).items() if e > d}
        return sum(opened(shelf, until).values())

    for d in range(h):
        shelf = opened(shelf, d)
        sold = min(sum(shelf.values()), path[d])
        unmet = path[d] - sold
        shelf = after(shelf, sold)
        wasted = {e: shelf.pop(e) for e in sorted(shelf) if e <= d}
        waste = sum(wasted.values())
        if d < day[0]:
            out[kernel.LOST_BEFORE] += unmet
            out[kernel.OUT_BEFORE] = max(out[kernel.OUT_BEFORE], float(unmet > 0))
        else:
            out[kernel.UNMET] += unmet
            out[kernel.WASTE] += waste
            out[kernel.HELD] += sum(shelf.values())
            if d < day[1]:
                out[kernel.LOST] += unmet
                out[kernel.OUT] = max(out[kernel.OUT], float(unmet > 0))
            out[kernel.ORDER_WASTE] += wasted.get(ours, 0.0)
        for k in range(1, len(day)):
            if decided[k] == d:
                wanted = level[k] - foreseen(shelf, d, day[k])
                if wanted > 1e-9:
                    brought[k] = math.ceil(max(wanted, minimum) / pack - 1e-9) * pack
    # Beyond the path an average day sells the mean, as long as the last delivery that outlasts the path keeps.
    left = sum(shelf.values())
    lasting = [when + life - h for when, units in zip(day, brought, strict=True) if units and when + life > h]
    sells = min(left, np.mean(expected) * (lasting or [life])[-1])
    out[kernel.SPARED] = sells / np.mean(expected)
    out[kernel.HELD] += out[kernel.SPARED] * sells / 2
    out[kernel.WASTE] += left - sells
    out[kernel.ORDER_WASTE] += shelf.get(ours, 0.0) * (1 - sells / left) if left else 0.0
    return out


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
    kernel.follow(path, opening, arriving, day, decided, life, order, level, expected, pack, minimum, *room, found)
    truth = reference(path, opening, arriving, day, decided, life, order, level, expected, pack, minimum)
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
    order, _ = kernel.best_order(
        paths,
        np.zeros(3),
        np.zeros((0, 3)),
        np.array([0, 1]),
        np.array([-1, 0]),
        1,
        levels,
        80,
        1,
        0,
        np.array([lost, waste, 0.0]),
    )
    assert order == stats.poisson.ppf(lost / (lost + waste), 30)

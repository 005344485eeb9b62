"""Expected cost of many order plans over many demand paths, compiled: one thread, vectorised over paths.

Plain NumPy with the same meaning is in `stock_reference`. Units are float32 here: plans are compared, not counted.

Demand comes in blocks, (b, h, BLOCK): a block's stock stays in the nearest cache while its days go by, and a plan
whose cost over some blocks already exceeds the best plan's over all of them is given up. Costs are never
negative, so that the best plan is never given up.

Stock of age l on day k is row (k + l) mod L: what is in its last day leaves its row to the next order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Units = NDArray[np.float32]

BLOCK = 64
RANDOM, FIFO, LIFO = 0, 1, 2
GIVEN_UP = np.float32(3e38)
"""The cost of a plan given up; finite, because fast arithmetic knows no infinity."""
_NONE, _TINY, _HALF = np.float32(0), np.float32(1e-30), np.float32(0.5)


def in_blocks(paths: NDArray[Any]) -> Units:
    """Demand paths (m, h) as the kernels read them: (⌈m / BLOCK⌉, h, BLOCK), the end filled up with zeros."""
    m, h = paths.shape
    blocks = np.zeros((-(-m // BLOCK) * BLOCK, h), dtype=np.float32)
    blocks[:m] = paths
    return np.ascontiguousarray(blocks.reshape(-1, BLOCK, h).transpose(0, 2, 1))


@njit(cache=True, fastmath=True, error_model="numpy")
def open_loop_costs(
    arrivals: Units,
    demand: Units,
    paths: int,
    stock: Units,
    waste: np.float32,
    unmet: np.float32,
    issuing: int,
    give_up: bool,
) -> Units:
    """Mean cost (n,) of n fixed plans.

    arrivals: (n, h) units on the shelf before each day's demand; demand: (b, h, BLOCK) of `paths` paths; stock:
    (L,) units that expire in l + 1 days; waste, unmet: cost of a unit; issuing: RANDOM (in proportion to what is
    there of each age), FIFO or LIFO.
    """
    plans, days = arrivals.shape
    ages = stock.shape[0]
    shelf, total, work = np.empty((ages, BLOCK), np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    arriving = np.empty(BLOCK, np.float32)
    costs = np.empty(plans, np.float32)
    best = GIVEN_UP
    for i in range(plans):
        cost = _NONE
        for b in range(demand.shape[0]):
            size = min(BLOCK, paths - b * BLOCK)
            _open(stock, shelf, total)
            for k in range(days):
                arriving[:] = arrivals[i, k]
                cost += _day(arriving, demand[b, k], size, shelf, total, work, k, waste, unmet, issuing)
            if give_up and cost > best:
                cost = GIVEN_UP
                break
        costs[i] = cost
        best = min(best, cost)
    for i in range(plans):
        if costs[i] < GIVEN_UP:
            costs[i] /= np.float32(paths)
    return costs


@njit(cache=True, fastmath=True, error_model="numpy")
def closed_loop_costs(
    first: Units,
    levels: Units,
    demand: Units,
    paths: int,
    stock: Units,
    incoming: Units,
    lead: int,
    pack: np.float32,
    minimum: np.float32,
    waste: np.float32,
    unmet: np.float32,
    issuing: int,
    give_up: bool,
) -> Units:
    """Mean cost (n,) of n policies that see each path's stock before they order.

    first: (n,) the order of tonight; levels: (n, h) order-up-to levels: in the night before day k a policy orders
    what is missing to levels[:, k] of the stock on the shelf and on its way, in whole packs, for day k + lead - 1.
    incoming: (h,) units already on their way. The rest is as for fixed plans.
    """
    policies, days = levels.shape
    ages = stock.shape[0]
    shelf, total, work = np.empty((ages, BLOCK), np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    coming, position = np.empty((days, BLOCK), np.float32), np.empty(BLOCK, np.float32)
    costs = np.empty(policies, np.float32)
    best = GIVEN_UP
    for i in range(policies):
        cost = _NONE
        for b in range(demand.shape[0]):
            size = min(BLOCK, paths - b * BLOCK)
            _open(stock, shelf, total)
            for k in range(days):
                coming[k, :] = incoming[k]
            coming[lead - 1, :] += first[i]
            for k in range(days):
                due = k + lead - 1
                if k > 0 and due < days:
                    position[:] = total
                    for j in range(k, due + 1):
                        _add(coming[j], position)
                    _order_up_to(levels[i, k], position, pack, minimum, coming[due])
                cost += _day(coming[k], demand[b, k], size, shelf, total, work, k, waste, unmet, issuing)
            if give_up and cost > best:
                cost = GIVEN_UP
                break
        costs[i] = cost
        best = min(best, cost)
    for i in range(policies):
        if costs[i] < GIVEN_UP:
            costs[i] /= np.float32(paths)
    return costs


@njit(cache=True, fastmath=True, error_model="numpy")
def _open(stock: Units, shelf: Units, total: Units) -> None:
    held = _NONE
    for age in range(stock.shape[0]):
        shelf[age, :] = stock[age]
        held += stock[age]
    total[:] = held


@njit(cache=True, fastmath=True, error_model="numpy")
def _add(units: Units, to: Units) -> None:
    for j in range(BLOCK):
        to[j] += units[j]


@njit(cache=True, fastmath=True, error_model="numpy")
def _order_up_to(level: np.float32, position: Units, pack: np.float32, minimum: np.float32, due: Units) -> None:
    """Add to `due` what is missing to the level: the nearest quantity that can be ordered."""
    for j in range(BLOCK):
        missing = max(level - position[j], _NONE)
        packs = np.floor(missing / pack + _HALF) * pack
        least = minimum if missing + missing >= minimum else _NONE
        due[j] += packs if packs >= minimum else least


@njit(cache=True, fastmath=True, error_model="numpy")
def _day(
    arriving: Units,
    demand: Units,
    size: int,
    shelf: Units,
    total: Units,
    work: Units,
    k: int,
    waste: np.float32,
    unmet: np.float32,
    issuing: int,
) -> np.float32:
    """Day k of a block: deliver, sell, throw away. The cost summed over its first `size` paths."""
    ages = shelf.shape[0]
    newest, oldest = shelf[(k + ages - 1) % ages], shelf[k % ages]
    short = _NONE
    for j in range(size):
        newest[j] += arriving[j]
        there = total[j] + arriving[j]
        left = max(there - demand[j], _NONE)
        short += demand[j] - there + left
        total[j] = left
        # What of a random sale every age keeps; what of an ordered sale is still to be taken.
        work[j] = left / max(there, _TINY) if issuing == RANDOM else there - left
    for step in range(ages):
        if issuing == RANDOM:
            age = shelf[step]
            for j in range(size):
                age[j] *= work[j]
        else:
            age = shelf[(k + (step if issuing == FIFO else ages - 1 - step)) % ages]
            for j in range(size):
                held = age[j]
                age[j] = max(held - work[j], _NONE)
                work[j] = max(work[j] - held, _NONE)
    gone = _NONE
    for j in range(size):
        gone += oldest[j]
        total[j] -= oldest[j]
        oldest[j] = _NONE
    return short * unmet + gone * waste

"""The kernels of `stock` for short lives and horizons: a path's whole stock stays in registers.

The shelf is a tuple, so that its length is known to the compiler, and so are those of `days` and `issuing`: it
writes out all days and ages and does sixteen paths at a time. It stops doing so beyond `LIMITS` ages × days (by
issuing), and `stock` takes over.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem

from calibrl.kernels.stock import _HALF, _NONE, _TINY, BLOCK, FIFO, GIVEN_UP, RANDOM, Units

LIMITS = (49, 30, 30)
Shelf: TypeAlias = tuple[np.float32, ...]


def fits(ages: int, days: int, issuing: int) -> bool:
    """Whether these kernels are the quick ones."""
    return ages * days <= LIMITS[issuing]


@njit(cache=True, fastmath=True, error_model="numpy")
def open_loop_costs(
    arrivals: Units,
    demand: Units,
    paths: int,
    stock: Shelf,
    days: tuple[int, ...],
    waste: np.float32,
    unmet: np.float32,
    issuing: tuple[int, ...],
    give_up: bool,
) -> Units:
    """As `stock.open_loop_costs`; days: h zeros; issuing: as many zeros as its number."""
    plans = arrivals.shape[0]
    costs = np.empty(plans, np.float32)
    best = GIVEN_UP
    for i in range(plans):
        cost = _NONE
        for b in range(demand.shape[0]):
            size = min(BLOCK, paths - b * BLOCK)
            cost += _open_block(arrivals[i], demand[b], size, stock, days, waste, unmet, issuing)
            if give_up and cost > best:
                cost = GIVEN_UP
                break
        costs[i] = cost
        best = min(best, cost)
    return _mean(costs, paths)


@njit(cache=True, fastmath=True, error_model="numpy")
def closed_loop_costs(
    first: Units,
    levels: Units,
    demand: Units,
    paths: int,
    stock: Shelf,
    days: tuple[int, ...],
    incoming: Units,
    lead: Shelf,
    pack: np.float32,
    minimum: np.float32,
    waste: np.float32,
    unmet: np.float32,
    issuing: tuple[int, ...],
    give_up: bool,
) -> Units:
    """As `stock.closed_loop_costs`; lead: the incoming units of as many days as the lead time.

    days, issuing: as for `open_loop_costs`.
    """
    policies = levels.shape[0]
    costs = np.empty(policies, np.float32)
    best = GIVEN_UP
    for i in range(policies):
        cost = _NONE
        for b in range(demand.shape[0]):
            size = min(BLOCK, paths - b * BLOCK)
            cost += _closed_block(
                first[i], levels[i], demand[b], size, stock, days, incoming, lead, pack, minimum, waste, unmet, issuing
            )
            if give_up and cost > best:
                cost = GIVEN_UP
                break
        costs[i] = cost
        best = min(best, cost)
    return _mean(costs, paths)


@njit(cache=True, fastmath=True, error_model="numpy")
def _open_block(
    arrivals: Units,
    demand: Units,
    size: int,
    stock: Shelf,
    days: tuple[int, ...],
    waste: np.float32,
    unmet: np.float32,
    issuing: tuple[int, ...],
) -> np.float32:
    short, gone = _NONE, _NONE
    for j in range(size):
        shelf = stock
        for k in range(len(days)):
            shelf = _with_last(shelf, shelf[-1] + arrivals[k])
            shelf, missed, wasted = _day(shelf, demand[k, j], issuing)
            short += missed
            gone += wasted
    return short * unmet + gone * waste


@njit(cache=True, fastmath=True, error_model="numpy")
def _closed_block(
    first: np.float32,
    levels: Units,
    demand: Units,
    size: int,
    stock: Shelf,
    days: tuple[int, ...],
    incoming: Units,
    lead: Shelf,
    pack: np.float32,
    minimum: np.float32,
    waste: np.float32,
    unmet: np.float32,
    issuing: tuple[int, ...],
) -> np.float32:
    due = len(lead) - 1
    short, gone = _NONE, _NONE
    for j in range(size):
        shelf, coming = stock, lead
        for k in range(len(days)):
            order = first
            if k > 0:
                missing = max(levels[k] - _total(shelf) - _total(coming), _NONE)
                packs = np.floor(missing / pack + _HALF) * pack
                least = minimum if missing + missing >= minimum else _NONE
                order = packs if packs >= minimum else least
            coming = _with_last(coming, coming[-1] + order)
            shelf = _with_last(shelf, shelf[-1] + coming[0])
            coming = _shifted(coming, incoming[k + due + 1] if k + due + 1 < len(days) else _NONE)
            shelf, missed, wasted = _day(shelf, demand[k, j], issuing)
            short += missed
            gone += wasted
    return short * unmet + gone * waste


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _day(shelf: Shelf, demand: np.float32, issuing: tuple[int, ...]) -> tuple[Shelf, np.float32, np.float32]:
    """Sell and age: the shelf of the next morning, unmet demand, waste."""
    there = _total(shelf)
    left = max(there - demand, _NONE)
    if len(issuing) == RANDOM:
        kept = left / max(there, _TINY)
        for age in range(len(shelf)):
            shelf = _put(shelf, age, shelf[age] * kept)
    else:
        rest = there - left
        for step in range(len(shelf)):
            age = step if len(issuing) == FIFO else len(shelf) - 1 - step
            held = shelf[age]
            shelf = _put(shelf, age, max(held - rest, _NONE))
            rest = max(rest - held, _NONE)
    return _shifted(shelf, _NONE), demand - there + left, shelf[0]


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _total(units: Shelf) -> np.float32:
    total = _NONE
    for i in range(len(units)):
        total += units[i]
    return total


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _shifted(units: Shelf, last: np.float32) -> Shelf:
    return units[1:] + (last,)  # noqa: RUF005 (the compiler knows the length of a sum)


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _with_last(units: Shelf, last: np.float32) -> Shelf:
    return units[:-1] + (last,)  # noqa: RUF005 (the compiler knows the length of a sum)


@njit(cache=True, inline="always")
def _put(units: Shelf, place: int, value: np.float32) -> Any:
    return tuple_setitem(units, place, value)  # type: ignore[call-arg]


@njit(cache=True)
def _mean(costs: Units, paths: int) -> Units:
    for i in range(costs.shape[0]):
        if costs[i] < GIVEN_UP:
            costs[i] /= np.float32(paths)
    return costs

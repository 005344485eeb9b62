"""What the kernels of `stock` should say, in plain NumPy and float64: one day at a time for all plans and paths."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.kernels.stock import FIFO, RANDOM

Floats = NDArray[np.float64]


def open_loop_costs(
    arrivals: NDArray[Any], paths: NDArray[Any], stock: NDArray[Any], *, waste: float, unmet: float, issuing: int
) -> Floats:
    """Mean cost (n,) of plans with arrivals (n, h) over paths (m, h), from stock (L,) by days to expiry."""
    shelf = _opened(stock, len(arrivals), len(paths))
    cost = np.zeros(shelf.shape[1:])
    for k in range(paths.shape[1]):
        shelf[-1] += arrivals[:, k, None]
        cost += sell_and_age(shelf, paths[:, k], waste=waste, unmet=unmet, issuing=issuing)
    return cost.mean(1)


def closed_loop_costs(
    first: NDArray[Any],
    levels: NDArray[Any],
    paths: NDArray[Any],
    stock: NDArray[Any],
    *,
    incoming: NDArray[Any],
    lead: int,
    pack: float,
    minimum: float,
    waste: float,
    unmet: float,
    issuing: int,
) -> Floats:
    """Mean cost (n,) of policies that order `first` (n,) tonight and up to levels (n, h) in later nights."""
    shelf = _opened(stock, len(levels), len(paths))
    days = paths.shape[1]
    coming = np.broadcast_to(np.asarray(incoming, dtype=np.float64)[:, None, None], (days, *shelf.shape[1:])).copy()
    coming[lead - 1] += first[:, None]
    cost = np.zeros(shelf.shape[1:])
    for k in range(days):
        due = k + lead - 1
        if k > 0 and due < days:
            missing = np.maximum(levels[:, k, None] - shelf.sum(0) - coming[k : due + 1].sum(0), 0)
            packs = np.floor(missing / pack + 0.5) * pack
            coming[due] += np.where(packs >= minimum, packs, np.where(2 * missing >= minimum, minimum, 0))
        shelf[-1] += coming[k]
        cost += sell_and_age(shelf, paths[:, k], waste=waste, unmet=unmet, issuing=issuing)
    return cost.mean(1)


def _opened(stock: NDArray[Any], plans: int, paths: int) -> Floats:
    return np.tile(np.asarray(stock, dtype=np.float64)[:, None, None], (1, plans, paths))


def sell_and_age(shelf: Floats, demand: NDArray[Any], *, waste: float, unmet: float, issuing: int) -> Floats:
    """Cost (n, m) of a day with demand (m,); shelf (L, n, m) is left as the next day finds it."""
    there = shelf.sum(0)
    sold = np.minimum(there, demand)
    if issuing == RANDOM:
        shelf *= np.divide(there - sold, there, out=np.zeros_like(there), where=there > 0)
    else:
        rest = sold.copy()
        for age in range(len(shelf)) if issuing == FIFO else reversed(range(len(shelf))):
            taken = np.minimum(shelf[age], rest)
            shelf[age] -= taken
            rest -= taken
    cost = waste * shelf[0] + unmet * (demand - sold)
    shelf[:-1] = shelf[1:]
    shelf[-1] = 0
    return cost

"""A planner judged on days gone by, and chosen on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrl.errors import CalibrlError
from calibrl.inventory.planners.night import Planner
from calibrl.inventory.store import Costs, Stock, empty_shelf, one_day

Past: TypeAlias = Iterable[tuple[ArrayLike, float]]
"""Nights in a row: the paths (m, h) forecast in each, and the demand that came the day after."""
P = TypeVar("P", bound=Planner)


@dataclass(frozen=True)
class Ledger:
    """Units over many days: shipped = sold + wasted + left."""

    shipped: int = 0
    sold: int = 0
    wasted: int = 0
    unmet: int = 0
    left: int = 0

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def cost(self, costs: Costs | None = None) -> float:
        """Waste and unmet demand at their costs, by default 1 a unit: the reward with its sign turned."""
        costs = costs or Costs()
        return costs.waste * self.wasted + costs.unmet * self.unmet


def replay(planner: Planner, past: Past, *, shelf_life: int, rng: np.random.Generator) -> Ledger:
    """What a planner would have done, from an empty shelf, with exact draws of the units sold."""
    stock, lead = empty_shelf(shelf_life), planner.rules.lead_days
    incoming = [0] * (lead - 1)
    ledger = Ledger()
    for paths, demand in past:
        incoming.append(planner(paths, stock, rng=rng, incoming=incoming))
        delivered = incoming.pop(0)
        day = one_day(stock, demand, delivered, rng=rng, issuing=planner.issuing)
        stock = day.stock
        ledger += Ledger(delivered, day.sold, day.wasted, day.unmet)
    return ledger + Ledger(left=int(stock.sum()))


def tune(planners: Sequence[P], pasts: Sequence[Sequence[tuple[ArrayLike, float]]], *, shelf_life: int, seed: int) -> P:
    """The planner that would have cost least over all of `pasts`, one for each series; the first of equals.

    Pass days of the training period only: a planner chosen on the days it is judged on looks better than it is.
    For example `tune([Heuristic(factor=f) for f in np.arange(1, 2, 0.05)], pasts, shelf_life=3, seed=0)`.
    """
    if not planners:
        raise CalibrlError("planners hold no planner to choose from; pass one or more")

    def cost(planner: P) -> float:
        ledgers = [
            replay(planner, past, shelf_life=shelf_life, rng=np.random.default_rng((seed, i)))
            for i, past in enumerate(pasts)
        ]
        return sum(ledger.cost(planner.costs) for ledger in ledgers)

    return min(planners, key=cost)


def plan_many(
    planner: Planner,
    paths: NDArray[np.float64],
    stock: NDArray[np.int64] | Sequence[Stock],
    rngs: Sequence[np.random.Generator] | None = None,
    *,
    incoming: Sequence[ArrayLike] | None = None,
) -> Stock:
    """Tonight's orders (s,) of many series: paths (s, m, h), stock (s, L), one generator for each."""
    series = len(paths)
    for name, given in (("stock", stock), ("rngs", rngs), ("incoming", incoming)):
        if given is not None and len(given) != series:
            raise CalibrlError(f"{name} of {len(given)} series does not fit paths of {series}; pass one for each")
    return np.array(
        [
            planner(
                paths[i],
                stock[i],
                rng=rngs[i] if rngs is not None else None,
                incoming=incoming[i] if incoming is not None else (),
            )
            for i in range(series)
        ],
        dtype=np.int64,
    )

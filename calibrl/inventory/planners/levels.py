"""Plans that will look at the shelf again each night: order-up-to levels, searched in closed loop."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from calibrl.errors import CalibrlError
from calibrl.inventory.planners.evaluate import closed_loop_costs
from calibrl.inventory.planners.night import Floats, Night, Planner


@dataclass(frozen=True)
class OrderUpTo(Planner):
    """The best of `candidates` pairs of tonight's order and a service level for the nights after.

    Tonight's orders are those that would meet demand on the day of delivery with each of √candidates chances; the
    service level is the quantile of demand, day by day, up to which later nights order what is missing on their
    path. Because later orders answer to what happened, tonight's need not insure against it.
    """

    candidates: int = 144

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 1:
            raise CalibrlError(f"candidates {self.candidates} is no number of candidates; use 1 or more")

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        chances = service_levels(isqrt(self.candidates))
        first = np.unique(self.rules.nearest(quantiles(night.demand_on_arrival - night.on_arrival, chances)))
        levels = quantiles(night.cover, chances)
        pairs = np.repeat(first, len(levels))
        costs = closed_loop_costs(self, night, pairs, np.tile(levels, (len(first), 1)), give_up=True)
        return float(pairs[costs.argmin()])


def service_levels(number: int) -> Floats:
    """(n,) chances between 0 and 1, closer together towards 1."""
    return 1 - (1 - (np.arange(number) + 0.5) / number) ** 1.5


def quantiles(units: Floats, chances: Floats) -> Floats:
    """(c, …) the values that each share of units (m, …) does not exceed."""
    ordered = np.sort(units, axis=0)
    return ordered[np.maximum(np.ceil(chances * len(units) - 1e-9).astype(np.int64) - 1, 0)]

"""Plans that will look at the shelf again each night: order-up-to levels, searched in closed loop."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from calibrl.errors import CalibrlError
from calibrl.inventory.planners.evaluate import closed_loop_costs
from calibrl.inventory.planners.night import Floats, Night, Planner

LIKELY = 0.7
"""Where on the grid of chances the best pair is expected."""
LONGEST = 14
"""Days beyond which nothing is looked at: what keeps longer is hardly ever wasted."""


@dataclass(frozen=True)
class OrderUpTo(Planner):
    """The best of `candidates` pairs of tonight's order and a service level for the nights after.

    A service level is the chance to meet a day's demand: a later night orders what is missing, on its path, to that
    quantile of demand. Because later orders answer to what happened, tonight's need not insure against it. Pairs
    are searched on a grid, tonight's order then once more between the neighbours of the best.

    Paths that end before tonight's order and the next would expire are carried on with their own last week:
    later orders that cannot be wasted any more would be too large, and tonight's too small.
    """

    candidates: int = 144

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 1:
            raise CalibrlError(f"candidates {self.candidates} is no number of candidates; use 1 or more")

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        night = night.carried_on(min(len(night.stock) + night.lead_days + 1, LONGEST))
        side = max(isqrt(self.candidates) - 1, 1)
        levels = quantiles(night.cover, service_levels(side))
        missing = quantiles(night.demand_on_arrival - night.on_arrival, service_levels(max(side - 1, 1)))
        # A pack that is too large for a day's demand may still be worth its keep.
        first = np.unique(self.rules.nearest(np.append(missing, self.rules.smallest)))
        tonight, after = (index.ravel() for index in np.indices((len(first), side)))
        # The likeliest come first: the sooner a good pair is found, the sooner poor ones are given up.
        likely = np.argsort(np.abs(tonight - LIKELY * len(first)) + np.abs(after - LIKELY * side))
        costs = closed_loop_costs(self, night, first[tonight[likely]], levels[after[likely]], give_up=True)
        best = likely[costs.argmin()]
        at, later = tonight[best], after[best]
        low, high = first[max(at - 1, 0)], first[min(at + 1, len(first) - 1)]
        between = low + (high - low) * np.linspace(0, 1, self.candidates - side**2)
        near = np.unique(np.append(self.rules.nearest(between), first[at]))
        costs = closed_loop_costs(self, night, near, np.tile(levels[later], (len(near), 1)), give_up=True)
        return float(near[costs.argmin()])


def service_levels(number: int) -> Floats:
    """(n,) chances between 0 and 1, closer together towards 1."""
    return 1 - (1 - (np.arange(number) + 0.5) / number) ** 2


def quantiles(units: Floats, chances: Floats) -> Floats:
    """(c, …) the values that each share of units (m, …) does not exceed."""
    ordered = np.sort(units, axis=0)
    return ordered[np.maximum(np.ceil(chances * len(units) - 1e-9).astype(np.int64) - 1, 0)]

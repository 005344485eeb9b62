"""Rules a shop could follow by hand, and the bound of those who know the future."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from calibrl.errors import CalibrlError
from calibrl.inventory.planners.evaluate import closed_loop_costs
from calibrl.inventory.planners.levels import quantiles
from calibrl.inventory.planners.night import Night, Planner

_NIGHTS = 5


@dataclass(frozen=True)
class Heuristic(Planner):
    """Stock up to `factor` times the demand expected on the day of delivery: the paper's rule of thumb."""

    factor: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.factor) and self.factor >= 0):
            raise CalibrlError(f"factor {self.factor} cannot be stocked up to; use a number of 0 or more")

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        return self.factor * float(night.demand_on_arrival.mean()) - float(night.on_arrival.mean())


@dataclass(frozen=True)
class Newsvendor(Planner):
    """Stock up to a quantile of demand on the day of delivery.

    By default the newsvendor's, unmet / (unmet + waste): best when nothing keeps overnight.
    """

    quantile: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantile is not None and not 0 <= self.quantile <= 1:
            raise CalibrlError(f"quantile {self.quantile} is outside [0, 1]; use the chance that all demand is met")

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        chance = self.costs.unmet / (self.costs.unmet + self.costs.waste) if self.quantile is None else self.quantile
        return float(quantiles(night.demand_on_arrival - night.on_arrival, np.array([chance]))[0])


@dataclass(frozen=True)
class Oracle(Planner):
    """Knows the demand to come, paths (1, h), and orders just that.

    Whole packs and minimum orders do not fit demand: then tonight's and the next nights' orders are tried one
    smaller and one larger as well, all together.
    """

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        if len(night.paths) != 1:
            raise CalibrlError(f"{len(night.paths)} paths are a forecast; give the oracle (1, h), the demand to come")
        step = self.rules.smallest
        nights = min(night.horizon, _NIGHTS)
        tries = step * np.array(list(product((0, -1, 1), repeat=nights)))
        levels = np.tile(night.cover, (len(tries), 1))
        levels[:, :nights] += tries
        first = self.rules.nearest(night.demand_on_arrival - night.on_arrival + tries[:, 0])
        return float(first[closed_loop_costs(self, night, first, levels).argmin()])

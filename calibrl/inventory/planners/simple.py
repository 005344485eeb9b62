"""Rules a shop could follow by hand, and the bound of those who know the future."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrl.errors import CalibrlError
from calibrl.inventory.planners.evaluate import closed_loop_costs
from calibrl.inventory.planners.levels import quantiles
from calibrl.inventory.planners.night import Night, Planner


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
    """Orders what will be asked for. paths: (1, h), the demand to come.

    With whole packs or a minimum order, tonight's quantities around that are compared, later nights ordering
    the nearest they can.
    """

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        if len(night.paths) != 1:
            raise CalibrlError(f"{len(night.paths)} paths are a forecast; give the oracle (1, h), the demand to come")
        missing = float(night.demand_on_arrival[0] - night.on_arrival[0])
        step = self.rules.smallest
        choices = np.unique(self.rules.nearest(missing + step * np.arange(-2, 3)))
        costs = closed_loop_costs(self, night, choices, np.tile(night.cover, (len(choices), 1)))
        return float(choices[costs.argmin()])

"""Plans that fix the orders of all days ahead and use the first: the paper's random search, and the CEM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.inventory.planners.evaluate import open_loop_costs
from calibrl.inventory.planners.night import Floats, Night, Planner
from calibrl.planning.search import Bounds, CrossEntropy, Objective, cross_entropy, random_shooting


@dataclass(frozen=True)
class RandomTrajectories(Planner):
    """The paper's planner: the first order of the best of `trajectories` random ones, on the same demand paths.

    Each day's order is drawn evenly from 0 to `reach` times the demand expected that day: the same orders are tried
    under a narrow forecast and under a wide one of the same mean. reach=None: to the largest demand in any path.
    """

    trajectories: int = 5000
    reach: float | None = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reach is not None and not (np.isfinite(self.reach) and self.reach > 0):
            raise CalibrlError(f"reach {self.reach} leaves no orders to try; use a number above 0, or None")

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        bounds, most = _bounds(self, night, self.reach)
        objective = _objective(self, night, most, give_up=True)
        best = random_shooting(objective, bounds, plans=self.trajectories, generator=_generator(night.rng))
        return float(best[0, 0]) * most[0]


_SEARCH = CrossEntropy(population=300, elites=30, sweeps=6, smallest_variance=1e-5, keep_best=True)


@dataclass(frozen=True)
class CrossEntropyOrders(Planner):
    """The cross-entropy method over the orders of all days ahead."""

    search: CrossEntropy = _SEARCH

    def wanted(self, night: Night) -> float:
        """See `Planner`."""
        bounds, most = _bounds(self, night)
        objective = _objective(self, night, most, give_up=False)
        best = cross_entropy(objective, bounds, settings=self.search, generator=_generator(night.rng))
        return float(best[0, 0]) * most[0]


def _bounds(planner: Planner, night: Night, reach: float | None = None) -> tuple[Bounds, Floats]:
    """Orders are searched for as shares, 0 to 1, of the most that is worth trying: the bounds, and those (h,)."""
    ahead = night.paths[:, night.lead_days - 1 :]
    most = ahead.max(0) if reach is None else reach * ahead.mean(0)
    # Where anything is asked for at all, the smallest order that can be placed is worth trying.
    most = np.where(most > 0, np.maximum(most, planner.rules.smallest), 0)
    return Bounds(torch.zeros(1), torch.ones(1), len(most)), most


def _objective(planner: Planner, night: Night, most: Floats, *, give_up: bool) -> Objective:
    def value(shares: Tensor) -> Tensor:
        orders = planner.rules.nearest(shares[..., 0].numpy() * most)
        return -torch.from_numpy(open_loop_costs(planner, night, orders, give_up=give_up))

    return value


def _generator(rng: np.random.Generator | None) -> torch.Generator:
    if rng is None:
        raise CalibrlError("this planner searches at random, but rng is None; pass a numpy.random.Generator")
    return torch.Generator().manual_seed(int(rng.integers(2**63)))

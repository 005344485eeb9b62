"""How a fleet searches for plans: an entry for each `planner.method`, all of one shape.

A search tries `population` plans in each of `sweeps`, so that all cost the same and need the same chance, and leaves
behind what the next one begins from. None reads a number back: a search is captured in a CUDA graph as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from calibrl.control.settings import PlannerSettings
from calibrl.planning.improved import Improved, ImprovedCrossEntropy
from calibrl.planning.path_integral import PathIntegral
from calibrl.planning.search import CrossEntropy
from calibrl.planning.side_by_side import (
    cross_entropy_fleet,
    improved_cross_entropy_fleet,
    path_integral_fleet,
    random_shooting_fleet,
)

Sweep: TypeAlias = Callable[[int, Tensor], Tensor]
"""(number of the sweep, plans (g, n, h, a)) → what each is imagined to earn (g, n), by the chance of that sweep."""


@dataclass(frozen=True, eq=False)
class Quest:
    """What a search is given.

    value: judges the plans of a sweep. low, high: (a,). start: (g, h, a) and elites: (g, k, h, a), as the search before
    left them; the middle of the bounds, and NaN, where an episode begins. noise: (sweeps, g, n, h, a), of the method's
    `luck`.
    """

    value: Sweep
    low: Tensor
    high: Tensor
    start: Tensor
    elites: Tensor
    noise: Tensor

    def in_turn(self) -> Callable[[Tensor], Tensor]:
        """An objective whose first call is the first sweep, and so on."""
        sweeps = iter(range(len(self.noise)))
        return lambda plans: self.value(next(sweeps), plans)

    def go_on(self, plan: Tensor) -> Found:
        """The plans (g, h, a), of which the next search begins with what is left, and the middle of the bounds."""
        middle = ((self.low + self.high) / 2).expand(len(plan), 1, -1)
        return Found(plan, torch.cat([plan[:, 1:], middle], 1), self.elites)


class Found(NamedTuple):
    """Plans (g, h, a), NaN where an objective was not finite; start and elites, as the next `Quest` wants them."""

    plan: Tensor
    start: Tensor
    elites: Tensor


@dataclass(frozen=True)
class Method:
    """One way to search. luck: what draws its noise. carried: elites that it remembers from one action to the next."""

    search: Callable[[Quest, PlannerSettings], Found]
    luck: Callable[..., Tensor] = torch.rand
    carried: Callable[[PlannerSettings], int] = lambda _: 0


def cem(quest: Quest, settings: PlannerSettings) -> Found:
    """The cross-entropy method of PETS."""
    how = CrossEntropy(
        population=settings.population,
        elites=settings.elites,
        sweeps=settings.sweeps,
        inertia=settings.inertia,
        smallest_variance=settings.smallest_variance,
    )
    return quest.go_on(cross_entropy_fleet(quest.in_turn(), quest.low, quest.high, how, quest.start, quest.noise))


def icem(quest: Quest, settings: PlannerSettings) -> Found:
    """iCEM: smooth noise, and elites that survive. Every sweep has the same number of plans, elites included."""
    last = Improved(quest.start, quest.start, quest.elites)
    how = _improved(settings)
    plan, mean, elites = improved_cross_entropy_fleet(
        quest.in_turn(), quest.low, quest.high, how, last, quest.noise.unbind()
    )
    return Found(plan, mean, elites[:, : how.carried])


def mppi(quest: Quest, settings: PlannerSettings) -> Found:
    """MPPI: the mean of all plans, weighted by what they earn."""
    how = PathIntegral(
        population=settings.population,
        sweeps=settings.sweeps,
        temperature=settings.temperature,
        spread=settings.spread,
    )
    return quest.go_on(path_integral_fleet(quest.in_turn(), quest.low, quest.high, how, quest.start, quest.noise))


def random(quest: Quest, settings: PlannerSettings) -> Found:
    """The best of all plans of all sweeps, drawn uniformly between the bounds."""

    def value(plans: Tensor) -> Tensor:
        parts = plans.split(settings.population, 1)
        return torch.cat([quest.value(sweep, part) for sweep, part in enumerate(parts)], 1)

    plan = random_shooting_fleet(value, quest.low, quest.high, quest.noise.transpose(0, 1).flatten(1, 2))
    return Found(plan, quest.start, quest.elites)


def _improved(settings: PlannerSettings) -> ImprovedCrossEntropy:
    return ImprovedCrossEntropy(
        population=settings.population,
        elites=settings.elites,
        sweeps=settings.sweeps,
        colour=settings.colour,
        shrink=1.0,
        kept=settings.kept,
        spread=settings.spread,
        inertia=settings.inertia,
    )


METHODS = {
    "cem": Method(cem),
    "icem": Method(icem, luck=torch.randn, carried=lambda settings: _improved(settings).carried),
    "mppi": Method(mppi, luck=torch.randn),
    "random": Method(random),
}
"""By the name that `PlannerSettings.method` has."""

"""Search for a plan that maximises any batched objective: random shooting and the cross-entropy method.

A plan is (h, a): h steps of a-dimensional actions between `low` and `high`. An objective takes plans
(n, h, a) and gives one number each (n,), the larger the better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.kernels import normal

Objective: TypeAlias = Callable[[Tensor], Tensor]
"""Plans (n, h, a) → values (n,), to be maximised."""

BELOW_CUT = 0.5 * math.erfc(math.sqrt(2))
"""Φ(-2): how much of a normal lies below -2σ."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """What a planner may do at each of `horizon` steps: actions between low (a,) and high (a,)."""

    low: Tensor
    high: Tensor
    horizon: int

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape or self.low.dim() != 1 or not bool((self.low < self.high).all()):
            raise CalibrlError(
                f"actions between {self.low.tolist()} and {self.high.tolist()} are no range; expected low < high, (a,)"
            )
        if self.horizon < 1:
            raise CalibrlError(f"horizon {self.horizon} is not a number of steps; use 1 or more")

    @property
    def middle(self) -> Tensor:
        """The plan (h, a) that stays between the bounds."""
        return ((self.low + self.high) / 2).expand(self.horizon, -1)


@dataclass(frozen=True)
class CrossEntropy:
    """Settings of `cross_entropy`, by default those published for PETS on Cartpole.

    A sweep draws `population` plans and refits the search distribution to the best `elites`; `inertia` is
    the share the old mean and variance keep; the search ends after `sweeps`, or once no variance is above
    `smallest_variance`: as published of an action whose range, high - low, is 1 or more, and of a smaller range times
    its square, so that it is searched, too. As published the mean of the last elites is returned, a plan
    that was never itself evaluated; with `keep_best` it is the best plan evaluated, as a promise about that very plan
    needs.
    """

    population: int = 400
    elites: int = 40
    sweeps: int = 5
    inertia: float = 0.1
    smallest_variance: float = 0.001
    keep_best: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.elites <= self.population:
            raise CalibrlError(f"{self.elites} elites of {self.population} plans cannot be; use 1 … {self.population}")
        if self.sweeps < 1:
            raise CalibrlError(f"sweeps {self.sweeps} is not a number of sweeps; use 1 or more")
        if not 0 <= self.inertia < 1:
            raise CalibrlError(f"inertia {self.inertia} is outside [0, 1); 0.1 keeps a tenth of the old distribution")

    def narrow(self, low: Tensor, high: Tensor) -> Tensor:
        """The variances (a,) of actions between low and high (a,) that need no further search."""
        return self.smallest_variance * (high - low).clamp(max=1).square()


def random_shooting(
    objective: Objective, bounds: Bounds, *, plans: int, generator: torch.Generator | None = None
) -> Tensor:
    """The best (h, a) of `plans` plans drawn uniformly between the bounds."""
    if plans < 1:
        raise CalibrlError(f"plans {plans} is not a number of plans; use 1 or more")
    shape = (plans, *bounds.middle.shape)
    uniform = torch.rand(shape, generator=generator, dtype=bounds.low.dtype, device=bounds.low.device)
    candidates = bounds.low + uniform * (bounds.high - bounds.low)
    return candidates[evaluate(objective, candidates).argmax()]


def cross_entropy(
    objective: Objective,
    bounds: Bounds,
    *,
    settings: CrossEntropy | None = None,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The cross-entropy method as published for PETS (Chua et al., 2018): a plan (h, a).

    Plans are drawn from a normal cut off at ±2σ whose variance never exceeds (distance to the bound / 2)²,
    so that no plan leaves the bounds. The variance starts at (high - low)²/16. start: (h, a), the mean to
    begin from, such as `shifted(last plan, bounds)`; the middle of the bounds if not given.
    """
    settings = settings or CrossEntropy()
    mean = bounds.middle if start is None else checked_start(start, bounds)
    variance = ((bounds.high - bounds.low).square() / 16).expand_as(mean)
    narrow = settings.narrow(bounds.low, bounds.high)
    best, best_value = mean, -torch.inf
    for _ in range(settings.sweeps):
        if bool((variance <= narrow).all()):
            break
        room = torch.minimum(mean - bounds.low, bounds.high - mean) / 2
        width = torch.minimum(room.square(), variance).sqrt()
        uniform = torch.rand(
            (settings.population, *mean.shape), generator=generator, dtype=torch.float64, device=mean.device
        )
        plans = mean + width * cut_normal(uniform).to(mean.dtype)
        value = evaluate(objective, plans)
        elite = plans[value.topk(settings.elites).indices]
        if float(value.max()) > best_value:
            best, best_value = plans[value.argmax()], float(value.max())
        mean = settings.inertia * mean + (1 - settings.inertia) * elite.mean(0)
        variance = settings.inertia * variance + (1 - settings.inertia) * elite.var(0, correction=0)
    return best if settings.keep_best else mean


def shifted(plan: Tensor, bounds: Bounds) -> Tensor:
    """The rest of a plan (h, a) once its first action is done, then the middle of the bounds: a warm start.

    At a bound there would be no room to search: what ends there once stays there.
    """
    return torch.cat([plan[1:], bounds.middle[:1].to(plan)])


def evaluate(objective: Objective, plans: Tensor) -> Tensor:
    """The objective at plans (n, h, a), refused unless it is n finite numbers.

    The best of a batch with one infinite entry is that entry: a planner would act on nonsense in silence.
    """
    value = objective(plans)
    if value.shape != plans.shape[:1]:
        raise CalibrlError(
            f"the objective gave shape {tuple(value.shape)} for {len(plans)} plans; expected ({len(plans)},)"
        )
    if not bool(value.isfinite().all()):
        wrong = int((~value.isfinite()).nonzero()[0])
        raise CalibrlError(
            f"the objective is {value[wrong].item()} for plan {wrong}; a planner needs finite values: "
            "bound the model's draws or the reward"
        )
    return value


def cut_normal(uniform: Tensor) -> Tensor:
    """Standard normal draws given that they lie within ±2, at their share `uniform` of the way: the inverse CDF."""
    return normal.quantile(BELOW_CUT + uniform * (1 - 2 * BELOW_CUT))


def checked_start(start: Tensor, bounds: Bounds) -> Tensor:
    """A plan (h, a) to begin a search from, moved between the bounds."""
    if start.shape != bounds.middle.shape:
        raise CalibrlError(
            f"a start of shape {tuple(start.shape)} does not fit plans of {tuple(bounds.middle.shape)}; "
            "expected one action for each step"
        )
    return start.clamp(bounds.low, bounds.high)

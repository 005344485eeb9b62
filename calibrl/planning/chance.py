"""Chance constraints: plans that stay safe with a given probability, for any planner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from calibrl.distributions import Recalibrated
from calibrl.distributions.recalibrated import Promise
from calibrl.errors import CalibrlError, check_within
from calibrl.maps import Map
from calibrl.planning.candidates import Objective


class Imagined(NamedTuple):
    """What a model expects of n plans: what each is worth, (n,), and states drawn at h steps, (particles, n, h, d)."""

    value: Tensor
    states: Tensor


@dataclass(frozen=True)
class ChanceConstraint:
    """Prefer plans whose states all stay in the safe set with probability at least `level`.

    A plan's margin is the smallest along its way. By default the probability is the share of particles whose margin is
    positive, which is as honest as the model that drew them.

    Parameters
    ----------
    safe
        Takes states (…, d) and gives margins (…), above 0 where a state is safe, for instance the distance to the wall;
        or true and false.
    level
        The probability asked for, between 0 and 1.
    mapping
        Recalibrates the decision itself: the particles' margins are summed up as a normal forecast of the plan's
        margin, and the map, fitted on `score`s of plans that were carried out, corrects it.
    guarantee
        "conformal" uses the map's ranks: if those plans and the next one are exchangeable, the margin's lower bound
        holds with probability at least `level`, on average over what those plans might have been, whatever the model.
        "tolerance" asks more of the same ranks: with `confidence`, at least `level` of all plans to come stay above the
        bound. Plans picked by a planner that changes are only roughly exchangeable.
    confidence
        Of "tolerance", between 0 and 1.

    Examples
    --------
    Go as far as possible, and past 1 in at most one of ten steps whose length is uncertain by ±0.2:

    >>> import torch
    >>> from calibrl.planning.chance import ChanceConstraint, Imagined
    >>> from calibrl.planning.search import Bounds, RandomShooting
    >>> noise = torch.randn(2000, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    >>> def imagine(plans):
    ...     return Imagined(value=plans.sum((1, 2)), states=plans + 0.2 * noise)
    >>> careful = ChanceConstraint(lambda states: 1 - states[..., 0], level=0.9)
    >>> bounds = Bounds(torch.tensor([0.0]), torch.tensor([2.0]), horizon=1)
    >>> search = RandomShooting(population_size=2000)
    >>> plan = search.search(careful(imagine), bounds, generator=torch.Generator().manual_seed(1)).plan
    >>> round(plan.item(), 1)  # 1 - 0.2 · 1.28
    0.7
    """

    safe: Callable[[Tensor], Tensor]
    level: float = 0.9
    mapping: Map | None = None
    guarantee: Promise | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_within("level", self.level, "(0, 1)", "ask for 0.9 to be safe nine times in ten")
        if self.guarantee not in (None, "conformal", "tolerance"):
            raise CalibrlError(f'guarantee {self.guarantee!r} is unknown; use "conformal", "tolerance" or None')
        check_within("confidence", self.confidence, "(0, 1)", "0.95 is wrong once in twenty")
        if self.guarantee is not None and not bool(self._lowest_z().isfinite().all()):
            needed = 1 / (1 - self.level) - 1
            if self.guarantee == "tolerance":  # all n scores lie below once in level^n
                needed = math.log(1 - self.confidence) / math.log(self.level)
            raise CalibrlError(
                f"too few plans to promise level {self.level}; a {self.guarantee} guarantee needs "
                f"{math.ceil(needed - 1e-9)} scores or more"
            )

    def __call__(self, imagine: Callable[[Tensor], Imagined]) -> Objective:
        """The objective that puts safe plans first, by value, then unsafe ones, the safest first.

        Values are squashed into (-1, 1) without changing their order and unsafe plans lie below, so that
        scores can be compared from one batch to the next.

        Parameters
        ----------
        imagine
            Takes plans (n, h, a) and says what the model expects of them.
        """

        def objective(plans: Tensor) -> Tensor:
            value, states = imagine(plans)
            shortfall = self.shortfall(states)
            value = value.double()
            squashed = value / (1 + value.abs())
            # 0 · value is 0, unless the value is not finite: then the planner shall see it.
            return torch.where(shortfall <= 0, squashed, -1 - shortfall + 0 * value)

        return objective

    def margin(self, states: Tensor) -> Tensor:
        """The smallest margin along each plan. states: (…, h, d) → (…)."""
        margin = self.safe(states)
        if not isinstance(margin, Tensor) or margin.shape != states.shape[:-1]:
            what = f"shape {tuple(margin.shape)}" if isinstance(margin, Tensor) else f"a {type(margin).__name__}"
            raise CalibrlError(
                f"safe gave {what} for states {tuple(states.shape)}; expected a margin for each state, a tensor "
                f"{tuple(states.shape[:-1])}"
            )
        # A set given as true and false has margins ±1.
        return (margin.double() * 2 - 1 if margin.dtype == torch.bool else margin).amin(-1)

    def probability(self, states: Tensor) -> Tensor:
        """The probability (n,) that each plan stays safe. states: (particles, n, h, d)."""
        margin = self.margin(states)
        if self.mapping is None:
            return (margin > 0).double().mean(0)
        forecast = Recalibrated(_as_normal(margin), self.mapping)
        return 1 - forecast.cdf(torch.zeros(margin.shape[1], dtype=torch.float64, device=margin.device))

    def shortfall(self, states: Tensor) -> Tensor:
        """How far each plan (n,) is from being safe enough: 0 or less if it is. states: (particles, n, h, d)."""
        if self.guarantee is None:
            return self.level - self.probability(states)
        forecast = _as_normal(self.margin(states))
        # The margin's lower bound is loc + scale · lowest: how many spreads it lies below zero, kept below 1.
        gap = -self._lowest_z().to(states.device) - forecast.loc / forecast.scale
        return gap / (1 + gap.abs())

    def score(self, states: Tensor, happened: Tensor) -> Tensor:
        """What plans that were carried out say of their forecasts: evidence for `fit_smooth(z=…)`.

        states: as imagined, (particles, n, h, d). happened: as it came, (n, h, d). Returns z-scores (n,).
        """
        if happened.shape != states.shape[1:]:
            raise CalibrlError(
                f"what happened has shape {tuple(happened.shape)}; expected {tuple(states.shape[1:])}: one way for "
                f"each plan of {tuple(states.shape)}"
            )
        forecast = _as_normal(self.margin(states))
        return (self.margin(happened).double() - forecast.loc) / forecast.scale

    def _lowest_z(self) -> Tensor:
        """The z-score that a plan's margin stays above with probability `level`, by the ranks of past scores."""
        if self.mapping is None or self.mapping.ranks is None:
            raise CalibrlError(f"a {self.guarantee} guarantee needs a map fitted on scores of past plans")
        confidence = self.confidence if self.guarantee == "tolerance" else None
        return self.mapping.ranks.bounds_z(1 - self.level, 0.0, confidence)[0]


def _as_normal(margin: Tensor) -> Normal:
    """The particles' margins (particles, n) summed up by mean and spread."""
    wide = margin.double()
    return Normal(wide.mean(0), wide.std(0, correction=0).clamp(min=1e-9), validate_args=False)

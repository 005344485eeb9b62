"""What searches for a plan share: candidate plans, their values, and the chance they are drawn by.

Plans of g agents are (g, n, h, a): n candidates of h steps of a-dimensional actions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.kernels import normal
from calibrl.kernels.fused_nets import compiled_alone

Objective: TypeAlias = Callable[[Tensor], Tensor]
"""Plans (n, h, a) → values (n,), to be maximised."""

BatchObjective: TypeAlias = Callable[[Tensor, int], Tensor]
"""(plans (g, n, h, a), number of the iteration) → values (g, n), to be maximised."""

FINITE = "a planner needs finite values: bound the model's draws or the reward"
"""The best of a batch with one infinite entry is that entry: a planner would act on nonsense in silence."""

BELOW_CUT = 0.5 * math.erfc(math.sqrt(2))
"""Φ(-2): how much of a normal lies below -2σ."""


@dataclass(eq=False)
class Task:
    """What a search is given.

    low, high: (a,). start: (g, h, a) and elites: (g, k, h, a), to begin from. noise:
    (g, n, h, a) for each iteration in turn. alone: one agent outside of any graph, where numbers may be read.
    lost: whose objective (g,) was not finite.
    """

    objective: BatchObjective
    low: Tensor
    high: Tensor
    start: Tensor
    elites: Tensor
    noise: Iterable[Tensor]
    alone: bool
    lost: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.lost = torch.zeros(len(self.start), dtype=torch.bool, device=self.start.device)

    def quick(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of this module, compiled where agents search together on a GPU."""
        return compiled_alone(function) if self.low.device.type == "cuda" and not self.alone else function

    def value(self, plans: Tensor, iteration: int) -> Tensor:
        """The objective at plans (g, n, h, a), refused unless it is (g, n) numbers, of one agent alone finite ones."""
        value = self.objective(plans, iteration)
        if value.shape != plans.shape[:2]:
            given, expected, many = tuple(value.shape), tuple(plans.shape[:2]), f"{plans.shape[1]} plans"
            if self.alone:
                given, expected = given[1:], expected[1:]
            else:
                many = f"{len(plans)} agents of {many}"
            raise CalibrlError(f"the objective gave shape {given} for {many}; expected {expected}")
        finite = value.isfinite()
        if not self.alone:
            self.lost = self.lost | ~finite.all(1)
        elif not bool(finite.all()):
            _, wrong = (~finite).nonzero()[0].tolist()
            raise CalibrlError(f"the objective is {value[0, wrong].item()} for plan {wrong}; {FINITE}")
        return value

    def shifted(self, plan: Tensor) -> Tensor:
        """The rest of plans (g, h, a) once their first action is done, then the middle of the bounds: a warm start.

        At a bound there would be no room to search: what ends there once stays there.
        """
        middle = ((self.low + self.high) / 2).to(plan)
        return torch.cat([plan[:, 1:], middle.expand(len(plan), 1, -1)], 1)


class Best(NamedTuple):
    """The best plans (g, h, a) so far and their values (g, 1, 1)."""

    plan: Tensor
    value: Tensor

    @classmethod
    def none(cls, start: Tensor) -> Best:
        """Before any plan was tried."""
        return cls(start, start.new_full((len(start), 1, 1), -torch.inf))

    def or_of(self, plans: Tensor, value: Tensor, where: Tensor | None = None, *, alone: bool = False) -> Best:
        """The better of these and the best of plans (g, n, h, a) with values (g, n); where: for whom (g, 1, 1)."""
        highest, index = value.max(1, keepdim=True)
        if alone:  # numbers may be read, which takes a third of the time
            return Best(plans[:, int(index)], highest) if bool(highest > self.value) else self
        top = highest[:, :, None]
        better = top > self.value if where is None else where & (top > self.value)
        found = taken(plans, index).squeeze(1)
        return Best(torch.where(better, found, self.plan), torch.where(better, top, self.value))


def taken(plans: Tensor, index: Tensor) -> Tensor:
    """Plans (g, n, h, a) at index (g, k): (g, k, h, a)."""
    if plans.shape[0] == 1:
        return plans.index_select(1, index.view(-1))
    return plans.gather(1, index[:, :, None, None].expand(-1, -1, *plans.shape[2:]))


def chosen(keys: Tensor, choices: Sequence[int]) -> Tensor:
    """1 for the largest key of each kind and 0 for the rest: (…, n₁ + n₂ + …) of kinds of n₁, n₂, … things."""
    parts = keys.split(list(choices), -1)
    return torch.cat([torch.zeros_like(part).scatter(-1, part.argmax(-1, keepdim=True), 1.0) for part in parts], -1)


def refuse_lost_plans(plans: Tensor) -> Tensor:
    """Plans (g, h, a) as they are, or an error that names the first agent whose objective was not finite."""
    lost = plans.isnan().flatten(1).any(1)
    if bool(lost.any()):
        raise CalibrlError(f"the objective of agent {int(lost.nonzero()[0])} was not finite; {FINITE}")
    return plans


def around(mean: Tensor, width: Tensor, noise: Tensor, *, alone: bool) -> Tensor:
    """Plans mean + width · noise, (g, n, h, a), of mean and width (g, h, a)."""
    # The two round differently; runs of either kind repeat to the last digit.
    return mean + width * noise if alone else torch.addcmul(mean.unsqueeze(1), width.unsqueeze(1), noise)


def within_room(mean: Tensor, variance: Tensor, uniform: Tensor, low: Tensor, high: Tensor, *, alone: bool) -> Tensor:
    """CEM's plans (g, n, h, a): from a normal cut at ±2σ whose variance is at most (distance to the bound / 2)²."""
    room = torch.minimum(mean - low, high - mean) / 2
    width = torch.minimum(room.square(), variance).sqrt()
    return around(mean, width, cut_normal(uniform).to(mean.dtype), alone=alone)


def refitted(mean: Tensor, spread: Tensor, elite: Tensor, *, momentum: float, variance: bool) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, or variance, (g, h, a) moved to those of the elite (g, k, h, a)."""
    moments = elite.var(1, correction=0) if variance else elite.std(1, correction=0)
    return momentum * mean + (1 - momentum) * elite.mean(1), momentum * spread + (1 - momentum) * moments


def cut_normal(uniform: Tensor) -> Tensor:
    """Standard normal draws given that they lie within ±2, at their share `uniform` of the way: the inverse CDF."""
    return normal.quantile(BELOW_CUT + uniform * (1 - 2 * BELOW_CUT))


def coloring(horizon: int, exponent: float) -> Tensor:
    """The matrix (h, h) that makes white noise (h, …) one whose power at frequency f is f^-exponent, of variance 1.

    White noise stands for the real and imaginary parts of the spectrum (Timmer and König, 1995); frequency 0 gets the
    power of the lowest one above it.
    """
    frequency = torch.fft.rfftfreq(horizon, dtype=torch.float64).clamp(min=1 / horizon)
    size = frequency ** (-exponent / 2)
    # Frequency 0, and the highest one of an even number of steps, have a real part only, and all of the power in it.
    alone = torch.zeros(len(size), dtype=torch.bool)
    alone[0] = True
    alone[-1] |= horizon % 2 == 0
    real = torch.diag(torch.where(alone, size * math.sqrt(2), size)).to(torch.complex128)
    imaginary = 1j * torch.diag(size).to(torch.complex128)[~alone]
    waves = torch.fft.irfft(torch.cat([real, imaginary]), n=horizon)
    # Every step has the same variance, because sine and cosine of each frequency share its power.
    return (waves / waves.square().sum(0).sqrt()).T.contiguous()


@functools.cache
def coloring_on(horizon: int, exponent: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`coloring` on a device, made once: a CUDA graph cannot fetch it from the CPU."""
    return coloring(horizon, exponent).to(device, dtype)

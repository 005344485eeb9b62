"""The searches for g agents at once, with fixed shapes and nothing read back.

Where a plain search stops early, here a mask leaves an agent as it is. Chance is passed in, so that an agent's plan
does not depend on who plans beside it, and so that a whole search can be captured in one CUDA graph. A plan cannot be
refused without reading it: an agent whose objective was not finite gets a plan of NaN, and `refuse_lost_plans` says so
where plans are read anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.planning.improved import Improved, ImprovedCrossEntropy, colouring
from calibrl.planning.path_integral import PathIntegral
from calibrl.planning.search import CrossEntropy, cut_normal

FleetObjective: TypeAlias = Callable[[Tensor], Tensor]
"""Plans (g, n, h, a) → values (g, n), to be maximised."""


def random_shooting_fleet(objective: FleetObjective, low: Tensor, high: Tensor, noise: Tensor) -> Tensor:
    """Each agent's best plan (g, h, a) of n between low and high (a,); noise: (g, n, h, a), uniform on [0, 1)."""
    plans = low + noise * (high - low)
    value = evaluate_fleet(objective, plans)
    best = _taken(plans, value.argmax(1, keepdim=True)).squeeze(1)
    return _lost_if(~value.isfinite().all(1), best)


def cross_entropy_fleet(
    objective: FleetObjective, low: Tensor, high: Tensor, settings: CrossEntropy, start: Tensor, noise: Tensor
) -> Tensor:
    """`cross_entropy` for every agent: plans (g, h, a).

    low, high: (a,). start: (g, h, a), the means to begin from. noise: (sweeps, g, population, h, a), uniform on [0, 1).
    An agent whose search has narrowed stays as it is while others go on.
    """
    expected = (settings.sweeps, len(start), settings.population, *start.shape[1:])
    if noise.shape != expected:
        raise CalibrlError(f"noise of shape {tuple(noise.shape)} does not fit the search; expected {expected}")
    mean = start.clamp(low, high)
    variance = ((high - low).square() / 16).expand_as(mean)
    best, best_value = mean, mean.new_full((len(mean), 1, 1), -torch.inf)
    narrow = settings.narrow(low, high)
    lost = torch.zeros(len(mean), dtype=torch.bool, device=mean.device)
    for uniform in noise:
        searching = (variance > narrow).flatten(1).any(1)[:, None, None]
        room = torch.minimum(mean - low, high - mean) / 2
        width = torch.minimum(room.square(), variance).sqrt()
        plans = torch.addcmul(mean.unsqueeze(1), width.unsqueeze(1), cut_normal(uniform))
        value = evaluate_fleet(objective, plans)
        lost = lost | ~value.isfinite().all(1)
        order = value.topk(settings.elites)
        elite = _taken(plans, order.indices)
        if settings.keep_best:
            top = order.values[:, :1, None]
            better = searching & (top > best_value)
            best, best_value = torch.where(better, elite[:, 0], best), torch.where(better, top, best_value)
        kept = settings.inertia
        mean, variance = (
            torch.where(searching, kept * old + (1 - kept) * new, old)
            for old, new in ((mean, elite.mean(1)), (variance, elite.var(1, correction=0)))
        )
    return _lost_if(lost, best if settings.keep_best else mean)


def improved_cross_entropy_fleet(
    objective: FleetObjective,
    low: Tensor,
    high: Tensor,
    settings: ImprovedCrossEntropy,
    last: Improved,
    noise: Sequence[Tensor],
) -> Improved:
    """`improved_cross_entropy` for every agent: plan and mean (g, h, a), elites (g, k, h, a).

    last: the step before's answer, its elites NaN where an agent begins. noise: (g, n, h, a) for each sweep, standard
    normal: all of its n plans are drawn, and the last of them make way for elites and mean. What is NaN of an elite is
    not known: there the drawn plan stays.
    """
    mean = torch.cat([last.mean[:, 1:], last.mean[:, -1:]], 1)
    spread = (settings.spread * (high - low) / 2).expand_as(mean)
    colour = _colouring(mean.shape[1], settings.colour, mean.device, mean.dtype)
    lost = torch.zeros(len(mean), dtype=torch.bool, device=mean.device)
    # An old elite has lost its first step: its last one comes from a plan drawn for it.
    elites = torch.cat([last.elites[:, :, 1:], torch.full_like(last.elites[:, :, :1], torch.nan)], 2)
    for sweep, white in enumerate(noise):
        drawn = (mean.unsqueeze(1) + spread.unsqueeze(1) * (colour @ white)).clamp(low, high)
        known = torch.cat([elites[:, : settings.carried], *([mean.unsqueeze(1)] if sweep == len(noise) - 1 else [])], 1)
        new, room = drawn.split([drawn.shape[1] - known.shape[1], known.shape[1]], 1)
        plans = torch.cat([new, torch.where(known.isnan(), room, known)], 1)
        value = evaluate_fleet(objective, plans)
        lost = lost | ~value.isfinite().all(1)
        elites = _taken(plans, value.topk(settings.elites).indices)
        kept = settings.inertia
        mean = kept * mean + (1 - kept) * elites.mean(1)
        spread = kept * spread + (1 - kept) * elites.std(1, correction=0)
    return Improved(_lost_if(lost, elites[:, 0]), mean, elites)


@functools.cache
def _colouring(horizon: int, colour: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`colouring`, made once: a CUDA graph cannot fetch it from the CPU."""
    return colouring(horizon, colour).to(device, dtype)


def path_integral_fleet(
    objective: FleetObjective, low: Tensor, high: Tensor, settings: PathIntegral, start: Tensor, noise: Tensor
) -> Tensor:
    """`path_integral` for every agent: plans (g, h, a).

    start: (g, h, a). noise: (sweeps, g, population, h, a), standard normal.
    """
    plan, spread = start.clamp(low, high), settings.spread * (high - low) / 2
    lost = torch.zeros(len(plan), dtype=torch.bool, device=plan.device)
    for white in noise:
        tried = (plan.unsqueeze(1) + spread * white).clamp(low, high)
        value = evaluate_fleet(objective, tried)
        lost = lost | ~value.isfinite().all(1)
        steering = (plan.unsqueeze(1) * (tried - plan.unsqueeze(1)) / spread.square()).sum((2, 3))
        weight = (value / settings.temperature - settings.control_cost * steering).softmax(1)
        plan = (weight[:, :, None, None] * tried).sum(1)
    return _lost_if(lost, plan)


def evaluate_fleet(objective: FleetObjective, plans: Tensor) -> Tensor:
    """The objective at plans (g, n, h, a), refused unless it has shape (g, n)."""
    value = objective(plans)
    if value.shape != plans.shape[:2]:
        raise CalibrlError(
            f"the objective gave shape {tuple(value.shape)} for {len(plans)} agents of {plans.shape[1]} plans; "
            f"expected {tuple(plans.shape[:2])}"
        )
    return value


def refuse_lost_plans(plans: Tensor) -> Tensor:
    """Plans (g, h, a) as they are, or an error that names the first agent whose objective was not finite."""
    lost = plans.isnan().flatten(1).any(1)
    if bool(lost.any()):
        raise CalibrlError(
            f"the objective of agent {int(lost.nonzero()[0])} was not finite; a planner needs finite values: "
            "bound the model's draws or the reward"
        )
    return plans


def _taken(plans: Tensor, index: Tensor) -> Tensor:
    """Plans (g, n, h, a) at index (g, k): (g, k, h, a)."""
    return plans.gather(1, index[:, :, None, None].expand(-1, -1, *plans.shape[2:]))


def _lost_if(lost: Tensor, plans: Tensor) -> Tensor:
    return torch.where(lost[:, None, None], torch.nan, plans)

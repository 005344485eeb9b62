"""Imagined rollouts: what a learnt model expects to earn by each of many plans.

g agents at once, n plans each, p particles a plan, h steps; o numbers in an observation, a in an action,
d in what the model forecasts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.planning.propagation import Model, Readied, calibrated_draws, expected_draw, propagation_named

Reward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(observation (…, o), action (…, a), next observation (…, o)) → reward (…)."""

DIVERGED = -1e6
"""The return of a particle that left the numbers, as published."""

AT_ONCE = 2**20
"""Numbers of observations whose rewards are asked for together: no more than stays in the processor's cache."""


@dataclass(frozen=True)
class World:
    """How a model's numbers become a world: tensor functions for any leading dimensions, on any device.

    None of them may read a number back (`.item()`, `if tensor`): whole plans are captured in one CUDA graph.

    Parameters
    ----------
    model_input
        Observation (…, o) → what the model sees of it (…, k); the action is appended by the caller.
    target
        (Observation, next observation) → what the model is taught to forecast (…, d).
    next_observation
        (Observation (…, o), forecast target (…, d)) → next observation (…, o).
    reward
        (Observation, action (…, a), next observation) → reward (…); None where it is unknown and must be learnt before
        planning.
    """

    model_input: Callable[[Tensor], Tensor]
    target: Callable[[Tensor, Tensor], Tensor]
    next_observation: Callable[[Tensor, Tensor], Tensor]
    reward: Reward | None


class Step(NamedTuple):
    """One imagined step: observations before and after (g, n, p, o), the action (g, n, p, a)."""

    observation: Tensor
    action: Tensor
    after: Tensor


def imagined_returns(
    nets: Model,
    world: World,
    observation: Tensor,
    plans: Tensor,
    *,
    propagation: str,
    particles: int,
    noise: Tensor,
    tables: Tensor | None = None,
) -> Tensor:
    """The mean over particles of each plan's summed reward.

    A particle whose return is not finite counts as -1e6, as published (there for NaN only): a plan under which the
    model diverges is a bad plan, not an error.

    Parameters
    ----------
    nets, world, observation, plans, propagation, particles, noise, tables
        As in `imagine`.

    Returns
    -------
    Tensor
        Returns (g, n).
    """
    if world.reward is None:
        raise CalibrlError("this world has no reward; learn one, or pass a reward function of your own")
    with torch.inference_mode():
        steps = imagine(
            nets, world, observation, plans, propagation=propagation, particles=particles, noise=noise, tables=tables
        )
        total, taken = plans.new_zeros(()), plans.permute(2, 0, 1, 3).unsqueeze(3)
        together = max(1, AT_ONCE // (noise.shape[0] * noise.shape[2] * observation.shape[-1]))
        # A reward is a function of any number of steps: asked once for many of them, not once for each.
        while some := list(itertools.islice(steps, together)):
            passed = torch.stack([some[0].observation, *(step.after for step in some)])
            actions, taken = taken[: len(some)].expand(*passed[1:].shape[:-1], -1), taken[len(some) :]
            reward = world.reward(passed[:-1], actions, passed[1:])
            if reward.shape != actions.shape[:-1]:
                raise CalibrlError(
                    f"the reward has shape {tuple(reward.shape)} for observations {tuple(passed[1:].shape)}; "
                    f"expected {tuple(actions.shape[:-1])}, one number each"
                )
            total = total + reward.sum(0)
        value = total.nan_to_num(DIVERGED, posinf=DIVERGED, neginf=DIVERGED).mean(2)
    # A copy from outside the inference mode is a tensor like any other.
    return value.clone()


def imagine(
    nets: Model,
    world: World,
    observation: Tensor,
    plans: Tensor,
    *,
    propagation: str,
    particles: int,
    noise: Tensor,
    tables: Tensor | None = None,
) -> Iterator[Step]:
    """The steps of all particles of all plans, one by one; gradients flow to plans and observations that ask for them.

    Parameters
    ----------
    nets
        The agents' networks.
    world
        How their numbers become a world.
    observation
        Where each agent is, (g, o), or where each plan begins, (g, n, o).
    plans
        Actions (g, n, h, a).
    propagation
        How uncertainty travels: E, DS, MM, TS1 or TSinf.
    particles
        Imagined futures of a plan.
    noise
        Standard normal, of `noise_shape`; drawn by the caller, so that a rollout is a pure function and an agent's
        chance its own.
    tables
        None, or the agents' calibrated draws, (g, d, CELLS, 2), as `stacked_tables` gives them; (g, h, d, CELLS, 2) for
        a map per step.

    Returns
    -------
    iterator of Step
        Observations before and after, (g, n, p, o), and the action (g, n, p, a), of each of h steps.
    """
    g, n, h, a = plans.shape
    way = propagation_named(propagation)
    p = way.particles(particles)
    if noise.shape[:3] != (g, h, n * p):
        raise CalibrlError(
            f"noise of shape {tuple(noise.shape)} does not fit {g} agents, {h} steps and {n} plans of {p} particles; "
            f"expected ({g}, {h}, {n * p}, …), as noise_shape() says"
        )
    steered = plans.requires_grad or observation.requires_grad
    model = nets.ready() if isinstance(nets, Readied) and not steered else nets
    draws = calibrated_draws(noise, tables).unflatten(2, (n, p)) if way.random else _expected(tables, plans)
    state = observation[:, :, None] if observation.dim() == 3 else observation[:, None, None]
    # One copy in which every step's actions lie side by side: putting together what does not is several times as slow.
    actions = plans.permute(2, 0, 1, 3).unsqueeze(3).expand(h, g, n, p, a).contiguous().unbind(0)
    # In the first step all particles of a plan are in one state: the networks are asked once for all.
    x = torch.cat([world.model_input(state).expand(g, n, 1, -1), actions[0][:, :, :1]], -1)
    state = state.expand(g, n, p, -1)
    for t, draw in enumerate(draws.unbind(1)):
        if t:
            x = torch.cat([world.model_input(state), actions[t]], -1)
        before, state = state, world.next_observation(state, way.step(model, x, draw))
        yield Step(before, actions[t], state)


def noise_shape(
    propagation: str, *, agents: int, horizon: int, plans: int, particles: int, outputs: int
) -> tuple[int, ...]:
    """The shape of the standard normal noise that a rollout needs.

    Parameters
    ----------
    propagation
        How uncertainty travels: E, DS, MM, TS1 or TSinf.
    agents, horizon, plans, particles, outputs
        g agents, h steps, n plans of p particles, d numbers that a model forecasts.

    Returns
    -------
    tuple of int
        (g, h, n · p, d), a column more for TS1, none for E.
    """
    return propagation_named(propagation).noise_shape(agents, horizon, plans, particles=particles, outputs=outputs)


def _expected(tables: Tensor | None, plans: Tensor) -> Tensor:
    """What stands in for draws where only expectations are propagated: E[g(ε)], (g, h, 1, 1, d) or (g, h, 1, 1, 1)."""
    g, _, h, _ = plans.shape
    if tables is None:
        return plans.new_zeros(g, h, 1, 1, 1)
    mean = expected_draw(tables)
    return (mean[:, None] if mean.dim() == 2 else mean)[:, :, None, None].expand(g, h, 1, 1, -1)

"""Imagined rollouts: what a learnt model expects to earn by each of many plans, uncertainty included.

g agents at once, n plans each, p particles a plan, h steps; o numbers in an observation, a in an action,
d in what the model forecasts. Uncertainty travels by one of the five propagations of PETS (Chua et al., 2018):

    DS     every particle through all networks; one moment-matched Gaussian; a fresh draw each
    MM     as DS, then the particles' Gaussians matched by one Gaussian for the whole plan; a fresh draw each
    TS1    each particle through one network, chosen again at every step; a draw from that network's Gaussian
    TSinf  each particle through one network, always the same
    E      no particles: the mean of DS's Gaussian, calibrated the mean of its recalibrated one, μ + σ · E[g(ε)]

Every one ends in a Gaussian per output dimension, N(μ, σ²), and a draw μ + σ · g(ε) from it. Calibrated, g is the map's
table for that agent and dimension; uncalibrated, g(ε) = ε. g does not depend on the state, so all draws of a
rollout are read from the tables at once, before its first step: a calibrated rollout is the same loop as a bare one.
Errors that last along a trajectory are noise that goes on from step to step before it is read from the tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict, Unpack

import torch
from torch import Tensor

from calibrl.arrays import off_mps
from calibrl.errors import CalibrlError, check_known
from calibrl.kernels import normal
from calibrl.kernels.normal import read_table
from calibrl.maps import Map
from calibrl.maps.gaussian import CELLS, REACH, draw_table
from calibrl.planning.risk import MEAN, Risk

__all__ = ["PROPAGATIONS", "Errors", "Step", "World", "imagine", "imagined_returns", "noise_shape", "stacked_tables"]


class Model(Protocol):
    """What planning asks of networks: `calibrl.forecasters.nets.Nets`, or a faster version of it."""

    @property
    def members(self) -> int:
        """How many networks an agent has: e."""

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (g, e, n, d) by every network, for x (g, n, in) or (g, e, n, in)."""


@dataclass(frozen=True)
class Propagation:
    """One way to go from states to the next targets.

    step: (model, x (g, n, p or 1, in), draws (g, n, p, columns)) → targets (g, n, p, d); x has one particle where
    all particles of a plan are still in the same state. shuffles: noise needs a column more than d, by which
    the particles of a plan are put in a new order. random: without it there are no particles and no noise.
    """

    step: Callable[[Model, Tensor, Tensor], Tensor]
    shuffles: bool = False
    random: bool = True

    def particles(self, asked: int) -> int:
        """How many particles a plan gets."""
        return asked if self.random else 1


def expectation(model: Model, x: Tensor, draws: Tensor) -> Tensor:
    """E: one Gaussian of all networks for each plan, at E[g(ε)]."""
    mean, variance = _matched_answers(model, x)
    return torch.addcmul(mean, variance.sqrt(), draws)


def distribution(model: Model, x: Tensor, draws: Tensor) -> Tensor:
    """DS: one Gaussian of all networks for each particle.

    A model may do that in one go by matched_draw: x (g, n, in), noise (g, n, d) → (g, n, d).
    """
    # No protocol: asking whether a model is of one takes longer than a small network's answer.
    draw = getattr(model, "matched_draw", None)
    if draw is None or x.shape[2] < draws.shape[2]:
        return expectation(model, x, draws)
    return draw(x.flatten(1, 2), draws.flatten(1, 2)).view(draws.shape)


def plan_matched(model: Model, x: Tensor, draws: Tensor) -> Tensor:
    """MM: one Gaussian of all networks for each plan, by the law of total variance over its particles."""
    mean, variance = _matched_answers(model, x)
    middle = mean.mean(2, keepdim=True)
    spread = variance.mean(2, keepdim=True) + mean.var(2, correction=0, keepdim=True)
    return torch.addcmul(middle, spread.sqrt(), draws)


def one_network(model: Model, x: Tensor, draws: Tensor) -> Tensor:
    """TSinf: of e networks and p particles, network i carries particles i · p/e … (i + 1) · p/e - 1."""
    (g, n, p, d), e = draws.shape, model.members
    if p % e:
        raise CalibrlError(f"{p} particles cannot be shared out evenly among {e} networks; use a multiple of {e}")
    if x.shape[2] == 1:
        # All particles in one state: every network answers once for all that it carries.
        answers = [part.transpose(1, 2).unsqueeze(3) for part in model.moments(x.squeeze(2))]
    else:
        # The particles that a network carries are e-th parts of each plan's: n · p/e rows for each network.
        rows = x.reshape(g, n, e, p // e, -1).transpose(1, 2).flatten(2, 3)
        answers = [part.unflatten(2, (n, p // e)).transpose(1, 2) for part in model.moments(rows)]
    mean, variance = answers
    return torch.addcmul(mean, variance.sqrt(), draws.reshape(g, n, e, p // e, d)).reshape(g, n, p, d)


def any_network(model: Model, x: Tensor, draws: Tensor) -> Tensor:
    """TS1: as TSinf after a new order of each plan's particles, given by the ranks of the last noise column."""
    draws, place = draws[..., :-1], draws[..., -1]
    if x.shape[2] == 1:
        return one_network(model, x, draws)
    order = place.argsort(-1).unsqueeze(-1)
    answers = one_network(model, _taken(x, order), _taken(draws, order))
    return torch.empty_like(answers).scatter_(2, order.expand_as(answers), answers)


PROPAGATIONS = {
    "E": Propagation(expectation, random=False),
    "DS": Propagation(distribution),
    "MM": Propagation(plan_matched),
    "TS1": Propagation(any_network, shuffles=True),
    "TSinf": Propagation(one_network),
}


def propagation_named(name: str) -> Propagation:
    """The propagation of that name, or an error that lists them."""
    return PROPAGATIONS[check_known("propagation", name, PROPAGATIONS)]


def matched(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the equal mixture of e Gaussians: (g, e, …) → (g, …) each."""
    middle = mean.mean(1)
    apart = mean - middle.unsqueeze(1)
    return middle, torch.addcmul(variance, apart, apart).mean(1)


def stacked_tables(
    mappings: Sequence[Map | None],
    outputs: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The tables that g agents' calibrated draws are read from.

    Parameters
    ----------
    mappings, outputs
        A map for each agent, or None: the identity; and d, how many numbers a model forecasts.
    device, dtype
        Of the tables.

    Returns
    -------
    Tensor
        Lines (g, d, CELLS, 2).
    """
    device = torch.device(device)
    plain = torch.tensor([0.0, 1.0], device=device, dtype=dtype)
    tables = (plain if mapping is None else draw_table(mapping, device, dtype).lines for mapping in mappings)
    return torch.stack([table.expand(outputs, CELLS, 2) for table in tables])


def calibrated_draws(noise: Tensor, tables: Tensor | None) -> Tensor:
    """g(ε) of standard normal noise (g, h, n, ≥ d); columns after the d-th stay as they are.

    tables: None for g(ε) = ε, or (g, d, CELLS, 2), one per agent.
    """
    if tables is None:
        return noise
    draws = noise.clone()
    d, per_unit = tables.shape[-3], CELLS / (2 * REACH)
    for part, lines in zip(draws, tables, strict=True):
        part[..., :d] = read_table(part[..., :d], lines, per_unit, reuse=True)
    return draws


class Errors(NamedTuple):
    """How imagined errors go on, from those just seen: see `calibrl.evidence.Lasting`.

    start: what the first is expected to be, in k parts, (g, n or 1, p or 1, k, d). steps: (g, n or 1, h, 1 + 2 k, d),
    or 1 + k where nothing new goes on: as `Lasting.ahead` gives them. low, high: no imagined outcome lies beyond them,
    (g, 1, 1, d). An error that goes on leads where nothing was seen, networks are the less sure the further that is,
    and so it would grow without end.
    """

    start: Tensor
    steps: Tensor
    low: Tensor
    high: Tensor

    @property
    def answered(self) -> bool:
        """Whether nothing new goes on, and all plans of an agent expect the same."""
        return self.steps.shape[-2] == 1 + self.start.shape[-2] and self.start.shape[1] == self.steps.shape[1] == 1


FURTHEST = REACH * (1 - 2 / CELLS)
"""No error is further out: tables of draws end there."""


def lasting(noise: Tensor, errors: Errors | None) -> Tensor:
    """Noise (g, h, n, p, ≥ d) whose first d columns go on as errors do; None: noise as it is."""
    if errors is None:
        return noise
    found, expected, (k, d) = noise.clone(), errors.start, errors.start.shape[-2:]
    if errors.steps.shape[-2] == 1 + k:
        spread, left = errors.steps.split((1, k), -2)
        old, new = (expected[:, :, None] * left[:, :, :, None]).sum(-2), noise[..., :d].transpose(1, 2)
        found[..., :d] = torch.addcmul(old, spread, new).transpose(1, 2).clamp(-FURTHEST, FURTHEST)
        return found
    for t, fresh in enumerate(noise[..., None, :d].unbind(1)):
        spread, carried, kept = errors.steps[:, :, t, None].split((1, k, k), -2)
        error = torch.addcmul(expected.sum(-2, keepdim=True), spread, fresh)
        found[:, t, ..., :d] = error.squeeze(-2).clamp(-FURTHEST, FURTHEST)
        expected = torch.addcmul(kept * expected, carried, fresh)
    return found


def expected_draw(tables: Tensor) -> Tensor:
    """E[g(ε)] of each table (…, CELLS, 2) → (…): lines integrated against the normal density, cell by cell."""
    lines = off_mps(tables).double()
    ends = torch.linspace(-REACH, REACH, CELLS + 1, dtype=torch.float64, device=lines.device)
    mass, pull = normal.cdf(ends).diff(), -torch.exp(normal.log_density(ends)).diff()
    return (lines[..., 0] @ mass + lines[..., 1] @ pull).to(tables)


def _matched_answers(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (g, n, p, d) of the Gaussian that matches all networks' answers for x (g, n, p, in)."""
    mean, variance = model.moments(x.flatten(1, 2))
    return matched(mean.unflatten(2, x.shape[1:3]), variance.unflatten(2, x.shape[1:3]))


def _taken(values: Tensor, order: Tensor) -> Tensor:
    return values.gather(2, order.expand(*order.shape[:-1], values.shape[-1]))


Reward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(observation (…, o), action (…, a), next observation (…, o)) → reward (…)."""

AT_ONCE = 2**20
"""Numbers of observations whose rewards are asked for together: no more than stays in the processor's cache."""


@dataclass(frozen=True)
class World:
    """How a model's numbers become a world: tensor functions for any leading dimensions, on any device.

    None of them may read a number back (`.item()`, `if tensor`), and what else they read, like a goal, must stay as it
    is: on a GPU whole plans are captured in one CUDA graph, where TSinf is asked for in one kernel.

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
    safe
        Observation (…, o) → margin (…), above 0 where it is safe to be; None where it is everywhere. Only planners that
        ask for safety ask for it.
    units
        What one unit of each observed number is, (o,), for planners that explore; infinite where it does not count.
    """

    model_input: Callable[[Tensor], Tensor]
    target: Callable[[Tensor, Tensor], Tensor]
    next_observation: Callable[[Tensor, Tensor], Tensor]
    reward: Reward | None
    safe: Callable[[Tensor], Tensor] | None = None
    units: Tensor | None = None


class Step(NamedTuple):
    """One imagined step: observations before and after (g, n, p, o), the action (g, n, p, a)."""

    observation: Tensor
    action: Tensor
    after: Tensor


class Futures(TypedDict):
    """How futures are imagined: what `imagine` is given by name."""

    propagation: str
    particles: int
    noise: Tensor
    tables: NotRequired[Tensor | None]
    errors: NotRequired[Errors | None]


def imagined_returns(
    nets: Model, world: World, observation: Tensor, plans: Tensor, *, risk: Risk = MEAN, **how: Unpack[Futures]
) -> Tensor:
    """What each plan is worth: by default the mean over particles of its summed reward.

    A particle whose return is not finite counts as -1e6, as published (there for NaN only): a plan under which the
    model diverges is a bad plan, not an error.

    Parameters
    ----------
    nets, world, observation, plans, **how
        As in `imagine`: propagation, particles, noise, tables and errors.
    risk
        What the particles' returns, and where they went, make of a plan.

    Returns
    -------
    Tensor
        Values (g, n).
    """
    if world.reward is None:
        raise CalibrlError("this world has no reward; learn one, or pass a reward function of your own")
    with torch.inference_mode():
        noise, steps = how["noise"], imagine(nets, world, observation, plans, **how)
        broken: Tensor | None = None
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
            if risk.exploration:
                total = total + risk.novelty(passed[1:], world.units, networks=nets.members).sum(0)
            if risk.safety and world.safe is not None:
                left = (world.safe(passed[1:]) <= 0).any(0)
                broken = left if broken is None else broken | left
        value = risk(total, broken, networks=nets.members)
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
    errors: Errors | None = None,
) -> Iterator[Step]:
    """The steps of all particles of all plans, one by one; gradients flow to plans and observations that ask for them.

    Parameters
    ----------
    nets, world
        The agents' networks, and how their numbers become a world.
    observation, plans
        Where each agent is, (g, o), or where each plan begins, (g, n, o); actions (g, n, h, a).
    propagation, particles
        How uncertainty travels: E, DS, MM, TS1 or TSinf; imagined futures of a plan.
    noise
        Standard normal, of `noise_shape`; drawn by the caller, so that a rollout is a pure function and an agent's
        chance its own.
    tables
        None, or the agents' calibrated draws, (g, d, CELLS, 2), as `stacked_tables` gives them.
    errors
        None, or how each agent's imagined errors go on from those just seen.

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
    # Some know a faster version of themselves, for this moment of their training.
    model: Model = nets if steered else getattr(nets, "ready", lambda: nets)()
    if way.random:
        draws = lasting(noise.unflatten(2, (n, p)), errors)
        draws = calibrated_draws(draws.flatten(2, 3), tables).unflatten(2, (n, p))
    else:
        draws = _expected(tables, plans)
    state = observation[:, :, None] if observation.dim() == 3 else observation[:, None, None]
    # One copy in which every step's actions lie side by side: putting together what does not is several times as slow.
    actions = plans.permute(2, 0, 1, 3).unsqueeze(3).expand(h, g, n, p, a).contiguous().unbind(0)
    # In the first step all particles of a plan are in one state: the networks are asked once for all.
    x = torch.cat([world.model_input(state).expand(g, n, 1, -1), actions[0][:, :, :1]], -1)
    state = state.expand(g, n, p, -1)
    for t, draw in enumerate(draws.unbind(1)):
        if t:
            x = torch.cat([world.model_input(state), actions[t]], -1)
        target = way.step(model, x, draw)
        if errors is not None:
            target = target.clamp(errors.low, errors.high)
        before, state = state, world.next_observation(state, target)
        yield Step(before, actions[t], state)


def noise_shape(
    propagation: str, *, agents: int, horizon: int, plans: int, particles: int, outputs: int
) -> tuple[int, ...]:
    """The shape of the standard normal noise that a rollout needs.

    Parameters
    ----------
    propagation, agents, horizon, plans, particles, outputs
        Its name; g agents, h steps, n plans of p particles each, d numbers that a model forecasts.

    Returns
    -------
    tuple of int
        (g, h, n · p, d), a column more for TS1, none for E.
    """
    way = propagation_named(propagation)
    return (agents, horizon, plans * way.particles(particles), outputs + way.shuffles if way.random else 0)


def _expected(tables: Tensor | None, plans: Tensor) -> Tensor:
    """What stands in for draws where only expectations are propagated: E[g(ε)], (g, h, 1, 1, d) or (g, h, 1, 1, 1)."""
    g, _, h, _ = plans.shape
    if tables is None:
        return plans.new_zeros(g, h, 1, 1, 1)
    return expected_draw(tables)[:, None, None, None].expand(g, h, 1, 1, -1)

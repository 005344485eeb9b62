"""The planning of one action for many agents: a search by imagined returns, on a GPU one captured CUDA graph.

Everything that planning reads lies in buffers that never move and no number is read back, so that the whole of it is
captured once and replayed for every action. A GPU imagines in three kernels a step: the networks, the draw, and the
world's own tensor functions, compiled by `torch.compile`; in two where a draw is made of one network's answer; and in
one kernel for all steps where a particle also stays with its network.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from calibrl.errors import CalibrlError, first_line
from calibrl.kernels.fused_nets import FusedNets, Kernel, Networks, Sizes, captured, compiled, compiled_alone
from calibrl.kernels.resident import CompilerError, Resident
from calibrl.kernels.rollout import Rollouts
from calibrl.kernels.scalars import Untranslatable
from calibrl.maps.gaussian import CELLS, REACH
from calibrl.planning.risk import MEAN, Risk
from calibrl.planning.rollout import FURTHEST, Errors, Model, World, imagined_returns, lasting, noise_shape
from calibrl.planning.search import Found, Search

__all__ = ["CapturedPlanner", "PlanInputs", "Planner", "for_device"]

PER_UNIT = CELLS / (2 * REACH)

FUSED = ("DS", "TS1", "TSinf")
"""Propagations that a GPU imagines in fused kernels."""


class _Ensemble(Networks, Protocol):
    """The networks of g agents: `calibrl.forecasters.nets.Nets`."""

    def ready(self) -> Model:
        """What answers quickest as the networks are now."""


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """How g agents plan, and what changes from one action to the next, written in place.

    Parameters
    ----------
    search, propagation, particles
        How plans are searched for, and judged: by so many imagined futures each, which E, DS, MM, TS1 or TSinf rolls
        through the model.
    observation
        Where imagination starts, (g, o).
    start, elites
        What the search begins from, (g, h, a), and plans it tries again, (g, k, h, a): NaN where an episode begins.
    search_noise, particle_noise
        Chance of the search, (iterations, g, population_size, h, a), and of futures, (iterations, *noise_shape).
    tables
        The agents' calibrated draws, (g, d, cells, 2), or None where nobody is calibrated.
    errors
        How imagined errors go on from those just seen, or None where nobody's last.
    risk
        What a plan's particles make of it.
    """

    search: Search
    propagation: str
    particles: int
    observation: Tensor
    start: Tensor
    elites: Tensor
    search_noise: Tensor
    particle_noise: Tensor
    tables: Tensor | None
    errors: Errors | None = None
    risk: Risk = MEAN

    @classmethod
    def empty(
        cls,
        search: Search,
        *,
        propagation: str,
        particles: int,
        agents: int,
        observation_size: int,
        outputs: int,
        start: Tensor,
        tables: Tensor | None,
        errors: Errors | None = None,
        risk: Risk = MEAN,
    ) -> PlanInputs:
        """Buffers for so many agents, on the device of the plan (h, a) that all begin from."""
        device, (h, _), plans = start.device, start.shape, search.population_size
        shape = noise_shape(propagation, agents=agents, horizon=h, plans=plans, particles=particles, outputs=outputs)
        return cls(
            search,
            propagation,
            particles,
            observation=torch.zeros(agents, observation_size, device=device),
            start=start.expand(agents, -1, -1).clone(),
            elites=torch.full((agents, search.carried, *start.shape), torch.nan, device=device),
            search_noise=torch.zeros(search.iterations, agents, plans, *start.shape, device=device),
            # Agent by agent in memory: each draws its own in place.
            particle_noise=torch.zeros(agents, search.iterations, *shape[1:], device=device).transpose(0, 1),
            tables=tables,
            errors=errors,
            risk=risk,
        )

    def begin(self, agents: Sequence[int], start: Tensor) -> None:
        """These agents' episodes begin: they start from a plan (h, a), and know no better one."""
        self.start[list(agents)] = start
        self.elites[list(agents)] = torch.nan

    def go_on(self, found: Found) -> None:
        """The first actions of plans are done: the next search begins from what this one found."""
        self.start.copy_(found.start)
        self.elites.copy_(found.elites)

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Fresh chance for every agent, each from its own generator."""
        # What torch draws depends on how a tensor lies in memory: each agent's is drawn in one piece.
        for agent, generator in enumerate(generators):
            search, particles = self.search_noise[:, agent], self.particle_noise[:, agent]
            search.copy_(self.search.draw(search.shape, generator=generator, device=search.device))
            torch.randn(particles.shape, generator=generator, out=particles)


class Planner:
    """Plans one action for each of g agents, by the search of its inputs and the returns that networks imagine.

    Parameters
    ----------
    nets, world
        The agents' networks, and how their numbers become a world.
    inputs
        How to plan, and what changes from one action to the next; read anew by every call.
    low, high
        Bounds of the actions, (a,) each.
    fused
        Whether networks on a GPU may be computed by fused kernels, if there are any for their sizes and propagation.
    """

    def __init__(
        self, nets: _Ensemble, world: World, inputs: PlanInputs, *, low: Tensor, high: Tensor, fused: bool = True
    ) -> None:
        self.nets, self.world, self.inputs, self.low, self.high = nets, world, inputs, low, high
        on_gpu = low.device.type == "cuda"
        self.fused = fuse(nets) if on_gpu and fused and inputs.propagation in FUSED else None
        stays = inputs.propagation == "TSinf" and not inputs.risk.exploration
        self.whole = whole_rollouts(self.fused, world, inputs.observation) if self.fused and stays else None
        self.model = nets.ready()

    def __call__(self) -> Found:
        """Plans for what lies in the inputs now."""
        given = self.inputs
        return given.search.search_batch(
            self.value, self.low, self.high, start=given.start, elites=given.elites, noise=given.search_noise
        )

    def value(self, plans: Tensor, iteration: int) -> Tensor:
        """What plans (g, n, h, a) are imagined to earn (g, n), by the chance of that iteration of the search."""
        given, noise = self.inputs, self.inputs.particle_noise[iteration]
        # An iteration with fewer plans takes the first rows.
        noise = noise[:, :, : noise.shape[2] // given.search.population_size * plans.shape[1]]
        how: dict[str, Any] = {"particles": given.particles, "noise": noise}
        how |= {"tables": given.tables, "errors": given.errors, "risk": given.risk}
        how |= {"propagation": given.propagation}
        if self.fused is not None:
            return fused_returns(self.fused, self.world, given.observation, plans, whole=self.whole, **how)
        return imagined_returns(self.model, self.world, given.observation, plans, **how)

    def networks_changed(self) -> None:
        """Make the networks ready as they are now, for all plans until they change again."""
        self.model = self.nets.ready()
        if self.fused is not None:
            self.fused.refresh()


class CapturedPlanner:
    """A planner on a GPU, replayed as one CUDA graph: no launch of a kernel waits for Python.

    Parameters
    ----------
    planner
        What to capture, once.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.graph, self.found = captured(planner, first=2)

    def __call__(self) -> Found:
        """Plans, in memory that the next call overwrites."""
        self.graph.replay()
        return self.found

    def networks_changed(self) -> None:
        """Pack the networks anew, where the graph reads them."""
        self.planner.networks_changed()


def for_device(planner: Planner) -> Planner | CapturedPlanner:
    """The quickest version of a planner where it is.

    Parameters
    ----------
    planner
        On any device.

    Returns
    -------
    Planner or CapturedPlanner
        Captured on a GPU; on a CPU, where there is nothing to gain, the planner itself.
    """
    return CapturedPlanner(planner) if planner.low.device.type == "cuda" else planner


def fused_returns(
    nets: FusedNets,
    world: World,
    observation: Tensor,
    plans: Tensor,
    *,
    particles: int,
    propagation: str,
    noise: Tensor,
    tables: Tensor | None = None,
    errors: Errors | None = None,
    risk: Risk = MEAN,
    whole: Rollouts | None = None,
) -> Tensor:
    """What `imagined_returns` gives by DS, TS1 or TSinf, (g, n), in fused kernels; by TSinf in one, if it is given."""
    from calibrl.kernels.layered import arranged_draws, matched_draw

    (g, n, h, _), e, d = plans.shape, nets.members, nets.nets.max_logvar.shape[-1]
    if whole is not None and (errors is None or errors.answered):
        how: dict[str, Any] = {"tables": tables, "reach": (PER_UNIT, FURTHEST)}
        if errors is not None:
            how["errors"] = compiled_alone(expected_noise)(errors, e)
            how["limits"] = (errors.low.flatten(0, 2), errors.high.flatten(0, 2))
        earned, left = whole(observation, plans, noise, **how)
        return risk(earned, left > 0 if risk.safety and world.safe is not None else None, networks=e)
    if errors is not None:
        noise = compiled_alone(lasting)(noise.unflatten(2, (n, particles)), errors).flatten(2, 3)
    # By TS1 and TSinf networks stand side by side like agents, each with its share of every plan's particles.
    shares = 1 if propagation == "DS" else e
    if particles % shares:
        raise CalibrlError(f"{particles} particles cannot be shared out evenly among {e} networks")
    ranks, orders, draws = None, None, None
    if propagation == "TS1":
        ranks, orders = compiled_alone(network_orders)(noise, particles, e)
    if propagation != "DS":
        draws = arranged_draws(noise, tables, PER_UNIT, ranks, particles=particles, members=e, d=d)

    begin, advance = _compiled(world)
    x = begin(observation, plans[:, :, 0])
    state = observation.repeat_interleave(shares, 0)[:, None, None].expand(-1, n, 1, -1)
    # Step by step in memory: where a step's actions begin at an odd place, compiled code would copy all of them.
    actions = plans.permute(2, 0, 1, 3).repeat_interleave(shares, 1)
    total = plans.new_zeros(g * shares, n, particles // shares)
    broken = None

    def by_plan(values: Tensor) -> Tensor:
        """(g · shares, n, p / shares, …) → (g, n, p, …)."""
        return values.unflatten(0, (g, shares)).transpose(1, 2).flatten(2, 3)

    for t in range(h):
        if draws is None:
            drawn = matched_draw(*nets.moments(x), noise[:, t], tables, PER_UNIT)
        elif t == 0:
            # All particles of a plan are in one state: every network is asked once for all that it takes.
            mean, variance = (part.flatten(0, 1)[:, None] for part in nets.moments(x))
            drawn = matched_draw(mean, variance, draws[0])
        else:
            drawn = nets.draw(x, draws[t], None if orders is None else orders[t])
        drawn = drawn.view(*total.shape, d)
        if errors is not None:
            drawn = drawn.clamp(*(part.repeat_interleave(shares, 0) for part in (errors.low, errors.high)))
        # The last step's next input is computed and not used: another version of `advance` would cost more.
        following = actions[min(t + 1, h - 1)]
        state, total, x = advance(state, actions[t], following, drawn, total)
        if risk.exploration:
            total = total + risk.novelty(by_plan(state), world.units, networks=e).repeat_interleave(shares, 0)
        if risk.safety and world.safe is not None:
            left = world.safe(state) <= 0
            broken = left if broken is None else broken | left
    return risk(by_plan(total), None if broken is None else by_plan(broken), networks=e)


def network_orders(noise: Tensor, particles: int, members: int) -> tuple[Tensor, Tensor]:
    """Which particles the networks take in each step of TS1: the ranks of noise's last column say it, but in the first.

    Returns
    -------
    tuple of Tensor, Tensor
        Of each plan's particles, (g, h, n, p) int32; and where these are among an agent's rows, network by network as
        in the first step, (h, g · e, n · p/e) int32.
    """
    g, h, _, own = *noise.shape[:3], particles // members
    first = torch.arange(particles, device=noise.device).expand(g, 1, noise.shape[2] // particles, -1)
    later = noise[:, 1:, :, -1].unflatten(2, (-1, particles)).argsort(-1)
    ranks = torch.cat([first, later], 1).to(torch.int32)
    n = ranks.shape[2]
    plan = torch.arange(n, dtype=torch.int32, device=noise.device)[:, None]
    rows = ranks // own * (n * own) + plan * own + ranks % own
    return ranks, rows.unflatten(3, (members, own)).permute(1, 0, 3, 2, 4).reshape(h, g * members, n * own)


def expected_noise(errors: Errors, members: int) -> tuple[Tensor, Tensor]:
    """Errors that nothing new is added to as two numbers for each step and network, (g, e, h, d): see `lasting`.

    By TSinf the particles of a network expect the same.
    """
    start = errors.start[:, 0]
    start = start[:, :: max(start.shape[1] // members, 1)].expand(-1, members, -1, -1)
    spread, left = errors.steps[:, 0].split((1, start.shape[2]), -2)
    middle = (start[:, :, None] * left[:, None]).sum(-2)
    return middle, spread[:, None, :, 0].expand_as(middle)


@functools.cache
def _compiled(world: World) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What happens between two answers of the networks, each one pass: the first input, and a step."""
    reward = world.reward
    assert reward is not None

    def begin(observation: Tensor, action: Tensor) -> Tensor:
        """Input (g, n, in) of the first step from observations (g, o) and actions (g, n, a)."""
        seen = world.model_input(observation)[:, None].expand(-1, action.shape[1], -1)
        return torch.cat([seen, action], -1)

    def advance(state: Tensor, action: Tensor, following: Tensor, target: Tensor, total: Tensor) -> Any:
        """State (g, n, p, o), returns so far (g, n, p) and the next input (g, n · p, in)."""
        before = state.expand(-1, -1, target.shape[2], -1)
        taken, upcoming = (part[:, :, None].expand(-1, -1, target.shape[2], -1) for part in (action, following))
        after = world.next_observation(before, target)
        x = torch.cat([world.model_input(after), upcoming], -1).flatten(1, 2)
        return after, total + reward(before, taken, after), x

    return compiled(begin), compiled(advance)


def fuse(nets: Networks) -> FusedNets | None:
    """The networks on the fastest kernel that fits; None, said in a warning, where there is none on their device."""
    kernel = _kernel_for(nets)
    if isinstance(kernel, str):
        warnings.warn(f"planning without a fused kernel: {kernel}", stacklevel=2)
        return None
    return FusedNets(nets, kernel)


def whole_rollouts(nets: FusedNets, world: World, observation: Tensor) -> Rollouts | None:
    """Rollouts by TSinf in one kernel, from observations (g, o); None where networks or world are not for it."""
    if not isinstance(nets.kernel, Resident):
        return None
    try:
        return Rollouts.of(nets.kernel, world, observed=observation.shape[-1])
    except (Untranslatable, CompilerError) as error:
        warnings.warn(f"the steps of a rollout are not one kernel: {first_line(error)}", stacklevel=3)
        return None


def _kernel_for(nets: Networks) -> Kernel | str:
    """The fastest kernel that fits, or why none does."""
    device = nets.max_logvar.device
    if device.type != "cuda":
        return f"the networks are on {device.type}"
    if not nets.probabilistic:
        return "networks without variances"
    try:
        sizes = Sizes.of(nets)
    except CalibrlError as error:
        return str(error)
    if sizes.hidden < 2:
        return "networks of one hidden layer"
    if sizes.input_columns > 128 or sizes.output_columns > 128:
        return f"{sizes.inputs} inputs or {sizes.outputs} outputs; up to 126 and 128 fit"
    if torch.cuda.get_device_capability(device) == (9, 0):
        if Resident.fits(sizes):
            try:
                return Resident(sizes, device)
            except CompilerError as error:
                warnings.warn(f"planning with the slower of two kernels: {error}", stacklevel=4)
        try:
            from calibrl.kernels.hopper import OnHopper
        except (ImportError, AttributeError):  # a Triton without Gluon, or with other names in it
            pass
        else:
            if OnHopper.fits(sizes):
                return OnHopper(sizes, device)
    try:
        from calibrl.kernels.layered import Layered
    except ImportError as error:
        return f"Triton cannot be imported ({error})"
    return Layered(sizes, device)

"""The planning of one action for a whole fleet: one function of fixed-size inputs, without a look at any number.

Everything it reads lies in buffers that never move, so that on a GPU the whole of it is captured once as a CUDA
graph and replayed for every action; a faster version takes its place where a fleet is assembled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from calibrl.control.searches import METHODS, Found, Quest
from calibrl.control.settings import PlannerSettings
from calibrl.forecasters.nets import Nets
from calibrl.kernels.fused_nets import FusedNets, fuse
from calibrl.planning.propagation import Model
from calibrl.planning.rollout import World, imagined_returns, noise_shape


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """What changes from one action to the next, written in place.

    observation: (g, o), as imagination starts from it. start: (g, h, a), the plan to begin from; elites: (g, k, h, a),
    more of them, NaN where an episode begins, for methods that remember any. search: (sweeps, g, n, h, a), drawn by
    `luck`, and particles: (sweeps, *noise_shape), chance. tables: (g, d, cells, 2), the agents' calibrated draws, or
    None where nobody is calibrated.
    """

    observation: Tensor
    start: Tensor
    elites: Tensor
    search: Tensor
    luck: Callable[..., Tensor]
    particles: Tensor
    tables: Tensor | None

    @classmethod
    def empty(
        cls,
        settings: PlannerSettings,
        *,
        agents: int,
        observation_size: int,
        outputs: int,
        start: Tensor,
        tables: Tensor | None,
    ) -> PlanInputs:
        """Buffers for a fleet; start: (h, a)."""
        device, method = start.device, METHODS[settings.method]
        shape = noise_shape(
            settings.propagation,
            agents=agents,
            horizon=settings.horizon,
            plans=settings.population,
            particles=settings.particles,
            outputs=outputs,
        )
        return cls(
            observation=torch.zeros(agents, observation_size, device=device),
            start=start.expand(agents, -1, -1).clone(),
            elites=torch.full((agents, method.carried(settings), *start.shape), torch.nan, device=device),
            search=torch.zeros(settings.sweeps, agents, settings.population, *start.shape, device=device),
            luck=method.luck,
            particles=torch.zeros(settings.sweeps, *shape, device=device),
            tables=tables,
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
        # Drawn in one piece and then put in place: what torch draws depends on how a tensor lies in memory.
        device = self.search.device
        for agent, generator in enumerate(generators):
            search, particles = self.search[:, agent], self.particles[:, agent]
            search.copy_(self.luck(search.shape, generator=generator, device=device))
            particles.copy_(torch.randn(particles.shape, generator=generator, device=device))


class Plan(Protocol):
    """How a fleet plans."""

    def __call__(self) -> Found:
        """Plans for what lies in the inputs now."""

    def learnt(self) -> None:
        """The networks have changed."""


MakePlan: TypeAlias = Callable[[Nets, World, PlanInputs, PlannerSettings, Tensor, Tensor], Plan]
"""(networks, world, inputs, settings, low (a,), high (a,)) → the function that plans."""

Returns: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(plans (g, n, h, a), noise of one sweep) → what each is imagined to earn (g, n)."""


def plan_fleet(returns: Returns, inputs: PlanInputs, settings: PlannerSettings, low: Tensor, high: Tensor) -> Found:
    """The plans that the settings' method finds by imagined returns, with fresh chance in each sweep."""
    quest = Quest(
        value=lambda sweep, plans: returns(plans, inputs.particles[sweep]),
        low=low,
        high=high,
        start=inputs.start,
        elites=inputs.elites,
        noise=inputs.search,
    )
    return METHODS[settings.method].search(quest, settings)


def plain_returns(nets: Model, world: World, inputs: PlanInputs, settings: PlannerSettings) -> Returns:
    """Imagined returns by any propagation, in plain PyTorch."""

    def returns(plans: Tensor, noise: Tensor) -> Tensor:
        return imagined_returns(
            nets,
            world,
            inputs.observation,
            plans,
            propagation=settings.propagation,
            particles=settings.particles,
            noise=noise,
            tables=inputs.tables,
        )

    return returns


@dataclass(eq=False)
class Plainly:
    """Plan by calling `plan_fleet` each time: on a CPU there is nothing to gain by capturing it."""

    nets: Nets
    world: World
    inputs: PlanInputs
    settings: PlannerSettings
    low: Tensor
    high: Tensor
    returns: Returns = field(init=False)

    def __post_init__(self) -> None:
        self.learnt()

    def __call__(self) -> Found:
        """Plans."""
        return plan_fleet(self.returns, self.inputs, self.settings, self.low, self.high)

    def learnt(self) -> None:
        """Make the networks ready as they are now, for all plans until they change again."""
        self.returns = plain_returns(self.nets.ready(), self.world, self.inputs, self.settings)


class Captured:
    """Plan by replaying one CUDA graph: no launch of a kernel waits for Python.

    With DS the networks and the draw are fused kernels, if the networks have sizes for which there are any; `fused`
    False leaves them the reference.
    """

    def __init__(
        self,
        nets: Nets,
        world: World,
        inputs: PlanInputs,
        settings: PlannerSettings,
        low: Tensor,
        high: Tensor,
        *,
        fused: bool = True,
    ) -> None:
        self.fused = fuse(nets) if fused and settings.propagation == "DS" else None
        returns = (
            plain_returns(nets, world, inputs, settings)
            if self.fused is None
            else fused_kernels(self.fused, world, inputs, settings)
        )
        # Kernels are compiled and memory is found outside of the graph.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                plan_fleet(returns, inputs, settings, low, high)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.answer = plan_fleet(returns, inputs, settings, low, high)

    def __call__(self) -> Found:
        """Plans, in memory that the next call overwrites."""
        self.graph.replay()
        return self.answer

    def learnt(self) -> None:
        """Pack the networks anew, where the graph reads them."""
        if self.fused is not None:
            self.fused.refresh()


def fused_kernels(nets: FusedNets, world: World, inputs: PlanInputs, settings: PlannerSettings) -> Returns:
    """Imagined returns by DS, in fused kernels."""
    from calibrl.planning.fused_rollout import fused_returns

    def returns(plans: Tensor, noise: Tensor) -> Tensor:
        return fused_returns(
            nets,
            world,
            inputs.observation,
            plans,
            particles=settings.particles,
            noise=noise,
            tables=inputs.tables,
        )

    return returns


def for_device(device: torch.device) -> MakePlan:
    """How to plan on a device."""
    return Captured if device.type == "cuda" else Plainly

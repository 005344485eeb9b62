"""The planning of one action for a whole fleet: one function of fixed-size inputs, without a look at any number.

Everything it reads lies in buffers that never move, so that on a GPU the whole of it is captured once as a CUDA
graph and replayed for every action; a faster version takes its place where a fleet is assembled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from calibrl.control.presets import PlannerSettings
from calibrl.planning.propagation import Model
from calibrl.planning.rollout import World, imagined_returns, noise_shape
from calibrl.planning.search import CrossEntropy
from calibrl.planning.side_by_side import cross_entropy_fleet


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """What changes from one action to the next, written in place.

    observation: (g, o), as imagination starts from it. start: (g, h, a), the plan to begin from. search: (sweeps,
    g, n, h, a) and particles: (sweeps, *noise_shape), chance. tables: (g, d, cells, 2), the agents' calibrated
    draws, or None where nobody is calibrated.
    """

    observation: Tensor
    start: Tensor
    search: Tensor
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
        device = start.device
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
            search=torch.zeros(settings.sweeps, agents, settings.population, *start.shape, device=device),
            particles=torch.zeros(settings.sweeps, *shape, device=device),
            tables=tables,
        )

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Fresh chance for every agent, each from its own generator."""
        # Drawn in one piece and then put in place: what torch draws depends on how a tensor lies in memory.
        device = self.search.device
        for agent, generator in enumerate(generators):
            search, particles = self.search[:, agent], self.particles[:, agent]
            search.copy_(torch.rand(search.shape, generator=generator, device=device))
            particles.copy_(torch.randn(particles.shape, generator=generator, device=device))


Plan: TypeAlias = Callable[[], Tensor]
"""Plans (g, h, a) for what lies in the inputs now."""

MakePlan: TypeAlias = Callable[[Model, World, PlanInputs, PlannerSettings, Tensor, Tensor], Plan]
"""(networks, world, inputs, settings, low (a,), high (a,)) → the function that plans."""


def plan_fleet(
    nets: Model, world: World, inputs: PlanInputs, settings: PlannerSettings, low: Tensor, high: Tensor
) -> Tensor:
    """The plans (g, h, a) that the cross-entropy method finds by imagined returns, with fresh chance in each sweep."""
    sweep = iter(inputs.particles)

    def objective(plans: Tensor) -> Tensor:
        return imagined_returns(
            nets,
            world,
            inputs.observation,
            plans,
            propagation=settings.propagation,
            particles=settings.particles,
            noise=next(sweep),
            tables=inputs.tables,
        )

    search = CrossEntropy(
        population=settings.population,
        elites=settings.elites,
        sweeps=settings.sweeps,
        inertia=settings.inertia,
        smallest_variance=settings.smallest_variance,
    )
    return cross_entropy_fleet(objective, low, high, search, inputs.start, inputs.search)


def plainly(
    nets: Model, world: World, inputs: PlanInputs, settings: PlannerSettings, low: Tensor, high: Tensor
) -> Plan:
    """Plan by calling `plan_fleet` each time: on a CPU there is nothing to gain by capturing it."""
    return lambda: plan_fleet(nets, world, inputs, settings, low, high)


def captured(
    nets: Model, world: World, inputs: PlanInputs, settings: PlannerSettings, low: Tensor, high: Tensor
) -> Plan:
    """Plan by replaying one CUDA graph: no launch of a kernel waits for Python."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            plan_fleet(nets, world, inputs, settings, low, high)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = plan_fleet(nets, world, inputs, settings, low, high)

    def replay() -> Tensor:
        graph.replay()
        return answer

    return replay


def for_device(device: torch.device) -> MakePlan:
    """How to plan on a device."""
    return captured if device.type == "cuda" else plainly

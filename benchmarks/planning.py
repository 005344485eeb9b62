"""How fast one action is planned, beside a plain per-member implementation in the same run.

    python benchmarks/planning.py [--threads 1] [--quick] [--out results/control/speed.jsonl]
    python benchmarks/planning.py --device cuda [--tasks halfcheetah] [--propagations TS1,TSinf] [--quick] [--out …]

The peer is written here the way PETS is usually written: a list of `nn.Sequential` members, asked one after the other,
`torch.distributions` for the draws, a loop over steps. Both plan with the same networks, world, CEM settings and
propagation (DS). One thread is timed in CPU time, which depends little on what else the machine does; more threads in
wall time. Published settings are timed for one of their five iterations. Nothing is asserted: it prints what it saw.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import planning_gpu
import torch
from rich.console import Console
from timing import Clock, Job, Match, beside, side_by_side
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional

from calibrl.control.problems import Task, task
from calibrl.control.settings import PRESETS, ControlSettings
from calibrl.forecasters.ensemble import Batches, EnsembleTraining, Learner
from calibrl.forecasters.nets import Nets, Shape
from calibrl.maps import Affine
from calibrl.planning.candidates import cut_normal
from calibrl.planning.rollout import World, imagined_returns, noise_shape, stacked_tables
from calibrl.planning.search import CEM
from calibrl.runs import rows as results

PEER = "eager, member by member"


# The peer.


class Member(nn.Module):
    """One probabilistic network, with the numbers of network `index` of the first agent."""

    def __init__(self, nets: Nets, index: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for weight, bias in zip(nets.weights, nets.biases, strict=True):
            linear = nn.Linear(*weight.shape[2:])
            linear.weight.data, linear.bias.data = weight[0, index].T.contiguous(), bias[0, index, 0].clone()
            layers += [linear, nn.SiLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.max_logvar, self.min_logvar = (
            nn.Parameter(bound[0, 0].clone()) for bound in (nets.max_logvar, nets.min_logvar)
        )
        self.register_buffer("mean", nets.input_mean[0, 0].clone())
        self.register_buffer("std", nets.input_std[0, 0].clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.body((x - self.mean) / self.std).chunk(2, -1)
        logvar = self.max_logvar - functional.softplus(self.max_logvar - logvar)
        logvar = self.min_logvar + functional.softplus(logvar - self.min_logvar)
        return mean, logvar


class Eager:
    """Planning, one member and one step at a time."""

    def __init__(self, nets: Nets, world: World, particles: int) -> None:
        self.members = [Member(nets, index) for index in range(nets.members)]
        self.world, self.particles = world, particles

    def returns(self, observation: Tensor, plans: Tensor) -> Tensor:
        n, h, _ = plans.shape
        state, total = observation.repeat(n * self.particles, 1), torch.zeros(n * self.particles)
        for t in range(h):
            action = plans[:, t].repeat_interleave(self.particles, 0)
            x = torch.cat([self.world.model_input(state), action], -1)
            answers = [member(x) for member in self.members]
            means = torch.stack([mean for mean, _ in answers])
            variances = torch.stack([logvar.exp() for _, logvar in answers])
            matched = Normal(means.mean(0), (variances.mean(0) + means.var(0, unbiased=False)).sqrt())
            following = self.world.next_observation(state, matched.sample())
            total = total + self.world.reward(state, action, following)
            state = following
        total = torch.where(total.isnan(), torch.full_like(total, -1e6), total)
        return total.view(n, self.particles).mean(1)

    @torch.no_grad()
    def plan(self, observation: Tensor, low: Tensor, high: Tensor, horizon: int, settings: CEM) -> Tensor:
        mean = ((low + high) / 2).repeat(horizon, 1)
        variance = ((high - low) ** 2 / 16).expand_as(mean)
        for _ in range(settings.iterations):
            if variance.max() <= settings.min_variance:
                break
            room = torch.minimum(mean - low, high - mean) / 2
            width = torch.minimum(room**2, variance).sqrt()
            plans = mean + width * cut_normal(torch.rand(settings.population_size, *mean.shape))
            value = self.returns(observation, plans)
            elite = plans[value.topk(settings.elites).indices]
            kept = settings.momentum
            mean = kept * mean + (1 - kept) * elite.mean(0)
            variance = kept * variance + (1 - kept) * elite.var(0, unbiased=False)
        return mean


def eager_step(
    members: list[Member], adam: torch.optim.Adam, training: EnsembleTraining, rows: list[tuple[Tensor, Tensor]]
) -> None:
    """One training step, member by member."""
    adam.zero_grad()
    total = torch.zeros(())
    for member, (x, y) in zip(members, rows, strict=True):
        mean, logvar = member(x)
        total = total + ((mean - y).square() * (-logvar).exp() + logvar).mean()
        linears = [layer for layer in member.body if isinstance(layer, nn.Linear)]
        for decay, layer in zip(training.decays(len(linears)), linears, strict=True):
            total = total + decay / 2 * layer.weight.square().sum()
        total = total + training.bound_penalty * (member.max_logvar.sum() - member.min_logvar.sum())
    total.backward()
    adam.step()


# What is timed.


@dataclass(frozen=True)
class Case:
    """A preset, for how many of its iterations it is timed, how often, and how many agents plan side by side."""

    preset: ControlSettings
    iterations: int
    repeats: int
    agents: int = 1

    @property
    def name(self) -> str:
        part = "" if self.iterations == self.preset.planner.iterations else f", {self.iterations} of its iterations"
        return f"{self.preset.name}{part}" + (f", {self.agents} agents" if self.agents > 1 else "")

    @property
    def task(self) -> Task:
        return task(self.preset.task)

    @property
    def search(self) -> CEM:
        found = replace(self.preset.planner, iterations=self.iterations).search
        assert isinstance(found, CEM)
        return found

    def nets(self) -> Nets:
        where, ensemble = self.task, self.preset.ensemble
        shape = Shape(where.input_size, where.target_size, hidden=ensemble.hidden, members=ensemble.members)
        nets = Nets.fresh(shape, [torch.Generator().manual_seed(seed) for seed in range(self.agents)])
        # As small a spread as trained networks forecast: untrained ones would drive the imagined world to infinity.
        nets.max_logvar -= 6
        return nets


def our_plan(case: Case, nets: Nets, tables: Tensor | None = None) -> Job:
    """Our planning of one action: the noise drawn, every iteration, the plan."""
    where, planner, generator = case.task, case.preset.planner, torch.Generator().manual_seed(0)
    g = case.agents
    observation = torch.zeros(g, where.observation_size)
    start = ((where.low + where.high) / 2).expand(g, planner.horizon, -1)
    sizes = {"horizon": planner.horizon, "plans": planner.population_size, "particles": planner.particles}
    shape = noise_shape("DS", agents=g, outputs=where.target_size, **sizes)

    # Both sides' networks are made once for all plans between two trainings.
    ready = nets.ready()

    def objective(plans: Tensor, _: int) -> Tensor:
        return imagined_returns(
            ready,
            where.world,
            observation,
            plans,
            propagation="DS",
            particles=planner.particles,
            noise=torch.randn(shape, generator=generator),
            tables=tables,
        )

    def plan() -> Tensor:
        uniform = torch.rand((case.iterations, g, planner.population_size, *start.shape[1:]), generator=generator)
        given = {"start": start, "elites": start[:, None][:, :0], "noise": uniform}
        return case.search.search_batch(objective, where.low, where.high, **given).plan

    return plan


def planning(cases: list[Case], clock: Clock) -> Iterator[Match]:
    """An action by us and by the peer."""
    for case in cases:
        nets, where, planner = case.nets(), case.task, case.preset.planner
        eager = [Eager(nets.agent(agent), where.world, planner.particles) for agent in range(case.agents)]
        observation = torch.zeros(1, where.observation_size)

        def theirs(case=case, where=where, planner=planner, eager=eager, observation=observation) -> object:
            return [each.plan(observation, where.low, where.high, planner.horizon, case.search) for each in eager]

        times = side_by_side(our_plan(case, nets), theirs, repeats=case.repeats, clock=clock)
        yield Match(f"plan an action: {case.name}", PEER, *times, 3.0)


def calibrated(cases: list[Case], clock: Clock) -> Iterator[Match]:
    """An action with a map for every output, beside one without."""
    for case in cases:
        nets, d = case.nets(), case.task.target_size
        scale, shift = torch.linspace(0.7, 1.5, d).double(), torch.linspace(-0.2, 0.2, d).double()
        tables = stacked_tables([Affine(scale=scale, shift=shift)] * case.agents, d)
        plans = our_plan(case, nets, tables), our_plan(case, nets)
        times = side_by_side(*plans, repeats=case.repeats, clock=clock)
        yield Match(f"calibrated: {case.name}", "the same, uncalibrated", *times, 1 / 1.1)


def training(cases: list[Case], clock: Clock) -> Iterator[Match]:
    """Batches of 32 for every member."""
    for case in cases:
        nets, settings = case.nets(), EnsembleTraining(weight_decay=1e-4)
        generator, steps = torch.Generator().manual_seed(0), 20
        x = torch.randn(1, 32 * steps, nets.shape.inputs, generator=generator)
        y = torch.randn(1, 32 * steps, nets.shape.outputs, generator=generator)
        learner, batches = Learner(nets, settings), Batches.room(nets, settings, x.shape[1])
        batches.fill(x, y, members=nets.members, training=settings, generators=[generator])
        members = [Member(nets, index) for index in range(nets.members)]
        adam = torch.optim.Adam([part for member in members for part in member.parameters()], lr=settings.lr)
        rows = [torch.randint(x.shape[1], (nets.members, 32), generator=generator) for _ in range(steps)]

        def ours(learner=learner, batches=batches, steps=steps) -> None:
            batches.counter.zero_()
            for _ in range(steps):
                learner.step(batches)

        def theirs(members=members, adam=adam, settings=settings, rows=rows, x=x, y=y) -> None:
            for some in rows:
                eager_step(members, adam, settings, [(x[0, each], y[0, each]) for each in some])

        times = side_by_side(ours, theirs, repeats=5, clock=clock)
        yield Match(f"{steps} training steps: {case.preset.name}", PEER, *times, 1.0)


def on_cpu(*, quick: bool, threads: int) -> Iterator[Match]:
    """Everything that is timed on a CPU."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    small, half_cheetah, cartpole = (PRESETS[name] for name in ("cartpole-small", "halfcheetah", "cartpole"))
    middle = replace(small, name="cartpole-small, 3 × 200 wide", ensemble=replace(small.ensemble, hidden=(200,) * 3))
    cases = [Case(small, small.planner.iterations, 21), Case(middle, middle.planner.iterations, 11)]
    both_arms = Case(small, small.planner.iterations, 21, agents=2)
    published = [] if quick else [Case(half_cheetah, 1, 3), Case(cartpole, 1, 2)]
    yield from planning([cases[0], both_arms, *cases[1:], *published], clock)
    yield from calibrated(cases + published[:1], clock)
    yield from training(cases + published, clock)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: planning_gpu.py")
    words.add_argument("--propagations", default="DS,TS1,TSinf", help="cuda: which are timed")
    words.add_argument("--tasks", default=",".join(planning_gpu.FLEETS), help="cuda: on which tasks")
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--quick", action="store_true", help="only small presets; cuda: only what is fused")
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    given = words.parse_args()
    if given.device == "cuda":
        tasks, propagations = given.tasks.split(","), given.propagations.split(",")
        planning_gpu.run_and_record(given.out, tasks, propagations, quick=given.quick)
        return
    matches = list(on_cpu(quick=given.quick, threads=given.threads))
    settings = {"device": given.device, "threads": given.threads}
    rows = [
        results.Row("planning speed", one.job, one.peer, 0, one.metrics, settings=settings, origin=results.origin())
        for one in matches
    ]
    if given.out:
        results.append(given.out, rows)
    Console(width=150).print(beside(matches, f", {given.device}, {given.threads} thread{'s' * (given.threads > 1)}"))


if __name__ == "__main__":
    main()

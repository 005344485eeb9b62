"""The paper's "Extensions to Safety": is a 90 % that a planner relies on kept nine times in ten?

An agent learns a world's dynamics from a few random episodes, plans a path that its model holds to be safe
with 90 %, and carries it out without looking again. Arms differ in whose 90 % they believe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Normal

from calibrl.algorithm import CrossFitted, Forecaster
from calibrl.data import Data
from calibrl.distributions import draw
from calibrl.errors import CalibrlError
from calibrl.maps import fit_smooth
from calibrl.planning.chance import ChanceConstraint, Imagined
from calibrl.planning.search import CEM
from calibrl.runs.engine import Found, Kept, Plan
from calibrl.runs.rows import Row
from calibrl.runs.store import save_figures
from calibrl.runs.workers import Job
from calibrl.safety.problems import WORLDS, PointMass, World

LEVEL = 0.9
ARMS = ("over-confident", "calibrated", "calibrated on plans", "conformal", "truth")
"""Whose 90 %: the bare model's; R∘T's; R∘T's corrected on past plans, by a map or by ranks; the world's own."""


SEARCH = CEM(population_size=64, elites=8, iterations=3, keep_best=True)


@dataclass(frozen=True)
class Preset:
    """How much to run: random episodes to learn from (each as long as a plan), practice plans, plans to judge.

    A plan is carried out `repeats` times to see how often it breaks.
    """

    name: str
    seeds: int
    episodes: tuple[int, ...] = (9,)
    practice: int = 30
    plans: int = 10
    repeats: int = 200
    particles: int = 64
    search: CEM = SEARCH


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("quick", seeds=3),
        Preset("full", seeds=20, episodes=(6, 9, 12)),
        Preset(
            "tiny",
            seeds=2,
            practice=10,
            plans=2,
            repeats=30,
            particles=20,
            search=CEM(population_size=20, elites=4, iterations=2, keep_best=True),
        ),
    )
}


def chosen(name: str) -> Preset:
    """The preset of that name, or an error."""
    if name not in PRESETS:
        raise CalibrlError(f"preset {name!r} is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]


class RidgeDynamics:
    """Least squares on waves of the state and action, with the spread of its own training errors.

    x: (n, d + a) state and action; y: (n, d) the change of state. With nearly as many waves as rows it fits
    the noise too, so that its errors look smaller than they are: over-confidence in its most common form.
    """

    def __init__(self, inputs: int, *, waves: int, ridge: float, generator: torch.Generator) -> None:
        self.direction = torch.randn(inputs, waves, generator=generator) / 2
        self.phase = 2 * torch.pi * torch.rand(waves, generator=generator)
        self.ridge = ridge
        self.rows: Data | None = None
        self.weights = torch.zeros(0)
        self.spread = torch.ones(1)

    def update(self, data: Data) -> None:
        """Fit to all rows so far."""
        self.rows = data if self.rows is None else self.rows + data
        features = self._features(self.rows.x.float()).double()
        target = self.rows.y.double()
        system = features.T @ features + self.ridge * torch.eye(features.shape[1], dtype=torch.float64)
        weights = torch.linalg.solve(system, features.T @ target)
        self.spread = (target - features @ weights).std(0).clamp(min=1e-4).float()
        self.weights = weights.float()

    def __call__(self, x: Tensor) -> Normal:
        """The change of state: batch shape (n, d)."""
        mean = self._features(x) @ self.weights
        return Normal(mean, self.spread.expand_as(mean), validate_args=False)

    def _features(self, x: Tensor) -> Tensor:
        waves = torch.addmm(self.phase, x, self.direction).cos_()
        return torch.cat([waves, x, torch.ones(len(x), 1)], -1)


def imagine(
    world: World, start: Tensor, model: Forecaster | None, particles: int, seed: int
) -> Callable[[Tensor], Imagined]:
    """What a model (the world itself if None) expects of plans from `start` (d,), with the same luck each time."""

    def run(plans: Tensor) -> Imagined:
        generator = torch.Generator().manual_seed(seed)
        state = start.expand(particles, len(plans), -1)
        wide = plans.expand(particles, -1, -1, -1)
        if model is None:
            states = world.run(state, wide, generator)
        else:
            seen = []
            for action in wide.unbind(-2):
                x = torch.cat([state, action], -1)
                change = draw(model(x.flatten(0, 1)), generator)
                state = state + change.reshape(state.shape)
                seen.append(state)
            states = torch.stack(seen, -2)
        return Imagined(world.reward(states).mean((0, -1)), states)

    return run


def learnt_models(world: World, episodes: int, seed: int) -> tuple[Forecaster, Forecaster]:
    """The bare model and R∘T, of the same random episodes and with the same T."""
    generator = torch.Generator().manual_seed(seed)
    bounds = world.bounds
    start = world.start(episodes, generator)
    uniform = torch.rand(episodes, bounds.horizon, len(bounds.low), generator=generator)
    plans = bounds.low + uniform * (bounds.high - bounds.low)
    states = world.run(start, plans, generator)
    before = torch.cat([start[:, None], states[:, :-1]], 1)
    rows = Data(torch.cat([before, plans], -1).flatten(0, 1), (states - before).flatten(0, 1))

    def make() -> RidgeDynamics:
        waves = torch.Generator().manual_seed(seed)
        return RidgeDynamics(rows.x.shape[1], waves=len(rows) // 2, ridge=1e-3, generator=waves)

    crossed = CrossFitted(make, folds=8, generator=generator, block=bounds.horizon)
    crossed.update(rows)
    return crossed.forecaster, crossed


@dataclass(frozen=True)
class Agent:
    """One arm: the model it imagines with (the world itself if None) and the constraint it plans under."""

    world: World
    model: Forecaster | None
    constraint: ChanceConstraint
    preset: Preset

    def plan(self, start: Tensor, luck: int) -> tuple[Tensor, Tensor]:
        """The plan (h, a) from `start` (d,), and the states (particles, 1, h, d) it is expected to lead through.

        Those are drawn afresh: a search prefers plans whose draws were lucky.
        """
        dream = imagine(self.world, start, self.model, self.preset.particles, luck)
        generator = torch.Generator().manual_seed(luck)
        objective = self.constraint(dream)
        found = self.preset.search.search(objective, self.world.bounds, generator=generator).plan
        fresh = imagine(self.world, start, self.model, self.preset.particles, luck + 100_000)
        return found, fresh(found[None]).states

    def act(self, start: Tensor, path: Tensor, seed: int) -> Tensor:
        """What happens, `repeats` times over, when the plan is carried out: (repeats, h, d)."""
        many = self.preset.repeats
        generator = torch.Generator().manual_seed(seed)
        return self.world.run(start.expand(many, -1), path.expand(many, -1, -1), generator)


def agents(world: World, preset: Preset, episodes: int, seed: int) -> dict[str, Agent]:
    """All arms, of the same data and the same trained model."""
    bare, calibrated = learnt_models(world, episodes, seed)
    plain = ChanceConstraint(world.margin, level=LEVEL)
    learner = Agent(world, calibrated, plain, preset)
    # Practice: plans that R∘T holds to be safe, carried out once, to see how its 90 % does on plans it picked.
    generator = torch.Generator().manual_seed(seed + 1_000)
    scores = []
    for luck, start in enumerate(world.start(preset.practice, generator)):
        path, expected = learner.plan(start, luck)
        scores.append(plain.score(expected, world.run(start[None], path[None], generator)))
    mapping = fit_smooth(z=torch.cat(scores))
    return {
        "over-confident": replace(learner, model=bare),
        "calibrated": learner,
        "calibrated on plans": replace(learner, constraint=replace(plain, mapping=mapping)),
        "conformal": replace(learner, constraint=replace(plain, mapping=mapping, guarantee="conformal")),
        "truth": replace(learner, model=None),
    }


def seed_rows(world: World, preset: Preset, episodes: int, seed: int) -> Iterator[Row]:
    """All arms in one world for one seed: same data, same starts, same luck in imagination and in the world."""
    starts = world.start(preset.plans, torch.Generator().manual_seed(seed + 2_000))
    for arm, agent in agents(world, preset, episodes, seed).items():
        broken, promised, paid = [], [], []
        for luck, start in enumerate(starts):
            path, expected = agent.plan(start, 10_000 + luck)
            happened = agent.act(start, path, luck)
            broken.append((agent.constraint.margin(happened) <= 0).double().mean())
            promised.append(1 - agent.constraint.probability(expected).mean())
            paid.append(world.reward(happened).mean())
        metrics = {
            "violations": float(torch.stack(broken).mean()),
            "expected_violations": float(torch.stack(promised).mean()),
            "return": float(torch.stack(paid).mean()),
        }
        settings = {"level": LEVEL, "world": world.name, "episodes": episodes}
        yield Row("safety", f"{world.name}, {episodes} episodes", arm, seed, metrics, settings=settings)


def example_paths(preset: Preset, seed: int) -> dict[str, Tensor]:
    """Paths (repeats, h, 2) round the point mass's obstacle: one start, carried out many times, for three arms."""
    world = WORLDS["point mass"]
    found = agents(world, preset, preset.episodes[-1], seed)
    start = world.start(1, torch.Generator().manual_seed(seed + 3_000))[0]
    paths = {}
    for arm in ("over-confident", "calibrated", "truth"):
        path, _ = found[arm].plan(start, 0)
        happened = found[arm].act(start, path, 0)[..., :2]
        paths[arm] = torch.cat([start[:2].expand(len(happened), 1, 2), happened], 1)
    return paths


def plan(preset: Preset, *, seed: int = 0) -> Plan:
    """One job for each world, amount of experience and seed; its arms are paired. And one for the figure of paths."""
    triples = product(range(seed, seed + preset.seeds), WORLDS, preset.episodes)
    jobs = tuple(
        Job(f"{world}, {episodes} episodes, seed {number}", _seed_job, (world, preset, episodes, number))
        for number, world, episodes in triples
    )
    return Plan("safety", (*jobs, Job(EXAMPLE, _example_job, (preset, seed))), preset=preset.name, draw=_draw)


EXAMPLE = "example paths"


@torch.no_grad()
def _seed_job(world: str, preset: Preset, episodes: int, seed: int) -> Iterator[Row]:
    yield from seed_rows(WORLDS[world], preset, episodes, seed)


@torch.no_grad()
def _example_job(preset: Preset, seed: int) -> Iterator[Kept]:
    yield Kept({arm: path.numpy() for arm, path in example_paths(preset, seed).items()})


def _draw(out: Path, found: Found) -> None:
    from calibrl.safety import figures

    drawn = {
        "safety-rates": figures.violations(found.rows, nominal=1 - LEVEL),
        "safety-paths": figures.paths(found.kept(EXAMPLE), radius=PointMass.radius, goal=PointMass.goal),
    }
    save_figures(drawn, out, dpi=120)

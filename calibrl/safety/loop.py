"""What the jobs of the safety experiment do: learn a world, plan under a constraint, act, and count violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Normal

from calibrl.algorithm import CrossFitted, Forecaster, learn
from calibrl.data import Data
from calibrl.distributions import draw
from calibrl.maps import fit_smooth
from calibrl.planning.chance import ChanceConstraint, Imagined
from calibrl.runs.engine import Arrays
from calibrl.runs.rows import Row
from calibrl.safety.experiment import LEVEL, SafetySettings
from calibrl.safety.problems import WORLDS, World


@torch.no_grad()
def seed_job(world: str, settings: SafetySettings, episodes: int, seed: int) -> Iterator[Row]:
    """All arms in one world for one seed."""
    yield from seed_rows(WORLDS[world], settings, episodes, seed)


@torch.no_grad()
def example_job(settings: SafetySettings, seed: int) -> Iterator[Arrays]:
    """Paths for the figure."""
    yield Arrays({arm: path.numpy() for arm, path in example_paths(settings, seed).items()})


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
    """What a model (the world itself if None) expects of plans from `start` (d,), with the same draws each time."""

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
    inputs, steps = len(world.noise) + len(world.bounds.low), episodes * world.bounds.horizon

    def make() -> RidgeDynamics:
        return RidgeDynamics(inputs, waves=steps // 2, ridge=1e-3, generator=torch.Generator().manual_seed(seed))

    crossed = CrossFitted(make, folds=8, generator=generator, block=world.bounds.horizon)
    list(learn(partial(_explore, world, episodes, generator), crossed, rounds=1))
    return crossed.forecaster, crossed


def _explore(world: World, episodes: int, generator: torch.Generator, _: Forecaster) -> tuple[Data, None]:
    """Episodes of random actions, each as long as a plan: states and actions, and the change of state."""
    bounds = world.bounds
    start = world.start(episodes, generator)
    uniform = torch.rand(episodes, bounds.horizon, len(bounds.low), generator=generator)
    plans = bounds.low + uniform * (bounds.high - bounds.low)
    states = world.run(start, plans, generator)
    before = torch.cat([start[:, None], states[:, :-1]], 1)
    return Data(torch.cat([before, plans], -1).flatten(0, 1), (states - before).flatten(0, 1)), None


@dataclass(frozen=True)
class Agent:
    """One arm: the model it imagines with (the world itself if None) and the constraint it plans under."""

    world: World
    model: Forecaster | None
    constraint: ChanceConstraint
    settings: SafetySettings

    def plan(self, start: Tensor, stream: int) -> tuple[Tensor, Tensor]:
        """The plan (h, a) from `start` (d,), and the states (particles, 1, h, d) it is expected to lead through.

        Those are drawn afresh: a search prefers plans whose draws were kind.
        """
        dream = imagine(self.world, start, self.model, self.settings.particles, stream)
        generator = torch.Generator().manual_seed(stream)
        objective = self.constraint(dream)
        found = self.settings.search.search(objective, self.world.bounds, generator=generator).plan
        fresh = imagine(self.world, start, self.model, self.settings.particles, stream + 100_000)
        return found, fresh(found[None]).states

    def act(self, start: Tensor, path: Tensor, seed: int) -> Tensor:
        """What happens, `repeats` times over, when the plan is carried out: (repeats, h, d)."""
        many = self.settings.repeats
        generator = torch.Generator().manual_seed(seed)
        return self.world.run(start.expand(many, -1), path.expand(many, -1, -1), generator)


def agents(world: World, settings: SafetySettings, episodes: int, seed: int) -> dict[str, Agent]:
    """All arms, of the same data and the same trained model."""
    bare, calibrated = learnt_models(world, episodes, seed)
    plain = ChanceConstraint(world.margin, level=LEVEL)
    learner = Agent(world, calibrated, plain, settings)
    # Practice: plans that R∘T holds to be safe, carried out once, to see how its 90 % does on plans it picked.
    generator = torch.Generator().manual_seed(seed + 1_000)
    scores = []
    for stream, start in enumerate(world.start(settings.practice, generator)):
        path, expected = learner.plan(start, stream)
        scores.append(plain.score(expected, world.run(start[None], path[None], generator)))
    mapping = fit_smooth(z=torch.cat(scores))
    return {
        "over-confident": replace(learner, model=bare),
        "calibrated": learner,
        "calibrated on plans": replace(learner, constraint=replace(plain, mapping=mapping)),
        "conformal": replace(learner, constraint=replace(plain, mapping=mapping, guarantee="conformal")),
        "truth": replace(learner, model=None),
    }


def seed_rows(world: World, settings: SafetySettings, episodes: int, seed: int) -> Iterator[Row]:
    """All arms in one world for one seed: same data, same starts, same random draws in imagination and in the world."""
    starts = world.start(settings.plans, torch.Generator().manual_seed(seed + 2_000))
    for arm, agent in agents(world, settings, episodes, seed).items():
        broken, promised, paid = [], [], []
        for stream, start in enumerate(starts):
            path, expected = agent.plan(start, 10_000 + stream)
            happened = agent.act(start, path, stream)
            broken.append((agent.constraint.margin(happened) <= 0).double().mean())
            promised.append(1 - agent.constraint.probability(expected).mean())
            paid.append(world.reward(happened).mean())
        metrics = {
            "violations": float(torch.stack(broken).mean()),
            "expected_violations": float(torch.stack(promised).mean()),
            "return": float(torch.stack(paid).mean()),
        }
        about = {"level": LEVEL, "world": world.name, "episodes": episodes}
        yield Row("safety", f"{world.name}, {episodes} episodes", arm, seed, metrics, settings=about)


def example_paths(settings: SafetySettings, seed: int) -> dict[str, Tensor]:
    """Paths (repeats, h, 2) round the point mass's obstacle: one start, carried out many times, for three arms."""
    world = WORLDS["point mass"]
    found = agents(world, settings, settings.episodes[-1], seed)
    start = world.start(1, torch.Generator().manual_seed(seed + 3_000))[0]
    paths = {}
    for arm in ("over-confident", "calibrated", "truth"):
        path, _ = found[arm].plan(start, 0)
        happened = found[arm].act(start, path, 0)[..., :2]
        paths[arm] = torch.cat([start[:2].expand(len(happened), 1, 2), happened], 1)
    return paths

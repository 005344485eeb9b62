"""Two small worlds with something to stay clear of, and what the jobs do there: learn, plan under a constraint, act."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal

from calibrl.algorithm import CrossFitted, Forecaster, learn
from calibrl.data import Data, Remembered
from calibrl.distributions import draw
from calibrl.maps import fit_smooth
from calibrl.planning.chance import ChanceConstraint, Imagined
from calibrl.planning.search import Bounds
from calibrl.runs.engine import Arrays
from calibrl.runs.rows import Row

if TYPE_CHECKING:
    from calibrl.safety.experiment import SafetySettings

LEVEL = 0.9
"""The probability with which plans are to be safe."""
ARMS = ("over-confident", "calibrated", "calibrated on plans", "conformal", "truth")
"""Whose 90 %: the bare model's; R∘T's; R∘T's corrected on past plans, by a map or by ranks; the world's own."""
EXAMPLE = "example paths"
"""The job whose paths are drawn."""


class World(ABC):
    """States (…, d), actions (…, a), noise in every step, a reward to collect and a margin to keep above zero."""

    name: ClassVar[str]
    noise: ClassVar[tuple[float, ...]]
    """Standard deviation of each state's noise in a step, (d,)."""
    bounds: ClassVar[Bounds]

    @abstractmethod
    def start(self, count: int, generator: torch.Generator) -> Tensor:
        """Where episodes begin: (count, d)."""

    @abstractmethod
    def drift(self, state: Tensor, action: Tensor) -> Tensor:
        """The next state if there were no noise."""

    @abstractmethod
    def reward(self, state: Tensor) -> Tensor:
        """What it pays to be in each state: (…)."""

    @abstractmethod
    def margin(self, state: Tensor) -> Tensor:
        """How far each state is from being unsafe: (…), above 0 where safe."""

    def step(self, state: Tensor, action: Tensor, generator: torch.Generator) -> Tensor:
        """The next state, with noise: (…, d)."""
        spread = torch.tensor(self.noise, dtype=state.dtype)
        return self.drift(state, action) + spread * torch.randn(state.shape, generator=generator, dtype=state.dtype)

    def run(self, start: Tensor, plans: Tensor, generator: torch.Generator) -> Tensor:
        """States (…, h, d) that plans (…, h, a) lead through from `start` (…, d)."""
        state, seen = start, []
        for action in plans.unbind(-2):
            state = self.step(state, action, generator)
            seen.append(state)
        return torch.stack(seen, -2)


class PointMass(World):
    """A puck pushed across a plane, past a round obstacle, with a wind that blows towards it.

    State: position (x, y) and velocity; action: push. It starts left of the obstacle and is paid for being
    near a goal on the right, so the best way is close along the obstacle.
    """

    name = "point mass"
    noise = (0.0, 0.0, 0.06, 0.06)
    bounds = Bounds(torch.tensor([-2.0, -2.0]), torch.tensor([2.0, 2.0]), horizon=10)
    radius, seconds, goal = 0.4, 0.2, (1.2, 0.0)

    def start(self, count: int, generator: torch.Generator) -> Tensor:
        """Left of the obstacle, at rest."""
        place = torch.rand(count, 2, generator=generator) * torch.tensor([0.2, 0.4]) + torch.tensor([-1.2, -0.2])
        return torch.cat([place, torch.zeros(count, 2)], -1)

    def drift(self, state: Tensor, action: Tensor) -> Tensor:
        """Push, friction and wind; the position follows the new velocity."""
        place, speed = state[..., :2], state[..., 2:]
        distance = place.square().sum(-1, keepdim=True)
        wind = -1.5 * place * torch.exp(-2 * distance)
        speed = speed + self.seconds * (action - 0.4 * speed + wind)
        return torch.cat([place + self.seconds * speed, speed], -1)

    def step(self, state: Tensor, action: Tensor, generator: torch.Generator) -> Tensor:
        """The gust changes the velocity, and the position with it."""
        after = super().step(state, action, generator)
        return torch.cat([state[..., :2] + self.seconds * after[..., 2:], after[..., 2:]], -1)

    def reward(self, state: Tensor) -> Tensor:
        """Minus the distance to the goal."""
        return -(state[..., :2] - torch.tensor(self.goal)).square().sum(-1).sqrt()

    def margin(self, state: Tensor) -> Tensor:
        """Distance to the obstacle."""
        return state[..., :2].square().sum(-1).sqrt() - self.radius


class CartPole(World):
    """A cart with a pole, to be driven towards the end of its rail but not off it.

    State: x, ẋ, θ, θ̇ (θ = 0 is upright); action: force in units of 10 N. The equations are those of
    Gymnasium's CartPole with a continuous force, two Euler steps of 0.02 s for each action, and noise.
    """

    name = "cart-pole"
    noise = (0.0, 0.08, 0.0, 0.08)
    bounds = Bounds(torch.tensor([-1.0]), torch.tensor([1.0]), horizon=12)
    rail, seconds = 1.0, 0.02

    def start(self, count: int, generator: torch.Generator) -> Tensor:
        """On the rail's right half, nearly upright."""
        low, high = torch.tensor([0.3, -0.3, -0.1, -0.3]), torch.tensor([0.7, 0.6, 0.1, 0.3])
        return low + (high - low) * torch.rand(count, 4, generator=generator)

    def drift(self, state: Tensor, action: Tensor) -> Tensor:
        """Two Euler steps."""
        gravity, cart, pole, half = 9.8, 1.0, 0.1, 0.5
        force = 10 * action[..., 0]
        x, speed, angle, spin = state.unbind(-1)
        for _ in range(2):
            sin, cos = angle.sin(), angle.cos()
            push = (force + pole * half * spin.square() * sin) / (cart + pole)
            turn = (gravity * sin - cos * push) / (half * (4 / 3 - pole * cos.square() / (cart + pole)))
            pull = push - pole * half * turn * cos / (cart + pole)
            x, angle = x + self.seconds * speed, angle + self.seconds * spin
            speed, spin = speed + self.seconds * pull, spin + self.seconds * turn
        return torch.stack([x, speed, angle, spin], -1)

    def reward(self, state: Tensor) -> Tensor:
        """Nearness to the rail's end, less for a tilted pole."""
        return -(self.rail - state[..., 0]).abs() - 0.1 * state[..., 2].abs()

    def margin(self, state: Tensor) -> Tensor:
        """Distance to the nearer end of the rail."""
        return self.rail - state[..., 0].abs()


WORLDS: dict[str, World] = {world.name: world for world in (PointMass(), CartPole())}


class RidgeDynamics:
    """Least squares on waves of the state and action, with the spread of its own training errors.

    x: (n, d + a) state and action; y: (n, d) the change of state. With nearly as many waves as rows it fits
    the noise too, so that its errors look smaller than they are: over-confidence in its most common form.
    """

    def __init__(self, inputs: int, *, waves: int, ridge: float, generator: torch.Generator) -> None:
        self.direction = torch.randn(inputs, waves, generator=generator) / 2
        self.phase = 2 * torch.pi * torch.rand(waves, generator=generator)
        self.ridge = ridge
        self.rows = Remembered()
        self.weights = torch.zeros(0)
        self.spread = torch.ones(1)

    def update(self, data: Data) -> None:
        """Fit to all rows so far."""
        rows = self.rows.add(data)
        features, target = self._features(rows.x.float()).double(), rows.y.double()
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
    arms = (
        replace(learner, model=bare),
        learner,
        replace(learner, constraint=replace(plain, mapping=mapping)),
        replace(learner, constraint=replace(plain, mapping=mapping, guarantee="conformal")),
        replace(learner, model=None),
    )
    return dict(zip(ARMS, arms, strict=True))


@torch.no_grad()
def seed_job(name: str, settings: SafetySettings, episodes: int, seed: int) -> Iterator[Row]:
    """All arms in one world for one seed: same data, same starts, same random draws in imagination and in the world."""
    world = WORLDS[name]
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


@torch.no_grad()
def example_job(settings: SafetySettings, seed: int) -> Iterator[Arrays]:
    """Paths (repeats, h, 2) round the point mass's obstacle: one start, carried out many times, for three arms."""
    world = WORLDS["point mass"]
    found = agents(world, settings, settings.episodes[-1], seed)
    start = world.start(1, torch.Generator().manual_seed(seed + 3_000))[0]
    paths = {}
    for arm in ("over-confident", "calibrated", "truth"):
        path, _ = found[arm].plan(start, 0)
        happened = found[arm].act(start, path, 0)[..., :2]
        paths[arm] = torch.cat([start[:2].expand(len(happened), 1, 2), happened], 1).numpy()
    yield Arrays(paths)

"""Two small worlds with something to stay clear of, stepped in batches: a point mass and a cart-pole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from calibrl.planning.search import Bounds


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

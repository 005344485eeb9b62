"""How an environment's steps become rows for the networks, and what is learnt beside the dynamics.

Where nobody wrote the reward down, and where episodes may terminate, an imagined observation carries two numbers
more: the reward of the step that led to it, and whether the episode goes on. Both are forecast by the same
networks. The reward is calibrated like every other dimension. The end is an event: once an agent has seen one, its
networks learn the chance of it by least squares, and what they imagine ends where a draw of chance p and variance
p (1 - p) is above a half; a map of CDFs has nothing to say of it. An imagined episode that has ended earns nothing
from then on. Where nobody knows the units of such an environment, one unit of a number is how much it varies in a
random episode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrl.control.environment import begin_episode, make_step, name_of
from calibrl.control.problems import Task
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import World


@dataclass(frozen=True)
class View:
    """What an agent makes of its environment.

    world: on imagined observations. before: an observation (…, o) as imagination starts from it. after: (next
    observation (…, o), reward (…), terminated (…)) → the imagined observation it should have led to.
    inputs, outputs: of the networks, the action counted among the inputs. events: how many of the outputs, the last
    ones, are 0 or 1. device: where its functions compute. scales: the units of the other outputs, where these are not
    the environment's.
    """

    world: World
    before: Callable[[Tensor], Tensor]
    after: Callable[[Tensor, Tensor, Tensor], Tensor]
    observation_size: int
    inputs: int
    outputs: int
    events: int = 0
    device: torch.device | str = "cpu"
    scales: Scales | None = None

    @property
    def units(self) -> Tensor:
        """One unit of each output (outputs,), in those of the environment."""
        one = torch.ones(self.outputs, device=self.device)
        if self.scales is not None:
            one[: -self.events] = torch.cat([self.scales.target, self.scales.reward[None]])
        return one

    def rows(
        self, observation: Tensor, action: Tensor, next_observation: Tensor, reward: Tensor, terminated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the networks are given, x (…, inputs), and what they are to forecast, y (…, outputs)."""
        parts = (observation, action, next_observation, reward, terminated)
        observation, action, next_observation, reward, terminated = (part.to(self.device) for part in parts)
        before = self.before(observation)
        x = torch.cat([self.world.model_input(before), action], -1)
        return x, self.world.target(before, self.after(next_observation, reward, terminated))


def view_of(task: Task, *, device: torch.device | str = "cpu") -> View:
    """What an agent makes of a task: its reward and its end are learnt unless they are known."""
    if task.world.reward is not None and task.terminates is False:
        return View(
            world=task.world,
            before=lambda observation: observation,
            after=lambda following, _reward, _terminated: following,
            observation_size=task.observation_size,
            inputs=task.input_size,
            outputs=task.target_size,
        )
    environment = task.make()
    try:
        scales = probe(environment, task.world, steps=task.steps).to(device)
    finally:
        environment.close()
    return learnt(task, scales)


def learnt(task: Task, scales: Scales) -> View:
    """The view of an environment whose episodes may terminate, and whose reward is learnt unless the task has one."""
    world, known_reward = task.world, task.world.reward

    def bare(imagined: Tensor) -> Tensor:
        return imagined[..., :-2]

    def target(before: Tensor, after: Tensor) -> Tensor:
        change = world.target(bare(before), bare(after)) / scales.target
        return torch.cat([change, after[..., -2:-1] / scales.reward, 1 - after[..., -1:]], -1)

    def next_observation(before: Tensor, forecast: Tensor) -> Tensor:
        following = world.next_observation(bare(before), forecast[..., :-2] * scales.target)
        goes_on = before[..., -1:] * (forecast[..., -1:] < 0.5)
        return torch.cat([following, forecast[..., -2:-1] * scales.reward, goes_on], -1)

    def reward(before: Tensor, action: Tensor, after: Tensor) -> Tensor:
        paid = after[..., -2] if known_reward is None else known_reward(bare(before), action, bare(after))
        return paid * before[..., -1]

    def start(observation: Tensor) -> Tensor:
        return torch.cat(
            [observation, torch.zeros_like(observation[..., :1]), torch.ones_like(observation[..., :1])], -1
        )

    def after(following: Tensor, paid: Tensor, terminated: Tensor) -> Tensor:
        return torch.cat([following, paid[..., None], 1 - terminated[..., None].to(following.dtype)], -1)

    return View(
        world=World(
            model_input=lambda imagined: world.model_input(bare(imagined)),
            target=target,
            next_observation=next_observation,
            reward=reward,
        ),
        before=start,
        after=after,
        observation_size=task.observation_size + 2,
        inputs=task.input_size,
        outputs=task.target_size + 2,
        events=1,
        device=scales.target.device,
        scales=scales,
    )


ROUNDING = 2.0**-23
"""How far apart float32 numbers are, as a share of their size."""
JITTER = 1e-4
"""Smaller changes may be those of something at rest: that float32 does not see them is not worth a word."""


@dataclass(frozen=True, eq=False)
class Scales:
    """What one unit of a target is: of each dimension of the dynamics (d,), and of the reward ()."""

    target: Tensor
    reward: Tensor

    def to(self, device: torch.device | str) -> Scales:
        """The same on another device."""
        return Scales(self.target.to(device), self.reward.to(device))

    def state_dict(self) -> dict[str, Tensor]:
        """Both, by name."""
        return {"target": self.target, "reward": self.reward}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take on the units of rows that were learnt, in place: whoever computes with them sees the change."""
        self.target.copy_(state["target"])
        self.reward.copy_(state["reward"])


def probe(environment: Any, world: World, *, steps: int) -> Scales:
    """Scales from one random episode that no agent sees, the same for all agents."""
    generator, space = np.random.default_rng(0), environment.action_space
    observation = begin_episode(environment, seed=0)
    passed, rewards = [], []
    for step in range(1, steps + 1):
        answer = make_step(environment, generator.uniform(space.low, space.high), where=f"at step {step}")
        passed.append((observation, answer.observation))
        rewards.append(answer.reward)
        observation = begin_episode(environment) if answer.terminated or answer.truncated else answer.observation
    before, after = torch.from_numpy(np.array(passed)).unbind(1)
    change = world.target(before, after)
    lost = (world.target(before, after * (1 + ROUNDING)) - change).abs().amax(0)
    _refuse_rounding(environment, after, change, lost)
    paid = torch.tensor(rewards)
    return Scales(
        _unit(world.target(before.float(), after.float()), lost.float()), _unit(paid, ROUNDING * paid.abs().amax())
    )


def _unit(values: Tensor, lost: Tensor) -> Tensor:
    """One unit (…) of values (n, …): how they vary; their size where they do not; 1 where they are 0.

    lost: (…), what float32 cannot tell from 0.
    """
    spread, size = values.std(0, correction=0), values.square().mean(0).sqrt()
    return torch.where(spread > lost, spread, torch.where(size > lost, size, 1.0))


def _refuse_rounding(environment: Any, seen: Tensor, change: Tensor, lost: Tensor) -> None:
    """Refuse what changes (n, d) by less than float32 tells apart, lost: (d,), where it stands: seen (n, o)."""
    size = change.square().mean(0).sqrt()
    for number in ((size > JITTER) & (lost > size / 2)).nonzero()[:1, 0].tolist():
        raise CalibrlError(
            f"number {number} of what {name_of(environment)} observes changes by about {float(size[number]):.2g} a "
            f"step, and of numbers as far from 0 (up to {float(seen.abs().max()):.3g} is observed) float32, in which "
            f"networks compute, tells only {float(lost[number]):.2g} apart; subtract a constant from it inside"
        )

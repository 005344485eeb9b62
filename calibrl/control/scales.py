"""Units of what is learnt of an environment whose numbers nobody knows: how much each varies in a random episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrl.control.answers import begin_episode, make_step, name_of
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import World

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

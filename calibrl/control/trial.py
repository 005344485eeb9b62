"""One trial: every agent of a fleet acts in its own environment, side by side, for the same number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from calibrl.errors import CalibrlError

Environment = Any
"""A `gymnasium.Env` of Box observations and Box actions."""


class Actor(Protocol):
    """Whoever decides: a fleet, random at first."""

    def act(self, observation: Tensor) -> Tensor:
        """Actions (g, a) at observations (g, o)."""

    def begin(self, agents: Sequence[int]) -> None:
        """These agents' episodes begin: whatever they had planned is over."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What happened to g agents in T steps each.

    observation, next_observation: (g, T, o); action: (g, T, a); reward: (g, T); terminated: (g, T), where the step
    ended its episode for good; last: (g, T), where an episode ended for whatever reason, the trial's end included.
    """

    observation: Tensor
    action: Tensor
    next_observation: Tensor
    reward: Tensor
    terminated: Tensor
    last: Tensor

    @property
    def returns(self) -> list[float]:
        """The mean return of each agent's episodes; one that the trial cut short counts if it is the only one."""
        found = []
        for reward, terminated, last in zip(self.reward.double(), self.terminated, self.last, strict=True):
            ends = (last.nonzero()[:, 0] + 1).tolist()
            totals = [float(part.sum()) for part in reward.tensor_split(ends)[: len(ends)]]
            whole = totals if len(totals) == 1 or bool(terminated[-1]) else totals[:-1]
            found.append(sum(whole) / len(whole))
        return found

    def episodes(self, agent: int) -> list[slice]:
        """The steps of each episode of one agent."""
        ends = (self.last[agent].nonzero()[:, 0] + 1).tolist()
        return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def run_trial(
    actor: Actor,
    environments: Sequence[Environment],
    *,
    steps: int,
    seeds: Sequence[int],
    on_step: Callable[[int, Tensor], None] = lambda *_: None,
) -> Trial:
    """Act for `steps` in every environment. One that ends before starts again, so that all have equally many rows.

    seeds: (g,), what each environment's chance is seeded with. `on_step(step, rewards so far (g,))` hears of each.
    """
    observation = np.stack([env.reset(seed=seed)[0] for env, seed in zip(environments, seeds, strict=True)])
    agents = range(len(environments))
    actor.begin(list(agents))
    kept: list[tuple[np.ndarray, ...]] = []
    earned = torch.zeros(len(environments), dtype=torch.float64)
    for step in range(steps):
        chosen = actor.act(torch.as_tensor(observation, dtype=torch.float32))
        action = chosen.detach().cpu().numpy()
        answers = [env.step(one) for env, one in zip(environments, action, strict=True)]
        after = np.stack([answer[0] for answer in answers])
        reward, terminated, truncated = (np.array([answer[i] for answer in answers]) for i in (1, 2, 3))
        _check_finite(after, reward, action, step)
        last = terminated | truncated | (step == steps - 1)
        kept.append((observation, action, after, reward, terminated, last))
        earned += torch.from_numpy(reward.astype(np.float64))
        on_step(step + 1, earned)
        observation = after.copy()
        begun = [agent for agent in agents if last[agent] and step < steps - 1]
        for agent in begun:
            observation[agent] = environments[agent].reset()[0]
        if begun:
            actor.begin(begun)
    columns = [np.stack(column, 1) for column in zip(*kept, strict=True)]
    numbers = [torch.from_numpy(column).float() for column in columns[:4]]
    return Trial(*numbers, *(torch.from_numpy(column.astype(bool)) for column in columns[4:]))


def _check_finite(after: np.ndarray, reward: np.ndarray, action: np.ndarray, step: int) -> None:
    good = np.isfinite(after).all(1) & np.isfinite(reward)
    if not good.all():
        wrong = int((~good).nonzero()[0][0])
        raise CalibrlError(
            f"the environment answered {after[wrong].tolist()} with reward {reward[wrong]} at step {step + 1} to "
            f"action {action[wrong].tolist()}; its physics diverged: use a smaller time step or tighter action bounds"
        )

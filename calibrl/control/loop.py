"""One trial: every agent of a fleet acts in its own environment, side by side, for the same number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from calibrl.control.environment import Environment, begin_episode, make_step


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
    ended its episode for good; last: (g, T), where an episode ended for whatever reason, the trial's end included;
    cut: (g,), whose last episode would have gone on if the trial had.
    """

    observation: Tensor
    action: Tensor
    next_observation: Tensor
    reward: Tensor
    terminated: Tensor
    last: Tensor
    cut: Tensor

    @property
    def returns(self) -> list[float]:
        """The mean return of each agent's episodes.

        One that the trial cut counts if it is the only one, or has lasted as long as the others on average: to leave
        out one that was still going well would be the greater error, to count one that had just begun, too.
        """
        found = []
        for agent, reward in enumerate(self.reward.double()):
            *before, newest = self.episodes(agent)
            usual = newest.start / max(len(before), 1)
            counts = not bool(self.cut[agent]) or newest.stop - newest.start >= usual
            counted = [*before, newest] if counts or not before else before
            found.append(sum(float(reward[one].sum()) for one in counted) / len(counted))
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

    seeds: (g,), what each environment's chance is seeded with. `on_step(step, earned (g,))` hears of each step, and
    what the episodes under way have earned so far.
    """
    observation = np.stack([begin_episode(env, seed=seed) for env, seed in zip(environments, seeds, strict=True)])
    agents = range(len(environments))
    actor.begin(list(agents))
    kept: list[tuple[np.ndarray, ...]] = []
    earned = torch.zeros(len(environments), dtype=torch.float64)
    for step in range(steps):
        chosen = actor.act(torch.as_tensor(observation, dtype=torch.float32))
        action = chosen.detach().cpu().numpy()
        where = f"at step {step + 1}"
        answers = [make_step(env, one, where=where) for env, one in zip(environments, action, strict=True)]
        after, reward, terminated, truncated = map(np.array, zip(*answers, strict=True))
        ended = terminated | truncated
        last = ended | (step == steps - 1)
        kept.append((observation, action, after, reward, terminated, last))
        earned += torch.from_numpy(reward)
        on_step(step + 1, earned)
        observation = after.copy()
        begun = [agent for agent in agents if last[agent] and step < steps - 1]
        for agent in begun:
            observation[agent] = begin_episode(environments[agent])
        if begun:
            actor.begin(begun)
            earned[begun] = 0
    columns = [np.stack(column, 1) for column in zip(*kept, strict=True)]
    numbers = [torch.from_numpy(column).float() for column in columns[:4]]
    flags = (torch.from_numpy(column.astype(bool)) for column in (*columns[4:], ~ended))
    return Trial(*numbers, *flags)

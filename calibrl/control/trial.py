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

    seeds: (g,), what each environment's chance is seeded with. `on_step(step, rewards so far (g,))` hears of each.
    """
    observation = np.stack(
        [observed(env, env.reset(seed=seed)[0]) for env, seed in zip(environments, seeds, strict=True)]
    )
    agents = range(len(environments))
    actor.begin(list(agents))
    kept: list[tuple[np.ndarray, ...]] = []
    earned = torch.zeros(len(environments), dtype=torch.float64)
    for step in range(steps):
        chosen = actor.act(torch.as_tensor(observation, dtype=torch.float32))
        action = chosen.detach().cpu().numpy()
        # Copies: an environment may change what it is given.
        answers = [env.step(one.astype(env.action_space.dtype)) for env, one in zip(environments, action, strict=True)]
        after, reward = _checked(environments, action, answers, step + 1)
        terminated, truncated = (np.array([bool(answer[i]) for answer in answers]) for i in (2, 3))
        ended = terminated | truncated
        last = ended | (step == steps - 1)
        kept.append((observation, action, after, reward, terminated, last))
        earned += torch.from_numpy(reward.astype(np.float64))
        on_step(step + 1, earned)
        observation = after.copy()
        begun = [agent for agent in agents if last[agent] and step < steps - 1]
        for agent in begun:
            observation[agent] = observed(environments[agent], environments[agent].reset()[0])
        if begun:
            actor.begin(begun)
    columns = [np.stack(column, 1) for column in zip(*kept, strict=True)]
    numbers = [torch.from_numpy(column).float() for column in columns[:4]]
    flags = (torch.from_numpy(column.astype(bool)) for column in (*columns[4:], ~ended))
    return Trial(*numbers, *flags)


def _checked(
    environments: Sequence[Environment], action: np.ndarray, answers: Sequence[Any], step: int
) -> tuple[np.ndarray, np.ndarray]:
    """Next observations (g, o) and rewards (g,) of a step."""
    after, reward = [], []
    for environment, taken, answer in zip(environments, action, answers, strict=True):
        when = f"after action {taken.tolist()} at step {step}"
        after.append(observed(environment, answer[0], when=when))
        reward.append(earned_by(environment, answer[1], when=when))
    return np.stack(after), np.array(reward)


def observed(environment: Environment, observation: Any, *, when: str = "on reset()") -> np.ndarray:
    """What an environment answers as it promised: finite numbers of its space's shape, in float64.

    A copy: an environment may answer with the array that it goes on computing in.
    """
    found, wanted = np.array(observation), environment.observation_space.shape
    if found.shape != wanted:
        raise CalibrlError(
            f"environment {name_of(environment)} observed shape {found.shape} {when}; its observation_space says "
            f"{wanted}: correct one of the two"
        )
    found = found.astype(np.float64, copy=False)
    if not np.isfinite(found).all():
        raise CalibrlError(
            f"environment {name_of(environment)} observed {found.tolist()} {when}, which is not finite; where its "
            "physics diverge, use a smaller time step or tighter action bounds"
        )
    return found


def earned_by(environment: Environment, reward: Any, *, when: str) -> float:
    """A step's reward as one finite number; arrays that hold one will do."""
    found = np.asarray(reward)
    if found.size != 1 or not np.isfinite(found).all():
        raise CalibrlError(f"environment {name_of(environment)} paid {reward} {when}; a reward is one finite number")
    return float(found.reshape(()))


def name_of(environment: Environment) -> str:
    """What messages call an environment."""
    spec = environment.spec
    return repr(spec.id) if spec else type(environment.unwrapped).__name__

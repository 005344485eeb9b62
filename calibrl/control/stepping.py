"""Environments of several agents, stepped side by side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.control.tasks import Task
from calibrl.errors import CalibrlError


class Step(NamedTuple):
    """What g agents saw and earned: observation (g, o), reward (g,), terminated (g,): the episode is over."""

    observation: Tensor
    reward: Tensor
    terminated: Tensor


class Envs:
    """One environment for each agent, with a seed of its own.

    An agent's episodes depend on its seed and their number alone: not on who else is stepped, nor on what
    happened in earlier episodes. So agents with one seed start alike, and a run that is resumed goes on as it
    would have. An episode that is over stays where it is, earning 0, while the others go on. threads: MuJoCo
    steps in parallel from 2 on; results do not depend on it.
    """

    def __init__(self, task: Task, seeds: Sequence[int], *, threads: int = 1, **options: Any) -> None:
        if not seeds:
            raise CalibrlError("no seeds: give one for each agent, for instance [0]")
        self.task = task
        self.seeds = tuple(int(seed) for seed in seeds)
        self.envs = [task.make(**options) for _ in self.seeds]
        self.episodes = 0
        self.steps = 0
        self._seen = np.zeros((len(self.seeds), task.observation_size))
        self._over = np.zeros(len(self.seeds), np.bool_)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __len__(self) -> int:
        return len(self.envs)

    def reset(self) -> Tensor:
        """Start the next episode of every agent: observations (g, o)."""
        for i, (env, seed) in enumerate(zip(self.envs, self.seeds, strict=True)):
            self._seen[i], _ = env.reset(seed=episode_seed(seed, self.episodes))
        self.episodes += 1
        self.steps = 0
        self._over[:] = False
        self._refuse_divergence()
        return self._observations()

    def step(self, actions: Tensor | NDArray[Any]) -> Step:
        """Take actions (g, a), which are clipped to the task's bounds."""
        if self.episodes == 0:
            raise CalibrlError("no episode has started; call reset() first")
        given = torch.as_tensor(actions).detach().to("cpu", torch.float32)
        if given.shape != (len(self), self.task.action_size) or not given.isfinite().all():
            raise CalibrlError(
                f"actions of shape {tuple(given.shape)}{'' if given.isfinite().all() else ' that are not all finite'}; "
                f"expected finite numbers ({len(self)}, {self.task.action_size}), a row for each agent"
            )
        bounded = given.clamp(self.task.low.cpu(), self.task.high.cpu()).numpy()
        self.steps += 1
        reward = np.zeros(len(self))

        def one(i: int) -> None:
            if not self._over[i]:
                seen, pays, terminated, truncated, _ = self.envs[i].step(bounded[i])
                self._seen[i], reward[i] = seen, float(pays)
                self._over[i] = terminated or truncated

        if self._pool is None:
            for i in range(len(self)):
                one(i)
        else:
            list(self._pool.map(one, range(len(self))))
        self._refuse_divergence()
        return Step(self._observations(), torch.from_numpy(reward).float(), torch.from_numpy(self._over.copy()))

    def render(self) -> NDArray[np.uint8]:
        """A picture (height, width, 3) of the first agent's environment; make `Envs` with render_mode="rgb_array"."""
        from calibrl.control.video import frame

        return frame(self.envs[0])

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()
        if self._pool is not None:
            self._pool.shutdown()

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on. At an episode's ends that is its number; within it, the physics too."""
        state = {"env_id": self.task.env_id, "seeds": self.seeds, "episodes": self.episodes, "steps": self.steps}
        if self.steps == 0 or self.steps >= self.task.steps or self._over.all():
            return state
        if not all(hasattr(env.unwrapped, "get_state") for env in self.envs):
            raise CalibrlError(
                f"{self.task.env_id} cannot save a state within an episode, at step {self.steps}; save between episodes"
            )
        physics = [env.unwrapped.get_state() for env in self.envs]  # type: ignore[attr-defined]
        return {**state, "over": self._over.copy(), "physics": physics}

    def load_state_dict(self, state: dict[str, Any]) -> Tensor:
        """Go on from a state; returns the observations (g, o) there, unless the episode was over: then reset."""
        mine = (self.task.env_id, self.seeds)
        saved = (state["env_id"], tuple(state["seeds"]))
        if saved != mine:
            raise CalibrlError(f"the state is of {saved[0]} with seeds {saved[1]}, not of {mine[0]} with {mine[1]}")
        self.episodes, self.steps = int(state["episodes"]), int(state["steps"])
        if self.episodes > 0 and self.steps == 0:
            self.episodes -= 1
            return self.reset()
        if "physics" in state:
            self._over = np.array(state["over"], np.bool_)
            for i, (env, physics) in enumerate(zip(self.envs, state["physics"], strict=True)):
                # A wrapper refuses to step an environment that was never reset.
                env.reset(seed=0)
                self._seen[i] = env.unwrapped.set_state(physics)  # type: ignore[attr-defined]
        return self._observations()

    def _observations(self) -> Tensor:
        return torch.from_numpy(self._seen.astype(np.float32))

    def _refuse_divergence(self) -> None:
        bad = ~np.isfinite(self._seen).all(1)
        if bad.any():
            agent = int(np.flatnonzero(bad)[0])
            raise CalibrlError(
                f"{self.task.env_id} gave an observation that is not finite at step {self.steps} of episode "
                f"{self.episodes}, seed {self.seeds[agent]}: its physics diverged; check the environment's time step "
                "and the bounds of its actions"
            )


def episode_seed(seed: int, episode: int) -> int:
    """The seed of an agent's episode, counted from 0."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])

"""Tasks: an environment, and the World a planner needs to imagine steps in it.

The four MuJoCo tasks are those of Chua et al. (2018), with what their model sees and forecasts. Any other
Gymnasium environment with vectors of numbers for observations and actions becomes a task by `task_from_env`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrl.control import rewards
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import Reward, World

if TYPE_CHECKING:
    import gymnasium

DEFAULT_STEPS = 200
"""Steps of a trial in an environment that sets itself no limit."""


@dataclass(frozen=True, eq=False)
class Task:
    """An environment to learn and act in, for `steps` steps a trial.

    Sizes: o numbers in an observation, a in an action, d in what the model forecasts. low and high: bounds of
    the action (a,). solved: a return that counts as solved, for figures. terminates: whether episodes can end
    before `steps`; None until it is known.
    """

    name: str
    env_id: str
    world: World
    observation_size: int
    action_size: int
    target_size: int
    low: Tensor
    high: Tensor
    steps: int
    solved: float | None = None
    terminates: bool | None = None

    @property
    def input_size(self) -> int:
        """Numbers that the model sees: what it sees of an observation, and the action."""
        return int(self.world.model_input(torch.zeros(self.observation_size)).shape[-1]) + self.action_size

    def make(self, **options: Any) -> gymnasium.Env[Any, Any]:
        """A new environment; options as `gymnasium.make` takes them.

        It never truncates an episode by the number of steps it was registered with: count `steps` in your loop, or
        pass max_episode_steps=task.steps.
        """
        from calibrl.control.adapter import make_env

        return make_env(self.env_id, **{"max_episode_steps": -1, **options})

    def with_reward(self, reward: Reward) -> Task:
        """The same task, planned with another reward."""
        return replace(self, world=replace(self.world, reward=reward))


# What the models see and forecast.


def same(observation: Tensor) -> Tensor:
    """All of it, as it is."""
    return observation


def difference(observation: Tensor, following: Tensor) -> Tensor:
    """What changes."""
    return following - observation


def added(observation: Tensor, change: Tensor) -> Tensor:
    """The observation after a change."""
    return observation + change


def _cartpole_input(observation: Tensor) -> Tensor:
    """Sine and cosine instead of an angle that may wind up."""
    angle = observation[..., 1:2]
    return torch.cat([angle.sin(), angle.cos(), observation[..., :1], observation[..., 2:]], -1)


def _halfcheetah_input(observation: Tensor) -> Tensor:
    """Without the last step's speed, which says nothing that the velocities do not."""
    angle = observation[..., 2:3]
    return torch.cat([observation[..., 1:2], angle.sin(), angle.cos(), observation[..., 3:]], -1)


def _halfcheetah_target(observation: Tensor, following: Tensor) -> Tensor:
    """The step's speed itself, and what changes in the rest."""
    return torch.cat([following[..., :1], following[..., 1:] - observation[..., 1:]], -1)


def _halfcheetah_next(observation: Tensor, target: Tensor) -> Tensor:
    return torch.cat([target[..., :1], observation[..., 1:] + target[..., 1:]], -1)


# The MuJoCo tasks.


def _mujoco(
    name: str, *, world: World, sizes: tuple[int, int], limit: float, steps: int, solved: float | None = None
) -> Task:
    observation, action = sizes
    high = torch.full((action,), limit)
    return Task(
        name=name.lower(),
        env_id=f"calibrl/{name}-v0",
        world=world,
        observation_size=observation,
        action_size=action,
        target_size=observation,
        low=-high,
        high=high,
        steps=steps,
        solved=solved,
        terminates=False,
    )


def _cartpole() -> Task:
    world = World(_cartpole_input, difference, added, rewards.cartpole)
    return _mujoco("Cartpole", world=world, sizes=(4, 1), limit=3, steps=200, solved=181)


def _halfcheetah() -> Task:
    world = World(_halfcheetah_input, _halfcheetah_target, _halfcheetah_next, rewards.halfcheetah)
    return _mujoco("HalfCheetah", world=world, sizes=(18, 6), limit=1, steps=1000, solved=9600)


def _pusher() -> Task:
    world = World(same, difference, added, rewards.pusher)
    return _mujoco("Pusher", world=world, sizes=(20, 7), limit=2, steps=150, solved=-68)


def _reacher() -> Task:
    world = World(same, difference, added, rewards.reacher)
    return _mujoco("Reacher", world=world, sizes=(17, 7), limit=20, steps=150)


TASKS: dict[str, Callable[[], Task]] = {
    "cartpole": _cartpole,
    "halfcheetah": _halfcheetah,
    "pusher": _pusher,
    "reacher": _reacher,
}
"""Every MuJoCo task by name."""


@cache
def task(name: str) -> Task:
    """The MuJoCo task of this name."""
    if name not in TASKS:
        raise CalibrlError(
            f"task {name!r} is unknown; known: {', '.join(TASKS)}; any other Gymnasium environment is a task by its id"
        )
    return TASKS[name]()


def task_from_env(env_id: str, *, reward: Reward | None = None, steps: int | None = None) -> Task:
    """The task of any Gymnasium environment with vectors of numbers (`Box`) for observations and actions.

    The model sees the observation as it is and forecasts what changes. reward: of imagined steps, (observation
    (…, o), action (…, a), next observation (…, o)) → (…); without one it must be learnt. steps: of a trial; by
    default the environment's own limit, or 200. Environments of a module of your own are named
    "module:Name-v0", or just by their id once registered. The MuJoCo tasks come with their World by id too.
    """
    from calibrl.control.adapter import adapt, check_reward

    if not isinstance(env_id, str):
        raise CalibrlError(
            f"a task is made of an environment's id, not of {type(env_id).__name__}: agents make environments of their "
            "own; register yours with gymnasium.register and give its id"
        )
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise CalibrlError(f"{steps} steps are no trial; use a whole number, 1 or more")
    ours = next((known for known in map(task, TASKS) if known.env_id == env_id), None)
    found = ours or adapt(env_id)
    if reward is not None:
        check_reward(found, reward)
        found = found.with_reward(reward)
    return found if steps is None else replace(found, steps=steps)

"""Any Gymnasium environment as a task, and why some cannot be one."""

from __future__ import annotations

import difflib
import math
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrl.control.answers import begin_episode, make_step
from calibrl.control.tasks import DEFAULT_STEPS, TASKS, Task, added, difference, same
from calibrl.errors import CalibrlError, MissingExtra, first_line
from calibrl.planning.rollout import Reward, World

if TYPE_CHECKING:
    import gymnasium


WIDEST = 1e18
"""Bounds of actions whose distance has a square in float32."""


def make_env(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make`, with our tasks registered and errors that say what to do."""
    try:
        import gymnasium
        from gymnasium import error
    except ImportError:
        raise MissingExtra("gymnasium", "control") from None
    if env_id.startswith("calibrl/"):
        try:
            import calibrl.control.envs  # noqa: F401
        except AttributeError as problem:
            # MuJoCo loads the OpenGL that MUJOCO_GL names when it is imported, and fails so where there is none.
            named = os.environ.get("MUJOCO_GL")
            raise CalibrlError(
                f"MuJoCo cannot be imported with MUJOCO_GL={named!r}: {first_line(problem)}; unset MUJOCO_GL"
            ) from None
    try:
        with warnings.catch_warnings():
            # A newer version, or none named, is no reason to refuse the one that was asked for.
            warnings.filterwarnings("ignore", message=".*(is out of date|latest versioned environment).*")
            return gymnasium.make(env_id, disable_env_checker=True, **options)
    except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
        raise CalibrlError(_unknown(env_id, problem)) from None
    except error.DependencyNotInstalled as problem:
        raise CalibrlError(f"environment {env_id!r} needs another package: {first_line(problem)}") from None
    except ModuleNotFoundError as problem:
        module = problem.name or env_id.split(":")[0]
        raise CalibrlError(
            f"environment {env_id!r} needs the module {module}, named as in an import; install it, or put it where "
            "Python finds it"
        ) from None
    except Exception as problem:  # whatever the constructor of somebody's environment raises
        what = f"{type(problem).__name__}: {first_line(problem)}"
        raise CalibrlError(f"environment {env_id!r} cannot be made ({what}); see that it can be by itself") from problem


def adapt(env_id: str) -> Task:
    """The task of an environment whose reward is unknown: see `calibrl.control.tasks.task_from_env`."""
    env = make_env(env_id)
    try:
        size = _observations(env_id, env.observation_space)
        low, high = _actions(env_id, env.action_space)
        limit = env.spec.max_episode_steps if env.spec else None
    finally:
        env.close()
    return Task(
        name=env_id,
        env_id=env_id,
        world=World(same, difference, added, reward=None),
        observation_size=size,
        action_size=len(low),
        target_size=size,
        low=low,
        high=high,
        steps=limit or DEFAULT_STEPS,
    )


def check_reward(task: Task, reward: Reward) -> None:
    """Refuse a reward that does not give one number for each of a few made-up steps, finite for those really made."""
    generator = torch.Generator().manual_seed(0)
    seen, following = torch.randn(2, 3, 5, task.observation_size, generator=generator)
    action = task.low + (task.high - task.low) * torch.rand(3, 5, task.action_size, generator=generator)
    shapes = f"observations {tuple(seen.shape)}, actions {tuple(action.shape)} and next observations"
    cure = "it must take tensors with any leading dimensions and give one number a step, here (3, 5)"
    try:
        value = reward(seen, action, following)
    except Exception as problem:
        raise CalibrlError(f"the reward function failed on {shapes}: {first_line(problem)}; {cure}") from problem
    if not isinstance(value, torch.Tensor) or value.shape != (3, 5):
        got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise CalibrlError(f"the reward function gave {got} for {shapes}; {cure}")
    _check_values(task, reward)


def _check_values(task: Task, reward: Reward, steps: int = 20) -> None:
    """Refuse a reward that is not finite for steps that the environment really makes."""
    environment, generator = task.make(), torch.Generator().manual_seed(0)
    try:
        seen = begin_episode(environment, seed=0)
        for step in range(1, steps + 1):
            share = torch.rand(task.action_size, generator=generator)
            action = (task.low + (task.high - task.low) * share).clamp(task.low, task.high)
            answer = make_step(environment, action.numpy(), where=f"at step {step}")
            before, after = (torch.as_tensor(part, dtype=torch.float32) for part in (seen, answer.observation))
            value = float(reward(before, action, after))
            if not math.isfinite(value):
                raise CalibrlError(
                    f"the reward function gave {value} for the step from {before.tolist()} to {after.tolist()}, which "
                    f"{task.name} made; it must be finite: see what a logarithm, root or quotient is taken of"
                )
            seen = begin_episode(environment) if answer.terminated or answer.truncated else answer.observation
    finally:
        environment.close()


def _observations(env_id: str, space: Any) -> int:
    """How many numbers an observation has."""
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise CalibrlError(
            f"environment {env_id!r} observes {_kind(space)}; a model of continuous change needs a vector of numbers "
            "(Box): flatten it with gymnasium.wrappers.FlattenObservation and register that"
        )
    if len(space.shape) != 1:
        what = "images" if space.dtype == np.uint8 or len(space.shape) == 3 else "arrays"
        raise CalibrlError(
            f"environment {env_id!r} observes {what} of shape {space.shape}; a vector (o,) of numbers is needed: use a "
            "version of the task that observes its state"
        )
    return int(space.shape[0])


def _actions(env_id: str, space: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds of an action."""
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise CalibrlError(
            f"environment {env_id!r} takes {_kind(space)} as actions; planning over continuous actions needs a vector "
            "of numbers (Box): turn numbers into choices with gymnasium.wrappers.TransformAction and register that"
        )
    if len(space.shape) != 1:
        raise CalibrlError(f"environment {env_id!r} takes actions of shape {space.shape}; a vector (a,) is needed")
    if not np.issubdtype(space.dtype, np.floating):
        raise CalibrlError(
            f"environment {env_id!r} takes whole numbers as actions ({space.dtype}); planning is over continuous ones: "
            "give its action space a float type, round inside, and register that"
        )
    bounds: NDArray[Any] = np.stack([space.low, space.high])
    # Planners take the variance between the bounds, in float32.
    if not bool((np.abs(bounds.astype(np.float64)) < WIDEST).all()):
        raise CalibrlError(
            f"environment {env_id!r} sets no bounds on its actions ({space.low.min()} to {space.high.max()}); a "
            "planner searches between bounds: give its action space finite ones and register that"
        )
    low, high = torch.from_numpy(_inward(bounds))
    if not bool((low < high).all()):
        number = int((low >= high).nonzero()[0])
        raise CalibrlError(
            f"environment {env_id!r} leaves action number {number} no choice ({low[number]:g} to {high[number]:g}); "
            "leave it out of the action space, set it inside, and register that"
        )
    return low, high


def _inward(bounds: NDArray[Any]) -> NDArray[np.float32]:
    """Bounds (2, a) in float32, none beyond what they were: 0.1 is less than the float32 next to it."""
    single = bounds.astype(np.float32)
    inside = np.array([[np.inf], [-np.inf]], np.float32)
    beyond = np.stack([single[0] < bounds[0], single[1] > bounds[1]])
    return np.where(beyond, np.nextafter(single, inside), single)


def _kind(space: Any) -> str:
    kinds = {"Discrete": "one of {n} choices", "MultiDiscrete": "several choices", "MultiBinary": "switches"}
    kinds |= {"Dict": "several things by name", "Tuple": "several things"}
    name = type(space).__name__
    return f"{kinds.get(name, 'something else').format(n=getattr(space, 'n', '?'))} ({name})"


def _unknown(env_id: str, problem: Exception) -> str:
    """An unknown id, with those that look like it."""
    import gymnasium

    import calibrl.control.envs  # noqa: F401

    known = {name.lower(): name for name in gymnasium.registry}
    near = difflib.get_close_matches(env_id.lower(), known, n=4, cutoff=0.5)
    if not near:
        near = [name for name in known if env_id.lower() in name][:4]
    if env_id.lower() in TASKS:
        near = [f"calibrl/{env_id}-v0".lower(), *near]
    names = ", ".join(known.get(name, name) for name in dict.fromkeys(near))
    hint = f"did you mean {names}" if near else first_line(problem)
    return f"environment {env_id!r} is unknown; {hint}? One of your own is named module:Name-v0"

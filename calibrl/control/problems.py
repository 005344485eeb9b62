"""Tasks: an environment, and the World a planner needs to imagine steps in it.

The MuJoCo tasks are in `envs.py`, and a line of each in `calibrl.control.settings.TASKS`. Any other Gymnasium
environment with vectors of numbers for observations and actions becomes a task by `task_from_env`, or an error says why
it cannot. Actions that are choices (`Discrete`, `MultiDiscrete`, `MultiBinary`) become numbers for models and planners.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import math
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.control import register
from calibrl.control.settings import TASKS, ControlSettings
from calibrl.control.trials import random_steps
from calibrl.errors import CalibrlError, MissingExtra, first_line
from calibrl.planning.rollout import Reward, World

if TYPE_CHECKING:
    import gymnasium


WIDEST = 1e18
"""Bounds of actions whose distance has a square in float32."""
DEFAULT_STEPS = 200
"""Steps of a trial in an environment that sets itself no limit."""
FLATTEN = "gymnasium.wrappers.FlattenObservation around it"
"""What makes a vector of observations of another shape."""


def our_module() -> ModuleType:
    """`calibrl.control.envs`, the MuJoCo tasks.

    Only where it is asked for: other environments need no MuJoCo.
    """
    try:
        return importlib.import_module("calibrl.control.envs")
    except AttributeError as problem:
        # MuJoCo loads the OpenGL that MUJOCO_GL names when it is imported, and fails so where there is none.
        named = os.environ.get("MUJOCO_GL")
        raise CalibrlError(
            f"MuJoCo cannot be imported with MUJOCO_GL={named!r}: {first_line(problem)}; unset MUJOCO_GL"
        ) from None


def make_env(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make`, with our tasks registered and errors that say what to do."""
    try:
        import gymnasium
        from gymnasium import error
    except ImportError:
        raise MissingExtra("gymnasium", "control") from None
    if env_id.startswith("calibrl/"):
        our_module()
        register()
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


def _unknown(env_id: str, problem: Exception) -> str:
    """An unknown id, with those that look like it."""
    import gymnasium

    known = {name.lower(): name for name in gymnasium.registry}
    near = difflib.get_close_matches(env_id.lower(), known, n=4, cutoff=0.5)
    if not near:
        near = [name for name in known if env_id.lower() in name][:4]
    if (ours := f"calibrl/{env_id}-v0".lower()) in known:
        near = [ours, *near]
    names = ", ".join(known.get(name, name) for name in dict.fromkeys(near))
    hint = f"did you mean {names}" if near else first_line(problem)
    return f"environment {env_id!r} is unknown; {hint}? One of your own is named module:Name-v0"


def look_here(name: str | None) -> None:
    """Have Python look in the current folder, too, for a module that was asked for as "module:name".

    Last, and for nothing else: a file there that is called like an installed package must not be run instead of it.
    """
    here = str(Path.cwd())
    if name is not None and ":" in name and here not in sys.path:
        sys.path.append(here)


@dataclass(frozen=True, eq=False)
class Task:
    """An environment to learn and act in, for `steps` steps a trial.

    Parameters
    ----------
    name, env_id : str
        What rows call it, and its id in Gymnasium.
    world : World
        What the model sees and forecasts, and the reward of imagined steps.
    observation_size, action_size, target_size : int
        Numbers in an observation (o), in an action (a), and in what the model forecasts (d).
    low, high : Tensor (a,)
        Bounds of the action.
    steps : int
        Of a trial.
    solved, solved_by : float, str
        A return that is known to be reached, and by whom, for figures.
    terminates : bool, optional
        Whether episodes can end before `steps`; None until it is known.
    measure : function, optional
        What else rows say of a trial: observations (T, o), actions (T, a), next observations (T, o) → numbers by name.
    terminated : function, optional
        Where episodes end is known: next observations (…, o) → (…), True where one does. Without it that is learnt.
    choice : Choices, optional
        Where actions are choices.
    factory : function, optional
        Makes an environment, in the place of `env_id`.

    Examples
    --------
    >>> from calibrl.control import task
    >>> cartpole = task("cartpole")
    >>> cartpole.observation_size, cartpole.action_size, cartpole.steps
    (4, 1, 200)
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
    solved_by: str = ""
    terminates: bool | None = None
    measure: Callable[[Tensor, Tensor, Tensor], dict[str, float]] | None = None
    terminated: Callable[[Tensor], Tensor] | None = None
    choice: Choices | None = None
    factory: Callable[..., Any] | None = None

    @property
    def choices(self) -> tuple[int, ...]:
        """How many things of each kind there are to choose; none where actions are numbers."""
        return () if self.choice is None else self.choice.sizes

    @property
    def input_size(self) -> int:
        """Numbers that the model sees: what it sees of an observation, and the action."""
        return int(self.world.model_input(torch.zeros(self.observation_size)).shape[-1]) + self.action_size

    def make(self, **options: Any) -> gymnasium.Env[Any, Any]:
        """Make a new environment.

        It never truncates an episode by the number of steps it was registered with: count `steps` in your loop, or
        pass max_episode_steps=task.steps.

        Parameters
        ----------
        **options
            As `gymnasium.make` takes them.

        Returns
        -------
        gymnasium.Env
        """
        if self.factory is None:
            env = make_env(self.env_id, **{"max_episode_steps": -1, **options})
        else:
            env = made_by(self.factory, self.name, **options)
        return env if self.choice is None else cast("gymnasium.Env[Any, Any]", ChoiceEnvironment(env, self.choice))

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


@cache
def task(name: str) -> Task:
    """The MuJoCo task of this name.

    Parameters
    ----------
    name : str
        One of `TASKS`: cartpole, halfcheetah, pusher, reacher.

    Returns
    -------
    Task
    """
    if name not in TASKS:
        raise CalibrlError(
            f"task {name!r} is unknown; known: {', '.join(TASKS)}; any other Gymnasium environment is a task by its id"
        )
    found: Task = our_module().MUJOCO_TASKS[name]
    return found


def task_from_env(
    env: str | gymnasium.Env[Any, Any] | Callable[..., gymnasium.Env[Any, Any]],
    *,
    reward: Reward | None = None,
    terminated: Callable[[Tensor], Tensor] | None = None,
    steps: int | None = None,
    **options: Any,
) -> Task:
    """The task of any Gymnasium environment that observes a vector of numbers (`Box`).

    The model sees the observation as it is and forecasts what changes. Actions are a vector of numbers, or choices
    (`Discrete`, `MultiDiscrete`, `MultiBinary`).

    Parameters
    ----------
    env : str, gymnasium.Env or function
        An id in Gymnasium (of a module of your own "module:Name-v0"); an environment, which is copied, never used; or
        what makes a new one. The MuJoCo tasks come with their World by id too.
    reward : function, optional
        Of imagined steps: observation (…, o), action (…, a), next observation (…, o) → (…). Without one it is learnt.
    terminated : function, optional
        Where episodes end: next observation (…, o) → (…), True where one does. Without one it is learnt.
    steps : int, optional
        Of a trial. Default: the environment's own limit, or 200.
    **options
        As `gymnasium.make`, or the function, takes them.

    Returns
    -------
    Task
    """
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise CalibrlError(f"{steps} steps are no trial; use a whole number, 1 or more")
    if isinstance(env, str) and ":calibrl/" in env:
        env = env.rpartition(":")[2]  # ours are registered already
    name = env if isinstance(env, str) else _name(env)
    # Only where one may be meant: other environments need no MuJoCo.
    ours = map(task, TASKS if name.startswith("calibrl/") and isinstance(env, str) and not options else ())
    found = next((known for known in ours if known.env_id == env), None) or adapt(name, _factory(env, options))
    if terminated is not None:
        _check_end(found, terminated)
        found = replace(found, terminated=terminated)
    if reward is not None:
        check_reward(found, reward)
        found = found.with_reward(reward)
    # A known return is of whole episodes.
    return found if steps in (None, found.steps) else replace(found, steps=steps, solved=None)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(spec.id if spec else getattr(env, "__name__", type(getattr(env, "unwrapped", env)).__name__))


def _factory(env: Any, options: dict[str, Any]) -> Callable[..., Any] | None:
    """What makes environments like the one given; None for an id without options."""
    if isinstance(env, str):
        return partial(make_env, env, **options) if options else None
    if isinstance(env, type) or not hasattr(env, "step"):
        if not callable(env):
            raise CalibrlError(f"{env!r} is no environment; give an id, a gymnasium.Env, or a function that makes one")
        return partial(env, **options) if options else cast("Callable[..., Any]", env)
    if hasattr(env, "single_action_space"):
        raise CalibrlError(
            f"{type(env).__name__} is many environments in one; give what makes a single one, and learn(environments="
            f"{getattr(env, 'num_envs', 4)})"
        )
    if options:
        raise CalibrlError(f"{_name(env)} is made already, options {list(options)} come too late; give what makes it")
    return partial(_copied, env)


def _copied(env: Any, **options: Any) -> Any:
    """A copy of somebody's environment, by which theirs stays as it is."""
    import gymnasium

    try:
        # A picture needs an environment made for it; and some hold what cannot be copied, such as a window.
        if not options:
            return copy.deepcopy(env)
    except Exception as problem:
        if env.spec is None:
            why = f"{type(problem).__name__}: {first_line(problem)}"
            raise CalibrlError(f"{_name(env)} cannot be copied ({why}); give a function that makes one") from None
    if env.spec is None:
        raise CalibrlError(f"{_name(env)} is there already, and cannot be made with {options}; give what makes it")
    return gymnasium.make(env.spec, **options)


def made_by(factory: Callable[..., Any], name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """What a factory makes, or an error that says what is wrong with it."""
    try:
        found = factory(**options)
    except CalibrlError:
        raise
    except Exception as problem:  # whatever somebody's code raises
        what = f"{type(problem).__name__}: {first_line(problem)}"
        raise CalibrlError(f"environment {name!r} cannot be made ({what}); see that it can be by itself") from problem
    if not hasattr(found, "step") or not hasattr(found, "action_space"):
        raise CalibrlError(f"{name} made {type(found).__name__}, which is no environment; return a gymnasium.Env")
    return cast("gymnasium.Env[Any, Any]", found)


def adapt(name: str, factory: Callable[..., Any] | None = None) -> Task:
    """The task of an environment whose reward is unknown: see `calibrl.control.problems.task_from_env`."""
    with closing(make_env(name) if factory is None else made_by(factory, name)) as env:
        size = _observations(name, env.observation_space)
        choice = choices_of(name, env.action_space)
        low, high = _actions(name, env.action_space) if choice is None else _unit_bounds(choice)
        limit = env.spec.max_episode_steps if env.spec else None
    return Task(
        name=name,
        env_id=name,
        world=World(same, difference, added, reward=None),
        observation_size=size,
        action_size=len(low),
        target_size=size,
        low=low,
        high=high,
        steps=limit or DEFAULT_STEPS,
        choice=choice,
        factory=factory,
    )


def _unit_bounds(choice: Choices) -> tuple[Tensor, Tensor]:
    one = torch.ones(sum(choice.sizes))
    return 0 * one, one


def _check_end(task: Task, terminated: Callable[[Tensor], Tensor]) -> None:
    """Refuse an end that is not said of each step, or otherwise than the environment says it."""
    with closing(task.make()) as environment:
        for _, _, answer in random_steps(environment, 50):
            said = terminated(torch.as_tensor(answer.observation, dtype=torch.float32)[None].expand(3, 5, -1))
            if not isinstance(said, Tensor) or said.shape != (3, 5):
                raise CalibrlError("terminated() must take observations (…, o) and give one truth a step, here (3, 5)")
            if bool(said[0, 0]) != answer.terminated:
                seen = np.round(answer.observation, 3).tolist()
                raise CalibrlError(
                    f"terminated() says {bool(said[0, 0])} of the observation {seen}, and {task.name} "
                    f"{answer.terminated}; make the two agree"
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
    with closing(task.make()) as environment:
        for seen, action, answer in random_steps(environment, steps):
            parts = (torch.as_tensor(part, dtype=torch.float32) for part in (seen, action, answer.observation))
            before, done, after = parts
            value = float(reward(before, done, after))
            if not math.isfinite(value):
                raise CalibrlError(
                    f"the reward function gave {value} for the step from {before.tolist()} to {after.tolist()}, which "
                    f"{task.name} made; it must be finite: see what a logarithm, root or quotient is taken of"
                )


def _observations(env_id: str, space: Any) -> int:
    """How many numbers an observation has."""
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise CalibrlError(
            f"environment {env_id!r} observes {_kind(space)}; a model of continuous change needs a vector of numbers "
            f"(Box): use {FLATTEN} and give that"
        )
    if len(space.shape) != 1:
        picture = space.dtype == np.uint8 or len(space.shape) == 3
        what, use = ("images", "a version of the task that observes its state") if picture else ("arrays", FLATTEN)
        raise CalibrlError(
            f"environment {env_id!r} observes {what} of shape {space.shape}; a vector (o,) is needed: use {use}"
        )
    return int(space.shape[0])


def _actions(env_id: str, space: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds of an action."""
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise CalibrlError(
            f"environment {env_id!r} takes {_kind(space)} as actions; planning needs a vector of numbers (Box) or "
            "choices (Discrete, MultiDiscrete): put them into one with gymnasium.wrappers.TransformAction"
        )
    if len(space.shape) != 1:
        raise CalibrlError(f"environment {env_id!r} takes actions of shape {space.shape}; a vector (a,) is needed")
    if not np.issubdtype(space.dtype, np.floating):
        raise CalibrlError(
            f"environment {env_id!r} takes whole numbers as actions ({space.dtype}); planning is over continuous ones: "
            "give its action space a float type and round inside"
        )
    bounds: NDArray[Any] = np.stack([space.low, space.high])
    # Planners take the variance between the bounds, in float32.
    if not bool((np.abs(bounds.astype(np.float64)) < WIDEST).all()):
        raise CalibrlError(
            f"environment {env_id!r} sets no bounds on its actions ({space.low.min()} to {space.high.max()}); a "
            "planner searches between bounds: give its action space finite ones"
        )
    low, high = torch.from_numpy(_inward(bounds))
    if not bool((low < high).all()):
        number = int((low >= high).nonzero()[0])
        raise CalibrlError(
            f"environment {env_id!r} leaves action number {number} no choice ({low[number]:g} to {high[number]:g}); "
            "leave it out of the action space and set it inside"
        )
    return low, high


def _inward(bounds: NDArray[Any]) -> NDArray[np.float32]:
    """Bounds (2, a) in float32, none beyond what they were: 0.1 is less than the float32 next to it."""
    single = bounds.astype(np.float32)
    inside = np.array([[np.inf], [-np.inf]], np.float32)
    beyond = np.stack([single[0] < bounds[0], single[1] > bounds[1]])
    return np.where(beyond, np.nextafter(single, inside), single)


def _kind(space: Any) -> str:
    name = type(space).__name__
    kinds = {
        "Discrete": f"one of {getattr(space, 'n', '?')} choices",
        "MultiDiscrete": "several choices",
        "MultiBinary": "switches",
        "Dict": "several things by name",
        "Tuple": "several things",
    }
    return f"{kinds.get(name, 'something else')} ({name})"


def task_of(settings: ControlSettings) -> Task:
    """The task that settings name, a MuJoCo task or any Gymnasium id, with their steps a trial and their reward."""
    look_here(settings.reward)
    look_here(settings.task)
    reward = None if settings.reward is None else reward_named(settings.reward)
    env_id = task(settings.task).env_id if settings.task in TASKS else settings.task
    return task_from_env(env_id, reward=reward, steps=settings.steps)


def reward_named(name: str) -> Reward:
    """The function that "module:function" names, found where Python looks and in the current folder."""
    module, colon, function = name.partition(":")
    if not colon:
        raise CalibrlError(f"reward {name!r} is not module:function; write for instance my_rewards:upright")
    try:
        found = getattr(importlib.import_module(module), function)
    except ImportError as problem:
        raise CalibrlError(f"reward {name!r}: {problem}; give a module that Python finds from here") from None
    except AttributeError:
        raise CalibrlError(f"reward {name!r}: module {module} has no function {function}; check its name") from None
    return cast(Reward, found)


@dataclass(frozen=True)
class Choices:
    """Actions that are choices: of each of k kinds, one thing of n₁, of n₂ and so on.

    Models and planners take 1 for each thing chosen and 0 for the rest, (a,), a = n₁ + n₂ + ….

    Parameters
    ----------
    sizes, first : tuple of int
        n₁, n₂, …, and the number of each kind's first thing.
    single : bool
        Whether the environment takes one number, not an array of k.
    """

    sizes: tuple[int, ...]
    first: tuple[int, ...]
    single: bool

    def encode(self, action: Any) -> NDArray[np.float32]:
        """What an environment takes, (…, k) or for one kind (…), as numbers for a model: (…, a)."""
        given = np.asarray(action)[..., None] if self.single else np.asarray(action)
        places = given - np.array(self.first)
        inside = given.dtype.kind in "iub" and given.shape[-1:] == (len(self.sizes),)
        if not inside or bool(((places < 0) | (places >= np.array(self.sizes))).any()):
            raise CalibrlError(f"action {np.asarray(action).tolist()} is none of the choices, {self.sizes} by kind")
        parts = [np.eye(n, dtype=np.float32)[places[..., k]] for k, n in enumerate(self.sizes)]
        return np.concatenate(parts, -1)

    def decode(self, numbers: NDArray[Any]) -> Any:
        """What the environment takes, of numbers (a,): the largest of each kind is chosen."""
        parts = np.split(numbers, np.cumsum(self.sizes)[:-1])
        found = np.array([int(part.argmax()) + first for part, first in zip(parts, self.first, strict=True)])
        return found[0] if self.single else found


class ChoiceEnvironment:
    """An environment of choices that takes them as numbers: see `Choices`. What its owner gives it, it takes, too."""

    def __init__(self, env: Any, choices: Choices) -> None:
        from gymnasium.spaces import Box

        self.env, self.choices = env, choices
        self.action_space = Box(0.0, 1.0, (sum(choices.sizes),), np.float32)

    def __getattr__(self, name: str) -> Any:
        if name in ("env", "__deepcopy__", "__getstate__", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        """Gymnasium's step."""
        numbers = np.shape(action) == self.action_space.shape and np.asarray(action).dtype.kind == "f"
        return self.env.step(self.choices.decode(np.asarray(action)) if numbers else action)


def choices_of(name: str, space: Any) -> Choices | None:
    """What there is to choose; None where actions are numbers."""
    from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

    if isinstance(space, Discrete):
        found = Choices((int(space.n),), (int(space.start),), single=True)
    elif isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        found = Choices(tuple(map(int, space.nvec)), tuple(map(int, space.start)), single=False)
    elif isinstance(space, MultiBinary) and len(space.shape) == 1:
        found = Choices((2,) * space.shape[0], (0,) * space.shape[0], single=False)
    else:
        return None
    if min(found.sizes) < 2:
        raise CalibrlError(
            f"environment {name!r} leaves one action no choice ({space}); leave it out, and set it inside"
        )
    return found

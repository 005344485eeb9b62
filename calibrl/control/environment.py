"""Somebody else's environment: made, reset and stepped with errors that say what to do, held to what it promised.

In a trial every agent of a fleet acts in its own environment, side by side, for the same number of steps.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from calibrl.errors import CalibrlError, MissingExtra, first_line

if TYPE_CHECKING:
    import gymnasium

Environment = Any
"""A `gymnasium.Env` of Box observations and Box actions."""


def our_module(name: str = "") -> ModuleType:
    """`calibrl.control.envs`, which registers the MuJoCo tasks, or the module of one of them.

    Only where it is asked for: other environments need no MuJoCo.
    """
    try:
        return importlib.import_module("calibrl.control.envs" + (name and f".{name}"))
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


class Answer(NamedTuple):
    """To a step: the next observation (o,) in float64, what it paid, and whether the episode ended, and why."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


def begin_episode(environment: Environment, *, seed: int | None = None) -> np.ndarray:
    """The first observation (o,) of an episode."""
    when = "on reset()"
    found = _asked(environment, lambda: environment.reset(seed=seed), when=when)
    observation, _ = _parts(environment, found, ("observation", "info"), when=when)
    return observed(environment, observation, when=when)


def make_step(environment: Environment, action: np.ndarray, *, where: str) -> Answer:
    """What an action (a,) leads to; where: "at step 3", for messages."""
    # A copy: an environment may change what it is given.
    given = action.astype(environment.action_space.dtype)
    when = f"after action {action.tolist()} {where}"
    found = _asked(environment, lambda: environment.step(given), when=when)
    names = ("observation", "reward", "terminated", "truncated", "info")
    observation, reward, terminated, truncated, _ = _parts(environment, found, names, when=when)
    return Answer(
        observed(environment, observation, when=when),
        earned_by(environment, reward, when=when),
        bool(terminated),
        bool(truncated),
    )


def observed(environment: Environment, observation: Any, *, when: str) -> np.ndarray:
    """What an environment shows as it promised: finite numbers of its space's shape, in float64.

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


def _asked(environment: Environment, question: Callable[[], Any], *, when: str) -> Any:
    """The answer, or one line about the error that it raised instead."""
    try:
        return question()
    except CalibrlError:
        raise
    except Exception as problem:  # whatever the code of somebody's environment raises
        *_, place = traceback.extract_tb(problem.__traceback__)
        what = f"{type(problem).__name__}: {first_line(problem)}, {Path(place.filename).name} line {place.lineno}"
        raise CalibrlError(
            f"environment {name_of(environment)} failed {when} ({what}); correct it: trials that a run has finished "
            "are kept for --resume"
        ) from problem


def _parts(environment: Environment, answer: Any, names: tuple[str, ...], *, when: str) -> tuple[Any, ...]:
    """The parts of an answer, as many as Gymnasium says."""
    if not isinstance(answer, tuple) or len(answer) != len(names):
        got = f"{len(answer)} parts" if isinstance(answer, tuple) else type(answer).__name__
        raise CalibrlError(
            f"environment {name_of(environment)} answered with {got} {when}; Gymnasium expects ({', '.join(names)}), "
            "older environments of gym answer otherwise: change it, or wrap it with shimmy"
        )
    return answer


def _unknown(env_id: str, problem: Exception) -> str:
    """An unknown id, with those that look like it."""
    import gymnasium

    our_module()
    known = {name.lower(): name for name in gymnasium.registry}
    near = difflib.get_close_matches(env_id.lower(), known, n=4, cutoff=0.5)
    if not near:
        near = [name for name in known if env_id.lower() in name][:4]
    if (ours := f"calibrl/{env_id}-v0".lower()) in known:
        near = [ours, *near]
    names = ", ".join(known.get(name, name) for name in dict.fromkeys(near))
    hint = f"did you mean {names}" if near else first_line(problem)
    return f"environment {env_id!r} is unknown; {hint}? One of your own is named module:Name-v0"


def look_here() -> None:
    """Have Python look for modules in the current folder, too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


class Actor(Protocol):
    """Whoever decides: a fleet, random at first."""

    def act(self, observation: Tensor) -> Tensor:
        """Actions (g, a) at observations (g, o)."""

    def begin(self, agents: Sequence[int]) -> None:
        """These agents' episodes begin: whatever they had planned is over."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What happened to g agents in T steps each.

    Parameters
    ----------
    observation, next_observation : Tensor (g, T, o)
        Before and after each step.
    action : Tensor (g, T, a)
    reward : Tensor (g, T)
    terminated : bool Tensor (g, T)
        Where the step ended its episode for good.
    last : bool Tensor (g, T)
        Where an episode ended for whatever reason, the trial's end included.
    cut : bool Tensor (g,)
        Whose last episode would have gone on if the trial had.
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

    Parameters
    ----------
    actor : Actor
        Decides for all agents.
    environments : sequence of gymnasium.Env
        One for each agent.
    steps : int
        Of the trial.
    seeds : sequence of int
        What each environment's chance is seeded with.
    on_step : function of (int, Tensor (g,))
        Hears of each step, and what the episodes under way have earned so far.

    Returns
    -------
    Trial
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

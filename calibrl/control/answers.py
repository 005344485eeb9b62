"""What an environment answers, held to what it promised: somebody else's code, which may fail in any way."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibrl.errors import CalibrlError, first_line

Environment = Any
"""A `gymnasium.Env` of Box observations and Box actions."""


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

"""The task that a control preset names, and the reward that its plans are judged by."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

from calibrl.control.adapter import check_reward
from calibrl.control.settings import Preset
from calibrl.control.tasks import TASKS, Task, task, task_from_env
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import Reward


def check(preset: Preset, reward: Reward | None = None) -> Task:
    """The task of a preset, or an error if no agent could learn it so: before anything is written."""
    if preset.steps < 2:
        raise CalibrlError(f"a trial of {preset.steps} step leaves no row to hold out; use 2 or more steps")
    return task_of(preset, reward)


def task_of(preset: Preset, reward: Reward | None = None) -> Task:
    """The task a preset names, one of the four or any Gymnasium id, with the preset's steps a trial.

    reward: instead of the one that the preset names.
    """
    look_here()
    if reward is None and preset.reward is not None:
        reward = reward_named(preset.reward)
    if preset.task not in TASKS:
        return task_from_env(preset.task, reward=reward, steps=preset.steps)
    found = task(preset.task)
    # A known return is of whole episodes.
    solved = found.solved if found.steps == preset.steps else None
    found = replace(found, steps=preset.steps, solved=solved)
    if reward is None:
        return found
    check_reward(found, reward)
    return found.with_reward(reward)


def reward_named(name: str) -> Reward:
    """The function that "module:function" names, found where Python looks and in the current folder."""
    module, colon, function = name.partition(":")
    if not colon:
        raise CalibrlError(f"reward {name!r} is not module:function; write for instance my_rewards:upright")
    look_here()
    try:
        found = getattr(importlib.import_module(module), function)
    except ImportError as problem:
        raise CalibrlError(f"reward {name!r}: {problem}; give a module that Python finds from here") from None
    except AttributeError:
        raise CalibrlError(f"reward {name!r}: module {module} has no function {function}; check its name") from None
    return cast(Reward, found)


def name_of_reward(reward: Reward) -> str:
    """What a preset calls a reward function that was given as it is."""
    return f"{reward.__module__}:{getattr(reward, '__qualname__', type(reward).__name__)}"


def look_here() -> None:
    """Have Python look for modules in the current folder, too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)

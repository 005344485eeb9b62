"""Everything that has a name, with one line about it: experiments, presets, problems, policies, maps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from calibrl.errors import CalibrlError

Lines = dict[str, str]
"""What there is of a kind: a line about each, by name."""


def listed(kind: str | None = None) -> dict[str, Lines]:
    """All kinds, or one; each in the order it is used in."""
    if kind is not None and kind not in KINDS:
        raise CalibrlError(f"kind {kind!r} is unknown; known: {', '.join(KINDS)}")
    found = {}
    for name, lines in KINDS.items():
        if kind in (None, name):
            try:
                found[name] = _registered().get(name, lines)()
            except ImportError as problem:  # an extra that is not installed
                found[name] = {"": str(problem)}
    return found


def _registered() -> dict[str, Callable[[], Lines]]:
    from calibrl.runs.experiment import EXPERIMENTS, experiment

    kinds = [item for name in EXPERIMENTS for item in experiment(name).names.items()]
    return {kind: partial(lambda make: dict(make()), make) for kind, (_, make) in kinds}


def _experiments() -> Lines:
    from calibrl.runs.benchmarks import describe
    from calibrl.runs.experiment import ORDER

    return {name: describe(name).title for name in ORDER}


def _presets() -> Lines:
    from calibrl.runs.presets import find, in_a_line, names

    return {name: in_a_line(find(name)[1]) for name in names()}


def _searches() -> Lines:
    from calibrl.planning.search import SEARCHES

    return {name: first_line(kind) for name, kind in SEARCHES.items()}


def _tasks() -> Lines:
    from calibrl.control.settings import TASKS

    return TASKS


def _maps() -> Lines:
    from calibrl import maps
    from calibrl.maps import classes

    return {
        name: first_line(getattr(home, name))
        for home in (maps, classes)
        for name in home.__all__
        if name.startswith("fit_")
    }


def first_line(thing: Any) -> str:
    """The first line of what something says about itself."""
    words = (inspect.getdoc(thing) or "").splitlines()
    return words[0].rstrip(".") if words else ""


KINDS: dict[str, Callable[[], Lines]] = {
    "experiments": _experiments,
    "presets": _presets,
    "problems": dict,
    "policies": dict,
    "planners": dict,
    "tasks": _tasks,
    "searches": _searches,
    "worlds": dict,
    "maps": _maps,
}

USE: dict[str, str] = {
    "experiments": "calibrl run NAME",
    "presets": "bandits/small is calibrl run bandits --preset small; calibrl show NAME",
    "problems": "calibrl run bandits --problem NAME",
    "policies": "calibrl run bandits --policy NAME, calibrl bandit evaluate --policy NAME",
    "planners": "of perishable goods, calibrl.inventory.policy",
    "tasks": "of continuous control, calibrl.control.task(NAME)",
    "searches": "calibrl run control --set planner.method=NAME",
    "worlds": "of calibrl run safety",
    "maps": "calibrl.maps.NAME(…), calibrl.maps.classes.NAME(…)",
}
"""Where a name of each kind is used."""

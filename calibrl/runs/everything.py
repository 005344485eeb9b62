"""Every experiment as a plan, at two sizes: `small` for a laptop, `full` as published."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.runs.engine import Plan, planned
from calibrl.runs.experiment import EXPERIMENTS, ORDER, experiment


@dataclass(frozen=True)
class Sizes:
    """How to plan an experiment at each size. needs: a package that it cannot do without, and the extra that has it."""

    small: Callable[[], Plan]
    full: Callable[[], Plan]
    needs: tuple[str, str] | None = None


EVERYTHING: dict[str, Sizes] = {}
"""In the order they are run."""


def plans(size: str, *, only: Sequence[str] | None = None) -> tuple[dict[str, Plan], dict[str, str]]:
    """The plans that can be carried out here, and why the others cannot, by experiment."""
    unknown = [name for name in only or () if name not in ORDER]
    if unknown:
        raise CalibrlError(f"experiment {unknown[0]!r} is unknown; known: {', '.join(ORDER)}")
    ready, left_out = {}, {}
    for name in ORDER:
        if only and name not in only:
            continue
        try:
            if name in EXPERIMENTS:
                found = experiment(name)
                if found.needs and importlib.util.find_spec(found.needs[0]) is None:
                    raise MissingExtra(*found.needs)
                settings = found.small if size == "small" else found.full
                if settings is not None:
                    ready[name] = planned(found, settings)
                continue
            sizes = EVERYTHING[name]
            if sizes.needs and importlib.util.find_spec(sizes.needs[0]) is None:
                raise MissingExtra(*sizes.needs)
            ready[name] = sizes.small() if size == "small" else sizes.full()
        except MissingExtra as problem:
            left_out[name] = str(problem)
    return ready, left_out

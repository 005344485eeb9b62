"""How many threads are worth their while."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from calibrl.control.settings import Preset
from calibrl.threads import one_thread

MANY_NUMBERS = 2_000_000
"""Activations of one layer at one step from which several threads gain anything."""


def threads_worth(numbers: int) -> AbstractContextManager[None]:
    """One thread while a layer computes few numbers at a time: more would wait for each other longer than they work."""
    return one_thread() if numbers < MANY_NUMBERS else nullcontext()


def threads_for(preset: Preset) -> AbstractContextManager[None]:
    """What the networks and plans of a preset are worth, at one imagined step."""
    planner, ensemble = preset.planner, preset.ensemble
    return threads_worth(planner.population * planner.particles * ensemble.members * max(ensemble.hidden))

"""How many threads are worth their while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from calibrl.control.presets import Preset

MANY_NUMBERS = 2_000_000
"""Activations of one layer at one imagined step from which several threads gain anything."""


@contextmanager
def threads_for(preset: Preset) -> Iterator[None]:
    """One thread while networks and plans are small: more would wait for each other longer than they compute."""
    planner, ensemble = preset.planner, preset.ensemble
    numbers = planner.population * planner.particles * ensemble.members * max(ensemble.hidden)
    before = torch.get_num_threads()
    torch.set_num_threads(1 if numbers < MANY_NUMBERS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

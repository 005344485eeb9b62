"""Every preset by name, with its fields, their meaning and their source.

A preset is a frozen dataclass; one inside another is shown with dots, `planner.horizon`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from calibrl.errors import CalibrlError
from calibrl.runs.experiment import EXPERIMENTS, ORDER, experiment, source_of
from calibrl.runs.experiment import leaves as new_leaves
from calibrl.runs.meanings import Meaning


@dataclass(frozen=True)
class Shelf:
    """The presets of one experiment: the module that holds them as `PRESETS`, and what their fields mean."""

    module: str
    fields: dict[str, Meaning]

    def presets(self) -> dict[str, Any]:
        """By name."""
        found: dict[str, Any] = importlib.import_module(self.module).PRESETS
        return found


SHELVES: dict[str, Shelf] = {}


def _presets(name: str) -> Any:
    if name in EXPERIMENTS:
        return experiment(name).presets
    return SHELVES[name].presets() if name in SHELVES else {}


def names() -> list[str]:
    """All presets, as experiment/preset."""
    return [f"{home}/{name}" for home in ORDER for name in _presets(home)]


def find(name: str) -> tuple[str, Any]:
    """The experiment and the preset of that name: whole, like bandits/paper, or short where no other has it."""
    known = names()
    found = [each for each in known if name in (each, each.split("/", 1)[1])]
    if not found:
        raise CalibrlError(f"preset {name!r} is unknown; known: {', '.join(known)}")
    if len(found) > 1:
        raise CalibrlError(f"preset {name!r} could be any of {', '.join(found)}; write one of those")
    home, short = found[0].split("/", 1)
    return home, _presets(home)[short]


def leaves(preset: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields and values, those of presets inside with dots; without the name, by which it was asked for."""
    for each in fields(preset):
        value = getattr(preset, each.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{each.name}.")
        elif prefix or each.name != "name":
            yield prefix + each.name, value


@dataclass(frozen=True)
class Line:
    """One field of a preset, as it is shown."""

    field: str
    value: Any
    meaning: str
    source: str


def described(experiment: str, preset: Any) -> list[Line]:
    """Every field of a preset with its meaning and source."""
    if experiment in EXPERIMENTS:
        return [
            Line(leaf.path, leaf.value, leaf.about.help, source_of(leaf, preset.name))
            for leaf in new_leaves(preset)
            if leaf.path != "name"
        ]
    meanings = SHELVES[experiment].fields
    found = []
    for name, value in leaves(preset):
        meaning = meanings.get(name, Meaning(""))
        found.append(Line(name, value, meaning.words, meaning.source(preset.name)))
    return found


def in_a_line(preset: Any) -> str:
    """How much a preset runs, in a few words: its numbers and names."""
    return ", ".join(
        f"{name} {value}" for name, value in leaves(preset) if isinstance(value, int | str) and "." not in name
    )

"""What the fields of every experiment's presets mean, and where their values come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PAPER, REFERENCE, OURS = "paper", "reference code", "ours"
"""Printed by Malik et al. (2019); read in the authors' released code, which builds on PETS'; chosen here."""


@dataclass(frozen=True)
class Meaning:
    """What a field is for, and the source of its value where it is not ours: by preset."""

    words: str
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, preset: str) -> str:
        """Where this preset's value comes from."""
        return self.sources.get(preset, OURS)


_PAPERS = {"paper": PAPER}
_PETS = dict.fromkeys(("cartpole", "halfcheetah", "pusher", "reacher"), REFERENCE)
_PAPERS_TASKS = dict.fromkeys(("cartpole", "halfcheetah", "pusher"), PAPER)
"""Presets with published settings: of PETS, whose settings the paper took over, and of the paper."""


def _search(prefix: str, sources: Mapping[str, str]) -> dict[str, Meaning]:
    """The cross-entropy method's settings, wherever they stand."""
    words = {
        "population_size": "plans drawn in each iteration of the search",
        "elites": "the best of them, around which the next iteration is drawn",
        "iterations": "iterations per search",
        "momentum": "share of the old mean and variance kept in each iteration",
        "min_variance": "the search stops when the largest variance is below this",
    }
    return {f"{prefix}.{name}": Meaning(meaning, sources) for name, meaning in words.items()}

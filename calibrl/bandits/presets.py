"""The paper's protocol and its numbers, and a small run that needs no data."""

from __future__ import annotations

from dataclasses import dataclass

from calibrl.bandits.policy import POLICIES


@dataclass(frozen=True)
class Preset:
    """What to run: problems and policies by name, rounds of each trial, trials, and the first seed."""

    name: str
    problems: tuple[str, ...]
    rounds: int
    trials: int
    policies: tuple[str, ...] = tuple(POLICIES)
    seed: int = 0


SMALL = Preset("small", ("linear", "beta", "digits", "wine", "breast-cancer"), rounds=1200, trials=5)
PAPER = Preset(
    "paper", ("linear", "beta", "mushroom", "covertype", "adult", "census"), rounds=1200, trials=10, seed=200
)
"""1200 scored rounds from a cold start: what the printed optimum implies (Mushroom's is 5 · 51.8 % · 1200).

Settings were chosen on seeds below 200 and above 999; these were not looked at before.
"""

PRESETS = {preset.name: preset for preset in (SMALL, PAPER)}

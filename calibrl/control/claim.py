"""The paper's claim about control, from rows: does a calibrated agent earn as much with fewer samples?

Samples are counted to levels between what acting at random earns and the best that the uncalibrated arm reached: with
a level of a half, the environment steps until half of that way was made. Seeds are paired, as arms of one start alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.runs.rows import Row

Floats = NDArray[np.float64]

WAYS = (0.5, 0.75, 0.95)
"""Levels, as shares of the way from random to the uncalibrated arm's best."""


@dataclass(frozen=True)
class Samples:
    """Environment steps that seeds of two arms needed to a level of return; both (n,), NaN where never reached."""

    level: float
    calibrated: Floats
    uncalibrated: Floats

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Seeds of which both arms got there."""
        return np.isfinite(self.calibrated) & np.isfinite(self.uncalibrated)

    @property
    def counts(self) -> tuple[int, int]:
        """How many seeds of each arm got there."""
        return int(np.isfinite(self.calibrated).sum()), int(np.isfinite(self.uncalibrated).sum())

    @property
    def saved(self) -> Floats:
        """Steps that calibrating saved, for each seed of which both arms got there."""
        return (self.uncalibrated - self.calibrated)[self.reached]

    @property
    def ratio(self) -> float:
        """Steps the calibrated arm needed for each of the uncalibrated one's, over those seeds."""
        both = self.reached
        return float(self.calibrated[both].sum() / self.uncalibrated[both].sum()) if both.any() else float("nan")


@dataclass(frozen=True)
class Claim:
    """Two arms of one preset on the trials that all their common seeds have made.

    seeds, trials: how many (the random one not counted); gain: calibrated − uncalibrated return, averaged over those
    trials, for each seed (n,); way: from what acting at random earns to the uncalibrated arm's best; samples: to each
    level, none where there was no way to go.
    """

    seeds: int
    trials: int
    gain: Floats
    way: float
    samples: tuple[Samples, ...]


def claim(rows: Sequence[Row], ways: Sequence[float] = WAYS) -> Claim | None:
    """Compare the two arms of one preset; None where they share no seed that has learnt anything."""
    arm, other = "calibrated", "uncalibrated"
    returns = {name: _returns(rows, name) for name in (arm, other)}
    seeds = sorted(set(returns[arm]) & set(returns[other]))
    steps = sorted(set.intersection(*(set(returns[name][seed]) for name in returns for seed in seeds))) if seeds else []
    if len(steps) < 2:
        return None
    curves = {name: np.array([[returns[name][seed][at] for at in steps] for seed in seeds]) for name in returns}
    random = curves[other][:, 0].mean()
    whole = float(curves[other].max(1).mean() - random)
    levels = [random + way * whole for way in ways] if whole > 0 else []
    at = np.array(steps, float)
    samples = tuple(Samples(level, *(_first(curves[name], level, at) for name in (arm, other))) for level in levels)
    return Claim(len(seeds), len(steps) - 1, (curves[arm] - curves[other])[:, 1:].mean(1), whole, samples)


def decimals(size: float) -> int:
    """Digits after the point with which numbers of this size show three digits."""
    return max(0, 2 - math.floor(math.log10(size))) if 0 < size < math.inf else 0


def _returns(rows: Sequence[Row], arm: str) -> dict[int, dict[int, float]]:
    """{seed: {step: return}}."""
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        if row.arm == arm:
            found.setdefault(row.seed, {})[row.step] = row.metrics["return"]
    return found


def _first(curves: Floats, level: float, at: Floats) -> Floats:
    """The step at which each curve (n, T) is first at the level: (n,)."""
    there = curves >= level
    return np.where(there.any(1), at[there.argmax(1)], np.nan)

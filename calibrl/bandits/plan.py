"""How a policy explores: by which quantile of its forecast each arm is scored."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """Each arm is scored by its quantile at the z-score level + spread · ε; the best is taken, or a random one.

    level 1 is LinUCB (the 84 % quantile), level 0 is greedy (the median), spread 1 is Thompson sampling (ε is
    standard normal, afresh for every arm and decision), and `explore` is the probability of an arm at random.
    """

    level: float = 0.0
    spread: float = 0.0
    explore: float = 0.0

    def __post_init__(self) -> None:
        plain_fields(self, "a number", "level", "spread", "explore")
        if not math.isfinite(self.level) or not math.isfinite(self.spread) or self.spread < 0:
            raise CalibrlError(f"level {self.level} and spread {self.spread} must be finite, the spread 0 or more")
        if not 0 <= self.explore <= 1:
            raise CalibrlError(f"explore {self.explore} is not a probability; use a number from 0 to 1")

    def levels(self, shape: int | tuple[int, ...], generator: np.random.Generator) -> Floats:
        """Levels for decisions of this shape, (k,) or (t, k), as z-scores."""
        fixed = np.full(shape, self.level)
        return fixed + self.spread * generator.standard_normal(shape) if self.spread else fixed

    def forced(self, shape: int | tuple[int, ...], arms: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """For each decision an arm to take whatever the forecast, or -1."""
        if not self.explore:
            return np.full(shape, -1)
        lot = generator.random(shape) < self.explore
        return np.where(lot, generator.integers(arms, size=shape), -1)


def plain_fields(of: object, kind: str, *names: str) -> None:
    """Make fields of a frozen dataclass Python's own numbers: NumPy's could not be saved as JSON."""
    for name in names:
        value = getattr(of, name)
        try:
            object.__setattr__(of, name, _PLAIN[kind](value))
        except (TypeError, ValueError):
            raise CalibrlError(f"{name} {value!r} is not {kind}, and has to be") from None


_PLAIN: dict[str, Callable[[Any], Any]] = {"a number": float, "a whole number": operator.index, "True or False": bool}

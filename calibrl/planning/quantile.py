"""One planner for every bandit: take the arm whose forecast has the highest quantile.

The level says which policy it is. A fixed level above one half is an upper confidence bound (LinUCB takes
Φ(1) = 0.84), one half is greedy, and a level drawn afresh for every arm is Thompson sampling. The planner
cannot tell a calibrated forecast from a bare one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrl.arrays import plain_fields
from calibrl.errors import CalibrlError, check_within

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributions import Distribution


@dataclass(frozen=True)
class Exploration:
    """Score each arm by its quantile at the z-score level + spread · ε; take the best, or now and then any.

    Parameters
    ----------
    level
        Of the quantile, as a z-score: 1 is LinUCB (the 84 % quantile), 0 is greedy (the median).
    spread
        How wide levels are drawn: with 1, ε standard normal and afresh for every arm and decision, this is Thompson
        sampling.
    explore
        The probability of an arm at random.
    """

    level: float = 0.0
    spread: float = 0.0
    explore: float = 0.0

    def __post_init__(self) -> None:
        plain_fields(self, "a number", float, "level", "spread", "explore")
        check_within("level", self.level, "(-inf, inf)", "use a finite z-score")
        check_within("spread", self.spread, "[0, inf)", "0 draws no levels")
        check_within("explore", self.explore, "[0, 1]", "it is a probability")

    def levels(self, shape: int | tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float64]:
        """Draw levels for decisions of this shape, (k,) or (t, k), as z-scores."""
        fixed = np.full(shape, self.level)
        return fixed + self.spread * generator.standard_normal(shape) if self.spread else fixed

    def forced(self, shape: int | tuple[int, ...], arms: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw for each decision an arm to take whatever the forecast, or -1."""
        if not self.explore:
            return np.full(shape, -1)
        lot = generator.random(shape) < self.explore
        return np.where(lot, generator.integers(arms, size=shape), -1)


def highest_quantile(
    forecast: Distribution,
    level: float | Tensor,
    *,
    generator: torch.Generator | None = None,
    tie: Tensor | None = None,
) -> Tensor:
    """Choose the arm with the highest quantile, for each row of a forecast.

    Parameters
    ----------
    forecast
        Of batch shape (n, k): a row per decision, a column per arm.
    level
        The quantile as a z-score, Φ⁻¹ of its probability: a number, or one for each forecast (n, k), which are
        standard normal for Thompson sampling.
    generator
        Draws `tie`.
    tie
        Numbers (n,) in [0, 1) that pick one of several equals; drawn if not given.

    Returns
    -------
    Tensor
        (n,) whole numbers 0 … k-1.
    """
    import torch

    from calibrl.distributions import from_zscore

    if len(forecast.batch_shape) != 2:
        raise CalibrlError(f"the forecast has batch shape {tuple(forecast.batch_shape)}; expected (n, arms)")
    z = torch.as_tensor(level, dtype=torch.float64).expand(forecast.batch_shape)
    return argmax(from_zscore(forecast, z), generator=generator, tie=tie)


def argmax(score: Tensor, *, generator: torch.Generator | None = None, tie: Tensor | None = None) -> Tensor:
    """The index (n,) of the highest score in each row of (n, k); `tie` (n,) in [0, 1) picks one of several equals."""
    if not bool(score.isfinite().all()):
        raise CalibrlError("an arm's score is NaN or infinite; the forecast is broken, repair it before planning")
    best = score == score.amax(-1, keepdim=True)
    if tie is None:
        import torch

        tie = torch.rand(len(score), generator=generator, dtype=torch.float64)
    skip = (tie * best.sum(-1)).long()
    return (best & (best.cumsum(-1) == skip[:, None] + 1)).long().argmax(-1)

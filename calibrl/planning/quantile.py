"""One planner for every bandit: take the arm whose forecast has the highest quantile.

The level says which policy it is. A fixed level above one half is an upper confidence bound (LinUCB takes
Φ(1) = 0.84), one half is greedy, and a level drawn afresh for every arm is Thompson sampling. The planner
cannot tell a calibrated forecast from a bare one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from calibrl.distributions import from_zscore
from calibrl.errors import CalibrlError


def highest_quantile(forecast: Distribution, level: float | Tensor, *, generator: torch.Generator) -> Tensor:
    """The arm with the highest quantile, for each row of a forecast of batch shape (n, k): (n,) integers.

    level: the quantile as a z-score, Φ⁻¹ of its probability: a number, or one for each forecast (n, k), which are
    standard normal for Thompson sampling. Equals are told apart by lot.
    """
    if len(forecast.batch_shape) != 2:
        raise CalibrlError(f"the forecast has batch shape {tuple(forecast.batch_shape)}; expected (n, arms)")
    z = torch.as_tensor(level, dtype=torch.float64).expand(forecast.batch_shape)
    return argmax(from_zscore(forecast, z), generator=generator)


def argmax(score: Tensor, *, generator: torch.Generator) -> Tensor:
    """The index of the highest score in each row of (n, k), equals told apart by lot: (n,)."""
    if not bool(score.isfinite().all()):
        raise CalibrlError("an arm's score is NaN or infinite; the forecast is broken, repair it before planning")
    best = score == score.amax(-1, keepdim=True)
    lot = torch.rand(score.shape, generator=generator, dtype=torch.float64)
    return torch.where(best, lot, -1.0).argmax(-1)

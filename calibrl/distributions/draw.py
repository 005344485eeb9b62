"""Repeatable draws: the quantile function at explicit random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal

from calibrl.distributions.kinds import by_column, device_of, dtype_of, refuse_joint
from calibrl.distributions.recalibrated import Recalibrated
from calibrl.distributions.scores import from_zscore
from calibrl.kernels import normal


def draw(forecast: Distribution, generator: torch.Generator | None = None, shape: Any = ()) -> Tensor:
    """Draws of shape (*shape, *batch): F⁻¹(u) at u = Φ(ε), ε standard normal from `generator`.

    The same generator state gives the same u for every forecast, so that a calibrated and an uncalibrated
    arm of an experiment share their random draws, and their difference is not due to chance.
    """
    forecast = by_column(forecast)
    refuse_joint(forecast)
    size = Size(shape) + forecast.batch_shape
    dtype, device = dtype_of(forecast), device_of(forecast)
    epsilon = torch.randn(size, generator=generator, dtype=dtype, device=device)
    if isinstance(forecast, Normal):
        return torch.addcmul(forecast.loc, forecast.scale, epsilon)
    if isinstance(forecast, Recalibrated):
        return forecast.push(epsilon)
    if isinstance(forecast, Bernoulli):
        return (normal.cdf(epsilon) < forecast.probs).to(dtype)
    if isinstance(forecast, Categorical):
        below = forecast.probs.cumsum(-1)[..., :-1] < normal.cdf(epsilon).unsqueeze(-1)
        return below.sum(-1)
    return from_zscore(forecast, epsilon).to(dtype)

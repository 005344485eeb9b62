"""What kind of forecast a torch distribution is, in which dtype and where."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from calibrl.errors import CalibrlError


def by_column(forecast: Distribution) -> Distribution:
    """The forecast with each column on its own: torch's `Independent` only says how densities are summed."""
    if not isinstance(forecast, Distribution):
        raise CalibrlError(
            f"{type(forecast).__name__} is no distribution of torch; use one of torch.distributions, or its quantiles "
            "(scipy: ppf) as calibrl.Quantiles(values, levels), or draws as calibrl.Empirical(samples)"
        )
    while isinstance(forecast, Independent):
        forecast = forecast.base_dist
    return forecast


def refuse_joint(forecast: Distribution) -> None:
    """An error for forecasts of several numbers at once, which have no CDF."""
    if forecast.event_shape:
        raise CalibrlError(
            f"{type(forecast).__name__} has event shape {tuple(forecast.event_shape)}; recalibration works on each "
            "column's own distribution, so pass independent columns with batch shape (n, d): Normal(mean, stddev)"
        )


def class_rows(forecast: Categorical | Bernoulli, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (n, k), or (n,) of an event, and labels (n,), of forecasts that may have a column of their own."""
    shape = forecast.batch_shape
    if shape[1:].numel() != 1:
        raise CalibrlError(
            f"{type(forecast).__name__} forecasts have batch shape {tuple(shape)}; a class map serves one label per "
            "row: wrap one model per column"
        )
    return forecast.probs.reshape(shape.numel(), *forecast.param_shape[len(shape) :]), y.reshape(-1)


def is_discrete(forecast: Distribution) -> bool:
    """Whether outcomes are whole numbers (counts)."""
    try:
        support: Any = forecast.support
    except NotImplementedError:
        return False
    return bool(getattr(support, "is_discrete", False))


def dtype_of(forecast: Distribution) -> torch.dtype:
    """The floating dtype a forecast's parameters are held in."""
    return _parameter(forecast).dtype


def device_of(forecast: Distribution) -> torch.device:
    """The device a forecast lives on."""
    return _parameter(forecast).device


def _parameter(forecast: Distribution) -> Tensor:
    if isinstance(forecast, Normal):
        return forecast.loc
    for value in vars(forecast).values():
        first = value[0] if isinstance(value, tuple) and value else value  # a mixture's components
        if isinstance(first, Tensor) and first.is_floating_point():
            return first
        if isinstance(first, Distribution):
            return _parameter(first)
    mean: Tensor = forecast.mean
    return mean

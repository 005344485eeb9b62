"""Proper scores and sharpness of continuous and count forecasts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.diagnostics.calibration import LEVELS
from calibrl.diagnostics.continuous import crps_of_continuous, crps_of_gaussian, without_maps
from calibrl.distributions import (
    Empirical,
    from_zscore,
    is_discrete,
    outcomes_for,
    zscore,
)
from calibrl.distributions.kinds import by_column, device_of
from calibrl.distributions.scores import count_range, counts_within, log_prob
from calibrl.errors import CalibrlError
from calibrl.kernels import normal


@returns_what_was_given
def crps_each(forecast: Distribution, y: Array) -> Tensor:
    """The continuous ranked probability score ∫ (F(x) - 1[x ≥ y])² dx of each outcome, in y's units."""
    forecast = by_column(forecast)
    outcome = outcomes_for(forecast, y)
    if forecast.batch_shape != outcome.shape:  # one forecast of many outcomes
        forecast = forecast.expand(outcome.shape)
    if hasattr(forecast, "parts"):  # put together from others: each is scored in its own way
        score = torch.empty_like(outcome)
        for rows, part in forecast.parts:
            score[rows] = crps_each(part, outcome[rows])
        return score
    if isinstance(forecast, Normal):
        z = zscore(forecast, outcome)
        closed = z * (2 * normal.cdf(z) - 1) + 2 * torch.exp(normal.log_density(z)) - 1 / math.sqrt(math.pi)
        return forecast.scale.double() * closed
    base, mapping = without_maps(forecast)
    if isinstance(base, Normal):
        return base.scale.double() * crps_of_gaussian(mapping, zscore(base, outcome))
    if isinstance(forecast, Empirical):
        return _crps_of_samples(forecast.samples.double(), outcome)
    if is_discrete(forecast):
        return _crps_of_counts(forecast, outcome)
    return crps_of_continuous(base, mapping, outcome)


def crps(forecast: Distribution, y: Array) -> float:
    """Mean CRPS over seen outcomes: the absolute error of a forecast that is a distribution. Lower is better."""
    return _mean(crps_each(forecast, as_tensor(y, "y")))


def nll(forecast: Distribution, y: Array) -> float:
    """Mean negative log-likelihood over seen outcomes. Lower is better; +inf where an outcome was impossible."""
    forecast = by_column(forecast)
    outcome = outcomes_for(forecast, y)
    return -_mean(log_prob(forecast, outcome))


def pinball(forecast: Distribution, y: Array, levels: Array = LEVELS) -> float:
    """Mean pinball loss of the quantiles at `levels`: what being wrong costs if each side has its price."""
    forecast = by_column(forecast)
    outcome = outcomes_for(forecast, y)
    at = as_tensor(levels, "levels").double().to(outcome.device)
    if bool((at <= 0).any()) or bool((at >= 1).any()):
        raise CalibrlError(f"pinball levels {at.tolist()} must lie strictly between 0 and 1")
    total = 0.0
    for level, z in zip(at.tolist(), normal.quantile(at), strict=True):
        error = outcome - from_zscore(forecast, z.expand(outcome.shape))
        total += _mean(torch.maximum(level * error, (level - 1) * error))
    return total / len(at)


def sharpness(forecast: Distribution) -> float:
    """Root-mean-square predictive standard deviation: how much the forecast dares. Lower is sharper."""
    return math.sqrt(_mean(forecast.variance.double()))


def width(forecast: Distribution, level: float) -> float:
    """Mean width of the central interval of probability `level`."""
    if not 0 < level < 1:
        raise CalibrlError(f"level {level} is not between 0 and 1; 0.9 asks about the 90 % interval")
    forecast = by_column(forecast)
    z = float(normal.quantile(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    edge = torch.full(forecast.batch_shape, z, dtype=torch.float64, device=device_of(forecast))
    return _mean(from_zscore(forecast, edge) - from_zscore(forecast, -edge))


def _mean(values: Tensor) -> float:
    seen = values[~values.isnan()]
    return float(seen.double().mean()) if seen.numel() else math.nan


def _crps_of_samples(samples: Tensor, y: Tensor) -> Tensor:
    """E|X - y| - ½ E|X - X′| over samples (s, *batch), the second term from the sorted samples."""
    s = len(samples)
    ordered = samples.sort(0).values
    rank = (2 * torch.arange(1, s + 1, dtype=torch.float64, device=y.device) - s - 1).reshape(-1, *(1 for _ in y.shape))
    half_gini = (rank * ordered).sum(0) / s**2
    return (samples - y).abs().mean(0) - half_gini


def _crps_of_counts(forecast: Distribution, y: Tensor) -> Tensor:
    """Σ_k (F(k) - 1[k ≥ y])². Where F is as good as 0 or 1, terms are 1 from y on or up to it, and 0 elsewhere."""
    low, high = count_range(forecast)
    score = (low - y).clamp(min=0) + (y - 1 - high).clamp(min=0)
    for k in counts_within(low, high):
        term = (normal.cdf(zscore(forecast, k)) - (k >= y).double()).square()
        score = score + torch.where(k <= high, term, 0.0).sum(0)
    return score

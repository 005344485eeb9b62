"""Proper scores and sharpness of continuous and count forecasts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.diagnostics.calibration import LEVELS
from calibrl.distributions import (
    Empirical,
    Mixture,
    Quantiles,
    Recalibrated,
    from_zscore,
    is_discrete,
    outcomes_for,
    zscore,
)
from calibrl.distributions.kinds import by_column
from calibrl.distributions.scores import breaks, log_prob
from calibrl.errors import CalibrlError
from calibrl.kernels import normal
from calibrl.maps import gaussian_law

REACH, PANELS = 8.2, 16
"""How far in z a score is integrated, and in how many pieces on each side of the outcome."""


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
    if isinstance(forecast, Recalibrated) and isinstance(forecast.base, Normal):
        law = gaussian_law(forecast.mapping, outcome.device)
        z = zscore(forecast.base, outcome)
        return forecast.base.scale.double() * law.crps(z, forecast.mapping.forward_z(z))
    if isinstance(forecast, Empirical):
        return _crps_of_samples(forecast.samples.double(), outcome)
    if is_discrete(forecast):
        return _crps_of_counts(forecast, outcome)
    if isinstance(_innermost(forecast), Mixture):
        return _crps_between_components(forecast, outcome)
    if isinstance(_innermost(forecast), (Empirical, Quantiles)):
        return _crps_by_quadrature(forecast, outcome)
    return _crps_in_pieces(forecast, outcome)


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
    mean = forecast.mean
    z = float(normal.quantile(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    edge = torch.full(mean.shape, z, dtype=torch.float64, device=mean.device)
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
    """Σ_k (F(k) - 1[k ≥ y])²."""
    far = torch.full(forecast.batch_shape, 7.0, dtype=torch.float64, device=y.device)
    top = max(int(from_zscore(forecast, far).max()), int(y.nan_to_num(0).max()))
    k = torch.arange(top + 1, dtype=torch.float64, device=y.device).reshape(-1, *(1 for _ in y.shape))
    below = normal.cdf(zscore(forecast, k.expand(-1, *y.shape)))
    return torch.where(y.isnan(), torch.nan, (below - (k >= y).double()).square().sum(0))


def _innermost(forecast: Distribution) -> Distribution:
    while isinstance(forecast, Recalibrated):
        forecast = forecast.base
    return forecast


def _crps_between_components(forecast: Distribution, y: Tensor) -> Tensor:
    """∫ F² below the outcome and ∫ (1 - F)² above it, in pieces cut at the components' own quantiles.

    Between two peaks the quantile function of a mixture all but jumps; its CDF is smooth everywhere.
    """
    mixture = _innermost(forecast)
    assert isinstance(mixture, Mixture)
    x, weight = np.polynomial.legendre.leggauss(6)
    cuts = torch.linspace(-8, 8, 17, dtype=torch.float64, device=y.device)
    ends = [from_zscore(forecast, torch.full_like(y, end)) for end in (-REACH, REACH)]
    parts = [from_zscore(component, cut.expand(y.shape)) for component in mixture.components for cut in cuts]
    edges = torch.stack([y, *ends, *parts]).sort(0).values
    total = torch.zeros_like(y)
    for start, end in itertools.pairwise(edges):
        half = (end - start) / 2
        for node, share in zip(x.tolist(), weight.tolist(), strict=True):
            at = start + half * (1 + node)
            z = zscore(forecast, at)
            total = total + share * half * torch.where(at < y, normal.cdf(z), normal.cdf(-z)).square()
    return total


def _crps_in_pieces(forecast: Distribution, y: Tensor) -> Tensor:
    """2 ∫ (1[y < F⁻¹(u)] - u)(F⁻¹(u) - y) du in z, in pieces that end at the outcome and where F⁻¹ bends."""
    x, weight = np.polynomial.legendre.leggauss(5)
    here = zscore(forecast, y).clamp(-REACH, REACH)
    bends = breaks(forecast).clamp(-REACH, REACH)
    even = torch.linspace(-REACH, REACH, 2 * PANELS + 1, dtype=torch.float64, device=y.device)
    flat = [-1, *(1 for _ in bends.shape[1:])]
    cuts = torch.cat([even.reshape(flat).expand(-1, *bends.shape[1:]), bends]).sort(0).values

    def between(start: Tensor, end: Tensor) -> Tensor:
        half, found = (end - start) / 2, torch.zeros_like(y)
        for node, share in zip(x.tolist(), weight.tolist(), strict=True):
            z = (start + half * (1 + node)).expand(y.shape)
            mass = torch.where(z < here, -normal.cdf(z), normal.cdf(-z))
            piece = mass * (from_zscore(forecast, z) - y) * torch.exp(normal.log_density(z))
            found = found + 2 * share * half * piece
        return found

    # The pieces are the same for all, but for the one an outcome falls into, which it cuts in two.
    total, low, high = torch.zeros_like(y), here, here
    for start, end in itertools.pairwise(cuts):
        own = (here > start) & (here < end)
        low, high = torch.where(own, start, low), torch.where(own, end, high)
        total = total + torch.where(own, 0.0, between(start, end))
    return total + between(low, here) + between(here, high)


def _crps_by_quadrature(forecast: Distribution, y: Tensor) -> Tensor:
    """2 ∫ (1[y < F⁻¹(u)] - u)(F⁻¹(u) - y) du in z, on each side of the outcome, where the integrand is smooth."""
    x, weight = np.polynomial.legendre.leggauss(8)
    here = zscore(forecast, y).clamp(-30, 30)
    total = torch.zeros_like(y)
    for side in (-1.0, 1.0):
        end = side * torch.full_like(here, REACH)
        half = (end - here) / (2 * PANELS)
        for panel in range(PANELS):
            low = here + 2 * half * panel
            for node, share in zip(x.tolist(), weight.tolist(), strict=True):
                z = low + half * (1 + node)
                mass = normal.cdf(-z) if side > 0 else -normal.cdf(z)
                piece = mass * (from_zscore(forecast, z) - y) * torch.exp(normal.log_density(z))
                total = total + 2 * share * (half * side) * piece
    return total

"""Any torch distribution as a function between outcomes y and z-scores z = Φ⁻¹(F(y)).

Distributions of ours say `zscore`, `from_zscore` and `cdf_left` themselves; for torch's own this module
knows how, with bisection where torch has no inverse and sums where it has no CDF (counts).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, LogNormal, Normal, Poisson, TransformedDistribution

from calibrl.errors import CalibrlError
from calibrl.kernels import normal

TABLE_LIMIT = 50_000_000
"""Entries of the largest probability table built for a count distribution that has no CDF."""


def by_column(forecast: Distribution) -> Distribution:
    """The forecast with each column on its own: torch's `Independent` only says how densities are summed."""
    while isinstance(forecast, Independent):
        forecast = forecast.base_dist
    return forecast


def zscore(forecast: Distribution, y: Tensor) -> Tensor:
    """Φ⁻¹(F(y)) in float64, finite for every possible outcome; NaN where y is NaN. y: (…, *batch)."""
    if isinstance(forecast, Normal):
        return (y.double() - forecast.loc) / forecast.scale
    if hasattr(forecast, "zscore"):
        score: Tensor = forecast.zscore(y)
        return score
    if isinstance(forecast, LogNormal):
        return (y.double().clamp(min=1e-300).log() - forecast.loc) / forecast.scale
    if is_discrete(forecast):
        return _count_zscore(forecast, y)
    return normal.finite_quantile(cdf(forecast, y))


def zscore_left(forecast: Distribution, y: Tensor) -> Tensor:
    """Φ⁻¹(P(Y < y)): equals `zscore` except where the forecast puts mass on y itself."""
    if hasattr(forecast, "zscore_left"):
        score: Tensor = forecast.zscore_left(y)
        return score
    if is_discrete(forecast):
        return _count_zscore(forecast, torch.ceil(y) - 1)
    return zscore(forecast, y)


def from_zscore(forecast: Distribution, z: Tensor) -> Tensor:
    """F⁻¹(Φ(z)) in float64. z: (…, *batch)."""
    if isinstance(forecast, Normal):
        return forecast.loc + forecast.scale * z.double()
    if hasattr(forecast, "from_zscore"):
        y: Tensor = forecast.from_zscore(z)
        return y
    if isinstance(forecast, LogNormal):
        return torch.exp(forecast.loc + forecast.scale * z.double())
    if is_discrete(forecast):
        return _count_from_zscore(forecast, z)
    # A float64 tells probabilities from 1 only below 8.2 σ.
    u = normal.cdf(z.double().clamp(normal.LOWEST_Z, normal.HIGHEST_Z))
    try:
        y = forecast.icdf(u)
    except NotImplementedError:
        return _bisect(forecast, u)
    if bool(y.isfinite().all()):
        return y
    # Some of torch's inverses lose the lower tail as well: stop where they still tell u from 0.
    return torch.where(y.isfinite(), y, forecast.icdf(u.clamp(1e-16, 1 - 4e-16)))


def cdf(forecast: Distribution, y: Tensor) -> Tensor:
    """P(Y ≤ y) in float64, also for torch's count distributions, which have no CDF of their own."""
    y = y.double()
    unseen = y.isnan()
    if bool(unseen.any()):
        y = torch.where(unseen, _typical(forecast), y)
    if is_discrete(forecast):
        value = torch.where(y < 0, 0.0, normal.cdf(zscore(forecast, y)))
    else:
        _check_support(forecast, y)
        try:
            value = _unchecked(forecast).cdf(y).double()
        except NotImplementedError:
            raise CalibrlError(
                f"{type(forecast).__name__} has no cdf; draw samples from it and use calibrl.Empirical(samples)"
            ) from None
    return torch.where(unseen, torch.nan, value)


def _check_support(forecast: Distribution, y: Tensor) -> None:
    try:
        possible = forecast.support.check(y)  # type: ignore[union-attr]
    except (AttributeError, NotImplementedError):
        return
    if not bool(possible.all()):
        wrong = y[~possible.expand(y.shape)][0].item()
        raise CalibrlError(
            f"outcome {wrong:g} is impossible under its {type(forecast).__name__} forecast; drop it or choose a "
            "forecast whose support holds it"
        )


def _unchecked(forecast: Distribution) -> Distribution:
    """The same distribution without torch's argument checks, which also refuse its own rounding to 0 and 1."""
    loose = copy.copy(forecast)
    loose._validate_args = False
    if isinstance(loose, TransformedDistribution):
        loose.base_dist = _unchecked(loose.base_dist)
    return loose


def log_prob(forecast: Distribution, y: Tensor) -> Tensor:
    """log-density or log-mass in float64; NaN where y is NaN."""
    y = y.double()
    unseen = y.isnan()
    if bool(unseen.any()):
        y = torch.where(unseen, _typical(forecast), y)
    return torch.where(unseen, torch.nan, forecast.log_prob(y).double())


def breaks(forecast: Distribution) -> Tensor:
    """z-scores where the quantile function bends, for quadrature to stop at: (k, …), broadcast to the batch."""
    if hasattr(forecast, "breaks"):
        found: Tensor = forecast.breaks
        return found
    if isinstance(forecast, (Normal, LogNormal)):
        return torch.zeros(0, dtype=torch.float64, device=device_of(forecast))
    # Where `from_zscore` stops, because a float64 probability cannot go on.
    ends = [normal.LOWEST_Z, normal.HIGHEST_Z]
    return torch.tensor(ends, dtype=torch.float64, device=device_of(forecast))


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
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
        if isinstance(value, Distribution):
            return _parameter(value)
    mean: Tensor = forecast.mean
    return mean


def _typical(forecast: Distribution) -> Tensor:
    """Some outcome inside the support, to stand in where nobody saw one."""
    mean = forecast.mean.double()
    if not bool(mean.isfinite().all()):
        mean = forecast.icdf(torch.full_like(mean, 0.5))
    return mean.round() if is_discrete(forecast) else mean


def _bisect(forecast: Distribution, u: Tensor) -> Tensor:
    """F⁻¹(u) by bisection, for distributions with a CDF and no inverse (Gamma). u: (…, *batch)."""
    support: Any = forecast.support
    # The least positive number stands for an open end at zero, where torch would refuse zero itself.
    floor = torch.as_tensor(getattr(support, "lower_bound", -torch.inf)).double() + 1e-300
    centre, spread = forecast.mean.double().expand(u.shape), forecast.stddev.double().expand(u.shape)
    low, high = torch.maximum(centre - spread, floor), centre + spread
    for _ in range(200):
        too_high, too_low = (forecast.cdf(low) > u) & (low > floor), forecast.cdf(high) < u
        if not bool((too_high | too_low).any()):
            break
        low = torch.where(too_high, torch.maximum(low - 2 * (high - low), floor), low)
        high = torch.where(too_low, high + (high - centre), high)
    for _ in range(100):
        middle = (low + high) / 2
        below = forecast.cdf(middle) < u
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


# Counts: both tails are summed or computed on their own, so that neither rounds to nothing.


def _count_zscore(forecast: Distribution, y: Tensor) -> Tensor:
    k = y.double().floor()
    if isinstance(forecast, Poisson):
        rate, after = forecast.rate.double(), k.clamp(min=0) + 1
        z = normal.quantile_of(torch.special.gammaincc(after, rate), torch.special.gammainc(after, rate))
    else:
        shape = torch.broadcast_shapes(k.shape, forecast.batch_shape)
        table = _zscore_table(forecast)
        index = k.nan_to_num(0).expand(shape).clamp(0, len(table) - 1).long()
        z = table.gather(0, index.reshape(-1, *forecast.batch_shape)).reshape(shape)
    z = torch.where(k < 0, normal.LOWEST_Z, z.clamp(normal.LOWEST_Z, -normal.LOWEST_Z))
    return torch.where(k.isnan(), torch.nan, z)


def _count_from_zscore(forecast: Distribution, z: Tensor) -> Tensor:
    """The least count k with F(k) ≥ Φ(z)."""
    z = z.double().clamp(max=-normal.LOWEST_Z)
    if not isinstance(forecast, Poisson):
        table = _zscore_table(forecast)
        rows = z.reshape(-1, *forecast.batch_shape).movedim(0, -1).contiguous()
        found = torch.searchsorted(table.movedim(0, -1).contiguous(), rows).movedim(-1, 0)
        return found.clamp(max=len(table) - 1).double().reshape(z.shape)
    low = torch.full_like(z, -1.0)
    high = forecast.rate.double().expand(z.shape) + 10
    while bool((_count_zscore(forecast, high) < z).any()):
        high = torch.where(_count_zscore(forecast, high) < z, 2 * high, high)
    high = high.ceil()
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        below = _count_zscore(forecast, middle) < z
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def _zscore_table(forecast: Distribution) -> Tensor:
    """Φ⁻¹(F(k)) for k = 0, 1, … to where no mass is left: (top + 1, *batch)."""
    support: Any = forecast.support
    ceiling = getattr(support, "upper_bound", None)
    if ceiling is not None:
        last = torch.as_tensor(ceiling, device=device_of(forecast)).double()
        mass = _masses(forecast, int(last.max()), last)
    else:
        top = 64
        mass = _masses(forecast, top, None)
        while float(mass[-1].max()) > 1e-280:
            top *= 2
            mass = _masses(forecast, top, None)
    lower = mass.cumsum(0)
    upper = mass.flip(0).cumsum(0).flip(0) - mass
    # Where nothing is left above, the count is certain.
    return torch.where(upper > 0, normal.quantile_of(lower, upper.clamp(min=1e-305)), -normal.LOWEST_Z)


def _masses(forecast: Distribution, top: int, last: Tensor | None) -> Tensor:
    """P(Y = 0), …, P(Y = top): (top + 1, *batch), zero beyond each forecast's own last count."""
    if (top + 1) * max(1, forecast.batch_shape.numel()) > TABLE_LIMIT:
        raise CalibrlError(
            f"counts up to {top} over {forecast.batch_shape.numel()} {type(forecast).__name__} forecasts are too many "
            "to sum; use a Normal with calibrl.Rounded for counts this large"
        )
    k = torch.arange(top + 1, dtype=torch.float64, device=device_of(forecast))
    k = k.reshape(-1, *(1 for _ in forecast.batch_shape)).expand(-1, *forecast.batch_shape)
    if last is None:
        return forecast.log_prob(k).double().exp()
    return torch.where(k <= last, forecast.log_prob(torch.minimum(k, last)).double().exp(), 0.0)

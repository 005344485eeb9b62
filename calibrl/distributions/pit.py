"""PIT values, where in its forecast each outcome fell; and the way back: draws at explicit random numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions.kinds import Scored, by_column, device_of, dtype_of, is_discrete, refuse_joint
from calibrl.distributions.recalibrated import Recalibrated
from calibrl.distributions.zscores import from_zscore, zscore, zscore_left
from calibrl.errors import CalibrlError
from calibrl.kernels import normal


@returns_what_was_given
def pit(forecast: Distribution, y: Array, *, generator: torch.Generator | None = None) -> Tensor:
    """PITs p_t = F_t(y_t): uniform on [0, 1] exactly when the forecast is calibrated.

    Where a forecast puts mass on single outcomes (counts, closed days, rewards in {0, 1}), F_t(y_t) cannot be uniform;
    there p_t is drawn between P(Y < y_t) and P(Y ≤ y_t), which restores that exactly. PITs of very over-confident
    forecasts round to 0 and 1: see `pit_z`.

    Parameters
    ----------
    forecast : Distribution
        Of batch shape (n,) or (n, d).
    y : array
        Outcomes of that shape, NaN where none was seen.
    generator : torch.Generator, optional
        Needed where a forecast puts mass on an outcome.

    Returns
    -------
    array
        The PITs in float64, of y's shape and kind (tensor or NumPy), NaN where y is.

    Examples
    --------
    >>> import numpy as np, torch, calibrl as cal
    >>> cal.pit(torch.distributions.Normal(torch.zeros(3), 1.0), np.array([-1.645, 0.0, np.nan])).round(2)
    array([0.05, 0.5 ,  nan])
    """
    return normal.cdf(pit_z(forecast, as_tensor(y, "y"), generator=generator))


@returns_what_was_given
def pit_z(forecast: Distribution, y: Array, *, generator: torch.Generator | None = None) -> Tensor:
    """PITs as z-scores Φ⁻¹(p_t): the same evidence as `pit`, which never rounds to 0 or 1.

    Parameters
    ----------
    forecast, y, generator
        As in `pit`.

    Returns
    -------
    array
        z-scores in float64, of y's shape and kind; standard normal exactly when the forecast is calibrated.
    """
    forecast = by_column(forecast)
    outcome = outcomes_for(forecast, y)
    high = zscore(forecast, outcome)
    simple = not is_discrete(forecast) and not isinstance(forecast, Scored)
    # A sum that is finite says sooner than two looks at each that no z-score is infinite or missing.
    if simple and math.isfinite(float(high.detach().sum())):
        return high
    if not is_discrete(forecast) and bool((impossible := high.isinf()).any()):
        raise CalibrlError(
            f"outcome {outcome.expand(high.shape)[impossible][0].item():g} is impossible under its "
            f"{type(forecast).__name__} forecast; drop it or choose a forecast whose support holds it"
        )
    if simple:
        return _checked(high, outcome)
    low = zscore_left(forecast, outcome)
    # An impossible count is taken for one that is nearly so.
    high = high.nan_to_num(torch.nan, posinf=-normal.LOWEST_Z, neginf=normal.LOWEST_Z)
    atom = (low < high) & (high > normal.LOWEST_Z)
    if not bool(atom.any()):
        return _checked(high, outcome)
    if generator is None:
        raise CalibrlError(
            f"the forecast puts mass on outcome {outcome[atom][0].item():g} itself, so its PIT must be randomised; "
            "pass generator=torch.Generator().manual_seed(0)"
        )
    u = torch.rand(outcome.shape, generator=generator, dtype=torch.float64, device=generator.device).to(outcome.device)
    # Each mass is mixed in its own tail, so that no digits are lost.
    lower = normal.cdf(low) + u * (normal.cdf(high) - normal.cdf(low))
    upper = normal.cdf(-low) + u * (normal.cdf(-high) - normal.cdf(-low))
    mixed = normal.quantile_of(lower, upper).clamp(normal.LOWEST_Z, -normal.LOWEST_Z)
    return _checked(torch.where(atom, mixed, high), outcome)


def outcomes_for(forecast: Distribution, y: Array) -> Tensor:
    """Outcomes as a tensor that fits a forecast, or a clear error.

    Parameters
    ----------
    forecast : Distribution
        Of batch shape (*batch), not of classes.
    y : array
        Outcomes, (*batch), or with a column of one more or less; of a single forecast, any number of them.

    Returns
    -------
    Tensor
        In float64, on the forecast's device.
    """
    if isinstance(forecast, (Categorical, Bernoulli)):
        raise CalibrlError(
            f"{type(forecast).__name__} forecasts classes, which have no PIT; "
            "use calibrl.class_summary and calibrl.fit_temperature"
        )
    refuse_joint(forecast)
    outcome = as_tensor(y, "y").double().to(device_of(forecast))
    shape = forecast.batch_shape
    # A column of outcomes for a flat forecast, or the other way round, would silently broadcast to n × n.
    if outcome.shape != shape and outcome.numel() == shape.numel() and 1 in (*outcome.shape[-1:], *shape[-1:]):
        outcome = outcome.reshape(shape)
    # One forecast may serve many outcomes.
    if outcome.shape != shape and (shape.numel() != 1 or len(shape) > outcome.dim()):
        raise CalibrlError(
            f"outcomes of shape {tuple(outcome.shape)} do not fit forecasts of batch shape {tuple(shape)}; "
            "pass one outcome per forecast"
        )
    _refuse_no_spread(forecast, outcome)
    return outcome


def _refuse_no_spread(forecast: Distribution, outcome: Tensor) -> None:
    """Raise an error for a Gaussian of an outcome that was seen whose scale is no scale: torch need not check it."""
    while isinstance(forecast, Recalibrated):
        forecast = forecast.base
    scale = forecast.scale.detach().expand(outcome.shape) if isinstance(forecast, Normal) else torch.ones(())
    if bool((broken := ((scale <= 0) | scale.isinf()) & ~outcome.isnan()).any()):
        row, spread = outcome[broken][0].item(), scale[broken][0].item()
        raise CalibrlError(f"the forecast for outcome {row:g} has standard deviation {spread:g}; repair the model")


def _checked(z: Tensor, outcome: Tensor) -> Tensor:
    if bool(z.isnan().any()) and bool((broken := z.isnan() & ~outcome.isnan()).any()):
        raise CalibrlError(f"the forecast of outcome {outcome[broken][0].item():g} is NaN; drop it or repair the model")
    return z


def draw(forecast: Distribution, generator: torch.Generator | None = None, shape: Any = ()) -> Tensor:
    """Repeatable draws: F⁻¹(u) at u = Φ(ε), ε standard normal from `generator`.

    The same generator state gives the same u for every forecast, so that a calibrated and an uncalibrated arm of an
    experiment share their random draws, and their difference is not due to chance.

    Parameters
    ----------
    forecast : Distribution
        Of batch shape (*batch).
    generator : torch.Generator, optional
        torch's global one if not given.
    shape : tuple of int
        How many draws.

    Returns
    -------
    Tensor
        (*shape, *batch), in the forecast's dtype and on its device.
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

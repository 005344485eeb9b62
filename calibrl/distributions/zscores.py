"""Any torch distribution as a function between outcomes y and z-scores z = Φ⁻¹(F(y)).

Distributions of ours say `zscore`, `from_zscore` and `zscore_left` themselves; for torch's own this module
knows how: by the tails of the families that have exact ones, through the transforms of those that are made of
another, with bisection where torch has no inverse and sums where it has no CDF (counts).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from scipy import special
from torch import Tensor
from torch.distributions import (
    Beta,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    Normal,
    StudentT,
    TransformedDistribution,
)

from calibrl.distributions.kinds import (
    Scored,
    count_from_zscore,
    count_zscore,
    device_of,
    ends_of,
    is_discrete,
    usual_breaks,
)
from calibrl.errors import CalibrlError
from calibrl.kernels import normal

_SIGN = torch.iinfo(torch.int64).min
"""The bits of a float64 of which only the sign is set."""


@torch.no_grad()
def least(reached: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The least float64 from low to high that `reached` holds of, and high if it holds of none. All of one shape.

    What is halved is how many numbers lie between, not their distance: 64 steps end at the last digit of numbers of any
    size, and at zero itself.
    """
    before, after = _place(low) - 1, _place(high)
    while bool((before + 1 < after).any()):
        middle = (before >> 1) + (after >> 1) + (before & after & 1)
        enough = reached(_number(middle))
        before, after = torch.where(enough, before, middle), torch.where(enough, middle, after)
    return _number(after)


def _place(number: Tensor) -> Tensor:
    """Where a float64 stands among all of them: neighbours differ by one, and zero is 0."""
    bits = number.view(torch.int64)
    return torch.where(bits < 0, _SIGN - bits, bits)


def _number(place: Tensor) -> Tensor:
    """The float64 that stands there."""
    return torch.where(place < 0, _SIGN - place, place).view(torch.float64)


AT_ONCE = 4_000_000
"""Numbers held at once in sums over quantiles or counts."""

COUNTED = 7.5
"""How far in z counts are summed."""

COMPONENT_CUTS = torch.linspace(-8, 8, 17, dtype=torch.float64)
"""z-scores at whose quantiles a mixture's components part it: between far peaks its own quantiles all but jump."""


def zscore(forecast: Distribution, y: Tensor) -> Tensor:
    """Outcomes as z-scores Φ⁻¹(F(y)) of a forecast.

    Parameters
    ----------
    forecast : Distribution
        Any of torch's or ours, of batch shape (*batch).
    y : Tensor
        Outcomes, (…, *batch).

    Returns
    -------
    Tensor
        In float64; NaN where y is NaN, infinite outside the support, and for a count with none above it.
    """
    y = _for_each(forecast, y)
    if isinstance(forecast, Normal):
        return (y - forecast.loc).div_(forecast.scale)  # in place: fresh memory costs more than the division
    if isinstance(forecast, Scored):
        return forecast.zscore(y)
    if isinstance(forecast, LogNormal):
        # Zero is where a small outcome rounds to.
        return torch.where(y < 0, -torch.inf, (y.clamp(min=1e-300).log() - forecast.loc) / forecast.scale)
    if is_discrete(forecast):
        return count_zscore(forecast, y)
    possible = _possible(forecast, y)
    if bool(possible.all()):
        return _score(forecast, y)
    inside = _typical(forecast)
    z = _score(forecast, torch.where(possible, y, inside))
    outside = torch.where(y < inside, -torch.inf, torch.inf)
    return torch.where(possible, z, torch.where(y.isnan(), torch.nan, outside))


def zscore_left(forecast: Distribution, y: Tensor) -> Tensor:
    """Outcomes as z-scores Φ⁻¹(P(Y < y)): those of `zscore` but where the forecast puts mass on y itself.

    Parameters
    ----------
    forecast, y
        As in `zscore`.

    Returns
    -------
    Tensor
        In float64.
    """
    if isinstance(forecast, Scored):
        return forecast.zscore_left(y)
    if is_discrete(forecast):
        return count_zscore(forecast, torch.ceil(y) - 1)
    return zscore(forecast, y)


def from_zscore(forecast: Distribution, z: Tensor) -> Tensor:
    """Quantiles F⁻¹(Φ(z)) of a forecast at z-scores.

    Parameters
    ----------
    forecast : Distribution
        Of batch shape (*batch).
    z : Tensor
        z-scores, (…, *batch).

    Returns
    -------
    Tensor
        Outcomes in float64.
    """
    z = _for_each(forecast, z)
    if isinstance(forecast, Normal):
        return forecast.loc + forecast.scale * z
    if isinstance(forecast, Scored):
        return forecast.from_zscore(z)
    if isinstance(forecast, Exponential):
        return -torch.special.log_ndtr(-z) / forecast.rate
    if isinstance(forecast, Laplace):
        return forecast.loc - forecast.scale * z.sign() * (math.log(2) + torch.special.log_ndtr(-z.abs()))
    if isinstance(forecast, Gumbel):
        return forecast.loc - forecast.scale * torch.log(-torch.special.log_ndtr(z.clamp(max=-normal.LOWEST_Z)))
    if _is_bijective(forecast):
        y = from_zscore(forecast.base_dist, _sign(forecast) * z)
        for transform in forecast.transforms:
            y = transform(y)
        return y
    if is_discrete(forecast):
        return torch.where(z.isnan(), torch.nan, count_from_zscore(forecast, z))
    if isinstance(forecast, (StudentT, Beta)):
        return searched(forecast, _inverse_by_scipy(forecast, z), z)
    # A float64 tells probabilities from 1 only below 8.2 σ, and some of torch's inverses lose the lower tail as well.
    u = normal.cdf(z.clamp(normal.LOWEST_Z, normal.HIGHEST_Z))
    try:
        y = forecast.icdf(u)
    except NotImplementedError:
        return torch.where(z.isnan(), torch.nan, _bisect(forecast, z))
    found = y.isfinite()
    return y if bool(found.all()) else forecast.icdf(torch.where(found, u, u.clamp(1e-16, 1 - 4e-16)))


def _for_each(forecast: Distribution, values: Tensor) -> Tensor:
    """Values in float64, one for each forecast: of a single number torch would keep float32's digits only."""
    return values.double().expand(torch.broadcast_shapes(values.shape, forecast.batch_shape))


def searched(forecast: Distribution, y: Tensor, z: Tensor) -> Tensor:
    """The quantile y found by search, with the gradients of F(y) = Φ(z): f(y) dy = φ(z) dz - dF."""
    if not torch.is_grad_enabled():
        return y
    y = y.detach()
    here = zscore(forecast, y)
    if not (here.requires_grad or z.requires_grad):
        return y
    # Where a forecast has no density (between two far peaks), the quantile jumps.
    slope = torch.exp(log_prob(forecast, y) - normal.log_density(here)).detach().clamp(min=1e-300)
    step = (z - here) / slope
    return y + step - step.detach()


def _score(forecast: Distribution, y: Tensor) -> Tensor:
    """Φ⁻¹(F(y)) of an outcome inside the support, or beside it by rounding."""
    if isinstance(forecast, (Normal, Scored)):
        return zscore(forecast, y)
    if not _is_bijective(forecast):
        return normal.quantile_of(*_tails(forecast, y)).clamp(normal.LOWEST_Z, -normal.LOWEST_Z)
    for transform in reversed(forecast.transforms):
        y = transform.inv(y)
    z = _sign(forecast) * _score(forecast.base_dist, y)
    # A transform may round its end to infinity.
    return z.nan_to_num(torch.nan, posinf=-normal.LOWEST_Z, neginf=normal.LOWEST_Z)


def _is_bijective(forecast: Distribution) -> TypeGuard[TransformedDistribution]:
    """Whether outcomes are one to one with those of a simpler forecast, number by number."""
    return (
        isinstance(forecast, TransformedDistribution)
        and not isinstance(forecast, Gumbel)
        and not forecast.base_dist.event_shape
        and all(transform.bijective for transform in forecast.transforms)
    )


def _sign(forecast: TransformedDistribution) -> Tensor | int:
    sign: Tensor | int = 1
    for transform in forecast.transforms:
        sign = sign * transform.sign
    return sign


def _tails(forecast: Distribution, y: Tensor) -> tuple[Tensor, Tensor]:
    """P(Y ≤ y) and P(Y > y) in float64, each with its own digits where the family allows."""
    if isinstance(forecast, Exponential):
        t = forecast.rate * y
        return -torch.expm1(-t), torch.exp(-t)
    if isinstance(forecast, Gamma):
        a, t = torch.broadcast_tensors(forecast.concentration.double(), forecast.rate * y)
        if torch.is_grad_enabled() and a.requires_grad:
            lower, upper = (_IncompleteGamma.apply(a, t, low) for low in (True, False))  # type: ignore[no-untyped-call]
            return lower, upper
        return torch.special.gammainc(a, t), torch.special.gammaincc(a, t)
    if isinstance(forecast, Laplace):
        t = (y - forecast.loc) / forecast.scale
        rest = torch.exp(-t.abs()) / 2
        return torch.where(t < 0, rest, 1 - rest), torch.where(t < 0, 1 - rest, rest)
    if isinstance(forecast, Gumbel):
        t = torch.exp((forecast.loc - y) / forecast.scale)
        return torch.exp(-t), -torch.expm1(-t)
    if isinstance(forecast, StudentT):
        t = (y - forecast.loc) / forecast.scale
        return _by_scipy(special.stdtr, t, forecast.df), _by_scipy(special.stdtr, -t, forecast.df)
    if isinstance(forecast, Beta):
        a, b = forecast.concentration1, forecast.concentration0
        return _by_scipy(_beta_below, y, a, b), _by_scipy(_beta_below, 1 - y, b, a)
    if isinstance(forecast, MixtureSameFamily):
        z, share = zscore(forecast.component_distribution, y.unsqueeze(-1)), forecast.mixture_distribution.probs
        return (share * normal.cdf(z)).sum(-1), (share * normal.cdf(-z)).sum(-1)
    try:
        lower = _unchecked(forecast).cdf(y).double()
    except NotImplementedError:
        raise CalibrlError(
            f"{type(forecast).__name__} has no cdf; draw samples from it and use calibrl.Empirical(samples)"
        ) from None
    # Beyond, a float64 cannot tell the CDF from 1: both tails end alike, or they would look like a bias.
    return lower.clamp(min=2**-53), (1 - lower).clamp(min=2**-53)


def _beta_below(a: Any, b: Any, y: Any) -> Any:
    return special.betainc(a, b, y.clip(0, 1))


def _by_scipy(below: Callable[..., Any], y: Tensor, *shape: Tensor) -> Tensor:
    """P(Y ≤ y) of a family that torch has no CDF of, from scipy's function of its shape and y."""
    if torch.is_grad_enabled() and any(part.requires_grad for part in shape):
        raise CalibrlError(
            "gradients with respect to the shape of a StudentT or Beta forecast are not known here; detach df, "
            "concentration1 and concentration0, or work under torch.no_grad()"
        )
    found: Tensor = _Below.apply(y, below, *shape)  # type: ignore[no-untyped-call]
    return found


class _Below(torch.autograd.Function):
    """A CDF by scipy; its slope is the density of the standard member of the family."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, below: Callable[..., Any], *shape: Tensor) -> Tensor:
        ctx.save_for_backward(y, *shape)
        given = (part.detach().double().cpu().numpy() for part in (*shape, y))
        return torch.as_tensor(below(*given), dtype=torch.float64, device=y.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, *shape = (part.double() for part in ctx.saved_tensors)
        standard = StudentT(shape[0]) if len(shape) == 1 else Beta(shape[0], shape[1], validate_args=False)
        return grad * cast(Distribution, standard).log_prob(y).exp(), *(None for _ in range(1 + len(shape)))


def _inverse_by_scipy(forecast: StudentT | Beta, z: Tensor) -> Tensor:
    """F⁻¹(Φ(z)), each half from its own tail."""
    lower = normal.cdf(-z.detach().abs().clamp(max=-normal.LOWEST_Z)).cpu().numpy()
    below = z.detach().cpu().numpy() < 0
    if isinstance(forecast, StudentT):
        t = special.stdtrit(forecast.df.detach().double().cpu().numpy(), lower)
        far = torch.as_tensor(t).to(z)
        y = forecast.loc.detach() + forecast.scale.detach() * torch.where(z < 0, far, -far)
    else:
        a, b = (part.detach().double().cpu().numpy() for part in (forecast.concentration1, forecast.concentration0))
        found = np.where(below, special.betaincinv(a, b, lower), special.betainccinv(a, b, lower))
        y = torch.as_tensor(found).to(z)
    return torch.where(z.isnan(), torch.nan, y)


class _IncompleteGamma(torch.autograd.Function):
    """P(a, x) = ∫₀ˣ t^(a-1) e^(-t) dt / Γ(a), or 1 - P, with the gradient in a that torch's own lacks."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor, lower: bool) -> Tensor:
        ctx.save_for_backward(a, x)
        ctx.sign = 1 if lower else -1
        return torch.special.gammainc(a, x) if lower else torch.special.gammaincc(a, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        a, x = ctx.saved_tensors
        by_x = ctx.sign * grad * torch.exp(torch.xlogy(a - 1, x) - x - torch.lgamma(a))
        # At a fixed probability a draw x moves with a as torch's own draws do.
        return -by_x * torch._standard_gamma_grad(a, x), by_x, None


def _unchecked(forecast: Distribution) -> Distribution:
    """The same distribution without torch's argument checks, which also refuse its own rounding to 0 and 1."""
    loose = copy.copy(forecast)
    loose._validate_args = False
    for name, part in vars(forecast).items():
        if isinstance(part, Distribution):
            setattr(loose, name, _unchecked(part))
    return loose


def log_mass(low: Tensor, high: Tensor) -> Tensor:
    """log(Φ(high) - Φ(low)) of z-scores low ≤ high, however far out; -inf where they are equal."""
    # In the lower tail, where no digits are lost.
    upper = low > 0
    a, b = torch.where(upper, -high, low), torch.where(upper, -low, high)
    less, more = torch.special.log_ndtr(a), torch.special.log_ndtr(b)
    return torch.where(a < b, more + torch.log1p(-torch.exp(less - more)), torch.where(a == b, -torch.inf, torch.nan))


def log_prob(forecast: Distribution, y: Tensor) -> Tensor:
    """log-density or log-mass in float64; NaN where y is NaN, -inf where the forecast calls it impossible."""
    y = _for_each(forecast, y)
    if isinstance(forecast, Normal):  # torch's own squares the scale
        return normal.log_density(zscore(forecast, y)) - forecast.scale.double().log()
    unseen, possible = y.isnan(), _possible(forecast, y)
    if not bool(possible.all()):
        y = torch.where(possible, y, _typical(forecast))
    found = torch.where(possible, forecast.log_prob(y).double(), -torch.inf)
    return torch.where(unseen, torch.nan, found)


def _possible(forecast: Distribution, y: Tensor) -> Tensor:
    """Which outcomes torch takes: not NaN, and where the forecast says what they may be, among those."""
    try:
        support = forecast.support
    except NotImplementedError:
        support = None
    return ~y.isnan() if support is None else cast(Tensor, support.check(y)) & ~y.isnan()


def breaks(forecast: Distribution) -> Tensor:
    """z-scores where the quantile function bends, for quadrature to stop at: (k, …), broadcast to the batch."""
    if isinstance(forecast, Scored):
        return forecast.breaks
    if isinstance(forecast, (Normal, LogNormal)):
        return torch.zeros(0, dtype=torch.float64, device=device_of(forecast))
    if isinstance(forecast, MixtureSameFamily):
        every = forecast.component_distribution
        parts = [from_zscore(every, cut.expand(every.batch_shape)) for cut in COMPONENT_CUTS.to(device_of(forecast))]
        return zscore(forecast, torch.cat(parts, -1).movedim(-1, 0)).detach()
    return usual_breaks(forecast)


def is_mixed(forecast: Distribution) -> bool:
    """Whether a forecast is a mixture, torch's or ours."""
    return isinstance(forecast, MixtureSameFamily) or hasattr(forecast, "components")


def component_quantiles(forecast: Distribution, z: Tensor) -> Tensor:
    """Quantiles of every component of a mixture at z-scores (k, *columns), unsorted: (m, *batch)."""
    if isinstance(forecast, MixtureSameFamily):
        every = forecast.component_distribution
        found = [from_zscore(every, at.unsqueeze(-1).expand(every.batch_shape)) for at in z]
        return torch.cat(found, -1).movedim(-1, 0)
    parts: Any = forecast
    shape = forecast.batch_shape
    return torch.stack(
        [from_zscore(part, at.expand(shape)) for part in parts.components for at in with_breaks(z, part)]
    )


def with_breaks(z: Tensor, forecast: Distribution) -> Tensor:
    """z-scores (k, *columns), ascending, and behind them those between where a forecast bends."""
    bends = breaks(forecast)
    if bends.dim() > z.dim():  # at places of every row's own: these are followed without
        return z
    bends = bends.reshape(len(bends), *bends.shape[1:] or (1 for _ in z.shape[1:])).expand(-1, *z.shape[1:])
    return torch.cat([z, bends.clamp(z[0], z[-1])])


def _typical(forecast: Distribution) -> Tensor:
    """Some outcome inside the support, to stand in where nobody saw one."""
    try:
        mean = forecast.mean.double()
    except NotImplementedError:
        mean = torch.tensor(torch.nan, dtype=torch.float64)
    if not bool(mean.isfinite().all()):
        return from_zscore(forecast, torch.zeros(forecast.batch_shape, device=device_of(forecast)))
    return mean.round() if is_discrete(forecast) else mean


def _bisect(forecast: Distribution, z: Tensor) -> Tensor:
    """F⁻¹(Φ(z)) by bisection, for distributions with a CDF and no inverse (Gamma). z: (…, *batch)."""
    # The least positive number stands for an open end at zero, where torch would refuse zero itself.
    floor = ends_of(forecast)[0] + 1e-300
    lower, upper = normal.cdf(z), normal.cdf(-z)

    def reached(y: Tensor) -> Tensor:
        less, more = _tails(forecast, y)
        return torch.where(z < 0, less >= lower, more <= upper)

    with torch.no_grad():
        centre, spread = forecast.mean.double().expand(z.shape), forecast.stddev.double().expand(z.shape)
        low, high = torch.maximum(centre - spread, floor), centre + spread
        for _ in range(200):
            too_high, too_low = reached(low) & (low > floor), ~reached(high)
            if not bool((too_high | too_low).any()):
                break
            low = torch.where(too_high, torch.maximum(low - 2 * (high - low), floor), low)
            high = torch.where(too_low, high + (high - centre), high)
        y = least(reached, low, high)
    return searched(forecast, y, z)


def count_moments(forecast: Distribution) -> tuple[Tensor, Tensor]:
    """E[X] = Σ P(X > k) and Var from E[X²] = Σ (2k + 1) P(X > k), counted from each forecast's least: both (*batch)."""
    low, high = count_range(forecast)
    first, second = torch.zeros_like(low), torch.zeros_like(low)
    for k in counts_within(low, high):
        above = normal.cdf(-zscore(forecast, k))
        first, second = first + above.sum(0), second + ((2 * (k - low) + 1) * above).sum(0)
    return low + first, second - first.square()


def count_range(forecast: Distribution) -> tuple[Tensor, Tensor]:
    """The least and the largest count that matter of each forecast: both (*batch)."""
    far = torch.full(forecast.batch_shape, COUNTED, dtype=torch.float64, device=device_of(forecast))
    return from_zscore(forecast, -far), from_zscore(forecast, far)


def counts_within(low: Tensor, high: Tensor) -> Iterator[Tensor]:
    """The counts from low to high, both (*batch), and beyond where others have more: (m, *batch), some at a time."""
    most = int((high - low).max()) if low.numel() else -1
    steps = torch.arange(most + 1, dtype=torch.float64, device=low.device)
    for some in steps.split(max(1, AT_ONCE // max(1, low.numel()))):
        yield low + some.reshape(-1, *(1 for _ in low.shape))

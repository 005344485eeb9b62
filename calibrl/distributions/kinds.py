"""What kind of forecast a distribution is, in which dtype and where; what ours have in common; counts of torch."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Self, TypeGuard

import torch
from scipy.special import betainc
from torch import Size, Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Gumbel,
    Independent,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    TransformedDistribution,
)

from calibrl.arrays import Array, as_tensor, off_mps, returns_what_was_given
from calibrl.errors import CalibrlError
from calibrl.kernels import normal


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
    if y.numel() != shape.numel():
        raise CalibrlError(f"{tuple(y.shape)} labels for {shape.numel()} rows; of one-hot labels give y.argmax(1)")
    return forecast.probs.reshape(shape.numel(), *forecast.param_shape[len(shape) :]), y.reshape(-1)


def is_discrete(forecast: Distribution) -> bool:
    """Whether outcomes are whole numbers (counts).

    Parameters
    ----------
    forecast : Distribution

    Returns
    -------
    bool
        False also where the forecast does not say what outcomes are possible.
    """
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


def answer_off_mps(answer: Any) -> Any:
    """What a network answered, tensors or a distribution, where float64 can be had: see `off_mps`."""
    if isinstance(answer, Tensor):
        return off_mps(answer)
    if isinstance(answer, (tuple, list)):
        return type(answer)(map(answer_off_mps, answer))
    if isinstance(answer, Distribution) and device_of(answer).type == "mps":
        found = copy.copy(answer)
        vars(found).update({name: answer_off_mps(part) for name, part in vars(answer).items()})
        return found
    return answer


def take_rows(forecast: Distribution, rows: Any) -> Distribution:
    """Some of the forecasts of batch shape (n, …): a number, a slice, numbers or a mask of the n; or (rows, column)."""
    if isinstance(forecast, Scored):
        return forecast._take(rows) if isinstance(rows, tuple) else forecast[rows]
    found, lead = copy.copy(forecast), len(forecast.batch_shape)
    for name, part in vars(forecast).items():
        # torch's distributions keep what they are made of in the shape of the batch.
        if isinstance(part, Tensor):
            setattr(found, name, part.expand(*forecast.batch_shape, *part.shape[lead:])[rows])
        elif isinstance(part, Distribution):
            setattr(found, name, take_rows(part, rows))
    found._batch_shape = torch.empty(forecast.batch_shape, device="meta")[rows].shape
    return found


class Scored(Distribution, ABC):
    """A distribution known by its z-scores z = Φ⁻¹(F(y)), which do not round to 0 or 1 as probabilities do.

    What our own distributions share: each says how outcomes and z-scores belong together; CDF and quantiles follow.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (torch's own protocol)

    @abstractmethod
    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(F(y)) in float64. y: (…, *batch)."""

    @abstractmethod
    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(Y < y)) in float64, less than `zscore` on an atom. y: (…, *batch)."""

    @abstractmethod
    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(Φ(z)) in float64. z: (…, *batch)."""

    @property
    def breaks(self) -> Tensor:
        """z-scores where the quantile function bends, for quadrature to stop at: (k, …), broadcast to the batch."""
        return usual_breaks(self)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance in float64, both (*batch)."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """Expected outcome: (*batch)."""
        return self._moments()[0].to(self._dtype)

    @property
    def variance(self) -> Tensor:
        """Variance of the outcome: (*batch)."""
        return self._moments()[1].to(self._dtype)

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of the outcome: (*batch); also where float16 has no number for its square."""
        try:
            return self._moments()[1].sqrt().to(self._dtype)
        except NotImplementedError:
            return self.variance.sqrt()

    @property
    def median(self) -> Tensor:
        """The outcome that is exceeded as often as not: (*batch)."""
        return self.icdf(torch.tensor(0.5, dtype=self._dtype, device=device_of(self)))

    @returns_what_was_given
    def quantiles(self, levels: Array) -> Tensor:
        """Quantiles of every forecast at each of k levels.

        Parameters
        ----------
        levels : array (k,)
            Probabilities in [0, 1].

        Returns
        -------
        array (k, *batch)
            In the forecast's dtype; NumPy where levels are a list or NumPy's.
        """
        at = as_tensor(levels, "levels").double().to(device_of(self)).reshape(-1, *(1 for _ in self.batch_shape))
        return self.icdf(at).to(self._dtype)

    def __getitem__(self, rows: Any) -> Self:
        """Some of the forecasts of batch shape (n, …): a number, a slice, numbers or a mask of the n."""
        if isinstance(rows, tuple) or not self.batch_shape:
            raise CalibrlError(f"forecasts of batch shape {tuple(self.batch_shape)} are picked by row; give one index")
        return self._take(rows)

    def _take(self, rows: Any) -> Self:
        raise NotImplementedError

    def __len__(self) -> int:
        """n, the number of rows forecast."""
        return self.batch_shape[0] if self.batch_shape else 0

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch {tuple(self.batch_shape)})"

    def sample(self, sample_shape: Any = Size()) -> Tensor:
        """Draws of shape (*sample_shape, *batch)."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    @returns_what_was_given
    def cdf(self, value: Array) -> Tensor:
        """P(Y ≤ value), of the shape of `value`: (…, *batch)."""
        value = self._asked(value)
        return normal.cdf(self.zscore(value)).to(self._dtype_with(value))

    @returns_what_was_given
    def icdf(self, value: Array) -> Tensor:
        """The quantile at probability `value`, (…, *batch); at 0 and 1 the ends of what is possible, if any."""
        value, dtype = as_tensor(value), self._dtype_with(self._asked(value))
        outside = (value < 0) | (value > 1)
        if bool(outside.any()):
            raise CalibrlError(f"probability {value[outside][0].item():g} is outside [0, 1]; ask for a quantile inside")
        z = normal.finite_quantile(value)
        z = z.expand(torch.broadcast_shapes(z.shape, self.batch_shape))
        found = self.from_zscore(z)
        if bool(((value == 0) | (value == 1)).any()):
            low, high = self._ends()
            at = value.to(found.device)
            found = torch.where(at == 0, low.to(found), torch.where(at == 1, high.to(found), found))
        return found.to(dtype)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """As `ends_of`."""
        return _ends_of_support(self)

    @property
    def _dtype(self) -> torch.dtype:
        """What the forecast's own numbers are held in."""
        return dtype_of(self)

    def _asked(self, value: Array) -> Tensor:
        """`value` as a tensor that fits the batch; Python's numbers take the forecast's dtype, as in NumPy."""
        given = as_tensor(value)
        try:
            torch.broadcast_shapes(given.shape, self.batch_shape)
        except RuntimeError:
            raise CalibrlError(
                f"values of shape {tuple(given.shape)} do not fit forecasts of batch shape {tuple(self.batch_shape)}; "
                "quantiles(levels) gives each of k levels for every forecast, (k, *batch)"
            ) from None
        return given if isinstance(value, Tensor) or hasattr(value, "dtype") else given.to(self._dtype)

    def _dtype_with(self, value: Tensor) -> torch.dtype:
        """What an answer about `value` is given in."""
        return torch.promote_types(self._dtype, value.dtype)


def ends_of(forecast: Distribution) -> tuple[Tensor, Tensor]:
    """The least and the greatest outcome that is possible at all, which no map moves: both broadcast to the batch."""
    if isinstance(forecast, Scored):
        return forecast._ends()
    if isinstance(forecast, MixtureSameFamily):
        every = forecast.component_distribution
        low, high = (end.expand(every.batch_shape) for end in ends_of(every))
        return low.amin(-1), high.amax(-1)
    if isinstance(forecast, TransformedDistribution) and not isinstance(forecast, Gumbel):
        ends = torch.stack(torch.broadcast_tensors(*ends_of(forecast.base_dist)))
        for transform in forecast.transforms:
            ends = transform(ends.reshape(2, *(1 for _ in forecast.batch_shape[ends.dim() - 1 :]), *ends.shape[1:]))
        return ends.amin(0), ends.amax(0)
    return _ends_of_support(forecast)


def _ends_of_support(forecast: Distribution) -> tuple[Tensor, Tensor]:
    try:
        support: Any = forecast.support
    except NotImplementedError:
        support = None
    low, high = getattr(support, "lower_bound", -torch.inf), getattr(support, "upper_bound", torch.inf)
    low, high = (torch.as_tensor(end, device=device_of(forecast)).double() for end in (low, high))
    return low, high


def usual_breaks(forecast: Distribution) -> Tensor:
    """Where `from_zscore` stops, because a float64 probability cannot go on, and where a Laplace has its peak: (4,)."""
    bends = [normal.LOWEST_Z, 0.0, normal.HIGHEST_Z, -normal.LOWEST_Z]
    return torch.tensor(bends, dtype=torch.float64, device=device_of(forecast))


# Counts of torch, which have no CDF: both tails are summed, each on its own, so that neither rounds to nothing.

TABLE_LIMIT = 50_000_000
"""Entries of the largest probability table built for a count distribution that has no CDF."""


def count_zscore(forecast: Distribution, y: Tensor) -> Tensor:
    """Φ⁻¹(P(Y ≤ y)): -inf below 0, inf where nothing is left above. y: (…, *batch)."""
    k = y.double().floor()
    if not k.numel():
        return k
    if isinstance(forecast, Poisson):
        rate, after = forecast.rate.double(), k.clamp(min=0) + 1
        z = _certain(torch.special.gammaincc(after, rate), torch.special.gammainc(after, rate))
    elif _is_waiting(forecast):
        z = _certain(*_waiting_tails(forecast, k.nan_to_num(0).clamp(min=0)))
    else:
        table = _zscore_table(forecast)
        index = k.nan_to_num(0).clamp(0, len(table) - 1).long()
        z = table.gather(0, index.reshape(-1, *forecast.batch_shape)).reshape(k.shape)
    return torch.where(k.isnan(), torch.nan, torch.where(k < 0, -torch.inf, z))


def _is_waiting(forecast: Distribution) -> TypeGuard[NegativeBinomial]:
    """Whether scipy has the tails: of a negative binomial, unless gradients are wanted, which a table carries."""
    if not isinstance(forecast, NegativeBinomial):
        return False
    wanted = forecast.probs.requires_grad or forecast.total_count.requires_grad
    return not (torch.is_grad_enabled() and wanted)


def _waiting_tails(forecast: NegativeBinomial, k: Tensor) -> tuple[Tensor, Tensor]:
    """P(Y ≤ k) = I_{1-p}(r, k + 1) and P(Y > k) = I_p(k + 1, r), each with its own digits."""
    r, p, after = (part.detach().double().cpu().numpy() for part in (forecast.total_count, forecast.probs, k + 1))
    return torch.as_tensor(betainc(r, after, 1 - p)).to(k), torch.as_tensor(betainc(after, r, p)).to(k)


def _certain(lower: Tensor, upper: Tensor) -> Tensor:
    """Φ⁻¹ of a count's probability, infinite where nothing is left above it: no map may bring mass there."""
    z = normal.quantile_of(lower, upper).clamp(normal.LOWEST_Z, -normal.LOWEST_Z)
    return torch.where(upper > 0, z, torch.inf)


def count_from_zscore(forecast: Distribution, z: Tensor) -> Tensor:
    """The least count k with F(k) ≥ Φ(z)."""
    z = z.double().clamp(max=-normal.LOWEST_Z)
    if not z.numel():
        return z
    if not isinstance(forecast, Poisson) and not _is_waiting(forecast):
        table = _zscore_table(forecast)
        rows = z.reshape(-1, *forecast.batch_shape).movedim(0, -1).contiguous()
        found = torch.searchsorted(table.movedim(0, -1).contiguous(), rows).movedim(-1, 0)
        return found.clamp(max=len(table) - 1).double().reshape(z.shape)
    low = torch.full_like(z, -1.0)
    high = forecast.mean.double().expand(z.shape) + 10
    while bool((count_zscore(forecast, high) < z).any()):
        high = torch.where(count_zscore(forecast, high) < z, 2 * high, high)
    high = high.ceil()
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        below = count_zscore(forecast, middle) < z
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def _zscore_table(forecast: Distribution) -> Tensor:
    """Φ⁻¹(F(k)) for k = 0, 1, … to where no mass is left: (top + 1, *batch)."""
    support: Any = forecast.support
    ceiling = getattr(support, "upper_bound", None)
    if ceiling is not None:
        last = torch.as_tensor(ceiling, device=device_of(forecast)).double()
        mass = _masses(forecast, 0, int(last.max()), last)
    else:
        mass, top = _masses(forecast, 0, 64), 64
        # Before a far peak masses vanish, too.
        while float(mass[-1].max()) > 1e-280 or float(mass.sum(0).min()) < 0.5:
            mass, top = torch.cat([mass, _masses(forecast, top + 1, 2 * top)]), 2 * top
    lower = mass.cumsum(0)
    upper = mass.flip(0).cumsum(0).flip(0) - mass
    return _certain(lower, upper)


def _masses(forecast: Distribution, first: int, top: int, last: Tensor | None = None) -> Tensor:
    """P(Y = first), …, P(Y = top): (top - first + 1, *batch), zero beyond each forecast's own last count."""
    if (top + 1) * max(1, forecast.batch_shape.numel()) > TABLE_LIMIT:
        raise CalibrlError(
            f"counts up to {top} over {forecast.batch_shape.numel()} {type(forecast).__name__} forecasts are too many "
            "to sum; use a Normal with calibrl.Rounded for counts this large"
        )
    k = torch.arange(first, top + 1, dtype=torch.float64, device=device_of(forecast))
    k = k.reshape(-1, *(1 for _ in forecast.batch_shape)).expand(-1, *forecast.batch_shape)
    if last is None:
        return forecast.log_prob(k).double().exp()
    return torch.where(k <= last, forecast.log_prob(torch.minimum(k, last)).double().exp(), 0.0)

"""Forecasts given as samples (MC dropout, ensembles) or as quantiles (any quantile regressor)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import ndtri, stdtrit
from torch import Size, Tensor
from torch.distributions import constraints

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions.kinds import Scored
from calibrl.errors import CalibrlError
from calibrl.kernels import normal

_TAIL = torch.logspace(0, -3, 19, dtype=torch.float64)
"""Where the knots of a tail that ends somewhere stand, as shares of its length in z, the farthest first."""


class Interpolated(Scored):
    """A quantile function that is piecewise straight in z, with Gaussian tails beyond its ends.

    knots: (*batch, k) ascending, ties allowed (they are atoms); levels z: (k,); tail: (*batch,) the scale at
    which each straight tail goes on, lower and upper.
    """

    support = constraints.real
    has_rsample = True

    def __init__(self, knots: Tensor, levels: Tensor, low_tail: Tensor, high_tail: Tensor) -> None:
        self._knots = knots.contiguous()
        self._levels = levels
        self._low_tail = low_tail
        self._high_tail = high_tail
        super().__init__(Size(knots.shape[:-1]), validate_args=False)

    @property
    def breaks(self) -> Tensor:
        """z-scores of the knots, where the quantile function bends: (k,)."""
        return self._levels

    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(F(y)) in float64."""
        return self._score(y, right=True)

    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(Y < y)) in float64: less than `zscore` on an atom."""
        return self._score(y, right=False)

    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(Φ(z)) in float64."""
        z = z.double().expand(torch.broadcast_shapes(z.shape, self.batch_shape))
        index = torch.searchsorted(self._levels, z.contiguous(), right=True).sub(1).clamp(0, len(self._levels) - 2)
        start, end = self._pick(index), self._pick(index + 1)
        z_start, z_end = self._levels[index], self._levels[index + 1]
        t = ((z - z_start) / (z_end - z_start)).clamp(0, 1)
        # Not clamp: on an end itself the tail's slope would count beside that of the piece.
        low = (self._levels[0] - z).relu() * self._low_tail
        high = (z - self._levels[-1]).relu() * self._high_tail
        return start + t * (end - start) - low + high

    @returns_what_was_given
    def log_prob(self, value: Array) -> Tensor:
        """log-density of the interpolated distribution; +inf on an atom."""
        value = as_tensor(value)
        z = self.zscore(value)
        index = torch.searchsorted(self._levels, z.contiguous(), right=True).sub(1).clamp(0, len(self._levels) - 2)
        width = self._pick(index + 1) - self._pick(index)
        slope = width / (self._levels[index + 1] - self._levels[index])
        slope = torch.where(z < self._levels[0], self._low_tail, slope)
        slope = torch.where(z > self._levels[-1], self._high_tail, slope)
        return (normal.log_density(z) - torch.log(slope)).to(self._dtype_with(value))

    def rsample(self, sample_shape: Any = Size()) -> Tensor:
        """Draws of shape (*sample_shape, *batch)."""
        shape = self._extended_shape(Size(sample_shape))
        return self.from_zscore(torch.randn(shape, dtype=torch.float64, device=self._knots.device)).to(self._dtype)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Exact: on each piece y = a + b z, and ∫φ, ∫zφ and ∫z²φ have closed forms."""
        zero = self._levels.new_zeros(1)
        edges = torch.cat([zero - torch.inf, self._levels, zero + torch.inf])
        density = torch.exp(normal.log_density(edges))
        mass = normal.cdf(edges).diff()
        first = -density.diff()
        second = mass - torch.where(edges.isfinite(), edges * density, 0.0).diff()
        wide, z = self._knots.double().movedim(-1, 0), self._levels
        flat = [-1, *(1 for _ in self.batch_shape)]
        slope = torch.cat([self._low_tail[None], wide.diff(dim=0) / z.diff().reshape(flat), self._high_tail[None]])
        start = torch.cat([wide[:1], wide])
        offset = start - slope * torch.cat([z[:1], z]).reshape(flat)
        mass, first, second = mass.reshape(flat), first.reshape(flat), second.reshape(flat)
        mean = (offset * mass + slope * first).sum(0)
        centred = offset - mean
        return mean, (centred.square() * mass + 2 * centred * slope * first + slope.square() * second).sum(0)

    def moments_at(self, z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of F⁻¹(Φ(z)) over nodes z (m,) with weights (m,) that sum to one: both (*batch).

        Straight between knots, F⁻¹(Φ(z)) is a sum of knots and tails with factors that are the same for every
        forecast of the batch: they are worked out once, and each forecast costs a product of small matrices.
        """
        count = len(self._levels)
        index = torch.searchsorted(self._levels, z, right=True).sub(1).clamp(0, count - 2)
        start, end = self._levels[index], self._levels[index + 1]
        t = ((z - start) / (end - start)).clamp(0, 1)
        factor = z.new_zeros(len(z), count + 2)
        row = torch.arange(len(z), device=z.device)
        factor[row, index], factor[row, index + 1] = 1 - t, t
        factor[:, -2] = (z - self._levels[0]).clamp(max=0)
        factor[:, -1] = (z - self._levels[-1]).clamp(min=0)
        tails = torch.stack([self._low_tail, self._high_tail], -1)
        parts = torch.cat([self._knots.double(), tails], -1)
        mean = parts @ (weight @ factor)
        # Knots around their mean, so that a narrow forecast far from zero keeps its digits.
        centred = torch.cat([self._knots.double() - mean.unsqueeze(-1), tails], -1)
        return mean, ((centred @ (factor.T @ (weight.unsqueeze(-1) * factor))) * centred).sum(-1)

    def crps_at(self, y: Tensor) -> Tensor:
        """∫ F² below y and ∫ (1 - F)² above it, exact: F = Φ(z) is straight in z, and ∫ Φ² has a closed form. (*batch).

        Pieces, from -∞ to the first knot and so on, are summed up to that which holds the outcome, and down to it.
        """
        z, place, step = self.zscore(y).reshape(-1), self._levels, max(1, 4_000_000 // len(self._levels))
        lower, upper = _integral_of_square(place), _integral_of_square(-place)
        rise = self._knots.double().diff(dim=-1)
        # Beyond the first and the last knot nothing is left of one of the two.
        start, end = torch.cat([lower.new_zeros(1), lower]), torch.cat([upper, upper.new_zeros(1)])
        slopes = torch.cat([self._low_tail[..., None], rise / place.diff(), self._high_tail[..., None]], -1)
        slopes, scores = slopes.reshape(-1, len(place) + 1), []
        for here, slope in zip(z.split(step), slopes.split(step), strict=True):
            piece = torch.searchsorted(place, here.nan_to_num(0.0), right=True)
            none = torch.zeros_like(slope[:, :1])
            below = torch.cat([none, (slope[:, :-1] * start.diff()).cumsum(-1)], -1)
            above = torch.cat([(slope[:, 1:] * -end.diff()).flip(-1).cumsum(-1).flip(-1), none], -1)
            whole, own = (part.gather(-1, piece[:, None])[:, 0] for part in (below + above, slope))
            part = _integral_of_square(here) - start[piece] + _integral_of_square(-here) - end[piece]
            scores.append(whole + own * part)
        return torch.cat(scores).reshape(y.shape)

    @property
    def _dtype(self) -> torch.dtype:
        return self._knots.dtype

    def _score(self, y: Tensor, *, right: bool) -> Tensor:
        y = y.double().expand(torch.broadcast_shapes(y.shape, self.batch_shape))
        knots = self._knots.double()
        # searchsorted wants the values of each forecast side by side in the last dimension.
        rows = self._side_by_side(y).contiguous()
        found = torch.searchsorted(knots, rows, right=right).sub(1)
        index = found.clamp(0, knots.shape[-1] - 2)
        start, end = knots.gather(-1, index), knots.gather(-1, index + 1)
        width = end - start
        # On an atom the whole step lies on one side: behind a value that was passed, before one that was not.
        step = ((found >= 0) & (rows >= end)).double()
        t = torch.where(width > 0, (rows - start) / torch.where(width > 0, width, 1.0), step).clamp(0, 1)
        z = self._levels[index] + t * (self._levels[index + 1] - self._levels[index])
        low = (knots[..., :1] - rows).relu() / self._low_tail.unsqueeze(-1)
        high = (rows - knots[..., -1:]).relu() / self._high_tail.unsqueeze(-1)
        z = torch.where(rows.isnan(), torch.nan, z - low + high)
        return z.movedim(-1, 0).reshape(y.shape)

    def _pick(self, index: Tensor) -> Tensor:
        """knots[…, index] for an index of shape (…, *batch)."""
        found = self._knots.double().gather(-1, self._side_by_side(index))
        return found.movedim(-1, 0).reshape(index.shape)

    def _side_by_side(self, values: Tensor) -> Tensor:
        """(…, *batch) → (*batch, m): all values of a forecast in the last dimension."""
        lead = values.shape[: values.dim() - len(self.batch_shape)]
        return values.reshape(lead.numel(), *self.batch_shape).movedim(0, -1)


class Empirical(Interpolated):
    """The distribution that a set of samples describes.

    Between the sorted samples, which sit at levels i/(s + 1), the quantile function is interpolated; beyond them it
    goes on with a Gaussian tail, as wide as the samples' spread and number say, so that no outcome is impossible. An
    outcome drawn as the samples were lies below the least of them once in s + 1 times, and the levels say so. Repeated
    samples (closed days, counts) are atoms: ask for randomised PITs there. Moments and scores are those of this law,
    a little wider than the samples' own, which are `samples.mean(0)` and so on.

    Parameters
    ----------
    samples : array
        (s, *batch): s ≥ 2 finite draws of each forecast.
    lowest : float, optional
        No outcome is less: what the tail would put below is put there. If not given, 0 where no sample of the whole
        batch is negative, else nothing; -inf where outcomes may be negative though no sample is.

    Examples
    --------
    >>> import calibrl as cal
    >>> rain = cal.Empirical([[0.0], [0.5], [3.0]])
    >>> rain.cdf([3.0]).item(), rain.icdf([0.01]).item()
    (0.75, 0.0)
    """

    def __init__(self, samples: Array, *, lowest: float | None = None) -> None:
        drawn = as_tensor(samples, "samples")
        if drawn.dim() == 0 or len(drawn) < 2:
            raise CalibrlError(f"samples have shape {tuple(drawn.shape)}; expected (s, n) or (s, n, d) with s ≥ 2")
        if not bool(drawn.isfinite().all()):
            raise CalibrlError("samples hold NaN or infinite values; drop those draws or forecasts")
        if lowest is None:
            lowest = -math.inf if bool((drawn < 0).any()) else 0.0
        if bool((drawn < lowest).any()):
            raise CalibrlError(f"sample {drawn.min().item():g} is below lowest={lowest:g}; expected none there")
        count = len(drawn)
        z = normal.quantile(torch.arange(1, count + 1, dtype=torch.float64, device=drawn.device) / (count + 1))
        spread = torch.maximum(_widened(count) * _deviation(drawn), _narrowest(drawn))
        knots = drawn.sort(0).values
        if lowest > -math.inf:
            # The tail as knots at levels that all forecasts share, to where float64 ends.
            far = (z[0] - normal.LOWEST_Z) * _TAIL.to(z)
            tail = knots[0].double() - far.reshape(-1, *(1 for _ in drawn.shape[1:])) * spread
            knots, z = torch.cat([tail.clamp(min=lowest).to(knots), knots]), torch.cat([z[0] - far, z])
        self.samples, self.lowest = drawn, lowest
        super().__init__(knots.movedim(0, -1), z, spread, spread)

    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(Φ(z)) in float64."""
        return super().from_zscore(z).clamp(min=self.lowest)

    def _ends(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.lowest), torch.tensor(math.inf)

    def _take(self, rows: Any) -> Empirical:
        return Empirical(self.samples.movedim(0, -1)[rows].movedim(-1, 0), lowest=self.lowest)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Empirical:
        """The same forecast, repeated to `batch_shape`."""
        return Empirical(_expanded(self.samples, Size(batch_shape)), lowest=self.lowest)

    def __repr__(self) -> str:
        return f"Empirical({len(self.samples)} samples, batch {tuple(self.batch_shape)})"


class Quantiles(Interpolated):
    """The distribution that a set of quantiles describes.

    Straight in z between the levels, so that two quantiles make a Gaussian. Beyond the end levels it goes on with the
    slope from the median to the end: two neighbouring levels say too little, and too noisily, about a tail.
    Quantiles that cross are sorted, with a warning that says how many did.

    Parameters
    ----------
    values : array
        (k, *batch): quantiles, rising along the first dimension.
    levels : array
        (k,): their probabilities, ascending in (0, 1), k ≥ 2.

    Examples
    --------
    >>> import calibrl as cal
    >>> forecast = cal.Quantiles([[8.0], [10.0], [14.0]], [0.1, 0.5, 0.9])
    >>> forecast.cdf([10.0]).item(), forecast.icdf(0.9).item()
    (0.5, 14.0)
    """

    def __init__(self, values: Array, levels: Array) -> None:
        knots = as_tensor(values, "values")
        at = as_tensor(levels, "levels").double().to(knots.device)
        if at.dim() != 1 or len(at) < 2 or knots.shape[:1] != at.shape:
            raise CalibrlError(
                f"{tuple(knots.shape)} quantile values do not fit {tuple(at.shape)} levels; "
                "expected values (k, n) or (k, n, d) and levels (k,), k ≥ 2"
            )
        if not bool(((at > 0) & (at < 1)).all()) or not bool((at.diff() > 0).all()):
            raise CalibrlError(f"quantile levels {at.tolist()} must rise and lie strictly between 0 and 1")
        if not bool(knots.isfinite().all()):
            raise CalibrlError("quantile values hold NaN or infinite numbers; drop those forecasts")
        crossed = (knots.diff(dim=0) < 0).any(0)
        if bool(crossed.any()):
            warnings.warn(
                f"quantiles of {float(crossed.double().mean()):.2g} of all forecasts cross (a higher level has a lower "
                "value) and were sorted; if these are many, look at the model",
                stacklevel=2,
            )
            knots = knots.sort(0).values
        z = normal.quantile(at)
        wide = knots.double()
        whole = torch.maximum((wide[-1] - wide[0]) / (z[-1] - z[0]), _narrowest(wide))
        self.values = knots  # first: its dtype is the forecast's
        self.levels = at
        super().__init__(knots.movedim(0, -1), z, whole, whole)
        if z[0] < 0 < z[-1]:
            low, high = ((wide[end] - self.from_zscore(0 * z[0])) / z[end] for end in (0, -1))
            self._low_tail, self._high_tail = torch.where(low > 0, low, whole), torch.where(high > 0, high, whole)

    def _take(self, rows: Any) -> Quantiles:
        return Quantiles(self.values.movedim(0, -1)[rows].movedim(-1, 0), self.levels)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Quantiles:
        """The same forecast, repeated to `batch_shape`."""
        return Quantiles(_expanded(self.values, Size(batch_shape)), self.levels)

    def __repr__(self) -> str:
        return f"Quantiles({len(self.levels)} levels, batch {tuple(self.batch_shape)})"


@dataclass(frozen=True)
class SharedShape:
    """What quantile forecasts of one model have in common, and how far each of them is drawn towards it.

    Models of single quantiles, fitted one by one, err one by one: a row's outer quantiles are little but noise where
    few rows taught them. The median and the distance between the outer quantiles stay each forecast's own; how the
    quantiles lie within that distance is, in part, what it is on average over forecasts.

    Parameters
    ----------
    shape : Tensor (k, 1) or (k, 1, d)
        Distances of the quantiles from the median, in units of that between the outer ones.
    share : float
        How far, from 0 (not at all) to 1.
    """

    shape: Tensor
    share: float

    @classmethod
    def learn(cls, forecast: Quantiles, y: Tensor) -> SharedShape:
        """The shape of forecasts of batch shape (n,) or (n, d), and the share that outcomes y of that shape ask for.

        The share has the least CRPS; few rows leave it near a half, which costs good quantiles hardly anything.
        """
        values, median = forecast.values.double(), forecast.from_zscore(forecast.breaks.new_zeros(()))
        width = values[-1] - values[0]
        square = (width * width).sum(0, keepdim=True)
        shape = ((values - median) * width).sum(1, keepdim=True) / torch.where(square > 0, square, 1.0)
        usual, n = float(cls(shape, 0.5)(forecast).crps_at(y.double()).nanmean()), int((~y.isnan()).sum())

        def loss(share: float) -> float:
            crps = float(cls(shape, share)(forecast).crps_at(y.double()).nanmean())
            return n * crps / max(usual, 1e-300) + 2 * (share - 0.5) ** 2

        return cls(shape, min((0.0, 0.25, 0.5, 0.75, 1.0), key=loss))

    def __call__(self, forecast: Quantiles) -> Quantiles:
        """The forecasts, drawn towards the shape."""
        values, median = forecast.values.double(), forecast.from_zscore(forecast.breaks.new_zeros(()))
        common = median + (values[-1] - values[0]) * self.shape.to(values)
        return Quantiles(torch.lerp(values, common, self.share).sort(0).values.to(forecast.values), forecast.levels)


def _integral_of_square(z: Tensor) -> Tensor:
    """∫ Φ² up to z."""
    p, density = normal.cdf(z), torch.exp(normal.log_density(z))
    return z * p.square() + 2 * density * p - normal.cdf(math.sqrt(2) * z) / math.sqrt(math.pi)


def _widened(count: int) -> float:
    """How much wider than Gaussian a tail beyond so many samples is: their own spread is known only so well.

    Of Gaussian samples, Student's t says where the next one falls: the tail rises as fast as t does between the
    level of the last sample and a quarter of what lies beyond it.
    """
    last, beyond = 1 / (count + 1), 0.25 / (count + 1)
    rise = stdtrit(count - 1, beyond) - stdtrit(count - 1, last)
    return float(math.sqrt(1 + 1 / count) * rise / (ndtri(beyond) - ndtri(last)))


def _expanded(values: Tensor, batch_shape: Size) -> Tensor:
    """Values of shape (k, *batch) repeated to (k, *batch_shape)."""
    extra = len(batch_shape) - (values.dim() - 1)
    return values.reshape(len(values), *(1 for _ in range(extra)), *values.shape[1:]).expand(-1, *batch_shape)


def _deviation(values: Tensor) -> Tensor:
    """The standard deviation of values (k, *batch), also where its square is beyond float64: (*batch)."""
    size = values.double().abs().amax(0)
    size = torch.where(size > 0, size, 1.0)
    return size * (values / size).std(0)


def _narrowest(values: Tensor) -> Tensor:
    """The smallest width of a tail beyond values (k, *batch), where these are all the same: (*batch)."""
    size = values.double().abs().amax(0).clamp(max=1.0)
    return 1e-9 * torch.where(size > 0, size, 1.0)

"""Maps through many points, a monotone spline in z with straight tails; the default map among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from calibrl.kernels import normal
from calibrl.maps.base import Map, pick, rank
from calibrl.maps.columns import Column, Floats

_NO_KNOTS = torch.tensor([-1.0, 1.0], dtype=torch.float64)
_UNIT_SLOPES = torch.ones(2, dtype=torch.float64)


class _Bin(NamedTuple):
    """The spline piece each value falls in; every field has the values' shape."""

    z: Tensor
    s: Tensor
    width: Tensor
    height: Tensor
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Spline(Map):
    """A monotone rational-quadratic spline through (z_k, s_k) with slopes d_k, straight beyond its ends.

    One formula gives value, inverse and slope exactly (Gregory & Delbourgo, 1982), the density it implies
    is continuous, and beyond the evidence the base forecast's own tail goes on, shifted and stretched:
    a straight line in z.

    Parameters
    ----------
    z, s : Tensor (*columns, k)
        Knots, strictly ascending: z-scores before and after.
    d : Tensor (*columns, k)
        Slopes at the knots, positive.
    """

    kind: ClassVar[str] = "spline"
    STRICT: ClassVar[tuple[str, ...]] = ("z", "s")
    POSITIVE: ClassVar[tuple[str, ...]] = ("d",)
    LIKE: ClassVar[tuple[str, ...]] = ("z", "s", "d")
    AXES: ClassVar[int] = 1
    z: Tensor = _NO_KNOTS
    s: Tensor = _NO_KNOTS
    d: Tensor = _UNIT_SLOPES

    def check(self) -> None:
        """Raise a ValueError for knots that no fit gives."""
        super().check()
        if self.z.shape[-1] < 2:
            raise ValueError("it has one knot, and needs two")

    @property
    def breaks(self) -> Tensor:
        return self.s.movedim(-1, 0)

    def _forward(self, z: Tensor) -> Tensor:
        piece = self._bin(z, self.z)
        inside = z.clamp(self.z[..., 0], self.z[..., -1])
        t = ((inside - piece.z) / piece.width).clamp(0, 1)
        chord = piece.height / piece.width
        bend = t * (1 - t)
        numerator = piece.height * (chord * t.square() + piece.left * bend)
        s = piece.s + numerator / (chord + (piece.left + piece.right - 2 * chord) * bend)
        return s + self._beyond(z, self.z, self.d)

    def _inverse(self, z: Tensor) -> Tensor:
        piece = self._bin(z, self.s)
        inside = z.clamp(self.s[..., 0], self.s[..., -1])
        rise = inside - piece.s
        chord = piece.height / piece.width
        bend = rise * (piece.left + piece.right - 2 * chord)
        a = piece.height * (chord - piece.left) + bend
        b = piece.height * piece.left - bend
        c = -chord * rise
        # The root of a t² + b t + c in the form that does not cancel. The discriminant is ≥ 0 on a
        # monotone piece; rounding may leave it a hair below.
        root = torch.sqrt((b.square() - 4 * a * c).clamp(min=0))
        t = (2 * c / (-b - root)).clamp(0, 1)
        return piece.z + t * piece.width + self._beyond(z, self.s, 1 / self.d)

    def _log_slope(self, z: Tensor) -> Tensor:
        piece = self._bin(z, self.z)
        t = ((z.clamp(self.z[..., 0], self.z[..., -1]) - piece.z) / piece.width).clamp(0, 1)
        chord = piece.height / piece.width
        bend = t * (1 - t)
        numerator = piece.right * t.square() + 2 * chord * bend + piece.left * (1 - t).square()
        denominator = chord + (piece.left + piece.right - 2 * chord) * bend
        return 2 * torch.log(chord) + torch.log(numerator) - 2 * torch.log(denominator)

    def _bin(self, value: Tensor, knots: Tensor) -> _Bin:
        """The piece of the spline whose `knots` enclose each value; ends serve the tails."""
        index = rank(knots, value.detach()).sub_(1).clamp_(0, knots.shape[-1] - 2)
        z, s, left = pick(self.z, index), pick(self.s, index), pick(self.d, index)
        after = index + 1
        return _Bin(z, s, pick(self.z, after) - z, pick(self.s, after) - s, left, pick(self.d, after))

    @staticmethod
    def _beyond(value: Tensor, knots: Tensor, slope: Tensor) -> Tensor:
        """The straight tails: how far a value lies outside the knots, times the end's slope."""
        # Not clamp: on an end itself its slope would count beside the spline's own.
        low = (knots[..., 0] - value).relu() * slope[..., 0]
        high = (value - knots[..., -1]).relu() * slope[..., -1]
        return high - low


# Making one from what was fitted.

Knots = tuple[Tensor, Tensor, Tensor]
"""z, s and slopes of one column's spline, (k,) each."""


def stacked(found: list[Knots], shape: tuple[int, ...]) -> Spline:
    """One spline for all columns, each with its own knots. shape: of the columns, () or (d,)."""
    most = max(len(knots[0]) for knots in found)
    padded = [_pad(knots, most) for knots in found]
    z, s, d = (torch.stack([knots[i] for knots in padded]) if shape else padded[0][i] for i in range(3))
    return Spline(z=z, s=s, d=d)


def with_tails(knots: Knots, low: float, high: float) -> Knots:
    """The knots that rise, their ends going on straight: a forecast's own tails, stretched by `low` and `high`."""
    if len(knots[0]) == 0:
        return no_knots()
    z, s, slope = rising(knots, gap=1e-9 * max(1.0, low, high))
    if len(z) == 1:
        return torch.cat([z, z + high]), torch.cat([s, s + 1]), torch.full((2,), 1 / high, dtype=torch.float64)
    slope = slope.clamp(1e-9, 1e9)
    slope[0], slope[-1] = 1 / low, 1 / high
    return z, s, slope


def rising(knots: Knots, *, gap: float) -> Knots:
    """The knots that rise above the one before: by more than a gap in z, and in s."""
    z, s, slope = knots
    if bool(((z.diff() > gap) & (s.diff() > 1e-9)).all()):
        return knots
    keep: list[int] = [0]
    at, height = z.tolist(), s.tolist()
    for i in range(1, len(at)):
        if at[i] - at[keep[-1]] > gap and height[i] - height[keep[-1]] > 1e-9:
            keep.append(i)
    return z[keep], s[keep], slope[keep]


def no_knots() -> Knots:
    """The identity's."""
    return _NO_KNOTS, _NO_KNOTS, _UNIT_SLOPES


def _pad(knots: Knots, most: int) -> Knots:
    """More knots along the upper tail, so that columns stack; the map stays the same."""
    z, s, slope = knots
    further = torch.arange(1, most - len(z) + 1, dtype=torch.float64)
    end = slope[-1]
    return torch.cat([z, z[-1] + further]), torch.cat([s, s[-1] + end * further]), torch.cat([slope, end + 0 * further])


# The default map: a shift and a scale once evidence insists on them, a kernel's shape once no Gaussian will do.

PRIOR_ROWS = 5.0
"""How many rows the belief "the forecast is right" is worth in shift and scale, once evidence speaks against it."""

UNLIKELY = 4.75
"""How far from N(0, 1), as χ² with two degrees of freedom, shift and scale must lie to be believed: chance in 9 % of
calibrated columns. Up to five rows it is 5 more, which chance exceeds less than once in a hundred."""

UNSHAPELY = 0.75
"""Anderson and Darling's statistic of standardised z beyond which their shape is believed: chance in one of 20."""

STEPS = np.linspace(-5.5, 5.5, 133)
"""Normal scores at which a map is held."""

HEAVY = 8.0
"""Twice the log-likelihood that a few wider outcomes must gain over one Gaussian to be believed."""

CUT = 2.0
"""Deviations at which outcomes are cut off for shift and scale: a Gaussian so fitted has about the least CRPS it can
have whatever the tails, where a plain standard deviation would widen every forecast for a few outliers' sake."""

KEPT_VARIANCE = 2 * ndtr(CUT) - 1 + 2 * CUT**2 * ndtr(-CUT) - 2 * CUT * math.exp(-(CUT**2) / 2) / math.sqrt(2 * math.pi)
"""What is left of a Gaussian's variance when outcomes beyond `CUT` are cut off there."""

EFFICIENCY = 0.8
"""How many rows of a plain standard deviation's each row of such a scale is worth."""


def smooth_knots(column: Column) -> Knots:
    """The spline of `fit_smooth` for one column."""
    n = column.effective
    if n == 0:
        return no_knots()
    mean, deviation = _robust_moments(column)
    shift, scale, shape = _believed(column, mean, deviation)
    tail, reach = _wider(column, mean, deviation)
    z, share = column.supported.numpy(), column.share.numpy()
    width = _widths(column, z)
    gaussians = [shift + scale * times * STEPS[::4] for times in ([1.0, reach] if tail > 0 else [1.0])]
    points = _positions(column, z, width, gaussians)

    # M, 1 - M and M′ at the knots, each exact in its own tail.
    plain = (points - shift) / scale
    lower, upper = ((1 - tail) * ndtr(side) + tail * ndtr(side / reach) for side in (plain, -plain))
    density = (1 - tail) * _gaussian(plain, scale) + tail * _gaussian(plain / reach, scale * reach)
    if shape > 0:
        below, above, slope = _kernel_sums(points, z, share, width)
        # The i-th of n outcomes lies at i/(n + 1): half an outcome is left for either side.
        below, above = (n * below + 0.5) / (n + 1), (n * above + 0.5) / (n + 1)
        lower, upper = shape * below + (1 - shape) * lower, shape * above + (1 - shape) * upper
        density = shape * slope * n / (n + 1) + (1 - shape) * density

    # The evidence ends with the last outcome; beyond, the straight tail takes over.
    inside = np.minimum(lower, upper) > (0.5 + 0.5 * shape) / (n + 1)
    s = normal.quantile_of(torch.from_numpy(lower[inside]), torch.from_numpy(upper[inside]))
    rise = torch.from_numpy(density[inside]) / torch.exp(normal.log_density(s))
    # An over-confident forecast's tail is stretched as its body is; never is a tail thinner than the forecast's.
    least = max(1.0, scale * (1 + (reach - 1) * min(1.0, tail * n)))
    low, high = (max(least, scale + shape * (outer - scale)) for outer in _outer_scales(column, z))
    return with_tails((torch.from_numpy(points[inside]), s, rise), low, high)


def _gaussian(at: Floats, scale: float) -> Floats:
    """The density of a Gaussian of that scale, `at` scales from its middle."""
    return np.exp(-0.5 * at**2 - normal.LOG_SQRT_2PI) / scale


def _believed(column: Column, mean: float, scale: float) -> tuple[float, float, float]:
    """The shift and scale to give the forecast, and how far to believe the kernel, 0 to 1."""
    n, share = column.effective, column.share.numpy()
    freedom = max(n - 1, 0.0)
    # Under N(0, 1) both are χ² with one degree of freedom: the scale's by Wilson and Hilferty's cube root.
    far = n * mean**2
    if freedom > 0.5:
        spread = 2 / (9 * EFFICIENCY * freedom)
        far += (scale ** (2 / 3) - 1 + spread) ** 2 / spread
    threshold = UNLIKELY + 5 * min(1.0, 5 / n) ** 2
    trust = max(0.0, 1 - (threshold / max(far, 1e-9)) ** 4)
    # A scale may be what is off, and the shift but noise, which costs four times as much as noise in the scale.
    steady = max(0.0, 1 - (4 * scale**2 / max(n * mean**2, 1e-9)) ** 6)
    pulled = math.sqrt((freedom * scale**2 + PRIOR_ROWS) / (freedom + PRIOR_ROWS))
    believed = trust * steady * n / (n + PRIOR_ROWS) * mean, pulled**trust

    # A shape takes more rows to see than a shift or a scale: at 40 rows it counts half.
    middle = share.cumsum() - share / 2
    level = ndtr((column.supported.numpy() - mean) / scale)
    unlike = n * float(share @ ((level - middle) ** 2 / (level * (1 - level) + 0.25 / n)))
    return *believed, n**2 / (n**2 + 1600) * max(0.0, 1 - (UNSHAPELY / max(unlike, 1e-9)) ** 2)


def _wider(column: Column, mean: float, scale: float) -> tuple[float, float]:
    """The share of outcomes, 0 to ½, that come from a Gaussian of another width, and how many times as wide it is."""
    n, share, tail, reach = column.effective, column.share.numpy(), 0.05, 3.0
    y = ((column.supported.numpy() - mean) / scale).clip(-30, 30)
    plain = _gaussian(y, 1.0)
    # Expectation and maximisation, the narrow Gaussian being known.
    for _ in range(8):
        wide = tail * _gaussian(y / reach, reach)
        among = share * wide / ((1 - tail) * plain + wide)
        count = float(among.sum())
        # As if 20 more rows had shown no such outcome: a tail that is too light costs less CRPS than one too heavy.
        tail, reach = min(count * n / (n + 20), 0.5), max(math.sqrt(float(among @ y**2) / count), 1.5)
    gain = 2 * n * float(share @ np.log(1 - tail + tail * _gaussian(y / reach, reach) / plain))
    return tail * max(0.0, 1 - (HEAVY / max(gain, 1e-9)) ** 2), reach


def _robust_moments(column: Column) -> tuple[float, float]:
    """Mean and standard deviation of z, outcomes more than `CUT` of them away counting as that far (Huber's second)."""
    n, z, share = column.effective, column.z.numpy(), column.share.numpy()
    if n < 1.5:
        return float(share @ z), 1.0
    low, mean, high = np.interp([0.25, 0.5, 0.75], column.level.numpy(), z)
    scale = max((high - low) / 1.349, 0.5)
    for _ in range(4):
        cut = z.clip(mean - CUT * scale, mean + CUT * scale)
        mean = float(share @ cut)
        scale = max(math.sqrt(float(share @ (cut - mean) ** 2) * n / (n - 1) / KEPT_VARIANCE), 1e-9)
    return mean, scale


def _widths(column: Column, z: Floats) -> Floats:
    """The kernel's width at each z-score (m,): 0.9 · spread · n^(-1/3), more where outcomes lie apart, as tails' do."""
    # A kernel of no width would put an infinite density on repeated outcomes.
    width = np.full(len(z), max(0.9 * column.scale, 0.01) * column.effective ** (-1 / 3))
    if column.count < 4:
        return width
    # How much faster z rises with its normal score than the middle does; 1 throughout for a Gaussian.
    score = ndtri(column.level.numpy())
    low, high = np.clip(score - 0.5, score[0], score[-1]), np.clip(score + 0.5, score[0], score[-1])
    rise = (np.interp(high, score, z) - np.interp(low, score, z)) / np.maximum(high - low, 1e-9)
    width *= np.maximum(rise / max(column.scale, 1e-9), 1.0)
    # Of very many outcomes only some are kept: no kernel is so narrow that the gaps between them show.
    gap = np.diff(z)
    return np.maximum(width, np.maximum(np.append(gap, 0), np.append(0, gap))) if column.count > len(z) else width


def _positions(column: Column, z: Floats, width: Floats, gaussians: list[Floats]) -> Floats:
    """Where to hold the smoothed map: at the evidence's quantiles, at those of Gaussians, and around the ends."""
    from_data = np.interp(ndtr(STEPS[16:-16]), column.level.numpy(), z)
    reach, aside = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]), float(width.min())
    parts = [from_data, from_data - aside, from_data + aside] if column.count < 100 else [from_data]
    ends = z[0] - reach * width[0], z[-1] + reach * width[-1]
    return np.sort(np.concatenate([*parts, *gaussians, *ends]))


def _kernel_sums(points: Floats, z: Floats, share: Floats, width: Floats) -> tuple[Floats, Floats, Floats]:
    """Σ share · Φ(d), Σ share · Φ(-d) and Σ share · φ(d)/h at each point, d being its distance to z over h.

    In NumPy, because torch splits a matrix of this size over threads and waits for them longer than it computes.
    """
    distance = (points[:, None] - z) / width
    # Beyond 12 widths a kernel is all below or all above, to the last digit of any sum it enters.
    near = np.abs(distance) < 12
    close = distance[near]
    below, above, slope = (distance > 0).astype(float), (distance < 0).astype(float), np.zeros_like(distance)
    below[near], above[near] = ndtr(close), ndtr(-close)
    slope[near] = np.exp(-0.5 * close**2 - normal.LOG_SQRT_2PI)
    return below @ share, above @ share, slope @ (share / width)


def _outer_scales(column: Column, z: Floats) -> tuple[float, float]:
    """How far the outer tenths of z are stretched: by the normal scores of the last outcomes that three support."""
    n, level = column.effective, column.level.numpy()
    if n < 100:
        return column.scale, column.scale
    far, near = ndtri(1 - 3 / (n + 1)), ndtri(0.9)
    at = np.interp([3 / (n + 1), 0.1, 0.9, 1 - 3 / (n + 1)], level, z)
    low, high = (at[1] - at[0]) / (far - near), (at[3] - at[2]) / (far - near)
    return max(column.scale, float(low)), max(column.scale, float(high))

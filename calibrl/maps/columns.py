"""Calibration evidence: per column, the sorted z-scores of outcomes under their forecasts, and weights of those that
were cut short.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri, ndtri_exp
from torch import Tensor

from calibrl.arrays import Array, as_tensor
from calibrl.errors import CalibrlError
from calibrl.kernels import normal
from calibrl.maps.base import Ranks, WeightedRanks

Floats = NDArray[np.float64]

BINS = 65_536
"""Counting into them takes as long as sorting a quarter as many values."""


def order_statistics(values: Floats, ranks: NDArray[np.int64], *, low: float, high: float) -> Floats:
    """np.sort(values)[ranks] exactly, several times sooner when few ranks are wanted. values: (n,) without NaN.

    The values are counted into even bins of [low, high], those outside into the bins at the ends; only the
    bins that hold a wanted rank are sorted. Whatever the bins the answer is exact: they decide the speed.
    """
    if len(values) < max(8 * len(ranks), BINS // 4):
        return np.sort(values)[ranks]
    # In place: asking for memory takes as long as the sums.
    scaled = values - low
    scaled *= BINS / (high - low)
    bin_of = scaled.clip(0, BINS - 1, out=scaled).astype(np.intp)
    count = np.bincount(bin_of, minlength=BINS)
    up_to = count.cumsum()
    home = np.searchsorted(up_to, ranks, side="right")
    wanted = np.zeros(BINS, dtype=bool)
    wanted[home] = True
    kept = np.sort(values[wanted.take(bin_of)])
    # What a rank loses when only the wanted bins are kept: everything in the bins below that are not.
    lost = (up_to - np.where(wanted, count, 0).cumsum())[home]
    return kept[ranks - lost]


FURTHEST = 1e6
"""Z-scores beyond are taken for this: nothing depends on how absurd they are, and splines stay computable."""

MOST_LOST = 0.01
"""Share of PITs that may be 0 or 1 to the last digit before it is said."""

MOST_POINTS = 512
"""Points kept per column. They lie evenly in z, so that the tails keep their detail."""


@dataclass(frozen=True)
class Column:
    """One column's evidence, thinned to at most `MOST_POINTS` order statistics.

    z: (m,) ascending; share: (m,) the part of all evidence each stands for, summing to 1; level: (m,) its
    rank as a probability i/(n+1); rank: (m,) i; count: the number of outcomes seen; effective: the size of
    an equally weighted sample that would know as much (Kish); count = effective without weights.
    """

    z: Tensor
    share: Tensor
    level: Tensor
    rank: Tensor
    count: int
    effective: float
    around: tuple[Tensor, Tensor, float] | None = None
    """Of rows that weigh differently: (m,) the weight below and above each, and of all, the heaviest's being 1."""

    @cached_property
    def scale(self) -> float:
        """min(sd, IQR / 1.349): the spread of z, which outliers do not stretch; 1 for a single point."""
        if self.count < 2:
            return 1.0
        mean = float((self.share * self.z).sum())
        deviation = float((self.share * (self.z - mean).square()).sum()) ** 0.5
        low, high = np.interp([0.25, 0.75], self.level.numpy(), self.z.numpy())
        quartiles = (high - low) / 1.349
        return min(deviation, quartiles) if quartiles > 0 else deviation

    @cached_property
    def tamed(self) -> Tensor:
        """Z with wild outcomes pulled in to five robust deviations from the median: (m,).

        An outcome 60 deviations out says that its own forecast was of the wrong kind, not that every other
        forecast should reach that far. For maps of a few numbers, which outliers would bend as a whole.
        """
        return self._clamped(to_third=False)

    @cached_property
    def supported(self) -> Tensor:
        """Z as `tamed`, but past the third outcome from either end by as much as from the ninth to it: (m,).

        Three outcomes far out are a tail, no accident.
        """
        return self._clamped(to_third=True)

    def _clamped(self, *, to_third: bool) -> Tensor:
        if self.count < 2:
            return self.z
        levels = self.level.numpy()
        # Nothing that the outermost two have a say in: of few rows, wild ones would vouch for themselves.
        end = 0.05 if to_third else min(max(0.05, 3 / (self.count + 1)), 0.25)
        low, middle, high = np.interp([end, 0.5, 1 - end], levels, self.z.numpy())
        reach = 5 * (high - low) / -(2 * ndtri(end))
        if reach <= 0:
            return self.z
        lowest, highest = middle - reach, middle + reach
        if to_third and self.effective >= 30:
            ends = np.array([3.0, 9.0]) / (self.effective + 1)
            third, ninth = np.interp(ends, levels, self.z.numpy())
            lowest = min(lowest, 2 * third - ninth)
            third, ninth = np.interp(1 - ends, levels, self.z.numpy())
            highest = max(highest, 2 * third - ninth)
        return self.z.clamp(lowest, highest)


def columns_of(pit: Array | None, weight: Array | None, z: Array | None) -> tuple[list[Column], tuple[int, ...]]:
    """Each column's evidence, sorted and thinned, and the column shape, () or (d,)."""
    values, weights, shape = matrix(pit, weight, z)
    # A column's numbers side by side: reading them a row apart would take longer than all the rest.
    by_column = np.ascontiguousarray(values.T)
    columns = [
        column_of(column, None if weights is None else weights[:, j], is_z=z is not None)
        for j, column in enumerate(by_column)
    ]
    return columns, shape


def stack(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """One (…) tensor per column → (*columns, …)."""
    return torch.stack(parts) if shape else parts[0]


def ranks_of(columns: list[Column], shape: tuple[int, ...]) -> Ranks:
    """The order statistics for conformal intervals."""
    told = [_told(column) for column in columns]
    kept = [(column.z[own], column.rank[own]) for column, own in zip(columns, told, strict=True)]
    most = max(1, *(len(z) for z, _ in kept))

    def pad(values: Tensor, empty: float) -> Tensor:
        # Repeating the last order statistic changes no interval; the middle rank is picked by neither side.
        filler = float(values[-1]) if len(values) else empty
        return torch.cat([values, values.new_full((most - len(values),), filler)])

    plain = Ranks(
        z=stack([pad(z, 0.0) for z, _ in kept], shape),
        rank=stack([pad(rank, (one.count + 1) / 2) for (_, rank), one in zip(kept, columns, strict=True)], shape),
        count=stack([torch.tensor(float(column.count), dtype=torch.float64) for column in columns], shape),
    )
    if all(math.isclose(column.effective, column.count) for column in columns):
        return plain
    around = [column.around or (column.rank - 1, column.count - column.rank, column.count) for column in columns]
    return WeightedRanks(
        *(plain.z, plain.rank, plain.count),
        below=stack([pad(below[own], 0.0) for (below, _, _), own in zip(around, told, strict=True)], shape),
        above=stack([pad(above[own], 0.0) for (_, above, _), own in zip(around, told, strict=True)], shape),
        weight=stack([torch.tensor(float(weight), dtype=torch.float64) for _, _, weight in around], shape),
    )


def _told(column: Column) -> Tensor:
    """Which order statistics' outcomes a float64 could place: (m,) bool.

    One that was cut off says only that its outcome fell further out: no interval may end there.
    """
    last = -float(normal.quantile(torch.tensor(2**-53, dtype=torch.float64)))  # of the last probability below one
    ends = torch.tensor([normal.HIGHEST_Z, last, -normal.LOWEST_Z, FURTHEST], dtype=torch.float64)
    return ~torch.isin(column.z.abs(), ends)


def matrix(pit: Array | None, weight: Array | None, z: Array | None) -> tuple[Floats, Floats | None, tuple[int, ...]]:
    """Checked evidence as (n, d) values and (n, d) weights, with the column shape, () or (d,)."""
    given = z if z is not None else pit
    if given is None:
        raise CalibrlError("no evidence given; pass PIT values, or z-scores as z=")
    values = as_tensor(given, "pit").detach().cpu().double().numpy()
    if values.ndim not in (1, 2):
        raise CalibrlError(f"evidence has shape {values.shape}; expected (n,) for one column or (n, d) for d columns")
    shape = values.shape[1:]
    if shape == (0,):
        raise CalibrlError(f"evidence has shape {values.shape}: no column to fit; pass at least one")
    values = values.reshape(len(values), *(shape or (1,)))
    if weight is None:
        return values, None, shape
    weights = as_tensor(weight, "weight").detach().cpu().double().numpy()
    if weights.shape not in {values.shape[:1], values.shape, (len(values), *shape)}:
        raise CalibrlError(f"weight has shape {weights.shape}; expected ({len(values)},) or the shape of the evidence")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise CalibrlError("weights must be finite and not negative; drop rows that should not count")
    weights = weights[:, None] if weights.ndim == 1 else weights
    return values, np.broadcast_to(weights, values.shape), shape


def column_of(values: Floats, weight: Floats | None, *, is_z: bool) -> Column:
    """The evidence of values (n,), PITs or z-scores, NaN where the outcome was not observed."""
    counts = ~np.isnan(values) if weight is None else ~np.isnan(values) & (weight > 0)
    if not counts.all():
        values, weight = values[counts], None if weight is None else weight[counts]
    count = len(values)
    if count:
        least, most = float(values.min()), float(values.max())
        _check_range(least, most, is_z=is_z)
        if not is_z and (least == 0 or most == 1):
            _warn_if_lost(values)

    # Where to cut: the middles of equal steps in z, so that 10⁶ outcomes keep their extremes.
    at = _thin(count)
    share_edges = np.concatenate([[0.0], (at[1:] + at[:-1] + 1) / 2, [count]]) if count else np.zeros(1)
    around = None
    if weight is None:
        low, high = (-8.0, 8.0) if is_z else (0.0, 1.0)
        chosen = order_statistics(values, at, low=low, high=high)
        effective = float(count)
        edges = share_edges / max(count, 1)
        level = (at + 1) / (count + 1)
    else:
        order = np.argsort(values, kind="stable")
        chosen, heavy = values[order[at]], weight[order]
        if count:  # only ratios matter; by a power of two no digit is lost, and squares stay within float64
            heavy = np.ldexp(heavy, -int(np.frexp(heavy.max())[1]))
        cumulative = np.cumsum(heavy)
        total = cumulative[-1] if count else 1.0
        effective = float(total**2 / np.square(heavy).sum()) if count else 0.0
        edges = np.interp(share_edges, np.arange(count + 1), np.concatenate([[0.0], cumulative])) / total
        # The middle of a row's own weight, squeezed so that the ends stay inside (0, 1) as i/(n+1) does.
        middle = (cumulative[at] - heavy[at] / 2) / total
        level = (middle * effective + 0.5) / (effective + 1)
        if count:
            parts = ((cumulative - heavy)[at], (total - cumulative)[at])
            below, above = (torch.from_numpy(part / heavy.max()) for part in parts)
            around = below, above, float(total / heavy.max())
    z = torch.from_numpy(chosen)
    return Column(
        z=z.clamp(-FURTHEST, FURTHEST) if is_z else normal.evidence_quantile(z),
        share=torch.from_numpy(np.diff(edges)),
        level=torch.from_numpy(level),
        rank=torch.from_numpy(at + 1.0),
        count=count,
        effective=effective,
        around=around,
    )


def _check_range(least: float, most: float, *, is_z: bool) -> None:
    if not is_z and (least < 0 or most > 1):
        wrong = least if least < 0 else most
        raise CalibrlError(f"PIT value {wrong:g} is outside [0, 1]; pass forecast.cdf(y), or z-scores as z=")
    if is_z and not (np.isfinite(least) and np.isfinite(most)):
        raise CalibrlError("a z-score is infinite: its outcome is impossible under its forecast; widen the forecast")


def _warn_if_lost(values: Floats) -> None:
    lost = int(((values == 0) | (values == 1)).sum())
    if lost > MOST_LOST * len(values):
        warnings.warn(
            f"{lost} of {len(values)} PITs are 0 or 1 to the last digit, so how far out their outcomes fell is lost; "
            "fit on z-scores: z=calibrl.pit_z(forecast, y)",
            stacklevel=2,
        )


@lru_cache(maxsize=8)
def _thin(count: int) -> NDArray[np.int64]:
    """Indices of the order statistics to keep."""
    if count <= MOST_POINTS:
        return np.arange(count)
    edge = float(normal.quantile(torch.tensor(0.5 / count, dtype=torch.float64)))
    steps = normal.cdf(torch.linspace(edge, -edge, MOST_POINTS, dtype=torch.float64)).numpy()
    at = np.clip((steps * count).astype(np.int64), 0, count - 1)
    return at[np.diff(at, prepend=-1) > 0]


# Outcomes of which is only known that they were at least so much.


def with_belief(
    z: Floats, censored: NDArray[np.bool_], rng: np.random.Generator, *, belief: float, shares: int
) -> tuple[Floats, Floats]:
    """Z-scores (n + shares, d) that show the outcomes, and their weights; see `calibrl.evidence.Censored`.

    z: (n, d), of which those of `censored` (n, d) are at least z; NaN where nothing was observed.
    """
    count, blind = len(z), censored.any(0)
    believed = np.where(blind, ndtri((np.arange(shares)[:, None] + 0.5) / shares), np.nan)
    z, cut = np.concatenate([z, believed]), np.concatenate([censored, np.zeros(believed.shape, dtype=bool)])
    best = np.where(cut | np.isnan(z), -np.inf, z).max(0)
    beyond = cut & (z > best)
    z[beyond] = -ndtri_exp(log_ndtr(-z[beyond]) + np.log1p(-rng.random(int(beyond.sum()))))
    return z, kaplan_meier(z, cut & ~beyond, np.where(np.arange(len(z)) < count, 1.0, belief / shares))


def kaplan_meier(z: Floats, censored: NDArray[np.bool_], mass: Floats | None = None) -> Floats:
    """The weight (n, d) of each z-score, when those of `censored` are only known to be at least z; NaN weighs 0.

    mass: (n,) what each counts for at first, by default 1.
    """
    mass = np.ones(len(z)) if mass is None else mass
    weight = np.where(np.isnan(z), 0.0, mass[:, None])
    for column in np.flatnonzero(censored.any(0)):
        seen = np.flatnonzero(~np.isnan(z[:, column]))
        # Among equals, what was seen comes before what was cut short.
        order = seen[np.lexsort((censored[seen, column], z[seen, column]))]
        cut = censored[order, column]
        cut[-1:] = False  # the largest has nobody to pass its share on to
        own = mass[order]
        at_risk = own[::-1].cumsum()[::-1]
        survive = np.cumprod(np.where(cut, 1.0, 1 - own / at_risk))
        before = np.concatenate([[1.0], survive[:-1]])
        weight[order, column] = np.where(cut, 0.0, before * own / at_risk) * own.sum()
    return weight

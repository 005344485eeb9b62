"""Proper scores and sharpness of continuous and count forecasts.

CRPS of continuous forecasts: ∫ F² below the outcome and ∫ (1 - F)² above it.

F = R∘G of a forecast G and a map R. Over G's own z-scores the squares are the same two functions for every forecast of
a batch: however wild the map, they are integrated once. What is left is to follow outcomes x over z in pieces: straight
ones for samples and quantiles, where that is exact, and parabolas for all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.diagnostics.calibration import LEVELS
from calibrl.distributions import Recalibrated, from_zscore, is_discrete, outcomes_for, zscore, zscore_left
from calibrl.distributions.empirical import Interpolated
from calibrl.distributions.families import Grouped
from calibrl.distributions.kinds import by_column, device_of
from calibrl.distributions.zscores import (
    component_quantiles,
    count_range,
    counts_within,
    is_mixed,
    log_prob,
    with_breaks,
)
from calibrl.errors import CalibrlError, check_within
from calibrl.kernels import normal
from calibrl.maps import IDENTITY, Chain, Map, gaussian_law
from calibrl.maps.gaussian import remembered


@returns_what_was_given
def crps_each(forecast: Distribution, y: Array) -> Tensor:
    """The continuous ranked probability score ∫ (F(x) - 1[x ≥ y])² dx of each outcome.

    Parameters
    ----------
    forecast, y
        As in `crps`.

    Returns
    -------
    array
        Scores in y's units and shape, NaN where y is.
    """
    forecast = by_column(forecast)
    outcome = outcomes_for(forecast, y)
    if forecast.batch_shape != outcome.shape:  # one forecast of many outcomes
        forecast = forecast.expand(outcome.shape)
    if isinstance(forecast, Grouped):  # put together from others: each is scored in its own way
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
    if isinstance(forecast, Interpolated):
        return forecast.crps_at(outcome)
    if is_discrete(forecast):
        return _crps_of_counts(forecast, outcome)
    return crps_of_continuous(base, mapping, outcome)


def crps(forecast: Distribution, y: Array) -> float:
    """Mean CRPS over seen outcomes: the absolute error of a forecast that is a distribution. Lower is better.

    Parameters
    ----------
    forecast : Distribution
        Of batch shape (n,) or (n, d).
    y : array
        Outcomes of that shape, NaN where none was seen.

    Returns
    -------
    float
        In y's units.

    Examples
    --------
    >>> import torch, calibrl as cal
    >>> round(cal.crps(torch.distributions.Normal(torch.zeros(2), 1.0), [0.0, 3.0]), 3)
    1.335
    """
    return _mean(crps_each(forecast, as_tensor(y, "y")))


@returns_what_was_given
def nll_each(forecast: Distribution, y: Array) -> Tensor:
    """The negative log-likelihood of each outcome.

    Parameters
    ----------
    forecast, y
        As in `crps`.

    Returns
    -------
    array
        Of y's shape, NaN where y is, +inf where the outcome was impossible.
    """
    forecast = by_column(forecast)
    return -log_prob(forecast, outcomes_for(forecast, y))


def nll(forecast: Distribution, y: Array) -> float:
    """Mean negative log-likelihood over seen outcomes. Lower is better.

    Parameters
    ----------
    forecast, y
        As in `crps`.

    Returns
    -------
    float
        +inf where an outcome was impossible.
    """
    return _mean(nll_each(forecast, as_tensor(y, "y")))


@returns_what_was_given
def pinball_each(forecast: Distribution, y: Array, levels: Array = LEVELS) -> Tensor:
    """The pinball loss of each outcome, averaged over the quantiles at `levels`.

    Parameters
    ----------
    forecast, y
        As in `crps`.
    levels : array
        (m,) probabilities in (0, 1).

    Returns
    -------
    array
        In y's units and shape, NaN where y is.
    """
    forecast = by_column(forecast)
    outcome = outcomes_for(forecast, y)
    at = as_tensor(levels, "levels").double().to(outcome.device)
    if bool((at <= 0).any()) or bool((at >= 1).any()):
        raise CalibrlError(f"pinball levels {at.tolist()} must lie strictly between 0 and 1")
    total = torch.zeros_like(outcome)
    for level, z in zip(at.tolist(), normal.quantile(at), strict=True):
        error = outcome - from_zscore(forecast, z.expand(outcome.shape))
        total += torch.maximum(level * error, (level - 1) * error)
    return total / len(at)


def pinball(forecast: Distribution, y: Array, levels: Array = LEVELS) -> float:
    """Mean pinball loss of the quantiles at `levels`: what being wrong costs if each side has its price.

    Parameters
    ----------
    forecast, y
        As in `crps`.
    levels : array
        (m,) probabilities in (0, 1).

    Returns
    -------
    float
        In y's units; lower is better.
    """
    return _mean(pinball_each(forecast, as_tensor(y, "y"), levels))


def sharpness(forecast: Distribution) -> float:
    """Root-mean-square predictive standard deviation: how much the forecast dares. Lower is sharper.

    Parameters
    ----------
    forecast : Distribution
        Of any batch shape.

    Returns
    -------
    float
        In the outcome's units.
    """
    spread = forecast.stddev.double()
    # The square may be beyond float64, or float16, where the deviation is not.
    size = float(spread.max()) if spread.numel() else 0.0
    return size * math.sqrt(_mean((spread / size).square())) if 0 < size < math.inf else math.sqrt(_mean(spread))


def width(forecast: Distribution, level: float) -> float:
    """Mean width of the central interval of probability `level`.

    Parameters
    ----------
    forecast : Distribution
        Of any batch shape.
    level : float
        In (0, 1).

    Returns
    -------
    float
        In the outcome's units.
    """
    check_within("level", level, "(0, 1)", "0.9 asks about the 90 % interval")
    forecast = by_column(forecast)
    z = normal.quantile(torch.tensor((1 + level) / 2, dtype=torch.float64, device=device_of(forecast)))
    low, high = (from_zscore(forecast, edge.expand(forecast.batch_shape)) for edge in (-z, z))
    return _mean(high - low)


def _mean(values: Tensor) -> float:
    seen = values[~values.isnan()]
    return float(seen.double().mean()) if seen.numel() else math.nan


def _crps_of_counts(forecast: Distribution, y: Tensor) -> Tensor:
    """Σ_k (F(k) - 1[k ≥ y])². Where F is as good as 0 or 1, terms are 1 from y on or up to it, and 0 elsewhere."""
    low, high = count_range(forecast)
    score = (low - y).clamp(min=0) + (y - 1 - high).clamp(min=0)
    for k in counts_within(low, high):
        term = (normal.cdf(zscore(forecast, k)) - (k >= y).double()).square()
        score = score + torch.where(k <= high, term, 0.0).sum(0)
    return score


REACH = 8.2
"""How far in z a score is integrated."""

CELLS, PIECES = 256, 128
"""In how many even cells the squares are integrated, at least, and in how many pieces a forecast is followed."""

CHUNK = 1 << 15
"""Numbers worked on at once: they stay in a processor's cache."""

NARROW = 1e-4
"""Width in z of a piece that counts as a jump of x: over it the squares are as good as constant."""


def crps_of_gaussian(mapping: Map, z: Tensor) -> Tensor:
    """The score of outcomes with z-scores z, (…, *columns), under a Gaussian after a map, in units of its σ."""
    law = gaussian_law(mapping, z.device)
    if law.adds_up:
        return law.crps(z, mapping.forward_z(z))
    squares = remembered(_integrated, mapping, z.device)
    inside = z.clamp(squares.edge[0], squares.edge[-1])
    below, above = squares(inside)[1][0]
    return below - above + (z - inside).abs()


def crps_of_continuous(base: Distribution, mapping: Map, y: Tensor) -> Tensor:
    """The score of each outcome, (*batch), under a continuous forecast of that batch shape after a map."""
    squares = remembered(_integrated, mapping, y.device)
    z = zscore(base, y)
    inside = z.clamp(squares.edge[0], squares.edge[-1])
    here = squares(inside)[1].unsqueeze(2)
    score, missed = torch.zeros_like(y), torch.full_like(y, torch.nan)
    for pieces in _pieces(base, squares, y):
        square, integrals = squares(torch.cat([pieces.z0, pieces.z1[-1:]]))
        start, end = integrals[:, :, :-1], integrals[:, :, 1:]
        # The outcome cuts a piece in two, or lies to one side of it.
        before, after = inside <= pieces.z0, inside >= pieces.z1
        cut = torch.where(before, pieces.z0, torch.where(after, pieces.z1, inside))
        known = torch.where(before, start, torch.where(after, end, here))
        below = pieces.integral(cut, *known[:, 0]) - pieces.integral(pieces.z0, *start[:, 0])
        above = pieces.integral(pieces.z1, *end[:, 1]) - pieces.integral(cut, *known[:, 1])
        lower, upper = (square[:, :-1] + square[:, 1:]) / 2
        jump = pieces.jump * torch.where(after, lower, upper)
        score = score + (below + above + jump).sum(0)
        begun = (inside >= pieces.z0).sum(0, keepdim=True)
        gap = (y - pieces.x0 - pieces.risen(cut)).gather(0, begun.sub(1).clamp(min=0)).squeeze(0)
        missed = torch.where((begun.squeeze(0) > 0) | missed.isnan(), gap, missed)
    # By how much the pieces miss the outcome, because they are nearly right or because it lies beyond their ends.
    moved = mapping.forward_z(inside)
    score = score + missed * (normal.cdf(moved) - normal.cdf(-moved))
    # Where quantiles grow beyond all numbers, so does the score.
    return torch.where(z.isnan(), torch.nan, score.nan_to_num(torch.inf, posinf=torch.inf))


class _Pieces(NamedTuple):
    """Neighbouring pieces of x(z), (p, …), from (z0, x0) to z1: mean slope and the slope of that, or a jump."""

    z0: Tensor
    z1: Tensor
    x0: Tensor
    slope: Tensor
    bend: Tensor
    jump: Tensor

    @classmethod
    def of(cls, z0: Tensor, z1: Tensor, x0: Tensor, x1: Tensor, bulge: Tensor | float = 0.0) -> _Pieces:
        """Straight pieces between their ends, or parabolas, by their `bulge`: bend · width³."""
        wide = z1 - z0 > NARROW
        width = torch.where(wide, z1 - z0, 1.0)
        slope = torch.where(wide, (x1 - x0) / width, 0.0)
        # A parabola that falls nowhere.
        most = 2 * slope / width
        return cls(z0, z1, x0, slope, torch.clamp(bulge / width.pow(3), -most, most), torch.where(wide, 0.0, x1 - x0))

    def risen(self, z: Tensor) -> Tensor:
        """x(z) - x0 inside the pieces."""
        return (z - self.z0) * (self.slope + self.bend / 2 * (z - self.z1)) + torch.where(z >= self.z1, self.jump, 0.0)

    def integral(self, z: Tensor, once: Tensor, twice: Tensor) -> Tensor:
        """∫ x′ times a square up to z by parts, from the square's own integral there and the integral of that."""
        return self.slope * once + self.bend * ((z - (self.z0 + self.z1) / 2) * once - twice)


@dataclass(frozen=True)
class _Squares:
    """Φ(S)² and Φ(-S)², S being what a map does to z-scores, and integrals A of both and ∫ A, zero where they vanish.

    edge: (k, *columns) ascending; square, once, twice: (2, k, *columns), at the edges; grid: (m, *columns), a few of
    the edges, to follow forecasts at.
    """

    edge: Tensor
    square: Tensor
    once: Tensor
    twice: Tensor
    grid: Tensor

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Both squares at z, (…, *columns), between the edges, and A and ∫ A: (2, …, *columns), (2, 2, …, *columns)."""
        columns = tuple(self.edge.shape[1:])
        rows = z.detach().reshape(-1, *columns).movedim(0, -1).contiguous()
        cell = torch.searchsorted(self.edge.movedim(0, -1).contiguous(), rows, right=True)
        cell = cell.movedim(-1, 0).reshape(z.shape).sub(1).clamp(0, len(self.edge) - 2)
        start, a, b = (
            _pick(self.edge, cell, columns),
            _pick(self.once, cell, columns),
            _pick(self.once, cell + 1, columns),
        )
        width = _pick(self.edge, cell + 1, columns) - start
        left, right = width * _pick(self.square, cell, columns), width * _pick(self.square, cell + 1, columns)
        safe = width.clamp(min=1e-300)
        t = ((z - start) / safe).clamp(0, 1)
        # The cubic that meets A and its slope at both ends of a cell, a + left t + p t² + q t³, and its integral.
        p, q = 3 * (b - a) - 2 * left - right, 2 * (a - b) + left + right
        once = a + t * (left + t * (p + t * q))
        twice = _pick(self.twice, cell, columns) + width * t * (a + t * (left / 2 + t * (p / 3 + t * q / 4)))
        return (left + t * (2 * p + t * 3 * q)) / safe, torch.stack([once, twice])


def without_maps(forecast: Distribution) -> tuple[Distribution, Map]:
    """A forecast before all its maps, and these as one."""
    mapping: Map = IDENTITY
    while isinstance(forecast, Recalibrated):
        mapping = forecast.mapping if mapping is IDENTITY else Chain(before=forecast.mapping, after=mapping)
        forecast = forecast.base
    return forecast, mapping


@torch.no_grad()
def _integrated(mapping: Map) -> _Squares:
    """Cells are even before the map, after it, and on the whole, and end where the map bends."""
    columns = mapping.columns
    share = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64).reshape(-1, *(1 for _ in columns))
    even = (REACH * (2 * share - 1)).expand(-1, *columns)
    after = mapping.inverse_z(torch.cat([even, mapping.breaks.to(even).clamp(-REACH, REACH)])).double()
    low, high = after.amin(0), after.amax(0)
    before = (normal.LOWEST_Z * (1 - 2 * share)).clamp(low, high)
    edge = torch.cat([before, after, low + share * (high - low)])
    edge = _with_middles(edge.sort(0).values if columns else edge.unique())

    def square(z: Tensor) -> Tensor:
        moved = mapping.forward_z(z).double()
        return torch.stack([normal.cdf(moved), normal.cdf(-moved)]).square()

    half, middle = edge.diff(dim=0) / 2, (edge[1:] + edge[:-1]) / 2
    node, weight = np.polynomial.legendre.leggauss(7)
    inner = torch.stack([w * half * square(middle + x * half) for x, w in zip(node, weight, strict=True)])
    at_edge, once = square(edge), _summed(inner.sum(0))
    twice = _summed(half * (once[:, 1:] + once[:, :-1]) - half.square() / 3 * at_edge.diff(dim=1))

    # Between stops of the grid a forecast comes equally far before the map, after it, and on the whole.
    parts = (edge.clamp(-REACH, REACH), mapping.forward_z(edge).double(), edge / (high - low) * 2 * REACH)
    way = torch.stack([part - part[0] for part in parts]).sum(0)
    stops = way[-1].unsqueeze(-1) * torch.linspace(0, 1, PIECES + 1, dtype=torch.float64)
    stop = torch.searchsorted(way.movedim(0, -1).contiguous(), stops).clamp(max=len(edge) - 1).movedim(-1, 0)
    return _Squares(edge, at_edge, once, twice, edge.gather(0, stop))


def _summed(by_cell: Tensor) -> Tensor:
    """(2, k, …) → (2, k + 1, …): what vanishes below is summed from there, what vanishes above from there."""
    none, (lower, upper) = torch.zeros_like(by_cell[0, :1]), by_cell
    return torch.stack([torch.cat([none, lower.cumsum(0)]), -torch.cat([upper.flip(0).cumsum(0).flip(0), none])])


def _pieces(base: Distribution, squares: _Squares, y: Tensor) -> Iterator[_Pieces]:
    """x(z) from the first edge of the squares to the last, some pieces at a time."""
    straight, mixed = isinstance(base, Interpolated), is_mixed(base)
    if mixed:
        # Between far peaks a mixture's own quantiles all but jump.
        points = component_quantiles(base, squares.grid[::2]).sort(0).values
    else:
        points = with_breaks(squares.edge[[0, -1]] if straight else squares.grid, base).sort(0).values
        points = points.reshape(-1, *(1 for _ in y.shape[points.dim() - 1 :]), *points.shape[1:])
    # On an atom z goes on while the outcome stands still: of equal outcomes all but the last lie below it.
    still = torch.cat([points[1:] == points[:-1], torch.zeros_like(points[:1], dtype=torch.bool)])
    size = max(4, CHUNK // (2 * max(1, y.numel())))
    for i in range(0, len(points) - 1, size):
        some = points[i : i + size + 1]
        some = some if straight else _with_middles(some)
        if mixed:
            below = still[i : i + size + 1].repeat_interleave(2, 0)[:-1]
            z, x = zscore(base, some), some
            z = torch.where(below, zscore_left(base, some), z) if bool(below.any()) else z
        else:
            z, x = some, from_zscore(base, some.expand(-1, *y.shape))
        if straight:
            yield _Pieces.of(z[:-1], z[1:], x[:-1], x[1:])
            continue
        (z0, zm, z1), (x0, xm, x1) = ((part[:-1:2], part[1::2], part[2::2]) for part in (z, x))
        yield _Pieces.of(z0, z1, x0, x1, 8 * ((x1 - xm) * (zm - z0) - (xm - x0) * (z1 - zm)))


def _with_middles(points: Tensor) -> Tensor:
    """Points (m, …), and between two of them what lies half-way: (2m - 1, …)."""
    pairs = torch.stack([points[:-1], (points[1:] + points[:-1]) / 2], 1)
    return torch.cat([pairs.flatten(0, 1), points[-1:]])


def _pick(table: Tensor, cell: Tensor, columns: tuple[int, ...]) -> Tensor:
    """Look up a table (…, k, *columns) at cells (m…, *columns): (…, m…, *columns)."""
    if not columns:
        return table[..., cell]
    return table.flatten(-2)[..., cell * columns[0] + torch.arange(columns[0], device=cell.device)]

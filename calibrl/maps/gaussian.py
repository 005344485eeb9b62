"""What a map does to a Gaussian: if F = N(μ, σ²), a recalibrated outcome is μ + σ · g(ε), ε ~ N(0, 1).

g = S⁻¹ is one fixed function per column, so its moments, its CRPS and a table to draw from are worked out
once per map and serve every forecast in every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrl.kernels import normal
from calibrl.kernels.normal import read_table
from calibrl.maps.base import Map, pick

T = TypeVar("T")

REACH = 8.6
"""Standard normal draws in float64 end at 8.57: a table to here never needs a bounds check."""

CELLS = 2048
"""Cells of the table that draws are read from."""

PANELS, COARSE_PANELS, NODES_PER_PANEL = 1024, 160, 7

FINE = 1e-9
"""How far, in standard deviations, even panels may miss the mean of a map that bends: then a CRPS is right to 1e-7."""

ROUGH_PANELS, ROUGH_NODES = 256, 3
"""Panels of a law that tells maps apart, and need not be exact."""


@cache
def _legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss and Legendre's quadrature on [-1, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy(x), torch.from_numpy(w)


def nodes(breaks: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes ε and weights φ(ε)dε over [-8.6, 8.6], in panels that end at `breaks`.

    breaks: (k, *columns), points where the integrand bends; each result: (m, *columns).
    """
    x, w = (part.to(breaks.device) for part in _legendre(NODES_PER_PANEL))
    flat = [-1, *(1 for _ in breaks.shape[1:])]
    even = torch.linspace(-REACH, REACH, COARSE_PANELS + 1, dtype=torch.float64, device=breaks.device)
    edges = torch.cat([even.reshape(flat).expand(-1, *breaks.shape[1:]), breaks.clamp(-REACH, REACH)]).sort(0).values
    middle, half = (edges[1:] + edges[:-1]) / 2, edges.diff(dim=0) / 2
    at = (middle[:, None] + half[:, None] * x.reshape(flat)).flatten(0, 1)
    weight = (half[:, None] * w.reshape(flat)).flatten(0, 1) * torch.exp(normal.log_density(at))
    return at, weight / weight.sum(0)


@dataclass(frozen=True)
class GaussianLaw:
    """Moments and scores of g(ε), per column, of shape (*columns,) or (*columns, k).

    mean, variance: its moments. gini: E|g - g′| of two independent draws. knot, partial: g and E[g; ε′ ≤ ε]
    at even steps of ε in [-8.6, 8.6].
    """

    mean: Tensor
    variance: Tensor
    gini: Tensor
    knot: Tensor
    partial: Tensor

    @property
    def adds_up(self) -> bool:
        """Whether even steps, which need no search, are fine enough for g: up to the last they come to its mean."""
        missed = (self.partial[..., -1] - self.mean).abs()
        return bool((missed <= FINE * self.variance.sqrt()).all())

    def crps(self, z: Tensor, epsilon: Tensor) -> Tensor:
        """CRPS of g against an outcome z = g(epsilon). z, epsilon: (…, *columns)."""
        below = 2 * normal.cdf(epsilon) - 1
        return z * below + self.mean - 2 * self._partial_mean(epsilon) - self.gini / 2

    def _partial_mean(self, epsilon: Tensor) -> Tensor:
        """E[g; ε′ ≤ ε] by cubic Hermite interpolation: its derivative g(ε)φ(ε) is known at every knot."""
        last = self.knot.shape[-1] - 1
        step = 2 * REACH / last
        position = ((epsilon + REACH) / step).clamp(0, last - 1e-9)
        cell = position.nan_to_num(0).long()  # of an outcome nobody saw
        t = position - cell
        at = cell * step - REACH
        left_slope = pick(self.knot, cell) * torch.exp(normal.log_density(at)) * step
        right_slope = pick(self.knot, cell + 1) * torch.exp(normal.log_density(at + step)) * step
        left, right = pick(self.partial, cell), pick(self.partial, cell + 1)
        t2, t3 = t.square(), t.pow(3)
        ends = left * (2 * t3 - 3 * t2 + 1) + right * (3 * t2 - 2 * t3)
        return ends + left_slope * (t3 - 2 * t2 + t) + right_slope * (t3 - t2)


@dataclass(frozen=True)
class DrawTable:
    """g(ε) as a straight line in each of many small cells: one look-up and one multiplication per draw.

    lines: (*columns, CELLS, 2), intercept and slope. The lines meet g at every cell's ends, 0.008 apart.
    """

    lines: Tensor

    def __call__(self, epsilon: Tensor, *, reuse: bool = False) -> Tensor:
        """G at standard normal draws ε: (…, *columns), |ε| < 8.6, of the table's dtype and device.

        With `reuse` the answer may be written over ε.
        """
        return read_table(epsilon, self.lines, CELLS / (2 * REACH), reuse=reuse)


def gaussian_law(mapping: Map, device: torch.device) -> GaussianLaw:
    """The law of g under `mapping` on `device`, worked out at first use and remembered.

    Parameters
    ----------
    mapping : Map
        R.
    device : torch.device
        Where its moments are needed.

    Returns
    -------
    GaussianLaw
        Mean, variance and Gini's mean difference of g(ε), each (*columns,), and what its CRPS is made of.
    """
    return remembered(_law, mapping, device)


def draw_table(mapping: Map, device: torch.device, dtype: torch.dtype) -> DrawTable:
    """The table that draws of g are read from, worked out at first use and remembered.

    Parameters
    ----------
    mapping : Map
        R.
    device, dtype : torch.device, torch.dtype
        Of the draws.

    Returns
    -------
    DrawTable
        A function of standard normal draws ε (…, *columns) that gives g(ε).
    """
    return remembered(_table, mapping, device, dtype)


def remembered(work_out: Callable[[Map], T], mapping: Map, *to: Any) -> T:
    """What `work_out` makes of a map, its tensors where and in what they are wanted; worked out once."""
    key = (work_out, *to)
    if key not in mapping.cache:
        # What is remembered must be of use to whoever asks next, for gradients too: no inference-mode tensor.
        with torch.inference_mode(False):
            found = work_out(mapping.to("cpu"))
            mapping.cache[key] = type(found)(**{name: value.to(*to) for name, value in vars(found).items()})
    known: T = mapping.cache[key]
    return known


@torch.no_grad()
def _law(mapping: Map) -> GaussianLaw:
    epsilon, weight = nodes(mapping.breaks)
    value = mapping.inverse_z(epsilon)
    mean = (value * weight).sum(0)
    variance = ((value - mean).square() * weight).sum(0)
    gini = 2 * (value * (2 * normal.cdf(epsilon) - 1) * weight).sum(0)

    # Even panels for the partial means, so that a look-up needs no search.
    at, weight = _even_nodes(PANELS, NODES_PER_PANEL)
    partial = _up_to_each_panel(_g(mapping, at), weight)
    knot = _g(mapping, torch.linspace(-REACH, REACH, PANELS + 1, dtype=torch.float64))
    return GaussianLaw(mean, variance, gini, knot, partial)


@torch.no_grad()
def rough_law(mapping: Map) -> GaussianLaw:
    """The law of g under `mapping` at a tenth of the cost, its CRPS to about 1e-5."""
    at, weight = _even_nodes(ROUGH_PANELS, ROUGH_NODES)
    value = _g(mapping, at)
    partial = _up_to_each_panel(value, weight)
    mean = partial[..., -1]
    variance = ((value - mean[..., None]).square() * weight.reshape(-1)).sum(-1)
    gini = 2 * (value * (2 * normal.cdf(at) - 1) * weight.reshape(-1)).sum(-1)
    knot = _g(mapping, torch.linspace(-REACH, REACH, ROUGH_PANELS + 1, dtype=torch.float64))
    return GaussianLaw(mean, variance, gini, knot, partial)


def _even_nodes(panels: int, count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes (panels · count,) in even panels of [-8.6, 8.6], and their weights φ dε (panels, count)."""
    x, w = _legendre(count)
    half = REACH / panels
    at = torch.linspace(-REACH + half, REACH - half, panels, dtype=torch.float64)[:, None] + half * x
    return at.reshape(-1), half * w * torch.exp(normal.log_density(at))


def _up_to_each_panel(value: Tensor, weight: Tensor) -> Tensor:
    """Weighted sums of values (…, panels · count) from the first panel up to each: (…, panels + 1)."""
    up_to = (value.unflatten(-1, weight.shape) * weight).sum(-1).cumsum(-1)
    return torch.cat([torch.zeros_like(up_to[..., :1]), up_to], -1)


@torch.no_grad()
def _table(mapping: Map) -> DrawTable:
    ends = torch.linspace(-REACH, REACH, CELLS + 1, dtype=torch.float64)
    value = _g(mapping, ends)
    slope = value.diff() / ends.diff()
    return DrawTable(torch.stack([value[..., :-1] - slope * ends[:-1], slope], -1).contiguous())


def _g(mapping: Map, epsilon: Tensor) -> Tensor:
    """(k,) → (*columns, k)."""
    wide = epsilon.reshape(-1, *(1 for _ in mapping.columns)).expand(-1, *mapping.columns)
    return mapping.inverse_z(wide).movedim(0, -1).contiguous()

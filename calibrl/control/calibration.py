"""Calibration in the loop: which rows are held out, what they say of the forecasts, and the map R they teach.

A row is a one-step forecast: x (k,) what the networks were given, y (d,) what they were to predict. Everything
works on z-scores z = Φ⁻¹(F(y)), one column for each predicted dimension, in float64 on the CPU.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from calibrl import maps
from calibrl.control.settings import MAPS
from calibrl.diagnostics import LEVELS, calibration_loss, coverage, reliability_curve
from calibrl.kernels import normal
from calibrl.maps import FitMap, Map, gaussian_law

FITS: dict[str, FitMap] = {name: getattr(maps, f"fit_{name}") for name in MAPS}


class Forecasts(Protocol):
    """Networks as a forecaster of rows: `forecasters.nets.Nets`."""

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (g, e, n, d) of every network for x (g, n, k)."""


def held_rows(rows: int, share: float, generator: torch.Generator, *, block: int = 1) -> Tensor:
    """Which of `rows` new rows are held out: (rows,) bool, always the same number for the same `rows`.

    `block` consecutive rows share a side; the number held out is that of whole blocks nearest to the share.
    """
    starts = torch.arange(0, rows, block)
    count = min(max(round(share * len(starts)), 1), len(starts) - 1) if len(starts) > 1 else 0
    # The last block may be short, and must not be: agents of a fleet hold out equally many rows.
    whole = len(starts) - (rows % block != 0)
    picked = torch.randperm(whole, generator=generator)[:count]
    held = torch.zeros(len(starts), dtype=torch.bool)
    held[picked] = True
    return held.repeat_interleave(block)[:rows]


def zscores(nets: Forecasts, x: Tensor, y: Tensor, *, by_member: bool, chunk: int = 4096) -> tuple[Tensor, Tensor]:
    """What outcomes say of the forecasts that planning draws from: z-scores and standard deviations.

    x (g, n, k), y (g, n, d) → (g, n, d) each, of the networks' moment-matched Gaussian; with `by_member`, where
    planning follows single networks, (g, n · e, d), each network judged on its own.
    """
    found = []
    for some_x, some_y in zip(x.split(chunk, 1), y.split(chunk, 1), strict=True):
        mean, variance = (part.double() for part in nets.moments(some_x))
        if not by_member:
            spread = mean.var(1, correction=0, keepdim=True)
            mean, variance = mean.mean(1, keepdim=True), variance.mean(1, keepdim=True) + spread
        # Deterministic networks that agree say they are certain; a certainty has no z-score.
        sd = variance.clamp(min=1e-12).sqrt()
        z = (some_y.double()[:, None] - mean) / sd
        # Networks last, then flat: rows stay together.
        found.append(torch.stack([z, sd]).movedim(2, 3).flatten(2, 3).cpu())
    z, sd = torch.cat(found, 2).unbind(0)
    return z.clamp(-1e6, 1e6), sd


def fit(name: str, z: Tensor, age: Tensor | None = None, *, forget: float = 1.0) -> Map:
    """R by the name of its fit, from z-scores (n, d), one map for each column.

    age: (n,), how many trials ago each row came; a row's weight is forget^age.
    """
    weight = None if age is None or forget == 1 else (forget ** age.double())[:, None].expand_as(z)
    return FITS[name](z=z, weight=weight)


def surprise(mapping: Map, z: Tensor, allowance: Tensor, event: Tensor) -> Tensor:
    """How far out new rows lay, in units of what held-out rows had promised: the mean square of what should be N(0, 1).

    z: (n, d), of forecasts made before they were learnt; allowance: by how much `mapping` widens beyond what held-out
    rows say; event: (d,), columns that do not count.
    """
    found = (allowance * mapping.forward_z(z)).masked_fill(event, torch.nan)
    # Cut off, lest a single wild row make all forecasts boundless.
    return found.clamp(-normal.HIGHEST_Z, normal.HIGHEST_Z).square().nanmean()


def widened(mapping: Map, allowance: Tensor, event: Tensor) -> Map:
    """The map whose calibrated forecasts are `allowance` times as wide, but for events (d,)."""
    if allowance == 1:
        return mapping
    return maps.Chain(before=mapping, after=maps.Affine(scale=torch.where(event, 1.0, allowance)))


def score(z: Tensor, sd: Tensor, y: Tensor, mapping: Map) -> dict[str, float]:
    """How honest R∘T was on rows it had never seen, beside the bare T: numbers ending in _bare.

    z, sd: (n, d) of the bare forecast; y: (n, d). CRPS is in units of each dimension's own standard deviation.
    """
    scale = y.double().std(0)
    scale = torch.where(scale > 0, scale, 1.0)
    found: dict[str, float] = {}
    for ending, one in (("", mapping), ("_bare", maps.IDENTITY)):
        moved = one.forward_z(z)
        pits = normal.cdf(moved)
        crps = sd * gaussian_law(one, z.device).crps(z, moved) / scale
        observed = reliability_curve(pits).observed.mean(1)
        found[f"calibration_loss{ending}"] = calibration_loss(pits)
        found[f"coverage_90{ending}"] = coverage(pits, 0.9)
        found[f"crps{ending}"] = float(crps.mean())
        for level, share in zip(LEVELS, observed.tolist(), strict=True):
            found[f"reliability_{round(100 * level):02d}{ending}"] = share
    return found

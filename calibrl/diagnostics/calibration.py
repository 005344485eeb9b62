"""How often what was said would happen, happened: the paper's diagnostics, from PIT values alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.errors import CalibrlError

LEVELS = tuple(round(0.05 * j, 2) for j in range(1, 20))
"""The thresholds p_1 … p_m unless others are asked for: 5 %, 10 %, … 95 %."""


class ReliabilityCurve(NamedTuple):
    """Predicted levels p_j (m,) and the share p̂_j of outcomes that fell below them: (m,) or (m, d)."""

    level: Tensor
    observed: Tensor


class Band(NamedTuple):
    """Lower and upper edge of a band around a reliability curve: (m,) or (m, d) each."""

    low: Tensor
    high: Tensor


@returns_what_was_given
def reliability_curve(pit: Array, levels: Array = LEVELS) -> ReliabilityCurve:
    """How often outcomes fell below predicted quantiles: p̂_j = |{t : F_t(y_t) ≤ p_j}| / N for each level p_j.

    Parameters
    ----------
    pit : array
        PITs, (n,) or (n, d), NaN where the outcome was not seen.
    levels : array
        p_j, (m,) numbers in [0, 1].

    Returns
    -------
    ReliabilityCurve
        A calibrated forecaster's has p̂_j = p_j.
    """
    p = _pits(pit)
    at = _levels(levels).to(p.device)
    seen = (~p.isnan()).sum(0)
    # Sorting once and searching beats comparing every PIT with every level.
    ordered = p.nan_to_num(nan=2.0).sort(0).values
    rows = ordered.T.contiguous() if p.dim() == 2 else ordered
    wanted = at.expand(p.shape[1], -1).contiguous() if p.dim() == 2 else at
    count = torch.searchsorted(rows, wanted, right=True)
    observed = count.double().T / seen if p.dim() == 2 else count.double() / seen
    return ReliabilityCurve(at, observed)


def calibration_loss(pit: Array, levels: Array = LEVELS) -> float:
    """The calibration loss Σ_j (p̂_j - p_j)², as the paper prints it.

    Zero only for a perfect forecaster with endless data: see `noise_floor`.

    Parameters
    ----------
    pit, levels
        As in `reliability_curve`.

    Returns
    -------
    float
        The mean over columns.
    """
    curve = reliability_curve(_pits(pit), levels)
    return float((curve.observed - _beside(curve.level, curve.observed)).square().sum(0).mean())


def calibration_error(pit: Array, levels: Array = LEVELS) -> float:
    """The mean of |p̂_j - p_j| over levels and columns: 0.05 means shares are off by five points.

    Parameters
    ----------
    pit, levels
        As in `reliability_curve`.

    Returns
    -------
    float
        0 is best.
    """
    curve = reliability_curve(_pits(pit), levels)
    return float((curve.observed - _beside(curve.level, curve.observed)).abs().mean())


def noise_floor(n: float | Array, levels: Array = LEVELS) -> float:
    """The calibration loss that chance alone gives a perfect forecaster on n outcomes: Σ_j p_j (1 - p_j) / n.

    Parameters
    ----------
    n : float or array
        How many outcomes were seen; one number for each column is averaged over columns, as `calibration_loss` is.
    levels
        As in `reliability_curve`.

    Returns
    -------
    float
        The expected loss.
    """
    at, count = _levels(levels), torch.as_tensor(n, dtype=torch.float64)
    if not bool((count > 0).all()):
        raise CalibrlError(f"n {count.tolist()} is not a number of outcomes; use 1 or more")
    return float((at * (1 - at)).sum() * (1 / count).mean())


@returns_what_was_given
def pit_histogram(pit: Array, bins: int = 20) -> Tensor:
    """Density of the PITs in equal bins of [0, 1]; all ones when calibrated.

    Parameters
    ----------
    pit
        As in `reliability_curve`.
    bins : int
        How many.

    Returns
    -------
    array
        (bins,) or (bins, d).
    """
    if bins < 1:
        raise CalibrlError(f"bins {bins} is not a number of bins; use 1 or more")
    p = _pits(pit)
    columns = p if p.dim() == 2 else p[:, None]
    counted = []
    for column in columns.T:
        some = column[~column.isnan()]
        counted.append(torch.histc(some, bins=bins, min=0, max=1) * bins / max(1, len(some)))
    stacked = torch.stack(counted, -1)
    return stacked if p.dim() == 2 else stacked[:, 0]


@returns_what_was_given
def reliability_band(
    pit: Array,
    levels: Array = LEVELS,
    *,
    confidence: float = 0.9,
    draws: int = 1000,
    block: int = 1,
    generator: torch.Generator | None = None,
) -> Band:
    """A bootstrap band around the reliability curve: where it might lie had other rows been seen.

    Parameters
    ----------
    pit, levels
        As in `reliability_curve`.
    confidence : float
        Share of bootstrap curves inside, level by level.
    draws : int
        Bootstrap draws.
    block : int
        Consecutive rows, unseen ones too, that are drawn together: use a trajectory's length, or the band will be too
        narrow.
    generator : torch.Generator, optional
        Seeds the draws; without one they are the same every time.

    Returns
    -------
    Band
        Its lower and upper edge, (m,) or (m, d) each.
    """
    if not 0 < confidence < 1:
        raise CalibrlError(f"confidence {confidence} is not between 0 and 1; 0.9 gives a 90 % band")
    if block < 1:
        raise CalibrlError(f"block {block} is not a number of rows; use 1 or more")
    if draws < 1:
        raise CalibrlError(f"draws {draws} is not a number of bootstrap draws; use 1 or more")
    p, at = _pits(pit), _levels(levels)
    rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)) if generator else 0)
    columns = p if p.dim() == 2 else p[:, None]
    lows, highs = [], []
    for column in columns.T:
        shares = _resampled(column.cpu().numpy(), at.cpu().numpy(), block, draws, rng)
        low, high = np.quantile(shares, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        lows.append(torch.from_numpy(low))
        highs.append(torch.from_numpy(high))
    low, high = torch.stack(lows, -1), torch.stack(highs, -1)
    return Band(low, high) if p.dim() == 2 else Band(low[:, 0], high[:, 0])


def coverage(pit: Array, level: float) -> float:
    """The share of outcomes inside the central interval of probability `level`, over all columns.

    Parameters
    ----------
    pit
        As in `reliability_curve`.
    level : float
        In (0, 1).

    Returns
    -------
    float
        `level` when calibrated.
    """
    if not 0 < level < 1:
        raise CalibrlError(f"level {level} is not between 0 and 1; 0.9 asks about the 90 % interval")
    p = _pits(pit)
    p = p[~p.isnan()]
    tail = (1 - level) / 2
    return float(((p >= tail) & (p <= 1 - tail)).double().mean())


def _resampled(p: np.ndarray, at: np.ndarray, block: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Bootstrap replicates of the share of p, NaN where unseen, below each level: (draws, m)."""
    if block == 1:
        # Resampling rows is a multinomial draw of how many fall between neighbouring levels.
        seen, order = np.sort(p[~np.isnan(p)]), np.argsort(at)
        below = np.searchsorted(seen, at[order], side="right")
        counts = np.diff(np.concatenate([[0], below, [len(seen)]]))
        shares = np.cumsum(rng.multinomial(len(seen), counts / len(seen), size=draws), axis=1)[:, :-1] / len(seen)
        return shares[:, np.argsort(order)]
    starts = np.arange(0, len(p), block)
    hits = np.add.reduceat((p[:, None] <= at).astype(float), starts)
    sizes = np.add.reduceat((~np.isnan(p)).astype(float), starts)
    # A block nobody saw says nothing, and drawn alone it would leave nothing to share.
    hits, sizes = hits[sizes > 0], sizes[sizes > 0]
    picks = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=draws)
    return (picks @ hits) / (picks @ sizes)[:, None]


def _pits(pit: Array) -> Tensor:
    p = as_tensor(pit, "pit").detach().double()
    if p.dim() not in (1, 2):
        raise CalibrlError(f"PITs have shape {tuple(p.shape)}; expected (n,) or (n, d)")
    wrong = (p < 0) | (p > 1)
    if bool(wrong.any()):
        raise CalibrlError(f"PIT value {p[wrong][0].item():g} is outside [0, 1]; pass calibrl.pit(forecast, y)")
    if not bool((~p.isnan()).any(0).all()):
        raise CalibrlError(f"no outcome was seen in {tuple(p.shape)} PITs of some column; nothing to diagnose")
    return p


def _levels(levels: Array) -> Tensor:
    at = as_tensor(levels, "levels").double()
    if at.dim() != 1 or not len(at) or bool((at < 0).any()) or bool((at > 1).any()):
        raise CalibrlError(f"levels {at.tolist()} must be one or more numbers in [0, 1]")
    return at


def _beside(level: Tensor, observed: Tensor) -> Tensor:
    return level[:, None] if observed.dim() == 2 else level

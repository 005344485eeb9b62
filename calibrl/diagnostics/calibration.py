"""How often what was said would happen, happened: the paper's diagnostics, from PIT values alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import betaincinv, gammainccinv, ndtri
from torch import Tensor

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.errors import CalibrlError, check_count, check_within

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
    filled = p.nan_to_num(nan=2.0)
    # NumPy sorts several times sooner than torch does on a CPU.
    ordered = torch.from_numpy(np.sort(filled.numpy(), 0)) if p.device.type == "cpu" else filled.sort(0).values
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
    return float(_gaps(pit, levels).square().sum(0).mean())


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
    return float(_gaps(pit, levels).abs().mean())


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
    check_count("bins", bins, "is not a number of bins")
    p = _pits(pit)
    seen = [column[~column.isnan()] for column in p.reshape(len(p), -1).T]
    counted = [torch.histc(some, bins=bins, min=0, max=1) * bins / max(1, len(some)) for some in seen]
    return torch.stack(counted, -1).reshape(bins, *p.shape[1:])


@returns_what_was_given
def reliability_band(pit: Array, levels: Array = LEVELS, *, confidence: float = 0.9, block: int = 1) -> Band:
    """A band around the reliability curve: where it might lie had endless rows been seen.

    Level by level the exact interval of a share (Clopper and Pearson, 1934), which holds from a single row on.

    Parameters
    ----------
    pit, levels
        As in `reliability_curve`.
    confidence : float
        How often the true share of a level lies inside, or more often.
    block : int
        Consecutive rows, unseen ones too, that resemble each other: use a trajectory's length, or the band will be too
        narrow. Rows then count for as many as their blocks say.

    Returns
    -------
    Band
        Its lower and upper edge, (m,) or (m, d) each.
    """
    check_within("confidence", confidence, "(0, 1)", "0.9 gives a 90 % band")
    check_count("block", block, "is not a number of rows")
    p, at = _pits(pit), _levels(levels)
    share = reliability_curve(p, at).observed
    columns = p if p.dim() == 2 else p[:, None]
    count = np.array([effective_rows(column, block=block).rows for column in columns.T])
    low, high = share_interval(share.cpu().numpy(), count if p.dim() == 2 else count[0], confidence)
    return Band(torch.from_numpy(low), torch.from_numpy(high))


def share_interval(
    share: np.ndarray, count: np.ndarray | float, confidence: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """The exact interval of a probability of which a share of `count` trials came true; not all need be whole numbers.

    Parameters
    ----------
    share, count : array
        Of one shape, or broadcast to one.
    confidence : float
        How often the probability lies inside, or more often.

    Returns
    -------
    low, high : array
        Its ends.
    """
    tail = (1 - confidence) / 2
    hits, misses = share * count, (1 - share) * count
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1e-9), misses + 1, tail), 0.0)
    high = np.where(misses > 0, betaincinv(hits + 1, np.maximum(misses, 1e-9), 1 - tail), 1.0)
    return low, high


class Effective(NamedTuple):
    """Of how many independent outcomes as many that resemble each other say as much as.

    rows: of all outcomes together, columns that go together counted; inflation: by how much the squared error of a
    share in one column is larger than if rows were independent, 1 if they are.
    """

    rows: float
    inflation: float


def effective_rows(pit: Array, *, block: int | None = None) -> Effective:
    """How many independent outcomes would say as much about calibration as these.

    Whether outcomes fall below the forecast's quantiles is compared from row to row, in the order given, and between
    columns: where neighbours, or rows a period apart, resemble each other by more than chance explains, or all rows go
    in slow waves, correlations are summed until they vanish (Geyer, 1992). What lasts longer than a tenth of the rows
    cannot be told from a bias. The order of rows that someone sorted, which hardly ever turns, means nothing.

    Parameters
    ----------
    pit
        As in `reliability_curve`.
    block : int, optional
        So many consecutive rows resemble each other, and others do not; 1 for rows whose order means nothing. Without
        it the rows tell.

    Returns
    -------
    Effective
    """
    tensor = _pits(pit)
    p = (tensor if tensor.dim() == 2 else tensor[:, None]).cpu().numpy()
    if block is not None:
        check_count("block", block, "is not a number of rows")
    block = 1 if block is None and is_sorted(p) else block
    seen = ~np.isnan(p)
    # In place: there are nine numbers for each outcome, of which there may be millions.
    below = np.less_equal(p[:, :, None], _TENTHS, out=np.empty((*p.shape, len(_TENTHS))))
    below -= below.sum(0) / seen.sum(0)[:, None]
    below[~seen] = 0.0
    rows, columns = p.shape
    alone = below.reshape(rows, -1)
    together = below.sum(1) if columns > 1 else alone
    total = float(np.vdot(alone, alone))
    if rows < 4 or total == 0:
        return Effective(float(seen.sum()), 1.0)
    shared = float(np.vdot(together, together)) / total
    shared = shared if columns > 1 and shared > 1 + 2 * math.sqrt(2 / rows) else 1.0
    if block is not None:
        starts = np.arange(0, rows, block)
        own, all_ = (float((np.add.reduceat(part, starts) ** 2).sum()) for part in (alone, together))
        inflation = max(1.0, own / total) if block > 1 else 1.0
        return Effective(float(seen.sum()) / max(1.0, all_ / total if block > 1 else shared), inflation)
    own = _inflation(alone)
    all_ = _inflation(together) if columns > 1 else own
    # Calm and wild spells hardly show at single levels, but they do in what central intervals hold.
    together[:, 5:] -= together[:, 3::-1]
    return Effective(float(seen.sum()) / (shared * max(all_, _inflation(together[:, 5:]))), own)


def is_sorted(values: np.ndarray) -> bool:
    """Whether values (n, …) rise and fall so seldom that someone sorted them: independent ones turn in 2 rows of 3."""
    steps = np.sign(np.diff(values.reshape(len(values), -1), axis=0))
    # Rows that equal the one before say nothing: of outcomes that seldom differ few would turn otherwise.
    moves = [own[np.abs(own) > 0] for own in steps.T]
    turns = sum(int((own[1:] * own[:-1] < 0).sum()) for own in moves)
    return turns <= 0.02 * sum(map(len, moves))


_TENTHS = np.linspace(0.1, 0.9, 9)


LONGEST = 8192
"""Of more rows, sums over short stretches are compared with each other."""


def _inflation(series: np.ndarray) -> float:
    """By how much the squared error of means of centred series (n, m) exceeds that of independent rows; 1 or more."""
    n = len(series)
    alike = series.T @ series
    total = float(np.trace(alike))
    if not total:  # all alike
        return 1.0
    chance = math.sqrt(float((alike**2).sum())) / total  # of one correlation among n rows: chance / √n
    if n > LONGEST:
        sums = np.add.reduceat(series, np.arange(0, n, 2 * n // LONGEST))
        within = float(np.vdot(sums, sums)) / total
        return (within if within > 1 + 2.5 * chance * math.sqrt(2 / len(sums)) else 1.0) * _inflation(sums)
    power = (np.abs(np.fft.rfft(series, 2 * n, axis=0)) ** 2).sum(1)
    rho = np.fft.irfft(power)[: max(n // 2, 2)] / total
    # Resemblance shows between neighbours, as slow waves where it is weak but lasts, or at a period.
    slow = power[2::2] / total
    width = 2 ** np.arange(1, max(int(math.log2(n)) - 1, 2))
    shape = width / chance**2  # of the gamma law of a mean of so many waves
    waves = bool((np.cumsum(slow)[width - 1] / width > gammainccinv(shape, 3e-4) / shape).any())
    lags = max(n // 4, 2) - 1
    period = 1 + int(rho[1 : lags + 1].argmax())
    if rho[1 : period + 1].min() < -rho[period]:
        period = 1  # a swing: what is unlike in between takes back what is alike
    # The best of many periods is high by chance too.
    if max(rho[1] / 2.5, -rho[period] / ndtri(0.005 / lags)) * math.sqrt(n) <= chance and not waves:
        return 1.0
    return min(max(1.0, float(slow[:4].mean()), _summed(rho, n), _summed(rho[::period], n)), n / 3)


def _summed(rho: np.ndarray, n: int) -> float:
    """1 + 2 Σ ρ_k until correlations of n rows vanish, or as much as is left of it in pairs that fall (Geyer, 1992)."""
    found = 1.0
    for _ in range(8):
        # Series around their own mean look less alike than they are, by about found/n at each lag.
        pairs = (rho[: len(rho) // 2 * 2] + found / n).reshape(-1, 2).sum(1)
        gone = np.flatnonzero(pairs <= 0)
        pairs = np.minimum.accumulate(pairs[: gone[0]] if len(gone) else pairs)
        found = min(max(1.0, 2 * float(pairs.sum()) - 1), n / 3)
    return found


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
    check_within("level", level, "(0, 1)", "0.9 asks about the 90 % interval")
    p = _pits(pit)
    p = p[~p.isnan()]
    tail = (1 - level) / 2
    return float(((p >= tail) & (p <= 1 - tail)).double().mean())


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


def _gaps(pit: Array, levels: Array) -> Tensor:
    """p̂_j - p_j: (m,) or (m, d)."""
    level, observed = reliability_curve(_pits(pit), levels)
    return observed - level.reshape(-1, *(1 for _ in observed.shape[1:]))

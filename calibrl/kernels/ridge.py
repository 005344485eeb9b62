"""Bayesian ridge regressions, one per arm, in the microseconds a bandit's decision may take.

Arm a has the posterior N(θ_a, P_a) with P_a = (ridge · I + Σ x xᵀ)⁻¹ and θ_a = P_a Σ x r; its forecast of the
reward at x is N(xᵀθ_a, xᵀP_a x). A new row changes P_a by a matrix of rank one (Sherman and Morrison), so
nothing is inverted again, except now and then against the rounding errors that add up.
`calibrl.forecasters.RidgeArms` is the same model by plain linear algebra: tests hold the two together.

Symmetric matrices are held as packed lower triangles, row after row: half the memory to read is half the time. Inner
loops run over slices of them, from 0: only then do they become vector instructions (three times as fast).

Below them the map R of each arm: the empirical CDF of the arm's own past z-scores, sorted, with ranks i/(n+1), straight
between them in probability, and beyond them the forecast's own tail, moved along. `calibrl.maps.ecdf.Ecdf` is the same
map as a `Map`. A history holds the last `window` z-scores: memory does not grow with the rounds.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]

REFACTOR_EVERY = 512
"""Rows an arm learns between two inversions from scratch."""

SMALLEST_SD = 1e-9
"""A forecast without any width would make every outcome impossible."""

# Sums may be reordered (that lets them run in vector registers); NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}


@njit(cache=True)
def packed(d: int) -> int:
    """Numbers in the lower triangle of a d × d matrix."""
    return d * (d + 1) // 2


@njit(cache=True, fastmath=_FAST)
def square(x: Floats) -> float:
    """The sum |x|² of an x (d,)."""
    size = 0.0
    for i in range(len(x)):
        size += x[i] * x[i]
    return size


@njit(cache=True)
def pack_square(x: Floats, square: Floats) -> None:
    """Write x xᵀ as a packed triangle that counts what is off the diagonal twice: xᵀPx is then one dot product.

    x: (d,); square: (packed,), overwritten.
    """
    p = 0
    for i in range(len(x)):
        twice = 2.0 * x[i]
        row = square[p : p + i]
        for j in range(i):
            row[j] = twice * x[j]
        square[p + i] = x[i] * x[i]
        p += i + 1


@njit(cache=True, fastmath=_FAST)
def forecast(x: Floats, square: Floats, theta: Floats, inverse: Floats) -> tuple[float, float]:
    """Mean and standard deviation of one arm's forecast.

    x: (d,); square: (packed,) from `pack_square`; theta: (d,); inverse: (packed,).
    """
    mean = 0.0
    for i in range(len(x)):
        mean += x[i] * theta[i]
    variance = 0.0
    for p in range(len(square)):
        variance += inverse[p] * square[p]
    return mean, max(math.sqrt(max(variance, 0.0)), SMALLEST_SD)


@njit(cache=True, fastmath=_FAST)
def times(inverse: Floats, x: Floats) -> Floats:
    """P x (d,), of a packed P (packed,) and x (d,)."""
    d = len(x)
    found = np.zeros(d)
    p = 0
    for i in range(d):
        at = x[i]
        row = inverse[p : p + i]
        total = inverse[p + i] * at
        for j in range(i):
            total += row[j] * x[j]
            found[j] += row[j] * at
        found[i] = total
        p += i + 1
    return found


@njit(cache=True, fastmath=_FAST)
def foresee(x: Floats, theta: Floats, gain: Floats) -> tuple[float, float]:
    """Mean and variance of an arm's forecast at x (d,), where gain (d,) is P x from `times`; theta: (d,)."""
    mean = 0.0
    variance = 0.0
    for i in range(len(x)):
        mean += theta[i] * x[i]
        variance += gain[i] * x[i]
    return mean, variance


@njit(cache=True, fastmath=_FAST)
def add_row(
    x: Floats, reward: float, gain: Floats, theta: Floats, inverse: Floats, gram: Floats, moment: Floats
) -> None:
    """Learn one row: x (d,), gain (d,) is P x from `times`; theta, moment (d,), inverse, gram (packed,) of its arm."""
    mean, variance = foresee(x, theta, gain)
    share = 1.0 / (1.0 + variance)
    error = (reward - mean) * share
    p = 0
    for i in range(len(x)):
        theta[i] += gain[i] * error
        moment[i] += x[i] * reward
        at, scaled = x[i], gain[i] * share
        inverted, sums = inverse[p : p + i + 1], gram[p : p + i + 1]
        for j in range(i + 1):
            inverted[j] -= scaled * gain[j]
            sums[j] += at * x[j]
        p += i + 1


@njit(cache=True)
def refactor(theta: Floats, inverse: Floats, gram: Floats, moment: Floats, ridge: float) -> None:
    """Invert one arm's gram matrix again and solve for its coefficients: no rounding error from before is left."""
    d = len(theta)
    whole = np.empty((d, d))
    p = 0
    for i in range(d):
        for j in range(i + 1):
            whole[i, j] = gram[p + j]
            whole[j, i] = gram[p + j]
        whole[i, i] += ridge
        p += i + 1
    inverted = np.linalg.inv(whole)
    theta[:] = np.linalg.solve(whole, moment)
    p = 0
    for i in range(d):
        inverse[p : p + i + 1] = inverted[i, : i + 1]
        p += i + 1


@njit(cache=True)
def chance(log_odds: float) -> float:
    """The logistic function."""
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    odds = math.exp(log_odds)
    return odds / (1.0 + odds)


@njit(cache=True)
def working(x: Floats, reward: float, theta: Floats) -> tuple[Floats, float]:
    """The row and target that teach a linear model what `reward` teaches a logistic one: a Newton step's.

    With p the probability at x (d,) and w = p (1 - p) they are √w x and √w xᵀθ + (reward - p) / √w.
    """
    log_odds = 0.0
    for i in range(len(x)):
        log_odds += x[i] * theta[i]
    p = chance(log_odds)
    root = math.sqrt(max(p * (1.0 - p), SMALLEST_SD))
    return root * x, root * log_odds + (reward - p) / root


def edges(window: int) -> Floats:
    """Φ⁻¹(n/(n+1)) for n = 0 … window: the z-score of the last rank, where the tail begins."""
    n = np.arange(window + 1)
    result: Floats = ndtri(np.maximum(n, 1) / (np.maximum(n, 1) + 1))
    return result


@njit(cache=True)
def phi(z: float) -> float:
    """Φ(z)."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


@njit(cache=True)
def stretch(level: float, ordered: Floats, n: int, edge: Floats) -> float:
    """S⁻¹(level): how many of the forecast's own sds from its mean the honest quantile lies.

    level: the wanted quantile as a z-score; ordered: (≥ n,) ascending z-scores; edge: from `edges`.
    """
    position = phi(level) * (n + 1) - 1
    if position <= 0:
        return ordered[0] + min(level + edge[n], 0.0)
    if position >= n - 1:
        return ordered[n - 1] + max(level - edge[n], 0.0)
    below = int(position)
    return ordered[below] + (position - below) * (ordered[below + 1] - ordered[below])


@njit(cache=True)
def pit(z: float, ordered: Floats, n: int, edge: Floats) -> tuple[float, float]:
    """The honest probabilities of an outcome lower than z, and no higher: they differ on atoms."""
    left = np.searchsorted(ordered[:n], z, side="left")
    right = np.searchsorted(ordered[:n], z, side="right")
    if left < right:
        return (left + 1) / (n + 1), right / (n + 1)
    if right == 0:
        p = phi(z - ordered[0] - edge[n])
    elif right == n:
        p = phi(z - ordered[n - 1] + edge[n])
    else:
        p = (right + (z - ordered[right - 1]) / (ordered[right] - ordered[right - 1])) / (n + 1)
    return p, p


@njit(cache=True)
def covered(low: float, high: float, aim: float) -> float:
    """Whether an outcome lies below the quantile at probability `aim`: of an atom, the part of its mass that does.

    low, high: the outcome's probabilities from `pit`.
    """
    if high <= aim:
        return 1.0
    if low >= aim:
        return 0.0
    return (aim - low) / (high - low)


@njit(cache=True)
def remember(z: float, ordered: Floats, arrived: Floats, seen: int) -> None:
    """Add an arm's newest z-score to its history, dropping the oldest when it is full.

    ordered, arrived: (window,), the same numbers by size and by time of arrival; seen: how many came before.
    """
    window = len(ordered)
    n = min(seen, window)
    slot = seen % window
    gap = n  # what is written over: the first free place, or the oldest's
    if n == window:
        gap = np.searchsorted(ordered, arrived[slot], side="left")
    arrived[slot] = z
    place = np.searchsorted(ordered[:n], z, side="right")
    for i in range(gap, place - 1):
        ordered[i] = ordered[i + 1]
    for i in range(gap, place, -1):
        ordered[i] = ordered[i - 1]
    ordered[place - 1 if place > gap else place] = z

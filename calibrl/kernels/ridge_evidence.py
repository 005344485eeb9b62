"""Each arm's own past z-scores, sorted, and the map they stand for: the bandit's R in the hot loop.

The map is the empirical CDF of the z-scores with ranks i/(n+1), straight between them in probability, and
beyond them the forecast's own tail, moved along. `calibrl.bandits.Ecdf` is the same map as a `Map`.
A history holds the last `window` z-scores: memory does not grow with the rounds.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]


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
    if n == window:
        place = np.searchsorted(ordered, arrived[slot], side="left")
        for i in range(place, window - 1):
            ordered[i] = ordered[i + 1]
        n -= 1
    arrived[slot] = z
    i = n
    while i > 0 and ordered[i - 1] > z:
        ordered[i] = ordered[i - 1]
        i -= 1
    ordered[i] = z

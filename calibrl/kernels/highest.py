"""How likely each of several random numbers is to be the highest: the propensities of Thompson sampling."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from calibrl.kernels.ridge import phi

Floats = NDArray[np.float64]

NODES: Floats = np.linspace(-8.5, 8.5, 171)
"""The quantiles by which a number is known, as z-scores: even in z, so that small chances too are right to 2 %."""

# Where a straight line's powers up to the third have their mean over [0, 1].
_GAUSS = 0.5 - 0.5 / 3**0.5


def chances(quantile: Floats, node: Floats) -> Floats:
    """P(number a is the highest): (k,), summing to 1, of independent numbers with quantiles (k, n) at `node` (n,).

    It is the sum, over cells between all numbers' quantiles, of P(a in the cell) · P(all others lower). Between its
    quantiles a number's z-score is taken as straight (which a normal's is), and within a cell all probabilities. Equal
    quantiles are an atom; equals are told apart by lot.
    """
    # Below the highest of all lowest quantiles nobody wins.
    grid = np.sort(quantile[quantile >= quantile[:, 0].max()])
    found: Floats = _sweep(quantile, node, grid)
    return found / found.sum()


@njit(cache=True)
def _sweep(quantile: Floats, node: Floats, grid: Floats) -> Floats:
    k = len(quantile)
    at = np.full(k, -1)
    low, high = np.zeros(k), np.empty(k)
    found = np.zeros(k)
    for i in range(len(grid) + 1):
        # Of an atom's copies the first stands for what lies below it, the next for the atom.
        first = i < len(grid) - 1 and grid[i] == grid[i + 1] and (i == 0 or grid[i] > grid[i - 1])
        for a in range(k):
            high[a] = 1.0 if i == len(grid) else _below(grid[i], first, quantile[a], node, at, a)
        for point in (_GAUSS, 1.0 - _GAUSS):
            _add_cell(low, high, point, found)
        low[:] = high
    return found


@njit(cache=True)
def _below(y: float, strictly: bool, quantile: Floats, node: Floats, at: NDArray[np.int64], a: int) -> float:
    """P(number a < y) or P(≤ y). at: (k,) the last quantile found below or at an earlier y; moved along."""
    n = len(quantile)
    j = at[a]
    while j + 1 < n and (quantile[j + 1] < y or (quantile[j + 1] == y and not strictly)):
        j += 1
    at[a] = j
    if j < 0:
        return 0.0
    if j == n - 1:
        return 1.0
    gap = quantile[j + 1] - quantile[j]
    return phi(node[j] + (node[j + 1] - node[j]) * min((y - quantile[j]) / gap, 1.0))


@njit(cache=True)
def _add_cell(low: Floats, high: Floats, point: float, found: Floats) -> None:
    """Add half of P(a between low and high) · P(all others lower), a share `point` of the way through the cell."""
    k = len(low)
    # All others are those before a and those after a: a division by a's own probability could be one by 0.
    before = 1.0
    part = np.empty(k)
    for a in range(k):
        part[a] = before
        before *= low[a] + point * (high[a] - low[a])
    after = 1.0
    for a in range(k - 1, -1, -1):
        found[a] += 0.5 * (high[a] - low[a]) * part[a] * after
        after *= low[a] + point * (high[a] - low[a])

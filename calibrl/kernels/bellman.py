"""Bellman backups over sparse transitions, compiled; the plain reference is with their test.

Row s·A + a of the transitions holds the successors of action a in state s: entries
rows[s·A + a] … rows[s·A + a + 1] of `successor` and `probability`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@njit(cache=True)
def optimal_backup(
    rows: Ints, successor: Ints, probability: Floats, reward: Floats, discount: float, value: Floats, out: Floats
) -> tuple[float, float]:
    """out(s) = max over a of r(s, a) + γ E[V(s′)]; the smallest and largest change are returned.

    reward: (S, A); value, out: (S,).
    """
    states, actions = reward.shape
    lowest, highest = np.inf, -np.inf
    for s in range(states):
        best = -np.inf
        for a in range(actions):
            row = s * actions + a
            expected = 0.0
            for i in range(rows[row], rows[row + 1]):
                expected += probability[i] * value[successor[i]]
            best = max(best, reward[s, a] + discount * expected)
        out[s] = best
        lowest = min(lowest, best - value[s])
        highest = max(highest, best - value[s])
    return lowest, highest


@njit(cache=True)
def action_values(
    rows: Ints, successor: Ints, probability: Floats, reward: Floats, discount: float, value: Floats, out: Floats
) -> None:
    """out(s, a) = r(s, a) + γ E[V(s′)]. reward, out: (S, A); value: (S,)."""
    states, actions = reward.shape
    for s in range(states):
        for a in range(actions):
            row = s * actions + a
            expected = 0.0
            for i in range(rows[row], rows[row + 1]):
                expected += probability[i] * value[successor[i]]
            out[s, a] = reward[s, a] + discount * expected


@njit(cache=True)
def compress(dense: Floats, rows: Ints, successor: Ints, probability: Floats) -> None:
    """The entries of dense (n, S) that are not zero: their row ends, columns and values.

    rows: (n + 1,); successor, probability: room for all n · S entries and one more, because every entry is
    written and overwritten by the next if it was zero, which is quicker than asking first.
    """
    found = 0
    for row in range(dense.shape[0]):
        for column in range(dense.shape[1]):
            successor[found] = column
            probability[found] = dense[row, column]
            found += dense[row, column] != 0
        rows[row + 1] = found

"""Adaptive conformal inference: how far out to bound outcomes so that in the long run the share of misses is right.

Experts follow the misses of bounds of their own, b ← b + γ_k (missed - tail), each by its step (Gibbs and Candès, 2021;
in z-scores, as the quantile trackers of Angelopoulos, Candès and Tibshirani, 2023, so that no bound is infinite). They
are averaged by how well they did lately (DtACI; Gibbs and Candès, 2024): no step has to be chosen. To the average c is
added, which follows the misses of the bound that was really given, c ← c + γ (missed - tail). If no z-score is larger
than B, experts stay within B + γ_k, so |c| ≤ 2B + 2, and after n batches the mean share of misses differs from the tail
by (2B + 2)/(γ n) at most, whatever the outcomes do.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]

STEPS = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28])
"""γ_k of the experts."""

STEP = 0.03
"""γ of the correction."""

MEMORY = 200
"""How many batches back the experts' success counts."""


def start(tail: float) -> Floats:
    """The state before any outcome: (4, k) of experts, log-weights, the correction and the size of losses."""
    even = np.ones(len(STEPS))
    return np.stack([-ndtri(tail) * even, 0 * even, 0 * even, 0 * even])


def follow(z: Floats, ends: NDArray[np.int64], tail: float, state: Floats) -> Floats:
    """The state after batches of outcomes; see `bound_now`.

    Parameters
    ----------
    z : array (n,)
        The outcomes' z-scores under their forecasts, on the side asked about: larger is further out.
    ends : array (b,)
        Where each batch ends: its outcomes were forecast with the same state.
    tail : float
        The share of misses wanted.
    state : array (4, k)
        What `start` or an earlier call gave.
    """
    found: Floats = _compiled()(z, ends, tail, state.copy(), math.log(2 * len(STEPS) * MEMORY) + 1, MEMORY, STEPS, STEP)
    return found


def bound_now(state: Floats) -> float:
    """The z-score to bound the next outcome by."""
    weight = np.exp(state[1])
    return float(weight @ state[0] / weight.sum() + state[2, 0])


def _follow(
    z: Floats, ends: Any, tail: float, state: Floats, regret: float, memory: float, steps: Floats, step: float
) -> Floats:
    count = len(steps)
    begin = 0
    loss, misses = np.zeros(count), np.zeros(count)
    for end in ends:
        size = end - begin
        if size == 0:
            continue
        weight = np.exp(state[1])
        weight /= weight.sum()
        used = (weight * state[0]).sum() + state[2, 0]
        loss[:], misses[:], missed = 0.0, 0.0, 0.0
        for i in range(begin, end):
            missed += 1.0 if z[i] > used else 0.0
            for k in range(count):
                gap = z[i] - state[0, k]
                loss[k] += max((1 - tail) * gap, -tail * gap)
                misses[k] += 1.0 if gap > 0 else 0.0
        loss = (loss - loss.min()) / size
        # The mean square of what experts differ by, over the batches that count: the learning rate follows it.
        seen = (weight * loss * loss).sum()
        state[3] += (seen - state[3, 0]) / memory if state[3, 0] > 0 else seen
        eta = math.sqrt(regret / (memory * state[3, 0])) if state[3, 0] > 0 else 0.0
        weight = weight * np.exp(-eta * loss)
        state[1] = np.log((1 - 0.5 / memory) * weight / weight.sum() + 0.5 / memory / count)
        state[0] += steps * (misses / size - tail)
        state[2] += step * (missed / size - tail)
        begin = end
    return state


@cache
def _compiled() -> Any:
    from numba import njit

    return njit(cache=True)(_follow)

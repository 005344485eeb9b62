"""Bayesian ridge regressions, one per arm, in the microseconds a bandit's decision may take.

Arm a has the posterior N(θ_a, P_a) with P_a = (ridge · I + Σ x xᵀ)⁻¹ and θ_a = P_a Σ x r; its forecast of the
reward at x is N(xᵀθ_a, xᵀP_a x). A new row changes P_a by a matrix of rank one (Sherman and Morrison), so
nothing is inverted again, except now and then against the rounding errors that add up.
`calibrl.forecasters.RidgeArms` is the same model by plain linear algebra: tests hold the two together.

Symmetric matrices are held as packed lower triangles, row after row: half the memory to read is half the time.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

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


@njit(cache=True)
def pack_square(x: Floats, square: Floats) -> None:
    """Write x xᵀ as a packed triangle that counts what is off the diagonal twice: xᵀPx is then one dot product.

    x: (d,); square: (packed,), overwritten.
    """
    p = 0
    for i in range(len(x)):
        twice = 2.0 * x[i]
        for j in range(i):
            square[p + j] = twice * x[j]
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
def learn(x: Floats, reward: float, theta: Floats, inverse: Floats, gram: Floats, moment: Floats) -> None:
    """Learn one row: x (d,); theta, moment (d,) and inverse, gram (packed,) of the arm that was pulled."""
    d = len(x)
    gain = np.zeros(d)
    p = 0
    for i in range(d):
        row = 0.0
        for j in range(i):
            row += inverse[p + j] * x[j]
            gain[j] += inverse[p + j] * x[i]
        gain[i] += row + inverse[p + i] * x[i]
        p += i + 1
    variance = 0.0
    mean = 0.0
    for i in range(d):
        variance += gain[i] * x[i]
        mean += theta[i] * x[i]
    share = 1.0 / (1.0 + variance)
    error = (reward - mean) * share
    p = 0
    for i in range(d):
        theta[i] += gain[i] * error
        moment[i] += x[i] * reward
        scaled = gain[i] * share
        for j in range(i + 1):
            inverse[p + j] -= scaled * gain[j]
            gram[p + j] += x[i] * x[j]
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

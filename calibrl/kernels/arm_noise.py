"""How noisy each arm's rewards are, how far above its mean an arm is looked at, and whether the world has changed.

LinUCB's bonus is as wide as if every reward had noise of sd 1. Here the noise is learnt, arm by arm, from errors of the
mean before it learnt them. With s² = xᵀP_a x (the posterior variance of a model with unit noise) and e the error of a
reward, e² / (1 + s²) is on average the arm's noise σ_a². So with sums B_a = Σ e² / (1 + s²) and n_a rewards

    v_a = (p + B_a) / (1 + n_a),             p = m² / (1 + xᵀx / ridge),
    σ_a² = (p + B_a + G) / (2 + n_a),        G = geometric mean of v_a over the arms,

where m is the largest reward seen so far, as a size: before anything is known the forecast is as wide as that, whatever
the unit of the rewards. G is the partial pooling: one row's worth of what the arms have in common. A mean over logs,
because noises differ by orders of magnitude where some arms hardly ever pay.

The bonus is `width` = z σ_a s + 0.3 m max(L - 1, 0) s² / (1 + s²) with z² = max(1, L) and
L = 2 ln(t / (k (n_a + 0.8 d))): an arm that has had less than its share of the t rewards of all k arms looks wider and
wider until it is tried again. The second term is Bernstein's, for arms whose few rewards did not vary at all.

What is *said* about the mean is `sure` = τ_a s √(1 + 0.4 max(L, 0)): τ_a² is the same estimate without pooling, from
rows weighted by 1 / (1 + s²), so that errors of an ignorant model do not count as noise; the root undoes the selection:
an arm is left alone when its mean looks low, so means of arms left alone are too low. A single reward has the sd
τ_a √(1 + s²).

Changes: standardised errors, clipped at 3 and less their own mean, are summed (CUSUM, Page 1954) upwards and downwards
with an allowance of 0.35. A sum above 15 + 3 ln(1 + t) is a change: everything known counts a twentieth from then on.

All constants were chosen on seeds from 900 on (docs/bandits.md). `reference` is the same by plain linear algebra.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COUNT, SQUARES, SURE_COUNT, SURE_SQUARES, ERRORS, UP, DOWN = range(7)
"""The columns of an arm's record of noise: n_a, B_a, both weighted for `sure`, Σ of clipped errors, and two CUSUMs."""
COLUMNS = 7

PRIOR, POOLED, SURE_PRIOR = 1.0, 1.0, 0.7
SHARE, BERNSTEIN, SELECTED = 0.8, 0.3, 0.4
CLIP, ALLOWANCE, ALARM, ALARM_LOG, AFTER, AFTER_DIM, KEEP = 3.0, 0.35, 15.0, 3.0, 20, 2, 0.05


@njit(cache=True)
def start(x: Floats, ridge: float, largest: float) -> float:
    """Noise, as a variance, that makes a forecast at x (d,) as wide as the largest reward before anything is known."""
    size = 0.0
    for i in range(len(x)):
        size += x[i] * x[i]
    unit = largest if largest > 0 else 1.0
    return unit * unit / (1.0 + size / ridge)


@njit(cache=True)
def log_noise(noise: Floats, prior: float) -> float:
    """The logarithm of v_a, of an arm's record (7,)."""
    return math.log((PRIOR * prior + noise[SQUARES]) / (PRIOR + noise[COUNT]))


@njit(cache=True)
def shortage(noise: Floats, total: float, arms: int, dim: int) -> float:
    """L: above 0 for an arm that has had less than its share of `total` rewards."""
    return 2.0 * math.log(max(total, 1.0) / (arms * (max(noise[COUNT], 1.0) + SHARE * dim)))


@njit(cache=True)
def width(noise: Floats, prior: float, common: float, largest: float, lack: float, sd: float) -> float:
    """The bonus of an arm: `common` is G, `lack` is L, `sd` is s."""
    sigma = math.sqrt((PRIOR * prior + noise[SQUARES] + POOLED * common) / (PRIOR + POOLED + noise[COUNT]))
    unit = largest if largest > 0 else 1.0
    seldom = BERNSTEIN * unit * max(lack - 1.0, 0.0) * sd * sd / (1.0 + sd * sd)
    return math.sqrt(max(1.0, lack)) * sigma * sd + seldom


@njit(cache=True)
def honest(noise: Floats, prior: float) -> float:
    """τ_a, the sd of an arm's rewards around their mean."""
    return math.sqrt((SURE_PRIOR * prior + noise[SURE_SQUARES]) / (SURE_PRIOR + noise[SURE_COUNT]))


@njit(cache=True)
def sure(tau: float, lack: float, sd: float) -> float:
    """The sd of what is known of an arm's mean."""
    return tau * sd * math.sqrt(1.0 + SELECTED * max(lack, 0.0))


@njit(cache=True)
def note(noise: Floats, error: float, sd: float) -> None:
    """Learn from the error of a reward, of which the model's s was `sd`."""
    weight = 1.0 / (1.0 + sd * sd)
    noise[COUNT] += 1.0
    noise[SQUARES] += error * error * weight
    noise[SURE_COUNT] += weight
    noise[SURE_SQUARES] += error * error * weight * weight


@njit(cache=True)
def changed(noise: Floats, z: float, total: float, dim: int) -> bool:
    """Add a standardised error to an arm's record before `note` does; whether there was a change."""
    clipped = min(max(z, -CLIP), CLIP)
    noise[ERRORS] += clipped
    if noise[COUNT] < AFTER + AFTER_DIM * dim:
        return False
    off = clipped - noise[ERRORS] / (noise[COUNT] + 1.0)
    noise[UP] = max(0.0, noise[UP] + off - ALLOWANCE)
    noise[DOWN] = max(0.0, noise[DOWN] - off - ALLOWANCE)
    return max(noise[UP], noise[DOWN]) > ALARM + ALARM_LOG * math.log(1.0 + total)


@njit(cache=True)
def forget(noise: Floats, keep: float) -> None:
    """Let records (…, 7) count `keep` times as much; the sums of the change detector begin again."""
    noise *= keep
    noise[..., UP:] = 0.0


def reference(
    x: Floats, arm: NDArray[np.int64], reward: Floats, at: Floats, arms: int, *, ridge: float = 1.0, watch: bool = True
) -> tuple[Floats, Floats, Floats, Floats, int]:
    """What rows x (n, d), arm (n,), reward (n,) say of the arms at a context (d,), by the formulas above.

    Returns mean, width, sure and the sd of a single reward, (arms,) each, and how many changes were seen.
    """
    n, d = x.shape
    weight = np.ones(n)  # how much each row still counts
    parts = np.zeros((n, 6))  # of each row: 1, e²/(1+s²), their weighted versions, and the clipped error
    up, down, changes = np.zeros(arms), np.zeros(arms), 0

    def model(a: int, t: int, x_at: Floats) -> tuple[float, float]:
        rows = np.flatnonzero(arm[:t] == a)
        gram = ridge * np.eye(d) + (weight[rows, None] * x[rows]).T @ x[rows]
        mean = x_at @ np.linalg.solve(gram, (weight[rows] * reward[rows]) @ x[rows])
        return float(mean), float(x_at @ np.linalg.solve(gram, x_at)) ** 0.5

    def sums(a: int, t: int) -> Floats:
        rows = np.flatnonzero(arm[:t] == a)
        found: Floats = weight[rows] @ parts[rows]
        return found

    def prior(t: int, x_at: Floats) -> float:
        unit = np.abs(reward[:t]).max(initial=0.0) or 1.0
        return float(unit**2 / (1 + x_at @ x_at / ridge))

    def tau(a: int, t: int, x_at: Floats) -> float:
        count, squares = sums(a, t)[2:4]
        return float((SURE_PRIOR * prior(t, x_at) + squares) / (SURE_PRIOR + count)) ** 0.5

    for t in range(n):
        a = int(arm[t])
        mean, s = model(a, t, x[t])
        z = np.clip((reward[t] - mean) / (tau(a, t, x[t]) * (1 + s * s) ** 0.5), -CLIP, CLIP)
        count = sums(a, t)[0]
        total = weight[:t].sum()
        fresh = False
        if watch and count >= AFTER + AFTER_DIM * d:
            off = z - (sums(a, t)[4] + z) / (count + 1)
            up[a], down[a] = max(0.0, up[a] + off - ALLOWANCE), max(0.0, down[a] - off - ALLOWANCE)
            fresh = max(up[a], down[a]) > ALARM + ALARM_LOG * np.log(1 + total)
        if fresh:
            weight[:t] *= KEEP
            up[:], down[:], changes, z = 0.0, 0.0, changes + 1, z * KEEP
            mean, s = model(a, t, x[t])
        share = 1 / (1 + s * s)
        square = (reward[t] - mean) ** 2 * share
        parts[t] = 1.0, square, share, square * share, z, 0.0
    total, here = weight.sum(), prior(n, at)
    known = np.array([model(a, n, at) for a in range(arms)])
    count, squares = np.array([sums(a, n)[:2] for a in range(arms)]).T
    common = np.exp(np.log((PRIOR * here + squares) / (PRIOR + count)).mean())
    lack = 2 * np.log(max(total, 1.0) / (arms * (np.maximum(count, 1.0) + SHARE * d)))
    sigma = np.sqrt((PRIOR * here + squares + POOLED * common) / (PRIOR + POOLED + count))
    mean, s = known.T
    unit = np.abs(reward).max(initial=0.0) or 1.0
    seldom = BERNSTEIN * unit * np.maximum(lack - 1, 0) * s**2 / (1 + s**2)
    spread = np.array([tau(a, n, at) for a in range(arms)])
    widths = np.sqrt(np.maximum(1, lack)) * sigma * s + seldom
    return mean, widths, spread * s * np.sqrt(1 + SELECTED * np.maximum(lack, 0)), spread * np.sqrt(1 + s**2), changes

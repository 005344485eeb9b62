"""A bandit's two moves, compiled: score every arm at a context, and learn from rewards.

Both are Prequential(RidgeArms) with the empirical map, an arm at a time: `Prequential` judges each row with the
model as it stands, learns it, refits the map; here the map is the sorted history itself, so it is never refitted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from calibrl.kernels import ridge, ridge_evidence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST_SD = 1e6
"""Beyond this a row is so much longer than the prior expects that rounding would swallow everything else."""


class State(NamedTuple):
    """All a bandit knows, in m = k models (one per arm) or m = 1 (shared by the arms), updated in place.

    theta, moment: (m, d); inverse, gram: (m, d(d+1)/2) packed lower triangles; rows: (m,) learnt; ordered, arrived:
    (k, window) z-scores of each arm; pulls: (k,).
    """

    theta: Floats
    moment: Floats
    inverse: Floats
    gram: Floats
    rows: Ints
    ordered: Floats
    arrived: Floats
    pulls: Ints


def blank(models: int, arms: int, dim: int, *, ridge_: float, window: int) -> State:
    """The state before anything was learnt."""
    return State(
        theta=np.zeros((models, dim)),
        moment=np.zeros((models, dim)),
        inverse=np.tile(np.eye(dim)[np.tril_indices(dim)] / ridge_, (models, 1)),
        gram=np.zeros((models, ridge.packed(dim))),
        rows=np.zeros(models, np.int64),
        ordered=np.zeros((arms, window)),
        arrived=np.zeros((arms, window)),
        pulls=np.zeros(arms, np.int64),
    )


@njit(cache=True)
def score_arms(
    state: State, x: Floats, level: Floats, least: int, edge: Floats, mean: Floats, sd: Floats, score: Floats
) -> bool:
    """Write each arm's mean, sd and honest quantile; False if one is not a number.

    x: (1, d), or (k, d) with a row per arm; level: (k,) quantiles as z-scores; least: pulls before an arm's own
    evidence counts; mean, sd, score: (k,), overwritten.
    """
    fine = True
    square = np.empty(state.inverse.shape[1])
    for a in range(len(score)):
        m = min(a, len(state.theta) - 1)
        i = min(a, len(x) - 1)
        if i == a:
            ridge.pack_square(x[i], square)
        mean[a], sd[a] = ridge.forecast(x[i], square, state.theta[m], state.inverse[m])
        score[a] = mean[a] + sd[a] * stretch_of(state, a, level[a], least, edge)
        fine = fine and np.isfinite(score[a])
    return fine


@njit(cache=True)
def stretch_of(state: State, arm: int, level: float, least: int, edge: Floats) -> float:
    """S⁻¹ of an arm at a level: the level itself until the arm has evidence of its own."""
    if state.pulls[arm] < least:
        return level
    n = min(state.pulls[arm], state.ordered.shape[1])
    return ridge_evidence.stretch(level, state.ordered[arm], n, edge)


@njit(cache=True)
def pit_of(state: State, arm: int, z: float, luck: float, least: int, edge: Floats) -> float:
    """The honest probability of an outcome no higher than z of the model's sds above its mean."""
    if state.pulls[arm] < least:
        return ridge_evidence.phi(z)
    n = min(state.pulls[arm], state.ordered.shape[1])
    return ridge_evidence.pit(z, luck, state.ordered[arm], n, edge)


@njit(cache=True)
def best_arm(score: Floats, luck: float) -> int:
    """The arm of the highest score; `luck` in [0, 1) picks one of several equals."""
    best = score[0]
    equals = 1
    for a in range(1, len(score)):
        if score[a] > best:
            best = score[a]
            equals = 1
        elif score[a] == best:
            equals += 1
    skip = int(luck * equals)
    for a in range(len(score)):
        if score[a] == best:
            if skip == 0:
                return a
            skip -= 1
    return -1


@njit(cache=True)
def judge(state: State, x: Floats, arm: Ints, reward: Floats, z: Floats) -> int:
    """Write the z-score of each row under the model as it stands; the first row that is too large to learn, or -1.

    x: (n, d) context, or features of the arm; arm: (n,); reward: (n,); z: (n,), overwritten.
    """
    square = np.empty(state.inverse.shape[1])
    for i in range(len(arm)):
        m = min(arm[i], len(state.theta) - 1)
        ridge.pack_square(x[i], square)
        mean, sd = ridge.forecast(x[i], square, state.theta[m], state.inverse[m])
        z[i] = (reward[i] - mean) / sd
        if not (sd <= LARGEST_SD and np.isfinite(z[i])):
            return i
    return -1


@njit(cache=True)
def absorb(state: State, x: Floats, arm: Ints, reward: Floats, z: Floats, prior: float) -> None:
    """Learn rows that `judge` has passed; shapes as there. prior: the ridge."""
    for i in range(len(arm)):
        a = arm[i]
        m = min(a, len(state.theta) - 1)
        ridge_evidence.remember(z[i], state.ordered[a], state.arrived[a], state.pulls[a])
        ridge.learn(x[i], reward[i], state.theta[m], state.inverse[m], state.gram[m], state.moment[m])
        state.pulls[a] += 1
        state.rows[m] += 1
        if state.rows[m] % ridge.REFACTOR_EVERY == 0:
            ridge.refactor(state.theta[m], state.inverse[m], state.gram[m], state.moment[m], prior)

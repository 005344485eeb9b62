"""A whole bandit trial in one compiled loop: the moves of a service, without the calls between them."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from calibrl.kernels.ridge_policy import Rules, State, best_arm, learn, pit_of, score_arms, stretch_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@njit(cache=True)
def play(
    state: State, rules: Rules, x: Floats, reward: Floats, level: Floats, luck: Floats, forced: Ints, asked: Floats
) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """One policy through one stream of contexts: the state is updated in place.

    x: (t, d); reward: (t, k), of which only the chosen arm's entry is learnt; level: (t, k) the quantile each
    arm is judged by, as a z-score; luck: (t, 2) in [0, 1) for ties and for atoms; forced: (t,) an arm to take
    whatever its score, or -1; asked: (q,) levels to report.

    Returns chosen (t,); mean (t, k) of the model; quantile (t, k, q), the honest ones at the asked levels; pit
    (t, k) of every arm's reward, learnt or not, before any shift; shift (t, k) of the levels, as z-scores.
    """
    rounds, arms = reward.shape
    chosen = np.empty(rounds, np.int64)
    mean, shift, pit = np.empty((rounds, arms)), np.empty((rounds, arms)), np.empty((rounds, arms))
    quantile = np.empty((rounds, arms, len(asked)))
    score, sd = np.empty(arms), np.empty(arms)
    z, error, moved = np.empty(1), np.empty(1), np.empty(1)
    for t in range(rounds):
        score_arms(state, rules, x[t : t + 1], level[t], mean[t], sd, score)
        for a in range(arms):
            low, high = pit_of(state, rules, a, (reward[t, a] - mean[t, a]) / sd[a])
            pit[t, a] = low + luck[t, 1] * (high - low)
            shift[t, a] = state.shift[a]
            for q in range(len(asked)):
                quantile[t, a, q] = mean[t, a] + sd[a] * stretch_of(state, rules, a, asked[q])
        chosen[t] = forced[t] if forced[t] >= 0 else best_arm(score, luck[t, 0])
        row, arm, earned = x[t : t + 1], chosen[t : t + 1], reward[t, chosen[t] : chosen[t] + 1]
        learn(state, rules, row, arm, earned, z, error, moved)
    return chosen, mean, quantile, pit, shift

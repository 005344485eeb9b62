"""A whole bandit trial in one compiled loop: the moves of a service, without the calls between them."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from calibrl.kernels.ridge_policy import State, absorb, best_arm, judge, pit_of, score_arms, stretch_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@njit(cache=True)
def play(
    state: State,
    x: Floats,
    reward: Floats,
    level: Floats,
    luck: Floats,
    forced: Ints,
    asked: Floats,
    least: int,
    edge: Floats,
    prior: float,
) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """One policy through one stream of contexts: the state is updated in place.

    x: (t, d); reward: (t, k), of which only the chosen arm's entry is learnt; level: (t, k) the quantile each
    arm is judged by, as a z-score; luck: (t, 2) in [0, 1) for ties and for atoms; forced: (t,) an arm to take
    whatever its score, or -1; asked: (q,) levels to report; the rest as in `score_arms` and `absorb`.

    Returns chosen (t,); mean, sd (t, k), the model's own forecasts; quantile (t, k, q), the honest ones at the
    asked levels; pit (t, k) of every arm's reward, learnt or not.
    """
    rounds, arms = reward.shape
    chosen = np.empty(rounds, np.int64)
    mean, sd, pit = np.empty((rounds, arms)), np.empty((rounds, arms)), np.empty((rounds, arms))
    quantile = np.empty((rounds, arms, len(asked)))
    score, z = np.empty(arms), np.empty(1)
    for t in range(rounds):
        score_arms(state, x[t : t + 1], level[t], least, edge, mean[t], sd[t], score)
        for a in range(arms):
            outcome = (reward[t, a] - mean[t, a]) / sd[t, a]
            pit[t, a] = pit_of(state, a, outcome, luck[t, 1], least, edge)
            for q in range(len(asked)):
                quantile[t, a, q] = mean[t, a] + sd[t, a] * stretch_of(state, a, asked[q], least, edge)
        chosen[t] = forced[t] if forced[t] >= 0 else best_arm(score, luck[t, 0])
        arm, earned = chosen[t : t + 1], reward[t, chosen[t]] * np.ones(1)
        judge(state, x[t : t + 1], arm, earned, z)
        absorb(state, x[t : t + 1], arm, earned, z, prior)
    return chosen, mean, sd, quantile, pit

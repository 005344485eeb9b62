"""Where a policy spends its time: the joint distribution with respect to which a model can be calibrated."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, linalg

from calibrl.arrays import Array
from calibrl.errors import CalibrlError
from calibrl.planning.value_iteration import MDP, Floats, as_chances, chain_value


def stationary(mdp: MDP, policy: Array) -> Floats:
    """σ (S,): the share of time a policy spends in each state in the long run. σP = σ."""
    chain, _ = mdp.chain(policy)
    closed = _closed_sets(chain)
    if len(closed) > 1:
        raise CalibrlError(
            f"the policy has {len(closed)} sets of states that it never leaves (one with state {closed[0][0]}, another "
            f"state {closed[1][0]}), so its long run depends on the start; use occupancy(mdp, policy, start)"
        )
    states = closed[0]
    part = chain[states][:, states]
    # (Pᵀ - I) σ = 0 leaves σ free up to a factor: the last equation becomes Σσ = 1.
    system = (part.T - sparse.eye_array(len(states))).tolil()
    system[-1, :] = 1.0
    right = np.zeros(len(states))
    right[-1] = 1.0
    share = np.zeros(mdp.states)
    share[states] = np.asarray(linalg.spsolve(system.tocsc(), right)).clip(min=0)
    return share / share.sum()


def occupancy(mdp: MDP, policy: Array, start: Array) -> Floats:
    """D (S,): the discounted share of time a policy spends in each state when it begins in `start` (S,).

    d = (1-γ) Σ_t γᵗ P(s_t = ·). From the stationary distribution it is the stationary distribution.
    """
    begin = check_start(start, mdp.states)
    chain, _ = mdp.chain(policy)
    return chain_value(chain.T, (1 - mdp.discount) * begin, mdp.discount)


def pairs(share: Array, policy: Array, actions: int) -> Floats:
    """The joint distribution (S, A) of states (S,) and the actions a policy takes there."""
    state = np.asarray(share, dtype=np.float64)
    return state[:, None] * as_chances(policy, len(state), actions)


def reachable(mdp: MDP, start: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which states (S,) some policy can reach from where `start` (S,) begins."""
    begin = check_start(start, mdp.states)
    moves = mdp.matrix()
    seen = begin > 0
    fresh = seen
    while bool(fresh.any()):
        row = np.repeat(fresh, mdp.actions)
        found = np.asarray(moves.T @ row.astype(np.float64)) > 0
        fresh = found & ~seen
        seen = seen | found
    return seen


def check_reachable(mdp: MDP, start: Array) -> None:
    """Refuse an MDP with states that no policy reaches from `start`: nothing can be learnt or said about them."""
    lost = np.flatnonzero(~reachable(mdp, start))
    if len(lost):
        raise CalibrlError(
            f"{len(lost)} of {mdp.states} states cannot be reached from the start (the first is state {lost[0]}); "
            "leave them out or start elsewhere"
        )


def check_start(start: Array, states: int) -> Floats:
    """A start distribution (S,), or an error."""
    begin = np.asarray(start, dtype=np.float64)
    if begin.shape != (states,):
        raise CalibrlError(
            f"a start of shape {begin.shape} does not fit; expected a chance for each of {states} states"
        )
    if not bool((begin >= 0).all()) or abs(begin.sum() - 1) > 1e-6:
        raise CalibrlError(f"the start's chances sum to {begin.sum():g}, not 1; normalise them")
    return begin


def _closed_sets(chain: sparse.csr_array) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The sets of states that, once entered, are never left and hold nothing smaller of that kind."""
    chain = chain.copy()
    chain.eliminate_zeros()
    count, label = csgraph.connected_components(chain, directed=True, connection="strong")
    origin, target = chain.nonzero()
    leaks = np.unique(label[origin][label[origin] != label[target]])
    return [np.flatnonzero(label == k) for k in range(count) if k not in leaks]

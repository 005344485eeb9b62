"""The paper's lemma and theorem as numbers: calibrated and miscalibrated models of a known MDP.

Throughout, `weights` (S, A) is the joint distribution of states and actions with respect to which a model is or is not
calibrated: where a policy spends its time, and what it does there. `docs/why-calibrated.md` says what follows from it,
and what does not.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, linalg

from calibrl.arrays import Array
from calibrl.errors import CalibrlError
from calibrl.planning.value_iteration import MDP, Floats, as_chances, chain_value, check_discount, policy_value

# Where a policy spends its time.


def stationary(mdp: MDP, policy: Array) -> Floats:
    """σ: the share of time a policy spends in each state in the long run, σP = σ.

    Parameters
    ----------
    mdp : MDP
        With S states and A actions.
    policy : array
        (S,) actions, or (S, A) chances of each.

    Returns
    -------
    ndarray
        (S,). An error where the long run depends on the start.
    """
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
    """D: the discounted share of time a policy spends in each state, d = (1-γ) Σ_t γᵗ P(s_t = ·).

    From the stationary distribution it is the stationary distribution.

    Parameters
    ----------
    mdp, policy
        As in `stationary`.
    start : array
        (S,), the chances of beginning in each state.

    Returns
    -------
    ndarray
        (S,).
    """
    begin = check_start(start, mdp.states)
    chain, _ = mdp.chain(policy)
    return chain_value(chain.T, (1 - mdp.discount) * begin, mdp.discount)


def pairs(share: Array, policy: Array, actions: int) -> Floats:
    """The joint distribution of states and the actions that a policy takes there.

    Parameters
    ----------
    share : array
        (S,), of states.
    policy
        As in `stationary`.
    actions : int
        A.

    Returns
    -------
    ndarray
        (S, A).
    """
    state = np.asarray(share, dtype=np.float64)
    return state[:, None] * as_chances(policy, len(state), actions)


def reachable(mdp: MDP, start: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which states some policy can reach.

    Parameters
    ----------
    mdp, start
        As in `occupancy`.

    Returns
    -------
    ndarray
        (S,) bool.
    """
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
    """Refuse an MDP with states that no policy reaches: nothing can be learnt or said about them.

    Parameters
    ----------
    mdp, start
        As in `occupancy`.
    """
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


SAME = 1e-12
"""Forecasts closer than this count as the same forecast."""


def with_transitions(mdp: MDP, probability: Floats) -> MDP:
    """The same rewards r(s, a) and discount, other beliefs about what happens next.

    Parameters
    ----------
    mdp : MDP
        With S states and A actions.
    probability : array
        (S, A, S).

    Returns
    -------
    MDP
        A new one.
    """
    return MDP.dense(probability, mdp.reward, discount=mdp.discount)


# Models that are calibrated.


def aggregate(mdp: MDP, weights: Array, classes: Array) -> MDP:
    """The model that cannot tell apart the states of a class: their transitions are averaged.

    It is calibrated with respect to `weights`, however few classes there are; with one it is the bluntest calibrated
    model.

    Parameters
    ----------
    mdp : MDP
        The truth, with S states and A actions.
    weights : array
        (S, A), the joint distribution of states and actions.
    classes : array
        (S,) whole numbers from 0 without gaps.

    Returns
    -------
    MDP
        The model.
    """
    joint = check_weights(weights, mdp)
    label = np.asarray(classes)
    if label.shape != (mdp.states,) or not np.issubdtype(label.dtype, np.integer) or label.min() < 0:
        raise CalibrlError(
            f"classes of shape {label.shape} do not fit; give each of {mdp.states} states a number from 0"
        )
    size = np.bincount(label)
    if bool((size == 0).any()):
        raise CalibrlError(f"state class {int((size == 0).argmax())} is empty; number the classes 0 … without gaps")
    member = np.eye(len(size))[label]
    mass = member.T @ joint
    unseen = np.argwhere(mass.sum(1) == 0)
    if len(unseen):
        k = int(unseen[0, 0])
        raise CalibrlError(
            f"state class {k} holds only states that are never visited (state {int((label == k).argmax())} is one); "
            "merge it with another class"
        )
    pooled = np.einsum("sk,sa,sat->kat", member, joint, mdp.to_dense())
    # An action never taken in a class carries no weight: what is said about it matters to nobody.
    even = np.full(mdp.states, 1 / mdp.states)
    share = np.where(mass[..., None] > 0, pooled / np.maximum(mass, 1e-300)[..., None], even)
    return with_transitions(mdp, share[label])


def classwise_example(*, size: float = 0.1, discount: float = 0.9) -> tuple[MDP, MDP, Floats]:
    """A model calibrated for each next state by itself, but not for the forecast as a whole.

    Three states, two actions, the policy picks either. The model's six forecasts are the six orders of (0.2, 0.3, 0.5);
    the truth moves each by ±`size`·(1, -1, 0), plus for even orders, minus for odd ones. Two orders that share an entry
    have opposite signs, so on average each entry is right.

    Parameters
    ----------
    size : float
        How far the truth is from the model.
    discount : float
        γ.

    Returns
    -------
    truth, model : MDP
        Of 3 states and 2 actions.
    weights : ndarray
        (3, 2), the joint distribution of states and actions.
    """
    base = np.array([0.2, 0.3, 0.5])
    even = np.stack([np.roll(base, k) for k in range(3)])
    odd = even[:, ::-1]
    change = size * np.array([1.0, -1.0, 0.0])
    # Two orders to each state, not one of either kind, or their errors would cancel within the state.
    model = np.concatenate([even, odd]).reshape(3, 2, 3)
    truth = np.concatenate([even + change, odd - change]).reshape(3, 2, 3)
    reward = np.array([1.0, 0.0, -2.0])
    weights = np.full((3, 2), 1 / 6)
    return MDP.dense(truth, reward, discount=discount), MDP.dense(model, reward, discount=discount), weights


# Models that are not.


def sharpen(mdp: MDP, power: float) -> MDP:
    """The over-confident model T^power, scaled to sum to one.

    Parameters
    ----------
    mdp : MDP
        The truth.
    power : float
        Above 1 sharpens, below 1 blunts (under-confident).

    Returns
    -------
    MDP
        The model.
    """
    if not power > 0:
        raise CalibrlError(f"power {power} is not above 0; above 1 sharpens, below 1 blunts")
    raised = mdp.to_dense() ** power
    return with_transitions(mdp, raised / raised.sum(-1, keepdims=True))


def motionless(mdp: MDP) -> MDP:
    """The model in which no action ever changes the state: certain, and wrong.

    Parameters
    ----------
    mdp : MDP
        The truth.

    Returns
    -------
    MDP
        The model.
    """
    still = np.broadcast_to(np.eye(mdp.states)[:, None], (mdp.states, mdp.actions, mdp.states))
    return with_transitions(mdp, still)


# How wrong is a model?


def classwise_error(model: MDP, truth: MDP, weights: Array) -> float:
    """Σ over s′ of E|P(S′ = s′ | T̂(s′|S,A)) - T̂(s′|S,A)|: zero exactly when the paper's definition holds.

    Parameters
    ----------
    model, truth : MDP
        Of S states and A actions both.
    weights : array
        (S, A), the joint distribution of states and actions.

    Returns
    -------
    float
        0 when calibrated.
    """
    joint, said, true = _compared(model, truth, weights)
    weight = np.broadcast_to(joint[..., None], said.shape)
    # Forecasts of different next states are kept apart by different whole numbers.
    key = said + 2 * np.arange(truth.states)
    return _grouped_error(key.ravel(), (weight * (true - said)).ravel())


def marginal_error(model: MDP, truth: MDP, weights: Array) -> float:
    """Σ over s′ of |E[T̂(s′|S,A)] - P(S′ = s′)|: zero exactly when the lemma's conclusion holds for every function.

    Parameters
    ----------
    model, truth, weights
        As in `classwise_error`.

    Returns
    -------
    float
        0 where expectations are right.
    """
    joint, said, true = _compared(model, truth, weights)
    return float(np.abs(np.einsum("sa,sat->t", joint, said - true)).sum())


def pooled_error(model: MDP, truth: MDP, weights: Array) -> float:
    """The calibration error when all next states are thrown together: "events given 80 % happen 80 % of the time".

    Parameters
    ----------
    model, truth, weights
        As in `classwise_error`.

    Returns
    -------
    float
        0 is best.
    """
    joint, said, true = _compared(model, truth, weights)
    weight = np.broadcast_to(joint[..., None], said.shape)
    return _grouped_error(said.ravel(), (weight * (true - said)).ravel())


def brier(model: MDP, truth: MDP, weights: Array) -> float:
    """The expected Brier score Σ over s′ of (T̂(s′) - 1{S′ = s′})², a proper score.

    Parameters
    ----------
    model, truth, weights
        As in `classwise_error`.

    Returns
    -------
    float
        Smaller is better.
    """
    joint, said, true = _compared(model, truth, weights)
    return float((joint[..., None] * (said**2 - 2 * said * true + true)).sum())


def value_error(model: MDP, truth: MDP, policy: Array, start: Array) -> float:
    """How far off the policy's value is, on average over where it starts: V̂(π) - V(π).

    Parameters
    ----------
    model, truth
        As in `classwise_error`.
    policy : array
        (S,) actions, or (S, A) chances of each.
    start : array
        (S,), the chances of beginning in each state.

    Returns
    -------
    float
        In units of reward.
    """
    begin = check_start(start, truth.states)
    return float(begin @ (policy_value(model, policy) - policy_value(truth, policy)))


def value_error_bound(calibration_error: float, believed: Array, discount: float) -> float:
    """γ/(1-γ) · half the spread of V̂ · the class-wise calibration error: |V̂(π) - V(π)| is never above it.

    Parameters
    ----------
    calibration_error : float
        With respect to the policy's discounted occupancy from the start at which the values are compared, which is its
        stationary distribution if it starts there.
    believed : array
        V̂, (S,).
    discount : float
        γ.

    Returns
    -------
    float
        In units of reward.
    """
    check_discount(discount)
    spread = float(np.ptp(np.asarray(believed, dtype=np.float64)))
    return discount / (1 - discount) * spread / 2 * calibration_error


def check_weights(weights: Array, mdp: MDP) -> Floats:
    """Weights (S, A) of states and actions, or an error."""
    joint = np.asarray(weights, dtype=np.float64)
    if joint.shape != mdp.reward.shape:
        raise CalibrlError(f"weights of shape {joint.shape} do not fit; expected (states, actions) {mdp.reward.shape}")
    if not bool((joint >= 0).all()) or abs(joint.sum() - 1) > 1e-6:
        raise CalibrlError(f"weights sum to {joint.sum():g}, not 1; pass the joint distribution of states and actions")
    return joint


def _compared(model: MDP, truth: MDP, weights: Array) -> tuple[Floats, Floats, Floats]:
    """Weights (S, A), what the model says and what is true (S, A, S)."""
    if model.reward.shape != truth.reward.shape:
        raise CalibrlError(
            f"a model of (states, actions) {model.reward.shape} cannot be held against one of {truth.reward.shape}; "
            "both need the same"
        )
    return check_weights(weights, truth), model.to_dense(), truth.to_dense()


def _grouped_error(key: Floats, gap: Floats) -> float:
    """Σ over distinct keys of |Σ gap|."""
    order = np.argsort(key)
    fresh = np.diff(key[order], prepend=-1.0) > SAME
    return float(np.abs(np.add.reduceat(gap[order], np.flatnonzero(fresh))).sum())

"""The paper's lemma and theorem as numbers: calibrated and miscalibrated models of a known MDP.

Throughout, `weights` (S, A) is the joint distribution of states and actions with respect to which a model
is or is not calibrated; `docs/why-calibrated.md` says what follows from it, and what does not.
"""

from __future__ import annotations

import numpy as np

from calibrl.arrays import Array
from calibrl.errors import CalibrlError
from calibrl.mdp.occupancy import check_start
from calibrl.planning.value_iteration import MDP, Floats, check_discount, policy_value

SAME = 1e-12
"""Forecasts closer than this count as the same forecast."""


def with_transitions(mdp: MDP, probability: Floats) -> MDP:
    """The same rewards r(s, a) and discount, other beliefs about what happens next: (S, A, S)."""
    return MDP.dense(probability, mdp.reward, discount=mdp.discount)


# Models that are calibrated.


def aggregate(mdp: MDP, weights: Array, classes: Array) -> MDP:
    """The model that cannot tell apart the states of a class: their transitions are averaged with `weights`.

    It is calibrated with respect to these weights, however few classes (S,) there are; with one class it is
    the bluntest calibrated model.
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
    """A truth, a model and weights: calibrated for each next state by itself, but not for the forecast as a whole.

    Three states, two actions, the policy picks either. The model's six forecasts are the six orders of
    (0.2, 0.3, 0.5); the truth moves each by ±`size`·(1, -1, 0), plus for even orders, minus for odd ones.
    Two orders that share an entry have opposite signs, so on average each entry is right.
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
    """The over-confident model T^power, scaled to sum to one; below 1 it is under-confident."""
    if not power > 0:
        raise CalibrlError(f"power {power} is not above 0; above 1 sharpens, below 1 blunts")
    raised = mdp.to_dense() ** power
    return with_transitions(mdp, raised / raised.sum(-1, keepdims=True))


def motionless(mdp: MDP) -> MDP:
    """The model in which no action ever changes the state: certain, and wrong."""
    still = np.broadcast_to(np.eye(mdp.states)[:, None], (mdp.states, mdp.actions, mdp.states))
    return with_transitions(mdp, still)


# How wrong is a model?


def classwise_error(model: MDP, truth: MDP, weights: Array) -> float:
    """Σ over s′ of E|P(S′ = s′ | T̂(s′|S,A)) - T̂(s′|S,A)|: zero exactly when the paper's definition holds."""
    joint, said, true = _compared(model, truth, weights)
    weight = np.broadcast_to(joint[..., None], said.shape)
    # Forecasts of different next states are kept apart by different whole numbers.
    key = said + 2 * np.arange(truth.states)
    return _grouped_error(key.ravel(), (weight * (true - said)).ravel())


def marginal_error(model: MDP, truth: MDP, weights: Array) -> float:
    """Σ over s′ of |E[T̂(s′|S,A)] - P(S′ = s′)|: zero exactly when the lemma's conclusion holds for every function."""
    joint, said, true = _compared(model, truth, weights)
    return float(np.abs(np.einsum("sa,sat->t", joint, said - true)).sum())


def pooled_error(model: MDP, truth: MDP, weights: Array) -> float:
    """The calibration error when all next states are thrown together: "events given 80 % happen 80 % of the time"."""
    joint, said, true = _compared(model, truth, weights)
    weight = np.broadcast_to(joint[..., None], said.shape)
    return _grouped_error(said.ravel(), (weight * (true - said)).ravel())


def brier(model: MDP, truth: MDP, weights: Array) -> float:
    """The expected Brier score Σ over s′ of (T̂(s′) - 1{S′ = s′})², a proper score: smaller is better."""
    joint, said, true = _compared(model, truth, weights)
    return float((joint[..., None] * (said**2 - 2 * said * true + true)).sum())


def value_error(model: MDP, truth: MDP, policy: Array, start: Array) -> float:
    """How far off the policy's value is, on average over where it starts (S,): V̂(π) - V(π)."""
    begin = check_start(start, truth.states)
    return float(begin @ (policy_value(model, policy) - policy_value(truth, policy)))


def value_error_bound(calibration_error: float, believed: Array, discount: float) -> float:
    """γ/(1-γ) · half the spread of V̂ (S,) · the class-wise calibration error: |V̂(π) - V(π)| is never above it.

    The calibration error is that with respect to the policy's discounted occupancy from the start at which
    the values are compared, which is its stationary distribution if it starts there.
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

"""The paper's lemma and theorem as numbers: calibrated and miscalibrated models of a known MDP.

Throughout, `weights` (S, A) is the joint distribution of states and actions with respect to which a model is or is not
calibrated: where a policy spends its time, and what it does there; a policy is (S,) actions or (S, A) chances of each.
`docs/why-calibrated.md` says what follows from it, and what does not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, linalg

from calibrl.arrays import Array
from calibrl.errors import CalibrlError, check_within
from calibrl.mdp.problems import GOOD, TRY, check_start, random_mdp, random_policy, two_state
from calibrl.planning.value_iteration import (
    MDP,
    Floats,
    as_chances,
    chain_value,
    check_discount,
    policy_value,
    value_iteration,
)
from calibrl.runs.engine import Arrays
from calibrl.runs.rows import Row

SAME = 1e-12
"""Forecasts closer than this count as the same forecast."""
TWO_STATES, RANDOM = "two states", "random MDPs"
"""The experiment's problems that are not planning tasks."""
POWERS = (0.33, 0.5, 0.65, 0.8, 0.9, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""How far the random MDPs' models are from calibrated: T^power."""


# Where a policy spends its time.


def stationary(mdp: MDP, policy: Array) -> Floats:
    """σ: the share of time a policy spends in each state in the long run, σP = σ.

    Parameters
    ----------
    mdp : MDP
    policy : array (S,) or (S, A)

    Returns
    -------
    ndarray (S,)
        An error where the long run depends on the start.
    """
    chain, _ = mdp.chain(policy)
    closed = _closed_sets(chain)
    if len(closed) > 1:
        raise CalibrlError(
            f"the policy has {len(closed)} sets of states that it never leaves (one with state {closed[0][0]}, another "
            f"state {closed[1][0]}), so its long run depends on the start; use occupancy(mdp, policy, start)"
        )
    states = closed[0]
    # (Pᵀ - I) σ = 0 leaves σ free up to a factor: the last equation becomes Σσ = 1.
    system = (chain[states][:, states].T - sparse.eye_array(len(states))).tolil()
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
    mdp : MDP
    policy : array (S,) or (S, A)
    start : array (S,)
        The chances of beginning in each state.

    Returns
    -------
    ndarray (S,)
    """
    begin = check_start(start, mdp.states)
    chain, _ = mdp.chain(policy)
    return chain_value(chain.T, (1 - mdp.discount) * begin, mdp.discount)


def pairs(share: Array, policy: Array, actions: int) -> Floats:
    """The joint distribution of states and the actions that a policy takes there.

    Parameters
    ----------
    share : array (S,)
        The distribution of states.
    policy : array (S,) or (S, A)
    actions : int
        A.

    Returns
    -------
    ndarray (S, A)
    """
    state = np.asarray(share, dtype=np.float64)
    return state[:, None] * as_chances(policy, len(state), actions)


def _closed_sets(chain: sparse.csr_array) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The sets of states that, once entered, are never left and hold nothing smaller of that kind."""
    chain = chain.copy()
    chain.eliminate_zeros()
    count, label = csgraph.connected_components(chain, directed=True, connection="strong")
    origin, target = chain.nonzero()
    leaks = np.unique(label[origin][label[origin] != label[target]])
    return [np.flatnonzero(label == k) for k in range(count) if k not in leaks]


# Models that are calibrated.


def with_transitions(mdp: MDP, probability: Floats) -> MDP:
    """The same rewards r(s, a) and discount, other beliefs about what happens next.

    Parameters
    ----------
    mdp : MDP
    probability : array (S, A, S)

    Returns
    -------
    MDP
    """
    return MDP.dense(probability, mdp.reward, discount=mdp.discount)


def aggregate(mdp: MDP, weights: Array, classes: Array) -> MDP:
    """The model that cannot tell apart the states of a class: their transitions are averaged.

    It is calibrated with respect to `weights`, however few classes there are; with one it is the bluntest calibrated
    model.

    Parameters
    ----------
    mdp : MDP
        The truth.
    weights : array (S, A)
    classes : array (S,)
        Whole numbers from 0 without gaps.

    Returns
    -------
    MDP
    """
    joint = check_weights(weights, mdp)
    label = np.asarray(classes)
    if label.shape != (mdp.states,) or not np.issubdtype(label.dtype, np.integer) or label.min() < 0:
        raise CalibrlError(f"classes of shape {label.shape} do not fit; number each of {mdp.states} states from 0")
    size = np.bincount(label)
    if bool((size == 0).any()):
        raise CalibrlError(f"state class {int((size == 0).argmax())} is empty; number the classes 0 … without gaps")
    member = np.eye(len(size))[label]
    mass = member.T @ joint
    unseen = np.flatnonzero(mass.sum(1) == 0)
    if len(unseen):
        raise CalibrlError(
            f"state class {unseen[0]} holds only states that are never visited (state "
            f"{int((label == unseen[0]).argmax())} is one); merge it with another class"
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
    weights : ndarray (3, 2)
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
    """
    raised = mdp.to_dense() ** check_within("power", power, "(0, inf)", "above 1 sharpens, below 1 blunts")
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
    """
    still = np.broadcast_to(np.eye(mdp.states)[:, None], (mdp.states, mdp.actions, mdp.states))
    return with_transitions(mdp, still)


# How wrong is a model?


def classwise_error(model: MDP, truth: MDP, weights: Array) -> float:
    """Σ over s′ of E|P(S′ = s′ | T̂(s′|S,A)) - T̂(s′|S,A)|: zero exactly when the paper's definition holds.

    Parameters
    ----------
    model, truth : MDP
    weights : array (S, A)

    Returns
    -------
    float
        0 when calibrated.
    """
    joint, said, true = _compared(model, truth, weights)
    # Forecasts of different next states are kept apart by different whole numbers.
    return _grouped_error(said + 2 * np.arange(truth.states), joint[..., None] * (true - said))


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
    return _grouped_error(said, joint[..., None] * (true - said))


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
    model, truth : MDP
    policy : array (S,) or (S, A)
    start : array (S,)
        The chances of beginning in each state.

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
    believed : array (S,)
        V̂.
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
    order = np.argsort(key, axis=None)
    fresh = np.diff(key.ravel()[order], prepend=-1.0) > SAME
    return float(np.abs(np.add.reduceat(gap.ravel()[order], np.flatnonzero(fresh))).sum())


# The experiment's rows: the two-state example of section 3.2, and the lemma and the theorem over random MDPs.


def two_state_rows(seed: int) -> Iterator[Row]:
    """What an agent expects and what it gets, by the chance its model gives to staying in the good state."""
    truth = two_state(0.8)
    optimal = float(value_iteration(truth).value[GOOD])
    for percent in range(101):
        model = two_state(percent / 100)
        plan = value_iteration(model)
        metrics = {
            "believed": percent / 100,
            "expected_reward": float(model.reward[GOOD, TRY]),
            "promised_value": float(plan.value[GOOD]),
            "delivered_value": float(policy_value(truth, plan.policy)[GOOD]),
            "optimal_value": optimal,
            "tries": float(plan.policy[GOOD] == TRY),
        }
        yield Row("mdp", TWO_STATES, f"{percent} %", seed, metrics)


def judge_random_mdp(generator: np.random.Generator) -> dict[str, tuple[float, float, float, float]]:
    """A random MDP and policy, valued by the truth, by blunt calibrated models, and by sharp or blunt wrong ones.

    By model: the calibration error, the Brier score, the error of the policy's value and its bound, both as shares of
    the range of V.
    """
    states, actions = 12, 3
    truth = random_mdp(states, actions, states, generator=generator, discount=0.9)
    policy = random_policy(states, actions, generator=generator)
    share = stationary(truth, policy)
    weights = pairs(share, policy, actions)
    models = {
        f"calibrated, {k} class{'es' if k > 1 else ''} of states": aggregate(truth, weights, np.arange(states) % k)
        for k in (1, 3, 6)
    }
    models |= {f"too {'sharp' if power > 1 else 'blunt'}, T^{power:g}": sharpen(truth, power) for power in POWERS}
    value = policy_value(truth, policy)
    span = float(np.ptp(value))
    found = {}
    for name, model in models.items():
        believed = policy_value(model, policy)
        calibration = classwise_error(model, truth, weights)
        error = abs(float(share @ (believed - value)))
        bound = value_error_bound(calibration, believed, truth.discount)
        found[name] = calibration, brier(model, truth, weights), error / span, bound / span
    return found


def theory_job(problems: int, seed: int) -> Iterator[Row | Arrays]:
    """So many random MDPs: for each kind of model a row of how wrong it is, and all their numbers for the figure."""
    generator = np.random.default_rng(seed)
    judged = [judge_random_mdp(generator) for _ in range(problems)]
    numbers = np.array([list(models.values()) for models in judged])  # (problems, models, 4)
    for model, (calibration, score, error, bound) in zip(judged[0], numbers.transpose(1, 2, 0), strict=True):
        metrics = {
            "problems": problems,
            "calibration_error": calibration.mean(),
            "brier": score.mean(),
            "value_error": error.mean(),
            "value_error_worst": error.max(),
            "value_error_bound": bound.mean(),
            "better_brier_than_blunt": (score < numbers[:, 0, 1]).mean(),
        }
        yield Row("mdp", RANDOM, model, seed, {name: float(value) for name, value in metrics.items()})
    models = np.tile(np.array(list(judged[0])), problems)
    yield Arrays({"model": models, "calibration, brier, error": numbers[..., :3].reshape(-1, 3)})

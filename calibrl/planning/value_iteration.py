"""Discrete MDPs with sparse transitions: value iteration, policy iteration, and the exact value of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import linalg

from calibrl.arrays import Array
from calibrl.errors import CalibrlError, check_count, check_within
from calibrl.kernels import bellman

__all__ = ["MDP", "Solution", "action_values", "policy_iteration", "policy_value", "value_iteration"]

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]

SUM_TOLERANCE = 1e-6
"""How far a row of probabilities may be from one before it is an error instead of rounding."""
EXACT = 1e-12
"""How far it may be before it is scaled to one: near γ = 1 a part in ten million, as of float32, moves a value far."""


@dataclass(frozen=True, eq=False)
class MDP:
    """S states, A actions, sparse transitions T(s′ | s, a), expected rewards r(s, a) and a discount γ.

    Build one with `MDP.dense`, `MDP.listed` or `MDP.by_action`.

    Parameters
    ----------
    rows
        Where the successors of each state and action begin, (S·A + 1,): those of action a in state s are at positions
        rows[s·A + a] … rows[s·A + a + 1].
    successor, probability
        States that may follow, and their chances, (n,) each; one successor may be listed twice, its chances add up.
    reward
        Expected rewards (S, A).
    discount
        γ, in [0, 1).
    """

    rows: Ints
    successor: Ints
    probability: Floats
    reward: Floats
    discount: float

    def __post_init__(self) -> None:
        check_discount(self.discount)
        if self.reward.ndim != 2 or len(self.rows) != self.reward.size + 1:
            raise CalibrlError(
                f"rewards of shape {self.reward.shape} do not fit {len(self.rows) - 1} rows of transitions; "
                "expected (states, actions)"
            )
        _check_successors(self.successor, self.states)
        total = _check_rows(self.rows, self.probability, self.actions)
        if bool((np.abs(total - 1) > EXACT).any()):
            object.__setattr__(self, "probability", self.probability / np.repeat(total, np.diff(self.rows)))
        # Last, because expected rewards are lost where probabilities are.
        if not np.isfinite(self.reward).all():
            s, a = np.argwhere(~np.isfinite(self.reward))[0]
            raise CalibrlError(f"the reward of action {a} in state {s} is {self.reward[s, a]}; rewards must be finite")

    @property
    def states(self) -> int:
        """S."""
        return int(self.reward.shape[0])

    @property
    def actions(self) -> int:
        """A."""
        return int(self.reward.shape[1])

    @classmethod
    def dense(cls, probability: Array, reward: Array, *, discount: float) -> MDP:
        """An MDP of a full table of probabilities.

        Parameters
        ----------
        probability
            T(s′ | s, a), (S, A, S).
        reward, discount
            Rewards (S,), (S, A), or (S, A, S) if they depend on s′; γ, in [0, 1).
        """
        p = np.ascontiguousarray(_numbers(probability, "probabilities"))
        if p.ndim != 3 or p.shape[0] != p.shape[2] or 0 in p.shape:
            raise CalibrlError(f"probabilities of shape {p.shape} are not T(s′ | s, a); expected (S, A, S)")
        expected = _expected_reward(p, reward)
        rows = np.zeros(p.shape[0] * p.shape[1] + 1, dtype=np.int64)
        successor, listed = np.empty(p.size + 1, dtype=np.int32), np.empty(p.size + 1)
        bellman.compress(p.reshape(-1, p.shape[2]), rows, successor, listed)
        count = int(rows[-1])
        return cls(rows, successor[:count].copy(), listed[:count].copy(), expected, discount)

    @classmethod
    def listed(cls, successor: Array, probability: Array, reward: Array, *, discount: float) -> MDP:
        """An MDP of m candidate successors for each state and action.

        Parameters
        ----------
        successor, probability
            States that may follow, and their chances, (S, A, m) each.
        reward, discount
            Rewards (S,), (S, A), or (S, A, m) if they depend on which successor comes true; γ, in [0, 1).
        """
        p, to = _numbers(probability, "probabilities"), np.asarray(successor)
        if p.ndim != 3 or 0 in p.shape:
            raise CalibrlError(f"probabilities of shape {p.shape} are not lists of successors; expected (S, A, m)")
        if to.ndim > 3 or any(n not in (1, m) for n, m in zip(to.shape[::-1], p.shape[::-1], strict=False)):
            raise CalibrlError(f"successors of shape {to.shape} do not fit probabilities {p.shape}; expected the same")
        rows = np.arange(p.shape[0] * p.shape[1] + 1, dtype=np.int64) * p.shape[2]
        flat = np.broadcast_to(to, p.shape).ravel()
        _check_successors(flat, p.shape[0])
        return cls(rows, flat.astype(np.int32), p.flatten(), _expected_reward(p, reward), discount)

    @classmethod
    def by_action(cls, probability: Any, reward: Any, *, discount: float) -> MDP:
        """An MDP of one matrix for each action, as other libraries keep them.

        Parameters
        ----------
        probability
            A matrix (S, S) for each action, dense or sparse.
        reward, discount
            Rewards (S,), (S, A), or one matrix (S, S) for each action if they depend on s′; γ, in [0, 1).
        """
        actions, shapes = len(probability), {np.shape(matrix) for matrix in probability}
        states = next(iter(shapes))[0] if shapes and shapes != {()} else 0
        if shapes != {(states, states)} or not states:
            raise CalibrlError(f"probabilities of shapes {sorted(shapes)} do not fit; expected (S, S) for each action")
        by_successor = np.iterable(reward) and any(len(np.shape(matrix)) == 2 for matrix in reward)
        if by_successor and [np.shape(matrix) for matrix in reward] != [(states, states)] * actions:
            given = [np.shape(matrix) for matrix in reward]
            raise CalibrlError(f"rewards of shapes {given} do not fit; expected {actions} of shape {states, states}")
        if not any(sparse.issparse(matrix) for matrix in (*probability, *(reward if by_successor else ()))):
            p = np.swapaxes(_numbers(probability, "probabilities"), 0, 1)
            return cls.dense(p, np.swapaxes(reward, 0, 1) if by_successor else reward, discount=discount)
        moves = [sparse.csr_array(matrix) for matrix in probability]
        if by_successor:
            pays = [p.multiply(r).sum(1) for p, r in zip(moves, reward, strict=True)]
            expected = np.stack([np.asarray(one).ravel() for one in pays], 1)
        else:
            expected = _by_action(reward, states, actions)
        # Rows come action by action and are wanted state by state.
        order = np.arange(states * actions).reshape(actions, -1).T.ravel()
        ordered = sparse.vstack(moves, format="csr")[order]
        parts = (ordered.indptr.astype(np.int64), ordered.indices, ordered.data.astype(np.float64))
        return cls(*parts, expected, discount)

    def matrix(self) -> sparse.csr_array:
        """T as a sparse matrix (S·A, S)."""
        shape = (self.states * self.actions, self.states)
        return sparse.csr_array((self.probability, self.successor, self.rows), shape=shape)

    @cached_property
    def _dense(self) -> Floats:
        return self.matrix().toarray().reshape(self.states, self.actions, self.states)

    def to_dense(self) -> Floats:
        """T(s′ | s, a) as an array (S, A, S)."""
        return self._dense.copy()

    def chain(self, policy: Array) -> tuple[sparse.csr_array, Floats]:
        """What a policy makes of the MDP: the Markov chain (S, S) and its expected reward (S,).

        policy: (S,) an action for each state, or (S, A) the chance of each action.
        """
        chance = as_chances(policy, self.states, self.actions)
        s, a = np.nonzero(chance)
        pick = sparse.csr_array((chance[s, a], (s, s * self.actions + a)), shape=(self.states, self.reward.size))
        return (pick @ self.matrix()).tocsr(), (chance * self.reward).sum(1)


def as_chances(policy: Array, states: int, actions: int) -> Floats:
    """A policy, actions (S,) or chances (S, A), as the chance of each action, (S, A), or an error."""
    given = _numbers(policy, "a policy")
    if given.shape == (states,):
        if bool((given < 0).any()) or bool((given >= actions).any()) or bool((given != np.floor(given)).any()):
            raise CalibrlError(f"the policy names actions outside 0 … {actions - 1}; give one action for each state")
        return np.eye(actions)[given.astype(np.int64)]
    if given.shape != (states, actions):
        raise CalibrlError(f"a policy of shape {given.shape} does not fit; expected ({states},) or {states, actions}")
    total = given.sum(1)
    wrong = ~(given >= 0).all(1) | (np.abs(total - 1) > SUM_TOLERANCE)
    if bool(wrong.any()):
        s = int(wrong.argmax())
        raise CalibrlError(f"the policy's chances in state {s} sum to {total[s]:g}, not 1; normalise each row")
    return given / total[:, None] if bool((np.abs(total - 1) > EXACT).any()) else given


def check_discount(discount: float) -> None:
    """Refuse a discount outside [0, 1)."""
    if not isinstance(discount, (int, float, np.number)) or not 0 <= discount < 1:
        raise CalibrlError(f"discount {discount} is outside [0, 1); use 0.99 for long horizons, 0 for the next reward")


def _numbers(value: Array, what: str) -> Floats:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise CalibrlError(f"{what} of type {type(value).__name__} are no array of numbers; pass one") from None


def _expected_reward(p: Floats, reward: Array) -> Floats:
    r = _numbers(reward, "rewards")
    return np.einsum("sam,sam->sa", p, r) if r.shape == p.shape else _by_action(r, *p.shape)


def _by_action(reward: Array, states: int, actions: int, *successors: int) -> Floats:
    """Rewards (S,) or (S, A) as (S, A)."""
    r = _numbers(reward, "rewards")
    if r.shape == (states,):
        return np.repeat(r[:, None], actions, 1)
    if r.shape != (states, actions):
        raise CalibrlError(
            f"rewards of shape {r.shape} do not fit; expected {(states,)}, {states, actions} or "
            f"{(states, actions, *successors) if successors else f'{actions} matrices {states, states}'}"
        )
    return r.copy()


def _check_successors(successor: Ints, states: int) -> None:
    if not np.issubdtype(successor.dtype, np.integer):
        raise CalibrlError(f"successors of type {successor.dtype} are not state numbers; pass integers")
    if len(successor) and not 0 <= successor.min() <= successor.max() < states:
        wrong = successor[(successor < 0) | (successor >= states)][0]
        raise CalibrlError(f"successor {wrong} is not one of the states 0 … {states - 1}")


def _check_rows(rows: Ints, probability: Floats, actions: int) -> Floats:
    """What the probabilities of each row sum to, or an error."""
    empty = np.flatnonzero(np.diff(rows) == 0)
    if len(empty):
        s, a = divmod(int(empty[0]), actions)
        raise CalibrlError(f"action {a} in state {s} leads nowhere; list its successors (itself, if it stays there)")
    if not bool((probability >= 0).all()):
        wrong = int(np.flatnonzero(~(probability >= 0))[0])
        s, a = divmod(int(np.searchsorted(rows, wrong, side="right")) - 1, actions)
        raise CalibrlError(f"a probability of action {a} in state {s} is {probability[wrong]:g}; it must be 0 or more")
    total = np.add.reduceat(probability, rows[:-1])
    off = np.flatnonzero(np.abs(total - 1) > SUM_TOLERANCE)
    if len(off):
        s, a = divmod(int(off[0]), actions)
        raise CalibrlError(
            f"probabilities of action {a} in state {s} sum to {total[off[0]]:g}, not 1; normalise each row"
        )
    return total


DENSE_STATES = 100
"""Up to this many states a dense solve takes less time than setting up a sparse one."""
DIRECT_STATES = 2000
"""Up to this many states a sparse factorisation is quick; beyond, its fill-in may not be."""
REFINEMENTS = 4
"""How often an iterative solution is tried before a larger system is factorised all the same."""


@dataclass(frozen=True, eq=False)
class Solution:
    """An optimal value, a policy that is greedy for it, and how they came about.

    Parameters
    ----------
    value, policy
        V(s) and an action for each state, (S,) each.
    error, iterations
        A bound on the largest |V(s) - V*(s)|, and passes over all states and actions.
    """

    value: Floats
    policy: Ints
    error: float
    iterations: int


def value_iteration(mdp: MDP, *, tolerance: float = 1e-10, max_iterations: int = 1_000_000) -> Solution:
    """Repeat V ← max_a r + γ T V until V is within `tolerance` of V* in every state.

    Every iteration brackets V*: with δ = (new V) - (old V), V* lies between V + γ/(1-γ) min δ and V + γ/(1-γ) max δ
    (MacQueen, 1966). The search ends when the bracket is narrow and its middle is returned, which is many iterations
    before δ itself is small.

    Parameters
    ----------
    mdp, tolerance
        What to solve, and how far a state's value may be from V*, at best to the last digit of float64.
    max_iterations
        After so many it is an error.

    Returns
    -------
    Solution
        Values and actions (S,), a bound on their error, and how many iterations they took.

    Examples
    --------
    State 1 pays 1 for ever; action 1 leads there.

    >>> from calibrl.planning.value_iteration import MDP, value_iteration
    >>> stay, move = [[1, 0], [0, 1]], [[0, 1], [0, 1]]
    >>> solution = value_iteration(MDP.by_action([stay, move], [0, 1], discount=0.9))
    >>> solution.value.round(6).tolist()
    [9.0, 10.0]
    >>> int(solution.policy[0])
    1
    """
    check_within("tolerance", tolerance, "(0, inf)", "1e-10 is the default")
    check_count("max_iterations", max_iterations)
    value, new = np.zeros(mdp.states), np.empty(mdp.states)
    # Unsigned numbers cannot count from an array's end, which spares the compiled loop a check.
    successor = mdp.successor.astype(np.uint32)
    parts = (mdp.rows, successor, mdp.probability, mdp.reward, mdp.discount)
    reach, terms = mdp.discount / (1 - mdp.discount), int(np.diff(mdp.rows).max())
    for iteration in range(1, max_iterations + 1):
        lowest, highest = bellman.optimal_backup(*parts, value, new)
        value, new = new, value
        error = reach * (highest - lowest) / 2
        rounding = _rounding(value, terms) / (1 - mdp.discount)
        if error <= max(tolerance, rounding):
            value = value + reach * (highest + lowest) / 2
            return Solution(value, action_values(mdp, value).argmax(1), max(error, rounding), iteration)
    raise CalibrlError(
        f"{max_iterations} iterations leave the value uncertain by {error:g}; allow more, or use policy_iteration, "
        f"which does not slow down as the discount {mdp.discount:g} nears 1"
    )


def action_values(mdp: MDP, value: Array) -> Floats:
    """Q(s, a) = r(s, a) + γ E[V(s′)].

    Parameters
    ----------
    mdp, value
        The MDP, and V(s), (S,).

    Returns
    -------
    ndarray (S, A)
    """
    found, start = np.empty(mdp.reward.shape), np.ascontiguousarray(value, dtype=np.float64)
    if start.shape != (mdp.states,):
        raise CalibrlError(f"values of shape {start.shape} do not fit; expected one for each of {mdp.states} states")
    bellman.action_values(mdp.rows, mdp.successor, mdp.probability, mdp.reward, mdp.discount, start, found)
    return found


def policy_value(mdp: MDP, policy: Array) -> Floats:
    """The value of a policy, exactly: the solution of V = r + γ P V.

    Parameters
    ----------
    mdp, policy
        The MDP, and an action for each of its states, (S,), or the chance of each action, (S, A).

    Returns
    -------
    ndarray (S,)
    """
    if mdp.states <= DENSE_STATES:
        chance = as_chances(policy, mdp.states, mdp.actions)
        system = np.eye(mdp.states) - mdp.discount * np.einsum("sa,sat->st", chance, mdp.to_dense())
        return np.linalg.solve(system, (chance * mdp.reward).sum(1))
    chain, reward = mdp.chain(policy)
    return chain_value(chain, reward, mdp.discount)


def chain_value(chain: sparse.csr_array, reward: Floats, discount: float) -> Floats:
    """The solution (S,) of V = reward + discount · chain V: the value of each state of a Markov chain.

    chain: the chance of each next state, (S, S); or its transpose, which moves visits on. reward: (S,).
    """
    system = sparse.eye_array(len(reward), format="csc") - discount * chain.tocsc()
    if len(reward) > DIRECT_STATES:
        value, rest = np.zeros(len(reward)), reward
        # A solver of limited accuracy, as large values would make it anyway, is asked again about what it left over.
        for _ in range(REFINEMENTS):
            size = float(np.abs(rest).max()) or 1.0
            found, stalled = linalg.gmres(system, rest / size, rtol=1e-6, atol=0.0, restart=50, maxiter=4)
            if stalled:
                break
            value = value + size * found
            rest = reward - system @ value
            enough = max(1e-13 * (1 - discount) * float(np.abs(value).max()), _rounding(value))
            if float(np.abs(rest).max()) <= enough:
                return value
        # It stalls on chains that mix slowly, such as grids and lines, and those have little fill-in.
    return np.asarray(linalg.spsolve(system, reward))


def policy_iteration(mdp: MDP, *, start: Array | None = None, max_iterations: int = 1000) -> Solution:
    """Evaluate the policy exactly, make it greedy, repeat until no state wants another action.

    However near 1 the discount is, no action is left that float64 can tell to be better.

    Parameters
    ----------
    mdp, start
        What to solve, and from which policy, (S,) actions or (S, A) chances; by default one greedy for the rewards.
    max_iterations
        After so many it is an error.

    Returns
    -------
    Solution
        Values and actions (S,), a bound on their error, and how many iterations they took.
    """
    if start is None:
        policy = mdp.reward.argmax(1)
    elif np.ndim(start) == 1:
        policy = as_chances(start, mdp.states, mdp.actions).argmax(1)
    else:
        policy = action_values(mdp, policy_value(mdp, start)).argmax(1)
    states, terms = np.arange(mdp.states), int(np.diff(mdp.rows).max())
    seen: set[bytes] = set()
    for iteration in range(1, max_iterations + 1):
        value = policy_value(mdp, policy)
        q = action_values(mdp, value)
        gain, rounding = q.max(1) - q[states, policy], _rounding(value, terms)
        # What is better by no more than rounding is a tie, and stays.
        improved = np.where(gain > rounding, q.argmax(1), policy)
        seen.add(policy.tobytes())
        # Policies only ever improve: one that comes back is as good as those since, as far as float64 can tell.
        if improved.tobytes() in seen:
            off = float(np.abs(q.max(1) - value).max())
            return Solution(value, policy, (off + rounding) / (1 - mdp.discount), iteration)
        policy = improved
    raise CalibrlError(f"{max_iterations} iterations did not settle the policy; allow more")


def _rounding(value: Floats, terms: int = 1) -> float:
    """What float64 may leave out of r + γ E[V(s′)]; a sum of many terms is rounded that much more."""
    return 8 * float(np.finfo(np.float64).eps) * float(np.abs(value).max()) * terms**0.5

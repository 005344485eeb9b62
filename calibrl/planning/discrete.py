"""Discrete MDPs with sparse transitions, and the checks that keep nonsense out of a planner."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from calibrl.arrays import Array
from calibrl.errors import CalibrlError
from calibrl.kernels import bellman

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]

SUM_TOLERANCE = 1e-6
"""How far a row of probabilities may be from one before it is an error instead of rounding."""
EXACT = 1e-12
"""How far it may be before it is scaled to one: near γ = 1 a part in ten million, as of float32, moves a value far."""


@dataclass(frozen=True, eq=False)
class MDP:
    """S states, A actions, sparse transitions T(s′ | s, a), expected rewards r(s, a) and a discount γ.

    rows: (S·A + 1,), successor and probability: (n,). Row s·A + a holds the successors of action a in state
    s at positions rows[s·A + a] … rows[s·A + a + 1]; one successor may be listed twice, its chances add up.
    reward: (S, A). Build one with `MDP.dense`, `MDP.listed` or `MDP.by_action`.
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
        """From T(s′ | s, a) of shape (S, A, S). reward: (S,), (S, A), or (S, A, S) if it depends on s′."""
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
        """From m candidate successors for each state and action: successor and probability (S, A, m).

        reward: (S,), (S, A), or (S, A, m) if it depends on which successor comes true.
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
        """From one matrix (S, S) for each action, dense or sparse, as other libraries keep them.

        reward: (S,), (S, A), or one matrix (S, S) for each action if it depends on s′.
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
    """A policy as chances (S, A), whether given as those or as one action for each state."""
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

"""Solving discrete MDPs: value iteration, policy iteration, and the exact value of a policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from calibrl.arrays import Array
from calibrl.errors import CalibrlError
from calibrl.kernels import bellman
from calibrl.planning.discrete import MDP, Floats, Ints, as_chances

DENSE_STATES = 100
"""Up to this many states a dense solve takes less time than setting up a sparse one."""
DIRECT_STATES = 2000
"""Up to this many states a sparse factorisation is quick; beyond, its fill-in may not be."""
REFINEMENTS = 4
"""How often an iterative solution is tried before a larger system is factorised all the same."""


@dataclass(frozen=True, eq=False)
class Solution:
    """An optimal value (S,), a policy (S,) that is greedy for it, and how they came about.

    `error` bounds the largest |V(s) - V*(s)|; `sweeps` counts passes over all states and actions.
    """

    value: Floats
    policy: Ints
    error: float
    sweeps: int


def value_iteration(mdp: MDP, *, tolerance: float = 1e-10, max_sweeps: int = 1_000_000) -> Solution:
    """Repeat V ← max_a r + γ T V until V is within `tolerance` of V* in every state.

    Every sweep brackets V*: with δ = (new V) - (old V), V* lies between V + γ/(1-γ) min δ and V + γ/(1-γ) max δ
    (MacQueen, 1966). The sweeps end when the bracket is narrow and its middle is returned, which is many
    sweeps before δ itself is small. A tolerance finer than float64 can give is met as well as float64 can.
    """
    if not tolerance > 0:
        raise CalibrlError(f"tolerance {tolerance} is not above 0; 1e-10 is the default")
    if max_sweeps < 1:
        raise CalibrlError(f"max_sweeps {max_sweeps} allows none; use 1 or more")
    value, new = np.zeros(mdp.states), np.empty(mdp.states)
    # Unsigned numbers cannot count from an array's end, which spares the compiled loop a check.
    successor = mdp.successor.astype(np.uint32)
    parts = (mdp.rows, successor, mdp.probability, mdp.reward, mdp.discount)
    reach, terms = mdp.discount / (1 - mdp.discount), int(np.diff(mdp.rows).max())
    for sweep in range(1, max_sweeps + 1):
        lowest, highest = bellman.optimal_backup(*parts, value, new)
        value, new = new, value
        error = reach * (highest - lowest) / 2
        rounding = _rounding(value, terms) / (1 - mdp.discount)
        if error <= max(tolerance, rounding):
            value = value + reach * (highest + lowest) / 2
            return Solution(value, action_values(mdp, value).argmax(1), max(error, rounding), sweep)
    raise CalibrlError(
        f"{max_sweeps} sweeps leave the value uncertain by {error:g}; allow more, or use policy_iteration, which does "
        f"not slow down as the discount {mdp.discount:g} nears 1"
    )


def action_values(mdp: MDP, value: Array) -> Floats:
    """Q(s, a) = r(s, a) + γ E[V(s′)], of shape (S, A)."""
    found = np.empty(mdp.reward.shape)
    start = np.ascontiguousarray(value, dtype=np.float64)
    if start.shape != (mdp.states,):
        raise CalibrlError(f"values of shape {start.shape} do not fit; expected one for each of {mdp.states} states")
    bellman.action_values(mdp.rows, mdp.successor, mdp.probability, mdp.reward, mdp.discount, start, found)
    return found


def policy_value(mdp: MDP, policy: Array) -> Floats:
    """V of a policy, exactly: the solution (S,) of V = r + γ P V. policy: (S,) actions or (S, A) chances."""
    if mdp.states <= DENSE_STATES:
        chance = as_chances(policy, mdp.states, mdp.actions)
        system = np.eye(mdp.states) - mdp.discount * np.einsum("sa,sat->st", chance, mdp.to_dense())
        return np.linalg.solve(system, (chance * mdp.reward).sum(1))
    chain, reward = mdp.chain(policy)
    return chain_value(chain, reward, mdp.discount)


def chain_value(chain: sparse.csr_array, reward: Floats, discount: float) -> Floats:
    """The solution (S,) of V = reward + discount · chain V; of the chain's transpose too, which moves visits on."""
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


def policy_iteration(mdp: MDP, *, start: Array | None = None, max_rounds: int = 1000) -> Solution:
    """Evaluate the policy exactly, make it greedy, repeat until no state wants another action.

    However near 1 the discount is, no action is left that float64 can tell to be better.

    start: the policy to begin from, (S,) actions or (S, A) chances; greedy for the rewards if not given.
    """
    policy = mdp.reward.argmax(1) if start is None else _actions(mdp, start)
    states, terms = np.arange(mdp.states), int(np.diff(mdp.rows).max())
    seen: set[bytes] = set()
    for rounds in range(1, max_rounds + 1):
        value = policy_value(mdp, policy)
        q = action_values(mdp, value)
        gain, rounding = q.max(1) - q[states, policy], _rounding(value, terms)
        # What is better by no more than rounding is a tie, and stays.
        improved = np.where(gain > rounding, q.argmax(1), policy)
        seen.add(policy.tobytes())
        # Policies only ever improve: one that comes back is as good as those since, as far as float64 can tell.
        if improved.tobytes() in seen:
            off = float(np.abs(q.max(1) - value).max())
            return Solution(value, policy, (off + rounding) / (1 - mdp.discount), rounds)
        policy = improved
    raise CalibrlError(f"{max_rounds} rounds did not settle the policy; allow more")


def _actions(mdp: MDP, policy: Array) -> Ints:
    """A policy's actions (S,); for one that mixes actions, those that are greedy for its value."""
    chance = as_chances(policy, mdp.states, mdp.actions)
    if np.ndim(policy) == 1:
        return chance.argmax(1)
    return action_values(mdp, policy_value(mdp, policy)).argmax(1)


def _rounding(value: Floats, terms: int = 1) -> float:
    """What float64 may leave out of r + γ E[V(s′)]; a sum of many terms is rounded that much more."""
    return 8 * float(np.finfo(np.float64).eps) * float(np.abs(value).max()) * terms**0.5

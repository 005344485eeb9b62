"""Random MDPs, random policies, and the two-state example of the paper's section 3.2."""

from __future__ import annotations

import numpy as np

from calibrl.errors import CalibrlError
from calibrl.planning.value_iteration import MDP, Floats

GOOD, BAD = 0, 1
"""The states of the two-state example."""
TRY, ALTERNATIVE = 0, 1
"""Its actions: the one the model may misjudge, and one that is known."""


def random_mdp(
    states: int, actions: int, successors: int, *, generator: np.random.Generator, discount: float = 0.95
) -> MDP:
    """An MDP whose every action leads to `successors` random states with random chances; rewards are N(0, 1)."""
    if min(states, actions, successors) < 1:
        raise CalibrlError(
            f"{states} states, {actions} actions, {successors} successors make no MDP; use 1 or more of each"
        )
    shape = (states, actions, successors)
    weight = generator.exponential(size=shape)
    return MDP.listed(
        generator.integers(0, states, size=shape),
        weight / weight.sum(-1, keepdims=True),
        generator.normal(size=(states, actions)),
        discount=discount,
    )


def random_policy(states: int, actions: int, *, generator: np.random.Generator) -> Floats:
    """The chances (S, A) of a policy drawn evenly from all policies."""
    return generator.dirichlet(np.ones(actions), size=states)


def two_state(stay: float = 0.8, *, alternative: float = 0.7, recover: float = 0.5, discount: float = 0.9) -> MDP:
    """GOOD pays 1 and BAD -1 on arrival; in GOOD, TRY stays with chance `stay`, ALTERNATIVE with `alternative`.

    From BAD either action leads back with chance `recover`. The paper's numbers: the truth stays with
    80 %, a model says 60 %, an over-confident one 0 %.
    """
    for name, chance in (("stay", stay), ("alternative", alternative), ("recover", recover)):
        if not 0 <= chance <= 1:
            raise CalibrlError(f"{name} {chance} is not a probability; use a number from 0 to 1")
    to_good = np.array([[stay, alternative], [recover, recover]])
    probability = np.stack([to_good, 1 - to_good], -1)
    arrival = np.broadcast_to([1.0, -1.0], probability.shape)
    return MDP.dense(probability, arrival, discount=discount)

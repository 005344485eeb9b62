"""Gymnasium's FrozenLake, CliffWalking and Taxi, as tasks with exact transition tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.mdp.tasks import Task, build_task


@cache
def gym_task(name: str, *, discount: float = 0.95) -> Task:
    """`frozen-lake` (8 x 8, slippery), `cliff-walking` (slippery) or `taxi` (in the rain).

    The effects are what each action does when nothing slips, read from the same environment without its
    noise; the chances are those of the noisy environment's own table.
    """
    if name not in _TABLES:
        raise CalibrlError(f"task {name!r} is unknown; use one of {', '.join(_TABLES)}")
    try:
        calm, noisy, places = _TABLES[name]()
    except ModuleNotFoundError:
        raise MissingExtra("gymnasium", "control") from None
    states, actions = len(calm.P), len(calm.P[0])
    outcomes = [[_outcome(calm.P[s][a][0], states) for a in range(actions)] for s in range(states)]
    chance = np.zeros((states, actions, actions))
    for s in range(states):
        for a in range(actions):
            for entry in noisy.P[s][a]:
                chance[s, a, outcomes[s].index(_outcome(entry, states))] += entry[0]
    return build_task(
        name,
        successor=np.array([[to for to, _ in row] for row in outcomes]),
        reward=np.array([[pays for _, pays in row] for row in outcomes]),
        chance=chance,
        start=np.asarray(noisy.initial_state_distrib, dtype=np.float64),
        places=places,
        discount=discount,
    )


def _outcome(entry: tuple[float, int, float, bool], states: int) -> tuple[int, float]:
    """Where a table's entry leads (an episode that is over leads to state number `states`) and what it pays."""
    _, to, pays, over = entry
    return (states if over else int(to)), float(pays)


def _frozen_lake() -> tuple[Any, Any, Any]:
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    make = [FrozenLakeEnv(map_name="8x8", is_slippery=noisy) for noisy in (False, True)]
    return make[0], make[1], np.stack(np.divmod(np.arange(64), 8), 1)


def _cliff_walking() -> tuple[Any, Any, Any]:
    from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

    make = [CliffWalkingEnv(is_slippery=noisy) for noisy in (False, True)]
    return make[0], make[1], np.stack(np.divmod(np.arange(48), 12), 1)


def _taxi() -> tuple[Any, Any, Any]:
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    make = [TaxiEnv(is_rainy=noisy) for noisy in (False, True)]
    # A state is (row, column, passenger, destination); the coarse learner sees row and column.
    row, column = np.arange(500) // 100, np.arange(500) // 20 % 5
    return make[0], make[1], np.stack([row, column], 1)


_TABLES: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "frozen-lake": _frozen_lake,
    "cliff-walking": _cliff_walking,
    "taxi": _taxi,
}
GYM_TASKS = tuple(_TABLES)
"""The names `gym_task` knows."""

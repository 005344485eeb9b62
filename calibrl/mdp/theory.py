"""The theory as numbers: the two-state example of section 3.2, and the lemma and the theorem over random MDPs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calibrl.mdp import (
    aggregate,
    brier,
    classwise_error,
    pairs,
    random_mdp,
    random_policy,
    sharpen,
    stationary,
    two_state,
    value_error_bound,
)
from calibrl.mdp.generators import GOOD, TRY
from calibrl.planning.value_iteration import policy_value, value_iteration
from calibrl.runs.rows import Row

TWO_STATES, RANDOM = "two states", "random MDPs"
"""Problems that are not planning tasks."""
POWERS = (0.33, 0.5, 0.65, 0.8, 0.9, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""How far the random MDPs' models are from calibrated: T^power."""


def two_state_rows(seed: int) -> Iterator[Row]:
    """What an agent expects and what it gets, by the chance its model gives to staying in the good state."""
    truth = two_state(0.8)
    stay_put = value_iteration(truth)
    for percent in range(101):
        model = two_state(percent / 100)
        plan = value_iteration(model)
        metrics = {
            "believed": percent / 100,
            "expected_reward": float(model.reward[GOOD, TRY]),
            "promised_value": float(plan.value[GOOD]),
            "delivered_value": float(policy_value(truth, plan.policy)[GOOD]),
            "optimal_value": float(stay_put.value[GOOD]),
            "tries": float(plan.policy[GOOD] == TRY),
        }
        yield Row("mdp", TWO_STATES, f"{percent} %", seed, metrics)


@dataclass(frozen=True)
class Judged:
    """One model of one random MDP: its calibration error, score, and error in the policy's value (and bound).

    Errors of value are shares of the range of V over states.
    """

    model: str
    calibration: float
    brier: float
    error: float
    bound: float


def judge_random_mdp(generator: np.random.Generator) -> list[Judged]:
    """A random MDP and policy, valued by the truth, by blunt calibrated models, and by sharp or blunt wrong ones."""
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
    found = []
    for name, model in models.items():
        believed = policy_value(model, policy)
        calibration = classwise_error(model, truth, weights)
        error = abs(float(share @ (believed - value)))
        bound = value_error_bound(calibration, believed, truth.discount)
        found.append(Judged(name, calibration, brier(model, truth, weights), error / span, bound / span))
    return found


def theorem_rows(judged: Sequence[Sequence[Judged]], seed: int) -> Iterator[Row]:
    """One row for each kind of model: how wrong it is, how calibrated, and how it scores."""
    blunt = np.array([row[0].brier for row in judged])
    for kind in range(len(judged[0])):
        column = [row[kind] for row in judged]
        error = np.array([one.error for one in column])
        score = np.array([one.brier for one in column])
        metrics = {
            "problems": float(len(column)),
            "calibration_error": float(np.mean([one.calibration for one in column])),
            "brier": float(score.mean()),
            "value_error": float(error.mean()),
            "value_error_worst": float(error.max()),
            "value_error_bound": float(np.mean([one.bound for one in column])),
            "better_brier_than_blunt": float((score < blunt).mean()),
        }
        yield Row("mdp", RANDOM, column[0].model, seed, metrics)

"""What the jobs of the discrete experiment do: the theory as numbers, and planning with learnt models.

The theory is the two-state example of the paper's section 3.2, and the lemma and the theorem over random MDPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from calibrl.algorithm import CrossFitted, Forecaster, learn
from calibrl.arrays import Array
from calibrl.data import Data
from calibrl.forecasters.linear import SoftmaxTransitions, TabularTransitions
from calibrl.maps.classes import (
    ClassMap,
    FitClassMap,
    Unchanged,
    fit_isotonic_classes,
    fit_platt_classes,
    fit_temperature,
)
from calibrl.mdp.experiment import MAZE, RANDOM, TWO_STATES, MDPSettings
from calibrl.mdp.problems import GOOD, TRY, Task, gym_task, maze, random_mdp, random_policy, two_state
from calibrl.mdp.theorem import aggregate, brier, classwise_error, pairs, sharpen, stationary, value_error_bound
from calibrl.planning.value_iteration import MDP, Ints, policy_iteration, policy_value, value_iteration
from calibrl.runs.engine import Arrays
from calibrl.runs.rows import Row

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


def theory_job(problems: int, seed: int) -> Iterator[Row | Arrays]:
    """The lemma and the theorem over so many random MDPs, and every model's numbers for the figure."""
    generator = np.random.default_rng(seed)
    judged = [judge_random_mdp(generator) for _ in range(problems)]
    yield from theorem_rows(judged, seed)
    every = [one for many in judged for one in many]
    numbers = np.array([(one.calibration, one.brier, one.error) for one in every])
    yield Arrays({"model": np.array([one.model for one in every]), "calibration, brier, error": numbers})


# Planning with a learnt model.


def _unchanged(probs: Array, outcome: Array) -> ClassMap:  # noqa: ARG001 (the signature of a fit)
    return Unchanged()


ARMS: dict[str, FitClassMap] = {
    "raw": _unchanged,
    "temperature": fit_temperature,
    "Platt": fit_platt_classes,
    "isotonic": fit_isotonic_classes,
}
"""One learner, four ways to read its forecasts."""


def planning_job(settings: MDPSettings, name: str, seed: int) -> Iterator[Row]:
    """One task for one seed."""
    yield from task_rows(task_named(name, settings, seed), settings, seed)


def task_named(name: str, settings: MDPSettings, seed: int) -> Task:
    """A table of Gymnasium's, or a maze of this seed's own."""
    if name == MAZE:
        return replace(maze(settings.maze_size, generator=np.random.default_rng(seed)), name=MAZE)
    # FrozenLake's one reward lies some hundred slippery steps away: a shorter horizon could not see it.
    return gym_task(name, discount=0.99 if name == "frozen-lake" else 0.95)


def learners(task: Task) -> dict[str, Callable[[], Forecaster]]:
    """A table that has too few rows for each entry, and a softmax whose features are too coarse."""
    return {
        "table": lambda: TabularTransitions(task.states, task.actions, task.effects, prior=0.0),
        "coarse": lambda: SoftmaxTransitions(task.coarse, task.actions, task.effects),
    }


def plan_and_judge(task: Task, believed: MDP, yardstick: tuple[float, float, Ints]) -> dict[str, float]:
    """Plan in the believed MDP, act in the true one.

    `delivered` is the plan's return from the start (0 = acting at random, 1 = optimal) and `promised` what
    the model said it would be, on the same scale; `promise_error` is their distance, `fixed_error` that for
    the truly optimal policy.
    """
    low, high, best = yardstick
    truth = task.mdp()
    plan = policy_iteration(believed).policy
    promised = float(task.start @ policy_value(believed, plan) - low) / (high - low)
    delivered = float(task.start @ policy_value(truth, plan) - low) / (high - low)
    fixed = float(task.start @ policy_value(believed, best) - high) / (high - low)
    return {
        "promised": promised,
        "delivered": delivered,
        "promise_error": abs(promised - delivered),
        "fixed_error": abs(fixed),
    }


def task_rows(task: Task, settings: MDPSettings, seed: int) -> Iterator[Row]:
    """All learners, amounts of data and arms on one task for one seed. Arms share the rows and the trained model."""
    truth = task.mdp()
    best = policy_iteration(truth)
    even = np.full((task.states, task.actions), 1 / task.actions)
    yardstick = (float(task.start @ policy_value(truth, even)), float(task.start @ best.value), best.policy)
    for name, make in learners(task).items():
        for amount in settings.amounts:
            seen: list[tuple[Array, Array]] = []
            model = CrossFitted(make, fit_map=_remember(seen), generator=torch.Generator().manual_seed(seed))
            (rows,) = learn(partial(_explore, task, amount, seed), model, rounds=1)
            for arm, fit in ARMS.items():
                model.mapping = fit(*seen[-1])
                metrics = plan_and_judge(task, task.imagine(model), yardstick)
                yield _row(task, name, arm, seed, amount, metrics)
            if name == "table":
                # The control: no recalibration, but one imagined row of each effect.
                smooth = TabularTransitions(task.states, task.actions, task.effects, prior=float(task.effects))
                smooth.update(rows)
                metrics = plan_and_judge(task, task.imagine(smooth), yardstick)
                yield _row(task, name, "add-one prior", seed, amount, metrics)


def _explore(task: Task, amount: float, seed: int, _: Forecaster) -> tuple[Data, Data]:
    """Rows of experience at random, as many for each state and action: what the model learns, and what to see of it."""
    rows = task.sample(round(amount * (task.states - 1) * task.actions), np.random.default_rng([seed, 1]))
    return rows, rows


def _remember(seen: list[tuple[Array, Array]]) -> FitClassMap:
    """A fit that changes nothing and keeps what it was given: every arm fits its own map to it."""

    def fit(probs: Array, outcome: Array) -> ClassMap:
        seen.append((probs, outcome))
        return Unchanged()

    return fit


def _row(task: Task, learner: str, arm: str, seed: int, amount: float, metrics: dict[str, float]) -> Row:
    settings = {"task": task.name, "learner": learner, "rows_per_state_and_action": amount}
    return Row("mdp", f"{task.name}, {learner}, {amount:g} rows", arm, seed, metrics, settings=settings)

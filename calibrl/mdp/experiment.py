"""What calibration is worth: the paper's sections 3.2 and 4 and its appendix, on discrete MDPs.

Three parts: the two-state example; the lemma and the theorem over random MDPs and policies; planning with a
learnt model on FrozenLake, CliffWalking, Taxi and mazes, raw against recalibrated, on paired seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from calibrl.algorithm import CrossFitted, Forecaster
from calibrl.arrays import Array
from calibrl.errors import CalibrlError
from calibrl.forecasters.tabular import SoftmaxTransitions, TabularTransitions
from calibrl.maps.classes import (
    ClassMap,
    FitClassMap,
    Unchanged,
    fit_isotonic_classes,
    fit_platt_classes,
    fit_temperature,
)
from calibrl.mdp import (
    MDP,
    Task,
    aggregate,
    brier,
    classwise_error,
    maze,
    pairs,
    random_mdp,
    random_policy,
    sharpen,
    stationary,
    two_state,
    value_error_bound,
)
from calibrl.mdp.problems import GOOD, GYM_TASKS, TRY, gym_task
from calibrl.planning.value_iteration import Ints, policy_iteration, policy_value, value_iteration
from calibrl.runs.engine import Found, Kept, Plan
from calibrl.runs.rows import Row
from calibrl.runs.store import save_figures
from calibrl.runs.workers import Job

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


def _unchanged(probs: Array, outcome: Array) -> ClassMap:  # noqa: ARG001 (the signature of a fit)
    return Unchanged()


MAZE = "maze"
ARMS: dict[str, FitClassMap] = {
    "raw": _unchanged,
    "temperature": fit_temperature,
    "Platt": fit_platt_classes,
    "isotonic": fit_isotonic_classes,
}
"""One learner, four ways to read its forecasts."""


@dataclass(frozen=True)
class Preset:
    """How much to run: random MDPs, seeds, rows of experience for each state and action, and which tasks."""

    name: str
    problems: int
    seeds: int
    amounts: tuple[float, ...]
    maze_size: int
    tables: tuple[str, ...] = GYM_TASKS


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("quick", problems=2000, seeds=4, amounts=(1, 3, 10), maze_size=12),
        Preset("full", problems=5000, seeds=20, amounts=(1, 2, 3, 5, 10, 30), maze_size=16),
        Preset("tiny", problems=20, seeds=2, amounts=(1, 3), maze_size=5, tables=("frozen-lake",)),
    )
}


def chosen(name: str) -> Preset:
    """The preset of that name, or an error."""
    if name not in PRESETS:
        raise CalibrlError(f"preset {name!r} is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def shown(rows: Sequence[Row], preset: Preset) -> list[Row]:
    """The rows to print: models of random MDPs, and planning at the second amount of data. The file has them all."""
    amount = preset.amounts[1]
    return [r for r in rows if r.problem == RANDOM or r.settings.get("rows_per_state_and_action") == amount]


def tasks(preset: Preset, seed: int) -> list[Task]:
    """Gymnasium's tables and a maze of this seed's own."""
    return [
        # FrozenLake's one reward lies some hundred slippery steps away: a shorter horizon could not see it.
        *(gym_task(name, discount=0.99 if name == "frozen-lake" else 0.95) for name in preset.tables),
        replace(maze(preset.maze_size, generator=np.random.default_rng(seed)), name=MAZE),
    ]


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


def task_rows(task: Task, preset: Preset, seed: int) -> Iterator[Row]:
    """All learners, amounts of data and arms on one task for one seed. Arms share the rows and the trained model."""
    truth = task.mdp()
    best = policy_iteration(truth)
    even = np.full((task.states, task.actions), 1 / task.actions)
    yardstick = (float(task.start @ policy_value(truth, even)), float(task.start @ best.value), best.policy)
    for name, make in learners(task).items():
        for amount in preset.amounts:
            rows = task.sample(round(amount * (task.states - 1) * task.actions), np.random.default_rng([seed, 1]))
            evidence: list[tuple[Array, Array]] = []
            model = CrossFitted(make, fit_map=_remember(evidence), generator=torch.Generator().manual_seed(seed))
            model.update(rows)
            for arm, fit in ARMS.items():
                model.mapping = fit(*evidence[-1])
                metrics = plan_and_judge(task, task.imagine(model), yardstick)
                yield _row(task, name, arm, seed, amount, metrics)
            if name == "table":
                # The control: no recalibration, but one imagined row of each effect.
                smooth = TabularTransitions(task.states, task.actions, task.effects, prior=float(task.effects))
                smooth.update(rows)
                metrics = plan_and_judge(task, task.imagine(smooth), yardstick)
                yield _row(task, name, "add-one prior", seed, amount, metrics)


def _remember(evidence: list[tuple[Array, Array]]) -> FitClassMap:
    def fit(probs: Array, outcome: Array) -> ClassMap:
        evidence.append((probs, outcome))
        return Unchanged()

    return fit


def _row(task: Task, learner: str, arm: str, seed: int, amount: float, metrics: dict[str, float]) -> Row:
    settings = {"task": task.name, "learner": learner, "rows_per_state_and_action": amount}
    return Row("mdp", f"{task.name}, {learner}, {amount:g} rows", arm, seed, metrics, settings=settings)


def plan(preset: Preset, *, seed: int = 0) -> Plan:
    """All three parts. Planning is a job for each task and seed."""
    names = [*preset.tables, MAZE]
    planning = (
        Job(f"{name}, seed {number}", _planning_job, (preset, place, number))
        for number in range(seed, seed + preset.seeds)
        for place, name in enumerate(names)
    )
    jobs = (Job(TWO_STATES, two_state_rows, (seed,)), Job(RANDOM, _theory_job, (preset.problems, seed)), *planning)
    return Plan("mdp", jobs, preset=preset.name, draw=_draw)


def _planning_job(preset: Preset, place: int, seed: int) -> Iterator[Row]:
    yield from task_rows(tasks(preset, seed)[place], preset, seed)


def _theory_job(problems: int, seed: int) -> Iterator[Row | Kept]:
    generator = np.random.default_rng(seed)
    judged = [judge_random_mdp(generator) for _ in range(problems)]
    yield from theorem_rows(judged, seed)
    every = [one for many in judged for one in many]
    numbers = np.array([(one.calibration, one.brier, one.error) for one in every])
    yield Kept({"model": np.array([one.model for one in every]), "calibration, brier, error": numbers})


def _draw(out: Path, found: Found) -> None:
    from calibrl.mdp import figures

    kept = found.kept(RANDOM)
    numbers = kept["calibration, brier, error"].tolist()
    points = [(str(model), *three) for model, three in zip(kept["model"], numbers, strict=True)]
    example = [row.metrics for row in found.rows if row.problem == TWO_STATES]
    drawn = {"mdp-theory": figures.theory(example, points)}
    for learner in ("table", "coarse"):
        curves = [row for row in found.rows if row.settings.get("learner") == learner]
        drawn[f"mdp-planning-{learner}"] = figures.planning(curves)
    save_figures(drawn, out, dpi=120)

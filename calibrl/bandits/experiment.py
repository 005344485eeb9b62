"""Table 1 of the paper, and the figures about Covertype: LinUCB and CalLinUCB, with the controls it lacks.

Trials are paired: in one trial every policy meets the same contexts, rewards and random draws, so that the
difference between two policies is theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from calibrl.bandits.loop import Trial, play
from calibrl.bandits.policy import POLICIES
from calibrl.bandits.presets import PRESETS, Preset
from calibrl.bandits.problems import PROBLEMS, problem
from calibrl.diagnostics import calibration_loss
from calibrl.errors import CalibrlError
from calibrl.runs.engine import Found, Kept, Plan
from calibrl.runs.rows import Row
from calibrl.runs.statistics import mean_and_error
from calibrl.runs.workers import Job

EXPERIMENT = "bandits"
NOMINAL = float(ndtr(1.0))
"""What LinUCB's upper bound should cover: 84.1 %."""
CURVE_EVERY = 200
LEVELS = np.linspace(0.05, 0.95, 19)

Floats = NDArray[np.float64]
Pair = dict[str, Trial]
"""One trial of every policy, by name."""


CURVES = ("linucb", "callinucb", "conformal-linucb", "greedy")
"""Policies whose learning curves and reliability are drawn."""


def plan(preset: Preset) -> Plan:
    """One job for each problem and trial; its policies are paired."""
    check(preset)
    jobs = tuple(
        Job(job_name(name, seed), _job, (name, seed, preset.rounds, preset.policies, seed == preset.seed))
        for name in preset.problems
        for seed in range(preset.seed, preset.seed + preset.trials)
    )
    # Problems, trials and seeds say which jobs there are; these two, what a job's rows say.
    base = PRESETS.get(preset.name, preset)
    changed = {name for name in ("rounds", "policies") if getattr(preset, name) != getattr(base, name)}
    overrides = {name: getattr(preset, name) for name in sorted(changed)}
    return Plan(EXPERIMENT, jobs, preset=preset.name, overrides=overrides, draw=_draw, file="bandits.jsonl")


def job_name(problem: str, seed: int) -> str:
    """What the job of a problem and trial is called."""
    return f"{problem}, trial {seed}"


def check(preset: Preset) -> None:
    """Refuse what cannot be run before anything is."""
    if preset.rounds < 1 or preset.trials < 1:
        raise CalibrlError(f"{preset.rounds} rounds and {preset.trials} trials are nothing to run; use 1 or more")
    for kind, names, known in (("policy", preset.policies, POLICIES), ("problem", preset.problems, PROBLEMS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise CalibrlError(f"{kind} {unknown[0]!r} is unknown; known: {', '.join(known)}")


def paired_trials(name: str, seed: int, *, rounds: int, policies: Iterable[str]) -> Pair:
    """One trial of every policy, on the same stream and with the same random draws."""
    stream = _problem(name).stream(rounds, np.random.default_rng(seed))
    shape = stream.reward.shape[1], stream.x.shape[1]
    return {policy: play(stream, POLICIES[policy](*shape), seed=seed) for policy in policies}


def trial_rows(name: str, seed: int, trials: Pair) -> Iterator[Row]:
    """A row for each policy."""
    note = _problem(name).note
    for policy, trial in trials.items():
        settings = {"note": note} if note else {}
        yield Row(EXPERIMENT, name, policy, seed, metrics(trial), step=len(trial.chosen), settings=settings)


# A worker plays many trials of a problem, and reading its data may take longer than a trial.
_problem = functools.lru_cache(maxsize=2)(problem)


def _job(name: str, seed: int, rounds: int, policies: tuple[str, ...], first: bool) -> Iterator[Row | Kept]:
    trials = paired_trials(name, seed, rounds=rounds, policies=policies)
    yield from trial_rows(name, seed, trials)
    kept: dict[str, NDArray[Any]] = {}
    for policy in CURVES:
        if policy in trials:
            trial = trials[policy]
            for what, values in (
                ("reward", trial.reward),
                ("chosen", trial.chosen_pit),
                ("all", trial.pit.reshape(-1)),
            ):
                kept[f"{policy}, {what}"] = values.astype(np.float32)
    if first and {"linucb", "callinucb"} <= trials.keys():
        stream = trials["linucb"].stream
        kept |= {"stream, reward": stream.reward, "stream, expected": stream.expected}
        for policy in ("linucb", "callinucb"):
            kept |= {f"{policy}, arms": trials[policy].chosen, f"{policy}, quantiles": trials[policy].quantile}
    yield Kept(kept)


def _draw(out: Path, found: Found) -> None:
    from calibrl.bandits import figures as bandit_figures

    bandit_figures.draw(out, found)


def metrics(trial: Trial) -> dict[str, float]:
    """Reward and regret of a trial, and how honest its forecasts were on the arms it chose and on all arms."""
    chosen, everything = trial.chosen_pit, trial.pit.reshape(-1)
    numbers = {
        "reward": trial.reward.sum(),
        "optimal": trial.stream.expected.max(1).sum(),
        "regret": trial.regret.sum(),
        "best_arm": (trial.regret <= 0).mean(),
        "coverage": (chosen <= NOMINAL).mean(),
        "coverage_all": (everything <= NOMINAL).mean(),
        "calibration_loss": calibration_loss(chosen, LEVELS),
        "calibration_loss_all": calibration_loss(everything, LEVELS),
    }
    # A thin learning curve: what had been earned by then.
    earned = np.cumsum(trial.reward)
    numbers |= {f"reward_{t}": earned[t - 1] for t in range(CURVE_EVERY, len(earned), CURVE_EVERY)}
    return {name: float(f"{float(value):.6g}") for name, value in numbers.items()}


@dataclass(frozen=True)
class Line:
    """One policy on one problem over n trials.

    gain: over LinUCB, paired trial by trial; errors are standard errors.
    """

    problem: str
    policy: str
    trials: int
    rounds: int
    reward: float
    error: float
    optimal: float
    coverage: float
    gain: float
    gain_error: float
    note: str

    @property
    def relative_gain(self) -> float:
        """Gain over LinUCB, as a part of LinUCB's reward."""
        base = self.reward - self.gain
        return self.gain / abs(base) if base else float("nan")


def summarise(rows: Iterable[Row], *, trials: int | None = None) -> list[Line]:
    """One line per problem and policy; `trials` keeps only that many of the lowest seeds."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if row.experiment == EXPERIMENT:
            found.setdefault((row.problem, row.arm), {})[row.seed] = row
    lines = []
    order = list(PROBLEMS)
    for (name, policy), by_seed in sorted(found.items(), key=lambda item: order.index(item[0][0])):
        seeds = sorted(by_seed)[:trials]
        measured = [by_seed[seed].metrics for seed in seeds]
        other = found.get((name, "linucb"), {})
        reward, error = mean_and_error([one["reward"] for one in measured])
        gain, gain_error = mean_and_error(
            [by_seed[seed].metrics["reward"] - other[seed].metrics["reward"] for seed in seeds if seed in other]
        )
        row = by_seed[seeds[0]]
        lines.append(
            Line(
                problem=name,
                policy=policy,
                trials=len(seeds),
                rounds=row.step,
                reward=reward,
                error=error,
                optimal=fmean(one["optimal"] for one in measured),
                coverage=fmean(one["coverage"] for one in measured),
                gain=gain,
                gain_error=gain_error,
                note=str(row.settings.get("note", "")),
            )
        )
    return lines

"""The `collect` of Algorithm 1 for a bandit: one round with any forecaster, or a whole trial in a compiled loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from calibrl.algorithm import Forecaster, learn
from calibrl.bandits.arms import CompiledRidge
from calibrl.bandits.policy import POLICIES, Policy
from calibrl.bandits.problems import FILE, Stream, problem
from calibrl.data import Data
from calibrl.diagnostics import calibration_loss
from calibrl.errors import CalibrlError
from calibrl.files import fingerprint
from calibrl.kernels import ridge_policy
from calibrl.planning.quantile import Exploration, highest_quantile
from calibrl.runs.engine import Arrays, Yielded
from calibrl.runs.rows import Row

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ASKED = np.array([ndtri(0.05), 0.0, 1.0, ndtri(0.95)])
"""Quantiles every trial reports, as z-scores: the ends of the 90 % interval, the median, and LinUCB's 84 %."""
LOW, MEDIAN, UPPER, HIGH = range(4)


@dataclass(frozen=True)
class Draws:
    """The random numbers of a trial of t rounds with k arms, the same for every policy and either loop.

    tie: (t,) and atom: (t,) in [0, 1), which pick one of several equals and a place within an atom; forced: (t,) an
    arm to take whatever its score, or -1; level: (t, k) the quantile each arm is judged by, as a z-score.
    """

    tie: Floats
    atom: Floats
    forced: Ints
    level: Floats

    @classmethod
    def of(cls, planner: Exploration, shape: tuple[int, int], *, seed: int) -> Draws:
        """What a planner draws in a trial of this shape (t, k)."""
        generator = np.random.default_rng([seed, 1])
        pair = generator.random((shape[0], 2))
        forced = planner.forced(shape[0], shape[1], generator)
        return cls(pair[:, 0], pair[:, 1], forced, planner.levels(shape, generator))


@dataclass(frozen=True)
class Round:
    """What a round came to: the arm taken and what it paid."""

    arm: int
    reward: float


def collect_from(stream: Stream, planner: Exploration, *, seed: int = 0) -> Callable[[Forecaster], tuple[Data, Round]]:
    """The `collect` of Algorithm 1 for a bandit: each call plays the stream's next round with the current model.

    Plan: the arm of the highest quantile. Act and record: its reward, NaN for the other arms.

    Parameters
    ----------
    stream
        Contexts and what every arm would have paid.
    planner
        How arms are scored.
    seed
        Of the planner's draws and of ties.

    Returns
    -------
    collect
        For `calibrl.learn`: takes a forecaster of k columns, returns one row (x (1, d), y (1, k)) and the `Round`.
    """
    rounds: Iterator[int] = iter(range(len(stream.x)))
    draws = Draws.of(planner, stream.reward.shape, seed=seed)

    def collect(model: Forecaster) -> tuple[Data, Round]:
        t = next(rounds, None)
        if t is None:
            raise CalibrlError(f"all {len(stream.x)} rounds of the stream were played; ask for fewer, or draw more")
        x = torch.from_numpy(stream.x[t : t + 1])
        level, tie = torch.from_numpy(draws.level[t : t + 1]), torch.from_numpy(draws.tie[t : t + 1])
        arm = int(draws.forced[t])
        if arm < 0:
            arm = int(highest_quantile(model(x), level, tie=tie))
        y = torch.full((1, stream.reward.shape[1]), torch.nan, dtype=torch.float64)
        y[0, arm] = stream.reward[t, arm]
        return Data(x, y), Round(arm, float(y[0, arm]))

    return collect


@dataclass(frozen=True)
class Trial:
    """What a policy believed and did in each round of a stream.

    chosen: (t,); mean: (t, k), its model's; quantile: (t, k, 4), its honest forecast's at `ASKED`; pit: (t, k), of
    every arm's reward, atoms spread by lot. Arms that were not chosen are for measuring: their rewards were not seen.
    """

    stream: Stream
    chosen: Ints
    mean: Floats
    quantile: Floats
    pit: Floats

    @property
    def reward(self) -> Floats:
        """What was earned in each round: (t,)."""
        return self._of_chosen(self.stream.reward)

    @property
    def regret(self) -> Floats:
        """What the best arm was expected to pay more than the chosen one, in each round: (t,)."""
        return self.stream.expected.max(1) - self._of_chosen(self.stream.expected)

    @property
    def chosen_pit(self) -> Floats:
        """PITs of the rewards that were seen: (t,)."""
        return self._of_chosen(self.pit)

    def _of_chosen(self, values: Floats) -> Floats:
        return np.take_along_axis(values, self.chosen[:, None], 1)[:, 0]


def collect_trial(
    stream: Stream, planner: Exploration, *, seed: int = 0
) -> Callable[[CompiledRidge], tuple[Data, Trial]]:
    """The `collect` of `collect_from` for all rounds of a stream at once, in compiled code.

    The model learns each round before the next, as it must, inside the loop; so no rows are left for `learn` to hand
    to its `update`. Arguments as of `collect_from`.
    """
    draws = Draws.of(planner, stream.reward.shape, seed=seed)

    def collect(model: CompiledRidge) -> tuple[Data, Trial]:
        pair = np.stack([draws.tie, draws.atom], 1)
        chosen, mean, quantile, raw, shift = ridge_policy.play(
            model.state, model.rules, stream.x, stream.reward, draws.level, pair, draws.forced, ASKED
        )
        pit = ndtr(ndtri(raw) - shift) if model.settings.step else raw
        learnt = Data(torch.from_numpy(stream.x[:0]), torch.from_numpy(stream.reward[:0]))
        return learnt, Trial(stream, chosen, mean, quantile, pit)

    return collect


def play(stream: Stream, policy: Policy, *, seed: int) -> Trial:
    """Play a stream with a policy by name, which learns; the same seed gives every policy the same random draws.

    Parameters
    ----------
    stream
        Contexts x (t, d) and rewards (t, k).
    policy
        A fresh policy of k arms with a `CompiledRidge`.
    seed
        Of the planner's draws, of ties and of atoms.

    Returns
    -------
    Trial
        What the policy believed and did in each round.
    """
    (trial,) = learn(collect_trial(stream, policy.planner, seed=seed), policy.ridge, rounds=1)
    return trial


# A job of the experiment: one trial of every policy.

CURVES = ("linucb", "callinucb", "calibrated-ucb", "greedy")
"""Policies whose learning curves and reliability are drawn."""
NOMINAL = float(ndtr(1.0))
"""What LinUCB's upper bound should cover: 84.1 %."""
CURVE_EVERY = 200
LONG = 5000
REGRET_AT = (2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
"""Rounds after which the regret of a long trial is kept."""
LEVELS = np.linspace(0.05, 0.95, 19)


def job_name(problem: str, seed: int) -> str:
    """What the job of a problem, as rows name it, and trial is called."""
    return f"{problem}, trial {seed}"


def trial_job(name: str, seed: int, rounds: int, policies: tuple[str, ...], first: bool) -> Iterator[Yielded]:
    """The rows of a problem's trial, and what figures need of it; more of the first trial."""
    trials = paired_trials(name, seed, rounds=rounds, policies=policies)
    yield from trial_rows(name, seed, trials)
    arrays: dict[str, NDArray[Any]] = {}
    for policy in filter(trials.__contains__, CURVES):
        trial = trials[policy]
        parts = {"reward": trial.reward, "chosen": trial.chosen_pit, "all": trial.pit.reshape(-1)}
        arrays |= {f"{policy}, {what}": values.astype(np.float32) for what, values in parts.items()}
    if first and {"linucb", "callinucb"} <= trials.keys():
        stream = trials["linucb"].stream
        arrays |= {"stream, reward": stream.reward, "stream, expected": stream.expected}
        for policy in ("linucb", "callinucb"):
            arrays |= {f"{policy}, arms": trials[policy].chosen, f"{policy}, quantiles": trials[policy].quantile}
    yield Arrays(arrays)


def log_job(path: str, seed: int, policies: tuple[str, ...]) -> Iterator[Yielded]:
    """A row for each policy: what it would earn after learning the first half of a log, judged by the second half."""
    from calibrl.bandits.evaluation import doubly_robust, learn_from, read_log

    log = read_log(path)
    cut = len(log) // 2
    for name in policies:
        policy = learn_from(POLICIES[name](log.arms, log.x.shape[1], seed=seed), log[:cut])
        found = doubly_robust(policy, log[cut:])
        low, high = found.interval()
        numbers = {"reward": found.value, "reward_low": low, "reward_high": high, "logged": float(log.reward.mean())}
        yield Row("bandits", f"log:{fingerprint(path)}", name, seed, numbers, step=len(log) - cut)


def paired_trials(name: str, seed: int, *, rounds: int, policies: Iterable[str]) -> dict[str, Trial]:
    """One trial of every policy, on the same stream and with the same random draws."""
    stream = kept_problem(name).stream(rounds, np.random.default_rng(seed))
    shape = stream.reward.shape[1], stream.x.shape[1]
    return {policy: play(stream, POLICIES[policy](*shape), seed=seed) for policy in policies}


def trial_rows(name: str, seed: int, trials: Mapping[str, Trial]) -> Iterator[Row]:
    """A row for each policy."""
    note, title = kept_problem(name).note, problem_name(name)
    for policy, trial in trials.items():
        settings = {"note": note} if note else {}
        yield Row("bandits", title, policy, seed, metrics(trial), step=len(trial.chosen), settings=settings)


# A worker plays many trials of a problem, and reading its data may take longer than a trial.
kept_problem = functools.lru_cache(maxsize=2)(problem)


def problem_name(name: str) -> str:
    """What rows call a problem: a file by its fingerprint, as another one under the same name is another problem."""
    return kept_problem(name).name if name.startswith(FILE) else name


PULLED = 30
"""Rewards an arm has had before the coverage of its mean is counted."""


def mean_coverage(trial: Trial) -> dict[str, float]:
    """Share of expected rewards below their 84 % quantile: of chosen arms, and of all that had 30 rewards or more."""
    below = trial.stream.expected <= trial.quantile[:, :, UPPER]
    taken = np.eye(below.shape[1], dtype=bool)[trial.chosen]
    known = np.cumsum(taken, axis=0) - taken >= PULLED
    return {
        "mean_coverage": float(below[taken].mean()),
        "mean_coverage_all": float(below[known].mean()) if known.any() else float("nan"),
    }


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
        "outcome_interval": ((chosen >= 0.05) & (chosen <= 0.95)).mean(),
        **mean_coverage(trial),
        "calibration_loss": calibration_loss(chosen, LEVELS),
        "calibration_loss_all": calibration_loss(everything, LEVELS),
    }
    # Thin curves: what had been earned by then, in even steps, and lost, in steps of a factor.
    earned, lost = np.cumsum(trial.reward), np.cumsum(trial.regret)
    every = max(CURVE_EVERY, len(earned) // 10)
    numbers |= {f"reward_{t}": earned[t - 1] for t in range(every, len(earned), every)}
    if len(lost) > LONG:
        numbers |= {f"regret_{t}": lost[t - 1] for t in REGRET_AT if t <= len(lost)}
    numbers = {name: value for name, value in numbers.items() if np.isfinite(value)}
    return {name: float(f"{float(value):.6g}") for name, value in numbers.items()}

"""The `collect` of Algorithm 1 for a bandit: one round with any forecaster, or a whole trial in a compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from calibrl.algorithm import Forecaster, learn
from calibrl.bandits.policy import Policy
from calibrl.bandits.problems import Stream
from calibrl.bandits.ridge import CompiledRidge
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.kernels import ridge_policy
from calibrl.planning.quantile import Exploration, highest_quantile

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
        return np.take_along_axis(self.stream.reward, self.chosen[:, None], 1)[:, 0]

    @property
    def regret(self) -> Floats:
        """What the best arm was expected to pay more than the chosen one, in each round: (t,)."""
        expected = self.stream.expected
        return expected.max(1) - np.take_along_axis(expected, self.chosen[:, None], 1)[:, 0]

    @property
    def chosen_pit(self) -> Floats:
        """PITs of the rewards that were seen: (t,)."""
        return np.take_along_axis(self.pit, self.chosen[:, None], 1)[:, 0]


def collect_trial(
    stream: Stream, planner: Exploration, *, seed: int = 0
) -> Callable[[CompiledRidge], tuple[Data, Trial]]:
    """The `collect` of `collect_from` for all rounds of a stream at once, in compiled code.

    The model learns each round before the next, as it must, inside the loop; so no rows are left for `learn` to hand
    to its `update`. Arguments as of `collect_from`.
    """
    draws = Draws.of(planner, stream.reward.shape, seed=seed)

    def collect(model: CompiledRidge) -> tuple[Data, Trial]:
        chosen, mean, quantile, raw, shift = ridge_policy.play(
            model.state,
            model.rules,
            stream.x,
            stream.reward,
            draws.level,
            np.stack([draws.tie, draws.atom], 1),
            draws.forced,
            ASKED,
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

"""One round of a bandit, as Algorithm 1 has it, and whole trials of rounds in a compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from calibrl.algorithm import Forecaster
from calibrl.bandits.policy import Options
from calibrl.bandits.problems import Stream
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.kernels import ridge_policy
from calibrl.planning.quantile import highest_quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ASKED = np.array([ndtri(0.05), 0.0, 1.0, ndtri(0.95)])
"""Quantiles every trial reports, as z-scores: the ends of the 90 % interval, the median, and LinUCB's 84 %."""
LOW, MEDIAN, UPPER, HIGH = range(4)


@dataclass(frozen=True)
class Round:
    """What a round came to: the arm taken and what it paid."""

    arm: int
    reward: float


def collect_from(
    stream: Stream, *, level: float, generator: torch.Generator
) -> Callable[[Forecaster], tuple[Data, Round]]:
    """The `collect` of Algorithm 1 for a bandit: each call plays the stream's next round with the current model.

    Plan: the arm of the highest quantile. Act and record: its reward, NaN for the other arms.
    """
    rounds: Iterator[int] = iter(range(len(stream.x)))

    def collect(model: Forecaster) -> tuple[Data, Round]:
        t = next(rounds, None)
        if t is None:
            raise CalibrlError(f"all {len(stream.x)} rounds of the stream were played; ask for fewer, or draw more")
        x = torch.from_numpy(stream.x[t : t + 1])
        arm = int(highest_quantile(model(x), level, generator=generator))
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


def play(stream: Stream, options: Options, *, seed: int) -> Trial:
    """A policy's trial on a stream, from knowing nothing. The same seed gives every policy the same random draws."""
    rounds, arms = stream.reward.shape
    generator = np.random.default_rng([seed, 1])
    luck = generator.random((rounds, 2))
    forced = options.plan.forced(rounds, arms, generator)
    level = options.plan.levels((rounds, arms), generator)
    state = ridge_policy.blank(arms, arms, options.dim, ridge_=options.ridge, window=options.window)
    chosen, mean, quantile, raw, shift = ridge_policy.play(
        state, options.rules, stream.x, stream.reward, level, luck, forced, ASKED
    )
    pit = ndtr(ndtri(raw) - shift) if options.step else raw
    return Trial(stream, chosen, mean, quantile, pit)

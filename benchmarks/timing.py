"""Two ways to do the same job, timed turn by turn, so that a busy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Job = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated runs."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        """The lower quartile; the least of fewer than four runs."""
        return self._quartile(0)

    @property
    def high(self) -> float:
        """The upper quartile; the most of fewer than four runs."""
        return self._quartile(2)

    def _quartile(self, which: int) -> float:
        if len(self.seconds) < 4:
            return min(self.seconds) if which == 0 else max(self.seconds)
        return statistics.quantiles(self.seconds, n=4)[which]


@dataclass(frozen=True)
class Match:
    """One job done by calibrl and by a named peer. `factor` is peer over calibrl: 3 means three times as fast."""

    job: str
    peer: str
    ours: Timing
    theirs: Timing
    at_least: float
    """The factor aimed at."""

    @property
    def factor(self) -> float:
        return self.theirs.median / self.ours.median

    @property
    def met(self) -> bool:
        return self.factor >= self.at_least


def seconds(job: Job, times: int = 1) -> float:
    """Seconds per run of `times` runs in a row."""
    start = time.perf_counter()
    for _ in range(times):
        job()
    return (time.perf_counter() - start) / times


def side_by_side(
    ours: Job, theirs: Job, *, repeats: int, their_repeats: int | None = None, times: int = 1
) -> tuple[Timing, Timing]:
    """Both jobs in turn, after one run of each that does not count (imports, caches, first use of memory).

    `times` runs make one turn: more than one for jobs of a millisecond. `their_repeats` less than `repeats` is
    for a peer too slow to run again and again; then it is not warmed up.
    """
    rounds = their_repeats or repeats
    ours()
    if rounds == repeats:
        theirs()
    mine, other = [], []
    for i in range(repeats):
        mine.append(seconds(ours, times))
        if i < rounds:
            other.append(seconds(theirs, times))
    return Timing(tuple(mine)), Timing(tuple(other))

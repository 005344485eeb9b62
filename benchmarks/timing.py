"""Two ways to do the same job, timed turn by turn, so that a busy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.table import Table

Job = Callable[[], object]
Clock = Callable[[], float]

PEERS_NEED = "pip install -c constraints.txt '.[bench]'"


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

    def __str__(self) -> str:
        scale, unit = (1e3, "ms") if self.median < 1 else (1, "s")
        spread = f" \\[{self.low * scale:.3g}, {self.high * scale:.3g}]" if len(self.seconds) > 1 else ""
        return f"{self.median * scale:.3g} {unit}{spread}"


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
    def metrics(self) -> dict[str, float]:
        """What a row says of it."""
        return {"factor": self.factor, "ours_s": self.ours.median, "theirs_s": self.theirs.median}


def beside(matches: Iterable[Match], where: str = "") -> Table:
    """All matches, a line each."""
    table = Table(title=f"calibrl beside its peers{where}: median \\[quartiles]; factor = peer / calibrl")
    for heading in ("job", "calibrl", "peer", "peer's time", "factor", "aim"):
        table.add_column(heading)
    for match in matches:
        verdict = "[green]met" if match.factor >= match.at_least else "[red]missed"
        aim = f"≥ {match.at_least:.2g} × {verdict}"
        table.add_row(match.job, str(match.ours), match.peer, str(match.theirs), f"{match.factor:.3g} ×", aim)
    return table


def side_by_side(
    ours: Job,
    theirs: Job,
    *,
    repeats: int,
    their_repeats: int | None = None,
    times: int = 1,
    clock: Clock = time.perf_counter,
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
        mine.append(_seconds(ours, times, clock))
        if i < rounds:
            other.append(_seconds(theirs, times, clock))
    return Timing(tuple(mine)), Timing(tuple(other))


def _seconds(job: Job, times: int, clock: Clock) -> float:
    """Seconds per run of `times` runs in a row."""
    start = clock()
    for _ in range(times):
        job()
    return (clock() - start) / times

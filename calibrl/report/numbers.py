"""Rows → arrays that tables and charts share: by problem, arm and seed, at each seed's last step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from calibrl.runs.experiment import Printed
from calibrl.runs.rows import Row
from calibrl.runs.statistics import alike, stops, stops_in_words

Floats = NDArray[np.float64]

MANY = 300
"""More problems than this are shown as their mean."""


class Mean(NamedTuple):
    """Means over the last axis, their standard errors (NaN for one seed), and how many seeds there were."""

    mean: Floats
    error: Floats
    seeds: NDArray[np.int64]


class Difference(NamedTuple):
    """Mean paired differences and their 95 % intervals (Student's t), over the last axis."""

    mean: Floats
    low: Floats
    high: Floats

    @property
    def sure(self) -> NDArray[np.bool_]:
        """Whether the interval leaves out zero."""
        return (self.low > 0) | (self.high < 0)


@dataclass(frozen=True)
class Study:
    """Problems that measure the same metrics, with the arms and seeds they have: what one table shows.

    values: by metric, (problems, arms, seeds) at each seed's last step, NaN where nothing was measured; steps: the
    last step of each problem; stops: those of its arms, where they stopped apart.
    """

    problems: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    values: dict[str, Floats]
    steps: tuple[int, ...]
    stops: dict[str, dict[str, str]]

    def arms_of(self, problem: int) -> list[int]:
        """The arms that the problem was measured with."""
        seen = np.any([np.isfinite(values[problem]).any(-1) for values in self.values.values()], axis=0)
        return [int(arm) for arm in np.flatnonzero(seen)]

    def end(self, step: str) -> str:
        """After how many steps the values are measured, in one sentence; nothing if rows do not say."""
        if self.stops:
            return stops_in_words(self.stops, step)
        return f"At {step} {self.steps[0]}." if len(set(self.steps)) == 1 and self.steps[0] else ""

    def apart(self, paper: Printed) -> dict[str, int]:
        """The problems that the paper has after another number of steps, with the steps of ours."""
        ours = zip(self.problems, self.steps, strict=True)
        return {problem: step for problem, step in ours if paper.about(problem) and paper.step not in {None, step}}


def readable(rows: Sequence[Row]) -> list[Row]:
    """The rows; or, if they are about more problems than anyone reads, their means over problems."""
    problems = len({row.problem for row in rows})
    if problems <= MANY:
        return list(rows)
    found: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for row in rows:
        measured = found.setdefault((row.arm, row.seed, row.step), {})
        for name, value in row.metrics.items():
            measured.setdefault(name, []).append(value)
    first = rows[0]
    return [
        Row(
            first.experiment,
            f"mean of {problems:,} problems",
            arm,
            seed,
            {name: float(np.mean(values)) for name, values in measured.items()},
            step,
            first.preset,
        )
        for (arm, seed, step), measured in found.items()
    ]


def studies(rows: Sequence[Row], metrics: Iterable[str], *, first: str = "") -> list[Study]:
    """Group problems by which of the metrics they measure, so that each table is without holes.

    Arms are in the order they appear in, but for the `first`: what others are compared with has the same colour
    everywhere.
    """
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(row)
    return [_study(by_problem, names, problems, first) for names, problems in alike(rows, metrics).items() if names]


def _study(by_problem: dict[str, list[Row]], names: Sequence[str], problems: Sequence[str], first: str) -> Study:
    rows = [row for problem in problems for row in by_problem[problem]]
    arms = tuple(sorted(dict.fromkeys(row.arm for row in rows), key=lambda arm: arm != first))
    seeds = tuple(sorted({row.seed for row in rows}))
    place = {arm: i for i, arm in enumerate(arms)}, {seed: i for i, seed in enumerate(seeds)}
    last = np.full((len(problems), len(arms), len(seeds)), -np.inf)
    values = {name: np.full(last.shape, np.nan) for name in names}
    for p, problem in enumerate(problems):
        for row in by_problem[problem]:
            at = p, place[0][row.arm], place[1][row.seed]
            if row.step >= last[at]:
                last[at] = row.step
                for name in names:
                    if name in row.metrics:
                        values[name][at] = row.metrics[name]
    steps = tuple(max(row.step for row in by_problem[problem]) for problem in problems)
    return Study(tuple(problems), arms, seeds, values, steps, stops(rows))


def mean(values: Floats) -> Mean:
    """Mean ± standard error over the seeds that were measured; values: (…, seeds)."""
    count = np.isfinite(values).sum(-1)
    some, several = np.maximum(count, 1), np.maximum(count - 1, 1)
    centre = np.where(count > 0, np.nansum(values, -1) / some, np.nan)
    spread = np.sqrt(np.nansum((values - centre[..., None]) ** 2, -1) / several)
    return Mean(centre, np.where(count > 1, spread / np.sqrt(some), np.nan), count)


def difference(values: Floats, base: Floats) -> Difference:
    """Paired differences values - base, each (…, seeds), with their 95 % intervals."""
    centre, error, count = mean(values - base)
    reach = reach_95(count) * error
    return Difference(centre, centre - reach, centre + reach)


def reach_95(count: NDArray[np.int64]) -> Floats:
    """How many standard errors a 95 % interval reaches either way, for the mean of that many seeds."""
    return np.where(count > 1, stdtrit(np.maximum(count - 1, 1), 0.975), np.nan)

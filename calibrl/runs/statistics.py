"""Rows → a table: mean ± standard error by problem and arm, and differences paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibrl.runs.experiment import describe
from calibrl.runs.rows import Row

ENOUGH_SEEDS = 5
"""With fewer pairs than this no interval is printed: Student's calls chance a difference in up to half of all cases."""


@dataclass(frozen=True)
class Cell:
    """One number of a table: the mean over seeds, its standard error, and how many seeds there were.

    change, change_error: the mean difference to the baseline arm on the same `pairs` seeds and its standard error.
    """

    mean: float
    error: float
    count: int
    change: float = math.nan
    change_error: float = math.nan
    pairs: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true difference lies with 95 %, by Student's t; NaN for fewer than `ENOUGH_SEEDS` pairs."""
        from scipy.special import stdtrit

        reach = float(stdtrit(self.pairs - 1, 0.975)) * self.change_error if self.pairs >= ENOUGH_SEEDS else math.nan
        return self.change - reach, self.change + reach


def latest(rows: Sequence[Row]) -> list[Row]:
    """One row per key and overrides: where a run was repeated, the last one counts."""
    return list({(row.key, str(row.overrides)): row for row in rows}.values())


def by_run(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows that may be compared, by their experiment and by the preset and what was changed about it, in words."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        picks = describe(row.experiment).picks
        changes = [f"{name}={value}" for name, value in row.overrides.items() if name not in picks]
        found.setdefault((row.experiment, ", ".join(filter(None, [row.preset, *changes]))), []).append(row)
    return found


def table(rows: Sequence[Row], metric: str, baseline: str) -> dict[str, dict[str, Cell]]:
    """Metric by problem, then arm; each in the order of first appearance, at each seed's last step.

    A seed whose last number is none (NaN) does not count.
    """
    final: dict[tuple[str, str, int], tuple[int, float]] = {}
    for row in rows:
        if metric in row.metrics:
            key = (row.problem, row.arm, row.seed)
            if key not in final or row.step >= final[key][0]:
                final[key] = (row.step, row.metrics[metric])
    found: dict[str, dict[str, dict[int, float]]] = {}
    for (problem, arm, seed), (_, value) in final.items():
        seeds = found.setdefault(problem, {}).setdefault(arm, {})
        if math.isfinite(value):
            seeds[seed] = value
    return {
        problem: {arm: _cell(values, arms.get(baseline, {}), arm == baseline) for arm, values in arms.items()}
        for problem, arms in found.items()
    }


def stops(rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    """The last steps of arms by problem, in words ("1800–2400" where seeds differ), if arms or seeds stopped apart."""
    last: dict[str, dict[str, dict[int, int]]] = {}
    for row in rows:
        seeds = last.setdefault(row.problem, {}).setdefault(row.arm, {})
        seeds[row.seed] = max(row.step, seeds.get(row.seed, row.step))
    return {
        problem: {
            arm: "–".join(dict.fromkeys((f"{min(steps.values())}", f"{max(steps.values())}")))
            for arm, steps in arms.items()
        }
        for problem, arms in last.items()
        if len({step for steps in arms.values() for step in steps.values()}) > 1
    }


def stops_in_words(found: dict[str, dict[str, str]], step: str) -> str:
    """One sentence of where arms stopped; nothing if they all stopped together."""
    told = "; ".join(
        f"{problem}: {', '.join(f'{arm} {at}' for arm, at in arms.items())}" for problem, arms in found.items()
    )
    return f"Not after equal experience. Last {step}s: {told}." if told else ""


def alike(rows: Sequence[Row], metrics: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """Problems grouped by which of the metrics they measure, so that each group fills a table without holes."""
    measured: dict[str, set[str]] = {}
    for row in rows:
        measured.setdefault(row.problem, set()).update(row.metrics)
    groups: dict[tuple[str, ...], list[str]] = {}
    names = tuple(metrics)
    for problem, found in measured.items():
        groups.setdefault(tuple(name for name in names if name in found), []).append(problem)
    return groups


def _cell(values: dict[int, float], base: dict[int, float], is_base: bool) -> Cell:
    mean, error = mean_and_error(list(values.values()))
    if is_base or not base:
        return Cell(mean, error, len(values))
    paired = [values[seed] - base[seed] for seed in values if seed in base]
    change, change_error = mean_and_error(paired)
    return Cell(mean, error, len(values), change, change_error, len(paired))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error: NaN both without a value, the error for one."""
    if not len(values):
        return math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error

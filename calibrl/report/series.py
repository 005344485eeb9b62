"""What the charts draw, as plain numbers: results by seed, learning curves, reliability.

Seeds travel one by one so that the page can choose among them; where they would weigh too much, only their means do.
A row gives a point of a learning curve by its `step`; by metrics `reward_200`, `reward_400`, … if the catalogue says so
(`thin`); or by a setting, such as the amount of data (`along`). Reliability curves are rows' `reliability_05 … 95`
(`calibrl.runs.rows`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrl.report.tables import Floats, Study, difference, mean, reach_95
from calibrl.runs.experiment import Description, Metric
from calibrl.runs.rows import RELIABILITY_NAMES, RELIABILITY_PERCENT, Row
from calibrl.runs.statistics import ENOUGH_SEEDS

POINTS = 120
"""The most points a learning curve keeps."""


@dataclass(frozen=True)
class Charts:
    """What the charts of one study draw.

    curves: each a title, its problems, x, and by metric (arms, x, seeds). reliability: (problems, arms, levels, seeds).
    """

    study: Study
    about: Description
    metrics: dict[str, Metric]
    curves: list[dict[str, Any]]
    reliability: Floats

    @property
    def compared(self) -> bool:
        """Whether there is anything to draw: of one arm without a curve the table says it all."""
        return bool(self.curves) or any(len(self.study.arms_of(p)) > 1 for p in range(len(self.study.problems)))

    @property
    def size(self) -> int:
        """How many numbers travel if every seed does."""
        arrays = [*self.study.values.values(), self.reliability]
        arrays += [values for curve in self.curves for values in curve["values"].values()]
        return sum(int(np.isfinite(values).sum()) for values in arrays)

    def data(self, *, each: bool) -> dict[str, Any]:
        """Plain data for the page, with every seed or with means only."""
        study, arms = self.study, self.study.arms
        base = arms.index(self.about.baseline) if self.about.baseline in arms else None
        return {
            "problems": study.problems,
            "arms": arms,
            "seeds": study.seeds,
            "baseline": base,
            "each": each,
            "metrics": [
                {
                    "key": key,
                    "heading": metric.heading,
                    "form": metric.form,
                    "better": metric.better,
                    "help": metric.help,
                    "limits": [_short(limit, 6) for limit in metric.bounds],
                }
                for key, metric in self.metrics.items()
            ],
            "finals": {name: [_pack(values, each, base) for values in study.values[name]] for name in self.metrics},
            "curves": [
                curve | {"values": {name: _pack(values, each, base) for name, values in curve["values"].items()}}
                for curve in self.curves
            ],
            "levels": RELIABILITY_PERCENT,
            "reliability": [_pack(v, each) if np.isfinite(v).any() else None for v in self.reliability],
            "paper": _paper(study, self.about, self.metrics),
            "end": study.end(self.about.step),
            "enough": ENOUGH_SEEDS,
            "reach": _plain(reach_95(np.arange(min(len(study.seeds), 200) + 1)), 4),
        }


def charts(rows: Sequence[Row], study: Study, about: Description, metrics: dict[str, Metric]) -> Charts:
    """Collect what there is to draw of a study."""
    inside = [row for row in rows if row.problem in set(study.problems)]
    return Charts(study, about, metrics, [*_curves(inside, study, about, metrics)], _reliability(inside, study))


def _curves(
    rows: Sequence[Row], study: Study, about: Description, metrics: dict[str, Metric]
) -> Iterator[dict[str, Any]]:
    points: dict[str, dict[str, list[tuple[Row, float, float]]]] = {}
    members: dict[str, set[int]] = {}
    where = {problem: p for p, problem in enumerate(study.problems)}
    for row in rows:
        for title, x, name, value in _points(row, about, metrics):
            points.setdefault(title, {}).setdefault(name, []).append((row, x, value))
            members.setdefault(title, set()).add(where[row.problem])
    arms = {arm: a for a, arm in enumerate(study.arms)}
    seeds = {seed: s for s, seed in enumerate(study.seeds)}
    for title, found in points.items():
        xs = sorted({x for measured in found.values() for _, x, _ in measured})
        if len(xs) < 2:
            continue
        kept = np.unique(np.linspace(0, len(xs) - 1, min(len(xs), POINTS)).round().astype(int))
        place = {x: i for i, x in enumerate(xs)}
        values = {}
        for name in (name for name in metrics if name in found):
            array = np.full((len(arms), len(xs), len(seeds)), np.nan)
            for row, x, value in found[name]:
                array[arms[row.arm], place[x], seeds[row.seed]] = value
            values[name] = _held(array, between=len(kept) < len(xs))[:, kept]
        # Most steps may carry other metrics only; a curve needs two points.
        values = {name: v for name, v in values.items() if np.isfinite(v).any((0, 2)).sum() > 1}
        if values:
            heading = about.along.heading if about.along else about.step
            yield {
                "title": title,
                "problems": sorted(members[title]),
                "x": [xs[i] for i in kept],
                "heading": heading,
                "values": values,
            }


def _held(values: Floats, *, between: bool) -> Floats:
    """Each seed's last value at or before x, up to its own end, so that seeds measured at different x can be averaged.

    values: (arms, x, seeds). Where an arm has no seed's x it stays without a point, unless `between` wants one.
    """
    known = np.isfinite(values)
    at = np.arange(values.shape[1])[None, :, None]
    source = np.maximum.accumulate(np.where(known, at, -1), axis=1)
    inside = (source >= 0) & (at <= source[:, -1:]) & (known.any(2, keepdims=True) | between)
    return np.where(inside, np.take_along_axis(values, np.maximum(source, 0), axis=1), np.nan)


def _points(row: Row, about: Description, metrics: dict[str, Metric]) -> Iterator[tuple[str, float, str, float]]:
    """(title of the curve, x, metric, value) for every point the row gives."""
    title, x = row.problem, float(row.step)
    if about.along:
        if about.along.setting not in row.settings:
            return
        title = ", ".join(str(row.settings.get(name, "")) for name in about.along.within)
        x = float(row.settings[about.along.setting])
    for name in metrics:
        if name in row.metrics:
            yield title, x, name, row.metrics[name]
    for name in about.thin:
        for key, value in row.metrics.items():
            step = re.fullmatch(rf"{re.escape(name)}_(\d+)", key)
            if step and name in metrics:
                yield title, float(step[1]), name, value


def _reliability(rows: Sequence[Row], study: Study) -> Floats:
    """Observed shares (problems, arms, levels, seeds) at each seed's last step, NaN where rows carry none."""
    arms = {arm: a for a, arm in enumerate(study.arms)}
    seeds = {seed: s for s, seed in enumerate(study.seeds)}
    where = {problem: p for p, problem in enumerate(study.problems)}
    carry = [row for row in rows if RELIABILITY_NAMES[0] in row.metrics]
    if not carry:
        return np.full((len(where), 1, 1, 1), np.nan)
    shares = np.full((len(where), len(arms), len(RELIABILITY_NAMES), len(seeds)), np.nan)
    for row in sorted(carry, key=lambda row: row.step):
        at = where[row.problem], arms[row.arm], slice(None), seeds[row.seed]
        shares[at] = [row.metrics.get(name, np.nan) for name in RELIABILITY_NAMES]
    return shares


def _pack(values: Floats, each: bool, base: int | None = None) -> dict[str, Any]:
    """(arms, …, seeds): every seed; or mean, error and count, and the paired difference to the baseline arm."""
    if each:
        return {"each": _plain(values)}
    centre, error, count = mean(values)
    packed = {"mean": _plain(centre), "error": _plain(error), "count": count.tolist()}
    if base is not None:
        packed["difference"] = [_plain(part) for part in difference(values, values[[base]])[:3]]
    return packed


def _paper(study: Study, about: Description, metrics: dict[str, Metric]) -> dict[str, list[list[float | None]]]:
    """Printed means by metric, problem and arm; only metrics of which something is printed.

    Numbers about data that are not ours, or sums over another number of steps, stay in the table: on one scale they
    would tell nothing.
    """
    paper = about.paper
    if paper is None:
        return {}
    found = {}
    alike = study.comparable(paper)
    for name in metrics:
        numbers = [
            [paper.at(problem, arm, name) if problem in alike else None for arm in study.arms]
            for problem in study.problems
        ]
        if any(number for line in numbers for number in line):
            found[name] = [[number.mean if number else None for number in line] for line in numbers]
    return found


def _plain(values: Floats, digits: int = 6) -> Any:
    """Nested lists of short numbers, None where there is none (JSON has no NaN), and nothing after the last."""
    if values.ndim > 1:
        return [_plain(part, digits) for part in values]
    known = np.flatnonzero(np.isfinite(values))
    return [_short(value, digits) for value in values[: known[-1] + 1 if len(known) else 0].tolist()]


def _short(value: float, digits: int) -> float | int | None:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short

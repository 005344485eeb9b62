"""Tables that read without any script: a verdict, means, paired differences with intervals, and what the paper printed.

They and the charts share arrays by problem, arm and seed, at each seed's last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from calibrl.runs.experiment import Description, Metric, Number, Printed
from calibrl.runs.rows import ENOUGH_SEEDS, Row, alike, stops, stops_in_words
from calibrl.text import for_html

Floats = NDArray[np.float64]

MANY = 300
"""More problems than this are shown as their mean."""


class Mean(NamedTuple):
    """Means over the last axis, their standard errors (NaN for one seed), and how many seeds there were."""

    mean: Floats
    error: Floats
    seeds: NDArray[np.int64]


class Difference(NamedTuple):
    """Mean paired differences over the last axis, their 95 % intervals (NaN for too few seeds) and standard errors."""

    mean: Floats
    low: Floats
    high: Floats
    error: Floats

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

    def comparable(self, paper: Printed | None) -> set[str]:
        """The problems of which the paper printed numbers about the same data after as many steps."""
        return set(self.problems) & set(paper.numbers) - set(self.apart(paper)) if paper else set()


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
    return Difference(centre, centre - reach, centre + reach, error)


def reach_95(count: NDArray[np.int64]) -> Floats:
    """How many standard errors a 95 % interval reaches either way, for the mean of that many seeds; NaN for too few."""
    return np.where(count >= ENOUGH_SEEDS, stdtrit(np.maximum(count - 1, 1), 0.975), np.nan)


def verdict(study: Study, about: Description, metrics: dict[str, Metric]) -> str:
    """How the arm that an experiment is about does against its baseline, in one sentence; "" if nothing compares."""
    name = next((name for name in metrics if metrics[name].better), "")
    others = [arm for arm in study.arms if arm != about.baseline]
    if not name or about.baseline not in study.arms or not others:
        return ""
    subject = about.subject if about.subject in others else others[0]
    ours, base = (study.values[name][:, study.arms.index(arm)] for arm in (subject, about.baseline))
    found = difference(ours, base)
    known = np.isfinite(found.mean)
    if known.sum() == 1:
        return _verdict_of_one(study, int(np.argmax(known)), found, (subject, about.baseline), metrics[name])
    start = f"{subject} against {about.baseline}, by “{metrics[name].heading}”:"
    of = f"of {known.sum()} problems"
    ahead = known & ((found.mean > 0) == (metrics[name].better == "higher")) & (found.mean != 0)
    if not np.isfinite(found.low).any():
        return f"{start} ahead on {ahead.sum()} {of}, but no difference can be told from chance with {FEW}."
    better, worse = (found.sure & ahead).sum(), (found.sure & ~ahead).sum()
    close = known.sum() - better - worse
    return f"{start} better on {better} {of}, worse on {worse}{f', too close to call on {close}' if close else ''}."


FEW = f"fewer than {ENOUGH_SEEDS} seeds"


def _verdict_of_one(study: Study, at: int, found: Difference, arms: tuple[str, str], metric: Metric) -> str:
    change = float(found.mean[at])
    size = show(abs(change), metric).replace("\u202f%", " points")
    way = f"{size} {'higher' if change > 0 else 'lower'} than" if change else "the same as"
    said = f"On {study.problems[at]}, the {metric.heading} of {arms[0]} is {way} that of {arms[1]}"
    if not math.isfinite(found.low[at]):
        return f"{said}; with {FEW} that cannot be told from chance."
    if not found.sure[at]:
        return f"{said}, which may be chance."
    return f"{said}, which is {'better' if (change > 0) == (metric.better == 'higher') else 'worse'}."


LONG = 40
"""Rows beyond which a table scrolls in a window of its own."""


def table(study: Study, about: Description, metrics: dict[str, Metric], *, caption: str) -> str:
    """One table: problems and their arms down, metrics across, the paper's number beside each that it printed."""
    base = study.arms.index(about.baseline) if about.baseline in study.arms else None
    means = {name: mean(study.values[name]) for name in metrics}
    changes = {
        name: difference(study.values[name], study.values[name][:, [base]]) for name in metrics if base is not None
    }
    paper = [name for name in metrics if _is_printed(study, about, name)]
    alike_paper = study.comparable(about.paper)
    head = "".join(
        f'<th scope="col">{for_html(metric.heading)}{_arrow(metric)}</th>'
        + ('<th scope="col" class="paper">paper</th>' if name in paper else "")
        for name, metric in metrics.items()
    )
    body: list[str] = []
    for p, problem in enumerate(study.problems):
        lines = []
        for a in study.arms_of(p):
            arm = study.arms[a]
            cells = "".join(
                _cell(means[name], None if a == base else changes.get(name), (p, a), metric)
                + (
                    _printed(about, problem if problem in alike_paper else "", arm, name, metric)
                    if name in paper
                    else ""
                )
                for name, metric in metrics.items()
            )
            lines.append(f'<th scope="row">{for_html(arm)}</th>{cells}')
        for arm in _only_printed(study, about, problem):
            cells = "".join(
                "<td></td>" + (_printed(about, problem, arm, name, metric) if name in paper else "")
                for name, metric in metrics.items()
            )
            lines.append(f'<th scope="row">{for_html(arm)}</th>{cells}')
        first = f'<th scope="rowgroup" rowspan="{len(lines)}">{for_html(problem)}</th>'
        body.append(f"<tbody>{''.join(f'<tr>{x}</tr>' for x in (first + lines[0], *lines[1:]))}</tbody>")
    notes = [_note(study, about, base is not None)]
    end = for_html(study.end(about.step))
    notes.append(f"<b>{end}</b>" if study.stops else end)
    if paper and about.paper:
        notes.append(f"Paper: {for_html(about.paper.source)}.")
    size = " long" if sum(part.count("<tr>") for part in body) > LONG else ""
    return (
        f'<div class="scroll{size}" tabindex="0" role="region" aria-label="Table: {for_html(caption)}">'
        f"<table><caption><span><b>{for_html(caption)}</b> {' '.join(notes)}</span></caption>"
        f'<thead><tr><th scope="col">problem</th><th scope="col">arm</th>{head}</tr></thead>'
        f"{''.join(body)}</table></div>{_terms(metrics)}{_aside(study, about, metrics)}"
    )


def _terms(metrics: dict[str, Metric]) -> str:
    """What each metric means, for those who want to know."""
    told = "".join(
        f"<dt>{for_html(metric.heading)}</dt><dd>{for_html(metric.help)}</dd>"
        for metric in metrics.values()
        if metric.help
    )
    return f'<details class="terms"><summary>What the columns mean</summary><dl>{told}</dl></details>' if told else ""


def _aside(study: Study, about: Description, metrics: dict[str, Metric]) -> str:
    """The paper's numbers that are about other data, or sums over another number of steps: apart from ours."""
    paper = about.paper
    names = [problem for problem in study.problems if problem not in study.comparable(paper)]
    if paper is None or not (names := [problem for problem in names if paper.about(problem)]):
        return ""
    why = "on other data than ours" if any(name not in paper.numbers for name in names) else ""
    steps = ", ".join(f"{step} ({for_html(problem)})" for problem, step in study.apart(paper).items())
    why = why or f"after {paper.step} {about.step}s, ours after {steps}"
    head = "".join(f'<th scope="col">{for_html(metric.heading)}</th>' for metric in metrics.values())
    lines = dict.fromkeys(
        f'<tr><th scope="row">{for_html(arm if problem not in paper.numbers else f"{problem}, {arm}")}</th>'
        + "".join(_printed(about, problem, arm, name, metric) for name, metric in metrics.items())
        for problem in names
        for arm in paper.about(problem)
    )
    return (
        f'<details class="aside"><summary>What the paper printed, {why}: they do not compare</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table: the paper"><table>'
        f"<caption><span>{for_html(paper.source)}.</span></caption>"
        f'<thead><tr><th scope="col">arm</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></details>"
    )


def _note(study: Study, about: Description, paired: bool) -> str:
    counts = {int(n) for values in study.values.values() for n in mean(values).seeds.flat if n}
    if counts == {1}:
        return "One seed."
    seeds = f"{max(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    small = f"In small print: the difference to “{for_html(about.baseline)}” on the same seeds" + (
        " and its 95 % interval (Student's t), bold where the interval excludes zero."
        if max(counts) >= ENOUGH_SEEDS
        else f"; an interval takes at least {ENOUGH_SEEDS} seeds."
    )
    return f"Mean ± standard error over {seeds} seeds. {small if paired else ''}"


def _cell(means: Mean, changes: Difference | None, at: tuple[int, int], metric: Metric) -> str:
    value, error = means.mean[at], means.error[at]
    if not math.isfinite(value):
        return "<td></td>"
    words = f"{show(value, metric)}{f' <span>± {show(error, metric)}</span>' if math.isfinite(error) else ''}"
    if changes is None or not math.isfinite(changes.mean[at]) or not math.isfinite(changes.error[at]):
        return f"<td>{words}</td>"
    change, low, high = float(changes.mean[at]), float(changes.low[at]), float(changes.high[at])
    sure = bool(changes.sure[at])
    tone = ("better" if (change < 0) == (metric.better == "lower") else "worse") if sure and metric.better else ""
    least, most = metric.bounds
    span = f" [{show(max(low, least - most), metric)}, {show(min(high, most - least), metric)}]"
    # The unit stands above already.
    text = f"{show(change, metric, '+')}{span if math.isfinite(low) else ''}".replace("\u202f%", "")
    return f'<td>{words}<small class="{tone}">{f"<b>{text}</b>" if sure else text}</small></td>'


def show(value: float, metric: Metric, sign: str = "") -> str:
    """A number as its metric is printed, with a real minus sign; never a minus zero."""
    text = f"{value:{sign}{metric.form}}"
    if metric.form.endswith("g") and "e+" in text and abs(value) < 1e9:
        text = f"{float(text):{sign}.0f}"  # 41350 reads better than 4.135e+04
    if not any(digit in text for digit in "123456789"):
        text = text.replace("-", "+" if sign else "")
    return text.replace("-", "−").replace("%", "\u202f%")


def _arrow(metric: Metric) -> str:
    sign = {"lower": "↓", "higher": "↑"}.get(metric.better)
    words = f"{metric.better} is better"
    return f' <span role="img" aria-label="{words}" title="{words}">{sign}</span>' if sign else ""


def _is_printed(study: Study, about: Description, metric: str) -> bool:
    paper = about.paper
    return paper is not None and any(
        paper.at(problem, arm, metric) for problem in study.comparable(paper) for arm in study.arms
    )


def _only_printed(study: Study, about: Description, problem: str) -> list[str]:
    """Arms that the paper has and we have not, such as the optimum."""
    if about.paper is None or problem not in study.comparable(about.paper):
        return []
    ours = {study.arms[a] for a in study.arms_of(study.problems.index(problem))}
    found = about.paper.about(problem)
    return [arm for arm in found if arm not in ours and any(name in study.values for name in found[arm])]


def _printed(about: Description, problem: str, arm: str, name: str, metric: Metric) -> str:
    number: Number | None = about.paper.at(problem, arm, name) if about.paper else None
    if number is None:
        return '<td class="paper"></td>'
    error = f" <span>± {show(number.error, metric)}</span>" if np.isfinite(number.error) else ""
    return f'<td class="paper">{show(number.mean, metric)}{error}</td>'

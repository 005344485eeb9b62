"""One HTML file from a folder of results: charts, tables, figures and where they came from. No server, no network.

Charts draw plain numbers: results by seed, learning curves, reliability. Seeds travel one by one so that the page can
choose among them; where they would weigh too much, only their means do. A row gives a point of a learning curve by its
`step`; by metrics `reward_200`, `reward_400`, … if the experiment says so (`thin`); or by a setting, such as the amount
of data (`along`). Reliability curves are rows' `reliability_05 … 95` (`calibrl.runs.rows`).
"""

from __future__ import annotations

import base64
import json
import re
import struct
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count, groupby
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from calibrl import __version__
from calibrl.errors import CalibrlError
from calibrl.files import writable, write_text
from calibrl.report.tables import Floats, Study, difference, mean, reach_95, readable, studies, table, verdict
from calibrl.runs.experiment import BENCHMARKS, EXPERIMENTS, Description, Metric, describe
from calibrl.runs.rows import ENOUGH_SEEDS, RELIABILITY_NAMES, RELIABILITY_PERCENT, Row, by_run, latest, read_files
from calibrl.text import document, for_html

HERE = Path(__file__).parent
SCRIPTS = ("marks.js", "panels.js", "choices.js", "card.js", "explore.js", "begin.js")
NUMBERS = 150_000
"""How many numbers may travel seed by seed on the whole page: about a megabyte."""
UNKNOWN_METRICS = 6
"""How many metrics are shown of an experiment that is not in the catalogue."""


def write_report(folder: Path, out: Path) -> Path:
    """Collect every .jsonl and .png under `folder` into one self-contained page at `out`."""
    if folder.is_file():
        raise CalibrlError(f"{folder} is a file; give the folder that it is in, {folder.parent}")
    if not folder.is_dir():
        raise CalibrlError(f"{folder} does not exist; run an experiment with --out {folder} first")
    files = read_files(folder)
    rows = latest([row for found in files.values() for row in found])
    if not rows:
        raise CalibrlError(f"{folder} holds no rows (*.jsonl); run an experiment with --out {folder} first")
    parts = _parts(rows)
    whole = _whole([drawn for part in parts for drawn in part.charts])
    homes: dict[tuple[str, str], set[Path]] = {}
    for path, found in files.items():
        for run in by_run(found):
            homes.setdefault(run, set()).add(path.parent)
    sections = [_section(part, _figures(homes[part.run], part), whole) for part in parts]
    with writable(out):
        write_text(out, _assemble(sections, parts))
    return out


def _whole(drawn: Sequence[Charts]) -> set[int]:
    """Which charts get every seed (by identity): as many as there is room for, the small ones first."""
    found, room = set(), NUMBERS
    for each in sorted(drawn, key=lambda each: each.size):
        room -= each.size
        if room >= 0:
            found.add(id(each))
    return found


@dataclass(frozen=True)
class Part:
    """A section of the page: one run, with `mark`, what tells it from others of its experiment, if there are any."""

    run: tuple[str, str]
    key: str
    mark: str
    about: Description
    rows: Sequence[Row]
    charts: Sequence[Charts]

    @property
    def title(self) -> str:
        """The heading of the section."""
        return f"{self.about.title} ({self.mark})" if self.mark else self.about.title


def _parts(rows: Sequence[Row]) -> list[Part]:
    runs = by_run(rows)
    # The order of the catalogue is the order of the story; what it does not know comes last.
    order = [*EXPERIMENTS, *BENCHMARKS, *(name for name, _ in runs)]
    alone = Counter(name for name, _ in runs)
    parts: list[Part] = []
    for name, what in sorted(runs, key=lambda run: order.index(run[0])):
        found = runs[name, what]
        about = describe(name)
        kept = about if about.baseline else replace(about, baseline=found[0].arm)
        mark = "" if alone[name] == 1 else what or "no preset"
        key = _key(f"{name} {mark}", ["main", *(part.key for part in parts)])
        parts.append(Part((name, what), key, mark, kept, found, _charts(found, kept)))
    return parts


def _charts(every: Sequence[Row], about: Description) -> list[Charts]:
    rows = readable(every)
    present = dict.fromkeys(metric for row in rows for metric in row.metrics)
    metrics = {metric: about.metrics[metric] for metric in about.metrics if metric in present}
    plain = [metric for metric in present if metric not in RELIABILITY_NAMES]
    metrics = metrics or {metric: Metric(metric.replace("_", " ")) for metric in plain[:UNKNOWN_METRICS]}
    return [
        charts(rows, study, about, {name: metrics[name] for name in study.values})
        for study in studies(rows, metrics, first=about.baseline)
    ]


def _key(name: str, taken: Sequence[str]) -> str:
    """A plain anchor for a name, distinct from those taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "experiment"
    return next(key for key in chain([plain], (f"{plain}-{n}" for n in count(2))) if key not in taken)


def _assemble(sections: Sequence[str], parts: Sequence[Part]) -> str:
    # Styles and scripts are allowed by their hash: what rows or names could smuggle in is neither run nor painted.
    widths = sorted({int(width) for section in sections for width in re.findall(r'<figure class="w(\d+)">', section)})
    styles = "".join(f".figures .w{width} {{ width: {width}px; }}\n" for width in widths)
    parts_of_script = [(HERE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = "\n".join(["(() => {", '"use strict";', *parts_of_script, "})();"])
    body = Template((HERE / "template.html").read_text(encoding="utf-8")).substitute(
        sections="\n".join(sections),
        links=_links(parts),
        version=__version__,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    return document("calibrl report", body, styles=styles, script=script)


def _links(parts: Sequence[Part]) -> str:
    """The contents: an experiment that was run in several ways stands once, with its runs below."""
    lines = []
    for title, several in groupby(parts, key=lambda part: part.about.title):
        runs = list(several)
        if not runs[0].mark:
            lines.append(f"<li>{_link(runs[0].key, title)}</li>")
        else:
            below = "".join(f"<li>{_link(part.key, part.mark)}</li>" for part in runs)
            lines.append(f"<li>{for_html(title)}<ul>{below}</ul></li>")
    return "".join(lines)


def _link(key: str, words: str) -> str:
    return f'<a href="#{key}">{for_html(words)}</a>'


def _section(part: Part, figures: str, whole: set[int]) -> str:
    key, about, rows = part.key, part.about, part.rows
    shown = "".join(
        _study(f"{key}.{i}", drawn, each=id(drawn) in whole) for i, drawn in enumerate(part.charts, start=1)
    )
    return (
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{for_html(part.title)}</h2>'
        f'{_verdict(part)}<p class="question">{for_html(about.question)}</p><p class="scope">{_scope(part)}</p>'
        f"{shown}{figures}"
        f'<details class="made"><summary>How this was made</summary>{facts(rows)}</details></section>'
    )


def _verdict(part: Part) -> str:
    """What came out, a sentence for each study; the rest of the section is the evidence."""
    found = filter(None, (verdict(drawn.study, part.about, drawn.metrics) for drawn in part.charts))
    said = for_html(" ".join(sentence[0].upper() + sentence[1:] for sentence in found))
    return f'<p class="verdict">{said}</p>' if said else ""


def _study(key: str, drawn: Charts, *, each: bool) -> str:
    study = drawn.study
    title = _title(study.problems)
    chart = ""
    if drawn.compared:
        # "<" never stands in the text of a script element: nothing can close it early.
        text = json.dumps(drawn.data(each=each), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        chart = (
            f'<div class="explore" id="{key}" data-title="{for_html(title)}"></div>'
            f'<script type="application/json" id="{key}-data">{text}</script>'
        )
    shown = table(study, drawn.about, drawn.metrics, caption=title)
    return f'<div class="study"><h3>{for_html(title)}</h3>{chart}{shown}</div>'


def _title(problems: Sequence[str]) -> str:
    words = " · ".join(problems)
    return words if len(words) < 90 else f"{len(problems)} problems"


def _scope(part: Part) -> str:
    # Of what is shown: figures alone may have problems and arms of their own.
    problems = {name for drawn in part.charts for name in drawn.study.problems} or {row.problem for row in part.rows}
    arms = {name for drawn in part.charts for name in drawn.study.arms} or {row.arm for row in part.rows}
    sizes = len(problems), len(arms), len({row.seed for row in part.rows}), len(part.rows)
    counted = zip(sizes, ("problem", "arm", "seed", "row"), strict=True)
    told = [f"{count:,} {what}{'' if count == 1 else 's'}" for count, what in counted]
    return " · ".join((told[0], f"{told[1]} (what is compared)", *told[2:]))


LARGEST = 50_000_000
"""Bytes of a figure that a page takes in: a file may claim to be far larger than what it holds."""


def _figures(homes: Iterable[Path], part: Part) -> str:
    # In the order they were drawn, which is the order they are meant to be read in.
    paths = sorted((path for home in homes for path in home.glob("[!.]*.png")), key=lambda path: path.lstat().st_mtime)
    # What the charts above show alive is not shown again as a picture.
    live = part.about.live if any(drawn.compared for drawn in part.charts) else ()
    drawn = "".join(_figure(path, part.about) for path in paths if not path.stem.startswith(live))
    return f'<h3>Figures</h3><div class="figures">{drawn}</div>' if drawn else ""


def _figure(path: Path, about: Description) -> str:
    # A pipe would be waited for, a device read without end.
    small = not path.is_file() or path.stat().st_size <= LARGEST
    image = path.read_bytes() if small and path.is_file() else b""
    if not image.startswith(b"\x89PNG") or len(image) < 24:
        why = "is no PNG" if small else f"is larger than {LARGEST // 10**6} MB"
        warnings.warn(f"{path} {why} and is left out; draw it again", stacklevel=2)
        return ""
    # A PNG says its size in bytes 16 to 24; told to the browser, nothing moves when it appears.
    width, height = struct.unpack(">II", image[16:24])
    data = base64.b64encode(image).decode()
    name = path.stem.replace("-", " ").replace("_", " ")
    known = next((words for start, words in about.figures.items() if path.stem.startswith(start)), "")
    of = next((path.stem.removeprefix(start).strip("-_") for start in about.figures if path.stem.startswith(start)), "")
    words = (f"{known} ({of})" if of else known) or name
    return (
        f'<figure class="w{width}"><img alt="{for_html(words)}" width="{width}" height="{height}"'
        f' src="data:image/png;base64,{data}"><figcaption>{for_html(words)}</figcaption></figure>'
    )


MOST = 12
"""The most values of a setting that are listed one by one."""


def facts(rows: Sequence[Row]) -> str:
    """The section "How this was made": each command with its versions and machine, and every setting."""
    return f"{_commands(rows)}{_settings(rows)}"


def _commands(rows: Sequence[Row]) -> str:
    origins: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.origin:
            origins.setdefault(str(row.origin.get("command", "")), row.origin)
    lines = []
    for command, where in origins.items():
        packages = ", ".join(f"{name} {version}" for name, version in where.get("packages", {}).items())
        named = {"calibrl": "version", "commit": "commit", "Python": "python"}
        known = [f"{words} {where[key]}" for words, key in named.items() if where.get(key)]
        known += [packages, str(where.get("machine", "")), str(where.get("date", ""))]
        words = for_html(" · ".join(filter(None, known)))
        lines.append(f"<li><pre><code>{for_html(command)}</code></pre>{words}</li>")
    return f'<ul class="commands">{"".join(lines)}</ul>' if lines else "<p>These rows do not record their origin.</p>"


def _settings(rows: Sequence[Row]) -> str:
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in (*row.settings.items(), *row.overrides.items()):
            seen.setdefault(name, {})[_words(value)] = None
    listed = {
        "preset": _listed(dict.fromkeys(row.preset for row in rows if row.preset)),
        "seeds": _ranges({row.seed for row in rows}),
        **{name: _listed(values) for name, values in seen.items()},
        "time spent": _time(sum(row.seconds for row in rows)),
    }
    items = "".join(
        f"<tr><th scope='row'>{for_html(name.replace('_', ' '))}</th><td>{for_html(value)}</td></tr>"
        for name, value in listed.items()
        if value
    )
    return f"<table class='settings'><caption>Settings</caption><tbody>{items}</tbody></table>"


def _time(seconds: float) -> str:
    """Seconds, minutes or hours of computing, over all rows; empty if rows do not say."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else ""
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _listed(values: Iterable[str]) -> str:
    found = list(values)
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + more


def _ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0–2, 5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return _listed(f"{low}" if low == high else f"{low}–{high}" for low, high in spans)


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
        if not isinstance(row.settings.get(about.along.setting), int | float):
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

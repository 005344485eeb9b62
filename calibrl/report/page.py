"""One HTML file from a folder of results: charts, tables, figures and where they came from. No server, no network."""

from __future__ import annotations

import base64
import json
import re
import struct
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count, groupby
from pathlib import Path
from string import Template
from typing import Any

from calibrl import __version__
from calibrl.errors import CalibrlError
from calibrl.files import writable, write_text
from calibrl.report.series import Charts, charts
from calibrl.report.tables import readable, studies, table, verdict
from calibrl.runs.experiment import BENCHMARKS, EXPERIMENTS, Description, Metric, describe
from calibrl.runs.rows import RELIABILITY_NAMES, Row, read_files
from calibrl.runs.statistics import by_run, latest
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
        f'{_verdict(part)}<p class="question">{for_html(about.question)}</p><p class="scope">{_scope(rows)}</p>'
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


def _scope(rows: Sequence[Row]) -> str:
    counts = {
        "problem": len({row.problem for row in rows}),
        "arm": len({row.arm for row in rows}),
        "seed": len({row.seed for row in rows}),
        "row": len(rows),
    }
    told = [f"{count:,} {what}{'' if count == 1 else 's'}" for what, count in counts.items()]
    return " · ".join((told[0], f"{told[1]} (what is compared)", *told[2:]))


def _figures(homes: Iterable[Path], part: Part) -> str:
    # In the order they were drawn, which is the order they are meant to be read in.
    paths = sorted((path for home in homes for path in home.glob("[!.]*.png")), key=lambda path: path.stat().st_mtime)
    # What the charts above show alive is not shown again as a picture.
    live = part.about.live if any(drawn.compared for drawn in part.charts) else ()
    drawn = "".join(_figure(path, part.about) for path in paths if not path.stem.startswith(live))
    return f'<h3>Figures</h3><div class="figures">{drawn}</div>' if drawn else ""


def _figure(path: Path, about: Description) -> str:
    image = path.read_bytes()
    if not image.startswith(b"\x89PNG") or len(image) < 24:
        warnings.warn(f"{path} is no PNG and is left out; draw it again", stacklevel=2)
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

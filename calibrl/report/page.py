"""One HTML file from a folder of results: tables, figures and where they came from. No server, no network."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from calibrl import __version__
from calibrl.errors import CalibrlError
from calibrl.experiments.catalogue import CATALOGUE, Experiment, Metric
from calibrl.files import write_text
from calibrl.results import Row, read
from calibrl.results_table import Cell, alike, latest, table

TEMPLATE = Path(__file__).with_name("template.html")


def write_report(folder: Path, out: Path) -> Path:
    """Collect every .jsonl and .png under `folder` into one self-contained page at `out`."""
    if not folder.is_dir():
        raise CalibrlError(f"{folder} is not a folder of results; run an experiment with --out {folder} first")
    rows = latest(read(folder))
    if not rows:
        raise CalibrlError(f"{folder} holds no rows (*.jsonl); run an experiment with --out {folder} first")
    names = list(dict.fromkeys(row.experiment for row in rows))
    # The order of the catalogue is the order of the story; what it does not know comes last.
    names.sort(key=lambda name: list(CATALOGUE).index(name) if name in CATALOGUE else len(CATALOGUE))
    sections = [_section(name, [row for row in rows if row.experiment == name], folder) for name in names]
    links = "".join(f'<li><a href="#{html.escape(name)}">{html.escape(_about(name).title)}</a></li>' for name in names)
    page = TEMPLATE.read_text(encoding="utf-8")
    for mark, text in {
        "{{sections}}": "\n".join(sections),
        "{{links}}": links,
        "{{version}}": __version__,
        "{{made}}": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }.items():
        page = page.replace(mark, text)
    write_text(out, page)
    return out


def _about(name: str) -> Experiment:
    return CATALOGUE.get(name, Experiment(title=name, question="", baseline=""))


def _section(name: str, rows: Sequence[Row], folder: Path) -> str:
    about = _about(name)
    parts = [f'<section id="{html.escape(name)}"><h2>{html.escape(about.title)}</h2>']
    if about.question:
        parts.append(f"<p>{html.escape(about.question)}</p>")
    parts.append(_tables(about, rows))
    homes = {path.parent for path in folder.rglob("*.jsonl") if any(row.experiment == name for row in read(path))}
    # In the order they were drawn, which is the order they are meant to be read in.
    figures = sorted((path for home in homes for path in home.glob("*.png")), key=lambda path: path.stat().st_mtime)
    parts.extend(_figure(path) for path in figures)
    parts.append(_origin(rows))
    parts.append("</section>")
    return "\n".join(parts)


def _tables(about: Experiment, rows: Sequence[Row]) -> str:
    present = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    metrics = {name: about.metrics[name] for name in about.metrics if name in present}
    metrics = metrics or {name: Metric(name) for name in present[:6]}
    baseline = about.baseline or rows[0].arm
    return "".join(
        _table(rows, {name: metrics[name] for name in measured}, problems, baseline)
        for measured, problems in alike(rows, metrics).items()
        if measured
    )


def _table(rows: Sequence[Row], metrics: dict[str, Metric], problems: Sequence[str], baseline: str) -> str:
    rows = [row for row in rows if row.problem in problems]
    tables = {name: table(rows, name, baseline) for name in metrics}
    head = "".join(f'<th scope="col">{html.escape(m.heading)}{_arrow(m)}</th>' for m in metrics.values())
    body: list[str] = []
    for problem in problems:
        arms = list(dict.fromkeys(row.arm for row in rows if row.problem == problem))
        for i, arm in enumerate(arms):
            first = f'<th scope="rowgroup" rowspan="{len(arms)}">{html.escape(problem)}</th>' if i == 0 else ""
            cells = [_cell(tables[name].get(problem, {}).get(arm), metric) for name, metric in metrics.items()]
            mark = ' class="group"' if i == 0 else ""
            body.append(f'<tr{mark}>{first}<th scope="row">{html.escape(arm)}</th>{"".join(cells)}</tr>')
    counts = {cell.count for metric in tables.values() for arms in metric.values() for cell in arms.values()}
    seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    caption = (
        f"Mean ± standard error over {seeds} paired seeds. In small print: the difference to "
        f"“{html.escape(baseline)}” on the same seeds ± its standard error; bold where it is more than twice that."
    )
    return (
        f'<div class="scroll"><table><caption>{caption}</caption><thead><tr><th scope="col">problem</th>'
        f'<th scope="col">arm</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _cell(cell: Cell | None, metric: Metric) -> str:
    if cell is None:
        return "<td></td>"
    value = f"{cell.mean:{metric.form}}"
    error = f" ± {cell.error:{metric.form}}" if math.isfinite(cell.error) else ""
    change = ""
    if math.isfinite(cell.change):
        words = f"{cell.change:+{metric.form}} ± {cell.change_error:{metric.form}}"
        good = (cell.change < 0) == (metric.better == "lower")
        tone = ("better" if good else "worse") if cell.sure and metric.better else ""
        change = f'<small class="{tone}">{"<b>" if cell.sure else ""}{words}{"</b>" if cell.sure else ""}</small>'
    return f"<td>{value}{error}{change}</td>"


def _arrow(metric: Metric) -> str:
    sign = {"lower": "↓", "higher": "↑"}.get(metric.better)
    return f' <span title="{metric.better} is better">{sign}</span>' if sign else ""


def _figure(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = path.stem.replace("-", " ").replace("_", " ")
    return f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,{data}"></figure>'


def _origin(rows: Sequence[Row]) -> str:
    origins = {row.origin.get("command", ""): row.origin for row in rows if row.origin}
    lines = []
    for command, where in origins.items():
        packages = ", ".join(f"{name} {version}" for name, version in where.get("packages", {}).items())
        facts = [f"version {where.get('version')}", f"commit {where.get('commit')}", f"Python {where.get('python')}"]
        facts += [packages, str(where.get("machine", "")), str(where.get("date", ""))]
        lines.append(f"<li><code>{html.escape(command)}</code><br>{html.escape(' · '.join(filter(None, facts)))}</li>")
    return f"<details><summary>How this was made</summary><ul>{''.join(lines)}</ul></details>"

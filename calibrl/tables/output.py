"""What `check`, `fit` and `apply` print: text for people, JSON for programs; and the HTML page of a check."""

from __future__ import annotations

import html
import io
import json
import math
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from calibrl import __version__
from calibrl.errors import some
from calibrl.text import for_json, for_terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrl.diagnostics import ClassSummary, QuantileSummary, Summary
    from calibrl.maps import Map
    from calibrl.maps.classes import ClassMap
    from calibrl.tables import Forecasts

    AnySummary = Summary | QuantileSummary | ClassSummary

WIDTH = 80

REUSED = 0.01
"""Share of checked rows a map may have met before without a warning."""


def show(found: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    """Print what a command found: one JSON object for programs, or the lines for people."""
    if as_json:
        typer.echo(for_json(json.dumps(_plain(found), allow_nan=False, ensure_ascii=False, indent=1)))
    else:
        typer.echo(for_terminal("\n".join(lines)))


def warn(words: str) -> None:
    """Print a warning in one line, where errors go."""
    typer.echo(f"calibrl: {for_terminal(words)}", err=True)


def check_lines(found: dict[str, Any], *, group: str | None) -> list[str]:
    """The verdict, the numbers, and a line per group, before and after the map."""
    before, after = found["as_forecast"], found.get("after_map")
    lines = [what_was_read(found), "", *_verdict(before)]
    if after:
        lines += ["", f"After {after['map']} ({after['fitted']}):", *_verdict(after)]
    lines += ["", *aligned(number_rows(before["summary"], after and after["summary"]), text=(0,))]
    if group is not None:
        rows = group_rows(group, before["groups"], after and after["groups"])
        lines += ["", *aligned(rows, text=(0, len(rows[0]) - 1))]
    return lines + (["", f"Plot: {found['plot']}"] if "plot" in found else [])


def fit_lines(found: dict[str, Any], *, group: str | None) -> list[str]:
    """What was fitted, and what it is worth on rows held out."""
    measure = {"calibration_loss": "Calibration loss", "ece": "Expected calibration error"}[found["measure"]]
    reports = {"all": found["pooled"], **{f"{group} {name}": fit for name, fit in found.get("groups", {}).items()}}
    rows = [["", "outcomes", "map", "before", "after", "by chance"]]
    for name, fit in reports.items():
        losses = (_number(fit[key]) for key in ("before", "after", "noise_floor"))
        rows.append([name, str(fit["outcomes"]), fit["map"] or "none: too few", *losses])
    lines = [what_was_read(found), "", f"{measure} on rows held out ({_held_out(found)}):"]
    return [*lines, *aligned(rows, text=(0, 2)), "", f"Map: {found['map']}"]


def apply_lines(found: dict[str, Any]) -> list[str]:
    """What was written."""
    lines = [f"{found['out']}: {found['rows']} calibrated forecasts by {_span(found['written'])}"]
    if found["left_out"]:
        lines.append(f"Left out, not calibrated: {some(found['left_out'])}")
    if found.get("pooled_groups"):
        lines.append(f"Pooled map for new groups: {some(found['pooled_groups'])}")
    if "guarantee" in found:
        lines += ["", *textwrap.wrap(f"low … high: {found['guarantee']}", WIDTH)]
    return lines


def _held_out(found: dict[str, Any]) -> str:
    return "cross-validated" if found["in_time"] is None else f"later ones each time, by {found['in_time']}"


def name_of(mapping: Map | ClassMap) -> str:
    """A short name: what cross-validation chose, or the kind of map."""
    chosen = mapping.note.removeprefix("chosen by cross-validation: ")
    return chosen if chosen != mapping.note else mapping.kind.removeprefix("classes-")


def reused(after: dict[str, Any]) -> str | None:
    """That a map is judged on rows it was fitted on, if these are more than a few."""
    if after["reused_rows"] <= REUSED:
        return None
    return (
        f"about {after['reused_rows']:.0%} of these rows were used to fit {after['map']}: it looks better here than on "
        "new rows; check on others"
    )


def what_was_read(found: dict[str, Any]) -> str:
    """What was read, in a line."""
    skipped = f", {found['unseen']} without outcome skipped" if found["unseen"] else ""
    return f"{found['file']}: {found['rows']} forecasts by {found['understood']}{skipped}"


def understood(table: Forecasts) -> str:
    """What the columns of a table were taken for, in a few words: ours=theirs, where the names differ."""
    spelling = table.spelling
    if spelling.single:
        words = f"{spelling.columns[0]}, the probability of {spelling.classes[-1]}"
    elif table.signature == table.columns or table.kind == "samples":
        words = _span(list(table.columns))
    elif table.kind == "classes":
        words = f"{_span(list(table.columns))} (classes {some(spelling.classes)})"
    elif len(table.columns) < 8:
        ours = ("mean", "variance") if spelling.squared else table.signature
        words = ",".join(f"{one}={other}" for one, other in zip(ours, table.columns, strict=True))
    else:
        words = f"{_span(list(table.columns))} ({_span(list(table.signature))})"
    outcome = [f"outcomes in {table.outcome}"] if table.y is not None and table.outcome != "y" else []
    return "; ".join([words, *outcome, *table.how])


def _verdict(judged: dict[str, Any]) -> list[str]:
    return [line for sentence in judged["summary"].verdict() for line in textwrap.wrap(sentence, WIDTH)]


def number_rows(before: AnySummary, after: AnySummary | None) -> list[list[str]]:
    """The numbers of a diagnosis, before a map and after it, under a head."""
    columns = {"as forecast": _measures(before)} | ({} if after is None else {"after the map": _measures(after)})
    rows = [[name, *(column[name] for column in columns.values())] for name in columns["as forecast"]]
    return [["", *columns], *rows]


def _measures(found: AnySummary) -> dict[str, str]:
    """The numbers of a diagnosis, by what they say."""
    from calibrl.diagnostics import QuantileSummary, Summary

    if isinstance(found, QuantileSummary):
        levels = zip(found.levels, found.observed, strict=True) if len(found.levels) < 12 else ()
        return {
            **{f"{100 * level:g} % interval holds": f"{share:.1%}" for level, share in found.coverage.items()},
            **{f"{100 * level:g} % interval, mean width": _number(width) for level, width in found.width.items()},
            **{f"at or below the {100 * level:g} % quantile": f"{share:.1%}" for level, share in levels},
            "calibration loss at these levels": _number(found.calibration_loss),
            "calibration loss by chance alone": _number(found.noise_floor),
            "pinball loss at these levels": _number(found.pinball),
        }
    if isinstance(found, Summary):
        return {
            **{f"{100 * level:.0f} % interval holds": f"{share:.1%}" for level, share in found.coverage.items()},
            "90 % interval, mean width": _number(found.width[0.9]),
            "calibration loss": _number(found.calibration_loss),
            "calibration loss by chance alone": _number(found.noise_floor),
            "standard deviation, RMS": _number(found.sharpness),
            "CRPS": _number(found.crps),
            "pinball loss": _number(found.pinball),
            "negative log-likelihood": _number(found.nll),
        }
    return {
        "right": f"{found.accuracy:.1%}",
        "sure": f"{found.confidence:.1%}",
        "expected calibration error": _number(found.ece),
        "expected calibration error by chance": _number(found.noise_floor),
        "Brier score": _number(found.brier),
        "Brier score, calibration part": _number(found.brier_calibration),
        "negative log-likelihood": _number(found.nll),
    }


def group_rows(group: str, before: dict[str, Any], after: dict[str, Any] | None) -> list[list[str]]:
    """A row per group, under a head: outcomes, share that a 90 % interval holds or share right, loss, verdict."""
    from calibrl.diagnostics import ClassSummary, QuantileSummary

    share, loss = "90 % holds", "loss"
    for found in before.values():
        if isinstance(found, ClassSummary):
            share, loss = "right", "error"
        elif isinstance(found, QuantileSummary):
            share = f"{100 * max(found.coverage):g} % holds" if found.coverage else "interval"
    heads = [share, loss, "by chance"] if after is None else [share, "after", loss, "after", "by chance"]
    rows = [[group, "outcomes", *heads, "verdict"]]
    for name, found in before.items():
        if found is None:
            rows.append([name, "< 2", *("" for _ in heads), "too few outcomes"])
            continue
        later = found if after is None else after[name]
        pairs = [_share_and_loss(found)] if after is None else [_share_and_loss(found), _share_and_loss(later)]
        cells = [cell for pair in zip(*pairs, strict=True) for cell in pair]
        rows.append([name, str(found.n), *cells, _number(found.noise_floor), _headline(later)])
    return rows


def _share_and_loss(found: AnySummary) -> tuple[str, str]:
    from calibrl.diagnostics import QuantileSummary, Summary

    if isinstance(found, QuantileSummary):
        return f"{found.coverage[max(found.coverage)]:.1%}" if found.coverage else "–", _number(found.calibration_loss)
    if isinstance(found, Summary):
        return f"{found.coverage[0.9]:.1%}", _number(found.calibration_loss)
    return f"{found.accuracy:.1%}", _number(found.ece)


def _headline(found: AnySummary) -> str:
    """The verdict in a word or two: up to its colon, or its first word."""
    first = found.verdict()[0]
    return first.split(":")[0] if ":" in first else first.split()[0]


def aligned(rows: list[list[str]], *, text: tuple[int, ...], longest: int = 40) -> list[str]:
    """Rows in columns as wide as they need: those of text to the left, numbers to the right."""
    cells = [[_short(cell, longest) for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k in text else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _short(text: str, most: int) -> str:
    """A long name by its two ends: names of one family differ at either."""
    half = most // 2
    return text if len(text) <= most else text[: most - half - 1] + "…" + text[-half:]


def _number(value: float | None) -> str:
    """Four digits; a dash for what could not be measured, or is infinite (the density of repeated values)."""
    return f"{value:.4g}" if value is not None and math.isfinite(value) else "–"


def _span(columns: list[str]) -> str:
    return ",".join(columns) if len(columns) < 8 else f"{columns[0]} … {columns[-1]}"


def _plain(value: Any) -> Any:
    """Diagnoses as dictionaries, with their verdict; numbers JSON cannot hold as null."""
    from calibrl.diagnostics import ClassSummary, QuantileSummary, Summary

    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (Summary, ClassSummary, QuantileSummary)):
        return {"verdict": value.verdict(), **_plain(value.to_dict())}
    return value


STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --paper: #fdfdfb; --soft: #5c6270; --line: #dfe0e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e8ec; --paper: #15171c; --soft: #a3a8b5; --line: #343843; } }
body {
  margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 3rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.6 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; font-variant-numeric: tabular-nums;
}
h1, h2 { font-family: Charter, Georgia, "Noto Serif", serif; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .4rem; font-size: 1.3rem; }
header p, .note, footer { color: var(--soft); font-size: .9rem; }
figure { background: #fff; border-radius: 6px; padding: .5rem; margin: 2rem 0 .4rem; }
figure svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
td, th { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.text, th.text { text-align: left; }
td:first-child, th:first-child { padding-left: 0; }
@media (max-width: 40rem) { td, th { padding: .3rem .4rem; font-size: .85rem; } td.text { white-space: normal; } }
"""
CAPTIONS = {
    "classes": "How often each class came true, by the probability it was given: on the diagonal if calibrated.",
    "": "Left: the share of outcomes below each predicted quantile, on the diagonal if calibrated. Then: where in its "
    "forecast each outcome fell, flat if calibrated; the grey band is what chance alone would produce.",
}


def html_page(found: dict[str, Any], figure: Figure, *, group: str | None) -> str:
    """The page as text. found: what a check found."""
    before, after = found["as_forecast"], found.get("after_map")
    title = f"Are the forecasts in {Path(found['file']).name} calibrated?"
    parts = [_html_verdict("As forecast" if after else "", before["summary"])]
    if after:
        parts.append(_html_verdict(f"After {Path(after['map']).name} ({after['fitted']})", after["summary"]))
        if warning := reused(after):
            parts.append(f"<p><strong>Careful:</strong> {html.escape(warning)}.</p>")
    parts.append(f"<figure>{_svg(figure)}</figure>")
    parts.append(f'<p class="note">{CAPTIONS.get(found["kind"], CAPTIONS[""])}</p>')
    parts.append(f"<h2>Numbers</h2>{_html_table(number_rows(before['summary'], after and after['summary']), (0,))}")
    if group is not None:
        rows = group_rows(group, before["groups"], after and after["groups"])
        parts.append(f"<h2>By {html.escape(group)}</h2>{_html_table(rows, (0, len(rows[0]) - 1))}")
    made = f"calibrl {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"</head><body><header><h1>{html.escape(title)}</h1><p>{html.escape(what_was_read(found))}</p></header>"
        f"<main>{''.join(parts)}</main><footer><p>{made}</p></footer></body></html>\n"
    )


def _html_verdict(heading: str, found: Any) -> str:
    first, *others = (html.escape(sentence) for sentence in found.verdict())
    head = f"<h2>{html.escape(heading)}</h2>" if heading else ""
    return f"{head}<p>{'<br>'.join([f'<strong>{first}</strong>', *others])}</p>"


def _html_table(rows: list[list[str]], text: tuple[int, ...]) -> str:
    """Rows as a table, the first as its head."""
    lines = []
    for at, row in enumerate(rows):
        tag = "td" if at else "th"
        kinds = ["text" if k in text else "number" for k in range(len(row))]
        cells = (f'<{tag} class="{kind}">{html.escape(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _svg(figure: Figure) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]

"""What `check`, `fit` and `apply` print: text for people, JSON for programs."""

from __future__ import annotations

import json
import math
import textwrap
from typing import TYPE_CHECKING, Any

import typer

from calibrl.errors import some
from calibrl.text import for_json, say

if TYPE_CHECKING:
    from calibrl.maps import Map
    from calibrl.maps.classes import ClassMap
    from calibrl.tables import Forecasts
    from calibrl.tables.judging import AnySummary

WIDTH = 80

REUSED = 0.01
"""Share of checked rows a map may have met before without a warning."""


def show(found: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    """Print what a command found: one JSON object for programs, or the lines for people."""
    if as_json:
        typer.echo(for_json(json.dumps(_plain(found), allow_nan=False, ensure_ascii=False, indent=1)))
    else:
        # A file's or a group's name may have several lines itself.
        say("\n".join(" ".join(line.splitlines()) for line in lines))


def warn(words: str) -> None:
    """Print a warning in one line, where errors go."""
    say(f"calibrl: {' '.join(words.splitlines())}", err=True)


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
    written = [f"{word}: {found[key]}" for word, key in (("Plot", "plot"), ("Page", "page")) if key in found]
    return [*lines, "", *written] if written else lines


def fit_lines(found: dict[str, Any], *, group: str | None) -> list[str]:
    """What was fitted, and what it is worth on rows held out."""
    measure = {"calibration_loss": "Calibration loss", "ece": "Expected calibration error"}[found["measure"]]
    reports = {"all": found["pooled"], **{f"{group} {name}": fit for name, fit in found.get("groups", {}).items()}}
    rows = [["", "outcomes", "map", "before", "after", "by chance"]]
    for name, fit in reports.items():
        losses = (number(fit[key]) for key in ("before", "after", "noise_floor"))
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
    """A short name: what cross-validation chose, or the kind of map; of a group's, what it adds to the map of all."""
    from calibrl.maps import Chain

    if isinstance(mapping, Chain):
        added = name_of(mapping.after)
        return "all" if added == "identity" else f"all + {added}"
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
            **{f"{100 * level:g} % interval, mean width": number(width) for level, width in found.width.items()},
            **{f"at or below the {100 * level:g} % quantile": f"{share:.1%}" for level, share in levels},
            "calibration loss at these levels": number(found.calibration_loss),
            "calibration loss by chance alone": number(found.noise_floor),
            "pinball loss at these levels": number(found.pinball),
        }
    if isinstance(found, Summary):
        return {
            **{f"{100 * level:.0f} % interval holds": f"{share:.1%}" for level, share in found.coverage.items()},
            "90 % interval, mean width": number(found.width[0.9]),
            "calibration loss": number(found.calibration_loss),
            "calibration loss by chance alone": number(found.noise_floor),
            "standard deviation, RMS": number(found.sharpness),
            "CRPS": number(found.crps),
            "pinball loss": number(found.pinball),
            "negative log-likelihood": number(found.nll),
        }
    return {
        "right": f"{found.accuracy:.1%}",
        "sure": f"{found.confidence:.1%}",
        "expected calibration error": number(found.ece),
        "expected calibration error by chance": number(found.noise_floor),
        "Brier score": number(found.brier),
        "Brier score, calibration part": number(found.brier_calibration),
        "negative log-likelihood": number(found.nll),
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
        rows.append([name, str(found.n), *cells, number(found.noise_floor), _headline(later)])
    return rows


def _share_and_loss(found: AnySummary) -> tuple[str, str]:
    from calibrl.diagnostics import QuantileSummary, Summary

    if isinstance(found, QuantileSummary):
        return f"{found.coverage[max(found.coverage)]:.1%}" if found.coverage else "–", number(found.calibration_loss)
    if isinstance(found, Summary):
        return f"{found.coverage[0.9]:.1%}", number(found.calibration_loss)
    return f"{found.accuracy:.1%}", number(found.ece)


def _headline(found: AnySummary) -> str:
    """The verdict in a word or two: up to its colon, or its first word."""
    first = found.verdict()[0]
    return first.split(":")[0] if ":" in first else first.split()[0]


def aligned(rows: list[list[str]], *, text: tuple[int, ...], longest: int = 40) -> list[str]:
    """Rows in columns as wide as they need: those of text to the left, numbers to the right."""
    cells = [[shortened(cell, longest) for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k in text else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def shortened(text: str, most: int) -> str:
    """A long name by its two ends: names of one family differ at either."""
    half = most // 2
    return text if len(text) <= most else text[: most - half - 1] + "…" + text[-half:]


def number(value: float | None) -> str:
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

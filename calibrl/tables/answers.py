"""How `check`, `fit` and `apply` answer: plain text for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import textwrap
from typing import TYPE_CHECKING, Any

import typer

from calibrl.errors import some

if TYPE_CHECKING:
    from calibrl.diagnostics import ClassSummary, Summary
    from calibrl.maps import Map
    from calibrl.maps.classes import ClassMap

WIDTH = 80

REUSED = 0.01
"""Share of checked rows a map may have met before without a warning."""


def print_check(found: dict[str, Any], *, group: str | None, as_json: bool) -> None:
    """The verdict, the numbers, and a line per group, before and after the map."""
    before, after = found["as_forecast"], found.get("after_map")
    if after and after["reused_rows"] > REUSED:
        typer.echo(f"calibrl: ReusedRows: {reused(after)}", err=True)
    if as_json:
        _print_json(found)
        return
    lines = [what_was_read(found), "", *_wrapped(verdict(before["summary"]))]
    if after:
        lines += ["", f"After {after['map']} ({after['fitted']}):", *_wrapped(verdict(after["summary"]))]
    lines += ["", *_table(number_rows(before["summary"], after and after["summary"]), text_columns=(0,))]
    if group is not None:
        rows = group_rows(group, before["groups"], after and after["groups"])
        lines += ["", *_table(rows, text_columns=(0, len(rows[0]) - 1))]
    if "plot" in found:
        lines += ["", f"Plot: {found['plot']}"]
    typer.echo("\n".join(lines))


def print_fit(found: dict[str, Any], *, group: str | None, as_json: bool) -> None:
    """What was fitted, and what it is worth on rows held out."""
    if as_json:
        _print_json(found)
        return
    measure = {"calibration_loss": "Calibration loss", "ece": "Expected calibration error"}[found["measure"]]
    reports = {"all": found["pooled"], **{f"{group} {name}": fit for name, fit in found.get("groups", {}).items()}}
    rows = [["", "outcomes", "map", "before", "after", "by chance"]]
    rows += [
        [
            name,
            str(fit["outcomes"]),
            fit["map"] or "none: too few",
            *(_number(fit[key]) for key in ("before", "after", "noise_floor")),
        ]
        for name, fit in reports.items()
    ]
    lines = [what_was_read(found), "", f"{measure} on rows held out (cross-validated):"]
    lines += [*_table(rows, text_columns=(0, 2)), "", f"Map: {found['map']}"]
    typer.echo("\n".join(lines))


def print_apply(found: dict[str, Any], *, as_json: bool) -> None:
    """What was written."""
    if as_json:
        _print_json(found)
        return
    lines = [f"{found['out']}: {found['rows']} calibrated forecasts by {_span(found['written'])}"]
    if found["left_out"]:
        lines.append(f"Left out, not calibrated: {some(found['left_out'])}")
    if found.get("pooled_groups"):
        lines.append(f"Pooled map for new groups: {some(found['pooled_groups'])}")
    typer.echo("\n".join(lines))


def name_of(mapping: Map | ClassMap) -> str:
    """A short name: what cross-validation chose, or the kind of map."""
    chosen = mapping.note.removeprefix("chosen by cross-validation: ")
    return chosen if chosen != mapping.note else mapping.kind.removeprefix("classes-")


def reused(after: dict[str, Any]) -> str:
    """That a map is judged on rows it was fitted on."""
    return (
        f"about {after['reused_rows']:.0%} of these rows were used to fit {after['map']}: it looks better here than on "
        "new rows; check on others"
    )


def what_was_read(found: dict[str, Any]) -> str:
    """What was read, in a line."""
    skipped = f", {found['unseen']} without outcome skipped" if found["unseen"] else ""
    return f"{found['file']}: {found['rows']} forecasts by {_span(found['columns'])}{skipped}"


def verdict(found: Summary | ClassSummary) -> list[str]:
    """What a diagnosis means, in sentences."""
    from calibrl.diagnostics import diagnose

    return diagnose(found)


def _wrapped(sentences: list[str]) -> list[str]:
    return [line for sentence in sentences for line in textwrap.wrap(sentence, WIDTH)]


def number_rows(before: Summary | ClassSummary, after: Summary | ClassSummary | None) -> list[list[str]]:
    """The numbers of a diagnosis, before a map and after it, under a head."""
    both = [before] if after is None else [before, after]
    columns = [_measures(found) for found in both]
    rows = [["", *["as forecast", "after the map"][: len(both)]]]
    rows += [[name, *(column[name] for column in columns)] for name in columns[0]]
    return rows


def _measures(found: Summary | ClassSummary) -> dict[str, str]:
    """The numbers of a diagnosis, by what they say."""
    from calibrl.diagnostics import Summary

    if isinstance(found, Summary):
        return {
            **{
                f"{level:.0%} interval holds".replace("%", " %"): f"{found.coverage[level]:.1%}"
                for level in found.coverage
            },
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
    from calibrl.diagnostics import ClassSummary

    classes = any(isinstance(found, ClassSummary) for found in before.values())
    share, loss = ("right", "error") if classes else ("90 % holds", "loss")
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


def _share_and_loss(found: Summary | ClassSummary) -> tuple[str, str]:
    from calibrl.diagnostics import Summary

    if isinstance(found, Summary):
        return f"{found.coverage[0.9]:.1%}", _number(found.calibration_loss)
    return f"{found.accuracy:.1%}", _number(found.ece)


def _headline(found: Summary | ClassSummary) -> str:
    """The verdict in a word or two: up to its colon, or its first word."""
    first = verdict(found)[0]
    return first.split(":")[0] if ":" in first else first.split()[0]


def _table(rows: list[list[str]], *, text_columns: tuple[int, ...]) -> list[str]:
    """Aligned columns: text to the left, numbers to the right."""
    cells = [[_short(cell) for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k in text_columns else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _short(text: str, most: int = 40) -> str:
    """A long name by its two ends: names of one family differ at either."""
    half = most // 2
    return text if len(text) <= most else text[: most - half - 1] + "…" + text[-half:]


def _number(value: float | None) -> str:
    """Four digits; a dash for what could not be measured, or is infinite (the density of repeated values)."""
    return f"{value:.4g}" if value is not None and math.isfinite(value) else "–"


def _span(columns: list[str]) -> str:
    return ",".join(columns) if len(columns) < 8 else f"{columns[0]} … {columns[-1]}"


def _print_json(found: dict[str, Any]) -> None:
    typer.echo(json.dumps(_plain(found), allow_nan=False, ensure_ascii=False, indent=1))


def _plain(value: Any) -> Any:
    """Diagnoses as dictionaries, with their verdict; numbers JSON cannot hold as null."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return {"verdict": verdict(value), **_plain(value.to_dict())}
    return value

"""`calibrl summary PATH`: the numbers of a run, in the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrl.errors import CalibrlError

if TYPE_CHECKING:
    from calibrl.runs.experiment import Metric
    from calibrl.runs.rows import Row
    from calibrl.runs.statistics import Cell


@dataclass(frozen=True)
class Told:
    """What is told of one run.

    tables: cells by metric, problem and arm; stops: where arms stopped apart; step: what a step is.
    """

    title: str
    baseline: str
    metrics: dict[str, Metric]
    tables: dict[str, dict[str, dict[str, Cell]]]
    stops: dict[str, dict[str, str]]
    step: str


def summary(
    path: Annotated[Path, typer.Argument(help="A .jsonl file, or a folder with .jsonl files at any depth.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="Show only this metric; repeat for several. Default: the main ones.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="The arm to compare the others with.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print mean ± standard error by problem and arm, and paired differences to the baseline with 95 % intervals."""
    from calibrl.runs.benchmarks import describe
    from calibrl.runs.execute import spoken_warnings
    from calibrl.runs.rows import read
    from calibrl.runs.statistics import by_run, latest, stops, table

    if not path.exists():
        raise CalibrlError(f"{path} does not exist; give a .jsonl file or a folder of them, like results/")
    with spoken_warnings():
        rows = latest(read(path))
    if not rows:
        raise CalibrlError(f"{path} holds no rows (*.jsonl); run an experiment with --out {path} first")
    found = {}
    for (experiment, what), group in by_run(rows).items():
        name = f"{experiment}, {what}" if what else experiment
        about = describe(experiment, baseline=group[0].arm)
        against = baseline or about.baseline
        metrics = _metrics(group, about.metrics, metric)
        if metrics:
            tables = {key: table(group, key, against) for key in metrics}
            found[name] = Told(about.title, against, metrics, tables, stops(group), about.step)
    if not found:
        known = sorted({name for row in rows for name in row.metrics})
        raise CalibrlError(f"metric {(metric or [''])[0]!r} is in none of the rows; known: {', '.join(known)}")
    if baseline is not None and baseline not in {row.arm for row in rows}:
        arms = ", ".join(dict.fromkeys(row.arm for row in rows))
        raise CalibrlError(f"baseline {baseline!r} is no arm of these rows; known: {arms}")
    if as_json:
        typer.echo(json.dumps({name: _plain(run) for name, run in found.items()}, ensure_ascii=False, indent=1))
    else:
        for name, run in found.items():
            _print(name, run)


def _metrics(rows: Sequence[Row], usual: Mapping[str, Metric], asked: list[str] | None) -> dict[str, Metric]:
    """Which metrics to show: those asked for, those of the catalogue, or else the first ones there are."""
    from calibrl.runs.experiment import Metric

    present = dict.fromkeys(name for row in rows for name in row.metrics)
    wanted = asked or [name for name in usual if name in present] or list(present)[:6]
    return {name: usual.get(name, Metric(name)) for name in wanted if name in present}


def _print(name: str, run: Told) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from calibrl.runs.console import table_console
    from calibrl.runs.statistics import stops_in_words

    console = table_console()
    against = f"; differences to {run.baseline} on the same seeds" if run.baseline else ""
    console.print(f"[bold]{run.title}[/bold] {escape(f'({name}){against}')}", highlight=False)
    if run.stops:
        console.print(escape(stops_in_words(run.stops, run.step)), highlight=False)
    for key, metric in run.metrics.items():
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        shown.add_column(metric.heading)  # the one to be wrapped where a terminal is narrow: never a number
        compared = ("difference", "95 % interval") if run.baseline else ()
        for heading in ("mean ± s.e.", "seeds", *compared):
            shown.add_column(heading, justify="right", no_wrap=True)
        for problem, arms in run.tables[key].items():
            shown.add_row(f"[bold]{escape(problem)}")
            for arm, cell in arms.items():
                shown.add_row(
                    f"  {escape(arm)}",
                    *_words(cell, metric.form)[: 2 + len(compared)],
                    end_section=arm == list(arms)[-1],
                )
        console.print(shown)


def _words(cell: Cell, form: str) -> tuple[str, ...]:
    error = f" ± {cell.error:{form}}" if math.isfinite(cell.error) else ""
    change, interval = "", ""
    if math.isfinite(cell.change):
        change = f"{cell.change:+{form}}"
        low, high = cell.interval
        interval = f"{low:+{form}} … {high:+{form}}" if math.isfinite(low) else ""
    return f"{cell.mean:{form}}{error}", str(cell.count), change, interval


def _plain(run: Told) -> dict[str, Any]:
    return {
        "baseline": run.baseline or None,
        "stops": run.stops,
        "metrics": {
            key: {
                problem: {arm: _numbers(cell) for arm, cell in arms.items()}
                for problem, arms in run.tables[key].items()
            }
            for key in run.metrics
        },
    }


def _numbers(cell: Cell) -> dict[str, float | int | None]:
    low, high = cell.interval
    numbers = {
        "mean": cell.mean,
        "error": cell.error,
        "seeds": cell.count,
        "difference": cell.change,
        "difference_error": cell.change_error,
        "low": low,
        "high": high,
        "pairs": cell.pairs,
    }
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}

"""`calibrl list`, `show PRESET` and `summary PATH`: what there is, what it means, and what it came to."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrl.errors import CalibrlError, check_known
from calibrl.runs.experiment import EXPERIMENTS, Metric, experiment
from calibrl.runs.settings import Leaf, leaves, source_of
from calibrl.text import for_json, for_rich

if TYPE_CHECKING:
    from calibrl.runs.rows import Row
    from calibrl.runs.statistics import Cell

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="experiments, presets, problems, policies, planners, tasks, searches, worlds or maps; default: all."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List experiments, presets, problems, policies, planners and maps, and where each is used."""
    found = listed(kind)
    if as_json:
        typer.echo(for_json(json.dumps(found, ensure_ascii=False, indent=1)))
        return
    widest = max(len(name) for lines in found.values() for name in lines)
    # One line each, however long, so that grep finds them whole.
    for name, lines in found.items():
        typer.echo(f"{typer.style(name, bold=True)}: {kinds()[name][0]}")
        for each, text in lines.items():
            typer.echo(f"  {each:<{widest}}  {text}".rstrip())


def kinds() -> dict[str, tuple[str, Callable[[], Mapping[str, str]]]]:
    """What has a name: kind → (where it is used, a function that gives {name: one line about it})."""
    found: dict[str, tuple[str, Callable[[], Mapping[str, str]]]] = {
        "experiments": ("calibrl run NAME", lambda: {name: experiment(name).title for name in EXPERIMENTS}),
        "presets": (
            "bandits/small is calibrl run bandits --preset small; calibrl show NAME",
            lambda: {name: in_a_line(find(name)[1]) for name in preset_names()},
        ),
    }
    for name in EXPERIMENTS:
        found |= experiment(name).names
    return found | {"maps": ("calibrl.maps.NAME(…), calibrl.maps.classes.NAME(…)", _maps)}


def listed(kind: str | None = None) -> dict[str, dict[str, str]]:
    """{name: one line} of all kinds, or of one; each in the order it is used in."""
    known = kinds()
    found = {}
    for name in known if kind is None else [check_known("kind", kind, known)]:
        try:
            found[name] = dict(known[name][1]())
        except ImportError as problem:  # an extra that is not installed
            found[name] = {"": str(problem)}
    return found


def _maps() -> dict[str, str]:
    from calibrl import maps
    from calibrl.maps import classes

    homes = (maps, classes)
    fits = {name: fit for home in homes for name, fit in vars(home).items() if name.startswith("fit_")}
    return {name: first_line(fit) for name, fit in fits.items() if name != "fit_named"}


def first_line(thing: Any) -> str:
    """The first line of what something says about itself."""
    text = (inspect.getdoc(thing) or "").splitlines()
    return text[0].rstrip(".") if text else ""


def show(
    preset: Annotated[
        str, typer.Argument(help="For example bandits/paper; paper alone if only one preset has that name.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show a preset: its fields, what they mean, and where each value comes from (paper, reference code, ours)."""
    from rich import box
    from rich.table import Table

    from calibrl.runs.console import table_console

    home, found = find(preset)
    name, lines = f"{home}/{found.name}", described(found)
    if as_json:
        fields = {
            leaf.path: {
                "field": leaf.path,
                "value": leaf.value,
                "meaning": leaf.about.help,
                "source": source_of(leaf, found.name),
            }
            for leaf in lines
        }
        typer.echo(for_json(json.dumps({"preset": name, "fields": fields}, ensure_ascii=False, indent=1)))
        return
    console = table_console()
    console.print(for_rich(name, "bold"), for_rich(f"run it: calibrl run {home} --preset {found.name}"), sep="  ")
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading, whole in (("field", True), ("value", False), ("meaning", False), ("source", True)):
        shown.add_column(heading, no_wrap=whole)
    for leaf in lines:
        value = ", ".join(map(str, leaf.value)) if isinstance(leaf.value, tuple) else str(leaf.value)
        shown.add_row(*map(for_rich, (leaf.path, value, leaf.about.help, source_of(leaf, found.name))))
    console.print(shown, highlight=False, markup=False)


def preset_names() -> list[str]:
    """All presets, as experiment/preset."""
    return [f"{home}/{name}" for home in EXPERIMENTS for name in experiment(home).presets]


def find(name: str) -> tuple[str, Any]:
    """The experiment and the preset of that name: whole, like bandits/paper, or short where no other has it."""
    known = preset_names()
    found = [each for each in known if name in (each, each.split("/", 1)[1])]
    if len(found) > 1:
        raise CalibrlError(f"preset {name!r} could be any of {', '.join(found)}; write one of those")
    home, short = (found or [check_known("preset", name, known)])[0].split("/", 1)
    return home, experiment(home).presets[short]


def described(preset: Any) -> list[Leaf]:
    """Every field of a preset but its name, by which it was asked for."""
    return [leaf for leaf in leaves(preset) if leaf.path != "name"]


def in_a_line(preset: Any) -> str:
    """How much a preset runs, in a few words: its numbers, and the names that decide what rows say."""
    return ", ".join(
        f"{leaf.path} {leaf.value}"
        for leaf in described(preset)
        if not leaf.nested
        and not isinstance(leaf.value, bool)
        and (isinstance(leaf.value, int) or (isinstance(leaf.value, str) and leaf.about.decides_rows))
    )


@dataclass(frozen=True)
class Summary:
    """The numbers of one run.

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
    as_json: AsJson = False,
) -> None:
    """Print mean ± standard error by problem and arm, and paired differences to the baseline with 95 % intervals."""
    from calibrl.runs.console import one_line_warnings
    from calibrl.runs.experiment import describe
    from calibrl.runs.rows import read
    from calibrl.runs.statistics import by_run, latest, stops, table

    if not path.exists():
        raise CalibrlError(f"{path} does not exist; give a .jsonl file or a folder of them, like results/")
    with one_line_warnings():
        rows = latest(read(path))
    if not rows:
        raise CalibrlError(f"{path} holds no rows (*.jsonl); run an experiment with --out {path} first")
    found = {}
    for (name, what), group in by_run(rows).items():
        about = describe(name, baseline=group[0].arm)
        against = baseline or about.baseline
        metrics = _metrics(group, about.metrics, metric)
        if metrics:
            tables = {key: table(group, key, against) for key in metrics}
            title = f"{name}, {what}" if what else name
            found[title] = Summary(about.title, against, metrics, tables, stops(group), about.step)
    if not found:
        known = sorted({name for row in rows for name in row.metrics})
        raise CalibrlError(f"metric {(metric or [''])[0]!r} is in none of the rows; known: {', '.join(known)}")
    if baseline is not None and baseline not in {row.arm for row in rows}:
        arms = ", ".join(dict.fromkeys(row.arm for row in rows))
        raise CalibrlError(f"baseline {baseline!r} is no arm of these rows; known: {arms}")
    if as_json:
        shown = {name: _as_json(run) for name, run in found.items()}
        typer.echo(for_json(json.dumps(shown, ensure_ascii=False, indent=1)))
    else:
        for name, run in found.items():
            _print(name, run)


def _metrics(rows: Sequence[Row], usual: Mapping[str, Metric], asked: list[str] | None) -> dict[str, Metric]:
    """Which metrics to show: those asked for, those of the experiment, or else the first ones there are."""
    present = dict.fromkeys(name for row in rows for name in row.metrics)
    wanted = asked or [name for name in usual if name in present] or list(present)[:6]
    return {name: usual.get(name, Metric(name)) for name in wanted if name in present}


def _print(name: str, run: Summary) -> None:
    from rich import box
    from rich.table import Table

    from calibrl.runs.console import mean_text, table_console
    from calibrl.runs.statistics import stops_in_words

    console = table_console()
    against = f"; differences to {run.baseline} on the same seeds" if run.baseline else ""
    console.print(for_rich(run.title, "bold"), for_rich(f"({name}){against}"))
    if run.stops:
        console.print(for_rich(stops_in_words(run.stops, run.step)))
    for key, metric in run.metrics.items():
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        shown.add_column(metric.heading)  # the one to be wrapped where a terminal is narrow: never a number
        compared = ("difference", "95 % interval") if run.baseline else ()
        for heading in ("mean ± s.e.", "seeds", *compared):
            shown.add_column(heading, justify="right", no_wrap=True)
        for problem, arms in run.tables[key].items():
            shown.add_row(for_rich(problem, "bold"))
            for arm, cell in arms.items():
                change = _change(cell, metric.form) if compared else ()
                texts = (mean_text(cell, metric), str(cell.count), *change)
                shown.add_row(for_rich(f"  {arm}"), *texts, end_section=arm == list(arms)[-1])
        console.print(shown)


def _change(cell: Cell, form: str) -> tuple[str, str]:
    """The difference to the baseline and its interval, as far as they are known."""
    if not math.isfinite(cell.change):
        return "", ""
    low, high = cell.interval
    return f"{cell.change:+{form}}", f"{low:+{form}} … {high:+{form}}" if math.isfinite(low) else ""


def _as_json(run: Summary) -> dict[str, Any]:
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

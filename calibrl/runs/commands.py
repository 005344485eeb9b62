"""`calibrl run`: a command for every experiment, its options made of the fields of its settings; and `run all`.

And `calibrl list`, `show PRESET` and `summary PATH`: what there is, what it means, and what it came to.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from calibrl.errors import CalibrlError, MissingExtra, check_known
from calibrl.runs.experiment import EXPERIMENTS, Experiment, Metric, Options, describe, experiment
from calibrl.runs.settings import Leaf, changed, leaves, parse_changes, parsed, source_of
from calibrl.text import for_json, for_rich, say

if TYPE_CHECKING:
    from calibrl.runs.engine import Found, Prepared, Watcher
    from calibrl.runs.rows import Cell, Row


Backend = Annotated[
    str | None, typer.Option(help="Where jobs run: serial (one after another), processes or ray.", show_default=False)
]
Workers = Annotated[int | None, typer.Option(min=1, help="How many jobs run at once; default: all cores.")]
Address = Annotated[
    str | None, typer.Option(help="Address of a running Ray cluster, such as ray://head:10001, or auto.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped: do only what is missing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier run in the folder.")]
Minutes = Annotated[float | None, typer.Option(min=0, help="Stop after so many minutes; --resume continues.")]
TensorBoard = Annotated[Path | None, typer.Option(help="Also write every metric to TensorBoard logs in this folder.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change any setting, like trials=7; repeat for several.")]
Rows = Annotated[Path | None, typer.Option(help="Show the results of earlier runs instead of running.")]
SHARED: dict[str, tuple[Any, Any]] = {
    "set_": (Set, None),
    "rows": (Rows, None),
    "backend": (Backend, None),
    "workers": (Workers, None),
    "address": (Address, None),
    "resume": (Resume, False),
    "force": (Force, False),
    "minutes": (Minutes, None),
    "tensorboard": (TensorBoard, None),
}
"""Options of every experiment: their type and default."""


class Experiments(TyperGroup):
    """The commands of `calibrl run`, made when they are asked for: no experiment waits for another's."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return [*super().list_commands(ctx), *EXPERIMENTS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name."""
        if cmd_name not in EXPERIMENTS:
            return super().get_command(ctx, cmd_name)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name)(command_for(experiment(cmd_name)))
        return typer.main.get_command(alone)


app = typer.Typer(cls=Experiments, help="Run an experiment, or all of them.", no_args_is_help=True)


@app.command("all")
def everything(
    small: Annotated[bool, typer.Option("--small", help="Run at laptop size: minutes, not hours.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for results; each experiment gets a folder inside it.")] = Path(
        "out/all"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Run only this experiment; repeat for several.")] = None,
    backend: Backend = "processes",
    workers: Workers = None,
    address: Address = None,
    resume: Resume = False,
    force: Force = False,
    minutes: Minutes = None,
    tensorboard: TensorBoard = None,
) -> None:
    """Run every experiment into one folder, ready for calibrl report.

    Example: calibrl run all --small --out out/demo
    """
    ready, left_out = prepare_all(small=small, only=only or ())
    for name, why in left_out.items():
        say(f"{name} is left out: {why}", err=True)
    options = Options(
        backend=backend,
        workers=workers,
        address=address,
        resume=resume,
        force=force,
        minutes=minutes,
        tensorboard=tensorboard,
    )
    found = execute({out / name: each for name, each in ready.items()}, options)
    _say_if_stopped(found)
    say(f"Rows and figures are in {out}. The numbers: calibrl summary {out}. The page: calibrl report {out}")


def prepare_all(*, small: bool, only: Sequence[str] = ()) -> tuple[dict[str, Prepared[Any]], dict[str, str]]:
    """The experiments that can be run here, at laptop size or as published; and why the others cannot, by name."""
    from calibrl.runs.engine import prepared

    chosen = {name: experiment(name) for name in only or EXPERIMENTS}
    ready, left_out = {}, {}
    for name in (name for name in EXPERIMENTS if name in chosen):
        settings = chosen[name].small if small else chosen[name].full
        if settings is not None:
            try:
                ready[name] = prepared(chosen[name], settings)
            except MissingExtra as problem:
                left_out[name] = str(problem)
    return ready, left_out


def command_for(what: Experiment[Any]) -> Callable[..., None]:
    """A function for Typer with an option for each field of the settings, and those that all experiments share."""
    flags = {leaf.path.replace(".", "__"): leaf for leaf in leaves(what.preset(what.default)) if leaf.flag}
    options: dict[str, tuple[Any, Any]] = {"preset": (_preset(what), None)}
    if what.custom is not None:
        own = typer.Option(what.custom.flag, help=_sentence(what.custom.help))
        options["custom"] = (Annotated[str | None, own], None)
    options |= {name: (_option(leaf), None) for name, leaf in flags.items()}
    out = typer.Option(help="Folder for results and figures.", show_default=_folder(what, what.default))
    options |= {"out": (Annotated[Path | None, out], None), **SHARED}

    def call(*, preset: str | None, rows: Path | None, set_: list[str] | None, **given: Any) -> None:
        custom = given.pop("custom", None)
        asked = [(leaf, given.pop(name)) for name, leaf in flags.items()]
        settings = _base(what, preset, custom)
        changes = parse_changes(settings, set_ or ()) | _values(asked)
        options = Options(preset=preset, changes=changes, **given)
        settings = changed(settings, changes)
        if what.prepare is not None:
            settings = what.prepare(settings, options)
        if rows is None:
            _run(what, settings, options)
        else:
            _show(what, settings, rows, options)

    call.__name__ = what.name
    example = f"Example: calibrl run {what.name} --preset {what.default} --out out/mine"
    call.__doc__ = f"{_sentence(what.title)}\n\n{what.question}\n\n{example}"
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=value, annotation=a) for name, (a, value) in options.items()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    return call


def execute(runs: Mapping[Path, Prepared[Any]], options: Options) -> list[Found]:
    """Run experiments, each into its folder, and show how it goes; Ctrl-C ends with exit code 130."""
    from calibrl.runs.console import Boards, Shown, one_line_warnings
    from calibrl.runs.engine import Workers as By
    from calibrl.runs.engine import run_all

    if options.resume and options.force:
        raise CalibrlError("--resume goes on with a run and --force replaces it; give one of them")
    name = next(iter(runs.values())).experiment.name if len(runs) == 1 else "all"
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(Shown(name))
        watchers: list[Watcher] = [shown]
        if options.tensorboard is not None:
            watchers.append(stack.enter_context(Boards(options.tensorboard)))
        stack.enter_context(one_line_warnings())
        try:
            return run_all(
                runs,
                by=By(options.chosen_backend, options.workers, options.address) if options.parallel else None,
                resume=options.resume,
                force=options.force,
                minutes=options.minutes,
                watchers=watchers,
            )
        except KeyboardInterrupt:
            stack.close()
            say(
                f"Stopped: {shown.done} of {shown.total} jobs are done and kept; the same command with --resume "
                "goes on from there",
                err=True,
            )
            raise typer.Exit(130) from None


def _run(what: Experiment[Any], settings: Any, options: Options) -> None:
    from calibrl.runs.engine import prepared

    out = options.out or Path(_folder(what, settings.name))
    found = execute({out: prepared(what, settings)}, options)
    rows = found[0].rows
    if not rows:
        raise CalibrlError(f"{out}: no row was finished; give it more --minutes")
    _print(what, rows, settings)
    _say_if_stopped(found)
    figure = out / f"{next(iter(what.figures), '')}.png"
    start = f"; the figure to start with is {figure}" if figure.is_file() else ""
    say(f"Rows and figures are in {out}{start}")


def _say_if_stopped(found: Iterable[Found]) -> None:
    if not all(each.finished for each in found):
        say("Stopped before the last row; the same command with --resume goes on")


def _show(what: Experiment[Any], settings: Any, path: Path, options: Options) -> None:
    from calibrl.runs.rows import read_experiment

    rows = read_experiment(path, what.name)
    if what.show_rows is not None:
        what.show_rows(rows, options)
    else:
        _print(what, rows, settings)


def _print(what: Experiment[Any], rows: Any, settings: Any) -> None:
    from calibrl.runs.console import print_table

    if what.show is not None:
        what.show(rows, settings)
    else:
        print_table(rows)


def _base(what: Experiment[Any], preset: str | None, custom: str | None) -> Any:
    if what.custom is None or custom is None:
        return what.preset(preset or what.default)
    if preset is not None:
        raise CalibrlError(f"--preset {preset} and {what.custom.flag} {custom} are two things; give one of them")
    return what.custom.settings(custom)


def _values(asked: Iterable[tuple[Leaf, Any]]) -> dict[str, Any]:
    """What was given for fields, by path."""
    found = {}
    for leaf, value in asked:
        if leaf.repeatable and value:
            found[leaf.path] = tuple(value)
        elif typing.get_origin(leaf.type) is tuple and value is not None:
            found[leaf.path] = parsed(leaf, value, f"{leaf.flag} {value}") if value else ()
        elif value is not None and value != []:
            found[leaf.path] = value
    return found


def _folder(what: Experiment[Any], preset: str) -> str:
    plain = preset.replace("/", "-").replace(":", "-")
    return (what.folder or f"out/{what.name}").format(preset=plain)


def _preset(what: Experiment[Any]) -> Any:
    text = f"Settings by name: {', '.join(what.presets)}. See calibrl show {what.name}/{what.default}."
    return Annotated[str | None, typer.Option(help=text, show_default=what.default)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + ("" if text.endswith("?") else ".")


def _option(leaf: Leaf) -> Any:
    """A field as an option; without it, the preset's value stands."""
    about = leaf.about
    text = _sentence(about.help)
    if leaf.type is bool:
        return Annotated[bool | None, typer.Option(f"{leaf.flag}/--no-{leaf.flag[2:]}", help=text)]
    number: Any = leaf.type
    if leaf.repeatable:
        (number, *_) = typing.get_args(leaf.type)
        kind: Any = list[number]
        text = text[:-1] + "; repeat for several."
    elif typing.get_origin(leaf.type) is tuple:
        kind = str
        text = text[:-1] + "; separated by commas."
    else:
        kind = leaf.type
    limits: dict[str, Any] = {"min": about.least} if number in (int, float) and about.least is not None else {}
    return Annotated[kind | None, typer.Option(leaf.flag, help=text, **limits)]


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="experiments, presets, problems, policies, planners, tasks, searches, worlds or maps. Default: all."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List experiments, presets, problems, policies, planners and maps, and where each is used.

    Example: calibrl list presets
    """
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
        str, typer.Argument(help="Such as bandits/paper, or paper alone if only one preset has that name.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show a preset: its settings, what they mean, and who chose each value (the paper, its code, or us).

    Example: calibrl show bandits/paper
    """
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
    """Print results as tables: mean ± standard error by problem and arm, and differences to the baseline.

    Arms are the methods compared. Differences are paired by seed and have 95 % intervals.

    Example: calibrl summary out/demo --metric reward
    """
    from calibrl.runs.console import one_line_warnings
    from calibrl.runs.rows import by_run, latest, read, stops, table

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
            _print_summary(name, run)


def _metrics(rows: Sequence[Row], usual: Mapping[str, Metric], asked: list[str] | None) -> dict[str, Metric]:
    """Which metrics to show: those asked for, those of the experiment, or else the first ones there are."""
    present = dict.fromkeys(name for row in rows for name in row.metrics)
    wanted = asked or [name for name in usual if name in present] or list(present)[:6]
    return {name: usual.get(name, Metric(name)) for name in wanted if name in present}


def _print_summary(name: str, run: Summary) -> None:
    from calibrl.runs.console import mean_text, plain_table, table_console
    from calibrl.runs.rows import stops_in_words

    console = table_console()
    against = f"; differences to {run.baseline} on the same seeds" if run.baseline else ""
    console.print(for_rich(run.title, "bold"), for_rich(f"({name}){against}"))
    if run.stops:
        console.print(for_rich(stops_in_words(run.stops, run.step)))
    for key, metric in run.metrics.items():
        compared = ("difference", "95 % interval") if run.baseline else ()
        shown = plain_table(metric.heading, "mean ± s.e.", "seeds", *compared)
        for problem, arms in run.tables[key].items():
            shown.add_row(for_rich(problem, "bold"))
            for arm, cell in arms.items():
                change = _change(cell, metric.form) if compared else ()
                texts = (mean_text(cell, metric), str(cell.seeds), *change)
                shown.add_row(for_rich(f"  {arm}"), *texts, end_section=arm == list(arms)[-1])
        console.print(shown)


def _change(cell: Cell, form: str) -> tuple[str, str]:
    """The difference to the baseline and its interval, as far as they are known."""
    if not math.isfinite(cell.difference):
        return "", ""
    low, high = cell.interval
    return f"{cell.difference:+{form}}", f"{low:+{form}} … {high:+{form}}" if math.isfinite(low) else ""


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
    numbers = asdict(cell) | dict(zip(("low", "high"), cell.interval, strict=True))
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}

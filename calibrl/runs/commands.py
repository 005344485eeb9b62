"""`calibrl run`: a command for every experiment, its options made of the fields of its settings; and `run all`."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.runs.experiment import EXPERIMENTS, Experiment, Options, experiment
from calibrl.runs.settings import Leaf, changed, leaves, parse_changes, parsed
from calibrl.text import say

if TYPE_CHECKING:
    from calibrl.runs.engine import Found, Prepared, Watcher

Backend = Annotated[
    str | None, typer.Option(help="Where jobs run: serial, processes (all cores) or ray.", show_default=False)
]
Workers = Annotated[int | None, typer.Option(min=1, help="How many jobs run at once; default: all cores.")]
Address = Annotated[str | None, typer.Option(help="Address of a running Ray cluster, like ray://head:10001 or auto.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped: do only what is missing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the rows of an earlier run.")]
Minutes = Annotated[
    float | None, typer.Option(min=0, help="Stop after the row that crosses this limit; continue with --resume.")
]
TensorBoard = Annotated[Path | None, typer.Option(help="Also write every metric to TensorBoard logs in this folder.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change any setting, like trials=7; see calibrl show.")]
Rows = Annotated[Path | None, typer.Option(help="Show rows of earlier runs instead of running.")]
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
    """Run every experiment into one folder, ready for `calibrl report`."""
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
    out = typer.Option(help="Folder for rows and figures.", show_default=_folder(what, what.default))
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
    call.__doc__ = f"{what.title}.\n\n{what.question}"
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
    text = f"{', '.join(what.presets)}; see calibrl show {what.name}/{what.default}."
    return Annotated[str | None, typer.Option(help=text, show_default=what.default)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


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

"""`calibrl run NAME`: a command for every experiment, its options made of the fields of its settings."""

from __future__ import annotations

import importlib.util
import inspect
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.runs.execute import Address, Backend, Force, How, Minutes, Resume, TensorBoard, Workers, execute
from calibrl.runs.experiment import (
    EXPERIMENTS,
    Experiment,
    Leaf,
    Options,
    changed,
    experiment,
    leaves,
    parse_changes,
    parsed,
)

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
        return [*dict.fromkeys([*super().list_commands(ctx), *EXPERIMENTS])]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name."""
        if cmd_name not in EXPERIMENTS:
            return super().get_command(ctx, cmd_name)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name)(command_for(experiment(cmd_name)))
        return typer.main.get_command(alone)


def command_for(what: Experiment[Any]) -> Callable[..., None]:
    """A function for Typer with an option for each field of the settings, and those that all experiments share."""
    flags = {leaf.path.replace(".", "__"): leaf for leaf in leaves(what.preset(what.default)) if leaf.flag}
    options: dict[str, tuple[Any, Any]] = {"preset": (_preset(what), None)}
    if what.custom is not None:
        options["custom"] = (Annotated[str | None, typer.Option(what.custom.flag, help=what.custom.help)], None)
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
            _show(what, settings, rows, options.out)

    call.__name__ = what.name
    call.__doc__ = f"{what.title}.\n\n{what.question}"
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=value, annotation=a) for name, (a, value) in options.items()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    return call


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


def _run(what: Experiment[Any], settings: Any, options: Options) -> None:
    from calibrl.runs.engine import planned

    if what.needs is not None and importlib.util.find_spec(what.needs[0]) is None:
        raise MissingExtra(*what.needs)
    if options.resume and options.force:
        raise CalibrlError("--resume goes on with a run and --force replaces it; give one of them")
    out = options.out or Path(_folder(what, settings.name))
    how = How(
        options.backend,
        options.workers,
        options.address,
        options.resume,
        options.force,
        options.tensorboard,
        options.minutes,
    )
    (found,) = execute({out: planned(what, settings)}, how)
    if not found.rows:
        raise CalibrlError(f"{out}: no row was finished; give it more --minutes")
    _print(what, found.rows, settings)
    if not found.finished:
        typer.echo("Stopped before the last row; the same command with --resume goes on")
    figure = out / f"{next(iter(what.figures), '')}.png"
    typer.echo(
        f"Rows and figures are in {out}; the figure to start with is {figure}"
        if figure.is_file()
        else f"Rows are in {out}"
    )


def _show(what: Experiment[Any], settings: Any, path: Path, out: Path | None) -> None:
    from calibrl.runs.rows import read_experiment

    rows = read_experiment(path, what.name)
    if what.show_rows is not None:
        what.show_rows(rows, settings, out)
    else:
        _print(what, rows, settings)


def _print(what: Experiment[Any], rows: Any, settings: Any) -> None:
    from calibrl.runs.console import print_table

    if what.show is not None:
        what.show(rows, settings)
    else:
        print_table(rows)


def _folder(what: Experiment[Any], preset: str) -> str:
    plain = preset.replace("/", "-").replace(":", "-")
    return (what.folder or f"out/{what.name}").format(preset=plain)


def _preset(what: Experiment[Any]) -> Any:
    words = f"{', '.join(what.presets)}; see calibrl show {what.name}/{what.default}."
    return Annotated[str | None, typer.Option(help=words, show_default=what.default)]


def _option(leaf: Leaf) -> Any:
    """A field as an option; without it, the preset's value stands."""
    about = leaf.about
    words = about.help[:1].upper() + about.help[1:] + "."
    if leaf.type is bool:
        return Annotated[bool | None, typer.Option(f"{leaf.flag}/--no-{leaf.flag[2:]}", help=words)]
    if leaf.repeatable:
        kind: Any = list[typing.get_args(leaf.type)[0]]  # type: ignore[misc]
        words = words[:-1] + "; repeat for several."
    elif typing.get_origin(leaf.type) is tuple:
        kind = str
        words = words[:-1] + "; separated by commas."
    else:
        kind = leaf.type
    limits: dict[str, Any] = {"min": about.least} if kind in (int, float) and about.least is not None else {}
    return Annotated[kind | None, typer.Option(leaf.flag, help=words, **limits)]

"""`calibrl show PRESET`: the fields of a preset, what they mean and where they come from."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer


def show(
    preset: Annotated[
        str, typer.Argument(help="For example bandits/paper; paper alone if only one preset has that name.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a preset: its fields, what they mean, and where each value comes from (paper, reference code, ours)."""
    from rich import box
    from rich.table import Table

    from calibrl.runs.console import table_console
    from calibrl.runs.presets import described, find

    experiment, found = find(preset)
    lines = described(experiment, found)
    if as_json:
        name = f"{experiment}/{found.name}"
        fields = {line.field: dataclasses.asdict(line) for line in lines}
        typer.echo(json.dumps({"preset": name, "fields": fields}, ensure_ascii=False, indent=1))
        return
    console = table_console()
    console.print(f"[bold]{experiment}/{found.name}[/bold]  run it: {command(experiment, found.name)}", highlight=False)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading, whole in (("field", True), ("value", False), ("meaning", False), ("source", True)):
        shown.add_column(heading, no_wrap=whole)
    for line in lines:
        shown.add_row(line.field, _words(line.value), line.meaning, line.source)
    console.print(shown, highlight=False, markup=False)


def command(experiment: str, preset: str) -> str:
    """How to run a preset."""
    return f"calibrl run {experiment} --preset {preset}"


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

"""`calibrl list`: everything that has a name."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="experiments, presets, problems, policies, planners, tasks, searches, worlds or maps; default: all."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List experiments, presets, problems, policies, planners and maps, and where each is used."""
    from calibrl.runs.listing import USE, listed

    found = listed(kind)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=1))
        return
    widest = max(len(name) for lines in found.values() for name in lines)
    # One line each, however long, so that grep finds them whole.
    for name, lines in found.items():
        typer.echo(f"{typer.style(name, bold=True)}: {USE[name]}")
        for each, words in lines.items():
            typer.echo(f"  {each:<{widest}}  {words}".rstrip())

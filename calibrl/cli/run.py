"""`calibrl run EXPERIMENT`: every experiment is a command of its own, with its own options."""

from __future__ import annotations

import typer

app = typer.Typer(help="Run an experiment.", no_args_is_help=True)

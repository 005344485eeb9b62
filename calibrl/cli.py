"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from calibrl import __version__
from calibrl.bandits import commands as bandits
from calibrl.report import commands as report
from calibrl.runs import commands as run
from calibrl.runs import show
from calibrl.shop import commands as order
from calibrl.tables import commands as forecasts

app = typer.Typer(
    name="calibrl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FORECASTS, DECISIONS, EXPERIMENTS = "Your own forecasts, in files", "Your own decisions", "Experiments"
for command in (forecasts.check, forecasts.fit, forecasts.apply):
    app.command(rich_help_panel=FORECASTS)(command)
app.command(rich_help_panel=DECISIONS)(order.order)
app.add_typer(bandits.app, name="bandit", rich_help_panel=DECISIONS)
app.add_typer(run.app, name="run", rich_help_panel=EXPERIMENTS)
app.command(rich_help_panel=EXPERIMENTS)(show.summary)
app.command(rich_help_panel=EXPERIMENTS)(report.report)
app.command("list", rich_help_panel=EXPERIMENTS)(show.list_)
app.command(rich_help_panel=EXPERIMENTS)(show.show)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calibrl {__version__}")
        raise typer.Exit


@app.callback()
def calibrl(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Calibrate forecasts, and make decisions with them."""

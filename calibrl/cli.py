"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrl import __version__
from calibrl.bandits import commands as bandits
from calibrl.runs import commands as runs
from calibrl.shop import commands as order
from calibrl.tables import commands as forecasts
from calibrl.text import say

app = typer.Typer(name="calibrl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
FORECASTS, DECISIONS, EXPERIMENTS = "Your own forecasts, in files", "Your own decisions", "Experiments"
for command in (forecasts.check, forecasts.fit, forecasts.apply):
    app.command(rich_help_panel=FORECASTS)(command)
app.command(rich_help_panel=DECISIONS)(order.order)
app.add_typer(bandits.app, name="bandit", rich_help_panel=DECISIONS)
app.add_typer(runs.app, name="run", rich_help_panel=EXPERIMENTS)
app.command(rich_help_panel=EXPERIMENTS)(runs.summary)


@app.command(rich_help_panel=EXPERIMENTS)
def report(
    folder: Annotated[Path, typer.Argument(help="Folder with the rows and figures of one or more runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page; default: report.html in the folder.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one self-contained HTML page from a folder of results.

    Example: calibrl report out/demo --open
    """
    from calibrl.report.page import write_report
    from calibrl.runs.console import one_line_warnings

    with one_line_warnings():
        page = write_report(folder, out or folder / "report.html")
    say(f"Open {page.resolve()} in a browser")
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


app.command("list", rich_help_panel=EXPERIMENTS)(runs.list_)
app.command(rich_help_panel=EXPERIMENTS)(runs.show)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calibrl {__version__}")
        raise typer.Exit


@app.callback()
def calibrl(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Calibrate forecasts, and make decisions with them.

    A first step: calibrl check forecasts.csv

    All options of a command: calibrl COMMAND --help
    """

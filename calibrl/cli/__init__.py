"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import typer

from calibrl.cli import bandits, forecasts, order, report, run, show_preset, summary
from calibrl.cli import list as listing

app = typer.Typer(
    name="calibrl",
    help="Make forecasts honest, and plan with them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (forecasts.check, forecasts.fit, forecasts.apply):
    app.command()(command)
app.add_typer(run.app, name="run")
app.add_typer(bandits.app, name="bandit")
app.command()(order.order)
app.command()(report.report)
app.command()(summary.summary)
app.command("list")(listing.list_)
app.command()(show_preset.show)

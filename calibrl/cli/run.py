"""`calibrl run EXPERIMENT`: every experiment is a command of its own, with its own options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run an experiment.", no_args_is_help=True)


@app.command()
def core(
    out: Annotated[Path, typer.Option(help="Folder for rows and figures.")] = Path("out/core"),
    seeds: Annotated[int, typer.Option(min=2, help="How many paired seeds.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
) -> None:
    """Calibrate regressors and a classifier on real data that ships inside scikit-learn."""
    from calibrl.cli.show import print_table, progress
    from calibrl.experiments.core import ARMS, REGRESSORS, run

    with progress("core", total=seeds * len(ARMS) * (len(REGRESSORS) + 1)) as step:
        rows = run(out, seeds=range(seed, seed + seeds), on_step=step)
    print_table(rows)
    typer.echo(f"Rows and figures are in {out}")

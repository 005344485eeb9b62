"""`calibrl run EXPERIMENT`: every experiment is a command of its own, with its own options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run an experiment.", no_args_is_help=True)


@app.command()
def core(
    out: Annotated[Path, typer.Option(help="Folder for rows and figures.")] = Path("out/core"),
    seeds: Annotated[int, typer.Option(min=2, help="How many paired seeds.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
) -> None:
    """Calibrate regressors and a classifier on real data that ships inside scikit-learn."""
    from calibrl.cli.show import print_table, progress
    from calibrl.experiments.core import ARMS, REGRESSORS, run

    with progress("core", total=seeds * len(ARMS) * (len(REGRESSORS) + 1)) as step:
        rows = run(out, seeds=range(seed, seed + seeds), on_step=step)
    print_table(rows)
    typer.echo(f"Rows and figures are in {out}")


@app.command()
def mdp(
    out: Annotated[Path, typer.Option(help="Folder for rows and figures.")] = Path("out/mdp"),
    preset: Annotated[str, typer.Option(help="How much to run: quick (under a minute), full or tiny.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
) -> None:
    """Show on discrete MDPs why calibrated models value policies right: the paper's theorem, and planning."""
    from calibrl.cli.show import print_table, progress
    from calibrl.experiments.mdp import chosen, run, shown, steps

    what = chosen(preset)
    with progress("mdp", total=steps(what)) as step:
        rows = run(out, what, seed=seed, on_step=step)
    print_table(shown(rows, what))
    typer.echo(f"Rows and figures are in {out}; the figure to start with is {out / 'mdp-theory.png'}")

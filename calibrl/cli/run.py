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


@app.command()
def bandits(
    problem: Annotated[
        list[str] | None,
        typer.Option(help="linear, beta, digits, wine, breast-cancer, mushroom, covertype, adult, census"),
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only these policies.")] = None,
    preset: Annotated[str, typer.Option(help="small (needs no data) or paper (Table 1).")] = "small",
    trials: Annotated[int | None, typer.Option(min=1, help="Paired trials.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of a trial.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for rows and figures.")] = Path("out/bandits"),
    rows: Annotated[Path | None, typer.Option(help="Show rows of an earlier run instead of running.")] = None,
) -> None:
    """Contextual bandits: LinUCB, its calibrated versions and the controls they have to beat."""
    from calibrl.cli.bandits import run_bandits, show_rows

    if rows is not None:
        show_rows(rows, trials=trials, out=out)
    else:
        run_bandits(problem, policy, preset=preset, trials=trials, rounds=rounds, seed=seed, out=out)


@app.command()
def safety(
    out: Annotated[Path, typer.Option(help="Folder for rows and figures.")] = Path("out/safety"),
    preset: Annotated[str, typer.Option(help="How much to run: quick, full or tiny.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
) -> None:
    """Plan under a 90 % chance constraint and count how often it is broken, calibrated or not."""
    from calibrl.cli.show import print_table, progress
    from calibrl.experiments.safety import chosen, run, steps

    what = chosen(preset)
    with progress("safety", total=steps(what)) as step:
        rows = run(out, what, seed=seed, on_step=step)
    print_table(rows)
    typer.echo(f"Rows and figures are in {out}; the figure to start with is {out / 'safety-rates.png'}")

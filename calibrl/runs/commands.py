"""`calibrl run EXPERIMENT`: every experiment is a command of its own, with its own options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrl.runs.execute import Address, Backend, Force, How, Minutes, Resume, TensorBoard, Workers, execute
from calibrl.runs.options import Experiments

app = typer.Typer(cls=Experiments, help="Run an experiment, or all of them.", no_args_is_help=True)


@app.command("all")
def everything(
    small: Annotated[bool, typer.Option("--small", help="Run at laptop size: minutes, not hours.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for results; each experiment gets a folder inside it.")] = Path(
        "out/all"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Run only this experiment; repeat for several.")] = None,
    backend: Backend = "processes",
    workers: Workers = None,
    address: Address = None,
    resume: Resume = False,
    force: Force = False,
    minutes: Minutes = None,
    tensorboard: TensorBoard = None,
) -> None:
    """Run every experiment into one folder, ready for `calibrl report`."""
    from calibrl.runs.everything import plans

    ready, left_out = plans("small" if small else "full", only=only)
    for name, why in left_out.items():
        typer.echo(f"{name} is left out: {why}", err=True)
    how = How(backend, workers, address, resume, force, tensorboard, minutes)
    execute({out / name: plan for name, plan in ready.items()}, how)
    typer.echo(f"Rows and figures are in {out}. The numbers: calibrl summary {out}. The page: calibrl report {out}")

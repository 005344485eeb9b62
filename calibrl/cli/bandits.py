"""`calibrl run bandits` and `calibrl bandit evaluate`: what they print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from calibrl.experiments.bandits import Line


def run_bandits(
    problems: list[str] | None,
    policies: list[str] | None,
    *,
    preset: str,
    trials: int | None,
    rounds: int | None,
    seed: int | None,
    out: Path,
) -> None:
    """Run, write rows and figures, print the table."""
    from calibrl.bandits.presets import PRESETS
    from calibrl.cli.show import progress
    from calibrl.errors import CalibrlError
    from calibrl.experiments.bandit_figures import Gallery
    from calibrl.experiments.bandits import run, summarise
    from calibrl.results import append

    if preset not in PRESETS:
        raise CalibrlError(f"preset {preset!r} is unknown; known: {', '.join(PRESETS)}")
    base = PRESETS[preset]
    chosen = replace(
        base,
        problems=tuple(problems or base.problems),
        policies=tuple(policies or base.policies),
        trials=trials or base.trials,
        rounds=rounds or base.rounds,
        seed=base.seed if seed is None else seed,
    )
    gallery = Gallery()
    found = []
    with progress("bandits", total=len(chosen.problems) * chosen.trials * len(chosen.policies)) as step:
        for row in run(chosen, watch=gallery.watch):
            found.append(row)
            step(f"{row.problem} {row.arm} {row.seed}")
    # A run's rows take the place of an earlier run's: appended, they would count twice.
    (out / "bandits.jsonl").unlink(missing_ok=True)
    append(out / "bandits.jsonl", found)
    lines = summarise(found)
    files = gallery.save(out, lines)
    print_lines(lines)
    typer.echo(f"Rows and {len(files)} figures are in {out}")


def show_rows(path: Path, *, trials: int | None, out: Path) -> None:
    """Print the table of rows that are there already, and draw it."""
    from calibrl.errors import CalibrlError
    from calibrl.experiments.bandit_figures import table_figure
    from calibrl.experiments.bandits import summarise
    from calibrl.results import read

    if not path.exists():
        raise CalibrlError(f"{path} does not exist; give a .jsonl file or a folder of them")
    lines = summarise(read(path), trials=trials)
    if not lines:
        raise CalibrlError(f"{path} holds no rows of bandits; run: calibrl run bandits --out {path}")
    print_lines(lines)
    out.mkdir(parents=True, exist_ok=True)
    table_figure(lines).savefig(out / "table.png", dpi=130)
    typer.echo(f"The table as a figure is in {out}")


def print_lines(lines: Sequence[Line]) -> None:
    """Every policy on every problem, with the paper's numbers where it printed them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from calibrl.bandits.figures import LABELS
    from calibrl.bandits.presets import TABLE_1

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", collapse_padding=True)
    table.add_column("", no_wrap=True)
    for name in ("reward", "vs LinUCB", "", "covers", "paper"):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for line in lines:
        printed = TABLE_1.get(line.problem)
        if line.problem != before:
            table.add_section()
            table.add_row(f"[bold]{line.problem}[/bold], {line.rounds} × {line.trials}")
            optimal = f"{printed.optimal:.1f}" if printed else ""
            table.add_row("  optimum", f"{line.optimal:.1f}", "", "", "", optimal)
        before = line.problem
        compared = line.policy != "linucb"
        table.add_row(
            f"  {LABELS[line.policy]}",
            f"{line.reward:.1f} ± {line.error:.1f}",
            f"{line.gain:+.1f} ± {line.gain_error:.1f}" if compared else "",
            f"{100 * line.relative_gain:+.1f} %" if compared else "",
            f"{100 * line.coverage:.1f} %",
            f"{getattr(printed, line.policy):.1f}" if printed and hasattr(printed, line.policy) else "",
        )
    notes = [f"{line.problem}: {line.note}." for line in lines if line.note and line.policy == lines[0].policy]
    console = Console()
    console.print(table)
    console.print(
        "Cumulative reward over rounds × paired trials, ± standard error; differences are by trial. covers: "
        "chosen arms' rewards below their 84.1 % quantile. paper: Malik et al. (2019), 1200 rounds.",
        *notes,
        highlight=False,
    )

"""`calibrl run inventory`: perishable goods ordered with honest forecasts, and the paper's Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrl.runs.execute import Address, Backend, Force, How, Resume, TensorBoard, Workers, execute

if TYPE_CHECKING:
    from calibrl.inventory.presets import InventorySettings
    from calibrl.runs.rows import Row


def inventory(
    preset: Annotated[str, typer.Option(help="small (a minute), paper (Table 2), best (every arm) or tiny.")] = "small",
    data: Annotated[
        str | None, typer.Option(help="bakery (included) or favorita (read from the folder CALIBRL_DATA).")
    ] = None,
    period: Annotated[str | None, typer.Option(help="test (the paper's months), later, or tuning.")] = None,
    shelf_life: Annotated[list[int] | None, typer.Option(min=1, help="Shelf life in days; repeat for several.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Run only this arm; repeat for several.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many paired seeds.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed.")] = None,
    device: Annotated[
        str, typer.Option(help="Where to train networks and run the paper's planner: cpu or cuda.")
    ] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for rows and figures.")] = Path("out/inventory"),
    rows: Annotated[Path | None, typer.Option(help="Show rows of an earlier run instead of running.")] = None,
    backend: Backend = None,
    workers: Workers = None,
    address: Address = None,
    resume: Resume = False,
    force: Force = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Order perishable goods with calibrated and uncalibrated forecasts of demand, and with simple rules."""
    if rows is not None:
        from calibrl.runs.rows import read_experiment

        print_rows(read_experiment(rows, "inventory"))
        return
    from calibrl.inventory.experiment import plan

    what = chosen(preset, data=data, period=period, shelf_lives=shelf_life, arms=arm, seeds=seeds, seed=seed)
    how = How(backend, workers, address, resume, force, tensorboard)
    (found,) = execute({out: plan(what, device=device)}, how)
    print_rows(found.rows)
    typer.echo(f"Rows and figures are in {out}; the figure to start with is {out / 'table.png'}")


def chosen(
    name: str,
    *,
    data: str | None,
    period: str | None,
    shelf_lives: Sequence[int] | None,
    arms: Sequence[str] | None,
    seeds: int | None,
    seed: int | None,
) -> InventorySettings:
    """A preset with what was asked for in its place."""
    from calibrl.inventory.presets import chosen as preset

    base = preset(name)
    asked = replace(
        base,
        data=data or base.data,
        period=period or base.period,
        shelf_lives=tuple(shelf_lives or base.shelf_lives),
        arms=tuple(arms or base.arms),
        seeds=seeds or base.seeds,
        seed=base.seed if seed is None else seed,
    )
    asked.check()
    return asked


def print_rows(rows: Sequence[Row]) -> None:
    """Table 2 for each shelf life, next to the paper's, and how well the forecasts are calibrated."""
    from rich import box
    from rich.table import Table

    from calibrl.runs.console import table_console
    from calibrl.runs.paper import TABLE_2
    from calibrl.runs.statistics import latest, table

    rows = latest(rows)
    names = ("shipped", "waste_share", "stockout_share", "reward", "coverage_80")
    cells = {name: table(rows, name, "uncalibrated") for name in names}
    console = table_console()
    for problem, arms in cells["reward"].items():
        about = next(row.settings for row in rows if row.problem == problem)
        seeds = max(cell.count for cell in arms.values())
        shown = Table(
            title=f"{problem}: {about['series']} series × {about['days']} days × {seeds} seeds",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 0, 0, 1),
            header_style="bold",
        )
        shown.add_column("")  # the one to be wrapped where a terminal is narrow: never a number
        for heading in ("units", "waste", "short", "reward", "gain", "80 %", "paper"):
            shown.add_column(heading, justify="right", no_wrap=True)
        base = arms.get("uncalibrated")
        for arm, reward in arms.items():
            gain = ""
            if base is not None and base.mean and arm not in ("uncalibrated", "oracle"):
                gain = f"{100 * reward.change / abs(reward.mean - reward.change):+.0f}"
            printed = TABLE_2.at(problem, arm, "reward")
            holds = cells["coverage_80"].get(problem, {}).get(arm)
            shown.add_row(
                arm,
                f"{cells['shipped'][problem][arm].mean / 1000:,.0f}k",
                f"{100 * cells['waste_share'][problem][arm].mean:.1f}",
                f"{100 * cells['stockout_share'][problem][arm].mean:.1f}",
                f"{reward.mean:,.0f}" + (f" ± {reward.error:,.0f}" if reward.count > 1 else ""),
                gain,
                f"{100 * holds.mean:.0f}" if holds else "",
                f"{printed.mean / 1000:,.1f}k" if printed else "",
            )
        console.print(shown)
        if about.get("note"):
            console.print(f"Note: {about['note']}.", highlight=False)
    console.print(
        "units: shipped, in thousands. waste, short: units wasted and units out of stock, in % of those shipped. "
        "reward: minus the sum of both, in units, ± standard error over seeds. gain: % saved over uncalibrated, on the "
        "same seeds. 80 %: share of days inside the forecast's 80 % interval. paper: its reward, on other data.",
        highlight=False,
    )

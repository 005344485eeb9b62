"""What commands print: tables as wide as the terminal, a bar while they work, warnings in one line."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from calibrl.text import for_rich, for_terminal, say

if TYPE_CHECKING:
    from calibrl.runs.experiment import Metric
    from calibrl.runs.rows import Row
    from calibrl.runs.statistics import Cell

PIPED = 160
"""Columns of output that is no terminal: a file has no edge at which a number would have to be cut."""


def table_console() -> Console:
    """The terminal as wide as it is; anything else wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, PIPED))


@contextmanager
def progress(name: str, *, total: int) -> Iterator[Callable[[str], None]]:
    """A bar with the time left on a terminal, a plain line now and then when piped. Yields a `step(what)`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        done = 0

        def plain(what: str) -> None:
            nonlocal done
            done += 1
            if done == 1 or done == total or done % max(1, total // 10) == 0:
                console.print(for_rich(f"{name} {done}/{total} {what}"))

        yield plain
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        first = True

        def step(what: str) -> None:
            nonlocal first
            # A step announces work that begins: the one before it is done.
            bar.update(task, description=escape(for_terminal(what)), advance=0 if first else 1)
            first = False

        yield step
        bar.update(task, completed=total)


def print_table(rows: Sequence[Row]) -> None:
    """Mean ± standard error by problem and arm, with the paired difference to the baseline arm."""
    from calibrl.runs.benchmarks import describe
    from calibrl.runs.statistics import alike, table

    about = describe(rows[0].experiment, baseline=rows[0].arm)
    tables = {name: table(rows, name, about.baseline) for name in about.metrics}
    console = table_console()
    for measured, problems in alike(rows, about.metrics).items():
        shown = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        shown.add_column("")  # the one to be wrapped where a terminal is narrow: never a number
        for name in measured:
            shown.add_column(about.metrics[name].heading, justify="right")
        for problem in problems:
            shown.add_row(for_rich(problem, "bold"))
            arms = list(dict.fromkeys(row.arm for row in rows if row.problem == problem))
            for arm in arms:
                cells = [mean_text(tables[name][problem].get(arm), about.metrics[name]) for name in measured]
                shown.add_row(for_rich(f"  {arm}"), *cells, end_section=arm == arms[-1])
        console.print(shown)


def mean_text(cell: Cell | None, metric: Metric) -> str:
    """Mean ± standard error as a metric is printed; empty if nothing was measured."""
    if cell is None:
        return ""
    error = f" ± {cell.error:{metric.form}}" if math.isfinite(cell.error) else ""
    return f"{cell.mean:{metric.form}}{error}"


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print our own warnings as one line each, like errors."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        say(f"calibrl: {message}", err=True)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.filterwarnings("always", category=UserWarning, module="calibrl")
        warnings.showwarning = show
        try:
            yield
        finally:
            warnings.showwarning = before

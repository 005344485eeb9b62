"""What commands show: tables as wide as the terminal, how a run goes, warnings in one line; and TensorBoard."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from calibrl.errors import MissingExtra
from calibrl.runs.engine import Watcher
from calibrl.runs.experiment import Metric, Status, describe
from calibrl.runs.rows import RELIABILITY_NAMES, Cell, Row, alike, table
from calibrl.text import for_rich, say

PIPED = 160
"""Columns of output that is no terminal: a file has no edge at which a number would have to be cut."""


def table_console() -> Console:
    """The terminal as wide as it is; anything else wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, PIPED))


def plain_table(first: str, *numbers: str, wrap: bool = False, **options: Any) -> Table:
    """An empty table without frames: a column of names, wrapped where a terminal is narrow, then columns of numbers.

    wrap: whether the headings of numbers may be wrapped; options: Rich's.
    """
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", **options)
    shown.add_column(first)
    for heading in numbers:
        shown.add_column(heading, justify="right", no_wrap=not wrap)
    return shown


def print_table(rows: Sequence[Row]) -> None:
    """Mean ± standard error by problem and arm, with the paired difference to the baseline arm."""
    about = describe(rows[0].experiment, baseline=rows[0].arm)
    tables = {name: table(rows, name, about.baseline) for name in about.metrics}
    console = table_console()
    for measured, problems in alike(rows, about.metrics).items():
        shown = plain_table("", *(about.metrics[name].heading for name in measured), wrap=True)
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
        say(f"calibrl: {' '.join(str(message).splitlines())}", err=True)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.filterwarnings("always", category=UserWarning, module="calibrl")
        warnings.showwarning = show
        try:
            yield
        finally:
            warnings.showwarning = before


class Shown(Watcher):
    """A run on the screen: a bar with the time left on a terminal, a plain line now and then when piped."""

    def __init__(self, name: str, *, unit: str = "jobs") -> None:
        self.name, self.unit = name, unit
        self.total = self.done = self.rows = self._before = 0
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._parts: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (
                # One line, however narrow the terminal: what a job says of itself gives way.
                TextColumn(
                    "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
                ),
                BarColumn(bar_width=12),
                TextColumn("{task.fields[done]}/{task.total} {task.fields[what]},"),
                TimeElapsedColumn(),
                TextColumn("passed,"),
                TimeRemainingColumn(),
                TextColumn("left"),
            )
            self._bar = Progress(*columns, console=self._console, transient=True, expand=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, total: int, done: int) -> None:
        """So many jobs there are, so many of them finished before."""
        self.total, self.done, self._before = total, done, done
        self._began = time.monotonic()
        if self._bar is not None:
            self._task = self._bar.add_task(self.name, total=total, completed=done, done=done, what=self.unit)
        elif done:
            self._say(f"{done} were done before")

    def row(self, row: Row) -> None:  # noqa: ARG002 (the signature of a watcher)
        """Count it."""
        self.rows += 1
        if self._bar is not None:
            self._bar.update(self._task, what=f"{self.unit}, {self.rows} rows")

    def finished(self, name: str) -> None:
        """Move the bar, or say a line now and then."""
        self.done += 1
        self._parts.pop(name, None)
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self.name}: {name}", completed=self.done, done=self.done)
        elif self.done in (self._before + 1, self.total) or self.done % max(1, self.total // 10) == 0:
            self._say(name)

    def status(self, name: str, status: Status) -> None:
        """Show where a job is, and move the bar by what is done of it; or say the line, if it is worth one."""
        self._parts[name] = status.done
        if self._bar is not None:
            done = self.done + sum(self._parts.values())
            self._bar.update(self._task, description=status.text, completed=done)
        elif status.line:
            self._console.print(for_rich(status.text), soft_wrap=True)

    def drawing(self, name: str) -> None:
        """Say what takes the time after the last job."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{name}: figures")

    def _say(self, what: str) -> None:
        taken = time.monotonic() - self._began
        fresh = self.done - self._before
        left = f", {timedelta(seconds=round(taken / fresh * (self.total - self.done)))} left" if fresh else ""
        words = f"{self.name} {self.done}/{self.total} {what}{left}"
        self._console.print(for_rich(words), soft_wrap=True)


class Boards(Watcher):
    """One log for each problem, arm and seed: every metric at its step."""

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboard  # noqa: F401 (torch says less clearly that it is missing)
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard") from None
        self._folder, self._writer = folder, SummaryWriter
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._open.values():
            log.close()

    def row(self, row: Row) -> None:
        """Write a row's metrics, and those of its thin learning curves."""
        folder = self._folder.joinpath(row.experiment, _plain(row.problem), _plain(row.arm), f"seed {row.seed}")
        if folder not in self._open:
            self._open[folder] = self._writer(str(folder))
        for name, value, step in sorted(scalars(row), key=lambda each: each[2]):
            self._open[folder].add_scalar(name, value, step)

    def finished(self, name: str) -> None:  # noqa: ARG002 (the signature of a watcher)
        """A job's logs are whole: many thousand open files would be too many."""
        for log in self._open.values():
            log.close()
        self._open.clear()


def scalars(row: Row) -> Iterator[tuple[str, float, int]]:
    """Metric, value and step. Reliability curves are left to the report: nineteen scalars tell nobody anything."""
    thin = describe(row.experiment).thin
    for name, value in row.metrics.items():
        if name in RELIABILITY_NAMES or not math.isfinite(value):
            continue
        early = re.fullmatch(r"(.+)_(\d+)", name)
        if early and early[1] in thin:
            yield early[1], value, int(early[2])
        else:
            yield name, value, row.step


def _plain(words: str) -> str:
    return re.sub(r"[/\\:]", "-", words)

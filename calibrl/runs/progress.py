"""What a run shows while it works: a bar with the time left on a terminal, plain lines when piped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from calibrl.runs.engine import Watcher
from calibrl.runs.rows import Row
from calibrl.runs.workers import Status


class Shown(Watcher):
    """A run on the screen: jobs done and to do, rows written, the time left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total = self.done = self.rows = self._before = 0
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._parts: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} jobs, {task.fields[rows]} rows,"),
                TimeElapsedColumn(),
                TextColumn("passed,"),
                TimeRemainingColumn(),
                TextColumn("left"),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, total: int, done: int) -> None:
        """So many jobs there are, so many of them finished before."""
        self.total, self.done, self._before = total, done, done
        self._began = time.monotonic()
        if self._bar is not None:
            self._task = self._bar.add_task(self.name, total=total, completed=done, rows=0)
        elif done:
            self._say(f"{done} were done before")

    def row(self, row: Row) -> None:  # noqa: ARG002 (the signature of a watcher)
        """Count it."""
        self.rows += 1
        if self._bar is not None:
            self._bar.update(self._task, rows=self.rows)

    def finished(self, name: str) -> None:
        """Move the bar, or say a line now and then."""
        self.done += 1
        self._parts.pop(name, None)
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self.name}: {name}", completed=self.done)
        elif self.done in (self._before + 1, self.total) or self.done % max(1, self.total // 10) == 0:
            self._say(name)

    def status(self, name: str, status: Status) -> None:
        """Show where a job is, and move the bar by what is done of it; or say the line, if it is worth one."""
        self._parts[name] = status.done
        if self._bar is not None:
            done = self.done + sum(self._parts.values())
            self._bar.update(self._task, description=status.text, completed=done)
        elif status.line:
            self._console.print(status.text, markup=False, highlight=False, soft_wrap=True)

    def drawing(self, name: str) -> None:
        """Say what takes the time after the last job."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{name}: figures")

    def _say(self, what: str) -> None:
        taken = time.monotonic() - self._began
        fresh = self.done - self._before
        left = f", {timedelta(seconds=round(taken / fresh * (self.total - self.done)))} left" if fresh else ""
        words = f"{self.name} {self.done}/{self.total} {what}{left}"
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)


class Several(Watcher):
    """Tells many watchers."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def started(self, total: int, done: int) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.started(total, done)

    def row(self, row: Row) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.row(row)

    def finished(self, name: str) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.finished(name)

    def status(self, name: str, status: Status) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.status(name, status)

    def drawing(self, name: str) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.drawing(name)

"""Metrics as TensorBoard logs, while a run goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from calibrl.errors import MissingExtra
from calibrl.runs.benchmarks import describe
from calibrl.runs.engine import Watcher
from calibrl.runs.reliability import NAMES
from calibrl.runs.rows import Row


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

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        if name in NAMES or not math.isfinite(value):
            continue
        early = re.fullmatch(r"(.+)_(\d+)", name)
        if early and early[1] in thin:
            yield early[1], value, int(early[2])
        else:
            yield name, value, row.step


def _plain(words: str) -> str:
    return re.sub(r"[/\\:]", "-", words)

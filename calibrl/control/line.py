"""What a control run shows while it goes on: one live line on a terminal, a plain line a trial when piped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Column

from calibrl.control.experiment import Moment, Watch
from calibrl.control.settings import ControlSettings
from calibrl.runs.progress import Boards
from calibrl.runs.rows import Row


class Line(Watch):
    """Trial, steps, returns, calibration loss and time left."""

    def __init__(self, preset: ControlSettings, console: Console, bar: Progress | None, boards: Boards | None) -> None:
        self._preset, self._console, self._bar, self._boards = preset, console, bar, boards
        if bar is not None:
            self._task = bar.add_task(preset.name, total=1)
        self._honesty: dict[str, str] = {}
        self._started, self._shown = time.monotonic(), 0.0
        self._begun_at: float | None = None

    def step(self, moment: Moment) -> None:
        """Show where the fleet is, a few times a second."""
        at = (moment.trial * moment.steps + moment.step) / ((moment.trials + 1) * moment.steps)
        if self._begun_at is None:
            self._begun_at = at
        if self._bar is None or (time.monotonic() - self._shown < 0.2 and moment.step < moment.steps):
            return
        self._shown = time.monotonic()
        where = f"trial {moment.trial}/{moment.trials} step {moment.step}/{moment.steps}, {self._left(at)}"
        self._bar.update(self._task, description=f"{where}: {self._returns(moment.earned)}", completed=at, refresh=True)

    def trial(self, rows: Sequence[Row]) -> None:
        """Keep what was measured, and print it where there is no live line."""
        if self._boards is not None:
            for row in rows:
                self._boards.row(row)
        earned = {f"{row.arm}-{row.seed}": row.metrics["return"] for row in rows}
        losses = {f"{row.arm}-{row.seed}": row.metrics.get("calibration_loss") for row in rows}
        seen = {name: loss for name, loss in losses.items() if loss is not None}
        self._honesty.update({arm: f" (loss {loss:.2f})" for arm, loss in _means(seen).items()})
        # By steps: SAC's episodes may be shorter than trials, and more.
        trial = (rows[0].step - 1) // self._preset.steps
        at = rows[0].step / ((self._preset.trials + 1) * self._preset.steps)
        if self._bar is None:
            where = f"trial {trial}/{self._preset.trials}, {rows[0].step} steps, {self._left(at)}"
            self._console.print(f"{where}: {self._returns(earned)}", markup=False, highlight=False, soft_wrap=True)

    def relearnt(self, trial: int, trials: int) -> None:
        """Say how far the networks of earlier trials are; the time left counts from then on."""
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, description=f"training again: trial {trial}/{trials}", refresh=True)
        elif trial == trials:
            self._console.print(f"trained again on trials 0 to {trials}", markup=False, highlight=False)

    def _returns(self, earned: dict[str, float]) -> str:
        means = _means(earned).items()
        return " · ".join(f"{arm} {value:.1f}{self._honesty.get(arm, '')}" for arm, value in means)

    def _left(self, at: float) -> str:
        done = at - (self._begun_at or 0.0)
        # The random trial takes no time: it says nothing about the others.
        if done <= 1 / (self._preset.trials + 1):
            return "… left"
        seconds = (time.monotonic() - self._started) / done * (1 - at)
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


@contextmanager
def watching(preset: ControlSettings, tensorboard: Path | None = None) -> Iterator[Line]:
    """A live line on a terminal, plain lines elsewhere; and logs for TensorBoard in its folder, if one is given."""
    console = Console(stderr=True)
    with ExitStack() as stack:
        boards, bar = None, None
        if tensorboard is not None:
            boards = stack.enter_context(Boards(tensorboard))
        if console.is_terminal:
            # One line, however narrow the terminal: what matters most comes first.
            column = Column(no_wrap=True, overflow="ellipsis")
            words = TextColumn("{task.description}", markup=False, table_column=column)
            bar = stack.enter_context(Progress(words, console=console, transient=True))
        yield Line(preset, console, bar, boards)


def _means(earned: dict[str, float]) -> dict[str, float]:
    """Mean over seeds by arm, of {"arm-seed": number}."""
    found: dict[str, list[float]] = {}
    for name, value in earned.items():
        found.setdefault(name.rpartition("-")[0], []).append(value)
    return {arm: sum(values) / len(values) for arm, values in found.items()}

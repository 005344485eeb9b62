"""The folder of one run: its rows, which jobs are finished, and what figures need that rows do not hold.

`rows.jsonl` is appended to, a row at a time; `finished.log` gets a line when a job has ended and its rows are on the
disk; `arrays/` holds arrays. A job without its line is run again; the rows it had written are not written twice.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.files import (
    check_regular,
    explain_os_error,
    fingerprint,
    lock_folder,
    replacing,
    sweep,
    unlock_folder,
    write_text,
)
from calibrl.runs.rows import FINISHED, Row, append_text, line, make_folder, mark, marks, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NamedArrays = Mapping[str, NDArray[Any]]
"""What figures need: arrays by name."""

ARRAYS, CHECKPOINT = "arrays", "checkpoint"


class Run(NamedTuple):
    """What a run is: rows of two runs do not mix."""

    experiment: str
    preset: str
    overrides: Mapping[str, Any]

    def __str__(self) -> str:
        parts = [self.experiment, self.preset, *(f"{name}={value}" for name, value in self.overrides.items())]
        return " ".join(filter(None, parts))


class Store:
    """An open folder that this process alone writes to.

    apart: whether a row belongs to another run that shares the folder; those are left as they are.
    """

    _file: IO[str]
    _log: IO[str]

    def __init__(
        self, folder: Path, run: Run, *, file: str = "rows.jsonl", apart: Callable[[Row], bool] | None = None
    ) -> None:
        self.folder, self.run, self._is_apart = folder, run, apart or (lambda _: False)
        self._apart: list[Row] = []
        self.path = folder / file
        self._rows: dict[str, dict[tuple[Any, ...], Row]] = {}
        self._new: set[tuple[str, tuple[Any, ...]]] = set()
        self._finished: set[str] = set()
        self._lock: IO[str] | None = None

    def open(self, *, resume: bool = False, force: bool = False, checkpoints: Collection[str] = ()) -> Self:
        """Begin an empty folder, go on with a run's own (`resume`), or replace what is there (`force`).

        checkpoints: patterns of the files that jobs go on from, which replaced rows must not come back from.
        """
        make_folder(self.folder)
        if checkpoints:
            make_folder(self.folder / CHECKPOINT)
        self._lock = lock_folder(self.folder)
        if self._lock is None:
            raise CalibrlError(
                f"{self.folder} is being written to by another run; wait for it, or choose another --out"
            )
        for folder in (self.folder, self.folder / ARRAYS, self.folder / CHECKPOINT):
            sweep(folder)
        log = self.folder / FINISHED
        new = not os.path.lexists(log)
        try:
            check_regular(log, "remove it, or choose another --out")
            self._log = log.open("a", encoding="utf-8")
            rows, damaged = self._read()
            if force:
                self._clear(checkpoints)
            elif self.path.exists():
                self._recover(rows, damaged, resume)
            self._file = self.path.open("a", encoding="utf-8")
        except BaseException:
            if new:
                log.unlink(missing_ok=True)
            self.close()
            raise
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write here."""
        for name in vars(self).keys() & {"_file", "_log"}:
            with suppress(OSError):  # of a disk that is full, which was said when it refused a row
                getattr(self, name).close()
        if self._lock is not None:
            unlock_folder(self.folder, self._lock)
            self._lock = None

    def finished(self, job: str, *, until: int = 0) -> bool:
        """Whether all of a job's rows are here, up to this step at least."""
        last = max((row.step for row in self._rows.get(job, {}).values()), default=0)
        return job in self._finished and last >= until

    def add(self, job: str, row: Row, *, again: bool = False) -> bool:
        """Write a row at once, unless it is here from an earlier attempt at its job; whether it was written.

        again: the job may say the same row twice, as one does that goes on from a checkpoint.
        """
        rows, new = self._rows.setdefault(job, {}), (job, row.key)
        if new in self._new and not again:
            raise CalibrlError(f"job {job!r} gave two rows for {row.key}; tell them apart by problem, arm or step")
        self._new.add(new)
        if row.key in rows:
            return False
        if not self.path.exists():
            raise CalibrlError(f"{self.path} was moved or deleted while rows went to it; put it back, and --resume")
        rows[row.key] = row
        with explain_os_error(self.path):
            self._file.write(line(row))
            self._file.flush()
        return True

    def keep(self, job: str, arrays: NamedArrays) -> None:
        """Save what figures need."""
        target = self._arrays(job)
        with explain_os_error(target), replacing(target) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def finish(self, job: str) -> None:
        """Mark a job's end, once its rows are on the disk."""
        arrays = self._arrays(job)
        text = mark(job, len(self._rows.get(job, {})), fingerprint(arrays) if arrays.exists() else "")
        with explain_os_error(self.folder):
            os.fsync(self._file.fileno())
            self._log.write(text)
            self._log.flush()
            os.fsync(self._log.fileno())
        self._finished.add(job)

    def rows(self, jobs: Iterable[str]) -> list[Row]:
        """The rows of some jobs, in the order of the jobs."""
        return [row for job in jobs for row in self._rows.get(job, {}).values()]

    def arrays(self, job: str) -> dict[str, NDArray[Any]]:
        """What a job saved for figures; nothing if it saved nothing."""
        if not self._arrays(job).exists():
            return {}
        # Opened here: numpy leaves a file open that it cannot read.
        with self._arrays(job).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)

    def put_in_order(self, jobs: Sequence[str]) -> None:
        """Have the file as one process alone would have written it, job after job, whoever finished first."""
        known = set(jobs)
        rows = self.rows([*jobs, *(job for job in self._rows if job not in known)])
        text = "".join(line(row) for row in [*self._apart, *rows])
        if text.encode() != self.path.read_bytes():
            self._file.close()
            with explain_os_error(self.path):
                write_text(self.path, text)
            self._file = self.path.open("a", encoding="utf-8")

    def _arrays(self, job: str) -> Path:
        # Readable, and different for names that differ only in what a file's name cannot hold.
        words = re.sub(r"[^\w.]+", "-", job).strip("-")[:80]
        return self.folder / ARRAYS / f"{words}-{hashlib.sha256(job.encode()).hexdigest()[:6]}.npz"

    def _whole(self, job: str, arrays: str) -> bool:
        """Whether what a job saved for figures is the file with this fingerprint; another goes, and is made again."""
        file = self._arrays(job)
        if file.is_file() and fingerprint(file) == arrays:
            return True
        if os.path.lexists(file):
            warnings.warn(f"{file} is damaged (its checksum does not fit): {job} is run again", stacklevel=2)
            file.unlink()
        return False

    def _clear(self, checkpoints: Collection[str]) -> None:
        for pattern in checkpoints:
            for file in (self.folder / CHECKPOINT).glob(pattern):
                file.unlink()
        others = {row.job for row in self._apart}
        kept = [each for each in marks(self.folder / FINISHED) if each[0] in others]
        self._log.truncate(0)
        if others:
            write_text(self.path, "".join(line(row) for row in self._apart))
            for each in kept:
                self._log.write(mark(*each))
            self._log.flush()
        else:
            self.path.unlink(missing_ok=True)
        for file in {*(self.folder / ARRAYS).glob("*.npz")} - {self._arrays(job) for job in others}:
            file.unlink()

    def _read(self) -> tuple[list[Row], list[str]]:
        """This run's rows in the file, and what was damaged; those of runs beside it are put aside."""
        with warnings.catch_warnings(record=True) as damaged:
            warnings.simplefilter("always")
            rows = read(self.path) if self.path.exists() else []
        self._apart = [row for row in rows if self._is_apart(row)]
        return [row for row in rows if not self._is_apart(row)], [str(each.message) for each in damaged]

    def _recover(self, rows: list[Row], damaged: list[str], resume: bool) -> None:
        runs = (Run(row.experiment, row.preset, row.overrides) for row in rows)
        others = next((found for found in runs if found != self.run), None)
        if others is not None:
            raise CalibrlError(
                f"{self.path} holds rows of another run ({others}), this one is {self.run}; choose another --out, or "
                "--force to replace them"
            )
        if any(not row.job for row in rows):
            raise CalibrlError(
                f"{self.path} holds rows that belong to no job: an older calibrl wrote them, or a run without "
                "--backend; choose another --out, or --force to replace them"
            )
        if not resume and rows:
            raise CalibrlError(
                f"{self.path} holds rows of this run already; --resume to go on with it, --force to replace them, or "
                "choose another --out"
            )
        for row in rows:
            self._rows.setdefault(row.job, {}).setdefault(row.key, row)
        for each in damaged:  # told once somebody is going on with the file: their job is run again
            warnings.warn(each, stacklevel=2)
        for job, count, arrays in marks(self.folder / FINISHED):
            if len(self._rows.get(job, {})) >= count and (not arrays or self._whole(job, arrays)):
                self._finished.add(job)
        # A line cut short stays a line of its own.
        for file in (self.path, self.folder / FINISHED):
            with explain_os_error(file):
                append_text(file, "")


def save_figures(figures: Mapping[str, Figure], folder: Path, *, dpi: int = 130) -> list[Path]:
    """Write figures as PNG files by name, without upper and right spines, whole or not at all, and forget them."""
    import matplotlib.pyplot as plt

    from calibrl.plots import tidy

    files = []
    for name, figure in figures.items():
        tidy(figure)
        # A problem's name in it may be a file's, with a label that may have any letter.
        files.append(folder / (re.sub(r"[/\\:\x00-\x1f]+", "-", name) + ".png"))
        with explain_os_error(files[-1]), replacing(files[-1]) as temporary:
            figure.savefig(temporary, dpi=dpi, format="png")
        plt.close(figure)
    return files

"""The folder of one run: its rows, which jobs are finished, and what figures need that rows do not hold.

`rows.jsonl` is appended to, a row at a time; `finished.log` gets a line when a job has ended and its rows are on the
disk; `kept/` holds arrays. A job without its line is run again; the rows it had written are not written twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.files import lock, replacing, said_if_not_written, write_text
from calibrl.runs.rows import Row, append_text, line, make_folder, read

Arrays = Mapping[str, NDArray[Any]]
FINISHED, KEPT = "finished.log", "kept"
CHECKPOINT = "checkpoint"
"""Where runs without workers save what they would go on from: replaced rows must not come back from there."""


class Run(NamedTuple):
    """What a run is: rows of two runs do not mix."""

    experiment: str
    preset: str
    overrides: Mapping[str, Any]

    def __str__(self) -> str:
        parts = [self.experiment, self.preset, *(f"{name}={value}" for name, value in self.overrides.items())]
        return " ".join(filter(None, parts))


class Store:
    """An open folder that this process alone writes to."""

    def __init__(self, folder: Path, run: Run, *, file: str = "rows.jsonl") -> None:
        self.folder, self.run = folder, run
        self.path = folder / file
        self._rows: dict[str, dict[tuple[Any, ...], Row]] = {}
        self._new: set[tuple[str, tuple[Any, ...]]] = set()
        self._finished: set[str] = set()
        self._file: IO[str] | None = None
        self._log: IO[str] | None = None

    def open(self, *, resume: bool = False, force: bool = False) -> Self:
        """Begin an empty folder, go on with a run's own (`resume`), or replace what is there (`force`)."""
        make_folder(self.folder)
        log = self.folder / FINISHED
        new = not log.exists()
        self._log = log.open("a", encoding="utf-8")
        if not lock(self._log):
            self.close()
            raise CalibrlError(
                f"{self.folder} is being written to by another run; wait for it, or choose another --out"
            )
        try:
            if force:
                self._clear()
            elif self.path.exists():
                self._recover(resume)
            self._file = self.path.open("a", encoding="utf-8")
        except BaseException:
            if new:
                log.unlink()
            self.close()
            raise
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others write here."""
        for file in (self._file, self._log):
            if file is not None:
                with suppress(OSError):  # of a disk that is full, which was said when it refused a row
                    file.close()

    def finished(self, job: str) -> bool:
        """Whether all of a job's rows are here."""
        return job in self._finished

    def add(self, job: str, row: Row) -> None:
        """Write a row at once, unless it is here from an earlier attempt at its job."""
        rows, new = self._rows.setdefault(job, {}), (job, row.key)
        if new in self._new:
            raise CalibrlError(f"job {job!r} gave two rows for {row.key}; tell them apart by problem, arm or step")
        self._new.add(new)
        if row.key not in rows:
            rows[row.key] = row
            assert self._file is not None, "open the store first"
            with said_if_not_written(self.path):
                self._file.write(line(row))
                self._file.flush()

    def keep(self, job: str, arrays: Arrays) -> None:
        """Save what figures need."""
        kept = self._kept(job)
        with said_if_not_written(kept), replacing(kept) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def finish(self, job: str) -> None:
        """Mark a job's end, once its rows are on the disk."""
        assert self._file is not None, "open the store first"
        assert self._log is not None, "open the store first"
        mark = {"job": job, "rows": len(self._rows.get(job, {})), "kept": self._kept(job).exists()}
        with said_if_not_written(self.folder):
            os.fsync(self._file.fileno())
            self._log.write(json.dumps(mark, ensure_ascii=False) + "\n")
            self._log.flush()
            os.fsync(self._log.fileno())
        self._finished.add(job)

    def rows(self, jobs: Iterable[str]) -> list[Row]:
        """The rows of some jobs, in the order of the jobs."""
        return [row for job in jobs for row in self._rows.get(job, {}).values()]

    def kept(self, job: str) -> Arrays:
        """What a job kept; nothing if it kept nothing."""
        if not self._kept(job).exists():
            return {}
        with np.load(self._kept(job), allow_pickle=False) as file:
            return dict(file)

    def put_in_order(self, jobs: Sequence[str]) -> None:
        """Have the file as one process alone would have written it, job after job, whoever finished first."""
        known = set(jobs)
        text = "".join(line(row) for row in self.rows([*jobs, *(job for job in self._rows if job not in known)]))
        if text.encode() != self.path.read_bytes():
            assert self._file is not None, "open the store first"
            self._file.close()
            with said_if_not_written(self.path):
                write_text(self.path, text)
            self._file = self.path.open("a", encoding="utf-8")

    def _kept(self, job: str) -> Path:
        # Readable, and different for names that differ only in what a file's name cannot hold.
        words = re.sub(r"[^\w.]+", "-", job).strip("-")[:80]
        return self.folder / KEPT / f"{words}-{hashlib.sha256(job.encode()).hexdigest()[:6]}.npz"

    def _clear(self) -> None:
        self.path.unlink(missing_ok=True)
        for name in (KEPT, CHECKPOINT):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        assert self._log is not None, "open the store first"
        self._log.truncate(0)

    def _recover(self, resume: bool) -> None:
        with warnings.catch_warnings(record=True) as damaged:
            warnings.simplefilter("always")
            rows = read(self.path)
        others = next((found for row in rows if (found := _run_of(row)) != self.run), None)
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
            warnings.warn(str(each.message), stacklevel=2)
        for job, count, kept in _marks(self.folder / FINISHED):
            if len(self._rows.get(job, {})) >= count and (self._kept(job).exists() or not kept):
                self._finished.add(job)
        # A line cut short stays a line of its own.
        for file in (self.path, self.folder / FINISHED):
            with said_if_not_written(file):
                append_text(file, "")


def _run_of(row: Row) -> Run:
    return Run(row.experiment, row.preset, row.overrides)


def _marks(log: Path) -> Iterator[tuple[str, int, bool]]:
    for text in log.read_bytes().splitlines():
        try:
            mark = json.loads(text)
            yield str(mark["job"]), int(mark["rows"]), bool(mark["kept"])
        except (ValueError, TypeError, KeyError):
            continue

"""A file of JSON lines. A line is on the disk when `append` returns, and not in the file if it raises."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrl.errors import CalibrlError


class NotKept(CalibrlError):
    """The disk refused, and nothing was learnt: the same call can be made again when the disk is well."""


class Journal:
    """A journal that is open for writing. Lines that are there already stay until `restart`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        # Unbuffered: what a buffer still holds of a line that failed would be written along with the next one.
        self._file = self.path.open("ab", buffering=0)
        self._end = self._file.tell()
        self._torn = False

    @property
    def in_place(self) -> bool:
        """Whether lines still go where they will be looked for: the file was not moved, nor deleted."""
        return self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))

    def append(self, event: dict[str, Any]) -> None:
        """Write one line and see it onto the disk."""
        line = json.dumps(event).encode() + b"\n"
        try:
            if self._torn:
                self._cut()
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except BaseException as problem:
            # Whoever called is told that this failed, so no part of it may be found when the file is read again.
            self._torn = True
            with contextlib.suppress(OSError):
                self._cut()
            if isinstance(problem, OSError):
                raise NotKept(
                    f"{self.path}: cannot be written ({problem.strerror or problem}), so nothing was learnt; make room "
                    "on the disk and repeat the call"
                ) from None
            raise
        self._end += len(line)

    def restart(self) -> None:
        """Drop every line; a file that was moved or deleted is made anew."""
        if not self.in_place:
            self._file.close()
            self._open()
        self._file.truncate(0)
        self._end = 0

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def _cut(self) -> None:
        self._file.truncate(self._end)
        os.fsync(self._file.fileno())
        self._torn = False


def events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a journal with their numbers in the file."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    # What follows the last line break was cut short by a crash, before anyone was told it was learnt.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield number, json.loads(line)
        except ValueError:
            raise damaged(path, number, "is damaged") from None


def damaged(path: Path, number: int, what: str) -> CalibrlError:
    """The error for a line that cannot be learnt."""
    return CalibrlError(
        f"{path}, line {number} {what}; restore the folder from a backup, or delete that line and lose its reward"
    )

"""The files of a policy: plain JSON that any program can read, and a journal of what happened since.

A line of the journal is on the disk when `append` returns, and not in the file if it raises. Each has a checksum, and
the number of the last one stands in a file beside it, so that lines that were cut off are missed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from calibrl.errors import CalibrlError
from calibrl.files import check_regular, in_place, replacing, seal, tail, unseal

SNAPSHOT, JOURNAL, LAST = "policy.json", "journal.jsonl", "journal.last"
"""The files of a folder: a policy as it was after some line, the lines since, and the number of the last of them."""
EVENTS = ("update", "fade", "add", "remove", "decide", "reward")
"""What a line can tell of."""
HEAD = {"line", "generator"}
"""What every line has besides."""


class NotKept(CalibrlError):
    """The disk refused, and nothing was learnt: the same call can be made again when the disk is well."""


class Journal:
    """A journal that is open for writing. Lines that are there already stay until `restart`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        last = self.path.with_name(LAST)
        check_regular(last, "remove it")
        # Unbuffered: what a buffer still holds of a line that failed would be written along with the next one.
        self._file = self.path.open("ab", buffering=0)
        # Written after the line is on the disk, and not waited for: it may lag behind, never run ahead.
        self._last = os.open(last, os.O_WRONLY | os.O_CREAT, 0o666)
        self._end = self._file.tell()
        self._torn = False

    @property
    def in_place(self) -> bool:
        """Whether lines still go where they will be looked for: the file was not moved, nor deleted."""
        return in_place(self.path, self._file)

    def append(self, event: dict[str, Any], *, sync: bool = True) -> None:
        """Write one line and see it onto the disk; without `sync` as far as the system, which outlives the process."""
        line = seal(json.dumps(event)).encode() + b"\n"
        try:
            if self._torn:
                self._cut()
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            if sync:
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
        if not sync:
            return
        with contextlib.suppress(OSError):
            os.lseek(self._last, 0, os.SEEK_SET)
            os.write(self._last, seal(json.dumps({"line": f"{event['line']:020d}"})).encode())

    def restart(self) -> None:
        """Drop every line; a file that was moved or deleted is made anew."""
        if not self.in_place:
            self.close()
            self._open()
        self._file.truncate(0)
        self._end = 0

    def close(self) -> None:
        """Write no more."""
        self._file.close()
        os.close(self._last)

    def _cut(self) -> None:
        self._file.truncate(self._end)
        os.fsync(self._file.fileno())
        self._torn = False


def events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a journal with their numbers in the file."""
    check_regular(path, "restore the folder from a backup")
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    # What follows the last line break was cut short by a crash, before anyone was told it was learnt.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            event, _ = unseal(line)
            if not isinstance(event, dict) or len({*event} & {*EVENTS}) != 1 or {*event} - {*EVENTS} != HEAD:
                raise ValueError("it holds something else than an event")
            if not isinstance(event["line"], int):
                raise ValueError("it has no number")
            yield number, event
        except ValueError as problem:
            raise damaged(path, number, f"is damaged ({problem})") from None


def last_line(folder: Path) -> int:
    """The number of the last line that was acknowledged in a folder, as far as is known: 0 if nothing is."""
    file = folder / LAST
    if not file.is_file() or not file.stat().st_size:
        return 0
    try:
        return int(unseal(file.read_bytes())[0]["line"])
    except (ValueError, TypeError, KeyError):
        warnings.warn(f"{file} is damaged, so lines that were cut off {JOURNAL} would not be missed", stacklevel=3)
        return 0


def damaged(path: Path, number: int, what: str) -> CalibrlError:
    """The error for a line that cannot be learnt."""
    return CalibrlError(
        f"{path}, line {number} {what}; restore the folder from a backup, or delete that line and lose its reward"
    )


P = TypeVar("P")
"""A policy: the files do not need to know more."""


def restore(folder: Path, from_plain: Callable[[dict[str, Any]], P]) -> tuple[P, int]:
    """The policy in a folder, snapshot and journal, and the line it has come to. The folder may be in use."""
    file, journal = folder / SNAPSHOT, folder / JOURNAL
    while True:
        before, acknowledged = _version(file), last_line(folder)
        saved = read(file)
        happened = list(events(journal))
        # A snapshot that was written meanwhile has taken lines out of the journal that the older one lacks.
        if _version(file) == before:
            break
    if not isinstance(saved, dict) or saved.keys() != {"line", "policy"} or not isinstance(saved["line"], int):
        raise CalibrlError(f"{file} is damaged or no snapshot of a Durable; restore it from a backup")
    line, plain = saved["line"], saved["policy"]
    policy = from_plain(plain)
    for number, event in happened:
        try:
            if event["line"] > line + 1:
                warnings.warn(
                    f"{journal} goes from line {line} to line {event['line']}: what was learnt between is "
                    f"lost; if a newer {SNAPSHOT} is in a backup, restore that",
                    stacklevel=2,
                )
            if event["line"] > line:
                _repeat(policy, event)
                line = event["line"]
        except (CalibrlError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as problem:
            raise damaged(journal, number, f"cannot be learnt ({problem})") from None
    if line < acknowledged:
        raise CalibrlError(
            f"{journal} ends with line {line}, but line {acknowledged} was acknowledged: what was learnt between is "
            f"lost; restore the folder from a backup, or remove {folder / LAST} to go on without it"
        )
    return policy, line


def _repeat(policy: Any, event: dict[str, Any]) -> None:
    (kind,) = {*event} & {*EVENTS}
    # The others are called as the policy calls them.
    called = {"decide": policy.decisions.add, "add": policy.add_arm, "remove": policy.remove_arm}
    act, what = called.get(kind) or getattr(policy, kind), event[kind]
    _ = act(**what) if isinstance(what, dict) else act(what)
    policy.generator.bit_generator.state = event["generator"]


def _version(file: Path) -> tuple[int, int]:
    """What tells a file from the one that replaces it: a number that is used again, and a time."""
    found = file.stat() if file.exists() else None
    return (found.st_ino, found.st_mtime_ns) if found else (0, 0)


def read(file: Path) -> Any:
    """What a JSON file holds, or an error that says why it cannot be read."""
    cure = "give the path of a policy written by save, or"
    check_regular(file, f"{cure} a Durable's folder")
    if not file.is_file():
        raise CalibrlError(f"{file} does not exist; {cure} a Durable's folder")
    try:
        with file.open("rb") as text:
            # Looked at before memory is asked for: what is no policy may be larger than that.
            if text.read(1) != b"{":
                raise ValueError("it does not begin with {")
            text.seek(0)
            return unseal(text.read())[0]
    except MemoryError:
        raise CalibrlError(f"{file} has {file.stat().st_size} bytes, more than there is memory for") from None
    except ValueError as problem:
        why = f"it is not JSON ({problem})" if isinstance(problem, json.JSONDecodeError) else problem
        raise CalibrlError(
            f"{file} is damaged or no policy: {why}; {cure} restore the file from a backup; one that was edited on "
            "purpose is read without its entry crc"
        ) from None


MANY = 100
"""Decisions that wait are written so many at a time."""


def _pieces(content: Any) -> Iterator[str]:
    """JSON, a row of numbers at a time: between them other threads have their turn, and decisions go on.

    In one piece a thousand arms take seconds, and `dump`, which encodes number by number in Python, ten times as long.
    """
    if isinstance(content, dict) and len(content) > MANY:
        items = iter(content.items())
        start = "{"
        while part := dict(itertools.islice(items, MANY)):
            yield start + json.dumps(part)[1:-1]
            start = ", "
        yield "}"
    elif isinstance(content, dict):
        yield "{"
        for i, (key, value) in enumerate(content.items()):
            yield f"{', ' if i else ''}{json.dumps(key)}: "
            yield from _pieces(value)
        yield "}"
    elif isinstance(content, list) and content and isinstance(content[0], list):
        yield "["
        for i, row in enumerate(content):
            yield f"{', ' if i else ''}{json.dumps(row)}"
        yield "]"
    else:
        yield json.dumps(content)


def write(content: dict[str, Any], path: str | Path) -> None:
    """Write JSON with its checksum, whole or not at all, and see it onto the disk."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        crc, held = 0, ""
        for piece in _pieces(content):
            # The last piece is the bracket that the checksum comes before.
            crc = zlib.crc32(held.encode(), crc)
            file.write(held)
            held = piece
        file.write(tail(crc))

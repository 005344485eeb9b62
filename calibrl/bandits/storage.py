"""A file of JSON lines. A line is on the disk when `append` returns, and not in the file if it raises.

A policy as plain JSON: numbers, lists and names that any program can read.

What is kept of a regression are its sums Σ x xᵀ and Σ x r; the inverse follows from them. The live policy is
therefore inverted afresh as well (`settle`), and from there on the two take the same decisions, bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from calibrl.bandits.arms import Arms
from calibrl.bandits.policy import Exploration, Options, Policy
from calibrl.errors import CalibrlError
from calibrl.files import replacing, said_if_no_place


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


FORMAT = "calibrl bandit 1"
SNAPSHOT, JOURNAL = "policy.json", "journal.jsonl"
"""The files of a folder: a policy as it was after some line, and the lines since."""


def to_dict(policy: Policy) -> dict[str, Any]:
    """All of a policy that is settled, as plain values."""
    state = policy.state
    return {
        "format": FORMAT,
        "options": asdict(policy.options),
        "arms": list(policy.arms),
        "removed": list(policy.removed),
        "generator": policy.generator.bit_generator.state,
        "rows": state.rows.tolist(),
        "gram": state.gram.tolist(),
        "moment": state.moment.tolist(),
        "pulls": state.pulls.tolist(),
        "error": state.error.tolist(),
        "shift": state.shift.tolist(),
        "record": [policy.record(arm).tolist() for arm in policy.arms],
    }


def from_dict(saved: dict[str, Any]) -> Policy:
    """The policy that `to_dict` described."""
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        found = saved.get("format") if isinstance(saved, dict) else type(saved).__name__
        raise CalibrlError(f"a saved policy of format {found!r} cannot be read; expected {FORMAT!r}")
    try:
        options = dict(saved["options"])
        policy = Policy(saved["arms"], Options(**{**options, "plan": Exploration(**options["plan"])}))
        policy.offer = Arms(policy.arms, tuple(saved["removed"]))
        policy.generator.bit_generator.state = saved["generator"]
        state = policy.state
        for name in ("rows", "gram", "moment", "pulls", "error", "shift"):
            part = getattr(state, name)
            part[...] = _numbers(saved[name], part.dtype).reshape(part.shape)
        for a, (arm, values) in enumerate(zip(policy.arms, saved["record"], strict=True)):
            seen, record = int(state.pulls[a]), _numbers(values, np.float64)
            if len(record) != min(seen, policy.options.window):
                raise CalibrlError(f"arm {arm!r} has {seen} rewards but a record of {len(record)}")
            policy.put_record(a, record)
    except (KeyError, TypeError, ValueError) as problem:
        raise CalibrlError(f"the saved policy is damaged ({problem}); restore the file from a backup") from None
    policy.settle()
    return policy


def save(policy: Policy, path: str | Path) -> None:
    """Write a policy to a file, whole or not at all, and see it onto the disk."""
    policy.settle()
    with said_if_no_place(path):
        _write(to_dict(policy), path)


def load(path: str | Path) -> Policy:
    """The policy in a file that `save` wrote, in a snapshot of a `Durable`, or in a `Durable`'s whole folder."""
    file = Path(path)
    if file.is_dir():
        return restore(file)[0]
    saved = _read(file)
    return from_dict(saved["policy"] if isinstance(saved, dict) and saved.keys() == {"line", "policy"} else saved)


def snapshot(plain: dict[str, Any], folder: Path, line: int) -> None:
    """Write the policy that `to_dict` described, as it is after that line of its journal."""
    _write({"line": line, "policy": plain}, folder / SNAPSHOT)


def restore(folder: Path) -> tuple[Policy, int]:
    """The policy in a folder, snapshot and journal, and the line it has come to. The folder may be in use."""
    file = folder / SNAPSHOT
    while True:
        before = _version(file)
        saved = _read(file)
        happened = list(events(folder / JOURNAL))
        # A snapshot that was written meanwhile has taken lines out of the journal that the older one lacks.
        if _version(file) == before:
            break
    try:
        line, plain = saved["line"], saved["policy"]
    except (KeyError, TypeError) as problem:
        raise CalibrlError(f"{file} is damaged ({problem}); restore it from a backup") from None
    policy = from_dict(plain)
    for number, event in happened:
        try:
            if event["line"] > line + 1:
                warnings.warn(
                    f"{folder / JOURNAL} goes from line {line} to line {event['line']}: what was learnt between is "
                    f"lost; if a newer {SNAPSHOT} is in a backup, restore that",
                    stacklevel=2,
                )
            if event["line"] > line:
                _repeat(policy, event)
                line = event["line"]
        except (CalibrlError, KeyError, TypeError, ValueError) as problem:
            raise damaged(folder / JOURNAL, number, f"cannot be learnt ({problem})") from None
    return policy, line


def _repeat(policy: Policy, event: dict[str, Any]) -> None:
    if "update" in event:
        policy.update(**event["update"])
    elif "fade" in event:
        policy.fade(event["fade"])
    elif "add" in event:
        policy.add_arm(event["add"])
    else:
        policy.remove_arm(event["remove"])
    policy.generator.bit_generator.state = event["generator"]


def _version(file: Path) -> tuple[int, int]:
    """What tells a file from the one that replaces it: a number that is used again, and a time."""
    found = file.stat() if file.exists() else None
    return (found.st_ino, found.st_mtime_ns) if found else (0, 0)


def _read(file: Path) -> Any:
    if not file.is_file():
        raise CalibrlError(f"{file} does not exist; give the path of a policy written by save, or a Durable's folder")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise CalibrlError(
            f"{file} is damaged or no policy: it is not JSON ({problem}); give the path of a policy written by save, "
            "or restore the file from a backup"
        ) from None


def _numbers(values: Any, dtype: DTypeLike) -> NDArray[Any]:
    found = np.asarray(values, dtype)
    if not np.isfinite(found).all():
        raise CalibrlError(f"it holds {found[~np.isfinite(found)][0]}")
    return found


def _pieces(content: Any) -> Iterator[str]:
    """JSON, a row of numbers at a time: between them other threads have their turn, and decisions go on.

    In one piece a thousand arms take seconds, and `dump`, which encodes number by number in Python, ten times as long.
    """
    if isinstance(content, dict):
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


def _write(content: dict[str, Any], path: str | Path) -> None:
    """Write JSON, whole or not at all, and see it onto the disk."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_pieces(content))
        file.flush()
        os.fsync(file.fileno())

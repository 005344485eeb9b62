"""Files that are whole or not there, that say when they were damaged, and that one process writes to."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from calibrl.errors import CalibrlError

# Writing.


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not.

    Its name ends in `.tmp`: who writes by suffix has to say the format.
    """
    with replacing_all([path]) as (temporary,):
        yield temporary


@contextlib.contextmanager
def replacing_all(paths: Sequence[str | Path]) -> Iterator[list[Path]]:
    """Temporary paths that take the places of several files together: all of them, or none if one cannot.

    A link stays one: what it leads to is replaced.
    """
    targets = [Path(os.path.realpath(path)) for path in paths]
    with contextlib.ExitStack() as stack:
        temporary = [stack.enter_context(_temporary(target)) for target in targets]
        yield temporary
        for path, target in zip(temporary, targets, strict=True):
            if target.exists():
                path.chmod(target.stat().st_mode & 0o777)  # not to run as its owner: that may be another now
            _sync(path)
        _move(temporary, targets, stack)
        for folder in dict.fromkeys(target.parent for target in targets):
            # Without this a power cut may bring the old name back, or none.
            _sync(folder)


def _move(temporary: Sequence[Path], targets: Sequence[Path], stack: contextlib.ExitStack) -> None:
    """Rename each to its target; where one cannot be, those before it are put back as they were."""
    before: list[tuple[Path, Path | None]] = []
    try:
        for path, target in zip(temporary, targets, strict=True):
            kept = None
            if len(targets) > 1 and target.is_file():
                kept = stack.enter_context(_temporary(target))
                shutil.copy2(target, kept)
            path.replace(target)
            before.append((target, kept))
    except BaseException:
        for target, kept in before:
            if kept is None:
                target.unlink(missing_ok=True)
            else:
                kept.replace(target)
        raise


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """An empty file beside `target` that no reader of tables, rows or figures takes for one; removed if still there."""
    check_regular(target, "give the path of a file")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not all of a long name: a disk has room for 255 bytes.
    path = target.parent / f".{target.name[:50]}.{secrets.token_hex(4)}.tmp"
    mode = target.stat().st_mode & 0o666 if target.exists() else 0o666
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "r") as file:
        try:
            lock(file)  # so that `sweep` leaves it alone
            yield path
        finally:
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """See a file, or the names in a folder, onto the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders, and a file may be for others to read
        return
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a disk that knows no such thing
            raise
    finally:
        os.close(handle)


_LEFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp|\..+(\.\w+)\.[a-z0-9_]{8}\1")
"""Names of temporary files, and what they were before: with the suffix of their target."""


def sweep(folder: Path) -> None:
    """Remove the temporary files that processes left in a folder when they were killed."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _LEFT.fullmatch(path.name) and path.is_file():
            # One that is put in its place, or removed, just now; or somebody else's.
            with contextlib.suppress(OSError), path.open(encoding="utf-8") as file:
                if lock(file):
                    path.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


# Reading.


def hidden(path: Path, root: Path) -> bool:
    """Whether a path below `root` is one that readers pass by: temporary files, what editors and notebooks keep."""
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, there or not yet, by whatever links."""
    # Not Path.resolve, which raises an error where links lead in a circle.
    return os.path.realpath(one) == os.path.realpath(other) or (one.exists() and other.exists() and one.samefile(other))


def fingerprint(*paths: str | Path) -> str:
    """The names of files and the beginnings of their checksums: what was computed from them holds for no others."""
    return ", ".join(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" for path in map(Path, paths))


def check_regular(path: Path, cure: str) -> None:
    """Refuse what is there but is no regular file: a pipe or a device is read, or waited for, without end."""
    if os.path.lexists(path) and not path.is_file():
        raise CalibrlError(f"{path} is {'a folder' if Path(path).is_dir() else 'no regular file'}; {cure}")


def seal(text: str) -> str:
    """A JSON object, as text, with its checksum as a last entry `crc`."""
    return text[:-1] + tail(zlib.crc32(text[:-1].encode()))


def tail(crc: int) -> str:
    """How a sealed JSON object ends whose text before that has this CRC-32."""
    return f', "crc": "{crc:08x}"}}'


def unseal(text: bytes) -> tuple[Any, bool]:
    """What a JSON text holds, without its checksum, and whether it had one; ValueError if that does not fit."""
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or "crc" not in values:
            return json.loads(text, object_pairs_hook=_each_once), False
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    del values["crc"]
    whole = text.rstrip()
    body = whole[: -len(tail(0))]
    if whole != body + tail(zlib.crc32(body)).encode():
        raise ValueError("its checksum does not fit")
    return values, True


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that an object has twice, as one may that was edited by hand: only the last would count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found


# Errors.


@contextlib.contextmanager
def writable(path: str | Path, cure: str = "choose a folder you may write to") -> Iterator[None]:
    """Raise a CalibrlError of one line where a result cannot be written to the `path` that was asked for."""
    try:
        yield
    except OSError as problem:
        raise CalibrlError(f"{path}: cannot be written ({problem.strerror or problem}); {cure}") from None


explain_os_error = functools.partial(writable, cure="what was written before is whole: make room, and go on from there")
"""The same for a disk that does not take what a run writes to it."""


# One process at a time.

LOCK = "lock"
"""The file in a folder that whoever writes there holds, a run or a policy."""


def lock_folder(folder: Path) -> IO[str] | None:
    """Keep a folder to this process until `unlock_folder`, or the process dies; None if another one has it."""
    check_regular(folder / LOCK, "remove it, or choose another folder")
    while True:
        file = (folder / LOCK).open("a", encoding="utf-8")
        if not lock(file):
            file.close()
            return None
        # Whoever had it last removed it: this may be a file that nobody else can find.
        if in_place(folder / LOCK, file):
            return file
        file.close()


def unlock_folder(folder: Path, file: IO[str]) -> None:
    """Let others write to a folder."""
    with contextlib.suppress(OSError):
        if in_place(folder / LOCK, file):
            (folder / LOCK).unlink()
    file.close()


def in_place(path: Path, file: IO[Any]) -> bool:
    """Whether an open file is still the one at its path: it was not moved, nor deleted."""
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


def lock(file: IO[str]) -> bool:
    """Keep an open file to this process until it is closed, or the process dies; False if another one has it.

    Windows and some network disks have no such lock: there one process at a time is a promise.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True

"""Files that are whole or not there, and that one process writes to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from calibrl.errors import CalibrlError


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    os.close(handle)
    try:
        yield Path(name)
        # mkstemp is private to its owner; a result should be readable like any other file.
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def explain_os_error(path: Path) -> Iterator[None]:
    """Raise a CalibrlError of one line where the disk does not take what the block writes to `path`."""
    try:
        yield
    except OSError as problem:
        raise CalibrlError(
            f"{path} cannot be written ({problem.strerror or problem}); what was written before is whole: make room, "
            "and go on from there"
        ) from None


@contextlib.contextmanager
def writable(path: str | Path) -> Iterator[None]:
    """Raise a CalibrlError of one line where a result cannot be written to the `path` that was asked for."""
    try:
        yield
    except OSError as problem:
        raise CalibrlError(
            f"{path}: cannot be written ({problem.strerror or problem}); choose a folder you may write to"
        ) from None


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

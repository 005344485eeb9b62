"""Rows of results: typed, append-only, and whole after a crash.

One JSON object per line. A run appends rows as it goes and flushes each to disk; a line cut short by a crash
is reported and skipped when the file is read, and everything before it stands.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from calibrl import __version__
from calibrl.errors import CalibrlError

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "gymnasium", "mujoco")


@dataclass(frozen=True)
class Row:
    """One measurement: which experiment, problem and arm, which seed and step, and the numbers."""

    experiment: str
    problem: str
    arm: str
    seed: int
    metrics: dict[str, float]
    step: int = 0
    preset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str, int, int]:
        """What makes the row the one it is, whatever its numbers."""
        return (self.experiment, self.preset, self.problem, self.arm, self.seed, self.step)


def origin() -> dict[str, Any]:
    """Where rows come from: command, code and package versions, machine, time."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": " ".join(["calibrl", *sys.argv[1:]]),
        "version": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": versions,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
    }


def append(path: str | Path, rows: Iterable[Row]) -> None:
    """Add rows to a file and see them onto the disk."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise CalibrlError(f"{target.parent} is a file, but rows go into a folder; choose another --out") from None
    text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
    with target.open("a", encoding="utf-8") as file:
        if file.tell() and not _ends_whole(target):
            file.write("\n")  # a crash cut the last line short: start a fresh one
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read(path: str | Path) -> list[Row]:
    """All rows of a file, or of every .jsonl file under a folder; damaged lines are reported and skipped."""
    root = Path(path)
    files = sorted(root.rglob("*.jsonl")) if root.is_dir() else [root]
    return [row for file in files for row in _read_file(file)]


def _read_file(file: Path) -> Iterator[Row]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield Row(**json.loads(line))
        except (TypeError, ValueError):
            warnings.warn(f"{file}, line {number}: damaged row skipped", stacklevel=2)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _commit() -> str:
    # A machine may have the files without their history; who sent them knows which commit they are.
    if "CALIBRL_COMMIT" in os.environ:
        return os.environ["CALIBRL_COMMIT"]
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()

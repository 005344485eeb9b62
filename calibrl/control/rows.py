"""The rows of a control run's folder, which agents that plan and SAC may share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from calibrl.control.policy import Member
from calibrl.control.problems import overrides
from calibrl.control.settings import ControlSettings
from calibrl.errors import CalibrlError
from calibrl.files import explain_os_error, write_text
from calibrl.runs.rows import Row, append, line, read


def clear(out: Path, mine: Callable[[Row], bool], *, agents: str) -> None:
    """Remove an earlier run's rows and its agents' files; rows of others, SAC's for instance, stay."""
    # Agents first: without them nobody can bring the rows back.
    for saved in (out / "checkpoint").glob(agents):
        saved.unlink()
    file = out / "rows.jsonl"
    if file.exists():
        with explain_os_error(file):
            write_text(file, "".join(line(row) for row in read(file) if not mine(row)))


def refuse_others(file: Path, begin: Collection[Member], preset: ControlSettings) -> None:
    """Refuse a file with rows of agents that begin only now, made with other settings: both cannot be in one file."""
    names, mine = {(member.arm.name, member.seed) for member in begin}, overrides(preset)
    for row in read(file) if begin and file.exists() else ():
        if (row.arm, row.seed) in names and row.overrides != mine:
            raise CalibrlError(
                f"{file} has rows of {row.arm}-{row.seed} made with {row.overrides}, this run has {mine}; choose "
                "another --out, or --force to replace them"
            )


def append_missing(file: Path, rows: Sequence[Row]) -> None:
    """Append the rows that are not in the file yet: none is lost and none counts twice."""
    known = {row.key for row in read(file)} if file.exists() else set()
    missing = [row for row in rows if row.key not in known]
    if missing:
        with explain_os_error(file):
            append(file, missing)

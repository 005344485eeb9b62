"""Where a run stands, on disk after every trial: one file for each agent, whole or not there.

An agent's file holds all that its future depends on and the rows it has earned so far, so that a run that was
killed ends with the rows it would have had. Agents may go on in other company than they were saved in.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from calibrl.control.policy import Member
from calibrl.control.settings import with_defaults
from calibrl.errors import CalibrlError, first_line
from calibrl.files import explain_os_error, replacing

FORMAT = "calibrl control 2"


def save(folder: Path, members: Sequence[Member], trial: int, states: Sequence[Any], identity: dict[str, Any]) -> None:
    """Write every agent's state after a trial; what they had before goes only when all of this is there."""
    for member, state in zip(members, states, strict=True):
        write(_file(folder, member, trial), {**identity, **_who(member)}, trial, state)
    for member in members:
        for older in sorted(_trials(folder, member) - {trial}):
            _file(folder, member, older).unlink()


def load(folder: Path, member: Member, trial: int, identity: dict[str, Any]) -> Any:
    """The state that `save` wrote, if it is of the same task and settings."""
    return read(_file(folder, member, trial), {**identity, **_who(member)})


def write(file: Path, identity: dict[str, Any], trial: int, state: Any) -> None:
    """One agent's state, with what it must not be mistaken for."""
    keep(file, {"format": FORMAT, "identity": identity, "trial": trial, "state": state})


def keep(file: Path, content: Any) -> None:
    """Write what `torch.load` reads, whole or not at all, and see it onto the disk."""
    # In memory first: where a disk is full, torch itself fails in words that say nothing of it.
    packed = io.BytesIO()
    torch.save(content, packed)
    with explain_os_error(file), replacing(file) as temporary, temporary.open("wb") as stream:
        stream.write(packed.getbuffer())
        stream.flush()
        os.fsync(stream.fileno())


def read(file: Path, identity: dict[str, Any], *, whatever: Sequence[str] = ()) -> Any:
    """The state in a file, if it is of the same identity; otherwise an error that names what differs.

    whatever: names that may differ.
    """
    if not file.is_file():
        raise CalibrlError(f"{file} does not exist; give the path of a saved agent")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        found, state, form = content["identity"], content["state"], content["format"]
    except Exception as problem:  # torch.load raises whatever a damaged file makes it raise
        cure = "remove it to start this agent afresh"
        raise CalibrlError(f"{file} cannot be read ({first_line(problem)}); {cure}") from None
    if form != FORMAT:
        raise CalibrlError(f"{file} has format {form!r}, expected {FORMAT!r}; choose another place")
    compared = {name: part for name, part in with_defaults(found).items() if name not in whatever}
    difference = _difference(identity, compared)
    if difference:
        name, wanted, there = difference
        raise CalibrlError(
            f"{file} was made with {name} {there!r}, this run has {wanted!r}; use the same settings or another place"
        )
    return state


def together(folder: Path, members: Sequence[Member]) -> list[tuple[int | None, list[Member]]]:
    """Agents that can go on side by side: (the trial they have all done, or None for none; the agents)."""
    for member in members:
        # What a run that was killed had not finished writing.
        for left in folder.glob(f".{member.name}.*"):
            left.unlink()
    have = {member: _trials(folder, member) for member in members}
    started = [member for member in members if have[member]]
    # After a crash between two files some agents are a trial ahead; what they had before it is still there.
    common = set.intersection(*(have[member] for member in started)) if started else set()
    groups: dict[int | None, list[Member]] = {}
    for member in members:
        at = None if not have[member] else max(common or have[member])
        groups.setdefault(at, []).append(member)
    return list(groups.items())


def _who(member: Member) -> dict[str, Any]:
    return {"arm": member.arm.name, "seed": member.seed}


def _file(folder: Path, member: Member, trial: int) -> Path:
    return folder / f"{member.name}.trial-{trial}.pt"


def _trials(folder: Path, member: Member) -> set[int]:
    """Trials after which the agent was saved and is still there."""
    pattern = re.compile(re.escape(member.name) + r"\.trial-(\d+)\.pt")
    return {int(match[1]) for path in folder.glob("*.pt") if (match := pattern.fullmatch(path.name))}


def _difference(wanted: Any, found: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The first setting in which two identities differ."""
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return None if wanted == found else (name, wanted, found)
    for key in dict.fromkeys([*wanted, *found]):
        path = f"{name}.{key}" if name else key
        difference = _difference(wanted.get(key), found.get(key), path)
        if difference:
            return difference
    return None

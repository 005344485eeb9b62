"""Where a run stands, on disk after every trial: one file for each agent, whole or not there.

An agent's file holds all that its future depends on, as plain tensors and numbers, and the rows it has earned so far,
so that a run that was killed ends with the rows it would have had. Each is saved on its own, so that it may go on in
another fleet: whole, or as what it lived through, from which all that it learnt can be learnt again.
"""

from __future__ import annotations

import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrl.control.policy import Fleet, Member
from calibrl.data import Data
from calibrl.errors import CalibrlError, first_line
from calibrl.files import explain_os_error, replacing, sweep
from calibrl.forecasters.ensemble import views
from calibrl.maps import IDENTITY, map_from_dict

FORMAT = "calibrl control 3"


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
    """Write what `torch.load` reads, and behind it a checksum; whole or not at all."""
    # In memory first: where a disk is full, torch itself fails in words that say nothing of it.
    packed = io.BytesIO()
    torch.save(content, packed)
    with explain_os_error(file), replacing(file) as temporary, temporary.open("wb") as stream:
        stream.write(packed.getbuffer())
        stream.write(_seal(packed.getbuffer()))


def unpack(file: Path) -> Any:
    """What `keep` wrote, tensors on the CPU; whatever error a file makes that is damaged or was written by others.

    Only tensors and plain values are read: no file can have code run.
    """
    whole = file.read_bytes()
    _check(whole)
    with zipfile.ZipFile(io.BytesIO(whole)) as parts:
        if sum(part.file_size for part in parts.infolist()) > len(whole):
            raise ValueError("it unpacks to more than it holds")
    content = torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True)
    _expect_plain(content)
    return content


def _expect_plain(content: Any) -> None:
    """Refuse tensors that no agent has, and those that are larger than what the file holds of them."""
    waiting, seen = [content], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            plain = part.layout is torch.strided and part.device.type == "cpu"
            if (
                not plain
                or part.is_quantized
                or part.requires_grad
                or part.numel() * part.itemsize > part.untyped_storage().nbytes()
            ):
                raise ValueError("a tensor in it is none of numbers alone, or larger than what there is of it")
        elif isinstance(part, dict | list | tuple | set) and id(part) not in seen:
            seen.add(id(part))
            waiting += [*part, *(part.values() if isinstance(part, dict) else ())]


_SEAL = b"calibrl crc "


def _seal(packed: bytes | memoryview) -> bytes:
    return _SEAL + b"%08x" % zlib.crc32(packed)


def _check(whole: bytes) -> None:
    """Raise an error if the bytes of a file are not those that were written."""
    length = len(_seal(b""))
    body, end = memoryview(whole)[:-length], whole[-length:]
    if end != _seal(body):
        raise ValueError("its checksum does not fit" if end.startswith(_SEAL) else "it was cut short")


def drop_damaged(file: Path) -> bool:
    """Remove a file that is damaged, with a warning, so that the job which it is of begins anew; whether it was."""
    try:
        _check(file.read_bytes())
    except Exception as problem:  # zipfile raises whatever a damaged file makes it raise
        warnings.warn(f"{file} is damaged ({first_line(problem)}): what it held is done again", stacklevel=2)
        file.unlink()
        return True
    return False


def read(file: Path, identity: dict[str, Any], *, whatever: Sequence[str] = ()) -> Any:
    """The state in a file, if it is of the same identity; otherwise an error that names what differs.

    whatever: names that may differ.
    """
    if not file.is_file():
        raise CalibrlError(f"{file} does not exist; give the path of a saved agent")
    try:
        content = unpack(file)
        found, state, form = content["identity"], content["state"], content["format"]
        compared = {name: part for name, part in found.items() if name not in whatever}
        difference = _difference(identity, compared)
    except Exception as problem:  # torch.load raises whatever a damaged file makes it raise
        why = first_line(problem)
        raise CalibrlError(f"{file} cannot be read ({why}); remove it to start this agent afresh") from None
    if form != FORMAT:
        raise CalibrlError(f"{file} has format {form!r}, expected {FORMAT!r}; choose another place")
    if difference:
        name, wanted, there = difference
        raise CalibrlError(
            f"{file} was made with {name} {there!r}, this run has {wanted!r}; use the same settings or another place"
        )
    return state


def together(folder: Path, members: Sequence[Member]) -> list[tuple[int | None, list[Member]]]:
    """Agents that can go on side by side: (the trial they have all done, or None for none; the agents).

    Files that are damaged are removed: an agent then goes on from an older one, or begins anew.
    """
    sweep(folder)
    for member in members:
        for trial in _trials(folder, member):
            drop_damaged(_file(folder, member, trial))
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


_OF_ROWS = ("x", "y", "last", "held", "came")
_STREAMS = ("exploring", "planning", "splitting")
_MOMENTS = ("exp_avg", "exp_avg_sq")


def agent_state(fleet: Fleet, agent: int, *, light: bool = False) -> dict[str, Any]:
    """Networks, Adam, map, rows and their units, random states, plan and errors in progress of one agent, on the CPU.

    light: only what it lived through, a small part: `relearn` makes the rest of it.
    """
    one = slice(agent, agent + 1)
    rows, scales = _rows(fleet, one), fleet.view.scales
    state: dict[str, Any] = {
        "streams": {name: getattr(fleet, name)[agent].get_state() for name in _STREAMS},
        "start": fleet.inputs.start[one],
        "elites": fleet.inputs.elites[one],
        "scales": None if scales is None else vars(scales),
        "errors": [] if fleet.following is None else [buffer[one] for buffer in fleet.following.buffers],
    }
    if light:
        state["rows"] = {name: rows[name] for name in ("x", "y", "last")}
        state["trials"] = rows["came"][0].bincount().tolist()
    else:
        ensemble, mapping = fleet.ensemble, fleet.maps[agent]
        saved = ensemble.state_dict()
        adam = {
            name: [part[one] for part in views(saved["adam"][name], ensemble.nets.parameters())] for name in _MOMENTS
        }
        state |= {
            "nets": ensemble.nets.agent(agent).state_dict(),
            "adam": {"step": saved["adam"]["step"], **adam},
            "residual": saved["residual"][one],
            "training": saved["generators"][agent],
            "rows": rows,
            "map": None if mapping is IDENTITY else mapping.to_dict(),
            "evidence": fleet.model.evidence[agent].state_dict(),
            "learnt": fleet.learnt,
        }
    copied: dict[str, Any] = _copied(state)
    return copied


def relearn(fleet: Fleet, states: Sequence[dict[str, Any]], on_trial: Callable[[int, int], None]) -> None:
    """Let a fleet that has learnt nothing live through what the agents remember, and go on where they stood.

    Chance is drawn as it was then: networks, maps and what is held out come out the same. `on_trial(number, last)`
    hears of every trial that was learnt.
    """
    _check_states(fleet, states)
    rows = (torch.cat([state["rows"][name] for state in states]) for name in ("x", "y", "last"))
    # Of an agent that was saved either way.
    first = states[0]
    sizes = first["trials"] if "trials" in first else first["rows"]["came"][0].bincount().tolist()
    trials = zip(*(part.split(sizes, 1) for part in rows), strict=True)
    for number, (x, y, last) in enumerate(trials):
        fleet.update(Data(x, y, last=last))
        on_trial(number, len(sizes) - 1)
    _go_on(fleet, states)


def load_agents(fleet: Fleet, states: Sequence[dict[str, Any]]) -> None:
    """Put agents that have learnt equally long into a fleet of as many."""
    _check_states(fleet, states)
    ensemble = fleet.ensemble
    adam: dict[str, Tensor] = {"step": states[0]["adam"]["step"]}
    for name in _MOMENTS:
        parts = zip(*(state["adam"][name] for state in states), strict=True)
        adam[name] = torch.cat([torch.cat(part).flatten() for part in parts])
    nets = {name: _stacked([state["nets"][name] for state in states]) for name in states[0]["nets"]}
    model = fleet.model
    x, y, last, model.held, model.came = (torch.cat([state["rows"][name] for state in states]) for name in _OF_ROWS)
    rows = Data(x, y, last=last)
    model.rows = rows if len(rows) else None
    taught = rows[~model.held] if len(rows) else rows
    ensemble.load_state_dict(
        {
            "nets": nets,
            "adam": adam,
            "residual": torch.cat([state["residual"] for state in states]),
            "generators": [state["training"] for state in states],
            "x": taught.x,
            "y": taught.y,
        }
    )
    model.maps = [IDENTITY if state["map"] is None else map_from_dict(state["map"]) for state in states]
    for evidence, state in zip(model.evidence, states, strict=True):
        try:
            evidence.load_state_dict(dict(state["evidence"]))
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise _damaged(first_line(problem)) from None
    model.updates = states[0]["learnt"]
    fleet.show_to_planner()
    _go_on(fleet, states)


def _go_on(fleet: Fleet, states: Sequence[dict[str, Any]]) -> None:
    """Units, random streams and plans, as they were."""
    # What an environment shows when it is probed again may differ; rows stay in the units they were learnt in.
    if fleet.view.scales is not None:
        fleet.view.scales.load(states[0]["scales"])
        fleet.forget_planner()  # a kernel has its units written into it
    for name in _STREAMS:
        for generator, state in zip(getattr(fleet, name), states, strict=True):
            generator.set_state(state["streams"][name])
    fleet.inputs.start.copy_(torch.cat([state["start"] for state in states]))
    fleet.inputs.elites.copy_(torch.cat([state["elites"] for state in states]))
    for place, buffer in enumerate(() if fleet.following is None else fleet.following.buffers):
        for agent, state in enumerate(states):
            # An agent whose errors do not go on may have been saved in a fleet in which nobody's do.
            if state["errors"]:
                buffer[agent] = state["errors"][place][0]


def _rows(fleet: Fleet, one: slice) -> dict[str, Tensor]:
    """What one agent lived through: x (1, n, k), y (1, n, d), ends of episodes, which are held out, and since when."""
    model, view, g = fleet.model, fleet.view, len(fleet)
    rows = model.rows or Data(torch.zeros(g, 0, view.inputs), torch.zeros(g, 0, view.outputs))
    held, came = (model.held, model.came) if model.rows else (rows.last, rows.last.long())
    parts = (rows.x, rows.y, rows.last, held, came)
    return {name: part[one] for name, part in zip(_OF_ROWS, parts, strict=True)}


def _check_states(fleet: Fleet, states: Sequence[dict[str, Any]]) -> None:
    """Refuse states that no agent like the fleet's can have had, before anything is learnt again."""
    for state in states:
        try:
            like = agent_state(fleet, 0, light="nets" not in state)
            if state["streams"]["planning"].shape != like["streams"]["planning"].shape:
                # A GPU's chance and a CPU's do not go on in one another.
                device = fleet.planning[0].device.type
                raise CalibrlError(
                    f"this run was begun on another kind of device than {device}, whose chance cannot be continued "
                    f"there; add --device {'cuda or mps' if device == 'cpu' else 'cpu'}, where it began"
                )
            n = state["rows"]["x"].shape[1]
            like["rows"] = {name: part.new_zeros(1, n, *part.shape[2:]) for name, part in like["rows"].items()}
            for name in like.keys() - {"trials", "map", "evidence"}:
                there, here = state[name], like[name]
                if name in ("elites", "errors"):  # NaN where nothing is known
                    there, here = ([part.nan_to_num() for part in parts] for parts in (there, here))
                # Of agents in a fleet in which nobody's errors go on, none are kept.
                if name != "errors" or (there and here):
                    _expect_alike(there, here, name)
            chance = [(getattr(fleet, name)[0], state["streams"][name]) for name in _STREAMS]
            chance += [(fleet.ensemble.generators[0], state["training"])] if "training" in state else []
            for generator, drawn in chance:
                torch.Generator(generator.device).set_state(drawn)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as problem:
            raise _damaged(first_line(problem)) from None


def _expect_alike(found: Any, like: Any, name: str) -> None:
    """Refuse what is not of the kind and size of `like`, or not finite."""
    if isinstance(like, list) and isinstance(found, list):
        like, found = dict(enumerate(like)), dict(enumerate(found))
    if isinstance(like, Tensor) and not bool(found.isfinite().all()):
        raise _damaged(f"{name} is not finite")
    if type(found) is not type(like) or (isinstance(like, dict) and found.keys() != like.keys()):
        raise _damaged(f"{name} is something else")
    if isinstance(like, Tensor) and (found.shape, found.dtype) != (like.shape, like.dtype):
        raise _damaged(f"{name} has another shape")
    if isinstance(like, dict):
        for key in like:
            _expect_alike(found[key], like[key], f"{name} {key}")


def _damaged(why: str) -> CalibrlError:
    return CalibrlError(f"a saved agent is damaged ({why}); remove its file to start it afresh")


def _stacked(values: Sequence[Any]) -> Any:
    """Agents' values as the fleet's: tensors one below the other, lists place by place; the rest all share."""
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    if isinstance(values[0], list):
        return [_stacked(part) for part in zip(*values, strict=True)]
    return values[0]


def _copied(value: Any) -> Any:
    """The same with every tensor copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value

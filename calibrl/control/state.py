"""All that an agent's future depends on, as plain tensors and numbers: taken out of a fleet, and put into one.

An agent is saved on its own, so that it may go on in other company: whole, or as what it lived through, from which all
that it learnt can be learnt again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from calibrl.control.policy import Fleet
from calibrl.errors import CalibrlError
from calibrl.forecasters.ensemble_training import views
from calibrl.maps import IDENTITY, map_from_dict

_LUCK = ("exploring", "planning", "splitting")
_ROWS = ("x", "y", "held", "batch")
_MOMENTS = ("exp_avg", "exp_avg_sq")


def agent_state(fleet: Fleet, agent: int) -> dict[str, Any]:
    """Networks, Adam, map, rows and their units, random states and the plan in progress of one agent, on the CPU."""
    ensemble = fleet.ensemble
    saved = ensemble.state_dict()
    one = slice(agent, agent + 1)
    adam = {"step": saved["adam"]["step"]}
    for name in _MOMENTS:
        adam[name] = [part[one] for part in views(saved["adam"][name], ensemble.nets.parameters())]
    mapping = fleet.maps[agent]
    state = {
        "nets": ensemble.nets.agent(agent).state_dict(),
        "adam": adam,
        "residual": saved["residual"][one],
        "training": saved["generators"][agent],
        "luck": {name: getattr(fleet, name)[agent].get_state() for name in _LUCK},
        "rows": {name: getattr(fleet.replay, name)[one] for name in _ROWS},
        "map": None if mapping is IDENTITY else mapping.to_dict(),
        "fresh": [z[one] for z in fleet.fresh],
        "surprise": fleet.surprise[one],
        "start": fleet.inputs.start[one],
        "elites": fleet.inputs.elites[one],
        "learnt": fleet.learnt,
        "scales": _scales(fleet),
    }
    copied: dict[str, Any] = _each_tensor(state, lambda part: part.detach().cpu().clone())
    return copied


def agent_memory(fleet: Fleet, agent: int) -> dict[str, Any]:
    """What one agent lived through, a small part of `agent_state`: `relearn` makes the rest of it."""
    one = slice(agent, agent + 1)
    state = {
        "luck": {name: getattr(fleet, name)[agent].get_state() for name in _LUCK},
        "rows": {name: getattr(fleet.replay, name)[one] for name in ("x", "y")},
        "trials": fleet.replay.batch[agent].bincount().tolist(),
        "start": fleet.inputs.start[one],
        "elites": fleet.inputs.elites[one],
        "scales": _scales(fleet),
    }
    copied: dict[str, Any] = _each_tensor(state, lambda part: part.detach().cpu().clone())
    return copied


def relearn(fleet: Fleet, states: Sequence[dict[str, Any]], on_trial: Callable[[int, int], None]) -> None:
    """Let a fleet that has learnt nothing live through what the agents remember, and go on where they stood.

    Chance is drawn as it was then: networks, maps and what is held out come out the same. `on_trial(number, last)`
    hears of every trial that was learnt.
    """
    _refuse_other_device(fleet, states)
    x, y = (torch.cat([state["rows"][name] for state in states]) for name in ("x", "y"))
    sizes = _trial_sizes(states[0])
    trials = zip(x.split(sizes, 1), y.split(sizes, 1), strict=True)
    for number, (new_x, new_y) in enumerate(trials):
        fleet.learn(new_x, new_y)
        on_trial(number, len(sizes) - 1)
    _go_on(fleet, states)


def load_agents(fleet: Fleet, states: Sequence[dict[str, Any]]) -> None:
    """Put agents that have learnt equally long into a fleet of as many."""
    _refuse_other_device(fleet, states)
    ensemble = fleet.ensemble
    adam: dict[str, Tensor] = {"step": states[0]["adam"]["step"]}
    for name in _MOMENTS:
        parts = zip(*(state["adam"][name] for state in states), strict=True)
        adam[name] = torch.cat([torch.cat(part).flatten() for part in parts])
    nets = {name: _stacked([state["nets"][name] for state in states]) for name in states[0]["nets"]}
    replay = fleet.replay
    for name in _ROWS:
        setattr(replay, name, torch.cat([state["rows"][name] for state in states]))
    x, y = replay.training_rows() if len(replay) else (replay.x, replay.y)
    ensemble.load_state_dict(
        {
            "nets": nets,
            "adam": adam,
            "residual": torch.cat([state["residual"] for state in states]),
            "generators": [state["training"] for state in states],
            "x": x,
            "y": y,
        }
    )
    fleet.maps = [IDENTITY if state["map"] is None else map_from_dict(state["map"]) for state in states]
    fleet.fresh = _side_by_side([state["fresh"] for state in states])
    # Agents that were saved before any were wary had no surprises.
    surprises = [list(state.get("surprise", fleet.surprise[:1, :0]).unbind(1)) for state in states]
    found = _side_by_side(surprises)
    fleet.surprise = torch.stack(found, 1) if found else fleet.surprise
    fleet.learnt = states[0]["learnt"]
    fleet.show_networks_to_planner()
    fleet.show_maps_to_planner()
    _go_on(fleet, states)


def _go_on(fleet: Fleet, states: Sequence[dict[str, Any]]) -> None:
    """Units, chance and plans, as they were."""
    # What an environment shows when it is probed again may differ; rows stay in the units they were learnt in.
    if fleet.view.scales is not None and states[0].get("scales") is not None:
        fleet.view.scales.load_state_dict(states[0]["scales"])
    for name in _LUCK:
        for generator, state in zip(getattr(fleet, name), states, strict=True):
            generator.set_state(state["luck"][name])
    fleet.inputs.start.copy_(torch.cat([state["start"] for state in states]))
    # Agents that were saved before there were planners with a memory had none.
    fleet.inputs.elites.copy_(torch.cat([state.get("elites", state["start"][:, None][:, :0]) for state in states]))


def _scales(fleet: Fleet) -> dict[str, Tensor] | None:
    return None if fleet.view.scales is None else fleet.view.scales.state_dict()


def _trial_sizes(state: dict[str, Any]) -> list[int]:
    """How many rows each trial left, of an agent that was saved either way."""
    sizes: list[int] = state["trials"] if "trials" in state else state["rows"]["batch"][0].bincount().tolist()
    return sizes


def _refuse_other_device(fleet: Fleet, states: Sequence[dict[str, Any]]) -> None:
    """Before anything is learnt again: a GPU's chance and a CPU's do not go on in one another."""
    if states[0]["luck"]["planning"].shape != fleet.planning[0].get_state().shape:
        here = fleet.planning[0].device.type
        raise CalibrlError(
            f"this run was begun on another kind of device than {here}, whose chance cannot be continued there; "
            f"add --device {'cpu' if here == 'cuda' else 'cuda'}"
        )


def _side_by_side(kept: Sequence[list[Tensor]]) -> list[Tensor]:
    """What agents keep of trial after trial, the last ones together; NaN for who kept nothing, having no use for it."""
    most = max(kept, key=len)
    whole = [[torch.full_like(part, torch.nan) for part in most[: len(most) - len(own)]] + own for own in kept]
    return [torch.cat(parts) for parts in zip(*whole, strict=True)]


def _stacked(values: Sequence[Any]) -> Any:
    """Agents' values as the fleet's: tensors one below the other, lists place by place; the rest all share."""
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    if isinstance(values[0], list):
        return [_stacked(part) for part in zip(*values, strict=True)]
    return values[0]


def _each_tensor(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_tensor(part, change) for name, part in value.items()}
    return [_each_tensor(part, change) for part in value] if isinstance(value, list) else value

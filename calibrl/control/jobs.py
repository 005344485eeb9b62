"""The control experiment as independent jobs: every agent learns by itself, on any worker.

Agents of a fleet give the rows they would give alone, so a run may be cut into agents. On one GPU a fleet is faster
(`calibrl run control --device cuda`); on cores and clusters, agents side by side are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.control.experiment import EXPERIMENT, Outcome, Record, Watch, begin, one_trial
from calibrl.control.policy import Member, arm_named
from calibrl.control.problems import base_of, check, overrides, task_of
from calibrl.control.settings import ControlSettings
from calibrl.control.world import view_of
from calibrl.runs.engine import Found, Kept, Plan
from calibrl.runs.rows import Row
from calibrl.runs.store import Arrays
from calibrl.runs.workers import Job

TIMES = ("acting_s", "scoring_s", "training_s")
"""Metrics that no two runs share; a row's seconds say as much."""


def plan(preset: ControlSettings, *, seed: int = 0) -> Plan:
    """One job for each agent: an arm and a seed. Arms of one seed start alike and have the same luck."""
    check(preset)
    members = [Member(arm_named(name), number) for number in range(seed, seed + preset.seeds) for name in preset.arms]
    jobs = tuple(Job(job_name(preset, member), learn_alone, (preset, member)) for member in members)
    changed = overrides(preset)
    if preset.trials != base_of(preset).trials:
        changed["trials"] = preset.trials  # a job is all of an agent's trials: one that is finished cannot go on
    draw = partial(_draw, preset=preset, members=members)
    return Plan(EXPERIMENT, jobs, preset=preset.name, overrides=changed, draw=draw)


def job_name(preset: ControlSettings, member: Member) -> str:
    """What the job of an agent is called."""
    return f"{preset.task}, {member.arm.name}, seed {member.seed}"


def learn_alone(preset: ControlSettings, member: Member) -> Iterator[Row | Kept]:
    """All trials of one agent; a row after each."""
    what = task_of(preset)
    company = begin([member], what, view_of(what), preset)
    try:
        while company.done < preset.trials:
            for row in one_trial(company, what, preset, Watch()):
                yield replace(row, metrics={key: value for key, value in row.metrics.items() if key not in TIMES})
    finally:
        for environment in company.environments:
            environment.close()
    yield Kept(_packed(company.records[0]))


def _packed(record: Record) -> dict[str, NDArray[Any]]:
    """What figures need of an agent, as arrays."""
    found = {f"forecasts, {trial}": part.numpy() for trial, part in record.forecasts.items()}
    # One array for each trial: where episodes end, trials differ in how many starts they leave.
    return found | {f"pits, {number}": part.numpy() for number, part in enumerate(record.pits)}


def _unpacked(kept: Arrays, rows: list[Row]) -> Record:
    parts: dict[str, dict[int, Tensor]] = {"forecasts": {}, "pits": {}}
    for name, values in kept.items():
        what, number = name.split(", ")
        parts[what][int(number)] = torch.from_numpy(values)
    pits = [part for _, part in sorted(parts["pits"].items())]
    return Record(rows=[asdict(row) for row in rows], pits=pits, forecasts=parts["forecasts"])


def _draw(out: Path, found: Found, *, preset: ControlSettings, members: list[Member]) -> None:
    from calibrl.control import figures as control_outcome

    records = {}
    for member in members:
        name = job_name(preset, member)
        records[member] = _unpacked(found.kept(name), [row for row in found.rows if row.job == name])
    control_outcome.draw(out, Outcome(task_of(preset), records, finished=True), preset)

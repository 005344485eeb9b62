"""The paper's figure of control tasks: agents that plan with a learnt model, calibrated or not.

One random rollout, then trial after trial: plan and act, score the model on the new trajectory it has not yet seen,
train, fit the map, write everything down. Arms of one seed start alike and have the same luck.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from calibrl.control import checkpoint
from calibrl.control.loop import Trial, run_trial
from calibrl.control.policy import ARMS, Fleet, Member, episode_seed, fleets
from calibrl.control.problems import Task, check, name_of_reward, overrides
from calibrl.control.rows import append_missing, clear, refuse_others
from calibrl.control.scoring import Score, score_trial
from calibrl.control.settings import ControlSettings, threads_for
from calibrl.control.state import agent_memory, agent_state, load_agents, relearn
from calibrl.control.world import View, view_of
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import Reward
from calibrl.runs.rows import Row, origin

EXPERIMENT = "control"
REMEMBERED_TRIALS = (1, 2, 3, 5, 10, 15)
"""Trials whose one-step forecasts are kept for the figure of predictions."""


@dataclass(frozen=True)
class Moment:
    """Where a fleet is within a trial, for a progress line. earned: in the episode under way, by agent's name."""

    trial: int
    trials: int
    step: int
    steps: int
    earned: dict[str, float]


class Watch:
    """Hears how a run goes. Nothing needs to be done about it."""

    def step(self, moment: Moment) -> None:
        """A fleet has made a step."""

    def trial(self, rows: Sequence[Row]) -> None:
        """A fleet has done a trial, all its rows written."""

    def relearnt(self, trial: int, trials: int) -> None:
        """Agents that were saved without their networks have learnt an earlier trial again."""


@dataclass
class Record:
    """What is kept of one agent: its rows, PITs by horizon, some forecasts, and the actions of its best trial.

    pits: for each trial since the first, {horizon: …} stacked (2, horizons, starts, o): under R∘T and under the bare
    T. forecasts: {trial: (T, d, 4)}: outcome, and the 5 %, 50 % and 95 % quantiles.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    pits: list[Tensor] = field(default_factory=list)
    forecasts: dict[int, Tensor] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A run as far as it got: the task, what is kept of every agent, and whether all trials were done."""

    task: Task
    records: dict[Member, Record]
    finished: bool

    @property
    def rows(self) -> list[Row]:
        """Every agent's rows, in the order of the trials."""
        return [Row(**row) for record in self.records.values() for row in record.rows]


@dataclass
class Company:
    """A fleet with its environments and records, and how many trials it has done (the random one is trial 0).

    arrived: whether it has done none in this process, whose code and machine its next rows then name.
    """

    fleet: Fleet
    environments: list[Any]
    records: list[Record]
    done: int = -1
    arrived: bool = True

    @property
    def members(self) -> tuple[Member, ...]:
        """Who is in it."""
        return self.fleet.members


def run(
    out: Path,
    preset: ControlSettings,
    *,
    seed: int = 0,
    device: str = "cpu",
    resume: bool = False,
    force: bool = False,
    minutes: float | None = None,
    light: bool = False,
    reward: Reward | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """All trials of all agents; rows go to `out/rows.jsonl` and the agents to `out/checkpoint` after every trial.

    With `resume` it goes on from there, with `force` it replaces what is there. With `minutes` it stops after the trial
    that crosses the limit. light: agents are saved without their networks, in much smaller files, and `resume` trains
    them again first. reward: what plans are judged by, instead of the one that the preset names.
    """
    started = time.monotonic()
    watch = watch or Watch()
    if reward is not None:
        preset = replace(preset, reward=name_of_reward(reward))
    what = check(preset, reward)
    view = view_of(what, device=device)
    file = out / "rows.jsonl"
    with ExitStack() as stack:
        folder = stack.enter_context(checkpoint.alone_in(out))
        if force:
            clear(out, lambda row: row.arm in ARMS, agents="*.pt")
        if not (resume or force) and (checkpoint.exists(folder) or file.exists()):
            raise CalibrlError(
                f"{out} already holds a run; --resume to go on with it, --force to replace it, or another --out"
            )
        # Before agents are put together: those saved without their networks learn again, as they first did.
        stack.enter_context(threads_for(preset))
        companies = assemble(folder, what, view, preset, seed=seed, device=device, watch=watch)
        begin_now = [member for company in companies if company.done < 0 for member in company.members]
        refuse_others(file, begin_now, preset)
        # A crash may have come between an agent's file and its rows.
        append_missing(file, [Row(**row) for company in companies for record in company.records for row in record.rows])
        identity = preset.identity()
        for company in companies:
            for environment in company.environments:
                stack.callback(environment.close)
        while (company := min(companies, key=lambda one: one.done)).done < preset.trials:
            rows = one_trial(company, what, preset, watch)
            states = [save_state(company, agent, light=light) for agent in range(len(company.members))]
            checkpoint.save(folder, company.members, company.done, states, identity)
            append_missing(file, rows)
            watch.trial(rows)
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                break
    records = {
        member: record for company in companies for member, record in zip(company.members, company.records, strict=True)
    }
    return Outcome(what, records, finished=all(company.done >= preset.trials for company in companies))


def assemble(
    folder: Path,
    what: Task,
    view: View,
    preset: ControlSettings,
    *,
    seed: int,
    device: str,
    watch: Watch,
) -> list[Company]:
    """The fleets of a run, each where its agents' files say it stands, or at its beginning."""
    found = []
    for members in fleets(preset.arms, range(seed, seed + preset.seeds)):
        for done, group in checkpoint.together(folder, members):
            company = begin(group, what, view, preset, device=device)
            if done is not None:
                states = [checkpoint.load(folder, member, done, preset.identity()) for member in group]
                put_into(company.fleet, [state["agent"] for state in states], watch)
                company.records, company.done = [Record(**state["record"]) for state in states], done
            found.append(company)
    return found


def begin(
    members: Sequence[Member],
    what: Task,
    view: View,
    preset: ControlSettings,
    *,
    device: str = "cpu",
) -> Company:
    """Agents that have done nothing yet, each in an environment of its own."""
    fleet = Fleet(view, members, preset, low=what.low, high=what.high, device=device)
    return Company(fleet, [what.make() for _ in members], [Record() for _ in members])


def put_into(fleet: Fleet, states: Sequence[dict[str, Any]], watch: Watch) -> None:
    """Agents into a fleet: as they were saved, or, if any was saved without its networks, by learning again."""
    if all("nets" in state for state in states):
        load_agents(fleet, states)
    else:
        relearn(fleet, states, watch.relearnt)


def save_state(company: Company, agent: int, *, light: bool) -> dict[str, Any]:
    """All of one agent, or all but what it can learn again."""
    take = agent_memory if light else agent_state
    return {"agent": take(company.fleet, agent), "record": vars(company.records[agent])}


def one_trial(company: Company, what: Task, preset: ControlSettings, watch: Watch) -> list[Row]:
    """Act, score, learn, record. Returns the new rows, one for each agent."""
    fleet, number = company.fleet, company.done + 1
    names = [member.name for member in fleet.members]

    def on_step(step: int, earned: Tensor) -> None:
        so_far = dict(zip(names, earned.tolist(), strict=True))
        watch.step(Moment(number, preset.trials, step, preset.steps, so_far))

    clock = [time.perf_counter()]
    seeds = [episode_seed(member.seed, number) for member in fleet.members]
    trial = run_trial(fleet, company.environments, steps=preset.steps, seeds=seeds, on_step=on_step)
    clock.append(time.perf_counter())
    data = rows_of(fleet.view, trial)
    scores = score_trial(fleet, trial, data, number) if fleet.learnt else [Score() for _ in fleet.members]
    clock.append(time.perf_counter())
    fleet.update(data)
    clock.append(time.perf_counter())
    seconds = dict(zip(("acting_s", "scoring_s", "training_s"), np.diff(clock).tolist(), strict=True))

    company.done, where = number, origin() if company.arrived else {}
    company.arrived, rows = False, []
    for agent, (member, record) in enumerate(zip(fleet.members, company.records, strict=True)):
        earned = trial.returns[agent]
        pits, forecast = scores[agent].pits, scores[agent].forecast
        if pits is not None:
            record.pits.append(pits)
        if forecast is not None and number in REMEMBERED_TRIALS and member.seed == fleet.members[0].seed:
            record.forecasts[number] = forecast
        before = [row["metrics"]["return"] for row in record.rows]
        if not before or earned > max(before):
            record.best = {"trial": number, "seed": seeds[agent], "actions": trial.action[agent].clone()}
        metrics = {
            "trial": number,
            "return": earned,
            "best": max([earned, *before]),
            "episodes": len(trial.episodes(agent)),
            **scores[agent].metrics,
            **{name: value / len(fleet) for name, value in seconds.items()},
        }
        row = Row(
            experiment=EXPERIMENT,
            preset=preset.name,
            problem=what.name,
            arm=member.arm.name,
            seed=member.seed,
            step=(number + 1) * preset.steps,
            metrics={name: float(f"{value:.6g}") for name, value in metrics.items()},
            seconds=float(f"{sum(seconds.values()) / len(fleet):.4g}"),
            settings=preset.identity() if number == 0 else {},
            overrides=overrides(preset),
            origin=where,
        )
        record.rows.append(asdict(row))
        rows.append(row)
    return rows


def rows_of(view: View, trial: Trial) -> Data:
    """What the networks are to learn from a trial: x (g, T, k), y (g, T, d), on the CPU."""
    x, y = view.rows(trial.observation, trial.action, trial.next_observation, trial.reward, trial.terminated)
    return Data(x.cpu(), y.cpu())

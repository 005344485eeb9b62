"""Algorithm 1 in a simulated world: agents learn side by side, trial after trial.

One random rollout, then trial after trial: plan and act, score the model on the new trajectory it has not yet seen,
train, fit the map, save, write down. Arms of one seed start alike and share their random streams.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.algorithm import learn
from calibrl.arrays import device_named, visible_devices
from calibrl.control import checkpoint as files
from calibrl.control.arms import arm_named
from calibrl.control.checkpoint import agent_state, load_agents, relearn
from calibrl.control.policy import Fleet, Member, episode_seed, fleets
from calibrl.control.problems import Task, task_of
from calibrl.control.scoring import Score, score_trial
from calibrl.control.settings import ControlSettings, threads_for
from calibrl.control.trials import Environment, Trial, View, run_trial, view_of
from calibrl.data import Data
from calibrl.errors import check_count
from calibrl.runs.engine import Arrays, Yielded
from calibrl.runs.experiment import Job, Report, Status
from calibrl.runs.rows import Row
from calibrl.runs.settings import identity

EXPERIMENT = "control"

# Which jobs there are.


def jobs(settings: ControlSettings) -> list[Job]:
    """All agents as one job, a fleet in this process; or fleets that share them out among GPUs; or each by itself."""
    refuse_impossible(settings)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    members = [Member(arm_named(name), seed) for seed in seeds for name in dict.fromkeys(settings.arms)]
    devices = visible_devices(device_named(settings.device))
    count = min(max(settings.fleets, len(devices)) if settings.fleets else len(members), len(members))
    found = []
    for number in range(count):
        first, last = (len(members) * end // count for end in (number, number + 1))
        group = tuple(members[first:last])
        names = tuple(job_name(settings, member) for member in group)
        which = f"{len(names)} agents" if count == 1 else f"agents {first + 1} to {last}"
        on_its_own = replace(settings, device=devices[number % len(devices)])
        found.append(
            Job(
                names[0] if len(names) == 1 else f"{settings.task}, {which}",
                learn_together,
                (on_its_own, group),
                parts=names,
                checkpoint="*.pt",
                until=(settings.trials + 1) * settings.steps,
                beside=len(devices) > 1,
            )
        )
    return found


def job_name(settings: ControlSettings, member: Member) -> str:
    """What rows call the work of one agent."""
    return f"{settings.task}, {member.arm.name}, seed {member.seed}"


def refuse_impossible(settings: ControlSettings) -> None:
    """Raise an error if no agent could learn so, before anything is written."""
    device_named(settings.device)
    for name in settings.arms:
        arm_named(name)
    check_count("steps", settings.steps, "leaves no row to hold out", least=2)
    _ = settings.planner.search  # says which of its settings cannot be
    view_of(task_of(settings), safety=settings.planner.safety)


# One job.


def learn_together(
    settings: ControlSettings, members: Sequence[Member], *, parts: Sequence[str], checkpoint: Path, report: Report
) -> Iterator[Yielded]:
    """All trials of some agents, each a part of the job: the rows of a trial, and in the end what figures need.

    parts: names of the agents that have not finished. checkpoint: where agents are saved, and go on from.
    """
    what = task_of(settings)
    checkpoint.mkdir(parents=True, exist_ok=True)  # on another machine than the run's folder is on
    missing = [member for member in members if job_name(settings, member) in parts]
    with ExitStack() as stack:
        # Before agents are put together: those saved without their networks learn again, as they first did.
        stack.enter_context(threads_for(settings, within_a_job=True))
        if settings.device.startswith("cuda:"):  # where kernels are launched that do not ask
            stack.enter_context(torch.cuda.device(settings.device))
        view = view_of(what, device=device_named(settings.device))
        progress = Progress(settings, len(missing), report)
        groups = assemble(checkpoint, what, view, settings, missing, progress)
        for group in groups:
            for environment in group.environments:
                stack.callback(environment.close)
            # A crash may have come between an agent's file and its rows.
            yield [Row(**row) for record in group.records for row in record.rows]
        progress.begin(settings.steps * (min(group.done for group in groups) + 1))
        while (group := min(groups, key=lambda one: one.done)).done < settings.trials:
            rows = next(group.trials)
            group.save(checkpoint, settings)
            progress.trial(rows)
            yield rows
    for group in groups:
        for member, record in zip(group.fleet.members, group.records, strict=True):
            yield Arrays(record.arrays(), job_name(settings, member))


def assemble(
    folder: Path, what: Task, view: View, settings: ControlSettings, members: Sequence[Member], progress: Progress
) -> list[Group]:
    """Agents in groups that can share a batch, each where its files say it stands, or at its beginning."""
    found = []
    for fleet_members in fleets(settings.arms, range(settings.seed, settings.seed + settings.seeds)):
        for done, together in files.together(folder, [member for member in fleet_members if member in members]):
            bounds: dict[str, Any] = {"low": what.low, "high": what.high, "choices": what.choices}
            fleet = Fleet(view, together, settings, **bounds, device=device_named(settings.device))
            group = Group(fleet, [what.make() for _ in together], [Record() for _ in together])
            if done is not None:
                states = [files.load(folder, member, done, identity(settings)) for member in together]
                group.load(states, done, progress)
            group.trials = trials(group, what, settings, progress)
            found.append(group)
    return found


@dataclass
class Record:
    """What is kept of one agent: its rows, some forecasts, and the actions of its best trial.

    forecasts: {trial: (T, d, 4)}: outcome, and the 5 %, 50 % and 95 % quantiles. best: actions (T, a), the seed of
    the episode, what it earned.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    forecasts: dict[int, Tensor] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What figures need, by name."""
        found = {f"forecasts, {trial}": part.numpy() for trial, part in self.forecasts.items()}
        return found | {f"best, {name}": np.asarray(part) for name, part in self.best.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Record:
        """What `arrays` gave; without rows."""
        found = cls()
        for name, values in arrays.items():
            kind, which = name.split(", ")
            if kind == "forecasts":
                found.forecasts[int(which)] = torch.from_numpy(values)
            elif kind == "best":
                found.best[which] = torch.from_numpy(values) if values.ndim else values.item()
        return found

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Record:
        """What an agent's file holds; earlier ones hold more."""
        return cls(**{each.name: state[each.name] for each in fields(cls)})


@dataclass
class Group:
    """Agents that have done equally many trials: a fleet, its environments and records.

    done: the last trial they have done; the random one is trial 0. trials: does the next one, and gives its rows.
    """

    fleet: Fleet
    environments: list[Environment]
    records: list[Record]
    done: int = -1
    trials: Iterator[list[Row]] = field(init=False)

    def load(self, states: Sequence[dict[str, Any]], done: int, progress: Progress) -> None:
        """Go on as agents were saved; if any was saved without its networks, by learning again."""
        agents = [state["agent"] for state in states]
        if all("nets" in agent for agent in agents):
            load_agents(self.fleet, agents)
        else:
            relearn(self.fleet, agents, progress.relearnt)
        self.records, self.done = [Record.from_state(state["record"]) for state in states], done

    def save(self, folder: Path, settings: ControlSettings) -> None:
        """All of each agent, or with `light` all but what it can learn again."""
        states = [
            {"agent": agent_state(self.fleet, agent, light=settings.light), "record": vars(record)}
            for agent, record in enumerate(self.records)
        ]
        files.save(folder, self.fleet.members, self.done, states, identity(settings))


# Trials.


@dataclass(frozen=True)
class Outcome:
    """A trial before it is learnt, how honest the models were on it, the seconds of both, and when that was."""

    trial: Trial
    scores: list[Score]
    seconds: dict[str, float]
    ended: float


def trials(group: Group, what: Task, settings: ControlSettings, progress: Progress) -> Iterator[list[Row]]:
    """Algorithm 1 for a group, from the trial where it stands: the rows of each trial, one for each agent."""
    rounds = settings.trials - group.done
    if rounds < 1:
        return
    act = partial(collect, group=group, settings=settings, progress=progress)
    for outcome in learn(act, group.fleet, rounds=rounds):
        group.done += 1
        seconds = outcome.seconds | {"training_s": time.perf_counter() - outcome.ended}
        yield [
            record_trial(group, agent, outcome, what, settings, {k: v / len(group.fleet) for k, v in seconds.items()})
            for agent in range(len(group.fleet))
        ]


def collect(fleet: Fleet, *, group: Group, settings: ControlSettings, progress: Progress) -> tuple[Data, Outcome]:
    """Step 1 of Algorithm 1: act for a trial, and score the models on it before they learn it."""
    number = group.done + 1
    began = time.perf_counter()
    trial = run_trial(
        fleet,
        group.environments,
        steps=settings.steps,
        seeds=[episode_seed(member.seed, number) for member in fleet.members],
        on_step=partial(progress.step, [member.arm.name for member in fleet.members], number),
    )
    acted = time.perf_counter()
    data = rows_of(fleet.view, trial)
    scores = score_trial(fleet, trial, data, number) if number else [Score() for _ in fleet.members]
    scored = time.perf_counter()
    return data, Outcome(trial, scores, {"acting_s": acted - began, "scoring_s": scored - acted}, scored)


def rows_of(view: View, trial: Trial) -> Data:
    """What the networks are to learn from a trial: x (g, T, k), y (g, T, d), on the CPU."""
    x, y = view.rows(trial.observation, trial.action, trial.next_observation, trial.reward, trial.terminated)
    return Data(x.cpu(), y.cpu(), last=trial.last)


def record_trial(
    group: Group, agent: int, outcome: Outcome, what: Task, settings: ControlSettings, seconds: dict[str, float]
) -> Row:
    """Write down what an agent did in a trial; returns the row."""
    member, record, number = group.fleet.members[agent], group.records[agent], group.done
    earned, score = outcome.trial.returns[agent], outcome.scores[agent]
    if score.forecast is not None:
        record.forecasts[number] = score.forecast
    before = [row["metrics"]["return"] for row in record.rows]
    if not before or earned > max(before):
        actions = outcome.trial.action[agent].clone()
        record.best = {"seed": episode_seed(member.seed, number), "actions": actions, "earned": earned}
    metrics = {
        "trial": number,
        "return": earned,
        "best": max([earned, *before]),
        "episodes": len(outcome.trial.episodes(agent)),
        **_measured(what, outcome.trial, agent),
        **score.metrics,
        **seconds,
    }
    row = Row(
        experiment=EXPERIMENT,
        problem=what.name,
        arm=member.arm.name,
        seed=member.seed,
        step=(number + 1) * settings.steps,
        metrics={name: float(f"{value:.6g}") for name, value in metrics.items()},
        seconds=float(f"{sum(seconds.values()):.4g}"),
        settings=identity(settings) if number == 0 else {},
        job=job_name(settings, member),
    )
    record.rows.append(asdict(row))
    return row


def _measured(what: Task, trial: Trial, agent: int) -> dict[str, float]:
    """What else the task says of what one agent did, and the share of steps that left its safe set."""
    parts = (trial.observation[agent], trial.action[agent], trial.next_observation[agent])
    found = {} if what.measure is None else what.measure(*parts)
    if what.world.safe is not None:
        found["unsafe"] = float((what.world.safe(parts[-1]) <= 0).float().mean())
    return found


class Progress:
    """Tells of trial, step, returns, calibration loss and the time left.

    agents: how many there are. report: hears of it, a few times a second.
    """

    def __init__(self, settings: ControlSettings, agents: int, report: Report) -> None:
        self._settings, self._agents, self._report = settings, agents, report
        self._losses: dict[str, str] = {}
        self._began, self._shown, self._before = time.monotonic(), 0.0, 0.0

    def begin(self, steps: int) -> None:
        """From here on time counts; so many steps were made before."""
        self._began, self._before = time.monotonic(), self._share(0, steps)

    def step(self, arms: Sequence[str], number: int, step: int, earned: Sequence[float] | Tensor) -> None:
        """Agents of these arms have made a step of a trial, and earned this in the episodes under way."""
        settings = self._settings
        if time.monotonic() - self._shown < 0.2 and step < settings.steps:
            return
        self._shown = time.monotonic()
        done = self._share(number, step)
        words = f"trial {number}/{settings.trials} step {step}/{settings.steps}, {self._left(done)}"
        returns = self._returns(arms, [float(one) for one in earned])
        self._report(Status(f"{words}: {returns}", done * self._agents))

    def trial(self, rows: Sequence[Row]) -> None:
        """Agents have done a trial, or SAC an episode."""
        arms = [row.arm for row in rows]
        losses = [row.metrics.get("calibration_loss") for row in rows]
        scored = [(arm, loss) for arm, loss in zip(arms, losses, strict=True) if loss is not None]
        self._losses |= {arm: f" (loss {loss:.2f})" for arm, loss in _means(scored).items()}
        # By steps: SAC's episodes may be shorter than trials, and more.
        number, made = (rows[0].step - 1) // self._settings.steps, rows[0].step
        done = self._share(0, made)
        words = f"trial {number}/{self._settings.trials}, {made} steps, {self._left(done)}"
        returns = self._returns(arms, [row.metrics["return"] for row in rows])
        self._report(Status(f"{words}: {returns}", done * self._agents, line=True))

    def relearnt(self, trial: int, trials: int) -> None:
        """Agents that were saved without their networks have learnt an earlier trial again."""
        last = trial == trials
        words = f"trained again on trials 0 to {trials}" if last else f"training again: trial {trial}/{trials}"
        self._report(Status(words, 0.0, line=last))

    def _share(self, trials: int, steps: int = 0) -> float:
        return (trials + steps / self._settings.steps) / (self._settings.trials + 1)

    def _returns(self, arms: Sequence[str], values: Sequence[float]) -> str:
        means = _means(list(zip(arms, values, strict=True)))
        return " · ".join(f"{arm} {value:.1f}{self._losses.get(arm, '')}" for arm, value in means.items())

    def _left(self, done: float) -> str:
        new = done - self._before
        # The random trial takes no time: it says nothing about the others.
        if new <= 1 / (self._settings.trials + 1):
            return "… left"
        seconds = (time.monotonic() - self._began) / new * (1 - done)
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


def _means(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The mean over seeds by arm."""
    found: dict[str, list[float]] = {}
    for arm_name, value in values:
        found.setdefault(arm_name, []).append(value)
    return {name: sum(part) / len(part) for name, part in found.items()}

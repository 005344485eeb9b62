"""How an experiment is run: by whom, into which folder, for how long, and again after a crash."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrl.runs.experiment import Experiment, Settings
from calibrl.runs.rows import Row, command, origin
from calibrl.runs.store import CHECKPOINT, Run, Store
from calibrl.runs.workers import Job, Report, Status, check_backend, run_jobs

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Arrays:
    """What figures need that rows do not hold, yielded by a job: arrays by name. part: whose, in a job of several."""

    values: Mapping[str, NDArray[Any]]
    part: str = ""


Kept = Arrays
Yielded = Row | Arrays | list[Row]
"""What a job may yield; a list is the rows of one step, all of which are written before `minutes` may stop the run."""


@dataclass(frozen=True)
class Found:
    """What a run came to.

    Parameters
    ----------
    rows : list of Row
        In the order of the jobs.
    arrays : callable
        From the name of a job, or of a part of one, to the arrays it yielded; none if it yielded none.
    finished : bool
        Whether all jobs were done; False if `minutes` stopped it.
    """

    rows: list[Row]
    arrays: Callable[[str], Mapping[str, NDArray[Any]]]
    finished: bool = True

    @property
    def kept(self) -> Callable[[str], Mapping[str, NDArray[Any]]]:
        """Arrays."""
        return self.arrays


def _no_figures(out: Path, found: Found) -> None:
    """Some experiments are told by their rows alone."""


@dataclass(frozen=True)
class Plan:
    """An experiment to be run. Each job's function yields rows (and `Arrays`), the same ones every time.

    overrides: settings that differ from the preset's and change what a row says; not how many jobs there are, so that
    a run can be gone on with for more seeds. draw: makes the figures, from the folder's content alone.
    """

    experiment: str
    jobs: tuple[Job, ...]
    preset: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    draw: Callable[[Path, Found], None] = _no_figures
    file: str = "rows.jsonl"
    partial: bool = False
    apart: Callable[[Row], bool] | None = None

    @property
    def run(self) -> Run:
        """Which run this is, as its rows will say it."""
        return Run(self.experiment, self.preset, json.loads(json.dumps(self.overrides)))


def planned(experiment: Experiment[S], settings: S) -> Plan:
    """An experiment with its settings, ready to be run."""
    draw, apart = experiment.draw, experiment.apart
    return Plan(
        experiment.name,
        tuple(experiment.jobs(settings)),
        preset=settings.name,
        overrides=experiment.overrides(settings),
        draw=_no_figures if draw is None else lambda out, found: draw(out, settings, found),
        file=experiment.file,
        partial=experiment.partial,
        apart=None if apart is None else partial(apart, settings),
    )


@dataclass(frozen=True)
class Workers:
    """Who does the work: see `run_jobs`."""

    backend: str = "serial"
    workers: int | None = None
    address: str | None = None


class Watcher:
    """Hears how a run goes. Nothing needs to be done about it."""

    def started(self, total: int, done: int) -> None:
        """So many jobs there are, so many of them finished before."""

    def status(self, name: str, status: Status) -> None:
        """A job says where it is."""

    def row(self, row: Row) -> None:
        """A new row was written."""

    def finished(self, name: str) -> None:
        """A job is done, all its rows written."""

    def drawing(self, name: str) -> None:
        """All jobs of an experiment are done, its figures come next."""


class TimeIsUp(Exception):
    """A run has taken as long as it may."""


def run(
    experiment: Experiment[S],
    settings: S,
    out: str | Path,
    *,
    by: Workers | None = None,
    resume: bool = False,
    force: bool = False,
    minutes: float | None = None,
    watcher: Watcher | None = None,
) -> Found:
    """Run what is missing of an experiment, writing every row into the folder at once; then draw the figures.

    Parameters
    ----------
    experiment : Experiment
    settings
        One of its presets, or one that was changed.
    out : path
        The folder. One that holds rows is refused, unless told what to do with them.
    by : Workers, optional
        Who does the work. Default: this process.
    resume, force : bool
        Go on with the rows in the folder, or replace them.
    minutes : float, optional
        Stop after the row (or list of rows) that crosses this limit; `resume` goes on.
    watcher : Watcher, optional
        Hears how it goes.

    Returns
    -------
    Found
    """
    options: dict[str, Any] = {"by": by, "resume": resume, "force": force, "minutes": minutes, "watcher": watcher}
    return carry_out_all({Path(out): planned(experiment, settings)}, **options)[0]


def carry_out(plan: Plan, out: Path, **options: Any) -> Found:
    """Run what is missing of a plan."""
    return carry_out_all({out: plan}, **options)[0]


def carry_out_all(
    plans: Mapping[Path, Plan],
    *,
    by: Workers | None = None,
    resume: bool = False,
    force: bool = False,
    minutes: float | None = None,
    watcher: Watcher | None = None,
) -> list[Found]:
    """As `run`, for several experiments, each with a folder of its own, by one set of workers."""
    by, watcher = by or Workers(), watcher or Watcher()
    check_backend(by.backend, workers=by.workers, address=by.address)  # before any file is touched
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        tasks: dict[str, _Task] = {}
        stores, total = [], 0
        for out, plan in plans.items():
            store = Store(out, plan.run, file=plan.file, apart=plan.apart)
            checkpoints = {job.checkpoint for job in plan.jobs if job.checkpoint}
            stores.append(stack.enter_context(store.open(resume=resume, force=force, checkpoints=checkpoints)))
            for job in plan.jobs:
                total += len(job.pieces)
                missing = tuple(part for part in job.pieces if not store.finished(part, until=job.until))
                if missing:
                    name = job.name if len(plans) == 1 else f"{plan.experiment}: {job.name}"
                    tasks[name] = _Task(job, store, missing)

        def on_item(job: Job, item: Yielded) -> None:
            new = list(tasks[job.name].write(item))
            for row in new:
                watcher.row(row)
            # Rows of a checkpoint that are said again are no progress.
            if new and deadline is not None and time.monotonic() > deadline:
                raise TimeIsUp

        def on_done(job: Job, _: list[Yielded]) -> None:
            task = tasks[job.name]
            for part in task.parts:
                task.store.finish(part)
                watcher.finished(job.name if part == task.job.name else part)

        watcher.started(total, total - sum(len(task.parts) for task in tasks.values()))
        todo = [task.stamped(name) for name, task in tasks.items()]
        options: dict[str, Any] = {"on_item": on_item, "on_done": on_done}
        finished = True
        try:
            run_jobs(
                todo,
                backend=by.backend,
                workers=by.workers,
                address=by.address,
                on_status=lambda job, status: watcher.status(job.name, status),
                **options,
            )
        except TimeIsUp:
            finished = False
        found = []
        for (out, plan), store in zip(plans.items(), stores, strict=True):
            names = [part for job in plan.jobs for part in job.pieces]
            store.put_in_order(names)
            whole = finished or all(store.finished(part, until=job.until) for job in plan.jobs for part in job.pieces)
            found.append(Found(store.rows(names), store.arrays, whole))
            if found[-1].rows and (whole or plan.partial):
                watcher.drawing(plan.experiment)
                plan.draw(out, found[-1])
    return found


@dataclass
class _Task:
    """A job under way: where its rows go, which of its parts are missing, and of which a row was written already."""

    job: Job
    store: Store
    parts: tuple[str, ...]
    begun: set[str] = field(default_factory=set)

    def stamped(self, name: str) -> Job:
        """The job as a worker does it, its rows complete."""
        options: dict[str, Any] = dict(self.job.options)
        if self.job.parts:
            options["parts"] = self.parts
        if self.job.checkpoint:
            options["checkpoint"] = self.store.folder.absolute() / CHECKPOINT
        job = replace(self.job, options=options)
        return Job(name, stamped, (job, self.store.run, command()), checkpoint=job.checkpoint)

    def write(self, item: Yielded) -> Iterator[Row]:
        """Write what a job yielded; the rows that were not there yet."""
        if isinstance(item, Arrays):
            self.store.keep(item.part or self.job.name, item.values)
            return
        for row in item if isinstance(item, list) else [item]:
            assert isinstance(row, Row), f"job {self.job.name!r} yielded {row!r}, which is no row"
            # Where it comes from is said once, by the first row that is new.
            told = replace(row, origin={}) if row.job in self.begun else row
            if self.store.add(row.job, told, again=bool(self.job.checkpoint)):
                self.begun.add(row.job)
                yield told


def stamped(job: Job, run: Run, words: str, **heard: Report) -> Iterator[Yielded]:
    """A job's rows, each with what it belongs to, where it comes from and the seconds it took."""
    began, where = time.perf_counter(), origin(words)
    for item in job.function(*job.arguments, **job.options, **heard):
        if isinstance(item, Arrays):
            yield item
            continue
        now = time.perf_counter()
        rows = [
            replace(
                row,
                preset=run.preset,
                overrides=dict(run.overrides),
                job=row.job or job.name,
                seconds=row.seconds or round(now - began, 4),
                origin=where,
            )
            for row in (item if isinstance(item, list) else [item])
        ]
        began = now
        yield rows if isinstance(item, list) else rows[0]


def stacked(found: Found, names: Sequence[str], key: str) -> NDArray[Any]:
    """One of the arrays that several jobs yielded, joined along its first axis."""
    return np.concatenate([found.arrays(name)[key] for name in names])

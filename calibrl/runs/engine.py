"""How an experiment is run: by whom, into which folder, for how long, and again after a crash."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import MissingExtra
from calibrl.runs.experiment import Experiment, Job, Report, Settings, Status
from calibrl.runs.rows import Row, command, origin
from calibrl.runs.store import CHECKPOINT, NamedArrays, Run, Store
from calibrl.runs.workers import check_backend, run_jobs

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Arrays:
    """What figures need that rows do not hold, yielded by a job: arrays by name. part: whose, in a job of several."""

    values: NamedArrays
    part: str = ""


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
    arrays: Callable[[str], NamedArrays]
    finished: bool = True


@dataclass(frozen=True)
class Prepared(Generic[S]):
    """An experiment with its settings and the jobs that they ask for, checked and ready to be run."""

    experiment: Experiment[S]
    settings: S
    jobs: tuple[Job, ...]

    @property
    def run(self) -> Run:
        """Which run this is, as its rows will say it."""
        return Run(self.experiment.name, self.settings.name, self.experiment.overrides(self.settings))

    @property
    def parts(self) -> list[str]:
        """All that can be finished by itself, in the order of the jobs."""
        return [part for job in self.jobs for part in job.pieces]

    def store(self, folder: Path) -> Store:
        """The folder that its rows go to."""
        apart = self.experiment.apart
        beside = None if apart is None else partial(apart, self.settings)
        return Store(folder, self.run, file=self.experiment.file, apart=beside)

    def whole(self, store: Store) -> bool:
        """Whether nothing is missing."""
        return all(store.finished(part, until=job.until) for job in self.jobs for part in job.pieces)

    def draw(self, out: Path, found: Found) -> None:
        """The figures, where there is something to draw."""
        if self.experiment.draw is not None and found.rows and (found.finished or self.experiment.partial):
            self.experiment.draw(out, self.settings, found)


def prepared(experiment: Experiment[S], settings: S) -> Prepared[S]:
    """An experiment that is ready to be run with these settings; what cannot be run is refused here."""
    if experiment.needs is not None and importlib.util.find_spec(experiment.needs[0]) is None:
        raise MissingExtra(*experiment.needs)
    return Prepared(experiment, settings, tuple(experiment.jobs(settings)))


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
    watchers: Sequence[Watcher] = (),
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
        Who does the work. Default: this process, or one for each job that has a device of its own.
    resume, force : bool
        Go on with the rows in the folder, or replace them.
    minutes : float, optional
        Stop after the row (or list of rows) that crosses this limit; `resume` goes on.
    watchers : sequence of Watcher
        Hear how it goes.

    Returns
    -------
    Found
    """
    options: dict[str, Any] = {"by": by, "resume": resume, "force": force, "minutes": minutes, "watchers": watchers}
    return run_all({Path(out): prepared(experiment, settings)}, **options)[0]


def run_all(
    runs: Mapping[Path, Prepared[Any]],
    *,
    by: Workers | None = None,
    resume: bool = False,
    force: bool = False,
    minutes: float | None = None,
    watchers: Sequence[Watcher] = (),
) -> list[Found]:
    """As `run`, for several experiments, each with a folder of its own, by one set of workers."""
    apart = sum(job.beside for each in runs.values() for job in each.jobs)
    by = by or (Workers("processes", apart) if apart > 1 else Workers())
    check_backend(by.backend, workers=by.workers, address=by.address)  # before any file is touched
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        stores = [
            stack.enter_context(each.store(out).open(resume=resume, force=force, checkpoints=_checkpoints(each.jobs)))
            for out, each in runs.items()
        ]
        tasks = {
            job.name if len(runs) == 1 else f"{each.experiment.name}: {job.name}": _Task(job, store, missing)
            for each, store in zip(runs.values(), stores, strict=True)
            for job in each.jobs
            if (missing := tuple(part for part in job.pieces if not store.finished(part, until=job.until)))
        }

        def on_item(job: Job, item: Yielded) -> None:
            new = list(tasks[job.name].write(item))
            for watcher in watchers:
                for row in new:
                    watcher.row(row)
            # Rows of a checkpoint that are said again are no progress.
            if new and time.monotonic() > deadline:
                raise TimeIsUp

        def on_done(job: Job, _: list[Yielded]) -> None:
            task = tasks[job.name]
            for part in task.parts:
                task.store.finish(part)
                for watcher in watchers:
                    watcher.finished(job.name if part == task.job.name else part)

        def on_status(job: Job, status: Status) -> None:
            for watcher in watchers:
                watcher.status(job.name, status)

        total = sum(len(each.parts) for each in runs.values())
        for watcher in watchers:
            watcher.started(total, total - sum(len(task.parts) for task in tasks.values()))
        with suppress(TimeIsUp):
            run_jobs(
                [task.stamped(name) for name, task in tasks.items()],
                backend=by.backend,
                workers=by.workers,
                address=by.address,
                on_item=on_item,
                on_done=on_done,
                on_status=on_status,
            )
        found = []
        for (out, each), store in zip(runs.items(), stores, strict=True):
            store.put_in_order(each.parts)
            found.append(Found(store.rows(each.parts), store.arrays, each.whole(store)))
            for watcher in watchers:
                watcher.drawing(each.experiment.name)
            each.draw(out, found[-1])
    return found


def _checkpoints(jobs: Iterable[Job]) -> set[str]:
    """Patterns of the files that jobs go on from."""
    return {job.checkpoint for job in jobs if job.checkpoint}


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

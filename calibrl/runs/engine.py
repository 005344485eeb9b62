"""An experiment as independent jobs, and how it is carried out: by whom, into which folder, and again after a crash."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.runs.rows import Row, command, origin
from calibrl.runs.store import Arrays, Run, Store
from calibrl.runs.workers import Job, check_backend, run_jobs


@dataclass(frozen=True)
class Kept:
    """Something a job yields beside its rows: arrays that figures need."""

    arrays: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Found:
    """What a run came to: rows in the order of the jobs, and what a job kept, by its name."""

    rows: list[Row]
    kept: Callable[[str], Arrays]


def _no_figures(out: Path, found: Found) -> None:
    """Some experiments are told by their rows alone."""


@dataclass(frozen=True)
class Plan:
    """An experiment to be run. Each job's function yields rows (and `Kept` arrays), the same ones every time.

    overrides: settings that differ from the preset's and change what a row says; not how many jobs there are, so that
    a run can be gone on with for more seeds. draw: makes the figures, from the folder's content alone.
    """

    experiment: str
    jobs: tuple[Job, ...]
    preset: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    draw: Callable[[Path, Found], None] = _no_figures
    file: str = "rows.jsonl"

    @property
    def run(self) -> Run:
        """Which run this is, as its rows will say it."""
        return Run(self.experiment, self.preset, json.loads(json.dumps(self.overrides)))


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

    def row(self, row: Row) -> None:
        """A new row was written."""

    def finished(self, name: str) -> None:
        """A job is done, all its rows written."""

    def drawing(self, plan: Plan) -> None:
        """All jobs of a plan are done, its figures come next."""


def carry_out(
    plan: Plan,
    out: Path,
    *,
    by: Workers | None = None,
    resume: bool = False,
    force: bool = False,
    watcher: Watcher | None = None,
) -> Found:
    """Run what is missing of a plan, writing every row into the folder at once; then draw the figures.

    A folder that holds rows is refused, unless told to go on with it (`resume`) or to replace them (`force`).
    """
    return carry_out_all({out: plan}, by=by, resume=resume, force=force, watcher=watcher)[0]


def carry_out_all(
    plans: dict[Path, Plan],
    *,
    by: Workers | None = None,
    resume: bool = False,
    force: bool = False,
    watcher: Watcher | None = None,
) -> list[Found]:
    """As `carry_out`, for several plans, each with a folder of its own, by one set of workers."""
    by, watcher = by or Workers(), watcher or Watcher()
    check_backend(by.backend, workers=by.workers, address=by.address)  # before any file is touched
    with ExitStack() as stack:
        tasks: dict[str, tuple[Store, str]] = {}
        todo: list[Job] = []
        stores = []
        for out, plan in plans.items():
            store = stack.enter_context(Store(out, plan.run, file=plan.file).open(resume=resume, force=force))
            stores.append(store)
            for job in plan.jobs:
                name = job.name if len(plans) == 1 else f"{plan.experiment}: {job.name}"
                tasks[name] = (store, job.name)
                if not store.finished(job.name):
                    todo.append(Job(name, stamped, (job, plan.run, command())))

        def on_item(job: Job, item: Row | Kept) -> None:
            store, name = tasks[job.name]
            if isinstance(item, Kept):
                store.keep(name, item.arrays)
            else:
                store.add(name, item)
                watcher.row(item)

        def on_done(job: Job, _: list[Row | Kept]) -> None:
            store, name = tasks[job.name]
            store.finish(name)
            watcher.finished(job.name)

        watcher.started(len(tasks), len(tasks) - len(todo))
        run_jobs(todo, backend=by.backend, workers=by.workers, address=by.address, on_item=on_item, on_done=on_done)
        found = []
        for (out, plan), store in zip(plans.items(), stores, strict=True):
            names = [job.name for job in plan.jobs]
            store.put_in_order(names)
            found.append(Found(store.rows(names), store.kept))
            watcher.drawing(plan)
            plan.draw(out, found[-1])
    return found


def stamped(job: Job, run: Run, words: str) -> Iterator[Row | Kept]:
    """A job's rows, each with what it belongs to and the seconds it took; the first with where it comes from."""
    began, where = time.perf_counter(), origin(words)
    for item in job.function(*job.arguments, **job.options):
        if isinstance(item, Row):
            now = time.perf_counter()
            yield replace(
                item,
                preset=run.preset,
                overrides=dict(run.overrides),
                job=job.name,
                seconds=round(now - began, 4),
                origin=where,
            )
            began, where = now, {}
        else:
            yield item


def stacked(found: Found, names: Sequence[str], key: str) -> NDArray[Any]:
    """One of the arrays that several jobs kept, joined along its first axis."""
    return np.concatenate([found.kept(name)[key] for name in names])

"""Independent jobs, each once, whatever dies on the way: here in turn, on this machine's cores, or on a Ray cluster.

Whoever runs them, jobs give the same results: each carries its own seed and computes on one thread.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Protocol, Self

from calibrl.errors import CalibrlError, check_count, check_known
from calibrl.runs.jobs import Done, Failed, Item, Job, Lost, Message, Status, one_thread, perform

BACKENDS = ("serial", "processes", "ray")


class JobFailed(RuntimeError):
    """A job raised an unexpected exception; the message ends with the worker's traceback."""


class Pool(Protocol):
    """Workers: `submit` while there is `room`, and hear what comes of it with `hear`."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    @property
    def room(self) -> bool:
        """Whether a worker is free."""

    def submit(self, number: int, job: Job) -> None:
        """Give a job to a free worker."""

    def hear(self) -> tuple[int, Message]:
        """Wait for the next message; its first part is the job's number."""


def run_jobs(
    jobs: Sequence[Job],
    *,
    backend: str = "processes",
    workers: int | None = None,
    address: str | None = None,
    retries: int = 2,
    on_item: Callable[[Job, Any], None] | None = None,
    on_done: Callable[[Job, Any], None] | None = None,
    on_status: Callable[[Job, Status], None] | None = None,
) -> list[Any]:
    """Run independent jobs; returns their results in the order of the jobs.

    `backend`: "serial" (here, one after the other), "processes" (this machine's cores), "ray" (a local Ray, or with
    `address` a running cluster). `workers`: how many at a time; default: all cores.
    A job whose worker dies is restarted, at most `retries` times. A job that raises ends the run.
    `on_item(job, item)` is called once for each item of a job that is a generator (for each it yields, if the job has a
    checkpoint: then it is on the caller to know what was heard before), `on_done(job, result)` for each result,
    `on_status(job, status)` for each `Status` on the way. They run in this process, one call at a time.
    """
    check_backend(backend, workers=workers, address=address)
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if twice:
        raise CalibrlError(f"{len(twice)} job names are there twice, like {twice[0]!r}; give every job its own")
    heard: list[list[Any]] = [[] for _ in jobs]
    results: list[Any] = [None] * len(jobs)
    # A job that is started again yields the same items: those heard before are counted, not heard twice.
    repeated, lost = Counter[int](), Counter[int]()
    waiting, running = deque(range(len(jobs))), 0

    def tell(number: int, status: Status) -> None:
        if on_status:
            on_status(jobs[number], status)

    with _pool(backend if jobs else "serial", workers, address, tell) as pool:
        while waiting or running:
            while waiting and pool.room:
                number = waiting.popleft()
                repeated[number] = 0
                pool.submit(number, jobs[number])
                running += 1
            number, message = pool.hear()
            job = jobs[number]
            match message:
                case Item(Status() as status):
                    tell(number, status)
                case Item(value):
                    repeated[number] += 1
                    if repeated[number] > len(heard[number]) or job.checkpoint:
                        heard[number].append(value)
                        if on_item:
                            on_item(job, value)
                case Done(value, items):
                    if items is not None and items != len(heard[number]) and not job.checkpoint:
                        raise CalibrlError(
                            f"job {job.name!r} gave {len(heard[number])} items before its worker died and {items} when "
                            "started again; make it depend on its arguments alone"
                        )
                    running -= 1
                    results[number] = heard[number] if items is not None else value
                    if on_done:
                        on_done(job, results[number])
                case Failed(words, trace, known):
                    if known:
                        raise CalibrlError(words)
                    raise JobFailed(f"job {job.name!r} raised {words}\n\n{trace}")
                case Lost(reason):
                    running -= 1
                    lost[number] += 1
                    if lost[number] > retries:
                        raise CalibrlError(
                            f"job {job.name!r} lost its worker {lost[number]} times, the last one {reason}; "
                            "give it more memory, fewer workers, or run it with backend 'serial' to see why"
                        )
                    waiting.appendleft(number)
    return results


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Serial:
    """No worker but this process."""

    def __init__(self, on_status: Callable[[int, Status], None]) -> None:
        self._on_status = on_status
        self._one_thread = one_thread()
        self._current: tuple[int, Generator[Message]] | None = None

    def __enter__(self) -> Self:
        # Loaded by a job, it would stay on one thread for as long as this process lives.
        importlib.import_module("torch")
        self._one_thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._current is not None:
            self._current[1].close()  # a job that was stopped closes what it had opened
        self._one_thread.__exit__(None, None, None)

    @property
    def room(self) -> bool:
        """Whether no job is under way."""
        return self._current is None

    def submit(self, number: int, job: Job) -> None:
        """Begin a job; it goes on when somebody listens."""
        self._current = (number, perform(job, partial(self._on_status, number)))

    def hear(self) -> tuple[int, Message]:
        """Work on the job until it has something to say."""
        assert self._current is not None, "nothing was submitted"
        number, messages = self._current
        message = next(messages)
        if not isinstance(message, Item):
            self._current = None
        return number, message


def _pool(backend: str, workers: int | None, address: str | None, on_status: Callable[[int, Status], None]) -> Pool:
    if backend == "serial":
        return Serial(on_status)
    if backend == "processes":
        from calibrl.runs.backends import Processes

        return Processes(workers or cores())
    from calibrl.runs.backends import Cluster

    return Cluster(workers if workers or address else cores(), address)


def check_backend(backend: str, *, workers: int | None = None, address: str | None = None) -> None:
    """Refuse what `run_jobs` could not do."""
    check_known("backend", backend, BACKENDS)
    if workers is not None:
        check_count("workers", workers, "can do nothing")
    if address is not None and backend != "ray":
        raise CalibrlError(f"address {address!r} is a Ray cluster's, but the backend is {backend!r}; use backend 'ray'")

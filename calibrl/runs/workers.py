"""Many independent jobs: here one after the other, on this machine's cores, or on a Ray cluster.

What a worker does with a job, wherever it runs: carry it out and say what came of it, message by message.

Run independent jobs: each once, whatever dies on the way.

Whoever runs them, jobs give the same results: each carries its own seed and computes on one thread.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from calibrl.errors import CalibrlError, MissingExtra

THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""A worker's environment. One thread each: workers that share cores must not crowd each other, and sums whose order
depends on the number of threads would make rows depend on the machine."""


@dataclass(frozen=True)
class Job:
    """One independent piece of work: `function(*arguments, **options)`, with a name that is unique in the run.

    Everything must be picklable: a function of a module, plain arguments. A function that returns an iterator (a
    generator) is reported item by item; its result is the list of them. The same job must always give the same items.

    Parameters
    ----------
    name : str
        Unique in the run.
    function : callable
        A function of a module.
    arguments, options
        What it is called with.
    parts : tuple of str
        In an experiment: the pieces of work that this job does together, if there are several (agents of a fleet).
        Each is finished by itself: rows and arrays name theirs, and `function` gets a keyword `parts` with those that
        are not finished. Default: the job is one piece.
    checkpoint : str
        In an experiment: a job that can go on where it was stopped, by files of this pattern ("*.pt") in the run's
        `checkpoint/`. `function` gets a keyword `checkpoint`, that folder. It saves there *before* it yields a step's
        rows, and begins by yielding all rows it had saved again, as one list: those that are on the disk are not
        written twice. It also gets a keyword `report`, to be called with a `Status` now and then.
    until : int
        A part whose last row has a smaller step is not finished, whatever was said: more trials go on from a
        checkpoint.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    checkpoint: str = ""
    until: int = 0

    @property
    def pieces(self) -> tuple[str, ...]:
        """What can be finished by itself: the parts, or the job."""
        return self.parts or (self.name,)


@dataclass(frozen=True)
class Status:
    """Where a job is: words, and the share of the job that is done; of a job of several parts, summed over them.

    line: whether it is worth a line of its own where there is no live display.
    """

    text: str
    done: float
    line: bool = False


@dataclass(frozen=True)
class Item:
    """One thing that a generator yielded."""

    value: Any


@dataclass(frozen=True)
class Done:
    """The job is finished; what its function returned, or how many items it yielded."""

    value: Any = None
    items: int | None = None


@dataclass(frozen=True)
class Failed:
    """The job raised: the same would happen again. `known` errors speak to the user and need no traceback."""

    message: str
    trace: str = ""
    known: bool = False


@dataclass(frozen=True)
class Lost:
    """The worker vanished: killed, out of memory, its machine gone. The job may fare better elsewhere."""

    reason: str


Message = Item | Done | Failed | Lost


Report = Callable[[Status], None]


def perform(job: Job, report: Report) -> Generator[Message]:
    """Carry a job out: its items as they come, then `Done` or `Failed`. A long job says by `report` where it is."""
    try:
        heard = {"report": report} if job.checkpoint else {}
        found = job.function(*job.arguments, **job.options, **heard)
        if not isinstance(found, Iterator):
            yield Done(found)
            return
        count = 0
        for value in found:
            yield Item(value)
            count += 1
        yield Done(items=count)
    except (CalibrlError, MissingExtra) as problem:
        yield Failed(str(problem), known=True)
    except Exception as problem:
        yield Failed(f"{type(problem).__name__}: {problem}", traceback.format_exc())


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: libraries that are loaded already, and those that this or a new process loads yet."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = {name: os.environ.get(name) for name in THREADS}
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    os.environ.update(THREADS)
    try:
        if torch:
            torch.set_num_threads(1)
        with threadpool_limits(1):
            yield
    finally:
        if torch:
            torch.set_num_threads(threads)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


BACKENDS = ("serial", "processes", "ray")


class JobFailed(RuntimeError):
    """A job raised an unexpected exception; the message ends with the worker's traceback."""


class Pool(Protocol):
    """Workers: `submit` while there is `room`, and hear what comes of it with `hear`."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...

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

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            self._current[1].close()  # a job that was stopped closes what it had opened
        self._one_thread.__exit__(kind, problem, trace)

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
    if backend not in BACKENDS:
        raise CalibrlError(f"backend {backend!r} is unknown; use {', '.join(BACKENDS)}")
    if workers is not None and workers < 1:
        raise CalibrlError(f"{workers} workers can do nothing; use 1 or more")
    if address is not None and backend != "ray":
        raise CalibrlError(f"address {address!r} is a Ray cluster's, but the backend is {backend!r}; use backend 'ray'")

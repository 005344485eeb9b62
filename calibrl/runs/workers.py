"""Independent jobs, each once, whatever dies on the way: here in turn, on this machine's cores, or on a Ray cluster.

Whoever runs them, jobs give the same results: each carries its own seed and computes on one thread.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, cast

from calibrl import __version__
from calibrl.arrays import cores, threads
from calibrl.errors import CalibrlError, MissingExtra, check_count, check_known, first_line
from calibrl.lazy import SETTINGS, environment, ignore_settings
from calibrl.runs.experiment import Job, Report, Status

BACKENDS = ("serial", "processes", "ray")
PRELOADED = ("torch", "numba", "scipy.stats", "threadpoolctl")
"""Slow to load: if the driver has them, so does the process that workers are forked from. On one thread, none of these
starts another, which a fork would lose."""


THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""A worker's environment. One thread each: workers that share cores must not crowd each other, and sums whose order
depends on the number of threads would make rows depend on the machine."""


class Item(NamedTuple):
    """One thing that a generator yielded."""

    value: Any


class Done(NamedTuple):
    """The job is finished; what its function returned, or how many items it yielded."""

    value: Any = None
    items: int | None = None


class Failed(NamedTuple):
    """The job raised: the same would happen again. `known` errors speak to the user and need no traceback."""

    message: str
    trace: str = ""
    known: bool = False


class Lost(NamedTuple):
    """The worker vanished: killed, out of memory, its machine gone. The job may fare better elsewhere."""

    reason: str


Message = Item | Done | Failed | Lost


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
    """Run independent jobs. A job that raises ends the run.

    Parameters
    ----------
    jobs : sequence of Job
    backend : str
        "serial" (here, one after the other), "processes" (this machine's cores) or "ray" (a local Ray, or with
        `address` a running cluster).
    workers : int, optional
        How many at a time; default: all cores.
    address : str, optional
        Of a Ray cluster.
    retries : int
        How often a job is restarted whose worker died.
    on_item : callable, optional
        `on_item(job, item)` is called once for each item of a job that is a generator; for each it yields, if the job
        has a checkpoint: then it is on the caller to know what was heard before. As the next two it runs in this
        process, one call at a time.
    on_done, on_status : callable, optional
        `on_done(job, result)` is called for each result, `on_status(job, status)` for each `Status` on the way.

    Returns
    -------
    list
        Results in the order of the jobs; of a generator, the list of its items.
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


def check_backend(backend: str, *, workers: int | None = None, address: str | None = None) -> None:
    """Refuse what `run_jobs` could not do."""
    check_known("backend", backend, BACKENDS)
    if workers is not None:
        check_count("workers", workers, "can do nothing")
    if address is not None and backend != "ray":
        raise CalibrlError(f"address {address!r} is a Ray cluster's, but the backend is {backend!r}; use backend 'ray'")


def _pool(backend: str, workers: int | None, address: str | None, on_status: Callable[[int, Status], None]) -> Pool:
    if backend == "serial":
        return Serial(on_status)
    if backend == "processes":
        return Processes(workers or cores())
    return Cluster(workers if workers or address else cores(), address)


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
def single_threaded() -> Iterator[None]:
    """Compute on one thread: libraries that are loaded already, and those that this or a new process loads yet."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threads(1) if "torch" in sys.modules else contextlib.nullcontext(), environment(THREADS), threadpool_limits(1):
        yield


class Serial:
    """No worker but this process."""

    def __init__(self, on_status: Callable[[int, Status], None]) -> None:
        self._on_status = on_status
        self._one_thread = single_threaded()
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


class Processes:
    """`workers` processes, each with a pipe of its own."""

    def __init__(self, workers: int) -> None:
        # Never a fork of the driver itself: it may hold threads, locks and a GPU.
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            obedient = {name for name, file in SETTINGS.items() if os.path.lexists(file)}
            self._context.set_forkserver_preload([name for name in PRELOADED if name in {*sys.modules} - obedient])
        self._workers = workers
        self._process: dict[Connection, BaseProcess] = {}
        self._job: dict[Connection, int] = {}
        self._idle: list[Connection] = []
        self._unheard: deque[tuple[int, Message]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A worker in the middle of a job has nothing to tidy up: its rows are the driver's to write.
        for pipe, process in self._process.items():
            pipe.close()
            process.kill()
        for process in self._process.values():
            process.join()
            process.close()

    @property
    def room(self) -> bool:
        """Whether a worker is free, or may be started."""
        return bool(self._idle) or len(self._process) < self._workers

    def submit(self, number: int, job: Job) -> None:
        """Send a job to a worker."""
        try:
            words = ForkingPickler.dumps(job)
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise _unsendable(job, problem) from None
        pipe = self._idle.pop() if self._idle else self._start()
        self._job[pipe] = number
        try:
            pipe.send_bytes(words)
        except OSError:  # it died while it was idle
            self._unheard.append(self._bury(pipe))

    def hear(self) -> tuple[int, Message]:
        """Wait for a worker to say something, or to die."""
        while not self._unheard:
            for pipe in cast("list[Connection]", wait(list(self._process))):
                number = self._job.get(pipe)
                try:
                    message: Message = pipe.recv()
                except (EOFError, OSError):
                    found = self._bury(pipe)
                    if number is not None:
                        self._unheard.append(found)
                    continue
                assert number is not None, "an idle worker has nothing to say"
                if not isinstance(message, Item):
                    del self._job[pipe]
                    self._idle.append(pipe)
                self._unheard.append((number, message))
        return self._unheard.popleft()

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        with single_threaded():
            words = (theirs, dict(os.environ))
            process = self._context.Process(target=serve, args=words, daemon=True)  # type: ignore[attr-defined]
            # Python would look in the current folder first, until it has our path, and run a stranger's threading.py.
            with environment({"PYTHONSAFEPATH": "1"}):
                process.start()
        theirs.close()
        self._process[ours] = process
        return ours

    def _bury(self, pipe: Connection) -> tuple[int, Message]:
        process = self._process.pop(pipe)
        if pipe in self._idle:
            self._idle.remove(pipe)
        pipe.close()
        process.join(timeout=5)
        process.kill()  # for one that hung up and lives on
        process.join()
        reason = _cause(process.exitcode)
        process.close()
        return self._job.pop(pipe, -1), Lost(reason)


def serve(pipe: Connection, environ: dict[str, str]) -> None:
    """A worker's life: jobs in, messages out, until the driver hangs up."""
    os.environ.update(environ)  # what it was forked from may remember an older one
    # Ctrl-C is meant for the driver; a worker ends when the driver does, even in the middle of a job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_the_driver, daemon=True).start()
    ignore_settings()
    with single_threaded(), contextlib.suppress(EOFError, OSError):
        while True:
            words = pipe.recv_bytes()
            try:
                job: Job = ForkingPickler.loads(words)
            except Exception as problem:
                pipe.send(Failed(f"{type(problem).__name__}: a worker cannot read it: {problem}"))
                continue
            for message in perform(job, lambda status: pipe.send_bytes(_pickled(Item(status)))):
                pipe.send_bytes(_pickled(message))


def _pickled(message: Message) -> Any:
    try:
        return ForkingPickler.dumps(message)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        return ForkingPickler.dumps(Failed(f"{type(problem).__name__}: what it gave cannot be sent back: {problem}"))


def _die_with_the_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"gone with exit code {code}"


class Cluster:
    """Jobs as Ray tasks of one CPU each. Without an address, a Ray of `workers` CPUs that ends with the run.

    With an address and no number of workers, as many jobs are under way as the cluster has CPUs, and as many again
    that wait for one, so that a cluster which can grow does.
    """

    def __init__(self, workers: int | None, address: str | None) -> None:
        self._workers, self._address = workers, address
        self._ours = False
        self._stream: dict[Any, int] = {}

    def __enter__(self) -> Self:
        # No reports to Ray's makers, and no warning about a default of theirs that will change.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise MissingExtra("ray", "ray") from None
        self._ray = ray
        if not ray.is_initialized():
            self._ours = True
            _knock(self._address)
            local: dict[str, Any] = {} if self._address else {"num_cpus": self._workers, "include_dashboard": False}
            try:
                # Workers are heard through their messages, not through their prints.
                ray.init(self._address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
            except (ConnectionError, RuntimeError, ValueError, TimeoutError) as problem:
                raise _nobody(self._address, problem) from None
        ours = {name: value for name, value in os.environ.items() if name.startswith("CALIBRL_")}
        environment = {"env_vars": {**ours, **THREADS}}
        task = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", runtime_env=environment)
        self._perform = task(_perform_elsewhere)
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._stream:
            self._ray.cancel(stream, force=True)
        if self._ours:
            self._ray.shutdown()

    @property
    def room(self) -> bool:
        """Whether fewer jobs are under way than asked for."""
        return len(self._stream) < (self._workers or 2 * int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, number: int, job: Job) -> None:
        """Give a job to Ray."""
        try:
            words = self._ray.cloudpickle.dumps(job)  # by value what is defined in the script itself
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise _unsendable(job, problem) from None
        here = str(Path.cwd())
        self._stream[self._perform.remote(words, __version__, here, bool({"", here} & {*sys.path}))] = number

    def hear(self) -> tuple[int, Message]:
        """Wait for the next message of any job."""
        ready, _ = self._ray.wait(list(self._stream), num_returns=1, fetch_local=False)
        number = self._stream[ready[0]]
        try:
            message: Message = self._ray.get(next(ready[0]))
        except (self._ray.exceptions.RayError, StopIteration) as problem:
            message = Lost(f"gone ({type(problem).__name__})")
        if not isinstance(message, Item):
            del self._stream[ready[0]]
        return number, message


def _knock(address: str | None) -> None:
    """See that somebody listens at host:port; Ray itself would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address or "")
    if found:
        try:
            socket.create_connection((found[1], int(found[2])), timeout=10).close()
        except (OSError, OverflowError) as problem:
            raise _nobody(address, problem) from None


def _nobody(address: str | None, problem: Exception) -> CalibrlError:
    if address is None:
        return CalibrlError(f"Ray does not start on this machine ({first_line(problem)}); use backend 'processes'")
    return CalibrlError(
        f"no Ray cluster answers at {address!r} ({first_line(problem)}); start one with: ray start --head"
    )


def _perform_elsewhere(job: bytes, version: str, folder: str, wanted: bool) -> Iterator[Message]:
    """What a Ray worker does, before it imports anything of ours.

    Ray puts the current folder first on the path, where any file may be called like a package. It goes, or to the end
    of the path if the driver's `folder` is `wanted` there.
    """
    import pickle
    import sys
    from pathlib import Path

    sys.path[:] = [place for place in sys.path if place not in (folder, str(Path.cwd()))] + [folder] * wanted
    from calibrl.runs.workers import _perform

    yield from _perform(pickle.loads(job), version)


_perform_elsewhere.__module__ = "__main__"  # sent as code: a worker need not import this module to know it


def _unsendable(job: Job, problem: Exception) -> CalibrlError:
    return CalibrlError(
        f"job {job.name!r} cannot be sent to a worker ({first_line(problem)}); use a function of a module and plain "
        "arguments, or backend 'serial'"
    )


def _perform(job: Job, version: str) -> Iterator[Message]:
    """What a Ray worker does: as any worker, provided that it speaks of the same code."""
    if version != __version__:
        yield Failed(f"a worker has calibrl {__version__}, the driver {version}; install the same on all machines")
        return
    ignore_settings()
    with single_threaded():
        yield from perform(job, lambda _: None)  # a task of Ray's is heard when it yields

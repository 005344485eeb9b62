"""One independent piece of work, and what a worker does with it, wherever it runs: messages, one after the other."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    beside : bool
        In an experiment: it has a device of its own, and runs beside other such jobs unless somebody says who works.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    checkpoint: str = ""
    until: int = 0
    beside: bool = False

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
def single_threaded() -> Iterator[None]:
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

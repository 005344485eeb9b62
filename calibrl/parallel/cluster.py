"""Workers of Ray: a local one started for the run, or a cluster that is there already."""

from __future__ import annotations

import importlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from calibrl import __version__
from calibrl.errors import CalibrlError, MissingExtra, first_line
from calibrl.parallel.worker import THREADS, Failed, Item, Job, Lost, Message, one_thread, perform


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
        self._perform = task(_perform)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            self._stream[self._perform.remote(job, __version__)] = number
        except TypeError as problem:
            raise CalibrlError(
                f"job {job.name!r} cannot be sent to a worker ({first_line(problem)}); use plain arguments, or backend "
                "'serial'"
            ) from None

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


def _perform(job: Job, version: str) -> Iterator[Message]:
    """What a Ray worker does: as any worker, provided that it speaks of the same code."""
    if version != __version__:
        yield Failed(f"a worker has calibrl {__version__}, the driver {version}; install the same on all machines")
        return
    with one_thread():
        yield from perform(job)

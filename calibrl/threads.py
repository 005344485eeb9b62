"""Devices that are there, and how much of a processor to take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from calibrl.errors import CalibrlError


def check_device(device: torch.device | str) -> None:
    """Refuse a device that is not there, before anything is done for it."""
    name = str(device)
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        why = ": Apple's GPU has no float64, in which maps compute" if kind == "mps" else ""
        raise CalibrlError(f"device {name!r} is unknown; use cpu or cuda{why}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise CalibrlError(f"device {name!r} is not there; use cpu, or a machine whose torch sees a GPU")


def visible_devices(device: str) -> list[str]:
    """The devices that a name stands for: cuda is every GPU that torch sees, anything else itself."""
    count = torch.cuda.device_count() if device == "cuda" else 0
    return [f"cuda:{number}" for number in range(count)] if count > 1 else [device]


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread while many small things are computed: several would wait for each other longer than they compute."""
    with _threads(1):
        yield


@contextmanager
def all_threads() -> Iterator[None]:
    """As many threads as this process has cores, whatever it was told before."""
    with _threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1):
        yield


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

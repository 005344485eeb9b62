"""Devices that are there."""

from __future__ import annotations

import torch

from calibrl.errors import CalibrlError


def check_device(device: torch.device | str) -> None:
    """Refuse a device that is not there, before anything is done for it."""
    name = str(device)
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise CalibrlError(f"device {name!r} is unknown; use cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise CalibrlError(f"device {name!r} is not there; use cpu, or a machine whose torch sees a GPU")

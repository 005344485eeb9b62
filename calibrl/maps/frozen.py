"""Frozen values made of tensors: they compare equal, hash, move between devices and save as plain JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from calibrl.errors import CalibrlError

KINDS: dict[str, type[Frozen]] = {}
"""Every concrete kind of value by the name it is saved under."""


@dataclass(frozen=True, eq=False)
class Frozen:
    """A dataclass of tensors, strings and other `Frozen` values."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same value with its tensors on `device` and in `dtype`, each as it is if not given."""
        moved: dict[str, Any] = {}
        for name, part in self._parts.items():
            if isinstance(part, Tensor):
                moved[name] = part.to(device=device, dtype=dtype)
            elif isinstance(part, Frozen):
                moved[name] = part.to(device, dtype)
        return replace(self, **moved)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, ready for JSON."""
        return {"kind": self.kind, **{name: _plain(part) for name, part in self._parts.items()}}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __getstate__(self) -> dict[str, Any]:
        """What it is, without what was worked out about it: that may be large, or on a device that is not there."""
        return self._parts

    @cached_property
    def cache(self) -> dict[object, Any]:
        """What others worked out once about this value; not part of it."""
        return {}

    @cached_property
    def _identity(self) -> str:
        return json.dumps(self.to_dict())

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def from_dict(saved: dict[str, Any]) -> Frozen:
    """The value that `to_dict` described."""
    if not isinstance(saved, dict) or saved.get("kind") not in KINDS:
        kind = saved.get("kind") if isinstance(saved, dict) else saved
        raise CalibrlError(f"unknown kind of map {kind!r}; known: {', '.join(sorted(KINDS))}")
    cls = KINDS[saved["kind"]]
    names = {field.name for field in fields(cls)}
    given = set(saved) - {"kind"}
    if given != names:
        raise CalibrlError(f"a saved {cls.kind} map holds {sorted(given)}, expected {sorted(names)}; fit it again")
    try:
        return cls(**{name: _rich(saved[name]) for name in names})
    except (TypeError, ValueError) as problem:
        raise CalibrlError(f"the saved {cls.kind} map is damaged ({problem}); fit it again") from None


def _plain(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.tolist()
    return part.to_dict() if isinstance(part, Frozen) else part


def _rich(part: Any) -> Any:
    if isinstance(part, dict):
        return from_dict(part)
    return part if part is None or isinstance(part, str) else torch.tensor(part, dtype=torch.float64)

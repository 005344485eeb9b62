"""Maps of class probabilities: temperature, Platt and isotonic scaling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.errors import CalibrlError
from calibrl.maps.frozen import Frozen, from_dict

SMALLEST = 1e-12
"""Probabilities are kept this far from 0 and 1 before a logit is taken."""

_ONE = torch.ones((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class ClassMap(Frozen, ABC):
    """A map of class probabilities. `classes` is the k it was fitted for, or None for any."""

    note: str = ""

    @property
    @abstractmethod
    def classes(self) -> int | None:
        """The number of classes the map was fitted for (2 for one event), or None for any number."""

    @abstractmethod
    def _recalibrate(self, probs: Tensor) -> Tensor:
        """(…, k) float64 → (…, k), not yet summing to one."""

    @returns_what_was_given
    def __call__(self, probs: Array, *, event: bool = False) -> Tensor:
        """Recalibrated probabilities of shape (…, k); with `event`, of one event's probability (…)."""
        given = as_tensor(probs, "probs")
        wide = torch.stack([1 - given, given], -1) if event else given
        if self.classes is not None and wide.shape[-1] != self.classes:
            raise CalibrlError(
                f"the map was fitted for {self.classes} classes but the forecast has {wide.shape[-1]}; fit it again"
            )
        raw = self.to(wide.device)._recalibrate(wide.double())
        total = raw.sum(-1, keepdim=True)
        even = torch.where(total > 0, raw / total.clamp(min=1e-300), wide.double())
        return (even[..., 1] if event else even).to(given.dtype)


@dataclass(frozen=True, eq=False)
class Unchanged(ClassMap):
    """Probabilities are left as they are."""

    kind: ClassVar[str] = "classes-identity"

    @property
    def classes(self) -> int | None:
        """Any number."""
        return None

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return probs


@dataclass(frozen=True, eq=False)
class Temperature(ClassMap):
    """softmax(log p / t): one number that makes all forecasts bolder (t < 1) or meeker (t > 1)."""

    kind: ClassVar[str] = "classes-temperature"
    t: Tensor = _ONE

    @property
    def classes(self) -> int | None:
        """Any number."""
        return None

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return torch.softmax(probs.clamp(min=SMALLEST).log() / self.t, -1)


@dataclass(frozen=True, eq=False)
class PlattClasses(ClassMap):
    """sigmoid(a_j · logit p_j + b_j) for each class against the rest, then scaled to sum to one. a, b: (k,)."""

    kind: ClassVar[str] = "classes-platt"
    a: Tensor = _ONE
    b: Tensor = _ONE

    @property
    def classes(self) -> int | None:
        """The k it was fitted for."""
        return len(self.a)

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return torch.sigmoid(self.a * logit(probs) + self.b)


@dataclass(frozen=True, eq=False)
class IsotonicClasses(ClassMap):
    """An increasing step curve per class (PAVA), joined by straight lines, scaled to sum to one.

    p, r: (k, m) knots of each class's curve, padded at the end by repetition.
    """

    kind: ClassVar[str] = "classes-isotonic"
    p: Tensor = _ONE
    r: Tensor = _ONE

    @property
    def classes(self) -> int | None:
        """The k it was fitted for."""
        return len(self.p)

    def _recalibrate(self, probs: Tensor) -> Tensor:
        flat = probs.reshape(-1, probs.shape[-1]).T.contiguous()
        index = torch.searchsorted(self.p, flat, right=True).sub(1).clamp(0, self.p.shape[1] - 2)
        start, end = self.p.gather(1, index), self.p.gather(1, index + 1)
        low, high = self.r.gather(1, index), self.r.gather(1, index + 1)
        t = ((flat - start) / (end - start).clamp(min=1e-300)).clamp(0, 1)
        return (low + t * (high - low)).T.reshape(probs.shape)


def class_map_from_dict(saved: dict[str, Any]) -> ClassMap:
    """The class map that `to_dict` described."""
    found = from_dict(saved)
    if not isinstance(found, ClassMap):
        raise CalibrlError(f"a saved {found.kind} is not a map of class probabilities; load it with its own tool")
    return found


def recalibrate_classes(forecast: Categorical | Bernoulli, mapping: ClassMap) -> Categorical | Bernoulli:
    """The forecast with recalibrated probabilities: again a torch `Categorical` or `Bernoulli`."""
    if isinstance(forecast, Bernoulli):
        return Bernoulli(probs=mapping(forecast.probs, event=True))
    return Categorical(probs=mapping(forecast.probs))


def logit(p: Tensor) -> Tensor:
    """log(p / (1 - p)), finite at 0 and 1 too."""
    return torch.logit(p, eps=SMALLEST)

"""Recalibrating class probabilities: temperature, Platt and isotonic scaling, binary and categorical.

Probabilities are (n,) for one event or (n, k) for k classes; outcomes are (n,) with 0/1 or the class
number. Every map gives probabilities back that sum to one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from scipy.optimize import isotonic_regression, minimize_scalar
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.errors import CalibrlError
from calibrl.maps.fit import PRIOR_POINTS, logistic_fit
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
        return len(self.a)

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return torch.sigmoid(self.a * _logit(probs) + self.b)


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
        return len(self.p)

    def _recalibrate(self, probs: Tensor) -> Tensor:
        flat = probs.reshape(-1, probs.shape[-1]).T.contiguous()
        index = torch.searchsorted(self.p, flat, right=True).sub(1).clamp(0, self.p.shape[1] - 2)
        start, end = self.p.gather(1, index), self.p.gather(1, index + 1)
        low, high = self.r.gather(1, index), self.r.gather(1, index + 1)
        t = ((flat - start) / (end - start).clamp(min=1e-300)).clamp(0, 1)
        return (low + t * (high - low)).T.reshape(probs.shape)


class FitClassMap(Protocol):
    """What `Calibrated` needs of a function that fits class probabilities."""

    def __call__(self, probs: Array, outcome: Array) -> ClassMap:
        """The map learnt from held-out probabilities and outcomes."""


def fit_temperature(probs: Array, outcome: Array) -> Temperature:
    """Temperature scaling by cross-entropy, shrunk to t = 1."""
    wide, label = check_classes(probs, outcome)
    log_p = wide.clamp(min=SMALLEST).log()

    def loss(log_t: float) -> float:
        scaled = torch.log_softmax(log_p / np.exp(log_t), -1)
        return float(-scaled.gather(-1, label[:, None]).sum()) + PRIOR_POINTS / 20 * log_t**2

    best = minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-8})
    return Temperature(t=torch.tensor(float(np.exp(best.x)), dtype=torch.float64))


def fit_platt_classes(probs: Array, outcome: Array) -> PlattClasses:
    """Platt scaling, each class against the rest, shrunk to the identity."""
    wide, label = check_classes(probs, outcome)
    level = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    size = torch.cat([torch.ones(len(wide)), torch.full((19,), PRIOR_POINTS / 19)]).double()
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = []
    for j in range(wide.shape[1]):
        t = _logit(torch.cat([wide[:, j], level]))
        target = torch.cat([(label == j).double(), level])
        features = torch.stack([t, torch.ones_like(t)], -1)
        found.append(logistic_fit(features, target, size, start=start, positive=1))
    parameters = torch.stack(found)
    return PlattClasses(a=parameters[:, 0], b=parameters[:, 1])


def fit_isotonic_classes(probs: Array, outcome: Array) -> IsotonicClasses:
    """Isotonic regression (PAVA), each class against the rest, shrunk to the identity with 10 pseudo-rows."""
    wide, label = check_classes(probs, outcome)
    trust = len(wide) / (len(wide) + PRIOR_POINTS)
    curves = []
    for j in range(wide.shape[1]):
        p, group = torch.unique(wide[:, j], return_inverse=True)
        count = torch.bincount(group, minlength=len(p)).double()
        hits = torch.bincount(group, weights=(label == j).double(), minlength=len(p))
        rate = torch.from_numpy(isotonic_regression((hits / count).numpy(), weights=count.numpy()).x)
        # Only the corners of the steps are needed.
        corner = torch.ones(len(p), dtype=torch.bool)
        corner[1:-1] = (rate[1:-1] != rate[:-2]) | (rate[1:-1] != rate[2:])
        p, rate = p[corner], rate[corner]
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        p, rate = torch.cat([ends[:1], p, ends[1:]]), torch.cat([rate[:1], rate, rate[-1:]])
        curves.append((p, trust * rate + (1 - trust) * p))
    most = max(len(p) for p, _ in curves)
    pad = [(torch.cat([c, c[-1:].expand(most - len(c))]) for c in curve) for curve in curves]
    knots = [tuple(pair) for pair in pad]
    return IsotonicClasses(p=torch.stack([p for p, _ in knots]), r=torch.stack([r for _, r in knots]))


CLASS_FITS: dict[str, FitClassMap] = {
    "temperature": fit_temperature,
    "platt": fit_platt_classes,
    "isotonic": fit_isotonic_classes,
}


def fit_auto_classes(probs: Array, outcome: Array) -> ClassMap:
    """The class map with the best 5-fold cross-entropy, or no change unless that wins by a standard error."""
    wide, label = check_classes(probs, outcome)
    if len(wide) < 10:
        return Unchanged(note="too few rows to choose a map: left unchanged")
    order = torch.randperm(len(wide), generator=torch.Generator().manual_seed(0))
    wide, label = wide[order], label[order]
    fold = torch.arange(len(wide)) % 5

    def surprise(p: Tensor, y: Tensor) -> Tensor:
        return -p.gather(-1, y[:, None])[:, 0].clamp(min=SMALLEST).log()

    plain = surprise(wide, label)
    scores = {name: torch.empty_like(plain) for name in CLASS_FITS}
    for k in range(5):
        for name, fit in CLASS_FITS.items():
            held = fold == k
            scores[name][held] = surprise(fit(wide[~held], label[~held])(wide[held]), label[held])
    name = min(scores, key=lambda candidate: float(scores[candidate].mean()))
    gain = plain - scores[name]
    if float(gain.mean()) <= float(gain.std()) / len(gain) ** 0.5:
        return Unchanged(note="chosen by cross-validation: identity")
    found = CLASS_FITS[name](wide, label)
    return type(found)(**{**vars_of(found), "note": f"chosen by cross-validation: {name}"})


def vars_of(value: Frozen) -> dict[str, Any]:
    """The fields of a frozen value by name."""
    return dict(value._parts)


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


def check_classes(probs: Array, outcome: Array) -> tuple[Tensor, Tensor]:
    """Probabilities as (n, k) float64 and labels as (n,) int64, rows with unseen outcomes dropped, or an error."""
    p = as_tensor(probs, "probs").detach().double().cpu()
    y = as_tensor(outcome, "outcome").detach().double().cpu()
    single = p.dim() == 1
    p = p[:, None] if single else p
    if p.dim() != 2 or y.shape != p.shape[:1]:
        raise CalibrlError(
            f"probabilities of shape {tuple(p.shape)} do not fit outcomes of shape {tuple(y.shape)}; "
            "expected (n,) or (n, k) and (n,)"
        )
    seen = ~y.isnan()
    p, y = p[seen], y[seen]
    if len(p) < 2:
        raise CalibrlError(f"{len(p)} outcomes are too few to calibrate on; at least 2 are needed")
    if bool(p.isnan().any()) or bool((p < 0).any()) or bool((p > 1).any()):
        wrong = p[p.isnan() | (p < 0) | (p > 1)][0].item()
        raise CalibrlError(f"class probability {wrong:g} is not between 0 and 1; check the probability columns")
    p = torch.cat([1 - p, p], -1) if single else p
    total = p.sum(-1)
    if bool(((total - 1).abs() > 1e-3).any()):
        row = int(((total - 1).abs() > 1e-3).nonzero()[0])
        raise CalibrlError(f"probabilities of row {row} sum to {total[row].item():g}, not 1; normalise them first")
    if bool((y != y.round()).any()) or bool((y < 0).any()) or bool((y >= p.shape[1]).any()):
        wrong = y[(y != y.round()) | (y < 0) | (y >= p.shape[1])][0].item()
        raise CalibrlError(f"outcome {wrong:g} is not one of the classes 0 … {p.shape[1] - 1}")
    return p / total[:, None], y.long()


def _logit(p: Tensor) -> Tensor:
    return torch.logit(p, eps=SMALLEST)

"""Recalibrating class probabilities: temperature, with or without biases, Platt and isotonic scaling.

Probabilities are (n,) for one event or (n, k) for k classes; outcomes are (n,) with 0/1 or the class number. Every map
gives probabilities back that sum to one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from scipy.optimize import isotonic_regression, minimize
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from calibrl.arrays import Array, as_tensor, returns_what_was_given, threads
from calibrl.errors import CalibrlError
from calibrl.maps.base import Frozen, from_dict
from calibrl.maps.fit import PRIOR_POINTS, logistic_fit

SMALLEST = 1e-12
"""Probabilities are kept this far from 0 and 1 before a logit is taken."""

_ONE = torch.ones((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class ClassMap(Frozen, ABC):
    """A map of class probabilities (…, k), called with an array of them.

    Parameters
    ----------
    note : str
        How the map came about, in words.

    """

    BY_CLASS: ClassVar[str] = ""
    """A field with an entry for each class."""
    SINGLE: ClassVar[str] = ""
    """A field of one number."""
    note: str = ""

    @property
    def classes(self) -> int | None:
        """The number of classes the map was fitted for (2 for one event), or None for any number."""
        return len(getattr(self, self.BY_CLASS)) if self.BY_CLASS else None

    def check(self) -> None:
        """Raise a ValueError for numbers that no fit gives."""
        super().check()
        axes = {self.SINGLE: 0, self.BY_CLASS: 1 + self.AXES}
        if any(name and getattr(self, name).dim() != most for name, most in axes.items()):
            raise ValueError(f"{self.SINGLE or self.BY_CLASS} is not one number, or not one for each class")

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
        _check_sums(wide.double(), "normalise them, or say event=True of one event's")
        raw = self.to(wide.device)._recalibrate(wide.double())
        total = raw.sum(-1, keepdim=True)
        even = torch.where(total > 0, raw / total.clamp(min=1e-300), wide.double())
        return (even[..., 1] if event else even).to(given.dtype)


@dataclass(frozen=True, eq=False)
class Unchanged(ClassMap):
    """Probabilities are left as they are."""

    kind: ClassVar[str] = "classes-identity"

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return probs


@dataclass(frozen=True, eq=False)
class Temperature(ClassMap):
    """softmax(log p / t): one number that makes all forecasts bolder (t < 1) or meeker (t > 1).

    Parameters
    ----------
    t : Tensor ()
        The temperature, above 0.
    """

    kind: ClassVar[str] = "classes-temperature"
    SINGLE: ClassVar[str] = "t"
    POSITIVE: ClassVar[tuple[str, ...]] = ("t",)
    t: Tensor = _ONE

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return torch.softmax(probs.clamp(min=SMALLEST).log() / self.t, -1)


@dataclass(frozen=True, eq=False)
class BiasCorrected(ClassMap):
    """softmax(a log p + b): bolder or meeker, and each class likelier or less likely, as after a change of base rates.

    Parameters
    ----------
    a : Tensor ()
        The inverse of a temperature, above 0.
    b : Tensor (k,)
        What is added to the logarithm of each class's probability.
    """

    kind: ClassVar[str] = "classes-bias-corrected"
    BY_CLASS: ClassVar[str] = "b"
    SINGLE: ClassVar[str] = "a"
    POSITIVE: ClassVar[tuple[str, ...]] = ("a",)
    a: Tensor = _ONE
    b: Tensor = _ONE

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return torch.softmax(self.a * probs.clamp(min=SMALLEST).log() + self.b, -1)


@dataclass(frozen=True, eq=False)
class PlattClasses(ClassMap):
    """sigmoid(a_j · logit p_j + b_j) for each class against the rest, then scaled to sum to one.

    Parameters
    ----------
    a, b : Tensor (k,)
        Slope, above 0, and shift of each class.
    """

    kind: ClassVar[str] = "classes-platt"
    BY_CLASS: ClassVar[str] = "a"
    POSITIVE: ClassVar[tuple[str, ...]] = ("a",)
    LIKE: ClassVar[tuple[str, ...]] = ("a", "b")
    a: Tensor = _ONE
    b: Tensor = _ONE

    def _recalibrate(self, probs: Tensor) -> Tensor:
        return torch.sigmoid(self.a * torch.logit(probs, eps=SMALLEST) + self.b)


@dataclass(frozen=True, eq=False)
class IsotonicClasses(ClassMap):
    """An increasing step curve per class (PAVA), joined by straight lines, scaled to sum to one.

    Parameters
    ----------
    p, r : Tensor (k, m)
        Knots of each class's curve, padded at the end by repetition.
    """

    kind: ClassVar[str] = "classes-isotonic"
    BY_CLASS: ClassVar[str] = "p"
    ASCENDING: ClassVar[tuple[str, ...]] = ("p", "r")
    LIKE: ClassVar[tuple[str, ...]] = ("p", "r")
    AXES: ClassVar[int] = 1
    p: Tensor = _ONE
    r: Tensor = _ONE

    def check(self) -> None:
        """Raise a ValueError for curves that no fit gives."""
        super().check()
        if self.p.shape[1] < 2 or bool(((self.r < 0) | (self.r > 1)).any()):
            raise ValueError("p and r are not curves of each class, between 0 and 1")

    def _recalibrate(self, probs: Tensor) -> Tensor:
        flat = probs.reshape(-1, probs.shape[-1]).T.contiguous()
        index = torch.searchsorted(self.p, flat, right=True).sub(1).clamp(0, self.p.shape[1] - 2)
        start, end = self.p.gather(1, index), self.p.gather(1, index + 1)
        low, high = self.r.gather(1, index), self.r.gather(1, index + 1)
        t = ((flat - start) / (end - start).clamp(min=1e-300)).clamp(0, 1)
        return (low + t * (high - low)).T.reshape(probs.shape)


def class_map_from_dict(saved: dict[str, Any]) -> ClassMap:
    """The class map that `ClassMap.to_dict` described: the counterpart of `calibrl.maps.map_from_dict`."""
    found = from_dict(saved)
    if not isinstance(found, ClassMap):
        raise CalibrlError(f"a saved {found.kind} is not a map of class probabilities; load it with its own tool")
    return found


def _check_sums(probs: Tensor, cure: str) -> None:
    total = probs.sum(-1).reshape(-1)
    if len(off := ((total - 1).abs() > 1e-3).nonzero()):
        raise CalibrlError(f"probabilities of row {off[0].item()} sum to {total[off[0]].item():g}, not 1; {cure}")


def recalibrate_classes(forecast: Categorical | Bernoulli, mapping: ClassMap) -> Categorical | Bernoulli:
    """The forecast with recalibrated probabilities: again a torch `Categorical` or `Bernoulli`.

    Parameters
    ----------
    forecast : Categorical of batch shape (…), or Bernoulli of one event
        What the model says.
    mapping : ClassMap
        Fitted for as many classes.

    Returns
    -------
    Categorical or Bernoulli
    """
    if isinstance(forecast, Bernoulli):
        return Bernoulli(probs=mapping(forecast.probs, event=True))
    return Categorical(probs=mapping(forecast.probs))


class FitClassMap(Protocol):
    """What `Calibrated` needs of a function that fits class probabilities."""

    def __call__(self, probs: Array, outcome: Array, *, weight: Array | None = None) -> ClassMap:
        """The map learnt from held-out probabilities and outcomes."""


def fit_temperature(probs: Array, outcome: Array, *, weight: Array | None = None) -> Temperature:
    """Temperature scaling by cross-entropy, shrunk to t = 1.

    Parameters
    ----------
    probs : array (n, k), or (n,) of one event
        Held-out forecasts.
    outcome : array (n,)
        The classes that came, numbered from 0; NaN where not observed.
    weight : array (n,), optional
        How much each row counts; all alike by default.

    Returns
    -------
    Temperature
    """
    return _temperature(*_weighed(probs, outcome, weight))


def fit_bias_corrected(probs: Array, outcome: Array, *, weight: Array | None = None) -> BiasCorrected:
    """Temperature scaling with a bias for each class (Alexandari et al., 2020), shrunk to no change.

    For base rates that differ from those the model was trained with, as well as for too bold or too meek a model.

    Parameters
    ----------
    probs, outcome, weight
        As in `fit_temperature`.

    Returns
    -------
    BiasCorrected
    """
    return _bias_corrected(*_weighed(probs, outcome, weight))


def fit_platt_classes(probs: Array, outcome: Array, *, weight: Array | None = None) -> PlattClasses:
    """Platt scaling, each class against the rest, shrunk to the identity.

    Parameters
    ----------
    probs, outcome, weight
        As in `fit_temperature`.

    Returns
    -------
    PlattClasses
    """
    return _platt(*_weighed(probs, outcome, weight))


def fit_isotonic_classes(probs: Array, outcome: Array, *, weight: Array | None = None) -> IsotonicClasses:
    """Isotonic regression (PAVA), each class against the rest, shrunk to the identity with 10 pseudo-rows.

    Parameters
    ----------
    probs, outcome, weight
        As in `fit_temperature`.

    Returns
    -------
    IsotonicClasses
    """
    return _isotonic(*_weighed(probs, outcome, weight))


@threads(1)
def fit_auto_classes(probs: Array, outcome: Array, *, weight: Array | None = None) -> ClassMap:
    """The class map with the best 5-fold cross-entropy, or no change unless that wins by a standard error.

    Parameters
    ----------
    probs, outcome, weight
        As in `fit_temperature`.

    Returns
    -------
    ClassMap
        The chosen map; its `note` says which.
    """
    wide, label, size = _weighed(probs, outcome, weight)
    if len(wide) < 10:
        return Unchanged(note="too few rows to choose a map: left unchanged")
    order = torch.randperm(len(wide), generator=torch.Generator().manual_seed(0))
    wide, label, size = wide[order], label[order], size[order]
    fold = torch.arange(len(wide)) % 5

    def surprise(p: Tensor, y: Tensor) -> Tensor:
        return -p.gather(-1, y[:, None])[:, 0].clamp(min=SMALLEST).log()

    plain = surprise(wide, label)
    near: dict[str, ClassMap] = {}
    scores = {name: torch.empty_like(plain) for name in _FITS}
    for k in range(5):
        held = fold == k
        rest = wide[~held], label[~held], size[~held]
        for name, fit in _FITS.items():
            # Most rows were in the last fold's fit too: the search starts from there.
            near[name] = fit(*rest, near.get(name))
            scores[name][held] = surprise(near[name](wide[held]), label[held])
    share = size / size.sum()
    name = min(scores, key=lambda candidate: float(share @ scores[candidate]))
    gain = plain - scores[name]
    mean, n = float(share @ gain), len(gain)
    if mean <= float((share * (gain - mean)).square().sum() * n / (n - 1)) ** 0.5:
        return Unchanged(note="chosen by cross-validation: identity")
    return replace(CLASS_MAPS[name](wide, label, weight=size), note=f"chosen by cross-validation: {name}")


CLASS_MAPS: dict[str, FitClassMap] = {
    "auto": fit_auto_classes,
    "temperature": fit_temperature,
    "bias-corrected": fit_bias_corrected,
    "platt": fit_platt_classes,
    "isotonic": fit_isotonic_classes,
}
"""Every fit of a class map by the name that commands call it."""


# The fits of checked probabilities wide (n, k), labels (n,) and weights (n,). The choice fits each map five times over,
# from a map that is `near`.


def _temperature(wide: Tensor, label: Tensor, size: Tensor, near: ClassMap | None = None) -> Temperature:
    start = -near.t.log()[None] if isinstance(near, Temperature) else torch.zeros(1, dtype=torch.float64)
    return Temperature(t=torch.exp(-_softmax_fit(wide, label, size, start)[0]))


def _bias_corrected(wide: Tensor, label: Tensor, size: Tensor, near: ClassMap | None = None) -> BiasCorrected:
    start = torch.zeros(1 + wide.shape[1], dtype=torch.float64)
    if isinstance(near, BiasCorrected):
        start = torch.cat([near.a.log()[None], near.b])
    theta = _softmax_fit(wide, label, size, start)
    return BiasCorrected(a=theta[0].exp(), b=theta[1:] - theta[1:].mean())


def _softmax_fit(wide: Tensor, label: Tensor, size: Tensor, start: Tensor) -> Tensor:
    """(log a, b) of softmax(a log p + b) by cross-entropy, shrunk to no change: (1 + k,), or (1,) without biases."""
    k, biased = wide.shape[1], len(start) > 1
    log_p = wide.clamp(min=SMALLEST).log()
    came = torch.bincount(label, weights=size, minlength=k)
    wanted = float(log_p.gather(-1, label[:, None])[:, 0] @ size)
    # Ten rows' worth of the belief that nothing is to be changed.
    pull = torch.full_like(start, PRIOR_POINTS / k)
    pull[0] = PRIOR_POINTS / 10

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        found = torch.from_numpy(theta)
        a, b = found[0].exp(), found[1:] if biased else torch.zeros(k, dtype=torch.float64)
        score = a * log_p + b
        total = torch.logsumexp(score, -1)
        said = size[:, None] * torch.exp(score - total[:, None])
        slope = torch.cat([(a * ((said * log_p).sum() - wanted))[None], said.sum(0) - came])[: len(found)]
        value = total @ size - a * wanted - b @ came + pull @ found.square() / 2
        return float(value), (slope + pull * found).numpy()

    options = {"ftol": 0.0, "gtol": 1e-10 * float(size.sum()), "maxiter": 500}
    bounds = [(-4.0, 4.0)] + [(None, None)] * (len(start) - 1)
    return torch.from_numpy(
        minimize(loss, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    )


def _platt(wide: Tensor, label: Tensor, size: Tensor, near: ClassMap | None = None) -> PlattClasses:
    level = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    size = torch.cat([size, torch.full_like(level, PRIOR_POINTS / 19)])
    k = wide.shape[1]
    a, b = (near.a, near.b) if isinstance(near, PlattClasses) else (torch.ones(k), torch.zeros(k))
    found = []
    for j, start in enumerate(torch.stack([a, b], -1).double()):
        t = torch.logit(torch.cat([wide[:, j], level]), eps=SMALLEST)
        target = torch.cat([(label == j).double(), level])
        found.append(logistic_fit(torch.stack([t, torch.ones_like(t)]), target, size, start=start, positive=1))
    parameters = torch.stack(found)
    return PlattClasses(a=parameters[:, 0], b=parameters[:, 1])


def _isotonic(wide: Tensor, label: Tensor, size: Tensor, _: ClassMap | None = None) -> IsotonicClasses:
    n, k = wide.shape
    weight, alike = size.numpy(), bool((size == 1).all())
    trust = float(size.sum() / (size.sum() + PRIOR_POINTS))
    by_class = np.ascontiguousarray(wide.numpy().T)
    # Each class's probabilities in order, and those of the rows where it came true.
    rows_of = np.split(label.argsort().numpy(), np.bincount(label.numpy(), minlength=k).cumsum()[:-1])
    curves = []
    for probs, true in zip(by_class, rows_of, strict=True):
        order = None if alike else np.argsort(probs)
        every = np.sort(probs) if order is None else probs[order]
        up_to = np.arange(n + 1.0) if order is None else np.append(0.0, weight[order].cumsum())
        first = np.concatenate([[0], 1 + np.flatnonzero(every[1:] != every[:-1]), [n]])
        p, count = every[first[:-1]], np.diff(up_to[first])
        rate = np.bincount(np.searchsorted(p, probs[true]), weights=weight[true], minlength=len(p)) / count
        rate = isotonic_regression(rate, weights=count).x
        # Only the corners of the steps are needed.
        corner = np.ones(len(p), dtype=bool)
        corner[1:-1] = (rate[1:-1] != rate[:-2]) | (rate[1:-1] != rate[2:])
        p, rate = p[corner], rate[corner]
        p, rate = np.concatenate([[0.0], p, [1.0]]), np.concatenate([rate[:1], rate, rate[-1:]])
        curves.append((p, trust * rate + (1 - trust) * p))
    knots = np.empty((2, k, max(len(p) for p, _ in curves)))
    for j, curve in enumerate(curves):
        for padded, values in zip(knots[:, j], curve, strict=True):
            padded[: len(values)], padded[len(values) :] = values, values[-1]
    return IsotonicClasses(p=torch.from_numpy(knots[0]), r=torch.from_numpy(knots[1]))


_FITS: dict[str, Callable[[Tensor, Tensor, Tensor, ClassMap | None], ClassMap]] = {
    "temperature": _temperature,
    "bias-corrected": _bias_corrected,
    "platt": _platt,
    "isotonic": _isotonic,
}


def _weighed(probs: Array, outcome: Array, weight: Array | None) -> tuple[Tensor, Tensor, Tensor]:
    """Checked probabilities (m, k), labels (m,) and weights (m,) of the rows that count.

    Weights add up to the number of rows, weighing alike, that would say as much (Kish).
    """
    if weight is None:
        wide, label = check_classes(probs, outcome)
        return wide, label, torch.ones(len(wide), dtype=torch.float64)
    given = (weight, "weight"), (outcome, "outcome")
    size, came = (as_tensor(*one).detach().double().cpu() for one in given)
    if size.shape != came.shape:
        raise CalibrlError(f"weight has shape {tuple(size.shape)}; expected {tuple(came.shape)}, one for each outcome")
    if not bool((size.isfinite() & (size >= 0)).all()):
        raise CalibrlError("weights must be finite and not negative; drop rows that should not count")
    counts = ~came.isnan() & (size > 0)
    wide, label = check_classes(probs, torch.where(counts, came, torch.nan))
    size = size[counts] / size[counts].max()
    return wide, label, size * (size.sum() / size.square().sum())


def check_classes(probs: Array, outcome: Array) -> tuple[Tensor, Tensor]:
    """Probabilities as (n, k) float64 and labels as (n,) int64, rows with unseen outcomes dropped, or an error.

    Parameters
    ----------
    probs : array (n, k), or (n,) of one event
        Forecasts.
    outcome : array (n,)
        The classes that came, NaN where not observed.

    Returns
    -------
    probs, label : Tensor (m, k) float64, Tensor (m,) int64
        The rows whose outcome was observed; an event has k = 2.
    """
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
    wrong = p.isnan() | (p < 0) | (p > 1)
    if bool(wrong.any()):
        raise CalibrlError(f"class probability {p[wrong][0].item():g} is not between 0 and 1; check its column")
    p = torch.cat([1 - p, p], -1) if single else p
    _check_sums(p, "normalise them first")
    wrong = (y != y.round()) | (y < 0) | (y >= p.shape[1])
    if bool(wrong.any()):
        raise CalibrlError(
            f"outcome {y[wrong][0].item():g} is not one of the classes 0 … {p.shape[1] - 1}; number them from 0"
        )
    return p / p.sum(-1, keepdim=True), y.long()

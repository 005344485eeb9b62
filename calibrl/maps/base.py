"""R: an increasing map of [0, 1] onto itself, one per column of a forecast.

Maps are frozen values made of tensors: they compare equal, hash, move between devices and save as plain JSON. They keep
order statistics of the evidence they were fitted on, for intervals with a finite-sample guarantee.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.errors import CalibrlError, cut, first_line
from calibrl.files import check_regular, writable, write_text
from calibrl.kernels import normal

KINDS: dict[str, type[Frozen]] = {}
"""Every concrete kind of value by the name it is saved under."""


@dataclass(frozen=True, eq=False)
class Frozen:
    """A dataclass of tensors, strings and other `Frozen` values."""

    kind: ClassVar[str]
    POSITIVE: ClassVar[tuple[str, ...]] = ()
    """Fields whose numbers are all above 0."""
    ASCENDING: ClassVar[tuple[str, ...]] = ()
    """Fields whose numbers do not fall along the last axis; those of `STRICT` rise."""
    STRICT: ClassVar[tuple[str, ...]] = ()
    LIKE: ClassVar[tuple[str, ...]] = ()
    """Fields of one shape."""
    AXES: ClassVar[int] = 0
    """Axes that these have besides one for columns."""

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Frozen.__repr__  # type: ignore[method-assign]
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

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all; `calibrl.maps.load` reads it.

        Parameters
        ----------
        path : str or Path
        """
        write_checked(path, {"format": FORMAT, "version": VERSION, "pooled": {"map": self.to_dict()}})

    def __repr__(self) -> str:
        """Its numbers where they are few; otherwise how many there are."""
        parts = (f"{name}={_short(part)}" for name, part in self._parts.items() if part is not None)
        return f"{type(self).__name__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __getstate__(self) -> dict[str, Any]:
        """What it is, without what was worked out about it: that may be large, or on a device that is not there."""
        return self._parts

    def check(self) -> None:
        """Raise a ValueError for numbers that no fit gives: this is how a map that was read is believed."""
        shapes = [tuple(getattr(self, name).shape) for name in self.LIKE]
        if len(set(shapes)) > 1 or any(not 0 <= len(shape) - self.AXES <= 1 or 0 in shape for shape in shapes):
            raise ValueError(f"{', '.join(self.LIKE)} have shapes {', '.join(map(str, shapes))}")
        for name in self.POSITIVE:
            if not bool((getattr(self, name) > 0).all()):
                raise ValueError(f"{name} is not above 0")
        for name in (*self.ASCENDING, *self.STRICT):
            steps = getattr(self, name).diff(dim=-1)
            if not bool((steps > 0 if name in self.STRICT else steps >= 0).all()):
                raise ValueError(f"{name} does not ascend")

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
    """The value that `to_dict` described, or an error if no fit can have given it."""
    try:
        return _from_dict(saved)
    except RecursionError:
        raise CalibrlError("the saved map is damaged (it is nested too deeply); fit it again") from None


def _from_dict(saved: dict[str, Any]) -> Frozen:
    kind = saved.get("kind") if isinstance(saved, dict) else saved
    if not isinstance(kind, str) or kind not in KINDS:
        raise CalibrlError(f"unknown kind of map {cut(repr(kind))}; known: {', '.join(sorted(KINDS))}")
    cls = KINDS[kind]
    names = {field.name for field in fields(cls)}
    given = set(saved) - {"kind"}
    if given != names:
        raise CalibrlError(f"a saved {cls.kind} map holds {sorted(given)}, expected {sorted(names)}; fit it again")
    try:
        found = cls(**{field.name: _rich(saved[field.name], str(field.type), field.name) for field in fields(cls)})
        found.check()
    except (TypeError, ValueError, OverflowError, IndexError) as problem:
        raise CalibrlError(f"the saved {cls.kind} map is damaged ({first_line(problem)}); fit it again") from None
    return found


FORMAT, VERSION = "calibrl-map", 1


def write_checked(path: str | Path, content: dict[str, Any]) -> None:
    """Write a map file, a line for each part, with a checksum that notices a damaged or edited one."""
    parts = {**content, "digest": _digest(content)}
    # One line for each part: the head can be read, and the knots do not fill pages.
    lines = (f" {json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in parts.items())
    with writable(path):
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_checked(path: str | Path) -> dict[str, Any]:
    """What `write_checked` wrote, or an error that says what is wrong with the file."""
    cure = "give a map that `calibrl fit` or a map's save() wrote"
    check_regular(Path(path), cure)
    try:
        saved = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise CalibrlError(f"{path}: cannot be read ({problem.strerror or problem}); {cure}") from None
    except (ValueError, RecursionError, MemoryError):
        raise CalibrlError(f"{path}: is not JSON, or was cut short; {cure}") from None
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise CalibrlError(f"{path}: is JSON but not a {FORMAT} file; {cure}")
    if saved.get("version") != VERSION:
        raise CalibrlError(
            f"{path}: is version {saved.get('version')} of the format, expected {VERSION}; "
            "fit it again, or use the calibrl that wrote it"
        )
    if saved.pop("digest", None) != _digest(saved):
        raise CalibrlError(f"{path}: was damaged or edited after it was fitted; fit it again")
    return saved


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load(path: str | Path) -> Any:
    """The map in a file that a map's `save` or `calibrl fit` wrote; of the latter, the one of all groups together.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Map or ClassMap
    """
    try:
        return from_dict(read_checked(path)["pooled"]["map"])
    except (KeyError, TypeError):
        raise CalibrlError(f"{path}: holds no map; fit it again") from None


def _short(part: Any) -> str:
    many = isinstance(part, Tensor) and part.numel() > 4
    return f"{part.numel()} numbers" if many else repr(part if isinstance(part, Frozen) else _plain(part))


def _plain(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.tolist()
    return part.to_dict() if isinstance(part, Frozen) else part


LARGEST = 1e100
"""No number of a map is larger: squares must not overflow."""


def _rich(part: Any, kind: str, name: str) -> Any:
    """A saved field as what its annotation says, or an error."""
    if part is None and kind.endswith(" | None"):
        return None
    kind = kind.removesuffix(" | None")
    if kind == "Tensor":
        if not _numbers_alone(part):
            raise ValueError(f"{name} is not a list of numbers")
        found = torch.tensor(part, dtype=torch.float64)
        if not bool((found.abs() < LARGEST).all()):
            raise ValueError(f"{name} holds {found[~(found.abs() < LARGEST)][0].item():g}")
        return found
    if kind == "str":
        if not isinstance(part, str):
            raise ValueError(f"{name} is not text")
        return part
    value = _from_dict(part)
    if not isinstance(value, Ranks if kind == "Ranks" else Map):
        raise ValueError(f"{name} is a {value.kind}")
    return value


def _numbers_alone(part: Any) -> bool:
    if isinstance(part, list):
        return all(map(_numbers_alone, part))
    return isinstance(part, int | float) and not isinstance(part, bool)


@dataclass(frozen=True, eq=False)
class Ranks(Frozen):
    """Chosen order statistics z₍ᵣ₎ of n calibration z-scores, per column.

    Where n is large only some ranks are kept, and none of outcomes further out than a float64 can say; an interval is
    rounded outwards to the next one: wider, never narrower.

    Parameters
    ----------
    z : Tensor (*columns, m)
        Order statistics, ascending.
    rank : Tensor (*columns, m)
        Which of the n each is: 1 … n.
    count : Tensor (*columns,)
        n.
    """

    kind: ClassVar[str] = "ranks"
    ASCENDING: ClassVar[tuple[str, ...]] = ("z", "rank")
    POSITIVE: ClassVar[tuple[str, ...]] = ("rank",)
    LIKE: ClassVar[tuple[str, ...]] = ("z", "rank")
    AXES: ClassVar[int] = 1

    z: Tensor
    rank: Tensor
    count: Tensor

    def check(self) -> None:
        """Raise a ValueError for order statistics that no evidence has."""
        super().check()
        if self.count.shape != self.z.shape[:-1] or bool((self.rank > self.count.unsqueeze(-1) + 1).any()):
            raise ValueError("ranks exceed their count")

    def bounds_z(self, low: float, high: float, confidence: float | None = None) -> tuple[Tensor, Tensor]:
        """Order statistics below and above which a new z-score falls with probability `low` and `high` at most.

        A side is infinite where 0 was asked for, when n is too small to promise it (below 1/tail - 1 points), or where
        outcomes lie further out than a float64 can say. With `confidence` they bound what the next rows, not the next
        row, do: a tolerance interval.
        """
        infinity = torch.full_like(self.z, torch.inf)
        below, above = self._allowed(low, high, confidence)
        some = self.count.unsqueeze(-1) > 0
        lowest = torch.where(some & (self._mass_below <= below.unsqueeze(-1)), self.z, -infinity).amax(-1)
        highest = torch.where(some & (self._mass_above <= above.unsqueeze(-1)), self.z, infinity).amin(-1)
        return lowest, highest

    def promise(self, low: float, high: float, confidence: float | None = None) -> str:
        """What is promised of those bounds, and under which conditions, in words."""
        self._allowed(low, high, confidence)
        share = percent(1 - low - high)
        if confidence is not None:
            return (
                f"With {percent(confidence)} confidence it holds at least {share} of all outcomes to come, if rows are "
                "independent draws of one process and the forecaster was not trained on those of the map (tolerance "
                "interval, exact by the binomial law)."
            )
        return (
            f"It holds at least {share} of outcomes on average, if new rows and those of the map are exchangeable and "
            "the forecaster was not trained on those of the map (split conformal)."
        )

    # How much lies on either side of each order statistic, a new row beside it counted, and how much may.

    @property
    def _mass_below(self) -> Tensor:
        return self.rank

    @property
    def _mass_above(self) -> Tensor:
        return self.count.unsqueeze(-1) + 1 - self.rank

    def _allowed(self, low: float, high: float, confidence: float | None) -> tuple[Tensor, Tensor]:
        if confidence is None:
            # Rounding error must not push a whole number over: 0.05 · 200 is 10, not 9.999999999999998.
            return (self.count + 1) * low + 1e-9, (self.count + 1) * high + 1e-9
        if low > 0 and high > 0 and low != high:
            raise CalibrlError(f"tails {low:g} and {high:g} differ; a tolerance interval has equal ones, or one side")
        # The share between two order statistics is Beta: l + r of them given away leave enough with probability
        # P(Bin(n, tail) ≥ l + r), whatever the law.
        given = _most_given(self.count, low + high, confidence)
        given = torch.floor(given / 2) if low > 0 and high > 0 else given
        return given if low > 0 else 0 * given, given if high > 0 else 0 * given


def percent(share: float) -> str:
    """90 %, 99.9 %: a probability as sentences have it."""
    return f"{100 * share:.6g} %"


def _most_given(count: Tensor, tail: float, confidence: float) -> Tensor:
    """The largest r with P(Bin(n, tail) ≤ r - 1) ≤ 1 - confidence."""
    from scipy.stats import binom

    n = count.cpu().numpy()
    least = binom.ppf(1 - confidence, n, tail)
    least = least + (binom.cdf(least, n, tail) <= 1 - confidence)
    return torch.as_tensor(np.maximum(least, 0.0)).to(count)


@dataclass(frozen=True, eq=False)
class WeightedRanks(Ranks):
    """Order statistics of calibration z-scores that weigh differently: newer rows more, or likelier ones.

    Parameters
    ----------
    z, rank, count
        As in `Ranks`.
    below, above : Tensor (*columns, m)
        The weight of all rows below and above each, the heaviest row weighing 1.
    weight : Tensor (*columns,)
        The weight of all.
    """

    kind: ClassVar[str] = "weighted-ranks"

    below: Tensor
    above: Tensor
    weight: Tensor

    def promise(self, low: float, high: float, confidence: float | None = None) -> str:
        """What is promised of those bounds, and under which conditions, in words."""
        self._allowed(low, high, confidence)
        return (
            f"It holds at least {percent(1 - low - high)} of outcomes on average, if new rows and those of the map are "
            "exchangeable, or if the weights say how much likelier each is among new rows (weighted conformal). Where "
            "rows of the map came from other laws it may hold less, by their weighted distance at most."
        )

    @property
    def _mass_below(self) -> Tensor:
        return self.below + 1  # a new row weighs as much as the heaviest

    @property
    def _mass_above(self) -> Tensor:
        return self.above + 1

    def _allowed(self, low: float, high: float, confidence: float | None) -> tuple[Tensor, Tensor]:
        if confidence is not None:
            raise CalibrlError("rows were weighted, and no tolerance bound is known for those; fit without weights")
        return (self.weight + 1) * low + 1e-9, (self.weight + 1) * high + 1e-9


@dataclass(frozen=True, eq=False)
class BareRanks(Ranks):
    """Order statistics of rows for which no theorem holds: a memory of them, and no bounds.

    Parameters
    ----------
    z, rank, count
        As in `Ranks`.
    why : str
        Why nothing can be promised, and what to do.
    """

    kind: ClassVar[str] = "bare-ranks"

    why: str = ""

    def _allowed(self, low: float, high: float, confidence: float | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        raise CalibrlError(self.why)


@dataclass(frozen=True, eq=False)
class Map(Frozen, ABC):
    """An increasing map R of probabilities, per column, with inverse and slope.

    A map works on z-scores z = Φ⁻¹(p), where nothing saturates: a subclass says how z moves, this class
    turns that into R. `columns` is () for one map that serves any shape, or (d,) for one map per last
    dimension. NaN (not observed) stays NaN. Parameters are float64 tensors of shape (*columns, …).

    Parameters
    ----------
    ranks : Ranks, optional
        The sorted evidence, kept for conformal intervals.
    note : str
        How the map came about, in words.
    """

    ranks: Ranks | None = None
    note: str = ""

    def check(self) -> None:
        """Raise a ValueError for numbers that no fit gives."""
        super().check()
        if self.ranks is not None and self.columns and self.ranks.z.shape[:-1] != self.columns:
            raise ValueError(f"ranks of columns {tuple(self.ranks.z.shape[:-1])} beside a map of {self.columns}")

    # What a subclass supplies, all on z-scores of shape (…, *columns).

    @abstractmethod
    def _forward(self, z: Tensor) -> Tensor:
        """S(z) = Φ⁻¹(R(Φ(z)))."""

    @abstractmethod
    def _inverse(self, z: Tensor) -> Tensor:
        """S⁻¹(z)."""

    @abstractmethod
    def _log_slope(self, z: Tensor) -> Tensor:
        """Log S′(z)."""

    @property
    def columns(self) -> tuple[int, ...]:
        """() for one map, (d,) for one per column."""
        shape = () if self._example is None else self._example.shape
        return tuple(shape[: len(shape) - self.AXES])

    @property
    def breaks(self) -> Tensor:
        """Calibrated z-scores where the slope of S⁻¹ bends, for quadrature to stop at: (k, *columns)."""
        return torch.zeros(0, *self.columns, dtype=torch.float64)

    @cached_property
    def dtype(self) -> torch.dtype:
        """What the map computes in: float64, unless it was moved to another with `to`."""
        return torch.float64 if self._example is None else self._example.dtype

    @cached_property
    def _example(self) -> Tensor | None:
        """One of its tensors, whose columns, dtype and device are those of all."""
        return next((part for part in self._parts.values() if isinstance(part, Tensor)), None)

    # R itself.

    @returns_what_was_given
    def __call__(self, p: Array) -> Tensor:
        """R(p).

        Parameters
        ----------
        p : array (…, *columns)
            Probabilities in [0, 1]; NaN stays NaN.

        Returns
        -------
        Tensor or array, as was given, of the shape of p
        """
        return self._on_probabilities(p, self.forward_z)

    @returns_what_was_given
    def inverse(self, p: Array) -> Tensor:
        """R⁻¹(p) at probabilities p (…, *columns), of the kind and shape that was given."""
        return self._on_probabilities(p, self.inverse_z)

    def forward_z(self, z: Tensor) -> Tensor:
        """S(z) = Φ⁻¹(R(Φ(z))) at z-scores of shape (…, *columns)."""
        return self._ready_for(z)._forward(z.to(self.dtype))

    def inverse_z(self, z: Tensor) -> Tensor:
        """S⁻¹(z) at z-scores of shape (…, *columns)."""
        return self._ready_for(z)._inverse(z.to(self.dtype))

    def log_slope_z(self, z: Tensor) -> Tensor:
        """Log S′(z) at z-scores of shape (…, *columns)."""
        return self._ready_for(z)._log_slope(z.to(self.dtype))

    def unpromised(self, why: str) -> Self:
        """The same map, whose evidence allows no guarantee: asked for one, it says why."""
        if self.ranks is None or isinstance(self.ranks, BareRanks):
            return self
        return replace(self, ranks=BareRanks(self.ranks.z, self.ranks.rank, self.ranks.count, why))

    def _ready_for(self, z: Tensor) -> Self:
        """This map, checked against the shape of z and on its device (moved once, then remembered)."""
        if self.columns and (z.dim() == 0 or z.shape[-1:] != self.columns):
            raise CalibrlError(
                f"this map was fitted for {self.columns[0]} columns but the forecast has shape {tuple(z.shape)}; "
                "fit a map on PITs of that shape, or one map for all columns from a flat array"
            )
        if self._example is None or self._example.device == z.device:
            return self
        if z.device not in self.cache:
            self.cache[z.device] = self.to(z.device)
        moved: Self = self.cache[z.device]
        return moved

    def _on_probabilities(self, p: Array, move: Callable[[Tensor], Tensor]) -> Tensor:
        p = as_tensor(p, "p")
        z = normal.finite_quantile(_in_unit_interval(p))
        moved = normal.cdf(move(z)).to(p.dtype)
        # R(0) = 0 and R(1) = 1 exactly; between them a float64 stops just short.
        return torch.where((p == 0) | (p == 1), p, moved)


def _in_unit_interval(p: Tensor) -> Tensor:
    outside = (p < 0) | (p > 1)
    if bool(outside.any()):
        raise CalibrlError(f"probability {p[outside][0].item():g} is outside [0, 1]; pass values of a CDF")
    return p


def rank(table: Tensor, value: Tensor) -> Tensor:
    """How many numbers of an ascending table (k,), or (d, k), each value (…), or (…, d) reaches: 0 … k."""
    if table.dim() == 1:
        return torch.searchsorted(table, value.contiguous(), right=True)
    rows = value.reshape(-1, len(table)).T.contiguous()
    return torch.searchsorted(table, rows, right=True).T.reshape(value.shape)


def pick(table: Tensor, place: Tensor) -> Tensor:
    """The numbers of a table (k,) at places (…), or of one for each column, (d, k), at places (…, d)."""
    if table.dim() == 1:
        return table[place]
    d, k = table.shape
    return table.reshape(-1)[place + torch.arange(d, device=place.device) * k]


def map_from_dict(saved: dict[str, Any]) -> Map:
    """The map that `to_dict` described.

    Parameters
    ----------
    saved : dict
        What `to_dict` gave, or a JSON file of it.

    Returns
    -------
    Map
    """
    found = from_dict(saved)
    if not isinstance(found, Map):
        raise CalibrlError(f"a saved {found.kind} is not a map of CDF values; load it with its own tool")
    return found

"""Maps that outlive the program that fitted them: a plain JSON file with all that `calibrl apply` needs.

With them: what a map is worth on rows it has not seen, and a small memory of the rows it was fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution

from calibrl.algorithm import honest
from calibrl.data import Data, Groups, fingerprints
from calibrl.distributions.families import Grouped
from calibrl.errors import CalibrlError, check_count, check_within, cut, first_line, some
from calibrl.evidence import Scores, fit_to, outcomes_of, take
from calibrl.maps import MAPS, FitMap, Map, map_from_dict
from calibrl.maps.base import FORMAT, VERSION, read_checked, write_checked
from calibrl.maps.classes import CLASS_MAPS, ClassMap, FitClassMap, class_map_from_dict
from calibrl.maps.fit import shrunk_to

FOLDS = 5


def methods_for(kind: str) -> Mapping[str, FitMap] | Mapping[str, FitClassMap]:
    """The fitting functions for a kind of forecast, by name."""
    return CLASS_MAPS if kind == "classes" else MAPS


def fit_named(method: str, kind: str) -> FitMap | FitClassMap:
    """The fitting function called `method` for a kind of forecast, or an error that lists the known ones."""
    known = methods_for(kind)
    if method not in known:
        raise CalibrlError(f"method {method!r} is unknown for {kind}; known: {', '.join(known)}")
    return known[method]


def on_top_of(pooled: Map | ClassMap, fit_map: FitMap | FitClassMap) -> FitMap | FitClassMap:
    """What fits a group's map: numbers' is shrunk to the pooled map, of classes it is the group's own."""
    return fit_map if isinstance(pooled, ClassMap) else shrunk_to(pooled, cast(FitMap, fit_map))


@dataclass(frozen=True)
class How:
    """How rows, in the order of time if they have dates, teach a map and say what it is worth.

    block: so many rows in a row share a fold; forget: the factor by which a row's weight shrinks with each later one;
    in_time: maps are judged on rows that came after those they were fitted on.
    """

    block: int = 1
    forget: float = 1.0
    in_time: bool = False

    def __post_init__(self) -> None:
        check_count("--block", self.block, "is not a number of rows")
        check_within("--forget", self.forget, "(0, 1]", "0.99 trusts about the last 100 rows")

    def fit(self, evidence: Scores, fit_map: FitMap | FitClassMap) -> Map | ClassMap:
        """The map of rows in this order."""
        ages = torch.arange(len(outcomes_of(evidence)), dtype=torch.float64).flip(0)
        mapping = fit_to([evidence], fit_map, weight=None if self.forget == 1 else self.forget**ages)
        if self.block > 1 and isinstance(mapping, Map):
            return mapping.unpromised(
                f"the map was fitted on rows that resemble their neighbours (--block {self.block}), which are not "
                "exchangeable: no interval is guaranteed; fit without --block if rows are independent"
            )
        return mapping

    def folds(self, n: int, most: int) -> list[tuple[Tensor, Tensor]]:
        """(rows that a map is fitted on, rows that it is judged on), (n,) bool each, at least two of either."""
        blocks = -(-n // self.block)
        count = min(most, blocks // 2 if self.block == 1 else blocks, n // 2)
        if count < 2:
            return []
        place = torch.arange(n) // self.block
        if not self.in_time:
            order = torch.randperm(blocks, generator=torch.Generator().manual_seed(0))
            fold = (order % count)[place]
            return [(fold != k, fold == k) for k in range(count)]
        # One more part than folds: the first only teaches.
        part = place * (count + 1) // blocks if blocks > count else torch.arange(n) * (count + 1) // n
        pairs = [(part < k, part == k) for k in range(1, count + 1)]
        return [(past, now) for past, now in pairs if int(past.sum()) >= 2 and int(now.sum()) >= 2]


PLAIN = How()


def cross_validate(
    evidence: Scores, fit: FitMap | FitClassMap, how: How = PLAIN, *, folds: int = FOLDS
) -> list[tuple[Scores, Scores]]:
    """For each fold, its rows' evidence as forecast and after a map fitted on the other folds, or on those before it.

    Rows are dealt to the folds at random, seeded with 0, at least two to each: fewer than four rows give no
    folds. Losses are to be averaged over folds, not taken of all rows together: those share the maps' chance errors.
    """
    pairs: list[tuple[Scores, Scores]] = []
    for rest, now in how.folds(len(outcomes_of(evidence)), folds):
        held, mapping = take(evidence, now), how.fit(take(evidence, rest), fit)
        after = (mapping(held[0]), held[1]) if isinstance(mapping, ClassMap) else mapping.forward_z(cast(Tensor, held))
        pairs.append((held, after))
    return pairs


KEPT = 1024
"""Fingerprints kept: up to so many rows the memory is complete, beyond it is a sample."""


@dataclass(frozen=True)
class Sketch:
    """The smallest fingerprints of a set of rows (a bottom-k min-hash).

    rows: how many there were; distinct: how many different ones; smallest: the least `KEPT` of their 53-bit
    fingerprints, ascending. Which fingerprints are small is chance, so those kept are a fair sample of rows,
    and the same rows of another file leave the same sample.
    """

    rows: int
    distinct: int
    smallest: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor, y: Tensor) -> Sketch:
        """The sketch of forecasts (n, k) with outcomes (n,)."""
        marks = _marks(values, y)
        return cls(rows=len(y), distinct=len(marks), smallest=tuple(marks[:KEPT].tolist()))

    def share(self, values: Tensor, y: Tensor) -> float:
        """The estimated share of the rows, forecasts (n, k) with outcomes (n,), that are among those remembered.

        Exact up to `KEPT` remembered rows; beyond, from the rows whose fingerprints are as small as those
        kept. Where no more rows are met again than rows of one file are like another of it (rounded forecasts of
        few outcomes), chance explains it: they count as never seen.
        """
        marks = _marks(values, y)
        known = np.array(self.smallest, dtype=np.int64)
        complete = len(known) == self.distinct
        comparable = marks if complete else marks[marks <= known[-1]]
        met = float(np.isin(comparable, known).mean()) if len(comparable) else 0.0
        # Of two rows that are alike, one is not distinct.
        alike = 2 * (1 - min(self.distinct / max(self.rows, 1), len(marks) / max(len(y), 1)))
        return met if met > alike else 0.0


def _marks(values: Tensor, y: Tensor) -> NDArray[np.int64]:
    """Distinct fingerprints, ascending; of single precision, so that a file's number format does not matter."""
    # Adding zero turns -0 into 0. 53 bits are what every JSON reader keeps of a whole number.
    rows = Data((values.to(torch.float32) + 0.0).double(), (y.to(torch.float32) + 0.0).double())
    marks = np.sort((fingerprints(rows) >> np.uint64(11)).astype(np.int64))
    return marks[np.diff(marks, prepend=-1) > 0]


@dataclass(frozen=True)
class FittedMap:
    """A map and the number of outcomes it was fitted on."""

    mapping: Map | ClassMap
    rows: int


@dataclass(frozen=True)
class MapFile:
    """Maps, and what they were fitted for.

    Parameters
    ----------
    kind, columns
        The forecasts they recalibrate.
    method : str
        As asked for.
    pooled : FittedMap
        The map of all rows together.
    sketch, source
        A memory of the rows they were fitted on, and the file of those.
    group : str, optional
        The column that told groups apart.
    groups, too_few
        The map of each group, and groups that had too few outcomes for one.
    date, package : str
        When, and by which version of calibrl.
    """

    kind: str
    columns: tuple[str, ...]
    method: str
    pooled: FittedMap
    sketch: Sketch
    source: str
    package: str
    group: str | None = None
    groups: dict[str, FittedMap] = field(default_factory=dict)
    too_few: tuple[str, ...] = ()
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"))

    def expect(self, kind: str, columns: tuple[str, ...], *, source: str) -> None:
        """Refuse forecasts of another kind or other columns than the maps were fitted for."""
        if (kind, columns) != (self.kind, self.columns):
            raise CalibrlError(
                f"{source}: holds {kind} ({some(columns)}) but the map was fitted for {self.kind} "
                f"({some(self.columns)}); fit a map on forecasts like these, or choose others with --kind"
            )

    def apply(
        self,
        forecast: Callable[[Tensor], Distribution],
        rows: Tensor,
        groups: Groups | None = None,
        *,
        pool_new: bool = False,
        source: str = "forecasts",
    ) -> Distribution:
        """The forecasts of `rows`, each calibrated by the map of its group, as one distribution.

        forecast: gives the forecasts of any rows, (m,) of their numbers from 0; groups: whose row each is, or None
        for the pooled map. A group that no map was fitted for is an error, or gets the pooled map with `pool_new`.
        """
        if groups is None:
            return honest(forecast(rows), self.pooled.mapping)
        here = groups.split(rows)
        unknown = [name for name in here if name not in self.groups]
        if unknown and not pool_new:
            name = unknown[0]
            known = f"known: {some(tuple(self.groups))}" if self.groups else "no group has one"
            cure = "fit it too"
            if name in self.too_few:
                known, cure = f"too few outcomes in {self.source}", "fit it with 2 outcomes or more"
            raise CalibrlError(
                f"{source}: {self.group} {name!r} has no map ({known}); {cure}, or give such groups the pooled map "
                "with --new-groups pooled"
            )
        parts = [
            (places, honest(forecast(rows[places]), self.groups.get(name, self.pooled).mapping))
            for name, places in here.items()
        ]
        classes = [(places, part.probs) for places, part in parts if isinstance(part, Categorical)]
        if classes:
            probs = classes[0][1].new_empty(len(rows), classes[0][1].shape[-1])
            for places, piece in classes:
                probs[places] = piece
            return Categorical(probs=probs, validate_args=False)
        return parts[0][1] if len(parts) == 1 else Grouped(parts)

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        write_checked(path, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, ready for JSON."""

        def plain(fitted: FittedMap) -> dict[str, Any]:
            return {"rows": fitted.rows, "map": fitted.mapping.to_dict()}

        return {
            "format": FORMAT,
            "version": VERSION,
            "package": self.package,
            "date": self.date,
            "source": self.source,
            "forecast": {"kind": self.kind, "columns": list(self.columns)},
            "method": self.method,
            "group": self.group,
            "pooled": plain(self.pooled),
            "groups": {name: plain(fitted) for name, fitted in self.groups.items()},
            "too_few": list(self.too_few),
            "fitted_rows": asdict(self.sketch),
        }

    @classmethod
    def load(cls, path: str | Path) -> MapFile:
        """The file that `save` wrote, or an error that says what is wrong with it."""
        saved = read_checked(path)
        if "forecast" not in saved:
            raise CalibrlError(
                f"{path}: holds a map and not what it was fitted for; use it in Python (calibrl.maps.load), or fit it "
                "by `calibrl fit`"
            )
        try:
            return cls._from_dict(saved)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as problem:
            raise CalibrlError(f"{path}: is damaged ({first_line(problem)}); fit it again") from None

    @classmethod
    def _from_dict(cls, saved: dict[str, Any]) -> MapFile:
        kind = saved["forecast"]["kind"]
        texts = [*saved["forecast"]["columns"], *saved.get("too_few", ()), saved["group"] or "", kind]
        texts += [saved[name] for name in ("method", "source", "date", "package")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a name in it is not text")
        load = class_map_from_dict if kind == "classes" else map_from_dict

        def rich(fitted: dict[str, Any]) -> FittedMap:
            return FittedMap(load(fitted["map"]), whole(fitted["rows"]))

        def whole(number: Any) -> int:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 53:
                raise ValueError(f"{cut(repr(number))} in it is not a whole number")
            return number

        rows = saved["fitted_rows"]
        smallest = tuple(map(whole, rows["smallest"]))
        if list(smallest) != sorted(set(smallest)):
            raise ValueError("its memory of rows is not in order")
        return cls(
            kind=kind,
            columns=tuple(saved["forecast"]["columns"]),
            method=saved["method"],
            pooled=rich(saved["pooled"]),
            sketch=Sketch(whole(rows["rows"]), whole(rows["distinct"]), smallest),
            source=saved["source"],
            group=saved["group"],
            groups={name: rich(fitted) for name, fitted in saved["groups"].items()},
            too_few=tuple(saved["too_few"]),
            date=saved["date"],
            package=saved["package"],
        )

"""What outcomes say of the forecasts in a table: as they are, after a map, by group, in time; what a map is worth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Generator, Tensor
from torch.distributions import Categorical, Distribution

from calibrl.algorithm import honest, judge
from calibrl.data import Groups
from calibrl.diagnostics import (
    ClassSummary,
    QuantileSummary,
    Summary,
    calibration_loss,
    class_reliability,
    class_summary,
    noise_floor,
    quantile_summary,
    summary,
)
from calibrl.distributions import Recalibrated, pit
from calibrl.errors import ReusedRows
from calibrl.evidence import Scores, take
from calibrl.kernels import normal
from calibrl.maps import IDENTITY, FitMap
from calibrl.maps.classes import FitClassMap
from calibrl.tables.forecasts import Forecasts
from calibrl.tables.mapfile import How, cross_validate, fit_named

AnySummary = Summary | QuantileSummary | ClassSummary
ForecastOf = Callable[[Tensor], Distribution]
"""The forecasts of some rows, (m,) of their numbers from 0."""

T = TypeVar("T")


def places_of(groups: Groups | None, rows: Tensor) -> dict[str, Tensor]:
    """The places of each group among `rows`, (m,) of their numbers; of groups that have none there too."""
    if groups is None:
        return {}
    here = groups.split(rows)
    return {name: here.get(name, rows[:0]) for name in groups.names}


def comparable(table: Forecasts) -> ForecastOf:
    """The forecasts as they are, scored as they will be after a map.

    A map makes a curve of samples, tails with it, and is scored by that curve. Scored as bare points before it, the
    map would seem to earn what the curve does.
    """
    if table.kind != "samples":
        return table.distribution
    return lambda rows: Recalibrated(table.distribution(rows), IDENTITY)


def judged(table: Forecasts, seen: Tensor, groups: dict[str, Tensor], forecast: ForecastOf) -> dict[str, Any]:
    """The diagnosis of the rows with outcomes, and of each group's."""
    found: dict[str, Any] = {"summary": diagnose(table, seen, forecast)}
    if groups:
        each = watched(list(groups.items()), "Groups")
        found["groups"] = {name: diagnose(table, rows, forecast) for name, rows in each}
    return found


def watched(parts: Sequence[T], name: str) -> Iterable[T]:
    """The parts one after the other, under a bar with the time left on a terminal: many groups take minutes."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(parts, name, console=console, transient=True, disable=not console.is_terminal)


def at_levels(table: Forecasts, rows: Tensor, forecast: ForecastOf) -> Tensor:
    """(m, k): quantiles of `rows`, (m,) of their numbers, at the levels of the table."""
    if forecast == table.distribution:
        return table.values[rows]
    at = torch.tensor(table.levels, dtype=torch.float64)
    found = forecast(rows)
    values = torch.stack([found.icdf(level.expand(len(rows))) for level in at], 1)
    return values.cummax(1).values  # rounding must not make neighbouring quantiles cross


def diagnose(table: Forecasts, rows: Tensor, forecast: ForecastOf) -> AnySummary | None:
    """The diagnosis of some rows; None for fewer than two."""
    if len(rows) < 2 or table.y is None:
        return None
    if table.kind == "classes":
        return class_summary(cast(Categorical, forecast(rows)).probs, table.y[rows])
    if table.kind == "quantiles":
        return quantile_summary(at_levels(table, rows, forecast), table.levels, table.y[rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReusedRows)  # the map file's own memory of rows says it better
        return summary(forecast(rows), table.y[rows], generator=seeded())


def worth(evidence: Scores, fit_map: FitMap | FitClassMap, how: How) -> dict[str, Any]:
    """The calibration loss before a map and after it, averaged over folds that the map never saw."""

    def loss(part: Scores) -> float:
        return class_reliability(*part).gap if isinstance(part, tuple) else calibration_loss(normal.cdf(part))

    def floor(part: Scores) -> float:
        return class_reliability(*part).noise_floor if isinstance(part, tuple) else noise_floor(len(part))

    folds = [(loss(before), loss(after), floor(after)) for before, after in cross_validate(evidence, fit_map, how)]
    count = len(evidence[1] if isinstance(evidence, tuple) else evidence)
    means = [fmean(part) for part in zip(*folds, strict=True)] if folds else [None] * 3
    return {"outcomes": count, **dict(zip(("before", "after", "noise_floor"), means, strict=True))}


@dataclass(frozen=True)
class Hits:
    """Whether each of m outcomes was where it was forecast to be.

    inside: (m,) bool; target: (m,) how probable that was said to be; width: (m,) of the interval, or the probability of
    the most likely class; words: what a hit is.
    """

    inside: Tensor
    target: Tensor
    width: Tensor
    words: str


def hits(table: Forecasts, rows: Tensor, forecast: ForecastOf) -> Hits:
    """Which outcomes of `rows`, (m,) of their numbers, lie in the widest central interval known, 90 % where all are."""
    y = cast(Tensor, table.y)[rows]
    if table.kind == "classes":
        sure, best = cast(Categorical, forecast(rows)).probs.max(-1)
        return Hits(best == y, sure, sure, "the most likely class came true")
    if table.kind == "quantiles":
        values, levels = at_levels(table, rows, forecast), torch.tensor(table.levels, dtype=torch.float64)
        paired = len(levels) > 1 and abs(float(levels[0] + levels[-1]) - 1) < 1e-9
        low = values[:, 0] if paired else torch.full_like(y, -torch.inf)
        share = float(levels[-1] - levels[0]) if paired else float(levels[-1])
        what = "interval" if paired else "quantile"
        inside = (low <= y) & (y <= values[:, -1])
        width = values[:, -1] - values[:, 0]
        return Hits(inside, torch.full_like(y, share), width, f"outcomes within the {100 * share:.4g} % {what}")
    found = forecast(rows)
    at = torch.tensor([0.05, 0.95], dtype=torch.float64)
    low, high = (found.icdf(level.expand(len(rows))) for level in at)
    p = pit(found, y, generator=seeded())
    inside = (p >= 0.05) & (p <= 0.95)
    return Hits(inside, torch.full_like(y, 0.9), high - low, "outcomes within the 90 % interval")


MOST_PERIODS, LEAST_ROWS = 12, 20


def periods(table: Forecasts, seen: Tensor) -> tuple[str, list[tuple[str, Tensor]]]:
    """What orders the rows `seen`, and stretches of them in that order, each under a name; none if there are few."""
    dates = table.dates()
    count = min(MOST_PERIODS, len(seen) // LEAST_ROWS)
    if count < 2:
        return "", []
    if dates is None:
        parts = np.array_split(seen.numpy(), count)
        return "rows of the file", [
            (f"{table.number[part[0]]} – {table.number[part[-1]]}", torch.from_numpy(part)) for part in parts
        ]
    column, rank = dates
    ordered = seen.numpy()[np.argsort(rank[seen.numpy()], kind="stable")]
    said = table.frame[column].cast(str)
    return column, [(said[int(part[0])][:16], torch.from_numpy(part)) for part in np.array_split(ordered, count)]


GAIN_ROWS = 5000
"""So many rows are enough to say what calibrating would gain."""


@dataclass(frozen=True)
class Gain:
    """What a map would gain on rows it was not fitted on.

    rows: how many it was judged on; measure: the name of the proper score; score, holds, width: as forecast and after,
    the score's mean, the share of hits, and the mean width of the interval; target: what the share should be; words:
    what a hit is.
    """

    rows: int
    measure: str
    score: tuple[float, float]
    holds: tuple[float, float]
    width: tuple[float, float]
    target: tuple[float, float]
    words: str


def gain(table: Forecasts, seen: Tensor, how: How) -> Gain | None:
    """What `fit` would gain for the rows `seen`, in the order of time if `how` says so; None for too few of them."""
    rows = seen
    if len(rows) > GAIN_ROWS:
        rows = seen[torch.randperm(len(seen), generator=seeded())[:GAIN_ROWS].sort().values]
    fit_map = fit_named("auto", table.kind)
    evidence = judge(table.distribution(rows), cast(Tensor, table.y)[rows], seeded())
    measure = {"classes": "nll", "quantiles": "pinball"}.get(table.kind, "crps")
    found = []
    for rest, now in how.folds(len(rows), 5):
        mapping = how.fit(take(evidence, rest), fit_map)
        held = rows[now]
        pair = (comparable(table), lambda these, mapping=mapping: honest(table.distribution(these), mapping))
        for forecast in pair:
            hit = hits(table, held, forecast)
            score = getattr(diagnose(table, held, forecast), measure)
            means = (float(part.double().mean()) for part in (hit.inside, hit.width, hit.target))
            found.append((score, *means, len(held), hit.words))
    if not found:
        return None
    weight = np.array([row[4] for row in found[::2]], dtype=np.float64)

    def both(k: int) -> tuple[float, float]:
        one, two = (float(np.average([row[k] for row in found[at::2]], weights=weight)) for at in (0, 1))
        return one, two

    names = {"nll": "log loss", "pinball": "pinball loss", "crps": "CRPS"}
    return Gain(int(weight.sum()), names[measure], both(0), both(1), both(2), both(3), found[0][5])


def seeded() -> Generator:
    """Randomised PITs of forecasts with atoms are the same in every run."""
    return torch.Generator().manual_seed(0)

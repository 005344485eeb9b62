"""What `check`, `fit` and `apply` do between reading a table and answering."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar, cast

from calibrl.errors import CalibrlError, ReusedRows

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Generator, Tensor
    from torch.distributions import Categorical, Distribution

    from calibrl.algorithm import Evidence
    from calibrl.data import Groups
    from calibrl.diagnostics import ClassSummary, Summary
    from calibrl.maps import FitMap
    from calibrl.maps.classes import FitClassMap
    from calibrl.tables import Forecasts
    from calibrl.tables.mapfile import MapFile

    ForecastOf = Callable[[Tensor], Distribution]
    """The forecasts of some rows, (m,) of their numbers from 0."""

T = TypeVar("T")

LEVELS = "0.05,0.25,0.5,0.75,0.95"
"""Quantiles that `apply` writes unless others are asked for."""


def keep_to_one_thread() -> None:
    """Groups are small: threads would wait for each other longer than they compute, the more so beside other work."""
    import torch

    torch.set_num_threads(1)


def described(table: Forecasts) -> dict[str, Any]:
    """What was read."""
    outcomes = 0 if table.y is None else int((~table.y.isnan()).sum())
    return {
        "file": table.source,
        "kind": table.kind,
        "columns": list(table.columns),
        "rows": len(table),
        "outcomes": outcomes,
        "unseen": len(table) - outcomes,
    }


def load_for(path: Path, table: Forecasts) -> MapFile:
    """The map file, if it was fitted for forecasts like the table's."""
    from calibrl.tables.mapfile import MapFile

    maps = MapFile.load(path)
    maps.expect(table.kind, table.signature, source=table.source)
    return maps


def groups_for(maps: MapFile, path: Path, table: Forecasts) -> Groups | None:
    """The groups that the maps of `path` tell apart; None where they tell none apart."""
    if maps.group is None:
        return None
    if maps.group not in table.frame.columns:
        raise CalibrlError(
            f"{table.source}: no column {maps.group!r}, but {path} was fitted by it; "
            "add the column, or fit a map without --group"
        )
    return table.groups(maps.group)


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
    from calibrl.distributions import Recalibrated
    from calibrl.maps import IDENTITY

    if table.kind != "samples":
        return table.distribution
    return lambda rows: Recalibrated(table.distribution(rows), IDENTITY)


def judged(table: Forecasts, seen: Tensor, groups: dict[str, Tensor], forecast: ForecastOf) -> dict[str, Any]:
    """The diagnosis of the rows with outcomes, and of each group's."""
    found: dict[str, Any] = {"summary": _summary(table, seen, forecast)}
    if groups:
        each = watched(list(groups.items()), "Groups")
        found["groups"] = {name: _summary(table, rows, forecast) for name, rows in each}
    return found


def watched(parts: Sequence[T], name: str) -> Iterable[T]:
    """The parts one after the other, under a bar with the time left on a terminal: many groups take minutes."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(parts, name, console=console, transient=True, disable=not console.is_terminal)


def _summary(table: Forecasts, rows: Tensor, forecast: ForecastOf) -> Summary | ClassSummary | None:
    """The diagnosis of some rows; None for fewer than two."""
    from calibrl.diagnostics import class_summary, summary

    if len(rows) < 2 or table.y is None:
        return None
    if table.kind == "classes":
        return class_summary(cast("Categorical", forecast(rows)).probs, table.y[rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReusedRows)  # the map file's own memory of rows says it better
        return summary(forecast(rows), table.y[rows], generator=seeded())


def worth(evidence: Evidence, fit_map: FitMap | FitClassMap) -> dict[str, Any]:
    """The calibration loss before a map and after it, averaged over folds that the map never saw."""
    from calibrl.diagnostics import calibration_loss, class_summary, noise_floor
    from calibrl.kernels import normal
    from calibrl.tables.mapfile import cross_validate

    def loss(part: Evidence) -> float:
        return class_summary(*part).ece if isinstance(part, tuple) else calibration_loss(normal.cdf(part))

    def floor(part: Evidence) -> float:
        return class_summary(*part).noise_floor if isinstance(part, tuple) else noise_floor(len(part))

    folds = cross_validate(evidence, fit_map)
    count = len(evidence[1] if isinstance(evidence, tuple) else evidence)
    if not folds:
        return {"outcomes": count, "before": None, "after": None, "noise_floor": None}
    return {
        "outcomes": count,
        "before": fmean(loss(before) for before, _ in folds),
        "after": fmean(loss(after) for _, after in folds),
        "noise_floor": fmean(floor(after) for _, after in folds),
    }


def calibrated_columns(table: Forecasts, honest: Distribution, levels: str | None) -> dict[str, NDArray[np.float64]]:
    """The columns that spell the calibrated forecasts."""
    import torch

    from calibrl.tables import quantile_column

    if table.kind == "classes":
        if levels is not None:
            raise CalibrlError(f"--levels {levels}: class probabilities have no quantiles; leave it out")
        probs = cast("Categorical", honest).probs
        return {name: probs[:, k].numpy() for k, name in enumerate(table.columns)}
    own = levels is None and table.kind == "quantiles"
    wanted = table.levels if own else _parse_levels(LEVELS if levels is None else levels)
    at = torch.tensor(wanted, dtype=torch.float64)
    values = torch.stack([honest.icdf(level.expand(len(table))) for level in at])
    values = values.cummax(0).values  # rounding must not make neighbouring quantiles cross
    columns = {quantile_column(level): column.numpy() for level, column in zip(wanted, values, strict=True)}
    return columns | {"mean": honest.mean.numpy(), "std": honest.stddev.numpy()}


def _parse_levels(text: str) -> list[float]:
    try:
        levels = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise CalibrlError(f"--levels {text!r} is not a list of numbers; write them like {LEVELS}") from None
    if not levels or not all(0 < level < 1 for level in levels):
        raise CalibrlError(f"--levels {text!r} must lie strictly between 0 and 1; write them like {LEVELS}")
    return levels


def drawn(table: Forecasts, seen: Tensor, forecasts: dict[str, Distribution]) -> Figure:
    """The figure of a check: reliability and PIT histogram, or reliability of class probabilities."""
    from calibrl import plots
    from calibrl.distributions import pit

    y = cast("Tensor", table.y)[seen]
    title = f"{Path(table.source).name}: {len(y)} outcomes"
    if table.kind == "classes":
        axes = None
        for (name, forecast), color in zip(forecasts.items(), (plots.BEFORE, plots.AFTER), strict=False):
            probs = cast("Categorical", forecast).probs
            axes = plots.class_reliability_curve(probs, y, axes, label=name, color=color)
        figure = cast("Figure", cast("Axes", axes).figure)
        figure.suptitle(title)
        return figure
    pits = {name: pit(forecast, y, generator=seeded()) for name, forecast in forecasts.items()}
    return plots.overview(pits, title=title)


def expect_suffix(path: Path, *suffixes: str) -> None:
    """Before any work is done for it."""
    if path.suffix.lower() not in suffixes:
        raise CalibrlError(f"{path}: suffix {path.suffix!r} cannot be written; use {' or '.join(suffixes)}")


def expect_choice(option: str, value: str, *known: str) -> None:
    """Refuse a value that the option does not know."""
    if value not in known:
        raise CalibrlError(f"{option} {value!r} is unknown; use {' or '.join(known)}")


def seeded() -> Generator:
    """Randomised PITs of forecasts with atoms are the same in every run."""
    import torch

    return torch.Generator().manual_seed(0)

"""`calibrl check`, `fit` and `apply`: calibrate the forecasts of any program, from the shell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer

from calibrl import __version__
from calibrl.errors import CalibrlError
from calibrl.files import replacing, same_file, writable, write_text
from calibrl.tables import output
from calibrl.text import for_plot

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor
    from torch.distributions import Categorical, Distribution

    from calibrl.data import Groups
    from calibrl.tables import Forecasts
    from calibrl.tables.judging import ForecastOf
    from calibrl.tables.mapfile import MapFile

LEVELS = "0.05,0.25,0.5,0.75,0.95"
"""Quantiles that `apply` writes unless others are asked for."""


def read(file: Path, columns: list[str] | None, map_file: Path | None = None, **how: Any) -> Forecasts:
    """The forecasts of a file, for a process that keeps to one thread from now on; what was done to them is told.

    map_file: a map that they are for, whose forecasts had names, too. Groups are small: threads would wait for each
    other longer than they compute, the more so beside other work.
    """
    import torch

    from calibrl.tables import read_forecasts
    from calibrl.tables.mapfile import MapFile

    torch.set_num_threads(1)
    like = () if map_file is None else MapFile.load(map_file).columns
    table = read_forecasts(file, columns=columns, like=like, **how)
    for note in table.notes:
        output.warn(f"{table.source}: {note}")
    return table


def described(table: Forecasts) -> dict[str, Any]:
    """What was read, and how it was understood."""
    outcomes = 0 if table.y is None else int((~table.y.isnan()).sum())
    return {
        "file": table.source,
        "kind": table.kind,
        "columns": list(table.columns),
        "understood": output.understood(table),
        "rows": len(table),
        "outcomes": outcomes,
        "unseen": len(table) - outcomes,
        "notes": list(table.notes),
    }


def load_for(path: Path, table: Forecasts) -> tuple[MapFile, Groups | None]:
    """The map file, if it was fitted for forecasts like the table's, and the groups it tells apart, if any."""
    from calibrl.tables.mapfile import MapFile

    maps = MapFile.load(path)
    maps.expect(table.kind, table.signature, source=table.source)
    if maps.group is None:
        return maps, None
    if maps.group not in table.frame.columns:
        raise CalibrlError(
            f"{table.source}: no column {maps.group!r}, but {path} was fitted by it; "
            "add the column, or fit a map without --group"
        )
    return maps, table.groups(maps.group)


def calibrated_columns(table: Forecasts, honest: Distribution, levels: str | None) -> dict[str, NDArray[np.float64]]:
    """The columns that spell the calibrated forecasts."""
    import torch

    from calibrl.tables import quantile_column

    if table.kind == "classes":
        if levels is not None:
            raise CalibrlError(f"--levels {levels}: class probabilities have no quantiles; leave it out")
        probs = cast("Categorical", honest).probs[:, -len(table.columns) :]  # of one column, the class it is about
        return {name: probs[:, k].numpy() for k, name in enumerate(table.columns)}
    own = levels is None and table.kind == "quantiles"
    wanted = table.levels if own else _parse_levels(LEVELS if levels is None else levels)
    at = torch.tensor(wanted, dtype=torch.float64)
    values = torch.stack([honest.icdf(level.expand(len(table))) for level in at])
    values = values.cummax(0).values  # rounding must not make neighbouring quantiles cross
    columns = {quantile_column(level): column.numpy() for level, column in zip(wanted, values, strict=True)}
    return columns | {"mean": honest.mean.numpy(), "std": honest.stddev.numpy()}


def guaranteed(
    honest: Distribution, level: float | None, confidence: float | None
) -> tuple[dict[str, NDArray[np.float64]], str]:
    """The columns low and high of a guaranteed interval, and what is promised of it."""
    from calibrl.distributions import Recalibrated
    from calibrl.distributions.families import Grouped

    if level is None:
        raise CalibrlError(f"--confidence {confidence} of what? Give a level too: --guarantee 0.9")
    if not isinstance(honest, (Recalibrated, Grouped)):
        raise CalibrlError(f"--guarantee {level}: class probabilities have no intervals; leave it out")
    kind: Literal["conformal", "tolerance"] = "conformal" if confidence is None else "tolerance"
    sure = 0.95 if confidence is None else confidence
    low, high = honest.interval(level, kind, confidence=sure)
    return {"low": low.numpy(), "high": high.numpy()}, honest.promise(level, kind, confidence=sure)


def _parse_levels(text: str) -> list[float]:
    try:
        levels = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise CalibrlError(f"--levels {text!r} is not a list of numbers; write them like {LEVELS}") from None
    if not levels or not all(0 < level < 1 for level in levels):
        raise CalibrlError(f"--levels {text!r} must lie strictly between 0 and 1; write them like {LEVELS}")
    return levels


def drawn(table: Forecasts, seen: Tensor, shown: dict[str, ForecastOf], found: dict[str, Any]) -> Figure:
    """The figure of a check: reliability and PIT histogram, or reliability of quantiles or class probabilities."""
    from calibrl import plots
    from calibrl.distributions import pit
    from calibrl.tables.judging import seeded

    y = cast("Tensor", table.y)[seen]
    title = f"{Path(table.source).name}: {len(y)} outcomes"
    if table.kind not in ("classes", "quantiles"):
        pits = {name: pit(forecast(seen), y, generator=seeded()) for name, forecast in shown.items()}
        return plots.overview(pits, title=title)
    axes = None
    for (name, forecast), part, color in zip(
        shown.items(), ("as_forecast", "after_map"), (plots.BEFORE, plots.AFTER), strict=False
    ):
        if table.kind == "classes":
            probs = cast("Categorical", forecast(seen)).probs
            axes = plots.class_reliability_curve(probs, y, axes, label=name, color=color)
        else:
            told = found[part]["summary"]
            axes = plots.level_shares(told.levels, told.observed, told.n, axes, label=name, color=color)
    figure = cast("Figure", cast("Axes", axes).figure)
    figure.suptitle(for_plot(title))
    return figure


def expect_suffix(path: Path | None, *suffixes: str) -> None:
    """Before any work is done for it, if it is asked for."""
    if path is not None and path.suffix.lower() not in suffixes:
        raise CalibrlError(f"{path}: suffix {path.suffix!r} cannot be written; use {' or '.join(suffixes)}")


def _steps(name: str, column: str) -> float:
    """How many steps ahead a value of the column is."""
    try:
        return float(name)
    except ValueError:
        raise CalibrlError(f"--horizon {column}: {name!r} is not a number of steps; use --group for names") from None


def pool_new(new_groups: str) -> bool:
    """Whether groups that are unknown to a map get the pooled one."""
    if new_groups not in ("refuse", "pooled"):
        raise CalibrlError(f"--new-groups {new_groups!r} is unknown; use refuse or pooled")
    return new_groups == "pooled"


_FORECASTS = typer.Argument(help="File of forecasts and outcomes: CSV or other text, Parquet, Feather, Excel.")
_KIND = typer.Option(None, help="Which forecast to use if the file has several: normal, quantiles, samples or classes.")
_Y = typer.Option(None, "--y", help="The column of outcomes, if its name does not say so.")
_COLUMNS = typer.Option(None, help="Columns with other names, as ours=theirs: mean=mu,std=sigma or samples=a,b,c.")
_LEVEL = typer.Option(None, help="The probability of the interval in the columns lower and upper, such as 0.9.")
_SHEET = typer.Option(None, help="Which sheet of an Excel file to read.")
_DATE_FORMAT = typer.Option(None, help="How the file writes dates: day-first, month-first or like %d.%m.%y.")
_NEW_GROUPS = typer.Option("refuse", help="Groups that the map has not seen: refuse, or pooled (the map of all rows).")
_JSON = typer.Option(False, "--json", help="Print one JSON object and nothing else.")


def check(
    file: Path = _FORECASTS,
    group: str | None = typer.Option(None, help="Also report on the rows of each value of this column."),
    horizon: str | None = typer.Option(
        None, help="Also report by the number of steps ahead that forecasts were made, which this column has."
    ),
    map_file: Path | None = typer.Option(None, "--map", help="Also report on the forecasts as corrected by this map."),
    new_groups: str = _NEW_GROUPS,
    plot: Path | None = typer.Option(None, help="Plot reliability curve and PIT histogram: .png, .svg or .pdf."),
    page: Path | None = typer.Option(
        None, "--html", help="Write a page: verdict, charts, groups, coverage over time, what calibrating would gain."
    ),
    kind: str | None = _KIND,
    y: str | None = _Y,
    columns: list[str] | None = _COLUMNS,
    level: float | None = _LEVEL,
    sheet: str | None = _SHEET,
    date_format: str | None = _DATE_FORMAT,
    as_json: bool = _JSON,
) -> None:
    """Check whether forecasts are calibrated: whether their 90 % intervals hold 90 % of outcomes, and so on.

    The file has a column of outcomes, y, and columns of the forecast, by these names or those of other programs:

    mean and std; quantiles q0.05, q0.5, …; samples s0, s1, …; or the probabilities of classes p0, p1, …

    Example: calibrl check forecasts.csv --html check.html
    """
    from calibrl.tables.judging import comparable, judged, places_of

    pooled = pool_new(new_groups)
    expect_suffix(plot, ".png", ".svg", ".pdf")
    expect_suffix(page, ".html", ".htm")
    table = read(file, columns, map_file, kind=kind, y=y, level=level, sheet=sheet, date_format=date_format)
    seen, outcomes = table.seen()
    if horizon is not None and group is not None:
        raise CalibrlError(f"--horizon {horizon} and --group {group} report on the same rows; give one of them")
    group = group or horizon
    places = places_of(None if group is None else table.groups(group), seen)
    if horizon is not None:
        places = dict(sorted(places.items(), key=lambda item: _steps(item[0], horizon)))
    groups = {name: seen[own] for name, own in places.items()}
    if page is None and map_file is None:
        table = replace(table, frame=table.frame.clear())  # other columns are not needed any more, and may be large
    bare = table.distribution if map_file is None else comparable(table)
    found = {**described(table), "as_forecast": judged(table, seen, groups, bare)}
    shown: dict[str, ForecastOf] = {"as forecast": bare}
    if map_file is not None:
        maps, told_apart = load_for(map_file, table)

        def calibrated(rows: Tensor) -> Distribution:
            return maps.apply(table.distribution, rows, told_apart, pool_new=pooled, source=str(file))

        shown["after the map"] = calibrated
        found["after_map"] = {
            "map": str(map_file),
            "method": maps.method,
            "fitted": f"by {maps.group}" if maps.group is not None else output.name_of(maps.pooled.mapping),
            "reused_rows": maps.sketch.share(table.values[seen], outcomes[seen]),
            **judged(table, seen, groups, calibrated),
        }
    if plot is not None:
        figure = drawn(table, seen, shown, found)
        with writable(plot), replacing(plot) as temporary:
            figure.savefig(temporary, dpi=150, format=plot.suffix.lower()[1:])
        found["plot"] = str(plot)
    if page is not None:
        from calibrl.tables.page import Checked, check_page

        with writable(page):
            write_text(page, check_page(Checked(table, seen, shown, found, group, groups)))
        found["page"] = str(page)
    if map_file is not None and (warning := output.reused(found["after_map"])):
        output.warn(f"ReusedRows: {warning}")
    output.show(found, output.check_lines(found, group=group), as_json=as_json)


def fit(
    file: Path = _FORECASTS,
    out: Path = typer.Option(..., help="Where to write the map: a .json file."),
    method: str = typer.Option(
        "auto",
        help="auto, smooth, isotonic, platt, beta, affine, sigmoid; for classes auto, temperature, bias-corrected, "
        "platt, isotonic.",
    ),
    group: str | None = typer.Option(None, help="Fit one map for each value of this column, and one for all rows."),
    block: int = typer.Option(1, help="Keep so many neighbouring rows together in validation."),
    recent: int | None = typer.Option(None, help="Use only the latest rows with an outcome, this many."),
    forget: float = typer.Option(1.0, help="Multiply a row's weight by this with each later one: 1 never forgets."),
    kind: str | None = _KIND,
    y: str | None = _Y,
    columns: list[str] | None = _COLUMNS,
    level: float | None = _LEVEL,
    sheet: str | None = _SHEET,
    date_format: str | None = _DATE_FORMAT,
    as_json: bool = _JSON,
) -> None:
    """Learn from outcomes how to correct forecasts, and save the correction: a map.

    With a column of dates (date, time, …), the map is judged on later rows than it was fitted on.

    Without one, --recent, --forget and --block take the rows to be in order of time.

    Example: calibrl fit past.csv --out map.json
    """
    import torch

    from calibrl.algorithm import judge
    from calibrl.evidence import take
    from calibrl.tables.judging import places_of, seeded, watched, worth
    from calibrl.tables.mapfile import FittedMap, How, MapFile, Sketch, fit_named, on_top_of

    expect_suffix(out, ".json")
    table = read(file, columns, kind=kind, y=y, level=level, sheet=sheet, date_format=date_format)
    fit_map = fit_named(method, table.kind)
    dates = table.dates()
    how = How(block=block, forget=forget, in_time=dates is not None)
    seen, outcomes = table.seen()
    seen = seen if dates is None else seen[torch.from_numpy(dates[1])[seen].argsort(stable=True)]
    if recent is not None and recent < 2:
        raise CalibrlError(f"--recent {recent} leaves nothing to learn from; use 2 rows or more")
    seen = seen[-(recent or 0) :]
    observed = outcomes[seen]
    evidence = judge(table.distribution(seen), observed, seeded())
    groups = places_of(None if group is None else table.groups(group), seen)
    pooled, whole = how.fit(evidence, fit_map), worth(evidence, fit_map, how)
    by_group, reports = {}, {}
    for name, rows in watched(list(groups.items()), "Groups"):
        own, rest = take(evidence, rows), torch.ones(len(seen), dtype=torch.bool)
        rest[rows] = False
        # Judged with the map of the other groups' rows: that of all rows knows the folds' outcomes.
        others = how.fit(take(evidence, rest), fit_map)
        reports[name] = worth(own, on_top_of(others, fit_map), how)
        if reports[name]["outcomes"] >= 2:
            by_group[name] = how.fit(own, on_top_of(pooled, fit_map))
    saved = MapFile(
        kind=table.kind,
        columns=table.signature,
        method=method,
        pooled=FittedMap(pooled, len(observed)),
        sketch=Sketch.of(table.values[seen], observed),
        source=file.name,
        package=__version__,
        group=group,
        groups={name: FittedMap(mapping, reports[name]["outcomes"]) for name, mapping in by_group.items()},
        too_few=tuple(name for name in groups if name not in by_group),
    )
    saved.save(out)
    found = {
        **described(table),
        "method": method,
        "measure": "calibration_loss" if table.kind != "classes" else "ece",
        "pooled": {"map": output.name_of(pooled), **whole},
        "in_time": None if dates is None else dates[0],
        "map": str(out),
    }
    if group is not None:
        names = {name: output.name_of(mapping) for name, mapping in by_group.items()}
        found["groups"] = {name: {"map": names.get(name), **report} for name, report in reports.items()}
    output.show(found, output.fit_lines(found, group=group), as_json=as_json)


def apply(
    map_file: Path = typer.Argument(help="A map written by `calibrl fit`."),
    file: Path = typer.Argument(help="File of new forecasts; outcomes are not needed."),
    out: Path = typer.Option(..., help="Where to write the calibrated forecasts: .csv, .parquet, .xlsx, …"),
    levels: str | None = typer.Option(
        None, help=f"Quantile levels to write; default: the file's own, or {LEVELS}.", show_default=False
    ),
    guarantee: float | None = typer.Option(
        None, help="Also write low and high: an interval that, by a theorem, holds this share of outcomes, such as 0.9."
    ),
    confidence: float | None = typer.Option(
        None, help="With --guarantee: how sure to be, such as 0.95, that it holds for all outcomes to come together."
    ),
    new_groups: str = _NEW_GROUPS,
    kind: str | None = _KIND,
    y: str | None = _Y,
    columns: list[str] | None = _COLUMNS,
    level: float | None = _LEVEL,
    sheet: str | None = _SHEET,
    date_format: str | None = _DATE_FORMAT,
    as_json: bool = _JSON,
) -> None:
    """Correct new forecasts with a map.

    Writes quantiles, mean and std, or class probabilities, and passes other columns through.

    Example: calibrl apply map.json new.csv --out calibrated.csv
    """
    import polars as pl
    import torch

    from calibrl.tables.formats import expect_writable, write_table

    pooled = pool_new(new_groups)
    expect_writable(out)
    if same_file(out, file) or same_file(out, map_file):
        raise CalibrlError(f"--out {out} would overwrite what is read; give the result another name")
    table = read(file, columns, map_file, kind=kind, y=y, level=level, sheet=sheet, date_format=date_format)
    if date_format is not None:
        table.dates()  # rows stay in the file's order; that dates are as said is checked as in fit
    maps, groups = load_for(map_file, table)
    every = torch.arange(len(table))
    honest = maps.apply(table.distribution, every, groups, pool_new=pooled, source=str(file))
    written = calibrated_columns(table, honest, levels)
    promised = {}
    if guarantee is not None or confidence is not None:
        unknown = [] if groups is None else [name for name in groups.names if name not in maps.groups]
        if unknown:
            raise CalibrlError(
                f"{file}: nothing is guaranteed of {maps.group} {unknown[0]!r}, which {map_file} was not fitted on; "
                "fit it too, or leave --guarantee out"
            )
        ends, promise = guaranteed(honest, guarantee, confidence)
        written |= ends
        promised = {"guarantee": promise}
    carried = [name for name in table.frame.columns if name not in written]
    write_table(pl.DataFrame({**table.frame.select(carried).to_dict(), **written}), out)
    gone = [name for name in table.names if name not in {*table.columns, *carried, *written}]
    found = {**described(table), "map": str(map_file), "out": str(out), "written": list(written), "left_out": gone}
    found |= promised
    if groups is not None:
        found["pooled_groups"] = [name for name in groups.names if name not in maps.groups]
    output.show(found, output.apply_lines(found), as_json=as_json)

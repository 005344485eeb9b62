"""`calibrl check`, `fit` and `apply`: calibrate the forecasts of any program, from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from calibrl import __version__
from calibrl.errors import CalibrlError
from calibrl.files import replacing, said_if_no_place
from calibrl.tables import answers, steps
from calibrl.tables.page import page

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributions import Distribution

_FORECASTS = typer.Argument(help="CSV or Parquet file of forecasts, with outcomes in column y.")
_KIND = typer.Option(None, help="Which forecast to use if the file has several kinds: normal, quantiles, …")
_NEW_GROUPS = typer.Option("refuse", help="For groups unknown to the map: refuse, or pooled (use the map of all rows).")
_JSON = typer.Option(False, "--json", help="Print one JSON object and nothing else.")


def check(
    file: Path = _FORECASTS,
    group: str | None = typer.Option(None, help="Also report on each group: the values of this column."),
    map_file: Path | None = typer.Option(None, "--map", help="Also report on the forecasts corrected with this map."),
    new_groups: str = _NEW_GROUPS,
    plot: Path | None = typer.Option(
        None,
        help="Plot reliability curve and PIT histogram: .png, .svg or .pdf; with .html, a whole page.",
    ),
    kind: str | None = _KIND,
    as_json: bool = _JSON,
) -> None:
    """Check whether forecasts are calibrated. Columns: y, and mean,std or q0.05 …, s0 …, p0 …."""
    from calibrl.tables import read_forecasts

    steps.expect_choice("--new-groups", new_groups, "refuse", "pooled")
    if plot is not None:
        steps.expect_suffix(plot, ".png", ".svg", ".pdf", ".html")
    steps.keep_to_one_thread()
    table = read_forecasts(file, kind=kind)
    seen, y = table.seen()
    places = steps.places_of(None if group is None else table.groups(group), seen)
    groups = {name: seen[own] for name, own in places.items()}
    bare = table.distribution if map_file is None else steps.comparable(table)
    found = {**steps.described(table), "as_forecast": steps.judged(table, seen, groups, bare)}
    shown = {"as forecast": bare}
    if map_file is not None:
        maps = steps.load_for(map_file, table)
        told_apart = steps.groups_for(maps, map_file, table)

        def calibrated(rows: Tensor) -> Distribution:
            return maps.apply(table.distribution, rows, told_apart, pool_new=new_groups == "pooled", source=str(file))

        shown["after the map"] = calibrated
        found["after_map"] = {
            "map": str(map_file),
            "method": maps.method,
            "fitted": f"by {maps.group}" if maps.group is not None else answers.name_of(maps.pooled.mapping),
            "reused_rows": maps.sketch.share(table.values[seen], y[seen]),
            **steps.judged(table, seen, groups, calibrated),
        }
    if plot is not None:
        figure = steps.drawn(table, seen, {name: forecast(seen) for name, forecast in shown.items()})
        with said_if_no_place(plot), replacing(plot) as temporary:
            if plot.suffix.lower() == ".html":
                temporary.write_text(page(found, figure, group=group), encoding="utf-8")
            else:
                figure.savefig(temporary, dpi=150)
        found["plot"] = str(plot)
    answers.print_check(found, group=group, as_json=as_json)


def fit(
    file: Path = _FORECASTS,
    out: Path = typer.Option(..., help="Where to write the map: a .json file."),
    method: str = typer.Option(
        "auto",
        help="auto, smooth, isotonic, platt, beta, affine, sigmoid; for classes auto, temperature, platt, isotonic.",
    ),
    group: str | None = typer.Option(None, help="Fit one map for each value of this column, and one for all rows."),
    kind: str | None = _KIND,
    as_json: bool = _JSON,
) -> None:
    """Learn a calibration map from forecasts and their outcomes, and save it."""
    from calibrl.algorithm import fit_to, judge
    from calibrl.tables import read_forecasts
    from calibrl.tables.mapfile import FittedMap, MapFile, Sketch, fit_named, take

    steps.expect_suffix(out, ".json")
    steps.keep_to_one_thread()
    table = read_forecasts(file, kind=kind)
    fit_map = fit_named(method, table.kind)
    seen, outcomes = table.seen()
    y = outcomes[seen]
    evidence = judge(table.distribution(seen), y, steps.seeded())
    groups = steps.places_of(None if group is None else table.groups(group), seen)
    pooled, whole = fit_to([evidence], fit_map), steps.worth(evidence, fit_map)
    by_group, reports = {}, {}
    for name, rows in steps.watched(list(groups.items()), "Groups"):
        own = take(evidence, rows)
        reports[name] = steps.worth(own, fit_map)
        if reports[name]["outcomes"] >= 2:
            by_group[name] = fit_to([own], fit_map)
    saved = MapFile(
        kind=table.kind,
        columns=table.signature,
        method=method,
        pooled=FittedMap(pooled, len(y)),
        sketch=Sketch.of(table.values[seen], y),
        source=file.name,
        package=__version__,
        group=group,
        groups={name: FittedMap(mapping, reports[name]["outcomes"]) for name, mapping in by_group.items()},
        too_few=tuple(name for name in groups if name not in by_group),
    )
    saved.save(out)
    found = {
        **steps.described(table),
        "method": method,
        "measure": "calibration_loss" if table.kind != "classes" else "ece",
        "pooled": {"map": answers.name_of(pooled), **whole},
        "map": str(out),
    }
    if group is not None:
        names = {name: answers.name_of(mapping) for name, mapping in by_group.items()}
        found["groups"] = {name: {"map": names.get(name), **report} for name, report in reports.items()}
    answers.print_fit(found, group=group, as_json=as_json)


def apply(
    map_file: Path = typer.Argument(help="A map written by `calibrl fit`."),
    file: Path = typer.Argument(help="CSV or Parquet file of new forecasts; y is not needed."),
    out: Path = typer.Option(..., help="Where to write the calibrated forecasts: .csv, .tsv or .parquet."),
    levels: str | None = typer.Option(
        None, help=f"Quantile levels to write; default: the file's own, or {steps.LEVELS}.", show_default=False
    ),
    new_groups: str = _NEW_GROUPS,
    kind: str | None = _KIND,
    as_json: bool = _JSON,
) -> None:
    """Correct new forecasts with a map. Writes quantiles, mean and std, or class probabilities; keeps other columns."""
    import torch

    from calibrl.tables import read_forecasts, write_table

    steps.expect_choice("--new-groups", new_groups, "refuse", "pooled")
    steps.expect_suffix(out, ".csv", ".tsv", ".parquet")
    if out.resolve() in {file.resolve(), map_file.resolve()}:
        raise CalibrlError(f"--out {out} would overwrite what is read; give the result another name")
    steps.keep_to_one_thread()
    table = read_forecasts(file, kind=kind)
    maps = steps.load_for(map_file, table)
    groups = steps.groups_for(maps, map_file, table)
    every = torch.arange(len(table))
    honest = maps.apply(table.distribution, every, groups, pool_new=new_groups == "pooled", source=str(file))
    columns = steps.calibrated_columns(table, honest, levels)
    carried = [name for name in table.carried if name not in columns]
    write_table(table.frame.with_columns(**columns).select(*carried, *columns), out)
    gone = [name for name in table.frame.columns if name not in {*table.columns, *carried, *columns}]
    found = {
        **steps.described(table),
        "map": str(map_file),
        "out": str(out),
        "written": list(columns),
        "left_out": gone,
    }
    if groups is not None:
        found["pooled_groups"] = [name for name in groups.names if name not in maps.groups]
    answers.print_apply(found, as_json=as_json)

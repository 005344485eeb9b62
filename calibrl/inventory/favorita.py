"""Corporación Favorita's sales, from Kaggle's own files or from slices of them: never shipped, its rules apply."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.inventory.sales import Days, Flags, Floats, Sales

if TYPE_CHECKING:
    import polars as pl

FIRST, TRAINED = "2014-01-01", "2016-05-31"
"""The paper's training dates."""
ITEMS = 100
"""The paper's number of items."""
GAP = 7
"""From this many days without a row on, a gap is missing records; a shorter one is days without sales."""
SLICE = "favorita_2stores*.csv*"
COLUMNS = ("date", "store_nbr", "item_nbr", "unit_sales", "onpromotion")


def favorita(folder: str | Path | None = None, *, items: int = ITEMS) -> Sales:
    """Sales from `folder`, or from the folder `CALIBRL_DATA`: Kaggle's `train.csv`, else a slice of it.

    From `train.csv` come the `items` highest-selling items of the training dates, each in the store that sold
    most. Kaggle's files have no row where nothing was sold: a gap of a week or more (PRODUCE lacks whole months
    of 2014 and 2015) is read as missing records, not as zero. Returns are left out; kilograms are rounded.
    """
    root = Path(folder) if folder is not None else Path(os.environ.get("CALIBRL_DATA", "data"))
    root = root / "favorita" if (root / "favorita").is_dir() else root
    slices = sorted(root.glob(SLICE))
    if (root / "train.csv").exists():
        table = _highest_selling(root / "train.csv", items)
        note = f"Kaggle's files: the {items} highest-selling items, each in the store that sold most of it"
    elif slices:
        table = _read(slices[0]).collect()
        count = table.select("store_nbr", "item_nbr").unique().height
        note = f"a slice: {count} series ({table['item_nbr'].n_unique()} items), not the paper's 100 items"
    else:
        raise CalibrlError(
            f"{root} holds neither train.csv nor {SLICE}; download Kaggle's favorita-grocery-sales-forecasting files "
            "and set CALIBRL_DATA to their folder"
        )
    return _arrange(table, root, note)


def _read(path: Path) -> pl.LazyFrame:
    import polars as pl

    table = pl.scan_csv(path, try_parse_dates=True, schema_overrides={"onpromotion": pl.String})
    absent = [name for name in COLUMNS if name not in table.collect_schema()]
    if absent:
        raise CalibrlError(f"{path} has no column {absent[0]}; expected {', '.join(COLUMNS)}, as in Kaggle's train.csv")
    promoted = pl.col("onpromotion").str.to_lowercase().is_in(["1", "true"]).fill_null(value=False)
    return table.select(*COLUMNS[:3], pl.col("unit_sales").cast(pl.Float64), onpromotion=promoted)


def _highest_selling(path: Path, items: int) -> pl.DataFrame:
    import polars as pl

    table = _read(path)
    trained = table.filter(pl.col("date").is_between(pl.lit(FIRST).str.to_date(), pl.lit(TRAINED).str.to_date()))
    by_store = trained.group_by("item_nbr", "store_nbr").agg(pl.col("unit_sales").sum()).collect(engine="streaming")
    top = by_store.group_by("item_nbr").agg(pl.col("unit_sales").sum()).sort("unit_sales", descending=True).head(items)
    best = (
        by_store.filter(pl.col("item_nbr").is_in(top["item_nbr"].implode()))
        .sort("unit_sales", descending=True)
        .unique("item_nbr", keep="first", maintain_order=True)
    )
    chosen = best.select("item_nbr", "store_nbr").lazy()
    return table.join(chosen, on=["item_nbr", "store_nbr"], how="semi").collect(engine="streaming")


def _arrange(table: pl.DataFrame, root: Path, note: str) -> Sales:
    import polars as pl

    first, last = table["date"].min(), table["date"].max()
    dates = np.arange(np.datetime64(str(first)), np.datetime64(str(last)) + 1)
    keys = table.select("store_nbr", "item_nbr").unique().sort("store_nbr", "item_nbr").with_row_index("series")
    table = table.join(keys, on=["store_nbr", "item_nbr"])
    row = table["series"].to_numpy()
    day = (table["date"].to_numpy().astype("datetime64[D]") - dates[0]).astype(np.int64)
    units = np.full((len(keys), len(dates)), np.nan)
    units[row, day] = table["unit_sales"].to_numpy().clip(min=0).round()
    promotion = np.zeros_like(units)
    promotion[row, day] = table["onpromotion"].to_numpy()
    store = keys["store_nbr"].to_numpy()
    shut = np.stack([np.isnan(units[store == number]).all(0) for number in store])
    units = _short_gaps_are_zero(units)
    named = pl.read_csv(root / "items.csv") if (root / "items.csv").exists() else None
    family = dict(zip(named["item_nbr"], named["family"], strict=True)) if named is not None else {}
    return Sales(
        dates=dates,
        series=tuple(f"store {number}, item {item}" for number, item in keys.select("store_nbr", "item_nbr").rows()),
        units=units,
        censored=np.zeros(units.shape, dtype=bool),
        closed=shut & ~np.isnan(units),
        promotion=promotion,
        marks={"holiday": _holidays(root, dates, store)} if (root / "holidays_events.csv").exists() else {},
        product=tuple(str(family.get(item, item)) for item in keys["item_nbr"]),
        note=note,
    )


def _short_gaps_are_zero(units: Floats) -> Floats:
    """NaN in runs shorter than `GAP` days becomes 0; longer runs, and days before the first row, stay NaN."""
    filled = units.copy()
    for line in filled:
        absent = np.isnan(line)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], absent, [False]])))
        for start, end in edges.reshape(-1, 2):
            if end - start < GAP and start > 0:
                line[start:end] = 0
    return filled


def _holidays(root: Path, dates: Days, store: NDArray[np.int64]) -> Flags:
    """(s, t): days off in the country, or in the store's state or city."""
    import polars as pl

    events = pl.read_csv(root / "holidays_events.csv", try_parse_dates=True).filter(
        pl.col("type").is_in(["Holiday", "Transfer", "Additional", "Bridge"])
        & (pl.col("transferred").cast(pl.String).str.to_lowercase() == "false")
    )
    places: dict[int, tuple[str, str]] = {}
    if (root / "stores.csv").exists():
        table = pl.read_csv(root / "stores.csv")
        places = {row["store_nbr"]: (row["city"], row["state"]) for row in table.iter_rows(named=True)}
    off = np.zeros((len(store), len(dates)), dtype=bool)
    for event in events.iter_rows(named=True):
        day = int((np.datetime64(event["date"]) - dates[0]).astype(np.int64))
        if 0 <= day < len(dates):
            national = event["locale"] == "National"
            off[[national or event["locale_name"] in places.get(int(number), ()) for number in store], day] = True
    return off

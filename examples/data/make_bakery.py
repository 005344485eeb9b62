"""How `calibrl/inventory/data/bakery.npz` was made from ddop's bakery_data.csv and bakery_target.csv.

python examples/data/make_bakery.py FOLDER_OF_BOTH
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """The two tables as arrays: one row per series (shop and product), one column per day."""
    import polars as pl

    data = pl.read_csv(folder / "bakery_data.csv", try_parse_dates=True)
    target = pl.read_csv(folder / "bakery_target.csv")
    table = pl.concat([data, target], how="horizontal").sort("store", "product", "date")
    keys = table.select("store", "product").unique(maintain_order=True)
    dates = table["date"].unique().sort().to_numpy().astype("datetime64[D]")

    def by_series(column: str) -> NDArray[Any]:
        return table[column].to_numpy().reshape(len(keys), len(dates))

    return {
        "first_day": dates[0].astype("datetime64[D]").astype(np.int64),
        "store": keys["store"].to_numpy().astype(np.int16),
        "product": keys["product"].to_numpy().astype(np.int16),
        "units": by_series("demand").round().astype(np.uint16),
        "promotion": by_series("promotion_currentweek").astype(np.uint8),
        "holiday": by_series("is_holiday").astype(np.uint8),
        "school": by_series("is_schoolholiday").astype(np.uint8),
    }


if __name__ == "__main__":
    home = Path(__file__).parents[2] / "calibrl" / "inventory" / "data"
    np.savez_compressed(home / "bakery.npz", **arrays(Path(sys.argv[1])))

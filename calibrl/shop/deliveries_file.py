"""The deliveries file: what was put on the shelf in the past, for a fair comparison with how the shop orders now.

    date, item, units        needed
    store                    as in the sales file

A row is what arrived before the opening of a day; several rows for one day add up.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrl.errors import CalibrlError
from calibrl.inventory.sales import Floats
from calibrl.shop.cells import read_cells
from calibrl.shop.sales_file import History, named


def read_deliveries(path: str | Path, history: History, *, sales: str) -> Floats:
    """(s, t): units delivered before the opening of each day of the history."""
    cells = read_cells(path, needed=("date", "item", "units"), optional=("store",), what="a deliveries file")
    date = cells.dates("date")
    units = cells.at_least("units", 0, "a number of units delivered")
    if history.stores and not cells.has("store"):
        raise CalibrlError(f"{path}: no column store, but {sales} has one; say which store each delivery went to")
    items = cells.texts("item")
    stores = cells.texts("store") if history.stores else [""] * len(items)
    at = {key: k for k, key in enumerate(history.keys)}
    found = np.zeros(history.sales.units.shape)
    first = history.sales.dates[0]
    for row, key in enumerate(zip(items, stores, strict=True)):
        if key not in at:
            cells.complain(row, "item", f"{named(key)!r} is not in {sales}; correct the name or drop the line")
        if np.isnan(units[row]):
            cells.complain(row, "units", "is empty; expected how many units were delivered")
        day = int((date[row] - first).astype(np.int64))
        if 0 <= day <= history.today:
            found[at[key], day] += units[row]
    return found

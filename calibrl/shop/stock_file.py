"""The stock file: what stands on the shelf at the close of the day, batch by batch.

    item, units, expires     needed; expires is the last day a batch can be sold
    store                    as in the sales file
    as_of                    the day the stock was counted
    arrives                  for what is ordered and not yet there: the day it will be

Several rows for one item are several batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.shop.cells import Cells, read_cells
from calibrl.shop.sales_file import Key, named

NEEDED = ("item", "units", "expires")
OPTIONAL = ("store", "as_of", "arrives")

MOST_UNITS = 1e7


@dataclass(frozen=True)
class Batch:
    """Units that arrive at the opening of a day (0: they are there) and can be sold up to another.

    Both days are counted from today: 1 is tomorrow.
    """

    units: float
    arrives: int
    last: int


@dataclass(frozen=True)
class Stock:
    """The batches of each of s item-stores, and what the reader should be told."""

    batches: tuple[tuple[Batch, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def on_hand(self) -> NDArray[np.float64]:
        """(s,): units on the shelf that can be sold tomorrow."""
        return np.array([sum(b.units for b in row if b.arrives <= 0) for row in self.batches], dtype=np.float64)


def read_stock(
    path: str | Path | None, keys: tuple[Key, ...], *, today: np.datetime64, sales: str, stores: bool
) -> Stock:
    """The stock of the item-stores `keys` at the close of `today`; nothing anywhere without a file."""
    if path is None:
        return Stock(((),) * len(keys), ("No stock file: the shelves are taken as empty tonight.",))
    cells = read_cells(path, needed=NEEDED, optional=OPTIONAL, what="a stock file")
    if not len(cells):
        return Stock(((),) * len(keys), (f"{path} has no rows: the shelves are taken as empty tonight.",))
    units = cells.at_least("units", 0, "a number of units on the shelf")
    for unknown in np.flatnonzero(np.isnan(units) | (units > MOST_UNITS)):
        cells.complain(int(unknown), "units", "is no stock; expected how many units there are")
    place = _places(cells, keys, sales=sales, stores=stores)
    last = (cells.dates("expires") - today).astype(np.int64)
    arrives = np.zeros(len(cells), dtype=np.int64)
    if cells.has("arrives"):
        days = cells.dates("arrives", needed=False)
        arrives = np.where(np.isnat(days), 0, (days - today).astype(np.int64))
        for never in np.flatnonzero(arrives > np.maximum(last, 0)):
            cells.complain(
                int(never), "arrives", f"comes on {days[never]}, when it has expired; correct one of the days"
            )
    _refuse_old(cells, last, today, sales)
    batches: list[list[Batch]] = [[] for _ in keys]
    expired = 0.0
    for row, at in enumerate(place):
        if last[row] < 1:
            expired += units[row]
        elif units[row] > 0:
            batches[at].append(Batch(float(units[row]), max(0, int(arrives[row])), int(last[row])))
    notes = [f"{expired:g} units expired by {today} and do not count as stock."] if expired else []
    bare = sum(not row for row in batches)
    if bare:
        notes.append(f"{bare} of {len(keys)} have no stock in {path}: their shelves are taken as empty.")
    return Stock(tuple(tuple(row) for row in batches), tuple(notes))


def _places(cells: Cells, keys: tuple[Key, ...], *, sales: str, stores: bool) -> list[int]:
    """(n,): which item-store each row is about."""
    if stores and not cells.has("store"):
        raise CalibrlError(f"{cells.source}: no column store, but {sales} has one; say which store each batch is in")
    items = cells.texts("item")
    names = cells.texts("store") if stores else [""] * len(items)
    at = {key: k for k, key in enumerate(keys)}
    found = []
    for row, key in enumerate(zip(items, names, strict=True)):
        if key not in at:
            cells.complain(row, "item", f"{named(key)!r} is not in {sales}; correct the name or drop the line")
        found.append(at[key])
    return found


def _refuse_old(cells: Cells, last: NDArray[np.int64], today: np.datetime64, sales: str) -> None:
    """An error if the stock was counted before the last sale, or long after it."""
    if cells.has("as_of"):
        counted = cells.dates("as_of")
        age = (today - counted).astype(np.int64)
        if (age > 0).any():
            row = int((age > 0).argmax())
            cells.complain(
                row, "as_of", f"counted on {counted[row]}, but {sales} goes on to {today}; count the stock again"
            )
        if (age < -1).any():
            row = int((age < -1).argmax())
            cells.complain(
                row, "as_of", f"counted on {counted[row]}, but {sales} ends on {today}; add the sales in between"
            )
    elif (last < 1).all():
        raise CalibrlError(
            f"{cells.source}: every batch had expired by {today}, the last day of {sales}; count the stock again"
        )

"""All that is known of a shop, from its files: sales and items (`calibrl.inventory`), and those that only it has.

**Stock**, what stands on the shelf at the close of the day, one row per batch:

    item, units, expires     needed; expires is the last day a batch can be sold
    store                    as in the sales file
    as_of                    the day the stock was counted
    arrives                  for what is ordered and not yet there: the day it will be

**Deliveries**, what was put on the shelf before the opening of past days, for a backtest:

    date, item, units        needed; several rows for one day add up
    store                    as in the sales file
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.inventory.files import MOST_UNITS, Item, items_named, places, read_items, read_sales
from calibrl.inventory.history import Day, History, Key, counted, named
from calibrl.inventory.problems import Floats
from calibrl.inventory.tills import Reading
from calibrl.tables.reader import Cells, read_cells


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
    """The batches of each of s item-stores, and notes for the reader."""

    batches: tuple[tuple[Batch, ...], ...]
    notes: tuple[str, ...] = ()


def read_stock(path: str | Path | None, keys: tuple[Key, ...], *, today: Day, sales: str, stores: bool) -> Stock:
    """The stock of the item-stores `keys` at the close of `today`; nothing anywhere without a file."""
    needed, optional = ("item", "units", "expires"), ("store", "as_of", "arrives")
    cells = None if path is None else read_cells(path, needed=needed, optional=optional, what="a stock file")
    if not cells:
        missing = "No stock file" if path is None else f"{path} has no rows"
        return Stock(((),) * len(keys), (f"{missing}: the shelves are taken as empty tonight.",))
    units = cells.numbers("units")
    below, units = int((units < 0).sum()), np.where(units < 0, 0.0, units)
    unknown = np.isnan(units) | (units > MOST_UNITS)
    cells.refuse(unknown, "units", lambda _: "is no stock; expected how many units there are")
    place = _stored(cells, keys, sales=sales, each="batch is in" if stores else None)
    last = (cells.dates("expires") - today).astype(np.int64)
    days = cells.dates("arrives", needed=False)
    arrives = np.where(np.isnat(days), 0, (days - today).astype(np.int64))
    cells.refuse(
        arrives > np.maximum(last, 0),
        "arrives",
        lambda row: f"comes on {days[row]}, when it has expired; correct one of the days",
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
    if below:
        notes.append(f"{counted(below, 'line')} of stock below 0 taken as an empty shelf; count what is there.")
    bare = sum(not row for row in batches)
    if bare:
        notes.append(f"{bare} of {len(keys)} have no stock in {path}: their shelves are taken as empty.")
    return Stock(tuple(tuple(row) for row in batches), tuple(notes))


def read_deliveries(path: str | Path, history: History, *, sales: str) -> Floats:
    """(s, t): units delivered before the opening of each day of the history."""
    cells = read_cells(path, needed=("date", "item", "units"), optional=("store",), what="a deliveries file")
    units = cells.at_least("units", 0, "a number of units delivered")
    day = (cells.dates("date") - history.sales.dates[0]).astype(np.int64)
    where = "delivery went to" if history.stores else None
    place = _stored(cells, history.keys, sales=sales, each=where)
    cells.refuse(np.isnan(units), "units", lambda _: "is empty; expected how many units were delivered")
    found = np.zeros(history.sales.units.shape)
    known = (day >= 0) & (day <= history.today)
    np.add.at(found, (place[known], day[known]), units[known])
    return found


def _stored(cells: Cells, keys: tuple[Key, ...], *, sales: str, each: str | None) -> NDArray[np.int64]:
    """(n,): which item-store each row is about. each: how a row belongs to a store, if there are several."""
    if each and not cells.has("store"):
        raise CalibrlError(f"{cells.source}: no column store, but {sales} has one; say which store each {each}")
    return places(cells, keys, sales, stores=bool(each))


def _refuse_old(cells: Cells, last: NDArray[np.int64], today: Day, sales: str) -> None:
    """An error if the stock was counted before the last sale, or long after it."""
    if cells.has("as_of"):
        counted = cells.dates("as_of")
        age = (today - counted).astype(np.int64)
        for wrong, cure in (
            (age > 0, f"goes on to {today}; count the stock again"),
            (age < -1, f"ends on {today}; add the sales in between"),
        ):
            row = int(wrong.argmax())
            if wrong[row]:
                cells.complain(row, "as_of", f"counted on {counted[row]}, but {sales} {cure}")
    elif (last < 1).all():
        raise CalibrlError(
            f"{cells.source}: every batch had expired by {today}, the last day of {sales}; count the stock again"
        )


# The whole shop.


@dataclass(frozen=True)
class Shop:
    """What the shop's files say, checked: see `read_shop`.

    Parameters
    ----------
    history : History
        Sales of s item-stores up to today, and what is planned beyond it.
    rules : tuple of s Item
        In the order of the history's keys.
    stock : Stock
        The batches on the shelves and under way, in the same order.
    notes : tuple of str
        What was assumed, in sentences.
    """

    history: History
    rules: tuple[Item, ...]
    stock: Stock
    notes: tuple[str, ...]

    @property
    def done(self) -> str:
        """What was done to the sales on the way from the file to the forecast, in a line."""
        return f"Done to the sales: {'; '.join(self.history.done)}."

    @property
    def new_items(self) -> list[str]:
        """The item-stores that are planned without any history, which start from the prior."""
        new = self.history.listed & (self.history.days_on_record == 0)
        return [named(self.history.keys[k]) for k in np.flatnonzero(new)]


def read_shop(
    sales: str | Path,
    *,
    stock: str | Path | None = None,
    items: str | Path | None = None,
    today: Day | None = None,
    reading: Reading | None = None,
) -> Shop:
    """Read and check a shop's files.

    Parameters
    ----------
    sales, stock, items : path
        CSV or Parquet, with the columns of `calibrl.shop.files`. Without a stock file shelves are taken as empty;
        without an item file, items as `Item` has them by default.
    today : datetime64[D], optional
        The order is decided at the close of this day; by default the last one with sales. Later rows are ignored,
        except for the plans in them.
    reading : Reading, optional
        How the sales file is to be read where it cannot tell, and whose public holidays count.

    Returns
    -------
    Shop
        What they say of each item-store, in alphabetical order.

    Examples
    --------
    >>> shop = read_shop("examples/data/sales.csv", items="examples/data/items.csv")
    >>> len(shop.rules), str(shop.history.date)
    (10, '2026-05-28')
    """
    new = items_named(items) if items is not None else ()
    history = read_sales(sales, today=today, new=new, reading=reading)
    known = read_items(items, history.keys, sales=str(sales))
    shelf = read_stock(stock, history.keys, today=history.date, sales=str(sales), stores=history.stores)
    return Shop(history, known.rules, shelf, (*history.notes, *known.assumed, *shelf.notes))

"""The sales file: one row per day and item, and what a day without a row means.

    date, item, units        needed
    store                    one shop if the column is not there
    in_stock                 0: sold out that day, so that demand was at least what was sold
    price, promotion         as they were, and for days to come as they are planned
    holiday, closed          the same: 1 on such days

Rows after the last sale, with `units` empty, are plans: their promotion, price, holiday and closed are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.inventory.sales import Days, Flags, Floats, Sales
from calibrl.shop.absent import LONGEST_GAP, settle
from calibrl.shop.cells import Cells, read_cells

NEEDED = ("date", "item", "units")
OPTIONAL = ("store", "in_stock", "price", "promotion", "holiday", "closed")

MOST_UNITS = 1e7
"""More in one day is a slip of the pen."""

MOST_CELLS = 60_000_000
"""Item-stores times days that are held at once."""

DORMANT = 28
"""Days without a sale or a record after which an item is off the list."""

AHEAD = 28
"""Days after the last sale for which orders may be planned."""

Day: TypeAlias = np.datetime64

Key: TypeAlias = tuple[str, str]
"""An item and the store that sells it; the store is empty where the file names none."""


@dataclass(frozen=True)
class History:
    """What is known at the close of a day, and what is planned beyond it.

    sales: s item-stores by t days, the last `AHEAD` of them still to come (their units are NaN); written: the
    same as the file has it, before days without a row were settled; keys: s (item, store); today: the column of
    the last day that is known; stores: whether the file names stores; planned: (s, t') rows without units, in the
    columns of `written`; notes: what the reader should be told.
    """

    sales: Sales
    written: Sales
    keys: tuple[Key, ...]
    today: int
    stores: bool
    planned: Flags
    notes: tuple[str, ...] = ()

    @property
    def date(self) -> np.datetime64:
        """Today: the order is decided when this day has closed."""
        return self.sales.dates[self.today]

    @cached_property
    def days_on_record(self) -> NDArray[np.int64]:
        """(s,): days with known sales up to today."""
        seen: NDArray[np.int64] = (~np.isnan(self.sales.units[:, : self.today + 1])).sum(1)
        return seen

    @property
    def listed(self) -> Flags:
        """(s,): item-stores that are sold by today, or planned for the days to come."""
        return (self.days_on_record > 0) | self.planned[:, : self.today + 1 + AHEAD].any(1)

    @property
    def idle(self) -> NDArray[np.int64]:
        """(s,): days since the last sale; those with an empty shelf, or marked closed, do not count."""
        known = slice(self.today + 1)
        sold = np.nan_to_num(self.sales.units[:, known]) > 0
        since = np.maximum.accumulate(sold[:, ::-1], 1)[:, ::-1]
        could_not = self.sales.censored[:, known] | self.sales.marks["closed"][:, known]
        found: NDArray[np.int64] = (~since & ~could_not).sum(1)
        return found

    @property
    def asleep(self) -> Flags:
        """(s,): item-stores that did not sell for weeks while there was something to sell."""
        return (self.idle > DORMANT) & (self.days_on_record > 0)

    @property
    def dormant(self) -> Flags:
        """(s,): those of them that are off the list, because no day to come is planned for them."""
        return self.asleep & ~self.planned[:, self.today + 1 : self.today + 1 + AHEAD].any(1)

    def at(self, today: int) -> History:
        """The history as it was known at the close of an earlier day."""
        return known_at(self.written, self.keys, today, stores=self.stores, planned=self.planned)


def known_at(written: Sales, keys: tuple[Key, ...], today: int, *, stores: bool, planned: Flags) -> History:
    """What the rows up to `today` say; of later rows only the plans (promotion, price, holiday, closed) are read."""
    known, end = today + 1, today + 1 + AHEAD
    units = np.full((len(keys), end), np.nan)
    units[:, :known] = written.units[:, :known]
    promised = _ahead(written.marks["closed"], end)
    settled = settle(units[:, :known], store_of(keys), promised[:, :known], written.dates[:known])
    units[:, :known] = settled.units
    closed = promised.copy()
    closed[:, :known] |= settled.closed
    promotion = None if written.promotion is None else _ahead(written.promotion, end)
    sales = replace(
        written,
        dates=written.dates[0] + np.arange(end),
        units=units,
        censored=_ahead(written.censored, end) & ~np.isnan(units),
        closed=closed,
        promotion=promotion,
        price=None if written.price is None else _carried_on(_ahead(written.price, end, np.nan), promotion),
        marks={name: _ahead(mark, end) for name, mark in written.marks.items()},
    )
    return History(sales, written, keys, today, stores, planned, settled.notes)


def read_sales(path: str | Path, *, today: Day | None = None, new: tuple[Key, ...] = ()) -> History:
    """The history in a file, as it was known at the close of `today` (the last day with sales, if not given).

    new: item-stores to plan for when the file has no rows at all.
    """
    cells = read_cells(path, needed=NEEDED, optional=OPTIONAL, what="a sales file")
    if not len(cells):
        return _nothing_yet(str(path), new, today)
    date = cells.dates("date")
    units = cells.at_least("units", 0, "a number of units sold (book returns apart)")
    wild = units > MOST_UNITS
    if wild.any():
        row = int(wild.argmax())
        cells.complain(row, "units", f"{units[row]:g} is more than a shop sells in a day; check the number")
    keys, series = _series(cells)
    last = _last_day(cells, date, units, today)
    grid = _laid_out(cells, date, series, keys, last=last)
    holiday = {"holiday": grid.flags("holiday", default=False)} if cells.has("holiday") else {}
    written = Sales(
        dates=grid.days,
        series=tuple(named(key) for key in keys),
        units=grid.spread(units, np.nan),
        censored=~grid.flags("in_stock", default=True),
        closed=np.zeros((len(keys), len(grid.days)), dtype=bool),
        promotion=grid.flags("promotion", default=False).astype(np.float64) if cells.has("promotion") else None,
        price=_prices(grid) if cells.has("price") else None,
        marks={"closed": _closed(grid, keys), **holiday},
        product=tuple(item for item, _ in keys),
    )
    planned = grid.spread(np.isnan(units).astype(np.float64), 0.0) > 0
    day = int((last - grid.days[0]).astype(np.int64))
    history = known_at(written, keys, day, stores=cells.has("store"), planned=planned)
    notes = []
    broken = units[~np.isnan(units)] % 1 > 0
    if broken.any():
        notes.append(
            f"{int(broken.sum())} rows have fractions of a unit, but whole units are forecast and ordered; count in "
            "smaller ones (grams, not kilograms) to be as fine as the file."
        )
    if not cells.has("in_stock"):
        notes.append("There is no column in_stock: sales are taken for demand, also on days that sold out.")
    return replace(history, notes=(*history.notes, *notes))


def named(key: Key) -> str:
    """An item-store in words."""
    item, store = key
    return f"{item} in {store}" if store else item


def store_of(keys: tuple[Key, ...]) -> NDArray[np.int64]:
    """(s,): the number of each item-store's store."""
    found: NDArray[np.int64] = np.unique([store for _, store in keys], return_inverse=True)[1]
    return found


def _series(cells: Cells) -> tuple[tuple[Key, ...], NDArray[np.int64]]:
    """The item-stores in alphabetical order, and (n,) which of them each row is about."""
    items = pl.Series("item", cells.texts("item"))
    stores = pl.Series("store", cells.texts("store") if cells.has("store") else [""] * len(cells))
    both = pl.DataFrame([items, stores])
    unique = both.unique().sort("item", "store").with_row_index("at")
    at = both.join(unique, on=["item", "store"], how="left", maintain_order="left")["at"]
    keys = tuple(zip(unique["item"].to_list(), unique["store"].to_list(), strict=True))
    return keys, at.to_numpy().astype(np.int64)


def _last_day(cells: Cells, date: Days, units: Floats, today: np.datetime64 | None) -> np.datetime64:
    if today is not None:
        if not (date <= np.where(np.isnan(units), today + AHEAD, today)).any():
            raise CalibrlError(f"{cells.source}: nothing on or before {today}; the first row is of {date.min()}")
        return today
    known = ~np.isnan(units)
    if not known.any():
        # Nothing sold yet: the rows are plans, and today is the day before the first of them.
        return date.min() - np.timedelta64(1, "D")
    last = date[known].max()
    _refuse_alone(cells, date, known, last)
    return last


def _refuse_alone(cells: Cells, date: Days, known: Flags, last: Day) -> None:
    """An error if the last day stands far beyond the others: one wrong year would put every order off the list."""
    gaps = np.diff(np.unique(date[known])).astype(np.int64)
    if len(gaps) and gaps[-1] > max(LONGEST_GAP, gaps[:-1].max(initial=0)):
        cells.complain(
            int((known & (date == last)).argmax()),
            "date",
            f"{last} is {gaps[-1]} days after all other sales, which end on {last - gaps[-1]}; correct the year, or "
            f"say --date {last} if it is right",
        )


@dataclass(frozen=True)
class _Grid:
    """Rows of the file laid out as s item-stores by t days.

    days: (t,); row, column: (n,) where each row of the file goes.
    """

    cells: Cells
    days: Days
    count: int
    row: NDArray[np.int64]
    column: NDArray[np.int64]

    def spread(self, values: Floats, empty: float) -> Floats:
        """(s, t): the values of a column (n,), `empty` where the file has no row."""
        found = np.full((self.count, len(self.days)), empty)
        found[self.row, self.column] = values
        return found

    def flags(self, name: str, *, default: bool) -> Flags:
        """(s, t): a column of yes and no; `default` where the file has no row, or no such column."""
        if not self.cells.has(name):
            return np.full((self.count, len(self.days)), default)
        return self.spread(self.cells.flags(name, default=default).astype(np.float64), float(default)) > 0


def _laid_out(cells: Cells, date: Days, series: NDArray[np.int64], keys: tuple[Key, ...], *, last: Day) -> _Grid:
    first, end = min(date.min(), last), max(date.max(), last)
    days = first + np.arange(int((end - first).astype(np.int64)) + 1)
    if len(days) * len(keys) > MOST_CELLS:
        raise CalibrlError(
            f"{cells.source}: {len(keys)} item-stores over {len(days)} days, {first} to {end}, are more than fit; "
            "check for a wrong year, or order for fewer stores at a time"
        )
    _refuse_twice(cells, date, series, keys)
    return _Grid(cells, days, len(keys), series, (date - first).astype(np.int64))


def _prices(grid: _Grid) -> Floats:
    """(s, t): prices, NaN where none is written; nothing is sold for 0, so that means the same."""
    price = grid.cells.at_least("price", 0, "a price")
    return grid.spread(np.where(price > 0, price, np.nan), np.nan)


def _closed(grid: _Grid, keys: tuple[Key, ...]) -> Flags:
    """(s, t): days marked closed; if all rows of a store are, also for its items without a row."""
    closed = grid.flags("closed", default=False)
    listed = grid.spread(np.ones(len(grid.row)), 0.0) > 0
    store = store_of(keys)
    for each in np.unique(store[closed.any(1)]):
        rows = store == each
        closed[rows] |= listed[rows].any(0) & (closed[rows] | ~listed[rows]).all(0)
    return closed


def _refuse_twice(cells: Cells, date: Days, series: NDArray[np.int64], keys: tuple[Key, ...]) -> None:
    """An error if an item-store has two rows for one day."""
    code = series * 1_000_000 + date.astype(np.int64)
    order = np.argsort(code, kind="stable")
    again = np.flatnonzero(np.diff(code[order]) == 0)
    if len(again):
        at = again[np.argmin(order[again + 1])]  # the first line that repeats another
        one, two = order[at], order[at + 1]
        raise CalibrlError(
            f"{cells.source}, {cells.where(two)}: {named(keys[series[two]])} on {date[two]} stands on "
            f"{cells.where(one)} already; add the two up, or drop one"
        )


def _ahead(values: Any, end: int, empty: float = 0) -> Any:
    """(s, end): an array cut or continued to `end` days."""
    found = np.full((len(values), end), empty, dtype=values.dtype)
    width = min(end, values.shape[1])
    found[:, :width] = values[:, :width]
    return found


def _carried_on(price: Floats, promotion: Floats | None) -> Floats:
    """(s, t): where none is written, the last price of a day like it, on promotion or not; or of any; or the first."""
    for alike in () if promotion is None else (promotion > 0, promotion == 0):
        price = np.where(np.isnan(price) & alike, _last(np.where(alike, price, np.nan)), price)
    found = _last(price)
    first = np.take_along_axis(found, (~np.isnan(found)).argmax(1)[:, None], 1)
    return np.where(np.isnan(found), first, found)


def _last(values: Floats) -> Floats:
    """(s, t): the last value that is known, NaN before the first."""
    place = np.where(np.isnan(values), 0, np.arange(values.shape[1]))
    return np.take_along_axis(values, np.maximum.accumulate(place, 1), 1)


def _nothing_yet(source: str, new: tuple[Key, ...], today: np.datetime64 | None) -> History:
    """No rows at all: every item of the item file starts from nothing."""
    if not new:
        raise CalibrlError(f"{source}: no rows below the header, and no items file to say what is sold; give --items")
    if today is None:
        raise CalibrlError(f"{source}: no rows below the header, so today is not known; give it with --date")
    shape = (len(new), 1 + AHEAD)
    nothing = np.zeros(shape, dtype=bool)
    written = Sales(
        dates=today + np.arange(1 + AHEAD),
        series=tuple(named(key) for key in new),
        units=np.full(shape, np.nan),
        censored=nothing,
        closed=nothing,
        marks={"closed": nothing},
        product=tuple(item for item, _ in new),
    )
    return known_at(written, new, 0, stores=any(store for _, store in new), planned=~nothing)

"""A shop's sales as tills write them down, and what orders of its items obey, read and checked.

**Sales**: one row per day and item, or several (receipts), which are added up:

    date, item, units        needed; less than 0 is a return, empty is not known
    store                    one shop if the column is not there
    in_stock                 0: sold out that day, so that demand was at least what was sold
    price, promotion         as they were, and for days to come as they are planned
    holiday, closed          the same: 1 on such days

Rows after the last sale, with `units` empty, are plans: their promotion, price, holiday and closed are read.

**Items**: how long each keeps, how it is delivered, what waste and lost sales cost.

    item                     needed; with a column store, an empty store means every store
    shelf_life               days on the shelf, the day of delivery included
    pack_size, minimum_order units
    lead_days                1: ordered tonight, on the shelf tomorrow
    delivery_days            "Mon Wed Fri", "Mon-Fri", or daily
    cost_of_waste            what a unit thrown away costs
    cost_of_lost_sale        what a lost sale costs, per unit

A cell left empty, a column left out and an item left out all mean the default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.inventory.history import (
    AHEAD,
    DISCONTINUED,
    LONGEST_GAP,
    Day,
    History,
    Key,
    check_country,
    counted,
    first_few,
    known_at,
    named,
    store_of,
)
from calibrl.inventory.problems import Days, Flags, Floats, Periods, Problem, Sales
from calibrl.inventory.tills import Reading, sales_cells
from calibrl.tables.reader import Cells, read_cells

MOST_UNITS = 1e7
"""More in one cell is a slip of the pen."""

MOST_CELLS = 60_000_000
"""Item-stores times days that are held at once."""

TEST_DAYS, CALIBRATION_DAYS, LEAST_DAYS = 92, 120, 200
"""Of sales that are a problem of an experiment: the paper's test, what a map is learnt on, and all of it at least."""

LEAST_OF_TOTAL = 3
"""Item-stores that sell on a day, from which on one of them may be the total of the others."""

FEW_DAYS = 28
"""Days of sales below which a forecast is mostly assumption."""


def read_sales(
    path: str | Path, *, today: Day | None = None, new: tuple[Key, ...] = (), reading: Reading | None = None
) -> History:
    """The history in a sales file, as it was known at the close of `today` (by default the last day with sales).

    new: item-stores to order for when the file has no rows at all; reading: how to read it.
    """
    reading = reading or Reading()
    country = check_country(reading.country)
    cells, done_before = sales_cells(path, reading)
    date = cells.dates("date")
    units = cells.numbers("units")
    much = "is more than a shop sells in a day; check the number"
    cells.refuse(np.abs(units) > MOST_UNITS, "units", lambda row: f"{units[row]:g} {much}")
    found, series = item_stores(cells, stores=cells.has("store"))
    keys = found or new
    last = _last_day(cells, date, units, today, keys)
    grid = _laid_out(cells, date, series, keys, last=last)
    if len(whole := _sums_of_others(grid.total(units), keys)):
        kept = ~np.isin(series, whole)
        cells = replace(cells, frame=cells.frame.filter(kept), line=cells.line[kept])
        totals = first_few([named(keys[k]) for k in whole])
        date, units, done_before = date[kept], units[kept], [*done_before, f"{totals} left out: all others, added up"]
        found, series = item_stores(cells, stores=cells.has("store"))
        keys, grid = found, _laid_out(cells, date, series, found, last=last)
    holiday = {"holiday": grid.flags("holiday", default=False)} if cells.has("holiday") else {}
    sold, done = _netted(grid, units)
    written = Sales(
        dates=grid.days,
        series=tuple(named(key) for key in keys),
        units=sold,
        censored=~grid.flags("in_stock", default=True),
        closed=np.zeros((len(keys), len(grid.days)), dtype=bool),
        promotion=grid.flags("promotion", default=False).astype(np.float64) if cells.has("promotion") else None,
        price=_prices(grid) if cells.has("price") else None,
        marks={"closed": _closed(grid, keys), **holiday},
        product=tuple(item for item, _ in keys),
        regressors={name: grid.mean(cells.numbers(name)) for name in reading.regressors},
    )
    # Without any rows, every item of the item file starts from nothing, as if it were planned.
    planned = (grid.listed & np.isnan(sold)) | (not found)
    day = int((last - grid.days[0]).astype(np.int64))
    stores, back = any(store for _, store in keys), np.where(units < 0, 1.0, np.nan)
    returned = (sold == 0) & (grid.total(back) > 0) if (units < 0).any() else None
    history = known_at(written, keys, day, stores=stores, planned=planned, country=country, returned=returned)
    done = [*cells.how, *done_before, *done]
    if cells.called:
        done.append(", ".join(f"{theirs} taken as {ours}" for ours, theirs in cells.called.items()))
    if cells.unknown:
        done.append(f"column{'s' if len(cells.unknown) > 1 else ''} {', '.join(cells.unknown)} not used")
    return replace(
        history,
        notes=(*history.notes, *_alike(keys), *_worth_saying(cells, history, units)),
        done=(_extent(keys, date, units), *done, *history.done),
    )


def own_problem(
    path: str | Path, reading: Reading | None = None, *, period: str = "test"
) -> tuple[Problem, dict[str, Key]]:
    """A sales file as a problem like the bakery's, with one period; and the item and store of each series, by name.

    The test is the paper's 92 days at the end, or a sixth of a shorter record; the map is learnt on the 120 days, or a
    fifth, before it. The period "tuning" ends where the test begins. Series without a record for four weeks, from
    there on, are left out: nobody would order them.
    """
    history = read_sales(path, reading=reading)
    end, sales = history.today + 1, history.sales
    if period == "tuning":
        end -= _shares(end)[0]
    if end < LEAST_DAYS:
        cure = "use --period test" if period == "tuning" else "calibrl order makes do with fewer"
        raise CalibrlError(
            f"{path}: {counted(end, 'day')} of sales up to {sales.dates[end - 1]}; to train, calibrate and test takes "
            f"{LEAST_DAYS} or more: {cure}"
        )
    test, calibration = _shares(end)
    begin = end - test - calibration
    when = Periods(*(str(sales.dates[day]) for day in (0, begin, end - test, end - 1)))
    # A shop that is closed sells nothing, and whoever orders for it has to know.
    recorded = ~np.isnan(sales.units)
    shut = sales.closed & np.maximum.accumulate(recorded, 1) & (np.arange(len(sales.dates)) <= history.today)
    at = slice(begin - DISCONTINUED, end)
    sold, away = (np.lib.stride_tricks.sliding_window_view(days[:, at], DISCONTINUED, 1) for days in (recorded, shut))
    kept = np.flatnonzero(np.asarray(sold.any(-1) | away.all(-1)).all(1))
    if not len(kept):
        raise CalibrlError(f"{path}: no item-store has sales all through {when.calibrate_from} to {when.test_to}")
    gone = len(history.keys) - len(kept)
    note = [*history.done, *([f"{counted(gone, 'item-store')} without sales for four weeks left out"] if gone else [])]
    marks = {name: mark for name, mark in sales.marks.items() if mark.any()}
    units = np.where(shut & ~recorded, 0.0, sales.units)
    read = replace(sales, units=units, marks=marks, note="; ".join(note)).select(kept)
    keys = dict(zip(sales.series, history.keys, strict=True))
    return Problem(lambda: read, {period: when}, history=min(365, begin // 2)), keys


def _sums_of_others(sold: Floats, keys: tuple[Key, ...]) -> NDArray[np.int64]:
    """The item-stores that are totals, whatever they are called: day by day as much as all others of a store together.

    Or as all other stores sell of an item. No two can be; and of one day, or where only one other sells, it is chance.
    """
    found: list[int] = []
    units, items = np.nan_to_num(sold), np.unique([item for item, _ in keys], return_inverse=True)[1]
    for of in (store_of(keys), items):
        for each in np.flatnonzero(np.bincount(of, minlength=1) >= LEAST_OF_TOTAL):
            rows = np.flatnonzero(of == each)
            part = units[rows]
            days = (part > 0).sum(0) >= LEAST_OF_TOTAL
            same = (
                np.isclose(2 * part[:, days], part[:, days].sum(0)).mean(1) if days.sum() >= 10 else np.zeros(len(rows))
            )
            found += rows[same >= 0.95].tolist() if (same >= 0.95).sum() == 1 else []
    return np.unique(np.array(found, dtype=np.int64))


def _shares(days: int) -> tuple[int, int]:
    """Days of the test and of the calibration before it."""
    return min(TEST_DAYS, days // 6), min(CALIBRATION_DAYS, days // 5)


def _netted(grid: _Grid, units: Floats) -> tuple[Floats, list[str]]:
    """(s, t): what was sold on each day, receipts added up and returns taken off; and what was done, in words."""
    done = []
    sold = grid.total(units)
    receipts, returns = len(units) - int(grid.listed.sum()), int((units < 0).sum())
    if receipts:
        done.append(f"{len(units):,} receipt lines added up to {int(grid.listed.sum()):,} item-days")
    if returns:
        if np.nansum(units) < 0:
            row = int(np.argmax(units < 0))
            grid.cells.complain(row, "units", "more is returned than was ever sold; if sales are negative, turn signs")
        below = int((sold < 0).sum())
        more = f" (no sales on {counted(below, 'day')} with more returns)" if below else ""
        done.append(f"{counted(returns, 'return')} taken off the sales{more}")
    return np.where(sold < 0, 0.0, sold), done


def _extent(keys: tuple[Key, ...], date: Days, units: Floats) -> str:
    """How much was read."""
    if not len(date):
        return "no sales read"
    known = date[~np.isnan(units)]
    between = f", {known.min()} to {known.max()}" if len(known) else ""
    return f"{counted(len(date), 'row')} of {counted(len(keys), 'item-store')} read{between}"


def _alike(keys: tuple[Key, ...]) -> list[str]:
    """Names that differ in case, spaces or punctuation only are pointed out: they may be one thing, typed twice."""
    found = []
    for what, names in (("items", {item for item, _ in keys}), ("stores", {store for _, store in keys})):
        alike: dict[str, list[str]] = {}
        for name in sorted(names):
            alike.setdefault(re.sub(r"[\W_]+", "", name.casefold()) or name, []).append(name)
        twins = [" and ".join(repr(name) for name in same) for same in alike.values() if len(same) > 1]
        if twins:
            found.append(f"{first_few(twins)} count as different {what}; write them alike if they are one.")
    return found


def _worth_saying(cells: Cells, history: History, units: Floats) -> list[str]:
    """What a user should know of a sales file before trusting the orders."""
    notes = []
    broken = units[~np.isnan(units)] % 1 != 0
    if broken.any():
        notes.append(
            f"{int(broken.sum())} rows have fractions of a unit, but whole units are forecast and ordered; count in "
            "smaller ones (grams, not kilograms) to be as fine as the file."
        )
    recorded = (~np.isnan(history.sales.units[:, : history.today + 1])).any(0)
    kind = np.unique(history.sales.weekday[: history.today + 1][recorded])
    if len(kind) == 1 and recorded.sum() > 3:
        notes.append(
            f"All sales are on {WEEKDAYS[kind[0]]}s: if each is the sum of a week, order needs a row for each day."
        )
    if len(cells) and not cells.has("in_stock"):
        notes.append("There is no column in_stock: sales are taken for demand, also on days that sold out.")
    days = int(recorded.sum())
    if 0 < days < FEW_DAYS:
        notes.append(
            f"Only {counted(days, 'day')} of sales: weekdays cannot be told apart yet, and how far off the "
            f"orders may be is a guess. From about {FEW_DAYS} days on they rest on the shop's own record."
        )
    since = history.today - int(np.flatnonzero(recorded)[-1]) if days else 0
    if since:
        notes.append(f"The last sales are {counted(since, 'day')} old; what was sold since is not known.")
    return notes


def item_stores(cells: Cells, *, stores: bool, needed: bool = True) -> tuple[tuple[Key, ...], NDArray[np.int64]]:
    """The item-stores that rows are about, sorted, and which of them each row (n,) is about.

    stores: whether the column of that name counts; needed: whether every row has to name one.
    """
    rows = pl.DataFrame({"item": cells.names("item")})
    rows = rows.with_columns(store=cells.names("store", needed=needed) if stores else pl.lit(""))
    found = rows.unique().sort("item", "store").with_row_index("place")
    place = rows.join(found, on=["item", "store"], how="left", maintain_order="left")["place"]
    return tuple(found.select("item", "store").rows()), place.to_numpy().astype(np.int64)


def places(cells: Cells, keys: tuple[Key, ...], sales: str, *, stores: bool) -> NDArray[np.int64]:
    """(n,): which of the `keys`, those in the sales file, each row is about."""
    found, place = item_stores(cells, stores=stores)
    at = {key: k for k, key in enumerate(keys)}
    among = np.array([at.get(key, -1) for key in found], dtype=np.int64)[place]
    cure = f"is not in {sales}; correct the name or drop the line"
    cells.refuse(among < 0, "item", lambda row: f"{named(found[place[row]])!r} {cure}")
    return among


def _last_day(cells: Cells, date: Days, units: Floats, today: Day | None, keys: tuple[Key, ...]) -> Day:
    """Today: as given, or the last day with sales, unless it stands far beyond the others.

    One wrong year would put every item off the list.
    """
    if not len(cells):
        unknown = f"{cells.source}: no rows below the header"
        if not keys:
            raise CalibrlError(f"{unknown}, and no items file to say what is sold; give --items")
        if today is None:
            raise CalibrlError(f"{unknown}, so today is not known; give it with --date")
        return today
    if today is not None:
        if not (date <= np.where(np.isnan(units), today + AHEAD, today)).any():
            raise CalibrlError(f"{cells.source}: nothing on or before {today}; the first row is of {date.min()}")
        _refuse_future(cells, date[~np.isnan(units) & (date <= today)], today)
        return today
    known = ~np.isnan(units)
    if not known.any():
        # Nothing sold yet: the rows are plans, and today is the day before the first of them.
        return date.min() - np.timedelta64(1, "D")
    last = date[known].max()
    gaps = np.diff(np.unique(date[known])).astype(np.int64)
    if len(gaps) and gaps[-1] > max(LONGEST_GAP, gaps[:-1].max(initial=0)):
        cells.complain(
            int((known & (date == last)).argmax()),
            "date",
            f"{last} is {gaps[-1]} days after all other sales, which end on {last - gaps[-1]}; correct the year, or "
            f"say --date {last} if it is right",
        )
    return last


def _refuse_future(cells: Cells, sold: Days, today: Day) -> None:
    """An error if `today` lies so far beyond the last sale that every item would seem off the list."""
    gap = int((today - sold.max()).astype(np.int64)) if len(sold) else 0
    if gap > DISCONTINUED:
        raise CalibrlError(
            f"{cells.source}: --date {today} is {gap} days after the last sale on file, {sold.max()}; add the sales "
            f"since then, or order as of --date {sold.max()}"
        )


@dataclass(frozen=True)
class _Grid:
    """Rows of the file laid out as s item-stores by t days; several rows may be about one day.

    days: (t,); at: (n,) where each row of the file goes, in the flattened grid; listed: (s, t) days with a row.
    """

    cells: Cells
    days: Days
    count: int
    at: NDArray[np.int64]

    @cached_property
    def listed(self) -> Flags:
        return self._sum(self.at) > 0

    def _sum(self, at: NDArray[np.int64], values: Floats | None = None) -> Floats:
        size = self.count * len(self.days)
        return np.bincount(at, values, size).astype(np.float64).reshape(self.count, -1)

    def total(self, values: Floats) -> Floats:
        """(s, t): the sum of a column (n,) on each day, NaN where none of its rows has a number."""
        known = ~np.isnan(values)
        return np.where(self._sum(self.at[known]) > 0, self._sum(self.at[known], values[known]), np.nan)

    def mean(self, values: Floats) -> Floats:
        """(s, t): the mean of a column (n,) on each day, NaN where none of its rows has a number."""
        return self.total(values) / np.maximum(self._sum(self.at[~np.isnan(values)]), 1)

    def flags(self, name: str, *, default: bool) -> Flags:
        """(s, t): a column of yes and no; `default` unless a row of the day says otherwise."""
        other = self.cells.flags(name, default=default) != default
        return (self._sum(self.at[other]) > 0) != default


def _laid_out(cells: Cells, date: Days, series: NDArray[np.int64], keys: tuple[Key, ...], *, last: Day) -> _Grid:
    """The grid of all days of the file and up to `last`."""
    first, end = np.append(date, last).min(), np.append(date, last).max()
    days = first + np.arange(int((end - first).astype(np.int64)) + 1)
    if len(days) * len(keys) > MOST_CELLS:
        raise CalibrlError(
            f"{cells.source}: {len(keys)} item-stores over {len(days)} days, {first} to {end}, are more than fit; "
            "check for a wrong year, or order for fewer stores at a time"
        )
    return _Grid(cells, days, len(keys), series * len(days) + (date - first).astype(np.int64))


def _prices(grid: _Grid) -> Floats:
    """(s, t): prices, NaN where none is written; nothing is sold for 0, so that means the same."""
    price = grid.cells.at_least("price", 0, "a price")
    return grid.mean(np.where(price > 0, price, np.nan))


def _closed(grid: _Grid, keys: tuple[Key, ...]) -> Flags:
    """(s, t): days marked closed; if all rows of a store are, also for its items without a row."""
    closed = grid.flags("closed", default=False)
    listed, store = grid.listed, store_of(keys)
    for each in np.unique(store[closed.any(1)]):
        rows = store == each
        closed[rows] |= listed[rows].any(0) & (closed[rows] | ~listed[rows]).all(0)
    return closed


WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

LONGEST_LIFE = 3650
LONGEST_LEAD = AHEAD - 2 * 7
"""Days of lead that leave room to plan for a delivery a week and the one after it."""


DAILY = (True,) * 7


@dataclass(frozen=True)
class Item:
    """The rules an order for one item obeys.

    Parameters
    ----------
    shelf_life : int
        Days on the shelf, the day of delivery included.
    pack_size, minimum_order : int
        Units.
    lead_days : int
        Days from the evening of the order to the delivery: 1 is on the shelf tomorrow.
    delivery_days : tuple of 7 bool
        The weekdays with a delivery, from Monday.
    cost_of_waste, cost_of_lost_sale : float
        Of a unit thrown away, and of one that was asked for and not there.

    Examples
    --------
    >>> Item(shelf_life=7, pack_size=12, delivery_days=(True, False, True, False, True, False, False)).deliveries
    'Mon Wed Fri'
    """

    shelf_life: int = 3
    pack_size: int = 1
    minimum_order: int = 0
    lead_days: int = 1
    delivery_days: tuple[bool, ...] = DAILY
    cost_of_waste: float = 1.0
    cost_of_lost_sale: float = 1.0

    @property
    def deliveries(self) -> str:
        """The delivery days in words."""
        if all(self.delivery_days):
            return "daily"
        return " ".join(name[:3] for name, yes in zip(WEEKDAYS, self.delivery_days, strict=True) if yes)


FREE = {
    "cost_of_waste": "if waste cost nothing, no order could be too large",
    "cost_of_lost_sale": "if lost sales cost nothing, it would be best never to order",
}

RULES = [field.name for field in fields(Item)]


@dataclass(frozen=True)
class Items:
    """The rules of s item-stores, and what was assumed because the file did not say."""

    rules: tuple[Item, ...]
    assumed: tuple[str, ...]


def read_items(path: str | Path | None, keys: tuple[Key, ...], *, sales: str) -> Items:
    """The rules of the item-stores `keys`, from a file or by default. sales: what errors call the sales file."""
    standard = Item()
    if path is None:
        return Items((standard,) * len(keys), (f"No item file: {_assumed(standard, RULES)}.",))
    cells, rows = _item_rows(path)
    known = {*keys, *((item, "") for item, _ in keys)}
    for key, row in rows.items():
        if key not in known:
            cure = "correct the name, drop the line, or add a row with empty units there to order a new item on a guess"
            cells.complain(row, "item", f"{named(key)!r} is not in {sales}; {cure}")
    columns = _columns(cells)
    rules, silent = [], []
    for item, store in keys:
        at = rows.get((item, store), rows.get((item, "")))
        if at is None:
            silent.append(named((item, store)))
            rules.append(standard)
        else:
            rules.append(replace(standard, **{name: column[at] for name, column in columns.items() if at in column}))
    assumed = []
    left_out = [name for name in RULES if not cells.has(name)]
    if left_out:
        assumed.append(f"Not in {path}: {_assumed(standard, left_out)}.")
    if silent:
        assumed.append(f"No line for {first_few(silent)}: {_assumed(standard, RULES)}.")
    return Items(tuple(rules), tuple(assumed))


def items_named(path: str | Path) -> tuple[Key, ...]:
    """The item-stores an item file names, for a shop without any sales yet."""
    return tuple(sorted(_item_rows(path)[1]))


def _item_rows(path: str | Path) -> tuple[Cells, dict[Key, int]]:
    """The cells of an item file, and the row of each item-store."""
    cells = read_cells(path, needed=("item",), optional=("store", *RULES), what="an item file")
    found: dict[Key, int] = {}
    keys, place = item_stores(cells, stores=cells.has("store"), needed=False)
    for row, key in enumerate(keys[k] for k in place):
        if key in found:
            cells.complain(row, "item", f"{named(key)!r} stands on {cells.where(found[key])} already; keep one")
        found[key] = row
    return cells, found


def _columns(cells: Cells) -> dict[str, dict[int, Any]]:
    """What the item file says, by column and row; cells left empty are left out."""
    found: dict[str, dict[int, Any]] = {}
    smaller = ", so count in smaller units (grams, not kilograms)"
    for name, least, most, what, cure in (
        ("shelf_life", 1, LONGEST_LIFE, "a shelf life in days", ""),
        ("pack_size", 1, 1e6, "a pack size", smaller),
        ("minimum_order", 0, 1e6, "a minimum order", smaller),
        ("lead_days", 1, LONGEST_LEAD, "a lead time in days", ""),
    ):
        values = cells.at_least(name, least, what, most=most, whole=True, cure=cure)
        found[name] = {row: int(value) for row, value in enumerate(values) if not np.isnan(value)}
    for name in ("cost_of_waste", "cost_of_lost_sale"):
        costs = cells.at_least(name, 0, "a cost")
        for row in np.flatnonzero((costs == 0) | (costs > 1e9)).tolist():
            cells.complain(
                row,
                name,
                f"{costs[row]:g} is not a cost per unit; expected more than 0, such as what a unit was bought for "
                f"(waste) or earns (a lost sale): {FREE[name]}",
            )
        found[name] = {row: float(value) for row, value in enumerate(costs) if not np.isnan(value)}
    text = cells.texts("delivery_days", needed=False)
    found["delivery_days"] = {row: _weekdays(cells, row, words) for row, words in enumerate(text) if words}
    return found


def _weekdays(cells: Cells, row: int, words: str) -> tuple[bool, ...]:
    """Seven flags, from Monday."""
    if words.strip().lower() in {"daily", "every day", "all"}:
        return DAILY
    days = [False] * 7
    joined = re.sub(r"\s*(?:[-\u2010-\u2015]|\bto\b)\s*", "-", words.strip(), flags=re.IGNORECASE)
    for word in re.split(r"[\s,;/+&|]+", joined):
        ends = [_weekday(part) for part in word.split("-")]
        if None in ends or len(ends) > 2:
            cells.complain(
                row, "delivery_days", f"{word[:40]!r} is no weekday; write them like Mon Wed Fri, Mon-Fri, or daily"
            )
        first, last = (cast(int, end) for end in (ends[0], ends[-1]))
        for k in range((last - first) % 7 + 1):
            days[(first + k) % 7] = True
    return tuple(days)


def _weekday(word: str) -> int | None:
    """A weekday by its name or three or more letters of it, from Monday, 0; a plural or a full stop does no harm."""
    name = word.lower().removesuffix(".")
    for k, full in enumerate(day.lower() for day in WEEKDAYS):
        if (len(name) >= 3 and f"{full}s".startswith(name)) or name == f"{full[:3]}s":
            return k
    return None


def _assumed(item: Item, names: list[str]) -> str:
    """Defaults, as a person would say them."""
    words = {
        "shelf_life": f"a shelf life of {item.shelf_life} days",
        "pack_size": "single units",
        "minimum_order": "no minimum order",
        "lead_days": "ordered tonight, on the shelf tomorrow",
        "delivery_days": "deliveries every day",
        "cost_of_waste": f"{item.cost_of_waste:g} per unit wasted",
        "cost_of_lost_sale": f"{item.cost_of_lost_sale:g} per lost sale",
    }
    return "assumed " + ", ".join(words[name] for name in names)

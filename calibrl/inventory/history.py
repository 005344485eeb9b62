"""What a sales file says of each day: closed, nothing sold, missing or sold out; and which days are public holidays.

**A day without a row.** Each item-store is judged by its own record, between its first day and today:

- nothing is on record in the whole store: the store was closed. (A store whose items often have no row may simply have
  sold nothing; there a day counts as closed only if it is a public holiday, or that weekday is hardly ever on record.)
- the item's record has zeros in it: whoever keeps it writes zeros down, so a day without a row is missing;
- it has none: only sales are written down, so the day sold nothing, unless the gap is so long that the item cannot
  have been on offer: longer than two weeks, and than three times the gaps it usually has. Then it is missing;
- it has a row whose cell is empty: somebody meant to count, so it is missing, unless most cells are empty.

A store that was closed was closed for all its items, also for those it did not sell yet: a new item knows the weekdays
on which its store is shut. A day marked closed in the file is closed, whatever was sold. Missing is never taken for
zero.

**Public holidays** come by country from the package `holidays` (the extra `shop`), by name, so that a holiday can be
compared with the same one a year before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.inventory.problems import Days, Flags, Floats, Sales

Day: TypeAlias = np.datetime64

Key: TypeAlias = tuple[str, str]
"""An item and the store that sells it; the store is empty where the file names none."""

AHEAD = 28
"""Days after the last sale for which orders may be planned."""

DISCONTINUED = 28
"""Days without a sale or a record after which an item is off the list."""

HARDLY_EVER = 0.05
"""Share of a weekday's dates with any record, below which the store is closed on it; and the chance that an open store
has no record, below which one without is closed."""

OFTEN_BLANK = 1 / 3
"""Share of an item's days with an empty cell above which empty means that nothing was sold."""

LONGEST_GAP = 14
"""Days without a sale after which an item may not have been on offer."""


@dataclass(frozen=True)
class History:
    """What is known at the close of a day, and what is planned beyond it.

    sales: s item-stores by t days, the last `AHEAD` of them still to come (their units are NaN); written: the
    same as the file has it, before days without a row were judged; keys: s (item, store); today: the column of
    the last day that is known; stores: whether the file names stores; planned: (s, t') rows without units, in the
    columns of `written`; notes: for the reader, in sentences; done: what was done to the data, in phrases;
    country: whose public holidays are known; returned: (s, t') days on which as much came back as was sold.
    """

    sales: Sales
    written: Sales
    keys: tuple[Key, ...]
    today: int
    stores: bool
    planned: Flags
    notes: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    country: str = ""
    returned: Flags | None = None

    @property
    def date(self) -> np.datetime64:
        """Today: the order is decided when this day has closed."""
        return self.sales.dates[self.today]

    @cached_property
    def days_on_record(self) -> NDArray[np.int64]:
        """(s,): days with known sales up to today."""
        return np.asarray((~np.isnan(self.sales.units[:, : self.today + 1])).sum(1), dtype=np.int64)

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
        return np.asarray((~since & ~could_not).sum(1), dtype=np.int64)

    @property
    def unsold(self) -> Flags:
        """(s,): item-stores that did not sell for weeks while there was something to sell."""
        return (self.idle > DISCONTINUED) & (self.days_on_record > 0)

    @property
    def discontinued(self) -> Flags:
        """(s,): those of them that are off the list, because no day to come is planned for them."""
        return self.unsold & ~self.planned[:, self.today + 1 : self.today + 1 + AHEAD].any(1)

    def at(self, today: int) -> History:
        """The history as it was known at the close of an earlier day."""
        about = ("written", "keys", "stores", "planned", "country", "returned")
        return known_at(today=today, **{name: getattr(self, name) for name in about})


def known_at(
    written: Sales,
    keys: tuple[Key, ...],
    today: int,
    *,
    stores: bool,
    planned: Flags,
    country: str = "",
    returned: Flags | None = None,
) -> History:
    """What the rows up to `today` say; of later rows only the plans (promotion, price, holiday, closed) are read."""
    known, end = today + 1, today + 1 + AHEAD
    dates = written.dates[0] + np.arange(end)
    marks = {name: _ahead(mark, end) for name, mark in written.marks.items()}
    public = np.broadcast_to(holidays_on(country, dates), (len(keys), end))
    if country:
        if marks.get("holiday", public & False).any():
            # Who keeps a column knows which were moved, or mean nothing here: the calendar has the days without a row.
            spoken = _ahead((~np.isnan(written.units) | planned).any(0, keepdims=True), end)
            public = marks["holiday"] | (public & ~spoken)
        marks["holiday"] = public
    units, closed = _ahead(written.units, end, np.nan), marks["closed"].copy()
    units[:, known:] = np.nan
    past, about = np.s_[:, :known], {"blank": planned, "returned": returned, "holiday": public}
    flags = {name: None if flag is None else flag[past] for name, flag in about.items()}
    units[past], closed[past], done = fill_gaps(units[past], store_of(keys), closed[past], dates[:known], **flags)
    promotion = None if written.promotion is None else _ahead(written.promotion, end)
    sales = replace(
        written,
        dates=dates,
        units=units,
        censored=_ahead(written.censored, end) & ~np.isnan(units),
        closed=closed,
        promotion=promotion,
        price=None if written.price is None else _carried_on(_ahead(written.price, end, np.nan), promotion),
        marks=marks,
        regressors={name: _ahead(values, end, np.nan) for name, values in written.regressors.items()},
    )
    return History(sales, written, keys, today, stores, planned, done=done, country=country, returned=returned)


def named(key: Key) -> str:
    """An item-store in words."""
    item, store = key
    return f"{item} in {store}" if store else item


def counted(count: int, thing: str) -> str:
    """So many things."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def first_few(names: list[str]) -> str:
    """The first four names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def store_of(keys: tuple[Key, ...]) -> NDArray[np.int64]:
    """(s,): the number of each item-store's store."""
    return np.asarray(np.unique([store for _, store in keys], return_inverse=True)[1], dtype=np.int64)


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


# A day without a row.


def fill_gaps(
    units: Floats,
    store: NDArray[np.int64],
    marked: Flags,
    days: Days,
    *,
    blank: Flags | None = None,
    returned: Flags | None = None,
    holiday: Flags | None = None,
) -> tuple[Floats, Flags, tuple[str, ...]]:
    """Units (s, t) with zeros and NaN where they belong, which days were closed (s, t), and what was done, in phrases.

    units: (s, t), NaN without a number; store: (s,) number of each; marked: (s, t) closed by the file; days: (t,);
    blank: (s, t) days that have a row, but no number in it; returned: (s, t) days whose zero is sales less returns,
    which is no sign that somebody writes zeros down; holiday: (s, t) public holidays.
    """
    units = units.copy()
    recorded = ~np.isnan(units)
    begun = np.maximum.accumulate(recorded, 1)
    closed = marked | _shut(recorded, store, days, recorded & False if holiday is None else holiday)
    units[marked & begun & np.isnan(units)] = 0.0
    zero = recorded & (units == 0) & ~(recorded & False if returned is None else returned)
    writes_zeros = zero.any(1)
    empty = begun & ~recorded & ~closed
    # Left blank now and then, a cell says that nobody knows; left blank on most days, that nothing was sold.
    unknown = np.zeros_like(empty) if blank is None else empty & blank
    unknown &= (unknown.sum(1) <= OFTEN_BLANK * (begun & ~closed).sum(1))[:, None]
    zeros = 0
    for row in np.flatnonzero((empty & ~unknown).any(1) & ~writes_zeros):
        sold_nothing = _short_gaps(empty[row], begun[row], recorded[row]) & ~unknown[row]
        units[row, sold_nothing] = 0.0
        zeros += int(sold_nothing.sum())
    left_blank = int(unknown.sum())
    missing = int((begun & np.isnan(units) & ~closed).sum()) - left_blank
    done = (
        (left_blank, "empty cell", "missing"),
        (zeros, "item-day", "no sales, without a row in a record of sales only"),
        (missing, "item-day", "missing, not as zero, without a row"),
    )
    return units, closed, tuple(f"{counted(count, what)} taken as {how}" for count, what, how in done if count)


def _shut(recorded: Flags, store: NDArray[np.int64], days: Days, holiday: Flags) -> Flags:
    """(s, t): days on which the whole store has no record, since its first, and is not open by chance without one."""
    weekday = (days.astype(np.int64) + 3) % 7
    found = np.zeros_like(recorded)
    for each in np.unique(store):
        rows = store == each
        some = recorded[rows].any(0)
        first = int(some.argmax())
        on_record = [some[first:][weekday[first:] == day] for day in range(7)]
        share = np.array([seen.mean() if len(seen) else 0.0 for seen in on_record])
        unlikely = np.minimum(_chance_of_none(recorded[rows]), share[weekday]) < HARDLY_EVER
        found[rows] = ~some & np.maximum.accumulate(some) & (unlikely | holiday[rows].all(0))
    return found


def _chance_of_none(recorded: Flags) -> Floats:
    """(t,): that none of a store's items (k, t) has a record though the store is open, as of its last record.

    How often an item has one is counted on the days on which another has: on these the store was open for certain.
    """
    on_offer = np.maximum.accumulate(recorded, 1) & np.maximum.accumulate(recorded[:, ::-1], 1)[:, ::-1]
    open_days = on_offer & (recorded.sum(0) - recorded > 0)
    # Half a day of either kind, so that a short record is not taken for certainty.
    none = 1 - ((recorded & open_days).sum(1) + 0.5) / (open_days.sum(1) + 1)
    chance: Floats = np.exp(np.log(none) @ on_offer)
    last = np.maximum.accumulate(np.where(recorded.any(0), np.arange(recorded.shape[1]), 0))
    return chance[last]


def _short_gaps(empty: Flags, begun: Flags, recorded: Flags) -> Flags:
    """(t,): the empty days in gaps short enough to mean that nothing was sold."""
    edge = np.diff(np.concatenate([[False], ~recorded & begun, [False]]).astype(np.int8))
    start, end = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    length = end - start
    # Every sale that follows another at once is a gap of zero: a steady seller has short gaps as a rule.
    usual = np.quantile(np.concatenate([length, np.zeros(int(recorded.sum()))]), 0.95)
    short = length <= max(LONGEST_GAP, 3 * usual)
    found = np.zeros_like(empty)
    for a, b, small in zip(start, end, short, strict=True):
        found[a:b] = small
    return found & empty


# Public holidays.

YEAR = 364
"""A year of whole weeks."""

BEFORE, AFTER = 3, 1
"""Days around a holiday on which people shop as they do around it, not as on other days of the season."""


def check_country(country: str) -> str:
    """The country, checked: a code such as DE, or with a part of the country DE-BW.

    Parameters
    ----------
    country : str
        ISO 3166 code of a country, or of a part of it; empty for none.

    Returns
    -------
    str
        The same in capitals.
    """
    if country:
        _names(country.upper(), 2024)
    return country.upper()


def holidays_on(country: str, dates: Days) -> Flags:
    """Whether each day is a public holiday: (t,)."""
    known = _by_day(country, dates)
    return np.array([day in known for day in dates.tolist()], dtype=bool)


def year_before(country: str, dates: Days) -> NDArray[np.int64]:
    """(t,): how many days before each day its like of the last year was.

    That is 52 weeks, except around a public holiday: there it is the same day before or after the holiday of that name.
    """
    back = np.full(len(dates), YEAR)
    if not country:
        return back
    whole = np.arange(dates[0] - 2 * YEAR, dates[-1] + YEAR)
    by_name: dict[str, list[np.datetime64]] = {}
    for day, name in sorted(_by_day(country, whole).items()):
        by_name.setdefault(name, []).append(np.datetime64(day, "D"))
    # The holiday itself decides, then the days just before one, then those after it.
    for offset in [AFTER - k for k in range(AFTER)] + [-k for k in range(BEFORE, -1, -1)]:
        for days in by_name.values():
            for now in days:
                at = int((now + offset - dates[0]).astype(np.int64))
                apart = [int((now - then).astype(np.int64)) for then in days]
                likely = [gap for gap in apart if 330 <= gap <= 400]
                if 0 <= at < len(back) and likely:
                    back[at] = min(likely, key=lambda gap: abs(gap - 365))
    return back


def _by_day(country: str, dates: Days) -> dict[date, str]:
    years = {int(str(day)[:4]) for day in (dates[0], dates[-1])}
    found: dict[date, str] = {}
    for year in range(min(years), max(years) + 1) if country else ():
        found |= _names(country, year)
    return found


@lru_cache(maxsize=256)
def _names(country: str, year: int) -> dict[date, str]:
    """The holidays of a year."""
    try:
        import holidays
    except ImportError:
        raise MissingExtra("holidays", "shop") from None
    code, _, part = country.partition("-")
    try:
        return dict(holidays.country_holidays(code, subdiv=part or None, years=year).items())
    except NotImplementedError:
        known = holidays.list_supported_countries()
        parts = f"{part!r} is no part of {code}; known: {', '.join(known.get(code, ()))}"
        where = parts if code in known else f"{country!r} is no country"
        raise CalibrlError(f"--country: {where}; write a code like DE, US or DE-BW") from None

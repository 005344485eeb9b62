"""What a shop's record says of each day: closed, nothing sold, missing or sold out; and what is usual.

**A day without a row.** Each item-store is judged by its own record, between its first day and today:

- nothing is on record in the whole store: the store was closed. (A store whose items often have no row may simply have
  sold nothing; there a day counts as closed only if that weekday is hardly ever on record.)
- the item's record has zeros in it: whoever keeps it writes zeros down, so a day without a row is missing;
- it has none: only sales are written down, so the day sold nothing, unless the gap is so long that the item cannot
  have been on offer: longer than two weeks, and than three times the gaps it usually has. Then it is missing;
- it has a row whose cell is empty: somebody meant to count, so it is missing, unless most cells are empty.

A store that was closed was closed for all its items, also for those it did not sell yet: a new item knows the weekdays
on which its store is shut. A day marked closed in the file is closed, whatever was sold. Missing is never taken for
zero.

**What is usual.** A shop that is shut on a holiday sells nothing; taken at its word, that would halve the forecast of
the same weekday for weeks. So such days are bridged with what the weekday usually sells, as are days without a record;
a day that sold out counts as what would be sold on average on a day that sells at least so much. What was really sold
stays beside it.

What a weekday usually sells is learnt from sales alone: a day that sold out raises it to what was sold and no further.
An estimate that the next one built on would climb for as long as the item sells out, with nobody to contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from calibrl.inventory.problems import Days, Flags, Floats, Sales
from calibrl.shop.calendar import holidays_on, year_before

Counts: TypeAlias = NDArray[np.int16]
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

WEEKS = 5
"""Same weekdays whose median is the usual."""

SURELY_SELLS = 8.0
"""From this usual on, a day without any sale is a closure: a Poisson count would be zero once in 3000 days."""

RELATIVE_SPREAD = 0.2
"""Of demand around its weekday's usual, beyond what chance alone makes of a count."""

SHUT_WEEKS = 3
"""A weekday without sales so many times in a row is a day on which the shop is shut."""


@dataclass(frozen=True)
class History:
    """What is known at the close of a day, and what is planned beyond it.

    sales: s item-stores by t days, the last `AHEAD` of them still to come (their units are NaN); written: the
    same as the file has it, before days without a row were judged; keys: s (item, store); today: the column of
    the last day that is known; stores: whether the file names stores; planned: (s, t') rows without units, in the
    columns of `written`; notes: for the reader, in sentences; done: what was done to the data, in phrases;
    country: whose public holidays are known.
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
        return known_at(self.written, self.keys, today, stores=self.stores, planned=self.planned, country=self.country)


def known_at(
    written: Sales, keys: tuple[Key, ...], today: int, *, stores: bool, planned: Flags, country: str = ""
) -> History:
    """What the rows up to `today` say; of later rows only the plans (promotion, price, holiday, closed) are read."""
    known, end = today + 1, today + 1 + AHEAD
    units = np.full((len(keys), end), np.nan)
    units[:, :known] = written.units[:, :known]
    marked = _ahead(written.marks["closed"], end)
    closed = marked.copy()
    units[:, :known], closed[:, :known], done = fill_gaps(
        units[:, :known], store_of(keys), marked[:, :known], written.dates[:known], blank=planned[:, :known]
    )
    promotion = None if written.promotion is None else _ahead(written.promotion, end)
    dates = written.dates[0] + np.arange(end)
    marks = {name: _ahead(mark, end) for name, mark in written.marks.items()}
    if country:
        marks["holiday"] = marks.get("holiday", False) | np.broadcast_to(holidays_on(country, dates), units.shape)
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
    return History(sales, written, keys, today, stores, planned, done=done, country=country)


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
    units: Floats, store: NDArray[np.int64], marked: Flags, days: Days, *, blank: Flags | None = None
) -> tuple[Floats, Flags, tuple[str, ...]]:
    """Units (s, t) with zeros and NaN where they belong, which days were closed (s, t), and what was done, in phrases.

    units: (s, t), NaN without a number; store: (s,) number of each; marked: (s, t) closed by the file; days: (t,);
    blank: (s, t) days that have a row, but no number in it.
    """
    units = units.copy()
    recorded = ~np.isnan(units)
    begun = np.maximum.accumulate(recorded, 1)
    closed = marked | _shut(recorded, store, days)
    units[marked & begun & np.isnan(units)] = 0.0
    writes_zeros = (units == 0).any(1, where=recorded) if units.size else np.zeros(len(units), dtype=bool)
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


def _shut(recorded: Flags, store: NDArray[np.int64], days: Days) -> Flags:
    """(s, t): days on which the whole store has no record, since its first."""
    weekday = (days.astype(np.int64) + 3) % 7
    found = np.zeros_like(recorded)
    for each in np.unique(store):
        rows = store == each
        some = recorded[rows].any(0)
        first = int(some.argmax())
        on_record = [some[first:][weekday[first:] == day] for day in range(7)]
        share = np.array([seen.mean() if len(seen) else 0.0 for seen in on_record])
        unlikely = np.minimum(_chance_of_none(recorded[rows]), share[weekday]) < HARDLY_EVER
        found[rows] = ~some & np.maximum.accumulate(some) & unlikely
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


# What is usual.


@dataclass(frozen=True)
class Record:
    """A history with its days bridged; arrays are (s, t), t days up to today and `AHEAD` beyond.

    units: as sold, NaN without a record; usual: every day up to today bridged, 0 before the first record; typical:
    what the weekday had shown before, by sales; odd: days shut against the habit; announced: days, also to come,
    that are closed by the file or by the date in past years, or before the first that is planned for an item that
    is new or did not sell for weeks; begun: from the first record on; near: 1 on holidays, ½ around them;
    back: (t,) how many days before each its like of last year was; event: flags known in advance (promotion, holiday
    and its eve) by name; price: log of the price over its last four weeks. An item without any record is taken to sell
    prior (s,) units every day.
    """

    history: History
    units: Floats
    usual: Floats
    typical: Floats
    odd: Flags
    announced: Flags
    begun: Flags
    near: Floats
    back: NDArray[np.int64]
    event: dict[str, Flags]
    price: Floats | None
    regressors: dict[str, Floats]
    prior: Floats

    @property
    def today(self) -> int:
        """The column of the last known day."""
        return self.history.today


def make_record(history: History) -> Record:
    """The record of a history."""
    sales, known = history.sales, history.today + 1
    units = sales.units
    nothing = sales.closed | ((units == 0) & ~sales.censored)
    weeks_without = in_a_row(nothing, sales.closed)
    usual, usually, shown = np.zeros(units.shape), np.zeros(units.shape), np.zeros(units.shape)
    odd = np.zeros(units.shape, dtype=bool)
    seen = ~np.isnan(units)
    begun = np.maximum.accumulate(seen, 1)
    total, count = np.zeros(len(units)), np.zeros(len(units))
    for day in range(known):
        weeks = [day - 7 * k for k in range(1, WEEKS + 1) if day >= 7 * k]
        had = np.stack([shown[:, week] for week in weeks]) if weeks else np.zeros((1, len(units)))
        since = np.stack([begun[:, week] for week in weeks]) if weeks else np.zeros((1, len(units)), dtype=bool)
        mean = total / np.maximum(count, 1)
        typical = np.where(since.all(0), np.median(had, 0), np.where(since[0], had[0], mean))
        # Whether today is no exception.
        habit = weeks_without[:, day - 7] >= SHUT_WEEKS if day >= 7 else np.zeros(len(units), dtype=bool)
        sold = np.where(np.isnan(units[:, day]), typical, units[:, day])
        gone = sales.censored[:, day]
        shut = sales.closed[:, day] | (nothing[:, day] & (typical >= SURELY_SELLS))
        odd[:, day] = shut & ~habit & (typical > 0)
        bridge = np.where(habit, 0.0, typical)
        usual[:, day] = np.where(shut, bridge, np.where(gone, _at_least(sold, typical), sold))
        shown[:, day] = np.where(shut, bridge, np.where(gone, np.maximum(sold, typical), sold))
        usual[~begun[:, day], day] = shown[~begun[:, day], day] = 0.0
        usually[:, day] = typical
        fresh = seen[:, day] & ~shut
        total, count = total + np.where(fresh, shown[:, day], 0), count + fresh
    new = ~begun[:, known - 1]
    prior = _prior(usual[:, :known], begun[:, :known], history.keys)
    usual[new] = prior[new, None]
    begun[new] = True
    begun[:, known:] = True
    event = {name: mark for name, mark in sales.marks.items() if name != "closed"}
    if "holiday" in event:
        event["eve"] = np.roll(event["holiday"], -1, 1) & ~event["holiday"]
        event["eve"][:, -1] = False
    if sales.promotion is not None:
        event["promotion"] = sales.promotion > 0
    return Record(
        history=history,
        units=units,
        usual=usual,
        typical=usually,
        odd=odd,
        announced=sales.marks["closed"] | _every_year(history) | _not_yet(history, new),
        begun=begun,
        near=_around(event.get("holiday", np.zeros(units.shape, dtype=bool))),
        back=year_before(history.country, sales.dates),
        event=event,
        price=None if sales.price is None else _relative(sales.price, known),
        regressors={name: _standard(values, known) for name, values in sales.regressors.items()},
        prior=prior,
    )


def _at_least(sold: Floats, typical: Floats) -> Floats:
    """(s,): mean demand on days like these, given that it was `sold` or more: a Gaussian cut off below."""
    spread = _spread(typical)
    cut = (sold - typical) / spread
    return typical + spread * np.exp(-0.5 * cut**2 - log_ndtr(-cut)) / np.sqrt(2 * np.pi)


def draw_at_least(sold: Floats, typical: Floats, rng: np.random.Generator) -> Floats:
    """Demand drawn from the days that `_at_least` is the mean of: how uncertain it is shows in the draws."""
    spread = _spread(typical)
    above = log_ndtr((typical - sold) / spread) + np.log1p(-rng.random(sold.shape))
    return np.maximum(sold, typical - spread * ndtri_exp(above))


def _spread(typical: Floats) -> Floats:
    return np.sqrt(typical + (RELATIVE_SPREAD * typical) ** 2 + 0.25)


def in_a_row(shut: Flags, closed: Flags) -> Counts:
    """(s, t): how many times in a row each weekday was shut, the day itself included.

    A store that was closed for a week or more was on holiday: that says nothing about weekdays, and they are counted on
    from before it.
    """
    away = np.zeros(closed.shape, dtype=bool)
    away[:, 6:] = np.lib.stride_tricks.sliding_window_view(closed, 7, 1).all(-1) if closed.shape[1] > 6 else False
    found = np.zeros(shut.shape, dtype=np.int16)
    for day in range(shut.shape[1]):
        before = found[:, day - 7] if day >= 7 else 0
        found[:, day] = np.where(away[:, day], before, (before + 1) * shut[:, day])
    return found


def _prior(usual: Floats, begun: Flags, keys: tuple[Key, ...]) -> Floats:
    """(s,): what an item-store without a record is taken to sell in a day.

    The median of what the item sells in other stores; where none sells it, that of all item-stores, or one unit.
    """
    sells = begun[:, -1]
    means = usual.sum(1) / np.maximum(begun.sum(1), 1)
    found = np.full(len(keys), max(1.0, float(np.median(means[sells]))) if sells.any() else 1.0)
    elsewhere: dict[str, list[float]] = {}
    for k in np.flatnonzero(sells):
        elsewhere.setdefault(keys[k][0], []).append(float(means[k]))
    for k in np.flatnonzero(~sells):
        found[k] = np.median(elsewhere.get(keys[k][0], found[k]))
    return found


def _around(holiday: Flags) -> Floats:
    """(s, t): 1 on holidays, ½ on the two days before and the day after, else 0."""
    near = np.zeros_like(holiday)
    for days in (1, 2):
        near[:, :-days] |= holiday[:, days:]
    near[:, 1:] |= holiday[:, :-1]
    return np.where(holiday, 1.0, 0.5 * near)


def _every_year(history: History) -> Flags:
    """(s, t): days that were closed on the same date in each of the two years before."""
    closed, days = history.sales.closed, history.sales.dates
    found, years = np.zeros_like(closed), 12 * np.array([[1], [2]])
    then = days.astype("datetime64[M]") - years
    past = then.astype("datetime64[D]") + (days - days.astype("datetime64[M]"))
    column = (past - days[0]).astype(np.int64)
    # Another month: 29 February has no such date.
    there = ((column >= 0) & (past.astype("datetime64[M]") == then)).all(0)
    found[:, there] = closed[:, column[:, there]].all(1)
    return found


def _not_yet(history: History, new: Flags) -> Flags:
    """(s, t): for new item-stores, and those that did not sell for weeks, the days before the next that is planned."""
    today, day = history.today, np.arange(history.sales.units.shape[1])
    known, ahead = history.planned[:, : today + 1], history.planned[:, today + 1 :]
    waiting = ahead.any(1) & (history.unsold | (new & ~known.any(1)))
    first = today + 1 + (ahead.cumsum(1) == 0).sum(1)
    return waiting[:, None] & (today < day) & (day < first[:, None])


def _relative(price: Floats, known: int) -> Floats:
    """(s, t): log of the price over its mean of the four weeks before, 0 where no price is known."""
    filled = np.where(np.isnan(price), 1.0, price)
    total = np.concatenate([np.zeros((len(price), 1)), filled.cumsum(1)], 1)
    day = np.arange(price.shape[1])
    end = np.minimum(day, known)
    start = np.maximum(end - 28, 0)
    mean = np.where(end > start, total[:, end] - total[:, start], 1.0) / np.maximum(end - start, 1)
    return np.where(end > start, np.clip(np.log(filled / mean), -2, 2), 0.0)


def _standard(values: Floats, known: int) -> Floats:
    """(s, t): deviations from the mean of the known days, in units of theirs.

    What is not known for a day to come is taken to be as it was lately.
    """
    seen = ~np.isnan(values)
    count = np.maximum(seen[:, :known].sum(1, keepdims=True), 1)
    mean = np.nansum(values[:, :known], 1, keepdims=True) / count
    spread = np.sqrt(np.nansum((values[:, :known] - mean) ** 2, 1, keepdims=True) / count)
    standard = np.clip((values - mean) / np.where(spread > 0, spread, 1.0), -4, 4)
    month = slice(max(0, known - 28), known)
    lately = np.nansum(standard[:, month], 1, keepdims=True) / np.maximum(seen[:, month].sum(1, keepdims=True), 1)
    day = np.arange(values.shape[1])
    return np.where(seen, standard, np.where(day < known, 0.0, lately))

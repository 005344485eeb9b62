"""A history made whole: what each item would have sold on every day, with odd closures and gaps bridged.

A shop that is shut on a holiday sells nothing; taken at its word, that would halve the forecast of the same weekday
for weeks. So such days are bridged with what the weekday usually sells, as are days without a record; a day that
sold out counts as what would be sold on average on a day that sells at least so much. What was really sold stays
beside it.

What a weekday usually sells is learnt from sales alone: a day that sold out raises it to what was sold and no further.
An estimate that the next one built on would climb for as long as the item sells out, with nobody to contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from calibrl.inventory.sales import Days, Flags, Floats
from calibrl.shop.sales_file import History, Key

WEEKS = 5
"""Same weekdays whose median is the usual."""

SURELY_SELLS = 8.0
"""From this usual on, a day without any sale is a closure: a Poisson count would be zero once in 3000 days."""

RELATIVE_SPREAD = 0.2
"""Of demand around its weekday's usual, beyond what chance alone makes of a count."""

SHUT_WEEKS = 3
"""A weekday without sales so many times in a row is a day on which the shop is shut."""

Counts = NDArray[np.int16]


@dataclass(frozen=True)
class Record:
    """A history with its days bridged; arrays are (s, t), t days up to today and `AHEAD` beyond.

    units: as sold, NaN without a record; usual: every day up to today bridged, 0 before the first record; typical:
    what the weekday had shown before, by sales; odd: days shut against the habit; announced: days, also to come,
    that are closed by the file or by the date in past years, or before the first that is planned for an item that
    is new or did not sell for weeks; begun: from the first record on; event: flags known in advance (promotion,
    holiday) by name; price: log of the price over its last four weeks. An item without any record is taken to sell
    prior (s,) units every day.
    """

    history: History
    units: Floats
    usual: Floats
    typical: Floats
    odd: Flags
    announced: Flags
    begun: Flags
    event: dict[str, Flags]
    price: Floats | None
    prior: Floats

    @property
    def today(self) -> int:
        """The column of the last known day."""
        return self.history.today


def bridged(history: History) -> Record:
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
    return Record(
        history=history,
        units=units,
        usual=usual,
        typical=usually,
        odd=odd,
        announced=sales.marks["closed"] | _every_year(history) | _not_yet(history, new),
        begun=begun,
        event=_events(history),
        price=None if sales.price is None else _relative(sales.price, known),
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


def _every_year(history: History) -> Flags:
    """(s, t): days that were closed on the same date in each of the two years before."""
    sales, days = history.sales, history.sales.dates
    found = np.zeros(sales.closed.shape, dtype=bool)
    for column in np.flatnonzero(days >= days[0] + np.timedelta64(730, "D")):
        past = _same_date(days, int(column))
        if len(past) == 2:
            found[:, column] = sales.closed[:, past].all(1)
    return found


def _not_yet(history: History, new: Flags) -> Flags:
    """(s, t): for new item-stores, and those that did not sell for weeks, the days before the next that is planned."""
    today, day = history.today, np.arange(history.sales.units.shape[1])
    known, ahead = history.planned[:, : today + 1], history.planned[:, today + 1 :]
    waiting = ahead.any(1) & (history.asleep | (new & ~known.any(1)))
    first = today + 1 + (ahead.cumsum(1) == 0).sum(1)
    return waiting[:, None] & (today < day) & (day < first[:, None])


def _same_date(days: Days, column: int) -> list[int]:
    """The columns of the same day of the month in the two years before, if they are on record."""
    year, rest = str(days[column])[:4], str(days[column])[4:]
    if rest == "-02-29":
        return []
    found = [int((np.datetime64(f"{int(year) - k}{rest}") - days[0]).astype(np.int64)) for k in (1, 2)]
    return [place for place in found if place >= 0]


def _events(history: History) -> dict[str, Flags]:
    sales = history.sales
    found = {name: mark for name, mark in sales.marks.items() if name != "closed"}
    if sales.promotion is not None:
        found["promotion"] = sales.promotion > 0
    return found


def _relative(price: Floats, known: int) -> Floats:
    """(s, t): log of the price over its mean of the four weeks before, 0 where no price is known."""
    filled = np.where(np.isnan(price), 1.0, price)
    total = np.concatenate([np.zeros((len(price), 1)), filled.cumsum(1)], 1)
    day = np.arange(price.shape[1])
    end = np.minimum(day, known)
    start = np.maximum(end - 28, 0)
    mean = np.where(end > start, total[:, end] - total[:, start], 1.0) / np.maximum(end - start, 1)
    return np.where(end > start, np.clip(np.log(filled / mean), -2, 2), 0.0)

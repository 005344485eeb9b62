"""What is usual: a shop's record with its odd days bridged.

A shop that is shut on a holiday sells nothing; taken at its word, that would halve the forecast of the same weekday for
weeks. So such days are bridged with what the weekday usually sells, as are days without a record; a day that sold out
counts as what would be sold on average on a day that sells at least so much. What was really sold stays beside it.

What a weekday usually sells is learnt from sales alone: a day that sold out raises it to what was sold and no further.
An estimate that the next one built on would climb for as long as the item sells out, with nobody to contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from calibrl.inventory.history import History, Key, year_before
from calibrl.inventory.problems import Flags, Floats

Counts: TypeAlias = NDArray[np.int16]

WEEKS = 5
"""Same weekdays whose median is the usual."""

SURELY_SELLS = 8.0
"""From this usual on, a day without any sale is a closure: a Poisson count would be zero once in 3000 days."""

RELATIVE_SPREAD = 0.2
"""Of demand around its weekday's usual, beyond what chance alone makes of a count."""

SHUT_WEEKS = 3
"""A weekday without sales so many times in a row is a day on which the shop is shut."""


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

    @property
    def holidays(self) -> int:
        """How many days of the record are holidays on which something was open."""
        there = self.near == 1, ~np.isnan(self.units), ~self.odd, ~self.history.sales.closed
        return int(np.all(there, 0).any(0)[: self.today + 1].sum())


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

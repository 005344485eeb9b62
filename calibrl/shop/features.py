"""What is known of days past and to come, as numbers: what is usual, and features in units of the item's own level.

**What is usual** is a shop's record with its odd days bridged. A shop that is shut on a holiday sells nothing; taken at
its word, that would halve the forecast of the same weekday for weeks. So such days are bridged with what the weekday
usually sells, as are days without a record; a day that sold out counts as what would be sold on average on a day that
sells at least so much. What was really sold stays beside it.

What a weekday usually sells is learnt from sales alone: a day that sold out raises it to what was sold and no further.
An estimate that the next one built on would climb for as long as the item sells out, with nobody to contradict it.

**Features**: one row is an item-store on the evening it is forecast. They are laid out by lead day, because the same
weekday lies further back the further ahead one looks.
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

WILD, WILD_DAYS = 10.0, 2
"""Times its usual beyond which a day is an exception, unless there are more such days within two weeks: one order of a
thousand, or a slip of the pen, says nothing about the days to come."""

SHUT_WEEKS = 3
"""A weekday without sales so many times in a row is a day on which the shop is shut."""


@dataclass(frozen=True)
class Record:
    """A history with its days bridged; arrays are (s, t), t days up to today and `AHEAD` beyond.

    units: as sold, NaN without a record; usual: every day up to today bridged, 0 before the first record; typical: what
    the weekday had shown before, by sales; odd: days shut against the habit, and wild: those far beyond it; announced:
    days, also to come, that are closed by the file or by the date in past years, or before the first that is planned
    for an item that is new or did not sell for weeks; begun: from the first record on; near: 1 on holidays, ½ around
    them; back: (t,) how many days before each its like of last year was; event: flags known in advance (promotion,
    holiday and its eve) by name; price: log of the price over its last four weeks. An item without any record is taken
    to sell prior (s,) units every day.
    """

    history: History
    units: Floats
    usual: Floats
    typical: Floats
    odd: Flags
    wild: Flags
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


def make_record(history: History, *, most_wild: int = WILD_DAYS) -> Record:
    """The record of a history. most_wild: days of a fortnight that may be exceptions; none where bulk is the rule."""
    sales, known = history.sales, history.today + 1
    units = sales.units
    nothing = sales.closed | ((units == 0) & ~sales.censored)
    habit = np.zeros(units.shape, dtype=bool)
    habit[:, 7:] = in_a_row(nothing, sales.closed)[:, :-7] >= SHUT_WEEKS
    seen, gone = ~np.isnan(units), sales.censored
    event = {name: mark for name, mark in sales.marks.items() if name != "closed"}
    if "holiday" in event:
        event["eve"] = np.roll(event["holiday"], -1, 1) & ~event["holiday"]
        event["eve"][:, -1] = False
    if sales.promotion is not None:
        event["promotion"] = sales.promotion > 0
    plain = ~np.any(list(event.values()), 0) if event else seen | True
    begun = np.maximum.accumulate(seen, 1)
    typical, shown, shut = np.zeros(units.shape), np.zeros(units.shape), sales.closed.copy()
    wild, far = shown > 0, shown > 0
    total, count = np.zeros((len(units), 1)), np.zeros((len(units), 1))
    day = 0
    while day < known:
        # A week at a time; where a record begins day by day, as the mean of its first days is all that is known.
        back, end = range(7, 7 * min(day // 7, WEEKS) + 1, 7), min(day - day % 7 + 7, known)
        if not back or (begun[:, end - 1] & ~begun[:, day - 7]).any():
            end = day + 1
        at, mean = np.s_[:, day:end], total / np.maximum(count, 1)
        if back:
            had, since = (np.stack([of[:, day - k : end - k] for k in back]) for of in (shown, begun))
            mean = np.where(since.all(0), _median(had), np.where(since[0], had[0], mean))
        typical[at] = mean
        shut[at] |= nothing[at] & (mean >= SURELY_SELLS)
        far[at] = seen[at] & plain[at] & (mean > 0) & (units[at] > WILD * mean + 2 * WILD * np.sqrt(mean + 1))
        wild[at] = far[at] & (count >= 14) & (far[:, max(0, end - 14) : end].sum(1, keepdims=True) <= most_wild)
        sold = np.where(seen[at] & ~wild[at], units[at], mean)
        sold = np.where(shut[at], np.where(habit[at], 0.0, mean), np.where(gone[at], np.maximum(sold, mean), sold))
        shown[at] = np.where(begun[at], sold, 0.0)
        fresh = seen[at] & ~shut[at]
        total += np.where(fresh, shown[at], 0).sum(1, keepdims=True)
        count += fresh.sum(1, keepdims=True)
        day = end
    if wild.sum() > 2 + seen.sum() / 200:
        return make_record(history, most_wild=0)
    usual, cut = shown, gone & ~shut & ~wild
    usual[cut] = _at_least(units[cut], typical[cut])
    new = ~begun[:, known - 1]
    prior = _prior(usual[:, :known], begun[:, :known], history.keys)
    usual[new] = prior[new, None]
    begun[new] = True
    begun[:, known:] = True
    return Record(
        history=history,
        units=units,
        usual=usual,
        typical=typical,
        # Whether the day is an exception.
        odd=(shut & ~habit & (typical > 0)) | wild,
        wild=wild,
        announced=sales.marks["closed"] | _every_year(history) | _not_yet(history, new),
        begun=begun,
        near=_around(event.get("holiday", np.zeros(units.shape, dtype=bool))),
        back=year_before(history.country, sales.dates),
        event=event,
        price=None if sales.price is None else _relative(sales.price, known),
        regressors={name: _standard(values, known) for name, values in sales.regressors.items()},
        prior=prior,
    )


def _median(values: Floats) -> Floats:
    """The median of the rows: numpy's own takes ten times as long for a few."""
    ordered, count = np.sort(values, 0), len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _at_least(sold: Floats, typical: Floats) -> Floats:
    """(s,): mean demand on days like these, given that it was `sold` or more: a Gaussian cut off below."""
    spread = _spread_of(typical)
    cut = (sold - typical) / spread
    return typical + spread * np.exp(-0.5 * cut**2 - log_ndtr(-cut)) / np.sqrt(2 * np.pi)


def draw_at_least(sold: Floats, typical: Floats, rng: np.random.Generator) -> Floats:
    """Demand drawn from the days that `_at_least` is the mean of: how uncertain it is shows in the draws."""
    spread = _spread_of(typical)
    above = log_ndtr((typical - sold) / spread) + np.log1p(-rng.random(sold.shape))
    return np.maximum(sold, typical - spread * ndtri_exp(above))


def _spread_of(typical: Floats) -> Floats:
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


Index = NDArray[np.int64]

SCALE, SPREAD, SHUT, HISTORY, WEEKDAY, NEAR, MONTHDAY = range(7)
"""Columns that are no regressors: the item's level in units, its spread from week to week in units, whether the day
is closed by what is known, how many weeks of record there are, the day of the week, whether a holiday is near, and the
day of the month."""

LEAD_IN = 7

TRUST = 4.0
"""How many past events it takes to believe their effect on one item half-way, and on how many days that on all."""


@dataclass(frozen=True)
class MovingSums:
    """Moving sums of a record, made once, from which any row's features are read. All (s, t) or (s, t+1).

    usual: what the record has, without what promotions and holidays did to it; month_day: (t,) from 0.
    """

    record: Record
    total: Floats
    deviation: Floats
    deviation_total: Floats
    spread_total: Floats
    spread_count: Floats
    seen_total: Floats
    begun_total: Floats
    weeks_closed: Counts
    effect: dict[str, Floats]
    usual: Floats
    month_day: Floats


def moving_sums(record: Record) -> MovingSums:
    """The moving sums of a record."""
    known, flags = record.today + 1, record.event
    effect = {name: _effect(record, flag, _weekday_mean(record.usual, 4)) for name, flag in flags.items()}
    if flags:
        # Again, from weekdays without what the events did to them.
        plain = _weekday_mean(record.usual / _lift(flags, effect), 4)
        effect = {name: _effect(record, flag, plain) for name, flag in flags.items()}
    usual = record.usual / _lift(flags, effect) if flags else record.usual
    before = _weekday_mean(usual, 4)
    deviation = np.where(record.begun, usual - before, 0.0)
    deviation[:, :28] = 0.0
    deviation[:, known:] = 0.0
    # What is estimated for a day that sold out varies less than demand does.
    real = ~np.isnan(record.units) & ~record.odd & record.begun & ~record.history.sales.censored
    real[:, :28] = False
    return MovingSums(
        record=record,
        total=_sums(usual),
        deviation=deviation,
        deviation_total=_sums(deviation),
        spread_total=_sums(np.where(real, np.abs(deviation), 0.0)),
        spread_count=_sums(real.astype(np.float64)),
        seen_total=_sums((~np.isnan(record.units)).astype(np.float64)),
        begun_total=_sums(record.begun.astype(np.float64)),
        weeks_closed=in_a_row(record.history.sales.closed, record.history.sales.closed),
        effect=effect,
        usual=usual,
        month_day=(record.history.sales.dates - record.history.sales.dates.astype("datetime64[M]")).astype(np.float64),
    )


def rows(sums: MovingSums, series: Index, evening: Index, leads: int) -> Floats:
    """(n, leads, k): the features of item-stores (n,) on evenings (n,), for the 1st to the `leads`-th day ahead."""
    return np.stack([_one_lead(sums, series, evening, lead) for lead in range(1, leads + 1)], 1)


def _one_lead(sums: MovingSums, i: Index, evening: Index, lead: int) -> Floats:
    """(n, k) for one lead day. Nothing after `evening` is read but what is known in advance."""
    record = sums.record
    day = evening + lead
    last = _last_same(day, lead)
    same, since = _same_weekdays(sums, i, last, 8)
    long = _mean(sums.total, i, evening, 56, sums.begun_total)
    count = since.cumsum(0)
    # A weekday with little or no record is like the other days.
    four = np.where(count[3] > 0, (same[:4] * since[:4]).sum(0) / np.maximum(count[3], 1), long)
    eight = np.where(count[7] > 0, (same * since).sum(0) / np.maximum(count[7], 1), long)
    one, two = np.where(since[0], same[0], four), np.where(since[1], same[1], four)
    middle = np.where(count[4] >= 5, _median(same[:5]), four)
    scale = long + 0.5
    lift = np.ones(len(i))
    for name, flag in record.event.items():
        lift = lift * np.where(flag[i, day], sums.effect[name][i, evening], 1.0)
    week = _mean(sums.deviation_total, i, evening, 7)
    regressors = [
        one * lift,
        two * lift,
        four * lift,
        eight * lift,
        middle * lift,
        _mean(sums.total, i, evening, 7, sums.begun_total),
        _mean(sums.total, i, evening, 28, sums.begun_total),
        sums.deviation[i, evening],
        _mean(sums.deviation_total, i, evening, 3),
        week,
        _last_year(sums, i, evening, day, four, scale),
    ]
    weekday = record.history.sales.weekday[day]
    regressors += [np.where(weekday == k, four * lift, 0.0) for k in range(7)]
    for name, flag in record.event.items():
        on, effect = flag[i, day].astype(np.float64), sums.effect[name][i, evening]
        recent = np.mean([flag[i, np.maximum(last - 7 * k, 0)] for k in range(4)], 0)
        after = flag[i, np.maximum(day - 1, 0)].astype(np.float64)
        regressors += [on * four, on * four * (effect - 1), recent * four, after * four]
    if record.price is not None:
        regressors.append(record.price[i, day] * four)
    regressors += [values[i, day] * four for values in record.regressors.values()]
    scaled = [column / scale for column in regressors]
    weeks = np.minimum(sums.seen_total[i, evening + 1] / 7, 52.0)
    spread = np.where(weeks > 0, _spread(sums, i, evening, four), four)
    shut = _shut(sums, i, day, last, same[:4], since[3], long)
    lead_in = [scale, spread, shut, weeks, weekday, record.near[i, day], sums.month_day[day]]
    return np.stack([*(np.asarray(one, dtype=np.float64) for one in lead_in), *scaled, np.ones(len(i))], 1)


def shut_days(sums: MovingSums, evening: int, leads: int) -> Flags:
    """(s, leads): the days after an evening that are closed by what is known then."""
    count = len(sums.record.units)
    i, at = np.arange(count), np.full(count, evening)
    long = _mean(sums.total, i, at, 56, sums.begun_total)
    found = np.zeros((count, leads), dtype=bool)
    for lead in range(1, leads + 1):
        last = _last_same(at + lead, lead)
        same, since = _same_weekdays(sums, i, last, 4)
        found[:, lead - 1] = _shut(sums, i, at + lead, last, same, since[3], long)
    return found


def _shut(sums: MovingSums, i: Index, day: Index, last: Index, same: Floats, since: Flags, long: Floats) -> Flags:
    """(n,): announced, or closed by habit: the store's last times, or an item that sells but not on this weekday.

    same: (4, n) the last same weekdays, all since the record began where `since` says so.
    """
    habit = sums.weeks_closed[i, np.maximum(last, 0)] >= SHUT_WEEKS
    habit |= (same == 0).all(0) & since & (long >= 2)
    return sums.record.announced[i, day] | habit


def _last_same(day: Index, lead: int) -> Index:
    """(n,): the latest same weekday that is already known."""
    return day - 7 * (-(-lead // 7))


def _same_weekdays(sums: MovingSums, i: Index, last: Index, weeks: int) -> tuple[Floats, Flags]:
    """(weeks, n): the usual of the last same weekdays, latest first, and whether the record had begun."""
    record = sums.record
    same = np.stack([sums.usual[i, np.maximum(last - 7 * k, 0)] for k in range(weeks)])
    begun = [record.begun[i, np.maximum(last - 7 * k, 0)] & (last >= 7 * k) for k in range(weeks)]
    return same, np.stack(begun)


def _spread(sums: MovingSums, i: Index, evening: Index, four: Floats) -> Floats:
    """(n,): mean distance to the weekday's mean over eight weeks; the square root of the mean without a record."""
    start = np.maximum(evening + 1 - 56, 0)
    count = sums.spread_count[i, evening + 1] - sums.spread_count[i, start]
    total = sums.spread_total[i, evening + 1] - sums.spread_total[i, start]
    # Two weeks' worth of a Poisson count's spread, so that a lucky streak does not promise certainty.
    return (total + 14 * 0.8 * np.sqrt(four + 0.25)) / (count + 14)


def _last_year(sums: MovingSums, i: Index, evening: Index, day: Index, four: Floats, scale: Floats) -> Floats:
    """(n,): what the same day of last year was to its season, at today's level; the weekday's mean without a year."""
    then = day - sums.record.back[day]
    there = (then >= 28) & sums.record.begun[i, np.maximum(then - 28, 0)]
    around = _mean(sums.total, i, np.maximum(evening - 364, 0), 28) + 0.5
    # What was an exception then may come every year.
    at = (i, np.maximum(then, 0))
    sold = np.where(sums.record.wild[at], sums.record.units[at], sums.record.usual[at])
    return np.where(there, np.clip(sold / around, 0, 4) * scale, four)


def _effect(record: Record, flag: NDArray[np.bool_], before: Floats) -> Floats:
    """(s, t): what events up to that evening did to the item's sales, as a factor.

    An item's own events count fully after many; until then it is taken to be like the others, and those like the
    ordinary days until there were some: on days of their own, since a thousand items on one Easter saw one Easter.
    """
    known = ~np.isnan(record.units) & (before > 0) & ~record.odd
    known[:, :28] = False
    hit = known & flag
    # Sums over sums: a mean of ratios would be pulled up by slow sellers, whose usual is close to nothing.
    sold = np.where(hit, np.minimum(np.nan_to_num(record.units), 4 * before + 4), 0.0).cumsum(1)
    usual = np.where(hit, before, 0.0).cumsum(1)
    level = np.where(known, before, 0.0).cumsum(1) / np.maximum(known.cumsum(1), 1) + 0.1
    days, events = hit.any(0).cumsum(), np.maximum((usual / level).sum(0), 1e-9)
    shop = ((sold / level).sum(0) / events * days + TRUST) / (days + TRUST)
    return np.clip((sold + TRUST * level * shop) / (usual + TRUST * level), 0.1, 4.0)


def _lift(flags: dict[str, Flags], effect: dict[str, Floats]) -> Floats:
    """(s, t): by what factor events moved each day's sales, as known on that day."""
    factors = [np.where(flag, np.maximum(effect[name], 0.2), 1.0) for name, flag in flags.items()]
    return np.prod(factors, 0)


def _weekday_mean(usual: Floats, weeks: int) -> Floats:
    """(s, t): the mean of the same weekday in the weeks before."""
    total = np.zeros(usual.shape)
    for k in range(1, weeks + 1):
        total[:, 7 * k :] += usual[:, : -7 * k]
    return total / weeks


def _sums(values: Floats) -> Floats:
    return np.concatenate([np.zeros((len(values), 1)), values.cumsum(1)], 1)


def _mean(total: Floats, i: Index, evening: Index, days: int, begun: Floats | None = None) -> Floats:
    """(n,): the mean of the days up to the evening; of those since the record began, if `begun` is given."""
    start = np.maximum(evening + 1 - days, 0)
    count = (evening + 1 - start).astype(np.float64)
    if begun is not None:
        count = np.minimum(count, begun[i, evening + 1])
    return (total[i, evening + 1] - total[i, start]) / np.maximum(count, 1)

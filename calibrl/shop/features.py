"""What is known about a day to come, as numbers, in units of the item's own level.

One row is an item-store on the evening it is forecast; its features are laid out by lead day, because the same
weekday lies further back the further ahead one looks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.inventory.problems import Flags, Floats
from calibrl.shop.record import SHUT_WEEKS, Counts, Record, in_a_row

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
    middle = np.where(count[4] >= 5, np.median(same[:5], 0), four)
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
    return np.where(there, np.clip(sums.record.usual[i, np.maximum(then, 0)] / around, 0, 4) * scale, four)


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

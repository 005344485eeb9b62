"""The past, replayed: what each way of ordering would have thrown away, missed and cost.

Every evening the tool sees what it would have seen then, by the code that orders tonight (`History.at`), places the
orders that were due, and the next day's sales are served from the shelf that resulted. Shelves are empty some days
before the count begins, but for what the shop's own earlier deliveries left on them if these are replayed. All policies
meet the same demand. An item takes part from the evening on which the file first knows of it, by a sale or a plan, and
is not ordered while it is off the list.

On a day that sold out nobody knows how many more would have been sold. Counting none would make the shop's own
deliveries look perfect, since no sale they missed is on record; so all policies meet the demand that the record is
bridged with (`record._at_least`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from calibrl.algorithm import Forecaster
from calibrl.errors import CalibrlError
from calibrl.inventory.problems import Flags, Floats
from calibrl.inventory.store import one_day
from calibrl.shop.demand import BoostedDemand, DemandModel, calibrate, paths, ranks, train
from calibrl.shop.features import MovingSums, moving_sums
from calibrl.shop.files import Batch, Item
from calibrl.shop.orders import Decision, Shop, Situation, best_order, decide_all, leads_needed, order_up_to, schedule
from calibrl.shop.record import AHEAD, History, Record, make_record

Counts = NDArray[np.int64]

WARM_UP = 14
"""Days before the count, in which shelves fill."""

TRAIN_EVERY, CALIBRATE_EVERY = 28, 7
"""Days between two lessons of the forecaster, and of its map."""

LEAST_HISTORY = 56
"""Days that must be known before the replay begins."""

FACTOR = 1.5
"""The heuristic of the paper: stock up to this times the expected demand."""

PATHS = 200

AS_DELIVERED = "as delivered"
STAND_IN = "last week's sales (stand-in)"
HEURISTIC = f"{FACTOR:g} x expected demand"
UNCALIBRATED = "planned, uncalibrated"
CALIBRATED = "planned, calibrated"

LEAST_PARTS = 4
"""Weeks to resample: fewer know too little of how weeks differ."""


@dataclass(frozen=True)
class DailyUnits:
    """What a policy did on each of n days, for s item-stores: (s, n) units each."""

    sold: Counts
    wasted: Counts
    unmet: Counts


@dataclass(frozen=True)
class Backtest:
    """The outcomes of all policies over the days that count.

    rules: s; dates: (n,); outcome: by policy; sold_out: item-days whose demand is an estimate, and estimated: the
    units by which it exceeds what was sold on them; held: by policy, the share of open days with known demand on
    which tomorrow's demand fell inside its 90 % interval.
    """

    rules: tuple[Item, ...]
    dates: NDArray[np.datetime64]
    outcome: dict[str, DailyUnits]
    sold_out: int = 0
    estimated: int = 0
    held: dict[str, float] = field(default_factory=dict)

    def money(self, policy: str) -> Floats:
        """(s, n): the cost of waste and lost sales."""
        of = self.outcome[policy]
        waste = np.array([item.cost_of_waste for item in self.rules])[:, None]
        lost = np.array([item.cost_of_lost_sale for item in self.rules])[:, None]
        return waste * of.wasted + lost * of.unmet

    def saving(self, policy: str, than: str, *, seed: int = 0) -> tuple[float, float, float]:
        """How much less a policy cost than another, with a 95 % bootstrap interval (see `resampled_by`)."""
        less = self.money(than) - self.money(policy)
        parts = less.sum(1) if self.resampled_by == "item-stores" else _by_week(less.sum(0))
        rng = np.random.default_rng(seed)
        drawn = rng.choice(parts, (2000, len(parts))).sum(1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(less.sum()), float(low), float(high)

    @property
    def resampled_by(self) -> str:
        """What the bootstrap draws: item-stores where there are ten or more, else weeks."""
        return "item-stores" if len(self.rules) >= 10 else "weeks"

    @property
    def parts(self) -> int:
        """How many of these there are. From fewer than `LEAST_PARTS` the interval is not worth its name."""
        return len(self.rules) if self.resampled_by == "item-stores" else -(-len(self.dates) // 7)


def _by_week(daily: Floats) -> Floats:
    weeks = -(-len(daily) // 7)
    return np.array([daily[7 * k : 7 * k + 7].sum() for k in range(weeks)])


def run_backtest(
    shop: Shop,
    days: int,
    *,
    delivered: Floats | None = None,
    seed: int = 0,
    workers: int = 1,
    make: Callable[[], Forecaster] = BoostedDemand,
    on_day: Callable[[str], None] = lambda _: None,
) -> Backtest:
    """Replay the last `days` days with forecasters from `make`.

    delivered: (s, t) what was really put on the shelf, if that is known.
    """
    history = shop.history
    start = history.today - days - WARM_UP
    if start < LEAST_HISTORY:
        known = history.today + 1
        raise CalibrlError(
            f"a backtest of {days} days needs {days + WARM_UP + LEAST_HISTORY} days of sales, the file has {known}; "
            f"try --backtest {max(7, known - WARM_UP - LEAST_HISTORY - 1)}d"
        )
    if delivered is not None:
        _refuse_uncovered(delivered, history, days)
    present = STAND_IN if delivered is None else AS_DELIVERED
    longest = history.today + AHEAD
    worlds = {
        name: _World(shop.rules, seed, longest=longest) for name in (present, HEURISTIC, UNCALIBRATED, CALIBRATED)
    }
    teacher = _Teacher(shop.rules, seed, make)
    customers = _customers(shop)
    if delivered is not None:
        oldest = start - max(item.shelf_life for item in shop.rules)
        for day in range(max(1, oldest), start + 1):
            worlds[AS_DELIVERED].lived(delivered, customers, day, listed=replace(history, today=day - 1).listed)
    inside: dict[str, list[Floats]] = {UNCALIBRATED: [], CALIBRATED: []}
    for evening in range(start, history.today):
        now = history.at(evening)
        on_day(str(now.date))
        record = make_record(now)
        of = moving_sums(record)
        when = {item: schedule(item, now.date) for item in set(shop.rules)}
        tonight = np.array([when[item].day[0] == item.lead_days - 1 for item in shop.rules])
        due = np.flatnonzero(tonight & now.listed & ~now.dormant)
        demand = teacher.lesson(of)
        for name, days_held in inside.items():
            drawn = teacher.paths(demand, of, calibrated=name == CALIBRATED)
            days_held.append(_inside(drawn[..., 0], history.sales.demand[:, evening + 1]))
        for name, world in worlds.items():
            if delivered is not None and name == AS_DELIVERED:
                world.lived(delivered, customers, evening + 1, listed=now.listed)
                continue
            if len(due):
                decide, calibrated = _DECIDE[name]
                drawn = teacher.paths(demand, of, calibrated=calibrated) if name != STAND_IN else _last_week(record)
                planned = decide_all(
                    [shop.rules[k] for k in due],
                    [when[shop.rules[k]] for k in due],
                    drawn[due],
                    [world.batches(int(k)) for k in due],
                    workers=workers,
                    decide=decide,
                )
                world.order(due, [found.units for _, found in planned])
            world.live(np.where(now.listed, customers[:, evening + 1], 0.0))
    counted = slice(history.today + 1 - days, history.today + 1)
    blind = history.sales.censored[:, counted]
    return Backtest(
        rules=shop.rules,
        dates=history.sales.dates[counted],
        outcome={name: world.outcome(days) for name, world in worlds.items()},
        sold_out=int(blind.sum()),
        held={name: float(np.nanmean(part[-days:])) for name, part in inside.items()},
        estimated=round(float((customers - history.sales.units)[:, counted][blind].sum())),
    )


def _refuse_uncovered(delivered: Floats, history: History, days: int) -> None:
    """An error if a week or more at either end of the replay has no delivery: the shop would look empty then."""
    dates = history.sales.dates
    first, last = history.today + 1 - days, history.today
    known = np.flatnonzero(np.nansum(delivered[:, : last + 1], 0) > 0)
    wanted = f"the backtest replays {dates[first]} to {dates[last]}"
    if not len(known) or known[-1] < first:
        raise CalibrlError(f"{wanted}, but no delivery is known of these days; add them, or leave --deliveries out")
    if known[0] >= first + 7 or known[-1] <= last - 7:
        rest = last + 1 - known[0]
        cure = f"try --backtest {rest}d" if rest >= 7 else "leave --deliveries out"
        cure = cure if known[-1] > last - 7 else f"try --date {dates[known[-1]]}"
        there = f"{dates[known[0]]} to {dates[known[-1]]}"
        raise CalibrlError(f"{wanted}, but deliveries are known from {there} only; add the others, or {cure}")


def _inside(drawn: Floats, demand: Floats) -> Floats:
    """(s,): 1 where demand (s,) fell inside the 90 % interval of paths (s, m), 0 where not, NaN on closed days."""
    low, high = np.quantile(drawn, [0.05, 0.95], axis=1)
    return np.where(np.isnan(demand) | (high == 0), np.nan, (low <= demand) & (demand <= high))


def _customers(shop: Shop) -> Floats:
    """(s, t): units asked for, in whole units; none on days without a record."""
    sales = shop.history.sales
    estimate = np.maximum(sales.units, make_record(shop.history).usual)
    asked = np.where(sales.censored, estimate, sales.units)
    return np.rint(np.where(np.isnan(asked) | sales.closed, 0.0, asked))


def _stock_up(factor: float) -> Callable[[Situation], Decision]:
    """Order up to a factor times the mean demand between two deliveries."""

    def decide(at: Situation) -> Decision:
        expected = float(at.paths[:, at.when.cover.start : at.when.cover.stop].sum(1).mean())
        return Decision(order_up_to(at, factor * expected), 0.0, 0.0, 0.0, 0.0, 0.0)

    return decide


_DECIDE: dict[str, tuple[Callable[[Situation], Decision], bool]] = {
    STAND_IN: (_stock_up(1.0), False),
    HEURISTIC: (_stock_up(FACTOR), False),
    UNCALIBRATED: (best_order, False),
    CALIBRATED: (best_order, True),
}
"""How each policy decides, and whether it looks at calibrated paths."""


def _last_week(record: Record) -> Floats:
    """(s, 1, AHEAD): the latest known same weekday's sales, as the only path."""
    now = record.today
    ahead = np.arange(record.usual.shape[1] - now - 1)
    known = np.nan_to_num(record.units[:, now - 6 + ahead % 7])
    return known[:, None, :]


@dataclass
class _Teacher:
    """Trains every month, calibrates every week, and draws an evening's paths once for all policies."""

    rules: tuple[Item, ...]
    seed: int
    make: Callable[[], Forecaster]
    _demand: DemandModel | None = None
    _trained: int = 0
    _drawn: dict[bool, Floats] = field(default_factory=dict)

    def lesson(self, of: MovingSums) -> DemandModel:
        """The forecaster and its map as of the record's evening."""
        self._drawn, record = {}, of.record
        rng = np.random.default_rng([self.seed, record.today])
        if self._demand is None or record.today - self._trained >= TRAIN_EVERY:
            leads = max(leads_needed(self.rules, record.history.date + ahead) for ahead in range(7))
            self._demand, self._trained = train(of, leads=leads, rng=rng, make=self.make), record.today
        elif (record.today - self._trained) % CALIBRATE_EVERY == 0:
            now = self._demand
            self._demand = calibrate(now.forecaster, of, since=now.taught, leads=now.leads, rng=rng)
        return self._demand

    def paths(self, demand: DemandModel, of: MovingSums, *, calibrated: bool) -> Floats:
        """(s, m, leads) demand paths of the evening."""
        if calibrated not in self._drawn:
            # The same luck for both.
            rank = ranks(demand.rho, PATHS, np.random.default_rng([self.seed, of.record.today, 1]))
            new = of.record.history.days_on_record == 0
            self._drawn[calibrated] = paths(demand.forecast(of, calibrated=calibrated), rank, new=new)
        return self._drawn[calibrated]


class _World:
    """The shelves of one policy: whole units by days of life left, and what is under way."""

    def __init__(self, rules: tuple[Item, ...], seed: int, *, longest: int) -> None:
        """longest: days of life beyond which nobody will see a unit expire."""
        self.rules = rules
        self.rngs = [np.random.default_rng([seed, k]) for k in range(len(rules))]
        self.stock = [np.zeros(min(item.shelf_life, longest), dtype=np.int64) for item in rules]
        self.coming: list[list[int]] = [[0] * (item.lead_days + 1) for item in rules]
        self.days: list[tuple[list[int], list[int], list[int]]] = []

    def batches(self, k: int) -> tuple[Batch, ...]:
        """What an item-store has and expects, as the planner reads it."""
        here = [Batch(float(units), 0, left + 1) for left, units in enumerate(self.stock[k]) if units]
        life = len(self.stock[k])
        ahead = [Batch(float(units), day + 1, day + life) for day, units in enumerate(self.coming[k]) if units]
        return (*here, *ahead)

    def order(self, which: NDArray[np.int64], units: list[int]) -> None:
        """Place orders tonight; they come after each item's lead time."""
        for k, amount in zip(which, units, strict=True):
            self.coming[k][self.rules[k].lead_days - 1] += amount

    def lived(self, delivered: Floats, customers: Floats, day: int, *, listed: Flags) -> None:
        """A day as it was: deliveries and customers (s, t) of the item-stores that were sold then."""
        for k, amount in enumerate(np.where(listed, np.rint(delivered[:, day]), 0).astype(int).tolist()):
            self.coming[k][0] += amount
        self.live(np.where(listed, customers[:, day], 0.0))

    def live(self, customers: Floats) -> None:
        """A day: deliveries, customers (s,), waste. On a day without customers food still ages."""
        sold, wasted, unmet = [], [], []
        for k, wanted in enumerate(customers):
            day = one_day(self.stock[k], wanted, self.coming[k][0], rng=self.rngs[k])
            self.stock[k] = day.stock
            self.coming[k] = [*self.coming[k][1:], 0]
            sold.append(day.sold)
            wasted.append(day.wasted)
            unmet.append(day.unmet)
        self.days.append((sold, wasted, unmet))

    def outcome(self, days: int) -> DailyUnits:
        """What happened on the last `days` days."""
        sold, wasted, unmet = (np.array(part, dtype=np.int64).T for part in zip(*self.days[-days:], strict=True))
        return DailyUnits(sold, wasted, unmet)

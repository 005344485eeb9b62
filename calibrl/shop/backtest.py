"""What each way of ordering would have thrown away, missed and cost over the last weeks.

Every evening the tool sees what it would have seen then, by the code that orders tonight (`History.at`), places the
orders that were due, and the next day's sales are served from the shelf that resulted. Shelves are empty some days
before the count begins, but for what the shop's own earlier deliveries left on them if these are given. All policies
meet the same demand. An item takes part from the evening on which the file first knows of it, by a sale or a plan, and
is not ordered while it is off the list.

On a day that sold out nobody knows how many more would have been sold. Counting none would make the shop's own
deliveries look perfect, since no sale they missed is on record; so all policies meet the demand that the record is
bridged with (`record._at_least`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.special import stdtrit

from calibrl.algorithm import Forecaster
from calibrl.errors import CalibrlError
from calibrl.inventory.files import Item
from calibrl.inventory.history import AHEAD, History, Key
from calibrl.inventory.problems import Flags, Floats, one_day
from calibrl.runs.workers import single_threaded
from calibrl.shop.demand import DemandModel, boosted, calibrate, paths, ranks, train
from calibrl.shop.features import MovingSums, Record, make_record, moving_sums
from calibrl.shop.files import Batch, Shop
from calibrl.shop.orders import (
    Decision,
    Schedule,
    Situation,
    best_order,
    decide_all,
    intervals,
    lay_out,
    order_up_to,
    schedule,
)

Counts = NDArray[np.int64]

WARM_UP = 14
"""Days before the count, in which shelves fill."""

TRAIN_EVERY, CALIBRATE_EVERY = 28, 7
"""Days after which the forecaster is trained anew, a short record's sooner, and its map."""

LEAST_HISTORY = 56
"""Days that must be known before the backtest begins."""

FACTOR = 1.5
"""The heuristic of the paper: stock up to this times the expected demand."""

PATHS = 120

TUNING = 42
"""Days before the backtest on which it is chosen, or as many as there are."""

AS_DELIVERED = "as delivered"
STAND_IN = "last week's sales (stand-in)"
HEURISTIC = f"{FACTOR:g} x expected demand"
TUNED = "tuned factor x weekday mean"
EMPIRICAL = "tuned quantile of 8 weeks"
UNCALIBRATED = "planned, uncalibrated"
CALIBRATED = "planned, calibrated"

PLANNED = (UNCALIBRATED, CALIBRATED)

NUMBERS = {TUNED: (0.85, 1.0, 1.1, 1.2, 1.3, 1.45, 1.7, 2.0), EMPIRICAL: (0.3, 0.5, 0.65, 0.8, 0.9, 1.0)}
"""What a simple rule's one number, a factor or a quantile, is chosen from."""

WAVES = 4
"""Of the weeks' savings that say how far off their sum may be: fewer allow for weeks that are more alike, and more make
a narrower interval."""

LEAST_WEEKS = 4
"""Of which the interval of a saving was simulated: fewer know too little of how weeks differ."""


@dataclass(frozen=True)
class DailyUnits:
    """Units that a policy sold, wasted and could not sell on each of n days, for s item-stores: (s, n) each."""

    sold: Counts
    wasted: Counts
    unmet: Counts


@dataclass(frozen=True)
class Backtest:
    """What all policies did over the days that count; made by `run_backtest`.

    Parameters
    ----------
    rules : tuple of s Item
        What each item-store's waste and lost sales cost.
    dates : array (n,) of datetime64[D]
        The days that count.
    units : dict of str to DailyUnits
        By policy, (s, n) each.
    sold_out : int
        Item-days whose demand is an estimate.
    estimated : int
        Units by which that exceeds what was sold on them.
    held : dict of str to float
        By policy, the share of open days with known demand on which tomorrow's fell inside its 90 % interval.
    """

    rules: tuple[Item, ...]
    dates: NDArray[np.datetime64]
    units: dict[str, DailyUnits]
    sold_out: int = 0
    estimated: int = 0
    held: dict[str, float] = field(default_factory=dict)

    def money(self, policy: str) -> Floats:
        """(s, n): the cost of waste and lost sales."""
        of = self.units[policy]
        waste = np.array([item.cost_of_waste for item in self.rules])[:, None]
        lost = np.array([item.cost_of_lost_sale for item in self.rules])[:, None]
        return waste * of.wasted + lost * of.unmet

    def saving(self, policy: str, than: str) -> tuple[float, float, float]:
        """How much less a policy cost than another, and a 95 % interval of it, from how much the weeks differ.

        Items of one shop have good and bad days together, so that it is weeks that can be counted on to differ by
        chance. Both ends are NaN where there are fewer than `LEAST_WEEKS`.
        """
        daily = (self.money(than) - self.money(policy)).sum(0)
        weeks = daily[len(daily) % 7 :].reshape(-1, 7).sum(1)
        off = margin(weeks) * np.sqrt(len(daily) / 7 / len(weeks)) if len(weeks) >= LEAST_WEEKS else np.nan
        return float(daily.sum()), float(daily.sum() - off), float(daily.sum() + off)

    @property
    def best_rule(self) -> str:
        """The cheapest of the policies that do not plan."""
        return min((name for name in self.units if name not in PLANNED), key=lambda name: float(self.money(name).sum()))


def margin(weeks: Floats) -> Floats:
    """(…): half the width of a 95 % interval of the sum of weeks (…, n).

    Weeks that follow one another may be alike, and then differ less than their sum does by chance. So only their
    slowest waves are looked at, with Student's law of so many.
    """
    slow = dct(weeks, norm="ortho")[..., 1 : 1 + WAVES]
    return np.asarray(stdtrit(slow.shape[-1], 0.975) * np.sqrt((slow**2).mean(-1) * weeks.shape[-1]))


def backtest_frame(backtest: Backtest, keys: Sequence[Key], *, stores: bool) -> pl.DataFrame:
    """A backtest as a table.

    Parameters
    ----------
    backtest : Backtest
        From `run_backtest`.
    keys : sequence of s (item, store)
        `shop.history.keys`.
    stores : bool
        Whether to name the stores.

    Returns
    -------
    polars DataFrame
        One row per policy and item-store: units and money over all days.
    """
    rows = []
    for name, found in backtest.units.items():
        money = backtest.money(name).sum(1)
        for k, (item, store) in enumerate(keys):
            sold, unmet = int(found.sold[k].sum()), int(found.unmet[k].sum())
            rows.append(
                {
                    "policy": name,
                    "item": item,
                    "store": store,
                    "from": backtest.dates[0].item(),
                    "to": backtest.dates[-1].item(),
                    "demand": sold + unmet,
                    "sold": sold,
                    "wasted": int(found.wasted[k].sum()),
                    "lost_sales": unmet,
                    "fill_rate": round(sold / (sold + unmet), 4) if sold + unmet else None,
                    "cost": round(float(money[k]), 2),
                }
            )
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame if stores else frame.drop("store")


@single_threaded()
def run_backtest(
    shop: Shop,
    days: int,
    *,
    delivered: Floats | None = None,
    seed: int = 0,
    workers: int = 1,
    make_forecaster: Callable[[], Forecaster] = boosted,
    on_day: Callable[[str], None] = lambda _: None,
) -> Backtest:
    """Order on each of the last evenings with what was known then, and count what that would have cost.

    Parameters
    ----------
    shop : Shop
        From `read_shop`.
    days : int
        How many days count, up to today. Shelves fill on the two weeks before.
    delivered : array (s, t), optional
        Units that were really put on the shelf before each day of the history opened (`read_deliveries`). Without it
        a stand-in orders what last week sold.
    seed : int
        Of demand paths, and of which unit a customer takes.
    workers : int
        How many item-stores are decided about at once.
    make_forecaster : function of no arguments
        Builds the forecaster, which is trained every four weeks and calibrated every week.
    on_day : function of a date
        Called with each evening, to show how far it is.

    Returns
    -------
    Backtest
        Units and money by policy, item-store and day.
    """
    history = shop.history
    start = history.today - days - WARM_UP
    if start < LEAST_HISTORY:
        known = history.today + 1
        raise CalibrlError(
            f"a backtest of {days} days needs {days + WARM_UP + LEAST_HISTORY} days of sales, the file has {known}; "
            f"try --backtest {max(7, known - WARM_UP - LEAST_HISTORY - 1)}d"
        )
    present = STAND_IN if delivered is None else AS_DELIVERED
    shelves = {
        name: _Shelves(shop.rules, seed, longest=history.today + AHEAD)
        for name in (present, HEURISTIC, TUNED, EMPIRICAL, UNCALIBRATED, CALIBRATED)
    }
    forecasts = _Forecasts(shop.rules, seed, make_forecaster)
    customers = _customers(shop)
    tuned = _tuned(shop, start, customers, seed)
    if delivered is not None:
        _refuse_uncovered(delivered, history, days)
        oldest = start - max(item.shelf_life for item in shop.rules)
        for day in range(max(1, oldest), start + 1):
            listed = replace(history, today=day - 1).listed
            shelves[AS_DELIVERED].receive(delivered[:, day], listed=listed)
            shelves[AS_DELIVERED].serve(np.where(listed, customers[:, day], 0.0))
    inside: dict[str, list[Floats]] = {UNCALIBRATED: [], CALIBRATED: []}
    for evening in range(start, history.today):
        now, tomorrow = history.at(evening), evening + 1
        on_day(str(now.date))
        record = make_record(now)
        when = {item: schedule(item, now.date) for item in set(shop.rules)}
        due = _due(shop.rules, when, now.listed & ~now.discontinued)
        forecasts.see(moving_sums(record))
        for name, share in inside.items():
            drawn = forecasts.paths(calibrated=name == CALIBRATED)
            share.append(_inside(drawn[..., 0], history.sales.demand[:, tomorrow]))
        for name, shelf in shelves.items():
            if delivered is not None and name == AS_DELIVERED:
                shelf.receive(delivered[:, tomorrow], listed=now.listed)
            elif len(due):
                given = [shop.rules[k] for k in due], [when[shop.rules[k]] for k in due]
                batches = [shelf.batches(int(k)) for k in due]
                if name in tuned:
                    level, expected = _levels(name, given[1], _past_weeks(record.usual[due], record.today))
                    chosen = level[np.arange(len(due)), [tuned[name][item] for item in given[0]]]
                    units = _ruled(*given, expected, chosen, batches)
                else:
                    decide, calibrated = _DECIDE[name]
                    drawn = _last_week(record) if name == STAND_IN else forecasts.paths(calibrated=calibrated)
                    decided = decide_all(*given, drawn[due], batches, workers=workers, decide=decide)
                    units = [found.units for _, found in decided]
                shelf.order(due, units)
            shelf.serve(np.where(now.listed, customers[:, tomorrow], 0.0))
    counted = slice(history.today + 1 - days, history.today + 1)
    sold_out = history.sales.censored[:, counted]
    return Backtest(
        rules=shop.rules,
        dates=history.sales.dates[counted],
        units={name: shelf.units(days) for name, shelf in shelves.items()},
        sold_out=int(sold_out.sum()),
        held={name: float(np.nanmean(share[-days:])) for name, share in inside.items()},
        estimated=round(float((customers - history.sales.units)[:, counted][sold_out].sum())),
    )


def _due(rules: Sequence[Item], when: dict[Item, Schedule], ready: Flags) -> NDArray[np.int64]:
    """Which item-stores can only be ordered tonight for their next delivery, of those that are `ready` (s,)."""
    return np.flatnonzero(np.array([when[item].day[0] == item.lead_days - 1 for item in rules]) & ready)


def _refuse_uncovered(delivered: Floats, history: History, days: int) -> None:
    """An error if a week or more at either end of the backtest has no delivery: the shop would look empty then."""
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
    low, high = intervals(drawn, 0.9)
    return np.where(np.isnan(demand) | (high == 0), np.nan, (low <= demand) & (demand <= high))


def _customers(shop: Shop) -> Floats:
    """(s, t): units asked for, in whole units; none on days without a record."""
    sales = shop.history.sales
    asked = np.where(sales.censored, np.maximum(sales.units, make_record(shop.history).usual), sales.units)
    return np.rint(np.where(np.isnan(asked) | sales.closed, 0.0, asked))


def _stock_up(factor: float) -> Callable[[Situation], Decision]:
    """Order up to a factor times the mean demand between two deliveries."""

    def decide(at: Situation) -> Decision:
        return order_up_to(at, factor * float(at.paths[:, at.when.cover.start : at.when.cover.stop].sum(1).mean()))

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
    ahead = np.arange(record.usual.shape[1] - record.today - 1)
    return np.nan_to_num(record.units[:, record.today - 6 + ahead % 7])[:, None, :]


# Simple rules, as a shop would tune them.


def _past_weeks(usual: Floats, today: int) -> Floats:
    """(s, 8, AHEAD): the last eight weeks, each as a path of the days to come."""
    return usual[:, np.maximum(today - 6 + np.arange(AHEAD) % 7 - 7 * np.arange(8)[:, None], 0)]


def _levels(name: str, when: Sequence[Schedule], drawn: Floats) -> tuple[Floats, Floats]:
    """(s, c): levels up to which a simple rule may order, by its number; and (s, 1, AHEAD) the days it expects.

    They are factors of the mean of four weeks, or quantiles of eight. drawn: (s, 8, AHEAD) the weeks, newest first.
    """
    weeks = drawn[:, :4] if name == TUNED else drawn
    needed = [some[:, due.cover.start : due.cover.stop].sum(1) for some, due in zip(weeks, when, strict=True)]
    numbers = np.array(NUMBERS[name])
    level = [numbers * one.mean() if name == TUNED else np.quantile(one, numbers) for one in needed]
    return np.array(level).reshape(len(needed), -1), weeks.mean(1, keepdims=True)


def _ruled(
    rules: Sequence[Item],
    when: Sequence[Schedule],
    expected: Floats,
    level: Floats,
    batches: Sequence[tuple[Batch, ...]],
) -> list[int]:
    """What a simple rule orders: up to the level (s,) of each item-store."""
    given = zip(rules, when, expected, level.tolist(), batches, strict=True)
    return [order_up_to(lay_out(item, due, path, shelf), to).units for item, due, path, to, shelf in given]


def _tuned(shop: Shop, start: int, customers: Floats, seed: int) -> dict[str, dict[Item, int]]:
    """Which number of each simple rule would have cost least on the weeks before, by item rules."""
    first = max(LEAST_HISTORY // 2, start - TUNING)
    record = make_record(shop.history.at(start))
    found: dict[str, dict[Item, int]] = {}
    for name, numbers in NUMBERS.items():
        shelves = [_Shelves(shop.rules, seed, longest=start + AHEAD) for _ in numbers]
        for evening in range(first, start):
            when = {item: schedule(item, record.history.sales.dates[evening]) for item in set(shop.rules)}
            due = _due(shop.rules, when, record.begun[:, evening])
            given = [shop.rules[k] for k in due], [when[shop.rules[k]] for k in due]
            level, expected = _levels(name, given[1], _past_weeks(record.usual[due], evening))
            for shelf, to in zip(shelves, level.T, strict=False):
                shelf.order(due, _ruled(*given, expected, to, [shelf.batches(int(k)) for k in due]))
                shelf.serve(np.where(record.begun[:, evening], customers[:, evening + 1], 0.0))
        days = max(1, start - first - WARM_UP // 2)
        tried = [Backtest(shop.rules, record.history.sales.dates[:days], {name: one.units(days)}) for one in shelves]
        money = np.stack([one.money(name).sum(1) for one in tried])
        found[name] = {
            item: int(np.argmin(money[:, [one == item for one in shop.rules]].sum(1))) for item in set(shop.rules)
        }
    return found


def train_after(known: int) -> int:
    """Days after which a forecaster trained on so many is trained anew: an eighth of them, one to four weeks."""
    return min(max(known // 8, CALIBRATE_EVERY), TRAIN_EVERY)


class _Forecasts:
    """Trains every four weeks, calibrates every week, and draws an evening's paths once for all policies."""

    def __init__(self, rules: tuple[Item, ...], seed: int, make_forecaster: Callable[[], Forecaster]) -> None:
        self.rules, self.seed, self.make_forecaster = rules, seed, make_forecaster
        self._model: DemandModel | None = None
        self._trained = 0

    def see(self, sums: MovingSums) -> None:
        """Learn what is due on the record's evening."""
        today, date = sums.record.today, sums.record.history.date
        self._sums, self._drawn = sums, dict[bool, Floats]()
        rng = np.random.default_rng([self.seed, today])
        if self._model is None or today - self._trained >= train_after(self._trained):
            leads = max(schedule(item, date + ahead).horizon for item in set(self.rules) for ahead in range(7))
            self._model = train(sums, leads=leads, rng=rng, make_forecaster=self.make_forecaster)
            self._trained = today
        elif (today - self._trained) % CALIBRATE_EVERY == 0:
            self._model = calibrate(self._model, sums, rng=rng)

    def paths(self, *, calibrated: bool) -> Floats:
        """(s, m, leads) demand paths of the evening, from the same random numbers calibrated and not."""
        assert self._model is not None
        if calibrated not in self._drawn:
            record = self._sums.record
            rank = ranks(self._model.rho, PATHS, np.random.default_rng([self.seed, record.today, 1]))
            forecast = self._model.forecast(self._sums, calibrated=calibrated)
            self._drawn[calibrated] = paths(forecast, rank, new=record.history.days_on_record == 0)
        return self._drawn[calibrated]


class _Shelves:
    """The shelves of one policy: whole units by days of life left, and what is under way."""

    def __init__(self, rules: tuple[Item, ...], seed: int, *, longest: int) -> None:
        """longest: days of life beyond which nobody will see a unit expire."""
        self.rules = rules
        self.rngs = [np.random.default_rng([seed, k]) for k in range(len(rules))]
        self.stock = [np.zeros(min(item.shelf_life, longest), dtype=np.int64) for item in rules]
        self.coming: list[list[int]] = [[0] * (item.lead_days + 1) for item in rules]
        self.days: list[tuple[list[int], list[int], list[int]]] = []

    def batches(self, k: int) -> tuple[Batch, ...]:
        """What an item-store has and expects, as decisions see it."""
        here = [Batch(float(units), 0, left + 1) for left, units in enumerate(self.stock[k]) if units]
        life = len(self.stock[k])
        ahead = [Batch(float(units), day + 1, day + life) for day, units in enumerate(self.coming[k]) if units]
        return (*here, *ahead)

    def order(self, which: NDArray[np.int64], units: list[int]) -> None:
        """Place orders tonight; they come after each item's lead time."""
        for k, amount in zip(which, units, strict=True):
            self.coming[k][self.rules[k].lead_days - 1] += amount

    def receive(self, delivered: Floats, *, listed: Flags) -> None:
        """What really came before the next day opened (s,), of the item-stores that were sold then."""
        for k, amount in enumerate(np.where(listed, np.rint(delivered), 0).astype(int).tolist()):
            self.coming[k][0] += amount

    def serve(self, customers: Floats) -> None:
        """A day: deliveries, customers (s,), waste. On a day without customers food still ages."""
        served = [one_day(self.stock[k], customers[k], self.coming[k][0], rng=rng) for k, rng in enumerate(self.rngs)]
        self.stock = [day.stock for day in served]
        self.coming = [[*coming[1:], 0] for coming in self.coming]
        self.days.append(([day.sold for day in served], [day.wasted for day in served], [day.unmet for day in served]))

    def units(self, days: int) -> DailyUnits:
        """What happened on the last `days` days."""
        return DailyUnits(*(np.array(part, dtype=np.int64).T for part in zip(*self.days[-days:], strict=True)))

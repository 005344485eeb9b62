"""Tonight's orders: files read, demand learnt and calibrated, deliveries to come, an order of least cost for each item.

**Deliveries.** One that would have to last for closed days only is left out: on a Saturday evening a shop that closes
on Sundays orders for Monday. One that comes on a closed day and has to last for open ones after it is a delivery.

**The order of least expected cost** of waste, lost sales and holding is closed loop: later deliveries follow an
order-up-to level, so that tonight's order neither has to carry the weeks after it nor is judged as if nobody would ever
order again. What is left when the horizon ends is counted by what should become of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch.distributions import Distribution

from calibrl.inventory.files import Item
from calibrl.inventory.history import AHEAD, Day, Key
from calibrl.inventory.problems import Flags, Floats
from calibrl.kernels import stock as kernel
from calibrl.runs.experiment import Job
from calibrl.runs.workers import run_jobs, single_threaded
from calibrl.shop.demand import paths, ranks, train
from calibrl.shop.features import Record, make_record, moving_sums, shut_days
from calibrl.shop.files import Batch, Shop

Ints = NDArray[np.int64]

BEYOND = 3
"""Days to look ahead after a delivery has expired, so that what follows it is not cut short."""

SEEN_LIFE = 14
"""Days after a delivery to look ahead: what keeps longer is held back by the cost of holding, not by waste."""

SERVICE = np.array([0.2, 0.35, 0.5, 0.6, 0.7, 0.77, 0.83, 0.88, 0.92, 0.95, 0.975, 0.99, 1.0])
"""Quantiles of what a delivery has to be enough for that later levels are chosen from."""

HOLDING = 0.002
"""Cost of keeping a unit overnight, as a share of the cost of wasting it: for what would keep for ever."""

PATHS = 300
"""Demand paths per item."""

FAN = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of each day's demand: the median, and the ends of the 50 and 90 % intervals."""

THREADS = "threads"
"""Decide in this process. The kernel lets go of Python's lock: on one machine that is all it takes."""

PORTION = 500
"""Item-stores that are decided about at a time, or by another process: some seconds of work."""


# Deliveries to come.


@dataclass(frozen=True)
class Schedule:
    """Deliveries to come, in days counted from 0, tomorrow.

    day: (K,) K ≥ 2; decided: (K,) the day at whose close each is ordered, -1 being tonight; horizon: the days to
    look ahead: until the first delivery is eaten up or expired, and the one after it is used.
    """

    day: Ints
    decided: Ints
    horizon: int

    @property
    def cover(self) -> range:
        """The days the first delivery has to last for: up to the one after it."""
        return range(int(self.day[0]), int(self.day[1]))


def schedule(item: Item, today: Day, shut: Flags | None = None) -> Schedule:
    """The deliveries of an item that can still be ordered tonight, and the horizon.

    shut: (AHEAD,) the days, from tomorrow, on which its store is expected to be closed.
    """
    weekday = (today.astype("datetime64[D]").astype(np.int64) + 1 + 3 + np.arange(AHEAD)) % 7
    open_days = np.flatnonzero(np.array(item.delivery_days)[weekday])
    coming = open_days[open_days >= item.lead_days - 1]
    if shut is not None:
        ends = [*coming[1:], AHEAD]
        useful = coming[[not shut[start:end].all() for start, end in zip(coming, ends, strict=True)]]
        # A shop that is closed for weeks on end: its deliveries come as they come.
        coming = useful if len(useful) > 1 else coming
    first, second = int(coming[0]), int(coming[1])
    third = int(coming[2]) if len(coming) > 2 else second + (second - first)
    horizon = min(max(first + min(item.shelf_life, SEEN_LIFE) + BEYOND, third), AHEAD)
    within = coming[coming < horizon]
    return Schedule(day=within, decided=within - item.lead_days, horizon=horizon)


def schedules(rules: Sequence[Item], today: Day, shut: Flags) -> list[Schedule]:
    """The schedules of s item-stores with these rules and closed days (s, AHEAD); many share one."""
    keys = [(item, days.tobytes()) for item, days in zip(rules, shut, strict=True)]
    first = {key: k for k, key in reversed(list(enumerate(keys)))}
    found = {key: schedule(rules[k], today, shut[k]) for key, k in first.items()}
    return [found[key] for key in keys]


# The order of least cost.


@dataclass(frozen=True)
class Decision:
    """How much to order and what to expect of it, in units.

    waste: of this order, thrown away in the end; lost: demand not met between this delivery and the next, and
    out: the chance of any; lost_before, out_before: the same until this delivery comes.
    """

    units: int
    waste: float = 0.0
    lost: float = 0.0
    out: float = 0.0
    lost_before: float = 0.0
    out_before: float = 0.0


@dataclass(frozen=True)
class Situation:
    """One item on one evening: what the kernel is given.

    paths: (m, h) demand; opening: (h+1,); arriving: (h, h+1), or (0, h+1) if nothing is; when: the deliveries.
    """

    item: Item
    when: Schedule
    paths: Floats
    opening: Floats
    arriving: Floats

    @property
    def given(self) -> tuple[Floats, Floats, Floats, kernel.Terms]:
        """The first arguments of the kernel's functions."""
        item, when = self.item, self.when
        terms = kernel.Terms(when.day, when.decided, item.shelf_life, item.pack_size, item.minimum_order)
        return self.paths, self.opening, self.arriving, terms

    @property
    def position(self) -> float:
        """What should be left of today's stock and what is under way when the first delivery comes."""
        paths, opening, arriving, terms = self.given
        room, nothing = np.empty_like(opening), np.zeros(len(terms.day))
        return float(kernel.left_on(terms.day[0], -1, opening, arriving, terms, nothing, paths.mean(0), room))


def lay_out(item: Item, when: Schedule, paths: Floats, batches: tuple[Batch, ...]) -> Situation:
    """The situation of an item, its batches laid out by their last day. paths: (m, leads), leads ≥ the horizon."""
    h = when.horizon
    opening, arriving = np.zeros(h + 1), np.zeros((h, h + 1))
    for batch in batches:
        end = min(batch.last - 1, h)
        if batch.arrives <= 0:
            opening[end] += batch.units
        elif batch.arrives <= h:
            arriving[batch.arrives - 1, end] += batch.units
    # Nothing under way is the rule, and saves the kernel a sum over every day.
    under_way = arriving if arriving.any() else arriving[:0]
    return Situation(item, when, np.ascontiguousarray(paths[:, :h]), opening, under_way)


def best_order(at: Situation) -> Decision:
    """The order of least expected cost."""
    levels = _levels(at)
    price = np.array([at.item.cost_of_lost_sale, at.item.cost_of_waste, HOLDING * at.item.cost_of_waste])
    order, policy = kernel.best_order(*at.given, levels, _surely_enough(at), price)
    return expectation(at, order, levels[policy])


def order_up_to(at: Situation, level: float) -> Decision:
    """The order of a shop that stocks up to a level, with no word on what to expect of it."""
    return Decision(int(kernel.rounded_up(level - at.position, at.item.pack_size, at.item.minimum_order)))


def expectation(at: Situation, order: int, level: Floats) -> Decision:
    """An order of so many units and what to expect of it, when later ones are placed up to level (K,)."""
    seen = kernel.outlook(*at.given, order, level)
    counts = (kernel.ORDER_WASTE, kernel.LOST, kernel.OUT, kernel.LOST_BEFORE, kernel.OUT_BEFORE)
    return Decision(order, *(float(seen[count]) for count in counts))


def _levels(at: Situation) -> Floats:
    """(c, K): none at all, and for each service the quantile of what each delivery has to be enough for.

    That is demand from it to the next, or while it keeps, and what the days before it sell beyond their mean: when it
    is decided, only the mean is known.
    """
    when = at.when
    beyond = at.paths - at.paths.mean(0)
    total = [
        at.paths[:, start : min(end, start + at.item.shelf_life)].sum(1) + beyond[:, decided + 1 : start].sum(1)
        for start, end, decided in zip(when.day, [*when.day[1:], when.horizon], when.decided, strict=True)
    ]
    # Where a pack is too large for what is sold while it keeps, it is best never to order.
    return np.concatenate([np.zeros((1, len(total))), np.quantile(np.stack(total, 1), SERVICE, axis=0)])


def _surely_enough(at: Situation) -> int:
    """Units that no path uses up between tonight and the end of the order's life, or the next delivery."""
    first, second = int(at.when.day[0]), int(at.when.day[1])
    until = min(max(second, first + at.item.shelf_life), at.when.horizon)
    return int(at.paths[:, first:until].sum(1).max()) + at.item.minimum_order + at.item.pack_size


def decide_all(
    rules: Sequence[Item],
    when: Sequence[Schedule],
    drawn: Floats,
    batches: Sequence[tuple[Batch, ...]],
    *,
    workers: int = 1,
    decide: Callable[[Situation], Decision] = best_order,
) -> list[tuple[Situation, Decision]]:
    """The situation of each of s item-stores and what is decided in it. drawn: (s, m, leads) demand paths."""

    def one(k: int) -> tuple[Situation, Decision]:
        at = lay_out(rules[k], when[k], drawn[k], batches[k])
        return at, decide(at)

    if workers == 1:
        return [one(k) for k in range(len(rules))]
    # The kernel lets go of Python's lock: threads are enough.
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(rules)), chunksize=16))


# A shop's orders.


@dataclass(frozen=True)
class _Planned:
    """What is kept of an item-store's demand paths: an `Order` has the rest."""

    decision: Decision
    demand: Floats
    daily: Floats
    fan: Floats
    shut: Flags
    position: float


@dataclass(frozen=True)
class Order(_Planned):
    """One item-store's order and all that is worth knowing about it; made by `make_orders`.

    Parameters
    ----------
    key : (str, str)
        The item and the store.
    item : Item
        The rules the order obeys.
    when : Schedule
        Its deliveries, in days from tomorrow.
    today : datetime64[D]
        The day at whose close it is placed.
    decision : Decision
        How many units, and what to expect of them.
    demand : array (m,)
        Units asked for on the days the order has to last for, path by path.
    daily, fan, shut : arrays (h,), (5, h), (h,)
        Of the next h days: mean demand in units, its quantiles at `FAN`, and whether the day is closed.
    on_hand, expiring, under_way, position : float
        Units on the shelf; those of them that expire before the delivery; those that are still to arrive; and what
        should be left when the delivery comes.
    level, trend : float
        Units sold on an average open day; last week over the four before.
    promotion : bool
        Whether a day the order has to last for is on promotion.
    promoted : int
        Days on promotion that the item has sold on before: what the effect of this one rests on.
    days_on_record, sold_out, idle : int
        Days with known sales; days of the last 28 on which the shelf was empty; days since the last sale.
    mostly_sold_out : bool
        Whether that was on most of its open days.
    most_sold : float
        Units on the best of the 28 days.
    discontinued : bool
        Whether the last sale is so long ago that the item is off the list.
    exceptions : tuple of (datetime64[D], float)
        Days of the last 28 that sold so many times the usual that they are left aside, and how much.
    past : array (3, d)
        What was expected the evening before each of the last d days: the ends of the 90 % interval around the median.
    """

    key: Key
    item: Item
    when: Schedule
    today: Day
    on_hand: float
    expiring: float
    under_way: float
    level: float
    trend: float
    promotion: bool
    promoted: int
    days_on_record: int
    sold_out: int
    mostly_sold_out: bool
    most_sold: float
    idle: int
    discontinued: bool
    exceptions: tuple[tuple[Day, float], ...] = ()
    past: Floats = field(default_factory=lambda: np.zeros((3, 0)))

    @property
    def at_risk(self) -> float:
        """The expected cost of waste and of lost sales, with this order."""
        return self.item.cost_of_waste * self.decision.waste + self.item.cost_of_lost_sale * self.decision.lost

    @property
    def delivery(self) -> Day:
        """The day the order is on the shelf."""
        return self.day(self.when.cover.start)

    @property
    def last_covered(self) -> Day:
        """The last day before the delivery after this one."""
        return self.day(self.when.cover.stop - 1)

    @property
    def order_by(self) -> Day:
        """The last evening on which the order can be placed."""
        return self.delivery - np.timedelta64(self.item.lead_days, "D")

    @property
    def packs(self) -> int:
        """The order in packs."""
        return self.decision.units // self.item.pack_size

    def day(self, ahead: int) -> Day:
        """The date of a day counted from 0, tomorrow."""
        return self.today + np.timedelta64(1 + ahead, "D")

    def interval(self, share: float) -> tuple[float, float]:
        """Units that demand, over the days the order has to last for, lies between with probability `share`."""
        low, high = intervals(self.demand[None], share)
        return float(low[0]), float(high[0])

    def quantile(self, level: float) -> float:
        """Units that demand, over the days the order has to last for, stays below with probability `level`."""
        return float(np.quantile(self.demand, level))


def intervals(drawn: Floats, share: float) -> tuple[Floats, Floats]:
    """The ends (s,), whole units, between which a `share` of each row of drawn (s, m) lies.

    The lower end leaves half the rest below, as far as whole units allow. What it does not use up is left above: a slow
    seller's interval begins at 0, and would otherwise hold more than it says.
    """
    count = drawn.shape[1]
    ordered = np.sort(drawn, 1)
    low = ordered[:, int((1 - share) / 2 * count)]
    below = (drawn < low[:, None]).sum(1)
    high = ordered[np.arange(len(drawn)), np.minimum(below + int(np.ceil(share * count)) - 1, count - 1)]
    return low, high


@single_threaded()  # trees of this size are grown and asked no sooner by two, and three times as late beside other work
def make_orders(
    shop: Shop,
    *,
    seed: int = 0,
    workers: int = 1,
    backend: str = THREADS,
    address: str | None = None,
    n_paths: int = PATHS,
    look_back: int = 0,
) -> list[Order]:
    """Forecast demand and order what costs least, for every item-store that is sold or planned by now.

    Parameters
    ----------
    shop : Shop
        From `read_shop`.
    seed : int
        Of the rows that are trained on, and of the demand paths.
    workers : int
        How many item-stores, or portions of them, are decided about at once. The orders are the same.
    backend : str
        Where: "threads", "processes" or "ray".
    address : str, optional
        Of a running Ray cluster.
    n_paths : int
        Demand paths per item-store.
    look_back : int
        Also forecast so many of the last days as on the evening before, for `Order.past`.

    Returns
    -------
    list of Order
        In the order of the shop's keys.

    Examples
    --------
    >>> from calibrl.shop import read_shop
    >>> shop = read_shop("examples/data/sales.csv", items="examples/data/items.csv")
    >>> order = make_orders(shop, n_paths=100)[0]
    >>> order.key, str(order.delivery)
    (('croissant', 'Market Street'), '2026-05-29')
    >>> bool(order.quantile(0.05) < order.decision.units < order.quantile(0.95))
    True
    """
    rng = np.random.default_rng(seed)
    record = make_record(shop.history)
    sums = moving_sums(record)
    when = schedules(shop.rules, shop.history.date, shut_days(sums, record.today, AHEAD))
    demand = train(sums, leads=max(each.horizon for each in when), rng=rng)
    rank, new = ranks(demand.rho, n_paths, rng), shop.history.days_on_record == 0
    jobs = []
    for start in range(0, len(when), PORTION):
        some = range(start, min(start + PORTION, len(when)))
        cut = slice(some.start, some.stop)
        given = (
            shop.rules[cut],
            when[cut],
            demand.forecast(sums, series=some),
            rank,
            new[cut],
            shop.stock.batches[cut],
        )
        jobs.append(Job(f"item-stores from {start}", _plan, given))
    if backend == THREADS:
        portions = [job.function(*job.arguments, workers=workers) for job in jobs]
    else:
        portions = run_jobs(jobs, backend=backend, workers=workers, address=address)
    planned = [one for portion in portions for one in portion]
    idle, gone, listed = shop.history.idle, shop.history.discontinued, shop.history.listed
    past = demand.look_back(sums, min(look_back, shop.history.today // 2))
    return [
        _order(shop, record, k, when[k], planned[k], int(idle[k]), gone=bool(gone[k]), past=past[k])
        for k in np.flatnonzero(listed).tolist()
    ]


def _plan(
    rules: Sequence[Item],
    when: Sequence[Schedule],
    forecast: Distribution,
    rank: Ints,
    new: Flags,
    batches: Sequence[tuple[Batch, ...]],
    workers: int = 1,
) -> list[_Planned]:
    """Draw paths of a portion of the item-stores and decide: paths are too many to be kept, or sent, all at once."""
    return [
        _Planned(
            decision=decided,
            demand=at.paths[:, at.when.cover.start : at.when.cover.stop].sum(1),
            daily=at.paths.mean(0),
            fan=np.quantile(at.paths, FAN, axis=0),
            shut=at.paths.max(0) == 0,
            position=at.position,
        )
        for at, decided in decide_all(rules, when, paths(forecast, rank, new=new), batches, workers=workers)
    ]


def _order(
    shop: Shop, record: Record, k: int, when: Schedule, planned: _Planned, idle: int, *, gone: bool, past: Floats
) -> Order:
    """Everything about one item-store's order."""
    history, batches = shop.history, shop.stock.batches[k]
    now, cover = record.today, slice(when.cover.start, when.cover.stop)
    shelf = [batch for batch in batches if batch.arrives <= 0]
    promotion = record.event.get("promotion")
    month = slice(max(0, now - 27), now + 1)
    wild = month.start + np.flatnonzero(record.wild[k, month])
    sold_out = int(history.sales.censored[k, month].sum())
    sold = history.sales.units[k, month][~history.sales.closed[k, month]]
    sold = sold[~np.isnan(sold)]
    return Order(
        key=history.keys[k],
        item=shop.rules[k],
        when=when,
        today=history.date,
        **vars(planned) | ({"decision": Decision(0)} if gone else {}),
        on_hand=float(sum(batch.units for batch in shelf)),
        expiring=float(sum(batch.units for batch in shelf if batch.last <= cover.start)),
        under_way=float(sum(batch.units for batch in batches if batch.arrives > 0)),
        level=_open_mean(record, k),
        trend=_trend(record, k),
        promotion=promotion is not None and bool(promotion[k, now + 1 :][cover].any()),
        promoted=0 if promotion is None else int((promotion[k] & ~np.isnan(record.units[k]))[: now + 1].sum()),
        days_on_record=int(history.days_on_record[k]),
        sold_out=sold_out,
        mostly_sold_out=2 * sold_out > len(sold),
        most_sold=float(sold.max(initial=0.0)),
        idle=idle,
        discontinued=gone,
        exceptions=tuple(zip(history.sales.dates[wild], record.units[k, wild].tolist(), strict=True)),
        past=past,
    )


def _open_mean(record: Record, k: int) -> float:
    """What the item sells on an average open day of the last eight weeks, since its record began."""
    days = slice(max(0, record.today - 55), record.today + 1)
    counted = record.begun[k, days] & ~record.history.sales.closed[k, days]
    return float(record.usual[k, days][counted].mean()) if counted.any() else 0.0


def _trend(record: Record, k: int) -> float:
    """The last week over the four before, which must be on record from two weeks before it on."""
    now = record.today
    if now < 20 or not record.begun[k, now - 20]:
        return 1.0
    before = slice(max(0, now - 34), now - 6)
    month = record.usual[k, before][record.begun[k, before]].mean()
    return float(record.usual[k, now - 6 : now + 1].mean() / month) if month > 0 else 1.0

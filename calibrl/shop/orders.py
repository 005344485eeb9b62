"""Tonight's orders: files read, demand learnt and made honest, an order planned for every item-store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrl.runs.workers import Job, run_jobs
from calibrl.shop import features
from calibrl.shop.calendar import Schedule, schedules
from calibrl.shop.honest import learn
from calibrl.shop.items_file import Item, items_named, read_items
from calibrl.shop.joint import paths, ranks
from calibrl.shop.planning import Plan, Situation, plan, situation
from calibrl.shop.record import Record, bridged
from calibrl.shop.sales_file import AHEAD, History, Key, named, read_sales
from calibrl.shop.stock_file import Batch, Stock, read_stock

Floats = NDArray[np.float64]

PATHS = 300
"""Demand paths per item."""

FAN = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of each day's demand: the median, and the ends of the 50 and 90 % intervals."""

THREADS = "threads"
"""Plan in this process. The kernel lets go of Python's lock: on one machine that is all it takes."""

PORTION = 500
"""Item-stores that another process plans at a time: some seconds of work."""


@dataclass(frozen=True)
class Shop:
    """What the shop's files say, checked. Rules and stock are in the order of the history's keys."""

    history: History
    rules: tuple[Item, ...]
    stock: Stock
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Order:
    """One item-store's order and all that is worth knowing about it.

    when: its deliveries, in days from tomorrow; demand: (m,) of the days the order has to last for; daily: (h,) mean
    demand by day; fan: (5, h) its quantiles at `FAN`; shut: (h,) days that are closed; expiring: units that expire
    before the delivery; position: what should be left when it comes; level: sales of an average open day; trend: last
    week over the four before; sold_out: days of the last 28 on which the shelf was empty, blind: whether they are most
    of its open days, and most_sold: what sold on the best of the 28; idle: days since the last sale, off: so many that
    the item is off the list.
    """

    key: Key
    item: Item
    when: Schedule
    today: np.datetime64
    plan: Plan
    demand: Floats
    daily: Floats
    fan: Floats
    shut: NDArray[np.bool_]
    on_hand: float
    expiring: float
    under_way: float
    position: float
    level: float
    trend: float
    promotion: bool
    days_on_record: int
    sold_out: int
    blind: bool
    most_sold: float
    idle: int
    off: bool

    @property
    def delivery(self) -> np.datetime64:
        """The day the order is on the shelf."""
        return self.day(int(self.when.day[0]))

    @property
    def last_covered(self) -> np.datetime64:
        """The last day before the delivery after this one."""
        return self.day(int(self.when.day[1]) - 1)

    @property
    def order_by(self) -> np.datetime64:
        """The last evening on which the order can be placed."""
        return self.delivery - np.timedelta64(self.item.lead_days, "D")

    @property
    def packs(self) -> int:
        """The order in packs."""
        return self.plan.order // self.item.pack_size

    def day(self, ahead: int) -> np.datetime64:
        """The date of a day counted from 0, tomorrow."""
        return self.today + np.timedelta64(1 + ahead, "D")

    def quantile(self, level: float) -> float:
        """Of demand over the days the order has to last for."""
        return float(np.quantile(self.demand, level))


def read_shop(
    sales: str | Path,
    *,
    stock: str | Path | None = None,
    items: str | Path | None = None,
    today: np.datetime64 | None = None,
) -> Shop:
    """Read and check a shop's files; the order is decided at the close of `today`, the last day with sales."""
    new = items_named(items) if items is not None else ()
    history = read_sales(sales, today=today, new=new)
    known = read_items(items, history.keys, sales=str(sales))
    shelf = read_stock(stock, history.keys, today=history.date, sales=str(sales), stores=history.stores)
    return Shop(history, known.rules, shelf, (*history.notes, *known.assumed, *shelf.notes))


def make_orders(
    shop: Shop,
    *,
    seed: int = 0,
    workers: int = 1,
    backend: str = THREADS,
    address: str | None = None,
    paths_per_item: int = PATHS,
) -> list[Order]:
    """An order for every item-store that is sold or planned by now, in the order of the keys.

    Whoever plans them, they are the same.
    """
    rng = np.random.default_rng(seed)
    record = bridged(shop.history)
    of = features.tables(record)
    rules, batches = shop.rules, shop.stock.batches
    when = schedules(rules, shop.history.date, features.shut_days(of, record.today, AHEAD))
    demand = learn(of, leads=max(each.horizon for each in when), rng=rng)
    new = shop.history.days_on_record == 0
    drawn = paths(demand.forecast(of), ranks(demand.rho, paths_per_item, rng), new=new)
    if backend == THREADS:
        plans = plan_all(rules, when, drawn, batches, workers=workers)
    else:
        plans = plan_apart(rules, when, drawn, batches, backend=backend, workers=workers, address=address)
    idle, off, listed = shop.history.idle, shop.history.dormant, shop.history.listed
    return [
        _order(shop, record, k, planned, int(idle[k]), off=bool(off[k])) for k, planned in enumerate(plans) if listed[k]
    ]


def plan_apart(
    rules: Sequence[Item],
    when: Sequence[Schedule],
    drawn: Floats,
    batches: Sequence[tuple[Batch, ...]],
    *,
    backend: str,
    workers: int | None = None,
    address: str | None = None,
) -> list[tuple[Situation, Plan]]:
    """As `plan_all`, in portions of item-stores on other cores or machines."""
    cuts = [slice(start, start + PORTION) for start in range(0, len(rules), PORTION)]
    jobs = [
        Job(f"item-stores from {cut.start}", plan_all, (rules[cut], when[cut], drawn[cut], batches[cut]))
        for cut in cuts
    ]
    found = run_jobs(jobs, backend=backend, workers=workers, address=address)
    return [planned for portion in found for planned in portion]


def plan_all(
    rules: Sequence[Item],
    when: Sequence[Schedule],
    drawn: Floats,
    batches: Sequence[tuple[Batch, ...]],
    *,
    workers: int = 1,
    decide: Callable[[Situation], Plan] = plan,
) -> list[tuple[Situation, Plan]]:
    """The situation and the plan of every item-store. drawn: (s, m, leads) demand paths."""

    def one(k: int) -> tuple[Situation, Plan]:
        at = situation(rules[k], when[k], drawn[k], batches[k])
        return at, decide(at)

    if workers == 1:
        return [one(k) for k in range(len(rules))]
    # The kernel lets go of Python's lock: threads are enough.
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(rules)), chunksize=16))


def _order(shop: Shop, record: Record, k: int, planned: tuple[Situation, Plan], idle: int, *, off: bool) -> Order:
    """Everything about one item-store's order."""
    at, decided = planned
    history, item = shop.history, shop.rules[k]
    first, second = int(at.when.day[0]), int(at.when.day[1])
    now, h = record.today, at.when.horizon
    batches = shop.stock.batches[k]
    shelf = [batch for batch in batches if batch.arrives <= 0]
    promotion = record.event.get("promotion")
    month = slice(max(0, now - 27), now + 1)
    sold_out = int(history.sales.censored[k, month].sum())
    sold = history.sales.units[k, month][~history.sales.closed[k, month]]
    sold = sold[~np.isnan(sold)]
    if off:
        decided = Plan(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Order(
        key=history.keys[k],
        item=item,
        when=at.when,
        today=history.date,
        plan=decided,
        demand=at.paths[:, first:second].sum(1),
        daily=at.paths.mean(0),
        fan=np.quantile(at.paths, FAN, axis=0),
        shut=at.paths.max(0) == 0,
        on_hand=float(sum(batch.units for batch in shelf)),
        expiring=float(sum(batch.units for batch in shelf if batch.last <= first)),
        under_way=float(sum(batch.units for batch in batches if batch.arrives > 0)),
        position=at.position,
        level=_open_mean(record, k),
        trend=_trend(record, k),
        promotion=bool(promotion is not None and promotion[k, now + 1 : now + 1 + h][first:second].any()),
        days_on_record=int(history.days_on_record[k]),
        sold_out=sold_out,
        blind=2 * sold_out > len(sold),
        most_sold=float(sold.max(initial=0.0)),
        idle=idle,
        off=off,
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


def new_items(shop: Shop) -> list[str]:
    """The item-stores that are planned without any history, which start from the prior."""
    new = shop.history.listed & (shop.history.days_on_record == 0)
    return [named(shop.history.keys[k]) for k in np.flatnonzero(new)]

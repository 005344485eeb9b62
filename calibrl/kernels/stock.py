"""Compiled kernels of a shelf: what many order plans cost over many demand paths, and a shop's best order.

`open_loop_costs` and `closed_loop_costs` choose the quickest; what they should say is in `tests/kernels/references.py`.
Kernels run on one thread and count units in float32: plans are compared, not counted.

Demand comes in blocks, (b, h, BLOCK): a block's stock stays in the nearest cache while its days go by, and a plan
whose cost over some blocks already exceeds the best plan's over all of them is given up. Costs are never
negative, so that the best plan is never given up.

**Between deliveries** (`best_order`, `outlook`) one item of a shop is simulated along many demand paths: what an order
costs, and which costs least. Days count from 0, tomorrow. A shelf is held by the last day its units can be sold:
shelf[e] units for e < h, and shelf[h] for all that outlast the h days. Customers take units of every age alike. The
first delivery brings the order in question; every later one is decided, on the evening its lead time asks for, up to a
level, knowing what was sold until then: the plan is a policy, not a fixed list of orders.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Units: TypeAlias = NDArray[np.float32]
Shelf: TypeAlias = tuple[np.float32, ...]

BLOCK = 64
RANDOM, FIFO, LIFO = 0, 1, 2
GIVEN_UP = np.float32(3e38)
"""The cost of a plan given up; finite, because fast arithmetic knows no infinity."""
LIMITS = (49, 30, 30)
"""Ages × days up to which, by issuing, the compiler keeps a path's whole stock in registers."""
_NONE, _TINY, _HALF = np.float32(0), np.float32(1e-30), np.float32(0.5)


def in_blocks(paths: NDArray[Any]) -> Units:
    """Demand paths (m, h) as the kernels read them: (⌈m / BLOCK⌉, h, BLOCK), the end filled up with zeros."""
    m, h = paths.shape
    blocks = np.zeros((-(-m // BLOCK) * BLOCK, h), dtype=np.float32)
    blocks[:m] = paths
    return np.ascontiguousarray(blocks.reshape(-1, BLOCK, h).transpose(0, 2, 1))


def open_loop_costs(
    arrivals: Units,
    demand: Units,
    paths: int,
    stock: Units,
    *,
    waste: float,
    unmet: float,
    issuing: int,
    give_up: bool = False,
    small: bool | None = None,
) -> Units:
    """Mean cost (n,) of n fixed plans.

    arrivals: (n, h) units on the shelf before each day's demand; demand: (b, h, BLOCK) of `paths` paths; stock:
    (L,) units that expire in l + 1 days; waste, unmet: cost of a unit; issuing: RANDOM (in proportion to what is
    there of each age), FIFO or LIFO; give_up: stop at plans that are worse than the best, and say GIVEN_UP; small:
    whether to keep stock in registers, by default where that is quick.
    """
    terms = 0.0, 0.0, waste, unmet
    return _chosen((None, arrivals, demand, paths), stock, None, 0, terms, issuing, give_up, small)


def closed_loop_costs(
    first: Units,
    levels: Units,
    demand: Units,
    paths: int,
    stock: Units,
    *,
    incoming: Units,
    lead: int,
    pack: float,
    minimum: float,
    waste: float,
    unmet: float,
    issuing: int,
    give_up: bool = False,
    small: bool | None = None,
) -> Units:
    """Mean cost (n,) of n policies that see each path's stock before they order.

    first: (n,) the order of tonight; levels: (n, h) order-up-to levels: on the evening before day k a policy orders
    what is missing to levels[:, k] of the stock on the shelf and on its way, in whole packs, for day k + lead - 1.
    incoming: (h,) units already on their way. The rest is as for fixed plans.
    """
    terms = pack, minimum, waste, unmet
    return _chosen((first, levels, demand, paths), stock, incoming, lead, terms, issuing, give_up, small)


def fits(ages: int, days: int, issuing: int) -> bool:
    """Whether the kernels that keep a path's stock in registers are the quick ones."""
    return ages * days <= LIMITS[issuing]


def _chosen(
    plans: tuple[Units | None, Units, Units, int],
    stock: Units,
    incoming: Units | None,
    lead: int,
    terms: tuple[float, ...],
    issuing: int,
    give_up: bool,
    small: bool | None,
) -> Units:
    """Mean costs by the kernel that is quicker."""
    days = plans[1].shape[1]
    single = tuple(map(np.float32, terms))
    soon = None if incoming is None else incoming[:lead]
    if fits(len(stock), days, issuing) if small is None else small:
        held, due = tuple(stock), None if soon is None else tuple(soon)
        return _costs(*plans, None, held, (0,) * days, incoming, due, single, (0,) * issuing, give_up)
    return _costs(*plans, stock, None, None, incoming, soon, single, issuing, give_up)


def sell_and_age(shelf: Floats, demand: NDArray[Any], *, waste: float, unmet: float, issuing: int) -> Floats:
    """Cost (n, m) of a day with demand (m,); shelf (L, n, m) is left as the next day finds it."""
    there = shelf.sum(0)
    sold = np.minimum(there, demand)
    if issuing == RANDOM:
        shelf *= np.divide(there - sold, there, out=np.zeros_like(there), where=there > 0)
    else:
        rest = sold.copy()
        for age in range(len(shelf)) if issuing == FIFO else reversed(range(len(shelf))):
            taken = np.minimum(shelf[age], rest)
            shelf[age] -= taken
            rest -= taken
    cost = waste * shelf[0] + unmet * (demand - sold)
    shelf[:-1] = shelf[1:]
    shelf[-1] = 0
    return cost


@njit(cache=True, fastmath=True, error_model="numpy")
def _costs(
    first: Units | None,
    plans: Units,
    demand: Units,
    paths: int,
    stock: Units | None,
    small: Shelf | None,
    days: Any,
    incoming: Any,
    lead: Any,
    terms: Shelf,
    issuing: Any,
    give_up: bool,
) -> Units:
    """Mean cost (n,) of plans or policies. What is None is left out by the compiler.

    first: None for fixed plans; lead: the incoming units of as many days as the lead time; terms: pack, minimum, waste,
    unmet. Either `stock` or, to keep a path's whole stock in registers, `small`: a tuple, so that its length is known
    to the compiler, as then are those of `lead`, `days` (h zeros) and `issuing` (as many zeros as its number): it
    writes out all days and ages and does sixteen paths at a time.
    """
    shelf = np.empty((0 if stock is None else len(stock), BLOCK), np.float32)
    coming = np.empty((plans.shape[1], BLOCK), np.float32)
    room = shelf, coming, np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    costs = np.empty(plans.shape[0], np.float32)
    best = GIVEN_UP
    for i in range(plans.shape[0]):
        cost = _NONE
        for b in range(demand.shape[0]):
            size = min(BLOCK, paths - b * BLOCK)
            if stock is not None:
                cost = _block(cost, i, first, plans[i], demand[b], size, stock, incoming, lead, terms, issuing, room)
            if small is not None:
                cost += _block_small(i, first, plans[i], demand[b], size, small, days, incoming, lead, terms, issuing)
            if give_up and cost > best:
                cost = GIVEN_UP
                break
        costs[i] = cost
        best = min(best, cost)
    for i in range(costs.shape[0]):
        if costs[i] < GIVEN_UP:
            costs[i] /= np.float32(paths)
    return costs


@njit(cache=True, fastmath=True, error_model="numpy")
def _block(
    cost: np.float32,
    i: int,
    first: Units | None,
    plan: Units,
    demand: Units,
    size: int,
    stock: Units,
    incoming: Units,
    lead: Units,
    terms: Shelf,
    issuing: int,
    room: tuple[Units, ...],
) -> np.float32:
    """The cost and that of a block of paths, of any length; room: (L, BLOCK), (h, BLOCK) and 3 × (BLOCK,) to work in.

    Stock of age l on day k is row (k + l) mod L: what is in its last day leaves its row to the next order.
    """
    pack, minimum, waste, unmet = terms
    shelf, coming, total, work, position = room
    days = len(plan)
    total[:] = stock.sum()
    for age in range(len(stock)):
        shelf[age, :] = stock[age]
    for k in range(days):
        coming[k, :] = plan[k] if first is None else incoming[k]
    if first is not None:
        coming[len(lead) - 1] += first[i]
    for k in range(days):
        if first is not None:
            due = k + len(lead) - 1
            if k > 0 and due < days:
                position[:] = total
                for day in range(k, due + 1):
                    for j in range(BLOCK):
                        position[j] += coming[day, j]
                for j in range(BLOCK):
                    coming[due, j] += _order_up_to(plan[k] - position[j], pack, minimum)
        cost += _day(coming[k], demand[k], size, shelf, total, work, k, waste, unmet, issuing)
    return cost


@njit(cache=True, fastmath=True, error_model="numpy")
def _day(
    arriving: Units,
    demand: Units,
    size: int,
    shelf: Units,
    total: Units,
    work: Units,
    k: int,
    waste: np.float32,
    unmet: np.float32,
    issuing: int,
) -> np.float32:
    """Day k of a block: deliver, sell, throw away. The cost summed over its first `size` paths."""
    ages = shelf.shape[0]
    newest, oldest = shelf[(k + ages - 1) % ages], shelf[k % ages]
    short = _NONE
    for j in range(size):
        newest[j] += arriving[j]
        there = total[j] + arriving[j]
        left = max(there - demand[j], _NONE)
        short += demand[j] - there + left
        total[j] = left
        # What of a random sale every age keeps; what of an ordered sale is still to be taken.
        work[j] = left / max(there, _TINY) if issuing == RANDOM else there - left
    for step in range(ages):
        if issuing == RANDOM:
            age = shelf[step]
            for j in range(size):
                age[j] *= work[j]
        else:
            age = shelf[(k + (step if issuing == FIFO else ages - 1 - step)) % ages]
            for j in range(size):
                held = age[j]
                age[j] = max(held - work[j], _NONE)
                work[j] = max(work[j] - held, _NONE)
    gone = _NONE
    for j in range(size):
        gone += oldest[j]
        total[j] -= oldest[j]
        oldest[j] = _NONE
    return short * unmet + gone * waste


@njit(cache=True, fastmath=True, error_model="numpy")
def _block_small(
    i: int,
    first: Units | None,
    plan: Units,
    demand: Units,
    size: int,
    stock: Shelf,
    days: tuple[int, ...],
    incoming: Units,
    lead: Shelf,
    terms: Shelf,
    issuing: tuple[int, ...],
) -> np.float32:
    """The cost of a block of paths, each path's stock in registers."""
    pack, minimum, waste, unmet = terms
    short, gone = _NONE, _NONE
    for j in range(size):
        shelf, coming = stock, lead
        for k in range(len(days)):
            if first is None:
                arriving = plan[k]
            else:
                order = first[i]
                if k > 0:
                    order = _order_up_to(plan[k] - _total(shelf) - _total(coming), pack, minimum)
                coming = _with_last(coming, coming[-1] + order)
                arriving = coming[0]
                coming = _shifted(coming, incoming[k + len(lead)] if k + len(lead) < len(days) else _NONE)
            shelf = _with_last(shelf, shelf[-1] + arriving)
            shelf, missed, wasted = _day_small(shelf, demand[k, j], issuing)
            short += missed
            gone += wasted
    return short * unmet + gone * waste


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _day_small(shelf: Shelf, demand: np.float32, issuing: tuple[int, ...]) -> tuple[Shelf, np.float32, np.float32]:
    """Sell and age: the shelf of the next morning, unmet demand, waste."""
    there = _total(shelf)
    left = max(there - demand, _NONE)
    if len(issuing) == RANDOM:
        kept = left / max(there, _TINY)
        for age in range(len(shelf)):
            shelf = _put(shelf, age, shelf[age] * kept)
    else:
        rest = there - left
        for step in range(len(shelf)):
            age = step if len(issuing) == FIFO else len(shelf) - 1 - step
            held = shelf[age]
            shelf = _put(shelf, age, max(held - rest, _NONE))
            rest = max(rest - held, _NONE)
    return _shifted(shelf, _NONE), demand - there + left, shelf[0]


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _order_up_to(missing: np.float32, pack: np.float32, minimum: np.float32) -> np.float32:
    """The nearest quantity that can be ordered to what is missing."""
    missing = max(missing, _NONE)
    packs = np.floor(missing / pack + _HALF) * pack
    least = minimum if missing + missing >= minimum else _NONE
    return packs if packs >= minimum else least


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _total(units: Shelf) -> np.float32:
    total = _NONE
    for i in range(len(units)):
        total += units[i]
    return total


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _shifted(units: Shelf, last: np.float32) -> Shelf:
    return units[1:] + (last,)  # noqa: RUF005 (the compiler knows the length of a sum)


@njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _with_last(units: Shelf, last: np.float32) -> Shelf:
    return units[:-1] + (last,)  # noqa: RUF005 (the compiler knows the length of a sum)


@njit(cache=True, inline="always")
def _put(units: Shelf, place: int, value: np.float32) -> Any:
    return tuple_setitem(units, place, value)  # type: ignore[call-arg]


# Between deliveries.

COUNTS = 9
UNMET, WASTE, HELD, SPARED, ORDER_WASTE, LOST, OUT, LOST_BEFORE, OUT_BEFORE = range(COUNTS)
"""What `follow` adds up along a path. From the first delivery on: demand not met, units wasted, unit-nights held, days
beyond the path for which enough is left, and the units wasted of the order in question; units left at the end are
counted by what should become of them. Between that delivery and the next: demand not met, and 1 if there was any.
Before it: the same two."""


class Terms(NamedTuple):
    """Deliveries to come, and what every order is bound by.

    day: (K,) of each delivery; decided: (K,) the day at whose close it is decided, -1 being tonight; life: days for
    which units can be sold; pack, minimum: units in a pack, and the least order.
    """

    day: Ints
    decided: Ints
    life: int
    pack: int
    minimum: int


@njit(cache=True, nogil=True)
def rounded_up(wanted: float, pack: int, minimum: int) -> int:
    """The least number of whole packs that holds `wanted` units, and the minimum if any is wanted."""
    if wanted <= 1e-9:
        return 0
    wanted = max(wanted, float(minimum))
    return int(np.ceil(wanted / pack - 1e-9)) * pack


@njit(cache=True, nogil=True)
def on_shelf(d: int, shelf: Floats, arriving: Floats) -> float:
    """Units that can be sold on day d: of those on the shelf, and of those under way that come on it."""
    total = 0.0
    for e in range(d, len(shelf)):
        total += shelf[e]
        if len(arriving):
            total += arriving[d, e]
    return total


@njit(cache=True, nogil=True)
def left_on(
    until: int, now: int, shelf: Floats, arriving: Floats, terms: Terms, brought: Floats, expected: Floats, room: Floats
) -> float:
    """Units there should be on day `until`, before what is decided for it, if the days between sell their mean.

    Seen at the close of day `now`. A day sells what is there and no more: sales that it loses are not made good by
    what comes later. room: (h+1,) to work in; the rest as in `follow`.
    """
    h = len(shelf) - 1
    for e in range(now + 1, h + 1):
        room[e] = shelf[e]
    for d in range(now + 1, until):
        for k in range(len(brought)):
            if terms.day[k] == d:
                room[min(d + terms.life - 1, h)] += brought[k]
        total = on_shelf(d, room, arriving)
        left = max(0.0, 1.0 - expected[d] / total) if total > 0.0 else 0.0
        for e in range(d + 1, h + 1):
            room[e] *= left
            if len(arriving):
                room[e] += left * arriving[d, e]
    return on_shelf(until, room, arriving)


@njit(cache=True, nogil=True)
def follow(
    path: Floats,
    opening: Floats,
    arriving: Floats,
    terms: Terms,
    order: int,
    level: Floats,
    expected: Floats,
    room: Floats,
    brought: Floats,
    out: Floats,
) -> None:
    """Add what happens along one path to `out` (9,); room (2, h+1) and brought (K,) are to work in.

    path, expected: (h,) demand, and its mean; opening: (h+1,) the shelf tonight; arriving: (h, h+1) what is under
    way, by day and last day, or (0, h+1) if nothing is; level: (K,) up to which later deliveries are ordered.
    """
    day, decided, life, pack, minimum = terms
    h = len(path)
    shelf, ahead = room[0], room[1]
    for e in range(h + 1):
        shelf[e] = opening[e]
    for k in range(len(day)):
        brought[k] = 0.0
    brought[0] = order
    first, second = day[0], day[1]
    last_of_order = first + life - 1
    of_order = 0.0
    due, next_one = 0, 1  # days only grow
    for d in range(h):
        if len(arriving):
            for e in range(h + 1):
                shelf[e] += arriving[d, e]
        if due < len(day) and day[due] == d:
            shelf[min(d + life - 1, h)] += brought[due]
            due += 1
        if d == first:
            of_order = brought[0]
        total = 0.0
        for e in range(d, h + 1):
            total += shelf[e]
        sold = min(total, path[d])
        unmet = path[d] - sold
        if sold > 0.0:
            left = 1.0 - sold / total
            for e in range(d, h + 1):
                shelf[e] *= left
            of_order *= left
        waste = shelf[d]
        shelf[d] = 0.0
        if d < first:
            out[LOST_BEFORE] += unmet
            if unmet > 0.0:
                out[OUT_BEFORE] = 1.0
        else:
            out[UNMET] += unmet
            out[WASTE] += waste
            out[HELD] += total - sold - waste
            if d < second:
                out[LOST] += unmet
                if unmet > 0.0:
                    out[OUT] = 1.0
            if d == last_of_order:
                out[ORDER_WASTE] += of_order
        if next_one < len(day) and decided[next_one] == d:
            if day[next_one] == d + 1:  # nothing to foresee: the same sum, without a copy of the shelf
                position = on_shelf(d + 1, shelf, arriving)
            else:
                position = left_on(day[next_one], d, shelf, arriving, terms, brought, expected, ahead)
            brought[next_one] = rounded_up(level[next_one] - position, pack, minimum)
            next_one += 1
    # What is left goes on selling, each day what an average one sells, until the latest delivery has expired.
    left, rate, keeps = shelf[h], expected.mean(), life
    for k in range(len(day)):
        if brought[k] > 0.0 and day[k] + life > h:
            keeps = day[k] + life - h
    sells = min(left, rate * keeps)
    if sells > 0.0:
        out[HELD] += sells * sells / (2.0 * rate)
        out[SPARED] += sells / rate
    if left > sells:
        out[WASTE] += left - sells
        if last_of_order >= h:
            out[ORDER_WASTE] += of_order * (1.0 - sells / left)


@njit(cache=True, nogil=True)
def mean_demand(paths: Floats) -> Floats:
    """(h,): the mean over paths (m, h) of each day."""
    mean = np.zeros(paths.shape[1])
    for d in range(len(mean)):
        mean[d] = paths[:, d].mean()
    return mean


@njit(cache=True, nogil=True)
def mean_cost(
    paths: Floats,
    opening: Floats,
    arriving: Floats,
    terms: Terms,
    order: int,
    level: Floats,
    expected: Floats,
    price: Floats,
    worth: float = 0.0,
    least: float = np.inf,
) -> tuple[float, float]:
    """The mean cost of an order over paths (m, h), and the days beyond them for which it leaves enough.

    price: (3,) of a unit not met, a unit wasted, a unit-night held. Infinite where it is sure to be more than `least`,
    even if each such day, of which a path has no more than units keep, is `worth` something.
    """
    total, spared = 0.0, 0.0
    seen, room, brought = np.zeros(COUNTS), np.zeros((2, len(opening))), np.zeros(len(level))
    for j in range(len(paths)):
        seen[:] = 0.0
        follow(paths[j], opening, arriving, terms, order, level, expected, room, brought, seen)
        total += price[0] * seen[UNMET] + price[1] * seen[WASTE] + price[2] * seen[HELD]
        spared += seen[SPARED]
        if total - worth * (spared + (len(paths) - 1 - j) * terms.life) > least * len(paths):
            return np.inf, 0.0
    return total / len(paths), spared / len(paths)


@njit(cache=True, nogil=True)
def best_order(
    paths: Floats, opening: Floats, arriving: Floats, terms: Terms, levels: Floats, most: int, price: Floats
) -> tuple[int, int]:
    """The order of least cost, and which of the level policies (c, K) it is planned with.

    levels: (c, K), one row per candidate policy; most: an order that is surely enough. First the policy that costs
    least a day, begun with an empty shelf; then, with that policy for later deliveries, tonight's order on an ever
    finer grid, where each day beyond the paths for which enough is left is worth what the policy costs a day: a large
    delivery that comes late is charged with neither nothing nor all of what becomes of it. Among equals the smallest
    order wins.
    """
    pack, minimum = terms.pack, terms.minimum
    expected = mean_demand(paths)
    days, empty, nothing = paths.shape[1] - terms.day[0], np.zeros(len(opening)), arriving[:0]
    chosen, daily = 0, np.inf
    for c in range(len(levels)):
        if c > 0 and (levels[c] == levels[c - 1]).all():
            continue
        order, worth = rounded_up(levels[c, 0], pack, minimum), daily if daily < np.inf else 0.0
        cost, spared = mean_cost(paths, empty, nothing, terms, order, levels[c], expected, price, worth, daily * days)
        if cost / (days + spared) < daily - 1e-9:
            chosen, daily = c, cost / (days + spared)
    level = levels[chosen]
    low, high = 0, int(np.ceil(most / pack))
    best, least, center = 0, np.inf, 0
    while True:
        step = max(1, (high - low) // 10)
        for packs in range(low, high + 1, step):
            order = rounded_up(float(packs * pack), pack, minimum)
            cost, spared = mean_cost(paths, opening, arriving, terms, order, level, expected, price, daily, least)
            if cost - daily * spared < least - 1e-9:
                best, least, center = order, cost - daily * spared, packs
        if step == 1:
            break
        low, high = max(0, center - step), center + step
    return best, chosen


@njit(cache=True, nogil=True)
def outlook(paths: Floats, opening: Floats, arriving: Floats, terms: Terms, order: int, level: Floats) -> Floats:
    """(9,): the mean of what `follow` counts, over paths (m, h)."""
    expected = mean_demand(paths)
    total, room, brought = np.zeros(COUNTS), np.zeros((2, len(opening))), np.zeros(len(level))
    for j in range(len(paths)):
        seen = np.zeros(COUNTS)
        follow(paths[j], opening, arriving, terms, order, level, expected, room, brought, seen)
        total += seen
    return total / len(paths)

"""One item between deliveries, simulated along many demand paths: what an order costs, and which order costs least.

Days count from 0, tomorrow. A shelf is held by the last day its units can be sold: shelf[e] units for e < h, and
shelf[h] for all that outlast the h days. Customers take units of every age alike. The first delivery brings the order
in question; every later one is decided, on the evening its lead time asks for, up to a level, knowing what was sold
until then: the plan is a policy, not a fixed list of orders.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
    for d in range(h):
        if len(arriving):
            for e in range(h + 1):
                shelf[e] += arriving[d, e]
        for k in range(len(day)):
            if day[k] == d:
                shelf[min(d + life - 1, h)] += brought[k]
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
        for k in range(1, len(day)):
            if decided[k] == d:
                if day[k] == d + 1:  # nothing to foresee: the same sum, without a copy of the shelf
                    position = on_shelf(d + 1, shelf, arriving)
                else:
                    position = left_on(day[k], d, shelf, arriving, terms, brought, expected, ahead)
                brought[k] = rounded_up(level[k] - position, pack, minimum)
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
) -> tuple[float, float]:
    """The mean cost of an order over paths (m, h), and the days beyond them for which it leaves enough.

    price: (3,) of a unit not met, a unit wasted, a unit-night held.
    """
    total, spared = 0.0, 0.0
    seen, room, brought = np.zeros(COUNTS), np.zeros((2, len(opening))), np.zeros(len(level))
    for j in range(len(paths)):
        seen[:] = 0.0
        follow(paths[j], opening, arriving, terms, order, level, expected, room, brought, seen)
        total += price[0] * seen[UNMET] + price[1] * seen[WASTE] + price[2] * seen[HELD]
        spared += seen[SPARED]
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
        order = rounded_up(levels[c, 0], pack, minimum)
        cost, spared = mean_cost(paths, empty, nothing, terms, order, levels[c], expected, price)
        if cost / (days + spared) < daily - 1e-9:
            chosen, daily = c, cost / (days + spared)
    level = levels[chosen]
    low, high = 0, int(np.ceil(most / pack))
    best, least = 0, np.inf
    while True:
        step = max(1, (high - low) // 10)
        center = best
        for packs in range(low, high + 1, step):
            order = rounded_up(float(packs * pack), pack, minimum)
            cost, spared = mean_cost(paths, opening, arriving, terms, order, level, expected, price)
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

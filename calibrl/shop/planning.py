"""From demand paths to an order: the least expected cost of waste, lost sales and holding, closed loop.

Later deliveries follow an order-up-to level, so that tonight's order neither has to carry the weeks after it nor is
judged as if nobody would ever order again. What is left when the horizon ends is counted by what should become of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.kernels import deliveries as kernel
from calibrl.shop.calendar import Ints, Schedule
from calibrl.shop.items_file import Item
from calibrl.shop.stock_file import Batch

Floats = NDArray[np.float64]

SERVICE = np.array([0.2, 0.35, 0.5, 0.6, 0.7, 0.77, 0.83, 0.88, 0.92, 0.95, 0.975, 0.99, 1.0])
"""Quantiles of what a delivery has to be enough for that later levels are chosen from."""

HOLDING = 0.002
"""Cost of keeping a unit overnight, as a share of the cost of wasting it: for what would keep for ever."""


@dataclass(frozen=True)
class Plan:
    """An order and what to expect of it, in units.

    waste: of this order, thrown away in the end; lost: demand not met between this delivery and the next, and
    out: the chance of any; lost_before, out_before: the same until this delivery comes.
    """

    order: int
    waste: float
    lost: float
    out: float
    lost_before: float
    out_before: float


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
    def given(self) -> tuple[Floats, Floats, Floats, Ints, Ints, int]:
        """What the kernel's functions are told first."""
        return self.paths, self.opening, self.arriving, self.when.day, self.when.decided, self.item.shelf_life

    @property
    def position(self) -> float:
        """What should be left of today's stock and what is under way when the first delivery comes."""
        paths, opening, arriving, day, _, life = self.given
        room, nothing = np.empty_like(opening), np.zeros(len(day))
        return float(kernel.left_on(day[0], -1, opening, arriving, day, nothing, life, paths.mean(0), room))


def situation(item: Item, when: Schedule, paths: Floats, batches: tuple[Batch, ...]) -> Situation:
    """Lay out an item's batches by their last day. paths: (m, leads), leads at least the horizon."""
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


def plan(at: Situation) -> Plan:
    """The order of least expected cost."""
    levels = _levels(at)
    price = np.array([at.item.cost_of_lost_sale, at.item.cost_of_waste, HOLDING * at.item.cost_of_waste])
    order, policy = kernel.best_order(
        *at.given, levels, _surely_enough(at), at.item.pack_size, at.item.minimum_order, price
    )
    return judged(at, order, levels[policy])


def up_to(at: Situation, level: float) -> int:
    """The order of a shop that stocks up to a level."""
    return int(kernel.rounded_up(level - at.position, at.item.pack_size, at.item.minimum_order))


def judged(at: Situation, order: int, level: Floats) -> Plan:
    """What to expect of an order when later ones are placed up to level (K,)."""
    seen = kernel.outlook(*at.given, order, level, at.item.pack_size, at.item.minimum_order)
    return Plan(
        order=order,
        waste=float(seen[kernel.ORDER_WASTE]),
        lost=float(seen[kernel.LOST]),
        out=float(seen[kernel.OUT]),
        lost_before=float(seen[kernel.LOST_BEFORE]),
        out_before=float(seen[kernel.OUT_BEFORE]),
    )


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

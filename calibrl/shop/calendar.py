"""When the next deliveries come, and which days each has to last for.

A delivery that would have to last for closed days only is left out: on a Saturday evening a shop that is closed on
Sundays orders for Monday. One that comes on a closed day and has to last for open ones after it is a delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.inventory.sales import Flags
from calibrl.shop.items_file import Item
from calibrl.shop.sales_file import AHEAD

Ints = NDArray[np.int64]

BEYOND = 3
"""Days to plan for after a delivery has expired, so that what follows it is not cut short."""

SEEN_LIFE = 14
"""Days after a delivery to look ahead: what keeps longer is held back by the cost of holding, not by waste."""


@dataclass(frozen=True)
class Schedule:
    """Deliveries to come, in days counted from 0, tomorrow.

    day: (K,) K ≥ 2; decided: (K,) the day at whose close each is ordered, -1 being tonight; horizon: the days to
    plan for: until the first delivery is eaten up or expired, and the one after it is used.
    """

    day: Ints
    decided: Ints
    horizon: int

    @property
    def cover(self) -> range:
        """The days the first delivery has to last for: up to the one after it."""
        return range(int(self.day[0]), int(self.day[1]))


def schedule(item: Item, today: np.datetime64, shut: Flags | None = None) -> Schedule:
    """The deliveries of an item that can still be ordered tonight, and the planning horizon.

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
    return Schedule(day=within, decided=np.maximum(within - item.lead_days, -1), horizon=horizon)


def schedules(rules: Sequence[Item], today: np.datetime64, shut: Flags) -> list[Schedule]:
    """The schedules of item-stores with these rules and closed days (s, AHEAD)."""
    found: dict[tuple[Item, bytes], Schedule] = {}
    for item, days in zip(rules, shut, strict=True):
        key = (item, days.tobytes())
        if key not in found:
            found[key] = schedule(item, today, days)
    return [found[item, days.tobytes()] for item, days in zip(rules, shut, strict=True)]


def leads_needed(items: tuple[Item, ...], today: np.datetime64) -> int:
    """How many days ahead demand has to be forecast."""
    return max(schedule(item, today).horizon for item in set(items))

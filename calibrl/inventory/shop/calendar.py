"""When the next deliveries come, and which days each has to last for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.inventory.shop.items_file import Item
from calibrl.inventory.shop.sales_file import AHEAD

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


def schedule(item: Item, today: np.datetime64) -> Schedule:
    """The deliveries of an item that can still be ordered tonight, and the planning horizon."""
    weekday = (today.astype("datetime64[D]").astype(np.int64) + 1 + 3 + np.arange(AHEAD)) % 7
    open_days = np.flatnonzero(np.array(item.delivery_days)[weekday])
    coming = open_days[open_days >= item.lead_days - 1]
    first, second = int(coming[0]), int(coming[1])
    third = int(coming[2]) if len(coming) > 2 else second + (second - first)
    horizon = min(max(first + min(item.shelf_life, SEEN_LIFE) + BEYOND, third), AHEAD)
    within = coming[coming < horizon]
    return Schedule(day=within, decided=np.maximum(within - item.lead_days, -1), horizon=horizon)


def leads_needed(items: tuple[Item, ...], today: np.datetime64) -> int:
    """How many days ahead demand has to be forecast."""
    return max(schedule(item, today).horizon for item in set(items))

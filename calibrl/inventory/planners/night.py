"""What every planner knows on a night and answers: demand paths and stock in, an order out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrl.errors import CalibrlError
from calibrl.inventory.store import ISSUING, Costs, Issuing, check_issuing
from calibrl.kernels import stock_reference
from calibrl.kernels.stock import Units, in_blocks

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rules:
    """What may be ordered, and when it comes.

    pack: units of a pack; minimum: the least order that is taken, in units; lead_days: 1 if an order is on the
    shelf in the morning after it was placed, 2 if a morning later, and so on.
    """

    pack: int = 1
    minimum: int = 0
    lead_days: int = 1

    def __post_init__(self) -> None:
        for name, least in (("pack", 1), ("minimum", 0), ("lead_days", 1)):
            value = getattr(self, name)
            if not (np.isfinite(value) and value == int(value) and value >= least):
                raise CalibrlError(f"{name} {value} cannot be kept to; use a whole number of {least} or more")

    @property
    def smallest(self) -> int:
        """The smallest order that can be placed: the minimum, in whole packs."""
        return max(self.pack, -(-self.minimum // self.pack) * self.pack)

    def nearest(self, units: ArrayLike) -> Floats:
        """The nearest quantities that can be ordered; half a pack rounds up."""
        wanted = np.maximum(np.asarray(units, dtype=np.float64), 0)
        packs = np.floor(wanted / self.pack + 0.5) * self.pack
        return np.where(packs >= self.smallest, packs, np.where(2 * wanted >= self.smallest, self.smallest, 0))


@dataclass(frozen=True, eq=False)
class Night:
    """What is known when the order is placed.

    paths: (m, h) demand of the next h days; stock: (L,) units by days to expiry, the last entry free for the order;
    incoming: (h,) units already ordered that will be delivered on each of those days; lead_days: the order of
    tonight is delivered on the lead_days-th of them; rng: for planners that search at random.
    """

    paths: Floats
    stock: Floats
    incoming: Floats
    issuing: Issuing
    lead_days: int = 1
    rng: np.random.Generator | None = None

    @cached_property
    def cover(self) -> Floats:
        """(m, h) demand from day k until the day an order placed in the night before it is delivered, included."""
        total = np.zeros((len(self.paths), self.horizon + 1))
        np.cumsum(self.paths, axis=1, out=total[:, 1:])
        ends = np.minimum(np.arange(self.horizon) + self.lead_days, self.horizon)
        return total[:, ends] - total[:, :-1]

    @cached_property
    def on_arrival(self) -> Floats:
        """(m,) units on the shelf when tonight's order is delivered, without it."""
        shelf = np.tile(self.stock[:, None, None], (1, 1, len(self.paths)))
        for k in range(self.lead_days - 1):
            shelf[-1] += self.incoming[k]
            stock_reference.sell_and_age(shelf, self.paths[:, k], waste=0, unmet=0, issuing=ISSUING.index(self.issuing))
        return shelf.sum((0, 1)) + self.incoming[self.lead_days - 1]

    @property
    def demand_on_arrival(self) -> Floats:
        """(m,) demand of the first day on which tonight's order can be sold."""
        return self.paths[:, self.lead_days - 1]

    def carried_on(self, days: int) -> Night:
        """The same night looking `days` ahead: shorter paths repeat their last week, or all they have."""
        known = self.horizon
        if days <= known:
            return self
        incoming = np.zeros(days)
        incoming[:known] = self.incoming
        again = min(known, 7)
        day = np.append(np.arange(known), known - again + np.arange(days - known) % again)
        return replace(self, paths=self.paths[:, day], incoming=incoming)

    @property
    def horizon(self) -> int:
        """Days looked ahead."""
        return self.paths.shape[1]

    @cached_property
    def blocks(self) -> Units:
        """The paths as the kernels read them."""
        return in_blocks(self.paths)

    @cached_property
    def shelf(self) -> Units:
        """The stock as the kernels read it: ages that outlive the horizon are one."""
        days = self.horizon
        kept = self.stock if len(self.stock) <= days + 1 else np.append(self.stock[:days], self.stock[days:].sum())
        return kept.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Planner(ABC):
    """Decides an order from demand paths: `planner(paths, stock, rng=rng)`.

    Random issuing is planned for in proportion: of each age, the share of all units that is sold.
    """

    costs: Costs = field(default_factory=Costs)
    rules: Rules = field(default_factory=Rules)
    issuing: Issuing = "random"

    def __post_init__(self) -> None:
        check_issuing(self.issuing)

    def __call__(
        self,
        paths: ArrayLike,
        stock: ArrayLike,
        *,
        rng: np.random.Generator | None = None,
        incoming: ArrayLike = (),
    ) -> int:
        """Units to order tonight.

        paths: (m, h) demand of the next h days, the first being the first day an order with a lead time of a day
        is on sale; stock: (L,) units on the shelf tonight, by days to expiry; incoming: units already on their
        way, for each of the next days, zeros at the end left out; rng: for planners that search at random.
        """
        return int(self.rules.nearest(self.wanted(self.night(paths, stock, rng=rng, incoming=incoming))))

    def night(
        self,
        paths: ArrayLike,
        stock: ArrayLike,
        *,
        rng: np.random.Generator | None = None,
        incoming: ArrayLike = (),
    ) -> Night:
        """The same, checked."""
        demand = _checked(paths, "paths", "(m, h), m demand paths of h days")
        if demand.ndim != 2 or not demand.size:
            raise CalibrlError(f"paths of shape {demand.shape} are no demand; expected (m, h), 1 or more paths")
        units = _checked(stock, "stock", "(L,)")
        if units.ndim != 1 or not units.size:
            raise CalibrlError(f"stock of shape {units.shape} is no shelf; expected (L,), L ≥ 1 days of life")
        days, lead = demand.shape[1], self.rules.lead_days
        if days < lead:
            raise CalibrlError(f"paths of {days} days end before tonight's order comes; look {lead} days ahead or more")
        coming = _checked(incoming, "incoming", "(days,)")
        if coming.ndim != 1 or len(coming) > days:
            raise CalibrlError(
                f"incoming of shape {coming.shape} does not fit {days} days of paths; expected ({days},)"
            )
        filled = np.zeros(days)
        filled[: len(coming)] = coming
        return Night(demand, units, filled, self.issuing, lead, rng)

    @abstractmethod
    def wanted(self, night: Night) -> float:
        """Units to order before packs and minimum are looked at."""


def _checked(value: ArrayLike, name: str, expected: str) -> Floats:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise CalibrlError(f"{name}: not numbers; expected {expected}") from None
    if array.size and not (array.min() >= 0 and array.max() < np.inf):
        wrong = array[~((array >= 0) & (array < np.inf))][0]
        raise CalibrlError(f"{name}: {wrong} is no number of units; expected {expected}, all finite and 0 or more")
    return array

"""Planners: demand paths and stock in, an order out.

All are called as `planner(paths, stock, rng=rng)` and take `costs`, `rules` and `issuing` when made. A planner is a
subclass of `Planner` with one method, `wanted`, and a name in `PLANNERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from calibrl.errors import CalibrlError, check_count, check_within
from calibrl.inventory.problems import ISSUING, Costs, Issuing, Rules, check_issuing
from calibrl.kernels import stock as kernel
from calibrl.planning.search import CEM, Bounds, RandomShooting

Floats = NDArray[np.float64]

LIKELY = 0.7
"""Where on its grid of chances `OrderUpTo` expects the best pair."""
LONGEST = 14
"""Days beyond which `OrderUpTo` does not look: what keeps longer is hardly ever wasted."""
VARIED = 5
"""Evenings whose orders the `Oracle` varies."""


@dataclass(frozen=True, eq=False)
class Evening:
    """What is known when an order is placed.

    paths: (m, h) demand of the next h days; stock: (L,) units by days to expiry, the last entry free for the order;
    incoming: (h,) units already ordered that will be delivered on each of those days; lead_days: tonight's order is
    delivered on the lead_days-th of them; rng: for planners that search at random.
    """

    paths: Floats
    stock: Floats
    incoming: Floats
    issuing: Issuing
    lead_days: int = 1
    rng: np.random.Generator | None = None

    @property
    def horizon(self) -> int:
        """Days looked ahead."""
        return self.paths.shape[1]

    @property
    def demand_on_arrival(self) -> Floats:
        """(m,) demand of the first day on which tonight's order can be sold."""
        return self.paths[:, self.lead_days - 1]

    @cached_property
    def on_arrival(self) -> Floats:
        """(m,) units on the shelf when tonight's order is delivered, without it."""
        shelf = np.tile(self.stock[:, None, None], (1, 1, len(self.paths)))
        for k in range(self.lead_days - 1):
            shelf[-1] += self.incoming[k]
            kernel.sell_and_age(shelf, self.paths[:, k], waste=0, unmet=0, issuing=ISSUING.index(self.issuing))
        return shelf.sum((0, 1)) + self.incoming[self.lead_days - 1]

    @cached_property
    def cover(self) -> Floats:
        """(m, h) demand from day k until the day an order placed on the evening before it is delivered, included."""
        total = np.zeros((len(self.paths), self.horizon + 1))
        np.cumsum(self.paths, axis=1, out=total[:, 1:])
        ends = np.minimum(np.arange(self.horizon) + self.lead_days, self.horizon)
        return total[:, ends] - total[:, :-1]

    @cached_property
    def blocks(self) -> kernel.Units:
        """The paths as the kernels read them."""
        return kernel.in_blocks(self.paths)

    @cached_property
    def shelf(self) -> kernel.Units:
        """The stock as the kernels read it: ages that outlive the horizon are one."""
        days = self.horizon
        kept = self.stock if len(self.stock) <= days + 1 else np.append(self.stock[:days], self.stock[days:].sum())
        return kept.astype(np.float32)

    def carried_on(self, days: int) -> Evening:
        """The same evening looking `days` ahead: shorter paths repeat their last week, or all they have."""
        known = self.horizon
        if days <= known:
            return self
        incoming = np.zeros(days)
        incoming[:known] = self.incoming
        again = min(known, 7)
        day = np.append(np.arange(known), known - again + np.arange(days - known) % again)
        return replace(self, paths=self.paths[:, day], incoming=incoming)


@dataclass(frozen=True, kw_only=True)
class Planner(ABC):
    """Decides an order from demand paths: `planner(paths, stock, rng=rng)`.

    Random issuing is planned for in proportion: of each age, the share of all units that is sold.

    Parameters
    ----------
    costs : Costs
        Of a unit wasted and a unit of unmet demand.
    rules : Rules
        Packs, the least order, and days until delivery.
    issuing : {"random", "fifo", "lifo"}
        Which units customers take.
    """

    costs: Costs = field(default_factory=Costs)
    rules: Rules = field(default_factory=Rules)
    issuing: Issuing = "random"

    def __post_init__(self) -> None:
        check_issuing(self.issuing)

    def __call__(
        self, paths: ArrayLike, stock: ArrayLike, *, rng: np.random.Generator | None = None, incoming: ArrayLike = ()
    ) -> int:
        """Units to order tonight.

        Parameters
        ----------
        paths : array_like, shape (m, h)
            Demand of the next h days in units, m equally likely futures; the first day is the first on which an order
            with a lead time of a day is on sale.
        stock : array_like, shape (L,)
            Units on the shelf tonight, by days to expiry; L is the shelf life in days.
        rng : numpy.random.Generator, optional
            For planners that search at random; the others need none.
        incoming : array_like, shape (k,), k ≤ h
            Units already on their way, for each of the next days; zeros at the end may be left out.

        Returns
        -------
        int
            Units, in whole packs.
        """
        return int(self.rules.nearest(self.wanted(self.evening(paths, stock, rng=rng, incoming=incoming))))

    def evening(
        self, paths: ArrayLike, stock: ArrayLike, *, rng: np.random.Generator | None = None, incoming: ArrayLike = ()
    ) -> Evening:
        """What is known tonight, checked, from the arguments of a call."""
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
            raise CalibrlError(f"incoming of shape {coming.shape} does not fit {days} days of paths; give ({days},)")
        filled = np.zeros(days)
        filled[: len(coming)] = coming
        return Evening(demand, units, filled, self.issuing, lead, rng)

    @abstractmethod
    def wanted(self, evening: Evening) -> float:
        """Units to order before packs and minimum are looked at."""

    def open_loop_costs(self, evening: Evening, orders: NDArray[Any], *, give_up: bool = False) -> kernel.Units:
        """Mean cost (n,) of ordering orders (n, h - lead_days + 1) whatever happens; poor ones may be given up."""
        arrivals = np.empty((len(orders), evening.horizon), dtype=np.float32)
        arrivals[:] = evening.incoming
        arrivals[:, evening.lead_days - 1 :] += orders
        return kernel.open_loop_costs(
            arrivals, evening.blocks, len(evening.paths), evening.shelf, give_up=give_up, **self._prices()
        )

    def closed_loop_costs(
        self, evening: Evening, first: NDArray[Any], levels: NDArray[Any], *, give_up: bool = False
    ) -> kernel.Units:
        """Mean cost (n,) of ordering first (n,) tonight and up to levels (n, h) later; poor ones may be given up."""
        return kernel.closed_loop_costs(
            np.ascontiguousarray(first, dtype=np.float32),
            np.ascontiguousarray(levels, dtype=np.float32),
            evening.blocks,
            len(evening.paths),
            evening.shelf,
            incoming=evening.incoming.astype(np.float32),
            lead=evening.lead_days,
            pack=self.rules.pack,
            minimum=self.rules.smallest,
            give_up=give_up,
            **self._prices(),
        )

    def _prices(self) -> dict[str, Any]:
        return {"waste": self.costs.waste, "unmet": self.costs.unmet, "issuing": ISSUING.index(self.issuing)}


# Rules a shop could follow by hand.


@dataclass(frozen=True)
class Heuristic(Planner):
    """Stock up to `factor` times the demand expected on the day of delivery: the paper's rule of thumb.

    Parameters
    ----------
    factor : float
        1.5 in the paper.
    costs, rules, issuing
        See `Planner`.

    Examples
    --------
    >>> Heuristic()([[20, 30], [20, 10]], stock=[3, 4, 0])
    23
    """

    factor: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.factor) and self.factor >= 0):
            raise CalibrlError(f"factor {self.factor} cannot be stocked up to; use a number of 0 or more")

    def wanted(self, evening: Evening) -> float:
        """See `Planner`."""
        return self.factor * float(evening.demand_on_arrival.mean()) - float(evening.on_arrival.mean())


@dataclass(frozen=True)
class Newsvendor(Planner):
    """Stock up to a quantile of demand on the day of delivery.

    Parameters
    ----------
    quantile : float, optional
        By default the newsvendor's, unmet / (unmet + waste): best when nothing keeps overnight.
    costs, rules, issuing
        See `Planner`.

    Examples
    --------
    >>> Newsvendor(0.75)([[10], [20], [30], [40]], stock=[5, 0])
    25
    """

    quantile: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantile is not None:
            check_within("quantile", self.quantile, "[0, 1]", "it is the chance that all demand is met")

    def wanted(self, evening: Evening) -> float:
        """See `Planner`."""
        chance = self.costs.unmet / (self.costs.unmet + self.costs.waste) if self.quantile is None else self.quantile
        return float(quantiles(evening.demand_on_arrival - evening.on_arrival, np.array([chance]))[0])


# Plans that fix the orders of all days ahead and use the first.


@dataclass(frozen=True)
class RandomTrajectories(Planner):
    """The paper's planner: the first order of the best of many random plans, on the same demand paths.

    Each day's order is drawn evenly from 0 to `reach` times the demand expected that day: the same orders are tried
    under a narrow forecast and under a wide one of the same mean.

    Parameters
    ----------
    trajectories : int
        Plans tried.
    reach : float, optional
        None: to the largest demand in any path.
    costs, rules, issuing
        See `Planner`.

    Examples
    --------
    >>> import numpy as np
    >>> paths = np.random.default_rng(0).poisson(20, (300, 5))
    >>> 15 < RandomTrajectories(trajectories=1000)(paths, stock=[0, 0, 0], rng=np.random.default_rng(1)) < 35
    True
    """

    trajectories: int = 5000
    reach: float | None = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("trajectories", self.trajectories, "leaves no plans to try")
        if self.reach is not None:
            check_within("reach", self.reach, "(0, inf)", "there would be no orders to try; None is the largest demand")

    def wanted(self, evening: Evening) -> float:
        """See `Planner`."""
        search = RandomShooting(population_size=self.trajectories)
        return _first_order(self, evening, search, reach=self.reach, give_up=True)


_SEARCH = CEM(population_size=300, elites=30, iterations=6, min_variance=1e-5, keep_best=True)


@dataclass(frozen=True)
class CrossEntropyOrders(Planner):
    """The first order of the best plan that the cross-entropy method finds.

    Parameters
    ----------
    search : CEM
        Settings of the search over the orders of all days ahead.
    costs, rules, issuing
        See `Planner`.
    """

    search: CEM = _SEARCH

    def wanted(self, evening: Evening) -> float:
        """See `Planner`."""
        return _first_order(self, evening, self.search)


def _first_order(
    planner: Planner,
    evening: Evening,
    search: CEM | RandomShooting,
    *,
    reach: float | None = None,
    give_up: bool = False,
) -> float:
    """The first order of the best plan found. Orders are searched for as shares of the most that is worth trying."""
    if evening.rng is None:
        raise CalibrlError("this planner searches at random, but rng is None; pass a numpy.random.Generator")
    ahead = evening.paths[:, evening.lead_days - 1 :]
    most = ahead.max(0) if reach is None else reach * ahead.mean(0)
    # Where anything is asked for at all, the smallest order that can be placed is worth trying.
    most = np.where(most > 0, np.maximum(most, planner.rules.smallest), 0)

    def value(shares: Tensor) -> Tensor:
        orders = planner.rules.nearest(shares[..., 0].numpy() * most)
        return -torch.from_numpy(planner.open_loop_costs(evening, orders, give_up=give_up))

    generator = torch.Generator().manual_seed(int(evening.rng.integers(2**63)))
    best = search.search(value, Bounds(torch.zeros(1), torch.ones(1), len(most)), generator=generator).plan
    return float(best[0, 0]) * most[0]


# Plans that will look at the shelf again each evening.


@dataclass(frozen=True)
class OrderUpTo(Planner):
    """The best pair of tonight's order and a service level for the evenings after.

    A service level is the chance to meet a day's demand: a later evening orders what is missing, on its path, to that
    quantile of demand. Because later orders answer to what happened, tonight's need not insure against it. Pairs
    are searched on a grid, tonight's order then once more between the neighbours of the best.

    Paths that end before tonight's order and the next would expire are carried on with their own last week:
    later orders that cannot be wasted any more would be too large, and tonight's too small.

    Parameters
    ----------
    candidates : int
        Pairs tried.
    costs, rules, issuing
        See `Planner`.

    Examples
    --------
    >>> import numpy as np
    >>> paths = np.random.default_rng(0).poisson(20, (300, 5))
    >>> OrderUpTo()(paths, stock=[2, 3, 0]) < OrderUpTo(costs=Costs(unmet=3))(paths, stock=[2, 3, 0])
    True
    """

    candidates: int = 144

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("candidates", self.candidates)

    def wanted(self, evening: Evening) -> float:
        """See `Planner`."""
        evening = evening.carried_on(min(len(evening.stock) + evening.lead_days + 1, LONGEST))
        side = max(isqrt(self.candidates) - 1, 1)
        levels = quantiles(evening.cover, service_levels(side))
        missing = quantiles(evening.demand_on_arrival - evening.on_arrival, service_levels(max(side - 1, 1)))
        # A pack that is too large for a day's demand may still be worth its keep.
        first = np.unique(self.rules.nearest(np.append(missing, self.rules.smallest)))
        tonight, after = (index.ravel() for index in np.indices((len(first), side)))
        # The likeliest come first: the sooner a good pair is found, the sooner poor ones are given up.
        likely = np.argsort(np.abs(tonight - LIKELY * len(first)) + np.abs(after - LIKELY * side))
        costs = self.closed_loop_costs(evening, first[tonight[likely]], levels[after[likely]], give_up=True)
        best = likely[costs.argmin()]
        at, later = tonight[best], after[best]
        low, high = first[max(at - 1, 0)], first[min(at + 1, len(first) - 1)]
        between = low + (high - low) * np.linspace(0, 1, self.candidates - side**2)
        near = np.unique(np.append(self.rules.nearest(between), first[at]))
        costs = self.closed_loop_costs(evening, near, np.tile(levels[later], (len(near), 1)), give_up=True)
        return float(near[costs.argmin()])


@dataclass(frozen=True)
class Oracle(Planner):
    """Knows the demand to come, paths (1, h), and orders just that: the bound for all others.

    Whole packs and minimum orders do not fit demand: then the orders of tonight and the next evenings are tried one
    smaller and one larger as well, all together.

    Parameters
    ----------
    costs, rules, issuing
        See `Planner`.
    """

    def wanted(self, evening: Evening) -> float:
        """See `Planner`."""
        if len(evening.paths) != 1:
            raise CalibrlError(f"{len(evening.paths)} paths are a forecast; give the oracle (1, h), the demand to come")
        varied = min(evening.horizon, VARIED)
        tries = self.rules.smallest * np.array(list(product((0, -1, 1), repeat=varied)))
        levels = np.tile(evening.cover, (len(tries), 1))
        levels[:, :varied] += tries
        first = self.rules.nearest(evening.demand_on_arrival - evening.on_arrival + tries[:, 0])
        return float(first[self.closed_loop_costs(evening, first, levels).argmin()])


def service_levels(number: int) -> Floats:
    """(n,) chances between 0 and 1, closer together towards 1."""
    return 1 - (1 - (np.arange(number) + 0.5) / number) ** 2


def quantiles(units: Floats, chances: Floats) -> Floats:
    """(c, …) the values that each share of units (m, …) does not exceed."""
    ordered = np.sort(units, axis=0)
    return ordered[np.maximum(np.ceil(chances * len(units) - 1e-9).astype(np.int64) - 1, 0)]


PLANNERS: dict[str, Planner] = {
    "random-trajectories": RandomTrajectories(),
    "cross-entropy": CrossEntropyOrders(),
    "order-up-to": OrderUpTo(),
    "newsvendor": Newsvendor(),
    "heuristic": Heuristic(),
    "oracle": Oracle(),
}
"""Planners by name, with the costs and rules of the paper; `dataclasses.replace` gives them others."""


def _checked(value: ArrayLike, name: str, expected: str) -> Floats:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise CalibrlError(f"{name}: not numbers; expected {expected}") from None
    if array.size and not (array.min() >= 0 and array.max() < np.inf):
        wrong = array[~((array >= 0) & (array < np.inf))][0]
        raise CalibrlError(f"{name}: {wrong} is no number of units; expected {expected}, all finite and 0 or more")
    return array

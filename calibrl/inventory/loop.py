"""One day of one shop, as Algorithm 1 has it, and whole seasons of days for many series."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.distributions import Distribution

from calibrl.algorithm import Forecaster
from calibrl.arrays import device_named
from calibrl.data import Data
from calibrl.distributions import Recalibrated
from calibrl.errors import CalibrlError
from calibrl.inventory.demand import Features, Forecasts, in_units, paths, paths_at
from calibrl.inventory.policy import Planner, RandomTrajectories
from calibrl.inventory.problems import Costs, Day, Floats, Stock, empty_shelf, one_day

Counts: TypeAlias = NDArray[np.int64]
P = TypeVar("P", bound=Planner)

AT_ONCE = 50_000_000
"""Plans times paths that are held in memory at once where nothing is compiled."""


@dataclass(frozen=True)
class OrderedDay:
    """What a day came to: the units ordered the evening before, and what the shelf did with them."""

    order: int
    day: Day


def collect_from(
    rows: Features, *, planner: Planner, shelf_life: int, n_paths: int = 300, seed: int = 0
) -> Callable[[Forecaster], tuple[Data, OrderedDay]]:
    """The `collect` of Algorithm 1 for one series: each call plays the next day with the current model.

    Plan: forecast demand, draw paths, search for an order. Act: the day's demand meets the shelf. Record: the evening
    whose last target day has just ended, if there is one.

    Parameters
    ----------
    rows : Features
        One series' evenings in a row.
    planner : Planner
        Decides the order.
    shelf_life : int
        Days for which the good can be sold.
    n_paths : int
        Demand paths drawn for each decision.
    seed : int
        Of all that is drawn: paths, the search, and which units are sold.

    Returns
    -------
    callable
        model → (rows to learn from, the day), for `calibrl.learn`.
    """
    evenings: Iterator[int] = iter(range(len(rows)))
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    demand = rows.units.nan_to_num(0.0)
    stock = empty_shelf(shelf_life)

    def collect(model: Forecaster) -> tuple[Data, OrderedDay]:
        nonlocal stock
        t = next(evenings, None)
        if t is None:
            raise CalibrlError(f"all {len(rows)} evenings were played; give more rows, or ask for fewer rounds")
        evening = slice(t, t + 1)
        forecast = in_units(model(rows.data.x[evening]), rows.level[evening])
        order = planner(paths(forecast, n_paths, generator)[0], stock, rng=rng)
        day = one_day(stock, float(demand[t, 0]), order, rng=rng, issuing=planner.issuing)
        stock = day.stock
        known = t + 1 - rows.leads
        return rows.data[max(0, known) : max(0, known + 1)], OrderedDay(order, day)

    return collect


@dataclass(frozen=True, eq=False)
class Expected:
    """What was expected of s series on one evening.

    Parameters
    ----------
    rows : Features
        The evening, one row per series.
    forecast : Distribution, batch shape (s, leads)
        In units.
    rank : Tensor of int, shape (s, leads, m)
        Of the demand paths.
    z : Tensor, shape (s, leads)
        Where demand fell in the forecast, as z-scores, NaN where it is not known: to look back.
    """

    rows: Features
    forecast: Distribution
    rank: Tensor
    z: Tensor


def demand_paths(evenings: Sequence[Expected]) -> Floats:
    """Demand paths (s, d, m, leads) of d evenings of the same s series."""
    return np.stack([paths_at(one.forecast, one.rank) for one in evenings], 1)


def collect_season(memory: Forecasts, *, first: int) -> Callable[[Forecaster], tuple[Data, Expected]]:
    """The `collect` of Algorithm 1 for all series: each call is an evening, beginning with that before day `first`.

    Nothing is ordered here, because demand does not depend on it: `play` orders with what was expected. Record: the
    demand of the day after, beside each of the forecasts that were made for it on the evenings before.

    Parameters
    ----------
    memory : Forecasts
        What the model at the bottom expects on each evening.
    first : int
        A day, as a column of the sales.

    Returns
    -------
    callable
        model → (one row per series to learn from, what the model expected), for `calibrl.learn`. The model is `memory`
        or a `Calibrated` on top of it.
    """
    days: Iterator[int] = itertools.count(first)
    rows, leads = memory.rows, memory.rows.leads
    at = {day: np.flatnonzero(rows.day == day) for day in np.unique(rows.day)}
    units = rows.units

    def collect(model: Forecaster) -> tuple[Data, Expected]:
        day = next(days)
        now = at.get(day - 1)
        if now is None:
            raise CalibrlError(f"nothing was forecast on the evening before day {day}; ask for fewer rounds")
        forecast = model(torch.from_numpy(now)[:, None].expand(-1, leads))
        z = memory.z[now]
        if isinstance(forecast, Recalibrated):
            z = forecast.mapping.forward_z(z)
        # The demand of this day was forecast on several evenings, each a day further back.
        asked = torch.zeros((len(rows.scale), leads), dtype=torch.float64)
        known = torch.full_like(asked, torch.nan)
        for k in range(leads):
            then = at.get(day - 1 - k, now[:0])
            asked[rows.series[then], k] = torch.from_numpy(then).double()
            known[rows.series[then], k] = units[then, k]
        return Data(asked, known), Expected(rows[now], forecast, memory.rank[now], z)

    return collect


@dataclass(frozen=True)
class Season:
    """Units of s series on d days.

    Parameters
    ----------
    shipped, sold, wasted, unmet : ndarray of int, shape (s, d)
        Units delivered to the shop, sold, thrown away, and asked for when there were none.
    left : ndarray of int, shape (s,)
        Units on the shelf after the last day: shipped = sold + wasted + left in sum.
    """

    shipped: Counts
    sold: Counts
    wasted: Counts
    unmet: Counts
    left: Counts

    @property
    def reward(self) -> Counts:
        """(s,): the paper's, minus waste and unmet demand, for each series."""
        return -(self.wasted + self.unmet).sum(1)

    def cost(self, costs: Costs | None = None) -> float:
        """Waste and unmet demand of all series at their costs, by default 1 a unit."""
        costs = costs or Costs()
        return costs.waste * int(self.wasted.sum()) + costs.unmet * int(self.unmet.sum())


def play(
    planner: Planner, demand_paths: Floats, demand: Floats, *, shelf_life: int, seed: int, device: str = "cpu"
) -> Season:
    """Order every evening for every series, from an empty shelf.

    Units sold are drawn exactly. Each evening and each day has its own random stream, which depends on the seed alone:
    with the same seed two planners or two forecasts meet the same.

    Parameters
    ----------
    planner : Planner
        Decides all orders.
    demand_paths : ndarray, shape (s, d, m, h)
        What was forecast on the evening before each of d days, for s series: m paths of h days, in units.
    demand : ndarray, shape (s, d)
        What came, in whole units.
    shelf_life : int
        Days for which goods can be sold.
    seed : int
        Of all random streams.
    device : str
        The paper's planner can search on a GPU, for all series at once.

    Returns
    -------
    Season
        Units by series and day.
    """
    series, days = demand.shape
    if demand_paths.shape[:2] != (series, days):
        raise CalibrlError(
            f"paths of shape {demand_paths.shape} do not fit demand of shape {demand.shape}; expected (s, d, m, h) "
            "and (s, d)"
        )
    together = None
    device = device_named(device, float64=True)
    if device != "cpu" and isinstance(planner, RandomTrajectories):
        together = BatchedTrajectories(planner, device=device, seed=seed)
    shipped, sold, wasted, unmet = (np.zeros((series, days), dtype=np.int64) for _ in range(4))
    stock = np.stack([empty_shelf(shelf_life)] * series)
    incoming: list[list[int]] = [[0] * (planner.rules.lead_days - 1) for _ in range(series)]
    for k in range(days):
        if together is not None:
            orders = together(demand_paths[:, k], stock, k)
        else:
            rngs = [np.random.default_rng((seed, i, k)) for i in range(series)]
            orders = order_many(planner, demand_paths[:, k], stock, rngs, incoming=incoming)
        for i in range(series):
            incoming[i].append(int(orders[i]))
            shipped[i, k] = incoming[i].pop(0)
            rng = np.random.default_rng((seed, i, k, 1))
            day = one_day(stock[i], float(demand[i, k]), int(shipped[i, k]), rng=rng, issuing=planner.issuing)
            stock[i], sold[i, k], wasted[i, k], unmet[i, k] = day.stock, day.sold, day.wasted, day.unmet
    return Season(shipped, sold, wasted, unmet, left=stock.sum(1))


def tune(planners: Sequence[P], demand_paths: Floats, demand: Floats, *, shelf_life: int, seed: int) -> P:
    """The planner that would have cost least on days gone by; the first of equals.

    Pass days of the training period only: a planner chosen on the days it is judged on looks better than it is.

    Parameters
    ----------
    planners : sequence of Planner
        To choose from, for example `[Heuristic(factor) for factor in np.arange(1, 2, 0.05)]`.
    demand_paths, demand, shelf_life, seed
        As for `play`.

    Returns
    -------
    Planner
        One of `planners`.
    """
    if not planners:
        raise CalibrlError("planners hold no planner to choose from; pass one or more")

    def cost(planner: P) -> float:
        return play(planner, demand_paths, demand, shelf_life=shelf_life, seed=seed).cost(planner.costs)

    return min(planners, key=cost)


def order_many(
    planner: Planner,
    paths: Floats,
    stock: Counts | Sequence[Stock],
    rngs: Sequence[np.random.Generator] | None = None,
    *,
    incoming: Sequence[ArrayLike] | None = None,
) -> Counts:
    """Tonight's orders of many series.

    Parameters
    ----------
    planner : Planner
        Decides all orders.
    paths : ndarray, shape (s, m, h)
        Demand paths of s series, in units.
    stock : ndarray of int, shape (s, L)
        Units on the shelves, by days to expiry.
    rngs : sequence of numpy.random.Generator, optional
        One for each series, for planners that search at random.
    incoming : sequence of array_like, optional
        Units on their way, for each series: see `Planner`.

    Returns
    -------
    ndarray of int, shape (s,)
        Units to order.
    """
    series = len(paths)
    for name, given in (("stock", stock), ("rngs", rngs), ("incoming", incoming)):
        if given is not None and len(given) != series:
            raise CalibrlError(f"{name} of {len(given)} series does not fit paths of {series}; pass one for each")
    return np.array(
        [
            planner(
                paths[i],
                stock[i],
                rng=rngs[i] if rngs is not None else None,
                incoming=incoming[i] if incoming is not None else (),
            )
            for i in range(series)
        ],
        dtype=np.int64,
    )


# The paper's planner for all series of an evening at once, on a GPU.


def batched_costs(orders: Tensor, paths: Tensor, stock: Tensor, *, waste: float, unmet: float) -> Tensor:
    """Mean cost (s, n) of fixed plans: orders (s, n, h), demand paths (s, m, h), stock (s, L) by days to expiry.

    Random issuing in proportion, as `kernels.stock` computes it for one series. One expression over (s, n, m):
    compiled, it is a single kernel that reads each plan and path once and keeps the shelf in registers.
    """
    shelf = list(stock[:, :, None, None].unbind(1))
    cost = torch.zeros((), dtype=orders.dtype, device=orders.device)
    for k in range(paths.shape[-1]):
        shelf[-1] = shelf[-1] + orders[:, :, None, k]
        there = functools.reduce(torch.add, shelf)
        demand = paths[:, None, :, k]
        left = (there - demand).clamp(min=0)
        keep = left / there.clamp(min=1e-30)
        shelf = [age * keep for age in shelf]
        cost = cost + waste * shelf[0] + unmet * (demand - there + left)
        shelf = [*shelf[1:], torch.zeros_like(shelf[0])]
    return cost.mean(-1)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    fused: Callable[..., Tensor] = torch.compile(batched_costs, dynamic=False)
    return fused


class BatchedTrajectories:
    """`RandomTrajectories` for many series: the same search, its random numbers drawn on the device."""

    def __init__(self, planner: RandomTrajectories, *, device: str, seed: int) -> None:
        rules = planner.rules
        if rules.lead_days != 1 or rules.pack != 1 or rules.minimum or planner.issuing != "random":
            raise CalibrlError(f"{rules} and issuing {planner.issuing!r} are not planned for on a GPU; use device cpu")
        self.planner, self.device, self.seed = planner, device, seed

    def __call__(self, paths: Floats, stock: Counts, evening: int) -> Counts:
        """Orders (s,) of an evening: paths (s, m, h), stock (s, L). Its random stream depends on the seed alone."""
        generator = torch.Generator(self.device).manual_seed(hash((self.seed, evening)) % 2**63)
        demand = torch.from_numpy(paths).to(self.device, torch.float32)
        shelf = torch.from_numpy(stock).to(self.device, torch.float32)
        shape = (len(paths), self.planner.trajectories, paths.shape[-1])
        shares = torch.rand(shape, generator=generator, device=self.device)
        most = demand.amax(1) if self.planner.reach is None else self.planner.reach * demand.mean(1)
        orders = torch.floor(shares * most[:, None] + 0.5)
        best = self._costs(orders, demand, shelf).argmin(1)
        first: Counts = orders[torch.arange(len(orders)), best, 0].long().cpu().numpy()
        return first

    def _costs(self, orders: Tensor, demand: Tensor, shelf: Tensor) -> Tensor:
        prices = {"waste": self.planner.costs.waste, "unmet": self.planner.costs.unmet}
        if self.device.startswith("cuda"):
            return _compiled()(orders, demand, shelf, **prices)
        some = max(1, AT_ONCE // (orders.shape[1] * demand.shape[1]))
        parts = zip(orders.split(some), demand.split(some), shelf.split(some), strict=True)
        return torch.cat([batched_costs(one, ahead, held, **prices) for one, ahead, held in parts])

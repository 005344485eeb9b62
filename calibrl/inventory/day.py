"""One day of one shop, as Algorithm 1 has it, and whole seasons of days for many series."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from calibrl.algorithm import Forecaster
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.inventory.demand import in_units, paths
from calibrl.inventory.features import Features
from calibrl.inventory.fleet import Fleet
from calibrl.inventory.planners import Planner, RandomTrajectories, plan_many
from calibrl.inventory.sales import Floats
from calibrl.inventory.store import Day, empty_shelf, one_day

Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """What a day came to: the units ordered the evening before, and what the shelf did with them."""

    order: int
    day: Day


def collect_from(
    rows: Features, *, planner: Planner, shelf_life: int, n_paths: int = 300, seed: int = 0
) -> Callable[[Forecaster], tuple[Data, Outcome]]:
    """The `collect` of Algorithm 1 for one series: each call plays the next day with the current model.

    rows: one series' evenings in a row. Plan: forecast demand, draw paths, search for an order. Act: the day's demand
    meets the shelf. Record: the evening whose last target day has just ended, if there is one.
    """
    evenings: Iterator[int] = iter(range(len(rows)))
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    demand = rows.units.nan_to_num(0.0)
    stock = empty_shelf(shelf_life)

    def collect(model: Forecaster) -> tuple[Data, Outcome]:
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
        return rows.data[max(0, known) : max(0, known + 1)], Outcome(order, day)

    return collect


@dataclass(frozen=True)
class Season:
    """Units of s series on d days, each (s, d): shipped to the shop, wasted, and unmet demand."""

    shipped: Counts
    wasted: Counts
    unmet: Counts

    @property
    def reward(self) -> Counts:
        """(s,): the paper's, minus waste and unmet demand, for each series."""
        return -(self.wasted + self.unmet).sum(1)


def play(
    planner: Planner, demand_paths: Floats, demand: Floats, *, shelf_life: int, seed: int, device: str = "cpu"
) -> Season:
    """Order every evening for every series, from an empty shelf.

    demand_paths: (s, d, m, h), what was forecast on the evening before each day; demand: (s, d), what came. Units sold
    are drawn exactly. Each evening and each day has its own luck, which depends on the seed alone: with the same seed
    two planners or two forecasts meet the same. The paper's planner can search on a GPU, for all series at once.
    """
    series, days = demand.shape
    if demand_paths.shape[:2] != (series, days):
        raise CalibrlError(
            f"paths of shape {demand_paths.shape} do not fit demand of shape {demand.shape}; expected (s, d, m, h) "
            "and (s, d)"
        )
    fleet = None
    if device != "cpu" and isinstance(planner, RandomTrajectories):
        fleet = Fleet(planner, device=device, seed=seed)
    shipped, wasted, unmet = (np.zeros((series, days), dtype=np.int64) for _ in range(3))
    stock = np.stack([empty_shelf(shelf_life)] * series)
    for k in range(days):
        if fleet is not None:
            shipped[:, k] = fleet(demand_paths[:, k], stock, k)
        else:
            rngs = [np.random.default_rng((seed, i, k)) for i in range(series)]
            shipped[:, k] = plan_many(planner, demand_paths[:, k], stock, rngs)
        for i in range(series):
            luck = np.random.default_rng((seed, i, k, 1))
            day = one_day(stock[i], float(demand[i, k]), int(shipped[i, k]), rng=luck, issuing=planner.issuing)
            stock[i], wasted[i, k], unmet[i, k] = day.stock, day.wasted, day.unmet
    return Season(shipped, wasted, unmet)

"""What plans are expected to cost: a night's paths and a planner's costs and rules, handed to the quickest kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.inventory.planners.night import Night, Planner
from calibrl.inventory.store import ISSUING
from calibrl.kernels import stock, stock_small


def open_loop_costs(
    planner: Planner, night: Night, orders: NDArray[Any], *, give_up: bool = False
) -> NDArray[np.float32]:
    """Mean cost (n,) of ordering orders (n, h - lead_days + 1) whatever happens; poor ones may be given up."""
    arrivals = np.empty((len(orders), night.horizon), dtype=np.float32)
    arrivals[:] = night.incoming
    arrivals[:, night.lead_days - 1 :] += orders
    given, how = (arrivals, night.blocks, len(night.paths)), ISSUING.index(planner.issuing)
    if stock_small.fits(len(night.shelf), night.horizon, how):
        days, issuing = (0,) * night.horizon, (0,) * how
        return stock_small.open_loop_costs(*given, tuple(night.shelf), days, *_prices(planner), issuing, give_up)
    return stock.open_loop_costs(*given, night.shelf, *_prices(planner), how, give_up)


def closed_loop_costs(
    planner: Planner, night: Night, first: NDArray[Any], levels: NDArray[Any], *, give_up: bool = False
) -> NDArray[np.float32]:
    """Mean cost (n,) of ordering first (n,) tonight and up to levels (n, h) later; poor ones may be given up."""
    first, levels = (np.ascontiguousarray(units, dtype=np.float32) for units in (first, levels))
    incoming = night.incoming.astype(np.float32)
    given, how = (first, levels, night.blocks, len(night.paths)), ISSUING.index(planner.issuing)
    terms = (np.float32(planner.rules.pack), np.float32(planner.rules.smallest), *_prices(planner))
    if stock_small.fits(len(night.shelf), night.horizon, how):
        days, lead, issuing = (0,) * night.horizon, tuple(incoming[: night.lead_days]), (0,) * how
        return stock_small.closed_loop_costs(*given, tuple(night.shelf), days, incoming, lead, *terms, issuing, give_up)
    return stock.closed_loop_costs(*given, night.shelf, incoming, night.lead_days, *terms, how, give_up)


def _prices(planner: Planner) -> tuple[np.float32, np.float32]:
    return np.float32(planner.costs.waste), np.float32(planner.costs.unmet)

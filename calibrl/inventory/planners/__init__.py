"""Planners: demand paths and stock in, an order out.

All are called as `planner(paths, stock, rng=rng)` and take `costs`, `rules` and `issuing` when made.
"""

from calibrl.inventory.planners.levels import OrderUpTo
from calibrl.inventory.planners.night import Night, Planner, Rules
from calibrl.inventory.planners.open_loop import CrossEntropyOrders, RandomTrajectories
from calibrl.inventory.planners.replay import Ledger, plan_many, replay, tune
from calibrl.inventory.planners.simple import Heuristic, Newsvendor, Oracle
from calibrl.inventory.store import Costs

PLANNERS: dict[str, Planner] = {
    "random-trajectories": RandomTrajectories(),
    "cross-entropy": CrossEntropyOrders(),
    "order-up-to": OrderUpTo(),
    "newsvendor": Newsvendor(),
    "heuristic": Heuristic(),
    "oracle": Oracle(),
}
"""Planners by name, with the costs and rules of the paper; `dataclasses.replace` gives them others."""

__all__ = [
    "PLANNERS",
    "Costs",
    "CrossEntropyOrders",
    "Heuristic",
    "Ledger",
    "Newsvendor",
    "Night",
    "Oracle",
    "OrderUpTo",
    "Planner",
    "RandomTrajectories",
    "Rules",
    "plan_many",
    "replay",
    "tune",
]

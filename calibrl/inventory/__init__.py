"""Perishable inventory: forecast demand with calibrated distributions, and order with them.

`PerishableStore`, the Gymnasium environment, is in `calibrl.inventory.environment` because it needs an extra.
"""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.inventory.demand import Features as Features
    from calibrl.inventory.demand import Forecasts as Forecasts
    from calibrl.inventory.demand import in_units as in_units
    from calibrl.inventory.demand import paths as paths
    from calibrl.inventory.demand import zscores as zscores
    from calibrl.inventory.loop import Season as Season
    from calibrl.inventory.loop import collect_from as collect_from
    from calibrl.inventory.loop import collect_season as collect_season
    from calibrl.inventory.loop import order_many as order_many
    from calibrl.inventory.loop import play as play
    from calibrl.inventory.loop import tune as tune
    from calibrl.inventory.policy import PLANNERS as PLANNERS
    from calibrl.inventory.policy import CrossEntropyOrders as CrossEntropyOrders
    from calibrl.inventory.policy import Heuristic as Heuristic
    from calibrl.inventory.policy import Newsvendor as Newsvendor
    from calibrl.inventory.policy import Oracle as Oracle
    from calibrl.inventory.policy import OrderUpTo as OrderUpTo
    from calibrl.inventory.policy import Planner as Planner
    from calibrl.inventory.policy import RandomTrajectories as RandomTrajectories
    from calibrl.inventory.problems import Costs as Costs
    from calibrl.inventory.problems import Day as Day
    from calibrl.inventory.problems import Issuing as Issuing
    from calibrl.inventory.problems import Periods as Periods
    from calibrl.inventory.problems import Rules as Rules
    from calibrl.inventory.problems import Sales as Sales
    from calibrl.inventory.problems import bakery as bakery
    from calibrl.inventory.problems import empty_shelf as empty_shelf
    from calibrl.inventory.problems import favorita as favorita
    from calibrl.inventory.problems import one_day as one_day

__getattr__, __dir__, __all__ = exports(__name__)

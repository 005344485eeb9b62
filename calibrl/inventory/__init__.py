"""Perishable inventory: forecast demand honestly, order with it.

`PerishableStore`, the Gymnasium environment, is in `calibrl.inventory.environment` because it needs an extra.
"""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.inventory.store import Costs as Costs
    from calibrl.inventory.store import Day as Day
    from calibrl.inventory.store import Issuing as Issuing
    from calibrl.inventory.store import Rules as Rules
    from calibrl.inventory.store import empty_shelf as empty_shelf
    from calibrl.inventory.store import one_day as one_day

__getattr__, __dir__, __all__ = exports(__name__)

"""Perishable inventory: forecast demand honestly, order with it.

`PerishableStore`, the Gymnasium environment, is in `calibrl.inventory.environment` because it needs an extra.
"""

from calibrl.inventory.store import Costs, Day, Issuing, empty_shelf, one_day

__all__ = ["Costs", "Day", "Issuing", "empty_shelf", "one_day"]

"""Perishable inventory: forecast demand honestly, order with it."""

from calibrl.inventory.store import Costs, Day, Issuing, empty_shelf, one_day

__all__ = ["Costs", "Day", "Issuing", "empty_shelf", "one_day"]

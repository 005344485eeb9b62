"""What orders obey, item by item: how long each keeps, how it is delivered, what waste and lost sales cost.

    item                     needed; with a column store, an empty store means every store
    shelf_life               days on the shelf, the day of delivery included
    pack_size, minimum_order units
    lead_days                1: ordered tonight, on the shelf tomorrow
    delivery_days            "Mon Wed Fri", "Mon-Fri", or daily
    cost_of_waste            what a unit thrown away costs
    cost_of_lost_sale        what a lost sale costs, per unit

A cell left empty, a column left out and an item left out all mean the default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from calibrl.inventory.files import item_stores
from calibrl.inventory.history import AHEAD, Key, first_few, named
from calibrl.tables.reader import Cells, read_cells

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

LONGEST_LIFE = 3650
LONGEST_LEAD = AHEAD - 2 * 7
"""Days of lead that leave room to plan for a delivery a week and the one after it."""


DAILY = (True,) * 7


@dataclass(frozen=True)
class Item:
    """The rules an order for one item obeys.

    Parameters
    ----------
    shelf_life : int
        Days on the shelf, the day of delivery included.
    pack_size, minimum_order : int
        Units.
    lead_days : int
        Days from the evening of the order to the delivery: 1 is on the shelf tomorrow.
    delivery_days : tuple of 7 bool
        The weekdays with a delivery, from Monday.
    cost_of_waste, cost_of_lost_sale : float
        Of a unit thrown away, and of one that was asked for and not there.

    Examples
    --------
    >>> Item(shelf_life=7, pack_size=12, delivery_days=(True, False, True, False, True, False, False)).deliveries
    'Mon Wed Fri'
    """

    shelf_life: int = 3
    pack_size: int = 1
    minimum_order: int = 0
    lead_days: int = 1
    delivery_days: tuple[bool, ...] = DAILY
    cost_of_waste: float = 1.0
    cost_of_lost_sale: float = 1.0

    @property
    def deliveries(self) -> str:
        """The delivery days in words."""
        if all(self.delivery_days):
            return "daily"
        return " ".join(name[:3] for name, yes in zip(WEEKDAYS, self.delivery_days, strict=True) if yes)


FREE = {
    "cost_of_waste": "if waste cost nothing, no order could be too large",
    "cost_of_lost_sale": "if lost sales cost nothing, it would be best never to order",
}

RULES = [field.name for field in fields(Item)]


@dataclass(frozen=True)
class Items:
    """The rules of s item-stores, and what was assumed because the file did not say."""

    rules: tuple[Item, ...]
    assumed: tuple[str, ...]


def read_items(path: str | Path | None, keys: tuple[Key, ...], *, sales: str) -> Items:
    """The rules of the item-stores `keys`, from a file or by default. sales: what errors call the sales file."""
    standard = Item()
    if path is None:
        return Items((standard,) * len(keys), (f"No item file: {_assumed(standard, RULES)}.",))
    cells, rows = _item_rows(path)
    known = {*keys, *((item, "") for item, _ in keys)}
    for key, row in rows.items():
        if key not in known:
            cells.complain(
                row,
                "item",
                f"{named(key)!r} is not in {sales}; correct the name, drop the line, or add a row with "
                "empty units there to order a new item on a guess",
            )
    columns = _columns(cells)
    rules, silent = [], []
    for item, store in keys:
        at = rows.get((item, store), rows.get((item, "")))
        if at is None:
            silent.append(named((item, store)))
            rules.append(standard)
        else:
            rules.append(replace(standard, **{name: column[at] for name, column in columns.items() if at in column}))
    assumed = []
    left_out = [name for name in RULES if not cells.has(name)]
    if left_out:
        assumed.append(f"Not in {path}: {_assumed(standard, left_out)}.")
    if silent:
        assumed.append(f"No line for {first_few(silent)}: {_assumed(standard, RULES)}.")
    return Items(tuple(rules), tuple(assumed))


def items_named(path: str | Path) -> tuple[Key, ...]:
    """The item-stores an item file names, for a shop without any sales yet."""
    return tuple(sorted(_item_rows(path)[1]))


def _item_rows(path: str | Path) -> tuple[Cells, dict[Key, int]]:
    """The cells of an item file, and the row of each item-store."""
    cells = read_cells(path, needed=("item",), optional=("store", *RULES), what="an item file")
    found: dict[Key, int] = {}
    keys, place = item_stores(cells, stores=cells.has("store"), needed=False)
    for row, key in enumerate(keys[k] for k in place):
        if key in found:
            cells.complain(row, "item", f"{named(key)!r} stands on {cells.where(found[key])} already; keep one")
        found[key] = row
    return cells, found


def _columns(cells: Cells) -> dict[str, dict[int, Any]]:
    """What the item file says, by column and row; cells left empty are left out."""
    found: dict[str, dict[int, Any]] = {}
    smaller = ", so count in smaller units (grams, not kilograms)"
    for name, least, most, what, cure in (
        ("shelf_life", 1, LONGEST_LIFE, "a shelf life in days", ""),
        ("pack_size", 1, 1e6, "a pack size", smaller),
        ("minimum_order", 0, 1e6, "a minimum order", smaller),
        ("lead_days", 1, LONGEST_LEAD, "a lead time in days", ""),
    ):
        values = cells.at_least(name, least, what, most=most, whole=True, cure=cure)
        found[name] = {row: int(value) for row, value in enumerate(values) if not np.isnan(value)}
    for name in ("cost_of_waste", "cost_of_lost_sale"):
        costs = cells.at_least(name, 0, "a cost")
        for row in np.flatnonzero((costs == 0) | (costs > 1e9)).tolist():
            cells.complain(
                row,
                name,
                f"{costs[row]:g} is not a cost per unit; expected more than 0, such as what a unit was bought for "
                f"(waste) or earns (a lost sale): {FREE[name]}",
            )
        found[name] = {row: float(value) for row, value in enumerate(costs) if not np.isnan(value)}
    text = cells.texts("delivery_days", needed=False)
    found["delivery_days"] = {row: _weekdays(cells, row, words) for row, words in enumerate(text) if words}
    return found


def _weekdays(cells: Cells, row: int, words: str) -> tuple[bool, ...]:
    """Seven flags, from Monday."""
    if words.strip().lower() in {"daily", "every day", "all"}:
        return DAILY
    days = [False] * 7
    joined = re.sub(r"\s*(?:[-\u2010-\u2015]|\bto\b)\s*", "-", words.strip(), flags=re.IGNORECASE)
    for word in re.split(r"[\s,;/+&|]+", joined):
        ends = [_weekday(part) for part in word.split("-")]
        if None in ends or len(ends) > 2:
            cells.complain(
                row, "delivery_days", f"{word[:40]!r} is no weekday; write them like Mon Wed Fri, Mon-Fri, or daily"
            )
        first, last = (cast(int, end) for end in (ends[0], ends[-1]))
        for k in range((last - first) % 7 + 1):
            days[(first + k) % 7] = True
    return tuple(days)


def _weekday(word: str) -> int | None:
    """A weekday by its name or three or more letters of it, from Monday, 0; a plural or a full stop does no harm."""
    name = word.lower().removesuffix(".")
    for k, full in enumerate(day.lower() for day in WEEKDAYS):
        if (len(name) >= 3 and f"{full}s".startswith(name)) or name == f"{full[:3]}s":
            return k
    return None


def _assumed(item: Item, names: list[str]) -> str:
    """Defaults, as a person would say them."""
    words = {
        "shelf_life": f"a shelf life of {item.shelf_life} days",
        "pack_size": "single units",
        "minimum_order": "no minimum order",
        "lead_days": "ordered tonight, on the shelf tomorrow",
        "delivery_days": "deliveries every day",
        "cost_of_waste": f"{item.cost_of_waste:g} per unit wasted",
        "cost_of_lost_sale": f"{item.cost_of_lost_sale:g} per lost sale",
    }
    return "assumed " + ", ".join(words[name] for name in names)

"""The item file: how long an item keeps, how it is delivered, and what waste and lost sales cost.

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

from calibrl.shop.cells import Cells, read_cells
from calibrl.shop.sales_file import AHEAD, Key, named

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
FULL_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

OPTIONAL = (
    "store",
    "shelf_life",
    "pack_size",
    "minimum_order",
    "lead_days",
    "delivery_days",
    "cost_of_waste",
    "cost_of_lost_sale",
)

LONGEST_LIFE = 3650
LONGEST_LEAD = AHEAD - 2 * 7
"""Days of lead that leave room to plan for a delivery a week and the one after it."""


@dataclass(frozen=True)
class Item:
    """The rules an order for one item obeys; delivery_days: seven flags from Monday."""

    shelf_life: int = 3
    pack_size: int = 1
    minimum_order: int = 0
    lead_days: int = 1
    delivery_days: tuple[bool, ...] = (True,) * 7
    cost_of_waste: float = 1.0
    cost_of_lost_sale: float = 1.0

    @property
    def deliveries(self) -> str:
        """The delivery days in words."""
        if all(self.delivery_days):
            return "daily"
        return " ".join(name for name, yes in zip(WEEKDAYS, self.delivery_days, strict=True) if yes)


@dataclass(frozen=True)
class Items:
    """The rules of s item-stores, and what was assumed because the file did not say."""

    rules: tuple[Item, ...]
    assumed: tuple[str, ...]


def read_items(path: str | Path | None, keys: tuple[Key, ...], *, sales: str) -> Items:
    """The rules of the item-stores `keys`, from a file or by default. sales: what errors call the sales file."""
    standard = Item()
    if path is None:
        return Items((standard,) * len(keys), (f"No item file: {_in_words(standard, _FIELDS)}.",))
    cells = read_cells(path, needed=("item",), optional=OPTIONAL, what="an item file")
    rows = _rows(cells)
    known = set(keys)
    names = {item for item, _ in keys}
    for key, row in rows.items():
        if key[0] not in names or (key[1] and key not in known):
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
    left_out = [name for name in _FIELDS if name not in columns]
    if left_out:
        assumed.append(f"Not in {path}: {_in_words(standard, left_out)}.")
    if silent:
        shown = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
        assumed.append(f"No line for {shown}: {_in_words(standard, _FIELDS)}.")
    return Items(tuple(rules), tuple(assumed))


def items_named(path: str | Path) -> tuple[Key, ...]:
    """The item-stores an item file names, for a shop without any sales yet."""
    cells = read_cells(path, needed=("item",), optional=OPTIONAL, what="an item file")
    return tuple(sorted(_rows(cells)))


_FIELDS = [field.name for field in fields(Item)]
_IN_UNITS = ("pack_size", "minimum_order")


def _rows(cells: Cells) -> dict[Key, int]:
    """The row of each item-store."""
    items = cells.texts("item")
    stores = cells.texts("store", needed=False) if cells.has("store") else [""] * len(items)
    found: dict[Key, int] = {}
    for row, key in enumerate(zip(items, stores, strict=True)):
        if key in found:
            cells.complain(row, "item", f"{named(key)!r} stands on {cells.where(found[key])} already; keep one")
        found[key] = row
    return found


def _columns(cells: Cells) -> dict[str, dict[int, Any]]:
    """What the file says, by column and row; cells left empty are left out."""
    found: dict[str, dict[int, Any]] = {}
    for name, least, most, what in (
        ("shelf_life", 1, LONGEST_LIFE, "a shelf life in days"),
        ("pack_size", 1, 1e6, "a pack size"),
        ("minimum_order", 0, 1e6, "a minimum order"),
        ("lead_days", 1, LONGEST_LEAD, "a lead time in days"),
    ):
        if cells.has(name):
            smaller = ", so count in smaller units (grams, not kilograms)" if name in _IN_UNITS else ""
            values = cells.at_least(name, least, what, whole=True, cure=smaller)
            found[name] = {row: int(value) for row, value in enumerate(values) if not np.isnan(value)}
            for row, value in found[name].items():
                if value > most:
                    cells.complain(row, name, f"{value} is not {what}; expected {most:g} at most")
    for name in ("cost_of_waste", "cost_of_lost_sale"):
        if cells.has(name):
            values = cells.at_least(name, 0, "a cost")
            found[name] = {row: float(value) for row, value in enumerate(values) if not np.isnan(value)}
            for row, value in found[name].items():
                if value == 0 or value > 1e9:
                    cells.complain(row, name, f"{value:g} is not a cost per unit; expected more than 0")
    if cells.has("delivery_days"):
        text = cells.texts("delivery_days", needed=False)
        found["delivery_days"] = {row: _weekdays(cells, row, words) for row, words in enumerate(text) if words}
    return found


def _weekdays(cells: Cells, row: int, words: str) -> tuple[bool, ...]:
    if words.strip().lower() in {"daily", "every day", "all"}:
        return (True,) * 7
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
    for k, full in enumerate(FULL_NAMES):
        if (len(name) >= 3 and f"{full}s".startswith(name)) or name == f"{full[:3]}s":
            return k
    return None


def _in_words(item: Item, names: list[str]) -> str:
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

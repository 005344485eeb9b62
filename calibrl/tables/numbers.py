"""Numbers as people and programs write them into tables."""

from __future__ import annotations

import re

import polars as pl

UNSEEN = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
"""How programs write that a value is missing."""

DECIMAL_COMMA = r"^[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0|\d{4,}),\d+)$"
"""A number whose comma cannot stand between thousands."""


def parse_numbers(text: pl.Series) -> tuple[pl.Series, int | None]:
    """Text as float64, null where it says that a value is missing; and the first row that holds no number.

    Decimals have a point, or a comma throughout the column.
    """
    text = text.str.strip_chars()
    commas = text.str.contains(DECIMAL_COMMA).any() and not text.str.contains(".", literal=True).any()
    parsed = (text.str.replace(",", ".", literal=True) if commas else text).cast(pl.Float64, strict=False)
    odd = parsed.is_null() & text.is_not_null() & ~text.is_in(UNSEEN)
    return parsed, int(odd.arg_true()[0]) if odd.any() else None


def cure(text: str, *, expected: str = "a number or an empty cell") -> str:
    """What to do about a text that is no number, where something else was expected."""
    if re.fullmatch(r"[-+]?\d{1,3}(?:([,.' \u00a0\u202f])\d{3})(?:\1\d{3})*(?:[.,]\d+)?", text.strip()):
        return "drop the thousands separator"
    return "write decimals with a point" if "," in text else f"expected {expected}"

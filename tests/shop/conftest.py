"""A small shop: three items, one store, a year of sales, closed on Sundays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

Write = Callable[..., Path]
FIRST = np.datetime64("2025-01-01")  # a Wednesday


def small_shop(days: int = 200, *, items: tuple[str, ...] = ("bread", "milk", "rolls"), seed: int = 0) -> pl.DataFrame:
    """Sales with a strong Saturday, one row per open day and item."""
    rng = np.random.default_rng(seed)
    date = FIRST + np.arange(days)
    weekday = (date.astype(int) + 3) % 7
    rows = []
    for k, item in enumerate(items):
        mean = (12.0 * (k + 1)) * np.where(weekday == 5, 1.6, 1.0)
        units = rng.poisson(mean)
        rows += [
            {"date": day.item(), "item": item, "units": int(count)}
            for day, count, closed in zip(date, units, weekday == 6, strict=True)
            if not closed
        ]
    return pl.DataFrame(rows).sort("date", "item")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: str | pl.DataFrame, name: str = "sales.csv") -> Path:
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif path.suffix == ".parquet":
            content.write_parquet(path)
        else:
            content.write_csv(path)
        return path

    return to_file

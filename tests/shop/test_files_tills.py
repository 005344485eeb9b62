"""Twenty sales files of one shop, as real tills and spreadsheets write them: each gives the same orders."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from calibrl.inventory.files import Reading
from calibrl.shop.files import read_shop
from calibrl.shop.orders import make_orders
from tests.shop.conftest import small_shop

SHOP = small_shop(80, items=("brioche", "müsli", "rolls")).with_columns(pl.col("date").cast(pl.String))
DAYS = SHOP.with_columns(pl.col("date").str.to_date())
GERMAN = {"date": "Datum", "item": "Artikel", "units": "Menge"}
AMERICAN = {"date": "Date", "item": "Item Name", "units": "Qty Sold"}


def text(frame: pl.DataFrame, *, form: str = "%Y-%m-%d", separator: str = ",") -> str:
    return frame.with_columns(pl.col("date").str.to_date().dt.strftime(form)).write_csv(separator=separator)


def receipts(form: str = "%Y-%m-%d %H:%M") -> pl.DataFrame:
    """Two lines for each item and day, of which the second holds what the first does not."""
    first = pl.col("units") // 2
    morning = SHOP.with_columns(units=first, date=pl.col("date") + " 08:10")
    later = SHOP.with_columns(units=pl.col("units") - first, date=pl.col("date") + " 15:45")
    return pl.concat([morning, later]).with_columns(
        date=pl.col("date").str.to_datetime("%Y-%m-%d %H:%M").dt.strftime(form)
    )


def returned() -> pl.DataFrame:
    """A unit too many in each of some lines, which comes back in the next."""
    some = SHOP.filter(pl.int_range(pl.len()) % 9 == 0)
    return pl.concat(
        [SHOP, some.with_columns(units=pl.lit(1, pl.Int64)), some.with_columns(units=pl.lit(-1, pl.Int64))]
    )


def by_item() -> pl.DataFrame:
    return SHOP.pivot("item", index="date", values="units")


def by_day() -> pl.DataFrame:
    days = SHOP.with_columns(pl.col("date").str.to_date().dt.strftime("%d.%m.%Y"))
    return days.pivot("date", index="item", values="units")


def with_zeros() -> pl.DataFrame:
    """Every day a row, closed ones too."""
    days = pl.DataFrame({"date": [str(np.datetime64("2025-01-01") + k) for k in range(80)]})
    whole = days.join(SHOP.select("item").unique(), how="cross").join(SHOP, on=["date", "item"], how="left")
    return whole.with_columns(pl.col("units").fill_null(0), closed=pl.col("units").is_null().cast(pl.Int8))


Till = tuple[str, Callable[[Path], object], Reading]
PLAIN = Reading()

TILLS: dict[str, Till] = {
    "comma": ("sales.csv", lambda path: path.write_text(text(SHOP)), PLAIN),
    "german": (
        "Umsatz.csv",
        lambda path: path.write_bytes(
            DAYS.with_columns(pl.col("date").dt.strftime("%d.%m.%Y"))
            .rename(GERMAN)
            .write_csv(separator=";")
            .encode("latin-1")
        ),
        PLAIN,
    ),
    "tabs": ("sales.tsv", lambda path: path.write_text(text(SHOP, separator="\t")), PLAIN),
    "bars": ("sales.txt", lambda path: path.write_text(text(SHOP, separator="|")), PLAIN),
    "compressed": ("sales.csv.gz", lambda path: path.write_bytes(gzip.compress(text(SHOP).encode())), PLAIN),
    "byte order mark": ("sales.csv", lambda path: path.write_bytes(b"\xef\xbb\xbf" + text(SHOP).encode()), PLAIN),
    "unicode text of Excel": (
        "sales.txt",
        lambda path: path.write_bytes(text(SHOP, separator="\t").encode("utf-16")),
        PLAIN,
    ),
    "windows line ends": ("sales.csv", lambda path: path.write_bytes(text(SHOP).replace("\n", "\r\n").encode()), PLAIN),
    "excel": ("sales.xlsx", lambda path: DAYS.write_excel(path), PLAIN),
    "excel, dates as text": ("sales.xlsx", lambda path: SHOP.write_excel(path), PLAIN),
    "parquet": (
        "sales.parquet",
        lambda path: DAYS.write_parquet(path),
        PLAIN,
    ),
    "feather": ("sales.feather", lambda path: SHOP.write_ipc(path), PLAIN),
    "american receipts": (
        "Item Sales.csv",
        lambda path: receipts("%m/%d/%Y %I:%M %p").rename(AMERICAN).write_csv(path),
        PLAIN,
    ),
    "receipts": ("receipts.csv", lambda path: receipts().write_csv(path), PLAIN),
    "returns": ("sales.csv", lambda path: returned().write_csv(path), PLAIN),
    "a column for each item": ("wide.csv", lambda path: by_item().write_csv(path), PLAIN),
    "a column for each day": ("wide.xlsx", lambda path: by_day().write_excel(path), PLAIN),
    "totals": ("sales.csv", lambda path: path.write_text(text(SHOP) + "Total,,12345\n"), PLAIN),
    "zeros on closed days": ("sales.csv", lambda path: with_zeros().write_csv(path), PLAIN),
    "odd names": (
        "sales.csv",
        lambda path: SHOP.rename({"date": "when", "item": "what", "units": "how many"}).write_csv(path),
        Reading({"date": "when", "item": "what", "units": "how many"}),
    ),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    path = tmp_path_factory.mktemp("plain") / "sales.csv"
    SHOP.write_csv(path)
    return [(order.key[0], order.decision.units) for order in make_orders(read_shop(path))]


@pytest.mark.parametrize("name", TILLS)
def test_every_till_gives_the_same_orders(tmp_path: Path, expected: list[tuple[str, int]], name: str) -> None:
    file, write, reading = TILLS[name]
    write(tmp_path / file)
    shop = read_shop(tmp_path / file, reading=reading)
    found = [(order.key[0], order.decision.units) for order in make_orders(shop)]
    assert [item for item, _ in found] == [item for item, _ in expected]
    # A unit more or less where closed days have a row: the first Sundays are then known to be closed.
    assert [units for _, units in found] == pytest.approx(
        [units for _, units in expected], abs=name == "zeros on closed days"
    )
    assert shop.done.startswith("Done to the sales: ")


def test_a_file_without_an_item_is_about_one(tmp_path: Path) -> None:
    SHOP.filter(pl.col("item") == "rolls").drop("item").write_csv(tmp_path / "rolls.csv")
    shop = read_shop(tmp_path / "rolls.csv")
    assert shop.history.keys == (("rolls", ""),)
    assert "no column item: all is rolls" in shop.done

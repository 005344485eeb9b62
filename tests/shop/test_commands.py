"""`calibrl order`, as a shopkeeper meets it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from calibrl.__main__ import main

DATA = Path(__file__).parent.parent.parent / "examples" / "data"
FILES = ("--sales", "sales.csv", "--stock", "stock.csv", "--items", "items.csv")


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Shell = Callable[..., Answer]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run `calibrl order` in a folder with the example shop's files."""
    monkeypatch.chdir(tmp_path)
    for name in ("sales.csv", "stock.csv", "items.csv", "deliveries.csv"):
        shutil.copy(DATA / name, tmp_path / name)

    def run(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["calibrl", "order", *words])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        return Answer(int(end.value.code or 0), shown.out, shown.err)

    return run


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"sales.csv", "stock.csv", "items.csv", "deliveries.csv"}


def test_the_example_shop_gets_sensible_orders(shell: Shell, tmp_path: Path) -> None:
    answer = shell(*FILES, "--out", "orders.csv")
    assert answer.code == 0, answer.err
    assert files(tmp_path) == {"orders.csv"}
    orders = pl.read_csv("orders.csv", try_parse_dates=True)
    assert len(orders) == 10
    rules = pl.read_csv("items.csv")
    both = orders.join(rules, on="item", suffix="_rule")
    assert (both["units"] == both["packs"] * both["pack_size_rule"]).all()
    assert ((both["units"] == 0) | (both["units"] >= both["minimum_order_rule"])).all()
    for low, high in (("demand_low_90", "demand_low_50"), ("demand_low_50", "demand_high_50")):
        assert (orders[low] <= orders[high]).all()
    assert (orders["demand"] > orders["demand_low_90"]).all()
    assert orders["stockout_probability"].is_between(0, 1).all()
    # Croissants come tomorrow and keep for a day: between the quartiles and the upper end of demand.
    fresh = orders.filter(pl.col("item") == "croissant")
    assert ((fresh["units"] >= fresh["demand_low_50"]) & (fresh["units"] <= fresh["demand_high_90"])).all()
    promoted = orders.filter(pl.col("item").str.starts_with("strawberries"))["reason"]
    assert all("with the promotion" in words for words in promoted)
    assert "Sunday" in orders.filter(pl.col("item") == "fresh milk 1 l")["reason"][0]
    assert "croissant" in answer.out
    assert "Written: orders.csv" in answer.out


def test_parquet_in_and_out_is_the_same(shell: Shell, tmp_path: Path) -> None:
    assert shell(*FILES, "--out", "orders.csv").code == 0
    pl.read_csv("sales.csv", try_parse_dates=True).write_parquet("sales.parquet")
    answer = shell("--sales", "sales.parquet", *FILES[2:], "--out", "orders.parquet")
    assert answer.code == 0, answer.err
    text, binary = pl.read_csv("orders.csv", try_parse_dates=True), pl.read_parquet("orders.parquet")
    assert text.drop("reason").equals(binary.drop("reason").cast(dict(text.drop("reason").schema)))


def test_a_backtest_reports_money_and_draws(shell: Shell, tmp_path: Path) -> None:
    answer = shell(
        *FILES, "--out", "o/orders.csv", "--backtest", "1w", "--deliveries", "deliveries.csv", "--plot", "o/fan.png"
    )
    assert answer.code == 0, answer.err
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "fan.png",
        "orders.csv",
        "orders-backtest.csv",
        "orders-backtest.png",
    }
    for words in ("as delivered", "1.5 x expected demand", "planned, uncalibrated", "planned, calibrated", "fill rate"):
        assert words in answer.out
    assert "so few weeks cannot tell; replay four or more" in answer.out
    assert (tmp_path / "o" / "orders-backtest.png").read_bytes().startswith(b"\x89PNG")


BAD = {
    "suffix": (("--out", "orders.xlsx"), "orders.xlsx: suffix '.xlsx' cannot be written"),
    "period": (("--out", "o.csv", "--backtest", "soon"), "--backtest 'soon' is not a period"),
    "short period": (("--out", "o.csv", "--backtest", "3d"), "--backtest '3d' is not a period of a week or more"),
    "date": (("--out", "o.csv", "--date", "28.5.2026"), "--date '28.5.2026' is not a date"),
    "date too early": (("--out", "o.csv", "--date", "2020-01-01"), "nothing on or before 2020-01-01"),
    "deliveries alone": (("--out", "o.csv", "--deliveries", "deliveries.csv"), "is for a backtest; add --backtest"),
    "no file": (("--sales", "nowhere.csv", "--out", "old.csv"), "nowhere.csv: does not exist"),
    "old stock": (("--stock", "old.csv", "--out", "o.csv"), "old.csv, line 2, column as_of: counted on 2026-05-20"),
    "shelf life": (("--items", "zero.csv", "--out", "o.csv"), "zero.csv, line 2, column shelf_life: 0 is not"),
    "folder": (("--out", "sales.csv/o.csv"), "cannot be written"),
    "over the sales": (("--out", "sales.csv"), "sales.csv: is read as sales.csv, and would be overwritten"),
    "over the stock": (("--stock", "stock.csv", "--out", "./stock.csv"), "stock.csv: is read as stock.csv, and would"),
    "by another name": (("--out", "link.csv"), "link.csv: is read as sales.csv, and would be overwritten"),
    "backtest over the sales": (
        ("--sales", "o-backtest.csv", "--out", "o.csv", "--backtest", "8w"),
        "o-backtest.csv: is read as o-backtest.csv, and would be overwritten",
    ),
    "twice": (("--out", "o.csv", "--plot", "o-backtest.png", "--backtest", "8w"), "would be written twice"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_line_and_no_output(shell: Shell, tmp_path: Path, case: str) -> None:
    (tmp_path / "old.csv").write_text("item,store,units,expires,as_of\ncroissant,Station,3,2026-05-30,2026-05-20\n")
    (tmp_path / "zero.csv").write_text("item,shelf_life\ncroissant,0\n")
    (tmp_path / "link.csv").hardlink_to(tmp_path / "sales.csv")
    shutil.copy(tmp_path / "sales.csv", tmp_path / "o-backtest.csv")
    history = (tmp_path / "sales.csv").read_bytes()
    words, message = BAD[case]
    sales = () if "--sales" in words else ("--sales", "sales.csv")
    before = files(tmp_path)
    answer = shell(*sales, *words)
    assert answer.code == 2
    assert answer.err.startswith("calibrl: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert files(tmp_path) == before
    assert (tmp_path / "sales.csv").read_bytes() == history


def test_a_new_item_is_ordered_with_a_warning(shell: Shell, tmp_path: Path) -> None:
    with (tmp_path / "sales.csv").open("a") as file:
        file.write("2026-05-29,oat drink,Station,,2.10,0,\n")
    answer = shell("--sales", "sales.csv", "--out", "orders.csv")
    assert answer.code == 0
    assert "no sales on record for oat drink in Station: ordered on a guess" in answer.err
    found = pl.read_csv("orders.csv").filter(pl.col("item") == "oat drink")
    assert "a guess from other stores or items" in found["reason"][0]

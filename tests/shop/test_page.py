"""The manager's page: complete, harmless, most at risk first."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from calibrl.shop.files import Shop, read_shop
from calibrl.shop.orders import Order, intervals, make_orders
from calibrl.shop.page import SCRIPT, orders_page
from calibrl.text import policy
from tests.shop.conftest import small_shop

ODD = '<script>alert(1)</script> & "rye"'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, list[Order]]:
    path = tmp_path_factory.mktemp("page") / "sales.parquet"
    small_shop(120, items=("bread", ODD, "rolls")).write_parquet(path)
    shop = read_shop(path)
    return shop, make_orders(shop, look_back=28)


def test_the_page_has_every_order_with_most_at_risk_first(made: tuple[Shop, list[Order]]) -> None:
    shop, orders = made
    text = orders_page(shop, orders)
    risk = [float(found) for found in re.findall(r'data-risk="([\d.]+)"', text)]
    assert len(risk) == 3
    assert risk == sorted(risk, reverse=True)
    first = max(orders, key=lambda order: order.at_risk)
    assert risk[0] == pytest.approx(first.at_risk, abs=1e-3)
    expected = first.item.cost_of_waste * first.decision.waste + first.item.cost_of_lost_sale * first.decision.lost
    assert first.at_risk == pytest.approx(expected)
    for order in orders:
        assert f'<p class="units">{order.decision.units:,}</p>' in text
    assert text.count("<svg") == 3
    assert "Were the intervals right?" in text


def test_names_are_harmless_and_nothing_else_is_let_in(made: tuple[Shop, list[Order]]) -> None:
    shop, orders = made
    text = orders_page(shop, orders)
    assert "<script>alert" not in text
    (sheet,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert script == SCRIPT.read_text(encoding="utf-8")
    said = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert said is not None
    assert said[1].replace("&#x27;", "'") == policy(styles=[sheet], scripts=[script])
    # The policy would refuse styles and handlers within tags.
    tags = re.findall(r"<[a-z][^>]*>", re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.S))
    assert not [tag for tag in tags if re.search(r"\s(style|on\w+)=|https?://", tag)]


def test_what_was_expected_the_evening_before_is_what_was_forecast_then(made: tuple[Shop, list[Order]]) -> None:
    shop, orders = made
    for order in orders:
        assert order.past.shape == (3, 28)
        assert (np.diff(order.past, axis=0) >= 0).all()
    demand = shop.history.sales.demand[:, shop.history.today - 27 : shop.history.today + 1]
    past = np.stack([order.past for order in orders])
    known = ~np.isnan(demand) & (past[:, 2] > 0)
    inside = (past[:, 0] <= demand) & (demand <= past[:, 2])
    assert 0.8 <= inside[known].mean() <= 1


def test_without_a_look_back_there_is_no_word_on_it(made: tuple[Shop, list[Order]]) -> None:
    shop, orders = made
    bare = [replace(order, past=np.zeros((3, 0))) for order in orders]
    assert "Were the intervals right?" not in orders_page(shop, bare)


def test_intervals_hold_what_they_say_in_whole_units() -> None:
    rng = np.random.default_rng(0)
    for mean in (0.3, 1.0, 4.0, 50.0):
        drawn = rng.poisson(mean, (1, 20_000)).astype(float)
        (low,), (high,) = intervals(drawn, 0.9)
        inside = ((low <= drawn) & (drawn <= high)).mean()
        less = ((low <= drawn) & (drawn <= high - 1)).mean()
        assert inside >= 0.9
        # One unit less would not do.
        assert less < 0.9


def test_the_command_writes_it(write, monkeypatch, capsys, tmp_path):
    import sys

    from calibrl.__main__ import main

    write(small_shop(60).with_columns(pl.col("date").cast(pl.String)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["calibrl", "order", "--sales", "sales.csv", "--out", "o.csv", "--html", "o.html"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert (tmp_path / "o.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "Written: o.csv, o.html" in capsys.readouterr().out

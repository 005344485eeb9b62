import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from calibrl import CalibrlError
from calibrl.inventory.problems import Sales, bakery, favorita


def sales(units: list[list[float]], **other: object) -> Sales:
    values = np.array(units, dtype=np.float64)
    flags = np.zeros(values.shape, dtype=bool)
    dates = np.datetime64("2024-01-01") + np.arange(values.shape[1])
    names = tuple(f"item {i}" for i in range(len(values)))
    return Sales(**{"dates": dates, "series": names, "units": values, "censored": flags, "closed": flags, **other})


def test_the_bakery_ships_whole():
    found = bakery()
    assert found.units.shape == (105, 1215)
    assert len(set(found.series)) == 105
    assert str(found.dates[0]) == "2016-01-02"
    assert str(found.dates[-1]) == "2019-04-30"
    # 2016-01-02 was a Saturday, whatever the source's own weekday column says.
    assert found.weekday[0] == 5
    assert all(found.dates[t].item().weekday() == found.weekday[t] for t in range(0, 1215, 97))
    seen = found.units[~np.isnan(found.units)]
    assert (seen == seen.round()).all()
    assert (seen >= 0).all()
    # Two shops opened in 2018: their earlier days are no record of zero demand.
    assert (found.history("2018-06-01") < 365).sum() == 6
    assert np.isnan(found.units).any(1).sum() >= 6


def test_a_closed_shop_sells_nothing_at_all():
    found = bakery()
    assert (found.units[found.closed] == 0).all()
    share = (found.units == 0).sum() / (~np.isnan(found.units)).sum()
    assert found.closed.sum() <= (found.units == 0).sum()
    assert 0.05 < share < 0.15


def test_a_licence_travels_with_the_data():
    folder = Path(__file__).parents[2] / "calibrl" / "inventory" / "data"
    assert "Redistributions of source code must retain" in (folder / "LICENSE-ddop.txt").read_text()
    assert (folder / "bakery.npz").stat().st_size < 1_000_000


def test_days_that_sold_out_show_no_demand():
    found = sales([[3, 5, 0]], censored=np.array([[False, True, False]]))
    np.testing.assert_array_equal(found.demand, [[3, np.nan, 0]])


def test_selecting_series_takes_everything_along():
    found = sales([[1, 2], [3, 4]], promotion=np.array([[0.0, 1], [1, 1]]), product=("a", "b"))
    one = found.select(np.array([1]))
    assert one.series == ("item 1",)
    assert one.product == ("b",)
    np.testing.assert_array_equal(one.promotion, [[1, 1]])
    np.testing.assert_array_equal(found.select(np.array([False, True])).units, one.units)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"units": np.array([[1.0, -2.0]])}, "sold -2 on 2024-01-02"),
        ({"closed": np.zeros((2, 2), dtype=bool)}, "closed has shape"),
        ({"product": ("a", "b")}, "2 products for 1 series"),
        ({"dates": np.array(["2024-01-01", "2024-01-03"], dtype="datetime64[D]")}, "not consecutive"),
    ],
)
def test_bad_sales_are_refused_in_words(change, words):
    with pytest.raises(CalibrlError, match=words):
        replace(sales([[1, 2]]), **change)


def test_a_date_that_is_none_is_refused():
    with pytest.raises(CalibrlError, match="not a date"):
        sales([[1, 2]]).day("1st of May")
    assert sales([[1, 2]]).day("2024-01-02") == 1
    assert sales([[1, 2]]).day("2023-12-31") == -1


# Favorita: files as Kaggle has them, made small.


def kaggle(folder: Path, days: int = 30) -> None:
    """Item 1 sells daily in store 7 and a little in store 8; item 2 misses ten days, and one; item 3 hardly sells."""
    dates = [str(np.datetime64("2016-01-01") + t) for t in range(days)]
    rows = []
    for t, date in enumerate(dates):
        rows.append((date, 7, 1, 50.0, "False"))
        rows.append((date, 8, 1, 5.0, "False"))
        if not 5 <= t < 15 and t != 20:
            rows.append((date, 8, 2, 20.4, "True" if t == 2 else ""))
    rows.append((dates[1], 7, 3, 1.0, "False"))
    table = pl.DataFrame(rows, schema=["date", "store_nbr", "item_nbr", "unit_sales", "onpromotion"], orient="row")
    table.with_row_index("id").write_csv(folder / "train.csv")
    pl.DataFrame({"item_nbr": [1, 2], "family": ["BREAD", "PRODUCE"]}).write_csv(folder / "items.csv")
    pl.DataFrame({"store_nbr": [7, 8], "city": ["Quito", "Loja"], "state": ["P", "L"]}).write_csv(folder / "stores.csv")
    pl.DataFrame(
        {
            "date": ["2016-01-02", "2016-01-03", "2016-01-04"],
            "type": ["Holiday", "Holiday", "Holiday"],
            "locale": ["National", "Local", "National"],
            "locale_name": ["Ecuador", "Loja", "Ecuador"],
            "description": ["a", "b", "c"],
            "transferred": [False, False, True],
        }
    ).write_csv(folder / "holidays_events.csv")


def test_kaggles_files_give_the_highest_selling_items(tmp_path):
    kaggle(tmp_path)
    found = favorita(tmp_path, items=2)
    assert found.series == ("store 7, item 1", "store 8, item 2")
    assert found.product == ("BREAD", "PRODUCE")
    assert (found.units[0] == 50).all()
    assert np.isnan(found.units[1, 5:15]).all(), "ten days without a row are missing, not zero"
    assert found.units[1, 20] == 0, "one day without a row is a day without sales"
    assert found.units[1, 0] == 20, "kilograms are rounded"
    np.testing.assert_array_equal(np.flatnonzero(found.promotion[1]), [2])
    np.testing.assert_array_equal(np.flatnonzero(found.marks["holiday"][0]), [1])
    np.testing.assert_array_equal(np.flatnonzero(found.marks["holiday"][1]), [1, 2])


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(CalibrlError, match="Kaggle"):
        favorita(tmp_path)
    (tmp_path / "train.csv").write_text("date,store_nbr\n2016-01-01,1\n")
    with pytest.raises(CalibrlError, match="has no column item_nbr"):
        favorita(tmp_path)


def test_the_folder_that_was_named_is_read_and_not_one_that_its_name_would_fit_as_a_pattern(tmp_path):
    for name in ("kaggle[1]", "kaggle1"):
        (tmp_path / name).mkdir()
        kaggle(tmp_path / name, days=20 if name == "kaggle1" else 30)
    assert favorita(tmp_path / "kaggle[1]", items=2).units.shape == (2, 30)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("train.csv", "50.0", "fifty"),
        ("train.csv", "date,", "\\x00,"),
        ("items.csv", "family", "familie"),
        ("stores.csv", "city", "town"),
        ("stores.csv", "Quito", "Quito,,,"),
        ("holidays_events.csv", "locale_name", "place"),
        ("holidays_events.csv", "2016-01-02", "2016-01-52"),
    ],
)
def test_damaged_files_are_said_in_one_line(tmp_path, name, old, new):
    kaggle(tmp_path)
    (tmp_path / name).write_text((tmp_path / name).read_text().replace(old, new))
    with pytest.raises(CalibrlError, match=r"damaged \(.*\); download it again|has no column date") as told:
        favorita(tmp_path, items=2)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.skipif("CALIBRL_DATA" not in os.environ, reason="needs the evaluation data")
def test_the_slice_has_its_gaps_as_missing():
    found = favorita()
    assert found.units.shape[0] == 22
    assert "not the paper's 100 items" in found.note
    produce = [i for i, product in enumerate(found.product) if product == "PRODUCE"]
    start, end = found.day("2015-01-01"), found.day("2015-05-31")
    assert np.isnan(found.units[produce, start:end]).all()

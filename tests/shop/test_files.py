"""Reading a shop's files: what is understood, and what is refused with file, line and cure."""

from __future__ import annotations

import re
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrl.errors import CalibrlError
from calibrl.inventory.files import Item, read_items, read_sales
from calibrl.inventory.history import AHEAD, fill_gaps
from calibrl.inventory.tills import Reading
from calibrl.shop.features import make_record
from calibrl.shop.files import Batch, read_deliveries, read_shop, read_stock
from calibrl.shop.orders import make_orders
from tests.shop.conftest import small_shop

KEYS = (("bread", ""), ("milk", ""))
TODAY = np.datetime64("2025-01-03")


# The sales file.


@pytest.mark.parametrize("name", ["sales.csv", "sales.tsv", "sales.parquet"])
def test_sales_are_laid_out_by_item_and_day(write, tmp_path, name):
    frame = pl.DataFrame(
        {"date": ["2025-01-01", "2025-01-02", "2025-01-02"], "item": ["a", "a", "b"], "units": [3, 0, 7]}
    )
    if name.endswith(".tsv"):
        path = write(frame.write_csv(separator="\t"), name)
    else:
        path = write(frame if name.endswith("csv") else frame.with_columns(pl.col("date").str.to_date()), name)
    history = read_sales(path)
    assert history.keys == (("a", ""), ("b", ""))
    assert str(history.date) == "2025-01-02"
    known = history.sales.units[:, :2]
    assert np.array_equal(known, [[3, 0], [np.nan, 7]], equal_nan=True)
    assert history.sales.units.shape == (2, 2 + AHEAD)
    assert np.isnan(history.sales.units[:, 2:]).all()


def test_names_of_columns_are_forgiving(write):
    path = write("Date;ITEM;Units;In Stock;On Sale\n01.02.2025;007;3;no;x\n02.02.2025;007;4;yes;y\n")
    history = read_sales(path)
    assert history.keys == (("007", ""),)
    assert history.sales.censored[0, :2].tolist() == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "2025-03-02 18:05",
        "2025-03-02T00:00:00.000Z",
        "2025-03-02T06:30:00+09:00",
        "2025/03/02 00:00:00",
        "2.3.2025 7:30",
    ],
)
def test_a_time_after_the_date_does_no_harm(write, text):
    assert str(read_sales(write(f"date,item,units\n{text},a,3\n")).date) == "2025-03-02"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Pacific/Auckland", "UTC"])
def test_a_day_is_that_of_its_own_time_zone(write, zone):
    midnight = pl.Series("date", [datetime(2025, 3, 2)]).dt.replace_time_zone(zone)
    path = write(pl.DataFrame([midnight]).with_columns(item=pl.lit("a"), units=3), "sales.parquet")
    assert str(read_sales(path).date) == "2025-03-02"


def test_times_in_utc_are_refused_where_the_day_may_be_another(write):
    stored = pl.Series("date", [datetime(2025, 3, 2)]).dt.replace_time_zone("Europe/Berlin")
    frame = pl.DataFrame([stored.dt.convert_time_zone("UTC")]).with_columns(item=pl.lit("a"), units=3)
    with pytest.raises(CalibrlError, match=r"row 1, column date: '2025-03-01 23:00:00.*Z' is a time in UTC"):
        read_sales(write(frame, "sales.parquet"))


def test_decimal_commas_are_read_where_they_cannot_be_mistaken(write):
    path = write("date;item;units;price\n01.02.2025;a;3,0;2,50\n02.02.2025;a;4;1,125\n")
    sales = read_sales(path).sales
    assert sales.units[0, :2].tolist() == [3, 4]
    assert sales.price is not None
    assert sales.price[0, :2].tolist() == [2.5, 1.125]


def test_a_price_of_nothing_is_no_price(write):
    path = write("date,item,units,price\n2025-01-01,a,3,2.5\n2025-01-02,a,0,0\n2025-01-03,a,3,\n2025-01-04,a,3,2\n")
    price = read_sales(path).sales.price
    assert price is not None
    assert price[0, :6].tolist() == [2.5, 2.5, 2.5, 2, 2, 2]


def test_a_promotion_ends_with_its_price(write):
    path = write(
        "date,item,units,price,promotion\n2025-01-01,a,3,2.5,0\n2025-01-02,a,9,2,1\n2025-01-04,a,,,1\n2025-01-06,a,,2.6,0\n"
    )
    price = read_sales(path).sales.price
    assert price is not None
    assert price[0, :7].tolist() == [2.5, 2, 2.5, 2, 2.5, 2.6, 2.6]


def test_rows_after_the_last_sale_are_plans(write):
    path = write(
        "date,item,units,promotion,holiday,closed\n2025-01-01,a,3,0,1,0\n2025-01-03,a,,0,1,1\n2025-01-04,a,,1,0,0\n"
    )
    history = read_sales(path)
    assert str(history.date) == "2025-01-01"
    assert history.sales.promotion is not None
    assert history.sales.promotion[0, :5].tolist() == [0, 0, 0, 1, 0]
    assert history.sales.closed[0, :5].tolist() == [False, False, True, False, False]
    event = make_record(history).event
    assert set(event) == {"promotion", "holiday", "eve"}
    assert event["holiday"][0, :5].tolist() == [True, False, True, False, False]


BAD_SALES = {
    "only returns": ("2025-01-01,a,3\n2025-01-02,a,-4\n", r"line 3, column units: more is returned than was ever sold"),
    "date": ("2025-01-01,a,3\n03/04/2025,a,4\n", r"line 3, column date: '03/04/2025' is not a date; write it like"),
    "impossible date": ("2025-02-30,a,3\n", r"line 2, column date: '2025-02-30' is not a date"),
    "no date": ("2025-01-01,a,3\n,a,4\n", r"line 3, column date: is empty"),
    "year": ("0025-01-01,a,3\n", r"line 2, column date: 0025-01-01 is not a date of our time"),
    "text": ("2025-01-01,a,three\n", r"line 2, column units: 'three' is not a number"),
    "comma": (
        '2025-01-01,a,"3,5"\n2025-01-02,a,3.5\n',
        r"line 2, column units: '3,5' is not a number; write decimals with a point",
    ),
    "points between thousands": (
        "2025-01-01,a,950\n2025-01-02,a,1.200\n",
        r"line 3, column units: '1.200' may be a thousand times that; drop the thousands separator",
    ),
    "universal time": (
        "2025-01-01T22:00:00Z,a,3\n",
        r"line 2, column date: '2025-01-01T22:00:00Z' is a time in UTC, perhaps of another day .* the shop's own day",
    ),
    "thousands": ('2025-01-01,a,"1,200"\n', r"line 2, column units: '1,200' is not a number; drop the thousands separ"),
    "a year apart": (
        "2025-01-01,a,3\n2026-01-03,a,4\n2025-01-02,a,4\n",
        r"line 3, column date: 2026-01-03 is 366 days after all other sales, which end on 2025-01-02; correct the "
        r"year, or say --date 2026-01-03 if it is right$",
    ),
    "infinite": ("2025-01-01,a,inf\n", r"line 2, column units: is infinite"),
    "far too many": ("2025-01-01,a,1e12\n", r"line 2, column units: 1e\+12 is more than a shop sells"),
    "no item": ("2025-01-01,,3\n", r"line 2, column item: is empty"),
}


@pytest.mark.parametrize("case", BAD_SALES)
def test_bad_sales_are_refused_with_their_line(write, case):
    body, message = BAD_SALES[case]
    path = write("date,item,units\n" + body)
    with pytest.raises(CalibrlError, match=f"^{re.escape(str(path))}, {message}") as problem:
        read_sales(path)
    assert "\n" not in str(problem.value)


def test_lines_are_counted_past_empty_ones(write):
    path = write("date,item,units\n\n2025-01-01,a,3\n\n2025-01-02,a,x\n")
    with pytest.raises(CalibrlError, match="line 5, column units"):
        read_sales(path)


def test_missing_columns_are_named_with_what_was_found(write):
    path = write("when,item,much\nsoon,a,3\n")
    with pytest.raises(CalibrlError, match=r"no column date and no column units among when, item, much"):
        read_sales(path)


def test_a_last_day_far_beyond_the_rest_is_taken_if_it_is_named(write):
    path = write("date,item,units\n2025-01-01,a,3\n2025-01-02,a,3\n2025-02-01,a,4\n")
    with pytest.raises(CalibrlError, match="line 4, column date: 2025-02-01 is 30 days after"):
        read_sales(path)
    assert str(read_sales(path, today=np.datetime64("2025-02-01")).date) == "2025-02-01"


@pytest.mark.parametrize("gaps", [(1, 14), (20, 20), (1, 30, 1)])
def test_a_gap_that_a_shop_may_have_is_no_wrong_year(write, gaps):
    day = np.datetime64("2025-01-01") + np.cumsum([0, *gaps])
    assert read_sales(write(pl.DataFrame({"date": day, "item": "a", "units": 3}))).date == day[-1]


def test_fractions_of_a_unit_are_pointed_out(write):
    notes = read_sales(write("date,item,units\n2025-01-01,a,3\n2025-01-02,a,2.5\n2025-01-03,a,\n")).notes
    assert any(note.startswith("1 rows have fractions of a unit, but whole units are forecast") for note in notes)


def test_receipts_are_added_up_and_returns_netted(write):
    path = write(
        "date,item,units,price,promotion,in_stock\n2025-01-01 08:10,a,3,2,0,1\n2025-01-01 09:30,a,2,4,1,1\n"
        "2025-01-01 17:00,b,1,1,0,1\n2025-01-02 08:00,a,4,2,0,0\n2025-01-02 08:20,a,-1,,0,1\n"
        "2025-01-02 09:00,b,-2,1,0,1\n"
    )
    history = read_sales(path)
    assert history.sales.units[:, :2].tolist() == [[5, 3], [1, 0]]
    assert history.sales.promotion is not None
    assert history.sales.promotion[:, :2].tolist() == [[1, 0], [0, 0]]
    assert history.sales.price is not None
    assert history.sales.price[0, :2].tolist() == [3, 2]
    assert history.sales.censored[0, :2].tolist() == [False, True]
    assert history.done == (
        "6 rows of 2 item-stores read, 2025-01-01 to 2025-01-02",
        "6 receipt lines added up to 4 item-days",
        "2 returns taken off the sales (no sales on 1 day with more returns)",
    )


def test_days_that_returns_undo_are_no_sign_of_written_zeros(write):
    days = [f"2025-01-{day:02d}" for day in range(1, 15)]
    sold = [f"{day},a,5\n" for day in days if day not in days[4:6]]
    history = read_sales(write("date,item,units\n" + "".join(sold) + f"{days[8]},a,-5\n"))
    assert history.sales.units[0, 8] == 0
    assert history.sales.units[0, 4:6].tolist() == [0, 0]  # no row in a record of sales only: nothing sold
    zero = read_sales(write("date,item,units\n" + "".join(sold) + f"{days[4]},a,0\n"))
    assert np.isnan(zero.sales.units[0, 5])  # somebody writes zeros down: missing


def test_rows_and_item_stores_fit_whatever_their_order(write):
    lines = ["2025-01-02,b,x,2", "2025-01-01,a,y,1", "2025-01-02,a,x,3", "2025-01-01,ä,x,4", "2025-01-01,a,y,6"]
    history = read_sales(write("date,item,store,units\n" + "\n".join(lines)))
    assert history.keys == tuple(sorted({("b", "x"), ("a", "y"), ("a", "x"), ("ä", "x")}))
    assert np.nansum(history.sales.units[:, :2], 1).tolist() == [3, 7, 2, 4]


def test_an_empty_cell_is_missing_unless_most_are(write):
    shop = small_shop(60, items=("bread",)).with_columns(
        pl.col("date").cast(pl.String), pl.col("units").cast(pl.String)
    )
    whole = make_orders(read_shop(write(shop)))[0]
    once = shop.with_columns(units=pl.when(pl.col("date") == "2025-02-20").then(pl.lit("")).otherwise(pl.col("units")))
    history = read_sales(write(once))
    day = history.sales.day("2025-02-20")
    assert np.isnan(history.sales.units[0, day])
    assert not history.sales.closed[0, day]
    assert "1 empty cell taken as missing" in history.done
    holed = make_orders(read_shop(write(once)))[0]
    assert holed.quantile(0.95) == pytest.approx(whole.quantile(0.95), rel=0.15)
    # Of an item that leaves most cells empty, those days sold nothing.
    rare = pl.DataFrame({"date": [f"2025-01-{day:02d}" for day in range(1, 29)]}).with_columns(
        item=pl.lit("cake"), units=pl.when(pl.int_range(28) % 4 == 0).then(pl.lit("2")).otherwise(pl.lit(""))
    )
    both = pl.concat([rare, rare.with_columns(item=pl.lit("rolls"), units=pl.lit("9"))])
    assert read_sales(write(both)).sales.units[0, :5].tolist() == [2, 0, 0, 0, 2]


def test_names_that_look_alike_and_columns_without_use_are_pointed_out(write):
    history = read_sales(write("date,item,units,cashier,till\n2025-01-01,Bread,3,x,1\n2025-01-01,bread,4,y,2\n"))
    assert any("'Bread' and 'bread' count as different items" in note for note in history.notes)
    assert "columns cashier, till not used" in history.done


def test_few_days_and_old_sales_are_pointed_out(write):
    path = write("date,item,units\n2025-01-01,a,3\n")
    assert any(note.startswith("Only 1 day of sales: weekdays cannot be told apart") for note in read_sales(path).notes)
    assert make_orders(read_shop(path))[0].decision.units > 0
    later = read_sales(path, today=np.datetime64("2025-01-04"))
    assert any(note.startswith("The last sales are 3 days old") for note in later.notes)
    with pytest.raises(
        CalibrlError, match="--date 2030-01-01 is 1826 days after the last sale on file, 2025-01-01; add"
    ):
        read_sales(path, today=np.datetime64("2030-01-01"))


@pytest.mark.parametrize("name", ["cost_of_waste", "cost_of_lost_sale"])
def test_a_cost_of_nothing_is_refused_with_what_it_would_mean(write, name):
    path = write(f"item,{name}\nbread,0\n", "items.csv")
    with pytest.raises(CalibrlError, match=rf"line 2, column {name}: 0 is not a cost .* cost nothing, "):
        read_items(path, KEYS, sales="sales.csv")


def test_flags_are_yes_or_no(write):
    path = write("date,item,units,promotion\n2025-01-01,a,3,maybe\n")
    with pytest.raises(CalibrlError, match="line 2, column promotion: 'maybe' is neither yes nor no"):
        read_sales(path)


# Days without a row.


def days(n: int) -> np.ndarray:
    return np.datetime64("2025-01-06") + np.arange(n)  # a Monday


def settled(units: list[list[float]], store: list[int]):
    array = np.array(units, dtype=float)
    found = fill_gaps(array, np.array(store), np.zeros(array.shape, dtype=bool), days(array.shape[1]))
    return SimpleNamespace(units=found[0], closed=found[1], notes=found[2])


def test_a_day_without_any_row_is_closed_in_a_shop_of_several_items():
    found = settled([[3, np.nan, 4], [1, np.nan, np.nan], [2, np.nan, 2]], [0, 0, 0])
    assert found.closed.tolist() == [[False, True, False]] * 3
    assert np.isnan(found.units[:, 1]).all()
    assert found.units[1, 2] == 0  # its record holds sales only


def test_a_store_that_is_closed_is_closed_for_items_to_come():
    nan = np.nan
    found = settled([[nan, 3, nan, 4], [nan, 1, nan, 1], [nan, nan, nan, 2], [1, 1, 1, 1]], [0, 0, 0, 1])
    assert found.closed.tolist() == [[False, False, True, False]] * 3 + [[False] * 4]
    assert np.isnan(found.units[2, :3]).all()


def test_a_store_marked_closed_is_closed_for_items_without_a_row(write):
    path = write(
        "date,item,store,units,closed\n2025-01-01,a,x,3,0\n2025-01-01,a,y,3,0\n2025-01-02,a,x,,1\n2025-01-02,a,y,3,0\n"
        "2025-01-03,b,x,3,0\n2025-01-03,a,y,3,0\n2025-01-04,a,x,,1\n2025-01-04,b,x,,0\n2025-01-05,a,x,,1\n"
    )
    history = read_sales(path)
    assert history.keys == (("a", "x"), ("a", "y"), ("b", "x"))
    assert history.sales.closed[:, :5].astype(int).tolist() == [[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 1]]
    assert history.days_on_record.tolist() == [3, 3, 1]


def test_a_record_with_zeros_has_missing_days_not_zeros():
    found = settled([[3, 0, np.nan, 4], [1, 1, 1, 1], [2, 2, 2, 2]], [0, 0, 0])
    assert np.isnan(found.units[0, 2])
    assert not found.closed.any()
    assert "1 item-day taken as missing" in found.notes[0]


def test_a_gap_too_long_to_be_bad_luck_is_missing():
    item = [5.0] * 30 + [np.nan] * 40 + [5.0] * 30
    found = settled([item, [1.0] * 100, [1.0] * 100], [0, 0, 0])
    assert np.isnan(found.units[0, 30:70]).all()
    rare = ([1.0] + [np.nan] * 12) * 8
    assert (settled([rare, [1.0] * 104, [1.0] * 104], [0, 0, 0]).units[0] >= 0).all()


def test_a_single_item_shop_is_closed_on_a_weekday_it_never_records():
    weeks = np.tile([2.0, 3, 2, np.nan, 5, 6, np.nan], 10)
    weeks[3::14] = 1.0  # every other Thursday sells one
    found = settled([weeks.tolist()], [0])
    assert found.closed[0, 6::7].all()
    assert not found.closed[0, 3::7].any()
    assert (found.units[0, 10::14] == 0).all()


def test_a_holiday_without_a_row_is_closed_also_in_a_shop_of_one_item(write):
    days = np.arange(np.datetime64("2025-11-01"), np.datetime64("2026-01-10"))
    kept = [day for day in days if str(day) not in ("2025-12-25", "2025-12-15")]
    path = write("date,item,units\n" + "".join(f"{day},a,9\n" for day in kept))
    history = read_sales(path, reading=Reading(country="US"))
    assert history.sales.closed[0, history.sales.day("2025-12-25")]
    assert not history.sales.closed[0, history.sales.day("2025-12-15")]
    assert not read_sales(path).sales.closed[0, history.sales.day("2025-12-25")]


def test_a_holiday_column_is_believed_before_the_calendar(write):
    days = np.arange(np.datetime64("2025-11-20"), np.datetime64("2026-01-04"))
    moved = ["2025-11-28"]  # the shop keeps the day after Thanksgiving, and has no row for Christmas
    rows = [f"{day},a,9,{int(str(day) in moved)}\n" for day in days if str(day) != "2025-12-25"]
    holiday = read_sales(write("date,item,units,holiday\n" + "".join(rows)), reading=Reading(country="US")).sales
    marked = [str(day) for day in holiday.dates[holiday.marks["holiday"][0]]]
    assert marked == ["2025-11-28", "2025-12-25", "2026-01-19"]
    none = read_sales(
        write("date,item,units,holiday\n2025-12-24,a,9,0\n2025-12-25,a,9,0\n"), reading=Reading(country="US")
    )
    assert none.sales.marks["holiday"][0, 1]  # a column that marks nothing does not speak


@pytest.mark.parametrize(("items", "mean"), [(2, 0.2), (6, 0.15), (12, 0.1), (6, 0.6)])
def test_a_quiet_day_of_a_shop_that_sells_little_is_no_closure(items, mean):
    sold = np.random.default_rng(0).poisson(mean, (items, 400)).astype(float)
    sold[:, 6::7] = 0  # closed on the seventh
    found = settled(np.where(sold > 0, sold, np.nan).tolist(), [0] * items)
    open_days = np.arange(400) % 7 != 6
    assert found.closed[:, ~open_days][:, 1:].all()
    assert found.units[:, open_days].mean(where=~np.isnan(found.units[:, open_days])) == pytest.approx(mean, rel=0.15)


@pytest.mark.parametrize("items", [2, 3, 30])
def test_a_day_without_any_row_is_closed_in_a_shop_that_sells_every_day(items):
    sold = np.random.default_rng(0).poisson(6, (items, 100)).astype(float)
    sold[:, [50, 98, 99]] = 0
    closed = settled(np.where(sold > 0, sold, np.nan).tolist(), [0] * items).closed
    assert np.flatnonzero(closed.all(0)).tolist() == [50, 98, 99]


# The other files.


def test_items_say_what_they_say_and_the_rest_is_assumed(write):
    path = write(
        "item,shelf_life,delivery_days,cost_of_lost_sale\nbread,1,Mon Wed Fri,2.5\nmilk,,daily,\n", "items.csv"
    )
    found = read_items(path, KEYS, sales="sales.csv")
    bread, milk = found.rules
    assert (bread.shelf_life, bread.cost_of_lost_sale, bread.deliveries) == (1, 2.5, "Mon Wed Fri")
    assert milk == Item()
    assert "single units" in found.assumed[0]


def test_a_store_may_have_rules_of_its_own(write):
    keys = (("bread", "1"), ("bread", "2"))
    frame = pl.DataFrame({"item": ["bread", "bread"], "store": [None, 2], "shelf_life": [1, 4]})
    found = read_items(write(frame, "items.parquet"), keys, sales="sales.csv")
    assert [item.shelf_life for item in found.rules] == [1, 4]


def test_without_an_item_file_every_default_is_stated():
    (note,) = read_items(None, KEYS, sales="sales.csv").assumed
    for words in ("3 days", "single units", "no minimum", "tomorrow", "every day", "per unit wasted", "per lost sale"):
        assert words in note


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Mon-Fri", "Mon Tue Wed Thu Fri"),
        ("Mon\u2013Sat", "Mon Tue Wed Thu Fri Sat"),
        ("Monday to Wednesday; Sat", "Mon Tue Wed Sat"),
        ("fri - mon", "Mon Fri Sat Sun"),
        ("Tues. Thurs.", "Tue Thu"),
        ("Mondays Weds", "Mon Wed"),
        ("Sun-Sat", "daily"),
    ],
)
def test_delivery_days_are_read_as_people_write_them(write, words, expected):
    path = write(f"item;delivery_days\nbread;{words.replace(';', ',')}\n", "items.csv")
    assert read_items(path, KEYS, sales="sales.csv").rules[0].deliveries == expected


@pytest.mark.parametrize("word", ["Monthly", "Montag", "Mo", "Mon-", "Mon-Wed-Fri", "Tuesdayish", "-"])
def test_a_word_that_is_no_weekday_is_refused(write, word):
    path = write(f"item,delivery_days\nbread,{word}\n", "items.csv")
    with pytest.raises(CalibrlError, match=rf"column delivery_days: '{word}' is no weekday; write them like"):
        read_items(path, KEYS, sales="sales.csv")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bread,0,1,Mon,1", r"line 2, column shelf_life: 0 is not a shelf life in days; expected 1 or more"),
        ("bread,1.5,1,Mon,1", r"line 2, column shelf_life: 1.5 is not a shelf life in days; expected a whole number"),
        ("bread,1,0,Mon,1", r"column pack_size: 0 is not a pack size"),
        ("bread,1,0.5,Mon,1", r"column pack_size: 0.5 is not a pack size; expected 1 or more, so count in smaller"),
        ("bread,1,1,Moon,1", r"column delivery_days: 'Moon' is no weekday; write them like Mon Wed Fri"),
        ("bread,1,1,Mon,0", r"column cost_of_waste: 0 is not a cost per unit"),
        ("cake,1,1,Mon,1", r"line 2, column item: 'cake' is not in sales.csv; correct the name"),
        ("bread,1,1,Mon,1\nbread,2,1,Mon,1", r"line 3, column item: 'bread' stands on line 2 already"),
    ],
)
def test_bad_items_are_refused(write, line, message):
    path = write(f"item,shelf_life,pack_size,delivery_days,cost_of_waste\n{line}\n", "items.csv")
    with pytest.raises(CalibrlError, match=message):
        read_items(path, KEYS, sales="sales.csv")


def test_stock_comes_in_batches(write):
    path = write(
        "item,units,expires,arrives\nbread,3,2025-01-04,\nbread,2,2025-01-06,2025-01-05\nmilk,9,2025-01-02,\n", "s.csv"
    )
    found = read_stock(path, KEYS, today=TODAY, sales="sales.csv", stores=False)
    assert found.batches == ((Batch(3, 0, 1), Batch(2, 2, 3)), ())
    assert "9 units expired by 2025-01-03" in found.notes[0]


def test_stock_is_counted_in_the_evening_or_the_next_morning(write):
    path = write(
        "item,units,expires,as_of\nbread,0.5,2025-01-04,2025-01-03\nbread,0,2025-01-04,2025-01-03\n"
        "milk,2,2025-01-09,2025-01-04\n",
        "stock.csv",
    )
    found = read_stock(path, KEYS, today=TODAY, sales="sales.csv", stores=False)
    assert found.batches == ((Batch(0.5, 0, 1),), (Batch(2, 0, 6),))
    assert not found.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("item,units,expires\ncake,3,2025-01-04\n", r"line 2, column item: 'cake' is not in sales.csv"),
        ("item,units,expires\nbread,,2025-01-04\n", r"line 2, column units: is no stock"),
        (
            "item,units,expires\nbread,3,2025-01-02\n",
            r"every batch had expired by 2025-01-03, the last day of sales.csv",
        ),
        (
            "item,units,expires,as_of\nmilk,3,2025-01-09,2025-01-03\nbread,3,2025-01-09,2025-01-02\n",
            r"line 3, column as_of: counted on 2025-01-02, but sales.csv goes on to 2025-01-03; count the stock again",
        ),
        (
            "item,units,expires,as_of\nmilk,3,2025-01-09,2025-01-03\nbread,3,2025-01-09,2025-01-05\n",
            r"line 3, column as_of: counted on 2025-01-05, but sales.csv ends on 2025-01-03; add the sales",
        ),
        ("item,units\nbread,3\n", r"no column expires among item, units"),
        (
            "item,units,expires,arrives\nbread,3,2025-01-06,2025-01-07\n",
            r"line 2, column arrives: comes on 2025-01-07, when it has expired; correct one of the days",
        ),
    ],
)
def test_bad_stock_is_refused(write, text, message):
    path = write(text, "stock.csv")
    with pytest.raises(CalibrlError, match=message):
        read_stock(path, KEYS, today=TODAY, sales="sales.csv", stores=False)


def test_stock_of_several_stores_says_where_it_is(write):
    keys = (("bread", "East"), ("bread", "West"))
    path = write("item,units,expires\nbread,3,2025-01-04\n", "stock.csv")
    with pytest.raises(CalibrlError, match=r"no column store, but sales.csv has one; say which store each batch is in"):
        read_stock(path, keys, today=TODAY, sales="sales.csv", stores=True)
    path = write("item,store,units,expires\nbread,West,3,2025-01-04\n", "stock.csv")
    found = read_stock(path, keys, today=TODAY, sales="sales.csv", stores=True)
    assert found.batches == ((), (Batch(3, 0, 1),))
    assert found.notes == (f"1 of 2 have no stock in {path}: their shelves are taken as empty.",)


def test_deliveries_are_laid_out_and_added_up(write):
    history = read_sales(write("date,item,units\n2025-01-01,a,3\n2025-01-02,a,4\n"))
    path = write("date,item,units\n2025-01-02,a,5\n2025-01-02,a,1\n2025-01-01,a,0\n2024-12-01,a,9\n", "deliveries.csv")
    assert read_deliveries(path, history, sales="sales.csv")[0, :2].tolist() == [0, 6]


# Nothing that can be written into a file ends in a traceback.

TEXT = small_shop(40, items=("bread", "milk")).write_csv()
WORDS = st.one_of(
    st.sampled_from(
        ["", "-1", "1e400", "NaN", "2025-13-01", "0", "1e9", ",", ",,,", '"', ";", "\t", "\x00", "é", "9" * 40]
    ),
    st.text(max_size=12),
)


def outcome(work):
    """What the work gives, or the words in which it was refused; any other error is a traceback."""
    try:
        return work()
    except CalibrlError as problem:
        return str(problem)


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_no_malformed_file_gives_a_traceback(tmp_path, data):
    lines = TEXT.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["cell", "line", "drop", "twice", "cut"]))
        if kind == "cell":
            cells = lines[at].split(",")
            cells[data.draw(st.integers(0, len(cells) - 1))] = data.draw(WORDS)
            lines[at] = ",".join(cells)
        elif kind == "line":
            lines[at] = data.draw(st.text(max_size=30))
        elif kind == "drop":
            del lines[at]
        elif kind == "twice":
            lines.insert(at, lines[at])
        else:
            lines = lines[: at + 1]
    path = tmp_path / "sales.csv"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    found = outcome(lambda: make_orders(read_shop(path), n_paths=20))
    assert "\n" not in found if isinstance(found, str) else all(order.decision.units >= 0 for order in found)


@given(content=st.binary(max_size=200), name=st.sampled_from(["stock.csv", "items.csv", "items.parquet", "stock.tsv"]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_no_bytes_give_a_traceback(tmp_path, content, name):
    sales = tmp_path / "sales.csv"
    sales.write_text(TEXT)
    path = tmp_path / name
    path.write_bytes(content)
    found = outcome(lambda: read_shop(sales, **{name.split(".")[0]: path}))
    assert str(path) in found if isinstance(found, str) else found.rules

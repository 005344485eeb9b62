"""The shop's forecaster: one robust linear model for all items, in units of each item's level, a lead day at a time.

It starts from the mean of the last four same weekdays and departs from it only as far as the rows insist (a ridge
around that mean). Medians are regressed, not means: one wedding cake for two hundred must not move Tuesday's bread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor
from torch.distributions import Normal

from calibrl.data import Data
from calibrl.distributions import Rounded
from calibrl.errors import CalibrlError
from calibrl.inventory.shop.features import HISTORY, LEAD_IN, SCALE, SHUT, SPREAD

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

    x: (n, leads, k); y: (n, leads) units, NaN where nobody knows; forecasts have batch shape (n, leads).
    """

    def __init__(self) -> None:
        self.fitted: Fitted | None = None

    def update(self, data: Data) -> None:
        """Learn from all rows at once; rows given before are forgotten."""
        x, y = data.x.double().numpy(), data.y.double().numpy()
        if x.ndim != 3 or x.shape[:2] != y.shape:
            raise CalibrlError(f"features {x.shape} do not fit demand {y.shape}; expected (n, leads, k) and (n, leads)")
        self.fitted = _fitted(x, y, [_median(x[:, lead], y[:, lead]) for lead in range(x.shape[1])])

    def __call__(self, x: Tensor) -> Rounded:
        """Whole units, never negative; a day that is closed sells nothing."""
        rows = x.double().numpy()
        fitted = self.fitted or _untaught(rows)
        middle = _middle(rows, fitted.slope)
        spread = (_parts(rows, middle) * fitted.width).sum(-1)
        spread = 1.25 * spread * np.sqrt(1 + 1 / np.maximum(rows[..., HISTORY], 0.25))
        shut = rows[..., SHUT] > 0
        loc = torch.from_numpy(np.where(shut, -1.0, middle))
        scale = torch.from_numpy(np.where(shut, 0.05, np.maximum(spread, 0.2)))
        return Rounded(Normal(loc, scale, validate_args=False))


class SameWeekday(LinearDemand):
    """The mean of the last four same weekdays, with a learnt spread: the baseline any model has to beat."""

    def update(self, data: Data) -> None:
        """Learn the spread alone."""
        x, y = data.x.double().numpy(), data.y.double().numpy()
        self.fitted = _fitted(x, y, [_four_weeks(x)] * x.shape[1])


def _fitted(x: Floats, y: Floats, slope: list[Floats]) -> Fitted:
    width = [_width(x[:, lead], y[:, lead], each) for lead, each in enumerate(slope)]
    return Fitted(np.stack(slope), np.stack(width))


def _untaught(x: Floats) -> Fitted:
    """What is believed before any row was seen."""
    return _fitted(x[:0], np.zeros((0, x.shape[1])), [_four_weeks(x)] * x.shape[1])


def _four_weeks(x: Floats) -> Floats:
    """(k,): slopes that give the mean of the last four same weekdays."""
    slope = np.zeros(x.shape[-1] - LEAD_IN)
    slope[FOUR_WEEKS] = 1.0
    return slope


def _median(x: Floats, y: Floats) -> Floats:
    """(k,): slopes of the median of y over the item's level. x: (n, k + 4), y: (n,)."""
    known = ~np.isnan(y) & (x[:, SHUT] == 0)
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


def _middle(x: Floats, slope: Floats) -> Floats:
    """(…): the median in units."""
    return np.maximum((x[..., LEAD_IN:] * slope).sum(-1), 0.0) * x[..., SCALE]


def _parts(x: Floats, middle: Floats) -> Floats:
    """(…, 3): what the mean distance to the median is made of, in units."""
    return np.stack([x[..., SPREAD], np.sqrt(middle + 0.25), middle], -1)


def _width(x: Floats, y: Floats, slope: Floats) -> Floats:
    """(3,): shares, none negative, in which the parts make up the mean distance to the median."""
    known = ~np.isnan(y) & (x[:, SHUT] == 0)
    prior = np.array([0.8, 0.2, 0.0])
    x, y = x[known], y[known]
    middle = _middle(x, slope)
    parts, level = _parts(x, middle), x[:, SCALE]
    off = np.minimum(np.abs(y - middle), 6 * parts[:, 0])
    believed = np.sqrt(PRIOR_ROWS) / 10 * np.eye(3)
    over = np.sqrt(level)[:, None]
    found, _ = nnls(np.concatenate([parts / over, believed]), np.concatenate([off / over[:, 0], believed @ prior]))
    return np.maximum(found, [0.05, 0.05, 0.0])

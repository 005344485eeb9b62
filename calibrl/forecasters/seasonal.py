"""Two plain forecasters of daily series, as baselines any model has to beat: the same weekday, and smoothing."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor
from torch.distributions import Normal

from calibrl.data import Data, Remembered
from calibrl.errors import CalibrlError, check_count

Floats = NDArray[np.float64]

SEASON = 7
"""Days of a week."""
ENOUGH = 20_000
"""Rows to choose one number from."""
SMALLEST_SD = 1e-2
"""In parts of a series' level."""


class _Daily(ABC):
    """A point forecast, with a variance for each lead that is learnt from its errors."""

    def __init__(self) -> None:
        self._remembered = Remembered()
        self._shares: list[Floats] = []

    def update(self, data: Data) -> None:
        """Learn from all rows so far."""
        rows = self._remembered.with_new(data)
        x, y = _numbers(rows.x), _numbers(rows.y)
        self._choose(x[-ENOUGH:], y[-ENOUGH:])
        # For each lead, how much of a constant, the squared mean and the row's own variance is in squared errors.
        shares = []
        for j in range(y.shape[1]):
            mean, own = self._point(x, j + 1)
            error = (y[:, j] - mean) ** 2
            seen = ~np.isnan(error)
            if not bool(seen.any()):
                raise CalibrlError(f"column {j} of y holds no outcome (all NaN); there is nothing to learn yet")
            shares.append(nnls(_parts(mean, own)[seen], error[seen])[0])
        self._shares = shares
        self._remembered.keep(rows)

    def __call__(self, x: Tensor) -> Normal:
        """Forecasts for x (n, days), of batch shape (n, leads)."""
        y, given = self._remembered.outcomes(), _numbers(x)
        points = [self._point(given, lead) for lead in range(1, y.shape[1] + 1)]
        mean = np.stack([one for one, _ in points], 1)
        variance = np.stack([_parts(*point) @ share for point, share in zip(points, self._shares, strict=True)], 1)
        loc, scale = (torch.as_tensor(part, dtype=y.dtype, device=x.device) for part in (mean, np.sqrt(variance)))
        return Normal(loc, scale.clamp(min=SMALLEST_SD), validate_args=False)

    def _choose(self, x: Floats, y: Floats) -> None:  # noqa: B027
        """Set what is chosen by the newest rows."""

    @abstractmethod
    def _point(self, x: Floats, lead: int) -> tuple[Floats, Floats]:
        """Mean and own variance (n,) `lead` days ahead of histories (n, days), newest first, NaN where unknown."""


class SeasonalNaive(_Daily):
    """Demand will be what it was on the same weekday: the mean of the last weeks'.

    The variance of each lead day is learnt: so much of a constant, of the squared mean, and of the variance of the same
    weekday in the row's own history. Rows have x (n, days), the last days' demand, newest first, NaN where unknown (the
    recipe "history"), and y (n, leads).

    Parameters
    ----------
    weeks : int
        How many of the last ones are averaged.
    """

    def __init__(self, *, weeks: int = 4) -> None:
        super().__init__()
        self.weeks = check_count("weeks", weeks, "leaves nothing to average")

    def _point(self, x: Floats, lead: int) -> tuple[Floats, Floats]:
        same = _same_weekday(x, lead)
        mean = _mean(same[:, : self.weeks], otherwise=_mean(x))
        return mean, _variance(same)


class ExponentialSmoothing(_Daily):
    """A level that follows recent days, times the weekday's share of it.

    The level is the average of the days in x, each divided by its weekday's share, with weights that fall by a factor 1
    - α a day. Rows are those of `SeasonalNaive`.

    Parameters
    ----------
    alphas : tuple of float
        Of these the α with the least squared error on the last 20 000 rows is used.
    """

    def __init__(self, *, alphas: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)) -> None:
        if not alphas or not all(0 < alpha < 1 for alpha in alphas):
            raise CalibrlError(f"alphas {alphas} must lie between 0 and 1, such as (0.1, 0.3)")
        super().__init__()
        self.alphas, self.alpha = alphas, alphas[0]

    def _choose(self, x: Floats, y: Floats) -> None:
        def error(alpha: float) -> float:
            self.alpha = alpha
            return float(sum(np.nansum((y[:, j] - self._point(x, j + 1)[0]) ** 2) for j in range(y.shape[1])))

        self.alpha = min(self.alphas, key=error)

    def _point(self, x: Floats, lead: int) -> tuple[Floats, Floats]:
        overall = _mean(x)
        season = np.stack([_mean(_same_weekday(x, lead - k), otherwise=overall) for k in range(SEASON)], 1)
        season = season / np.maximum(season.mean(1, keepdims=True), 1e-9)
        # season[:, j] is the weekday j days before the target's, and k days back is lead + k days before it.
        share = season[:, np.arange(lead, lead + x.shape[1]) % SEASON]
        open_days = ~np.isnan(x) & (share > 0.05)
        weight = open_days * (1 - self.alpha) ** np.arange(x.shape[1])
        level = (weight * np.nan_to_num(x) / np.maximum(share, 0.05)).sum(1) / np.maximum(weight.sum(1), 1e-12)
        return np.where(weight.sum(1) > 0, level * season[:, 0], overall), _variance(_same_weekday(x, lead))


def _same_weekday(x: Floats, lead: int) -> Floats:
    """(n, weeks): the columns of x on the weekday `lead` days ahead, newest first."""
    start = (SEASON - lead) % SEASON
    if start >= x.shape[1]:
        raise CalibrlError(f"{x.shape[1]} days of history do not reach back a week; use 7 or more (56 is good)")
    return x[:, start::SEASON]


def _mean(values: Floats, otherwise: Floats | float = 0.0) -> Floats:
    """(n,): the mean of what is on record in each row."""
    seen = (~np.isnan(values)).sum(1)
    return np.asarray(np.where(seen > 0, np.nansum(values, 1) / np.maximum(seen, 1), otherwise))


def _variance(values: Floats) -> Floats:
    seen = (~np.isnan(values)).sum(1)
    apart = np.nansum((values - _mean(values)[:, None]) ** 2, 1)
    return np.asarray(apart / np.maximum(seen - 1, 1))


def _parts(mean: Floats, own: Floats) -> Floats:
    return np.stack([np.ones_like(mean), mean**2, own], 1)


def _numbers(values: Tensor) -> Floats:
    return np.asarray(values.detach().cpu().double())

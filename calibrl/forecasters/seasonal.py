"""Two plain forecasters of daily series, as baselines any model has to beat: the same weekday, and smoothing."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor
from torch.distributions import Normal

from calibrl.data import Data, Remembered
from calibrl.errors import CalibrlError

Floats = NDArray[np.float64]

SEASON = 7
"""Days of a week."""
ENOUGH = 20_000
"""Rows to choose one number from."""
SMALLEST_SD = 1e-2
"""In parts of a series' level."""


class _Point(Protocol):
    """History (n, days), newest first, NaN where unknown; a lead in days → mean (n,) and own spread² (n,)."""

    def __call__(self, x: Floats, lead: int) -> tuple[Floats, Floats]: ...


class SeasonalNaive:
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
        if weeks < 1:
            raise CalibrlError(f"weeks {weeks} leaves nothing to average; use 1 or more")
        self.weeks = weeks
        self._remembered = Remembered()
        self._shares: list[Floats] = []

    def update(self, data: Data) -> None:
        """Learn the spread from all rows so far."""
        rows = self._remembered.with_new(data)
        self._shares = _learn_spread(self._point, rows)
        self._remembered.keep(rows)

    def __call__(self, x: Tensor) -> Normal:
        """Forecasts for x (n, days), of batch shape (n, leads)."""
        return _forecast(self._point, x, self._shares, self._remembered.outcomes())

    def _point(self, x: Floats, lead: int) -> tuple[Floats, Floats]:
        same = _same_weekday(x, lead)
        mean = _mean(same[:, : self.weeks], otherwise=_mean(x))
        return mean, _variance(same)


class ExponentialSmoothing:
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
        self.alphas = alphas
        self.alpha = alphas[0]
        self._remembered = Remembered()
        self._shares: list[Floats] = []

    def update(self, data: Data) -> None:
        """Choose the alpha and learn the spread from all rows so far."""
        rows = self._remembered.with_new(data)
        x, y = _numbers(rows.x[-ENOUGH:]), _numbers(rows.y[-ENOUGH:])

        def error(alpha: float) -> float:
            self.alpha = alpha
            return float(sum(np.nansum((y[:, j] - self._point(x, j + 1)[0]) ** 2) for j in range(y.shape[1])))

        self.alpha = min(self.alphas, key=error)
        self._shares = _learn_spread(self._point, rows)
        self._remembered.keep(rows)

    def __call__(self, x: Tensor) -> Normal:
        """Forecasts for x (n, days), of batch shape (n, leads)."""
        return _forecast(self._point, x, self._shares, self._remembered.outcomes())

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
    found: Floats = np.where(seen > 0, np.nansum(values, 1) / np.maximum(seen, 1), otherwise)
    return found


def _variance(values: Floats) -> Floats:
    seen = (~np.isnan(values)).sum(1)
    apart = np.nansum((values - _mean(values)[:, None]) ** 2, 1)
    found: Floats = apart / np.maximum(seen - 1, 1)
    return found


def _learn_spread(point: _Point, rows: Data) -> list[Floats]:
    """For each lead, how much of a constant, the squared mean and the row's own variance is in squared errors."""
    x, y = _numbers(rows.x), _numbers(rows.y)
    shares = []
    for j in range(y.shape[1]):
        mean, own = point(x, j + 1)
        error = (y[:, j] - mean) ** 2
        seen = ~np.isnan(error)
        if not bool(seen.any()):
            raise CalibrlError(f"column {j} of y holds no outcome (all NaN); there is nothing to learn yet")
        shares.append(nnls(_parts(mean, own)[seen], error[seen])[0])
    return shares


def _parts(mean: Floats, own: Floats) -> Floats:
    return np.stack([np.ones_like(mean), mean**2, own], 1)


def _forecast(point: _Point, x: Tensor, shares: list[Floats], y: Tensor) -> Normal:
    given = _numbers(x)
    found = [point(given, j + 1) for j in range(y.shape[1])]
    mean = np.stack([one for one, _ in found], 1)
    spread = np.stack([np.sqrt(_parts(one, own) @ share) for (one, own), share in zip(found, shares, strict=True)], 1)
    loc, scale = (torch.as_tensor(part, dtype=y.dtype, device=x.device) for part in (mean, spread))
    return Normal(loc, scale.clamp(min=SMALLEST_SD), validate_args=False)


def _numbers(values: Tensor) -> Floats:
    found: Floats = values.detach().cpu().double().numpy()
    return found

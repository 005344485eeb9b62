"""Any forecaster as the model of a policy: slower than the compiled ridge regressions of `arms.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from calibrl.algorithm import Forecaster, check_forecast, check_forecaster
from calibrl.arrays import Array
from calibrl.bandits.arms import ArmModel, Floats, Ints, Rows, as_floats, check_finite
from calibrl.data import Data
from calibrl.distributions import from_zscore, zscore, zscore_left
from calibrl.distributions.kinds import Scored
from calibrl.errors import CalibrlError


class AnyForecaster(ArmModel):
    """Any forecaster with one column per arm: x (n, …) in, forecasts of batch shape (n, k) out.

    Parameters
    ----------
    forecaster
        `update(data)` gets rows y (n, k), NaN for the arms that were not pulled.
    arms
        k, how many arms there are.
    warm_up
        Rewards that every arm gets before the forecaster learns and is asked; until then arms that lack some are
        tried first. 0 for a forecaster that can answer before it has learnt.
    """

    def __init__(self, forecaster: Forecaster, arms: int, *, warm_up: int = 0) -> None:
        self.forecaster = check_forecaster(forecaster)
        self.warm_up = warm_up
        self.pulls = np.zeros(arms, np.int64)
        self._waiting: list[Data] = []

    def request(self, x: Array, offered: Ints) -> Floats:  # noqa: ARG002 (asked for by shared features only)
        """The context as one row (1, …)."""
        rows = as_floats(x, "context")[None]
        check_finite(rows, "context")
        return rows

    def quantiles(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantile (k,) at its level (k,); while warming up 1 for arms that lack rewards, 0 for others."""
        if self._warming:
            return (self.pulls < self.warm_up).astype(np.float64)
        return self._curves(x, torch.from_numpy(level)[None])[0]

    def curves(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantiles (k, n) at the same levels (n,), z-scores."""
        if self._warming:
            return np.repeat(self.quantiles(x, level)[:, None], len(level), axis=1)
        return self._curves(x, torch.from_numpy(level)[:, None, None].expand(-1, 1, len(self.pulls)))[:, 0].T

    def means(self, x: Floats) -> Floats:
        """Each arm's mean (k,); while warming up as `quantiles`."""
        if self._warming:
            return self.quantiles(x, np.zeros(len(self.pulls)))
        return np.asarray(self._answer(x).mean[0].detach().double().cpu().numpy(), np.float64)

    def forecast(self, x: Floats, offered: Ints) -> Distribution:
        """What the arms at these positions (n,) are expected to pay: batch shape (n,)."""
        return Columns(self._answer(x), torch.from_numpy(offered))

    def learn(self, rows: Rows) -> None:
        """Learn rows, through the forecaster's own `update`; kept for later while some arm is warming up."""
        check_finite(rows.x, "context")
        check_finite(rows.reward, "reward")
        y = torch.full((len(rows.arm), len(self.pulls)), torch.nan, dtype=torch.float64)
        y[torch.arange(len(rows.arm)), torch.from_numpy(rows.arm)] = torch.from_numpy(rows.reward)
        data = Data(torch.from_numpy(rows.x), y)
        pulls = self.pulls + np.bincount(rows.arm, minlength=len(self.pulls))
        waiting = [*self._waiting, data]
        if (pulls >= self.warm_up).all():
            self.forecaster.update(sum(waiting[1:], waiting[0]))
            waiting = []
        self.pulls, self._waiting = pulls, waiting

    @property
    def _warming(self) -> bool:
        return bool((self.pulls < self.warm_up).any())

    def _curves(self, x: Floats, level: Tensor) -> Floats:
        with torch.no_grad():
            found = from_zscore(self._answer(x), level)
        if not bool(found.isfinite().all()):
            raise CalibrlError("an arm's quantile is NaN or infinite; the forecast is broken, repair the forecaster")
        return np.asarray(found.double().cpu().numpy(), np.float64)

    def _answer(self, x: Floats) -> Distribution:
        forecast = check_forecast(self.forecaster(torch.from_numpy(x)))
        if forecast.batch_shape != (1, len(self.pulls)):
            raise CalibrlError(
                f"the forecaster answers a context with batch shape {tuple(forecast.batch_shape)}; expected "
                f"(1, {len(self.pulls)}): one column per arm"
            )
        return forecast


class Columns(Scored):
    """Some columns of a forecast of one row. base: batch shape (1, k); column: (n,) positions."""

    def __init__(self, base: Distribution, column: Tensor) -> None:
        self.base, self.column = base, column
        super().__init__(torch.Size([len(column)]), validate_args=False)

    def zscore(self, y: Tensor) -> Tensor:
        """Each outcome's z-score, its own column's."""
        return self._each(zscore, y)

    def zscore_left(self, y: Tensor) -> Tensor:
        """The z-score of what is lower than each outcome, its own column's."""
        return self._each(zscore_left, y)

    def from_zscore(self, z: Tensor) -> Tensor:
        """The quantiles at these z-scores, each of its own column."""
        return self._each(from_zscore, z)

    def log_prob(self, value: Tensor) -> Tensor:
        """Each outcome's log density in its own column."""
        return self._each(type(self.base).log_prob, value)

    @property
    def mean(self) -> Tensor:
        """Each column's mean."""
        return self.base.mean[0, self.column]

    @property
    def variance(self) -> Tensor:
        """Each column's variance."""
        return self.base.variance[0, self.column]

    def _each(self, of: Callable[[Distribution, Tensor], Tensor], value: Tensor) -> Tensor:
        wide = torch.zeros(*value.shape[:-1], *self.base.batch_shape, dtype=value.dtype)
        wide[..., 0, self.column] = value
        return of(self.base, wide)[..., 0, self.column]

"""Guarantees of intervals whose rows are not simply held out: cross-fitted forecasts, and forecasts that come in turn.

That of held-out rows is `calibrl.distributions.recalibrated.ByRanks`. Each has conditions, which `promise` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from calibrl.distributions import Recalibrated, from_zscore, zscore
from calibrl.distributions.kinds import by_column, device_of, dtype_of
from calibrl.distributions.zscores import least
from calibrl.errors import CalibrlError
from calibrl.evidence import Adaptive
from calibrl.maps.base import percent


class ByFolds:
    """CV+ (Barber, Candès, Ramdas and Tibshirani, 2021), jackknife+ with one row in each fold: bounds by K forecasters.

    Each held-out row puts the new outcome where the forecaster of its fold would, at the row's own PIT; the bounds are
    order statistics of these n outcomes.

    Parameters
    ----------
    judged : sequence of (Forecaster, Tensor (m, d))
        The forecaster of each fold, and the z-scores of the fold's rows under it, ascending, NaN last.
    x : Tensor (n, …)
        The rows that are forecast.
    stale : function of no arguments
        Whether the forecasters have learnt other rows since.
    """

    BARE: ClassVar[str] = (
        "the map was fitted on rows that other forecasters had not learnt, so its ranks promise nothing of this one; "
        "ask the forecast of the CrossFitted itself (CV+), or hold rows out: Calibrated(…)"
    )

    def __init__(
        self,
        judged: Sequence[tuple[Callable[[Tensor], Distribution], Tensor]],
        x: Tensor,
        stale: Callable[[], bool] = lambda: False,
    ) -> None:
        self.judged, self.x, self.stale = judged, x, stale

    def bounds(
        self, forecast: Recalibrated, low: float, high: float, confidence: float | None
    ) -> tuple[Tensor, Tensor]:
        """Outcomes beyond which those tails of rows lie, (*batch) each."""
        self._check(confidence)
        if self.stale():
            raise CalibrlError("the model has learnt other rows since this forecast; ask it again for an interval")
        with torch.no_grad():
            parts = [(by_column(judge(self.x)), z.T.contiguous()) for judge, z in self.judged]
        n = torch.stack([(~z.isnan()).sum(-1) for _, z in parts]).sum(0)
        below, above = (torch.floor((n + 1) * tail + 1e-9) for tail in (low, high))
        lowest = torch.where(below < 1, -torch.inf, _reaching(parts, below, forecast.batch_shape))
        highest = torch.where(above < 1, torch.inf, _reaching(parts, n + 1 - above, forecast.batch_shape))
        return lowest.to(dtype_of(forecast.base)), highest.to(dtype_of(forecast.base))

    def take(self, rows: Any) -> ByFolds:
        """The guarantee of some of the rows."""
        some = slice(rows, rows + 1 or None) if isinstance(rows, int) else rows
        return ByFolds(self.judged, self.x[some], self.stale)

    def promise(self, low: float, high: float, confidence: float | None) -> str:
        """What is promised, in words."""
        self._check(confidence)
        # Of the column of fewest outcomes.
        n, folds = int((~torch.cat([z for _, z in self.judged]).isnan()).sum(0).min()), len(self.judged)
        # What K folds leave open beside n rows, on each side: Theorem 4 of the paper.
        open_by = max(0.0, min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / max(n, 1)) / (folds + 1)))
        least_share = max(0.0, 1 - 2 * (low + high) - ((low > 0) + (high > 0)) * open_by)
        return (
            f"It holds about {percent(1 - low - high)} of outcomes on average, and for certain at least "
            f"{percent(round(least_share, 3))}, if rows are exchangeable and forecasters do not care for their order "
            f"(CV+: 1 - 2 × {percent(round(low + high, 6))}, less what {n} rows in {folds} folds leave open)."
        )

    def _check(self, confidence: float | None) -> None:
        if confidence is not None:
            raise CalibrlError("cross-fitted forecasts have no tolerance bound; hold rows out: Calibrated(…)")
        if not self.judged:
            raise CalibrlError("no row was judged yet; call update(data) with rows for two folds or more first")


def _reaching(parts: list[tuple[Distribution, Tensor]], rank: Tensor, shape: torch.Size) -> Tensor:
    """The least outcome (*shape) that as many rows' outcomes as `rank` (d,) do not exceed."""
    columns = shape[-1] if len(shape) > 1 else 1

    def reached(y: Tensor) -> Tensor:
        count = torch.zeros(y.shape, dtype=torch.float64, device=y.device)
        for own, z in parts:
            # Rows whose z-score is not above that of y, column by column; those that nobody saw never count.
            at = zscore(own, y).reshape(-1, columns).T.contiguous()
            count += torch.searchsorted(z.nan_to_num(torch.inf), at, right=True).T.reshape(y.shape)
        return count >= rank

    low = [from_zscore(own, z.nan_to_num(torch.inf).amin(-1).clamp(max=9.0).expand(shape)) for own, z in parts]
    high = [from_zscore(own, z.nan_to_num(-torch.inf).amax(-1).clamp(min=-9.0).expand(shape)) for own, z in parts]
    return least(reached, torch.stack([*low, *high]).amin(0), torch.stack([*low, *high]).amax(0))


class ByMisses:
    """Adaptive conformal inference, of forecasts that come one after another: bounds that follow their misses.

    Parameters
    ----------
    record : Adaptive
        What past outcomes said.
    """

    def __init__(self, record: Adaptive) -> None:
        self.record = record

    def bounds(
        self, forecast: Recalibrated, low: float, high: float, confidence: float | None
    ) -> tuple[Tensor, Tensor]:
        """Quantiles of the calibrated forecast at tails that follow past misses, (*batch) each."""
        ends = self.record.bounds_z(low, high, confidence)
        device = device_of(forecast.base)
        lowest, highest = (forecast.at(end.to(device).expand(forecast.batch_shape)) for end in ends)
        return lowest, highest

    def take(self, rows: Any) -> ByMisses:  # noqa: ARG002 (the same for every row)
        """The same: what past outcomes said holds for each row."""
        return self

    def promise(self, low: float, high: float, confidence: float | None) -> str:
        """What is promised, in words."""
        return self.record.promise(low, high, confidence)

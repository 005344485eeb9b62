"""Forecasts are torch distributions; these are the few that torch lacks."""

from calibrl.distributions.empirical import Empirical, Quantiles
from calibrl.distributions.families import Mixture, Rounded
from calibrl.distributions.kinds import is_discrete
from calibrl.distributions.pit import draw, outcomes_for, pit, pit_z
from calibrl.distributions.recalibrated import Recalibrated
from calibrl.distributions.zscores import from_zscore, zscore, zscore_left

__all__ = [
    "Empirical",
    "Mixture",
    "Quantiles",
    "Recalibrated",
    "Rounded",
    "draw",
    "from_zscore",
    "is_discrete",
    "outcomes_for",
    "pit",
    "pit_z",
    "zscore",
    "zscore_left",
]

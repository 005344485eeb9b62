"""Is the forecast honest, and is it sharp? Pure functions of (forecast, y) or of PITs."""

from calibrl.diagnostics.calibration import (
    LEVELS,
    Band,
    ReliabilityCurve,
    calibration_error,
    calibration_loss,
    coverage,
    noise_floor,
    pit_histogram,
    reliability_band,
    reliability_curve,
)
from calibrl.diagnostics.classes import (
    BrierParts,
    ClassReliability,
    ClassSummary,
    brier,
    class_reliability,
    class_summary,
    ece,
)
from calibrl.diagnostics.quantiles import QuantileSummary, quantile_summary
from calibrl.diagnostics.scores import crps, crps_each, nll, nll_each, pinball, pinball_each, sharpness, width
from calibrl.diagnostics.summary import Summary, check, summary
from calibrl.distributions import pit, pit_z

__all__ = [
    "LEVELS",
    "Band",
    "BrierParts",
    "ClassReliability",
    "ClassSummary",
    "QuantileSummary",
    "ReliabilityCurve",
    "Summary",
    "brier",
    "calibration_error",
    "calibration_loss",
    "check",
    "class_reliability",
    "class_summary",
    "coverage",
    "crps",
    "crps_each",
    "ece",
    "nll",
    "nll_each",
    "noise_floor",
    "pinball",
    "pinball_each",
    "pit",
    "pit_histogram",
    "pit_z",
    "quantile_summary",
    "reliability_band",
    "reliability_curve",
    "sharpness",
    "summary",
    "width",
]

"""Ready-made forecasters, and adapters that make one of any model."""

from calibrl.forecasters.estimators import SklearnClassifier, SklearnForecaster, SklearnQuantiles
from calibrl.forecasters.modules import Ensemble, MCDropout, TorchForecaster, moment_matched
from calibrl.forecasters.training import adam, gaussian

__all__ = [
    "Ensemble",
    "MCDropout",
    "SklearnClassifier",
    "SklearnForecaster",
    "SklearnQuantiles",
    "TorchForecaster",
    "adam",
    "gaussian",
    "moment_matched",
]

"""Ready-made forecasters, and adapters that make one of any model."""

from calibrl.forecasters.ensemble import BatchedEnsemble
from calibrl.forecasters.fitted import CalibratedModel, calibrate
from calibrl.forecasters.linear import RidgeArms, RidgeShared, SoftmaxTransitions, TabularTransitions
from calibrl.forecasters.sklearn import SklearnClassifier, SklearnForecaster, SklearnQuantiles
from calibrl.forecasters.torch import Ensemble, MCDropout, TorchForecaster, adam, gaussian, moment_matched

__all__ = [
    "BatchedEnsemble",
    "CalibratedModel",
    "Ensemble",
    "MCDropout",
    "RidgeArms",
    "RidgeShared",
    "SklearnClassifier",
    "SklearnForecaster",
    "SklearnQuantiles",
    "SoftmaxTransitions",
    "TabularTransitions",
    "TorchForecaster",
    "adam",
    "calibrate",
    "gaussian",
    "moment_matched",
]

"""Ready-made forecasters, and adapters that make one of any model."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.forecasters.ensemble import BatchedEnsemble as BatchedEnsemble
    from calibrl.forecasters.fitted import CalibratedModel as CalibratedModel
    from calibrl.forecasters.fitted import calibrate as calibrate
    from calibrl.forecasters.linear import RidgeArms as RidgeArms
    from calibrl.forecasters.linear import RidgeShared as RidgeShared
    from calibrl.forecasters.linear import SoftmaxTransitions as SoftmaxTransitions
    from calibrl.forecasters.linear import TabularTransitions as TabularTransitions
    from calibrl.forecasters.sklearn import SklearnClassifier as SklearnClassifier
    from calibrl.forecasters.sklearn import SklearnForecaster as SklearnForecaster
    from calibrl.forecasters.sklearn import SklearnQuantiles as SklearnQuantiles
    from calibrl.forecasters.torch import Ensemble as Ensemble
    from calibrl.forecasters.torch import MCDropout as MCDropout
    from calibrl.forecasters.torch import TorchForecaster as TorchForecaster
    from calibrl.forecasters.torch import adam as adam
    from calibrl.forecasters.torch import gaussian as gaussian
    from calibrl.forecasters.torch import moment_matched as moment_matched

__getattr__, __dir__, __all__ = exports(__name__)

"""calibrl: honest forecasts, better decisions.

Public names are loaded when first used, so that `calibrl --help` does not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibrl.algorithm import Calibrated as Calibrated
    from calibrl.algorithm import CrossFitted as CrossFitted
    from calibrl.algorithm import Forecaster as Forecaster
    from calibrl.algorithm import Prequential as Prequential
    from calibrl.algorithm import learn as learn
    from calibrl.algorithm import recalibrate as recalibrate
    from calibrl.bandits import CalLinUCB as CalLinUCB
    from calibrl.bandits import CalThompson as CalThompson
    from calibrl.bandits import ConformalLinUCB as ConformalLinUCB
    from calibrl.bandits import Durable as Durable
    from calibrl.bandits import EpsilonGreedy as EpsilonGreedy
    from calibrl.bandits import Greedy as Greedy
    from calibrl.bandits import LinUCB as LinUCB
    from calibrl.bandits import Policy as Policy
    from calibrl.bandits import Thompson as Thompson
    from calibrl.classes import ClassMap as ClassMap
    from calibrl.classes import fit_auto_classes as fit_auto_classes
    from calibrl.classes import fit_isotonic_classes as fit_isotonic_classes
    from calibrl.classes import fit_platt_classes as fit_platt_classes
    from calibrl.classes import fit_temperature as fit_temperature
    from calibrl.control import Agent as Agent
    from calibrl.control import Task as Task
    from calibrl.control import task as task
    from calibrl.control import task_from_env as task_from_env
    from calibrl.data import Data as Data
    from calibrl.data import Split as Split
    from calibrl.data import last_split as last_split
    from calibrl.data import random_split as random_split
    from calibrl.diagnostics import BrierParts as BrierParts
    from calibrl.diagnostics import ClassSummary as ClassSummary
    from calibrl.diagnostics import Summary as Summary
    from calibrl.diagnostics import brier as brier
    from calibrl.diagnostics import calibration_error as calibration_error
    from calibrl.diagnostics import calibration_loss as calibration_loss
    from calibrl.diagnostics import check as check
    from calibrl.diagnostics import class_summary as class_summary
    from calibrl.diagnostics import coverage as coverage
    from calibrl.diagnostics import crps as crps
    from calibrl.diagnostics import diagnose as diagnose
    from calibrl.diagnostics import ece as ece
    from calibrl.diagnostics import nll as nll
    from calibrl.diagnostics import noise_floor as noise_floor
    from calibrl.diagnostics import pinball as pinball
    from calibrl.diagnostics import pit_histogram as pit_histogram
    from calibrl.diagnostics import reliability_band as reliability_band
    from calibrl.diagnostics import reliability_curve as reliability_curve
    from calibrl.diagnostics import sharpness as sharpness
    from calibrl.diagnostics import summary as summary
    from calibrl.diagnostics import width as width
    from calibrl.distributions import Empirical as Empirical
    from calibrl.distributions import Mixture as Mixture
    from calibrl.distributions import Quantiles as Quantiles
    from calibrl.distributions import Recalibrated as Recalibrated
    from calibrl.distributions import Rounded as Rounded
    from calibrl.distributions import draw as draw
    from calibrl.distributions import pit as pit
    from calibrl.distributions import pit_z as pit_z
    from calibrl.errors import CalibrlError as CalibrlError
    from calibrl.errors import MissingExtra as MissingExtra
    from calibrl.errors import ReusedRows as ReusedRows
    from calibrl.forecasters import BatchedEnsemble as BatchedEnsemble
    from calibrl.forecasters import Ensemble as Ensemble
    from calibrl.forecasters import MCDropout as MCDropout
    from calibrl.forecasters import SklearnClassifier as SklearnClassifier
    from calibrl.forecasters import SklearnForecaster as SklearnForecaster
    from calibrl.forecasters import SklearnQuantiles as SklearnQuantiles
    from calibrl.forecasters import TorchForecaster as TorchForecaster
    from calibrl.forecasters.dropout import BayesianDenseNet as BayesianDenseNet
    from calibrl.forecasters.seasonal import ExponentialSmoothing as ExponentialSmoothing
    from calibrl.forecasters.seasonal import SeasonalNaive as SeasonalNaive
    from calibrl.forecasters.tabular import SoftmaxTransitions as SoftmaxTransitions
    from calibrl.forecasters.tabular import TabularTransitions as TabularTransitions
    from calibrl.inventory.environment import PerishableStore as PerishableStore
    from calibrl.maps import IDENTITY as IDENTITY
    from calibrl.maps import FitMap as FitMap
    from calibrl.maps import Map as Map
    from calibrl.maps import fit_affine as fit_affine
    from calibrl.maps import fit_auto as fit_auto
    from calibrl.maps import fit_beta as fit_beta
    from calibrl.maps import fit_isotonic as fit_isotonic
    from calibrl.maps import fit_platt as fit_platt
    from calibrl.maps import fit_sigmoid as fit_sigmoid
    from calibrl.maps import fit_smooth as fit_smooth
    from calibrl.parallel import Job as Job
    from calibrl.parallel import run_jobs as run_jobs
    from calibrl.planning.chance import ChanceConstraint as ChanceConstraint
    from calibrl.planning.discrete import MDP as MDP
    from calibrl.planning.improved import improved_cross_entropy as improved_cross_entropy
    from calibrl.planning.path_integral import path_integral as path_integral
    from calibrl.planning.rollout import World as World
    from calibrl.planning.rollout import imagined_returns as imagined_returns
    from calibrl.planning.search import cross_entropy as cross_entropy
    from calibrl.planning.search import random_shooting as random_shooting
    from calibrl.planning.value_iteration import policy_iteration as policy_iteration
    from calibrl.planning.value_iteration import policy_value as policy_value
    from calibrl.planning.value_iteration import value_iteration as value_iteration

_HOMES: dict[str, str] = {}
for _module, _names in {
    "algorithm": "Calibrated CrossFitted Forecaster Prequential learn recalibrate",
    "bandits": "CalLinUCB CalThompson ConformalLinUCB Durable EpsilonGreedy Greedy LinUCB Policy Thompson",
    "classes": "ClassMap fit_auto_classes fit_isotonic_classes fit_platt_classes fit_temperature",
    "control": "Agent Task task task_from_env",
    "data": "Data Split last_split random_split",
    "diagnostics": (
        "BrierParts ClassSummary Summary brier calibration_error calibration_loss check class_summary coverage crps "
        "diagnose ece nll noise_floor pinball pit_histogram reliability_band reliability_curve sharpness summary width"
    ),
    "distributions": "Empirical Mixture Quantiles Recalibrated Rounded draw pit pit_z",
    "errors": "CalibrlError MissingExtra ReusedRows",
    "forecasters": (
        "BatchedEnsemble Ensemble MCDropout SklearnClassifier SklearnForecaster SklearnQuantiles TorchForecaster"
    ),
    "forecasters.dropout": "BayesianDenseNet",
    "forecasters.seasonal": "ExponentialSmoothing SeasonalNaive",
    "forecasters.tabular": "SoftmaxTransitions TabularTransitions",
    "inventory.environment": "PerishableStore",
    "maps": "FitMap IDENTITY Map fit_affine fit_auto fit_beta fit_isotonic fit_platt fit_sigmoid fit_smooth",
    "parallel": "Job run_jobs",
    "planning.chance": "ChanceConstraint",
    "planning.discrete": "MDP",
    "planning.improved": "improved_cross_entropy",
    "planning.path_integral": "path_integral",
    "planning.rollout": "World imagined_returns",
    "planning.search": "cross_entropy random_shooting",
    "planning.value_iteration": "policy_iteration policy_value value_iteration",
}.items():
    _HOMES.update(dict.fromkeys(_names.split(), f"calibrl.{_module}"))

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'calibrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]

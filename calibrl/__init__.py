"""calibrl: honest forecasts, better decisions.

Public names are loaded when first used, so that `calibrl --help` does not wait for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrl.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibrl.algorithm import Calibrated as Calibrated
    from calibrl.algorithm import CrossFitted as CrossFitted
    from calibrl.algorithm import Forecaster as Forecaster
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
    from calibrl.evidence import Evidence as Evidence
    from calibrl.evidence import HeldOut as HeldOut
    from calibrl.evidence import Rolling as Rolling
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
    from calibrl.maps.classes import ClassMap as ClassMap
    from calibrl.maps.classes import fit_auto_classes as fit_auto_classes
    from calibrl.maps.classes import fit_isotonic_classes as fit_isotonic_classes
    from calibrl.maps.classes import fit_platt_classes as fit_platt_classes
    from calibrl.maps.classes import fit_temperature as fit_temperature
    from calibrl.planning.chance import ChanceConstraint as ChanceConstraint
    from calibrl.planning.rollout import World as World
    from calibrl.planning.rollout import imagined_returns as imagined_returns
    from calibrl.planning.search import CEM as CEM
    from calibrl.planning.search import ICEM as ICEM
    from calibrl.planning.search import MPPI as MPPI
    from calibrl.planning.search import Bounds as Bounds
    from calibrl.planning.search import RandomShooting as RandomShooting
    from calibrl.planning.value_iteration import MDP as MDP
    from calibrl.planning.value_iteration import policy_iteration as policy_iteration
    from calibrl.planning.value_iteration import policy_value as policy_value
    from calibrl.planning.value_iteration import value_iteration as value_iteration
    from calibrl.runs.workers import Job as Job
    from calibrl.runs.workers import run_jobs as run_jobs

__getattr__, __dir__, __all__ = exports(__name__)
__all__ += ["__version__"]

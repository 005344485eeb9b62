"""calibrl: honest forecasts, better decisions.

The names that most programs need are here, the rest in the modules, such as `calibrl.diagnostics.reliability_curve` or
`calibrl.bandits.Thompson`. All are loaded when first used, so that `calibrl --help` does not wait for PyTorch.
"""

from __future__ import annotations

import os
import sys

# `python -m calibrl` has Python look in the current folder first, where any file may be called like a package.
if sys.argv[:1] == ["-m"] and "calibrl" in sys.orig_argv:
    here = os.getcwd()  # noqa: PTH109 (a pathlib.py may be there)
    if sys.path[0] == here != os.path.dirname(__path__[0]):  # noqa: PTH120
        del sys.path[0]
    del here

from typing import TYPE_CHECKING

from calibrl.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibrl import algorithm as algorithm
    from calibrl import bandits as bandits
    from calibrl import control as control
    from calibrl import data as data
    from calibrl import diagnostics as diagnostics
    from calibrl import distributions as distributions
    from calibrl import errors as errors
    from calibrl import evidence as evidence
    from calibrl import forecasters as forecasters
    from calibrl import inventory as inventory
    from calibrl import maps as maps
    from calibrl import mdp as mdp
    from calibrl import planning as planning
    from calibrl import plots as plots
    from calibrl import report as report
    from calibrl import runs as runs
    from calibrl import safety as safety
    from calibrl import shop as shop
    from calibrl import tables as tables
    from calibrl.algorithm import Calibrated as Calibrated
    from calibrl.algorithm import CrossFitted as CrossFitted
    from calibrl.algorithm import Forecaster as Forecaster
    from calibrl.algorithm import learn as learn
    from calibrl.algorithm import recalibrate as recalibrate
    from calibrl.bandits import CalibratedUCB as CalibratedUCB
    from calibrl.bandits import LinUCB as LinUCB
    from calibrl.control import Agent as Agent
    from calibrl.data import Data as Data
    from calibrl.data import last_split as last_split
    from calibrl.data import random_split as random_split
    from calibrl.diagnostics import calibration_loss as calibration_loss
    from calibrl.diagnostics import check as check
    from calibrl.diagnostics import class_summary as class_summary
    from calibrl.diagnostics import crps as crps
    from calibrl.diagnostics import ece as ece
    from calibrl.diagnostics import summary as summary
    from calibrl.distributions import Empirical as Empirical
    from calibrl.distributions import Mixture as Mixture
    from calibrl.distributions import Quantiles as Quantiles
    from calibrl.distributions import Recalibrated as Recalibrated
    from calibrl.distributions import Rounded as Rounded
    from calibrl.distributions import draw as draw
    from calibrl.distributions import pit as pit
    from calibrl.distributions import pit_z as pit_z
    from calibrl.errors import CalibrlError as CalibrlError
    from calibrl.errors import ReusedRows as ReusedRows
    from calibrl.evidence import HeldOut as HeldOut
    from calibrl.evidence import Rolling as Rolling
    from calibrl.forecasters import Ensemble as Ensemble
    from calibrl.forecasters import MCDropout as MCDropout
    from calibrl.forecasters import SklearnClassifier as SklearnClassifier
    from calibrl.forecasters import SklearnForecaster as SklearnForecaster
    from calibrl.forecasters import SklearnQuantiles as SklearnQuantiles
    from calibrl.forecasters import TorchForecaster as TorchForecaster
    from calibrl.forecasters import calibrate as calibrate
    from calibrl.forecasters.sklearn import CalibratedRegressor as CalibratedRegressor
    from calibrl.maps import Map as Map
    from calibrl.maps import fit_affine as fit_affine
    from calibrl.maps import fit_auto as fit_auto
    from calibrl.maps import fit_beta as fit_beta
    from calibrl.maps import fit_isotonic as fit_isotonic
    from calibrl.maps import fit_platt as fit_platt
    from calibrl.maps import fit_smooth as fit_smooth
    from calibrl.maps.classes import fit_temperature as fit_temperature

__getattr__, __dir__, __all__ = exports(__name__)
__all__ += ["__version__"]

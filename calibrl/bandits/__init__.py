"""Contextual bandits: decide under uncertainty, learn from what the chosen arm paid."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.bandits.arms import Among as Among
    from calibrl.bandits.arms import Arm as Arm
    from calibrl.bandits.arms import CompiledRidge as CompiledRidge
    from calibrl.bandits.arms import Forecast as Forecast
    from calibrl.bandits.arms import RidgeSettings as RidgeSettings
    from calibrl.bandits.decisions import Decision as Decision
    from calibrl.bandits.durable import Durable as Durable
    from calibrl.bandits.policy import POLICIES as POLICIES
    from calibrl.bandits.policy import CalibratedThompson as CalibratedThompson
    from calibrl.bandits.policy import CalibratedUCB as CalibratedUCB
    from calibrl.bandits.policy import CalLinUCB as CalLinUCB
    from calibrl.bandits.policy import CalThompson as CalThompson
    from calibrl.bandits.policy import ConformalLinUCB as ConformalLinUCB
    from calibrl.bandits.policy import EpsilonGreedy as EpsilonGreedy
    from calibrl.bandits.policy import Greedy as Greedy
    from calibrl.bandits.policy import LinUCB as LinUCB
    from calibrl.bandits.policy import Policy as Policy
    from calibrl.bandits.policy import Thompson as Thompson
    from calibrl.bandits.storage import NotKept as NotKept
    from calibrl.maps.ecdf import Ecdf as Ecdf
    from calibrl.maps.ecdf import fit_ecdf as fit_ecdf
    from calibrl.planning.quantile import Exploration as Exploration

__getattr__, __dir__, __all__ = exports(__name__)

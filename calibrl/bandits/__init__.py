"""Contextual bandits: decide under uncertainty, learn from what the chosen arm paid."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.bandits.arms import Among as Among
    from calibrl.bandits.arms import Arm as Arm
    from calibrl.bandits.durable import Durable as Durable
    from calibrl.bandits.journal import NotKept as NotKept
    from calibrl.bandits.options import Options as Options
    from calibrl.bandits.plan import Plan as Plan
    from calibrl.bandits.policies import POLICIES as POLICIES
    from calibrl.bandits.policies import CalLinUCB as CalLinUCB
    from calibrl.bandits.policies import CalThompson as CalThompson
    from calibrl.bandits.policies import ConformalLinUCB as ConformalLinUCB
    from calibrl.bandits.policies import EpsilonGreedy as EpsilonGreedy
    from calibrl.bandits.policies import Greedy as Greedy
    from calibrl.bandits.policies import LinUCB as LinUCB
    from calibrl.bandits.policies import Thompson as Thompson
    from calibrl.bandits.policy import Decision as Decision
    from calibrl.bandits.policy import Policy as Policy
    from calibrl.maps.ecdf import Ecdf as Ecdf
    from calibrl.maps.ecdf import fit_ecdf as fit_ecdf

__getattr__, __dir__, __all__ = exports(__name__)

"""Planners: functions of forecasts or of an objective, which cannot tell a calibrated model from a bare one."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.planning.chance import ChanceConstraint as ChanceConstraint
    from calibrl.planning.rollout import World as World
    from calibrl.planning.rollout import imagined_returns as imagined_returns
    from calibrl.planning.search import CEM as CEM
    from calibrl.planning.search import ICEM as ICEM
    from calibrl.planning.search import MPPI as MPPI
    from calibrl.planning.search import Bounds as Bounds
    from calibrl.planning.search import RandomShooting as RandomShooting

__getattr__, __dir__, __all__ = exports(__name__)

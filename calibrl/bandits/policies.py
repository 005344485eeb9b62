"""The policies by name: one planner, one model, and two choices to make.

| | level of the quantile | forecast |
|---|---|---|
| LinUCB, CalLinUCB | Φ(1) = 84 % | bare, calibrated |
| ConformalLinUCB | 84 %, held to its coverage | calibrated, with the rewards' noise |
| Thompson, CalThompson | drawn for every arm | bare, calibrated |
| Greedy, EpsilonGreedy | 50 % | bare |

Calibrated means: the same forecaster, wrapped in `Prequential` with one empirical map per arm. Each takes a
random arm with probability `explore`, so that other policies can be evaluated from its log; by default only
EpsilonGreedy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict, Unpack

from calibrl.bandits.arms import Arm
from calibrl.bandits.options import Options
from calibrl.bandits.plan import Plan
from calibrl.bandits.policy import Policy


class Settings(TypedDict, total=False):
    """What every policy can be told: see `Options`."""

    ridge: float
    shared: bool
    least: int
    window: int


def LinUCB(  # noqa: N802 (the algorithm's name)
    arms: int | Iterable[Arm],
    dim: int,
    *,
    level: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """The arm whose mean + level · sd is highest (Li et al., 2010)."""
    return Policy(arms, Options(dim, Plan(level, explore=explore), **settings), seed=seed)


def CalLinUCB(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    level: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """LinUCB on calibrated forecasts: the same quantile, calibrated with each arm's own record."""
    return Policy(arms, Options(dim, Plan(level, explore=explore), calibrated=True, **settings), seed=seed)


def ConformalLinUCB(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    level: float = 1.0,
    step: float = 0.03,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """CalLinUCB with an adjusted level: an arm whose quantile covers too often aims lower, and vice versa.

    Forecasts are of single rewards, noise included, and each reward moves its arm's levels by step · (promised -
    covered), as in adaptive conformal inference (Gibbs and Candès, 2021): in the long run the quantile covers the
    rewards of the arms that were chosen, whatever chose them.
    """
    options = Options(dim, Plan(level, explore=explore), calibrated=True, noisy=True, step=step, **settings)
    return Policy(arms, options, seed=seed)


def Thompson(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    spread: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """The arm with the highest sample from its forecast."""
    return Policy(arms, Options(dim, Plan(spread=spread, explore=explore), **settings), seed=seed)


def CalThompson(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    spread: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """Thompson sampling from calibrated forecasts."""
    return Policy(arms, Options(dim, Plan(spread=spread, explore=explore), calibrated=True, **settings), seed=seed)


def Greedy(  # noqa: N802
    arms: int | Iterable[Arm], dim: int, *, seed: int = 0, **settings: Unpack[Settings]
) -> Policy:
    """The arm with the highest mean: the control that every exploring policy has to beat."""
    return Policy(arms, Options(dim, Plan(), **settings), seed=seed)


def EpsilonGreedy(  # noqa: N802
    arms: int | Iterable[Arm], dim: int, *, explore: float = 0.05, seed: int = 0, **settings: Unpack[Settings]
) -> Policy:
    """Greedy, but with probability `explore` a random arm."""
    return Policy(arms, Options(dim, Plan(explore=explore), **settings), seed=seed)


POLICIES: dict[str, Callable[..., Policy]] = {
    "linucb": LinUCB,
    "callinucb": CalLinUCB,
    "conformal-linucb": ConformalLinUCB,
    "greedy": Greedy,
    "thompson": Thompson,
    "calthompson": CalThompson,
    "epsilon-greedy": EpsilonGreedy,
}
"""Every policy by the name the command line knows."""

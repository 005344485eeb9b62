"""Discrete MDPs: generators, the paper's theorem as numbers, and tasks to learn a model of."""

from calibrl.mdp.generators import random_mdp, random_policy, two_state
from calibrl.mdp.occupancy import check_reachable, occupancy, pairs, reachable, stationary
from calibrl.mdp.tasks import Task, maze
from calibrl.mdp.theorem import (
    aggregate,
    brier,
    classwise_error,
    classwise_example,
    marginal_error,
    motionless,
    pooled_error,
    sharpen,
    value_error,
    value_error_bound,
    with_transitions,
)
from calibrl.planning.value_iteration import MDP

__all__ = [
    "MDP",
    "Task",
    "aggregate",
    "brier",
    "check_reachable",
    "classwise_error",
    "classwise_example",
    "marginal_error",
    "maze",
    "motionless",
    "occupancy",
    "pairs",
    "pooled_error",
    "random_mdp",
    "random_policy",
    "reachable",
    "sharpen",
    "stationary",
    "two_state",
    "value_error",
    "value_error_bound",
    "with_transitions",
]

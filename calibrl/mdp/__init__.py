"""Discrete MDPs: generators, the paper's theorem as numbers, and tasks to learn a model of."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.mdp.problems import Task as Task
    from calibrl.mdp.problems import check_reachable as check_reachable
    from calibrl.mdp.problems import gym_task as gym_task
    from calibrl.mdp.problems import maze as maze
    from calibrl.mdp.problems import random_mdp as random_mdp
    from calibrl.mdp.problems import random_policy as random_policy
    from calibrl.mdp.problems import reachable as reachable
    from calibrl.mdp.problems import two_state as two_state
    from calibrl.mdp.theorem import aggregate as aggregate
    from calibrl.mdp.theorem import brier as brier
    from calibrl.mdp.theorem import classwise_error as classwise_error
    from calibrl.mdp.theorem import classwise_example as classwise_example
    from calibrl.mdp.theorem import marginal_error as marginal_error
    from calibrl.mdp.theorem import motionless as motionless
    from calibrl.mdp.theorem import occupancy as occupancy
    from calibrl.mdp.theorem import pairs as pairs
    from calibrl.mdp.theorem import pooled_error as pooled_error
    from calibrl.mdp.theorem import sharpen as sharpen
    from calibrl.mdp.theorem import stationary as stationary
    from calibrl.mdp.theorem import value_error as value_error
    from calibrl.mdp.theorem import value_error_bound as value_error_bound
    from calibrl.mdp.theorem import with_transitions as with_transitions
    from calibrl.planning.value_iteration import MDP as MDP
    from calibrl.planning.value_iteration import policy_iteration as policy_iteration
    from calibrl.planning.value_iteration import policy_value as policy_value
    from calibrl.planning.value_iteration import value_iteration as value_iteration

__getattr__, __dir__, __all__ = exports(__name__)

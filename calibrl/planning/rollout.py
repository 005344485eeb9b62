"""Imagined rollouts: what a learnt model expects to earn by each of many plans.

g agents at once, n plans each, p particles a plan, h steps; o numbers in an observation, a in an action,
d in what the model forecasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

Reward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(observation (…, o), action (…, a), next observation (…, o)) → reward (…)."""


@dataclass(frozen=True)
class World:
    """How a model's numbers become a world: tensor functions for any leading dimensions, on any device.

    model_input: observation (…, o) → what the model sees of it (…, k); the action is appended by the caller.
    target: (observation, next observation) → what the model is taught to forecast (…, d).
    next_observation: (observation (…, o), forecast target (…, d)) → (…, o).
    reward: of a step; None where it is unknown and must be learnt before planning.
    None of them may read a number back (`.item()`, `if tensor`): whole plans are captured in one CUDA graph.
    """

    model_input: Callable[[Tensor], Tensor]
    target: Callable[[Tensor, Tensor], Tensor]
    next_observation: Callable[[Tensor, Tensor], Tensor]
    reward: Reward | None


class Model(Protocol):
    """What planning asks of networks: `calibrl.forecasters.nets.Nets`, or a faster version of it."""

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (g, e, n, d) by every network, for x (g, n, in) or (g, e, n, in)."""

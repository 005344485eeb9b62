"""Imagined returns on a GPU: a fused kernel for the networks, one for the draw, the world compiled around them.

The same as `rollout.imagined_returns` with propagation DS, in three kernels a step. The world's functions stay the
ordinary tensor functions they are; `torch.compile` makes one pass of them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrl.errors import first_line
from calibrl.kernels.matched import matched_draw
from calibrl.maps.gaussian import CELLS, REACH
from calibrl.planning.propagation import Model
from calibrl.planning.rollout import DIVERGED, World

PER_UNIT = CELLS / (2 * REACH)

VERSIONS = 256
"""How often a world's functions are compiled for other sizes before PyTorch gives up; its own limit is 8 in all."""


def fused_returns(
    nets: Model,
    world: World,
    observation: Tensor,
    plans: Tensor,
    *,
    particles: int,
    noise: Tensor,
    tables: Tensor | None = None,
) -> Tensor:
    """The mean over particles of each plan's summed reward, (g, n); arguments as in `rollout.imagine`, DS."""
    g, n, h, _ = plans.shape
    begin, advance = compiled(world)
    x = begin(observation, plans[:, :, 0])
    state = observation[:, None, None].expand(g, n, 1, -1)
    total = plans.new_zeros(g, n, particles)
    for t in range(h):
        mean, variance = nets.moments(x)
        lines = tables if tables is None or tables.dim() == 4 else tables[:, t]
        target = matched_draw(mean, variance, noise[:, t], lines, PER_UNIT).view(g, n, particles, -1)
        # The last step's next input is computed and not used: another version of `advance` would cost more.
        state, total, x = advance(state, plans[:, :, t], plans[:, :, min(t + 1, h - 1)], target, total)
    return total.nan_to_num(DIVERGED, posinf=DIVERGED, neginf=DIVERGED).mean(2)


@functools.cache
def compiled(world: World) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What happens between two answers of the networks, each one pass: the first input, and a step."""
    reward = world.reward
    assert reward is not None

    def begin(observation: Tensor, action: Tensor) -> Tensor:
        """Input (g, n, in) of the first step from observations (g, o) and actions (g, n, a)."""
        seen = world.model_input(observation)[:, None].expand(-1, action.shape[1], -1)
        return torch.cat([seen, action], -1)

    def advance(state: Tensor, action: Tensor, following: Tensor, target: Tensor, total: Tensor) -> Any:
        """State (g, n, p, o), returns so far (g, n, p) and the next input (g, n · p, in)."""
        before = state.expand(-1, -1, target.shape[2], -1)
        taken, upcoming = (part[:, :, None].expand(-1, -1, target.shape[2], -1) for part in (action, following))
        after = world.next_observation(before, target)
        x = torch.cat([world.model_input(after), upcoming], -1).flatten(1, 2)
        return after, total + reward(before, taken, after), x

    return _compile(begin), _compile(advance)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled; as it is, and said once, where torch cannot compile it."""
    fast = torch.compile(function, fullgraph=True, dynamic=False)
    chosen: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not chosen:
            try:
                answer = _with_room(fast, *arguments)
            except Exception as error:
                warnings.warn(f"the world's functions are not compiled: {first_line(error)}", stacklevel=2)
                chosen.append(function)
            else:
                chosen.append(fast)
                return answer
        return _with_room(chosen[0], *arguments)

    return call


def _with_room(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that may be compiled once more: for every task and number of agents that a process plans for."""
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({limit: VERSIONS}):
        return function(*arguments)

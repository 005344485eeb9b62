"""The paper's planner for all series of an evening at once, on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.inventory.planners import RandomTrajectories

Costs: TypeAlias = Callable[..., Tensor]

AT_ONCE = 50_000_000
"""Plans times paths that are held in memory at once where nothing is compiled."""


def open_loop_costs(orders: Tensor, paths: Tensor, stock: Tensor, *, waste: float, unmet: float) -> Tensor:
    """Mean cost (s, n) of fixed plans: orders (s, n, h), demand paths (s, m, h), stock (s, L) by days to expiry.

    Random issuing in proportion, as `kernels.stock` computes it for one series. One expression over (s, n, m):
    compiled, it is a single kernel that reads each plan and path once and keeps the shelf in registers.
    """
    shelf = list(stock[:, :, None, None].unbind(1))
    cost = torch.zeros((), dtype=orders.dtype, device=orders.device)
    for k in range(paths.shape[-1]):
        shelf[-1] = shelf[-1] + orders[:, :, None, k]
        there = functools.reduce(torch.add, shelf)
        demand = paths[:, None, :, k]
        left = (there - demand).clamp(min=0)
        keep = left / there.clamp(min=1e-30)
        shelf = [age * keep for age in shelf]
        cost = cost + waste * shelf[0] + unmet * (demand - there + left)
        shelf = [*shelf[1:], torch.zeros_like(shelf[0])]
    return cost.mean(-1)


@functools.cache
def _compiled() -> Costs:
    fused: Costs = torch.compile(open_loop_costs, dynamic=False)
    return fused


class Fleet:
    """`RandomTrajectories` for many series: the same search, its random numbers drawn on the device."""

    def __init__(self, planner: RandomTrajectories, *, device: str, seed: int) -> None:
        if (
            planner.rules.lead_days != 1
            or planner.rules.pack != 1
            or planner.rules.minimum
            or planner.issuing != "random"
        ):
            raise CalibrlError(
                f"{planner.rules} and issuing {planner.issuing!r} are not planned for on a GPU; use device cpu"
            )
        self.planner, self.device, self.seed = planner, device, seed

    def __call__(self, paths: NDArray[np.float64], stock: NDArray[np.int64], evening: int) -> NDArray[np.int64]:
        """Tonight's orders (s,): paths (s, m, h), stock (s, L). The evening's luck depends on the seed alone."""
        generator = torch.Generator(self.device).manual_seed(hash((self.seed, evening)) % 2**63)
        demand = torch.from_numpy(paths).to(self.device, torch.float32)
        shelf = torch.from_numpy(stock).to(self.device, torch.float32)
        shape = (len(paths), self.planner.trajectories, paths.shape[-1])
        shares = torch.rand(shape, generator=generator, device=self.device)
        most = demand.amax(1) if self.planner.reach is None else self.planner.reach * demand.mean(1)
        orders = torch.floor(shares * most[:, None] + 0.5)
        best = self._costs(orders, demand, shelf).argmin(1)
        first: NDArray[np.int64] = orders[torch.arange(len(orders)), best, 0].long().cpu().numpy()
        return first

    def _costs(self, orders: Tensor, demand: Tensor, shelf: Tensor) -> Tensor:
        prices = {"waste": self.planner.costs.waste, "unmet": self.planner.costs.unmet}
        if self.device.startswith("cuda"):
            return _compiled()(orders, demand, shelf, **prices)
        some = max(1, AT_ONCE // (orders.shape[1] * demand.shape[1]))
        parts = zip(orders.split(some), demand.split(some), shelf.split(some), strict=True)
        return torch.cat([open_loop_costs(one, ahead, held, **prices) for one, ahead, held in parts])

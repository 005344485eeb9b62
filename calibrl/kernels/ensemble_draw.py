"""Draws from the Gaussian that matches an ensemble: one compiled pass over its answers instead of nine.

A planner with small networks spends as long on calling tensor operations as in them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor


def ensemble_draw(mean: Tensor, share: Tensor, lowest: Tensor, highest: Tensor, draws: Tensor) -> Tensor:
    """μ + σ · draw, (g, n, d), with μ and σ² of the equal mixture of e Gaussians, on the CPU.

    mean: (g, e, d, n), each network's; its variance is lowest + highest · share, with share (g, e, d, n) and lowest,
    highest (g, 1, d, 1). draws: (g, n, d), standard normal or recalibrated.
    """
    found = torch.empty_like(draws)
    _draw(mean.numpy(), share.numpy(), lowest.numpy(), highest.numpy(), draws.numpy(), found.numpy())
    return found


def ensemble_draw_reference(mean: Tensor, share: Tensor, lowest: Tensor, highest: Tensor, draws: Tensor) -> Tensor:
    """The same in plain torch: what correct means."""
    middle = mean.mean(1)
    spread = (lowest + highest * share + (mean - middle.unsqueeze(1)).square()).mean(1)
    return middle.transpose(1, 2) + spread.sqrt().transpose(1, 2) * draws


@numba.njit(cache=True, fastmath=True, error_model="numpy")
def _draw(mean: Any, share: Any, lowest: Any, highest: Any, draws: Any, found: Any) -> None:
    g, e, d, n = mean.shape
    part = draws.dtype.type(1 / e)
    middle, spread = np.empty(n, draws.dtype), np.empty(n, draws.dtype)
    for a in range(g):
        for j in range(d):
            # Inner loops run along rows that lie side by side, so that they become vector instructions.
            middle[:] = 0
            spread[:] = lowest[a, 0, j, 0]
            for k in range(e):
                for i in range(n):
                    middle[i] += mean[a, k, j, i] * part
            for k in range(e):
                for i in range(n):
                    apart = mean[a, k, j, i] - middle[i]
                    spread[i] += (highest[a, 0, j, 0] * share[a, k, j, i] + apart * apart) * part
            for i in range(n):
                found[a, i, j] = middle[i] + np.sqrt(spread[i]) * draws[a, i, j]

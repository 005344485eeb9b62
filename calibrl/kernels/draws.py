"""Reading draws from a table: one pass over memory instead of five.

On a CPU a recalibrated draw should cost little more than a Gaussian one. Torch needs a pass for each of scaling,
truncating, looking up and adding; compiled, they are one.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor


def read_table(epsilon: Tensor, lines: Tensor, per_unit: float, *, reuse: bool = False) -> Tensor:
    """Draws a + b · ε with (a, b) = lines[column, cell of ε], cells counted from the middle of the table.

    epsilon: (…, d) or (…); lines: (d, cells, 2) or (cells, 2); per_unit: cells per unit of ε. With `reuse` the
    answer may be written over ε: at a planner's sizes fresh memory costs as much as the arithmetic.
    """
    if epsilon.device.type != "cpu":
        return read_table_reference(epsilon, lines, per_unit)
    flat = epsilon.detach().contiguous()
    table = lines if lines.dim() == 3 else lines[None]
    rows = (flat.numel() // len(table), len(table))
    found = flat if reuse else torch.empty_like(flat)
    _read(flat.view(rows).numpy(), table.numpy(), per_unit, found.view(rows).numpy())
    return found


def read_table_reference(epsilon: Tensor, lines: Tensor, per_unit: float) -> Tensor:
    """The same in plain torch: what correct means, and what runs on a GPU."""
    cells = lines.shape[-2]
    middle = torch.full(lines.shape[:-2], cells / 2, dtype=epsilon.dtype, device=epsilon.device)
    if middle.dim():
        middle = middle + torch.arange(len(middle), device=middle.device) * cells
    # Truncating is flooring here: cells are counted from 0.
    index = torch.add(middle, epsilon.detach(), alpha=per_unit).int()
    start, slope = lines.reshape(-1, 2).index_select(0, index.reshape(-1)).reshape(*epsilon.shape, 2).unbind(-1)
    return torch.addcmul(start, slope, epsilon.detach())


@numba.njit(cache=True, fastmath=True)
def _read(epsilon: Any, lines: Any, per_unit: float, found: Any) -> None:
    middle, step = np.float32(lines.shape[1] / 2), np.float32(per_unit)
    for i in range(epsilon.shape[0]):
        for j in range(epsilon.shape[1]):
            x = epsilon[i, j]
            cell = int(np.float32(x) * step + middle)
            found[i, j] = lines[j, cell, 0] + lines[j, cell, 1] * x

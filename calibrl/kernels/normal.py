"""The standard normal, exact far into both tails; and draws of what a map makes of it, read from a table.

Every map of `calibrl` works on z-scores z = Φ⁻¹(p) instead of probabilities p: in float64 a probability
rounds to 1 at z = 8.3, while over-confident forecasts see outcomes at z = 20 or 200 every day.

On a CPU a recalibrated draw should cost little more than a Gaussian one. Torch needs a pass over memory for each of
scaling, truncating, looking up and adding; `read_table`, compiled, needs one.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# Φ(-37.5) is the smallest normal float64. On the upper side 1 - 2⁻⁵³ is the last number below one.
LOWEST_Z, HIGHEST_Z = -37.5, 8.2095


CHUNK = 1 << 15
"""Numbers of a part that stays in a processor's cache."""


def cdf(z: Tensor) -> Tensor:
    """Φ(z), to the last digit in the lower tail too, where torch's own `ndtr` ends at z = -8.3.

    Parameters
    ----------
    z : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of the same shape and type.
    """
    if z.numel() <= CHUNK or z.requires_grad or z.device.type != "cpu":
        return 0.5 * torch.special.erfc(-z / math.sqrt(2))
    # In parts: fetching fresh memory for what lies between takes as long as the function itself.
    flat = z.reshape(-1)
    found = torch.empty_like(flat)
    for part, into in zip(flat.split(CHUNK), found.split(CHUNK), strict=True):
        torch.mul(torch.special.erfc(part / -math.sqrt(2)), 0.5, out=into)
    return found.view(z.shape)


def quantile(p: Tensor) -> Tensor:
    """Φ⁻¹(p): ∓inf at 0 and 1, NaN outside [0, 1]."""
    return torch.special.ndtri(p)


def finite_quantile(p: Tensor) -> Tensor:
    """Φ⁻¹(p), with 0 and 1 moved to the nearest number a float64 can tell from them."""
    return quantile(p.double()).clamp(LOWEST_Z, HIGHEST_Z)


def evidence_quantile(p: Tensor) -> Tensor:
    """Φ⁻¹(p) of probabilities that outcomes came with: cut off alike on both sides, where 1 - p rounds to 0.

    A float64 tells probabilities from 0 much further out than from 1; what only one tail can say would be taken for
    a bias.
    """
    return quantile(p.double()).clamp(-HIGHEST_Z, HIGHEST_Z)


def log_density(z: Tensor) -> Tensor:
    """Log φ(z)."""
    return -0.5 * z.square() - LOG_SQRT_2PI


def quantile_of(lower: Tensor, upper: Tensor) -> Tensor:
    """Φ⁻¹ of a probability known as its lower mass p and its upper mass 1 - p, exact in both tails and finite."""
    # No mass at all counts as the least there is, whose gradient is a number.
    z = quantile(torch.minimum(lower, upper).clamp(min=torch.finfo(torch.float64).tiny))
    return torch.where(lower < upper, z, -z)


def logit_of(z: Tensor) -> Tensor:
    """log(p / (1 - p)) at p = Φ(z), for z of any size."""
    return torch.special.log_ndtr(z) - torch.special.log_ndtr(-z)


def z_of_logit(t: Tensor) -> Tensor:
    """The inverse of `logit_of`, differentiable, for t of any size."""
    size = t.detach().abs()
    # Within |t| < 30 the probability itself is precise; beyond, log Φ(z) = -|t| is solved by Newton's
    # method from the tail's asymptote z ≈ -√(2|t|), which is all there is where 1 more or less is lost in rounding.
    z = torch.where(size < 30, quantile(torch.sigmoid(-size.clamp(max=30))), -torch.sqrt(2 * size))
    tail = (size >= 30) & (size < 0.1 / torch.finfo(t.dtype).eps)
    for _ in range(4):
        log_p = torch.special.log_ndtr(z)
        step = (log_p + size) * torch.exp(log_p - log_density(z))
        z = torch.where(tail, z - step, z)
    z = torch.where(t.detach() > 0, -z, z)
    if not t.requires_grad:
        return z
    # One more Newton step that carries the gradient: dz/dt = 1 / (dt/dz).
    slope = torch.exp(log_density(z) - torch.special.log_ndtr(z) - torch.special.log_ndtr(-z))
    return z + (t - logit_of(z).detach()) / slope


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

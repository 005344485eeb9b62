"""One step of DS on a GPU: an ensemble's Gaussians matched by one, and a calibrated draw from it, in one pass.

μ + σ · g(ε), with μ the mean of means, σ² the mean of variances and the variance of means, g read from a table of
lines as in `kernels.draws`. `matched_draw_reference` is what correct means.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from calibrl.kernels.draws import read_table_reference

BLOCK = 1024


@triton.jit
def _matched_draw(
    mean, variance, noise, lines, out, size, noise_stride, lines_stride, per_unit,
    E: tl.constexpr, D: tl.constexpr, REPEAT: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Numbers [1024 · i, 1024 · (i + 1)) of agent j's `size` = rows · D, for program (i, j); CELLS 0: no tables."""
    agent = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    column = at % D
    asked = at // D // REPEAT * D + column
    of_net = size // REPEAT
    middle = tl.zeros((BLOCK,), tl.float32)
    for e in tl.static_range(E):
        middle += tl.load(mean + (agent * E + e) * of_net + asked, mask=inside, other=0.0)
    middle = middle / E
    spread = tl.zeros((BLOCK,), tl.float32)
    for e in tl.static_range(E):
        apart = tl.load(mean + (agent * E + e) * of_net + asked, mask=inside, other=0.0) - middle
        spread += apart * apart + tl.load(variance + (agent * E + e) * of_net + asked, mask=inside, other=0.0)
    draw = tl.load(noise + agent * noise_stride + at, mask=inside, other=0.0)
    if CELLS > 0:
        cell = (draw * per_unit + CELLS / 2).to(tl.int32)
        line = lines + agent * lines_stride + (column * CELLS + cell) * 2
        draw = tl.load(line, mask=inside, other=0.0) + tl.load(line + 1, mask=inside, other=0.0) * draw
    tl.store(out + agent * size + at, middle + tl.sqrt(spread / E) * draw, mask=inside)


def matched_draw(mean: Tensor, variance: Tensor, noise: Tensor, lines: Tensor | None, per_unit: float) -> Tensor:
    """Draws (g, r, d) from the matched Gaussians of mean and variance (g, e, n, d), r a multiple of n.

    noise: (g, r, d), standard normal. lines: None, or tables (g, d, cells, 2); per_unit: cells per unit of ε. Where r
    is larger, r/n rows in a row are drawn from one Gaussian. Noise and lines may be strided in their first dimension.
    """
    g, e, n, d = mean.shape
    rows = noise.shape[1]
    out = torch.empty(g, rows, d, device=mean.device)
    settings: dict[str, Any] = {"E": e, "D": d, "REPEAT": rows // n, "BLOCK": BLOCK}
    cells, stride = (0, 0) if lines is None else (lines.shape[2], lines.stride(0))
    table = noise if lines is None else lines
    grid = (-(-rows * d // BLOCK), g)
    _matched_draw[grid](
        mean, variance, noise, table, out, rows * d, noise.stride(0), stride, per_unit, CELLS=cells, **settings
    )
    return out


def matched_draw_reference(
    mean: Tensor, variance: Tensor, noise: Tensor, lines: Tensor | None, per_unit: float
) -> Tensor:
    """The same in plain torch."""
    middle = mean.mean(1)
    spread = (variance + (mean - middle.unsqueeze(1)).square()).mean(1).sqrt()
    middle, spread = (part.repeat_interleave(noise.shape[1] // mean.shape[2], 1) for part in (middle, spread))
    if lines is None:
        return middle + spread * noise
    draw = torch.stack([read_table_reference(*pair, per_unit) for pair in zip(noise, lines, strict=True)])
    return middle + spread * draw

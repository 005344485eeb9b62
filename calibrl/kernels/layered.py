"""An ensemble's layers on any GPU that Triton serves, and DS's draw from what the networks answered.

`Layered` is for widths and chips that `kernels.hopper` is not for: one kernel a layer, bias and swish in the same pass.
Activations go through memory in bfloat16; the first layer and the heads are computed in TF32, sums, bounds and answers
in float32.

`matched_draw` is the rest of a step of DS, in one pass: an ensemble's Gaussians matched by one, and a calibrated draw
μ + σ · g(ε) from it, with μ the mean of means, σ² the mean of variances and the variance of means, and g read from a
table of lines as in `kernels.normal`. `arranged_draws` reads all draws of a rollout from such tables at once, for TS1
and TSinf, where every network has its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from calibrl.kernels.fused_nets import Kernel, Networks, Sizes, memory, pack_scales, power_of_two

ROWS, COLUMNS, DEPTH = 128, 128, 64
"""Of a tile: rows × units, and how many inputs at a time."""


@triton.jit
def _swish(x):
    return x * tl.sigmoid(x)


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def first_layer(
    x, centre, spread, w, bias, out, n,
    E: tl.constexpr, IN: tl.constexpr, KIN: tl.constexpr, WIDTH: tl.constexpr, OWN_ROWS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Standardise inputs and apply the first layer: program (row block, column block, network)."""
    net = tl.program_id(2).to(tl.int64)
    agent = net // E
    source = net if OWN_ROWS else agent
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, KIN)
    inside = (row < n)[:, None] & (k < IN)[None, :]
    given = tl.load(x + (source * n + row[:, None]) * IN + k[None, :], mask=inside, other=0.0)
    given = (given - tl.load(centre + agent * KIN + k)[None, :]) * tl.load(spread + agent * KIN + k)[None, :]
    weight = tl.load(w + (net * WIDTH + column[:, None]) * KIN + k[None, :])
    total = tl.dot(given, weight.trans(), input_precision="tf32") + tl.load(bias + net * WIDTH + column)[None, :]
    place = out + (net * n + row[:, None]) * WIDTH + column[None, :]
    tl.store(place, _swish(total).to(out.dtype.element_ty), mask=(row < n)[:, None])


@triton.jit
def hidden_layer(
    h, w, bias, out, n, layer,
    LAYERS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One hidden product with bias and swish: program (row and column block, network)."""
    net = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = WIDTH // COLUMNS
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    # Rows past the end read the last one again and are not written.
    left = h + (net * n + tl.minimum(row, n - 1)[:, None]) * WIDTH + k[None, :]
    right = w + ((net * LAYERS + layer) * WIDTH + column[:, None]) * WIDTH + k[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, WIDTH // DEPTH):
        total = tl.dot(tl.load(left), tl.load(right).trans(), total, input_precision="tf32")
        left += DEPTH
        right += DEPTH
    total += tl.load(bias + (net * LAYERS + layer) * WIDTH + column)[None, :]
    place = out + (net * n + row[:, None]) * WIDTH + column[None, :]
    tl.store(place, _swish(total).to(out.dtype.element_ty), mask=(row < n)[:, None])


@triton.jit
def heads(
    h, w_mean, b_mean, w_log, b_log, top, bottom, mean, variance, n,
    E: tl.constexpr, D: tl.constexpr, KD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Means, and variances within their soft bounds: program (row block, network)."""
    net = tl.program_id(1).to(tl.int64)
    agent = net // E
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, DEPTH)
    d = tl.arange(0, KD)
    left = h + (net * n + tl.minimum(row, n - 1)[:, None]) * WIDTH + k[None, :]
    right = (net * KD + d[:, None]) * WIDTH + k[None, :]
    m = tl.zeros((ROWS, KD), tl.float32)
    v = tl.zeros((ROWS, KD), tl.float32)
    for _ in range(0, WIDTH // DEPTH):
        some = tl.load(left).to(tl.float32)
        m = tl.dot(some, tl.load(w_mean + right).trans(), m, input_precision="tf32")
        v = tl.dot(some, tl.load(w_log + right).trans(), v, input_precision="tf32")
        left += DEPTH
        right += DEPTH
    m += tl.load(b_mean + net * KD + d)[None, :]
    v += tl.load(b_log + net * KD + d)[None, :]
    highest = tl.load(top + agent * KD + d)[None, :]
    lowest = tl.load(bottom + agent * KD + d)[None, :]
    v = highest - _softplus(highest - v)
    v = lowest + _softplus(v - lowest)
    place = (net * n + row[:, None]) * D + d[None, :]
    kept = (row < n)[:, None] & (d < D)[None, :]
    tl.store(mean + place, m, mask=kept)
    tl.store(variance + place, tl.exp(v), mask=kept)


@dataclass
class Layered:
    """The kernels above, and networks in the order in which they read them: units first, inputs in one piece.

    trunk: of the hidden layers, bfloat16; float32 for tests on a CPU.
    """

    sizes: Sizes
    device: torch.device
    trunk: torch.dtype = torch.bfloat16
    packed: dict[str, Tensor] = field(init=False)
    _rooms: dict[int, tuple[Tensor, Tensor]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        g, e, width, layers = self.sizes.agents, self.sizes.members, self.width, self.sizes.hidden - 1
        k, d = power_of_two(self.sizes.inputs), self.sizes.output_columns
        shapes: dict[str, tuple[int, ...]] = {
            "centre": (g, k),
            "spread": (g, k),
            "w_in": (g, e, width, k),
            "b_in": (g, e, width),
            "w_hidden": (g, e, layers, width, width),
            "b_hidden": (g, e, layers, width),
            "w_mean": (g, e, d, width),
            "b_mean": (g, e, d),
            "w_log": (g, e, d, width),
            "b_log": (g, e, d),
            "top": (g, d),
            "bottom": (g, d),
        }
        self.packed = memory(shapes, self.device, w_hidden=self.trunk)

    @property
    def width(self) -> int:
        """Units of a hidden layer, padded to whole tiles."""
        return -(-self.sizes.width // COLUMNS) * COLUMNS

    def pack(self, nets: Networks) -> None:
        """Take over the networks as they are, in place."""
        into, sizes = self.packed, self.sizes
        inputs, units, outputs = sizes.inputs, sizes.width, sizes.outputs
        pack_scales(nets, sizes, into)
        into["w_in"][:, :, :units, :inputs] = nets.weights[0].mT
        into["b_in"][:, :, :units] = nets.biases[0][:, :, 0]
        for layer in range(sizes.hidden - 1):
            into["w_hidden"][:, :, layer, :units, :units] = nets.weights[layer + 1].mT
            into["b_hidden"][:, :, layer, :units] = nets.biases[layer + 1][:, :, 0]
        for name, columns in (("mean", slice(None, outputs)), ("log", slice(outputs, None))):
            into[f"w_{name}"][:, :, :outputs, :units] = nets.weights[-1][..., columns].mT
            into[f"b_{name}"][:, :, :outputs] = nets.biases[-1][:, :, 0, columns]

    def run(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Write the moments (g, e, n, d) of x (g, n, in) or (g, e, n, in)."""
        sizes, width, n, p = self.sizes, self.width, x.shape[-2], self.packed
        nets, blocks, across = sizes.agents * sizes.members, -(-n // ROWS), self.width // COLUMNS
        now, after = self._room(n)
        first: dict[str, Any] = {"E": sizes.members, "IN": sizes.inputs, "KIN": p["centre"].shape[1], "WIDTH": width}
        first |= {"OWN_ROWS": x.dim() == 4, "ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": 4}
        first_layer[(blocks, across, nets)](x, p["centre"], p["spread"], p["w_in"], p["b_in"], now, n, **first)
        hidden: dict[str, Any] = {"LAYERS": sizes.hidden - 1, "WIDTH": width, "ROWS": ROWS, "COLUMNS": COLUMNS}
        hidden |= {"DEPTH": DEPTH, "num_warps": 8, "num_stages": 3}
        for layer in range(sizes.hidden - 1):
            hidden_layer[(blocks * across, nets)](now, p["w_hidden"], p["b_hidden"], after, n, layer, **hidden)
            now, after = after, now
        ends = [p[name] for name in ("w_mean", "b_mean", "w_log", "b_log", "top", "bottom")]
        last: dict[str, Any] = {"E": sizes.members, "D": sizes.outputs, "KD": sizes.output_columns, "WIDTH": width}
        heads[(blocks, nets)](now, *ends, mean, variance, n, **last, ROWS=ROWS, DEPTH=DEPTH, num_warps=4)

    def draw(self, x: Tensor, draws: Tensor, order: Tensor | None) -> Tensor:
        """What `FusedNets.draw` says."""
        return draw_by_moments(self, x, draws, order, agents=self.sizes.agents)

    def _room(self, n: int) -> tuple[Tensor, Tensor]:
        """Memory for the activations of n rows, kept: a captured graph remembers where it was."""
        if n not in self._rooms:
            shape = (self.sizes.agents, self.sizes.members, n, self.width)
            one = torch.empty(shape, dtype=self.trunk, device=self.device)
            self._rooms[n] = (one, torch.empty_like(one))
        return self._rooms[n]


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
        draw = _read(draw, lines + agent * lines_stride, column, inside, per_unit, CELLS)
    tl.store(out + agent * size + at, middle + tl.sqrt(spread / E) * draw, mask=inside)


@triton.jit
def _read(draw, lines, column, inside, per_unit, CELLS: tl.constexpr):
    """Draws from the tables of an agent's columns."""
    cell = (draw * per_unit + CELLS / 2).to(tl.int32)
    line = lines + (column * CELLS + cell) * 2
    return tl.load(line, mask=inside, other=0.0) + tl.load(line + 1, mask=inside, other=0.0) * draw


def matched_draw(
    mean: Tensor, variance: Tensor, noise: Tensor, lines: Tensor | None = None, per_unit: float = 1.0
) -> Tensor:
    """Draws (g, r, d) from the matched Gaussians of mean and variance (g, e, n, d), r a multiple of n.

    noise: (g, r, d), standard normal. lines: None, or tables (g, d, cells, 2); per_unit: cells per unit of ε. Where r
    is larger, r/n rows in a row are drawn from one Gaussian. Noise and lines may be strided in their first dimension.
    """
    (g, e, n, d), rows = mean.shape, noise.shape[1]
    out = torch.empty(g, rows, d, device=mean.device)
    table, cells, stride = (noise, 0, 0) if lines is None else (lines, lines.shape[2], lines.stride(0))
    settings: dict[str, Any] = {"E": e, "D": d, "REPEAT": rows // n, "CELLS": cells, "BLOCK": BLOCK}
    given = (mean, variance, noise, table, out, rows * d, noise.stride(0), stride, per_unit)
    _matched_draw[(-(-rows * d // BLOCK), g)](*given, **settings)
    return out


# Rows of their own for every network.


@triton.jit
def _arranged_draws(
    noise, lines, ranks, out, noise_agent, noise_step, noise_row, lines_agent, per_unit,
    N: tl.constexpr, P: tl.constexpr, D: tl.constexpr, E: tl.constexpr, CELLS: tl.constexpr, RANKED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Numbers [1024 · i, 1024 · (i + 1)) of the N · P · D of agent j in step t, for program (i, j, t)."""
    agent, step = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Divisions by what the compiler knows are multiplications.
    size: tl.constexpr = N * P * D
    own: tl.constexpr = P // E
    inside = at < size
    column, row = at % D, at // D
    plan, particle = row // own % N, row // (own * N) * own + row % own
    if RANKED:
        place = ((agent * tl.num_programs(2) + step) * N + plan) * P + particle
        particle = tl.load(ranks + place, mask=inside, other=0)
    begin = noise + agent * noise_agent + step * noise_step
    draw = tl.load(begin + (plan * P + particle) * noise_row + column, mask=inside, other=0.0)
    if CELLS > 0:
        draw = _read(draw, lines + agent * lines_agent, column, inside, per_unit, CELLS)
    tl.store(out + (step * tl.num_programs(1) + agent) * size + at, draw, mask=inside)


def arranged_draws(
    noise: Tensor, lines: Tensor | None, per_unit: float, ranks: Tensor | None, *, particles: int, members: int, d: int
) -> Tensor:
    """All draws of a rollout, (h, g · e, n · p/e, d), in the order in which networks take particles.

    noise: (g, h, n · p, ≥ d), standard normal, perhaps strided; lines: None, or tables (g, d, cells, 2). Network i
    takes the i-th of e equal shares of each plan's p particles; ranks: (g, h, n, p) int32, after they were put in this
    order.
    """
    g, h, rows, _ = noise.shape
    out = torch.empty(h, g * members, rows // members, d, device=noise.device)
    table, cells, stride = (noise, 0, 0) if lines is None else (lines, lines.shape[2], lines.stride(0))
    settings: dict[str, Any] = {"N": rows // particles, "P": particles, "D": d, "E": members, "CELLS": cells}
    given = (noise, table, noise if ranks is None else ranks, out, *noise.stride()[:3], stride, per_unit)
    _arranged_draws[(-(-rows * d // BLOCK), g, h)](*given, **settings, RANKED=ranks is not None, BLOCK=BLOCK)
    return out


def draw_by_moments(kernel: Kernel, x: Tensor, draws: Tensor, order: Tensor | None, *, agents: int) -> Tensor:
    """`FusedNets.draw` by a kernel that answers rows (g, e, n, in) with moments."""
    (nets, n, d), members = draws.shape, len(draws) // agents
    places = None if order is None else order.view(agents, -1, 1).long()
    own = x.view(agents, members * n, -1)
    if places is not None:
        own = own.gather(1, places.expand_as(own))
    mean = torch.empty(agents, members, n, d, device=x.device)
    variance = torch.empty_like(mean)
    kernel.run(own.view(agents, members, n, -1), mean, variance)
    mean, variance = mean.view(nets, 1, n, d), variance.view(nets, 1, n, d)
    found = matched_draw(mean, variance, draws).view(agents, -1, d)
    if places is not None:
        found = torch.empty_like(found).scatter_(1, places.expand_as(found), found)
    return found.view(nets, n, d)

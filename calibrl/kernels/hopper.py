"""All layers of an ensemble in one kernel for Hopper GPUs, in Gluon, Triton's language for explicit memory.

One program takes a block of rows through one network of up to 510 units a layer. Activations never leave the chip: they
wait in shared memory, weights pass through a ring of tiles while the tensor cores work on those before them.

Two things make it fast. swish(2u) = u + u · tanh(u) costs one special function, so weights and biases are halved. And
there are no biases: two units of the padding say LOUD in every row, and weights on them add the bias in two halves, so
that it keeps its precision. Hidden layers are multiplied in bfloat16, the first layer and the heads in float16, which
has the mantissa of TF32; sums, bounds and answers are float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from calibrl.kernels.fused_nets import (
    Networks,
    Sizes,
    first_layer,
    heads,
    hidden_layer,
    memory,
    pack_scales,
    power_of_two,
)
from calibrl.kernels.layered import draw_by_moments

# Gluon is young: two names changed between Triton 3.6 and 3.9.
_load_async: Any = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_barrier: Any = getattr(gl, "barrier", None) or gl.thread_barrier

ROWS, WARPS = 128, 8
"""Of one program: 16 rows for each warp, as the tensor cores want them."""

STAGES, RING_COLUMNS, RING_DEPTH = 4, 128, 64
"""A layer's ring: so many tiles of so many units × so many inputs."""

LARGEST = gl.constexpr(60000.0)
"""Standardised inputs beyond float16 are cut off here: they are nonsense already."""


@gluon.jit
def _fetch(room, source, R: gl.constexpr, C: gl.constexpr):
    """Start copying a tile (R, C) that lies in one piece into shared memory, 16 bytes a thread."""
    across: gl.constexpr = C // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // across, across], [gl.num_warps(), 1], [1, 0])
    r = gl.arange(0, R, layout=gl.SliceLayout(1, layout))
    c = gl.arange(0, C, layout=gl.SliceLayout(0, layout))
    _load_async(room, source + r[:, None] * C + c[None, :])


@gluon.jit
def _swish(u, KIND: gl.constexpr):
    """swish(2u) in 16 bits, two numbers to a register."""
    if KIND == gl.float16:
        return gl.inline_asm_elementwise(
            "{ .reg .f32 s, t; tanh.approx.f32 s, $1; tanh.approx.f32 t, $2; fma.rn.f32 s, $1, s, $1; "
            "fma.rn.f32 t, $2, t, $2; cvt.rn.f16x2.f32 $0, t, s; }",
            "=r,f,f", [u], dtype=gl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .f32 s, t; tanh.approx.f32 s, $1; tanh.approx.f32 t, $2; fma.rn.f32 s, $1, s, $1; "
            "fma.rn.f32 t, $2, t, $2; cvt.rn.bf16x2.f32 $0, t, s; }",
            "=r,f,f", [u], dtype=gl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip


@gluon.jit
def _softplus(x):
    return gl.maximum(x, 0.0) + gl.log(1.0 + gl.exp(-gl.abs(x)))


@gluon.jit
def _given(x, centre, spread, source, agent, first, n, IN: gl.constexpr, KIN: gl.constexpr, ROWS: gl.constexpr):
    """A block of inputs (ROWS, KIN), standardised; columns from IN on are 1, for the biases."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 // (KIN // 4), KIN // 4], [gl.num_warps(), 1], [1, 0])
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    k = gl.arange(0, KIN, layout=gl.SliceLayout(0, layout))
    inside = (row < n)[:, None] & (k < IN)[None, :]
    given = gl.load(x + (source * n + row[:, None]) * IN + k[None, :], mask=inside, other=0.0)
    given = (given - gl.load(centre + agent * KIN + k)[None, :]) * gl.load(spread + agent * KIN + k)[None, :]
    # Not minimum and maximum, which would hide a NaN: a lost particle must stay lost.
    given = gl.where(given > LARGEST, LARGEST, gl.where(given < -LARGEST, -LARGEST, given))
    return (given + gl.where(k < IN, 0.0, 1.0)[None, :]).to(gl.float16)


@gluon.jit
def _answer(
    m, v, top, bottom, mean, variance, net, agent, first, n, D: gl.constexpr, KD: gl.constexpr, ROWS: gl.constexpr
):
    """Write means, and variances within their soft bounds."""
    layout: gl.constexpr = m.type.layout
    d = gl.arange(0, KD, layout=gl.SliceLayout(0, layout))
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    highest = gl.load(top + agent * KD + d)[None, :]
    lowest = gl.load(bottom + agent * KD + d)[None, :]
    v = highest - _softplus(highest - v)
    v = lowest + _softplus(v - lowest)
    place = (net * n + row[:, None]) * D + d[None, :]
    kept = (row < n)[:, None] & (d < D)[None, :]
    gl.store(mean + place, m, mask=kept)
    gl.store(variance + place, gl.exp(v), mask=kept)


@gluon.jit
def moments(
    x, centre, spread, w_in, w_hidden, w_mean, w_log, top, bottom, mean, variance, n,
    E: gl.constexpr, IN: gl.constexpr, KIN: gl.constexpr, D: gl.constexpr, KD: gl.constexpr, LAYERS: gl.constexpr,
    WIDTH: gl.constexpr, N: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr, OWN_ROWS: gl.constexpr,
    ROWS: gl.constexpr,
):  # fmt: skip
    """Rows [128 · i, 128 · (i + 1)) through network j, for program (i, j)."""
    net = gl.program_id(1).to(gl.int64)
    agent = net // E
    source = net if OWN_ROWS else agent
    first = gl.program_id(0) * ROWS
    w_in += net * KIN * WIDTH
    w_hidden += net * LAYERS * WIDTH * WIDTH
    w_mean += net * WIDTH * KD
    w_log += net * WIDTH * KD
    ACROSS: gl.constexpr = WIDTH // N
    DEEP: gl.constexpr = WIDTH // K
    STEPS: gl.constexpr = LAYERS * ACROSS * DEEP
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, layout, 2)

    into = gl.allocate_shared_memory(
        gl.float16, [ACROSS, N, KIN], gl.NVMMASharedLayout.get_default_for([N, KIN], gl.float16)
    )
    for q in gl.static_range(ACROSS):
        _fetch(into.index(q), w_in + q * N * KIN, N, KIN)
    async_copy.commit_group()
    ring = gl.allocate_shared_memory(
        gl.bfloat16, [STAGES, N, K], gl.NVMMASharedLayout.get_default_for([N, K], gl.bfloat16)
    )
    for t in gl.static_range(STAGES - 1):
        _fetch(ring.index(t), w_hidden + t * (N * K), N, K)
        async_copy.commit_group()

    h = gl.allocate_shared_memory(
        gl.bfloat16, [ROWS, WIDTH], gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], gl.bfloat16)
    )
    given = gl.convert_layout(_given(x, centre, spread, source, agent, first, n, IN, KIN, ROWS), LEFT)
    async_copy.wait_group(STAGES - 1)
    _barrier()
    fence_async_shared()
    for q in gl.static_range(ACROSS):
        total = gl.full([ROWS, N], 0.0, gl.float32, layout=layout)
        total = warpgroup_mma(given, into.index(q).permute((1, 0)), total, use_acc=False, is_async=True)
        total = warpgroup_mma_wait(0, deps=[total])
        h.slice(q * N, N, dim=1).store(_swish(total, gl.bfloat16))

    for layer in gl.static_range(LAYERS):
        _barrier()
        old = ()
        for k in gl.static_range(DEEP):
            old = old + (h.slice(k * K, K, dim=1).load(LEFT),)
        for q in gl.static_range(ACROSS):
            total = gl.full([ROWS, N], 0.0, gl.float32, layout=layout)
            for k in gl.static_range(DEEP):
                # The tile of this step has come, and everyone is done with that of the step before: its place is free.
                async_copy.wait_group(STAGES - 2)
                _barrier()
                fence_async_shared()
                tile = ring.index(((layer * ACROSS + q) * DEEP + k) % STAGES)
                total = warpgroup_mma(old[k], tile.permute((1, 0)), total, use_acc=k > 0, is_async=True)
                if (layer * ACROSS + q) * DEEP + k + STAGES - 1 < STEPS:
                    _fetch(
                        ring.index(((layer * ACROSS + q) * DEEP + k + STAGES - 1) % STAGES),
                        w_hidden + ((layer * ACROSS + q) * DEEP + k + STAGES - 1) * (N * K),
                        N,
                        K,
                    )
                async_copy.commit_group()
                total = warpgroup_mma_wait(0, deps=[total])
            # What the heads read is float16: its bits are kept in the same memory.
            kind = gl.float16 if layer + 1 == LAYERS else gl.bfloat16
            h.slice(q * N, N, dim=1).store(_swish(total, kind).to(gl.bfloat16, bitcast=True))

    _barrier()
    HEAD: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, KD, 16])
    room: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KD, K], gl.float16)
    to_mean = gl.allocate_shared_memory(gl.float16, [DEEP, KD, K], room)
    to_log = gl.allocate_shared_memory(gl.float16, [DEEP, KD, K], room)
    for k in gl.static_range(DEEP):
        _fetch(to_mean.index(k), w_mean + k * (KD * K), KD, K)
        _fetch(to_log.index(k), w_log + k * (KD * K), KD, K)
    async_copy.commit_group()
    async_copy.wait_group(0)
    _barrier()
    fence_async_shared()
    m = gl.full([ROWS, KD], 0.0, gl.float32, layout=HEAD)
    v = gl.full([ROWS, KD], 0.0, gl.float32, layout=HEAD)
    for k in gl.static_range(DEEP):
        left = h.slice(k * K, K, dim=1).load(gl.DotOperandLayout(0, HEAD, 2)).to(gl.float16, bitcast=True)
        m = warpgroup_mma(left, to_mean.index(k).permute((1, 0)), m, use_acc=k > 0, is_async=True)
        v = warpgroup_mma(left, to_log.index(k).permute((1, 0)), v, use_acc=k > 0, is_async=True)
    m, v = warpgroup_mma_wait(0, deps=[m, v])
    _answer(m, v, top, bottom, mean, variance, net, agent, first, n, D, KD, ROWS)


@dataclass
class OnHopper:
    """The kernel, and networks as it reads them: `packed` in the order of its arguments, hidden layers in tiles."""

    sizes: Sizes
    device: torch.device
    packed: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        g, e, width = self.sizes.agents, self.sizes.members, self.width
        k, d, layers = self.sizes.input_columns, self.sizes.output_columns, self.sizes.hidden - 1
        shapes: dict[str, tuple[int, ...]] = {
            "centre": (g, k),
            "spread": (g, k),
            "w_in": (g, e, width, k),
            "w_hidden": (g, e, layers, width * width),
            "w_mean": (g, e, width * d),
            "w_log": (g, e, width * d),
            "top": (g, d),
            "bottom": (g, d),
        }
        half = torch.float16
        self.packed = memory(shapes, self.device, w_in=half, w_hidden=torch.bfloat16, w_mean=half, w_log=half)

    @property
    def width(self) -> int:
        """Units of a layer, with those that carry biases, padded to 256 or 512."""
        return power_of_two(self.sizes.width + 2, least=256)

    @staticmethod
    def fits(sizes: Sizes) -> bool:
        """Whether the widths, two units for the biases counted, can be held on the chip."""
        return sizes.width + 2 <= 512 and sizes.output_columns <= 64 and sizes.input_columns <= 64

    def pack(self, nets: Networks) -> None:
        """Take over the networks: halved, with biases as weights of the units that say LOUD, in tiles."""
        sizes, width, into = self.sizes, self.width, self.packed
        pack_scales(nets, sizes, into)
        into["w_in"].copy_(first_layer(nets, sizes, sizes.input_columns, width).mT)
        for layer in range(sizes.hidden - 1):
            weight = hidden_layer(nets, sizes, layer, width).mT
            tiles = weight.unflatten(3, (-1, RING_DEPTH)).unflatten(2, (-1, RING_COLUMNS))
            into["w_hidden"][:, :, layer] = tiles.transpose(3, 4).flatten(2)
        for name, head in zip(("w_mean", "w_log"), heads(nets, sizes, width, sizes.output_columns), strict=True):
            into[name].copy_(head.mT.unflatten(3, (-1, RING_DEPTH)).transpose(2, 3).flatten(2))

    def settings(self, own_rows: bool) -> dict[str, Any]:
        """The compile-time numbers of the kernel."""
        sizes = self.sizes
        found = {"E": sizes.members, "IN": sizes.inputs, "KIN": sizes.input_columns, "D": sizes.outputs}
        found |= {"KD": sizes.output_columns, "LAYERS": sizes.hidden - 1, "WIDTH": self.width, "OWN_ROWS": own_rows}
        return found | {"ROWS": ROWS, "N": RING_COLUMNS, "K": RING_DEPTH, "STAGES": STAGES}

    def run(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Write the moments (g, e, n, d) of x (g, n, in) or (g, e, n, in)."""
        n = x.shape[-2]
        grid = (-(-n // ROWS), self.sizes.agents * self.sizes.members)
        moments[grid](
            x, *self.packed.values(), mean, variance, n, **self.settings(own_rows=x.dim() == 4), num_warps=WARPS
        )

    def draw(self, x: Tensor, draws: Tensor, order: Tensor | None) -> Tensor:
        """What `FusedNets.draw` says."""
        return draw_by_moments(self, x, draws, order, agents=self.sizes.agents)

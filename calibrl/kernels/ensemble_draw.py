"""What all networks of an ensemble answer, and draws from the Gaussian that matches them: one compiled pass on a CPU.

A block of rows goes through a network from its inputs to its head while it is in the processor's cache, then through
the next; the draw is made of the block's answers before they leave it. Small networks save the calls of some twenty
tensor operations a step, large ones the way to memory and back between two layers.

A layer is computed in tiles that stay in the processor's registers from the product to the activation: a few rows by a
few vectors of columns. For every input a tile takes one number of each row and a vector of weights for each column, and
it writes its sums only after the activation: there is no pass over memory for the bias, none for the activation, none
for a change of type. Weights lie in the order in which tiles read them. In bfloat16 an instruction multiplies two
neighbouring inputs at once, so inputs and weights go in pairs.

Numba compiles it for the processor it runs on; how large a tile may be, and whether there are pairs, is asked once.
All that is compiled is in this file: numba compiles anew when a function's own file has changed, and no other.
"""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, config, types
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor
from torch.nn import functional


def processor() -> dict[str, bool]:
    """What the processor that numba compiles for can do; nothing that is not sure."""
    if getattr(config, "CPU_NAME", None) or getattr(config, "CPU_FEATURES", None):
        return {}
    try:
        return dict(binding.get_host_cpu_features())
    except RuntimeError:
        return {}


HAS = processor()
PAIRS = HAS.get("avx512bf16", False) and HAS.get("avx512vl", False)
"""Whether products of bfloat16 numbers have an instruction of their own."""
LANES = 16 if HAS.get("avx512f") else 8 if HAS.get("avx2") else 4
"""Numbers in a vector."""
BYTES = 4 * LANES
"""Of a vector: floats, or pairs of bfloat16 numbers."""
ROWS = 6
"""Rows of a tile."""
VECTORS = 4 if LANES == 16 else 2
"""Vectors of columns in a tile: as many as there are registers for."""
BLOCK = 32 * ROWS
"""Rows that go through a network at once: their activations and a layer's weights stay in the cache."""

SWISH, SWISH_BFLOAT16, HEAD = 0, 1, 2
"""What becomes of a tile's sums: swish as floats, as bfloat16 numbers; or means and a sigmoid, as a head has them."""

LARGEST = 87.0
"""e to this power is still a float."""
WHOLE = 1.5 * 2.0**23
"""Floats around it are whole numbers."""


def falling(degree: int) -> Any:
    """The terms of e^-x, for x within half a doubling in both directions."""
    half = math.log(2) / 2
    return Chebyshev.interpolate(lambda x: np.exp(-x), degree, domain=[-half, half]).convert(kind=Polynomial).coef


EXACTLY, ROUGHLY = falling(5), falling(3)
"""To the last bit of a float, and of a bfloat16 number with some to spare."""

tools: Any = cgutils

INT, FLOAT, LONG = ir.IntType(32), ir.FloatType(), ir.IntType(64)


class Writer:
    """Writes instructions on vectors of so many lanes."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.b, self.lanes = builder, lanes
        self.ints, self.floats, self.halves = (ir.VectorType(kind, lanes) for kind in (INT, FLOAT, ir.IntType(16)))

    def either_tile(self, given: Any, width: int) -> None:
        """A tile of `width` vectors, of pairs or of floats, as the last of `given` says."""
        *given, pairs = given
        if not PAIRS:  # nobody asks for them, and a compiler would not know the instruction
            return self.tile(given, width, pairs=False)
        with self.b.if_else(self.b.icmp_signed("!=", pairs, LONG(0))) as (yes, no):
            with yes:
                self.tile(given, width, pairs=True)
            with no:
                self.tile(given, width, pairs=False)

    def tile(self, given: Any, width: int, *, pairs: bool) -> None:
        """A tile of `width` vectors; given: the arguments of `_tile`'s intrinsic."""
        b = self.b
        x, stride, weight, steps, bias, found, found_stride, plain, kind = given
        sums = [[tools.alloca_once(b, self.floats) for _ in range(width)] for _ in range(ROWS)]
        for j in range(width):
            start = self.load(self.at(bias, j * BYTES), self.floats)
            for row in sums:
                b.store(start, row[j])
        rows = [b.add(x, b.mul(stride, LONG(i))) for i in range(ROWS)]
        columns = [b.add(weight, b.mul(steps, LONG(j * BYTES))) for j in range(width)]
        with tools.for_range(b, steps, intp=LONG) as loop:
            ahead, across = b.mul(loop.index, LONG(4)), b.mul(loop.index, LONG(BYTES))
            weights = [self.load(b.add(column, across), self.ints if pairs else self.floats) for column in columns]
            for row, places in zip(rows, sums, strict=True):
                number = self.splat(self.load(b.add(row, ahead), INT if pairs else FLOAT))
                for each, place in zip(weights, places, strict=True):
                    product = self.pairs_product if pairs else self.multiply_add
                    b.store(product(number, each, b.load(place)), place)
        # Floats go on to floats, pairs to pairs, a first layer to either; heads are narrow.
        finishes = {SWISH: self.swish} if not pairs else {}
        finishes |= {SWISH_BFLOAT16: self.rounded_swish} if PAIRS else {}
        finishes |= {HEAD: partial(self.head, plain)} if width <= 2 else {}
        for this, finish in finishes.items():
            with b.if_then(b.icmp_signed("==", kind, LONG(this))):
                finish(sums, found, found_stride)

    def swish(self, sums: Any, found: Any, stride: Any) -> None:
        """Write y · sigmoid(y)."""
        self.each(sums, lambda y: self.b.fdiv(y, self.one_plus_falling(y)))
        self.store_rows(sums, found, stride)

    def rounded_swish(self, sums: Any, found: Any, stride: Any) -> None:
        """Write y · sigmoid(y) as bfloat16 numbers."""
        b = self.b
        # Half of the bits are rounded away: fewer terms and the processor's estimate of 1/x are enough.
        self.each(sums, lambda y: b.fmul(y, self.about_one_over(self.one_plus_falling(y, ROUGHLY))))
        name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * self.lanes}"
        for i, places in enumerate(sums):
            for j, place in enumerate(places):
                where = self.at(b.add(found, b.mul(stride, LONG(i))), j * BYTES // 2)
                self.store(self.call(name, self.halves, b.load(place)), where)

    def each(self, sums: Any, change: Any) -> None:
        """Change every sum."""
        for place in itertools.chain(*sums):
            self.b.store(change(self.b.load(place)), place)

    def about_one_over(self, y: Any) -> Any:
        """1 / y to 14 bits."""
        everywhere = ir.Constant(ir.IntType(self.lanes), -1)
        return self.call(f"llvm.x86.avx512.rcp14.ps.{32 * self.lanes}", self.floats, y, self.number(0.0), everywhere)

    def head(self, plain: Any, sums: Any, found: Any, stride: Any) -> None:
        """Write `plain` columns as they are and the sigmoid of the rest."""
        b = self.b
        for places in sums:
            for j, place in enumerate(places):
                y = b.load(place)
                column = ir.Constant(self.ints, [j * LANES + lane for lane in range(self.lanes)])
                left = b.icmp_signed("<", column, self.splat(b.trunc(plain, INT)))
                b.store(b.select(left, y, b.fdiv(self.number(1.0), self.one_plus_falling(y))), place)
        self.store_rows(sums, found, stride)

    def store_rows(self, sums: Any, found: Any, stride: Any) -> None:
        """Write floats."""
        for i, places in enumerate(sums):
            for j, place in enumerate(places):
                self.store(self.b.load(place), self.at(self.b.add(found, self.b.mul(stride, LONG(i))), j * BYTES))

    def one_plus_falling(self, y: Any, terms: Any = EXACTLY) -> Any:
        """1 + e^-y."""
        b = self.b
        y = self.call(f"llvm.minnum.v{self.lanes}f32", self.floats, y, self.number(LARGEST))
        y = self.call(f"llvm.maxnum.v{self.lanes}f32", self.floats, y, self.number(-LARGEST))
        # e^-y = 2^doublings · e^-rest; a number as large as WHOLE has doublings in its last bits, and no room for less.
        shifted = self.multiply_add(y, self.number(-1 / math.log(2)), self.number(WHOLE))
        doublings = b.fsub(shifted, self.number(WHOLE))
        rest = self.multiply_add(doublings, self.number(math.log(2)), y)
        power = self.number(terms[-1])
        for coefficient in terms[-2::-1]:
            power = self.multiply_add(power, rest, self.number(coefficient))
        # Doublings are added to the exponent, which the bits of a float begin with.
        bits = b.add(b.bitcast(power, self.ints), b.shl(b.bitcast(shifted, self.ints), self.whole(23)))
        return b.fadd(b.bitcast(bits, self.floats), self.number(1.0))

    def multiply_add(self, one: Any, other: Any, third: Any) -> Any:
        """In one instruction where there is one, in two elsewhere."""
        return self.call(f"llvm.fmuladd.v{self.lanes}f32", self.floats, one, other, third)

    def pairs_product(self, one: Any, other: Any, third: Any) -> Any:
        """Two products of bfloat16 numbers more in each lane of `third`."""
        # Known by integers to old compilers; new ones, which have a type for bfloat16, translate.
        return self.call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}", self.floats, third, one, other)

    def call(self, name: str, gives: Any, *arguments: Any) -> Any:
        """An instruction that has a name."""
        form = ir.FunctionType(gives, [each.type for each in arguments])
        return self.b.call(tools.get_or_insert_function(self.b.module, form, name), arguments)

    def number(self, value: float) -> Any:
        """A vector of one number."""
        return ir.Constant(self.floats, [float(np.float32(value))] * self.lanes)

    def whole(self, value: int) -> Any:
        """A vector of one whole number."""
        return ir.Constant(self.ints, [value] * self.lanes)

    def splat(self, number: Any) -> Any:
        """A vector of one number that is not known yet."""
        kind = ir.VectorType(number.type, self.lanes)
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), number, INT(0))
        return self.b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), self.whole(0))

    def at(self, address: Any, further: int) -> Any:
        """An address so many bytes further."""
        return self.b.add(address, LONG(further))

    def load(self, address: Any, kind: Any) -> Any:
        """What lies at an address."""
        return self.b.load(self.b.inttoptr(address, kind.as_pointer()), align=4)

    def store(self, value: Any, address: Any) -> None:
        """Write it there."""
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=2)


def _tile(width: int, *, lanes: int = LANES) -> Any:
    """An intrinsic that computes a tile of `width` vectors of columns."""

    @intrinsic
    def tile(typing, x, stride, weight, steps, bias, found, found_stride, plain, kind, pairs):  # type: ignore[no-untyped-def] # noqa: ARG001
        """Write a tile of a layer.

        x, weight, bias, found: addresses; stride, found_stride: bytes from one row to the next; steps: inputs, or pairs
        of them, as `pairs` says; kind: SWISH, SWISH_BFLOAT16 or HEAD, of which `plain` columns are left as they are.
        """

        def write(context: Any, builder: Any, _: Any, given: Any) -> Any:
            Writer(builder, lanes).either_tile(given, width)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), write

    return tile


_many, _two, _one, _half = _tile(VECTORS), _tile(2), _tile(1), _tile(1, lanes=LANES // 2)


@numba.njit(inline="always")
def _network(x: Any, rows: int, numbers: Any, layers: Any, plain: int, room: Any, head: Any) -> None:
    """Rows x (BLOCK, in) through the network whose numbers these are; head: (BLOCK, …), what it answers.

    A layer's whole numbers: steps over its inputs, its columns, where weights and bias begin, bytes from one row of its
    answers to the next, whether it multiplies pairs, and the kind of its tiles. room: (2, bytes), for activations.
    """
    begin = np.int64(numbers.ctypes.data)
    source, stride = np.int64(x.ctypes.data), x.shape[1] * 4
    for i in range(len(layers)):
        steps, columns, weight, bias, found_stride, pairs, kind = layers[i]
        target = np.int64(head.ctypes.data if i == len(layers) - 1 else room[i % 2].ctypes.data)
        size = 2 if kind == SWISH_BFLOAT16 else 4
        j = 0
        while j < columns:
            left = columns - j
            wide = left > LANES * (VECTORS - 1) and kind != HEAD
            width = VECTORS if wide else 2 if left > LANES else 1
            w, b = begin + weight + j * steps * 4, begin + bias + j * 4
            for row in range(0, rows, ROWS):
                a, c = source + row * stride, target + row * found_stride + j * size
                if width > 2:
                    _many(a, stride, w, steps, b, c, found_stride, plain - j, kind, pairs)
                elif width == 2:
                    _two(a, stride, w, steps, b, c, found_stride, plain - j, kind, pairs)
                elif left > LANES // 2:
                    _one(a, stride, w, steps, b, c, found_stride, plain - j, kind, pairs)
                else:
                    _half(a, stride, w, steps, b, c, found_stride, plain - j, kind, pairs)
            j += LANES * width
        source, stride = target, found_stride


@numba.njit(cache=True, nogil=True, fastmath={"arcp", "contract", "nsz"}, error_model="numpy")
def ensemble_pass(
    x: Any, begin: int, end: int, numbers: Any, layers: Any, lowest: Any, highest: Any,
    block: Any, room: Any, heads: Any, answers: Any, draws: Any, found: Any,
) -> None:  # fmt: skip
    """Rows begin … end - 1 of x (g, 1 or e, n, in) through all networks, block by block.

    numbers: (g · e, bytes) and layers: as `_network` reads them. block: (BLOCK, in), room: (2, bytes) and heads:
    (e, BLOCK, columns): for one block. answers: (g, e, n, 2d), or without rows if only draws are wanted. found:
    (g, n, d), a draw from the Gaussian that matches the networks, or without rows; draws: as many, standard normal or
    recalibrated; lowest, highest: (g, d), by which a sigmoid becomes a variance.
    """
    g, e, d = len(x), len(heads), lowest.shape[1]
    part = np.float32(1 / e)
    # Written number by number: an assignment of slices takes numba longer to compile than all the rest.
    for a in range(g):
        for first in range(begin, end, BLOCK):
            rows = min(BLOCK, end - first)
            for k in range(e):
                if k < x.shape[1]:
                    for i in range(len(block)):
                        for j in range(x.shape[3]):
                            # The last tile's last rows may be nobody's.
                            block[i, j] = x[a, k, first + i, j] if i < rows else 0
                _network(block, rows, numbers[a * e + k], layers, d, room, heads[k])
            if answers.shape[2]:
                for k in range(e):
                    for i in range(rows):
                        for j in range(2 * d):
                            answers[a, k, first + i, j] = heads[k, i, j]
            if found.shape[1]:
                for i in range(rows):
                    for j in range(d):
                        middle, spread = np.float32(0), lowest[a, j]
                        for k in range(e):
                            middle += heads[k, i, j] * part
                        for k in range(e):
                            apart = heads[k, i, j] - middle
                            spread += (highest[a, j] * heads[k, i, d + j] + apart * apart) * part
                        found[a, first + i, j] = middle + np.sqrt(spread) * draws[a, first + i, j]


WORTHWHILE = 2e7
"""Multiplications in a pass for which another thread is quicker than waiting for it."""


@dataclass(frozen=True, eq=False)
class PackedNets:
    """Networks as tiles read them: g agents of e networks, all of one shape.

    numbers: (g · e, bytes), weights and biases of all layers; layers: a row of whole numbers for each, as `_network`
    explains. lowest, highest: (g, d), a network's variance is lowest + highest · share. columns: of the head, filled up
    to whole vectors. room: bytes of a block's widest activations. work: multiplications for a row.
    """

    numbers: Any
    layers: Any
    lowest: Any
    highest: Any
    columns: int
    room: int
    work: int

    @classmethod
    def of(
        cls, weights: list[Tensor], biases: list[Tensor], lowest: Tensor, highest: Tensor, *, trunk: torch.dtype
    ) -> PackedNets:
        """Weights (g · e, in, out) and biases (g · e, 1, out), of the head d means and d log-variances.

        trunk: what all but the first layer is multiplied in; sums, biases and answers are float32 in any case.
        """
        layers: list[list[int]] = []
        parts: list[Tensor] = []
        offset, half = 0, trunk == torch.bfloat16
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            before_head, (inputs, columns) = len(weights) - 1 - i, weight.shape[1:]
            pairs, halves = half and i > 0, half and before_head > 0
            kind = (SWISH_BFLOAT16 if halves else SWISH) if before_head else HEAD
            steps, width = -(-inputs // 2) if pairs else inputs, _filled(columns)
            bias_at = offset + 4 * steps * width
            layers.append([steps, columns, offset, bias_at, width * (2 if halves else 4), pairs, kind])
            parts.append(packed(weight, torch.bfloat16 if pairs else torch.float32))
            parts.append(functional.pad(bias, (0, width - columns)))
            offset = bias_at + 4 * width
        return cls(
            numbers=torch.cat([part.flatten(1).view(torch.uint8) for part in parts], 1).numpy(),
            layers=np.array(layers, np.int64),
            lowest=lowest.contiguous().numpy(),
            highest=highest.contiguous().numpy(),
            columns=_filled(weights[-1].shape[2]),
            room=BLOCK * max(stride for *_, stride, _, _ in layers),
            work=sum(weight.numel() for weight in weights),
        )


def packed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights (m, in, out) of m networks in the order in which tiles read them, (m, vectors, inputs or pairs, LANES).

    Vector by vector of the columns, filled up with zeros; within it input by input, in bfloat16 pair by pair: as bits.
    """
    pair = 2 if dtype == torch.bfloat16 else 1
    m, inputs, columns = weight.shape
    filled = functional.pad(weight.to(dtype), (0, _filled(columns) - columns, 0, inputs % pair))
    # Pairs side by side first: the rest then moves whole vectors.
    paired = torch.stack([filled[:, i::pair] for i in range(pair)], -1).view(torch.int32)
    return paired.view(m, -1, _filled(columns) // LANES, LANES).transpose(1, 2).contiguous()


def ensemble_answers(nets: PackedNets, x: Tensor) -> tuple[Tensor, Tensor]:
    """Every network's means, and the share of the highest variance in its variances: (g, e, n, d) each.

    x: (g, n, in), the same rows for all of an agent's networks, or (g, e, n, in), rows for each.
    """
    (g, d), networks = nets.lowest.shape, len(nets.numbers)
    rows = x.unsqueeze(1) if x.dim() == 3 else x
    answers = torch.empty(g, networks // g, rows.shape[2], 2 * d)
    nothing = np.empty((g, 0, d), np.float32)
    _run(nets, rows, answers.numpy(), nothing, nothing)
    return answers[..., :d], answers[..., d:]


def ensemble_draw(nets: PackedNets, x: Tensor, draws: Tensor) -> Tensor:
    """μ + σ · draw, (g, n, d), with μ and σ² of the equal mixture of an agent's e Gaussians, for x (g, n, in).

    draws: (g, n, d), standard normal or recalibrated.
    """
    found = torch.empty(draws.shape)
    nothing = np.empty((0, 0, 0, 0), np.float32)
    _run(nets, x.unsqueeze(1), nothing, draws.contiguous().numpy(), found.numpy())
    return found


def _run(nets: PackedNets, x: Tensor, answers: Any, draws: Any, found: Any) -> None:
    """All rows of x (g, 1 or e, n, in), in as many parts as torch may use threads, if they are worth it."""
    # One layout in memory for all callers: another would be compiled anew.
    rows, n = x.contiguous().numpy(), x.shape[2]
    block, members = min(BLOCK, -(-n // ROWS) * ROWS), len(nets.numbers) // len(rows)

    def part(begin: int, end: int) -> None:
        given, room = np.empty((block, rows.shape[3]), np.float32), np.empty((2, nets.room), np.uint8)
        heads = np.empty((members, block, nets.columns), np.float32)
        packed = (nets.numbers, nets.layers, nets.lowest, nets.highest)
        ensemble_pass(rows, begin, end, *packed, given, room, heads, answers, draws, found)

    threads = min(torch.get_num_threads(), int(n * nets.work / WORTHWHILE))
    if threads < 2:
        part(0, n)
    else:
        ends = [n * i // threads for i in range(threads + 1)]
        list(_pool(threads).map(part, ends, ends[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="calibrl")


def _filled(columns: int) -> int:
    """Columns filled up to whole vectors."""
    return -(-columns // LANES) * LANES

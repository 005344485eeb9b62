"""What all networks of an ensemble answer, and draws from the Gaussian that matches them: one compiled pass on a CPU.

A block of rows goes through a network from its inputs to its head while it is in the processor's cache, then through
the next; the draw is made of the block's answers before they leave it. Small networks save the calls of some twenty
tensor operations a step, large ones the way to memory and back between two layers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from calibrl.kernels.tiles import BLOCK, HEAD, LANES, ROWS, SWISH, SWISH_BFLOAT16, ensemble_pass

WORTHWHILE = 2e7
"""Multiplications in a pass for which another thread is quicker than waiting for it."""


@dataclass(frozen=True, eq=False)
class PackedNets:
    """Networks as tiles read them: g agents of e networks, all of one shape.

    numbers: (g · e, bytes), weights and biases of all layers; layers: a row of whole numbers for each; both as
    `tiles` explains. lowest, highest: (g, d), a network's variance is lowest + highest · share. columns: of the head,
    filled up to whole vectors. room: bytes of a block's widest activations. work: multiplications for a row.
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
            parts += [
                packed(weight, torch.bfloat16 if pairs else torch.float32),
                functional.pad(bias, (0, width - columns)),
            ]
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


def ensemble_draw_reference(mean: Tensor, share: Tensor, lowest: Tensor, highest: Tensor, draws: Tensor) -> Tensor:
    """The draw from answers (g, e, n, d) in plain torch: what correct means."""
    middle = mean.mean(1)
    variance = lowest[:, None, None] + highest[:, None, None] * share
    spread = (variance + (mean - middle.unsqueeze(1)).square()).mean(1)
    return middle + spread.sqrt() * draws


def _run(nets: PackedNets, x: Tensor, answers: Any, draws: Any, found: Any) -> None:
    """All rows of x (g, 1 or e, n, in), in as many parts as torch may use threads, if they are worth it."""
    # One layout in memory for all callers: another would be compiled anew.
    rows, n = x.contiguous().numpy(), x.shape[2]
    block, members = min(BLOCK, -(-n // ROWS) * ROWS), len(nets.numbers) // len(rows)

    def part(begin: int, end: int) -> None:
        ensemble_pass(
            rows,
            nets.numbers,
            nets.layers,
            begin,
            end,
            np.empty((block, rows.shape[3]), np.float32),
            np.empty((2, nets.room), np.uint8),
            np.empty((members, block, nets.columns), np.float32),
            answers,
            nets.lowest,
            nets.highest,
            draws,
            found,
        )

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

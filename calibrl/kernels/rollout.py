"""Whole imagined futures in one CUDA kernel, where every particle stays with its network (TSinf).

Step by step, a rollout is two kernels a step, and most of the time a GPU waits: for kernels to start, for weights to
arrive, for a plan's few particles to pass five layers one after the other. Here a program takes 128 particles of one
network through all steps: weights stay on the chip as far as they fit (`kernels.resident`), states never leave it. For
that the world's own functions must be part of the kernel: `kernels.scalars` writes them in CUDA C++.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from calibrl.kernels.fused_nets import Sizes
from calibrl.kernels.resident import THREADS, Function, Layout, Resident, function, on_chip, text_of
from calibrl.kernels.scalars import device_function


class Imagined(Protocol):
    """What is asked of a world: `calibrl.planning.rollout.World`."""

    @property
    def model_input(self) -> Callable[[Tensor], Tensor]:
        """What networks see of an observation."""

    @property
    def next_observation(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The next observation, from one and a forecast."""

    @property
    def reward(self) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """Of an observation, an action and the next observation."""

    @property
    def safe(self) -> Callable[[Tensor], Tensor] | None:
        """How far an observation is inside the safe set."""


@dataclass(eq=False)
class Rollouts:
    """The kernel for a world and networks that are packed for `Resident`; `of` makes it.

    nets: read where they lie. layout: how their weights share the chip with the particles. text: the source.
    """

    nets: Resident
    layout: Layout
    text: str

    def __post_init__(self) -> None:
        self.kernel()  # what cannot be compiled must be known before it is relied on

    @classmethod
    def of(cls, nets: Resident, world: Imagined, *, observed: int) -> Rollouts | None:
        """The kernel for a world whose observations have so many numbers; None where it finds no room on the chip.

        A world that cannot be written in CUDA C++ raises `calibrl.kernels.scalars.Untranslatable`.
        """
        layout = Layout.of(nets.sizes, beside=beside(nets.sizes))
        return None if layout is None else cls(nets, layout, source(nets.sizes, layout, world, observed=observed))

    def __call__(
        self,
        observation: Tensor,
        plans: Tensor,
        noise: Tensor,
        *,
        tables: Tensor | None = None,
        errors: Sequence[Tensor] | None = None,
        limits: Sequence[Tensor] | None = None,
        reach: tuple[float, float],
    ) -> tuple[Tensor, Tensor]:
        """What particles earn, and whether they left the safe set: (g, n, p) each, the latter 0 or 1.

        Parameters
        ----------
        observation : Tensor (g, o)
            Where imagination starts.
        plans : Tensor (g, n, h, a)
            Actions.
        noise : Tensor (g, h, n · p, d)
            Standard normal, of each plan's particles one after the other; of those network i takes the i-th of e equal
            shares. May be strided in its first two dimensions.
        tables : Tensor (g, d, cells, 2), optional
            What calibrated draws are read from.
        errors : Tensor, Tensor (g, e, h, d), optional
            Where errors go on: what is expected of them, and by how much noise is multiplied that is added.
        limits : Tensor, Tensor (g, d), optional
            Forecasts are kept between them.
        reach : float, float
            Cells of a table for a unit of noise, and how far out an error may be.
        """
        (g, n, steps, _), e = plans.shape, self.nets.sizes.members
        rows, cells = noise.shape[2] // e, 0 if tables is None else tables.shape[2]
        assert noise.stride()[2:] == (noise.shape[3], 1), "rows of noise in one piece"
        total, broken = observation.new_empty(2, g * e, rows)
        asked = [observation, plans, *(errors or (None, None)), tables, *(limits or (None, None))]
        one_piece = [None if part is None else part.contiguous() for part in asked]
        pointers = [*one_piece[:2], noise, *one_piece[2:], *self.nets.packed.values(), total, broken]
        sizes = (rows, rows // n, steps, g * e, noise.stride(0), noise.stride(1), cells)
        places = (0 if part is None else part.data_ptr() for part in pointers)
        given = struct.pack(f"{len(pointers)}P{len(sizes)}i2f", *places, *sizes, *reach)
        self.kernel()(self.nets.programs(rows), THREADS, [given])
        # (g · e, n · p / e) → (g, n, p)
        earned, left = (part.view(g, e, n, rows // n).transpose(1, 2).flatten(2) for part in (total, broken))
        return earned, left

    def kernel(self) -> Function:
        """Compiled, once for all networks of such sizes in such a world."""
        bytes_ = self.layout.shared + beside(self.nets.sizes)
        return function(self.text, "rollout", "sm_90a", bytes_, self.nets.packed["centre"].device.index)


def beside(sizes: Sizes) -> int:
    """Bytes through which rows change hands: of 8 warps with 16 rows each."""
    return 8 * 16 * 4 * (max(sizes.inputs, sizes.outputs) | 1)


def source(sizes: Sizes, layout: Layout, world: Imagined, *, observed: int, turns: bool = True) -> str:
    """The CUDA C++ of the kernel."""
    seen = int(world.model_input(torch.zeros(observed)).shape[-1])
    acted, outputs = sizes.inputs - seen, sizes.outputs
    assert world.reward is not None
    safe = world.safe or _anywhere
    functions = (
        device_function("look_at", world.model_input, observed)
        + device_function("go_on", world.next_observation, observed, outputs)
        + device_function("pay", world.reward, observed, acted, observed)
        + device_function("keep", safe, observed)
    )
    numbers = {"OBS": observed, "SEEN": seen, "ACT": acted, "TURNS": int(turns)}
    return on_chip(sizes, layout, **numbers) + functions + text_of("rollout.cu")


def _anywhere(observation: Tensor) -> Tensor:
    """Everywhere is safe."""
    return torch.ones_like(observation[..., 0])

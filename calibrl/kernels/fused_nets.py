"""An ensemble's answers from one GPU kernel, and what such kernels share: sizes, and how biases become weights.

What correct means is `calibrl.forecasters.nets.Nets.moments`, in plain PyTorch. The same numbers come from
`kernels.resident` (narrow networks) and `kernels.hopper` on Hopper GPUs, from `kernels.layered` on others that Triton
serves. Networks are packed after every training, into memory that stays where it is, so that a captured CUDA graph sees
them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from calibrl.errors import CalibrlError, first_line

LOUD = 16.0
"""What the two units that carry biases say: swish of it is itself in every format."""

VERSIONS = 256
"""How often a function is compiled for other sizes before PyTorch gives up; its own limit is 8 in all."""

SHARED_MEMORY = 227 * 1024
"""Bytes that one program may have on a Hopper GPU."""


class Networks(Protocol):
    """What is packed: `calibrl.forecasters.nets.Nets`."""

    weights: list[Tensor]
    biases: list[Tensor]
    max_logvar: Tensor
    min_logvar: Tensor
    input_mean: Tensor
    input_std: Tensor
    probabilistic: bool

    @property
    def members(self) -> int:
        """How many networks an agent has."""

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (g, e, n, d) for x (g, n, in) or (g, e, n, in)."""


class Kernel(Protocol):
    """One way to compute with packed networks on a GPU."""

    def pack(self, nets: Networks) -> None:
        """Take over the networks as they are, in place."""

    def run(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Write the moments (g, e, n, d) of x (g, n, in)."""

    def draw(self, x: Tensor, draws: Tensor, order: Tensor | None) -> Tensor:
        """What `FusedNets.draw` gives."""


class FusedNets:
    """Networks whose moments come from one fused kernel; `refresh` after every training."""

    def __init__(self, nets: Networks, kernel: Kernel) -> None:
        self.nets, self.kernel = nets, kernel
        self.refresh()

    @property
    def members(self) -> int:
        """How many networks an agent has: e."""
        return self.nets.members

    def refresh(self) -> None:
        """Pack the networks as they are now."""
        with torch.no_grad():
            self.kernel.pack(self.nets)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (g, e, n, d) by every network, for x (g, n, in), float32."""
        g, e, d = len(x), self.members, self.nets.max_logvar.shape[-1]
        mean = torch.empty(g, e, x.shape[-2], d, device=x.device)
        variance = torch.empty_like(mean)
        self.kernel.run(x.contiguous(), mean, variance)
        return mean, variance

    def draw(self, x: Tensor, draws: Tensor, order: Tensor | None = None) -> Tensor:
        """μ + σ · draw (g · e, n, d) of rows x (g · e, n, in) that go through one network each: n through every one.

        draws: (g · e, n, d), as networks take their rows. order: (g · e, n) int32, which of its agent's e · n rows a
        network takes, every row once; by default its own n, in turn. Answers lie where x does.
        """
        return self.kernel.draw(x.contiguous(), draws, order)


@dataclass(frozen=True)
class Sizes:
    """Of packed networks: g agents, e members, inputs, outputs, hidden layers of one width."""

    agents: int
    members: int
    inputs: int
    outputs: int
    width: int
    hidden: int

    @classmethod
    def of(cls, nets: Networks) -> Sizes:
        """The sizes of networks whose hidden layers all have one width, or an error."""
        widths = {weight.shape[3] for weight in nets.weights[:-1]}
        if len(widths) != 1:
            raise CalibrlError(f"hidden layers of widths {sorted(widths)}; fused kernels need one width for all")
        (g, e, inputs, width), outputs = nets.weights[0].shape, nets.max_logvar.shape[-1]
        return cls(g, e, inputs, outputs, width, len(nets.weights) - 1)

    @property
    def input_columns(self) -> int:
        """Inputs with two columns of ones, padded to a power of two."""
        return power_of_two(self.inputs + 2)

    @property
    def output_columns(self) -> int:
        """Outputs, padded to a power of two."""
        return power_of_two(self.outputs)


def add_bias(weight: Tensor, bias: Tensor, row: int, kind: torch.dtype) -> None:
    """Put a bias (g, e, 1, units) into two rows of a weight (g, e, inputs, units): what `kind` holds, and the rest."""
    units = bias.shape[-1]
    coarse = bias[:, :, 0].to(kind).float()
    weight[:, :, row, :units] = coarse
    weight[:, :, row + 1, :units] = bias[:, :, 0] - coarse


def memory(shapes: dict[str, tuple[int, ...]], device: torch.device, **kinds: torch.dtype) -> dict[str, Tensor]:
    """Zeros of these shapes, float32 unless another kind is named: where networks are packed."""
    kind = torch.float32
    return {name: torch.zeros(shape, dtype=kinds.get(name, kind), device=device) for name, shape in shapes.items()}


def pack_scales(nets: Networks, sizes: Sizes, into: dict[str, Tensor]) -> None:
    """By what inputs are standardised, and between what log-variances are kept: "centre", "spread", "top", "bottom"."""
    into["centre"][:, : sizes.inputs] = nets.input_mean[:, 0, 0]
    into["spread"][:, : sizes.inputs] = 1 / nets.input_std[:, 0, 0]
    into["top"][:, : sizes.outputs] = nets.max_logvar[:, 0, 0]
    into["bottom"][:, : sizes.outputs] = nets.min_logvar[:, 0, 0]


Answer = TypeVar("Answer")


def captured(function: Callable[[], Answer], *, first: int) -> tuple[torch.cuda.CUDAGraph, Answer]:
    """A graph of a function, and what it gives, in memory that every replay overwrites.

    The function is called `first` times before: calls compile kernels and find memory, which a graph may not.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(first):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = function()
    return graph, answer


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled; as it is, and said once, where torch cannot compile it."""
    fast = torch.compile(function, fullgraph=True, dynamic=False)
    chosen: list[Callable[..., Any]] = []

    def call(*arguments: Any, **more: Any) -> Any:
        if not chosen:
            try:
                answer = _with_room(fast, *arguments, **more)
            except Exception as error:
                warnings.warn(f"what plans are made of is not compiled: {first_line(error)}", stacklevel=2)
                chosen.append(function)
            else:
                chosen.append(fast)
                return answer
        return _with_room(chosen[0], *arguments, **more)

    return call


def _with_room(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Call a function that may be compiled once more: for every task and number of agents that a process plans for."""
    config = torch._dynamo.config
    limit = "cache_size_limit" if getattr(config, "recompile_limit", None) is None else "recompile_limit"
    with config.patch({limit: VERSIONS}):
        return function(*arguments, **more)


@functools.cache
def compiled_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors in as few passes as can be, compiled once for all who ask."""
    return compiled(function)


def power_of_two(number: int, least: int = 16) -> int:
    """The smallest power of two that is no smaller."""
    return max(least, 1 << (number - 1).bit_length())


# Layers as kernels for Hopper compute them: halved, because swish(2u) = u + u · tanh(u), and with biases as weights of
# the two units that say LOUD.


def first_layer(nets: Networks, sizes: Sizes, columns: int, width: int) -> Tensor:
    """(g, e, columns, width): inputs, then two columns of ones for the biases, padded."""
    inputs, one = sizes.inputs, sizes.width
    weight = nets.weights[0].new_zeros(sizes.agents, sizes.members, columns, width)
    weight[:, :, :inputs, :one] = nets.weights[0] / 2
    add_bias(weight, nets.biases[0] / 2, inputs, torch.float16)
    weight[:, :, inputs, one : one + 2] = LOUD / 2
    return weight


def hidden_layer(nets: Networks, sizes: Sizes, layer: int, width: int) -> Tensor:
    """(g, e, width, width): the hidden product of that number, from 0."""
    one = sizes.width
    weight = nets.weights[0].new_zeros(sizes.agents, sizes.members, width, width)
    weight[:, :, :one, :one] = nets.weights[layer + 1] / 2
    add_bias(weight, nets.biases[layer + 1] / (2 * LOUD), one, torch.bfloat16)
    weight[:, :, one, one : one + 2] = 0.5
    return weight


def heads(nets: Networks, sizes: Sizes, width: int, columns: int) -> tuple[Tensor, Tensor]:
    """Of the mean and of the log-variance: (g, e, width, columns) each."""
    outputs, one = sizes.outputs, sizes.width
    found = []
    for part in (slice(None, outputs), slice(outputs, None)):
        weight = nets.weights[0].new_zeros(sizes.agents, sizes.members, width, columns)
        weight[:, :, :one, :outputs] = nets.weights[-1][..., part]
        add_bias(weight, nets.biases[-1][..., part] / LOUD, one, torch.float16)
        found.append(weight)
    return found[0], found[1]

"""An ensemble's answers from one GPU kernel: packing of the networks, and the choice of the kernel.

What correct means is `calibrl.forecasters.nets.Nets.moments`, in plain PyTorch. Here the same numbers come from
`kernels.hopper` on Hopper GPUs, from `kernels.layered` on other GPUs that Triton serves; everything else is the
reference itself. Networks are packed after every training, into memory that stays where it is, so that a captured
CUDA graph sees them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from calibrl.errors import CalibrlError

LOUD = 16.0
"""What the two units that carry biases say: swish of it is itself in every format."""

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
    """One way to compute moments on a GPU from packed networks."""

    def pack(self, nets: Networks) -> None:
        """Take over the networks as they are, in place."""

    def run(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Write the moments (g, e, n, d) of x (g, n, in) or (g, e, n, in)."""


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
        """Mean and variance (g, e, n, d) by every network, for x (g, n, in) or (g, e, n, in), float32."""
        g, e, d = len(x), self.members, self.nets.max_logvar.shape[-1]
        mean = torch.empty(g, e, x.shape[-2], d, device=x.device)
        variance = torch.empty_like(mean)
        self.kernel.run(x.contiguous(), mean, variance)
        return mean, variance


def fuse(nets: Networks) -> FusedNets | None:
    """The networks on the fastest kernel that fits; None, said once, where only the reference does."""
    try:
        return FusedNets(nets, _kernel_for(nets))
    except Unsupported as reason:
        warnings.warn(f"planning without a fused kernel: {reason}", stacklevel=2)
        return None


class Unsupported(Exception):
    """Why no fused kernel fits."""


def _kernel_for(nets: Networks) -> Kernel:
    device = nets.max_logvar.device
    if device.type != "cuda":
        raise Unsupported(f"the networks are on {device.type}")
    if not nets.probabilistic:
        raise Unsupported("networks without variances")
    try:
        sizes = Sizes.of(nets)
    except CalibrlError as error:
        raise Unsupported(str(error)) from None
    if sizes.hidden < 2:
        raise Unsupported("networks of one hidden layer")
    if sizes.input_columns > 128 or sizes.output_columns > 128:
        raise Unsupported(f"{sizes.inputs} inputs or {sizes.outputs} outputs; up to 126 and 128 fit")
    try:
        if torch.cuda.get_device_capability(device) == (9, 0) and OnHopper.fits(sizes):
            return OnHopper(sizes, device)
        from calibrl.kernels.layered import Layered

        return Layered(sizes, device)
    except ImportError as error:
        raise Unsupported(f"Triton cannot be imported ({error})") from None


@dataclass(frozen=True)
class Tiles:
    """A width padded to 16 and cut into powers of two: 200 + 2 units are tiles of 128, 64 and 16."""

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, units: int, largest: int = 128) -> Tiles:
        """The fewest tiles that hold so many units."""
        left, sizes = -(-units // 16) * 16, []
        while left:
            sizes.append(min(largest, 1 << (left.bit_length() - 1)))
            left -= sizes[-1]
        return cls(tuple(sizes))

    @property
    def width(self) -> int:
        """All of them together."""
        return sum(self.sizes)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each begins."""
        return tuple(sum(self.sizes[:i]) for i in range(len(self.sizes)))

    @property
    def places(self) -> tuple[int, ...]:
        """Where each tile (units, inputs) of a layer begins in memory: all of the first column of units, then …"""
        areas = [j * i for j in self.sizes for i in self.sizes]
        return tuple(sum(areas[:i]) for i in range(len(areas)))


@dataclass
class OnHopper:
    """The kernels of `kernels.hopper`, and networks in the order in which they read them."""

    sizes: Sizes
    device: torch.device
    tiles: Tiles = field(init=False)
    narrow: bool = field(init=False)
    packed: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.tiles, self.narrow = _tiling(self.sizes)
        g, e, width = self.sizes.agents, self.sizes.members, self.tiles.width
        k, d, layers = self.sizes.input_columns, self.sizes.output_columns, self.sizes.hidden - 1
        shapes = {
            "centre": ((g, k), torch.float32),
            "spread": ((g, k), torch.float32),
            "w_in": ((g, e, width, k), torch.float16),
            "w_hidden": ((g, e, layers, width * width), torch.bfloat16),
            "w_mean": ((g, e, width * d), torch.float16),
            "w_log": ((g, e, width * d), torch.float16),
            "top": ((g, d), torch.float32),
            "bottom": ((g, d), torch.float32),
        }
        self.packed = {
            name: torch.zeros(shape, dtype=kind, device=self.device) for name, (shape, kind) in shapes.items()
        }

    @staticmethod
    def fits(sizes: Sizes) -> bool:
        """Whether the widths, two units for the biases counted, can be held on the chip."""
        try:
            from calibrl.kernels import hopper  # noqa: F401
        except (ImportError, AttributeError):  # a Triton without Gluon, or with other names in it
            return False
        return sizes.width + 2 <= 512 and sizes.output_columns <= 64 and sizes.input_columns <= 64

    def pack(self, nets: Networks) -> None:
        """Take over the networks: halved, with biases as weights of the units that say LOUD, in tiles."""
        sizes, one = self.sizes, self.sizes.width
        g, e, width = sizes.agents, sizes.members, self.tiles.width
        k, d, inputs, outputs = sizes.input_columns, sizes.output_columns, sizes.inputs, sizes.outputs
        into = self.packed
        into["centre"][:, :inputs] = nets.input_mean[:, 0, 0]
        into["spread"][:, :inputs] = 1 / nets.input_std[:, 0, 0]
        into["top"][:, :outputs] = nets.max_logvar[:, 0, 0]
        into["bottom"][:, :outputs] = nets.min_logvar[:, 0, 0]
        blank = nets.weights[0].new_zeros

        first = blank(g, e, k, width)
        first[:, :, :inputs, :one] = nets.weights[0] / 2
        _add_bias(first, nets.biases[0] / 2, inputs, torch.float16)
        first[:, :, inputs, one : one + 2] = LOUD / 2
        into["w_in"].copy_(first.mT)

        for layer in range(sizes.hidden - 1):
            hidden = blank(g, e, width, width)
            hidden[:, :, :one, :one] = nets.weights[layer + 1] / 2
            _add_bias(hidden, nets.biases[layer + 1] / (2 * LOUD), one, torch.bfloat16)
            hidden[:, :, one, one : one + 2] = 0.5
            into["w_hidden"][:, :, layer] = self._tiled(hidden.mT)

        for name, columns in (("w_mean", slice(None, outputs)), ("w_log", slice(outputs, None))):
            head = blank(g, e, width, d)
            head[:, :, :one, :outputs] = nets.weights[-1][..., columns]
            _add_bias(head, nets.biases[-1][..., columns] / LOUD, one, torch.float16)
            starts = zip(self.tiles.starts, self.tiles.sizes, strict=True)
            parts = [head.mT[..., start : start + size].flatten(2) for start, size in starts]
            into[name].copy_(torch.cat(parts, -1))

    def _tiled(self, weight: Tensor) -> Tensor:
        """A layer (g, e, units, inputs) as its kernel reads it, tile after tile: (g, e, units · inputs)."""
        if not self.narrow:
            from calibrl.kernels.hopper import RING_COLUMNS, RING_DEPTH

            tiles = weight.unflatten(3, (-1, RING_DEPTH)).unflatten(2, (-1, RING_COLUMNS))
            return tiles.transpose(3, 4).flatten(2)
        cuts = list(zip(self.tiles.starts, self.tiles.sizes, strict=True))
        return torch.cat([weight[:, :, a : a + b, c : c + d].flatten(2) for a, b in cuts for c, d in cuts], -1)

    def settings(self, own_rows: bool) -> dict[str, Any]:
        """The compile-time numbers of the kernel."""
        from calibrl.kernels import hopper

        sizes, tiles = self.sizes, self.tiles
        found = {
            "E": sizes.members,
            "IN": sizes.inputs,
            "KIN": sizes.input_columns,
            "D": sizes.outputs,
            "KD": sizes.output_columns,
            "LAYERS": sizes.hidden - 1,
            "WIDTH": tiles.width,
            "OWN_ROWS": own_rows,
            "ROWS": hopper.ROWS,
        }
        if self.narrow:
            shape = {"COUNT": len(tiles.sizes), "TILES": tiles.sizes, "STARTS": tiles.starts, "PLACES": tiles.places}
            return found | shape
        return found | {"N": hopper.RING_COLUMNS, "K": hopper.RING_DEPTH, "STAGES": hopper.STAGES}

    def run(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Write the moments (g, e, n, d) of x (g, n, in) or (g, e, n, in)."""
        from calibrl.kernels import hopper

        n = x.shape[-2]
        grid = (-(-n // hopper.ROWS), self.sizes.agents * self.sizes.members)
        kernel = hopper.narrow if self.narrow else hopper.wide
        parts = [self.packed[name] for name in ("centre", "spread", "w_in", "w_hidden", "w_mean", "w_log")]
        bounds = self.packed["top"], self.packed["bottom"]
        settings = self.settings(own_rows=x.dim() == 4)
        kernel[grid](x, *parts, *bounds, mean, variance, n, **settings, num_warps=hopper.WARPS)


def _tiling(sizes: Sizes) -> tuple[Tiles, bool]:
    """The tiles of a layer, and whether two layers fit on the chip beside everything else."""
    tiles = Tiles.of(sizes.width + 2)
    ends = tiles.width * (sizes.input_columns + 2 * sizes.output_columns)
    if 2 * (2 * tiles.width**2 + ends) <= SHARED_MEMORY:
        return tiles, True
    return Tiles((64,) * (power_of_two(sizes.width + 2, least=256) // 64)), False


def _add_bias(weight: Tensor, bias: Tensor, row: int, kind: torch.dtype) -> None:
    """Put a bias (g, e, 1, units) into two rows of a weight (g, e, inputs, units): what `kind` holds, and the rest."""
    units = bias.shape[-1]
    coarse = bias[:, :, 0].to(kind).float()
    weight[:, :, row, :units] = coarse
    weight[:, :, row + 1, :units] = bias[:, :, 0] - coarse


def power_of_two(number: int, least: int = 16) -> int:
    """The smallest power of two that is no smaller."""
    return max(least, 1 << (number - 1).bit_length())

"""Networks in the order in which the Triton kernels of `kernels.hopper` read them: layers cut into tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calibrl.kernels.packing import SHARED_MEMORY, Networks, Sizes, first_layer, heads, hidden_layer, power_of_two


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
        sizes, width, into = self.sizes, self.tiles.width, self.packed
        inputs, outputs = sizes.inputs, sizes.outputs
        into["centre"][:, :inputs] = nets.input_mean[:, 0, 0]
        into["spread"][:, :inputs] = 1 / nets.input_std[:, 0, 0]
        into["top"][:, :outputs] = nets.max_logvar[:, 0, 0]
        into["bottom"][:, :outputs] = nets.min_logvar[:, 0, 0]
        into["w_in"].copy_(first_layer(nets, sizes, sizes.input_columns, width).mT)
        for layer in range(sizes.hidden - 1):
            into["w_hidden"][:, :, layer] = self._tiled(hidden_layer(nets, sizes, layer, width).mT)
        cuts = list(zip(self.tiles.starts, self.tiles.sizes, strict=True))
        for name, head in zip(("w_mean", "w_log"), heads(nets, sizes, width, sizes.output_columns), strict=True):
            parts = [head.mT[..., start : start + size].flatten(2) for start, size in cuts]
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

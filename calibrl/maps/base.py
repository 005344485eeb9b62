"""R: an increasing map of [0, 1] onto itself, one per column of a forecast."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.errors import CalibrlError
from calibrl.kernels import normal
from calibrl.maps.frozen import Frozen, from_dict
from calibrl.maps.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Map(Frozen, ABC):
    """An increasing map R of probabilities, per column, with inverse and slope.

    A map works on z-scores z = Φ⁻¹(p), where nothing saturates: a subclass says how z moves, this class
    turns that into R. `columns` is () for one map that serves any shape, or (d,) for one map per last
    dimension. NaN (not observed) stays NaN. Parameters are float64 tensors of shape (*columns, …).
    """

    ranks: Ranks | None = None
    """The sorted evidence, kept for conformal intervals."""
    note: str = ""
    """How the map came about, in words."""

    # What a subclass supplies, all on z-scores of shape (…, *columns).

    @property
    @abstractmethod
    def columns(self) -> tuple[int, ...]:
        """() for one map, (d,) for one per column."""

    @abstractmethod
    def _forward(self, z: Tensor) -> Tensor:
        """S(z) = Φ⁻¹(R(Φ(z)))."""

    @abstractmethod
    def _inverse(self, z: Tensor) -> Tensor:
        """S⁻¹(z)."""

    @abstractmethod
    def _log_slope(self, z: Tensor) -> Tensor:
        """Log S′(z)."""

    @property
    def breaks(self) -> Tensor:
        """Calibrated z-scores where the slope of S⁻¹ bends, for quadrature to stop at: (k, *columns)."""
        return torch.zeros(0, *self.columns, dtype=torch.float64)

    @cached_property
    def dtype(self) -> torch.dtype:
        """What the map computes in: float64, unless it was moved to another with `to`."""
        tensors = (part for part in self._parts.values() if isinstance(part, Tensor))
        return next((part.dtype for part in tensors), torch.float64)

    # R itself.

    @returns_what_was_given
    def __call__(self, p: Array) -> Tensor:
        """R(p). p: (…, *columns) in [0, 1]."""
        return self._on_probabilities(p, self.forward_z)

    @returns_what_was_given
    def inverse(self, p: Array) -> Tensor:
        """R⁻¹(p). p: (…, *columns) in [0, 1]."""
        return self._on_probabilities(p, self.inverse_z)

    @returns_what_was_given
    def log_slope(self, p: Array) -> Tensor:
        """Log R′(p): what recalibration adds to a log-density. p: (…, *columns) in [0, 1]."""
        p = as_tensor(p, "p")
        z = normal.finite_quantile(_in_unit_interval(p))
        slope = self.log_slope_z(z) + normal.log_density(self.forward_z(z)) - normal.log_density(z)
        return slope.to(p.dtype)

    def forward_z(self, z: Tensor) -> Tensor:
        """S(z) = Φ⁻¹(R(Φ(z))) at z-scores of shape (…, *columns)."""
        return self._ready_for(z)._forward(z.to(self.dtype))

    def inverse_z(self, z: Tensor) -> Tensor:
        """S⁻¹(z) at z-scores of shape (…, *columns)."""
        return self._ready_for(z)._inverse(z.to(self.dtype))

    def log_slope_z(self, z: Tensor) -> Tensor:
        """Log S′(z) at z-scores of shape (…, *columns)."""
        return self._ready_for(z)._log_slope(z.to(self.dtype))

    def _ready_for(self, z: Tensor) -> Self:
        """This map, checked against the shape of z and on its device (moved once, then remembered)."""
        if self.columns and (z.dim() == 0 or z.shape[-1:] != self.columns):
            raise CalibrlError(
                f"this map was fitted for {self.columns[0]} columns but the forecast has shape {tuple(z.shape)}; "
                "fit a map on PITs of that shape, or one map for all columns from a flat array"
            )
        tensors = (part for part in self._parts.values() if isinstance(part, Tensor))
        if next(tensors, z).device == z.device:
            return self
        if z.device not in self.cache:
            self.cache[z.device] = self.to(z.device)
        moved: Self = self.cache[z.device]
        return moved

    def _on_probabilities(self, p: Array, move: Callable[[Tensor], Tensor]) -> Tensor:
        p = as_tensor(p, "p")
        z = normal.finite_quantile(_in_unit_interval(p))
        moved = normal.cdf(move(z)).to(p.dtype)
        # R(0) = 0 and R(1) = 1 exactly; between them a float64 stops just short.
        return torch.where((p == 0) | (p == 1), p, moved)


def _in_unit_interval(p: Tensor) -> Tensor:
    outside = (p < 0) | (p > 1)
    if bool(outside.any()):
        raise CalibrlError(f"probability {p[outside][0].item():g} is outside [0, 1]; pass values of a CDF")
    return p


def pick(table: Tensor, place: Tensor) -> Tensor:
    """The numbers of a table (k,) at places (…), or of one for each column, (d, k), at places (…, d)."""
    if table.dim() == 1:
        return table[place]
    d, k = table.shape
    return table.reshape(-1)[place + torch.arange(d, device=place.device) * k]


def map_from_dict(saved: dict[str, Any]) -> Map:
    """The map that `to_dict` described."""
    found = from_dict(saved)
    if not isinstance(found, Map):
        raise CalibrlError(f"a saved {found.kind} is not a map of CDF values; load it with its own tool")
    return found

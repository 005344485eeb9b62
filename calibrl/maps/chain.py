"""Two maps, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.maps.base import Map
from calibrl.maps.closed_form import IDENTITY


@dataclass(frozen=True, eq=False)
class Chain(Map):
    """R(p) = after(before(p)): what `before` left wrong, `after` puts right."""

    kind: ClassVar[str] = "chain"
    before: Map = IDENTITY
    after: Map = IDENTITY

    def __post_init__(self) -> None:
        if self.before.columns and self.after.columns and self.before.columns != self.after.columns:
            raise CalibrlError(
                f"a map of {self.before.columns[0]} columns cannot be followed by one of {self.after.columns[0]}; "
                "fit both on PITs of one shape, or one of them for all columns"
            )

    @property
    def columns(self) -> tuple[int, ...]:
        """Those of either."""
        return self.before.columns or self.after.columns

    @cached_property
    def dtype(self) -> torch.dtype:
        """That of the first."""
        return self.before.dtype

    @property
    def breaks(self) -> Tensor:
        """Those of both, where they end up: (k, *columns)."""
        first, second = (_spread(part.breaks, self.columns) for part in (self.before, self.after))
        return torch.cat([self.after.forward_z(first), second])

    def _forward(self, z: Tensor) -> Tensor:
        return self.after.forward_z(self.before.forward_z(z))

    def _inverse(self, z: Tensor) -> Tensor:
        return self.before.inverse_z(self.after.inverse_z(z))

    def _log_slope(self, z: Tensor) -> Tensor:
        return self.before.log_slope_z(z) + self.after.log_slope_z(self.before.forward_z(z))


def _spread(breaks: Tensor, columns: tuple[int, ...]) -> Tensor:
    """Breaks (k, …) of a map for one column or all, for each of the columns: (k, *columns)."""
    return breaks.reshape(len(breaks), *breaks.shape[1:] or (1,) * len(columns)).expand(-1, *columns)

"""What our distributions share: each says how outcomes and z-scores belong together; CDF and quantiles follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions.kinds import dtype_of
from calibrl.errors import CalibrlError
from calibrl.kernels import normal


class Scored(Distribution, ABC):
    """A distribution known by its z-scores z = Φ⁻¹(F(y)), which do not round to 0 or 1 as probabilities do."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (torch's own protocol)

    @abstractmethod
    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(F(y)) in float64. y: (…, *batch)."""

    @abstractmethod
    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(Φ(z)) in float64. z: (…, *batch)."""

    @returns_what_was_given
    def cdf(self, value: Array) -> Tensor:
        """P(Y ≤ value). value: (…, *batch)."""
        value = as_tensor(value)
        return normal.cdf(self.zscore(value)).to(self._dtype_with(value))

    @returns_what_was_given
    def icdf(self, value: Array) -> Tensor:
        """The quantile at probability `value`: (…, *batch). Finite: 0 and 1 mean the nearest number inside."""
        value = as_tensor(value)
        outside = (value < 0) | (value > 1)
        if bool(outside.any()):
            raise CalibrlError(f"probability {value[outside][0].item():g} is outside [0, 1]; ask for a quantile inside")
        z = normal.finite_quantile(value)
        z = z.expand(torch.broadcast_shapes(z.shape, self.batch_shape))
        return self.from_zscore(z).to(self._dtype_with(value))

    @property
    def _dtype(self) -> torch.dtype:
        """What the forecast's own numbers are held in."""
        return dtype_of(self)

    def _dtype_with(self, value: Tensor) -> torch.dtype:
        """What an answer about `value` is given in."""
        return torch.promote_types(self._dtype, value.dtype)

"""Counts from a continuous forecast: sales forecast by a Gaussian, units sold in whole numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions.kinds import device_of, dtype_of, is_discrete
from calibrl.distributions.scored import Scored
from calibrl.distributions.scores import count_moments, from_zscore, log_mass, zscore
from calibrl.errors import CalibrlError


class Rounded(Scored):
    """max(0, round(Y)) for a continuous forecast Y: mass F(k + ½) - F(k - ½) on k, all below ½ on 0."""

    support = constraints.nonnegative_integer
    has_rsample = False

    def __init__(self, base: Distribution) -> None:
        if is_discrete(base) or base.event_shape:
            raise CalibrlError(
                f"{type(base).__name__} is not a continuous forecast of single numbers; nothing to round"
            )
        self.base = base
        super().__init__(base.batch_shape, validate_args=False)

    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(count ≤ y)) in float64; -inf below 0."""
        k = y.double().floor()
        z = zscore(self.base, k.clamp(min=0) + 0.5)
        return torch.where(k < 0, -torch.inf, z)

    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(count < y)) in float64."""
        return self.zscore(torch.ceil(y.double()) - 1)

    def from_zscore(self, z: Tensor) -> Tensor:
        """The least count k with P(count ≤ k) ≥ Φ(z)."""
        # A hair less than the quantile, so that rounding error does not ask for one unit more.
        y = from_zscore(self.base, z)
        return torch.ceil((y - 0.5 - 1e-9 - 1e-12 * y.abs()).clamp(min=0))

    @returns_what_was_given
    def log_prob(self, value: Array) -> Tensor:
        """log-mass of a count; -inf between the whole numbers. value: (…, *batch)."""
        value = as_tensor(value)
        return log_mass(self.zscore_left(value), self.zscore(value)).to(self._dtype_with(value))

    def sample(self, sample_shape: Any = Size()) -> Tensor:
        """Draws of shape (*sample_shape, *batch)."""
        with torch.no_grad():
            shape = self._extended_shape(Size(sample_shape))
            z = torch.randn(shape, dtype=torch.float64, device=device_of(self.base))
            return self.from_zscore(z).to(dtype_of(self.base))

    @property
    def mean(self) -> Tensor:
        """Expected count: (*batch)."""
        return count_moments(self)[0].to(dtype_of(self.base))

    @property
    def variance(self) -> Tensor:
        """Variance of the count: (*batch)."""
        return count_moments(self)[1].to(dtype_of(self.base))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Rounded:
        """The same forecast, repeated to `batch_shape`."""
        return Rounded(self.base.expand(Size(batch_shape)))

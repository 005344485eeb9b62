"""Forecasts that each group's own map has calibrated, as one distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions import from_zscore, zscore, zscore_left
from calibrl.distributions.scores import log_prob
from calibrl.errors import CalibrlError
from calibrl.kernels import normal


class Grouped(Distribution):
    """n continuous forecasts, some from each part.

    parts: pairs of rows, (m,) of their numbers from 0, and their forecasts, of batch shape (m,). Every row belongs
    to exactly one part.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (torch's own protocol)
    support = constraints.real
    has_rsample = False

    def __init__(self, parts: Sequence[tuple[Tensor, Distribution]]) -> None:
        every = torch.cat([rows for rows, _ in parts])
        owners = torch.bincount(every, minlength=len(every))
        if bool((owners != 1).any()):
            row = int((owners != 1).nonzero()[0])
            raise CalibrlError(f"forecast {row} belongs to {int(owners[row])} groups; expected exactly 1")
        self.parts = tuple(parts)
        self._example = parts[0][1]
        super().__init__(owners.shape, validate_args=False)

    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(F(y)) in float64. y: (…, n)."""
        return self._each(zscore, y)

    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(Y < y)) in float64. y: (…, n)."""
        return self._each(zscore_left, y)

    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(Φ(z)) in float64. z: (…, n)."""
        return self._each(from_zscore, z)

    @returns_what_was_given
    def cdf(self, value: Array) -> Tensor:
        """P(Y ≤ value). value: (…, n)."""
        return normal.cdf(self.zscore(as_tensor(value)))

    @returns_what_was_given
    def icdf(self, value: Array) -> Tensor:
        """The quantile at probability `value`: (…, n)."""
        return self.from_zscore(normal.finite_quantile(as_tensor(value)))

    @returns_what_was_given
    def log_prob(self, value: Array) -> Tensor:
        """log-density. value: (…, n)."""
        return self._each(log_prob, as_tensor(value))

    @property
    def mean(self) -> Tensor:
        """Expected outcomes: (n,)."""
        return self._gather([part.mean for _, part in self.parts])

    @property
    def variance(self) -> Tensor:
        """Variances of the outcomes: (n,)."""
        return self._gather([part.variance for _, part in self.parts])

    def _each(self, function: Callable[[Distribution, Tensor], Tensor], value: Tensor) -> Tensor:
        value = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        return self._gather([function(part, value[..., rows]) for rows, part in self.parts])

    def _gather(self, pieces: list[Tensor]) -> Tensor:
        """One (…, rows of the part) tensor per part → (…, n)."""
        whole = torch.empty((*pieces[0].shape[:-1], *self.batch_shape), dtype=torch.float64, device=pieces[0].device)
        for (rows, _), piece in zip(self.parts, pieces, strict=True):
            whole[..., rows] = piece.double()
        return whole

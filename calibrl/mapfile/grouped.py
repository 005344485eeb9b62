"""Forecasts that each group's own map has calibrated, as one distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions import from_zscore, zscore, zscore_left
from calibrl.distributions.scored import Scored
from calibrl.distributions.scores import log_prob
from calibrl.errors import CalibrlError


class Grouped(Scored):
    """n continuous forecasts, some from each part.

    parts: pairs of rows, (m,) of their numbers from 0, and their forecasts, of batch shape (m,). Every row belongs
    to exactly one part.
    """

    support = constraints.real
    has_rsample = False

    def __init__(self, parts: Sequence[tuple[Tensor, Distribution]]) -> None:
        every = torch.cat([rows for rows, _ in parts])
        owners = torch.bincount(every, minlength=len(every))
        if bool((owners != 1).any()):
            row = int((owners != 1).nonzero()[0])
            raise CalibrlError(f"forecast {row} belongs to {int(owners[row])} groups; expected exactly 1")
        self.parts = tuple(parts)
        self._example = parts[0][1]  # whose dtype and device are those of all
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
    def log_prob(self, value: Array) -> Tensor:
        """log-density. value: (…, n)."""
        value = as_tensor(value)
        return self._each(log_prob, value).to(self._dtype_with(value))

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

"""The bandit's map: each arm's own past z-scores, taken at their word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrl.arrays import Array
from calibrl.errors import CalibrlError
from calibrl.kernels import normal
from calibrl.maps import FitMap, Map
from calibrl.maps.base import pick, rank
from calibrl.maps.columns import Floats, matrix

_NONE = torch.zeros(2, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Ecdf(Map):
    """The empirical CDF of an arm's own z-scores with ranks i/(n+1), atoms and all; no evidence is the identity.

    Between the ranks R is straight in probability, beyond them the forecast's own tail goes on, moved along.
    Repeated z-scores are kept as the atoms they are: an arm that always pays 0 forecasts exactly 0.

    Parameters
    ----------
    z : Tensor (*columns, m)
        Ascending, m ≥ 2, padded at the end by repetition.
    count, shift : Tensor (*columns,)
        How many of them are real, 0 or ≥ 2; what is added to every level, as a z-score, before it is looked up.
    """

    kind: ClassVar[str] = "ecdf"
    ASCENDING: ClassVar[tuple[str, ...]] = ("z",)
    LIKE: ClassVar[tuple[str, ...]] = ("z",)
    AXES: ClassVar[int] = 1
    z: Tensor = _NONE
    count: Tensor = _NONE[0]
    shift: Tensor = _NONE[0]

    def check(self) -> None:
        """Raise a ValueError for numbers that no evidence gives."""
        super().check()
        m, n = self.z.shape[-1], self.count
        if m < 2 or any(part.shape != self.columns for part in (n, self.shift)):
            raise ValueError("z, count and shift do not fit each other")
        if not bool(((n == 0) | ((n >= 2) & (n <= m))).all()) or not torch.equal(n, n.round()):
            raise ValueError("count does not fit z")

    def _forward(self, z: Tensor) -> Tensor:
        right = self._rank(z)
        low, high = self._pick(right - 1), self._pick(right)
        share = torch.where(high > low, (z - low) / (high - low).clamp(min=1e-300), 0.0)
        inside = normal.quantile((right + share) / (self.count + 1))
        below = z - self.z[..., 0] - self._edge
        above = z - self._pick(self.count.long() - 1) + self._edge
        s = torch.where(right == 0, below, torch.where(right >= self.count, above, inside))
        return torch.where(self.count > 0, s, z) - self.shift

    def _inverse(self, z: Tensor) -> Tensor:
        z = z + self.shift
        position = (normal.cdf(z) * (self.count + 1) - 1).clamp(min=0).minimum(self.count - 1)
        below = position.floor().minimum(self.count - 2).long()
        low, high = self._pick(below), self._pick(below + 1)
        tail = (z + self._edge).clamp(max=0) + (z - self._edge).clamp(min=0)
        return torch.where(self.count > 0, low + (position - below) * (high - low) + tail, z)

    def _log_slope(self, z: Tensor) -> Tensor:
        right = self._rank(z)
        gap = self._pick(right) - self._pick(right - 1)
        inside = -torch.log((self.count + 1) * gap) - normal.log_density(self._forward(z) + self.shift)
        return torch.where((right > 0) & (right < self.count), inside, 0.0)

    @property
    def _edge(self) -> Tensor:
        """Φ⁻¹(n/(n+1)): the z-score of the last rank."""
        n = self.count.clamp(min=1)
        return normal.quantile(n / (n + 1))

    def _rank(self, z: Tensor) -> Tensor:
        """How many z-scores of its column each value reaches: 0 … n."""
        return rank(self.z, z).minimum(self.count.long())

    def _pick(self, index: Tensor) -> Tensor:
        return pick(self.z, index.clamp(0, self.z.shape[-1] - 1))


def fit_ecdf(*, min_rows: int = 10, window: int = 1024) -> FitMap:
    """Make a function that fits `Ecdf`, column by column, to the last outcomes.

    Parameters
    ----------
    min_rows, window : int
        Outcomes a column has before its map is other than the identity, 2 or more; how many of its last ones count.

    Returns
    -------
    FitMap
        For `Calibrated(…, fit_map=…)`.

    Examples
    --------
    >>> import torch
    >>> from calibrl.maps.ecdf import fit_ecdf
    >>> mapping = fit_ecdf()(z=torch.linspace(-2, 2, 99))  # as many below the mean as above
    >>> round(float(mapping.inverse_z(torch.tensor(0.0))), 6)
    0.0
    """
    if min_rows < 2 or window < min_rows:
        raise CalibrlError(f"min_rows {min_rows} and window {window} make no history; use 2 ≤ min_rows ≤ window")

    def fit(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Ecdf:
        if weight is not None:
            raise CalibrlError("an empirical map takes no weights; forget old outcomes with window= instead")
        values, _, shape = matrix(pit, None, z)
        if z is None:
            values = normal.finite_quantile(torch.from_numpy(values)).numpy()
        columns = [column[~np.isnan(column)][-window:] for column in values.T]
        return ecdf_of([column if len(column) >= min_rows else column[:0] for column in columns], shape)

    return fit


def ecdf_of(columns: list[Floats], shape: tuple[int, ...], *, shift: Floats | None = None) -> Ecdf:
    """The map of these z-scores, one array per column; shape () makes one map of the only column."""
    most = max(2, *(len(column) for column in columns), 2)
    table = np.zeros((len(columns), most))
    for row, column in zip(table, columns, strict=True):
        if len(column):
            ordered = np.sort(column)
            row[: len(column)], row[len(column) :] = ordered, ordered[-1]
    count = torch.tensor([float(len(column)) for column in columns], dtype=torch.float64)
    z = torch.from_numpy(table)
    moved = torch.zeros_like(count) if shift is None else torch.from_numpy(shift.copy())
    return Ecdf(z=z, count=count, shift=moved) if shape else Ecdf(z=z[0], count=count[0], shift=moved[0])

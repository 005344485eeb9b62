"""Order statistics of the calibration evidence, for intervals with a finite-sample guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrl.maps.frozen import Frozen


@dataclass(frozen=True, eq=False)
class Ranks(Frozen):
    """Chosen order statistics z₍ᵣ₎ of n calibration z-scores, per column.

    z: (*columns, m) ascending; rank: (*columns, m), r = 1 … n; count: (*columns,), n. Where n is large only
    some ranks are kept, and none of outcomes further out than a float64 can say; an interval is rounded outwards
    to the next one: wider, never narrower.
    """

    kind: ClassVar[str] = "ranks"

    z: Tensor
    rank: Tensor
    count: Tensor

    def interval_z(self, level: float) -> tuple[Tensor, Tensor]:
        """[z₍ₗ₎, z₍ᵤ₎] with l = ⌊(n+1)α/2⌋ and u = ⌈(n+1)(1-α/2)⌉, α = 1 - level; both (*columns,).

        A side is infinite when n is too small to promise it, below 2/α - 1 points, or where outcomes lie further out
        than a float64 can say.
        """
        tail = (self.count + 1) * ((1 - level) / 2)
        # Rounding error must not push a whole number over: 0.05 · 200 is 10, not 10.000000000000002.
        low_rank = torch.floor(tail + 1e-9).unsqueeze(-1)
        high_rank = self.count.unsqueeze(-1) + 1 - low_rank
        infinity = torch.full_like(self.z, torch.inf)
        low = torch.where(self.rank <= low_rank, self.z, -infinity).amax(-1)
        high = torch.where(self.rank >= high_rank, self.z, infinity).amin(-1)
        return low, high

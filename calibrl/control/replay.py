"""What a fleet remembers: rows of experience, and which of them each agent holds out."""

from __future__ import annotations

import torch
from torch import Tensor


class Replay:
    """Rows of g agents, equally many for each.

    x: (g, n, k); y: (g, n, d); held: (g, n), who holds which out; batch: (g, n), the number of the trial it came in.
    """

    def __init__(self, agents: int, inputs: int, outputs: int) -> None:
        self.x = torch.zeros(agents, 0, inputs)
        self.y = torch.zeros(agents, 0, outputs)
        self.held = torch.zeros(agents, 0, dtype=torch.bool)
        self.batch = torch.zeros(agents, 0, dtype=torch.int64)

    def __len__(self) -> int:
        return self.x.shape[1]

    def add(self, x: Tensor, y: Tensor, held: Tensor) -> None:
        """More rows of every agent, on the CPU."""
        self.x = torch.cat([self.x, x.cpu()], 1)
        self.y = torch.cat([self.y, y.cpu()], 1)
        self.held = torch.cat([self.held, held], 1)
        number = int(self.batch[0, -1]) + 1 if self.batch.shape[1] else 0
        self.batch = torch.cat([self.batch, torch.full(held.shape, number)], 1)

    def training_rows(self) -> tuple[Tensor, Tensor]:
        """What each agent's networks may see: (g, m, k) and (g, m, d)."""
        return self._rows(~self.held)

    def held_rows(self) -> tuple[Tensor, Tensor]:
        """What each agent's networks may not see."""
        return self._rows(self.held)

    def held_ages(self) -> Tensor:
        """How many trials ago each held-out row came: (g, m)."""
        return (self.batch[:, -1:] - self.batch)[self.held].unflatten(0, (len(self.held), -1))

    def _rows(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        g = len(mask)
        return self.x[mask].unflatten(0, (g, -1)), self.y[mask].unflatten(0, (g, -1))

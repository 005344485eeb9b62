"""Rows in the order in which networks meet them, in memory that stays where it is.

A training step reads its place from a counter on the device: no batch costs the host anything but its launches, and a
step can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from calibrl.forecasters.nets import Nets

if TYPE_CHECKING:
    from calibrl.forecasters.ensemble_training import Training


@dataclass
class Batches:
    """Rows in memory that stays where it is, and the order in which they are met.

    x: (g · room, in), standardised; y: (g · room, d), NaN where missing; table: (steps, g · e · b), the row at
    each place of each batch; weight: (steps, b), 1 / (rows · d) in a batch of so many rows, 0 in places it leaves
    empty; counter: (1,), the step that comes next; event: (g · e, 1, d), which outcomes are events, see `losses`.
    gaps: whether any y is NaN. events: whether any outcome is an event.
    """

    x: Tensor
    y: Tensor
    table: Tensor
    weight: Tensor
    counter: Tensor
    event: Tensor
    steps: int = 0
    gaps: bool = False
    events: bool = False

    @classmethod
    def room(cls, nets: Nets, training: Training, rows: int) -> Batches:
        """Memory for up to `rows` rows of each agent."""
        g, shape, device = nets.agents, nets.shape, nets.max_logvar.device
        steps, b = training.epochs * math.ceil(rows / training.batch), training.batch
        return cls(
            x=torch.zeros(g * rows, shape.inputs, device=device),
            y=torch.zeros(g * rows, shape.outputs, device=device),
            table=torch.zeros(steps, g * shape.members * b, dtype=torch.int32, device=device),
            weight=torch.zeros(steps, b, device=device),
            counter=torch.zeros(1, dtype=torch.int64, device=device),
            event=torch.zeros(g * shape.members, 1, shape.outputs, dtype=torch.bool, device=device),
        )

    def fill(
        self,
        x: Tensor,
        y: Tensor,
        *,
        members: int,
        training: Training,
        generators: Sequence[torch.Generator],
        events: Tensor | None = None,
    ) -> None:
        """Put in standardised rows x (g, n, in), y (g, n, d), and draw each agent's order from its own generator.

        events: (g, d), which outcomes are events, see `losses`.
        """
        (g, n, _), b, room = x.shape, training.batch, len(self.x) // len(x)
        self.x.view(g, room, -1)[:, :n] = x
        self.y.view(g, room, -1)[:, :n] = y
        per_epoch = math.ceil(n / b)
        self.steps, self.gaps = training.epochs * per_epoch, bool(y.isnan().any())
        orders = torch.stack([_orders(n, members, training, generator) for generator in generators], 2)
        orders += torch.arange(g)[:, None, None] * room
        self.table[: self.steps] = orders.flatten(0, 1).flatten(1).to(self.table.device, torch.int32)
        sizes = torch.full((per_epoch,), b)
        sizes[-1] = n - b * (per_epoch - 1)
        weight = (torch.arange(b) < sizes[:, None]) / (sizes[:, None] * y.shape[-1])
        self.weight[: self.steps] = weight.repeat(training.epochs, 1).to(self.weight.device)
        self.counter.zero_()
        self.events = events is not None and bool(events.any())
        if events is not None:
            self.event.copy_(events.repeat_interleave(members, 0)[:, None])


def _orders(n: int, members: int, training: Training, generator: torch.Generator) -> Tensor:
    """One agent's rows, drawn with replacement for each network and shuffled for each epoch.

    (epochs, batches, e, b); the last batch of an epoch is filled up with row 0, which its weight discounts.
    """
    device, b = generator.device, training.batch
    drawn = torch.randint(n, (members, n), generator=generator, device=device)
    epochs = [drawn]
    for _ in range(training.epochs - 1):
        shuffles = torch.stack([torch.randperm(n, generator=generator, device=device) for _ in range(members)])
        epochs.append(epochs[-1].gather(1, shuffles))
    table = functional.pad(torch.stack(epochs), (0, -n % b))
    return table.unflatten(2, (-1, b)).transpose(1, 2).cpu()

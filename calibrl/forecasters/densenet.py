"""A DenseNet with dropout, and a quick way to ask it many times with dropout left on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from calibrl.errors import CalibrlError

CHUNK = 1024
"""Rows asked at once: their activations stay in the processor's cache."""


class DenseNet(nn.Module):
    """Layers that each see the input and the outputs of all layers before them (Huang et al., 2017).

    inputs → `layers` × [linear to `width`, PReLU, dropout] → one linear read-out of everything.
    """

    def __init__(
        self, inputs: int, outputs: int, *, layers: int = 5, width: int = 128, dropout: float = 0.5, seed: int = 0
    ) -> None:
        super().__init__()
        if layers < 1 or width < 1 or not 0 < dropout < 1:
            raise CalibrlError(f"{layers} layers of {width} with dropout {dropout:g}: use 1 or more, dropout in (0, 1)")
        self.inputs, self.width, self.dropout = inputs, width, dropout
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden: Sequence[nn.Linear] = nn.ModuleList(  # type: ignore[assignment]
                [nn.Linear(inputs + i * width, width) for i in range(layers)]
            )
            self.bend = nn.ModuleList([nn.PReLU() for _ in range(layers)])
            self.readout = nn.Linear(inputs + layers * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Answers (n, outputs) to x (n, inputs); with dropout in training mode."""
        seen = x
        for linear, bend in zip(self.hidden, self.bend, strict=True):
            new = nn.functional.dropout(bend(linear(seen)), self.dropout, self.training)
            seen = torch.cat([seen, new], -1)
        answer: Tensor = self.readout(seen)
        return answer

    def masks(self, passes: int, generator: torch.Generator) -> Tensor:
        """Which units each pass keeps: (passes, layers, width), at least one in every layer."""
        keep = torch.rand(passes, len(self.hidden), self.width, generator=generator) >= self.dropout
        keep[..., 0] |= ~keep.any(-1)
        return keep

    @torch.no_grad()
    def ask(self, x: Tensor, keep: Tensor) -> Tensor:
        """The answers of all passes: x (n, inputs), keep (passes, layers, width) → (passes, n, outputs).

        A pass is one network, the same for all rows: a draw from the posterior of functions, in which days and
        series stay correlated. Only the units it keeps are computed, a quarter of the work at dropout ½; what the
        layers make of the input itself is the same in every pass and computed once.
        """
        kept = [[row.nonzero()[:, 0].to(x.device) for row in one] for one in keep]
        thinned = [self._thinned(units) for units in kept]
        answers = x.new_empty(len(keep), len(x), self.readout.out_features)
        for start in range(0, len(x), CHUNK if x.device.type == "cpu" else len(x)):
            rows = x[start : start + CHUNK] if x.device.type == "cpu" else x
            # Units along the first dimension, so that those a pass keeps are whole stretches of memory.
            given = [torch.addmm(one.bias[:, None], one.weight[:, : self.inputs], rows.T) for one in self.hidden]
            read = torch.addmm(self.readout.bias[:, None], self.readout.weight[:, : self.inputs], rows.T)
            for answer, units, weights in zip(answers, kept, thinned, strict=True):
                answer[start : start + len(rows)] = self._one_pass(given, read, units, weights).T
        return answers

    def _thinned(self, kept: Sequence[Tensor]) -> list[Tensor]:
        """The weights between the units a pass keeps, with dropout's factor 1/(1 - p) in them."""
        columns = [self.inputs + j * self.width + units for j, units in enumerate(kept)]
        found = []
        for i, layer in enumerate([*self.hidden, self.readout]):
            rows = layer.weight[kept[i]] if i < len(kept) else layer.weight
            before = torch.cat([kept[0][:0], *columns[:i]])
            found.append(rows[:, before] / (1 - self.dropout))
        return found

    def _one_pass(self, given: list[Tensor], read: Tensor, kept: list[Tensor], weights: list[Tensor]) -> Tensor:
        seen = read.new_empty(sum(map(len, kept)), read.shape[1])
        done = 0
        for i, units in enumerate(kept):
            new = given[i][units]
            if i:
                new = torch.addmm(new, weights[i], seen[:done])
            seen[done : done + len(units)] = self.bend[i](new)
            done += len(units)
        return torch.addmm(read, weights[-1], seen)

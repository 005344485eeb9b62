"""Networks made ready for planning on a CPU: the same answers as `Nets.moments`, in fewer and smaller passes.

What does not depend on the input is worked out once: the inputs' scale goes into the first layer, the upper bound of
the log-variance into the head's bias. With both soft bounds spelled out,

    variance = exp(min + softplus(max - softplus(max - raw) - min)) = e^min + e^max · sigmoid(raw - max),

one function per output in place of three. Rows go through in blocks whose activations stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from calibrl.forecasters.nets import Nets, Shape
from calibrl.kernels.ensemble_draw import ensemble_draw

BLOCK = 2**19
"""Activations of all networks in one block: about what stays in the cache between two layers."""


WIDE = 128
"""From this width on bfloat16 is quicker by more than its conversions cost."""


@cache
def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions of its own for products of bfloat16 numbers."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def quickest_trunk(shape: Shape) -> torch.dtype:
    """What hidden layers are computed in: bfloat16 where it halves their time, float32 elsewhere.

    Inputs, first layer and head are float32 in any case. Forecasts of trained ensembles move by about a hundredth of
    their standard deviation.
    """
    wide = len(shape.hidden) > 1 and min(shape.hidden) >= WIDE
    return torch.bfloat16 if wide and multiplies_bfloat16() else torch.float32


@dataclass(frozen=True, eq=False)
class QuickNets:
    """Networks at one moment of their training, for `imagined_returns`; made anew after each training.

    weights: each (g · e, in, out); biases: each (g · e, 1, out), scale and bound folded in; the head's are transposed.
    lowest, highest: e^min and e^max, (g, 1, d, 1), 0 where networks have no variance. trunk: the hidden layers' dtype;
    block: rows that go through at once.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    lowest: Tensor
    highest: Tensor
    probabilistic: bool
    agents: int
    members: int
    trunk: torch.dtype
    block: int

    @classmethod
    def of(cls, nets: Nets, *, trunk: torch.dtype | None = None) -> QuickNets:
        """Networks made ready. trunk: of the hidden layers; `quickest_trunk` if not given."""
        trunk = trunk or quickest_trunk(nets.shape)
        with torch.no_grad():
            g, e = nets.agents, nets.members
            weights = [weight.flatten(0, 1) for weight in nets.weights]
            biases = [bias.flatten(0, 1) for bias in nets.biases]
            mean, std = (part.expand(g, e, -1, -1).flatten(0, 1) for part in (nets.input_mean, nets.input_std))
            weights[0] = weights[0] / std.transpose(1, 2)
            biases[0] = torch.baddbmm(biases[0], mean, weights[0], alpha=-1)
            weights[1:-1] = [weight.to(trunk) for weight in weights[1:-1]]
            biases[1:-1] = [bias.to(trunk) for bias in biases[1:-1]]
            # A product with few columns is slow, one with few rows is not: the head is multiplied from the left.
            weights[-1], biases[-1] = (part.transpose(1, 2).contiguous() for part in (weights[-1], biases[-1]))
            lowest, highest = (bound.transpose(2, 3) for bound in (nets.min_logvar, nets.max_logvar))
            if nets.probabilistic:
                above = torch.cat([torch.zeros_like(highest), highest], 2).expand(g, e, -1, -1).flatten(0, 1)
                biases[-1] = biases[-1] - above
            lowest, highest = (bound.exp() * nets.probabilistic for bound in (lowest, highest))
        block = max(1, BLOCK // (g * e * max(nets.shape.hidden)))
        return cls(weights, biases, lowest, highest, nets.probabilistic, g, e, trunk, block)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `Nets.moments`."""
        mean, share = self._answers(x)
        variance = torch.addcmul(self.lowest, self.highest, share)
        return mean.transpose(2, 3), variance.transpose(2, 3)

    def matched_draw(self, x: Tensor, draws: Tensor) -> Tensor:
        """μ + σ · draw of the Gaussian that matches all networks' answers, (g, n, d), for x (g, n, in)."""
        return ensemble_draw(*self._answers(x), self.lowest, self.highest, draws)

    def _answers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Every network's mean, and the share of `highest` in its variance, rows last as the head has them.

        (g, e, d, n) each.
        """
        g, e, n = self.agents, self.members, x.shape[-2]
        rows = (x.unsqueeze(1).expand(g, e, n, -1) if x.dim() == 3 else x).flatten(0, 1)
        if n <= self.block:
            output = self._head(rows)
        else:
            output = torch.cat([self._head(some) for some in rows.split(self.block, 1)], 2)
        output = output.view(g, e, -1, n)
        if not self.probabilistic:
            return output, torch.zeros_like(output)
        mean, raw = output.chunk(2, 2)
        return mean, raw.sigmoid_()

    def _head(self, x: Tensor) -> Tensor:
        """Rows (g · e, n, in) → means and log-variances below the upper bound (g · e, 2d or d, n)."""
        hidden = functional.silu(torch.baddbmm(self.biases[0], x, self.weights[0]), inplace=True).to(self.trunk)
        for weight, bias in zip(self.weights[1:-1], self.biases[1:-1], strict=True):
            hidden = functional.silu(torch.baddbmm(bias, hidden, weight), inplace=True)
        return torch.baddbmm(self.biases[-1], self.weights[-1], hidden.float().transpose(1, 2))

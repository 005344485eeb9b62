"""Networks made ready for planning on a CPU: the same answers as `Nets.moments`, in one compiled pass.

What does not depend on the input is worked out once: the inputs' scale goes into the first layer, the upper bound of
the log-variance into the head's bias. With both soft bounds spelled out,

    variance = exp(min + softplus(max - softplus(max - raw) - min)) = e^min + e^max · sigmoid(raw - max),

one function per output in place of three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from calibrl.forecasters.nets import Nets, Shape
from calibrl.kernels.ensemble_draw import PackedNets, ensemble_answers, ensemble_draw
from calibrl.kernels.tiles import PAIRS

WIDE = 128
"""From this width on bfloat16 is worth what it costs in exactness."""


def quickest_trunk(shape: Shape) -> torch.dtype:
    """What layers after the first are multiplied in: bfloat16 where it halves their time, float32 elsewhere.

    Inputs, the first layer and all sums are float32 in any case. Forecasts of trained ensembles move by some
    thousandths of their standard deviation.
    """
    wide = len(shape.hidden) > 1 and min(shape.hidden) >= WIDE
    return torch.bfloat16 if wide and PAIRS else torch.float32


@dataclass(frozen=True, eq=False)
class QuickNets:
    """Networks at one moment of their training, for `imagined_returns`; made anew after each training.

    packed: weights and biases, scale and bound folded in. lowest, highest: e^min and e^max, (g, 1, 1, d), 0 where
    networks have no variance.
    """

    packed: PackedNets
    lowest: Tensor
    highest: Tensor
    members: int

    @classmethod
    def of(cls, nets: Nets, *, trunk: torch.dtype | None = None) -> QuickNets:
        """Networks made ready. trunk: of all but the first layer; `quickest_trunk` if not given."""
        g, e, d = nets.agents, nets.members, nets.shape.outputs
        with torch.no_grad():
            weights = [weight.flatten(0, 1) for weight in nets.weights]
            biases = [bias.flatten(0, 1) for bias in nets.biases]
            mean, std = (part.expand(g, e, -1, -1).flatten(0, 1) for part in (nets.input_mean, nets.input_std))
            weights[0] = weights[0] / std.transpose(1, 2)
            biases[0] = torch.baddbmm(biases[0], mean, weights[0], alpha=-1)
            if nets.probabilistic:
                biases[-1] = biases[-1] - functional.pad(nets.max_logvar, (d, 0)).expand(g, e, -1, -1).flatten(0, 1)
            else:
                weights[-1], biases[-1] = (functional.pad(part, (0, d)) for part in (weights[-1], biases[-1]))
            lowest, highest = (bound.exp() * nets.probabilistic for bound in (nets.min_logvar, nets.max_logvar))
            bounds = (bound.flatten(1) for bound in (lowest, highest))
            packed = PackedNets.of(weights, biases, *bounds, trunk=trunk or quickest_trunk(nets.shape))
        return cls(packed, lowest, highest, e)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `Nets.moments`."""
        mean, share = ensemble_answers(self.packed, x)
        return mean, torch.addcmul(self.lowest, self.highest, share)

    def matched_draw(self, x: Tensor, draws: Tensor) -> Tensor:
        """μ + σ · draw of the Gaussian that matches all networks' answers, (g, n, d), for x (g, n, in)."""
        return ensemble_draw(self.packed, x, draws)

"""Probabilistic networks as one batched computation: g agents × e networks each, every layer one product.

P, PE, D and DE of PETS (Chua et al., 2018) are the four settings of `members` and `probabilistic`.

`QuickNets` are networks made ready for planning on a CPU: the same answers as `Nets.moments`, in one compiled pass.
What does not depend on the input is worked out once: the inputs' scale goes into the first layer, the upper bound of
the log-variance into the head's bias. With both soft bounds spelled out,

    variance = exp(min + softplus(max - softplus(max - raw) - min)) = e^min + e^max · sigmoid(raw - max),

one function per output in place of three.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from calibrl.errors import CalibrlError, check_count
from calibrl.kernels import normal
from calibrl.kernels.ensemble_draw import PAIRS, PackedNets, ensemble_answers, ensemble_draw

START_MAX_LOGVAR, START_MIN_LOGVAR = 0.5, -10.0


@dataclass(frozen=True)
class Shape:
    """How the networks of one agent are built.

    members 1 and probabilistic: P of PETS; more members: PE; not probabilistic: D and DE.

    Parameters
    ----------
    inputs, outputs : int
        Of the model, action included; d, how many numbers are forecast.
    hidden : tuple of int
        Widths of the layers between them.
    members : int
        e, networks of one agent.
    probabilistic : bool
        Whether networks forecast variances beside means.
    """

    inputs: int
    outputs: int
    hidden: tuple[int, ...] = (500, 500, 500)
    members: int = 5
    probabilistic: bool = True

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "members"):
            check_count(name, getattr(self, name), f"is not a number of {name}")
        if not self.hidden or min(self.hidden) < 1:
            raise CalibrlError(f"hidden {self.hidden} are no layer widths; use for example (200, 200, 200)")

    @property
    def widths(self) -> tuple[int, ...]:
        """From the inputs to the head: a mean for each output, then a log-variance for each."""
        return (self.inputs, *self.hidden, self.outputs * (2 if self.probabilistic else 1))


@dataclass
class Nets:
    """g × e networks with swish between layers and a head of means and log-variances.

    weights: each (g, e, in, out); biases: each (g, e, 1, out); max_logvar, min_logvar: (g, 1, 1, d), the learnt
    soft bounds of the log-variance that an agent's networks share; input_mean, input_std: (g, 1, 1, in), by which
    inputs are standardised. Not probabilistic: the head gives means only and every variance is 0.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    max_logvar: Tensor
    min_logvar: Tensor
    input_mean: Tensor
    input_std: Tensor
    probabilistic: bool = True

    @classmethod
    def fresh(cls, shape: Shape, generators: Sequence[torch.Generator]) -> Nets:
        """Untrained networks on the CPU, one agent for each generator, as published.

        Weights are normal with standard deviation 1 / (2√inputs), cut off at two of those; biases 0. An agent's
        networks depend on its own generator alone.
        """
        g, d = len(generators), shape.outputs
        weights, biases = [], []
        for fan_in, fan_out in zip(shape.widths, shape.widths[1:], strict=False):
            size = (shape.members, fan_in, fan_out)
            weights.append(torch.stack([_cut_normal(size, generator) for generator in generators]))
            weights[-1] /= 2 * math.sqrt(fan_in)
            biases.append(torch.zeros(g, shape.members, 1, fan_out))
        return cls(
            weights,
            biases,
            max_logvar=torch.full((g, 1, 1, d), START_MAX_LOGVAR),
            min_logvar=torch.full((g, 1, 1, d), START_MIN_LOGVAR),
            input_mean=torch.zeros(g, 1, 1, shape.inputs),
            input_std=torch.ones(g, 1, 1, shape.inputs),
            probabilistic=shape.probabilistic,
        )

    @property
    def shape(self) -> Shape:
        """How one agent's networks are built."""
        return Shape(
            inputs=self.weights[0].shape[2],
            outputs=self.max_logvar.shape[-1],
            hidden=tuple(weight.shape[3] for weight in self.weights[:-1]),
            members=self.members,
            probabilistic=self.probabilistic,
        )

    @property
    def agents(self) -> int:
        """How many agents' networks these are: g."""
        return len(self.weights[0])

    @property
    def members(self) -> int:
        """How many networks an agent has: e."""
        return self.weights[0].shape[1]

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance by every network, both (g, e, n, d).

        x: (g, n, in), the same rows for all of an agent's networks, or (g, e, n, in), rows for each.
        """
        mean, logvar = self.head(x)
        return mean, torch.zeros_like(mean) if logvar is None else logvar.exp()

    def ready(self) -> Nets | QuickNets:
        """What answers quickest as the networks are now: on a CPU `QuickNets`, made in less than a millisecond."""
        if self.max_logvar.device.type != "cpu" or self.max_logvar.dtype != torch.float32:
            return self
        return QuickNets.of(self)

    def head(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean and softly bounded log-variance, both (g, e, n, d); no log-variance if not probabilistic."""
        rows = x.unsqueeze(1) if x.dim() == 3 else x
        hidden = (rows - self.input_mean) / self.input_std
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = functional.silu(hidden @ weight + bias)
        output = hidden @ self.weights[-1] + self.biases[-1]
        if not self.probabilistic:
            return output, None
        mean, raw = output.chunk(2, -1)
        return mean, bounded(raw, self.max_logvar, self.min_logvar)

    def parameters(self) -> list[Tensor]:
        """What training changes: weights and biases, and the bounds of probabilistic networks."""
        return self.tensors()[: 2 * len(self.weights) + 2 * self.probabilistic]

    def tensors(self) -> list[Tensor]:
        """All numbers: what training changes, the bounds in any case, and the inputs' scale."""
        return [*self.weights, *self.biases, self.max_logvar, self.min_logvar, self.input_mean, self.input_std]

    def agent(self, index: int) -> Nets:
        """One agent's networks, g = 1, sharing memory."""
        return self.replaced([part[index : index + 1] for part in self.tensors()])

    def to(self, device: torch.device | str) -> Nets:
        """The same networks on another device."""
        return self.replaced([part.to(device) for part in self.tensors()])

    def clone(self) -> Nets:
        """A copy that shares no memory."""
        return self.replaced([part.clone() for part in self.tensors()])

    def state_dict(self) -> dict[str, Any]:
        """All numbers, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Nets:
        """The networks whose `state_dict` this is."""
        return cls(**state)

    def replaced(self, tensors: Sequence[Tensor]) -> Nets:
        """Networks with these in place of the first of `tensors`, which its `parameters` are."""
        parts, layers = [*tensors, *self.tensors()[len(tensors) :]], len(self.weights)
        highest, lowest, mean, std = parts[2 * layers :]
        weights, biases = parts[:layers], parts[layers : 2 * layers]
        return Nets(weights, biases, highest, lowest, mean, std, self.probabilistic)


def bounded(raw: Tensor, highest: Tensor, lowest: Tensor) -> Tensor:
    """A log-variance softly kept below `highest` and above `lowest`."""
    below = highest - functional.softplus(highest - raw)
    return lowest + functional.softplus(below - lowest)


def _cut_normal(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal draws given that they lie within ±2, drawn where the generator lives."""
    uniform = torch.rand(size, generator=generator, dtype=torch.float64, device=generator.device)
    edge = normal.cdf(torch.tensor(-2.0, dtype=torch.float64, device=generator.device))
    return normal.quantile(edge + uniform * (1 - 2 * edge)).float().cpu()


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

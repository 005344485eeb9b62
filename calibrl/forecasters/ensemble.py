"""A fleet of probabilistic ensembles that learn side by side, as PETS does (Chua et al., 2018); one is a forecaster.

All networks of all agents train in one batched step. Networks, Adam and the rows stay at fixed addresses on the device,
and a step reads its place from a counter there: no batch costs the host anything but its launches, and a step can be
captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.nn import functional

from calibrl.data import Data
from calibrl.errors import CalibrlError, check_count, check_within
from calibrl.forecasters.nets import Nets, Shape
from calibrl.forecasters.torch import moment_matched
from calibrl.kernels.fused_nets import captured, power_of_two

FIRST_ROOM = 1024
"""Rows that memory is set aside for at first; it doubles whenever it is full, so that addresses rarely change."""


class BatchedEnsemble:
    """Ensembles of networks, one per agent, trained and asked in one batched computation.

    With one agent it is a `Forecaster`. An agent learns the same alone as in a fleet. Missing outcomes (NaN) add
    nothing to the loss.

    Parameters
    ----------
    shape, training : Shape, EnsembleTraining
        How an agent's networks are built, and how they learn.
    generators : torch.Generator, or a sequence of them, optional
        One per agent: draws its first weights, its bootstrap samples and the order of its batches. One agent, seeded
        with 0, if not given.
    combine : callable
        Makes one forecast of the networks': `moment_matched` or `calibrl.Mixture`.
    device : torch.device or str
        Where networks and rows are kept.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        training: EnsembleTraining | None = None,
        generators: Sequence[torch.Generator] | torch.Generator | None = None,
        combine: Callable[[Sequence[Distribution]], Distribution] = moment_matched,
        device: torch.device | str = "cpu",
    ) -> None:
        self.training = training or EnsembleTraining()
        if generators is None:
            generators = torch.Generator().manual_seed(0)
        self.generators = [generators] if isinstance(generators, torch.Generator) else list(generators)
        self.combine = combine
        self.learner = Learner(Nets.fresh(shape, self.generators).to(device), self.training)
        g = self.nets.agents
        self.x = torch.zeros(g, 0, shape.inputs, device=device)
        self.y = torch.zeros(g, 0, shape.outputs, device=device)
        self.residual = torch.zeros(g, 1, 1, shape.outputs, device=device)
        self._batches: Batches | None = None

    @property
    def nets(self) -> Nets:
        """The networks as they stand: views of what training changes."""
        return self.learner.nets

    @property
    def rows(self) -> int:
        """How many rows each agent has learnt."""
        return self.x.shape[1]

    # Learning

    def update_fleet(self, x: Tensor, y: Tensor, *, events: Tensor | None = None) -> None:
        """Every agent learns as many new rows, then all rows again, from where it stands.

        Parameters
        ----------
        x, y : Tensor
            (g, n, in) inputs of each agent, and (g, n, d) outcomes, NaN where missing.
        events : Tensor, optional
            (g, d) bool, which outcomes of which agents are 0 or 1; their forecast mean is the chance of 1.
        """
        batches = self.prepare(x, y, events=events)
        with torch.no_grad():
            self.learner.train(batches)
        self.finish()

    def prepare(self, x: Tensor, y: Tensor, *, events: Tensor | None = None) -> Batches:
        """Remember new rows, standardise all inputs anew and draw the batches that `update_fleet` walks through."""
        self._remember(x, y)
        # The networks' own tensors change in place: who holds them sees the new scale, and so does a captured graph.
        for held, new in zip((self.nets.input_mean, self.nets.input_std), input_scale(self.x), strict=True):
            held.copy_(new)
        room = power_of_two(self.rows, least=FIRST_ROOM)
        if self._batches is None or len(self._batches.x) < room * self.nets.agents:
            self._batches = Batches.room(self.nets, self.training, room)
        standard = (self.x - self.nets.input_mean[:, 0]) / self.nets.input_std[:, 0]
        self._batches.fill(standard, self.y, self.nets.members, self.training, self.generators, events)
        return self._batches

    def finish(self) -> None:
        """After the last step: refuse networks that are no numbers; see how far off those without variances are."""
        if not bool(self.learner.theta.isfinite().all()):
            raise CalibrlError(
                f"training on {self.rows} rows left weights that are not finite; lower the learning rate "
                f"{self.training.lr:g} or check the rows' scale"
            )
        if not self.nets.probabilistic:
            with torch.no_grad():
                error = (self.nets.moments(self.x)[0].mean(1) - self.y).square()
            self.residual = error.nanmean(1)[:, None, None]

    def _remember(self, x: Tensor, y: Tensor) -> None:
        shape, g = self.nets.shape, self.nets.agents
        if x.dim() != 3 or y.dim() != 3 or x.shape[:2] != y.shape[:2] or len(x) != g:
            raise CalibrlError(
                f"rows of shape x {tuple(x.shape)} and y {tuple(y.shape)} for {g} agents; expected ({g}, n, in) and "
                f"({g}, n, d): as many new rows for every agent"
            )
        if x.shape[2] != shape.inputs or y.shape[2] != shape.outputs:
            raise CalibrlError(
                f"rows of {x.shape[2]} inputs and {y.shape[2]} outputs do not fit networks of {shape.inputs} and "
                f"{shape.outputs}; change the Shape or the rows"
            )
        if not bool(x.isfinite().all()) or bool(y.isinf().any()):
            raise CalibrlError("a row's input or outcome is not finite; leave such rows out (an unseen outcome is NaN)")
        self.x = torch.cat([self.x, x.to(self.x)], 1)
        self.y = torch.cat([self.y, y.to(self.y)], 1)

    # One agent as a forecaster

    def update(self, data: Data) -> None:
        """Learn new rows x (n, in), y (n, d)."""
        self._alone()
        if data.x.dim() != 2 or data.y.dim() != 2:
            raise CalibrlError(
                f"rows of shape x {tuple(data.x.shape)} and y {tuple(data.y.shape)}; expected (n, in) and (n, d): "
                "give a single outcome a column of its own, y[:, None]"
            )
        self.update_fleet(data.x[None], data.y[None])

    def __call__(self, x: Tensor) -> Distribution:
        """The networks' combined forecast for x (n, in), of batch shape (n, d).

        Networks without variances forecast the mean squared error they left on their rows as their noise.
        """
        self._alone()
        with torch.no_grad():
            mean, variance = self.nets.moments(x.to(self.x)[None])
            sd = (variance + self.residual).sqrt()
        return self.combine([Normal(*each, validate_args=False) for each in zip(mean[0], sd[0], strict=True)])

    def _alone(self) -> None:
        if self.nets.agents != 1:
            raise CalibrlError(
                f"a fleet of {self.nets.agents} agents is no single forecaster; use update_fleet and nets.moments"
            )

    # Keeping

    def to(self, device: torch.device | str) -> BatchedEnsemble:
        """Move everything, Adam's memory included, and return itself; generators stay where they are."""
        state = self.learner.state_dict()
        self.learner = Learner(self.nets.to(device), self.training)
        self.learner.load_state_dict(state)
        self.x, self.y, self.residual = (part.to(device) for part in (self.x, self.y, self.residual))
        self._batches = None
        return self

    def state_dict(self) -> dict[str, Any]:
        """Everything that further learning depends on: networks, Adam, rows, generators."""
        rows = {"x": self.x, "y": self.y, "residual": self.residual.clone()}
        drawn = [generator.get_state() for generator in self.generators]
        return {**self.learner.state_dict(), **rows, "generators": drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another ensemble of the same shape was, on any device."""
        self.learner.load_state_dict(state)
        self.x, self.y, self.residual = (state[name].to(self.x) for name in ("x", "y", "residual"))
        for generator, drawn in zip(self.generators, state["generators"], strict=True):
            generator.set_state(drawn.cpu())


@dataclass
class Batches:
    """Rows in memory that stays where it is, and the order in which they are met.

    x: (g · room, in), standardised; y: (g · room, d), NaN where missing; table: (steps, g · e · b), the row at
    each place of each batch; weight: (steps, b), 1 / (rows · d) in a batch of so many rows, 0 in places it leaves
    empty; counter: (1,), the step that comes next; event: (g · e, 1, d), which outcomes are events, see `Learner`.
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
    def room(cls, nets: Nets, training: EnsembleTraining, rows: int) -> Batches:
        """Memory for up to `rows` rows of each agent."""
        g, shape, device, b = nets.agents, nets.shape, nets.max_logvar.device, training.batch_size
        steps = max(training.epochs * math.ceil(rows / b), training.min_steps + math.ceil(rows / b))
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
        members: int,
        training: EnsembleTraining,
        generators: Sequence[torch.Generator],
        events: Tensor | None = None,
    ) -> None:
        """Put in standardised rows x (g, n, in), y (g, n, d), and draw each agent's order from its own generator.

        events: (g, d), which outcomes are events, see `Learner`.
        """
        (g, n, _), b, room = x.shape, training.batch_size, len(self.x) // len(x)
        self.x.view(g, room, -1)[:, :n] = x
        self.y.view(g, room, -1)[:, :n] = y
        per_epoch, epochs = math.ceil(n / b), training.passes(n)
        self.steps, self.gaps = epochs * per_epoch, bool(y.isnan().any())
        orders = torch.stack([_orders(n, members, training, generator) for generator in generators], 2)
        orders += torch.arange(g)[:, None, None] * room
        self.table[: self.steps] = orders.flatten(0, 1).flatten(1).to(self.table.device, torch.int32)
        sizes = torch.full((per_epoch,), b)
        sizes[-1] = n - b * (per_epoch - 1)
        weight = (torch.arange(b) < sizes[:, None]) / (sizes[:, None] * y.shape[-1])
        self.weight[: self.steps] = weight.repeat(epochs, 1).to(self.weight.device)
        self.counter.zero_()
        self.events = events is not None and bool(events.any())
        if events is not None:
            self.event.copy_(events.repeat_interleave(members, 0)[:, None])


def _orders(n: int, members: int, training: EnsembleTraining, generator: torch.Generator) -> Tensor:
    """One agent's rows, drawn with replacement for each network and shuffled for each epoch.

    (epochs, batches, e, b); the last batch of an epoch is filled up with row 0, which its weight discounts.
    """
    device, b = generator.device, training.batch_size
    drawn = torch.randint(n, (members, n), generator=generator, device=device)
    epochs = [drawn]
    for _ in range(training.passes(n) - 1):
        shuffles = torch.stack([torch.randperm(n, generator=generator, device=device) for _ in range(members)])
        epochs.append(epochs[-1].gather(1, shuffles))
    table = functional.pad(torch.stack(epochs), (0, -n % b))
    return table.unflatten(2, (-1, b)).transpose(1, 2).cpu()


SMALLEST_STD = 1e-12


@dataclass(frozen=True)
class EnsembleTraining:
    """How networks are trained, by default as published for Cartpole.

    Parameters
    ----------
    epochs, batch_size : int
        Passes over all rows that each `update` makes, and rows in a batch.
    lr : float
        Adam's learning rate.
    weight_decay : float or tuple of float
        The factor of ½‖W‖² in the loss, by layer, the head included, or one for all.
    bound_penalty : float
        What each unit between the log-variance's soft bounds costs.
    min_steps : int
        Batches that each `update` trains on at least: while rows are few, it makes more passes.
    """

    epochs: int = 5
    batch_size: int = 32
    lr: float = 1e-3
    weight_decay: float | tuple[float, ...] = (1e-4, 2.5e-4, 2.5e-4, 5e-4)
    bound_penalty: float = 0.01
    min_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            check_count(name, getattr(self, name))
        check_count("min_steps", self.min_steps, least=0)
        check_within("lr", self.lr, "(0, inf)", "0.001 is published")

    def passes(self, rows: int) -> int:
        """How often an `update` goes through so many rows."""
        return max(self.epochs, math.ceil(self.min_steps / max(math.ceil(rows / self.batch_size), 1)))

    def decays(self, layers: int) -> tuple[float, ...]:
        """The weight decay of each of `layers` layers."""
        given = self.weight_decay
        decays = given if isinstance(given, tuple) else (given,) * layers
        if len(decays) != layers:
            raise CalibrlError(
                f"{len(decays)} weight decays for {layers} layers of weights, the head included; give one for each, "
                "or one number for all"
            )
        return decays


class Learner:
    """Networks with their gradient and Adam, each in one stretch of memory.

    `nets` are views into `theta`; Adam sees one tensor, so that its step is one pass however many layers there are.

    A network pays the mean over rows and outputs of (μ - y)² e^{-logvar} + logvar, twice the negative log-likelihood
    but for a constant, or the squared error if not probabilistic; and weight decay, and the price of wide bounds. Of
    events, outcomes that are 0 or 1, the mean pays the squared error and is left out of what the variance pays. A
    likelihood would let a wide variance explain the rare outcome, and weigh it by that variance: the mean would never
    learn it (Seitzer et al., 2022; this is their β = 1 for the mean).
    """

    def __init__(self, nets: Nets, training: EnsembleTraining) -> None:
        self.training = training
        self.decays = training.decays(len(nets.weights))
        # Views of one stretch for what is learnt, copies of the rest: no other ensemble's numbers change with these.
        nets = nets.clone()
        parameters = nets.parameters()
        self.theta = torch.cat([part.detach().flatten() for part in parameters])
        self.gradient = torch.zeros_like(self.theta)
        self.nets = nets.replaced(views(self.theta, parameters))
        self._slopes = nets.replaced(views(self.gradient, parameters))
        self._captured: tuple[tuple[int, bool, bool], torch.cuda.CUDAGraph] | None = None
        on_gpu = self.theta.device.type == "cuda"
        self.theta.grad = self.gradient
        self.adam = torch.optim.Adam([self.theta], lr=training.lr, fused=True, capturable=on_gpu)
        # What Adam would make at its first step: made now, so that no step allocates what outlives it.
        self._adam = self.adam.state[self.theta]
        self._adam["step"] = torch.zeros((), device=self.theta.device)
        self._adam["exp_avg"], self._adam["exp_avg_sq"] = torch.zeros_like(self.theta), torch.zeros_like(self.theta)

    def state_dict(self) -> dict[str, Any]:
        """Networks and Adam's memory, copied."""
        adam = {name: value.clone() for name, value in self._adam.items()}
        return {"nets": self.nets.clone().state_dict(), "adam": adam}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, in place: on any device, and with whatever has been captured."""
        saved = Nets.from_state(state["nets"])
        if saved.shape != self.nets.shape or saved.agents != self.nets.agents:
            raise CalibrlError(
                f"the saved ensemble is {saved.agents} × {saved.shape}, this one {self.nets.agents} × "
                f"{self.nets.shape}; build it as the saved one was built"
            )
        for held, new in zip(self.nets.tensors(), saved.tensors(), strict=True):
            held.copy_(new)
        for name, value in state["adam"].items():
            self._adam[name].copy_(value)

    def train(self, batches: Batches) -> None:
        """All steps of the batches, on a GPU by replaying one captured step."""
        if self.theta.device.type != "cuda":
            for _ in range(batches.steps):
                self.step(batches)
            return
        done, kind = 0, (id(batches), batches.gaps, batches.events)
        if self._captured is None or self._captured[0] != kind:
            # The first steps are real ones; the one captured after them is not made.
            done = min(3, batches.steps)
            self._captured = (kind, captured(lambda: self.step(batches), first=done)[0])
        for _ in range(done, batches.steps):
            self._captured[1].replay()

    def step(self, batches: Batches) -> None:
        """One batch: its gradient and Adam's step. Reads nothing back; the counter moves on by itself."""
        rows = batches.table.index_select(0, batches.counter).flatten()
        x, y = batches.x.index_select(0, rows), batches.y.index_select(0, rows)
        weight = batches.weight.index_select(0, batches.counter).unsqueeze(-1)
        g, e = self.nets.weights[0].shape[:2]
        x, y = (part.view(g * e, self.training.batch_size, -1) for part in (x, y))
        if batches.gaps:
            weight = torch.where(y.isnan(), 0.0, weight)
            y = y.nan_to_num(0.0)
        self.differentiate(x, y, weight, events=batches.event if batches.events else None)
        self.adam.step()
        batches.counter.add_(1)

    def differentiate(self, x: Tensor, y: Tensor, weight: Tensor, *, events: Tensor | None = None) -> None:
        """Write the gradient of all losses and penalties into `gradient`, by hand.

        x: (g · e, b, in), standardised; y: (g · e, b, d); weight: of each outcome, broadcast to y; events: (g · e, 1,
        d). Autograd gives the same (it is the test) in about twice the time: at batches of 32 its bookkeeping costs as
        much as the products.
        """
        theirs = (self.nets.weights, self.nets.biases, self._slopes.weights, self._slopes.biases)
        weights, biases, into, into_bias = ([part.flatten(0, 1) for part in parts] for parts in theirs)
        # Forward, keeping what enters each layer and what each swish is taken of.
        entered, bent = [x], []
        for weight_in, bias in zip(weights[:-1], biases[:-1], strict=True):
            bent.append(torch.baddbmm(bias, entered[-1], weight_in))
            entered.append(functional.silu(bent[-1]))
        output = torch.baddbmm(biases[-1], entered[-1], weights[-1])
        # Backward: the head, then layer by layer.
        slope = self._head_slope(output, y, weight, events)
        # On a GPU agent by agent: how cuBLAS adds up such a product depends on how many there are, and an agent's
        # digits would depend on who is trained beside it.
        each = self.nets.members if x.device.type == "cuda" else len(x)
        for i in reversed(range(len(weights))):
            for parts in zip(*(part.split(each) for part in (weights[i], entered[i], slope, into[i])), strict=True):
                weight_in, came, by_output, found = parts
                torch.baddbmm(weight_in, came.transpose(1, 2), by_output, beta=self.decays[i], out=found)
            torch.sum(slope, 1, keepdim=True, out=into_bias[i])
            if i:
                slope = torch.ops.aten.silu_backward(torch.bmm(slope, weights[i].transpose(1, 2)), bent[i - 1])

    def _head_slope(self, output: Tensor, y: Tensor, weight: Tensor, events: Tensor | None) -> Tensor:
        """The losses' slope in the head's output (g · e, b, 2d or d); writes the slopes of the bounds."""
        nets, (g, e) = self.nets, self.nets.weights[0].shape[:2]
        if not nets.probabilistic:
            return 2 * weight * (output - y)
        mean, raw = output.chunk(2, -1)
        highest, lowest = (
            bound.expand(g, e, 1, -1).reshape(g * e, 1, -1) for bound in (nets.max_logvar, nets.min_logvar)
        )
        room_above = highest - raw
        below = highest - functional.softplus(room_above)
        logvar = lowest + functional.softplus(below - lowest)
        precision = torch.exp(-logvar)
        apart = mean - y
        pull = weight * apart * precision
        by_logvar = weight - pull * apart
        if events is not None:
            pull = torch.where(events, weight * apart, pull)
        by_below = by_logvar * torch.sigmoid(below - lowest)
        by_raw = by_below * torch.sigmoid(room_above)
        penalty = self.training.bound_penalty
        for into, slope, price in (
            (self._slopes.max_logvar, by_below - by_raw, penalty),
            (self._slopes.min_logvar, by_logvar - by_below, -penalty),
        ):
            torch.sum(slope.view(g, -1, slope.shape[-1]), 1, out=into.view(g, -1)).add_(price)
        return torch.cat([2 * pull, by_raw], -1)


def input_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (g, 1, 1, in) of rows x (g, n, in); 1 for inputs that never change."""
    # Agent by agent: from 8192 rows on a GPU splits a sum by how many there are, and an agent's digits would depend on
    # who is trained beside it.
    mean, std = (torch.stack(part) for part in ([one.mean(0) for one in x], [one.std(0, correction=0) for one in x]))
    std = torch.where(std < SMALLEST_STD, 1.0, std)
    return mean[:, None, None], std[:, None, None]


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """One stretch of memory as tensors of given shapes."""
    parts = flat.split([part.numel() for part in like])
    return [part.view_as(model) for part, model in zip(parts, like, strict=True)]

"""A fleet of probabilistic ensembles that learn side by side; one of them is a forecaster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.forecasters.ensemble_training import Batches, EnsembleTraining, Learner, input_scale
from calibrl.forecasters.nets import Nets, Shape
from calibrl.forecasters.torch import moment_matched
from calibrl.kernels.fused_nets import power_of_two

__all__ = ["BatchedEnsemble", "EnsembleTraining", "Nets", "Shape"]

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

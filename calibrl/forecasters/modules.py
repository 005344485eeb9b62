"""Forecasters from PyTorch modules: one module, one module with dropout left on, or several of anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from calibrl.algorithm import Forecaster
from calibrl.arrays import Array, as_rows
from calibrl.data import Data
from calibrl.distributions import Empirical, draw
from calibrl.errors import CalibrlError
from calibrl.forecasters.remembering import Remembered
from calibrl.forecasters.training import (
    ToDistribution,
    Train,
    adam,
    fitting,
    gaussian,
    lesson,
    likelihood,
    new_seed,
    seeded,
    squared_error,
)


class TorchForecaster:
    """A module that returns (mean, log-variance) or a `Distribution`, trained by maximum likelihood.

    `update` trains it on all rows so far, starting from its current weights. `train` is `adam()` or your own
    function; `to_distribution` turns other outputs into forecasts. Standardise x and y, as for any network.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        train: Train | None = None,
        to_distribution: ToDistribution = gaussian,
        generator: torch.Generator | None = None,
    ) -> None:
        self.module = module.eval()
        self.train = train or adam()
        self.to_distribution = to_distribution
        self.generator = generator or torch.Generator().manual_seed(0)
        self._remembered = Remembered()

    def update(self, data: Data) -> None:
        """Train on all rows so far."""
        rows = self._remembered.with_new(data)
        with lesson(self.module, self.generator):
            loss = likelihood(self.to_distribution)
            self.train(self.module, fitting(rows, self.module), loss=loss, generator=self.generator)
        self._remembered.keep(rows)

    def __call__(self, x: Array) -> Distribution:
        """The module's forecast for x (n, …)."""
        x = as_rows(x)
        return self.to_distribution(_answer(self.module, _input(x, self.module)))


class MCDropout:
    """A module with dropout layers, run `passes` times with dropout left on → `Empirical` of the outputs.

    The module returns one number per outcome, or (mean, log-variance) or a `Distribution`, of which each pass
    then contributes a sample; otherwise the spread reflects only uncertainty about the weights, not the
    noise in y. The same query always gets the same answer: the passes start from one seed.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        passes: int = 50,
        train: Train | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if passes < 2:
            raise CalibrlError(f"passes {passes} cannot show a spread; use 2 or more")
        # torch names the base class of its dropout layers with an underscore, and has no public one.
        self._dropouts = [layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
        if not self._dropouts:
            raise CalibrlError(
                f"{type(module).__name__} has no dropout layer, so every pass would agree; add nn.Dropout or use "
                "TorchForecaster"
            )
        self.module = module.eval()
        self.passes = passes
        self.train = train or adam()
        self.generator = generator or torch.Generator().manual_seed(0)
        self._seed = new_seed(self.generator)
        self._remembered = Remembered()

    def update(self, data: Data) -> None:
        """Train on all rows so far."""
        rows = self._remembered.with_new(data)
        with lesson(self.module, self.generator):
            loss = _point_or_likelihood
            self.train(self.module, fitting(rows, self.module), loss=loss, generator=self.generator)
        self._remembered.keep(rows)

    def __call__(self, x: Array) -> Empirical:
        """The passes' answers for x (n, …) as a forecast of batch shape (n,) or (n, d)."""
        x = as_rows(x)
        given = _input(x, self.module)
        # One large batch: every copy of a row draws dropout masks of its own.
        copies = given.expand(self.passes, *given.shape).flatten(0, 1)
        with seeded(self.module, self._seed):
            for layer in self._dropouts:
                layer.train()
            try:
                output = _answer(self.module, copies)
            finally:
                self.module.eval()
            answers = output if isinstance(output, Tensor) else draw(gaussian(output))
        return Empirical(answers.unflatten(0, (self.passes, len(x))))


class Ensemble:
    """Several forecasters as one: each learns, all answer, `combine` makes one forecast of theirs.

    `combine` is `moment_matched` (a Gaussian with the mixture's mean and variance: fast to sample) or
    `calibrl.Mixture` (exact). Members with the same initial weights should see different rows: give `bootstrap` a
    generator, and each is trained on its own sample, drawn with replacement, of every batch of new rows.
    """

    def __init__(
        self,
        members: Sequence[Forecaster],
        *,
        combine: Callable[[Sequence[Distribution]], Distribution] | None = None,
        bootstrap: torch.Generator | None = None,
    ) -> None:
        if len(members) < 2:
            raise CalibrlError(f"an ensemble of {len(members)} has nothing to combine; pass two or more forecasters")
        self.members = tuple(members)
        self.combine = combine or moment_matched
        self.bootstrap = bootstrap

    def update(self, data: Data) -> None:
        """Every member learns the new rows, or its own sample of them."""
        for member in self.members:
            member.update(data if self.bootstrap is None else _resampled(data, self.bootstrap))

    def __call__(self, x: Array) -> Distribution:
        """The combined forecast for x (n, …)."""
        x = as_rows(x)
        return self.combine([member(x) for member in self.members])


def moment_matched(forecasts: Sequence[Distribution]) -> Normal:
    """The Gaussian with the mean and variance of the forecasts' equal mixture."""
    means = torch.stack([forecast.mean for forecast in forecasts])
    variances = torch.stack([forecast.variance for forecast in forecasts])
    spread = (variances + (means - means.mean(0)).square()).mean(0).sqrt()
    return Normal(means.mean(0), spread, validate_args=False)


def _point_or_likelihood(output: Any, y: Tensor) -> Tensor:
    return squared_error(output, y) if isinstance(output, Tensor) else likelihood(gaussian)(output, y)


def _resampled(data: Data, generator: torch.Generator) -> Data:
    rows = torch.randint(len(data), (len(data),), generator=generator, device=generator.device)
    return data[rows.to(data.y.device)]


def _answer(module: nn.Module, x: Tensor) -> Any:
    """What the module returns for x, with gradients to x alone: a forecast is no place to train weights from."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    return torch.func.functional_call(module, weights, (x,))


def _input(x: Tensor, module: nn.Module) -> Tensor:
    weight = next(module.parameters(), None)
    return x if weight is None else x.to(weight)

"""Forecasters from PyTorch modules: one module, one module with dropout left on, or several of anything."""

from __future__ import annotations

import contextlib
import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from calibrl.algorithm import Forecaster
from calibrl.arrays import Array, as_rows
from calibrl.data import Data, Remembered
from calibrl.distributions import Empirical, draw
from calibrl.distributions.kinds import answer_off_mps, by_column, refuse_joint
from calibrl.errors import CalibrlError, check_count, check_within

_GLOBAL_GENERATOR = threading.RLock()

Loss: TypeAlias = Callable[[Any, Tensor], Tensor]
"""(what the module returned for a batch, outcomes y without NaN) → a loss per outcome, of y's shape."""

ToDistribution: TypeAlias = Callable[[Any], Distribution]
"""What the module returned for x → the forecasts it means, of batch shape (n,) or (n, d)."""


class Train(Protocol):
    """Teaches a module some rows. y may hold NaN: missing outcomes, which must not count."""

    def __call__(self, module: nn.Module, data: Data, *, loss: Loss, generator: torch.Generator) -> None:
        """Change the module's weights so that the loss on `data` falls."""


@dataclass(frozen=True)
class _Adam:
    """A function with settings: an object, so that models that hold it can be pickled."""

    epochs: int
    lr: float
    batch_size: int
    weight_decay: float

    def __call__(self, module: nn.Module, data: Data, *, loss: Loss, generator: torch.Generator) -> None:
        optimiser = torch.optim.Adam(module.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        module.train()
        for epoch in range(self.epochs):
            order = torch.randperm(len(data), generator=generator, device=generator.device).to(data.y.device)
            for some in order.split(self.batch_size):
                x, y = data.x[some], data.y[some]
                seen = ~y.isnan()
                each = loss(module(x), y.nan_to_num(0.0))
                value = torch.where(seen, each, 0.0).sum() / seen.sum().clamp(min=1)
                if not bool(value.isfinite()):
                    cure = "lower the learning rate or standardise x and y"
                    if not bool(data.x.isfinite().all()):
                        cure = "x holds NaN or infinite numbers: fill them or leave those rows out"
                    raise CalibrlError(f"the training loss became {value.item()} in epoch {epoch + 1}; {cure}")
                optimiser.zero_grad(set_to_none=True)
                value.backward()
                optimiser.step()
        module.eval()


def adam(*, epochs: int = 200, lr: float = 1e-2, batch_size: int = 256, weight_decay: float = 0.0) -> Train:
    """A training loop for modules: Adam over shuffled batches. Missing outcomes (NaN) add nothing to the loss.

    Parameters
    ----------
    epochs, batch_size : int
        Passes over all rows, and rows in a batch.
    lr, weight_decay : float
        Adam's learning rate and weight decay.

    Returns
    -------
    Train
        To be passed as `train=` to `TorchForecaster` or `MCDropout`.
    """
    check_count("epochs", epochs)
    check_count("batch_size", batch_size)
    check_within("lr", lr, "(0, inf)", "it is a step size, like 0.001")
    return _Adam(epochs, lr, batch_size, weight_decay)


def gaussian(output: Any) -> Distribution:
    """A module's output as a forecast: a `Distribution` as it is, a pair (mean, log-variance) as a `Normal`.

    Parameters
    ----------
    output : Distribution, or tuple of two Tensors
        What the module returned for a batch.

    Returns
    -------
    Distribution
        Of batch shape (n,) or (n, d).
    """
    if isinstance(output, Distribution):
        return output
    if isinstance(output, (tuple, list)) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        mean, log_variance = output
        return Normal(mean, torch.exp(log_variance / 2), validate_args=False)
    what = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    raise CalibrlError(f"the module returned {what}; expected (mean, log-variance), a Distribution or to_distribution=")


def surprise(forecast: Distribution, y: Tensor) -> Tensor:
    """The negative log-likelihood of each outcome."""
    forecast = by_column(forecast)
    refuse_joint(forecast)
    check_shape(forecast.batch_shape, y)
    return -forecast.log_prob(y)


def check_shape(shape: torch.Size, y: Tensor) -> None:
    """An error when the module's answers and the outcomes differ in shape: (n, 1) - (n,) is silently (n, n)."""
    if shape != y.shape:
        raise CalibrlError(
            f"the module answers in shape {tuple(shape)}, the outcomes have shape {tuple(y.shape)}; make them the same"
        )


def fitting(data: Data, module: nn.Module) -> Data:
    """The rows in the dtype and on the device of the module's weights."""
    return Data(_input(data.x, module), _input(data.y, module))


@contextlib.contextmanager
def seeded(module: nn.Module, seed: int) -> Iterator[None]:
    """Dropout draws from torch's global generator: seed it inside, and put it back as it was after.

    There is one such generator for all threads: only one of them is inside at a time.
    """
    devices = {parameter.device for parameter in module.parameters()}
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[device for device in devices if device.type == "cuda"]):
        apples = torch.mps.get_rng_state() if any(device.type == "mps" for device in devices) else None
        torch.manual_seed(seed)
        try:
            yield
        finally:
            if apples is not None:
                torch.mps.set_rng_state(apples)


@contextlib.contextmanager
def lesson(module: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Train inside: repeatable, with gradients whoever asks; a lesson that fails leaves the weights as they were."""
    before = copy.deepcopy(module.state_dict())
    try:
        with torch.enable_grad(), seeded(module, new_seed(generator)):
            yield
    except BaseException:
        module.load_state_dict(before)
        raise
    finally:
        module.eval()


def new_seed(generator: torch.Generator) -> int:
    """A seed drawn from the generator."""
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


class _Learner(ABC):
    """A module that learns all rows so far, starting from its current weights."""

    def __init__(self, module: nn.Module, train: Train | None, generator: torch.Generator | None) -> None:
        self.module = module.eval()
        self.train = train or adam()
        self.generator = generator or torch.Generator().manual_seed(0)
        self._remembered = Remembered()

    def update(self, data: Data) -> None:
        """Train on all rows so far."""
        rows = self._remembered.with_new(data)
        with lesson(self.module, self.generator):
            self.train(self.module, fitting(rows, self.module), loss=self._loss, generator=self.generator)
        self._remembered.keep(rows)

    @abstractmethod
    def _loss(self, output: Any, y: Tensor) -> Tensor:
        """What the module's output for a batch costs, of y's shape."""


class TorchForecaster(_Learner):
    """A module that returns (mean, log-variance) or a `Distribution`, trained by maximum likelihood.

    `update` trains it on all rows so far, starting from its current weights. Standardise x and y, as for any network.

    Parameters
    ----------
    module : torch.nn.Module
        Maps x (n, …) to forecasts of y (n,) or (n, d).
    train : Train, optional
        `adam()`, or your own function with its signature.
    to_distribution : callable
        Turns other outputs of the module into forecasts.
    generator : torch.Generator, optional
        Draws the order of batches and seeds dropout; seeded with 0 if not given.

    Examples
    --------
    >>> import torch, calibrl as cal
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.line = torch.nn.Linear(1, 2)
    ...     def forward(self, x):
    ...         return self.line(x).unbind(-1)  # mean, log-variance
    >>> model = cal.TorchForecaster(Net(), train=cal.forecasters.adam(epochs=5))
    >>> model.update(cal.Data(torch.randn(100, 1), torch.randn(100)))
    >>> model(torch.zeros(3, 1))
    Normal(loc: torch.Size([3]), scale: torch.Size([3]))
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        train: Train | None = None,
        to_distribution: ToDistribution = gaussian,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(module, train, generator)
        self.to_distribution = to_distribution

    def __call__(self, x: Array) -> Distribution:
        """The module's forecast for x (n, …)."""
        return self.to_distribution(_answer(self.module, _input(as_rows(x), self.module)))

    def _loss(self, output: Any, y: Tensor) -> Tensor:
        return surprise(self.to_distribution(output), y)


class MCDropout(_Learner):
    """A module with dropout layers, run many times with dropout left on: an `Empirical` of its outputs.

    The same x always gives the same forecast: the passes start from one seed.

    Parameters
    ----------
    module : torch.nn.Module
        Returns one number per outcome, or (mean, log-variance) or a `Distribution`, of which each pass then contributes
        a sample; of single numbers the spread reflects only uncertainty about the weights, not the noise in y.
    passes : int
        How many times it is run, 2 or more.
    train : Train, optional
        `adam()`, or your own function with its signature.
    generator : torch.Generator, optional
        Draws the order of batches and seeds dropout; seeded with 0 if not given.

    Examples
    --------
    >>> import torch, calibrl as cal
    >>> from torch.nn import Dropout, Flatten, Linear, Sequential
    >>> module = Sequential(Linear(1, 8), Dropout(0.5), Linear(8, 1), Flatten(0))
    >>> model = cal.MCDropout(module, passes=20, train=cal.forecasters.adam(epochs=5))
    >>> model.update(cal.Data(torch.randn(100, 1), torch.randn(100)))
    >>> model(torch.zeros(3, 1))
    Empirical(20 samples, batch (3,))
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        passes: int = 50,
        train: Train | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_count("passes", passes, "cannot show a spread", least=2)
        # torch names the base class of its dropout layers with an underscore, and has no public one.
        self._dropouts = [layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
        if not self._dropouts:
            raise CalibrlError(
                f"{type(module).__name__} has no dropout layer, so every pass would agree; add nn.Dropout or use "
                "TorchForecaster"
            )
        super().__init__(module, train, generator)
        self.passes = passes
        self._seed = new_seed(self.generator)

    def _loss(self, output: Any, y: Tensor) -> Tensor:
        if not isinstance(output, Tensor):
            return surprise(gaussian(output), y)
        check_shape(output.shape, y)
        return (output - y).square()

    def __call__(self, x: Array) -> Empirical:
        """The passes' answers for x (n, …) as a forecast of batch shape (n,) or (n, d)."""
        given = _input(as_rows(x), self.module)
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
        return Empirical(answers.unflatten(0, (self.passes, len(given))))


class Ensemble:
    """Several forecasters as one: each learns and forecasts, and `combine` makes one forecast of theirs.

    Parameters
    ----------
    members : sequence of Forecaster
        Two or more.
    combine : callable, optional
        `moment_matched` (a Gaussian with the mixture's mean and variance: fast to sample; the default) or
        `calibrl.Mixture` (exact).
    bootstrap : torch.Generator, optional
        Members with the same initial weights should see different rows: with a generator each is trained on its own
        sample, drawn with replacement, of every batch of new rows.

    Examples
    --------
    >>> import torch, calibrl as cal
    >>> from sklearn.linear_model import BayesianRidge
    >>> members = [cal.SklearnForecaster(BayesianRidge()) for _ in range(3)]
    >>> model = cal.Ensemble(members, bootstrap=torch.Generator().manual_seed(0))
    >>> model.update(cal.Data(torch.randn(50, 1), torch.randn(50)))
    >>> model(torch.zeros(2, 1))
    Normal(loc: torch.Size([2]), scale: torch.Size([2]))
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
        rows = as_rows(x)
        return self.combine([member(rows) for member in self.members])


def moment_matched(forecasts: Sequence[Distribution]) -> Normal:
    """The Gaussian with the mean and variance of the forecasts' equal mixture.

    Parameters
    ----------
    forecasts : sequence of Distribution
        All of one batch shape.

    Returns
    -------
    Normal
        Of that batch shape.
    """
    means = torch.stack([forecast.mean for forecast in forecasts])
    variances = torch.stack([forecast.variance for forecast in forecasts])
    spread = (variances + (means - means.mean(0)).square()).mean(0).sqrt()
    return Normal(means.mean(0), spread, validate_args=False)


def _resampled(data: Data, generator: torch.Generator) -> Data:
    rows = torch.randint(len(data), (len(data),), generator=generator, device=generator.device)
    return data[rows.to(data.y.device)]


def _answer(module: nn.Module, x: Tensor) -> Any:
    """What the module returns for x, with gradients to x alone: a forecast is no place to train weights from."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    return answer_off_mps(torch.func.functional_call(module, weights, (x,)))


def _input(x: Tensor, module: nn.Module) -> Tensor:
    weight = next(module.parameters(), None)
    return x if weight is None else x.to(weight)

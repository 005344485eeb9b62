"""Training a PyTorch module on rows of data: a small Adam loop, and the losses it minimises."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from calibrl.data import Data
from calibrl.distributions.kinds import by_column, refuse_joint
from calibrl.errors import CalibrlError

_GLOBAL_CHANCE = threading.RLock()

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
    rate: float
    batch: int
    decay: float

    def __call__(self, module: nn.Module, data: Data, *, loss: Loss, generator: torch.Generator) -> None:
        optimiser = torch.optim.Adam(module.parameters(), lr=self.rate, weight_decay=self.decay)
        module.train()
        for epoch in range(self.epochs):
            order = torch.randperm(len(data), generator=generator, device=generator.device).to(data.y.device)
            for some in order.split(self.batch):
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


def adam(*, epochs: int = 200, rate: float = 1e-2, batch: int = 256, decay: float = 0.0) -> Train:
    """Adam over shuffled batches: `epochs` passes, learning rate `rate`, weight decay `decay`."""
    if epochs < 1 or batch < 1 or rate <= 0:
        raise CalibrlError(f"epochs {epochs}, batch {batch} and rate {rate:g} must all be positive")
    return _Adam(epochs, rate, batch, decay)


def gaussian(output: Any) -> Distribution:
    """A module's output as a forecast: a `Distribution` as it is, a pair (mean, log-variance) as a `Normal`."""
    if isinstance(output, Distribution):
        return output
    if isinstance(output, (tuple, list)) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        mean, log_variance = output
        return Normal(mean, torch.exp(log_variance / 2), validate_args=False)
    what = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    raise CalibrlError(
        f"the module returned {what}; expected (mean, log-variance) or a Distribution, or pass to_distribution="
    )


def likelihood(to_distribution: ToDistribution) -> Loss:
    """The negative log-likelihood of the outcomes under the module's forecast."""

    def loss(output: Any, y: Tensor) -> Tensor:
        forecast = by_column(to_distribution(output))
        refuse_joint(forecast)
        check_shape(tuple(forecast.batch_shape), y)
        return -forecast.log_prob(y)

    return loss


def squared_error(output: Any, y: Tensor) -> Tensor:
    """(output - y)², for modules that return one number per outcome."""
    check_shape(tuple(output.shape), y)
    squared: Tensor = (output - y).square()
    return squared


def check_shape(shape: tuple[int, ...], y: Tensor) -> None:
    """An error when the module's answers and the outcomes differ in shape: (n, 1) - (n,) is silently (n, n)."""
    if shape != tuple(y.shape):
        raise CalibrlError(
            f"the module answers in shape {shape}, the outcomes have shape {tuple(y.shape)}; make them the same"
        )


def fitting(data: Data, module: nn.Module) -> Data:
    """The rows in the dtype and on the device of the module's weights."""
    weight = next(module.parameters(), None)
    return data if weight is None else Data(data.x.to(weight), data.y.to(weight))


@contextlib.contextmanager
def seeded(module: nn.Module, seed: int) -> Iterator[None]:
    """Dropout draws from torch's global generator: seed it inside, and put it back as it was after.

    There is one such generator for all threads: only one of them is inside at a time.
    """
    devices = {parameter.device for parameter in module.parameters() if parameter.device.type == "cuda"}
    with _GLOBAL_CHANCE, torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        yield


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

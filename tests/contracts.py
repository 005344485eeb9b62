"""What every forecaster promises, bare or wrapped: checks that any test may run on any forecaster."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

import calibrl as cal
from calibrl import Data, Forecaster

Make = Callable[[], Forecaster]
Columns = int | None
"""How many columns y has; None for a flat y of shape (n,)."""


def toy_rows(n: int, *, seed: int, columns: Columns = None, noise: float = 1.0) -> Data:
    """y = sin 2x₁ + x₂/2 + noise · ε in each column, x (n, 2) uniform on [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    signal = torch.sin(2 * x[:, 0]) + x[:, 1] / 2
    shape = (n,) if columns is None else (n, columns)
    signal = signal if columns is None else signal[:, None].expand(shape)
    return Data(x, signal + noise * torch.randn(shape, generator=generator, dtype=torch.float64))


def toy_labels(n: int, *, seed: int) -> Data:
    """Three classes, whose odds depend on x (n, 2)."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    logits = torch.stack([torch.zeros(n), 2 * x[:, 0], 2 * x[:, 1]], -1)
    return Data(x, torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0].double())


def toy_transitions(n: int, *, seed: int) -> Data:
    """Three next states after four states and two actions: x (n, 2) holds state and action."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.stack([torch.randint(4, (n,), generator=generator), torch.randint(2, (n,), generator=generator)], -1)
    odds = torch.nn.functional.one_hot((x.sum(-1)) % 3, 3) * 2.0 + 1.0
    return Data(x.double(), torch.multinomial(odds, 1, generator=generator)[:, 0].double())


def unseen(data: Data, every: int = 5) -> Data:
    """The same rows with some outcomes that nobody saw."""
    y = data.y.clone()
    y[::every] = torch.nan
    return Data(data.x, y)


def check_answers(make: Make, rows: Data, fresh: Data) -> None:
    """A forecaster is a Forecaster, answers in the outcomes' shape, and its PITs lie in [0, 1]."""
    model = make()
    assert isinstance(model, Forecaster)
    model.update(rows)
    forecast = model(fresh.x)
    assert forecast.batch_shape == fresh.y.shape
    if isinstance(forecast, Categorical):
        torch.testing.assert_close(forecast.probs.sum(-1), torch.ones_like(forecast.probs[:, 0]))
        return
    pits = cal.pit(forecast, fresh.y, generator=torch.Generator().manual_seed(0))
    assert pits.shape == fresh.y.shape
    assert bool(((pits >= 0) & (pits <= 1)).all())
    few = model(fresh.x[:3])
    assert bool(few.mean.isfinite().all())
    assert bool((few.variance > 0).all())


def check_repeatable(make: Make, rows: Data, fresh: Data) -> None:
    """Two forecasters made and taught alike answer alike, and asking twice changes nothing."""
    one, other = make(), make()
    for model in (one, other):
        model.update(rows)
    expected = numbers(one(fresh.x))
    torch.testing.assert_close(numbers(other(fresh.x)), expected, rtol=0, atol=0)
    torch.testing.assert_close(numbers(one(fresh.x)), expected, rtol=0, atol=0)


def check_leaves_chance_alone(make: Make, rows: Data, fresh: Data) -> None:
    """Training and forecasting do not disturb torch's global random numbers."""
    model = make()
    before = torch.get_rng_state()
    model.update(rows)
    numbers(model(fresh.x))
    assert torch.equal(torch.get_rng_state(), before)


def check_two_batches(make: Make, rows: Data, fresh: Data) -> None:
    """Rows may come in two batches; the second one teaches something."""
    model = make()
    half = len(rows) // 2
    model.update(rows[:half])
    early = numbers(model(fresh.x))
    model.update(rows[half:])
    late = numbers(model(fresh.x))
    assert late.shape == early.shape
    assert bool(late.isfinite().all())
    assert not torch.equal(late, early)


def check_unseen(make: Make, rows: Data, fresh: Data) -> None:
    """Outcomes nobody saw (NaN) do not count: no answer turns NaN."""
    model = make()
    model.update(unseen(rows))
    assert bool(numbers(model(fresh.x)).isfinite().all())


def check_calibrates(bare: Forecaster, wrapped: Forecaster, rows: Data, fresh: Data) -> None:
    """On a problem that the bare forecaster misjudges, wrapping lowers the calibration loss on fresh rows."""
    bare.update(rows)
    wrapped.update(rows)
    losses = [loss(model(fresh.x), fresh.y) for model in (bare, wrapped)]
    assert losses[1] < losses[0] / 2, f"calibration loss {losses[0]:.4f} before, {losses[1]:.4f} after"


def loss(forecast: Distribution, y: Tensor) -> float:
    """Σ_j (p̂_j - p_j)² over the levels 0.05 … 0.95, as the paper prints it, worked out here on its own."""
    pits = cal.pit(forecast, y, generator=torch.Generator().manual_seed(0)).reshape(-1)
    levels = torch.arange(1, 20, dtype=torch.float64) / 20
    return float(((pits[:, None] <= levels).double().mean(0) - levels).square().sum())


def numbers(forecast: Distribution) -> Tensor:
    """What a forecast says, as numbers that can be compared: probabilities of classes, or of y ≤ -1, 0, 1."""
    if isinstance(forecast, Categorical):
        return forecast.probs
    at = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).reshape(-1, *(1 for _ in forecast.batch_shape))
    return forecast.cdf(at.expand(-1, *forecast.batch_shape)).detach()

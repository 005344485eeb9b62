"""The core on real data that ships inside scikit-learn: three regressors on diabetes, a classifier on digits.

Each seed draws its own split. Rows: one per problem, arm and seed, judged on rows nobody was fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution

from calibrl.algorithm import Calibrated, CrossFitted, Forecaster, learn
from calibrl.data import Data, random_split
from calibrl.diagnostics import class_summary, summary
from calibrl.distributions import pit
from calibrl.evidence import HeldOut
from calibrl.forecasters import MCDropout, SklearnClassifier, SklearnQuantiles, TorchForecaster, adam
from calibrl.maps.classes import fit_auto_classes
from calibrl.runs.engine import Arrays, Yielded
from calibrl.runs.rows import Row, reliability_metrics

TEST_SHARE, HELD_SHARE = 0.3, 1 / 3
ARMS = ("uncalibrated", "calibrated", "cross-fitted")
DIGITS = "digits, naive Bayes"
REGRESSORS = ("network", "dropout network", "boosted quantiles")
PROBLEMS = (*(f"diabetes, {name}" for name in REGRESSORS), DIGITS)
SHOWN = "diabetes, dropout network"
"""Whose intervals are drawn."""
LEVELS = (0.05, 0.5, 0.95)


def job_name(problem: str, seed: int) -> str:
    """What the job of a problem and seed is called."""
    return f"{problem}, seed {seed}"


@torch.no_grad()
def _judge(forecaster: Forecaster, test: Data) -> Distribution:
    return forecaster(test.x)


def arms(problem: str, seed: int) -> Iterator[Yielded]:
    """Train every arm on the same rows, and judge it on the same others."""
    fresh, test = _problem(problem, seed)
    shown: dict[str, NDArray[Any]] = {"y": test.y.numpy()}
    for arm in ARMS:
        forecast = _judge(fresh(arm), test)
        yield Row("core", problem, arm, seed, _metrics(forecast, test.y))
        if isinstance(forecast, torch.distributions.Categorical):
            shown[f"probs, {arm}"] = forecast.probs.numpy()
        else:
            shown[f"pit, {arm}"] = pit(forecast, test.y).numpy()
            if problem == SHOWN:
                quantiles = torch.stack([forecast.icdf(torch.full_like(test.y, level)) for level in LEVELS])
                shown[f"quantiles, {arm}"] = quantiles.cummax(0).values.numpy()
    yield Arrays(shown)


def _metrics(forecast: Distribution, y: Tensor) -> dict[str, float]:
    if isinstance(forecast, torch.distributions.Categorical):
        found = class_summary(forecast.probs, y)
        return {"ece": found.ece, "nll": found.nll, "accuracy": found.accuracy, "brier": found.brier}
    judged = summary(forecast, y)
    return {
        "calibration_loss": judged.calibration_loss,
        "coverage_90": judged.coverage[0.9],
        "crps": judged.crps,
        "sharpness": judged.sharpness,
        **reliability_metrics(pit(forecast, y)),
    }


def _problem(problem: str, seed: int) -> tuple[Callable[[str], Forecaster], Data]:
    """A function that trains one arm, and the rows to judge it on."""
    data = _digits() if problem.startswith("digits") else _diabetes()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    # Digits is easy: 300 training rows leave something to be unsure about.
    cut = int(TEST_SHARE * len(data)) if problem.startswith("diabetes") else len(data) - 300
    test, train = data[order[:cut]], data[order[cut:]]
    model = problem.split(", ")[1]

    def fresh(arm: str) -> Forecaster:
        fit_map = fit_auto_classes if problem.startswith("digits") else None

        def make() -> Forecaster:
            return _classifier() if problem.startswith("digits") else _regressor(model, seed)

        wrapped: Forecaster
        if arm == "calibrated":
            split = random_split(HELD_SHARE, torch.Generator().manual_seed(seed))
            wrapped = Calibrated(make(), evidence=HeldOut(split), fit_map=fit_map)
        elif arm == "cross-fitted":
            wrapped = CrossFitted(make, folds=5, fit_map=fit_map, generator=torch.Generator().manual_seed(seed))
        else:
            wrapped = make()
        # Algorithm 1 with a single round: nobody acts, and all rows come at once.
        list(learn(lambda _: (train, None), wrapped, rounds=1))
        return wrapped

    return fresh, test


def _diabetes() -> Data:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    # A published set, standardised by its makers; y stays in its units (disease progression, 25 to 346).
    return Data(torch.from_numpy(x / x.std(0)).float(), torch.from_numpy(y).float())


def _digits() -> Data:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Data(torch.from_numpy(x / 16), torch.from_numpy(y.astype(np.float64)))


def _regressor(model: str, seed: int) -> Forecaster:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model == "network":
            return TorchForecaster(_TwoHeads(), train=adam(epochs=50, lr=5e-3, batch_size=64), generator=generator)
        if model == "dropout network":
            layers = (nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2))
            module = nn.Sequential(*layers, nn.Linear(64, 1), nn.Flatten(0), _InUnits())
            return MCDropout(module, passes=100, train=adam(epochs=50, lr=5e-3, batch_size=64), generator=generator)
    from sklearn.ensemble import GradientBoostingRegressor

    return SklearnQuantiles(
        lambda level: GradientBoostingRegressor(
            loss="quantile", alpha=level, n_estimators=40, max_depth=2, random_state=seed
        )
    )


def _classifier() -> Forecaster:
    from sklearn.naive_bayes import GaussianNB

    # Pixels are not independent: counting each as fresh evidence makes this model famously over-confident.
    return SklearnClassifier(GaussianNB(var_smoothing=1e-2), classes=10)


class _InUnits(nn.Module):
    """From standardised numbers to disease progression."""

    def forward(self, x: Tensor) -> Tensor:
        """150 + 75 x."""
        return 150 + 75 * x


class _TwoHeads(nn.Module):
    """A network that states a mean and a log-variance, each (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance in the units of disease progression."""
        mean, log_variance = self.trunk(x).unbind(-1)
        return 150 + 75 * mean, 2 * np.log(75) + log_variance.clamp(-8, 8)

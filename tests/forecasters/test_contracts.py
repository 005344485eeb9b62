"""Every exported forecaster, bare and inside every wrapper, keeps the same promises."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression, QuantileRegressor
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

import calibrl as cal
from calibrl import Data, Forecaster, forecasters
from calibrl.forecasters.ensemble import EnsembleTraining
from calibrl.forecasters.nets import Shape
from calibrl.maps import Affine
from calibrl.maps.classes import fit_bias_corrected
from tests import contracts
from tests.contracts import Make


class MeanAndSpread(nn.Module):
    """A small network that answers (mean, log-variance)."""

    def __init__(self, columns: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2 * columns)).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.body(x).chunk(2, -1)
        return mean, log_variance.clamp(-8, 4)


class Point(nn.Module):
    """A small network with dropout that answers one number per outcome."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = [nn.Linear(2, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, columns)]
            self.body = nn.Sequential(*layers).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


NETS, PASSES = Shape(2, 2, hidden=(16,), members=3), EnsembleTraining(epochs=30, lr=1e-2, weight_decay=1e-3)
QUICK = forecasters.adam(epochs=15, lr=2e-2)
RIDGE = BayesianRidge()
GP = GaussianProcessRegressor(ConstantKernel(1.0, "fixed") * RBF(0.7, "fixed") + WhiteKernel(0.5, "fixed"))


@dataclass(frozen=True)
class Case:
    """How to build a forecaster for y of two columns, and rows to teach and ask it with."""

    make: Make
    rows: Data
    fresh: Data


ROWS, FRESH = contracts.toy_rows(60, seed=1, columns=2), contracts.toy_rows(40, seed=2, columns=2)
LABELS = contracts.toy_labels(90, seed=1), contracts.toy_labels(40, seed=2)

MOVES = contracts.toy_transitions(90, seed=1), contracts.toy_transitions(40, seed=2)


def per_arm(data: Data) -> Data:
    """The same rows with x (n, 2, 2): features for each of the two columns."""
    return Data(torch.stack([data.x, data.x.flip(-1)], 1), data.y)


CASES = {
    "RidgeArms": Case(lambda: forecasters.RidgeArms(2, 2, noise=1.0), ROWS, FRESH),
    "RidgeShared": Case(lambda: forecasters.RidgeShared(2, noise=1.0), per_arm(ROWS), per_arm(FRESH)),
    "TabularTransitions": Case(lambda: forecasters.TabularTransitions(4, 2, 3), *MOVES),
    "SoftmaxTransitions": Case(lambda: forecasters.SoftmaxTransitions(torch.eye(4), 2, 3), *MOVES),
    "SklearnForecaster-gp": Case(lambda: cal.SklearnForecaster(GP), ROWS, FRESH),
    "SklearnForecaster-ridge": Case(lambda: cal.SklearnForecaster(RIDGE), ROWS, FRESH),
    "SklearnForecaster-flat": Case(
        lambda: cal.SklearnForecaster(RIDGE), contracts.toy_rows(60, seed=1), contracts.toy_rows(40, seed=2)
    ),
    "SklearnQuantiles": Case(
        lambda: cal.SklearnQuantiles(lambda q: QuantileRegressor(quantile=q, alpha=0), levels=(0.1, 0.5, 0.9)),
        ROWS,
        FRESH,
    ),
    "SklearnClassifier": Case(lambda: cal.SklearnClassifier(LogisticRegression(), classes=3), *LABELS),
    "TorchForecaster": Case(lambda: cal.TorchForecaster(MeanAndSpread(2), train=QUICK), ROWS, FRESH),
    "MCDropout": Case(lambda: cal.MCDropout(Point(2), passes=20, train=QUICK), ROWS, FRESH),
    "MCDropout-noise": Case(
        lambda: cal.MCDropout(nn.Sequential(nn.Dropout(0.05), MeanAndSpread(2)), passes=20, train=QUICK), ROWS, FRESH
    ),
    "BatchedEnsemble": Case(lambda: forecasters.BatchedEnsemble(NETS, training=PASSES), ROWS, FRESH),
    "BatchedEnsemble-points": Case(
        lambda: forecasters.BatchedEnsemble(replace(NETS, probabilistic=False), training=PASSES), ROWS, FRESH
    ),
    "BatchedEnsemble-mixture": Case(
        lambda: forecasters.BatchedEnsemble(NETS, training=PASSES, combine=cal.Mixture), ROWS, FRESH
    ),
    "Ensemble": Case(
        lambda: cal.Ensemble([cal.TorchForecaster(MeanAndSpread(2, seed=i), train=QUICK) for i in range(3)]),
        ROWS,
        FRESH,
    ),
    "Ensemble-bootstrap": Case(
        lambda: cal.Ensemble(
            [cal.SklearnForecaster(RIDGE) for _ in range(3)],
            combine=cal.Mixture,
            bootstrap=torch.Generator().manual_seed(0),
        ),
        ROWS,
        FRESH,
    ),
}


CLASSES = ["SklearnClassifier", "TabularTransitions", "SoftmaxTransitions"]
REGRESSION = [name for name in CASES if name not in CLASSES]


def seed(value: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def taught(make: Make, rows: Data) -> Forecaster:
    """`Rolling` evidence judges rows before they are learnt, so its forecaster must know a few first."""
    model = make()
    model.update(rows)
    return model


def wrapped(wrapper: str, make: Make, start: Data) -> Forecaster:
    if wrapper == "calibrated":
        return cal.Calibrated(make(), evidence=cal.HeldOut(cal.random_split(0.4, seed())))
    if wrapper == "cross-fitted":
        return cal.CrossFitted(make, folds=3, generator=seed())
    if wrapper == "rolling":
        return cal.Calibrated(taught(make, start), evidence=cal.Rolling())
    return make()


EVERY = [
    pytest.param(name, wrapper, id=f"{name}-{wrapper}")
    for name in CASES
    for wrapper in ("bare", "calibrated", "cross-fitted", "rolling")
]
CHECKS = [
    contracts.check_answers,
    contracts.check_repeatable,
    contracts.check_leaves_chance_alone,
    contracts.check_two_batches,
    contracts.check_unseen,
]


@pytest.mark.parametrize("name", [name for name in vars(forecasters) if not name.startswith("_")])
def test_every_exported_forecaster_has_a_case(name):
    found = getattr(forecasters, name)
    # A CalibratedModel is made of a model that is fitted already: see test_fitted.py.
    if inspect.isclass(found) and name != "CalibratedModel":
        assert any(case.split("-")[0] == name for case in CASES), f"{name} has no case here"


@pytest.mark.parametrize(("name", "wrapper"), EVERY)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(name, wrapper, check):
    case = CASES[name]
    check(lambda: wrapped(wrapper, case.make, case.rows[:12]), case.rows, case.fresh)


class TooSure:
    """A forecaster that states a third of the spread it believes in."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster

    def update(self, data: Data) -> None:
        self.forecaster.update(data)

    def __call__(self, x: Tensor) -> Distribution:
        forecast = self.forecaster(x)
        if isinstance(forecast, Categorical):
            return Categorical(logits=4 * forecast.logits)
        return cal.Recalibrated(forecast, Affine(scale=torch.tensor(1 / 3, dtype=torch.float64)))


@pytest.mark.parametrize("wrapper", ["calibrated", "cross-fitted", "rolling"])
@pytest.mark.parametrize("name", REGRESSION)
def test_wrapping_makes_a_forecaster_that_is_too_sure_honest(name, wrapper):
    case = CASES[name]
    columns = None if case.rows.y.dim() == 1 else 2
    rows, fresh = contracts.toy_rows(180, seed=4, columns=columns), contracts.toy_rows(400, seed=5, columns=columns)
    if case.rows.x.dim() == 3:
        rows, fresh = per_arm(rows), per_arm(fresh)

    def make() -> Forecaster:
        return TooSure(case.make())

    contracts.check_calibrates(make(), wrapped(wrapper, make, rows[:60]), rows, fresh)


@pytest.mark.parametrize("wrapper", ["calibrated", "cross-fitted"])
def test_wrapping_makes_a_classifier_that_is_too_sure_honest(wrapper):
    rows, fresh = contracts.toy_labels(300, seed=4), contracts.toy_labels(1000, seed=5)

    def make() -> Forecaster:
        return TooSure(CASES["SklearnClassifier"].make())

    bare, honest = taught(make, rows), taught(lambda: wrapped(wrapper, make, rows), rows)
    surprise = [-float(model(fresh.x).log_prob(fresh.y).mean()) for model in (bare, honest)]
    assert surprise[1] < surprise[0] - 0.2


class EvenOdds:
    """Two classes, equally likely, whatever is asked and learnt."""

    def update(self, data: Data) -> None:
        pass

    def __call__(self, x: Tensor) -> Distribution:
        return Categorical(probs=torch.full((len(x), 2), 0.5, dtype=torch.float64))


def test_a_stream_of_classes_forgets_old_base_rates():
    """Class 1 came in 1 row of 10 for long, and in 9 of 10 lately: only who forgets expects it."""
    seldom, often = (torch.arange(300) % 10 == 0), (torch.arange(60) % 10 != 0)
    y = torch.cat([seldom, often]).long()
    rows = Data(torch.zeros(len(y), 2, dtype=torch.float64), y)
    expected = {}
    for forget in (1.0, 0.95):
        model = cal.Calibrated(EvenOdds(), evidence=cal.Rolling(forget=forget), fit_map=fit_bias_corrected)
        for start in range(0, len(y), 30):
            model.update(rows[start : start + 30])
        expected[forget] = float(model(rows.x[:1]).probs[0, 1])
    assert expected[1.0] == pytest.approx((30 + 54) / 360, abs=0.08)
    assert expected[0.95] > 0.75

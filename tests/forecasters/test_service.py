"""Forecasters behind a service: they are kept, copied, asked by several threads, and given rows that are wrong."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch import distributions as td
from torch import nn

import calibrl as cal
from calibrl.forecasters import adam
from tests.contracts import numbers, toy_rows


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 2))

    def forward(self, x):
        mean, log_variance = self.body(x).unbind(-1)
        return mean, log_variance


def ridge():
    return cal.SklearnForecaster(BayesianRidge())


def taught_ridge():
    model = ridge()
    model.update(toy_rows(30, seed=9))
    return model


def held_out(forecaster, split):
    return cal.Calibrated(forecaster, evidence=cal.HeldOut(split))


MODELS = {
    "random split": lambda: cal.Calibrated(
        ridge(), evidence=cal.HeldOut(cal.random_split(0.3, torch.Generator().manual_seed(1)))
    ),
    "last split": lambda: held_out(ridge(), cal.last_split(0.3)),
    "cross-fitted": lambda: cal.CrossFitted(ridge, folds=3),
    "rolling": lambda: cal.Calibrated(taught_ridge(), evidence=cal.Rolling(forget=0.9)),
    "module": lambda: cal.Calibrated(
        cal.TorchForecaster(Net(), train=adam(epochs=2)), evidence=cal.HeldOut(cal.last_split(0.3))
    ),
    "dropout": lambda: cal.MCDropout(Net(), passes=5, train=adam(epochs=2)),
    "ensemble": lambda: cal.Ensemble([ridge(), ridge()], bootstrap=torch.Generator()),
}


@pytest.mark.parametrize("again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy], ids=["pickle", "copy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_goes_on_as_the_model_would_have(name, again):
    model, more, asked = MODELS[name](), toy_rows(50, seed=1), toy_rows(5, seed=2).x
    model.update(toy_rows(80, seed=0))
    twin = again(model)
    assert torch.equal(numbers(twin(asked)), numbers(model(asked)))
    model.update(more)
    twin.update(more)
    assert torch.equal(numbers(twin(asked)), numbers(model(asked)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_that_a_model_refuses_do_not_spoil_it(name):
    model, asked = MODELS[name](), toy_rows(5, seed=2).x
    model.update(toy_rows(80, seed=0))
    before = numbers(model(asked))
    with pytest.raises((ValueError, cal.CalibrlError), match="NaN"):
        model.update(cal.Data(torch.full((20, 2), torch.nan), torch.zeros(20)))
    assert torch.equal(numbers(model(asked)), before)
    model.update(toy_rows(50, seed=1))
    assert bool(numbers(model(asked)).isfinite().all())


def test_held_out_rows_without_a_forecast_are_not_kept():
    class Echo:
        def update(self, data):
            pass

        def __call__(self, x):
            return td.Normal(x[:, 0], torch.ones(len(x)), validate_args=False)

    bad = cal.Data(torch.full((10, 2), torch.nan), torch.zeros(10))
    for model in (cal.Calibrated(Echo(), evidence=cal.HeldOut(cal.last_split(0.5))), cal.CrossFitted(Echo, folds=2)):
        with pytest.raises(cal.CalibrlError, match="is NaN; drop it"):
            model.update(bad)
        model.update(toy_rows(20, seed=0))
        assert bool(model(torch.zeros(1, 2)).mean.isfinite())


def test_a_lesson_that_fails_leaves_the_weights():
    def wreck(module, data, *, loss, generator):
        module.train()
        with torch.no_grad():
            module.body[0].weight.fill_(torch.nan)
        raise RuntimeError("power cut")

    model = cal.TorchForecaster(Net(), train=adam(epochs=1))
    model.update(toy_rows(20, seed=0))
    before = numbers(model(torch.zeros(3, 2)))
    model.train = wreck
    with pytest.raises(RuntimeError, match="power cut"):
        model.update(toy_rows(20, seed=1))
    assert torch.equal(numbers(model(torch.zeros(3, 2))), before)
    assert not model.module.training


def test_threads_that_ask_at_once_get_the_same_answer():
    model = cal.MCDropout(Net(), passes=20, train=adam(epochs=1))
    model.update(toy_rows(50, seed=0))
    asked = toy_rows(200, seed=1).x
    expected = model(asked).samples
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: model(asked).samples, range(40)))
    assert all(torch.equal(answer, expected) for answer in answers)


def test_a_module_may_answer_with_independent_columns():
    class Columns(nn.Linear):
        def forward(self, x):
            mean, log_sd = super().forward(x).chunk(2, -1)
            return td.Independent(td.Normal(mean, log_sd.exp()), 1)

    model = cal.Calibrated(
        cal.TorchForecaster(Columns(2, 6), train=adam(epochs=2)), evidence=cal.HeldOut(cal.last_split(0.3))
    )
    model.update(toy_rows(60, seed=0, columns=3))
    assert model(torch.zeros(4, 2)).mean.shape == (4, 3)

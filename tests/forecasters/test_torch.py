from __future__ import annotations

import math

import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn
from torch.distributions import Distribution, Gamma, Normal

import calibrl as cal
from calibrl import CalibrlError, Data
from calibrl.forecasters import adam, moment_matched
from tests import contracts


class Linear(nn.Module):
    """Mean a straight line in x, one log-variance for all: its best fit has a closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.offset = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_variance = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x @ self.weight + self.offset
        return mean, self.log_variance.expand_as(mean)


class Returns(nn.Module):
    """A module that answers with whatever it is told to."""

    def __init__(self, answer, *, dropout: bool = False) -> None:
        super().__init__()
        self.answer = answer
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.dropout = nn.Dropout(0.5) if dropout else nn.Identity()

    def forward(self, x: Tensor):
        return self.answer(self.dropout(x) * self.scale)


ROWS = contracts.toy_rows(300, seed=1)


def test_training_finds_the_least_squares_line_and_its_residual_variance():
    model = cal.TorchForecaster(Linear(), train=adam(epochs=400, lr=3e-2, batch_size=300))
    with_gaps = contracts.unseen(ROWS)
    model.update(with_gaps)
    seen = ~with_gaps.y.isnan()
    x, y = torch.cat([ROWS.x, torch.ones(300, 1, dtype=torch.float64)], 1)[seen], ROWS.y[seen]
    best = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    variance = (y - x @ best).square().mean()
    torch.testing.assert_close(model.module.weight.detach(), best[:2], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model(ROWS.x[:1]).variance.detach()[0], variance, rtol=1e-3, atol=1e-3)


def test_other_outputs_are_read_by_a_function_of_your_own():
    def positive(output: Tensor) -> Distribution:
        return Gamma(torch.exp(output), torch.ones_like(output))

    data = Data(ROWS.x, 3 + 0 * ROWS.y)
    model = cal.TorchForecaster(Returns(lambda x: x.sum(-1)), train=adam(epochs=2), to_distribution=positive)
    model.update(data)
    assert isinstance(model(ROWS.x), Gamma)


def test_training_of_your_own():
    def train(module, data, *, loss, generator):
        module.offset.data.fill_(7.0)

    model = cal.TorchForecaster(Linear(), train=train)
    model.update(ROWS)
    assert float(model(ROWS.x[:1]).mean) == 7.0


def test_gradients_reach_the_question():
    x = ROWS.x[:3].clone().requires_grad_()
    model = cal.TorchForecaster(Linear(), train=adam(epochs=3))
    model.update(ROWS)
    model(x).rsample().sum().backward()
    assert bool((x.grad != 0).all())


def test_passes_with_dropout_have_the_mean_and_spread_of_the_masks():
    # One input of 1, dropped with probability ½ and doubled otherwise: passes are 0 or 2.
    model = cal.MCDropout(Returns(lambda x: x[:, 0], dropout=True), passes=4000)
    forecast = model(torch.ones(2, 1, dtype=torch.float64))
    assert set(forecast.samples.unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(forecast.mean.detach(), torch.ones(2, dtype=torch.float64), rtol=0, atol=4 / 4000**0.5)
    assert not bool((forecast.samples[:, 0] == forecast.samples[:, 1]).all())  # rows have masks of their own


def test_passes_draw_from_the_noise_a_module_states():
    def answer(x: Tensor) -> tuple[Tensor, Tensor]:
        return 0 * x[:, 0], 0 * x[:, 0] + math.log(9.0)

    forecast = cal.MCDropout(Returns(answer, dropout=True), passes=4000)(torch.ones(1, 1, dtype=torch.float64))
    assert float(forecast.variance) == pytest.approx(9.0, rel=0.1)


def test_an_ensemble_has_the_moments_of_its_mixture():
    forecasts = [Normal(torch.tensor([0.0, 1.0]), 1.0), Normal(torch.tensor([2.0, 1.0]), 3.0)]
    matched, exact = moment_matched(forecasts), cal.Mixture(forecasts)
    torch.testing.assert_close(matched.mean, torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(matched.variance, torch.tensor([6.0, 5.0]))
    torch.testing.assert_close(exact.variance.float(), matched.variance)


def test_members_of_a_bootstrap_learn_different_rows():
    members = [cal.SklearnForecaster(BayesianRidge()) for _ in range(2)]
    cal.Ensemble(members, bootstrap=torch.Generator().manual_seed(0)).update(ROWS)
    assert not torch.equal(members[0](ROWS.x).mean, members[1](ROWS.x).mean)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: cal.MCDropout(Linear()), "Linear has no dropout layer"),
        (lambda: cal.MCDropout(nn.Dropout(), passes=1), "use 2 or more"),
        (lambda: cal.Ensemble([cal.TorchForecaster(Linear())]), "two or more"),
        (lambda: cal.TorchForecaster(Returns(lambda x: x)).update(ROWS), r"a tensor of shape \(256, 2\)"),
        (lambda: cal.TorchForecaster(Returns(lambda x: (x, x))).update(ROWS), r"answers in shape \(256, 2\)"),
        (lambda: cal.MCDropout(Returns(lambda x: x[:, :1], dropout=True)).update(ROWS), r"shape \(256, 1\)"),
        (lambda: cal.TorchForecaster(Returns(lambda x: (x[:, 0], x[:, 0] / 0))).update(ROWS), "loss became nan"),
        (lambda: adam(epochs=0), "epochs 0 is too few; use 1 or more"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(act, words):
    with pytest.raises(CalibrlError, match=words) as raised:
        act()
    assert "\n" not in str(raised.value)

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.distributions import Normal

from calibrl import Recalibrated
from calibrl.bandits import Plan, fit_ecdf, probability
from calibrl.bandits.probability import probability_best


def test_two_gaussians_have_a_closed_form():
    forecast = Normal(torch.tensor([0.0, 0.4]).double(), torch.tensor([1.0, 0.5]).double())
    expected = norm.cdf(-0.4 / (1 + 0.25) ** 0.5)
    assert probability_best(forecast, Plan(spread=1.0)) == pytest.approx([expected, 1 - expected], abs=1e-3)
    # A level moves each draw by its own sd, a spread widens it.
    expected = norm.cdf((1.0 - 0.4 - 0.5) / (2 * (1 + 0.25) ** 0.5))
    moved = probability_best(forecast, Plan(level=1.0, spread=2.0))
    assert moved == pytest.approx([expected, 1 - expected], abs=1e-3)


def test_calibrated_forecasts_agree_with_draws():
    generator = np.random.default_rng(0)
    base = Normal(torch.tensor([0.0, 0.2, 0.1]).double(), torch.tensor([1.0, 0.4, 2.0]).double())
    forecast = Recalibrated(base, fit_ecdf()(z=generator.exponential(size=(60, 3)) - 1))
    draws = forecast.icdf(torch.from_numpy(generator.random((100_000, 3)))).argmax(-1)
    expected = torch.bincount(draws, minlength=3) / 100_000
    np.testing.assert_allclose(probability_best(forecast, Plan(spread=1.0)), expected, atol=0.01)


def test_arms_by_the_chunk_are_the_same_arms(monkeypatch):
    generator = np.random.default_rng(0)
    forecast = Normal(torch.from_numpy(generator.standard_normal(9)), torch.ones(9).double())
    whole = probability_best(forecast, Plan(spread=1.0))
    monkeypatch.setattr(probability, "CHUNK", 2 * 9 * probability.NODES)
    np.testing.assert_allclose(probability_best(forecast, Plan(spread=1.0)), whole, rtol=1e-12)

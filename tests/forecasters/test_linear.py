import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.linear_model import Ridge

from calibrl import CalibrlError, Data
from calibrl.algorithm import Forecaster
from calibrl.forecasters.linear import RidgeArms, RidgeShared


def rows(n, arms, dim, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((n, dim))
    pulled = generator.integers(arms, size=n)
    y = np.full((n, arms), np.nan)
    y[np.arange(n), pulled] = generator.standard_normal(n)
    return x, pulled, y


@given(seed=st.integers(0, 2**16), ridge=st.floats(0.01, 100), noise=st.floats(0, 3))
@settings(max_examples=25, deadline=None)
def test_it_is_ridge_regression_per_arm(seed, ridge, noise):
    x, pulled, y = rows(40, 3, 5, seed)
    model = RidgeArms(3, 5, ridge=ridge, noise=noise)
    model.update(Data.of(x[:17], y[:17]))
    model.update(Data.of(x[17:], y[17:]))
    asked = np.random.default_rng(1).standard_normal((4, 5))
    forecast = model(torch.from_numpy(asked))
    for arm in range(3):
        mine = pulled == arm
        expected = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky").fit(x[mine], y[mine, arm]).predict(asked)
        np.testing.assert_allclose(forecast.mean[:, arm], expected, rtol=1e-8, atol=1e-10)
        posterior = np.linalg.inv(ridge * np.eye(5) + x[mine].T @ x[mine])
        variance = np.einsum("ni,ij,nj->n", asked, posterior, asked) + noise**2
        np.testing.assert_allclose(forecast.variance[:, arm], variance, rtol=1e-8)


def test_shared_model_forecasts_arms_it_never_saw_from_their_features():
    generator = np.random.default_rng(0)
    theta = generator.standard_normal(3)
    model = RidgeShared(3, ridge=0.01)
    x = generator.standard_normal((200, 4, 3))
    y = x @ theta
    y[:, 1:] = np.nan
    model.update(Data.of(x, y))
    asked = generator.standard_normal((2, 4, 3))
    np.testing.assert_allclose(model(torch.from_numpy(asked)).mean, asked @ theta, atol=1e-3)


def test_forecasters_are_forecasters():
    assert isinstance(RidgeArms(2, 3), Forecaster)
    assert isinstance(RidgeShared(3), Forecaster)


def test_a_linear_world_is_forecast_honestly_when_its_noise_is_known():
    generator = np.random.default_rng(3)
    inside = []
    for _ in range(400):
        theta = generator.standard_normal(4)
        x = generator.standard_normal((9, 4))
        y = x @ theta + generator.standard_normal(9)
        model = RidgeArms(1, 4, noise=1.0)
        model.update(Data.of(x[:8], y[:8, None]))
        forecast = model(torch.from_numpy(x[8:]))
        inside.append(norm.cdf(y[8], forecast.mean.item(), forecast.stddev.item()))
    # Uniform PITs: the prior, the noise and the model are all as the forecaster believes.
    assert abs(np.mean(inside) - 0.5) < 0.05
    assert abs(np.mean(np.array(inside) <= 0.9) - 0.9) < 0.04


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: RidgeArms(0, 3), "0 arms"),
        (lambda: RidgeArms(2, 3, ridge=0.0), "singular"),
        (lambda: RidgeArms(2, 3, noise=-1.0), "noise -1"),
        (lambda: RidgeArms(2, 3)(torch.zeros(4, 2)), r"\(4, 2\)"),
        (lambda: RidgeArms(2, 3)(torch.full((1, 3), torch.nan)), "NaN"),
        (lambda: RidgeArms(2, 3).update(Data(torch.zeros(1, 3), torch.zeros(1, 5))), r"\(1, 5\)"),
        (lambda: RidgeArms(2, 3).update(Data(torch.zeros(1, 3), torch.full((1, 2), torch.inf))), "infinite"),
    ],
)
def test_bad_input_is_named(build, words):
    with pytest.raises(CalibrlError, match=words):
        build()

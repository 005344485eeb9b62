import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.distributions import Normal

from calibrl import CalibrlError, Recalibrated
from calibrl.maps import Affine
from calibrl.planning.quantile import argmax, highest_quantile


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


FORECAST = Normal(torch.tensor([[0.0, 0.5, 0.2]]).double(), torch.tensor([[1.0, 0.1, 0.6]]).double())


def test_the_level_decides_between_a_sure_arm_and_an_unsure_one():
    scores = {level: norm.ppf(norm.cdf(level), [0.0, 0.5, 0.2], [1.0, 0.1, 0.6]) for level in (-1.0, 0.0, 1.0, 3.0)}
    for level, score in scores.items():
        assert int(highest_quantile(FORECAST, level, generator=generator())) == int(np.argmax(score))


def test_a_calibrated_forecast_is_a_forecast_like_any_other():
    # All three arms were too sure of themselves by a factor 4; arm 0 gains most from that.
    wide = Recalibrated(FORECAST, Affine(shift=torch.zeros(()).double(), scale=torch.tensor(4.0).double()))
    assert int(highest_quantile(FORECAST, 0.4, generator=generator())) == 1
    assert int(highest_quantile(wide, 0.4, generator=generator())) == 0


def test_sampled_levels_choose_as_often_as_the_arm_is_best():
    many = FORECAST.expand((20_000, 3))
    seeded = generator(1)
    levels = torch.randn(many.batch_shape, generator=seeded, dtype=torch.float64)
    chosen = highest_quantile(many, levels, generator=seeded)
    draws = np.random.default_rng(0).normal([0.0, 0.5, 0.2], [1.0, 0.1, 0.6], (200_000, 3)).argmax(1)
    expected = np.bincount(draws, minlength=3) / len(draws)
    np.testing.assert_allclose(torch.bincount(chosen, minlength=3) / 20_000, expected, atol=0.015)


def test_equals_are_told_apart_by_lot_and_repeatably():
    tied = torch.tensor([[1.0, 1.0, 0.0, 1.0]]).repeat(3000, 1)
    chosen = argmax(tied, generator=generator(5))
    np.testing.assert_allclose(torch.bincount(chosen, minlength=4) / 3000, [1 / 3, 1 / 3, 0, 1 / 3], atol=0.03)
    assert torch.equal(chosen, argmax(tied, generator=generator(5)))


def test_broken_scores_are_refused():
    with pytest.raises(CalibrlError, match="NaN or infinite"):
        argmax(torch.tensor([[1.0, torch.nan]]), generator=generator())
    with pytest.raises(CalibrlError, match="batch shape"):
        highest_quantile(Normal(0.0, 1.0), 1.0, generator=generator())

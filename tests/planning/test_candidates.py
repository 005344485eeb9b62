"""Coloured noise by its spectrum."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrl.planning.candidates import coloring


@given(horizon=st.integers(1, 40), exponent=st.floats(0, 4))
def test_coloured_noise_has_variance_one_at_every_step(horizon, exponent):
    covariance = coloring(horizon, exponent) @ coloring(horizon, exponent).T
    torch.testing.assert_close(covariance.diag(), torch.ones(horizon, dtype=torch.float64))


def test_white_noise_stays_white():
    for horizon in (7, 12):
        matrix = coloring(horizon, 0.0)
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(horizon, dtype=torch.float64))


@pytest.mark.parametrize("exponent", [1.0, 2.5])
def test_power_falls_with_frequency_as_it_should(exponent):
    """NumPy's periodogram of many draws: the slope of log power in log frequency is the exponent."""
    white = torch.randn(64, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    power = (np.abs(np.fft.rfft((coloring(64, exponent) @ white).numpy(), axis=0)) ** 2).mean(1)
    inner = slice(1, -1)
    slope = np.polyfit(np.log(np.fft.rfftfreq(64)[inner]), np.log(power[inner]), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.05)

"""Held-out rows, z-scores, scores and maps, against scipy and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrl.control import calibration
from calibrl.control.policy import fleets
from calibrl.control.replay import Replay
from calibrl.diagnostics import noise_floor
from calibrl.errors import CalibrlError
from calibrl.maps import IDENTITY


class Known:
    """Networks that say what they are told: mean (g, e, n, d) and variance."""

    def __init__(self, mean, variance):
        self.mean, self.variance, self.at = mean, variance, 0

    def moments(self, x):
        rows = slice(self.at, self.at + x.shape[1])
        self.at += x.shape[1]
        return self.mean[:, :, rows], self.variance[:, :, rows]


@given(rows=st.integers(2, 300), share=st.floats(0.05, 0.5), block=st.integers(1, 7), seed=st.integers(0, 9))
def test_every_agent_holds_out_equally_many_rows(rows, share, block, seed):
    one = calibration.held_rows(rows, share, torch.Generator().manual_seed(seed), block=block)
    other = calibration.held_rows(rows, share, torch.Generator().manual_seed(seed + 1), block=block)
    assert one.shape == (rows,)
    assert int(one.sum()) == int(other.sum())
    assert abs(int(one.sum()) - share * rows) <= block + 0.5 * block
    assert int(one.sum()) < rows


def test_a_block_shares_a_side(generator):
    held = calibration.held_rows(200, 0.2, generator, block=10)
    assert int(held.sum()) == 40
    assert set(held.reshape(20, 10).sum(1).tolist()) == {0, 10}


def test_zscores_are_those_of_the_matched_gaussian(generator):
    mean = torch.randn(2, 3, 50, 4, generator=generator)
    variance = torch.rand(2, 3, 50, 4, generator=generator) + 0.1
    y = torch.randn(2, 50, 4, generator=generator)
    z, sd = calibration.zscores(Known(mean, variance), torch.zeros(2, 50, 1), y, by_member=False, chunk=16)
    middle = mean.numpy().astype(np.float64).mean(1)
    second = (variance.numpy().astype(np.float64) + mean.numpy().astype(np.float64) ** 2).mean(1)
    wanted = np.sqrt(second - middle**2)
    np.testing.assert_allclose(sd.numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(z.numpy(), (y.numpy() - middle) / wanted, rtol=1e-4, atol=1e-5)


def test_where_planning_follows_single_networks_each_is_judged(generator):
    mean = torch.randn(1, 3, 20, 2, generator=generator)
    variance = torch.rand(1, 3, 20, 2, generator=generator) + 0.1
    y = torch.randn(1, 20, 2, generator=generator)
    z, sd = calibration.zscores(Known(mean, variance), torch.zeros(1, 20, 1), y, by_member=True)
    assert z.shape == (1, 60, 2)
    each = ((y[:, None] - mean) / variance.sqrt()).transpose(1, 2).reshape(1, 60, 2)
    torch.testing.assert_close(z, each.double(), rtol=1e-5, atol=1e-6)
    assert sd.shape == z.shape


def test_scores_of_a_bare_gaussian_agree_with_scipy(generator):
    z = 1.4 * torch.randn(400, 2, generator=generator, dtype=torch.float64) + 0.2
    sd = torch.rand(400, 2, generator=generator, dtype=torch.float64) + 0.5
    y = z * sd + 3.0
    found = calibration.score(z, sd, y, IDENTITY)
    pits = stats.norm.cdf(z.numpy())
    levels = np.arange(1, 20) / 20
    observed = (pits[:, :, None] <= levels).mean(0)
    assert found["calibration_loss"] == pytest.approx(((observed - levels) ** 2).sum(1).mean())
    assert found["coverage_90"] == pytest.approx(((pits >= 0.05) & (pits <= 0.95)).mean())
    assert found["reliability_25"] == pytest.approx(observed[:, 4].mean())
    closed = sd.numpy() * (z.numpy() * (2 * pits - 1) + 2 * stats.norm.pdf(z.numpy()) - 1 / math.sqrt(math.pi))
    assert found["crps"] == pytest.approx((closed / y.numpy().std(0, ddof=1)).mean(), rel=1e-6)
    assert all(found[name] == found[f"{name}_bare"] for name in ("calibration_loss", "coverage_90", "crps"))


@pytest.mark.parametrize("name", ["smooth", "affine", "isotonic", "auto"])
def test_a_map_repairs_what_it_was_fitted_for(name, generator):
    z = 2.0 * torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    mapping = calibration.fit(name, z[:2000])
    found = calibration.score(z[2000:], torch.ones(2000, 3), z[2000:], mapping)
    assert found["calibration_loss"] < 20 * noise_floor(2000)
    assert found["calibration_loss_bare"] > 0.1
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.02)
    assert found["crps"] < found["crps_bare"]


def test_agents_share_a_fleet_only_with_those_of_as_many_rows():
    groups = fleets(["calibrated", "uncalibrated-all", "uncalibrated"], [3, 4])
    assert [[member.name for member in group] for group in groups] == [
        ["calibrated-3", "uncalibrated-3", "calibrated-4", "uncalibrated-4"],
        ["uncalibrated-all-3", "uncalibrated-all-4"],
    ]
    with pytest.raises(CalibrlError, match=r"arm 'calibrate' is unknown; use one of calibrated, uncalibrated"):
        fleets(["calibrate"], [0])


def test_rows_are_as_old_as_the_trials_since():
    replay = Replay(1, 2, 1)
    for rows, held in ((3, [True, False, True]), (2, [False, True]), (1, [True])):
        replay.add(torch.zeros(1, rows, 2), torch.zeros(1, rows, 1), torch.tensor([held]))
    assert replay.held_ages().tolist() == [[2, 2, 1, 0]]

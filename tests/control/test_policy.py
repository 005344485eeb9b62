"""Held-out rows of agents side by side, and z-scores, against closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrl.control.policy import fleets, zscores
from calibrl.data import Data, exact_split
from calibrl.errors import CalibrlError


class Known:
    """Networks that say what they are told: mean (g, e, n, d) and variance."""

    def __init__(self, mean, variance):
        self.mean, self.variance, self.at = mean, variance, 0

    def moments(self, x):
        rows = slice(self.at, self.at + x.shape[1])
        self.at += x.shape[1]
        return self.mean[:, :, rows], self.variance[:, :, rows]


def empty(rows):
    return Data(torch.zeros(rows, 1), torch.zeros(rows))


@given(rows=st.integers(2, 300), share=st.floats(0.05, 0.5), block=st.integers(1, 7), seed=st.integers(0, 9))
def test_every_agent_holds_out_equally_many_rows(rows, share, block, seed):
    one = exact_split(share, torch.Generator().manual_seed(seed), block=block)(empty(rows))
    other = exact_split(share, torch.Generator().manual_seed(seed + 1), block=block)(empty(rows))
    assert one.shape == (rows,)
    assert int(one.sum()) == int(other.sum())
    assert abs(int(one.sum()) - share * rows) <= block + 0.5 * block
    assert int(one.sum()) < rows


def test_a_block_shares_a_side(generator):
    held = exact_split(0.2, generator, block=10)(empty(200))
    assert int(held.sum()) == 40
    assert set(held.reshape(20, 10).sum(1).tolist()) == {0, 10}


def test_zscores_are_those_of_the_matched_gaussian(generator):
    mean = torch.randn(2, 3, 50, 4, generator=generator)
    variance = torch.rand(2, 3, 50, 4, generator=generator) + 0.1
    y = torch.randn(2, 50, 4, generator=generator)
    z, sd = zscores(Known(mean, variance), Data(torch.zeros(2, 50, 1), y), by_member=False, chunk=16)
    middle = mean.numpy().astype(np.float64).mean(1)
    second = (variance.numpy().astype(np.float64) + mean.numpy().astype(np.float64) ** 2).mean(1)
    wanted = np.sqrt(second - middle**2)
    np.testing.assert_allclose(sd.numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(z.numpy(), (y.numpy() - middle) / wanted, rtol=1e-4, atol=1e-5)


def test_where_planning_follows_single_networks_each_is_judged(generator):
    mean = torch.randn(1, 3, 20, 2, generator=generator)
    variance = torch.rand(1, 3, 20, 2, generator=generator) + 0.1
    y = torch.randn(1, 20, 2, generator=generator)
    z, sd = zscores(Known(mean, variance), Data(torch.zeros(1, 20, 1), y), by_member=True)
    assert z.shape == (1, 60, 2)
    each = ((y[:, None] - mean) / variance.sqrt()).transpose(1, 2).reshape(1, 60, 2)
    torch.testing.assert_close(z, each.double(), rtol=1e-5, atol=1e-6)
    assert sd.shape == z.shape


def test_agents_share_a_fleet_only_with_those_of_as_many_rows():
    groups = fleets(["calibrated", "uncalibrated-all", "uncalibrated"], [3, 4])
    assert [[member.name for member in group] for group in groups] == [
        ["calibrated-3", "uncalibrated-3", "calibrated-4", "uncalibrated-4"],
        ["uncalibrated-all-3", "uncalibrated-all-4"],
    ]
    with pytest.raises(CalibrlError, match=r"arm 'calibrate' is unknown; known: calibrated, uncalibrated"):
        fleets(["calibrate"], [0])

"""Evidence of which some outcomes are only known to be at least what was seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrl import fit_isotonic
from calibrl.maps.columns import kaplan_meier, with_belief


def test_kaplan_meier_agrees_with_a_hand_computation():
    z = np.array([[1.0], [2.0], [3.0], [4.0], [np.nan]])
    cut = np.array([[False], [True], [False], [False], [False]])
    # Sizes at risk 4, 3, 2, 1: masses 1/4, then 0, then 3/4 · 1/2, then the rest.
    expected = 4 * np.array([1 / 4, 0, 3 / 8, 3 / 8, 0])
    assert kaplan_meier(z, cut)[:, 0] == pytest.approx(expected)


@given(seed=st.integers(0, 1000), share=st.floats(0, 0.6))
def test_kaplan_meier_gives_away_all_weight_and_none_to_the_cut(seed, share):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(60, 2))
    cut = rng.random((60, 2)) < share
    weight = kaplan_meier(z, cut)
    assert weight.sum(0) == pytest.approx([60, 60])
    largest = z.argmax(0)
    cut[largest, [0, 1]] = False
    assert (weight[cut] == 0).all()


@pytest.mark.parametrize("at", [-8.0, -1.0, 0.0])
def test_days_that_all_sold_out_teach_a_map_that_changes_nothing_above_what_was_sold(at):
    z, cut = np.full((300, 1), at), np.ones((300, 1), dtype=bool)
    shown, weight = with_belief(z, cut, np.random.default_rng(0), belief=20.0, shares=200)
    assert (weight[:300] == 0).all()
    assert weight.sum() == pytest.approx(320)
    mapping = fit_isotonic(z=torch.from_numpy(np.where(weight > 0, shown, np.nan)), weight=torch.from_numpy(weight))
    level = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)[:, None]
    # R⁻¹ of a level: at least this many were sold, and beyond it the forecast keeps its word.
    truth = stats.norm.cdf(at) + (1 - stats.norm.cdf(at)) * level.numpy()
    found = stats.norm.cdf(mapping.inverse_z(torch.special.ndtri(level)).numpy())
    assert np.abs(found - truth).max() < 0.1


def test_days_that_sold_out_above_the_forecast_raise_it():
    z, cut = np.full((300, 1), 4.0), np.ones((300, 1), dtype=bool)
    shown, weight = with_belief(z, cut, np.random.default_rng(0), belief=20.0, shares=200)
    assert (shown[:300] >= 4).all()
    assert weight[:300].sum() == pytest.approx(300)


def test_no_single_day_speaks_for_all_that_sold_out():
    z, cut = np.full((300, 1), -1.0), np.ones((300, 1), dtype=bool)
    z[7], cut[7] = -0.5, False
    _, weight = with_belief(z, cut, np.random.default_rng(0), belief=20.0, shares=200)
    assert weight[7] < 0.1 * weight.sum()


def test_evidence_without_sold_out_days_is_the_evidence():
    z = np.random.default_rng(0).normal(size=(50, 2))
    shown, weight = with_belief(z, np.zeros((50, 2), dtype=bool), np.random.default_rng(0), belief=20.0, shares=200)
    assert (shown[:50] == z).all()
    assert (weight[:50] == 1).all()
    assert not weight[50:].any()

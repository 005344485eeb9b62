from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrl.maps.columns import order_statistics


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 3000),
    wanted=st.integers(1, 60),
    kind=st.sampled_from(["uniform", "atoms", "far", "infinite"]),
)
def test_equals_a_full_sort(seed, n, wanted, kind):
    rng = np.random.default_rng(seed)
    values = {
        "uniform": rng.random(n),
        "atoms": np.round(rng.random(n) * 4) / 4,
        "far": rng.standard_t(1, size=n) * 100,
        "infinite": np.where(rng.random(n) < 0.1, np.inf, -rng.random(n)),
    }[kind]
    ranks = np.unique(rng.integers(0, n, wanted))
    np.testing.assert_array_equal(order_statistics(values, ranks, low=0.0, high=1.0), np.sort(values)[ranks])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-8.0, 8.0), (0.4, 0.5)])
def test_the_bins_decide_the_speed_alone(low, high):
    values = np.random.default_rng(0).random(50_000)
    ranks = np.array([0, 1, 2, 24_999, 49_998, 49_999])
    np.testing.assert_array_equal(order_statistics(values, ranks, low=low, high=high), np.sort(values)[ranks])

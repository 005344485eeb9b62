"""The fast regression against numpy's linear algebra, and the sorted history against sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrl.kernels import ridge, ridge_policy


def learnt(x, reward, prior):
    state = ridge_policy.blank(1, 1, x.shape[1], ridge_=prior, window=16)
    for row, r in zip(x, reward, strict=True):
        gain = ridge.times(state.inverse[0], row)
        ridge.add_row(row, r, gain, state.theta[0], state.inverse[0], state.gram[0], state.moment[0])
    return state


@given(seed=st.integers(0, 2**16), n=st.integers(0, 60), d=st.integers(1, 12), prior=st.floats(0.01, 100))
def test_one_row_at_a_time_equals_the_batch_solution(seed, n, d, prior):
    generator = np.random.default_rng(seed)
    x, reward = generator.standard_normal((n, d)), generator.standard_normal(n)
    state = learnt(x, reward, prior)
    gram = prior * np.eye(d) + x.T @ x
    inverse = np.zeros((d, d))
    inverse[np.tril_indices(d)] = state.inverse[0]
    inverse += np.tril(inverse, -1).T
    np.testing.assert_allclose(inverse, np.linalg.inv(gram), rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(state.theta[0], np.linalg.solve(gram, x.T @ reward), rtol=1e-7, atol=1e-9)
    asked = generator.standard_normal(d)
    square = np.empty(ridge.packed(d))
    ridge.pack_square(asked, square)
    mean, sd = ridge.forecast(asked, square, state.theta[0], state.inverse[0])
    assert sd**2 == pytest.approx(asked @ np.linalg.solve(gram, asked), rel=1e-7)
    assert mean == pytest.approx(asked @ np.linalg.solve(gram, x.T @ reward), rel=1e-6, abs=1e-9)


def test_starting_afresh_takes_away_the_rounding_errors():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4000, 8)) * np.logspace(-3, 3, 8)
    reward = generator.standard_normal(4000)
    state = learnt(x, reward, 1.0)
    exact = np.linalg.inv(np.eye(8) + x.T @ x)[np.tril_indices(8)]
    before = np.abs(state.inverse[0] / exact - 1).max()
    ridge.refactor(state.theta[0], state.inverse[0], state.gram[0], state.moment[0], 1.0)
    after = np.abs(state.inverse[0] / exact - 1).max()
    assert after < 1e-6
    assert after <= before


@given(st.lists(st.floats(-9, 9), max_size=60), st.integers(2, 12))
def test_the_history_is_the_last_window_sorted(values, window):
    ordered, arrived = np.zeros(window), np.zeros(window)
    for seen, z in enumerate(values):
        ridge.remember(z, ordered, arrived, seen)
    kept = min(len(values), window)
    np.testing.assert_array_equal(ordered[:kept], np.sort(values[-window:]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.floats(0, 0.999))
def test_the_best_arm_is_a_best_arm_and_a_draw_spreads_evenly(scores, draw):
    score = np.array(scores, float)
    equals = np.flatnonzero(score == score.max())
    assert ridge_policy.best_arm(score, draw) == equals[int(draw * len(equals))]


def test_part_of_an_atom_is_covered():
    assert ridge.covered(0.2, 0.6, 0.5) == pytest.approx(0.75)
    assert ridge.covered(0.2, 0.2, 0.5) == 1.0
    assert ridge.covered(0.7, 0.7, 0.5) == 0.0

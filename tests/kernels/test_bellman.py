"""The compiled backups against the plain reference."""

import numpy as np
import pytest
from scipy import sparse

from calibrl.kernels import bellman
from calibrl.mdp.problems import random_mdp
from tests.kernels.references import reference_action_values


def test_compressed_rows_are_scipys():
    dense = np.random.default_rng(0).random((7, 5)) * (np.random.default_rng(1).random((7, 5)) < 0.4)
    rows, successor, probability = np.zeros(8, dtype=np.int64), np.empty(36, dtype=np.int32), np.empty(36)
    bellman.compress(dense, rows, successor, probability)
    expected = sparse.csr_array(dense)
    np.testing.assert_array_equal(rows, expected.indptr)
    np.testing.assert_array_equal(successor[: rows[-1]], expected.indices)
    np.testing.assert_array_equal(probability[: rows[-1]], expected.data)


@pytest.mark.parametrize(("states", "actions", "successors"), [(1, 1, 1), (7, 3, 2), (40, 2, 9)])
def test_compiled_backups_are_the_reference(states, actions, successors):
    generator = np.random.default_rng(states)
    mdp = random_mdp(states, actions, successors, generator=generator, discount=0.9)
    parts = (mdp.rows, mdp.successor, mdp.probability, mdp.reward, mdp.discount)
    value = generator.normal(size=states)
    expected = reference_action_values(*parts, value)
    found = np.empty((states, actions))
    bellman.action_values(*parts, value, found)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)
    best = np.empty(states)
    lowest, highest = bellman.optimal_backup(*parts, value, best)
    np.testing.assert_allclose(best, expected.max(1), rtol=1e-13, atol=1e-13)
    assert lowest == pytest.approx((expected.max(1) - value).min(), abs=1e-12)
    assert highest == pytest.approx((expected.max(1) - value).max(), abs=1e-12)

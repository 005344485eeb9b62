"""Where policies spend their time, against powers of the chain and sums over time."""

import numpy as np
import pytest

from calibrl.errors import CalibrlError
from calibrl.mdp import MDP, check_reachable, occupancy, pairs, random_mdp, random_policy, reachable, stationary


@pytest.mark.parametrize("seed", range(5))
def test_stationary_is_the_limit_of_the_chain(seed):
    generator = np.random.default_rng(seed)
    mdp = random_mdp(9, 3, 9, generator=generator)
    policy = random_policy(9, 3, generator=generator)
    chain = mdp.chain(policy)[0].toarray()
    limit = np.linalg.matrix_power(chain, 4096)[0]
    np.testing.assert_allclose(stationary(mdp, policy), limit, atol=1e-12)


def test_states_left_for_good_have_no_share():
    mdp = MDP.dense([[[0.0, 0.5, 0.5]], [[0.0, 0.25, 0.75]], [[0.0, 0.75, 0.25]]], [0, 0, 0], discount=0.9)
    np.testing.assert_allclose(stationary(mdp, [0, 0, 0]), [0, 0.5, 0.5], atol=1e-14)


def test_periodic_chains_have_one_too():
    mdp = MDP.dense([[[0.0, 1.0]], [[1.0, 0.0]]], [0, 0], discount=0.9)
    np.testing.assert_allclose(stationary(mdp, [0, 0]), [0.5, 0.5])


def test_occupancy_is_the_discounted_sum_over_time():
    generator = np.random.default_rng(1)
    mdp = random_mdp(7, 2, 3, generator=generator, discount=0.8)
    policy = random_policy(7, 2, generator=generator)
    chain = mdp.chain(policy)[0].toarray()
    now, total = np.eye(7)[2], np.zeros(7)
    for t in range(300):
        total += 0.2 * 0.8**t * now
        now = now @ chain
    found = occupancy(mdp, policy, np.eye(7)[2])
    np.testing.assert_allclose(found, total, atol=1e-13)
    share = stationary(mdp, policy)
    np.testing.assert_allclose(occupancy(mdp, policy, share), share, atol=1e-13)
    np.testing.assert_allclose(pairs(found, policy, 2).sum(), 1)


def test_occupancy_of_many_states_from_one_and_from_all():
    """Solvers break down at starts of such a kind, and a factorisation would take minutes."""
    mdp = random_mdp(6000, 2, 4, generator=np.random.default_rng(0), discount=0.99)
    chain, _ = mdp.chain(np.zeros(6000))
    for start in (np.eye(1, 6000)[0], np.full(6000, 1 / 6000)):
        share = occupancy(mdp, np.zeros(6000), start)
        np.testing.assert_allclose(share, 0.01 * start + 0.99 * chain.T @ share, rtol=0, atol=1e-15)
        assert share.sum() == pytest.approx(1, abs=1e-11)


TWO_ISLANDS = MDP.dense([[[1.0, 0.0]], [[0.0, 1.0]]], [0, 1], discount=0.9)


def test_reachable_states():
    assert reachable(TWO_ISLANDS, [1, 0]).tolist() == [True, False]
    check_reachable(TWO_ISLANDS, [0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: stationary(TWO_ISLANDS, [0, 0]), "2 sets of states that it never leaves"),
        (lambda: check_reachable(TWO_ISLANDS, [1, 0]), "1 of 2 states cannot be reached .* state 1"),
        (lambda: occupancy(TWO_ISLANDS, [0, 0], [0.5, 0.4]), "sum to 0.9, not 1"),
        (lambda: occupancy(TWO_ISLANDS, [0, 0], [1.0]), "give a chance for each of 2 states"),
    ],
)
def test_bad_input_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

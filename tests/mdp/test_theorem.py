"""The paper's lemma and theorem, where they hold and where they fail, so that the check can fail.

What is claimed, for a policy π with rewards r(s, a), true chain P, model chain P̂, start μ and discounted
occupancy d of π from μ (d is the stationary σ if μ is): μ·V̂ = μ·V for every reward exactly when d P̂ = d P.
Calibration with respect to d ⊗ π is sufficient for that, not necessary.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrl.errors import CalibrlError
from calibrl.mdp import (
    MDP,
    aggregate,
    brier,
    classwise_error,
    classwise_example,
    marginal_error,
    motionless,
    occupancy,
    pairs,
    pooled_error,
    random_mdp,
    random_policy,
    sharpen,
    stationary,
    two_state,
    value_error,
    value_error_bound,
    with_transitions,
)
from calibrl.planning.value_iteration import policy_value, value_iteration


def problem(seed, states=10, actions=3, discount=0.95):
    generator = np.random.default_rng(seed)
    mdp = random_mdp(states, actions, states, generator=generator, discount=discount)
    policy = random_policy(states, actions, generator=generator)
    return mdp, policy, generator


def labels(generator, states, count):
    """A class for each state, every class with one at least."""
    return generator.permutation(np.concatenate([np.arange(count), generator.integers(0, count, states - count)]))


seeds = st.integers(0, 10**6)


# The lemma: any expectation of what comes next is right on average.


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 10))
def test_lemma_holds_for_calibrated_models(seed, count):
    mdp, _policy, generator = problem(seed)
    weights = generator.dirichlet(np.ones(30)).reshape(10, 3)
    model = aggregate(mdp, weights, labels(generator, 10, count))
    assert classwise_error(model, mdp, weights) < 1e-12
    g = generator.normal(size=10)
    true = np.einsum("sa,sat,t->", weights, mdp.to_dense(), g)
    said = np.einsum("sa,sat,t->", weights, model.to_dense(), g)
    assert said == pytest.approx(true, abs=1e-12)


# The theorem, with V̂ the full fixed point in the model, not one backup of the true V.


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 10), st.floats(0.1, 0.99))
def test_theorem_holds_to_1e_8_on_average_over_stationary_states(seed, count, discount):
    mdp, policy, generator = problem(seed, discount=discount)
    share = stationary(mdp, policy)
    model = aggregate(mdp, pairs(share, policy, 3), labels(generator, 10, count))
    assert abs(value_error(model, mdp, policy, share)) < 1e-8
    # In closed form both are the mean reward over 1 - γ.
    reward = (pairs(share, policy, 3) * mdp.reward).sum()
    assert share @ policy_value(model, policy) == pytest.approx(reward / (1 - discount), abs=1e-8)


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 10))
def test_extension_any_start_if_calibrated_on_its_discounted_occupancy(seed, count):
    mdp, policy, generator = problem(seed)
    start = generator.dirichlet(np.ones(10))
    weights = pairs(occupancy(mdp, policy, start), policy, 3)
    model = aggregate(mdp, weights, labels(generator, 10, count))
    assert abs(value_error(model, mdp, policy, start)) < 1e-8


def test_classwise_calibration_is_enough_and_need_not_be_aggregation():
    truth, model, weights = classwise_example()
    policy = np.full((3, 2), 0.5)
    share = stationary(truth, policy)
    assert classwise_error(model, truth, weights) < 1e-12
    np.testing.assert_allclose(pairs(share, policy, 2), weights, atol=1e-12)
    # Given the whole forecast (all six differ) the outcome is not as forecast: jointly it is miscalibrated.
    assert np.abs(model.to_dense() - truth.to_dense()).max() == pytest.approx(0.1)
    assert len(np.unique(model.to_dense().reshape(6, 3), axis=0)) == 6
    assert abs(value_error(model, truth, policy, share)) < 1e-12
    assert np.abs(policy_value(model, policy) - policy_value(truth, policy)).max() > 0.05


# Where it fails.


def test_fails_when_calibration_is_broken():
    failures = 0
    for seed in range(20):
        mdp, policy, _ = problem(seed)
        share = stationary(mdp, policy)
        model = sharpen(mdp, 2.0)
        assert classwise_error(model, mdp, pairs(share, policy, 3)) > 0.1
        failures += abs(value_error(model, mdp, policy, share)) > 1e-3
    assert failures == 20


def test_fails_for_single_states_and_other_starts():
    mdp, policy, _generator = problem(0)
    share = stationary(mdp, policy)
    model = aggregate(mdp, pairs(share, policy, 3), np.zeros(10, dtype=int))
    assert abs(value_error(model, mdp, policy, share)) < 1e-10
    assert abs(value_error(model, mdp, policy, np.eye(10)[0])) > 1e-3


def test_fails_for_a_policy_the_model_was_not_calibrated_on():
    mdp, policy, generator = problem(1)
    share = stationary(mdp, policy)
    model = aggregate(mdp, pairs(share, policy, 3), np.zeros(10, dtype=int))
    other = random_policy(10, 3, generator=generator)
    assert abs(value_error(model, mdp, other, stationary(mdp, other))) > 1e-3
    # So too for the policy that the model itself thinks best.
    best = value_iteration(model).policy
    assert abs(value_error(model, mdp, best, stationary(mdp, best))) > 1e-3


def test_fails_when_calibrated_on_the_right_states_but_other_actions():
    mdp, policy, _generator = problem(2)
    share = stationary(mdp, policy)
    even = np.full((10, 3), 1 / 3)
    model = aggregate(mdp, pairs(share, even, 3), np.zeros(10, dtype=int))
    assert classwise_error(model, mdp, pairs(share, even, 3)) < 1e-12
    assert abs(value_error(model, mdp, policy, share)) > 1e-3


def test_fails_for_calibration_pooled_over_next_states():
    """The forecast 1/S for every next state is calibrated in that sense, whatever the truth."""
    mdp, policy, _ = problem(3)
    share = stationary(mdp, policy)
    even = with_transitions(mdp, np.full((10, 3, 10), 0.1))
    weights = pairs(share, policy, 3)
    assert pooled_error(even, mdp, weights) < 1e-12
    assert classwise_error(even, mdp, weights) > 0.1
    assert abs(value_error(even, mdp, policy, share)) > 1e-3


def test_fails_when_the_reward_depends_on_the_pair_of_states():
    """r(s, s′) is averaged with the model's own chances; calibration of s′ alone does not fix that average."""
    mdp, policy, generator = problem(4)
    share = stationary(mdp, policy)
    model = aggregate(mdp, pairs(share, policy, 3), np.zeros(10, dtype=int))
    change = generator.normal(size=(10, 1, 10)) * np.ones((1, 3, 1))
    truth_r = MDP.dense(mdp.to_dense(), change, discount=0.95)
    model_r = MDP.dense(model.to_dense(), change, discount=0.95)
    assert abs(value_error(model_r, truth_r, policy, share)) > 1e-3
    # A reward of the next state alone is a g(s′) of the lemma, and safe.
    arrival = np.broadcast_to(generator.normal(size=10), (10, 3, 10))
    truth_a = MDP.dense(mdp.to_dense(), arrival, discount=0.95)
    model_a = MDP.dense(model.to_dense(), arrival, discount=0.95)
    assert abs(value_error(model_a, truth_a, policy, share)) < 1e-9


# Sufficient, not necessary: what counts is that σ is stationary under the model too.


def test_a_certain_and_wrong_model_can_satisfy_the_equality():
    mdp, policy, _ = problem(5)
    share = stationary(mdp, policy)
    model = motionless(mdp)
    assert classwise_error(model, mdp, pairs(share, policy, 3)) > 1
    assert marginal_error(model, mdp, pairs(share, policy, 3)) < 1e-12
    assert abs(value_error(model, mdp, policy, share)) < 1e-9


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_equality_for_all_rewards_exactly_when_the_marginals_agree(seed):
    mdp, policy, generator = problem(seed)
    start = generator.dirichlet(np.ones(10))
    weights = pairs(occupancy(mdp, policy, start), policy, 3)
    wrong = with_transitions(mdp, generator.dirichlet(np.ones(10), size=(10, 3)))
    right = aggregate(mdp, weights, labels(generator, 10, 3))
    for model in (wrong, right):
        # One reward for each state in turn: a basis of all rewards r(s).
        errors = [
            value_error(
                MDP.dense(model.to_dense(), one, discount=0.95),
                MDP.dense(mdp.to_dense(), one, discount=0.95),
                policy,
                start,
            )
            for one in np.eye(10)
        ]
        assert (np.abs(errors).max() < 1e-8) == (marginal_error(model, mdp, weights) < 1e-10)


# Between the two: the error grows with the calibration error, and a bound says how fast.


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(0.3, 4), st.floats(0.1, 0.98))
def test_the_bound_holds(seed, power, discount):
    mdp, policy, generator = problem(seed, discount=discount)
    start = generator.dirichlet(np.ones(10))
    model = sharpen(mdp, power)
    error = abs(value_error(model, mdp, policy, start))
    weights = pairs(occupancy(mdp, policy, start), policy, 3)
    bound = value_error_bound(classwise_error(model, mdp, weights), policy_value(model, policy), discount)
    assert error <= bound + 1e-9


def test_the_bound_is_reached_where_states_do_not_matter():
    """Two states that lead on alike: what the model says of one is wrong by as much as what it says of the other."""
    mdp, model = (MDP.dense(np.tile([p, 1 - p], (2, 1, 1)), [1.0, -1.0], discount=0.9) for p in (0.8, 0.5))
    policy, start = np.zeros(2, dtype=np.int64), np.array([1.0, 0.0])
    weights = pairs(occupancy(mdp, policy, start), policy, 1)
    error = abs(value_error(model, mdp, policy, start))
    bound = value_error_bound(classwise_error(model, mdp, weights), policy_value(model, policy), mdp.discount)
    assert error > 0.1
    assert error == pytest.approx(bound)


def test_error_and_calibration_error_grow_together():
    mdp, policy, _ = problem(6)
    share = stationary(mdp, policy)
    weights = pairs(share, policy, 3)
    powers = [1.0, 1.1, 1.3, 1.6, 2.0]
    models = [sharpen(mdp, power) for power in powers]
    calibration = [classwise_error(model, mdp, weights) for model in models]
    assert calibration[0] < 1e-12
    assert (np.diff(calibration) > 0).all()
    assert abs(value_error(models[0], mdp, policy, share)) < 1e-10
    assert (np.diff([abs(value_error(model, mdp, policy, share)) for model in models]) > 0).all()


def test_errors_are_ordered_as_the_lemma_needs():
    """Marginal ≤ class-wise: averaging over more forecasts can only cancel."""
    mdp, _policy, generator = problem(7)
    weights = generator.dirichlet(np.ones(30)).reshape(10, 3)
    model = sharpen(mdp, 1.7)
    assert marginal_error(model, mdp, weights) <= classwise_error(model, mdp, weights)


def test_brier_score_by_simulation():
    mdp, _policy, generator = problem(8)
    weights = generator.dirichlet(np.ones(30)).reshape(10, 3)
    model = sharpen(mdp, 2.0)
    pick = generator.choice(30, size=40_000, p=weights.ravel())
    true, said = mdp.to_dense().reshape(30, 10), model.to_dense().reshape(30, 10)
    happened = (true[pick].cumsum(1) < generator.random(len(pick))[:, None]).sum(1)
    scores = ((said[pick] - np.eye(10)[happened]) ** 2).sum(1)
    assert brier(model, mdp, weights) == pytest.approx(scores.mean(), abs=4 * scores.std() / 200)


# The two-state example.


def test_two_state_numbers_of_the_paper():
    truth, model = two_state(0.8), two_state(0.6)
    assert truth.reward[0, 0] == pytest.approx(0.6)
    assert model.reward[0, 0] == pytest.approx(0.2)
    # The truth tries, the under- and the over-confident models do not.
    assert value_iteration(truth).policy[0] == 0
    assert value_iteration(model).policy[0] == 1
    assert value_iteration(two_state(0.0)).policy[0] == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m, w: aggregate(m, w, [0] * 9 + [2]), "state class 1 is empty"),
        (lambda m, w: aggregate(m, w, [0, 1]), "number each of 10 states"),
        (lambda m, w: aggregate(m, w * 2, [0] * 10), "weights sum to 2, not 1"),
        (lambda m, w: aggregate(m, w[:5], [0] * 10), r"weights of shape \(5, 3\)"),
        (lambda m, w: sharpen(m, 0), "power 0 is not above 0"),
        (lambda m, w: classwise_error(two_state(), m, w), r"model of \(states, actions\) \(2, 2\) cannot be held"),
        (lambda m, w: value_error(m, m, [0] * 10, [1] * 10), "the start's chances sum to 10, not 1"),
        (lambda m, w: value_error(m, m, [0] * 10, [1.0]), "give a chance for each of 10 states"),
        (lambda m, w: two_state(1.2), "stay 1.2 is not from 0 to 1"),
        (lambda m, w: random_mdp(0, 1, 1, generator=np.random.default_rng(0)), "make no MDP"),
    ],
)
def test_bad_input_is_refused(make, words):
    mdp, policy, _ = problem(9)
    with pytest.raises(CalibrlError, match=words):
        make(mdp, pairs(stationary(mdp, policy), policy, 3))


def test_a_class_that_is_never_visited_is_refused():
    mdp, _policy, _ = problem(9)
    weights = np.zeros((10, 3))
    weights[:5] = 1 / 15
    with pytest.raises(CalibrlError, match=r"state class 1 holds only states that are never visited \(state 5"):
        aggregate(mdp, weights, [0] * 5 + [1] * 5)

"""Solvers of discrete MDPs against closed forms, dense linear algebra and linear programming."""

import time
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog
from scipy.sparse import linalg

from calibrl.errors import CalibrlError
from calibrl.mdp.problems import random_mdp
from calibrl.planning.value_iteration import MDP, action_values, policy_iteration, policy_value, value_iteration


def dense_policy_value(mdp, policy):
    """V = (I - γP)⁻¹ r by dense linear algebra, one state at a time."""
    t = mdp.to_dense()
    chain = np.array([t[s, policy[s]] for s in range(mdp.states)])
    reward = np.array([mdp.reward[s, policy[s]] for s in range(mdp.states)])
    return np.linalg.solve(np.eye(mdp.states) - mdp.discount * chain, reward)


def exact_value(p, r, gamma):
    """V (S,) of P (S, S) and r (S,) by Gauss-Jordan elimination in fractions."""
    rows = [[*((s == t) - gamma * p[s][t] for t in range(len(r))), r[s]] for s in range(len(r))]
    for k in range(len(r)):
        rows[k] = [x / rows[k][k] for x in rows[k]]
        rows = [
            row if s == k else [x - row[k] * y for x, y in zip(row, rows[k], strict=True)] for s, row in enumerate(rows)
        ]
    return [row[-1] for row in rows]


def fractions(p, r, policy):
    """What a policy makes of T (S, A, S) and rewards (S, A), in fractions."""
    chain = [[Fraction(chance) for chance in p[s, a]] for s, a in enumerate(policy)]
    return chain, [Fraction(r[s, a]) for s, a in enumerate(policy)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(1, 4), st.integers(1, 6), st.floats(0, 0.97), st.integers(0, 10**6))
def test_value_iteration_is_the_linear_solve_of_its_policy_to_1e_10(states, actions, successors, discount, seed):
    mdp = random_mdp(states, actions, successors, generator=np.random.default_rng(seed), discount=discount)
    found = value_iteration(mdp)
    assert found.error <= 1e-10
    np.testing.assert_allclose(found.value, dense_policy_value(mdp, found.policy), rtol=0, atol=1e-10)
    # Optimal: no action is better anywhere.
    assert (action_values(mdp, found.value).max(1) <= found.value + 1e-9).all()


def test_optimum_is_that_of_the_linear_programme():
    mdp = random_mdp(12, 3, 4, generator=np.random.default_rng(5), discount=0.9)
    t = mdp.to_dense()
    # min Σ V subject to V ≥ r + γ T V for all actions.
    rows = np.concatenate([mdp.discount * t[:, a] - np.eye(12) for a in range(3)])
    bound = np.concatenate([-mdp.reward[:, a] for a in range(3)])
    lp = linprog(np.ones(12), A_ub=rows, b_ub=bound, bounds=(None, None))
    np.testing.assert_allclose(value_iteration(mdp).value, lp.x, atol=1e-7)
    np.testing.assert_allclose(policy_iteration(mdp).value, lp.x, atol=1e-7)


def test_closed_form_of_a_machine_that_breaks():
    """One action; working pays 1 and breaks with chance q, broken stays broken: V = 1 / (1 - γ(1 - q))."""
    q, discount = 0.2, 0.95
    mdp = MDP.dense([[[1 - q, q]], [[0, 1]]], [1, 0], discount=discount)
    expected = [1 / (1 - discount * (1 - q)), 0]
    np.testing.assert_allclose(policy_value(mdp, [0, 0]), expected, atol=1e-13)
    np.testing.assert_allclose(value_iteration(mdp).value, expected, atol=1e-10)


@pytest.mark.parametrize("states", [50, 3000])
def test_policy_value_solves_its_equation_directly_and_iteratively(states):
    generator = np.random.default_rng(states)
    mdp = random_mdp(states, 3, 4, generator=generator, discount=0.97)
    chance = generator.dirichlet(np.ones(3), size=states)
    value = policy_value(mdp, chance)
    expected = (chance * action_values(mdp, value)).sum(1)
    np.testing.assert_allclose(value, expected, atol=1e-11)


def test_policy_value_when_the_iterative_solver_stalls():
    """A long deterministic line, where Krylov methods crawl: the value is a geometric sum."""
    states, discount = 3000, 0.9
    to = np.minimum(np.arange(states) + 1, states - 1)
    reward = np.zeros(states)
    reward[-1] = 1.0
    mdp = MDP.listed(to[:, None, None], np.ones((states, 1, 1)), reward, discount=discount)
    expected = discount ** (states - 1 - np.arange(states)) / (1 - discount)
    np.testing.assert_allclose(policy_value(mdp, np.zeros(states, dtype=int)), expected, atol=1e-10)


def test_policy_value_does_not_slow_down_as_the_discount_nears_one():
    """A ring that takes 3000 steps to go round, and one whose rewards would overflow an inner product."""
    states, discount = 3000, 0.99999
    to = (np.arange(states) + 1) % states
    reward = np.zeros(states)
    reward[-1] = 1.0
    expected = discount ** (states - 1 - np.arange(states)) / (1 - discount**states)
    began = time.process_time()
    for size in (1.0, 1e200):
        mdp = MDP.listed(to[:, None, None], np.ones((states, 1, 1)), size * reward, discount=discount)
        np.testing.assert_allclose(policy_value(mdp, np.zeros(states)) / size, expected, rtol=1e-9)
    assert time.process_time() - began < 5


def test_policy_value_where_one_state_of_many_pays():
    mdp = random_mdp(5000, 2, 4, generator=np.random.default_rng(0), discount=0.999)
    goal = MDP(mdp.rows, mdp.successor, mdp.probability, 1e-9 * np.eye(5000)[:, :2], mdp.discount)
    value = policy_value(goal, np.zeros(5000))
    np.testing.assert_allclose(value, action_values(goal, value)[:, 0], rtol=0, atol=1e-23)


def test_value_iteration_settles_where_sums_are_long():
    generator = np.random.default_rng(0)
    mdp = MDP.dense(generator.dirichlet(np.ones(800), (800, 2)), generator.normal(size=(800, 2)), discount=0.9999)
    found = value_iteration(mdp, max_iterations=200)
    assert np.abs(found.value - policy_value(mdp, found.policy)).max() <= found.error < 1e-7


def test_chances_that_sum_to_one_only_as_float32_does_are_scaled():
    generator = np.random.default_rng(0)
    p = generator.random((20, 3, 20)).astype(np.float32)
    p /= p.sum(-1, keepdims=True)
    whole = p / p.sum(-1, keepdims=True, dtype=np.float64)
    reward = generator.random((20, 3))
    loose, exact = (MDP.dense(chance, reward, discount=0.9999) for chance in (p, whole))
    expected = policy_iteration(exact).value
    for found in (policy_iteration(loose), value_iteration(loose)):
        assert np.abs(found.value - expected).max() <= found.error + policy_iteration(exact).error
    chance = generator.random((20, 3)).astype(np.float32)
    chance /= chance.sum(-1, keepdims=True)
    right = policy_value(exact, chance / chance.sum(-1, keepdims=True, dtype=np.float64))
    np.testing.assert_allclose(policy_value(exact, chance), right, rtol=1e-10)
    # Every step pays 1: with rows a little above 1 and γ near 1 the sum would not even converge.
    mdp = MDP.dense(np.full((4, 2, 4), 0.25) + 1e-7, np.ones((4, 2)), discount=0.9999999)
    np.testing.assert_allclose(policy_iteration(mdp).value, 1e7, rtol=1e-8)


def test_an_mdp_does_not_change_with_the_array_it_was_made_of():
    p = np.ones((1, 1, 1))
    mdp = MDP.listed([[[0]]], p, [1.0], discount=0.5)
    p[:] = 0.5
    assert policy_value(mdp, [0])[0] == pytest.approx(2.0)


def test_stochastic_and_deterministic_policies_agree():
    mdp = random_mdp(20, 3, 5, generator=np.random.default_rng(1), discount=0.9)
    policy = np.arange(20) % 3
    np.testing.assert_allclose(policy_value(mdp, policy), policy_value(mdp, np.eye(3)[policy]), atol=1e-13)
    np.testing.assert_allclose(policy_value(mdp, policy), dense_policy_value(mdp, policy), atol=1e-11)


def test_near_one_discount_meets_what_float64_can():
    mdp = random_mdp(10, 2, 3, generator=np.random.default_rng(3), discount=0.9999)
    found = value_iteration(mdp)
    assert np.abs(found.value - dense_policy_value(mdp, found.policy)).max() < 1e-6


def test_a_hundred_thousand_states_take_seconds():
    mdp = random_mdp(100_000, 10, 10, generator=np.random.default_rng(0), discount=0.95)
    value_iteration(random_mdp(2, 2, 2, generator=np.random.default_rng(0)))  # compile
    began = time.process_time()
    found = value_iteration(mdp, tolerance=1e-8)
    assert time.process_time() - began < 20
    assert np.abs(action_values(mdp, found.value).max(1) - found.value).max() < 2e-8


def test_rewards_by_successor_are_averaged():
    p = np.array([[[0.25, 0.75]], [[1.0, 0.0]]])
    r = np.array([[[4.0, 8.0]], [[1.0, 99.0]]])
    mdp = MDP.dense(p, r, discount=0.5)
    np.testing.assert_allclose(mdp.reward, [[7.0], [1.0]])
    listed = MDP.listed(np.array([[[0, 1]], [[0, 1]]]), p, r, discount=0.5)
    np.testing.assert_allclose(listed.reward, mdp.reward)
    np.testing.assert_allclose(listed.to_dense(), mdp.to_dense())


def test_matrices_of_any_kind_for_each_action():
    generator = np.random.default_rng(5)
    p, r = generator.dirichlet(np.ones(4), (2, 4)), generator.normal(size=(2, 4, 4))
    expected = (p * r).sum(-1).T
    thin, thin_r = [[sparse.csr_matrix(one) for one in part] for part in (p, r)]
    for probability, reward in (
        (thin, r),
        (thin, list(r)),
        (thin, thin_r),
        ([p[0], thin[1]], [thin_r[0], r[1]]),
        (list(p), thin_r),
        (thin, expected),
    ):
        found = MDP.by_action(probability, reward, discount=0.9)
        np.testing.assert_allclose(found.reward, expected, atol=1e-12)
        np.testing.assert_allclose(found.to_dense(), np.swapaxes(p, 0, 1))
    for reward in (r[:, :3], list(r[:1])):
        with pytest.raises(CalibrlError, match=r"rewards of shapes .* do not fit; expected 2 of shape"):
            MDP.by_action(thin, reward, discount=0.9)


def test_policy_iteration_begins_from_any_policy():
    mdp = random_mdp(6, 3, 4, generator=np.random.default_rng(1))
    wanted = policy_iteration(mdp).policy
    for start in (np.zeros(6), [2, 0, 1, 0, 1, 2], np.full((6, 3), 1 / 3), np.eye(3)[[0, 1, 2, 0, 1, 2]]):
        assert (policy_iteration(mdp, start=start).policy == wanted).all()
    for start, words in (
        ([0, 0, 3, 0, 0, 0], "outside 0 … 2"),
        ([0, 1], "shape"),
        (np.full((6, 3), 0.5), "sum to 1.5"),
    ):
        with pytest.raises(CalibrlError, match=words):
            policy_iteration(mdp, start=start)


@pytest.mark.parametrize("discount", [0.0, 0.99, 0.9999, 0.999999])
def test_the_error_that_is_claimed_is_not_exceeded(discount):
    # Binary fractions, so that the exact solution is one of fractions.
    p = np.array([[[0.75, 0.25], [0.5, 0.5]], [[0.25, 0.75], [0.125, 0.875]]])
    r = np.array([[0.5, 0.25], [-0.75, 1.0]])
    mdp, gamma = MDP.dense(p, r, discount=discount), Fraction(discount)
    for found in (value_iteration(mdp), policy_iteration(mdp)):
        exact = exact_value(*fractions(p, r, found.policy), gamma)
        worst = max(abs(Fraction(float(value)) - true) for value, true in zip(found.value, exact, strict=True))
        assert float(worst) <= found.error


@pytest.mark.parametrize("discount", [0.9, 0.999999, 1 - 1e-8])
@pytest.mark.parametrize("seed", range(3))
def test_policy_iteration_ends_at_the_optimum_however_near_one_the_discount_is(discount, seed):
    """Every step pays about 1 and actions differ by a thousandth: against all 27 policies, in fractions."""
    generator = np.random.default_rng(seed)
    p = np.stack([generator.multinomial(64, [1 / 3] * 3, size=3) for _ in range(3)], 1) / 64
    r = 1 + generator.integers(-8, 9, size=(3, 3)) / 4096
    gamma = Fraction(discount)
    values = [exact_value(*fractions(p, r, actions), gamma) for actions in product(range(3), repeat=3)]
    best = [max(column) for column in zip(*values, strict=True)]
    found = policy_iteration(MDP.dense(p, r, discount=discount), start=np.zeros(3))
    worst = max(abs(Fraction(float(value)) - true) for value, true in zip(found.value, best, strict=True))
    assert float(worst) <= found.error <= 1e-14 * found.value.max() / (1 - discount)


def test_policy_iteration_settles_ties():
    """Two copies of one world, with states from which either can be entered: whichever is, is as good."""
    generator = np.random.default_rng(0)
    to, pays = generator.integers(0, 40, (40, 3)), generator.normal(size=40)
    doors = generator.integers(0, 40, (60, 1)) + np.array([0, 40, 0])
    successor = np.concatenate([to, to + 40, doors])[..., None]
    reward = np.concatenate([pays, pays, np.zeros(60)])
    for discount in (0.9, 0.9999, 0.999999, 1 - 1e-8):
        found = policy_iteration(MDP.listed(successor, np.ones((140, 3, 1)), reward, discount=discount))
        np.testing.assert_allclose(found.value[:40], found.value[40:80], atol=found.error)
        assert found.error < 1e-14 * np.abs(found.value).max() / (1 - discount)


def test_large_chains_are_not_factorised_because_values_are_large(monkeypatch):
    mdp = random_mdp(4000, 4, 4, generator=np.random.default_rng(1), discount=0.999999)
    monkeypatch.setattr(linalg, "spsolve", None)
    value = policy_value(mdp, np.zeros(4000))
    np.testing.assert_allclose(value, action_values(mdp, value)[:, 0], rtol=1e-14)


def test_one_successor_listed_twice_adds_up():
    mdp = MDP.listed([[[0, 0]]], [[[0.4, 0.6]]], [1.0], discount=0.5)
    np.testing.assert_allclose(mdp.to_dense(), [[[1.0]]])
    assert policy_value(mdp, [0])[0] == pytest.approx(2.0)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("pay", ["state", "action", "successor"])
def test_one_matrix_for_each_action_dense_or_sparse(kind, pay):
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(6), size=(6, 3)) * (generator.random((6, 3, 6)) < 0.6) + 0.1 * np.eye(6)[:, None]
    p /= p.sum(-1, keepdims=True)
    reward = generator.normal(size={"state": (6,), "action": (6, 3), "successor": (6, 3, 6)}[pay])
    expected = MDP.dense(p, reward, discount=0.9)
    given = [kind(reward[:, a]) for a in range(3)] if pay == "successor" else reward
    found = MDP.by_action([kind(p[:, a]) for a in range(3)], given, discount=0.9)
    np.testing.assert_allclose(found.to_dense(), expected.to_dense(), atol=1e-15)
    np.testing.assert_allclose(found.reward, expected.reward, atol=1e-15)
    np.testing.assert_allclose(value_iteration(found).value, value_iteration(expected).value, atol=1e-9)


HALF = [[[0.5, 0.5]], [[0.5, 0.5]]]
THIN = sparse.eye_array(2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MDP.dense([[[0.5, 0.4]], [[0.5, 0.5]]], [0, 1], discount=0.9), "state 0 sum to 0.9, not 1"),
        (lambda: MDP.dense([[[0.5, 0.5]], [[1.5, -0.5]]], [0, 1], discount=0.9), "action 0 in state 1 is -0.5"),
        (lambda: MDP.dense([[[0.5, 0.5]], [[np.nan, 0.5]]], [0, 1], discount=0.9), "state 1 is nan"),
        (lambda: MDP.dense([[[0.5, 0.5]], [[np.nan, 0.5]]], np.ones((2, 1, 2)), discount=0.9), "probability .* is nan"),
        (lambda: MDP.dense([[[0.0, 0.0]], [[0.5, 0.5]]], [0, 1], discount=0.9), "state 0 leads nowhere"),
        (lambda: MDP.dense(HALF, [0, 1], discount=1.0), "discount 1.0 is outside"),
        (lambda: MDP.dense(HALF, [0, 1], discount=-0.1), "discount -0.1 is outside"),
        (lambda: MDP.dense(HALF, [0, 1], discount=float("nan")), "discount nan is outside"),
        (lambda: MDP.dense(HALF, [0, np.inf], discount=0.5), "reward of action 0 in state 1 is inf"),
        (lambda: MDP.dense(HALF, [0, 1, 2], discount=0.5), r"rewards of shape \(3,\)"),
        (lambda: MDP.dense([[0.5, 0.5]], [0], discount=0.5), r"expected \(S, A, S\)"),
        (lambda: MDP.listed([[[5]]], [[[1.0]]], [0], discount=0.5), "successor 5 is not one of"),
        (lambda: MDP.listed([[[0.5]]], [[[1.0]]], [0], discount=0.5), "not state numbers"),
        (lambda: MDP.listed(np.zeros((3, 1, 1), int), np.ones((2, 1, 1)), [0, 1], discount=0.5), "successors of shape"),
        (lambda: MDP.dense(HALF, None, discount=0.5), "do not fit|no array"),
        (lambda: MDP.dense([[1, 2], [3]], [0], discount=0.5), "no array of numbers"),
        (lambda: MDP.dense(HALF, [0, 1], discount="a"), "discount a is outside"),
        # Rewards by action and state, as other libraries keep them, are not those by state and action.
        (lambda: MDP.by_action([THIN] * 3, np.zeros((3, 2)), discount=0.5), r"rewards of shape \(3, 2\) do not fit"),
        (lambda: MDP.by_action([THIN], 1.0, discount=0.5), r"rewards of shape \(\) do not fit"),
        (lambda: MDP.by_action([], [], discount=0.5), "probabilities of shapes"),
        (lambda: MDP.by_action([THIN, np.eye(3)], [0, 1], discount=0.5), "probabilities of shapes"),
        (lambda: policy_value(MDP.dense(HALF, [0, 1], discount=0.5), ["a", "b"]), "policy of type list"),
        (lambda: policy_value(MDP.dense(HALF, [0, 1], discount=0.5), [0, 1]), "actions outside 0 … 0"),
        (lambda: policy_value(MDP.dense(HALF, [0, 1], discount=0.5), [[0.5], [1.0]]), "state 0 sum to 0.5"),
        (lambda: policy_value(MDP.dense(HALF, [0, 1], discount=0.5), [0, 0, 0]), r"policy of shape \(3,\)"),
        (lambda: value_iteration(MDP.dense(HALF, [0, 1], discount=0.5), tolerance=0), "tolerance 0"),
        (lambda: value_iteration(MDP.dense(HALF, [0, 1], discount=0.9), max_iterations=1), "1 iterations leave"),
        (
            lambda: value_iteration(MDP.dense(HALF, [0, 1], discount=0.9), max_iterations=0),
            "max_iterations 0 is too few",
        ),
        (lambda: action_values(MDP.dense(HALF, [0, 1], discount=0.9), [1.0]), r"values of shape \(1,\)"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, words):
    with pytest.raises(CalibrlError, match=words) as problem:
        make()
    assert "\n" not in str(problem.value)

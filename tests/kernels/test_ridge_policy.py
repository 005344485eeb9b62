"""The chance of being the highest, against closed forms, quadrature and draws."""

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from calibrl.bandits import CalThompson, CompiledRidge, Exploration, Policy, RidgeSettings, Thompson
from calibrl.kernels import ridge_policy
from calibrl.kernels.ridge_policy import NODES, chances


def normals(mean, sd):
    return np.array(mean, float)[:, None] + np.array(sd, float)[:, None] * NODES


@pytest.mark.parametrize("sd", [(1, 1), (1, 0.1), (0.1, 1), (1, 1e-6)])
@pytest.mark.parametrize("ahead", [0, 0.4, 2, 4, 5])
def test_two_normals_have_a_closed_form_far_into_the_tail(sd, ahead):
    expected = norm.cdf(-ahead / np.hypot(*sd))
    assert chances(normals([0, ahead], sd), NODES) == pytest.approx([expected, 1 - expected], rel=0.02)


def test_several_normals_by_quadrature():
    generator = np.random.default_rng(0)
    mean, sd = generator.standard_normal(5), generator.exponential(size=5)
    found = chances(normals(mean, sd), NODES)
    assert found.sum() == pytest.approx(1)
    for a in range(5):
        others = [b for b in range(5) if b != a]

        def density(y, a=a, others=others):
            return norm.pdf(y, mean[a], sd[a]) * norm.cdf(y, mean[others], sd[others]).prod()

        expected, _ = integrate.quad(density, mean[a] - 8 * sd[a], mean[a] + 8 * sd[a], limit=500)
        assert found[a] == pytest.approx(expected, rel=0.01, abs=1e-9)


def test_atoms_are_told_apart_by_lot():
    atom, coin = np.zeros(len(NODES)), np.where(NODES < 0, -1.0, 1.0)
    assert chances(np.stack([atom, atom, atom]), NODES) == pytest.approx([1 / 3] * 3)
    assert chances(np.stack([coin, coin]), NODES) == pytest.approx([0.5, 0.5])
    assert chances(np.stack([atom, NODES]), NODES) == pytest.approx([0.5, 0.5], abs=1e-3)
    # The better of two coins is 1 in three cases of four, and both share those in which both are.
    assert chances(np.stack([atom, coin, coin]), NODES) == pytest.approx([0.25, 0.375, 0.375], abs=0.02)
    assert chances(atom[None], NODES) == pytest.approx([1.0])


@pytest.mark.parametrize("make", [Thompson, CalThompson])
def test_probabilities_are_those_of_the_levels_a_policy_draws(make):
    generator = np.random.default_rng(1)
    for policy in (
        make(4, 2, spread=0.7),
        Policy(CompiledRidge(4, RidgeSettings(2, calibrated=make is CalThompson)), Exploration(0.5, 2.0), 4),
    ):
        x = generator.standard_normal((200, 2))
        arm = generator.integers(4, size=200)
        policy.update(x, arm, x[:, 0] * arm / 4 + generator.exponential(size=200))
        said = list(policy.probabilities(x[0]).values())
        chosen = [policy.choose(x[0]) for _ in range(20_000)]
        np.testing.assert_allclose(said, np.bincount(chosen, minlength=4) / 20_000, atol=0.012)


def test_an_unlikely_arm_is_not_called_impossible():
    """What is logged as the propensity of a rare decision is later divided by."""
    policy = Thompson(2, 1)
    policy.update(np.ones((400, 1)), [1] * 400, np.full(400, 4.0))
    forecast = policy.forecast([1.0])
    gap = (forecast.mean[1] - forecast.mean[0]) / forecast.variance.sum().sqrt()
    assert policy.probabilities([1.0])[0] == pytest.approx(norm.cdf(-float(gap)), rel=0.02)


def test_many_numbers_in_coarser_cells_are_as_likely_as_in_fine_ones(monkeypatch):
    generator = np.random.default_rng(0)
    curves = normals(generator.standard_normal(60), generator.exponential(size=60) + 0.1)
    coarse = chances(curves, NODES)
    monkeypatch.setattr(ridge_policy, "MANY", 1000)
    fine = chances(curves, NODES)
    likely = fine > 1e-6
    np.testing.assert_allclose(coarse[likely], fine[likely], rtol=0.02)
    assert coarse.sum() == pytest.approx(1)

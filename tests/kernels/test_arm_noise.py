"""The noise of arms: the compiled kernel against plain linear algebra, and what its formulas promise."""

import numpy as np
import pytest

from calibrl.bandits import CalibratedUCB
from calibrl.kernels import arm_noise, ridge_policy


def history(n, *, arms=3, dim=4, seed=0, turns=0, scale=1.0):
    """Rows whose rewards are higher after `turns` of them."""
    generator = np.random.default_rng(seed)
    x, arm = generator.standard_normal((n, dim)), generator.integers(arms, size=n)
    theta = generator.standard_normal((arms, dim))
    reward = np.einsum("nd,nd->n", x, theta[arm]) + np.array([0.1, 0.5, 2.0])[arm % 3] * generator.standard_normal(n)
    reward[turns or n :] += 6
    return x, arm, scale * reward


def learnt(x, arm, reward, *, arms=3, **settings):
    policy = CalibratedUCB(arms, x.shape[1], **settings)
    for row in zip(x, arm.tolist(), reward, strict=True):
        policy.update(*row)
    return policy


def described(policy, at):
    """Mean, width, sure and single of every arm."""
    model = policy.ridge
    mean, width, _ = model._scores(at[None], np.ones(len(policy.arms)))
    sure, single = np.empty(len(mean)), np.empty(len(mean))
    ridge_policy.say(model.state, model.rules, at[None], np.empty(len(mean)), sure, single)
    return mean, width, sure, single


@pytest.mark.parametrize(("n", "turns", "ridge"), [(0, 0, 1.0), (1, 0, 1.0), (60, 0, 3.0), (330, 240, 1.0)])
def test_the_kernel_is_the_reference(n, turns, ridge):
    x, arm, reward = history(n, turns=turns)
    policy, at = learnt(x, arm, reward, ridge=ridge), np.array([0.3, -1.0, 0.2, 2.0])
    *expected, changes = arm_noise.reference(x, arm, reward, at, 3, ridge=ridge)
    for found, wanted in zip(described(policy, at), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10)
    assert policy.ridge.state.changes[0] == changes == bool(turns)


def test_the_unit_of_rewards_does_not_matter():
    x, arm, reward = history(200)
    at = np.ones(4)
    small, large = (described(learnt(x, arm, scale * reward), at) for scale in (0.01, 100.0))
    for one, other in zip(small, large, strict=True):
        np.testing.assert_allclose(1e4 * one, other, rtol=1e-8)


def test_noise_is_learnt_arm_by_arm():
    x, arm, reward = history(3000)
    state = learnt(x, arm, reward).ridge.state
    noise = [arm_noise.honest(row, 1.0, theta @ theta, 4) for row, theta in zip(state.noise, state.theta, strict=True)]
    np.testing.assert_allclose(noise, [0.1, 0.5, 2.0], rtol=0.05)


def test_arms_without_rewards_take_noise_from_the_others():
    """Two policies alike but for how noisy the other arms are: a new arm's bonus follows them."""
    bonus = []
    for noise in (0.01, 1.0):
        generator = np.random.default_rng(0)
        policy = CalibratedUCB(3, 1)
        for t in range(100):
            policy.update([1.0], t % 2, 5.0 + noise * generator.standard_normal())
        policy.update([1.0], 2, 5.0)
        bonus.append(described(policy, np.ones(1))[1][2])
    assert bonus[0] < bonus[1]


def test_a_starved_arm_comes_back():
    policy = CalibratedUCB(2, 1)
    for _ in range(8):
        policy.update([1.0], 0, 0.0)
    policy.update([1.0], 1, 1.0)
    for _ in range(10_000):
        arm = policy.choose([1.0])
        if arm == 0:
            break
        policy.update([1.0], 1, 0.5)
    assert arm == 0


def test_all_arms_are_forgotten_when_one_changes_and_chance_is_no_change():
    x, arm, reward = history(900, turns=600)
    watching, blind = learnt(x, arm, reward), learnt(x, arm, reward, watch=False)
    assert (watching.ridge.state.changes[0], blind.ridge.state.changes[0]) == (1, 0)
    assert watching.ridge.state.noise[:, arm_noise.COUNT].sum() < 400
    assert sum(learnt(*history(2000, seed=seed)).ridge.state.changes[0] for seed in range(3)) == 0

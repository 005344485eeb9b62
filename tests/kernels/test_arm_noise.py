"""The noise of arms: the compiled kernel against plain linear algebra, and what its formulas promise."""

import numpy as np
import pytest

from calibrl.bandits import CalibratedUCB
from calibrl.bandits.loop import metrics, play
from calibrl.bandits.problems import Stream
from calibrl.kernels import arm_noise, ridge_policy


def reference(x, arm, reward, at, arms, *, ridge=1.0, watch=True):
    """What rows x (n, d), arm (n,), reward (n,) say of the arms at a context (d,), by the formulas of `arm_noise`.

    Returns mean, width, sure and the sd of a single reward, (arms,) each, and how many changes were seen.
    """
    n, d = x.shape
    weight = np.ones(n)  # how much each row still counts
    parts = np.zeros((n, 3))  # of each row: 1, e² / (1 + s²) and the clipped error
    up, down, changes, c = np.zeros(arms), np.zeros(arms), 0, 0.0

    def model(a, t, x_at):
        rows = np.flatnonzero(arm[:t] == a)
        gram = ridge * np.eye(d) + (weight[rows, None] * x[rows]).T @ x[rows]
        theta = np.linalg.solve(gram, (weight[rows] * (reward[rows] - c)) @ x[rows])
        return c + float(x_at @ theta), float(x_at @ np.linalg.solve(gram, x_at)) ** 0.5, float(ridge * theta @ theta)

    def sums(a, t):
        rows = np.flatnonzero(arm[:t] == a)
        return weight[rows] @ parts[rows]

    def unit(t):
        return max(float(np.abs(reward[:t] - c).max(initial=0.0)), arm_noise.UNIT * abs(c)) or 1.0

    def prior(t, x_at):
        return float(unit(t) ** 2 / (1 + x_at @ x_at / ridge))

    def tau(a, t, x_at, rows=arm_noise.OF_OUTCOME):
        count, squares = sums(a, t)[:2]
        q = rows / d**0.5
        left = max(squares - model(a, t, x_at)[2], 0.0)
        return float((q * prior(t, x_at) + left) / (q + count**2 / (count + d))) ** 0.5

    def moved(t):
        total, mean = weight[:t].sum(), np.average(reward[:t], weights=weight[:t])
        variance = (weight[:t] @ (reward[:t] - mean) ** 2 + mean**2) / total
        aim = mean * np.clip(mean**2 / (arm_noise.NEAR * variance) - 1, 0, 1) if variance > 0 else c
        return float(aim if abs(aim - c) > arm_noise.STEP * variance**0.5 else c)

    for t in range(n):
        a = int(arm[t])
        mean, s, _ = model(a, t, x[t])
        z = np.clip((reward[t] - mean) / (tau(a, t, x[t]) * (1 + s * s) ** 0.5), -arm_noise.CLIP, arm_noise.CLIP)
        count, _, errors = sums(a, t)
        rounds = np.log(1 + weight[:t].sum())
        if watch and count >= arm_noise.AFTER + arm_noise.AFTER_DIM * d:
            off = z - (errors + z) / (count + 1)
            up[a], down[a] = (
                max(0.0, up[a] + off - arm_noise.UP_ALLOWANCE),
                max(0.0, down[a] - off - arm_noise.DOWN_ALLOWANCE),
            )
            if (
                up[a] > arm_noise.UP_ALARM + arm_noise.UP_LOG * rounds
                or down[a] > arm_noise.DOWN_ALARM + arm_noise.DOWN_LOG * rounds
            ):
                weight[:t] *= arm_noise.KEEP
                up[:], down[:], changes, z = 0.0, 0.0, changes + 1, z * arm_noise.KEEP
                mean, s, _ = model(a, t, x[t])
        parts[t] = 1.0, (reward[t] - mean) ** 2 / (1 + s * s), z
        if (aim := moved(t + 1)) != c:
            far, near = (float(weight[: t + 1] @ (reward[: t + 1] - place) ** 2) for place in (c, aim))
            parts[: t + 1, 1] *= min(near / far, 1.0)
            c = aim
    total, here = weight.sum(), prior(n, at)
    mean, s, _ = np.array([model(a, n, at) for a in range(arms)]).T
    count, squares, _ = np.array([sums(a, n) for a in range(arms)]).T
    common = np.exp(np.log((arm_noise.PRIOR * here + squares) / (arm_noise.PRIOR + count)).mean())
    lack = 2 * np.log(max(total, 1.0) / (arms * (np.maximum(count, 1.0) + arm_noise.SHARE * d)))
    variance = (arm_noise.PRIOR * here + squares + arm_noise.POOLED * common) / (
        arm_noise.PRIOR + arm_noise.POOLED + count
    )
    sigma = np.sqrt(np.where(variance > common, variance**0.75 * common**0.25, variance))
    short, noisy, two = np.maximum(lack - 1, 0), variance / unit(n) ** 2, 0.0
    if n:
        middle, low, high = np.average(reward, weights=weight), reward.min(), reward.max()
        ratio = np.average((reward - middle) ** 2, weights=weight) / max((high - middle) * (middle - low), 1e-300)
        two = np.clip(2 * ratio - 1, 0, 1)
    calm = arm_noise.BERNSTEIN * short * np.maximum(1 - arm_noise.CALM * noisy, 0)
    yes_or_no = arm_noise.CLICKS * two * np.minimum(short, arm_noise.MOST) * np.maximum(1 - 4 * noisy, 0)
    lonely = arm_noise.STARVED * np.maximum(lack - arm_noise.ALONE, 0)
    seldom = unit(n) * (np.maximum(calm, yes_or_no) + lonely) * s**2 / (1 + s**2)
    widths = (
        np.sqrt(np.maximum(1, lack - arm_noise.LATE)) * sigma * s / (1 + (s**2 / arm_noise.FAR) ** 2) ** 0.25 + seldom
    )
    widths = np.where(count == 0, np.maximum(widths, abs(c)), widths)
    spread, spread_of_mean = (
        np.array([tau(a, n, at, rows) for a in range(arms)]) for rows in (arm_noise.OF_OUTCOME, arm_noise.OF_MEAN)
    )
    known = spread_of_mean**2 * s**2 * (1 + arm_noise.SELECTED * np.maximum(lack, 0)) / (1 + arm_noise.WIDE * s**2)
    sures = np.sqrt(known + arm_noise.HELD * (s**2 * here / unit(n)) ** 2)
    return mean, widths, sures, spread * np.sqrt(1 + s**2), changes


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
    mean, narrow, width, _ = model._scores(at[None], np.ones(len(policy.arms)))
    sure, single = np.empty((2, len(mean)))
    ridge_policy.say(model.state, model.rules, at[None], mean, narrow, sure, single)
    return mean, width, sure, single


@pytest.mark.parametrize(("n", "turns", "ridge"), [(0, 0, 1.0), (1, 0, 1.0), (60, 0, 3.0), (330, 240, 1.0)])
def test_the_kernel_is_the_reference(n, turns, ridge):
    x, arm, reward = history(n, turns=turns)
    policy, at = learnt(x, arm, reward, ridge=ridge), np.array([0.3, -1.0, 0.2, 2.0])
    *expected, changes = reference(x, arm, reward, at, 3, ridge=ridge)
    for found, wanted in zip(described(policy, at), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10)
    assert policy.ridge.state.changes[0] == changes == bool(turns)


def test_rewards_of_two_values_bring_arms_back_that_had_less_than_their_share():
    """An arm that is better than it looks is noisier than it looks, where the two go together."""
    x, arm, reward = history(120)
    arm[8:] %= 2
    reward, at = 5.0 * (reward > 0), np.array([0.3, -1.0, 0.2, 2.0])
    policy = learnt(x, arm, reward)
    *expected, _ = reference(x, arm, reward, at, 3)
    for found, wanted in zip(described(policy, at), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-8)
    state = policy.ridge.state
    assert arm_noise.twofold(state.rewards) == pytest.approx(1.0)
    others = learnt(x, arm, np.where(np.arange(120) % 3, reward, 2.5))
    assert arm_noise.twofold(others.ridge.state.rewards) < 0.5
    state.rewards[arm_noise.HIGH] = 50.0  # as if there had been others between
    assert described(policy, at)[1][2] < expected[1][2]


def test_probabilities_are_corrected_as_the_formulas_say():
    """The correction of log-odds by plain arithmetic, from means and widths that other tests derive."""
    x, arm, reward = history(150)
    arm, reward = np.minimum(arm, 1), (reward > 0.5).astype(float)  # the third arm has no reward
    policy = CalibratedUCB(3, 4)
    own, common, ones = [[0.0, 0.0] for _ in range(3)], [0.0, 0.0], 0.0
    for t, (row, a, paid) in enumerate(zip(x, arm.tolist(), reward, strict=True)):
        middle = np.log((ones + 1) / (t - ones + 1))
        mean, _, sure, single = described(policy, row)
        wide = 2 / np.pi * sure**2
        share = (1 + np.sqrt(mean**2 + wide) - np.sqrt((1 - mean) ** 2 + wide)) / 2
        least = 1 / (np.bincount(arm[:t], minlength=3) + 50)
        share = np.clip(share, least, 1 - least)
        off = np.log(share / (1 - share)) - middle
        p = 1 / (1 + np.exp(-(middle + np.array(own)[:, 0] + (1 + common[0]) * off)))
        if t:
            np.testing.assert_allclose(single, p, rtol=1e-8)
            np.testing.assert_allclose(policy.forecast(row).outcome.probs, p, rtol=1e-8)
        for learnt_so_far, by in ((own[a], 1.0), (common, off[a])):
            learnt_so_far[1] = min(learnt_so_far[1] + max(p[a] * (1 - p[a]), 1e-3) * by**2, 40)
            learnt_so_far[0] += by * (paid - p[a]) / (4 + learnt_so_far[1])
        policy.update(row, a, paid)
        ones += paid
    assert np.ptp(np.array(own)[:2, 0]) > 0.05 < abs(common[0])


def test_a_mean_brought_back_to_probabilities():
    """Against Gauss-Hermite quadrature."""
    at, weight = np.polynomial.hermite_e.hermegauss(200)
    for mean, sd in [(0.0, 0.05), (0.3, 1e-9), (0.3, 0.1), (0.95, 0.2), (-0.4, 0.3), (1.6, 0.5)]:
        exact = weight @ np.clip(mean + sd * at, 0, 1) / weight.sum()
        assert arm_noise.share(mean, sd) == pytest.approx(exact, abs=0.02)


def test_the_unit_of_rewards_does_not_matter():
    x, arm, reward = history(200)
    at = np.ones(4)
    small, large = (described(learnt(x, arm, scale * reward), at) for scale in (0.01, 100.0))
    for one, other in zip(small, large, strict=True):
        np.testing.assert_allclose(1e4 * one, other, rtol=1e-8)


def test_noise_is_learnt_arm_by_arm():
    x, arm, reward = history(3000)
    state = learnt(x, arm, reward).ridge.state
    noise = [
        arm_noise.honest(*row[:2], 1.0, theta @ theta, 4, 0.8)
        for row, theta in zip(state.noise, state.theta, strict=True)
    ]
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


@pytest.mark.parametrize("pays", [lambda t: float(t % 2), lambda _: 0.5], ids=["in turn", "always the same"])
def test_a_starved_arm_comes_back(pays):
    policy = CalibratedUCB(2, 1)
    for _ in range(8):
        policy.update([1.0], 0, 0.0)
    policy.update([1.0], 1, 1.0)
    for t in range(10_000):
        arm = policy.choose([1.0])
        if arm == 0:
            break
        policy.update([1.0], 1, pays(t))
    assert arm == 0


def test_all_arms_are_forgotten_when_one_changes_and_chance_is_no_change():
    x, arm, reward = history(900, turns=600)
    watching, blind = learnt(x, arm, reward), learnt(x, arm, reward, watch=False)
    assert (watching.ridge.state.changes[0], blind.ridge.state.changes[0]) == (1, 0)
    assert watching.ridge.state.noise[:, arm_noise.COUNT].sum() < 400
    assert sum(learnt(*history(2000, seed=seed)).ridge.state.changes[0] for seed in range(3)) == 0


@pytest.mark.parametrize("turns", [0, 240])
def test_the_kernel_is_the_reference_where_rewards_lie_far_from_0(turns):
    x, arm, reward = history(330, turns=turns)
    reward, at = reward - 40.0, np.array([0.3, -1.0, 0.2, 2.0])
    policy = learnt(x, arm % 2, reward)  # the third arm has no reward
    *expected, changes = reference(x, arm % 2, reward, at, 3)
    for found, wanted in zip(described(policy, at), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7)
    assert policy.ridge.state.changes[0] == changes
    assert policy.ridge.state.rewards[arm_noise.OFFSET] == pytest.approx(reward.mean(), abs=6)


def test_rewards_far_from_0_are_learnt_as_well_as_others():
    """100 and -100 more for every reward: the same regret, nearly, and the same coverage."""
    regret, covered = [], []
    for offset in (0.0, 100.0, -100.0):
        for seed in range(3):
            generator = np.random.default_rng(seed)
            x = np.concatenate([np.ones((1000, 1)), generator.standard_normal((1000, 4))], 1)
            expected = offset + x @ generator.standard_normal((5, 3))
            stream = Stream(x, expected + 0.3 * generator.standard_normal(expected.shape), expected)
            found = metrics(play(stream, CalibratedUCB(3, 5), seed=seed))
            regret.append(found["regret"] / (expected.max(1) - expected.mean(1)).sum())
            covered.append((found["mean_coverage"], found["mean_coverage_all"]))
    assert max(regret) < 0.1  # of what choosing blindly costs
    assert np.mean(covered) > 0.8


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_arms_that_always_pay_the_same_are_told_apart(unit):
    for seed in range(6):
        policy = CalibratedUCB(3, seed=seed)
        for _ in range(200):
            arm = policy.choose()
            policy.update(None, arm, unit * (5.0, 5.1, 5.3)[arm])
        assert policy.pulls[2] > 180


def test_rewards_are_not_centred_where_they_vary_as_much_as_their_size():
    x, arm, reward = history(500)
    assert learnt(x, arm, reward + 1.0).ridge.state.rewards[arm_noise.OFFSET] == 0
    clicks = np.random.default_rng(0).random(500) < 0.5
    assert learnt(x, arm, clicks.astype(float)).ridge.state.rewards[arm_noise.OFFSET] == 0

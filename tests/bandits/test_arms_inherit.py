"""What was learnt is taken along when settings, columns or arms change."""

import json

import numpy as np
import pytest
import torch

from calibrl import CalibrlError
from calibrl.bandits import POLICIES, CalibratedUCB, CalLinUCB, ConformalLinUCB, Durable, LinUCB, Policy
from calibrl.kernels import arm_noise


def rows(n, seed=0, arms="ab"):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((n, 3)), generator.choice(list(arms), n).tolist(), generator.random(n)


def same(mine, theirs, *, watch=True):
    """Whether two policies know the same, to rounding; without `watch`, but for what is counted in sds of noise."""
    for name, part, other in zip(mine.ridge.state._fields, mine.ridge.state, theirs.ridge.state, strict=True):
        if name in ("ordered", "arrived") and not watch and mine.ridge.settings.learnt:
            continue
        upto = arm_noise.ERRORS if name == "noise" and not watch else None
        np.testing.assert_allclose(part[..., :upto], other[..., :upto], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("shared", [False, True])
def test_new_columns_are_as_if_they_had_been_0(name, shared):
    x, arm, reward = rows(50)
    old = POLICIES[name](["a", "b"], 3, window=16, shared=shared)
    always = POLICIES[name](["a", "b"], 5, window=16, shared=shared)
    for i in range(50):
        old.update(x[i], arm[i], reward[i])
        always.update([*x[i], 0, 0], arm[i], reward[i])
    new = POLICIES[name](["a", "b"], 5, window=16, shared=shared).inherit(old)
    # How sure a policy is of an arm's noise depends on how many columns there are, and so does what surprised it.
    same(new, always, watch=False)
    for policy in (new, always):
        policy.update([[1.0, 2.0, 3.0, 4.0, 5.0]] * 20, ["a", "b"] * 10, np.arange(20) / 20)
    same(new, always, watch=False)


def test_other_settings_and_arms_keep_what_both_have():
    x, arm, reward = rows(60, arms="abc")
    old = LinUCB(["a", "b", "c"], 3)
    old.update(x, arm, reward)
    new = CalLinUCB(["c", "new", "a"], 3, explore=0.1, ridge=2.0, window=12).inherit(old)
    always = CalLinUCB(["c", "a"], 3, ridge=2.0)
    known = np.array(arm) != "b"
    always.update(x[known], np.array(arm)[known], reward[known])
    asked = np.array([0.3, -1.0, 0.5])
    np.testing.assert_allclose(new.forecast(asked).base.mean[[0, 2]], always.forecast(asked).base.mean)
    np.testing.assert_array_equal(new.record("a"), old.record("a")[-12:])
    assert new.pulls == {"c": old.pulls["c"], "new": 0, "a": old.pulls["a"]}
    level = torch.full((3,), 0.8, dtype=torch.float64)
    assert float(new.forecast(asked).icdf(level)[1]) == pytest.approx(0.8416212 * (1.34 / 2) ** 0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinUCB(2, 2), r"contexts of 2 columns are shorter than the 3 .* give 0 for one that is gone"),
        (lambda: LinUCB(2, 3, shared=True), "one policy has shared=True, the other False"),
        (lambda: LinUCB(2, 3, window=2048), "window 2048 is longer than the 1024 rewards that were kept; use 1024"),
        (lambda: ConformalLinUCB(2, 3), "cannot use each other's records"),
    ],
)
def test_what_cannot_be_taken_along_is_said(make, words):
    with pytest.raises(CalibrlError, match=words):
        make().inherit(LinUCB(2, 3))


def test_a_kept_policy_gets_a_new_column(tmp_path):
    with Durable(tmp_path / "old", lambda: CalLinUCB(["a", "b"], 3)) as bandit:
        bandit.update(*rows(30))
    with pytest.raises(CalibrlError, match=r"dim 3, and make\(\) builds one with dim 4; .*make\(\)\.inherit\(Policy"):
        Durable(tmp_path / "old", lambda: CalLinUCB(["a", "b"], 4))

    def make():
        return CalLinUCB(["a", "b"], 4).inherit(Policy.load(tmp_path / "old"))

    for _ in range(2):  # the second time the folder has it
        with Durable(tmp_path / "new", make) as wider:
            assert wider.pulls == bandit.pulls
            torch.testing.assert_close(
                wider.forecast([1.0, 0.0, 2.0, 0.0]).mean, bandit.forecast([1.0, 0.0, 2.0]).mean, rtol=1e-9, atol=0
            )


# Fading.


def test_faded_rewards_count_less_in_the_regression():
    """Against weighted least squares by plain linear algebra."""
    (x, _, reward), (later, _, more) = rows(40), rows(10, seed=1)
    policy = LinUCB(["a"], 3)
    policy.update(x, ["a"] * 40, reward)
    policy.fade(0.5)
    policy.fade(np.float32(0.5))
    policy.update(later, ["a"] * 10, more)
    weight = np.r_[np.full(40, 0.25), np.ones(10)]
    every, paid = np.r_[x, later], np.r_[reward, more]
    precision = np.eye(3) + every.T @ (weight[:, None] * every)
    asked = np.array([1.0, -0.5, 2.0])
    forecast = policy.forecast(asked)
    assert float(forecast.mean) == pytest.approx(asked @ np.linalg.solve(precision, every.T @ (weight * paid)))
    assert float(forecast.stddev) == pytest.approx((asked @ np.linalg.solve(precision, asked)) ** 0.5)
    assert policy.pulls == {"a": 50}


@pytest.mark.parametrize("name", ["linucb", "callinucb", "conformal-linucb", "thompson"])
def test_a_policy_that_fades_follows_a_change(name):
    generator = np.random.default_rng(0)
    x = np.c_[generator.standard_normal((6000, 2)), np.ones(6000)]
    first, then = generator.standard_normal((2, 3, 3))
    pays = np.where(np.arange(6000)[:, None] < 4000, x @ first.T, x @ then.T)
    noise = 0.3 * generator.standard_normal(6000)
    lost = {}
    for keep in (1.0, 0.3):
        policy = POLICIES[name](3, 3, explore=0.02)
        taken = []
        for t in range(6000):
            if t % 500 == 0:
                policy.fade(keep)
            taken.append(policy.choose(x[t]))
            policy.update(x[t], taken[-1], pays[t, taken[-1]] + noise[t])
        regret = pays.max(1) - pays[np.arange(6000), taken]
        lost[keep] = regret[2000:4000].mean(), regret[5000:].mean()
    assert lost[0.3][0] < 0.1
    assert lost[0.3][1] < 0.1
    assert lost[1.0][1] > 2 * lost[0.3][1]


@pytest.mark.parametrize("keep", [0, 1.5, -1, float("nan"), [0.5], "half"])
def test_what_is_no_share_is_refused_and_fades_nothing(keep, tmp_path):
    with Durable(tmp_path, lambda: LinUCB(["a", "b"], 3)) as bandit:
        bandit.update(*rows(10))

        def everything():
            parts = [part.tolist() for part in bandit.policy.ridge.state]
            return parts, (tmp_path / "journal.jsonl").read_bytes()

        before = everything()
        with pytest.raises(CalibrlError, match=r"keep .* not"):
            bandit.fade(keep)
        assert everything() == before


def test_fading_is_kept(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3))
    bandit.update(*rows(30))
    bandit.fade(0.5)
    bandit.update(*rows(5, seed=1))
    again = Policy.load(tmp_path)
    again.ridge.settle()
    bandit.policy.ridge.settle()
    for mine, theirs in zip(again.ridge.state, bandit.policy.ridge.state, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[1])["fade"] == 0.5
    bandit.close()


def far(n=80):
    """Rows whose rewards lie far from 0."""
    x, arm, reward = rows(n)
    return np.concatenate([np.ones((n, 1)), x], 1), arm, 100 + reward


def test_rewards_far_from_0_are_kept_by_a_file_and_by_heirs(tmp_path):
    x, arm, reward = far()
    policy = CalibratedUCB(["a", "b"], 4)
    policy.update(x, arm, reward)
    assert policy.ridge.state.rewards[arm_noise.OFFSET] > 90
    policy.save(tmp_path / "policy.json")
    same(Policy.load(tmp_path / "policy.json"), policy)
    same(CalibratedUCB(["a", "b"], 4).inherit(policy), policy)
    # LinUCB learns rewards as they are, and knows the same whether it was told by them or by an heir.
    told = LinUCB(["a", "b"], 4)
    told.update(x, arm, reward)
    heir = LinUCB(["a", "b"], 4).inherit(policy)
    np.testing.assert_allclose(heir.forecast(x[0]).mean, told.forecast(x[0]).mean, rtol=1e-9)
    back = CalibratedUCB(["a", "b"], 4).inherit(told)
    back.update(x, arm, reward)
    assert back.ridge.state.rewards[arm_noise.OFFSET] > 90

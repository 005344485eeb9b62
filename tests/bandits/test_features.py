"""Contexts as users have them: dicts and sparse rows decide as the same numbers in arrays, scaled as they come."""

import numpy as np
import pytest
from scipy import sparse

from calibrl import CalibrlError
from calibrl.bandits import CalibratedUCB, Durable, LinUCB, Policy
from calibrl.bandits.features import Features

COUNTRIES = ("fr", "de", "it")


def visitors(n, seed=0):
    """The same visitors as dicts, and as the numbers that stand for them: a constant, age, income, then countries."""
    generator = np.random.default_rng(seed)
    age, income = generator.normal(40, 10, n), generator.normal(1e6, 3e5, n)
    country = [*range(3), *generator.integers(3, size=n - 3)]
    dicts = [{"age": a, "income": b, "country": COUNTRIES[c]} for a, b, c in zip(age, income, country, strict=True)]
    # Words take their columns in the order they are first seen, and the first visitors are of one country each.
    return dicts, np.column_stack([np.ones(n), age, income, np.eye(3)[country]])


def paid(row, arm):
    return float(row[1] > 40) if arm == "a" else float(row[3])


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("make", [CalibratedUCB, LinUCB])
def test_dicts_and_sparse_rows_decide_as_the_same_numbers(make, scale):
    dicts, rows = visitors(80)
    if not scale:
        dicts, rows = [one | {"income": one["income"] / 1e6} for one in dicts], rows / [1, 1, 1e6, 1, 1, 1]
    named, array, thin = (make(["a", "b"], dim=6, scale=scale) for _ in range(3))
    for one, row in zip(dicts, rows, strict=True):
        arm = array.choose(row)
        assert named.choose(one) == thin.choose(sparse.csr_array(row[None])) == arm
        for policy, x in ((named, one), (array, row), (thin, sparse.csr_array(row[None]))):
            policy.update(x, arm, paid(row, arm))
    assert named.ridge.to_plain() == array.ridge.to_plain() == thin.ridge.to_plain()
    assert list(named.predict(dicts)) == list(array.predict(rows)) == list(thin.predict(sparse.csr_array(rows)))
    assert len({*array.predict(rows)}) == 2


def test_scales_are_means_and_deviations_of_the_rows_so_far():
    _, rows = visitors(50)
    found, after = Features(6, scale=True).learnt(rows, ())
    for t in range(1, 50):
        numbers = rows[: t + 1, 1:3]
        assert np.allclose(found[t, 1:3], (numbers[t] - numbers.mean(0)) / numbers.std(0))
    assert (found[0, 1:3] == 0).all()  # one row does not vary
    assert (found[:, [0, 3, 4, 5]] == rows[:, [0, 3, 4, 5]]).all()  # constants and indicators stay
    assert np.allclose(after.mean, rows.mean(0))
    assert np.allclose((after.squares / 50)[1:3], rows.var(0)[1:3])
    next_one = after.scaled(rows[3] * 2)
    both = np.vstack([rows, rows[3] * 2])[:, 1:3]
    assert np.allclose(next_one[1:3], (both[-1] - both.mean(0)) / both.std(0))


def test_the_unit_of_a_feature_does_not_matter():
    _, rows = visitors(60)
    one, other = (CalibratedUCB(["a", "b"], dim=6, scale=True) for _ in range(2))
    unit = np.array([1, 12, 1e-3, 1, 1, 1])
    for row in rows:
        arm = one.choose(row)
        assert other.choose(row * unit) == arm
        one.update(row, arm, paid(row, arm))
        other.update(row * unit, arm, paid(row, arm))


def test_fit_learns_row_by_row_and_from_the_beginning():
    dicts, rows = visitors(60)
    arms = ["a", "b"] * 30
    rewards = [paid(row, arm) for row, arm in zip(rows, arms, strict=True)]
    slow = CalibratedUCB(["a", "b"], dim=6, scale=True)
    for x, arm, reward in zip(dicts, arms, rewards, strict=True):
        slow.update(x, arm, reward)
    fast = CalibratedUCB(["a", "b"], dim=6, scale=True)
    for _ in range(2):
        assert fast.fit(dicts, arms, rewards) is fast
        assert fast.to_plain() == slow.to_plain()
    with pytest.raises(CalibrlError, match="row 7 of the log: a reward holds nan"):
        fast.fit(dicts, arms, [*rewards[:7], np.nan, *rewards[8:]])
    assert fast.to_plain() == slow.to_plain()


def test_names_and_scales_are_kept(tmp_path):
    dicts, rows = visitors(40)
    policy = CalibratedUCB(["a", "b"], dim=7, scale=True).fit(dicts, ["a", "b"] * 20, rows[:, 3])
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    fresh, _ = visitors(30, seed=1)
    for one in [*fresh, {"age": 30, "phone": "new"}]:
        arm = policy.choose(one)
        assert again.choose(one) == arm
        policy.update(one, arm, 1.0)
        again.update(one, arm, 1.0)
    assert again.to_plain() == policy.to_plain()
    wider = CalibratedUCB(["a", "b"], dim=9, scale=True).inherit(policy)
    assert np.allclose(wider.forecast(fresh[0]).mean.mean, policy.forecast(fresh[0]).mean.mean)
    with pytest.raises(CalibrlError, match="scale=False, the other True"):
        CalibratedUCB(["a", "b"], dim=9).inherit(policy)


def test_a_folder_keeps_names_and_scales_and_contexts_as_they_were_given(tmp_path):
    dicts, rows = visitors(30)

    def make():
        return CalibratedUCB(["a", "b"], dim=7, scale=True)

    plain, kept = make(), Durable(tmp_path / "kept", make)
    for number, (one, row) in enumerate(zip(dicts, rows, strict=True)):
        # Every other reward comes late, when scales have moved and new names have taken columns.
        arm = plain.decide(one, id=str(number)).arm
        assert kept.decide(one, id=str(number)).arm == arm
        if number % 2:
            for policy in (plain, kept):
                policy.update(dicts[number - 1], arm, paid(row, arm))
                policy.reward(str(number - 1), 0.5)
    restored = Policy.load(tmp_path / "kept")
    assert restored.features.to_plain() == plain.features.to_plain()
    assert restored.ridge.to_plain() == plain.ridge.to_plain()
    kept.close()
    assert Policy.load(tmp_path / "kept").features.to_plain() == plain.features.to_plain()


def test_features_of_arms_may_be_dicts():
    policy = LinUCB(["a", "b"], dim=3, shared=True, scale=True)
    offers = [{"price": 3.0}, {"price": 5.0, "new": True}]
    policy.update(offers, ["a", "b"], [0.0, 1.0])
    assert policy.choose(offers) in ("a", "b")
    assert policy.decide(offers, id="1").arm in ("a", "b")
    assert policy.reward("1", 1.0)
    assert list(policy.predict([offers, offers[::-1]])) == ["b", "a"]


@pytest.mark.parametrize(
    ("x", "problem"),
    [
        ({"a": 1, "b": 1, "c": 1}, "feature 'c' is new, and all of dim 3 columns are taken"),
        ({"a": None}, "feature 'a' is None; give a number or text, or leave it out"),
        ({1: 2.0}, "feature 1 is not a name"),
        ({"a": np.inf}, "holds inf"),
        ([1.0, 2.0], "expected"),
        ([1.0, 1e200, 2.0], "overflows; use a larger unit"),
    ],
)
def test_contexts_that_cannot_be_used_change_nothing(x, problem):
    policy = CalibratedUCB(2, dim=3, scale=True)
    policy.update({"a": 1.5}, 0, 1.0)
    before = policy.to_plain()
    with pytest.raises(CalibrlError, match=problem):
        policy.choose(x)
    with pytest.raises(CalibrlError, match=problem):
        policy.update(x, 0, 1.0)
    assert policy.to_plain() == before


@pytest.mark.parametrize(
    "damage", [{"seen": -1}, {"mean": [0.0]}, {"columns": ["", "a", "a"]}, {"squares": [0.0, -1.0, 0.0]}]
)
def test_damaged_scales_are_refused(damage):
    from calibrl.bandits.policy import from_plain

    policy = CalibratedUCB(2, dim=3, scale=True)
    policy.update({"a": 1.5}, 0, 1.0)
    saved = policy.to_plain()
    with pytest.raises(CalibrlError, match="the saved policy is damaged"):
        from_plain(saved | {"features": saved["features"] | damage})

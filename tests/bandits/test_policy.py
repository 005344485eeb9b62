import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import BayesianRidge

from calibrl import Calibrated, CalibrlError, HeldOut, Rolling
from calibrl.bandits import (
    POLICIES,
    CalLinUCB,
    CalThompson,
    CompiledRidge,
    ConformalLinUCB,
    EpsilonGreedy,
    Exploration,
    Greedy,
    LinUCB,
    Policy,
    RidgeSettings,
    Thompson,
    fit_ecdf,
)
from calibrl.data import Data, random_split
from calibrl.forecasters import BatchedEnsemble, RidgeArms, RidgeShared, SklearnForecaster
from calibrl.forecasters.ensemble import EnsembleTraining
from calibrl.forecasters.nets import Shape

ALL = list(POLICIES.values())


def live(policy, rounds, seed=0, dim=4):
    """Choose and learn for some rounds; returns the arms chosen."""
    generator = np.random.default_rng(seed)
    chosen = []
    for _ in range(rounds):
        x = generator.standard_normal(dim)
        pay = dict(zip(sorted(policy.arms), x, strict=False))
        arm = policy.choose(x)
        policy.update(x, arm, pay[arm] + 0.1 * generator.standard_normal())
        chosen.append(arm)
    return chosen


def everything(policy):
    return json.dumps({"state": [part.tolist() for part in policy.ridge.state], "arms": policy.arms})


# What it computes.


def test_it_is_the_wrapped_forecaster_of_the_paper():
    generator = np.random.default_rng(1)
    policy = CalLinUCB(3, 5)
    plain = Calibrated(RidgeArms(3, 5), evidence=Rolling(), fit_map=fit_ecdf())
    for t in range(80):
        x = generator.standard_normal(5)
        arm = t % 3
        reward = generator.random()
        y = torch.full((1, 3), torch.nan, dtype=torch.float64)
        y[0, arm] = reward
        policy.update(x, arm, reward)
        plain.update(Data(torch.from_numpy(x[None]), y))
    x = generator.standard_normal(5)
    mine, theirs = policy.forecast(x), plain(torch.from_numpy(x[None]))
    for p in (0.01, 0.2, 0.5, 0.841, 0.99):
        level = torch.full((3,), p, dtype=torch.float64)
        np.testing.assert_allclose(mine.icdf(level), theirs.icdf(level)[0], rtol=1e-8, atol=1e-10)


def test_a_batch_of_late_rewards_is_judged_before_any_is_learnt():
    generator = np.random.default_rng(2)
    x, reward = generator.standard_normal((30, 4)), generator.random(30)
    arms = generator.integers(2, size=30)
    policy = CalLinUCB(2, 4)
    plain = Calibrated(RidgeArms(2, 4), evidence=Rolling(), fit_map=fit_ecdf())
    for part in (slice(0, 12), slice(12, 30)):
        policy.update(x[part], arms[part], reward[part])
        y = np.full((len(arms[part]), 2), np.nan)
        y[np.arange(len(y)), arms[part]] = reward[part]
        plain.update(Data.of(x[part], y))
    level = torch.full((2,), 0.7, dtype=torch.float64)
    asked = generator.standard_normal(4)
    expected = plain(torch.from_numpy(asked[None])).icdf(level)[0]
    np.testing.assert_allclose(policy.forecast(asked).icdf(level), expected, rtol=1e-8)


def test_the_order_of_a_batch_changes_nothing_for_a_bare_policy():
    generator = np.random.default_rng(2)
    x, reward, arms = generator.standard_normal((50, 4)), generator.random(50), generator.integers(3, size=50)
    a, b = LinUCB(3, 4), LinUCB(3, 4)
    a.update(x, arms, reward)
    order = generator.permutation(50)
    for i in order:
        b.update(x[i], int(arms[i]), reward[i])
    asked = generator.standard_normal(4)
    np.testing.assert_allclose(a.forecast(asked).mean, b.forecast(asked).mean, rtol=1e-9)
    np.testing.assert_allclose(a.forecast(asked).stddev, b.forecast(asked).stddev, rtol=1e-9)


def test_shared_features_are_one_regression():
    generator = np.random.default_rng(3)
    policy = LinUCB(["a", "b", "c"], 3, shared=True)
    plain = RidgeShared(3)
    for _ in range(40):
        features = generator.standard_normal((3, 3))
        arm = policy.choose(features)
        position = policy.arms.index(arm)
        reward = generator.random()
        policy.update(features[position], arm, reward)
        y = np.full((1, 3), np.nan)
        y[0, position] = reward
        plain.update(Data.of(features[None], y))
    features = generator.standard_normal((3, 3))
    forecast = plain(torch.from_numpy(features[None]))
    np.testing.assert_allclose(policy.forecast(features).mean, forecast.mean[0], rtol=1e-8)
    np.testing.assert_allclose(policy.forecast(features).stddev, forecast.stddev[0], rtol=1e-8)


@pytest.mark.parametrize("make", [LinUCB, CalLinUCB, ConformalLinUCB, Greedy])
def test_arms_can_be_named_in_any_order(make):
    a, b = make(["x", "y", "z"], 4), make(["z", "x", "y"], 4)
    generator = np.random.default_rng(0)
    # The first rounds are ties, broken by place: start both from the same rewards.
    for arm in ("x", "y", "z"):
        start = generator.standard_normal((3, 4))
        a.update(start, [arm] * 3, [1.0, 0.0, 0.5])
        b.update(start, [arm] * 3, [1.0, 0.0, 0.5])
    assert live(a, 200) == live(b, 200)


def test_a_policy_learns_which_arm_pays():
    for make in ALL:
        chosen = live(make(4, 4), 600)
        generator = np.random.default_rng(0)
        best = []
        for _ in range(600):
            best.append(int(generator.standard_normal(4).argmax()))
            generator.standard_normal()
        assert np.mean(np.array(chosen[300:]) == best[300:]) > 0.55, make.__name__


def test_conformal_quantiles_cover_what_they_promise_even_when_the_model_is_wrong():
    generator = np.random.default_rng(0)
    policy = ConformalLinUCB(2, 3)
    inside = []
    for _ in range(3000):
        x = np.append(generator.standard_normal(2), 1.0)
        arm = policy.choose(x)
        quantile = float(policy.forecast(x).icdf(torch.full((2,), 0.8413, dtype=torch.float64))[arm])
        reward = np.sin(3 * x[arm]) + x[1] ** 2 * generator.exponential()
        inside.append(reward <= quantile)
        policy.update(x, arm, reward)
    assert np.mean(inside) == pytest.approx(0.841, abs=0.01)


def test_conformal_levels_do_not_swing_when_rewards_come_in_thousands():
    """A batch's rewards move the level one after another, not all from where it was before the batch."""
    generator = np.random.default_rng(0)
    policy, alone = ConformalLinUCB(1, 1), ConformalLinUCB(1, 1)
    for _ in range(6):
        policy.update(np.ones((2000, 1)), [0] * 2000, generator.standard_normal(2000))
    assert abs(policy.ridge.state.shift[0]) < 1
    quantile = float(policy.forecast([1.0]).icdf(torch.tensor([0.8413], dtype=torch.float64))[0])
    assert quantile == pytest.approx(1, abs=0.25)
    # One at a time is what it was: each reward by the level as it stands.
    for reward in (3.0, -1.0):
        before = alone.ridge.state.shift[0]
        covered = float(alone.forecast([1.0]).icdf(torch.tensor([0.8413447], dtype=torch.float64))[0]) >= reward
        alone.update([1.0], 0, reward)
        assert alone.ridge.state.shift[0] - before == pytest.approx(0.03 * (0.8413447 - covered), abs=1e-6)


# What it says of its choices.


@pytest.mark.parametrize("make", ALL)
def test_probabilities_are_those_of_the_choices(make):
    policy = make(3, 4)
    live(policy, 60)
    x = np.random.default_rng(5).standard_normal(4)
    said = policy.probabilities(x)
    assert sum(said.values()) == pytest.approx(1)
    seen = [policy.choose(x) for _ in range(3000)]
    for arm, probability in said.items():
        assert seen.count(arm) / 3000 == pytest.approx(probability, abs=0.035)
    decision = policy.decide(x)
    assert decision.probability == pytest.approx(said[decision.arm])


def test_ties_share_their_probability():
    assert LinUCB(4, 2).probabilities([1.0, 2.0]) == dict.fromkeys(range(4), 0.25)


# A changing set of arms.


def test_new_arms_are_tried_and_removed_arms_are_not():
    policy = CalLinUCB(["a", "b"], 4)
    live(policy, 100)
    policy.add_arm("c")
    assert "c" in live(policy, 50)
    before = policy.forecast(np.ones(4)).mean[2]
    policy.remove_arm("a")
    assert policy.arms == ("b", "c")
    assert policy.forecast(np.ones(4)).mean[1] == before
    assert "a" not in live(policy, 50)
    policy.add_arm("a")
    assert policy.pulls["a"] == 0


def test_many_arms_are_quick_to_offer():
    began = time.process_time()
    assert len(LinUCB([f"article {number}" for number in range(30_000)], 1, window=2, min_rewards=2).arms) == 30_000
    assert time.process_time() - began < 5


# Bad input.

BAD = [
    (lambda p: p.choose(np.zeros(3)), r"shape \(3,\); expected \(4,\)"),
    (lambda p: p.choose([1.0, np.nan, 0.0, 0.0]), "holds nan"),
    (lambda p: p.choose(["a", "b", "c", "d"]), "not made of numbers"),
    (lambda p: p.choose([10**400, 0, 0, 0]), r"^context \[1000.*\.\.\..*\] is not made of numbers; pass an array"),
    (lambda p: p.update(np.ones(4), "a", 10**400), "reward 1000.* is not made of numbers"),
    (lambda p: p.choose(np.full((40, 40), "text")), r"^context array\(\[\[.*\.\.\..* is not made of numbers"),
    (lambda p: p.update(np.zeros(3), "a", 1.0), "do not fit"),
    (lambda p: p.update(np.ones(4), "a", np.nan), "reward holds nan"),
    (lambda p: p.update(np.ones(4), "a", np.inf), "reward holds inf"),
    (lambda p: p.update([np.nan] * 4, "a", 1.0), "context holds nan"),
    (lambda p: p.update(np.ones(4), "q", 1.0), "'q' was never offered"),
    (lambda p: p.update(np.ones(4), "gone", 1.0), "'gone' was removed"),
    (lambda p: p.update(np.ones(4), ["a"], 1.0), "was never offered"),
    (lambda p: p.update(np.ones((2, 4)), ["a", "q"], [1.0, 1.0]), "'q'"),
    (lambda p: p.update(np.ones((2, 4)), ["a", "b"], [1.0, np.nan]), "reward holds nan"),
    (lambda p: p.update(np.ones((2, 4)), ["a"], [1.0, 1.0]), "do not fit"),
    (lambda p: p.update(np.full(4, 1e9), "a", 1.0), "singular; standardise"),
    (lambda p: p.update(np.full(4, 1e200), "a", 1.0), "too large"),
    (lambda p: p.choose(np.full(4, 1e200)), "overflows"),
    (lambda p: p.update(np.ones((2, 4)), ["a", "b"], [1.0, -1e160]), r"reward -1e\+160 \(row 1\) is beyond"),
    (lambda p: p.add_arm("a"), "'a' is there already"),
    (lambda p: p.add_arm(1.5), "not a name"),
    (lambda p: p.add_arms("xyz"), r"'xyz' is a word and no list; pass \['xyz'\]"),
    (lambda p: p.remove_arm("q"), "'q' was never offered"),
]


@pytest.mark.parametrize(("act", "words"), BAD)
def test_bad_input_is_named_and_changes_nothing(act, words):
    policy = ConformalLinUCB(["a", "b", "gone"], 4)
    live(policy, 40)
    policy.remove_arm("gone")
    before = everything(policy)
    with pytest.raises(CalibrlError, match=words):
        act(policy)
    assert everything(policy) == before


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LinUCB(0, 3), "at least one arm"),
        (lambda: LinUCB("news", 3), "neither a number of arms nor a list of names"),
        (lambda: LinUCB(2.5, 3), "arms 2.5 is neither"),
        (lambda: LinUCB(None, 3), "arms None is neither"),
        (lambda: LinUCB(2, 3, seed=-1), "seed -1 is not a seed"),
        (lambda: LinUCB(["a", "a"], 3), "there already"),
        (lambda: LinUCB(2, 0), "dim 0"),
        (lambda: CalLinUCB(2, 2.5), "dim 2.5 is not a whole number"),
        (lambda: LinUCB(2, 3, ridge="x"), "ridge 'x' is not a number"),
        (lambda: LinUCB(2, 3, ridge=0.0), "singular"),
        (lambda: LinUCB(2, 3, level=np.inf), "finite"),
        (lambda: EpsilonGreedy(2, 3, explore=1.5), "not from 0 to 1; it is a probability"),
        (lambda: CalLinUCB(2, 3, min_rewards=20, window=10), "no record"),
        (lambda: ConformalLinUCB(2, 3, step=-1.0), "step -1"),
        (lambda: _last_arm(), "last one"),
    ],
)
def test_policies_that_make_no_sense_are_refused(build, words):
    with pytest.raises(CalibrlError, match=words):
        build()


def _last_arm():
    LinUCB(["only"], 2).remove_arm("only")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_features_may_come_from_a_network(dtype):
    policy, plain = CalLinUCB(2, 3), CalLinUCB(2, 3)
    x = torch.tensor([1.0, -0.5, 2.0], dtype=dtype, requires_grad=True)
    assert policy.decide(x) == plain.decide([1.0, -0.5, 2.0])
    policy.update(x, 1, x.sum())
    plain.update([1.0, -0.5, 2.0], 1, 2.5)
    assert everything(policy) == everything(plain)


def test_the_same_row_a_thousand_times_is_no_trouble():
    policy = CalLinUCB(2, 3)
    for _ in range(1100):
        policy.update([1.0, 2.0, 3.0], 0, 1.0)
    forecast = policy.forecast([1.0, 2.0, 3.0])
    assert float(forecast.mean[0]) == pytest.approx(1.0, abs=0.01)
    assert bool(forecast.icdf(torch.full((2,), 0.9, dtype=torch.float64)).isfinite().all())


# Keeping it.


@given(name=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 100), shared=st.booleans())
def test_a_loaded_policy_behaves_the_same(name, seed, shared, tmp_path_factory):
    policy = POLICIES[name](["a", "b", "c"], 2, seed=seed, window=16, shared=shared)
    generator = np.random.default_rng(seed)

    def go(some, rounds, generator):
        chosen = []
        for _ in range(rounds):
            x = generator.standard_normal((len(some.arms), 2) if shared else 2)
            arm = some.choose(x)
            row = x[some.arms.index(arm)] if shared else x
            some.update(row, arm, generator.random())
            chosen.append(arm)
        return chosen

    go(policy, 60, generator)
    policy.remove_arm("b")
    path = tmp_path_factory.mktemp("policies") / "policy.json"
    policy.save(path)
    again = Policy.load(path)
    assert again.arms == policy.arms
    assert go(policy, 40, np.random.default_rng(9)) == go(again, 40, np.random.default_rng(9))
    assert everything(policy) == everything(again)


def test_what_numpy_counted_can_be_saved(tmp_path):
    policy = CalLinUCB(np.int64(3), np.int64(2), ridge=np.float32(2), level=np.float32(1), window=np.int32(20))
    policy.remove_arm(np.int64(1))
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    assert again.arms == (0, 2)
    assert again.settings == policy.settings


@pytest.mark.parametrize("name", POLICIES)
def test_a_loaded_policy_is_of_its_class(name, tmp_path):
    made = POLICIES[name]
    policy = made(2, 3, seed=1)
    assert isinstance(policy, made)
    assert not any(isinstance(policy, other) for other in POLICIES.values() if other is not made)
    live(policy, 30, dim=3)
    policy.save(tmp_path / "policy.json")
    assert type(Policy.load(tmp_path / "policy.json")) is made


def test_a_policy_of_ones_own_is_known_by_name_at_once():
    class Careful(LinUCB, name="careful"):
        """The arm with the highest lower quantile."""

        def __init__(self, arms, dim, **settings):
            super().__init__(arms, dim, level=-1.0, **settings)

    try:
        assert POLICIES["careful"](2, 3).planner == Exploration(-1.0)
        assert isinstance(Careful(2, 3), LinUCB)
        assert Careful.label == "Careful"
    finally:
        del POLICIES["careful"]


# Any forecaster.


def ensemble():
    shape = Shape(inputs=4, outputs=3, members=2, hidden=(8,))
    return BatchedEnsemble(shape, training=EnsembleTraining(epochs=20, weight_decay=1e-4))


def test_the_plain_forecaster_decides_as_the_compiled_one():
    planner = Exploration(1.0, spread=0.5, explore=0.1)
    plain = Policy(Calibrated(RidgeArms(4, 4), evidence=Rolling(), fit_map=fit_ecdf()), planner, 4, seed=3)
    fast = Policy(CompiledRidge(4, RidgeSettings(4, calibrated=True)), planner, 4, seed=3)
    assert live(plain, 150) == live(fast, 150)
    assert plain.pulls == fast.pulls
    x = np.random.default_rng(1).standard_normal(4)
    for among in (None, [3, 1], [True, False, False, True]):
        assert plain.probabilities(x, among=among) == pytest.approx(fast.probabilities(x, among=among), abs=1e-9)
        mine, theirs = plain.forecast(x, among=among), fast.forecast(x, among=among)
        level = torch.full(theirs.batch_shape, 0.8, dtype=torch.float64)
        np.testing.assert_allclose(mine.icdf(level), theirs.icdf(level), rtol=1e-7)
        np.testing.assert_allclose(mine.cdf(level), theirs.cdf(level), rtol=1e-6)
        np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-6)
        np.testing.assert_allclose(mine.stddev, theirs.stddev, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "warm_up"),
    [
        (lambda: SklearnForecaster(BayesianRidge()), 2),
        (lambda: Calibrated(RidgeArms(3, 4, noise=0.1), evidence=Rolling()), 0),
        (
            lambda: Calibrated(
                RidgeArms(3, 4, noise=0.1), evidence=HeldOut(random_split(0.3, torch.Generator().manual_seed(0)))
            ),
            0,
        ),
        (ensemble, 1),
    ],
)
@pytest.mark.parametrize("planner", [Exploration(1.0), Exploration(spread=1.0, explore=0.1)])
def test_any_forecaster_makes_a_policy(make, warm_up, planner):
    policy = Policy(make(), planner, ["a", "b", "c"], seed=1, warm_up=warm_up)
    generator = np.random.default_rng(0)
    earned, best = [], []
    for _ in range(60):
        x = generator.standard_normal(4)
        arm = policy.choose(x)
        pays = dict(zip("abc", x, strict=False))
        policy.update(x, arm, pays[arm] + 0.05 * generator.standard_normal())
        earned.append(pays[arm])
        best.append(max(pays.values()))
    assert min(policy.pulls.values()) >= max(warm_up, 1)
    assert np.mean(earned[30:]) > 0.5 * np.mean(best[30:])
    assert sum(policy.probabilities(x).values()) == pytest.approx(1)
    assert policy.decide(x, among=["b", "c"]).arm in {"b", "c"}
    assert policy.forecast(x, among=["c", "a"]).batch_shape == (2,)


def test_arms_that_lack_rewards_are_tried_before_the_forecaster_is_asked():
    policy = Policy(SklearnForecaster(BayesianRidge()), Exploration(1.0), 3, warm_up=2)
    for t in range(6):
        said = policy.probabilities([1.0, 0.5])
        assert all((chance > 0) == (policy.pulls[arm] < 2) for arm, chance in said.items())
        policy.update([1.0, 0.1 * t], policy.choose([1.0, 0.5]), float(t))
    assert policy.pulls == {0: 2, 1: 2, 2: 2}
    assert policy.forecast([1.0, 0.5]).mean.isfinite().all()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda p: p.add_arm("c"), "only policies by name"),
        (lambda p: p.remove_arm("a"), "only policies by name"),
        (lambda p: p.save("x.json"), "save the forecaster by its own means"),
        (lambda p: p.fade(0.5), "has a RidgeArms"),
        (lambda p: p.inherit(LinUCB(2, 3)), "only policies by name"),
        (lambda p: p.choose([1.0, np.nan, 0.0]), "holds nan"),
        (lambda p: p.update([1.0, 0.0, 0.0], "a", np.inf), "reward holds inf"),
        (lambda p: p.update([1.0, 0.0, 0.0], "q", 1.0), "'q' was never offered"),
        (lambda p: Policy(RidgeArms(3, 3), Exploration(), 2).choose(np.zeros(3)), r"\(1, 3\); expected \(1, 2\)"),
        (lambda p: Policy(CompiledRidge(3, RidgeSettings(2)), Exploration(), 2), "CompiledRidge of 3 arms"),
        (lambda p: Policy("ridge", Exploration(), 2), "no forecaster"),
    ],
)
def test_what_only_the_compiled_model_can_do_is_said(act, words):
    policy = Policy(RidgeArms(2, 3), Exploration(1.0), ["a", "b"])
    policy.update([1.0, 0.0, 0.0], "a", 1.0)
    before = policy.forecast([1.0, 2.0, 3.0]).mean
    with pytest.raises(CalibrlError, match=words):
        act(policy)
    assert policy.forecast([1.0, 2.0, 3.0]).mean.equal(before)


def test_files_that_are_no_policies_are_named(tmp_path):
    with pytest.raises(CalibrlError, match="does not exist"):
        Policy.load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CalibrlError, match="is not JSON"):
        Policy.load(tmp_path / "broken.json")
    (tmp_path / "other.json").write_text('{"format": "else"}')
    with pytest.raises(CalibrlError, match="'else'"):
        Policy.load(tmp_path / "other.json")
    policy = Thompson(2, 2)
    policy.save(tmp_path / "fine.json")
    saved = json.loads((tmp_path / "fine.json").read_text())
    del saved["crc"]
    options = saved["options"]
    for change, words in (
        ({"gram": [[1.0]]}, "gram does not fit 2 arms of dim 2"),
        ({"gram": [[float("nan")] * 3] * 2}, "holds nan"),
        ({"gram": None}, "a list is missing"),
        ({"moment": [[1.0, True], [0.0, "1"]]}, "numbers of type"),
        ({"record": []}, "shorter"),
        ({"record": [["x"], []], "pulls": [1, 0]}, "numbers of type"),
        ({"pulls": [-1, 0]}, "pulls holds -1"),
        ({"noise": [[-1.0] * 7] * 2}, "noise holds -1"),
        ({"noise": [[0.0] * 5] * 2}, "reshape"),
        ({"pulls": [0.5, 0]}, "numbers of type float64"),
        ({"brc": "12345678"}, "it holds 'brc'"),
        ({"options": options | {"dim": 100_000}}, "does not fit 2 arms of dim 100000"),
        ({"options": options | {"window": 10**10}}, "asks for more room than 0 rewards need"),
        ({"options": options | {"target": float("nan")}}, "target nan is not in"),
        ({"options": options | {"shared": "no"}}, "on or off is neither"),
        ({"options": []}, "dictionary update|pop|KeyError|'plan'"),
        ({"generator": {"bit_generator": "PCG64", "state": {"state": -1, "inc": 2**200}}}, ""),
        ({"record": [[0.5], []], "pulls": [2, 0]}, "arm 0 has 2 rewards but a record of 1"),
    ):
        (tmp_path / "cut.json").write_text(json.dumps(saved | change))
        with pytest.raises(CalibrlError, match=rf"the saved policy is damaged \(.*{words}.*\); restore the file"):
            Policy.load(tmp_path / "cut.json")
    with pytest.raises(CalibrlError, match="is a folder; give the path of a file"):
        policy.save(tmp_path)


def test_calibrated_thompson_draws_from_the_record():
    policy = CalThompson(2, 1)
    generator = np.random.default_rng(0)
    for _ in range(200):
        policy.update([1.0], 0, float(generator.integers(2)))
        policy.update([1.0], 1, 0.2)
    # Arm 0 pays 0 or 1 by a coin: draws from its record say so, though its mean is known to two digits.
    record, pulls = policy.record(0), 200
    mean, sd = policy.forecast([1.0]).base.mean[0].item(), (1 + pulls) ** -0.5
    above = np.mean(mean + sd * record > 0.2)
    assert policy.probabilities([1.0])[0] == pytest.approx(above, abs=0.02)
    assert Thompson(2, 1).settings["calibrated"] is False


def test_arms_at_random_are_as_frequent_as_is_said():
    policy = EpsilonGreedy(["good", "bad"], 1, explore=0.4)
    policy.update(np.ones((9, 1)), ["good"] * 9, np.ones(9))
    said = policy.probabilities([1.0])
    assert said == pytest.approx({"good": 0.8, "bad": 0.2})
    chosen = [policy.choose([1.0]) for _ in range(4000)]
    assert chosen.count("bad") / 4000 == pytest.approx(said["bad"], abs=0.025)

import tracemalloc
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge

from calibrl import CalibrlError
from calibrl.bandits import (
    CalibratedUCB,
    CalLinUCB,
    CalThompson,
    ConformalLinUCB,
    EpsilonGreedy,
    Greedy,
    LinUCB,
    Thompson,
)
from calibrl.bandits.evaluation import (
    ESTIMATORS,
    Log,
    diagnose,
    direct_method,
    doubly_robust,
    ips,
    learn_from,
    mean_reward,
    read_log,
    replay_evaluation,
    snips,
    switch_dr,
)
from calibrl.bandits.problems import problem


def logged(rounds, seed, *, skew=0.0):
    """A stream, and the log of a policy that favours arm 0 by `skew`."""
    stream = problem("linear").stream(rounds, np.random.default_rng(seed))
    generator = np.random.default_rng([seed, 7])
    chance = np.full(4, (1 - skew) / 4) + np.array([skew, 0, 0, 0])
    arm = generator.choice(4, size=rounds, p=chance)
    reward = stream.reward[np.arange(rounds), arm]
    return stream, Log(stream.x, tuple(arm.tolist()), reward, chance[arm])


def earned_by(policy, stream, rounds):
    """What the policy earns on average in the first rounds of a stream, learning as it goes."""
    earned = []
    for x, reward in zip(stream.x[:rounds], stream.reward, strict=False):
        arm = policy.choose(x)
        policy.update(x, arm, reward[arm])
        earned.append(reward[arm])
    return np.mean(earned)


def truth(policy, stream):
    chance = np.array([list(policy.probabilities(x).values()) for x in stream.x])
    return (chance * stream.expected).sum(1).mean()


def test_a_log_of_lists_is_one_of_arrays():
    lists = Log([[1], [2]], ["a", "b"], [1, 0], [0.5, 0.5])
    arrays = Log(np.array([[1.0], [2.0]]), np.array(["a", "b"]), np.array([True, False]), np.full(2, 0.5, np.float32))
    for log in (lists, arrays):
        assert log.arm == ("a", "b")
        assert log.arms == ("a", "b")
        assert mean_reward(log).value == 0.5
    assert Log([[1]], np.arange(1), [1.0], [1.0]).arms == (0,)
    with pytest.raises(CalibrlError, match=r"log\[3\] is no part"):
        lists[3]
    with pytest.raises(CalibrlError, match=r"reward .* is not made of numbers"):
        Log([[1]], ["a"], ["much"], [1.0])
    with pytest.raises(CalibrlError, match="level 95 is not between 0 and 1"):
        mean_reward(lists).interval(95)


@pytest.mark.parametrize("make", [LinUCB, EpsilonGreedy, Thompson])
@pytest.mark.parametrize("skew", [0.0, 0.5])
def test_doubly_robust_intervals_hold_the_truth(make, skew):
    hits, errors = 0, []
    for seed in range(12):
        stream, log = logged(500, seed, skew=skew)
        policy = learn_from(make(range(4), 10), log[:60])
        estimate = doubly_robust(policy, log[60:])
        true = np.mean(truth(policy, type(stream)(stream.x[60:], stream.reward[60:], stream.expected[60:])))
        # The stream's own contexts count as given: the interval, made for fresh ones, is on the wide side.
        low, high = estimate.interval(0.95)
        hits += low <= true <= high
        errors.append(estimate.value - true)
    assert hits >= 10
    assert abs(np.mean(errors)) < 0.05


def error_by_hand(said):
    """A standard error, as if the row that is farthest off could come once more."""
    off = said - np.mean(said)
    return ((off**2).sum() / (len(off) - 1) / len(off) + (np.abs(off).max() / len(off)) ** 2) ** 0.5


def test_doubly_robust_is_the_mean_of_what_every_row_says():
    """The formula by hand, with scikit-learn's ridge regression on the other folds."""
    _, log = logged(300, 3, skew=0.3)
    policy = learn_from(EpsilonGreedy(range(4), 10), log[:100])
    log = log[100:]
    x = np.concatenate([log.x, np.ones((200, 1))], 1)
    arm, said = np.array(log.arm), []
    for t in range(200):
        others = np.arange(200) % 5 != t % 5
        q = [
            Ridge(1.0, fit_intercept=False)
            .fit(x[others & (arm == a)], log.reward[others & (arm == a)])
            .predict(x[[t]])[0]
            for a in range(4)
        ]
        chance = np.array(list(policy.probabilities(log.x[t]).values()))
        weight = chance[arm[t]] / log.propensity[t]
        said.append(chance @ q + weight * (log.reward[t] - q[arm[t]]))
    found = doubly_robust(policy, log)
    assert found.value == pytest.approx(np.mean(said))
    assert found.error == pytest.approx(error_by_hand(said))
    with pytest.raises(CalibrlError, match="ridge 0 leaves"):
        doubly_robust(policy, log, ridge=0)


@pytest.mark.parametrize("skew", [0.0, 0.5])
def test_arms_that_are_gone_by_now_are_never_taken(skew):
    """Last month's log judges today's policy, though arm 0 was in it."""
    off, replayed, ran = [], [], []
    for seed in range(12):
        stream, log = logged(600, seed, skew=skew)
        policy = learn_from(LinUCB(range(4), 10), log[:100])
        policy.remove_arm(0)
        estimate = doubly_robust(policy, log[100:])
        chance = np.array([list(policy.probabilities(x).values()) for x in stream.x[100:]])
        off.append((estimate.value - (chance * stream.expected[100:, 1:]).sum(1).mean()) / estimate.error)
        estimate = replay_evaluation(LinUCB([1, 2, 3], 10), log, seed=seed)
        replayed.append(estimate.value)
        ran.append(earned_by(LinUCB([1, 2, 3], 10), stream, estimate.rows))
    assert abs(np.mean(off)) < 3 / 12**0.5
    assert np.mean(replayed) == pytest.approx(np.mean(ran), abs=0.1)


def test_memory_does_not_grow_with_rows_times_arms():
    generator = np.random.default_rng(0)
    x, arm = generator.standard_normal((1500, 1)), np.arange(1500) % 400
    log, policy = Log(x, arm, x[:, 0], np.full(1500, 1 / 400)), Greedy(400, 1)
    policy.probabilities(x[0])  # compiled, or loaded, before anything is measured
    tracemalloc.start()
    doubly_robust(policy, log)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1500 * 400 * 8 / 4


def test_doubly_robust_is_right_when_the_propensities_are_though_the_model_is_not():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4000, 1))
    paid = np.stack([np.cos(3 * x[:, 0]), 0.5 * np.ones(4000)], 1)
    arm = generator.integers(2, size=4000)
    log = Log(x, tuple(arm.tolist()), paid[np.arange(4000), arm], np.full(4000, 0.5))
    policy = LinUCB(2, 1)
    policy.update([[1.0], [-1.0]], [0, 1], [5.0, 5.0])
    estimate = doubly_robust(policy, log)
    chance = np.array([list(policy.probabilities(row).values()) for row in x])
    assert estimate.value == pytest.approx((chance * paid).sum(1).mean(), abs=4 * estimate.error)


@pytest.mark.parametrize("skew", [0.0, 0.4])
def test_replay_agrees_with_running_the_policy(skew):
    replayed, ran = [], []
    for seed in range(6):
        stream, log = logged(3000, seed, skew=skew)
        estimate = replay_evaluation(CalLinUCB(range(4), 10), log, seed=seed)
        replayed.append(estimate.value)
        ran.append(earned_by(CalLinUCB(range(4), 10), stream, estimate.rows))
        assert 0.1 * 3000 < estimate.rows < 0.35 * 3000
    assert np.mean(replayed) == pytest.approx(np.mean(ran), abs=0.04)


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_logs_come_from_files(tmp_path, end):
    _, log = logged(50, 0)
    columns = {f"x{i}": log.x[:, i] for i in range(10)}
    frame = pl.DataFrame({**columns, "arm": list(log.arm), "reward": log.reward, "propensity": log.propensity})
    path = tmp_path / f"log.{end}"
    frame.write_csv(path) if end == "csv" else frame.write_parquet(path)
    found = read_log(path)
    np.testing.assert_allclose(found.x, log.x)
    assert found.arm == log.arm
    assert found.arms == (0, 1, 2, 3)
    assert read_log(path, context=["x1", "x3"]).x.shape == (50, 2)
    assert read_log(path, context=["x1"], propensity=None).propensity[0] == 0.25
    assert mean_reward(found).value == pytest.approx(log.reward.mean())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"propensity": [0.5, 0.0]}, "row 2 has propensity 0"),
        ({"reward": [1.0, None]}, "row 2 has no reward"),
        ({"x": ["a", "b"]}, "column 'x' holds text"),
        ({"arm": [1.0, 0.5]}, r"row 1 has arm 1.0 in column 'arm'; use whole numbers"),
        ({"arm": ["a", None]}, "row 2 has no arm"),
        ({"reward": None}, "no column 'reward'"),
        ({"x": None}, "no context columns"),
    ],
)
def test_broken_logs_are_named(tmp_path, change, words):
    columns = {"x": [1.0, 2.0], "arm": ["a", "b"], "reward": [1.0, 0.0], "propensity": [0.5, 0.5]} | change
    pl.DataFrame({name: values for name, values in columns.items() if values}).write_csv(tmp_path / "log.csv")
    with pytest.raises(CalibrlError, match=words):
        read_log(tmp_path / "log.csv")


def test_an_unused_column_of_propensities_is_no_context(tmp_path):
    frame = pl.DataFrame({"x": [1.0, 2.0], "arm": ["a", "b"], "reward": [1.0, 0.0], "propensity": [0.9, 0.1]})
    frame.write_csv(tmp_path / "log.csv")
    for options in ({"uniform": True}, {"propensity": None}):
        log = read_log(tmp_path / "log.csv", **options)
        np.testing.assert_array_equal(log.x, [[1.0], [2.0]])
        np.testing.assert_array_equal(log.propensity, [0.5, 0.5])
    frame.rename({"propensity": "p"}).write_csv(tmp_path / "log.csv")
    assert read_log(tmp_path / "log.csv", propensity="p", uniform=True).x.shape == (2, 1)
    with pytest.raises(CalibrlError, match="column 'reward' is the reward and no context"):
        read_log(tmp_path / "log.csv", propensity="p", context=["x", "reward"])


def test_a_clock_is_no_context_unless_it_is_asked_for(tmp_path):
    generator = np.random.default_rng(0)
    columns = {"x": generator.standard_normal(40), "ts": 1.7e9 + np.arange(40) // 2, "late": np.arange(40) // 20}
    frame = pl.DataFrame({**columns, "arm": [0, 1] * 20, "reward": [0.5] * 40, "propensity": [0.5] * 40})
    frame.write_csv(tmp_path / "log.csv")
    with pytest.raises(CalibrlError, match=r"'ts' only goes up, .* --context x --context late"):
        read_log(tmp_path / "log.csv")
    assert read_log(tmp_path / "log.csv", context=["x", "ts"]).x.shape == (40, 2)
    frame.with_columns(ts=pl.datetime(2026, 1, 1)).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(CalibrlError, match=r"'ts' holds Datetime.*--context"):
        read_log(tmp_path / "log.parquet")


# What a log cannot say.


def halves(rounds=2000, seed=0):
    """Contexts of which arm a pays the positive part and arm b the negative, and what both pay."""
    x = np.random.default_rng(seed).standard_normal((rounds, 1))
    return x, np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], 1)


def live_log(policy, x, paid, seed=1):
    """What a learning policy leaves behind."""
    generator = np.random.default_rng(seed)
    arms, rewards, propensities = [], [], []
    for row, pays in zip(x, paid, strict=True):
        arm, probability = policy.decide(row)
        rewards.append(pays["ab".index(arm)] + 0.1 * generator.standard_normal())
        policy.update(row, arm, rewards[-1])
        arms.append(arm)
        propensities.append(probability)
    return Log(x, tuple(arms), np.array(rewards), np.array(propensities))


def contrary(x):
    """A policy that always takes the arm that pays nothing."""
    policy = LinUCB(["a", "b"], 1)
    policy.update(x, ["a"] * len(x), -x[:, 0])
    policy.update(x, ["b"] * len(x), x[:, 0])
    return policy


def test_arms_the_log_never_took_cannot_be_judged():
    _, log = logged(500, 0)
    more = CalLinUCB(range(9), 10)
    with pytest.raises(CalibrlError, match=r"takes arm 4 in 11.1% .*55.6% with other .* the log never took it"):
        doubly_robust(more, log)
    with pytest.raises(CalibrlError, match=r"could be taken, is 4 for 9 arms"):
        replay_evaluation(more, log)
    # An arm that is hardly ever taken does not matter.
    two = Log(np.ones((100, 1)), (0, 1) * 50, np.arange(100) % 2 / 2, np.full(100, 0.5))
    timid = EpsilonGreedy(3, 1, explore=0.02)
    timid.update(np.ones((3, 1)), [0, 1, 2], [0.0, 0.5, -9.0])
    assert doubly_robust(timid, two).value == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("make", [CalLinUCB, LinUCB, Greedy])
def test_the_log_of_a_deterministic_policy_judges_no_other(make):
    x, paid = halves()
    log = live_log(make(["a", "b"], 1), x, paid)
    with pytest.raises(CalibrlError, match=r"average 0.* instead of 1, .* for 2 arms.*explore=0.1"):
        doubly_robust(contrary(x), log)
    with pytest.raises(CalibrlError, match=r"replay needs a log in which every arm could be taken"):
        replay_evaluation(CalLinUCB(["a", "b"], 1), log)


@pytest.mark.parametrize("make", [CalLinUCB, LinUCB, ConformalLinUCB, Thompson, CalThompson])
def test_with_some_random_arms_it_does(make):
    x, paid = halves()
    log = live_log(make(["a", "b"], 1, explore=0.2), x, paid)
    assert log.propensity.min() >= 0.1
    for policy, true in ((contrary(x), 0.0), (learn_from(Greedy(["a", "b"], 1), log), paid.max(1).mean())):
        estimate = doubly_robust(policy, log)
        assert estimate.value == pytest.approx(true, abs=4 * estimate.error)
        assert not estimate.note
    assert replay_evaluation(CalLinUCB(["a", "b"], 1), log).rows > 100


def test_a_policy_that_acts_as_the_log_did_can_be_judged_from_it():
    x, paid = halves()
    log = live_log(CalLinUCB(["a", "b"], 1), x, paid)
    estimate = doubly_robust(learn_from(CalLinUCB(["a", "b"], 1), log[:500]), log[500:])
    assert estimate.value == pytest.approx(paid[500:].max(1).mean(), abs=4 * estimate.error)
    assert "act much like the logged one" in estimate.note


def test_wrong_propensities_are_noticed():
    _, log = logged(500, 0)
    wrong = Log(log.x, log.arm, log.reward, np.full(500, 0.9))
    with pytest.raises(CalibrlError, match="check that propensities are those of the arms taken"):
        doubly_robust(LinUCB(range(4), 10), wrong)
    with pytest.raises(CalibrlError, match=r"is 1.11 for 4 arms"):
        replay_evaluation(LinUCB(range(4), 10), wrong)


def test_one_tiny_propensity_is_named_and_stops_only_the_replay():
    _, log = logged(2000, 0)
    propensity = log.propensity.copy()
    propensity[1203] = 1e-12
    tiny = Log(log.x, log.arm, log.reward, propensity)
    with pytest.raises(CalibrlError, match=r"keeps 1 of 2000 rows, because log row 1204 has propensity 1e-12"):
        replay_evaluation(LinUCB(range(4), 10), tiny)
    with pytest.raises(CalibrlError, match=r"log row 1204 has propensity 1e-12"):
        replay_evaluation(LinUCB(range(4), 10), tiny[1000:])
    assert not doubly_robust(LinUCB(range(4), 10), tiny[:1000]).note
    assert (
        "log row 1204, of propensity 1e-12, has 100% of the weight"
        in doubly_robust(LinUCB(range(4), 10), tiny[1000:]).note
    )


def test_policies_that_do_not_fit_the_log_are_named():
    _, log = logged(50, 0)
    with pytest.raises(CalibrlError, match="10 context columns, the policy expects 3"):
        replay_evaluation(Greedy(range(4), 3), log)
    with pytest.raises(CalibrlError, match=r"took arm \d and the policy offers '0', and they have none in common"):
        doubly_robust(Greedy(list("0123"), 10), log)
    with pytest.raises(CalibrlError, match="shared"):
        replay_evaluation(Greedy(range(4), 10, shared=True), log)
    with pytest.raises(CalibrlError, match="3 folds"):
        doubly_robust(Greedy(range(4), 10), log[:2], folds=3)
    with pytest.raises(CalibrlError, match="no log"):
        Log(np.zeros((2, 1)), (0,), np.zeros(1), np.ones(1))


# Estimators beside doubly robust.


def spread(log, policy):
    return np.array([list(policy.probabilities(x).values()) for x in log.x])


def test_probabilities_of_a_target_are_as_good_as_its_policy():
    _, log = logged(300, 1, skew=0.3)
    policy = learn_from(EpsilonGreedy(range(4), 10), log[:100])
    rest = log[100:]
    for method in ESTIMATORS.values():
        one, other = method(policy, rest), method(spread(rest, policy), rest)
        assert (one.value, one.rows) == pytest.approx((other.value, other.rows))
    with pytest.raises(CalibrlError, match=r"have shape \(3, 4\); expected \(200, 4\)"):
        ips(np.full((3, 4), 0.25), rest)
    with pytest.raises(CalibrlError, match=r"log row 101 has target probabilities .* sum 1"):
        ips(np.full((200, 4), 0.5), rest)


def test_weights_by_hand():
    _, log = logged(400, 2, skew=0.2)
    target = np.tile([0.1, 0.2, 0.3, 0.4], (400, 1))
    weight = target[0][list(log.arm)] / log.propensity
    assert ips(target, log).value == pytest.approx((weight * log.reward).mean())
    assert ips(target, log).error == pytest.approx(error_by_hand(weight * log.reward))
    assert snips(target, log).value == pytest.approx(np.average(log.reward, weights=weight))
    assert ips(target, log).effective == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    # No weight is large: the same as doubly robust; all are: the same as the direct method.
    robust = doubly_robust(target, log)
    assert switch_dr(target, log).value == pytest.approx(robust.value)
    cut = switch_dr(target, log, most=0)
    assert cut.value == pytest.approx(direct_method(target, log).value)
    # What it left out may be all that is wrong with it, and is known no better than the doubly robust estimate.
    assert cut.error == pytest.approx(np.hypot(robust.error, robust.value - cut.value))


@pytest.mark.parametrize(("first", "lacking"), [(84, 0.16), (100, 0.0), (116, 0.0)])
def test_weights_that_lack_a_part_make_an_estimate_less_sure(first, lacking):
    """Rows that the target would take and the log lacks are as far off as those it has."""
    generator = np.random.default_rng(0)
    n, arm = 200, np.arange(200) >= first  # arm 0 so often, where 100 were to be expected
    reward = generator.standard_normal(n)
    found = ips(np.tile([1.0, 0.0], (n, 1)), Log(np.ones((n, 1)), arm.astype(int), reward, np.full(n, 0.5)))
    values = 2 * np.where(arm, 0.0, reward)
    parts = [values.std(ddof=1) / n**0.5, np.abs(values - values.mean()).max() / n]
    parts.append(0.4 * lacking * (reward[:first] ** 2).mean() ** 0.5)
    assert found.error == pytest.approx(np.hypot.reduce(parts))


def test_no_interval_where_none_is_honest():
    _, log = logged(200, 0)
    target = np.full((200, 4), 0.25)
    for made in (direct_method(target, log), replay_evaluation(LinUCB(range(4), 10), log)):
        with pytest.raises(CalibrlError, match="no honest interval"):
            made.interval()
    uneven = replace(log, propensity=np.where(np.arange(200) == 3, 0.02, log.propensity))
    assert "too uneven for an interval" in ips(target, uneven).note
    with pytest.raises(CalibrlError, match="no honest interval"):
        ips(target, uneven).interval()


def test_features_of_each_arm():
    """A shared model, and the truth: arms pay the first of their own features."""
    generator = np.random.default_rng(0)
    x, arm = generator.standard_normal((600, 3, 2)), generator.integers(3, size=600)
    names = ("a", "b", "c")
    log = Log(x, [names[a] for a in arm], x[np.arange(600), arm, 0], np.full(600, 1 / 3), names=names)
    policy = learn_from(CalibratedUCB(["c", "a", "b"], 2, shared=True), log[:200])
    found = doubly_robust(policy, log[200:])
    assert found.value == pytest.approx(x[200:, :, 0].max(1).mean(), abs=0.1)
    assert replay_evaluation(LinUCB(names, 2, shared=True), log).value > 0.5
    with pytest.raises(CalibrlError, match="the log has features of each arm and the policy needs contexts"):
        doubly_robust(LinUCB(names, 2), log)
    with pytest.raises(CalibrlError, match="need their names"):
        Log(x, arm, x[:, 0, 0], np.full(600, 1 / 3))


def test_diagnostics_see_wrong_propensities_and_little_overlap():
    _, log = logged(2000, 0, skew=0.3)
    even = np.full((2000, 4), 0.25)
    assert diagnose(even, log).doubts == ()
    wrong = replace(log, propensity=np.where(np.array(log.arm) == 1, 0.4, log.propensity))
    assert any("propensities of arm 1 are off" in doubt for doubt in diagnose(even, wrong).doubts)
    few = diagnose(np.tile([0, 0, 0, 1.0], (100, 1)), log[:100])
    assert any("is worth only" in doubt for doubt in few.doubts)
    assert few.mean_weight == pytest.approx(1, abs=0.5)

import numpy as np
import polars as pl
import pytest

from calibrl import CalibrlError
from calibrl.bandits import CalLinUCB, EpsilonGreedy, Greedy, LinUCB, Thompson
from calibrl.bandits.datasets import problem
from calibrl.bandits.evaluation import doubly_robust, learn_from, mean_reward, replay
from calibrl.bandits.logs import Log, read_log


def logged(rounds, seed, *, skew=0.0):
    """A stream, and the log of a policy that favours arm 0 by `skew`."""
    stream = problem("linear").stream(rounds, np.random.default_rng(seed))
    generator = np.random.default_rng([seed, 7])
    chance = np.full(4, (1 - skew) / 4) + np.array([skew, 0, 0, 0])
    arm = generator.choice(4, size=rounds, p=chance)
    reward = stream.reward[np.arange(rounds), arm]
    return stream, Log(stream.x, tuple(arm.tolist()), reward, chance[arm])


def truth(policy, stream):
    chance = np.array([list(policy.probabilities(x).values()) for x in stream.x])
    return (chance * stream.expected).sum(1).mean()


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
        estimate = replay(CalLinUCB(range(4), 10), log, seed=seed)
        replayed.append(estimate.value)
        policy = CalLinUCB(range(4), 10)
        earned = []
        for x, reward in zip(stream.x[: estimate.rows], stream.reward, strict=False):
            arm = policy.choose(x)
            policy.update(x, arm, reward[arm])
            earned.append(reward[arm])
        ran.append(np.mean(earned))
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
        ({"arm": [0.5, 1.0]}, "name no arm"),
        ({"reward": None}, "no column 'reward'"),
        ({"x": None}, "no context columns"),
    ],
)
def test_broken_logs_are_named(tmp_path, change, words):
    columns = {"x": [1.0, 2.0], "arm": ["a", "b"], "reward": [1.0, 0.0], "propensity": [0.5, 0.5]} | change
    pl.DataFrame({name: values for name, values in columns.items() if values}).write_csv(tmp_path / "log.csv")
    with pytest.raises(CalibrlError, match=words):
        read_log(tmp_path / "log.csv")


def test_policies_that_do_not_fit_the_log_are_named():
    _, log = logged(50, 0)
    with pytest.raises(CalibrlError, match="10 context columns, the policy expects 3"):
        replay(Greedy(range(4), 3), log)
    with pytest.raises(CalibrlError, match="has arm 3"):
        doubly_robust(Greedy(range(3), 10), log)
    with pytest.raises(CalibrlError, match="shared"):
        replay(Greedy(range(4), 10, shared=True), log)
    with pytest.raises(CalibrlError, match="3 folds"):
        doubly_robust(Greedy(range(4), 10), log[:2], folds=3)
    with pytest.raises(CalibrlError, match="no log"):
        Log(np.zeros((2, 1)), (0,), np.zeros(1), np.ones(1))

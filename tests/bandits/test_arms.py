"""A decision among some of the arms: an article is sold out, an offer not allowed in a country."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrl import CalibrlError
from calibrl.bandits import (
    POLICIES,
    CalLinUCB,
    CalThompson,
    Durable,
    EpsilonGreedy,
    Greedy,
    LinUCB,
    Policy,
    Thompson,
    arms,
)
from calibrl.bandits.evaluation import Log, doubly_robust, read_log, replay_evaluation

ARMS = ("a", "b", "c", "d")


def taught(name, *, shared=False, seed=0, explore=0.1):
    """A policy of four arms that has seen some rewards."""
    options = {} if name == "greedy" else {"explore": explore}
    policy = POLICIES[name](ARMS, 3, shared=shared, seed=seed, **options)
    generator = np.random.default_rng(seed)
    policy.update(generator.standard_normal((60, 3)), generator.choice(ARMS, 60).tolist(), generator.random(60))
    return policy


def asked(policy, n, seed=1):
    """A context, or the features of n arms."""
    generator = np.random.default_rng(seed)
    return generator.standard_normal((n, 3) if policy.model.shared else 3)


subsets = st.lists(st.sampled_from(ARMS), min_size=1, unique=True)


@given(name=st.sampled_from(sorted(POLICIES)), among=subsets, shared=st.booleans(), seed=st.integers(0, 20))
def test_arms_not_on_offer_have_no_chance_and_the_others_all_of_it(name, among, shared, seed):
    policy = taught(name, shared=shared, seed=seed)
    x = asked(policy, len(among))
    said = policy.probabilities(x, among=among)
    assert tuple(said) == ARMS
    assert all(said[arm] == 0 for arm in ARMS if arm not in among)
    assert sum(said.values()) == pytest.approx(1, abs=1e-12)
    for _ in range(20):
        assert policy.choose(x, among=among) in among
        decision = policy.decide(x, among=among)
        assert decision.probability == said[decision.arm] > 0


@given(name=st.sampled_from(sorted(POLICIES)), shared=st.booleans(), seed=st.integers(0, 20))
def test_among_all_arms_it_is_the_same_decision(name, shared, seed):
    policy, same = taught(name, shared=shared, seed=seed), taught(name, shared=shared, seed=seed)
    x = asked(policy, 4)
    for everyone in (ARMS, list(ARMS), set(ARMS), np.array(ARMS), [True] * 4, np.ones(4, bool), torch.ones(4).bool()):
        assert policy.decide(x) == same.decide(x, among=everyone)
        assert policy.choose(x) == same.choose(x, among=everyone)
        assert policy.probabilities(x) == same.probabilities(x, among=everyone)
    assert policy.generator.bit_generator.state == same.generator.bit_generator.state


# Not of policies that learn noise from all arms: what is known of the others is known of the noise.
@pytest.mark.parametrize("name", sorted(name for name, made in POLICIES.items() if not made.learnt))
@pytest.mark.parametrize("shared", [False, True])
def test_among_some_it_is_the_policy_that_has_no_others(name, shared):
    """The chances are those of a policy whose other arms were removed."""
    policy, small = taught(name, shared=shared), taught(name, shared=shared)
    small.remove_arm("a")
    small.remove_arm("c")
    x = asked(policy, 2)
    expected = small.probabilities(x)
    for among in (["b", "d"], {"d", "b"}, np.array(["b", "d"]), (False, True, False, True), np.array([0, 1, 0, 1]) > 0):
        assert policy.probabilities(x, among=among) == {"a": 0, "c": 0} | expected
    level = torch.full((2,), 0.7, dtype=torch.float64)
    forecast = policy.forecast(x, among=["b", "d"])
    assert forecast.batch_shape == (2,)
    torch.testing.assert_close(forecast.icdf(level), small.forecast(x).icdf(level), rtol=0, atol=0)


@pytest.mark.parametrize("make", [Thompson, CalThompson, EpsilonGreedy])
def test_arms_are_taken_as_often_as_is_said(make):
    policy = make(ARMS, 3, explore=0.2)
    generator = np.random.default_rng(0)
    policy.update(generator.standard_normal((40, 3)), generator.choice(ARMS, 40).tolist(), generator.random(40))
    x, among = generator.standard_normal(3), ["d", "a", "b"]
    said = policy.probabilities(x, among=among)
    chosen = [policy.choose(x, among=among) for _ in range(4000)]
    for arm in ARMS:
        assert chosen.count(arm) / 4000 == pytest.approx(said[arm], abs=0.03)


def test_features_belong_to_the_names_beside_them():
    policy = Greedy(ARMS, 1, shared=True)
    policy.update([[1.0], [2.0]], ["a", "b"], [1.0, 2.0])  # what has larger features pays more
    assert policy.choose([[1.0], [3.0], [2.0]], among=["d", "c", "a"]) == "c"
    assert policy.choose([[1.0], [3.0], [2.0]], among={"d", "c", "a"}) == "c"  # as in `arms`: a, c, d
    assert policy.choose([[1.0], [2.0], [3.0]], among=[True, False, True, True]) == "d"
    mean = policy.forecast([[2.0], [1.0]], among=["d", "a"]).mean
    assert mean[0] == pytest.approx(2 * float(mean[1]))
    with pytest.raises(
        CalibrlError, match=r"shape \(4, 1\); expected \(2, 1\): features of shape \(arms on offer, dim\)"
    ):
        policy.choose(np.ones((4, 1)), among=["d", "a"])


@pytest.mark.parametrize(
    ("among", "words"),
    [
        ([], "among leaves no arm to take; pass at least one"),
        ([False] * 4, "among leaves no arm to take"),
        (["a", "q"], "arm 'q' was never offered"),
        (["a", "gone"], "arm 'gone' was removed: leave it out"),
        (["a", "b", "a"], "among has arm 'a' twice"),
        ([True, False], "among is a mask of 2 for 4 arms"),
        (np.ones((2, 4), bool), r"arm \[True, True, True, True\] was never offered"),
        ("a", "among 'a' is not a list; pass names such as"),
        (5, "among 5 is not a list"),
        ([None], "arm None was never offered"),
    ],
)
def test_what_is_no_choice_of_arms_is_named_and_changes_nothing(among, words):
    policy = taught("thompson")
    policy.add_arm("gone")
    policy.remove_arm("gone")
    before = policy.generator.bit_generator.state
    for ask in (policy.choose, policy.decide, policy.probabilities, policy.forecast):
        with pytest.raises(CalibrlError, match=words):
            ask(np.ones(3), among=among)
    assert policy.generator.bit_generator.state == before


def test_a_kept_policy_has_it_before_and_after_it_is_opened_again(tmp_path):
    x, unbroken = np.ones(3), CalThompson(ARMS, 3)
    chosen = []
    for _ in range(3):
        with Durable(tmp_path, lambda: CalThompson(ARMS, 3)) as bandit:
            for _ in range(5):
                chosen.append(bandit.decide(x, among=["b", "c"]))
                assert chosen[-1] == unbroken.decide(x, among=["b", "c"])
                for one in (bandit, unbroken):
                    one.update(x, chosen[-1].arm, 0.5)
            assert bandit.choose(x, among=["d"]) == unbroken.choose(x, among=["d"]) == "d"
            assert bandit.probabilities(x, among=["d"])["d"] == 1
            assert bandit.forecast(x, among=["d", "a"]).batch_shape == (2,)
        unbroken.ridge.settle()
    assert {decision.arm for decision in chosen} == {"b", "c"}
    unbroken.save(tmp_path / "file.json")
    again = Policy.load(tmp_path / "file.json")
    assert [again.choose(x, among=ARMS[:3]) for _ in range(9)] == [unbroken.choose(x, among=ARMS[:3]) for _ in range(9)]


# Judged from a log.


def shop(rounds, seed, *, policy):
    """Four arms, some of them sold out in each round: the log, and what every arm would pay on average.

    No linear model is right about them, so that estimates have to rely on propensities.
    """
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rounds, 2))
    pays = np.sin(3 * x @ generator.standard_normal((2, 4))) + np.array([0.0, 0.3, -0.2, 0.1])
    stock = generator.random((rounds, 4)) < 0.6
    stock[~stock.any(1), 2] = True
    among = [tuple(np.array(ARMS)[row].tolist()) for row in stock]
    taken = [policy.decide(row, among=names) for row, names in zip(x, among, strict=True)]
    at = np.array([ARMS.index(decision.arm) for decision in taken])
    reward = pays[np.arange(rounds), at] + 0.1 * generator.standard_normal(rounds)
    log = Log(x, [ARMS[a] for a in at], reward, [decision.probability for decision in taken], among=among)
    return log, pays


@pytest.mark.parametrize("make", [Greedy, Thompson])
def test_estimates_from_a_log_of_subsets_are_unbiased(make):
    """In units of their standard errors, estimates scatter around the truth with mean 0 and spread 1."""
    scores = []
    for seed in range(12):
        policy = make(ARMS, 2, seed=seed)
        generator = np.random.default_rng([seed, 1])
        policy.update(generator.standard_normal((30, 2)), generator.choice(ARMS, 30).tolist(), generator.random(30))
        log, pays = shop(200, seed, policy=EpsilonGreedy(ARMS, 2, explore=1.0, seed=1000 + seed))
        asked = zip(log.x, log.among, strict=True)
        chance = np.array([list(policy.probabilities(x, among=among).values()) for x, among in asked])
        estimate = doubly_robust(policy, log)
        assert not estimate.note
        scores.append((estimate.value - (chance * pays).sum(1).mean()) / estimate.error)
    # The contexts are the same in both, so the spread is below 1.
    assert abs(np.mean(scores)) < 3 / 12**0.5
    assert np.std(scores) < 1.3


def test_replay_from_a_log_of_subsets_agrees_with_running_the_policy():
    replayed, ran = [], []
    for seed in range(6):
        log, pays = shop(1500, seed, policy=EpsilonGreedy(ARMS, 2, explore=1.0, seed=1000 + seed))
        estimate = replay_evaluation(CalLinUCB(ARMS, 2), log, seed=seed)
        replayed.append(estimate.value)
        policy, earned = CalLinUCB(ARMS, 2), []
        for x, pay, among in zip(log.x[: estimate.rows], pays, log.among, strict=False):
            arm = policy.choose(x, among=among)
            earned.append(pay[ARMS.index(arm)])
            policy.update(x, arm, earned[-1])
        ran.append(np.mean(earned))
    assert np.mean(replayed) == pytest.approx(np.mean(ran), abs=0.06)


def test_a_log_judges_what_is_left_of_the_arms():
    log, pays = shop(3000, 0, policy=EpsilonGreedy(ARMS, 2, explore=1.0, seed=1000))
    policy = LinUCB(["d", "b", "c"], 2)
    with pytest.raises(CalibrlError, match=r"log row \d+ could take none of the policy's arms"):
        doubly_robust(policy, log)
    left = np.array([names != ("a",) for names in log.among])
    among = [names for names in log.among if names != ("a",)]
    log = Log(log.x[left], np.array(log.arm)[left], log.reward[left], log.propensity[left], among=among)
    estimate = doubly_robust(policy, log)
    assert not estimate.note
    true = 0.0
    for x, names, pay in zip(log.x, log.among, pays[left], strict=True):
        said = policy.probabilities(x, among=set(names) - {"a"})
        true += sum(said[arm] * pay[ARMS.index(arm)] for arm in policy.arms) / len(log)
    assert estimate.value == pytest.approx(true, abs=4 * estimate.error)
    assert replay_evaluation(policy, log).rows > 100


def test_a_log_that_hides_what_was_sold_out_is_refused():
    log, _ = shop(2000, 0, policy=EpsilonGreedy(ARMS, 2, explore=1.0, seed=1000))
    hidden = Log(log.x, log.arm, log.reward, log.propensity)
    with pytest.raises(CalibrlError, match=r"is 2\.\d+ for 4 arms.*list the arms on offer \(among\)"):
        replay_evaluation(CalLinUCB(ARMS, 2), hidden)
    assert replay_evaluation(CalLinUCB(ARMS, 2), log).rows > 100


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_logs_of_subsets_come_from_files(tmp_path, end):
    among = [["a", "b"], None, ["c"]]
    cells = [names and json.dumps(names) for names in among] if end == "csv" else among
    columns = {"x": [1.0, 0.5, 2.0], "arm": ["a", "b", "c"], "reward": [0.0, 1.0, 0.5], "propensity": [0.5, 0.3, 1.0]}
    frame = pl.DataFrame(columns | {"among": cells})
    path = tmp_path / f"log.{end}"
    frame.write_csv(path) if end == "csv" else frame.write_parquet(path)
    log = read_log(path)
    assert log.x.shape == (3, 1)
    assert log.among == (("a", "b"), None, ("c",))
    assert log[1:].among == (None, ("c",))
    assert log.arms == ("a", "b", "c")
    np.testing.assert_allclose(read_log(path, uniform=True).propensity, [1 / 2, 1 / 3, 1])


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ('["b"]', r"log row 1 took arm 'a', which is not among those it could take, \['b'\]"),
        ("a b", r"log row 1 has 'a b' for the arms it could take; use a list of names"),
        ('["a", ["b"]]', r"log row 1 has .* use a list of names"),
        ("5", "log row 1 has 5 for the arms it could take"),
    ],
)
def test_lists_of_arms_that_cannot_be_are_named(tmp_path, cell, words):
    pl.DataFrame({"x": [1.0], "arm": ["a"], "reward": [1.0], "propensity": [1.0], "among": [cell]}).write_csv(
        tmp_path / "log.csv"
    )
    with pytest.raises(CalibrlError, match=words):
        read_log(tmp_path / "log.csv")


def test_lists_of_arms_come_in_many_shapes():
    for among in (np.array([["a", "b"], ["a", "c"]]), [{"a": 1, "b": 2}, ("a", "c")], [["a", "b"], frozenset("ac")]):
        assert Log([[1.0], [2.0]], ["a", "a"], [1.0, 1.0], [1.0, 1.0], among=among).arms == ("a", "b", "c")
    with pytest.raises(CalibrlError, match="among has 1 rows and the log 2"):
        Log([[1.0], [2.0]], ["a", "a"], [1.0, 1.0], [1.0, 1.0], among=[["a"]])


# Arms that come and go.


def test_a_year_of_arms_does_not_fill_the_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(arms, "REMEMBERED", 5)
    policy = LinUCB(["stays"], 1)
    for number in range(20):
        policy.add_arm(number)
        policy.remove_arm(number)
    assert policy.removed == (15, 16, 17, 18, 19)
    policy.add_arm(18)
    policy.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").removed == policy.removed == (15, 16, 17, 19)

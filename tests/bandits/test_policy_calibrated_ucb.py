"""What `CalibratedUCB` promises: two honest distributions, no cost where rewards are noisy, options that are named."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from calibrl import CalibrlError
from calibrl.bandits import CalibratedThompson, CalibratedUCB, LinUCB, Policy
from calibrl.bandits.loop import UPPER, metrics, play
from calibrl.bandits.problems import Stream, problem
from calibrl.kernels import arm_noise


def bernoulli(rates, rounds, seed):
    generator = np.random.default_rng(seed)
    expected = np.tile(rates, (rounds, 1))
    return Stream(np.ones((rounds, 1)), (generator.random(expected.shape) < expected).astype(float), expected)


def test_noisy_clicks_cost_nothing_against_linucb():
    shares = []
    for make in (LinUCB, CalibratedUCB):
        trials = [play(bernoulli([0.05, 0.10], 8000, seed), make(2, 1), seed=seed) for seed in range(8)]
        shares.append(np.mean([trial.stream.expected[:, 1][trial.chosen == 1].size / 8000 for trial in trials]))
    assert shares[1] > 0.9
    assert shares[1] > shares[0] - 0.03


def test_mean_and_outcome_are_two_distributions_and_both_hold():
    """Skewed noise that differs between the arms, and a truth that is known."""
    found = []
    for seed in range(12):
        generator = np.random.default_rng(seed)
        x = generator.standard_normal((2000, 3))
        expected = x @ generator.standard_normal((3, 2))
        reward = expected + np.array([0.2, 1.0]) * (generator.exponential(size=expected.shape) - 1)
        found.append(metrics(play(Stream(x, reward, expected), CalibratedUCB(2, 3), seed=seed)))
    assert 0.8 <= np.mean([one["mean_coverage"] for one in found]) <= 0.9
    assert 0.8 <= np.mean([one["mean_coverage_all"] for one in found]) <= 0.9
    assert 0.87 <= np.mean([one["outcome_interval"] for one in found]) <= 0.93


@pytest.mark.parametrize("link", ["linear", "logistic"])
def test_probabilities_hold_from_the_first_rounds_on(link):
    """Means that a linear model gets wrong, of the arm that looks best: as they are, intervals hold 83 %."""
    held = []
    for seed in range(16):
        stream = problem("logistic").stream(300, np.random.default_rng(seed))
        held.append(metrics(play(stream, CalibratedUCB(4, 11, link=link), seed=seed))["outcome_interval"])
    assert 0.88 <= np.mean(held) <= 0.92


def test_corrections_of_probabilities_are_kept_and_change_no_decision(tmp_path):
    generator = np.random.default_rng(0)
    policy = CalibratedUCB(["a", "b"], 3)
    for _ in range(80):
        x = generator.standard_normal(3)
        policy.update(x, policy.choose(x), float(generator.random() < expit(3 * x[0])))
    state, level = policy.ridge.state, np.ones(2)
    told = policy.forecast(x).outcome.probs
    policy.save(tmp_path / "policy.json")
    for same in (Policy.load(tmp_path / "policy.json"), CalibratedUCB(["b", "a"], 3).inherit(policy)):
        probs = dict(zip(same.arms, same.forecast(x).outcome.probs.tolist(), strict=True))
        assert [probs["a"], probs["b"]] == pytest.approx(told.tolist(), rel=1e-9)
    before = policy.ridge.quantiles(x[None], level)
    state.noise[:, arm_noise.ODDS :] = state.rewards[arm_noise.SLOPE :] = 2.0
    assert not torch.allclose(policy.forecast(x).outcome.probs, told, rtol=0.01)
    np.testing.assert_array_equal(policy.ridge.quantiles(x[None], level), before)


def test_what_is_said_is_what_trials_measure():
    policy = CalibratedUCB(2, 3)
    generator = np.random.default_rng(0)
    for _ in range(60):
        x = generator.standard_normal(3)
        policy.update(x, policy.choose(x), x[0] + generator.exponential())
    forecast = policy.forecast(x)
    assert bool((forecast.outcome.stddev > forecast.mean.stddev).all())
    levels = torch.tensor([[0.05], [0.95]], dtype=torch.float64)
    low, high = forecast.outcome.icdf(levels)
    assert bool((low < forecast.mean.mean).all() and (forecast.mean.mean < high).all())
    clicks = CalibratedUCB(2)
    clicks.update(None, [0, 0, 1], [1.0, 0.0, 0.0])
    assert isinstance(clicks.forecast().outcome, torch.distributions.Bernoulli)


def test_the_trial_reads_the_same_record_as_the_forecast():
    generator = np.random.default_rng(3)
    stream = problem("linear").stream(80, generator)
    policy = CalibratedUCB(4, 10)
    trial = play(stream, policy, seed=0)
    service = CalibratedUCB(4, 10)
    for x, arm, reward in zip(stream.x[:79], trial.chosen[:79].tolist(), trial.reward[:79], strict=True):
        service.update(x, arm, reward)
    forecast = service.forecast(stream.x[79])
    np.testing.assert_allclose(
        forecast.outcome.cdf(torch.from_numpy(stream.reward[79])).numpy(), trial.pit[79], atol=1e-8
    )
    np.testing.assert_allclose((forecast.mean.mean + forecast.mean.stddev).numpy(), trial.quantile[79, :, UPPER])


def test_the_trial_reports_coverage_of_means_and_outcomes():
    trial = play(bernoulli([0.3, 0.5], 3000, 0), CalibratedUCB(2, 1), seed=0)
    found = metrics(trial)
    assert found["outcome_interval"] == pytest.approx(0.9, abs=0.03)
    assert 0 <= found["mean_coverage"] <= 1
    assert found["mean_coverage_all"] == np.round(found["mean_coverage_all"], 6)


def test_the_logistic_link_is_logistic_regression():
    generator = np.random.default_rng(0)
    x = np.concatenate([np.ones((4000, 1)), generator.standard_normal((4000, 2))], 1)
    theta = np.array([-2.0, 1.5, -1.0])
    reward = (generator.random(4000) < expit(x @ theta)).astype(float)
    policy = CalibratedUCB(1, 3, link="logistic")
    for row, paid in zip(x, reward, strict=True):
        policy.update(row, 0, paid)
    exact = LogisticRegression(C=1.0, fit_intercept=False).fit(x, reward).coef_[0]
    np.testing.assert_allclose(policy.ridge.state.theta[0], exact, atol=0.12)
    at = np.array([1.0, 1.0, 0.0])
    forecast = policy.forecast(at)
    assert float(forecast.outcome.mean) == pytest.approx(expit(at @ theta), abs=0.05)
    low, high = (float(forecast.mean.icdf(torch.tensor([p], dtype=torch.float64))) for p in (0.025, 0.975))
    assert 0 < low < expit(at @ exact) < high < 1
    with pytest.raises(CalibrlError, match=r"reward 2 .* is not between 0 and 1, as link='logistic' needs"):
        policy.update(at, 0, 2.0)


def test_fading_follows_a_drift():
    """A mean that moves: with fade the forecast is near where it is now."""
    off = []
    for fade in (1.0, 0.98):
        generator = np.random.default_rng(0)
        policy = CalibratedUCB(1, 1, fade=fade, watch=False)
        for t in range(2000):
            policy.update([1.0], 0, t / 200 + 0.1 * generator.standard_normal())
        off.append(abs(10 - float(policy.forecast([1.0]).mean.mean)))
    assert off[1] < 1 < off[0]


def test_arms_without_context_and_samples_of_the_same_posterior():
    policy = CalibratedThompson(["a", "b"])
    generator = np.random.default_rng(0)
    for _ in range(400):
        arm = policy.choose()
        policy.update(None, arm, float(generator.random() < (0.2 if arm == "a" else 0.6)))
    assert policy.pulls["b"] > 250
    chance = policy.probabilities()
    chosen = np.mean([policy.choose() == "a" for _ in range(2000)])
    assert chosen == pytest.approx(chance["a"], abs=0.03)


def test_a_file_keeps_what_was_learnt_of_noise(tmp_path):
    policy = CalibratedUCB(["a", "b"], 2, fade=0.99, link="linear", explore=0.2)
    generator = np.random.default_rng(0)
    for _ in range(150):
        x = generator.standard_normal(2)
        policy.update(x, policy.choose(x), generator.standard_normal())
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    assert type(again) is CalibratedUCB
    assert again.settings == policy.settings
    np.testing.assert_array_equal(again.ridge.state.noise, policy.ridge.state.noise)
    old = LinUCB(["a", "b"], 2)
    old.update(generator.standard_normal((50, 2)), ["a"] * 50, 3 * generator.standard_normal(50))
    heir = CalibratedUCB(["a", "b"], 2).inherit(old)
    assert heir.pulls == {"a": 50, "b": 0}
    assert float(heir.forecast([0.0, 1.0]).outcome.stddev[0]) == pytest.approx(3, rel=0.4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"watchs": True}, "CalibratedUCB has no option 'watchs'; did you mean 'watch'"),
        ({"link": "probit"}, "link 'probit' is unknown; known: linear, logistic"),
        ({"fade": 0}, "fade 0.0 is not in"),
    ],
)
def test_options_that_are_wrong_are_named(options, words):
    with pytest.raises(CalibrlError, match=words):
        CalibratedUCB(2, 2, **options)


def test_rewards_may_be_as_small_as_numbers_go():
    policy = CalibratedUCB(["a", "b"], 2)
    for _ in range(4):
        policy.update([0.5, 1.0], policy.choose([0.5, 1.0]), 1e-300)
    assert 0 < policy.decide([0.5, 1.0]).probability <= 1

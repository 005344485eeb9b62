"""One round followed from the experiment down to the distribution, and the compiled trial against it."""

import numpy as np
import pytest
import torch

from calibrl import Calibrated, CalibrlError, Data, Forecaster, Rolling, learn
from calibrl.bandits import POLICIES, CalLinUCB, CompiledRidge, Exploration, LinUCB, fit_ecdf
from calibrl.bandits.loop import ASKED, UPPER, collect_from, collect_trial, play
from calibrl.bandits.problems import Stream, problem
from calibrl.forecasters.linear import RidgeArms


def test_follow_one_round_down():
    """Experiment → learn → collect → planner → forecaster → distribution, with one arm that pays."""
    x = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    reward = np.array([[0.0, 1.0]] * 3)
    stream = Stream(x, reward, reward)
    model = RidgeArms(2, 2)
    outcomes = learn(collect_from(stream, Exploration(1.0)), model, rounds=4)

    # Round 1: nothing is known, both arms are N(0, 1), a tie. Learnt: the posterior of the arm that was pulled.
    first = next(outcomes)
    forecast = model(torch.tensor([[1.0, 0.0]]))
    pulled, other = first.arm, 1 - first.arm
    assert forecast.mean[0].tolist() == pytest.approx([first.reward / 2 if a == pulled else 0.0 for a in range(2)])
    assert forecast.stddev[0, pulled] == pytest.approx(0.5**0.5)
    assert forecast.stddev[0, other] == pytest.approx(1.0)

    # Round 2: the quantiles at level 1 are mean + sd; the higher one is taken.
    upper = (forecast.mean + forecast.stddev)[0]
    second = next(outcomes)
    assert second.arm == int(upper.argmax())
    assert next(outcomes).reward in (0.0, 1.0)
    with pytest.raises(CalibrlError, match="all 3 rounds of the stream were played"):
        next(outcomes)


@pytest.mark.parametrize("name", POLICIES)
def test_the_compiled_trial_is_algorithm_1(name):
    """Both are called through `learn`: one round at a time with plain linear algebra, and all rounds at once."""
    rounds, seed = 120, 3
    stream = problem("linear").stream(rounds, np.random.default_rng(7))
    policy = POLICIES[name](4, 10)
    (trial,) = learn(collect_trial(stream, policy.planner, seed=seed), policy.ridge, rounds=1)

    model = RidgeArms(4, 10)
    if policy.calibrated:
        model = Calibrated(model, evidence=Rolling(), fit_map=fit_ecdf())
    if policy.noisy or policy.learnt:
        # Widths that follow the errors and levels that move are the compiled model's own: ask it as a forecaster.
        model = CompiledRidge(4, policy.ridge.settings)
    plain = list(learn(collect_from(stream, policy.planner, seed=seed), model, rounds=rounds))
    assert [one.arm for one in plain] == trial.chosen.tolist()
    assert [one.reward for one in plain] == trial.reward.tolist()
    assert sum(policy.pulls.values()) == rounds


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_compiled_trial_believes_what_algorithm_1_does(calibrated):
    """Rewards of 0 and 1: quantiles agree, and so do decisions but where rounding tells equals apart."""
    rounds = 90
    stream = problem("wine").stream(rounds, np.random.default_rng(7))
    policy = (CalLinUCB if calibrated else LinUCB)(stream.reward.shape[1], stream.x.shape[1])
    trial = play(stream, policy, seed=0)
    bare = RidgeArms(stream.reward.shape[1], stream.x.shape[1])
    model = Calibrated(bare, evidence=Rolling(), fit_map=fit_ecdf()) if calibrated else bare
    following = iter(range(rounds))

    def collect(model):
        t = next(following)
        forecast = model(torch.from_numpy(stream.x[t : t + 1]))
        level = torch.ones(forecast.batch_shape, dtype=torch.float64)
        upper = forecast.icdf(torch.special.ndtr(level))[0].numpy()
        np.testing.assert_allclose(trial.quantile[t, :, UPPER], upper, rtol=1e-6, atol=1e-8)
        assert upper[trial.chosen[t]] >= upper.max() - 1e-8
        y = torch.full((1, len(upper)), torch.nan, dtype=torch.float64)
        y[0, trial.chosen[t]] = stream.reward[t, trial.chosen[t]]
        return Data(torch.from_numpy(stream.x[t : t + 1]), y), None

    assert len(list(learn(collect, model, rounds=rounds))) == rounds


@pytest.mark.parametrize("make", [LinUCB, CalLinUCB])
def test_the_compiled_model_is_a_forecaster(make):
    generator = np.random.default_rng(0)
    model, bare = make(3, 4).forecaster, RidgeArms(3, 4)
    plain = Calibrated(bare, evidence=Rolling(), fit_map=fit_ecdf()) if make is CalLinUCB else bare
    assert isinstance(model, Forecaster)
    for _ in range(6):
        y = generator.standard_normal((20, 3))
        y[generator.random((20, 3)) < 0.5] = np.nan
        data = Data.of(generator.standard_normal((20, 4)), y)
        model.update(data)
        plain.update(data)
    x = torch.from_numpy(generator.standard_normal((7, 4)))
    level = torch.full((7, 3), 0.9, dtype=torch.float64)
    np.testing.assert_allclose(model(x).icdf(level), plain(x).icdf(level), rtol=1e-7)
    with pytest.raises(CalibrlError, match="shared features are asked arm by arm"):
        make(3, 4, shared=True).forecaster.update(data)


def test_the_service_and_the_trial_take_the_same_decisions():
    stream = problem("breast-cancer").stream(300, np.random.default_rng(2))
    options = CalLinUCB(2, stream.x.shape[1])
    trial = play(stream, options, seed=0)
    policy = CalLinUCB(2, stream.x.shape[1])
    for t, x in enumerate(stream.x):
        probabilities = policy.probabilities(x)
        arm = int(trial.chosen[t])
        assert probabilities[arm] > 0
        policy.update(x, arm, stream.reward[t, arm])


def test_policies_share_their_draws_and_only_learn_what_they_chose():
    stream = problem("linear").stream(200, np.random.default_rng(2))
    trial = play(stream, LinUCB(4, 10), seed=3)
    # What the other arms would have paid must not matter.
    hidden = stream.reward.copy()
    mask = np.ones_like(hidden, bool)
    mask[np.arange(200), trial.chosen] = False
    hidden[mask] = 1e6
    again = play(Stream(stream.x, hidden, stream.expected), LinUCB(4, 10), seed=3)
    np.testing.assert_array_equal(trial.chosen, again.chosen)


def test_a_trial_reports_honest_quantiles_and_pits():
    stream = problem("linear").stream(400, np.random.default_rng(2))
    trial = play(stream, CalLinUCB(4, 10), seed=3)
    assert trial.quantile.shape == (400, 4, len(ASKED))
    assert (np.diff(trial.quantile, axis=2) >= 0).all()
    below = np.take_along_axis(stream.reward, trial.chosen[:, None], 1)[:, 0]
    upper = np.take_along_axis(trial.quantile[:, :, UPPER], trial.chosen[:, None], 1)[:, 0]
    agree = (trial.chosen_pit <= 0.8413447) == (below <= upper)
    assert agree.mean() > 0.99
    assert trial.regret.min() >= 0
    assert trial.reward.sum() == pytest.approx(below.sum())

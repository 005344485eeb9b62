"""Trials: what counts as an episode's return, and answers of environments that are refused."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from calibrl.control.environment import run_trial
from calibrl.control.problems import added, difference, same
from calibrl.control.world import probe
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import World


class Planned(gymnasium.Env):
    """Episodes of planned lengths, ended for good or, with "truncates" behind, truncated; pays `reward` a step."""

    def __init__(self, lengths, reward=1.0, observation=(0.0, 0.0), first=(0.0, 0.0)):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.lengths, self.reward = list(lengths), reward
        self.first, self.observation = np.array(first), np.array(observation)

    def reset(self, *, seed=None, options=None):
        self.left = self.lengths.pop(0)
        return self.first, {}

    def step(self, action):
        self.left -= 1
        ends = self.left == 0
        forever = self.lengths[:1] != ["truncates"]
        if ends and not forever:
            self.lengths.pop(0)
        return self.observation, self.reward, bool(ends and forever), bool(ends and not forever), {}


class Still:
    def begin(self, agents):
        pass

    def act(self, observation):
        return torch.zeros(len(observation), 1)


def returns(lengths, steps=60):
    return run_trial(Still(), [Planned(lengths)], steps=steps, seeds=[0]).returns


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [
        ([100], 60),  # the only one, cut
        ([12, 100], 30),  # cut, and has outlasted the other
        ([25, 24, 100], 24.5),  # cut when it had just begun
        ([20, 40], 30),  # ended with the trial
        ([50, 10, "truncates"], 30),  # truncated by itself at the trial's last step: whole
        ([20, "truncates", 20, 100], 20),
    ],
)
def test_which_episodes_count(lengths, mean):
    assert returns(lengths) == [mean]


def test_only_what_the_trial_ended_is_cut():
    agents = [Planned([12, 100]), Planned([50, 10, "truncates"]), Planned([60])]
    trial = run_trial(Still(), agents, steps=60, seeds=[0, 0, 0])
    assert trial.cut.tolist() == [True, False, False]
    assert trial.last[:, -1].all()
    assert trial.terminated[:, -1].tolist() == [False, False, True]


def test_what_is_told_on_the_way_is_of_the_episode_under_way():
    told = []
    agents = [Planned([2, 3, 9], reward=2.0), Planned([9])]
    run_trial(Still(), agents, steps=6, seeds=[0, 0], on_step=lambda step, earned: told.append((step, earned.tolist())))
    assert [step for step, _ in told] == [1, 2, 3, 4, 5, 6]
    assert [earned for _, earned in told] == [[2, 1], [4, 2], [2, 3], [4, 4], [6, 5], [2, 6]]


def test_a_reward_in_an_array_is_a_number():
    assert run_trial(Still(), [Planned([9], reward=np.array([2.0]))], steps=3, seeds=[0]).returns == [6.0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"first": (np.inf, 0)}, r"environment Planned observed \[inf, 0.0\] on reset\(\)"),
        ({"observation": (0, 0, 0)}, r"observed shape \(3,\) after action .* at step 1; its .* says \(2,\)"),
        ({"observation": (np.nan, 0)}, r"environment Planned observed \[nan, 0.0\] after action .* at step 1"),
        ({"reward": np.nan}, "environment Planned paid nan after action"),
        ({"reward": np.ones(2)}, r"environment Planned paid \[1. 1.\] after action"),
    ],
)
def test_answers_that_are_refused(options, says):
    with pytest.raises(CalibrlError, match=says):
        run_trial(Still(), [Planned([9], **options)], steps=3, seeds=[0])
    with pytest.raises(CalibrlError, match=says):
        probe(Planned([9], **options), World(same, difference, added, reward=None), steps=3)


class Failing(Planned):
    """Has an error of its own, or is written for an older interface."""

    def __init__(self, step=None, reset=None):
        super().__init__([99])
        self.at_step, self.at_reset, self.made = step, reset, 0

    def reset(self, *, seed=None, options=None):
        return self.at_reset(self) if self.at_reset else super().reset(seed=seed)

    def step(self, action):
        self.made += 1
        return self.at_step(self) if self.at_step and self.made == 2 else super().step(action)


def _broken(env):
    raise RuntimeError(f"the simulator is gone\n{env}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"step": _broken},
            r"Failing failed after action \[.*\] at step 2 \(RuntimeError: the simulator is gone, test_environment.py",
        ),
        ({"reset": _broken}, r"Failing failed on reset\(\) \(RuntimeError: the simulator is gone, test_environment.py"),
        (
            {"step": lambda env: (env.first, 0.0, False, {})},
            r"answered with 4 parts after action .* at step 2; Gymnasium",
        ),
        ({"step": lambda env: env.first}, "answered with ndarray after action"),
        (
            {"reset": lambda env: env.first},
            r"answered with ndarray on reset\(\); Gymnasium expects \(observation, info\)",
        ),
    ],
)
def test_an_environment_that_fails_is_named_in_one_line(options, says):
    for ask in (
        lambda env: run_trial(Still(), [env], steps=3, seeds=[0]),
        lambda env: probe(env, World(same, difference, added, reward=None), steps=3),
    ):
        with pytest.raises(CalibrlError, match=says) as caught:
            ask(Failing(**options))
        assert "\n" not in str(caught.value)


def test_what_somebody_stops_is_no_failure():
    def stop(env):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(Still(), [Failing(step=stop)], steps=3, seeds=[0])


class Careless(Planned):
    """Answers with arrays of one flag, and spoils what it is given, which must be one of its actions."""

    def __init__(self):
        super().__init__([9])
        self.action_space = Box(-0.1, 0.1, (1,), np.float64)

    def step(self, action):
        assert self.action_space.contains(action), action
        action[:] = 0
        seen, reward, *ends, info = super().step(action)
        return (seen, np.array([reward]), *(np.array([end]) for end in ends), info)


def test_what_an_environment_does_to_its_action_is_not_what_was_done():
    class Pushes(Still):
        def act(self, observation):
            return torch.full((len(observation), 1), 0.09)

    trial = run_trial(Pushes(), [Careless()], steps=4, seeds=[0])
    assert trial.action.flatten().tolist() == pytest.approx([0.09] * 4)
    assert trial.terminated.shape == trial.reward.shape == (1, 4)


def test_whole_numbers_after_a_step_do_not_round_the_next_start():
    env = Planned([2, 9], observation=(3, 4), first=(0.5, 0.25))
    trial = run_trial(Still(), [env], steps=4, seeds=[0])
    assert trial.observation[0].tolist() == [[0.5, 0.25], [3, 4], [0.5, 0.25], [3, 4]]

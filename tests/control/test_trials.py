"""Trials, answers of environments that are refused, and units of what is learnt, the same after a pause."""

import itertools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from calibrl.control import policy
from calibrl.control.agent import Agent
from calibrl.control.problems import added, difference, same, task_from_env
from calibrl.control.scoring import score_trial
from calibrl.control.settings import EnsembleSettings, PlannerSettings
from calibrl.control.trials import probe, run_trial
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import World, imagine, noise_shape

WORLD = World(same, difference, added, reward=None)
COUNTER = itertools.count()


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
            r"Failing failed after action \[.*\] at step 2 \(RuntimeError: the simulator is gone, test_trials.py",
        ),
        ({"reset": _broken}, r"Failing failed on reset\(\) \(RuntimeError: the simulator is gone, test_trials.py"),
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


class Push(gymnasium.Env):
    """A point that is pushed; seen as it is, or `scale` times as large and `offset` away."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, scale=1.0, offset=0.0):
        self.scale, self.offset = scale, offset

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.normal(0, 0.1, 2)
        return self.seen(), {}

    def seen(self):
        return self.scale * self.at + self.offset

    def step(self, action):
        self.at += 0.1 * np.array([self.at[1], action[0]])
        return self.seen(), float(self.scale * self.at[0]), False, False, {}


class InPlace(Push):
    """Answers with the array that it computes in."""

    def seen(self):
        return self.at


class Seedless(Push):
    """Another one each time it is started, whatever the seed."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=next(COUNTER))
        self.scale = 1 + self.np_random.random()
        return answer


gymnasium.register("calibrl-tests/Seedless-v0", Seedless, max_episode_steps=20)
gymnasium.register("calibrl-tests/Push-v0", Push, max_episode_steps=20, kwargs={"scale": 100.0})


def units(environment):
    found = probe(environment, WORLD, steps=30)
    return [*found.target.tolist(), float(found.reward)]


def test_units_are_how_much_each_number_varies():
    env, generator = Push(), np.random.default_rng(0)
    seen, changes, paid = env.reset(seed=0)[0], [], []
    for _ in range(30):
        following, reward, *_ = env.step(generator.uniform(-1, 1, 1).astype(np.float32))
        changes.append(following - seen)
        paid.append(reward)
        seen = following
    assert units(Push()) == pytest.approx([*np.std(changes, 0), np.std(paid)], rel=1e-4)


def test_an_environment_may_answer_with_the_array_it_computes_in():
    assert units(InPlace()) == units(Push())


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_units_follow_those_of_the_environment(scale):
    assert units(Push(scale)) == pytest.approx([scale * unit for unit in units(Push())], rel=1e-4)


def test_what_never_varies_is_its_own_unit():
    env = Push(scale=0.0, offset=7.0)
    env.step = lambda action: (np.full(2, 7.0), 0.25, False, False, {})
    assert units(env) == [1.0, 1.0, 0.25]


def test_changes_that_float32_does_not_see_are_refused():
    with pytest.raises(CalibrlError, match=r"number 0 of what Push observes changes by about .* subtract a constant"):
        units(Push(offset=1e7))
    units(Push(offset=1e3))
    assert units(Push(scale=1e-9, offset=1.0))[:2] == [1.0, 1.0]  # at rest, but for jitter


def test_rows_stay_in_their_units_where_another_probe_shows_others(tmp_path):
    what = task_from_env("calibrl-tests/Seedless-v0")
    settings = {
        "ensemble": EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=1),
        "planner": PlannerSettings(horizon=3, population_size=8, elites=2, iterations=1, particles=2),
    }
    agent, again = Agent(what, **settings), Agent(what, **settings)
    assert not torch.equal(agent.fleet.view.scales.target, again.fleet.view.scales.target)
    for number in range(8):
        agent.observe([number, 0.0], [0.1], [number, 1.0], reward=number)
    agent.update()
    agent.save(tmp_path / "agent.pt")
    again.load(tmp_path / "agent.pt")
    seen, action = np.zeros((3, 2)), np.zeros((3, 1))
    assert torch.equal(again.forecast(seen, action).mean, agent.forecast(seen, action).mean)
    assert np.array_equal(again.act(seen[0]), agent.act(seen[0]))
    steps = (torch.zeros(2), torch.zeros(1), torch.ones(2), torch.tensor(3.0), torch.tensor(False))
    assert all(map(torch.equal, again.fleet.view.rows(*steps), agent.fleet.view.rows(*steps)))


def test_a_planner_is_made_anew_where_an_agent_takes_on_other_units(tmp_path, monkeypatch):
    """On a GPU they are written into its kernel."""
    made = []
    monkeypatch.setattr(policy, "for_device", lambda planner: made.append(planner) or planner)
    what = task_from_env("calibrl-tests/Seedless-v0")
    small = {"ensemble": EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=1)}
    agents = [Agent(what, planner=PlannerSettings(horizon=2, population_size=4, elites=2), **small) for _ in range(2)]
    for agent in agents:
        for number in range(8):
            agent.observe([number, 0.0], [0.1], [number, 1.0], reward=number)
        agent.update()
        agent.act(np.zeros(2))
    agents[0].save(tmp_path / "agent.pt")
    for _ in range(2):
        agents[1].act(np.zeros(2))
    assert len(made) == 2
    agents[1].load(tmp_path / "agent.pt")
    for _ in range(2):
        agents[1].act(np.zeros(2))
    assert len(made) == 3


@pytest.mark.parametrize("propagation", ["DS", "TS1", "TSinf"])
def test_a_forecast_is_what_planning_imagines_in_the_environments_units(propagation):
    what = task_from_env("calibrl-tests/Push-v0")
    agent = Agent(
        what,
        ensemble=EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=20),
        planner=PlannerSettings(
            horizon=2, population_size=4, elites=2, iterations=1, particles=2, propagation=propagation
        ),
    )
    env = what.make()
    seen, _ = env.reset(seed=0)
    for _ in range(30):
        action = agent.act(seen)
        following, reward, *_ = env.step(action)
        agent.observe(seen, action, following, reward)
        seen = following
    agent.update()

    count, view = 20_000, agent.fleet.view
    shape = noise_shape(propagation, agents=1, horizon=1, plans=1, particles=count, outputs=view.outputs)
    (step,) = imagine(
        agent.fleet.ensemble.nets,
        view.world,
        view.before(torch.tensor(seen).float())[None],
        torch.tensor(action)[None, None, None],
        propagation=propagation,
        particles=count,
        noise=torch.randn(shape, generator=torch.Generator().manual_seed(0)),
        tables=agent.fleet.tables(),
    )
    drawn = (step.after - step.observation)[0, 0, :, :3].double()
    forecast = agent.forecast(seen, action)
    spread = drawn.std(0)
    assert forecast.batch_shape == (1, 4)
    assert ((forecast.mean[0, :3] - drawn.mean(0)).abs() < 0.03 * spread).all()
    torch.testing.assert_close(forecast.stddev[0, :3].double(), spread, rtol=0.03, atol=0.0)


def test_forecasts_that_are_drawn_are_in_the_environments_units():
    what = task_from_env("calibrl-tests/Push-v0")
    agent = Agent(
        what,
        ensemble=EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=5),
        planner=PlannerSettings(horizon=2, population_size=4, elites=2, iterations=1, particles=2),
    )
    env, fleet = what.make(), agent.fleet
    for seed in (0, 1):
        trial = run_trial(fleet, [env], steps=20, seeds=[seed])
        parts = (trial.observation, trial.action, trial.next_observation, trial.reward, trial.terminated)
        data = Data(*fleet.view.rows(*parts))
        if seed == 0:
            fleet.update(data)
    (score,) = score_trial(fleet, trial, data, 1)
    seen, action, following, reward, _ = (part[0] for part in parts)
    outcome, *quantiles = score.forecast.unbind(-1)
    torch.testing.assert_close(outcome[:, :2], following - seen, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outcome[:, 2], reward)
    forecast = agent.forecast(seen.numpy(), action.numpy())
    for level, found in zip((0.05, 0.5, 0.95), quantiles, strict=True):
        torch.testing.assert_close(found, forecast.icdf(torch.tensor(level)).float(), rtol=1e-3, atol=1e-3)

"""Units of what is learnt: those of the environment's own numbers, whatever they are, and the same after a pause."""

import itertools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from calibrl.control.agent import Agent
from calibrl.control.environment import run_trial
from calibrl.control.problems import added, difference, same, task_from_env
from calibrl.control.scoring import score_trial
from calibrl.control.settings import EnsembleSettings, PlannerSettings
from calibrl.control.world import probe
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.planning.rollout import World, imagine, noise_shape

WORLD = World(same, difference, added, reward=None)
COUNTER = itertools.count()


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

"""Agents alone and in fleets: the same rows, the same luck for arms of one seed, files that go on."""

import itertools
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

from calibrl import Data
from calibrl.control import checkpoint, task
from calibrl.control.agent import Agent
from calibrl.control.experiment import EXPERIMENT
from calibrl.control.policy import Fleet, fleets
from calibrl.control.problems import task_from_env
from calibrl.control.settings import PRESETS, CalibrationSettings, EnsembleSettings, PlannerSettings
from calibrl.control.trials import learnt, probe, view_of
from calibrl.errors import CalibrlError
from calibrl.evidence import surprise, widened
from calibrl.maps import IDENTITY, fit_smooth
from calibrl.planning.search import SEARCHES
from calibrl.runs import engine

TINY = replace(PRESETS["tiny"], steps=12)


def run(out, settings, **options):
    """Agents side by side in this process."""
    return engine.run(EXPERIMENT, settings, out, **options)


def small_agent(**changes):
    given = {
        "ensemble": EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=1),
        "planner": PlannerSettings(horizon=3, population_size=8, elites=2, iterations=2, particles=2),
    }
    return Agent(task("cartpole"), **{**given, **changes})


def numbers(row):
    return {name: value for name, value in row.metrics.items() if not name.endswith("_s")}


@pytest.mark.parametrize("method", ["cem", "icem"])
def test_a_fleet_gives_the_rows_of_separate_runs(method, tmp_path):
    preset = replace(TINY, planner=replace(TINY.planner, method=method, keep_elites=0.5))
    together = run(tmp_path / "together", replace(preset, seeds=2, seed=5)).rows
    alone = [
        row
        for seed in (5, 6)
        for arm in ("calibrated", "uncalibrated")
        for row in run(tmp_path / f"{arm}-{seed}", replace(preset, arms=(arm,), seed=seed)).rows
    ]
    found = {row.key: numbers(row) for row in together}
    wanted = {row.key: numbers(row) for row in alone}
    assert found.keys() == wanted.keys()
    for key, metrics in wanted.items():
        assert found[key] == pytest.approx(metrics, rel=1e-3, abs=1e-3), key


def test_arms_of_one_seed_start_alike(tmp_path):
    preset = replace(TINY, trials=1, arms=("calibrated", "uncalibrated", "uncalibrated-all", "calibrated-paper"))
    rows = run(tmp_path, preset).rows
    first = {row.arm: row.metrics["return"] for row in rows if row.metrics["trial"] == 0}
    assert len(first) == 4
    assert len(set(first.values())) == 1


def test_each_row_picks_its_side_once_unless_it_is_split_again():
    what = task("cartpole")
    (members,) = fleets(["calibrated", "uncalibrated", "calibrated-paper"], [0])
    fleet = Fleet(view_of(what), members, TINY, low=what.low, high=what.high)
    held = []
    for _ in range(2):
        fleet.update(Data(torch.randn(1, 30, 6).expand(3, -1, -1), torch.randn(1, 30, 4).expand(3, -1, -1)))
        held.append(fleet.model.held[:, :30].clone())
    assert fleet.model.held.sum(1).tolist() == [12, 12, 12]
    assert torch.equal(held[0][:2], held[1][:2])
    assert torch.equal(fleet.model.held[0], fleet.model.held[1])
    assert not torch.equal(held[0][2], held[1][2])
    assert fleet.ensemble.rows == 48
    kinds = [type(mapping).__name__ for mapping in fleet.maps]
    assert kinds == ["Spline", "Identity", "Sigmoid"]
    # Who has no map draws plain noise: every line of its table is 0 + 1 · ε.
    assert fleet.inputs.tables is not None
    assert torch.equal(fleet.inputs.tables[1].flatten(0, 1).unique(dim=0), torch.tensor([[0.0, 1.0]]))


def test_fresh_evidence_is_judged_before_it_is_learnt():
    what = task("cartpole")
    (members,) = fleets(["calibrated-fresh"], [0])
    fleet = Fleet(view_of(what), members, TINY, low=what.low, high=what.high)
    data = Data(torch.randn(1, 30, 6), torch.randn(1, 30, 4))
    fleet.update(data)
    assert fleet.maps == [IDENTITY]
    z, _ = fleet.forecaster.zscores(data)
    fleet.update(data)
    assert torch.equal(fleet.model.evidence[0].scores[0], z[0])
    assert fleet.maps != [IDENTITY]
    assert fleet.ensemble.rows == 60


@pytest.mark.parametrize("further", [0.5, 1.0, 3.0])
def test_the_wary_widen_by_what_new_trajectories_showed(further):
    what = task("cartpole")
    (members,) = fleets(["calibrated", "calibrated-wary"], [0])
    fleet = Fleet(view_of(what), members, TINY, low=what.low, high=what.high)
    generator = torch.Generator().manual_seed(0)

    def rows(spread):
        parts = (torch.randn(1, 400, 6, generator=generator), spread * torch.randn(1, 400, 4, generator=generator))
        return Data(*(part.expand(2, -1, -1) for part in parts))

    fleet.update(rows(1.0))
    data = rows(further)
    plain, wary = fleet.maps
    z = torch.linspace(-4, 4, 9, dtype=torch.float64)[:, None].expand(9, 4)
    assert torch.equal(plain.forward_z(z), wary.forward_z(z))
    lacking = plain.forward_z(fleet.forecaster.zscores(data)[0][0]).clamp(-8.2095, 8.2095).square().mean().sqrt()
    fleet.update(data)
    plain, wary = fleet.maps
    z = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None].expand(-1, 4)
    torch.testing.assert_close(wary.forward_z(z), plain.forward_z(z) / max(1.0, float(lacking)))
    assert (float(lacking) > 2) == (further == 3.0)
    # A second surprise is measured against what held-out rows say, not against what is widened already.
    data = rows(3.0)
    z = fleet.forecaster.zscores(data)[0][0]
    fleet.update(data)
    surprises = fleet.model.evidence[1].surprises
    torch.testing.assert_close(surprises[1], plain.forward_z(z).clamp(-8.2095, 8.2095).square().mean())
    # The newer one weighs more.
    forget = TINY.calibration.forget
    mean = float(forget * surprises[0] + surprises[1]) / (1 + forget)
    z = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None].expand(-1, 4)
    torch.testing.assert_close(fleet.maps[1].forward_z(z), fleet.maps[0].forward_z(z) / max(1.0, mean**0.5))


def test_one_wild_row_does_not_make_forecasts_boundless():
    held = torch.randn(500, 2, dtype=torch.float64)
    held[:, 1] = torch.nan  # an event, of which the map knows nothing
    mapping = fit_smooth(z=held)
    z = torch.randn(150, 2, dtype=torch.float64)
    z[3] = 1e6
    z[:, 1] *= 100
    assert 1 < surprise(mapping, z, torch.tensor(1.0)) < 2  # neither the wild row nor the event's column counts
    wide = widened(mapping, torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(wide.forward_z(z)[:, 1], mapping.forward_z(z)[:, 1])


def test_an_agent_acts_in_a_loop_of_ones_own(tmp_path):
    what = task("cartpole")
    env, agent = what.make(), small_agent()
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        agent.begin()
        for _ in range(10):
            action = agent.act(observation)
            assert action.shape == (1,)
            assert abs(action[0]) <= 3
            following, reward, _, _, _ = env.step(action)
            agent.observe(observation, action, following, reward)
            observation = following
        agent.update()
    assert agent.rows == 20
    forecast = agent.forecast(observation, action)
    assert forecast.batch_shape == (1, 4)

    agent.save(tmp_path / "agent.pt")
    other = small_agent().load(tmp_path / "agent.pt")
    agent.begin()
    other.begin()
    for _ in range(3):
        np.testing.assert_array_equal(other.act(observation), agent.act(observation))
    np.testing.assert_allclose(other.forecast(observation, action).mean, agent.forecast(observation, action).mean)
    with pytest.raises(CalibrlError, match=r"ensemble\.members 2, this run has 3"):
        small_agent(ensemble=EnsembleSettings(members=3, hidden=(8,), weight_decay=(1e-4,), epochs=1)).load(
            tmp_path / "agent.pt"
        )
    with pytest.raises(CalibrlError, match="does not exist"):
        agent.load(tmp_path / "nothing.pt")
    with pytest.raises(CalibrlError, match="is not 4 finite numbers"):
        agent.act(np.array([1.0, np.nan, 0.0, 0.0]))
    with pytest.raises(CalibrlError, match="0 steps were observed"):
        agent.update()


def test_an_agent_knows_where_its_episodes_ended():
    """Side by side in a trial, or where a loop of one's own says so: errors do not go on from one to another."""
    agent = small_agent()
    agent.task = replace(agent.task, steps=6)
    agent.learn(trials=1, environments=2)
    assert agent.fleet.model.rows.last[0].nonzero()[:, 0].tolist() == [5, 11, 17, 23]
    agent.begin()
    for step in range(8):
        if step == 3:
            agent.begin()
        agent.observe(NOTHING + step, STILL, NOTHING, terminated=step == 6)
    agent.update()
    assert agent.fleet.model.rows.last[0, 24:].nonzero()[:, 0].tolist() == [2, 6]


@pytest.mark.parametrize(("hidden", "threads"), [(8, 1), (200_000, 2)])
def test_small_agents_compute_in_one_thread_and_leave_the_others_to_you(hidden, threads, monkeypatch):
    agent = small_agent()
    ensemble = replace(agent.settings.ensemble, hidden=(hidden,))
    agent.settings = replace(agent.settings, ensemble=ensemble)
    seen = []
    monkeypatch.setattr(agent.fleet, "update", lambda *_: seen.append(torch.get_num_threads()))
    monkeypatch.setattr(agent.fleet, "act", lambda _: seen.append(torch.get_num_threads()) or torch.zeros(1, 1))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(2):
            agent.observe(NOTHING, agent.act(NOTHING), NOTHING)
        agent.update()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [threads] * 3


def test_an_agent_of_a_run_goes_on_in_a_loop_of_ones_own(tmp_path):
    what = replace(task("cartpole"), steps=TINY.steps)
    preset = replace(TINY, seeds=2, trials=1, reward="calibrl.control.envs:cartpole_reward")
    run(tmp_path, preset)
    settings = {"ensemble": TINY.ensemble, "planner": TINY.planner}
    agents = [
        Agent(what, **settings, arm="calibrated").load(tmp_path / "checkpoint" / f"calibrated-{seed}.trial-1.pt")
        for seed in (0, 1)
    ]
    assert [agent.rows for agent in agents] == [2 * TINY.steps] * 2
    assert agents[0].act(NOTHING) != agents[1].act(NOTHING)
    with pytest.raises(CalibrlError, match="was made with arm 'calibrated', this run has 'uncalibrated-limited'"):
        Agent(what, **settings, calibrated=False).load(tmp_path / "checkpoint" / "calibrated-0.trial-1.pt")
    run(tmp_path / "light", replace(preset, light=True))
    with pytest.raises(CalibrlError, match="without its networks; let its run go on without --light"):
        Agent(what, **settings, arm="calibrated").load(tmp_path / "light" / "checkpoint" / "calibrated-0.trial-1.pt")


def test_a_learnt_reward_and_an_end_travel_through_imagination():
    what = task_from_env("Pendulum-v1")
    env = what.make()
    scales = probe(env, what.world, steps=50)
    view = learnt(what, scales)
    assert (view.inputs, view.outputs, view.observation_size) == (4, 5, 5)
    before, after = torch.tensor([[1.0, 0.0, 0.5]]), torch.tensor([[0.9, 0.1, 0.7]])
    x, y = view.rows(before, torch.tensor([[2.0]]), after, torch.tensor([-3.0]), torch.tensor([False]))
    assert x.tolist() == [[1.0, 0.0, 0.5, 2.0]]
    # What the model forecasts leads to what happened: observation, reward, and going on.
    start = view.before(before)
    landed = view.world.next_observation(start, y)
    torch.testing.assert_close(landed, torch.tensor([[0.9, 0.1, 0.7, -3.0, 1.0]]))
    assert view.world.reward is not None
    assert view.world.reward(start, torch.zeros(1, 1), landed).item() == pytest.approx(-3.0)
    # After the end nothing is earned.
    _, end = view.rows(before, torch.tensor([[2.0]]), after, torch.tensor([-3.0]), torch.tensor([True]))
    over = view.world.next_observation(start, end)
    assert over[0, -1] == 0
    assert view.world.reward(start, torch.zeros(1, 1), over).item() == pytest.approx(-3.0)
    later = view.world.next_observation(over, y)
    assert view.world.reward(over, torch.zeros(1, 1), later).item() == 0
    assert view.world.reward(later, torch.zeros(1, 1), view.world.next_observation(later, y)).item() == 0


def test_an_end_is_an_event_once_one_was_seen():
    what = task_from_env("Pendulum-v1")
    (members,) = fleets(["calibrated"], [0, 1])
    fleet = Fleet(view_of(what), members, replace(TINY, steps=40), low=what.low, high=what.high)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 40, 4, generator=generator), torch.randn(2, 40, 5, generator=generator)
    y[..., -1] = 0
    fleet.update(Data(x, y))
    assert not fleet.forecaster.events.any()
    y[1, ::5, -1] = 1
    fleet.update(Data(x, 9 * y))
    assert fleet.forecaster.events.tolist() == [[False] * 5, [False] * 4 + [True]]
    # It has no PIT that a map could be fitted on.
    moved = fleet.maps[1].forward_z(torch.ones(1, 5).double())[0] - 1
    assert abs(moved[-1]) < 1e-6
    assert (moved[:-1].abs() > 1e-3).all()


NOTHING, STILL = np.zeros(4), np.zeros(1)


@pytest.mark.parametrize("reward", [np.inf, np.nan, 1e39, 1e25, "a", np.ones(2)])
def test_a_reward_that_cannot_be_learnt_is_refused_and_leaves_the_agent_well(reward):
    agent = small_agent()
    for _ in range(2):
        agent.observe(NOTHING, STILL, NOTHING, np.ones(1))
        with pytest.raises(CalibrlError, match=r"reward .* is not a finite number") as caught:
            agent.observe(NOTHING, STILL, NOTHING, reward)
        assert "\n" not in str(caught.value)
        agent.observe(NOTHING, STILL, NOTHING, 1.0)
        agent.update()
    assert agent.rows == 4


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ((NOTHING * np.nan, STILL, NOTHING), "observation .* is not 4 finite"),
        ((NOTHING, np.zeros(2), NOTHING), r"action \[0.0, 0.0\] is not a finite number"),
        ((NOTHING, STILL, NOTHING + 1e30), "next observation .* is not 4 finite"),
    ],
)
def test_steps_that_cannot_be_learnt(step, says):
    with pytest.raises(CalibrlError, match=says):
        small_agent().observe(*step)


def test_an_update_of_no_more_than_a_block_is_refused_and_leaves_the_agent_well():
    agent = small_agent(calibration=CalibrationSettings(block=4))
    for number in range(4):
        agent.observe(NOTHING + number, STILL, NOTHING)
    with pytest.raises(CalibrlError, match="4 steps were observed since the last update; observe 5 or more"):
        agent.update()
    agent.observe(NOTHING, STILL, NOTHING)
    agent.update()
    assert (agent.rows, int(agent.fleet.model.held.sum())) == (5, 4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Agent(3), "3 is no environment"),
        (lambda: small_agent(steps=3), "cartpole is a Task already; give steps to task_from_env"),
        (lambda: small_agent(planner={"horizon": 3}), r"\{'horizon': 3\} is no PlannerSettings; write"),
        (lambda: small_agent(ensemble=5), "5 is no EnsembleSettings"),
    ],
)
def test_agents_are_made_of_tasks_and_settings(make, says):
    with pytest.raises(CalibrlError, match=says):
        make()


def test_a_reward_that_has_to_be_learnt_cannot_be_left_out():
    small_agent().observe(NOTHING, STILL, NOTHING)
    with pytest.raises(CalibrlError, match="the reward of Pendulum-v1 has to be learnt, and this step came without"):
        Agent(task_from_env("Pendulum-v1")).observe(np.zeros(3), STILL, np.zeros(3))


def test_a_fleet_refuses_rows_before_it_keeps_them():
    what = task("cartpole")
    (members,) = fleets(["calibrated", "uncalibrated"], [0])
    fleet = Fleet(view_of(what), members, TINY, low=what.low, high=what.high)
    x, y = torch.randn(2, 30, 6), torch.randn(2, 30, 4)
    for bad in (np.inf, np.nan, 1e30):
        spoilt = y.clone()
        spoilt[1, 3, 2] = bad
        with pytest.raises(CalibrlError, match=r"an outcome of the networks is (inf|nan|1\.0*\d*e\+30)"):
            fleet.update(Data(x, spoilt))
    with pytest.raises(CalibrlError, match=r"an input of the networks is -?inf"):
        fleet.update(Data(x / 0, y))
    assert fleet.rows == 0
    fleet.update(Data(x, y))
    assert fleet.rows == 30


def test_forecasts_of_what_does_not_fit():
    agent = small_agent()
    assert agent.forecast(np.zeros((3, 4)), np.zeros((3, 1))).batch_shape == (3, 4)
    for observation, action, says in (
        (np.zeros(3), STILL, "observation .* is not 4 finite numbers"),
        (NOTHING, NOTHING, "action .* is not a finite number"),
        (NOTHING * np.nan, STILL, "observation .nan.* is not 4 finite numbers"),
        (np.zeros((3, 4)), STILL, "3 observations and 1 actions"),
    ):
        with pytest.raises(CalibrlError, match=says):
            agent.forecast(observation, action)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seed": -1}, "seed -1 is no seed"),
        ({"seed": 1.5}, "seed 1.5 is no seed"),
        ({"device": "tpu"}, "device 'tpu' is unknown"),
        ({"arm": "calibrated", "calibrated": False}, "'calibrated' fits a map, calibrated=False asks for none"),
        ({"planner": PlannerSettings(safety=0.9)}, r"planner\.safety 0\.9 asks for a safe set, and \w+ has none"),
    ],
)
def test_agents_that_cannot_be(options, says):
    with pytest.raises(CalibrlError, match=says):
        small_agent(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(CalibrlError, match="is not there; use cpu"):
        small_agent(device="cuda")


@pytest.mark.parametrize("method", SEARCHES)
def test_an_agent_goes_on_from_a_file_in_the_middle_of_an_episode(method, tmp_path):
    planner = PlannerSettings(horizon=3, population_size=8, elites=4, iterations=2, particles=2, method=method)
    first, rows = small_agent(planner=planner), np.random.default_rng(0).normal(size=(11, 4))
    for before, after in itertools.pairwise(rows):
        first.observe(before, np.array([0.5]), after, 1.0)
    first.update()
    first.begin()
    for place in rows[:3]:
        first.act(place)
    first.save(tmp_path / "agent.pt")
    second = small_agent(planner=planner).load(tmp_path / "agent.pt")
    for place in rows[3:6]:
        np.testing.assert_array_equal(second.act(place), first.act(place))


# Learning by itself.

QUICK = {
    "ensemble": EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=2),
    "planner": PlannerSettings(horizon=3, population_size=8, elites=2, iterations=2, particles=2),
}


def test_an_agent_learns_in_one_line():
    heard = []
    agent = Agent("Pendulum-v1", steps=15, **QUICK)
    results = agent.learn(trials=2, evaluate_every=2, evaluation_episodes=2, callback=heard.append)
    assert results == heard
    assert [result.trial for result in results] == [0, 1, 2]
    assert [result.rows for result in results] == [15, 30, 45]
    assert [result.evaluation is None for result in results] == [True, True, False]
    assert len(results[2].evaluation) == 2
    assert agent.learn(trials=1)[0].trial == 3, "it goes on"
    assert len(agent.learn(trials=5, callback=lambda result: False)) == 1, "until somebody has seen enough"


def test_it_learns_as_a_run_does(tmp_path):
    settings = replace(TINY, arms=("calibrated-trajectory",), trials=2)
    rows = run(tmp_path, settings).rows
    same = Agent(replace(task("cartpole"), steps=12), ensemble=TINY.ensemble, planner=TINY.planner)
    earned = [result.earned for result in same.learn(trials=2)]
    assert earned == pytest.approx([row.metrics["return"] for row in rows], rel=1e-4)


def test_environments_side_by_side_give_as_many_rows():
    agent = Agent("CartPole-v1", steps=12, **QUICK)
    results = agent.learn(trials=1, environments=3)
    assert [result.rows for result in results] == [36, 72]
    assert isinstance(agent.act(np.zeros(4)), np.int64)
    agent.observe(np.zeros(4), 1, np.zeros(4), 1.0)
    assert agent.forecast(np.zeros((2, 4)), [0, 1]).batch_shape == (2, 6)


def test_evaluating_changes_nothing():
    one, other = (Agent("CartPole-v1", steps=12, seed=3, **QUICK) for _ in range(2))
    one.learn(trials=1)
    other.learn(trials=1)
    before = other.fleet.inputs.start.clone()
    state = other.fleet.planning[0].get_state()
    other.evaluate(1)
    other.fleet.planning[0].set_state(state)
    assert torch.equal(before, other.fleet.inputs.start)
    assert one.act(np.zeros(4)) == other.act(np.zeros(4))


def test_a_choice_that_is_best_is_learnt():
    """Of three pushes only the last one pays: after one random trial the agent knows."""

    class Push(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.at = np.zeros(1, np.float32)
            return self.at, {}

        def step(self, action):
            self.at = self.at + np.float32(action - 1.0)
            return self.at.copy(), float(action == 2), False, False, {}

    ensemble = EnsembleSettings(members=2, hidden=(16,), weight_decay=(1e-4,), epochs=60)
    planner = PlannerSettings(horizon=4, population_size=30, elites=5, iterations=3, particles=2)
    agent = Agent(Push, steps=40, ensemble=ensemble, planner=planner)
    agent.learn(trials=1)
    assert agent.evaluate(1)[0] > 35


def test_a_video_of_an_episode(tmp_path):
    agent = Agent("CartPole-v1", steps=3, **QUICK)
    pytest.importorskip("pygame", reason="draws Gymnasium's classic environments")
    assert agent.record(tmp_path / "pole.gif").stat().st_size > 100


@pytest.mark.parametrize("options", [{"trials": 0}, {"environments": 0}, {"evaluation_episodes": 0}])
def test_learning_that_cannot_be(options):
    with pytest.raises(CalibrlError, match="cannot be; use 1 or more"):
        small_agent().learn(**options)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("nets", {}),
        ("nets", 3),
        ("adam", {"step": torch.zeros(()), "exp_avg": [], "exp_avg_sq": []}),
        ("residual", torch.zeros(3)),
        ("residual", None),
        ("rows", {}),
        ("rows", {name: torch.zeros(1, 9, 9) for name in ("x", "y", "held", "came")}),
        ("streams", {}),
        ("streams", None),
        ("start", torch.full((1, 3, 1), torch.nan)),
        ("elites", None),
        ("evidence", [3]),
        ("learnt", "often"),
        ("map", {"kind": "affine"}),
        ("training", torch.zeros(5056, dtype=torch.uint8)),
        ("streams", dict.fromkeys(("exploring", "planning", "splitting"), torch.zeros(5056, dtype=torch.uint8))),
    ],
)
def test_what_no_agent_can_have_been_is_refused_in_one_line(tmp_path, part, value):
    agent, file = small_agent(), tmp_path / "agent.pt"
    for row in np.random.default_rng(0).random((9, 9)):
        agent.observe(row[:4], row[4:5], row[5:])
    agent.update()
    agent.save(file)
    agent.load(file)
    content = checkpoint.unpack(file)
    checkpoint.keep(file, {**content, "state": {**content["state"], part: value}})
    with pytest.raises(CalibrlError, match=r"damaged|holds \['kind|map holds"):
        agent.load(file)
    checkpoint.keep(file, {**content, "state": [part]})
    with pytest.raises(CalibrlError, match="damaged"):
        agent.load(file)

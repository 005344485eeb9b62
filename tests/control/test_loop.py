"""Agents that learn alone, as jobs, give the rows they would give in a fleet."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

pytest.importorskip("mujoco")

from dataclasses import replace

from calibrl.arrays import visible_devices
from calibrl.control import loop
from calibrl.control.experiment import EXPERIMENT
from calibrl.control.settings import PRESETS, preset_for_env
from calibrl.errors import CalibrlError
from calibrl.runs import engine, workers
from calibrl.runs.experiment import Options
from calibrl.runs.settings import changed, parse_changes

TIMES = ("acting_s", "scoring_s", "training_s")


def run(out, settings, *, together, words=(), **options):
    """As a fleet, or each agent by itself; with some settings changed."""
    settings = changed(replace(settings, fleets=int(together), video=False), parse_changes(settings, words))
    return engine.run(EXPERIMENT, settings, out, **options)


def without_times(row):
    return {name: value for name, value in row.metrics.items() if name not in TIMES}


def test_jobs_give_the_rows_of_a_fleet_and_its_figures(tmp_path):
    preset = PRESETS["tiny"]
    alone = run(tmp_path / "jobs", preset, together=False).rows
    fleet = {row.key: without_times(row) for row in run(tmp_path / "fleet", preset, together=True).rows}
    assert {row.key for row in alone} == fleet.keys()
    for row in alone:
        assert without_times(row) == pytest.approx(fleet[row.key], rel=1e-4, nan_ok=True)
    drawn = {path.name for path in (tmp_path / "jobs").glob("*.png")}
    assert {"control-learning.png", "control-calibration.png", "control-predictions.png"} <= drawn
    # Drawn again from the folder alone.
    (tmp_path / "jobs" / "control-learning.png").unlink()
    assert run(tmp_path / "jobs", preset, together=False, resume=True).rows == alone
    assert (tmp_path / "jobs" / "control-learning.png").is_file()


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("first", [True, False])
def test_a_fleet_goes_on_with_what_jobs_began_and_jobs_with_a_fleet(tmp_path, first):
    preset = PRESETS["tiny"]
    whole = {row.key: without_times(row) for row in run(tmp_path / "whole", preset, together=True).rows}
    run(tmp_path / "turns", preset, together=first, words=["trials=1"])
    for row in run(tmp_path / "turns", preset, together=not first, resume=True).rows:
        assert without_times(row) == pytest.approx(whole.pop(row.key), rel=1e-4, nan_ok=True)
    assert not whole


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("arms", [("calibrated", "uncalibrated"), ("calibrated-trajectory", "width-0.5")])
def test_agents_are_shared_out_among_devices_and_give_the_same_rows(tmp_path, monkeypatch, arms):
    preset = replace(PRESETS["tiny"], seeds=2, arms=arms)
    whole = run(tmp_path / "whole", preset, together=True).rows
    monkeypatch.setattr(loop, "visible_devices", lambda _: ["cpu", "cpu"])
    first, second = loop.jobs(preset)
    assert (len(first.parts), len(second.parts)) == (2, 2)
    assert first.name != second.name
    # Nobody said who works: as there are two devices, there are two processes.
    seen = []
    pool = workers._pool
    monkeypatch.setattr(workers, "_pool", lambda *how: seen.append(how[:2]) or pool(*how))
    shared = run(tmp_path / "shared", preset, together=True).rows
    assert {row.arm for row in shared} == set(arms)
    assert seen == [("processes", 2)]
    assert [(row.key, without_times(row)) for row in shared] == [(row.key, without_times(row)) for row in whole]


@pytest.mark.parametrize(("fleets", "sizes"), [(0, [1] * 6), (1, [6]), (2, [3, 3]), (4, [1, 2, 1, 2]), (9, [1] * 6)])
def test_as_many_fleets_as_asked_for_share_the_agents(fleets, sizes):
    found = loop.jobs(replace(PRESETS["tiny"], seeds=3, fleets=fleets))
    assert [len(job.parts) for job in found] == sizes
    assert len({job.name for job in found}) == len(found)


def test_cuda_is_every_gpu_there_is_and_a_worker_on_one_takes_a_share_of_the_agents(monkeypatch):
    for count, found in ((1, ["cuda"]), (2, ["cuda:0", "cuda:1"])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert visible_devices("cuda") == found
    assert visible_devices("cuda:1") == ["cuda:1"]
    for device, workers_, fleets in (("cuda", 3, 3), ("cuda", None, 1), ("cpu", 3, 0), ("cpu", None, 1)):
        settings = replace(PRESETS["tiny"], device=device)
        assert EXPERIMENT.prepare(settings, Options(workers=workers_)).fleets == fleets


class Falls(gymnasium.Env):
    """A point that is pushed about, and falls beyond ±0.7."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-0.5, 0.5, 2).astype(np.float32)
        return self.x, {}

    def step(self, action):
        push = np.array([0.0, 0.3 * float(action[0])]) + 0.02 * self.np_random.normal(size=2)
        self.x = (self.x + np.array([0.5 * self.x[1], 0.0]) + push).astype(np.float32)
        return self.x, 1.0, bool(abs(self.x[0]) > 0.7), False, {}


ENV = "calibrl-tests/Falls-v0"
gymnasium.register(ENV, Falls, max_episode_steps=60)
SMALL = ["ensemble.epochs=2", "planner.horizon=6", "planner.population_size=8", "planner.iterations=1", "trials=2"]


@pytest.mark.usefixtures("blank_figures")
def test_where_episodes_end_rows_do_not_depend_on_who_runs_beside(tmp_path):
    words = [*SMALL, "seeds=3", "arms=calibrated"]
    found = run(tmp_path / "jobs", preset_for_env(ENV, 60), together=False, words=words)
    fleet = run(tmp_path / "fleet", preset_for_env(ENV, 60), together=True, words=words)
    alone = {row.key: without_times(row) for row in found.rows}
    for row in fleet.rows:
        assert alone[row.key] == pytest.approx(without_times(row), rel=1e-3, abs=1e-6, nan_ok=True)
    assert len({row.metrics["episodes"] for row in found.rows}) > 2
    assert (tmp_path / "jobs" / "control-horizon.png").is_file()


@pytest.mark.usefixtures("blank_figures")
def test_other_settings_of_an_environment_are_another_run_and_more_trials_the_same(tmp_path):
    base = [*SMALL, "trials=1", "steps=20", "arms=calibrated"]
    run(tmp_path, preset_for_env(ENV, 60), together=False, words=base)
    for word in ("planner.method=random", "ensemble.members=2", "steps=30"):
        with pytest.raises(CalibrlError, match="holds rows of another run"):
            run(tmp_path, preset_for_env(ENV, 60), together=False, words=[*base, word], resume=True)
    more = run(tmp_path, preset_for_env(ENV, 60), together=False, words=[*base, "seeds=2", "trials=2"], resume=True)
    assert [(row.seed, row.step) for row in more.rows] == [(seed, step) for seed in (0, 1) for step in (20, 40, 60)]

"""Agents that learn alone, as jobs, give the rows they would give in a fleet."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

pytest.importorskip("mujoco")

from calibrl.control.experiment import run
from calibrl.control.jobs import TIMES, plan
from calibrl.control.settings import PRESETS, changed, preset_for_env
from calibrl.errors import CalibrlError
from calibrl.runs.engine import carry_out


def test_jobs_give_the_rows_of_a_fleet_and_its_figures(tmp_path):
    preset = PRESETS["tiny"]
    alone = carry_out(plan(preset), tmp_path / "jobs").rows
    fleet = run(tmp_path / "fleet", preset).rows
    numbers = {row.key: {name: value for name, value in row.metrics.items() if name not in TIMES} for row in fleet}
    found = {row.key: row.metrics for row in alone}
    assert found.keys() == numbers.keys()
    for key, metrics in found.items():
        assert metrics == pytest.approx(numbers[key], rel=1e-4, nan_ok=True)
    drawn = {path.name for path in (tmp_path / "jobs").glob("*.png")}
    assert {"control-learning.png", "control-calibration.png", "control-predictions.png"} <= drawn
    # Drawn again from the folder alone.
    (tmp_path / "jobs" / "control-learning.png").unlink()
    assert carry_out(plan(preset), tmp_path / "jobs", resume=True).rows == alone
    assert (tmp_path / "jobs" / "control-learning.png").is_file()


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
    preset = changed(preset_for_env(ENV, 60), [*SMALL, "seeds=3", "arms=calibrated"])
    found = carry_out(plan(preset), tmp_path / "jobs")
    fleet = run(tmp_path / "fleet", preset)
    alone = {row.key: row.metrics for row in found.rows}
    for row in fleet.rows:
        metrics = {name: value for name, value in row.metrics.items() if name not in TIMES}
        assert alone[row.key] == pytest.approx(metrics, rel=1e-3, abs=1e-6, nan_ok=True)
    assert len({row.metrics["episodes"] for row in found.rows}) > 2
    starts = {part.shape[2] for record in fleet.records.values() for part in record.pits}
    assert len(starts) > 1, "trials differ in how many starts they leave"
    assert (tmp_path / "jobs" / "control-horizon.png").is_file()


@pytest.mark.usefixtures("blank_figures")
def test_other_settings_or_more_trials_of_an_environment_are_another_run(tmp_path):
    base = changed(preset_for_env(ENV, 60), [*SMALL, "trials=1", "steps=20", "arms=calibrated"])
    carry_out(plan(base), tmp_path)
    for words in (["planner.method=random"], ["ensemble.members=2"], ["steps=30"], ["trials=2"]):
        with pytest.raises(CalibrlError, match="holds rows of another run"):
            carry_out(plan(changed(base, words)), tmp_path, resume=True)
    more = carry_out(plan(changed(base, ["seeds=2"])), tmp_path, resume=True)
    assert {row.seed for row in more.rows} == {0, 1}

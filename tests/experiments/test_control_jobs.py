"""Agents that learn alone, as jobs, give the rows they would give in a fleet."""

import pytest

pytest.importorskip("mujoco")

from calibrl.control.presets import PRESETS
from calibrl.experiments.control import run
from calibrl.experiments.control_jobs import TIMES, plan
from calibrl.experiments.jobs import carry_out


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

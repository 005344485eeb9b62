"""The discrete experiment end to end, small, and its numbers against the library's own definitions."""

import numpy as np
import pytest
import typer.testing

from calibrl.cli import app
from calibrl.errors import CalibrlError
from calibrl.mdp.experiment import EXPERIMENT, TINY
from calibrl.mdp.problems import MAZE, planning_job
from calibrl.mdp.theorem import RANDOM, judge_random_mdp, two_state_rows
from calibrl.runs.rows import append, read


def test_tiny_run_writes_rows_and_figures(tmp_path):
    pytest.importorskip("gymnasium")
    command = ["run", "mdp", "--preset", "tiny", "--seed", "3", "--out", str(tmp_path)]
    found = typer.testing.CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "mdp-theory.png" in found.output
    for name in ("mdp-theory", "mdp-planning-table", "mdp-planning-coarse"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    rows = read(tmp_path / "rows.jsonl")
    assert {RANDOM, "frozen-lake, table, 3 rows", "maze, coarse, 3 rows"} <= {row.problem for row in rows}
    assert "3 rows" in found.output
    assert "1 rows" not in found.output, "the second amount of data is shown"
    ones = [row for row in rows if row.settings.get("rows_per_state_and_action") == 1]
    append(tmp_path / "ones" / "rows.jsonl", ones)
    shown = typer.testing.CliRunner().invoke(app, ["run", "mdp", "--rows", str(tmp_path / "ones")])
    assert "1 rows" in shown.output, "or what there is"
    # Paired: every arm of a problem has the same seeds.
    seeds = {}
    for row in rows:
        seeds.setdefault((row.problem, row.arm), []).append(row.seed)
    assert all(found == [3, 4] for (problem, _), found in seeds.items() if "rows" in problem)
    # And repeatable.
    again = [row.metrics for name in (*TINY.tables, MAZE) for row in planning_job(TINY, name, 4)]
    assert again == [row.metrics for row in rows if row.seed == 4]


def test_blunt_but_calibrated_is_exact_and_sharp_but_wrong_is_not():
    generator = np.random.default_rng(0)
    for _ in range(10):
        for model, (calibration, _, error, bound) in judge_random_mdp(generator).items():
            assert error <= bound + 1e-9
            if model.startswith("calibrated"):
                assert calibration < 1e-10
                assert error < 1e-8
            else:
                assert calibration > 0.01


def test_two_states_tell_the_papers_story():
    at = {round(row.metrics["believed"], 2): row.metrics for row in two_state_rows(0)}
    assert at[0.8]["promised_value"] == pytest.approx(at[0.8]["delivered_value"])
    assert at[0.6]["delivered_value"] < at[0.8]["delivered_value"]
    assert at[0.95]["promised_value"] > at[0.95]["delivered_value"] + 1
    assert at[0.6]["expected_reward"] == pytest.approx(0.2)


def test_unknown_presets_are_refused():
    with pytest.raises(CalibrlError, match="'huge' is unknown; known: quick"):
        EXPERIMENT.preset("huge")

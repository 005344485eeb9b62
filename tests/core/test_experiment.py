"""The core experiment, end to end on one seed."""

from calibrl.core import problems as core
from calibrl.core.experiment import EXPERIMENT, CoreSettings
from calibrl.runs.engine import run
from calibrl.runs.rows import read


def test_one_seed_writes_rows_and_figures(tmp_path):
    rows = run(EXPERIMENT, CoreSettings("small", seeds=1), tmp_path).rows
    assert read(tmp_path) == rows
    assert {(row.problem, row.arm) for row in rows} == {
        (problem, arm) for problem in (*(f"diabetes, {r}" for r in core.REGRESSORS), core.DIGITS) for arm in core.ARMS
    }
    assert {path.name for path in tmp_path.glob("*.png")} == {"reliability.png", "intervals.png", "digits.png"}
    loss = {(row.problem, row.arm): row.metrics for row in rows}
    dropout = "diabetes, dropout network"
    assert loss[dropout, "cross-fitted"]["crps"] < loss[dropout, "uncalibrated"]["crps"]
    assert loss[dropout, "cross-fitted"]["coverage_90"] > 0.75 > loss[dropout, "uncalibrated"]["coverage_90"]
    assert loss[core.DIGITS, "cross-fitted"]["ece"] < loss[core.DIGITS, "uncalibrated"]["ece"] / 2

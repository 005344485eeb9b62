import re
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from calibrl import CalibrlError
from calibrl.bandits import POLICIES
from calibrl.bandits.experiment import EXPERIMENT, SMALL, TABLE_1, BanditSettings
from calibrl.bandits.figures import summarise, table_figure
from calibrl.bandits.loop import metrics, paired_trials, trial_rows
from calibrl.cli import app
from calibrl.runs.engine import run
from calibrl.runs.rows import Row, append, read

TINY = replace(SMALL, problems=("wine", "linear"), rounds=120, trials=3, policies=("linucb", "callinucb", "greedy"))


@pytest.mark.usefixtures("blank_figures")
def test_rows_are_paired_and_repeatable(tmp_path):
    first, second = (run(EXPERIMENT, TINY, tmp_path / name).rows for name in ("first", "second"))
    assert [row.metrics for row in first] == [row.metrics for row in second]
    assert len(first) == 2 * 3 * 3
    optimum = {(row.problem, row.seed): set() for row in first}
    for row in first:
        optimum[row.problem, row.seed].add(row.metrics["optimal"])
    assert all(len(values) == 1 for values in optimum.values()), "policies of one trial met different streams"


def test_reward_and_regret_add_up_on_classification_data():
    trials = paired_trials("wine", 0, rounds=120, policies=TINY.policies)
    for row in trial_rows("wine", 0, trials):
        assert row.metrics["reward"] + row.metrics["regret"] == row.metrics["optimal"] == 120
        assert row.metrics["best_arm"] == pytest.approx(row.metrics["reward"] / 120, rel=1e-5)
    trial = trials["callinucb"]
    chosen = trial.pit[np.arange(120), trial.chosen]
    assert metrics(trial)["coverage"] == pytest.approx(np.mean(chosen <= norm.cdf(1)), abs=1e-5)


def test_differences_are_taken_trial_by_trial():
    rewards = {"linucb": [10.0, 20.0, 60.0], "callinucb": [12.0, 23.0, 61.0]}
    other = dict.fromkeys(("optimal", "regret", "coverage", "coverage_all", "calibration_loss"), 1.0)
    rows = [
        Row("bandits", "wine", arm, seed, {"reward": value, **other}, step=5)
        for arm, values in rewards.items()
        for seed, value in enumerate(values)
    ]
    lines = {line.policy: line for line in summarise(rows)}
    assert lines["callinucb"].reward.difference == pytest.approx(2.0)
    assert lines["callinucb"].reward.difference_error == pytest.approx(np.std([2, 3, 1], ddof=1) / 3**0.5)
    assert lines["callinucb"].relative_gain == pytest.approx(2 / 30)
    assert summarise(rows, trials=2)[0].reward.mean == 15.0


def test_presets_are_complete():
    assert set(EXPERIMENT.preset("paper").problems) == set(TABLE_1.numbers)
    assert set(SMALL.policies) == set(POLICIES)
    assert EXPERIMENT.overrides(replace(TINY, policies=SMALL.policies)) == {"rounds": 120}
    with pytest.raises(CalibrlError, match="'magic' is unknown"):
        EXPERIMENT.jobs(replace(TINY, policies=("magic",)))
    with pytest.raises(CalibrlError, match="nothing to run"):
        EXPERIMENT.jobs(replace(TINY, trials=0))


# At the shell.


def shell(*words):
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=True)


def test_a_run_ends_in_a_table_rows_and_figures(tmp_path, monkeypatch):
    words = ("run", "bandits", "--problem", "wine", "--rounds", 100, "--trials", 6, "--out", tmp_path)
    result = shell(*words)
    assert result.exit_code == 0, result.output
    for name in ("LinUCB", "CalLinUCB", "ConformalLinUCB", "greedy", "CalThompson", "ε-greedy"):
        assert name in result.output
    assert {path.name for path in tmp_path.iterdir()} >= {"bandits.jsonl", "table.png", "learning-wine.png"}
    assert len(read(tmp_path)) == 54
    assert "holds rows of this run already; --resume" in str(shell(*words).exception)
    shown = shell("run", "bandits", "--rows", tmp_path, "--out", tmp_path / "again")
    assert "wine, 100 × 6" in shown.output
    assert (tmp_path / "again" / "table.png").is_file()
    monkeypatch.chdir(tmp_path)
    # As many as the preset has, too, are the first of those that are there.
    assert "wine, 100 × 5" in shell("run", "bandits", "--rows", tmp_path, "--trials", 5).output
    assert (tmp_path / "out" / "bandits" / "table.png").is_file()


def test_the_figure_tells_of_other_rounds_than_the_paper_s():
    for rounds, words in ((100, r"after 1200 rounds \(here linear 100\)\."), (1200, r"after 1200 rounds\.")):
        lines = summarise(trial_rows("linear", 0, paired_trials("linear", 0, rounds=rounds, policies=["linucb"])))
        figure = table_figure(lines, TABLE_1)
        assert re.search(words, figure.get_supxlabel())
        plt.close(figure)


def test_bad_options_are_named(tmp_path):
    (tmp_path / "none").mkdir()
    append(tmp_path / "others" / "rows.jsonl", [Row("bandits", "wine", "theirs", 0, {"reward": 1.0})])
    for words, expected in (
        (("--problem", "chess"), "'chess' is unknown"),
        (("--preset", "huge"), "'huge' is unknown"),
        (("--rows", tmp_path / "nothing"), "does not exist"),
        (("--rows", tmp_path / "none"), "no rows of bandits"),
        (("--rows", tmp_path / "others"), "policy 'theirs' is unknown"),
    ):
        result = shell("run", "bandits", *words, "--out", tmp_path)
        assert isinstance(result.exception, CalibrlError)
        assert expected in str(result.exception)


def test_a_policy_is_judged_from_a_log(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((400, 2))
    arm = generator.integers(2, size=400)
    reward = np.where(arm == 0, x[:, 0], x[:, 1]) + 0.1 * generator.standard_normal(400)
    columns = {"age": x[:, 0], "spend": x[:, 1], "arm": arm, "reward": reward, "propensity": 0.5}
    pl.DataFrame(columns).write_csv(tmp_path / "log.csv")
    result = shell("bandit", "evaluate", tmp_path / "log.csv")
    assert result.exit_code == 0, result.output
    assert "doubly robust: after 200 rows" in result.output
    assert "replay" in result.output
    lacking = shell("bandit", "evaluate", tmp_path / "log.csv", "--propensity", "p")
    assert "no column 'p'" in str(lacking.exception)
    unknown = shell("bandit", "evaluate", tmp_path / "log.csv", "--policy", "best")
    assert "'best' is unknown" in str(unknown.exception)


# The paper's table, typed once more from the page.


@pytest.mark.parametrize(
    ("problem", "printed"),
    [
        ("linear", (1209.8, 1210.3, 1231.8)),
        ("beta", (1176.3, 1174.6, 1202.3)),
        ("mushroom", (1429.4, 1676.1, 3122.0)),
        ("covertype", (558.14, 677.8, 1200.0)),
        ("adult", (131.3, 198.9, 1200.0)),
        ("census", (207.6, 603.7, 1200.0)),
    ],
)
def test_table_1_is_the_printed_one(problem, printed):
    assert tuple(TABLE_1.at(problem, arm, "reward").mean for arm in ("linucb", "callinucb", "optimal")) == printed


def test_what_is_not_printed_is_none():
    assert TABLE_1.at("linear", "greedy", "reward") is None
    assert TABLE_1.at("wine", "linucb", "reward") is None


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("kind", ["data", "log"])
def test_resume_takes_nothing_of_a_file_that_was_changed(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    Path("deep").mkdir()
    given = {"data": {"data": "../file.csv", "label": "a/b arm"}, "log": {"log": "../file.csv"}}[kind]
    settings = BanditSettings("", policies=("linucb", "greedy"), trials=2, **given)
    found = {}
    for seed in (0, 1):
        generator = np.random.default_rng(seed)
        x, arm = generator.standard_normal(40), generator.integers(2, size=40)
        label = {"data": {"a/b arm": arm}, "log": {"arm": arm, "reward": x * arm, "propensity": 0.5 + 0 * x}}[kind]
        pl.DataFrame({"x": x + 3 * arm, **label}).write_csv("file.csv")
        monkeypatch.chdir("deep")
        alone = [row.metrics for row in run(EXPERIMENT, settings, tmp_path / f"alone{seed}").rows]
        for _ in range(2):
            found[seed] = run(EXPERIMENT, settings, tmp_path / "out", resume=True).rows
            assert [row.metrics for row in found[seed]] == alone
        monkeypatch.chdir(tmp_path)
    # Rows of both are kept, and are no trials of one problem.
    assert read(tmp_path / "out") == [*found[1], *found[0]]
    assert not {row.problem for row in found[0]} & {row.problem for row in found[1]}
    assert {path.parent.name for path in tmp_path.rglob("*.png")} <= {"out", "alone0", "alone1"}


def test_a_table_and_a_log_can_be_run(tmp_path):
    generator = np.random.default_rng(0)
    x, label = generator.standard_normal(80), generator.integers(2, size=80)
    pl.DataFrame({"x": x + 3 * label, "y": label}).write_csv(tmp_path / "table.csv")
    words = ["run", "bandits", "--data", str(tmp_path / "table.csv"), "--label", "y", "--policy", "calibrated-ucb"]
    found = CliRunner().invoke(app, [*words, "--policy", "linucb", "--trials", "2", "--out", str(tmp_path / "one")])
    assert found.exit_code == 0, found.output
    assert {row.step for row in read(tmp_path / "one")} == {80}
    log = {"x": x, "arm": label, "reward": np.where(label == 0, x, -x), "propensity": np.full(80, 0.5)}
    pl.DataFrame(log).write_csv(tmp_path / "log.csv")
    words = ["run", "bandits", "--log", str(tmp_path / "log.csv"), "--policy", "calibrated-ucb", "--policy", "linucb"]
    found = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "two")])
    assert found.exit_code == 0, found.output
    rows = {row.arm: row.metrics for row in read(tmp_path / "two")}
    assert rows["calibrated-ucb"]["reward_low"] < rows["calibrated-ucb"]["reward"]
    mean, low, high = (f"{rows['calibrated-ucb'][name]:.4g}" for name in ("reward", "reward_low", "reward_high"))
    assert f"{mean}, {low} … {high}" in found.output
    assert "nan" not in found.output


def test_without_linucb_no_difference_is_shown(tmp_path):
    words = ("--problem", "linear", "--policy", "greedy", "--trials", 2, "--rounds", 30)
    result = shell("run", "bandits", *words, "--out", tmp_path)
    assert result.exit_code == 0
    assert "greedy" in result.output
    assert "nan" not in result.output

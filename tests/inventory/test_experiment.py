from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calibrl import CalibrlError
from calibrl.cli import app
from calibrl.inventory.arms import (
    forecast_quality,
    learn_season,
    planner_for,
    play_model,
    saving,
    train,
    true_paths,
)
from calibrl.inventory.experiment import ARMS, EXPERIMENT, MODELS, PRESETS, TABLE_2, Arm, check, jobs, show
from calibrl.inventory.loop import demand_paths
from calibrl.inventory.policy import Heuristic
from calibrl.inventory.problems import PROBLEMS, dataset
from calibrl.maps import IDENTITY
from calibrl.runs.engine import Arrays, run
from calibrl.runs.rows import read, read_experiment

TINY = replace(PRESETS["tiny"], seeds=1, arms=("heuristic", "uncalibrated", "calibrated", "weekday", "oracle"))


@pytest.fixture(scope="module")
def where():
    return dataset("bakery", "test", 4, 8)


@pytest.fixture(scope="module")
def base(where):
    return train(where, MODELS["paper"], TINY, seed=0)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("inventory")
    return run(EXPERIMENT, TINY, out), out


def expected_on_test_days(base, arm, where):
    """What an arm expected on the evenings before the test days."""
    return learn_season(base, arm, where)[where.first - where.calibrate :]


def test_rows_are_table_2(found):
    rows = found[0].rows
    assert {row.arm for row in rows} == set(TINY.arms)
    for row in rows:
        m = row.metrics
        assert m["reward"] == -(m["wasted"] + m["stockouts"])
        assert m["waste_share"] == pytest.approx(m["wasted"] / m["shipped"], rel=1e-5)
        assert TABLE_2.at(row.problem, "calibrated", "reward") is not None
    assert next(row for row in rows if row.arm == "oracle").metrics["reward"] == 0
    assert set(TABLE_2.about("any")) <= set(TINY.arms)


@pytest.mark.parametrize("arm", ["calibrated", "uncalibrated", "heuristic"])
def test_table_2_adds_up(arm):
    found = TABLE_2.about("any shop")[arm]
    # The printed reward is -(wasted + stockouts) and the shares are of units shipped, as far as the paper rounds.
    assert found["reward"].mean == pytest.approx(-(found["wasted"].mean + found["stockouts"].mean), abs=1)
    assert found["waste_share"].mean == pytest.approx(found["wasted"].mean / found["shipped"].mean, abs=6e-4)
    assert found["stockout_share"].mean == pytest.approx(found["stockouts"].mean / found["shipped"].mean, abs=6e-4)


def test_rows_are_repeatable(found):
    again = [item for job in jobs(TINY) for item in play_model(*job.arguments)]
    rows = [item for item in again if not isinstance(item, Arrays)]
    assert {row.arm: row.metrics for row in rows} == {row.arm: row.metrics for row in found[0].rows}


def test_figures_and_rows_are_written(found):
    _, out = found
    assert {"table.png", "reliability.png", "days.png", "inventory.jsonl"} <= {path.name for path in out.iterdir()}
    rows = read(out / "inventory.jsonl")
    assert rows[0].settings["test"] == "2018-06-01 to 2018-06-08"
    assert rows[0].origin["version"]


def test_periods_do_not_overlap(where, base):
    sales = where.sales
    assert str(sales.dates[where.calibrate]) == "2018-02-01"
    assert str(sales.dates[where.first]) == "2018-06-01"
    assert base.rows.day.min() == where.calibrate - 1
    assert base.rows.day.max() == where.last - 1
    assert base.rank.shape == (len(base.rows), 5, TINY.n_paths)
    assert base.z.shape == (len(base.rows), 5)


def test_a_map_is_learnt_before_the_test_alone(where, base):
    arm = Arm("paper", mapping="isotonic")
    target = torch.from_numpy(base.rows.day)[:, None] + torch.arange(1, 6)
    spoilt = replace(base, z=torch.where(target >= where.first, 5.0, base.z))
    first = where.first - where.calibrate
    p = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)[:, None].expand(-1, 5)
    before, after = (learn_season(one, arm, where)[first].forecast.mapping for one in (base, spoilt))
    torch.testing.assert_close(before(p), after(p))
    assert learn_season(base, arm, where)[first - 1].forecast.mapping == IDENTITY


def test_bare_and_calibrated_paths_share_their_ranks(where, base):
    bare, honest = (
        demand_paths(expected_on_test_days(base, Arm("paper", mapping=name), where)) for name in ("", "isotonic")
    )
    assert bare.shape == honest.shape == (4, 8, TINY.n_paths, 5)
    for i in range(4):
        order = np.argsort(bare[i, 0, :, 0], kind="stable")
        assert (np.diff(honest[i, 0, order, 0]) >= 0).mean() > 0.8


def test_quality_is_that_of_the_forecasts(where, base):
    evenings = expected_on_test_days(base, Arm("paper"), where)
    numbers = forecast_quality(evenings)
    z = torch.cat([evening.z for evening in evenings])
    seen = z[:, 0][~z[:, 0].isnan()]
    assert numbers["below_50_day_1"] == pytest.approx(float((seen <= 0).double().mean()))
    inside = torch.special.ndtr(z[~z.isnan()])
    assert numbers["coverage_80"] == pytest.approx(float(((inside >= 0.1) & (inside <= 0.9)).double().mean()), abs=0.02)


def test_the_oracle_sees_the_days_that_come(where):
    ahead = true_paths(where)
    assert ahead.shape == (4, 8, 1, 5)
    np.testing.assert_array_equal(ahead[:, :, 0, 0], where.demand)
    np.testing.assert_array_equal(ahead[:, 0, 0, :5], where.demand[:, :5])


def test_a_rule_is_tuned_on_days_before_the_test(where, base):
    arm = Arm("paper", "heuristic", tuned=("factor", (0.0, 1.3)))
    assert planner_for(arm, base, where, TINY, shelf_life=3, seed=0) == Heuristic(factor=1.3)


def test_a_saving_has_an_interval_over_series():
    generator = np.random.default_rng(0)
    base = -generator.uniform(50, 150, (3, 60))
    mean, low, high = saving(base, 0.8 * base)
    assert (mean, low, high) == pytest.approx((0.2, 0.2, 0.2))
    mean, low, high = saving(base, base * generator.uniform(0.3, 1.3, (1, 60)))
    assert low < mean < high
    assert mean == pytest.approx(0.2, abs=0.1)
    assert 0.05 < high - low < 0.3


def test_the_command_prints_its_table(found, capsys, tmp_path):
    show(read_experiment(found[1], "inventory"), TINY)
    printed = capsys.readouterr().out
    assert "-16.8k" in printed
    assert "4 series × 8 days × 1 seeds" in printed
    done = CliRunner().invoke(app, ["run", "inventory", "--rows", str(found[1])])
    assert done.exit_code == 0
    with pytest.raises(CalibrlError, match="holds no rows of inventory"):
        read_experiment(tmp_path, "inventory")


def test_a_run_goes_on_where_it_stopped(found, tmp_path):
    first = run(EXPERIMENT, TINY, found[1], resume=True)
    assert len(first.rows) == len(found[0].rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "papr"], "preset 'papr' is unknown"),
        (["--data", "bakry"], "data 'bakry' is unknown"),
        (["--period", "never"], "period 'never' is unknown"),
        (["--arm", "calibated"], "arm 'calibated' is unknown"),
        (["--device", "cuda"], "is not there"),
        (["--device", "gpu"], "device 'gpu' is unknown"),
        (["--data", "favorita"], "Kaggle"),
        (["--rows", "nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_options_are_refused_in_words(arguments, words, tmp_path, monkeypatch):
    if arguments == ["--device", "cuda"] and torch.cuda.is_available():
        pytest.skip("here a GPU is there")
    monkeypatch.setenv("CALIBRL_DATA", str(tmp_path))
    done = CliRunner().invoke(app, ["run", "inventory", "--preset", "tiny", "--out", str(tmp_path), *arguments])
    assert done.exit_code != 0
    assert words in str(done.exception)


def test_presets_name_what_is_there():
    for preset in PRESETS.values():
        check(preset)
        assert all(arm.model in ("", *MODELS) for arm in map(ARMS.__getitem__, preset.arms))
    assert PRESETS["paper"].trajectories == 5000
    assert PRESETS["paper"].n_paths == 300
    for problem in PROBLEMS.values():
        assert {"test", "later", "tuning"} == set(problem.periods)
    with pytest.raises(CalibrlError, match="cannot be sold"):
        jobs(replace(TINY, shelf_lives=(0,)))

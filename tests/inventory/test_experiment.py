import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calibrl import CalibrlError
from calibrl.cli import app
from calibrl.inventory.arms import (
    Goods,
    forecast_quality,
    learn_season,
    planner_for,
    play_model,
    saving,
    train,
    true_paths,
    world,
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
    assert planner_for(arm, base, where, TINY, kind=Goods(np.arange(4), 3), seed=0) == Heuristic(factor=1.3)


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


# Sales of one's own.


@pytest.fixture
def own(tmp_path):
    """A sales file of 260 days, as a till writes it: two shops closed on Sundays, an item that ended in May."""
    rng = np.random.default_rng(0)
    days = np.datetime64("2025-01-06") + np.arange(260)
    lines = ["Datum;Artikel;Filiale;Menge"]
    for item, store, mean in (
        ("rolls", "north", 40),
        ("rolls", "south", 25),
        ("cake", "north", 8),
        ("tart", "south", 9),
    ):
        for k, day in enumerate(days):
            if (k % 7 < 6) and not (item == "tart" and k > 120):
                lines.append(f"{day};{item};{store};{rng.poisson(mean * (1 + (k % 7) / 6))}")
    path = tmp_path / "till.csv"
    path.write_text("\n".join(lines))
    items = tmp_path / "goods.csv"
    items.write_text("item,shelf_life,pack_size,cost_of_waste,cost_of_lost_sale\nrolls,1,5,0.5,2\ncake,4,1,3,1\n")
    return path, items


def test_table_2_of_ones_own_sales(own, tmp_path):
    sales, _ = own
    settings = replace(PRESETS["tiny"], seeds=1, arms=tuple(ARMS), sales=str(sales))
    rows = run(EXPERIMENT, settings, tmp_path / "out").rows
    assert {row.arm for row in rows} == set(ARMS)
    assert {row.problem for row in rows} == {"till, 3 days"}
    about = rows[0].settings
    assert about["series"] == 3  # the tart is gone
    assert about["test"] == "2025-08-11 to 2025-08-18"
    assert "1 item-store without sales for four weeks left out" in about["note"]
    # Another file under the same name is another run: nothing of the first is taken for it.
    again = run(EXPERIMENT, settings, tmp_path / "out", resume=True).rows
    assert len(again) == len(rows)
    before = [job.name for job in jobs(settings)]
    sales.write_text(sales.read_text() + "\n2025-09-22;rolls;north;40")
    world.cache_clear()
    assert not set(before) & {job.name for job in jobs(settings)}


def test_items_keep_and_cost_what_their_file_says(own):
    sales, items = own
    settings = replace(
        PRESETS["tiny"], seeds=1, arms=("heuristic", "tuned heuristic"), sales=str(sales), items=str(items)
    )
    where, goods = world(settings)
    assert where.sales.series == ("cake in north", "rolls in north", "rolls in south")
    assert {kind.shelf_life: kind.series.tolist() for kind in goods["items"]} == {4: [0], 1: [1, 2]}
    found = [item for job in jobs(settings) for item in play_model(*job.arguments)]
    row = found[0]
    assert row.problem == "till, items"
    rewards = found[-1].values["heuristic, items, reward"]
    assert row.metrics["reward"] == pytest.approx(rewards.sum(), rel=1e-6)
    assert row.metrics["shipped"] % 1 == 0
    # Rolls come in fives.
    kind = next(kind for kind in goods["items"] if kind.shelf_life == 1)
    assert planner_for(ARMS["heuristic"], None, where, settings, kind=kind, seed=0).rules.pack == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": "goods.csv"}, "--items goods.csv is about a sales file; add --sales FILE"),
        ({"sales": "none.csv"}, "none.csv: does not exist"),
        ({"sales": "own", "period": "later"}, "period 'later' is unknown; known: test; tuning"),
        ({"sales": "own", "columns": "units=Qty"}, "--columns units=Qty: no such column"),
        ({"sales": "short"}, "60 days of sales up to 2025-03-06; to train, calibrate and test takes 200 or more"),
        ({"sales": "own", "items": "late"}, "lead_days 6 is more than the 5 days that are forecast here"),
    ],
)
def test_sales_that_cannot_be_run_are_refused_before_anything_is(own, tmp_path, changes, message):
    lines = own[0].read_text().splitlines()
    (tmp_path / "short").write_text("\n".join([lines[0], *(line for line in lines[1:] if line < "2025-03-07")]))
    (tmp_path / "short").rename(tmp_path / "short.csv")
    (tmp_path / "late.csv").write_text("item,lead_days\ncake,6\n")
    files = {"own": str(own[0]), "short": str(tmp_path / "short.csv"), "late": str(tmp_path / "late.csv")}
    given = {name: files.get(value, value) for name, value in changes.items()}
    with pytest.raises(CalibrlError, match=re.escape(message)):
        jobs(replace(PRESETS["tiny"], **given))


def test_own_sales_are_a_command(own, tmp_path):
    words = ["run", "inventory", "--sales", str(own[0]), "--items", str(own[1]), "--preset", "tiny", "--seeds", "1"]
    found = CliRunner().invoke(app, [*words, "--arm", "heuristic", "--arm", "oracle", "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    assert "till, items: 3 series × 8 days × 1 seeds" in found.output

"""Rows survive crashes; tables compare on paired seeds."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from calibrl.errors import CalibrlError
from calibrl.files import replacing, write_text
from calibrl.runs import rows as results
from calibrl.runs.rows import Row
from calibrl.runs.statistics import alike, latest, stops, stops_in_words, table

PUBLISHED = Path(__file__).parent.parent / "results"


def row(arm, seed, value, problem="p", step=0):
    return Row("e", problem, arm, seed, {"m": value}, step=step)


def test_rows_come_back_as_written(tmp_path):
    rows = [row("a", seed, seed / 3) for seed in range(5)]
    results.append(tmp_path / "deep" / "rows.jsonl", rows[:2])
    results.append(tmp_path / "deep" / "rows.jsonl", rows[2:])
    assert results.read(tmp_path) == rows
    assert (tmp_path / "deep" / "rows.jsonl").read_text() == "".join(map(results.line, rows))


def test_a_file_in_the_way_is_an_error_in_words(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(CalibrlError, match="is a file"):
        results.append(tmp_path / "out" / "rows.jsonl", [row("a", 0, 1.0)])


def test_a_line_cut_short_loses_only_itself(tmp_path):
    file = tmp_path / "rows.jsonl"
    results.append(file, [row("a", 0, 1.0), row("a", 1, 2.0)])
    file.write_text(file.read_text()[:-20])
    results.append(file, [row("a", 2, 3.0)])
    with pytest.warns(UserWarning, match="line 2: damaged row skipped"):
        assert [r.seed for r in results.read(file)] == [0, 2]
    assert len(file.read_text().splitlines()) == 3


def test_a_repeated_run_replaces_its_rows():
    assert latest([row("a", 0, 1.0), row("b", 0, 5.0), row("a", 0, 2.0)])[0].metrics == {"m": 2.0}
    other = Row("e", "p", "a", 0, {"m": 3.0}, overrides={"planner.horizon": 5})
    assert len(latest([row("a", 0, 1.0), other])) == 2, "another run's row is not a repetition"


def test_differences_are_paired():
    noise = [0.0, 10.0, -7.0, 3.0]
    rows = [row("base", s, n) for s, n in enumerate(noise)] + [row("new", s, n + 1) for s, n in enumerate(noise)]
    cell = table(rows, "m", "base")["p"]["new"]
    assert cell.change == pytest.approx(1)
    assert cell.change_error == pytest.approx(0, abs=1e-12)
    assert cell.error > 3
    assert math.isnan(table(rows, "m", "base")["p"]["base"].change)


def test_the_last_step_counts():
    rows = [row("a", 0, 1.0, step=1), row("a", 0, 9.0, step=2)]
    other = Row("e", "p", "a", 0, {"k": 4.0}, step=3)  # says nothing about m
    for order in (rows, rows[::-1], [*rows, other]):
        assert table(order, "m", "a")["p"]["a"].mean == 9
    # Of two rows of one step the later one counts, as in `latest`.
    assert table([*rows, row("a", 0, 8.0, step=2)], "m", "a")["p"]["a"].mean == 8


def test_arms_without_a_common_seed_have_no_difference():
    cell = table([row("base", 0, 1.0), row("new", 1, 3.0)], "m", "base")["p"]["new"]
    assert (cell.mean, cell.count, cell.pairs) == (3.0, 1, 0)
    assert all(map(math.isnan, (cell.error, cell.change, cell.change_error, *cell.interval)))


def test_problems_that_measure_alike_share_a_table():
    rows = [row("a", 0, 1.0, "one"), Row("e", "two", "a", 0, {"n": 1.0}), row("a", 0, 1.0, "three")]
    assert alike(rows, ["m", "n"]) == {("m",): ["one", "three"], ("n",): ["two"]}


def test_files_are_whole_or_not_there(tmp_path):
    target = tmp_path / "file.txt"
    write_text(target, "first")

    def fail():
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
    assert target.stat().st_mode & 0o044


def test_origin_says_where_rows_come_from():
    where = results.origin()
    assert {"command", "version", "commit", "python", "packages", "machine", "date"} <= set(where)


@pytest.mark.parametrize(
    ("started", "said"),
    [
        (
            ["/usr/bin/calibrl", "run", "inventory", "--arm", "plus, calibrated"],
            "calibrl run inventory --arm 'plus, calibrated'",
        ),
        (["/lib/calibrl/__main__.py", "run", "core"], "calibrl run core"),
        (["benchmarks/planning.py", "--quick"], "python benchmarks/planning.py --quick"),
    ],
)
def test_rows_name_a_command_that_can_be_repeated(monkeypatch, started, said):
    monkeypatch.setattr("sys.argv", started)
    assert results.origin()["command"] == said


def test_a_seed_without_a_number_at_its_end_does_not_count():
    rows = [
        row("base", 0, 1.0),
        row("base", 1, 3.0),
        row("new", 0, 5.0),
        row("new", 1, 4.0),
        row("new", 1, math.nan, step=1),
    ]
    cells = table(rows, "m", "base")["p"]
    assert (cells["new"].mean, cells["new"].count, cells["new"].change, cells["new"].pairs) == (5.0, 1, 4.0, 1)
    assert cells["base"].mean == 2.0


def test_arms_that_stopped_apart_are_told():
    together = [row(arm, seed, 1.0, step=step) for arm in "ab" for seed in (0, 1) for step in (10, 20)]
    assert stops(together) == {}
    assert stops_in_words({}, "round") == ""
    assert stops([row("a", 0, 1.0, step=1), row("b", 0, 1.0, step=2)]) == {"p": {"a": "1", "b": "2"}}
    apart = [*together, row("c", 0, 1.0, step=90), row("c", 1, 1.0, step=70), row("a", 0, 1.0, "other", step=5)]
    assert stops(apart) == {"p": {"a": "20", "b": "20", "c": "70–90"}}
    assert stops_in_words(stops(apart), "round") == ("Not after equal experience. Last rounds: p: a 20, b 20, c 70–90.")


@pytest.mark.parametrize("seeds", [2, 7])
def test_intervals_are_those_of_a_paired_t_test(seeds):
    generator = np.random.default_rng(0)
    base, new = generator.normal(size=seeds), generator.normal(1, 2, size=seeds)
    rows = [row("base", s, v) for s, v in enumerate(base)] + [row("new", s, v) for s, v in enumerate(new)]
    cell = table(rows, "m", "base")["p"]["new"]
    expected = stats.ttest_rel(new, base).confidence_interval(0.95)
    assert cell.interval == pytest.approx((expected.low, expected.high))
    assert cell.pairs == seeds
    assert cell.error == pytest.approx(stats.sem(new))
    assert all(map(math.isnan, table([rows[0], rows[seeds]], "m", "base")["p"]["new"].interval))


# The layout of a file.


def test_what_is_not_a_number_is_null_in_the_file_and_nan_in_the_row(tmp_path):
    file = tmp_path / "rows.jsonl"
    results.append(file, [Row("e", "p", "a", 0, {"m": math.nan, "n": math.inf, "k": 1.5})])
    assert json.loads(file.read_text())["metrics"] == {"m": None, "n": None, "k": 1.5}
    (found,) = results.read(file)
    assert math.isnan(found.metrics["m"])
    assert found.metrics["k"] == 1.5


def test_rows_say_their_schema_and_older_and_newer_ones_are_told_apart(tmp_path):
    file = tmp_path / "rows.jsonl"
    results.append(file, [row("a", 0, 1.0)])
    assert json.loads(file.read_text())["schema"] == results.SCHEMA == 2
    old = {"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {"m": 1}, "step": 0, "preset": ""}
    new = old | {"schema": 99, "colour": "red"}
    file.write_text(json.dumps(old) + "\n" + json.dumps(new) + "\n")
    with pytest.warns(UserWarning, match=r"line 2: damaged row skipped \(schema 99 is newer than 2: update calibrl\)"):
        assert results.read(file) == [Row("e", "p", "a", 1, {"m": 1})]


@pytest.mark.parametrize(
    "damage",
    [
        b"{}",
        b"[1, 2]",
        b"null",
        b'{"experiment": "e"',
        b"\xff\xfe\x00",
        b'{"experiment": 3, "problem": "p", "arm": "a", "seed": 1, "metrics": {}}',
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": "one", "metrics": {}}',
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": [1]}',
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {}, "schema": "x"}',
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {}, "colour": "red"}',
    ],
)
def test_any_damage_is_reported_with_file_and_line_and_skipped(tmp_path, damage):
    file = tmp_path / "rows.jsonl"
    results.append(file, [row("a", 0, 1.0)])
    with file.open("ab") as end:
        end.write(damage + b"\n")
    results.append(file, [row("a", 2, 3.0)])
    with pytest.warns(UserWarning, match=r"rows\.jsonl, line 2: damaged row skipped"):
        assert [found.seed for found in results.read(file)] == [0, 2]


def test_a_line_separator_inside_a_name_does_not_end_a_row(tmp_path):
    odd = Row("e", "p\u2028q", "a\x85", 0, {"m": 1.0})
    results.append(tmp_path / "rows.jsonl", [odd])
    assert results.read(tmp_path) == [odd]


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published rows are not here")
def test_published_rows_read():
    rows = results.read(PUBLISHED)
    assert {"core", "bandits", "mdp", "safety"} <= {found.experiment for found in rows}
    assert len(rows) > 8000


# One line with the tools people have.


@pytest.fixture
def written(tmp_path):
    rows = [
        Row("bandits", problem, arm, seed, {"reward": seed + bonus, f"only_{problem}": 1.0}, preset="small", job="j")
        for problem in ("linear", "wine")
        for arm, bonus in (("linucb", 0.0), ("callinucb", 2.5))
        for seed in range(3)
    ]
    results.append(tmp_path / "bandits" / "rows.jsonl", rows[:6])
    results.append(tmp_path / "more" / "rows.jsonl", [*rows[6:], Row("e", "p", "a", 0, {"other": math.nan})])
    return tmp_path


def test_polars_reads_rows_in_one_line(written):
    import polars as pl

    found = pl.read_ndjson(sorted(written.rglob("*.jsonl")), infer_schema_length=None).unnest("metrics")
    means = found.group_by("problem", "arm").agg(pl.col("reward").mean())
    assert dict(zip(means["problem"] + " " + means["arm"], means["reward"], strict=True))["wine callinucb"] == 3.5


def test_duckdb_reads_rows_in_one_line(written):
    duckdb = pytest.importorskip("duckdb")
    rows = f"read_json('{written}/**/*.jsonl', union_by_name = true)"
    found = duckdb.sql(f"SELECT problem, arm, avg(metrics.reward) FROM {rows} GROUP BY ALL").fetchall()
    assert ("wine", "callinucb", 3.5) in found

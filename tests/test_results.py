"""Rows survive crashes; tables compare on paired seeds."""

import math

import pytest

from calibrl import results
from calibrl.errors import CalibrlError
from calibrl.files import replacing, write_text
from calibrl.results import Row
from calibrl.results_table import alike, latest, table


def row(arm, seed, value, problem="p", step=0):
    return Row("e", problem, arm, seed, {"m": value}, step=step)


def test_rows_come_back_as_written(tmp_path):
    rows = [row("a", seed, seed / 3) for seed in range(5)]
    results.append(tmp_path / "deep" / "rows.jsonl", rows[:2])
    results.append(tmp_path / "deep" / "rows.jsonl", rows[2:])
    assert results.read(tmp_path) == rows


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


def test_a_repeated_run_replaces_its_rows():
    assert latest([row("a", 0, 1.0), row("b", 0, 5.0), row("a", 0, 2.0)])[0].metrics == {"m": 2.0}


def test_differences_are_paired():
    noise = [0.0, 10.0, -7.0, 3.0]
    rows = [row("base", s, n) for s, n in enumerate(noise)] + [row("new", s, n + 1) for s, n in enumerate(noise)]
    cell = table(rows, "m", "base")["p"]["new"]
    assert cell.change == pytest.approx(1)
    assert cell.change_error == pytest.approx(0, abs=1e-12)
    assert cell.error > 3
    assert cell.sure
    assert math.isnan(table(rows, "m", "base")["p"]["base"].change)


def test_the_last_step_counts():
    rows = [row("a", 0, 1.0, step=1), row("a", 0, 9.0, step=2)]
    assert table(rows, "m", "a")["p"]["a"].mean == 9


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

"""Rows survive crashes."""

import json
import math
import os
import random
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from calibrl.errors import CalibrlError
from calibrl.runs import rows as results
from calibrl.runs.rows import RELIABILITY_NAMES, RELIABILITY_PERCENT, Row, reliability_metrics

PUBLISHED = Path(__file__).parents[2] / "results"


def row(arm, seed, value, problem="p", step=0):
    return Row("e", problem, arm, seed, {"m": value}, step=step)


def test_a_folder_is_made_with_those_above_it_and_one_letter_is_a_line_cut_short(tmp_path):
    file = tmp_path / "deep" / "deeper" / "rows.jsonl"
    results.append(file, [row("a", 0, 1.0)])
    file.write_text("{")
    results.append(file, [row("a", 0, 1.0)])
    with pytest.warns(UserWarning, match="line 1: damaged row skipped"):
        assert results.read(file) == [row("a", 0, 1.0)]


@pytest.mark.parametrize("name", ["é", "\udcff"])
def test_letters_are_written_as_they_are_and_settings_are_numbers(name):
    written = results.line(replace(row("a", 0, 1.0), problem=name))
    assert json.loads(written)["problem"] == name
    assert ("é" in written) == (name == "é")
    with pytest.raises(ValueError, match="JSON"):
        results.line(replace(row("a", 0, 1.0), problem=name, settings={"n": math.nan}))


@pytest.mark.parametrize(
    ("jobs", "words"), [(1, "1 rows of 'a' are missing;"), (3, "3 rows of 'a' and 2 other jobs are")]
)
def test_what_is_missing_is_counted_by_job(tmp_path, jobs, words):
    results.append(tmp_path / "rows.jsonl", [replace(row("a", 0, 1.0), job="kept")])
    marks = (results.mark(job, 1, arrays="") for job in ["kept", *"abc"[:jobs]])
    (tmp_path / results.FINISHED).write_text("".join(marks))
    with pytest.warns(UserWarning, match=words):
        results.read(tmp_path)


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
    assert json.loads(file.read_text())["schema"] == results.SCHEMA == 3
    old = {"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {"m": 1}, "step": 0, "preset": ""}
    new = old | {"schema": 4, "colour": "red"}
    file.write_text(json.dumps(old) + "\n" + json.dumps(new) + "\n")
    with pytest.warns(UserWarning, match=r"line 2: damaged row skipped \(schema 4 is newer than 3: update calibrl\)"):
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
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {}, "settings": {"n": [NaN]}}',
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {}, "overrides": {"n": 1e999}}',
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {}, "settings": {"n": 1%s}}'
        % (b"0" * 400),
        b'{"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {}, "origin": {"packages": 1}}',
        b'{"experiment": "e", "problem": "p", "arm": "a", "arm": "b", "seed": 1, "metrics": {}}',
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


def test_shares_are_the_empirical_distribution():
    pit = stats.beta(0.5, 0.7).rvs(500, random_state=0)
    found = reliability_metrics(pit)
    expected = stats.ecdf(pit).cdf.evaluate(np.array(RELIABILITY_PERCENT) / 100)
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-6)
    assert RELIABILITY_NAMES[0] == "reliability_05"
    assert RELIABILITY_NAMES[-1] == "reliability_95"


def test_columns_are_averaged():
    pit = np.array([[0.1, 0.9], [0.2, 0.95]])
    assert reliability_metrics(pit)["reliability_50"] == 0.5


def test_every_bit_of_a_row_counts(tmp_path):
    file, luck = tmp_path / "rows.jsonl", random.Random(0)
    results.append(file, [row("a", 0, 1.0), row("b", 1, 2.5)])
    whole, rows = file.read_bytes(), results.read(file)
    for _ in range(300):
        bit = luck.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = results.read(file)
        assert all(each in rows for each in found)
        assert told or found == rows


def test_rows_before_there_were_checksums_are_read_but_new_ones_need_theirs(tmp_path):
    file = tmp_path / "rows.jsonl"
    results.append(file, [row("a", 0, 1.0)])
    new = json.loads(file.read_text())
    del new["crc"]
    file.write_text("".join(json.dumps(new | {"schema": schema}) + "\n" for schema in (2, 3)))
    with pytest.warns(UserWarning, match="line 2: damaged row skipped"):
        assert results.read(file) == [row("a", 0, 1.0)]


def test_hidden_files_and_folders_are_passed_by(tmp_path):
    for name in ("rows.jsonl", ".rows.jsonl", ".ipynb_checkpoints/rows.jsonl", "below/rows.jsonl"):
        results.append(tmp_path / ".here" / name, [row("a", len(name), 1.0)])
    (tmp_path / ".here" / "folder.jsonl").mkdir()
    assert {one.seed for one in results.read(tmp_path / ".here")} == {len("rows.jsonl"), len("below/rows.jsonl")}


def test_pipes_and_endless_lines_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(CalibrlError, match=r"pipe.jsonl is no regular file; give a .jsonl file"):
        results.read(tmp_path)
    with pytest.raises(CalibrlError, match="zero is no regular file"):
        results.read("/dev/zero")
    (tmp_path / "pipe.jsonl").unlink()
    results.append(tmp_path / "long.jsonl", [row("a", 0, 1.0)])
    with (tmp_path / "long.jsonl").open("ab") as file:
        file.truncate(9 * results.LONGEST)  # takes no room on the disk
    with pytest.warns(UserWarning, match="line 2: damaged row skipped"):
        assert results.read(tmp_path) == [row("a", 0, 1.0)]


def test_blank_lines_are_no_damage_and_the_longest_line_takes_no_other_along(tmp_path, monkeypatch):
    file, rows = tmp_path / "rows.jsonl", [row("a", seed, 1.0) for seed in range(3)]
    file.write_text("\n".join(results.line(one) for one in rows))
    monkeypatch.setattr(results, "LONGEST", len(results.line(rows[0])))
    assert results.read(file) == rows


def test_a_name_that_is_no_text_is_kept_as_it_is(tmp_path):
    odd = Row("e", "p", "a", 0, {"m": 1.0}, origin={"command": "calibrl --out \udcff"})
    results.append(tmp_path / "rows.jsonl", [odd])
    assert results.read(tmp_path) == [odd]


def test_one_row_too_few_is_noticed_unless_a_damaged_line_or_another_file_accounts_for_it(tmp_path):
    (tmp_path / "finished.log").write_text(results.mark("j", 2, arrays=""))
    first, second = (replace(row("a", seed, 1.0), job="j") for seed in (0, 1))
    file = tmp_path / "rows.jsonl"
    results.append(file, [first])
    with pytest.warns(UserWarning, match="1 rows of 'j' are missing; --resume computes them again"):
        assert results.read(tmp_path) == [first]
    results.append(tmp_path / "more.jsonl", [second])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert results.read(tmp_path) == [second, first]
        assert results.read(file) == [first]  # nobody knows which of two files a row should be in
    (tmp_path / "more.jsonl").write_text("{}\n")
    with pytest.warns(UserWarning, match="damaged row skipped") as told:
        results.read(tmp_path)
    assert len(told) == 1
    (tmp_path / "finished.log").write_text(results.mark("j", 3, arrays=""))  # one line accounts for one row
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        results.read(tmp_path)
    assert ["2 rows of 'j' are missing" in str(each.message) for each in told] == [False, True]


@pytest.mark.parametrize("name", ["seed", "step"])
def test_true_is_no_number_of_a_row(tmp_path, name):
    file = tmp_path / "rows.jsonl"
    values = {"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {"m": 1}, name: True}
    file.write_text(json.dumps(values) + "\n")
    with pytest.warns(UserWarning, match="line 1: damaged row skipped"):
        assert results.read(file) == []


def test_seconds_that_are_no_number_are_damage(tmp_path):
    file = tmp_path / "rows.jsonl"
    values = {"experiment": "e", "problem": "p", "arm": "a", "seed": 1, "metrics": {"m": 1}}
    told = [values, *(values | {"seconds": seconds} for seconds in (2, True, math.nan))]
    file.write_text("".join(json.dumps(each) + "\n" for each in told))
    with pytest.warns(UserWarning, match=r"line [34]: damaged row skipped") as warned:
        assert [found.seconds for found in results.read(file)] == [0, 2]
    assert len(warned) == 2


def test_a_line_is_strict_json_in_readable_letters():
    assert '"problem": "Brötchen"' in results.line(row("a", 0, 1.0, problem="Brötchen"))
    for command in ("calibrl", "calibrl --out \udcff"):
        with pytest.raises(ValueError, match="not JSON compliant"):
            results.line(replace(row("a", 0, 1.0), settings={"share": math.nan}, origin={"command": command}))


def test_rows_are_in_the_file_before_it_is_synced(tmp_path, monkeypatch):
    file, seen = tmp_path / "rows.jsonl", []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(file.read_text()))
    results.append(file, [row("a", 0, 1.0)])
    assert seen == [results.line(row("a", 0, 1.0))]


def test_only_jobs_that_lack_rows_are_said_to(tmp_path):
    (tmp_path / "finished.log").write_text(results.mark("whole", 1, arrays="") + results.mark("short", 2, ""))
    results.append(tmp_path / "rows.jsonl", [replace(row("a", 0, 1.0), job=job) for job in ("whole", "short")])
    with pytest.warns(UserWarning, match="1 rows of 'short' are missing"):
        results.read(tmp_path)


def test_rows_of_one_experiment_are_told_from_others(tmp_path):
    with pytest.raises(CalibrlError, match=r"rows does not exist; give a .jsonl file or a folder"):
        results.read_experiment(tmp_path / "rows", "e")
    results.append(tmp_path / "rows.jsonl", [row("a", 0, 1.0), replace(row("a", 0, 1.0), experiment="f")])
    assert [found.experiment for found in results.read_experiment(tmp_path, "f")] == ["f"]
    with pytest.raises(CalibrlError, match="holds no rows of g; run: calibrl run g"):
        results.read_experiment(tmp_path, "g")


def test_the_commit_is_what_git_says_unless_somebody_knows_better(tmp_path, monkeypatch):
    git = tmp_path / "git"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CALIBRL_COMMIT", raising=False)
    assert results._commit() == "unknown"
    for status, said in ((0, "abc1234"), (1, "unknown")):
        git.write_text(f"#!/bin/sh\necho abc1234\nexit {status}\n")
        git.chmod(0o755)
        assert results._commit() == said
    monkeypatch.setenv("CALIBRL_COMMIT", "fff0000")
    assert results._commit() == "fff0000"


def test_a_folder_that_may_not_be_looked_into_is_said(tmp_path, monkeypatch):
    """Not passed by, as if there were no rows in it; hidden ones are."""
    for name in ("open", "closed", ".hidden"):
        results.append(tmp_path / name / "rows.jsonl", [row(name, 0, 1.0)])
    real = os.scandir

    def scandir(path):
        if Path(path).name in ("closed", ".hidden"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.warns(UserWarning, match="closed: Permission denied; rows in it are left out") as told:
        assert [each.arm for each in results.read(tmp_path)] == ["open"]
    assert len(told) == 1


def test_a_file_of_something_else_is_told_of_in_a_few_lines(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("no row\n" * 10_000)
    with pytest.warns(UserWarning, match="damaged row") as told:
        assert results.read(file) == []
    assert len(told) < 10
    assert str(told[-1].message).endswith(f"{10_000 + 1 - len(told):} more damaged rows skipped")


@pytest.mark.parametrize("command", ["calibrl", "calibrl \udcff"])
def test_a_number_that_json_does_not_know_is_refused_where_it_is_no_metric(command):
    with pytest.raises(ValueError, match="JSON"):
        results.line(replace(row("a", 0, 1.0), settings={"x": math.nan}, origin={"command": command}))


def test_two_values_have_an_error():
    assert results.mean_and_error([1.0, 3.0]) == (2.0, 1.0)

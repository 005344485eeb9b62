"""`calibrl summary`: the numbers of a run, in words and for programs."""

import json

import pytest
from typer.testing import CliRunner

from calibrl.cli import app
from calibrl.errors import CalibrlError
from calibrl.runs.rows import Row, append


def shell(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def folder(tmp_path):
    rows = [
        Row("bandits", "wine", arm, seed, {"reward": 10 * seed + gain, "regret": 1.0}, preset="small")
        for arm, gains in (("linucb", (0, 0, 0, 0, 0)), ("callinucb", (2, 3, 1, 2, 2)))
        for seed, gain in enumerate(gains)
    ]
    append(tmp_path / "bandits" / "rows.jsonl", [*rows, Row("mine", "p", "a", 0, {"score": 1.0})])
    return tmp_path


def test_means_differences_and_intervals(folder):
    found = shell("summary", folder)
    assert found.exit_code == 0, found.output
    assert "Contextual bandits (bandits, small)" in found.output
    assert "22.0 ± 7.0" in found.output
    assert "+2.0" in found.output
    assert "+1.1 … +2.9" in found.output  # 2 ± 2.776 · √(1/10), by a table of Student's t
    assert "mine" in found.output


def test_numbers_for_programs(folder):
    found = json.loads(shell("summary", folder, "--json", "--metric", "reward").output)
    cell = found["bandits, small"]["metrics"]["reward"]["wine"]["callinucb"]
    assert cell["mean"] == 22
    assert cell["difference"] == 2
    assert (cell["low"], cell["high"]) == pytest.approx((2 - 2.776445 / 10**0.5, 2 + 2.776445 / 10**0.5))
    assert cell["seeds"] == cell["pairs"] == 5
    base = found["bandits, small"]["metrics"]["reward"]["wine"]["linucb"]
    assert base["difference"] is None
    assert list(found) == ["bandits, small"], "the other experiment does not measure it"


def test_arms_that_stopped_apart_are_told(tmp_path):
    rows = [Row("control", "pole", arm, 0, {"return": 1.0}, step=step) for arm, step in (("a", 200), ("sac", 5000))]
    append(tmp_path / "rows.jsonl", rows)
    told = "Not after equal experience. Last environment steps: pole: a 200, sac 5000."
    assert told in shell("summary", tmp_path).output
    assert json.loads(shell("summary", tmp_path, "--json").output)["control"]["stops"] == {
        "pole": {"a": "200", "sac": "5000"}
    }


def test_another_baseline(folder):
    found = json.loads(shell("summary", folder / "bandits", "--json", "--baseline", "callinucb").output)
    assert found["bandits, small"]["metrics"]["reward"]["wine"]["linucb"]["difference"] == -2


def test_bad_input_is_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for words, expected in (
        (("nowhere",), "nowhere does not exist"),
        ((tmp_path / "empty",), "holds no rows"),
        ((folder, "--metric", "speed"), "metric 'speed' is in none of the rows; known: regret, reward, score"),
        ((folder, "--baseline", "magic"), "'magic' is no arm of these rows; known: linucb, callinucb, a"),
    ):
        found = shell("summary", *words)
        assert isinstance(found.exception, CalibrlError)
        assert expected in str(found.exception)


def test_a_damaged_row_is_reported_and_the_rest_is_shown(folder):
    with (folder / "bandits" / "rows.jsonl").open("a") as file:
        file.write("{half a row")
    found = shell("summary", folder)
    assert found.exit_code == 0
    assert "rows.jsonl, line 12: damaged row skipped" in found.stderr
    assert "22.0 ± 7.0" in found.stdout

"""`calibrl run`: any backend gives the same rows, a run goes on where it stopped, nothing is overwritten silently."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from calibrl.cli import app
from calibrl.errors import CalibrlError, MissingExtra
from calibrl.runs.commands import prepare_all
from calibrl.runs.engine import Workers, prepared, run_all
from calibrl.runs.experiment import EXPERIMENTS, Options, experiment
from calibrl.runs.rows import Row, append, read
from tests.runs.crash import EXPERIMENT, QUICK

pytestmark = pytest.mark.usefixtures("blank_figures")
BANDITS = ("run", "bandits", "--problem", "wine", "--rounds", "60", "--policy", "linucb", "--policy", "callinucb")


def shell(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def values(path):
    return [(row.key, row.metrics, row.job) for row in read(path)]


def test_two_workers_give_the_rows_of_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert shell(*BANDITS, "--trials", 3, "--out", one).exit_code == 0
    found = shell(*BANDITS, "--trials", 3, "--out", two, "--workers", 2)
    assert found.exit_code == 0, found.output
    assert values(one) == values(two)
    assert [row.arm for row in read(two)] == ["linucb", "callinucb"] * 3
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}
    row = read(two)[0]
    assert row.overrides == {"policies": ["linucb", "callinucb"], "rounds": 60}
    assert row.seconds > 0
    assert row.origin["packages"]["torch"]
    assert "bandits 3/3 wine, trial" in found.stderr


def test_a_run_goes_on_where_it_stopped_and_for_more_trials(tmp_path):
    shell(*BANDITS, "--trials", 2, "--out", tmp_path)
    file = tmp_path / "bandits.jsonl"
    before = file.read_text()
    # The second trial's last row was never written, nor its end.
    file.write_text(before[: before.rstrip().rindex("\n")] + "\n")
    log = (tmp_path / "finished.log").read_text().splitlines(keepends=True)
    (tmp_path / "finished.log").write_text(log[0])
    found = shell(*BANDITS, "--trials", 3, "--out", tmp_path, "--resume")
    assert found.exit_code == 0, found.output
    assert "bandits 1/3 1 were done before" in found.stderr
    rows = read(tmp_path)
    assert [(row.seed, row.arm) for row in rows] == [(s, arm) for s in range(3) for arm in ("linucb", "callinucb")]
    assert file.read_text().startswith(before.splitlines()[0])
    assert json.loads(before.splitlines()[3])["metrics"] == rows[3].metrics
    # Nothing is missing: nothing is run.
    assert "bandits 3/3 3 were done before" in shell(*BANDITS, "--trials", 3, "--out", tmp_path, "--resume").stderr


def test_rows_of_another_run_are_not_overwritten_silently(tmp_path):
    shell(*BANDITS, "--trials", 1, "--out", tmp_path)
    before = read(tmp_path)
    for more, expected in (
        ((), r"holds rows of this run already; --resume to go on with it, --force to replace them, or choose"),
        (
            ("--resume", "--rounds", 70),
            r"rows of another run (bandits small rounds=60 policies=['linucb', 'callinucb'])",
        ),
    ):
        found = shell(*BANDITS, "--trials", 1, "--out", tmp_path, *more)
        assert isinstance(found.exception, CalibrlError)
        assert expected in str(found.exception)
        assert read(tmp_path) == before
    other = shell("run", "safety", "--preset", "tiny", "--out", tmp_path / "other")
    assert other.exit_code == 0, other.output
    mixed = shell("run", "mdp", "--preset", "tiny", "--out", tmp_path / "other", "--resume")
    assert "another run (safety tiny), this one is mdp tiny" in str(mixed.exception)
    forced = shell(*BANDITS, "--trials", 1, "--rounds", 70, "--out", tmp_path, "--force")
    assert forced.exit_code == 0, forced.output
    assert {row.step for row in read(tmp_path / "bandits.jsonl")} == {70}


def test_rows_of_an_older_calibrl_are_not_gone_on_with(tmp_path):
    shell(*BANDITS, "--trials", 1, "--out", tmp_path / "new")
    rows = read(tmp_path / "new")
    append(tmp_path / "old" / "bandits.jsonl", [type(row)(**(vars(row) | {"job": ""})) for row in rows])
    found = shell(*BANDITS, "--trials", 1, "--out", tmp_path / "old", "--resume")
    assert "an older calibrl wrote them" in str(found.exception)
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["bandits.jsonl"], "a refusal leaves nothing behind"


def test_bad_options_are_named(tmp_path):
    for words, expected in (
        (("bandits", "--backend", "threads"), "backend 'threads' is unknown; known: serial, processes, ray"),
        (("bandits", "--backend", "serial", "--address", "auto"), "the backend is 'serial'"),
        (("all", "--only", "chess"), "experiment 'chess' is unknown; known: core, bandits"),
    ):
        found = shell("run", *words, "--out", tmp_path / "bad")
        assert isinstance(found.exception, CalibrlError)
        assert expected in str(found.exception)
    (tmp_path / "file").touch()
    assert "is a file" in str(shell(*BANDITS, "--out", tmp_path / "file").exception)


def test_a_mistyped_backend_does_not_cost_the_rows_that_force_would_replace(tmp_path):
    shell(*BANDITS, "--trials", 1, "--out", tmp_path)
    before = read(tmp_path)
    assert "unknown" in str(shell(*BANDITS, "--out", tmp_path, "--force", "--backend", "threads").exception)
    assert read(tmp_path) == before


def test_rows_that_cannot_be_told_apart_are_refused(tmp_path):
    with open_store(tmp_path) as store:
        row = Row("bandits", "p", "a", 0, {"m": 1.0})
        store.add("job", row)
        with pytest.raises(CalibrlError, match=r"gave two rows for .* tell them apart"):
            store.add("job", row)


def test_options_imply_the_backend():
    assert Options().chosen_backend == "serial"
    assert Options(workers=2).chosen_backend == "processes"
    assert Options(address="auto").chosen_backend == "ray"
    assert Options(backend="ray", workers=2).chosen_backend == "ray"


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    with open_store(tmp_path):
        found = shell(*BANDITS, "--trials", 1, "--out", tmp_path)
    assert "is being written to by another run" in str(found.exception)


def open_store(folder):
    from calibrl.runs.store import Run, Store

    return Store(folder, Run("bandits", "small", {})).open()


def test_a_damaged_row_is_reported_and_computed_again(tmp_path):
    shell(*BANDITS, "--trials", 2, "--out", tmp_path)
    whole = values(tmp_path)
    file = tmp_path / "bandits.jsonl"
    lines = file.read_text().splitlines()
    lines[1] = lines[1][:50]
    file.write_text("\n".join(lines) + "\n")
    found = shell(*BANDITS, "--trials", 2, "--out", tmp_path, "--resume")
    assert "bandits.jsonl, line 2: damaged row skipped" in found.stderr
    assert values(tmp_path) == whole


def test_everything_at_once(tmp_path, monkeypatch):
    lacking = replace(EXPERIMENT, needs=("no_such_package", "control"))
    monkeypatch.setattr("tests.runs.crash.LACKING", lacking, raising=False)
    for name, value in {"first": "EXPERIMENT", "second": "EXPERIMENT", "third": "LACKING"}.items():
        monkeypatch.setitem(EXPERIMENTS, name, f"tests.runs.crash:{value}")
    # In-process: workers would have to find this module's names.
    found = shell(
        "run", "all", "--small", "--out", tmp_path, "--backend", "serial", "--only", "first", "--only", "third"
    )
    assert found.exit_code == 0, found.output
    assert "third is left out: no_such_package is not installed; run: pip install 'calibrl[control]'" in found.stderr
    assert f"The page: calibrl report {tmp_path}" in found.stdout
    assert len(read(tmp_path / "first")) == 120
    assert not (tmp_path / "third").exists()


def test_jobs_of_two_experiments_share_the_workers(tmp_path):
    other = replace(EXPERIMENT, name="other")
    both = {tmp_path / "a": prepared(EXPERIMENT, QUICK), tmp_path / "b": prepared(other, replace(QUICK, seeds=2))}
    first, second = run_all(both, by=Workers("processes", 2))
    assert len(first.rows) == 120
    assert len(second.rows) == 10
    assert [row.key for row in read(tmp_path / "b")] == [row.key for row in second.rows]
    assert second.arrays("seed 1")["seed"].tolist() == [1]
    assert second.arrays("nobody") == {}


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("small", [True, False])
def test_every_experiment_can_be_prepared(name, small):
    ready, _ = prepare_all(small=small, only=[name])
    for each in ready.values():
        assert each.experiment.name == name
        assert len({job.name for job in each.jobs}) == len(each.jobs)


def test_tensorboard_logs_hold_every_metric_at_its_step(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = ("run", "bandits", "--problem", "wine", "--policy", "linucb", "--trials", 1, "--problem", "linear")
    found = shell(*words, "--rounds", 450, "--out", tmp_path / "out", "--tensorboard", tmp_path / "logs")
    assert found.exit_code == 0, found.output
    log = reader.EventAccumulator(str(tmp_path / "logs" / "bandits" / "linear" / "linucb" / "seed 0")).Reload()
    row = next(row for row in read(tmp_path / "out") if row.problem == "linear")
    curve = [(event.step, event.value) for event in log.Scalars("reward")]
    expected = [(200, row.metrics["reward_200"]), (400, row.metrics["reward_400"]), (450, row.metrics["reward"])]
    assert curve == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    assert log.Scalars("regret")[0].value == pytest.approx(row.metrics["regret"], rel=1e-6)


def test_a_machine_without_tensorboard_says_so_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    found = shell(*BANDITS, "--out", tmp_path / "out", "--tensorboard", tmp_path / "logs")
    assert isinstance(found.exception, MissingExtra)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path):
    # More trials than there is time for: some eighty are done in a second.
    words = [sys.executable, "-m", "calibrl", *BANDITS, "--trials", "10000", "--rounds", "1200", "--out", str(tmp_path)]
    driver = subprocess.Popen([*words, "--workers", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True)
    file, log = tmp_path / "bandits.jsonl", tmp_path / "finished.log"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        assert driver.poll() is None
        time.sleep(0.05)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the driver and to its workers
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "jobs are done and kept; the same command with --resume goes on from there" in said
    assert "Traceback" not in said
    assert nobody_left(driver.pid)
    assert len(read(file)) >= 2 * len(log.read_text().splitlines()) > 0


def nobody_left(group, seconds=20):
    """Whether all processes of a group end within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_nothing_is_written_among_published_rows_by_default():
    for name in EXPERIMENTS:
        assert (experiment(name).folder or "out/").startswith("out/")
    text = " ".join(shell("run", "all", "--help").output.split())
    assert "out/all" in text

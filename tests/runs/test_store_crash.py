"""Workers and drivers are killed at random moments: no finished row is lost, none is there twice, all are right."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest

from calibrl.runs.engine import run
from calibrl.runs.rows import read
from tests.runs.crash import EXPERIMENT, JOBS, QUICK

KILLS = 20
ROOT = Path(__file__).parents[2]


def values(rows):
    return {row.key: row.metrics for row in rows}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(EXPERIMENT, QUICK, tmp_path_factory.mktemp("undisturbed")).rows


def start(out):
    """The run as a process of its own."""
    words = [sys.executable, "-m", "tests.runs.crash", str(out), "processes"]
    with (out / "words").open("a") as file:
        return subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=file, env=os.environ | {"CALIBRL_COMMIT": "test"})


def workers_of(driver):
    """The processes that wait for jobs: the children of the process that workers are forked from."""
    try:
        return [p for p in psutil.Process(driver.pid).children(recursive=True) if p.ppid() != driver.pid]
    except psutil.NoSuchProcess:
        return []


def whole_lines(file):
    """Rows that are on the disk, read without the code under test."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [(row["seed"], row["step"], row["metrics"]["value"]) for row in found]


def wait_for_rows(out, driver, count, *, seconds=60):
    """Until so many more rows are on the disk than now, or the driver is done: moments that slow machines have too."""
    file = out / "rows.jsonl"
    before = len(whole_lines(file))
    deadline = time.monotonic() + seconds
    while driver.poll() is None and len(whole_lines(file)) < before + count:
        assert time.monotonic() < deadline, (out / "words").read_text()
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:.*damaged row skipped")
def test_twenty_kills_lose_nothing_and_repeat_nothing(tmp_path, undisturbed):
    luck = random.Random(0)
    killed = {"driver": 0, "worker": 0}
    finished, in_a_row = [], 0
    driver = start(tmp_path)
    while sum(killed.values()) < KILLS or min(killed.values()) < 4:
        wait_for_rows(tmp_path, driver, luck.randrange(1, 8))
        time.sleep(luck.uniform(0, 0.03))
        workers = workers_of(driver)
        if driver.poll() is not None:
            # It got to the end before all kills were dealt: take two thirds of its jobs away again and go on.
            assert driver.returncode == 0, (tmp_path / "words").read_text()
            forget(tmp_path, luck)
            finished, in_a_row = whole_lines(tmp_path / "rows.jsonl"), 0
            driver = start(tmp_path)
        # A job may lose its worker twice, not three times.
        elif workers and in_a_row < 2 and luck.random() < 0.6:
            with contextlib.suppress(ProcessLookupError):
                os.kill(luck.choice(workers).pid, signal.SIGKILL)
            killed["worker"] += 1
            in_a_row += 1
        else:
            driver.send_signal(signal.SIGKILL)
            driver.wait(timeout=60)
            killed["driver"] += 1
            on_disk = whole_lines(tmp_path / "rows.jsonl")
            assert on_disk[: len(finished)] == finished, "rows that were written have changed"
            assert len({row[:2] for row in on_disk}) == len(on_disk), "a row is there twice"
            finished, in_a_row = on_disk, 0
            driver = start(tmp_path)
    assert driver.wait(timeout=60) == 0, (tmp_path / "words").read_text()
    rows = read(tmp_path / "rows.jsonl")
    assert [row.key for row in rows] == [row.key for row in undisturbed], "in order, each once"
    assert values(rows) == values(undisturbed)
    assert len(list((tmp_path / "arrays").glob("seed-*.npz"))) == JOBS


def forget(out, luck):
    """Take finished jobs back, as if the run had been killed earlier."""
    kept = set(luck.sample(range(JOBS), JOBS // 3))
    for name in ("rows.jsonl", "finished.log"):
        lines = (out / name).read_text().splitlines(keepends=True)
        seeds = [int(str(json.loads(line).get("job")).split()[1]) for line in lines]
        (out / name).write_text("".join(line for line, seed in zip(lines, seeds, strict=True) if seed in kept))


@pytest.mark.filterwarnings("ignore:.*damaged row skipped")
def test_a_file_cut_anywhere_is_made_whole(tmp_path, undisturbed):
    run(EXPERIMENT, QUICK, tmp_path)
    file = tmp_path / "rows.jsonl"
    whole = file.read_bytes()
    luck, ends = random.Random(1), [match.end() for match in re.finditer(b"\n", whole)]
    for cut in (*(luck.randrange(1, len(whole)) for _ in range(10)), *luck.sample(ends[:-1], 3)):
        file.write_bytes(whole[:cut])
        with pytest.warns(UserWarning, match="damaged row skipped|rows of .* are missing; --resume computes them"):
            read(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run(EXPERIMENT, QUICK, tmp_path, resume=True)
        assert values(found.rows) == values(undisturbed) == values(read(file))
        assert len(file.read_bytes().splitlines()) == len(undisturbed)

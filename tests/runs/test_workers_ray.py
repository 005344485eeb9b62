"""Ray does what the other backends do. One local Ray serves most of these tests: it takes seconds to start."""

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys

import psutil
import pytest

ray = pytest.importorskip("ray")

from calibrl import __version__  # noqa: E402
from calibrl.errors import CalibrlError, MissingExtra  # noqa: E402
from calibrl.runs import workers as cluster  # noqa: E402
from calibrl.runs.engine import Workers, run  # noqa: E402
from calibrl.runs.rows import read  # noqa: E402
from calibrl.runs.workers import (  # noqa: E402
    Job,
    JobFailed,
    run_jobs,
)
from tests.runs.crash import EXPERIMENT, QUICK  # noqa: E402
from tests.runs.test_store_crash import ROOT, forget, values, wait_for_rows, whole_lines  # noqa: E402
from tests.runs.test_workers import count, dies_always, dies_once, noise, raises, square  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    folder = tmp_path_factory.mktemp("of a stranger")
    (folder / "numpy.py").write_text("raise SystemExit(7)")
    # One core's worth of work at a time: this machine may be busy with other tests.
    with contextlib.chdir(folder):
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("local")
def test_results_are_those_of_the_other_backends(tmp_path):
    items = []
    jobs = [Job(str(seed), noise, (seed,)) for seed in range(3)] + [
        Job("square", square, (3,)),
        Job("count", count, (3,)),
    ]
    found = run_jobs(jobs, backend="ray", workers=2, on_item=lambda job, item: items.append(item))
    assert found == run_jobs(jobs, backend="serial")
    assert items == [0, 1, 2]
    by_ray = run(EXPERIMENT, QUICK, tmp_path / "ray", by=Workers("ray", 2)).rows
    here = run(EXPERIMENT, QUICK, tmp_path / "here").rows
    assert [(row.key, row.metrics, row.job) for row in by_ray] == [(row.key, row.metrics, row.job) for row in here]
    assert [row.key for row in read(tmp_path / "ray")] == [row.key for row in here]


@pytest.mark.usefixtures("local")
def test_a_job_whose_worker_dies_is_started_again(tmp_path):
    items = []
    jobs = [Job("dies", dies_once, (tmp_path / "mark", "kill")), Job("square", square, (3,))]
    assert run_jobs(jobs, backend="ray", workers=2, on_item=lambda job, item: items.append(item)) == [
        ["before", "after"],
        9,
    ]
    assert items == ["before", "after"]
    with pytest.raises(CalibrlError, match="'the bad one' lost its worker 2 times"):
        run_jobs([Job("the bad one", dies_always)], backend="ray", workers=1, retries=1)


@pytest.mark.usefixtures("local")
def test_errors_speak(monkeypatch):
    with pytest.raises(CalibrlError, match=r"^7 is too many; use 3$"):
        run_jobs([Job("a", raises, ("known",))], backend="ray", workers=1)
    with pytest.raises(JobFailed, match=r"job 'a' raised ZeroDivisionError"):
        run_jobs([Job("a", raises, ("other",))], backend="ray", workers=1)
    monkeypatch.setattr(cluster, "__version__", "0.0.0")
    with pytest.raises(JobFailed, match=r"the driver 0\.0\.0; install the same"):
        run_jobs([Job("a", square, (1,))], backend="ray", workers=1)


def test_a_machine_without_ray_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"calibrl\[ray\]"):
        run_jobs([Job("a", square, (1,))], backend="ray")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_named(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        CalibrlError, match=f"no Ray cluster answers at '{address}' .* start one with: ray start --head"
    ):
        run_jobs([Job("a", square, (1,))], backend="ray", address=address)


@pytest.mark.parametrize("words", ["", "no room\nin memory"])
def test_a_ray_that_does_not_start_here_is_no_cluster_to_look_for(words, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError(words)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    why = words.partition("\n")[0] or "RuntimeError"
    with pytest.raises(CalibrlError, match=rf"Ray does not start on this machine \({why}\); use backend 'processes'"):
        run_jobs([Job("a", square, (1,))], backend="ray")


def test_killing_workers_and_the_driver_loses_nothing(tmp_path):
    words = [sys.executable, "-m", "tests.runs.crash", str(tmp_path), "ray"]
    file = tmp_path / "rows.jsonl"
    luck = random.Random(0)

    def start():
        with (tmp_path / "words").open("a") as said:
            return subprocess.Popen(words, cwd=ROOT, stdout=said, stderr=said)

    def kill_two_workers():
        """At random moments; a job may lose its worker twice, not three times."""
        driver, killed = start(), 0
        while killed < 2:
            wait_for_rows(tmp_path, driver, luck.randrange(5, 15), seconds=180)
            if driver.poll() is not None:
                # On a busy machine it may get to the end first: take two thirds of its jobs away again and go on.
                assert driver.returncode == 0, (tmp_path / "words").read_text()
                forget(tmp_path, luck)
                driver, killed = start(), 0
            elif busy := busy_workers(driver):
                with contextlib.suppress(psutil.NoSuchProcess):
                    luck.choice(busy).kill()
                killed += 1
        return driver

    driver = kill_two_workers()
    started = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGKILL)
    driver.wait(timeout=60)
    before = whole_lines(file)
    # Ray's own agents may take minutes to notice; nobody else should.
    for each in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            if "Agent" in each.name():
                each.kill()
    driver = kill_two_workers()
    assert driver.wait(timeout=180) == 0, (tmp_path / "words").read_text()
    after = whole_lines(file)
    assert set(before) <= set(after)
    assert len(after) == len(set(after)) == 120
    assert values(read(file)) == values(run(EXPERIMENT, QUICK, tmp_path / "undisturbed").rows)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive, "Ray outlives its driver"


def busy_workers(driver):
    """The Ray workers with a job of ours."""
    return [each for each in psutil.Process(driver.pid).children(recursive=True) if is_busy(each)]


def is_busy(process):
    try:
        return "_perform" in " ".join([process.name(), *process.cmdline()])
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("wanted", [False, True])
def test_a_current_folder_is_last_on_the_path_of_a_worker_or_not_there(tmp_path, monkeypatch, wanted):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    job = pickle.dumps(Job("square", square, (3,)))
    assert list(cluster._perform_elsewhere(job, __version__, str(tmp_path), wanted))[-1].value == 9
    assert str(tmp_path) not in sys.path[:-1]
    assert (sys.path[-1] == str(tmp_path)) == wanted


def test_a_stranger_s_modules_are_not_run_by_processes(tmp_path):
    for name in ("threading", "socket", "selectors", "struct", "signal", "numpy"):
        (tmp_path / f"{name}.py").write_text("import os; os.mkdir('taken'); raise SystemExit(7)")
    words = "from calibrl.runs.workers import run_jobs; from calibrl.runs.experiment import Job; "
    words += "print(run_jobs([Job('a', abs, (-3,))], backend='processes', workers=1))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not (tmp_path / "taken").exists()
    assert done.stdout == "[3]\n", done.stderr

"""Jobs run once each, in any backend, whatever dies on the way."""

import os
from pathlib import Path

import psutil
import pytest
import torch

from calibrl.arrays import cores
from calibrl.errors import CalibrlError, MissingExtra
from calibrl.runs.experiment import Job
from calibrl.runs.workers import JobFailed, run_jobs


def square(x, *, plus=0):
    return x * x + plus


def count(n):
    yield from range(n)


def noise(seed):
    """Sums whose last digits depend on the number of threads, and numbers that depend on the seed alone."""
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(seed))
    return float(x.sum()), float((x.reshape(500, 600) @ x.reshape(600, 500)).sum()), torch.get_num_threads()


def dies_once(mark, how):
    yield "before"
    if not Path(mark).exists():
        Path(mark).touch()
        if how == "kill":
            os.kill(os.getpid(), 9)
        os._exit(3)
    yield "after"


def forgets(mark):
    yield "first"
    if not Path(mark).exists():
        Path(mark).touch()
        yield "second"
        os._exit(3)


def dies_always():
    os._exit(3)


def raises(kind):
    if kind == "known":
        raise CalibrlError("7 is too many; use 3")
    if kind == "extra":
        raise MissingExtra("gym", "control")
    return 1 / 0


def unsendable():
    return lambda: None


def driver():
    return os.getpid()


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_results_come_in_the_order_of_the_jobs(backend):
    done, items = [], []
    jobs = [Job(f"square {i}", square, (i,), {"plus": 1}) for i in range(9)] + [Job("count", count, (3,))]
    found = run_jobs(
        jobs,
        backend=backend,
        workers=2,
        on_item=lambda job, item: items.append((job.name, item)),
        on_done=lambda job, result: done.append((job.name, result)),
    )
    assert found == [*(i * i + 1 for i in range(9)), [0, 1, 2]]
    assert items == [("count", 0), ("count", 1), ("count", 2)]
    assert sorted(done, key=lambda pair: jobs.index(next(job for job in jobs if job.name == pair[0]))) == [
        (job.name, result) for job, result in zip(jobs, found, strict=True)
    ]


def test_numbers_do_not_depend_on_who_computes_them():
    jobs = [Job(str(seed), noise, (seed,)) for seed in range(4)]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        serial = run_jobs(jobs, backend="serial")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert serial == run_jobs(jobs, backend="processes", workers=2)
    assert {threads for *_, threads in serial} == {1}


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_job_whose_worker_dies_is_started_again_and_its_items_are_heard_once(tmp_path, how):
    items = []
    jobs = [Job("dies", dies_once, (tmp_path / "mark", how)), *(Job(f"{i}", square, (i,)) for i in range(5))]
    found = run_jobs(jobs, workers=2, on_item=lambda job, item: items.append(item))
    assert found == [["before", "after"], 0, 1, 4, 9, 16]
    assert items == ["before", "after"]


def test_a_job_that_gives_less_when_started_again_is_named(tmp_path):
    with pytest.raises(CalibrlError, match=r"'moody' gave 2 items before its worker died and 1 when started again"):
        run_jobs([Job("moody", forgets, (tmp_path / "mark",))], workers=1)


def test_a_job_that_always_kills_its_worker_is_named():
    jobs = [Job(f"{i}", square, (i,)) for i in range(3)] + [Job("the bad one", dies_always)]
    with pytest.raises(
        CalibrlError, match=r"'the bad one' lost its worker 2 times, .* exit code 3; give it more memory"
    ):
        run_jobs(jobs, workers=2, retries=1)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_errors_speak(backend):
    with pytest.raises(CalibrlError, match=r"^7 is too many; use 3$"):
        run_jobs([Job("a", raises, ("known",))], backend=backend, workers=1)
    with pytest.raises(CalibrlError, match="pip install"):
        run_jobs([Job("a", raises, ("extra",))], backend=backend, workers=1)
    with pytest.raises(JobFailed, match=r"job 'a' raised ZeroDivisionError: division by zero\n\nTraceback"):
        run_jobs([Job("a", raises, ("other",))], backend=backend, workers=1)


def test_what_cannot_travel_is_named():
    with pytest.raises(CalibrlError, match="job 'here' cannot be sent to a worker"):
        run_jobs([Job("here", lambda: 1)], workers=1)
    with pytest.raises(JobFailed, match="cannot be sent back"):
        run_jobs([Job("back", unsendable)], workers=1)


def test_bad_requests_are_refused():
    job = Job("a", square, (1,))
    for words, options in (
        ("backend 'threads' is unknown; known: serial, processes, ray", {"backend": "threads"}),
        ("workers 0 can do nothing", {"workers": 0}),
        ("the backend is 'processes'", {"address": "10.0.0.1:6379"}),
    ):
        with pytest.raises(CalibrlError, match=words):
            run_jobs([job], **options)
    with pytest.raises(CalibrlError, match="like 'a'"):
        run_jobs([job, job], backend="serial")
    assert run_jobs([]) == []
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_nobody_stays_behind_when_the_driver_stops():
    workers = []

    def stop(job, result):
        workers.append(psutil.Process(result))
        if len(workers) == 2:
            raise KeyboardInterrupt

    jobs = [Job(f"{i}", driver) for i in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, workers=2, on_done=stop)
    assert os.getpid() not in {each.pid for each in workers}
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive

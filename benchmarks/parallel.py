"""How much faster two workers are than one on the bandit table, and that they write the same rows.

On a machine that others use, the wall clock says little: turns of one and two workers are taken alternately and the
fastest of each counts. Beside it stands what the processors did: the CPU time of the one worker, over that of the
busier of the two. That is what the wall clock would say on quiet cores; what every worker loads for itself is in both.

    python benchmarks/parallel.py [--trials 20] [--repeats 3] [--out results/parallel/speed.jsonl]
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

from calibrl.bandits.experiment import EXPERIMENT, PAPER, SMALL, BanditSettings
from calibrl.runs.experiment import Job
from calibrl.runs.rows import Row, append, origin
from calibrl.runs.workers import run_jobs


def timed(job: Job) -> tuple[list[Row], int, float]:
    """A job's rows, who did it, and the CPU seconds that process has used so far."""
    rows = [item for item in job.function(*job.arguments) if isinstance(item, Row)]
    return rows, os.getpid(), time.process_time()


def turn(settings: BanditSettings, workers: int) -> tuple[list[Row], float, float]:
    """Rows, wall seconds, and CPU seconds of the busiest worker."""
    jobs = [Job(job.name, timed, (job,)) for job in EXPERIMENT.jobs(settings)]
    began = time.perf_counter()
    found = run_jobs(jobs, backend="processes", workers=workers)
    wall = time.perf_counter() - began
    busy: dict[int, float] = {}
    for _, worker, seconds in found:
        busy[worker] = max(busy.get(worker, 0.0), seconds)
    return [row for rows, *_ in found for row in rows], wall, max(busy.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    preset = replace(PAPER if "CALIBRL_DATA" in os.environ else SMALL, trials=asked.trials)
    wall: dict[int, list[float]] = {1: [], 2: []}
    busy: dict[int, list[float]] = {1: [], 2: []}
    rows = []
    turn(replace(preset, problems=preset.problems[:1], trials=2), 2)  # compiled kernels and the fork server
    for _ in range(asked.repeats):
        for workers in wall:
            found, seconds, cpu = turn(preset, workers)
            wall[workers].append(seconds)
            busy[workers].append(cpu)
            rows.append(found)
            print(
                f"{workers} workers: {seconds:.1f} s, busiest worker {cpu:.1f} s of CPU, load {os.getloadavg()[0]:.1f}"
            )
    assert all(found == rows[0] for found in rows), "rows depend on the number of workers"
    metrics = {
        "wall_factor": min(wall[1]) / min(wall[2]),
        "cpu_factor": min(busy[1]) / min(busy[2]),
        "one_wall_s": min(wall[1]),
        "two_wall_s": min(wall[2]),
        "one_cpu_s": min(busy[1]),
        "two_cpu_s": min(busy[2]),
        "load": os.getloadavg()[0],
    }
    print(
        f"{preset.name}, {len(rows[0])} equal rows: two workers are {metrics['wall_factor']:.2f} times as fast by the "
        f"wall clock, {metrics['cpu_factor']:.2f} times by CPU time"
    )
    if asked.out:
        command = f"python benchmarks/parallel.py --trials {asked.trials} --repeats {asked.repeats}"
        settings = {"trials": asked.trials, "repeats": asked.repeats}
        row = Row("parallel speed", f"bandits, {preset.name}", "2 workers", 0, metrics, settings=settings)
        append(asked.out, [replace(row, origin=origin(command))])


if __name__ == "__main__":
    main()

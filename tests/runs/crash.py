"""A small run to be killed: light, so that starting it again takes no time."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrl.runs.engine import Arrays, Workers, run
from calibrl.runs.experiment import Experiment, Job
from calibrl.runs.rows import Row
from calibrl.runs.settings import setting

JOBS, ROWS = 24, 5


def rows_of(seed, pause):
    """A job that takes its time, so that there is a middle to be killed in."""
    generator = np.random.default_rng(seed)
    for step in range(ROWS):
        time.sleep(pause)
        yield Row("crash", "p", "a", seed, {"value": generator.random()}, step=step)
    yield Arrays({"seed": np.array([seed])})


@dataclass(frozen=True)
class CrashSettings:
    name: str = "tiny"
    seeds: int = setting(JOBS, help="jobs", decides_rows=False)
    pause: float = setting(0.02, help="seconds for each row", decides_rows=False)


def jobs(settings):
    return [Job(f"seed {seed}", rows_of, (seed, settings.pause)) for seed in range(settings.seeds)]


QUICK = CrashSettings(pause=0)
EXPERIMENT = Experiment(
    name="crash",
    title="A run to be killed",
    question="Is anything lost?",
    baseline="a",
    presets={"tiny": CrashSettings()},
    default="tiny",
    small=QUICK,
    full=QUICK,
    jobs=jobs,
)


if __name__ == "__main__":
    run(EXPERIMENT, CrashSettings(), Path(sys.argv[1]), by=Workers(sys.argv[2], 2), resume=True)

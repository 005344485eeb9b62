"""A small run to be killed: light, so that starting it again takes no time."""

import sys
import time
from pathlib import Path

import numpy as np

from calibrl.runs.engine import Kept, Plan, Workers, carry_out
from calibrl.runs.rows import Row
from calibrl.runs.workers import Job

JOBS, ROWS = 24, 5


def rows_of(seed, pause):
    """A job that takes its time, so that there is a middle to be killed in."""
    generator = np.random.default_rng(seed)
    for step in range(ROWS):
        time.sleep(pause)
        yield Row("crash", "p", "a", seed, {"value": generator.random()}, step=step)
    yield Kept({"seed": np.array([seed])})


def plan(pause=0.02):
    return Plan("crash", tuple(Job(f"seed {seed}", rows_of, (seed, pause)) for seed in range(JOBS)), preset="tiny")


if __name__ == "__main__":
    carry_out(plan(), Path(sys.argv[1]), by=Workers(sys.argv[2], 2), resume=True)

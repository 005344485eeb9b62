"""How often off-policy intervals hold the truth: simulated logs, policies and truths.

    python benchmarks/offpolicy.py --logs 400 --jobs 1 --out results/bandits/offpolicy.jsonl

For each log: four arms, contexts of five numbers, and rewards that are linear in them (the reward model is right),
clicks with a logistic probability (it is wrong), or heavy-tailed. The logging policy is uniform, favours arms (softmax
of other directions), or hardly ever takes some (the weights are heavy). The target is a softmax of the true rewards,
given as probabilities per row, so its worth is known.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import expit, softmax

from calibrl.bandits.evaluation import ESTIMATORS, Log
from calibrl.errors import CalibrlError
from calibrl.runs import rows as results

ARMS, DIM = 4, 5
WORLDS, LOGGERS = ("linear", "clicks", "heavy-tailed"), ("uniform", "skewed", "rare")


def world(kind: str, rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts, expected rewards and rewards of all arms."""
    x, theta = generator.standard_normal((rows, DIM)), generator.standard_normal((DIM, ARMS)) / DIM**0.5
    if kind == "clicks":
        expected = expit(-1.5 + 1.5 * x @ theta)
        return x, expected, (generator.random(expected.shape) < expected).astype(float)
    noise = generator.standard_t(3, (rows, ARMS)) if kind == "heavy-tailed" else generator.standard_normal((rows, ARMS))
    return x, x @ theta, x @ theta + 0.5 * noise


def one_log(task: tuple[str, str, int, int]) -> list[dict[str, object]]:
    kind, logger, rows, seed = task
    generator = np.random.default_rng([seed, rows, WORLDS.index(kind), LOGGERS.index(logger)])
    x, expected, reward = world(kind, 40_000, generator)
    target = softmax(3 * expected / expected.std(), axis=1)
    truth = float((target * expected).sum(1).mean())  # of the population: 40 000 contexts stand for it
    x, expected, reward, target = x[:rows], expected[:rows], reward[:rows], target[:rows]
    tilt = {"uniform": 0.0, "skewed": 1.0, "rare": 2.0}[logger]
    chance = softmax(tilt * x @ generator.standard_normal((DIM, ARMS)) / DIM**0.5, axis=1)
    arm = (chance.cumsum(1) > generator.random((rows, 1))).argmax(1)
    at = np.arange(rows), arm
    log = Log(x, arm, reward[at], chance[at])
    found = []
    for name, method in ESTIMATORS.items():
        try:
            made = method(target, log)
        except CalibrlError:
            continue  # refused: the log does not support the target
        row = {"estimator": name, "off": made.value - truth}
        if not math.isnan(made.error):
            low, high = made.interval()
            row |= {"held": bool(low <= truth <= high), "width": high - low}
        found.append(row)
    return [{"world": kind, "logger": logger, "rows": rows, "seed": seed, **row} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=400, help="logs of each kind")
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--loggers", nargs="+", default=LOGGERS, choices=LOGGERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tasks = [
        (kind, logger, rows, options.seed + seed)
        for kind in WORLDS
        for logger in options.loggers
        for rows in options.rows
        for seed in range(options.logs)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = [row for rows in pool.map(one_log, tasks, chunksize=20) for row in rows]
    rows = []
    for kind in WORLDS:
        for logger in options.loggers:
            for size in options.rows:
                for name in ESTIMATORS:
                    key = (kind, logger, size, name)
                    some = [
                        row for row in found if tuple(row[k] for k in ("world", "logger", "rows", "estimator")) == key
                    ]
                    off = np.array([row["off"] for row in some])
                    metrics = {
                        "bias": off.mean(),
                        "rmse": (off**2).mean() ** 0.5,
                        "refused": 1 - len(some) / options.logs,
                    }
                    if given := [row for row in some if "held" in row]:
                        metrics["intervals"] = len(given) / options.logs
                        metrics["coverage"] = np.mean([row["held"] for row in given])
                        metrics["width"] = np.median([row["width"] for row in given])
                    metrics = {what: float(f"{value:.4g}") for what, value in metrics.items()}
                    settings = {"logs": options.logs, "seeds": f"{options.seed} to {options.seed + options.logs - 1}"}
                    rows.append(
                        results.Row(
                            "offpolicy coverage", f"{kind}, {logger}", name, 0, metrics, size, settings=settings
                        )
                    )
                    print(f"{kind:13} {logger:8} {size:5} {name:21} {metrics}", flush=True)
    if options.out:
        rows[0] = replace(rows[0], origin=results.origin())
        options.out.unlink(missing_ok=True)
        results.append(options.out, rows)


if __name__ == "__main__":
    main()

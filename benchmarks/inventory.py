"""How fast an order is decided, beside the same search in plain NumPy in the same run.

    python benchmarks/inventory.py [--out results/inventory/speed.jsonl]

Nothing is asserted: it prints what it saw. Times are CPU time of one thread for the whole call, checks and drawing
included, the best of a few turns: what other processes do to the caches is not ours to measure.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from timing import Job, Match, Timing, beside

from calibrl.inventory.loop import order_many
from calibrl.inventory.policy import (
    CrossEntropyOrders,
    Heuristic,
    Newsvendor,
    OrderUpTo,
    RandomTrajectories,
    quantiles,
    service_levels,
)
from calibrl.inventory.problems import Rules
from calibrl.runs import rows as results

sys.path.append(str(Path(__file__).parents[1]))
from tests.kernels.references import closed_loop_reference, open_loop_reference

PATHS, DAYS = 300, 5


@dataclass(frozen=True)
class Decision:
    """CPU seconds of one decision, and the most it should take."""

    job: str
    seconds: float
    at_most: float


def demand(paths: int = PATHS, days: int = DAYS) -> np.ndarray:
    return np.maximum(np.random.default_rng(0).normal(100, 30, (paths, days)), 0).round()


def shelf(life: int) -> np.ndarray:
    return np.append(np.full(life - 1, 10.0), 0)


def plain_trajectories(paths: np.ndarray, stock: np.ndarray, issuing: int) -> float:
    """The paper's planner in NumPy: all plans and paths at once, one day after the other."""
    plans = np.random.default_rng(0).integers(0, paths.max(0) + 1, (5000, paths.shape[1]))
    costs = open_loop_reference(plans, paths, stock, waste=1, unmet=1, issuing=issuing)
    return float(plans[costs.argmin(), 0])


def plain_levels(paths: np.ndarray, stock: np.ndarray, issuing: int) -> float:
    """144 pairs of tonight's order and later levels in NumPy."""
    levels = quantiles(paths, service_levels(12))
    first = np.maximum(levels[:, 0] - stock.sum(), 0)
    pairs = np.repeat(first, 12)
    costs = closed_loop_reference(
        pairs, np.tile(levels, (12, 1)), paths, stock,
        incoming=np.zeros(paths.shape[1]), lead=1, pack=1, minimum=1, waste=1, unmet=1, issuing=issuing,
    )  # fmt: skip
    return float(pairs[costs.argmin()])


def matches() -> Iterator[Match]:
    paths, rng = demand(), np.random.default_rng(0)
    for life, issuing in ((3, "random"), (5, "random"), (3, "fifo")):
        how, stock = ("random", "fifo").index(issuing), shelf(life)
        search, levels = RandomTrajectories(issuing=issuing), OrderUpTo(issuing=issuing)
        times = (
            cpu(lambda search=search, stock=stock: search(paths, stock, rng=rng)),
            cpu(lambda stock=stock, how=how: plain_trajectories(paths, stock, how), turns=2),
        )
        yield Match(
            f"5000 trajectories × 300 paths × 5 days, life {life}, {issuing}", "NumPy", *map(alone, times), 50.0
        )
        times = (
            cpu(lambda levels=levels, stock=stock: levels(paths, stock)),
            cpu(lambda stock=stock, how=how: plain_levels(paths, stock, how)),
        )
        yield Match(f"order up to, 144 candidates, life {life}, {issuing}", "NumPy", *map(alone, times), 5.0)


def decisions() -> Iterator[Decision]:
    paths, rng = demand(), np.random.default_rng(0)
    yield Decision("random trajectories, life 3", cpu(lambda: RandomTrajectories()(paths, shelf(3), rng=rng)), 4e-3)
    yield Decision("random trajectories, life 5", cpu(lambda: RandomTrajectories()(paths, shelf(5), rng=rng)), 4e-3)
    yield Decision("cross-entropy, life 3", cpu(lambda: CrossEntropyOrders()(paths, shelf(3), rng=rng)), 4e-3)
    for life in (1, 2, 3, 5):
        stock = shelf(life)
        yield Decision(f"order up to, life {life}", cpu(lambda stock=stock: OrderUpTo()(paths, stock)), 0.5e-3)
    late = OrderUpTo(rules=Rules(lead_days=2, pack=6, minimum=12))
    yield Decision("order up to, life 3, packs, two days", cpu(lambda: late(paths, shelf(3), incoming=[80])), 0.5e-3)
    long = demand(days=14)
    yield Decision("order up to, life 14, 14 days", cpu(lambda: OrderUpTo()(long, shelf(14))), 5e-3)
    yield Decision("newsvendor, life 3", cpu(lambda: Newsvendor()(paths, shelf(3))), 0.1e-3)
    yield Decision("heuristic, life 3", cpu(lambda: Heuristic()(paths, shelf(3))), 0.1e-3)
    many, stocks = np.stack([paths] * 100), np.stack([shelf(3)] * 100)
    yield Decision(
        "order up to, life 3, of 100 series", cpu(lambda: order_many(OrderUpTo(), many, stocks)) / 100, 0.5e-3
    )


def alone(seconds: float) -> Timing:
    return Timing((seconds,))


def cpu(job: Job, turns: int = 5) -> float:
    """CPU seconds of a run: the best of some turns of about a tenth of a second, after two that do not count."""
    job()
    start = time.process_time()
    job()
    times = max(1, int(0.1 / max(time.process_time() - start, 1e-6)))
    best = float("inf")
    for _ in range(turns):
        start = time.process_time()
        for _ in range(times):
            job()
        best = min(best, (time.process_time() - start) / times)
    return best


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    given = words.parse_args()
    torch.set_num_threads(1)
    found = list(matches())
    rows = [results.Row("inventory speed", one.job, one.peer, 0, one.metrics, origin=results.origin()) for one in found]
    single = Table(title="One decision: CPU time")
    for heading in ("planner", "CPU time", "aim"):
        single.add_column(heading)
    for decision in decisions():
        verdict = "[green]met" if decision.seconds <= decision.at_most else "[red]missed"
        aim = f"≤ {1e3 * decision.at_most:.2g} ms {verdict}"
        single.add_row(decision.job, f"{1e3 * decision.seconds:.3g} ms", aim)
        metrics = {"cpu_s": decision.seconds}
        rows.append(results.Row("inventory speed", decision.job, "calibrl", 0, metrics, origin=results.origin()))
    if given.out:
        results.append(given.out, rows)
    for table in (beside(found, ", CPU time"), single):
        Console(width=150).print(table)


if __name__ == "__main__":
    main()

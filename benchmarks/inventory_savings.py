"""What calibrating and the other choices save in the shop, with 95 % intervals over series, from finished runs.

    python benchmarks/inventory_savings.py RUN [RUN …] [--out results/inventory/savings.jsonl]

A run keeps what every series cost beside its rows; runs of one data set and period are taken together.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrl.files import write_text
from calibrl.inventory.arms import saving
from calibrl.runs.rows import Row, line, origin, read
from calibrl.runs.store import Run, Store

EXPERIMENT = "inventory savings"
# An arm, and the one whose costs it saves from.
PAIRS = (
    ("calibrated", "uncalibrated"),
    ("calibrated, weekly", "uncalibrated"),
    ("tuned heuristic", "uncalibrated"),
    ("calibrated, levels", "uncalibrated, levels"),
    ("noise, calibrated", "noise"),
    ("noise, calibrated, levels", "noise, levels"),
    ("plus, calibrated", "plus"),
    ("best", "best, uncalibrated"),
    ("best", "calibrated"),
)


def costs(run: Path) -> dict[tuple[str, str], dict[int, np.ndarray]]:
    """Rewards (series,) of a run, by problem and arm, then by seed."""
    found: dict[tuple[str, str], dict[int, np.ndarray]] = defaultdict(dict)
    rows = {(row.problem, row.arm, row.seed): row for row in read(run)}
    store = Store(run, Run("inventory", "", {}))
    for (problem, arm, seed), row in rows.items():
        found[problem, arm][seed] = store.arrays(row.job)[f"{arm}, {row.settings['shelf_life']}, reward"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found: dict[tuple[str, str], dict[int, np.ndarray]] = defaultdict(dict)
    for run in asked.runs:
        for key, by_seed in costs(run).items():
            found[key] |= by_seed
    rows = []
    for problem in sorted({problem for problem, _ in found}):
        for arm, baseline in PAIRS:
            theirs, ours = found.get((problem, baseline), {}), found.get((problem, arm), {})
            seeds = sorted(set(theirs) & set(ours))
            if not seeds:
                continue
            share, low, high = saving(*(np.stack([one[seed] for seed in seeds]) for one in (theirs, ours)))
            print(f"{problem}: {arm} saves {share:.1%} [{low:.1%}, {high:.1%}] of {baseline}, {len(seeds)} seeds")
            metrics = {name: round(value, 5) for name, value in (("saving", share), ("low", low), ("high", high))}
            settings = {"arm": arm, "baseline": baseline, "seeds": seeds}
            rows.append(Row(EXPERIMENT, problem, f"{arm} instead of {baseline}", 0, metrics, settings=settings))
    if asked.out:
        rows[0] = replace(rows[0], origin=origin())
        write_text(asked.out, "".join(map(line, rows)))


if __name__ == "__main__":
    main()

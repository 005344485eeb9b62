"""What is R worth to a planner, the networks being the same? Agents of a run act again, with and without their map.

calibrl run control --preset cartpole-small --seeds 5 --seed 230 --trials 8 --out out/swap
python benchmarks/control_swap.py out/swap --after 2 --after 4 --after 8 --out results/control/swap.jsonl

In a run, arms act differently and so learn from different rows; returns then differ for either reason. Here networks
are trained again, with the run's own settings, on what each agent lived through. After the trials named by --after they
act from the same starts, with the same chance, under several forecasts, and learn nothing from it.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from control_evidence import Recorded, recorded

from calibrl.control.arms import ARMS
from calibrl.control.policy import Fleet, Member, episode_seed, stream
from calibrl.control.problems import task_of
from calibrl.control.trials import Environment, run_trial, view_of
from calibrl.data import Data
from calibrl.evidence import widened
from calibrl.files import write_text
from calibrl.maps import IDENTITY, Map
from calibrl.runs.rows import Row, line, origin, read

EXPERIMENT = "control, same networks"
WIDTHS = {"without R": None, "with R": 1.0, "R, half as wide": 0.5, "R, twice as wide": 2.0}
"""Forecasts that plans are made with: how wide in units of R's, or None for the networks' own."""
FIRST_EPISODE = 10_000
"""Starts that no run has had: episodes are numbered from here."""


def variants(fleet: Fleet) -> dict[str, list[Map]]:
    """Every agent's map under each name."""
    fitted = list(fleet.maps)

    def scaled(width: float) -> list[Map]:
        return [widened(mapping, torch.tensor(width)) for mapping in fitted]

    return {name: [IDENTITY] * len(fleet) if width is None else scaled(width) for name, width in WIDTHS.items()}


def act(fleet: Fleet, environments: list[Environment], maps: list[Map], *, episodes: int, steps: int) -> np.ndarray:
    """Returns (g, episodes) of plans made under these maps, with chance and starts that are the same every time."""
    fitted, fleet.model.maps = fleet.model.maps, maps
    fleet.show_to_planner()
    # In place: what is captured on a GPU keeps the generators it was captured with.
    for member, generator in zip(fleet.members, fleet.planning, strict=True):
        generator.set_state(stream(member.seed, "swap", fleet.device).get_state())
    earned = []
    for episode in range(FIRST_EPISODE, FIRST_EPISODE + episodes):
        seeds = [episode_seed(member.seed, episode) for member in fleet.members]
        earned.append(run_trial(fleet, environments, steps=steps, seeds=seeds).returns)
    fleet.model.maps = fitted
    fleet.show_to_planner()
    return np.array(earned).T


def swapped(run: Recorded, *, after: set[int], episodes: int, device: str) -> Iterator[tuple[int, str, np.ndarray]]:
    """(trials learnt, forecasts, returns (g, episodes)), as they come."""
    what, members = task_of(run.preset), [Member(ARMS["calibrated"], seed) for seed in run.seeds]
    fleet = Fleet(view_of(what, device=device), members, run.preset, low=what.low, high=what.high, device=device)
    environments = [what.make() for _ in members]
    steps = run.preset.steps
    for trial, (x, y) in enumerate(zip(run.x.split(steps, 1), run.y.split(steps, 1), strict=True)):
        fleet.update(Data(x, y))
        for name, maps in variants(fleet).items() if trial in after else ():
            yield trial, name, act(fleet, environments, maps, episodes=episodes, steps=steps)
        if trial == max(after):
            break
    for environment in environments:
        environment.close()


def compared(rows: list[Row], trial: int, name: str, other: str = "without R") -> str:
    """Mean ± standard error over seeds of what forecasts earn, and of what they earn more than others, paired."""
    by_seed: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.metrics["trial"] == trial:
            by_seed[row.arm.split(": ")[1]][row.seed].append(row.metrics["return"])
    mine, theirs = (np.array([np.mean(values) for _, values in sorted(by_seed[one].items())]) for one in (name, other))
    return f"{_pm(mine)}" + (f"   {_pm(mine - theirs)} more than {other}" if name != other else "")


def _pm(values: np.ndarray) -> str:
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{values.mean():.1f} ± {error:.1f}"


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the --out of calibrl run control")
    parser.add_argument("--after", type=int, action="append", required=True, help="act after so many trials; repeat")
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    run, preset = recorded(asked.run), read(asked.run / "rows.jsonl")[0].preset
    known = run.x.shape[1] // run.preset.steps - 1
    if not all(1 <= trial <= known for trial in asked.after):
        raise SystemExit(f"--after {asked.after}: {asked.run} has {known} trials that were planned; use 1 to {known}")
    rows: list[Row] = []
    for trial, name, returns in swapped(run, after=set(asked.after), episodes=asked.episodes, device=asked.device):
        for arm, seed, earned in zip(run.arms, run.seeds, returns.mean(1), strict=True):
            metrics = {"trial": float(trial), "return": float(f"{earned:.6g}"), "episodes": float(asked.episodes)}
            who, where = f"{arm}'s networks: {name}", {} if rows else origin()
            step = (trial + 1) * run.preset.steps
            rows.append(Row(EXPERIMENT, run.preset.task, who, seed, metrics, step, preset, origin=where))
        print(f"after {trial:3d} trials, {name:18s} {compared(rows, trial, name)}", flush=True)
        if asked.out:
            write_text(asked.out, "".join(map(line, rows)))


if __name__ == "__main__":
    main()

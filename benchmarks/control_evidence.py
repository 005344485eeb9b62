"""Which rows, and which map, make one-step forecasts honest on the next trajectory? Judged on a run's own trajectories.

calibrl run control --preset cartpole-small --seeds 3 --seed 210 --trials 8 --out out/evidence
python benchmarks/control_evidence.py out/evidence

Networks are trained again, with the run's own settings, on each agent's trials one after the other; every map is fitted
on rows of the trials so far and judged on the next trial, which nobody has seen. No planning: minutes on one core.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.control.arms import ARMS
from calibrl.control.policy import Fleet, Member
from calibrl.control.problems import task_of
from calibrl.control.scoring import score_one_step
from calibrl.control.settings import (
    CalibrationSettings,
    ControlSettings,
    EnsembleSettings,
    PlannerSettings,
)
from calibrl.control.trials import view_of
from calibrl.data import Data
from calibrl.maps import IDENTITY, Map, fit_named

BLOCKS = (1, 10, 40)
CANDIDATES = {
    "no map": ("none", "smooth", 1.0),
    "smooth, all rows alike": ("held out", "smooth", 1.0),
    "smooth, newer weigh more": ("held out", "smooth", 0.5),
    "smooth, last trial only": ("held out", "smooth", 1e-9),
    "affine, newer weigh more": ("held out", "affine", 0.5),
    "isotonic, newer weigh more": ("held out", "isotonic", 0.5),
    "the paper's sigmoid": ("held out", "sigmoid", 1.0),
    "smooth, on rows trained on": ("trained on", "smooth", 0.5),
    "smooth, on new trajectories": ("new", "smooth", 0.5),
}
"""By what they are called: (rows, map, weight that a row keeps for each newer trial).

New trajectories are those of the trials so far, judged before they were trained on; before the first there is no map.
"""
WARY = "smooth, newer weigh more, wary"
"""The map that the arm calibrated-wary fits."""

Evidence = tuple[Tensor, Tensor]
"""Z-scores (g, n, d), and how many trials ago each row came (g, n)."""


@dataclass(frozen=True)
class Recorded:
    """A run's trajectories x (g, n, k) and y (g, n, d), whose they are (g,), and the settings that made them."""

    x: Tensor
    y: Tensor
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    preset: ControlSettings


def recorded(folder: Path) -> Recorded:
    """What the agents of a finished run remember."""
    files = sorted((folder / "checkpoint").glob("*.pt"))
    if not files:
        raise SystemExit(f"{folder} holds no checkpoint of a control run; name the --out of calibrl run control")
    saved = [torch.load(file, weights_only=True) for file in files]
    rows = [one["state"]["agent"]["rows"] for one in saved]
    shortest = min(part["x"].shape[1] for part in rows)
    x, y = (torch.cat([part[name][:, :shortest] for part in rows]) for name in ("x", "y"))
    identity = saved[0]["identity"]
    preset = ControlSettings(
        "evidence",
        identity["task"],
        steps=identity["steps"],
        trials=1,
        ensemble=EnsembleSettings(**_with_tuples(identity["ensemble"])),
        planner=PlannerSettings(**identity["planner"]),
        calibration=CalibrationSettings(**identity["calibration"]),
    )
    arms, seeds = (tuple(one["identity"][name] for one in saved) for name in ("arm", "seed"))
    return Recorded(x, y, arms, seeds, preset)


def judged(run: Recorded, block: int) -> dict[str, NDArray[np.float64]]:
    """Per candidate: calibration loss, coverage of 90 % and CRPS over that without a map, (agents, trials, 3)."""
    preset = replace(run.preset, calibration=replace(run.preset.calibration, block=block))
    what, members = task_of(preset), [Member(ARMS["calibrated-wary"], seed) for seed in run.seeds]
    fleet = Fleet(view_of(what), members, preset, low=what.low, high=what.high)
    found: dict[str, list[list[tuple[float, float, float]]]] = defaultdict(list)
    new: list[Tensor] = []
    for x, y in zip(run.x.split(preset.steps, 1), run.y.split(preset.steps, 1), strict=True):
        if fleet.learnt:
            z, sd = fleet.forecaster.zscores(Data(x, y))
            known = evidence(fleet, new)
            fitted = {
                label: maps_on(known.get(rows), kind, forget) for label, (rows, kind, forget) in CANDIDATES.items()
            }
            for label, maps in {**fitted, WARY: fleet.maps}.items():
                scores = []
                for agent, (outcome, mapping) in enumerate(zip(y, maps or [IDENTITY] * len(y), strict=True)):
                    score = score_one_step(z[agent], sd[agent], outcome.double(), mapping)
                    scores.append((score["calibration_loss"], score["coverage_90"], score["crps"] / score["crps_bare"]))
                found[label].append(scores)
            new.append(z)
        fleet.update(Data(x, y))
    return {label: np.array(values).swapaxes(0, 1) for label, values in found.items()}


def maps_on(past: Evidence | None, kind: str, forget: float) -> list[Map]:
    """Every agent's map, none where there is nothing to fit it on."""
    fit = fit_named(kind)
    return [fit(z=z, weight=forget ** age.double()) for z, age in zip(*past, strict=True)] if past else []


def evidence(fleet: Fleet, new: list[Tensor]) -> dict[str, Evidence]:
    """What maps may be fitted on now. new: z-scores (g, n, d) of each trial before it was learnt."""
    model = fleet.model
    age = model.came[:, -1:] - model.came
    sides = {"held out": model.held, "trained on": ~model.held}
    known = {
        name: (fleet.forecaster.zscores(model.rows[side])[0], age[side].unflatten(0, (len(fleet), -1)))
        for name, side in sides.items()
    }
    if new:
        age = torch.arange(len(new)).flip(0).repeat_interleave(new[0].shape[1])
        known["new"] = (torch.cat(new, 1), age.expand(len(fleet), -1))
    return known


def by_seed(run: Recorded, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and its standard error over seeds of (agents, trials, 3): (3,) each."""
    seeds = np.array(run.seeds)
    means = np.array([values[seeds == seed].mean((0, 1)) for seed in np.unique(seeds)])
    spread = means.std(0, ddof=1) if len(means) > 1 else np.full(3, np.nan)
    return means.mean(0), spread / len(means) ** 0.5


def main() -> None:
    """Print a table for each way to hold rows out."""
    torch.set_num_threads(1)
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python {sys.argv[0]} FOLDER, the --out of calibrl run control")
    run = recorded(Path(sys.argv[1]))
    trials = run.x.shape[1] // run.preset.steps - 1
    print(f"{run.preset.task}: {len(run.x)} agents of seeds {sorted(set(run.seeds))}, judged on {trials} trials each")
    for block in (block for block in BLOCKS if block < run.preset.steps):
        print(f"held out in blocks of {block}: calibration loss, 90 % interval holds, CRPS over that without a map")
        for label, values in judged(run, block).items():
            (loss, held, crps), error = by_seed(run, values)
            words = f"{loss:.3f} ± {error[0]:.3f}   {held:6.1%} ± {error[1]:.1%}   {crps:.3f} ± {error[2]:.3f}"
            print(f"  {label:31s} {words}", flush=True)


def _with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


if __name__ == "__main__":
    main()

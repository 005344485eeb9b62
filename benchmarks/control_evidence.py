"""Which rows, and which map, make one-step forecasts honest on the next trajectory? Judged on a run's own trajectories.

python benchmarks/control_evidence.py out/control/cartpole-small

Networks are trained again on each agent's trials one after the other; every map is fitted on held-out rows of the
trials so far and judged on the next trial, which nobody has seen. No planning: minutes on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from calibrl.control import calibration
from calibrl.control.arms import ARMS, Member
from calibrl.control.fleet import Fleet
from calibrl.control.learnt_reward import view_of
from calibrl.control.presets import changed, preset
from calibrl.control.tasks import task
from calibrl.maps import IDENTITY, Map

BLOCKS = (1, 10, 40)
CANDIDATES = {
    "smooth, all alike": ("smooth", 1.0),
    "smooth, newer weigh more": ("smooth", 0.5),
    "smooth, last trial only": ("smooth", 1e-9),
    "affine, newer weigh more": ("affine", 0.5),
    "the paper's sigmoid": ("sigmoid", 1.0),
}


def trajectories(folder: Path) -> tuple[torch.Tensor, torch.Tensor, str]:
    """All agents' rows (g, n, k) and (g, n, d), and the name of their task."""
    files = sorted((folder / "checkpoint").glob("*.pt"))
    if not files:
        raise SystemExit(f"{folder} holds no checkpoint of a control run")
    saved = [torch.load(file, weights_only=True) for file in files]
    rows = [one["state"]["agent"]["rows"] for one in saved]
    shortest = min(part["x"].shape[1] for part in rows)
    x, y = (torch.cat([part[name][:, :shortest] for part in rows]) for name in ("x", "y"))
    return x, y, saved[0]["identity"]["task"]


def judged(x: torch.Tensor, y: torch.Tensor, name: str, block: int) -> dict[str, np.ndarray]:
    """Per map: calibration loss, coverage and CRPS over that without a map, (agents · trials, 3)."""
    what = task(name)
    settings = changed(preset(f"{name}-small"), [f"calibration.block={block}"])
    members = [Member(ARMS["calibrated"], seed) for seed in range(len(x))]
    fleet = Fleet(view_of(what), members, settings, low=what.low, high=what.high)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for start in range(0, x.shape[1], what.steps):
        new_x, new_y = x[:, start : start + what.steps], y[:, start : start + what.steps]
        if start:
            z, sd = fleet.judge(new_x, new_y)
            held, ages = fleet.judge(*fleet.replay.held_rows())[0], fleet.replay.held_ages()
            for g in range(len(x)):
                maps: dict[str, Map] = {"no map": IDENTITY}
                for label, (kind, forget) in CANDIDATES.items():
                    maps[label] = calibration.fit(kind, held[g], ages[g], forget=forget)
                for label, mapping in maps.items():
                    score = calibration.score(z[g], sd[g], new_y[g].double(), mapping)
                    crps = score["crps"] / score["crps_bare"]
                    found.setdefault(label, []).append((score["calibration_loss"], score["coverage_90"], crps))
        fleet.learn(new_x, new_y)
    return {label: np.array(values) for label, values in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    x, y, name = trajectories(Path(sys.argv[1]))
    print(f"{name}: {len(x)} agents, {x.shape[1]} rows each")
    for block in BLOCKS:
        print(f"held out in blocks of {block}: calibration loss, 90 % interval holds, CRPS / CRPS without a map")
        for label, values in judged(x, y, name, block).items():
            loss, held, crps = values.mean(0)
            print(f"  {label:26s} {loss:6.3f} {held:7.1%} {crps:6.3f}", flush=True)


if __name__ == "__main__":
    main()

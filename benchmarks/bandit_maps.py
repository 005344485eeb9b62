"""Which map makes CalLinUCB: the arm's own record at its word, or one of the general maps, and per arm or pooled?

    CALIBRL_DATA=… python benchmarks/bandit_maps.py [PROBLEM …]

LinUCB with the forecaster calibrated on `Rolling` evidence, refitted every 10 rewards of an arm; mean reward of
paired trials on seeds that were used for choosing (1000 and up).
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from calibrl.bandits import LinUCB, fit_ecdf
from calibrl.bandits.problems import Stream, problem
from calibrl.kernels import ridge_policy
from calibrl.maps import FitMap, fit_affine, fit_beta, fit_isotonic, fit_platt, fit_sigmoid, fit_smooth

TRIALS, EVERY, LEAST = 8, 10, 10


def reward(stream: Stream, fit: FitMap | None, *, pooled: bool, seed: int) -> float:
    """Cumulative reward of a trial whose multipliers come from `fit`, one per arm or one for all."""
    rounds, arms = stream.reward.shape
    policy = LinUCB(arms, stream.x.shape[1], window=rounds, seed=seed)
    records: list[list[float]] = [[] for _ in range(1 if pooled else arms)]
    multiplier = np.ones(arms)
    earned = 0.0
    for t, x in enumerate(stream.x):
        forecast = policy.forecast(x)
        mean, sd = forecast.mean.numpy(), forecast.stddev.numpy()
        arm = ridge_policy.best_arm(mean + multiplier * sd, policy.generator.random())
        paid = float(stream.reward[t, arm])
        earned += paid
        record = records[0 if pooled else arm]
        record.append((paid - mean[arm]) / sd[arm])
        policy.update(x, arm, paid)
        if fit and len(record) >= LEAST and len(record) % EVERY == 0:
            found = float(fit(z=np.array(record)).inverse_z(torch.ones((), dtype=torch.float64)))
            if pooled:
                multiplier[:] = found
            else:
                multiplier[arm] = found
    return earned


def main() -> None:
    torch.set_num_threads(1)
    fits: dict[str, tuple[FitMap | None, bool]] = {
        "none (LinUCB)": (None, False),
        "own record (fit_ecdf)": (fit_ecdf(window=4096), False),
        "own record, pooled over arms": (fit_ecdf(window=4096), True),
        "fit_isotonic": (fit_isotonic, False),
        "fit_smooth": (fit_smooth, False),
        "fit_affine": (fit_affine, False),
        "fit_platt": (fit_platt, False),
        "fit_beta": (fit_beta, False),
        "fit_sigmoid": (fit_sigmoid, False),
    }
    names = sys.argv[1:] or ["covertype", "mushroom", "adult"]
    tasks = {name: problem(name) for name in names}
    print(f"{'map':32}" + "".join(f"{name:>26}" for name in names))
    base: dict[str, np.ndarray] = {}
    for title, (fit, pooled) in fits.items():
        cells = []
        for name, task in tasks.items():
            streams = [task.stream(1200, np.random.default_rng(1000 + s)) for s in range(TRIALS)]
            values = np.array([reward(stream, fit, pooled=pooled, seed=s) for s, stream in enumerate(streams)])
            base.setdefault(name, values)
            gain = values - base[name]
            cells.append(f"{values.mean():10.1f} ({gain.mean():+7.1f} ± {gain.std(ddof=1) / TRIALS**0.5:4.1f})")
        print(f"{title:32}" + "".join(f"{cell:>26}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()

"""Folders of rows that use everything the page can show."""

import base64
import json

import numpy as np
import pytest

from calibrl.runs.rows import RELIABILITY_NAMES, Row, append

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = '<script>alert(1)</script> & "quotes" {{style}}'


def core_rows(seeds=6):
    """Two problems, three arms, with reliability curves."""
    random = np.random.default_rng(0)
    rows = []
    for problem in ("diabetes, network", HOSTILE):
        for arm, bend in (("uncalibrated", 0.4), ("calibrated", 0.9), ("cross-fitted", 1.0)):
            for seed in range(seeds):
                shares = np.linspace(0.05, 0.95, 19) ** bend
                loss = float(1.1 - bend + 0.05 * random.standard_normal())
                metrics = {"calibration_loss": loss, "crps": 40 - 3 * bend + float(random.standard_normal())}
                metrics |= dict(zip(RELIABILITY_NAMES, shares.tolist(), strict=True))
                origin = {
                    "command": f"calibrl run core --out {HOSTILE}",
                    "version": "0.1.0",
                    "packages": {"torch": "2"},
                }
                rows.append(Row("core", problem, arm, seed, metrics, settings={"note": HOSTILE}, origin=origin))
    return rows


def bandit_rows(trials=5):
    """One problem of the paper, with thin learning curves."""
    rows = []
    for arm, gain in (("linucb", 1.0), ("callinucb", 1.2)):
        for seed in range(200, 200 + trials):
            metrics = {"reward": 500 * gain + seed, "regret": 700 - 500 * gain, "coverage": 0.9}
            metrics |= {f"reward_{t}": gain * t * (seed - 150) / 100 for t in (200, 400, 600)}
            rows.append(Row("bandits", "covertype", arm, seed, metrics, step=1200, preset="paper"))
    return rows


def learning_rows(arms=2, seeds=3, steps=5):
    """An experiment nobody has heard of, with several steps."""
    return [
        Row("my <b>experiment</b>", "task", f"arm {a}", seed, {"return": (a + 1) * step + seed / 10}, step=step)
        for a in range(arms)
        for seed in range(seeds)
        for step in range(steps)
    ]


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """A hundred thousand rows: 5 arms, 20 seeds, 1000 steps."""
    folder = tmp_path_factory.mktemp("many")
    lines = [
        json.dumps(
            {"experiment": "e", "problem": "p", "arm": f"arm {a}", "seed": s, "step": t, "metrics": {"return": a + t}}
        )
        for a in range(5)
        for s in range(20)
        for t in range(1000)
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    append(folder / "core" / "rows.jsonl", core_rows())
    append(folder / "bandits" / "rows.jsonl", bandit_rows())
    append(
        folder / "mine" / "rows.jsonl", [*learning_rows(), Row("speed", "fit", "us against them", 0, {"factor": 3.0})]
    )
    (folder / "core" / "intervals.png").write_bytes(PIXEL)
    return folder

"""Calibrating forecasts of real data that ships inside scikit-learn: the experiment, its settings and presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibrl.runs.experiment import AT_LEAST_0, CRPS, LOSS, Experiment, Job, Metric
from calibrl.runs.settings import setting

if TYPE_CHECKING:
    from calibrl.runs.engine import Found


@dataclass(frozen=True)
class CoreSettings:
    """How many paired seeds to run; each draws its own split of the data."""

    name: str
    seeds: int = setting(5, help="how many paired seeds", least=2, decides_rows=False)
    seed: int = setting(0, help="the first seed", least=0, decides_rows=False)


def _jobs(settings: CoreSettings) -> Sequence[Job]:
    """One job for each problem and seed; its arms are paired."""
    from calibrl.core.problems import PROBLEMS, arms, job_name

    seeds = range(settings.seed, settings.seed + settings.seeds)
    return [Job(job_name(problem, seed), arms, (problem, seed)) for seed in seeds for problem in PROBLEMS]


def _draw(out: Path, _: CoreSettings, found: Found) -> None:
    from calibrl.core import figures

    figures.save(out, found)


SMALL, FULL = CoreSettings("small"), CoreSettings("full", seeds=20, seed=100)

EXPERIMENT = Experiment(
    name="core",
    title="Calibrating forecasts of real data",
    question=(
        "Models trained on scikit-learn's diabetes and digits data say how sure they are. Are they as often right "
        "as they say? The uncalibrated arm trains on every row; the calibrated arm sets aside a third of them to "
        "learn its map; the cross-fitted arm needs to set none aside. All are tested on the same unseen rows."
    ),
    baseline="uncalibrated",
    metrics={
        "calibration_loss": Metric("calibration loss", ".4f", "lower", LOSS, AT_LEAST_0),
        "coverage_90": Metric(
            "90 % interval holds",
            ".1%",
            help="the share of outcomes inside the forecast's 90 % interval; 90 % is honest",
        ),
        "crps": Metric("CRPS", ".2f", "lower", CRPS, AT_LEAST_0),
        "ece": Metric(
            "calibration error", ".4f", "lower", "how far confidence is from accuracy, on average (ECE)", (0, 1)
        ),
        "nll": Metric(
            "log loss", ".3f", "lower", "minus the log of the probability given to the true class", AT_LEAST_0
        ),
        "accuracy": Metric("accuracy", ".1%", "higher", "the share of rows whose likeliest class is the true one"),
    },
    figures={
        "reliability": (
            "Top: the share of outcomes below each predicted quantile; calibrated is the diagonal. Bottom: where "
            "in its forecast each outcome fell (the PIT); calibrated is flat at 1. Without and with calibration"
        ),
        "intervals": "90 % intervals of the dropout network, without and with calibration; crosses are outside",
        "digits": "How sure the digit classifier was, and how often it was right; larger dots stand for more rows",
    },
    subject="cross-fitted",
    live=("reliability",),
    presets={preset.name: preset for preset in (SMALL, FULL)},
    default="small",
    small=SMALL,
    full=FULL,
    jobs=_jobs,
    draw=_draw,
)

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
    """Reliability curves and PIT histograms of every regressor, intervals of one, and the digits' reliability."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import numpy as np

    from calibrl import plots
    from calibrl.core.problems import DIGITS, LEVELS, PROBLEMS, SHOWN, job_name
    from calibrl.distributions import Quantiles
    from calibrl.runs.engine import stacked
    from calibrl.runs.store import save_figures
    from calibrl.text import for_plot

    mpl.use("Agg")
    seeds = list(dict.fromkeys(row.seed for row in found.rows))
    jobs = {problem: [job_name(problem, seed) for seed in seeds] for problem in PROBLEMS}
    problems = [problem for problem in PROBLEMS if problem != DIGITS]
    figure, axes = plt.subplots(2, len(problems), figsize=(4 * len(problems), 7.4), layout="constrained")
    for column, problem in zip(axes.T, problems, strict=True):
        for arm, color in (("uncalibrated", plots.BEFORE), ("cross-fitted", plots.AFTER)):
            values = stacked(found, jobs[problem], f"pit, {arm}")
            plots.reliability(values, column[0], label=for_plot(arm), color=color)
            column[1].hist(values, bins=20, range=(0, 1), density=True, histtype="step", lw=2, color=color)
        column[0].set_title(for_plot(problem.split(", ")[1]), fontsize=11)
        column[1].axhline(1, color=plots.FAINT, ls="--", lw=1)
        column[1].set(xlabel="PIT", ylabel="density", xlim=(0, 1))
    drawn = {"reliability": figure}

    first = found.arrays(jobs[SHOWN][0])
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for ax, arm, color in zip(axes, ("uncalibrated", "cross-fitted"), (plots.BEFORE, plots.AFTER), strict=True):
        forecast = Quantiles(first[f"quantiles, {arm}"], np.array(LEVELS))
        plots.intervals(forecast, first["y"], ax, label=for_plot(f"{arm}: 90 % interval"), color=color)
        ax.set(xlabel="patients, by forecast", ylabel="disease progression")
    drawn["intervals"] = figure

    figure, ax = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
    for arm, color in (("uncalibrated", plots.BEFORE), ("cross-fitted", plots.AFTER)):
        probs, label = stacked(found, jobs[DIGITS], f"probs, {arm}"), stacked(found, jobs[DIGITS], "y")
        plots.class_reliability_curve(probs, label, ax, label=for_plot(arm), color=color)
    ax.set(xlabel="confidence", ylabel="accuracy", title=DIGITS)
    drawn["digits"] = figure
    save_figures(drawn, out, dpi=110)


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

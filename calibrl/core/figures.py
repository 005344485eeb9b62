"""Figures of the core experiment."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from calibrl import plots
from calibrl.core.problems import DIGITS, LEVELS, PROBLEMS, SHOWN, job_name
from calibrl.distributions import Quantiles
from calibrl.runs.engine import Found, stacked
from calibrl.runs.store import save_figures
from calibrl.text import for_plot


def save(out: Path, found: Found) -> None:
    """Reliability curves and PIT histograms of every regressor, intervals of one, and the digits' reliability."""
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
        column[1].spines[["top", "right"]].set_visible(False)
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

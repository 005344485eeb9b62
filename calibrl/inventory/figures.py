"""Figures of an inventory run: waste and stock-outs, reliability by day ahead and by series, and one series' days."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrl.diagnostics import coverage, reliability_curve
from calibrl.runs.engine import Found
from calibrl.runs.rows import Row
from calibrl.runs.store import NamedArrays, save_figures
from calibrl.text import for_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WASTE, SHORT = "#e09f3e", "#3d7ea6"
LEVELS = np.linspace(0.02, 0.98, 49)
PAIRS = {"": ("uncalibrated", "calibrated"), "-best": ("best, uncalibrated", "best")}
"""Figures of reliability, and the arms compared in each."""


def save(folder: Path, found: Found) -> None:
    """Draw everything that the rows and saved arrays hold."""
    drawn = {"table": table_figure(found.rows)}
    jobs = {row.arm: row.job for row in reversed(found.rows)}
    for name, (before, after) in PAIRS.items():
        if before in jobs and after in jobs:
            saved = found.arrays(jobs[before])
            drawn[f"reliability{name}"] = reliability_figure(saved, before, after)
            drawn[f"days{name}"] = days_figure(saved, before, after)
    save_figures(drawn, folder)


def table_figure(rows: Sequence[Row]) -> Figure:
    """Waste and stock-outs of each arm, as shares of the units shipped, problem by problem; the mean over seeds."""
    import matplotlib.pyplot as plt

    lives = {row.problem: row.settings.get("shelf_life", 0) for row in rows}
    problems = sorted(lives, key=lambda problem: lives[problem] if isinstance(lives[problem], int) else 0)
    arms = [arm for arm in dict.fromkeys(row.arm for row in rows) if arm != "oracle"]
    figure, axes = plt.subplots(
        1, len(problems), figsize=(3.6 * len(problems) + 1.8, 0.29 * len(arms) + 1.3), sharey=True, layout="constrained"
    )
    for ax, problem in zip(np.atleast_1d(axes), problems, strict=True):
        for height, arm in enumerate(arms[::-1]):
            numbers = [row.metrics for row in rows if row.problem == problem and row.arm == arm]
            if not numbers:
                continue
            waste, short = (float(np.mean([one[key] for one in numbers])) for key in ("waste_share", "stockout_share"))
            total = np.array([one["waste_share"] + one["stockout_share"] for one in numbers])
            ax.barh(height, waste, color=WASTE, height=0.72, label="waste" if height == 0 else None)
            ax.barh(height, short, left=waste, color=SHORT, height=0.72, label="stock-outs" if height == 0 else None)
            if len(total) > 1:
                error = total.std(ddof=1) / len(total) ** 0.5
                ax.errorbar(waste + short, height, xerr=error, color="#2b2d42", lw=1.2, capsize=2)
        ax.set_yticks(range(len(arms)), arms[::-1], fontsize=9)
        ax.set_title(for_plot(problem), fontsize=10, loc="left")
        ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        ax.set_xlabel("of the units shipped", fontsize=9)
    figure.legend(
        *np.atleast_1d(axes)[0].get_legend_handles_labels(),
        frameon=False,
        fontsize=9,
        ncols=2,
        loc="outside lower right",
    )
    return figure


def reliability_figure(saved: NamedArrays, before: str, after: str) -> Figure:
    """Reliability on the test days for each day ahead, before and after, and how each series fared."""
    import matplotlib.pyplot as plt

    from calibrl.plots import AFTER, BEFORE, FAINT

    figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.2), layout="constrained", width_ratios=(1, 1, 1.15))
    for ax, arm, color in zip(axes, (before, after), (BEFORE, AFTER), strict=False):
        ax.plot([0, 1], [0, 1], color=FAINT, lw=1, ls="--")
        pit = np.asarray(saved[f"{arm}, pit"], dtype=np.float64)
        for lead in range(pit.shape[1]):
            observed = reliability_curve(pit[:, lead], LEVELS).observed
            ax.plot(LEVELS, observed, color=color, alpha=1 - 0.17 * lead, lw=1.8, label=f"{lead + 1} ahead")
        ax.set(xlabel="predicted probability", ylabel="observed share", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_title(arm, fontsize=11, loc="left")
        ax.legend(frameon=False, fontsize=8, title="days", title_fontsize=8)
    _by_series(saved, before, after, axes[2])
    return figure


def _by_series(saved: NamedArrays, before: str, after: str, ax: Axes) -> None:
    """How often each series' demand lay inside the 80 % interval one day ahead."""
    from calibrl.plots import AFTER, BEFORE, TRUTH

    series = len(saved["series"])
    bins = np.linspace(0, 1, 26)
    for arm, color in ((before, BEFORE), (after, AFTER)):
        pit = np.asarray(saved[f"{arm}, pit"], dtype=np.float64)[:, 0]
        # Rows come day by day, each with all series.
        shares = [coverage(pit[i::series], 0.8) for i in range(series)]
        ax.hist(shares, bins=bins.tolist(), color=color, alpha=0.75, label=for_plot(arm))
    ax.axvline(0.8, color=TRUTH, lw=1.2, ls="--")
    ax.set(xlabel="share of days inside the 80 % interval, by series", ylabel="series")
    ax.set_title("series by series, one day ahead", fontsize=11, loc="left")
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    ax.legend(frameon=False, fontsize=9)


def days_figure(saved: NamedArrays, before: str, after: str, *, days: int = 42) -> Figure:
    """One series' demand and its 50 and 90 % intervals one day ahead, before and after."""
    import matplotlib.pyplot as plt

    from calibrl.plots import AFTER, BEFORE, TRUTH

    demand: NDArray[Any] = saved["demand"]
    # A typical series: the one in the middle by size.
    i = int(np.argsort(demand.mean(1))[len(demand) // 2])
    days = min(days, demand.shape[1])
    at = np.arange(1, days + 1)
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.2), sharex=True, sharey=True, layout="constrained")
    for ax, arm, color in zip(axes, (before, after), (BEFORE, AFTER), strict=True):
        low, early, middle, late, high = np.asarray(saved[f"{arm}, quantiles"])[i, :days].T
        ax.fill_between(at, low, high, color=color, alpha=0.2, lw=0, step="mid", label="90 %")
        ax.fill_between(at, early, late, color=color, alpha=0.35, lw=0, step="mid", label="50 %")
        ax.step(at, middle, color=color, lw=1.4, where="mid", label="median")
        seen = demand[i, :days]
        outside = (seen < low) | (seen > high)
        ax.plot(at[~outside], seen[~outside], "o", color=TRUTH, ms=4, label="demand")
        ax.plot(at[outside], seen[outside], "x", color=TRUTH, ms=6, mew=1.6, label="outside 90 %")
        ax.set_title(f"{arm}: {outside.sum()} of {days} days outside the 90 % interval", fontsize=10, loc="left")
        ax.set_ylabel("units")
        ax.legend(frameon=False, fontsize=8, ncols=5, loc="upper right")
    axes[0].set_ylim(0, 1.35 * float(max(demand[i, :days].max(), saved[f"{after}, quantiles"][i, :days].max())))
    axes[1].set_xlabel(f"day of the test, {saved['series'][i]}")
    return figure

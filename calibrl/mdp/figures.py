"""Figures of the discrete experiments: the theory, and planning with learnt models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibrl.mdp.theorem import RANDOM, TWO_STATES
from calibrl.plots import AFTER, BEFORE, FAINT, TRUTH
from calibrl.runs.engine import Found
from calibrl.runs.rows import Row, mean_and_error
from calibrl.runs.store import save_figures
from calibrl.text import for_plot

ARM_STYLE = {
    "raw": (BEFORE, "o-"),
    "temperature": ("#e0a030", "s-"),
    "Platt": (AFTER, "D-"),
    "isotonic": ("#4a6fa5", "^-"),
    "add-one prior": (FAINT, "x--"),
}


def save(out: Path, found: Found) -> None:
    """Write the figures of a finished run: the theory, and planning with either learner."""
    kept = found.arrays(RANDOM)
    numbers = kept["calibration, brier, error"].tolist()
    points = [(str(model), *three) for model, three in zip(kept["model"], numbers, strict=True)]
    example = [row.metrics for row in found.rows if row.problem == TWO_STATES]
    drawn = {"mdp-theory": theory(example, points)}
    for learner in ("table", "coarse"):
        drawn[f"mdp-planning-{learner}"] = planning([r for r in found.rows if r.settings.get("learner") == learner])
    save_figures(drawn, out, dpi=120)


def theory(two_state: Sequence[Mapping[str, float]], points: Sequence[tuple[str, float, float, float]]) -> Figure:
    """The two-state example, and the error in a policy's value against the calibration error and the score.

    points: (model, calibration error, Brier score, value error) for each model of each random MDP; the names
    of calibrated models begin with "calibrated".
    """
    figure, axes = plt.subplots(1, 3, figsize=(14.5, 4.3), layout="constrained")
    _two_state(axes[0], two_state)

    right = {name: name.startswith("calibrated") for name, *_ in points}
    wrong = np.array([rest for name, *rest in points if not right[name]])
    exact = np.array([rest for name, *rest in points if right[name]])
    axes[1].scatter(wrong[:, 0], wrong[:, 2], s=3, alpha=0.15, color=BEFORE, lw=0, rasterized=True)
    edge = np.linspace(0, wrong[:, 0].max(), 13)
    spot = np.digitize(wrong[:, 0], edge)
    mean = [(wrong[spot == k, 0].mean(), wrong[spot == k, 2].mean()) for k in range(1, 13) if (spot == k).any()]
    axes[1].plot(*np.array([(0.0, 0.0), *mean]).T, color=BEFORE, lw=2.5, label="miscalibrated: mean error")
    worst = f"{exact[:, 2].max():.0e}"
    axes[1].plot([0], [0], "D", color=AFTER, ms=9, clip_on=False, zorder=5, label=f"calibrated: error ≤ {worst}")
    axes[1].set(
        xlabel="calibration error",
        ylabel="error in the policy's value\n(share of the range of V)",
        title="The error grows with the calibration error",
        xlim=(0, None),
        ylim=(0, np.quantile(wrong[:, 2], 0.995)),
    )

    for calibrated, color, marker, label in (
        (False, BEFORE, "o", "miscalibrated: too sharp or too blunt"),
        (True, AFTER, "D", "calibrated: 1, 3 or 6 classes of states"),
    ):
        kinds = [name for name in right if right[name] == calibrated]
        middle = np.array([np.mean([rest for other, *rest in points if other == kind], 0) for kind in kinds])
        axes[2].plot(middle[:, 1], middle[:, 2], marker, color=color, ms=8, clip_on=False, zorder=5, label=label)
    axes[2].set(
        xlabel="Brier score (smaller is better)",
        ylabel="mean error in the policy's value",
        title="A better score is not enough",
        ylim=(0, None),
    )
    for ax in axes[1:]:
        ax.legend(frameon=False, loc="upper left", fontsize=9)
    return figure


def _two_state(ax: Axes, rows: Sequence[Mapping[str, float]]) -> None:
    believed = [one["believed"] for one in rows]
    ax.plot(believed, [one["promised_value"] for one in rows], color=BEFORE, lw=2, label="promised by the model")
    ax.plot(believed, [one["delivered_value"] for one in rows], color=TRUTH, lw=2, label="delivered", zorder=3)
    ax.axvline(0.8, color=AFTER, lw=1.5, ls="--")
    ax.text(0.81, 3, "the truth:\n80 %", color=AFTER)
    ax.set(
        xlabel="chance the model gives to staying in s_good",
        ylabel="value of s_good",
        title="Two states: too low loses, too high deceives",
    )
    ax.legend(frameon=False, loc="upper left", fontsize=9)


def planning(rows: Sequence[Row]) -> Figure:
    """By amount of data: how far the model's promise is from what the plan delivers, and what it delivers."""
    tasks = list(dict.fromkeys(row.settings["task"] for row in rows))
    arms = list(dict.fromkeys(row.arm for row in rows))
    figure, axes = plt.subplots(2, len(tasks), figsize=(3.1 * len(tasks), 5.6), layout="constrained", squeeze=False)
    for column, task in enumerate(tasks):
        for line, (metric, words) in enumerate(
            (("promise_error", "|promised - delivered|"), ("delivered", "delivered return"))
        ):
            ax = axes[line, column]
            for arm in arms:
                color, style = ARM_STYLE[arm]
                by_amount: dict[float, list[float]] = {}
                for row in rows:
                    if row.settings["task"] == task and row.arm == arm:
                        by_amount.setdefault(row.settings["rows_per_state_and_action"], []).append(row.metrics[metric])
                x, mean, error = zip(*((x, *mean_and_error(by_amount[x])) for x in sorted(by_amount)), strict=True)
                ax.errorbar(x, mean, error, fmt=style, color=color, ms=4, lw=1.5, capsize=2, label=for_plot(arm))
            ax.set_xscale("log")
            ax.set_xticks(x, [f"{value:g}" for value in x])
            ax.minorticks_off()
            if column == 0:
                ax.set_ylabel(words)
            if line == 0:
                ax.set_title(for_plot(task), fontsize=11)
                ax.set_ylim(bottom=0)
            else:
                ax.axhline(1, color=TRUTH, lw=1, ls=":")
                ax.set_xlabel("rows per state and action")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(arms), frameon=False)
    return figure

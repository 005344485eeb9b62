"""Figures of the discrete experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrl.runs.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRONG, RIGHT, TRUTH, FAINT = "#c8553d", "#1b7f79", "#2b2d42", "#b8bcc8"
"""The house's colours: uncalibrated, calibrated, what happened, guide lines."""

ARM_STYLE = {
    "raw": (WRONG, "o-"),
    "temperature": ("#e0a030", "s-"),
    "Platt": (RIGHT, "D-"),
    "isotonic": ("#4a6fa5", "^-"),
    "add-one prior": (FAINT, "x--"),
}


def theory(two_state: Sequence[Mapping[str, float]], points: Sequence[tuple[str, float, float, float]]) -> Figure:
    """The two-state example, and the error in a policy's value against the calibration error and the score.

    points: (model, calibration error, Brier score, value error) for each model of each random MDP; the names
    of calibrated models begin with "calibrated".
    """
    plt = _pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(14.5, 4.3), layout="constrained")
    _two_state(axes[0], two_state)

    right = {name: name.startswith("calibrated") for name, *_ in points}
    wrong = np.array([rest for name, *rest in points if not right[name]])
    exact = np.array([rest for name, *rest in points if right[name]])
    axes[1].scatter(wrong[:, 0], wrong[:, 2], s=3, alpha=0.15, color=WRONG, lw=0, rasterized=True)
    edge = np.linspace(0, wrong[:, 0].max(), 13)
    spot = np.digitize(wrong[:, 0], edge)
    mean = [(wrong[spot == k, 0].mean(), wrong[spot == k, 2].mean()) for k in range(1, 13) if (spot == k).any()]
    axes[1].plot(*np.array([(0.0, 0.0), *mean]).T, color=WRONG, lw=2.5, label="miscalibrated: mean error")
    worst = f"{exact[:, 2].max():.0e}"
    axes[1].plot([0], [0], "D", color=RIGHT, ms=9, clip_on=False, zorder=5, label=f"calibrated: error ≤ {worst}")
    axes[1].set(
        xlabel="calibration error",
        ylabel="error in the policy's value\n(share of the range of V)",
        title="The error grows with the calibration error",
        xlim=(0, None),
        ylim=(0, np.quantile(wrong[:, 2], 0.995)),
    )

    for calibrated, color, marker, label in (
        (False, WRONG, "o", "miscalibrated: too sharp or too blunt"),
        (True, RIGHT, "D", "calibrated: 1, 3 or 6 classes of states"),
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
    return _tidy(figure)


def _two_state(ax: Any, rows: Sequence[Mapping[str, float]]) -> None:
    believed = [one["believed"] for one in rows]
    ax.plot(believed, [one["promised_value"] for one in rows], color=WRONG, lw=2, label="promised by the model")
    ax.plot(believed, [one["delivered_value"] for one in rows], color=TRUTH, lw=2, label="delivered", zorder=3)
    ax.axvline(0.8, color=RIGHT, lw=1.5, ls="--")
    ax.text(0.81, 3, "the truth:\n80 %", color=RIGHT)
    ax.set(
        xlabel="chance the model gives to staying in s_good",
        ylabel="value of s_good",
        title="Two states: too low loses, too high deceives",
    )
    ax.legend(frameon=False, loc="upper left", fontsize=9)


def planning(rows: Sequence[Row]) -> Figure:
    """By amount of data: how far the model's promise is from what the plan delivers, and what it delivers."""
    plt = _pyplot()
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
                x, mean, error = _curve(
                    [row for row in rows if row.settings["task"] == task and row.arm == arm], metric
                )
                ax.errorbar(x, mean, error, fmt=style, color=color, ms=4, lw=1.5, capsize=2, label=arm)
            ax.set_xscale("log")
            ax.set_xticks(x, [f"{value:g}" for value in x])
            ax.minorticks_off()
            if column == 0:
                ax.set_ylabel(words)
            if line == 0:
                ax.set_title(task, fontsize=11)
                ax.set_ylim(bottom=0)
            else:
                ax.axhline(1, color=TRUTH, lw=1, ls=":")
                ax.set_xlabel("rows per state and action")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(arms), frameon=False)
    return _tidy(figure)


SAFETY_COLORS = {
    "over-confident": WRONG,
    "calibrated": RIGHT,
    "calibrated on plans": "#6bb5a8",
    "conformal": "#4a6fa5",
    "truth": TRUTH,
}


def safety(rows: Sequence[Row], *, nominal: float) -> Figure:
    """How often plans held to be safe were not, and what they earned, by world, amount of data and arm."""
    plt = _pyplot()
    worlds = list(dict.fromkeys(row.settings["world"] for row in rows))
    episodes = sorted({row.settings["episodes"] for row in rows})
    figure, axes = plt.subplots(2, len(worlds), figsize=(5.4 * len(worlds), 6), layout="constrained", squeeze=False)
    wide = 0.8 / len(SAFETY_COLORS)
    for column, world in enumerate(worlds):
        for k, (arm, color) in enumerate(SAFETY_COLORS.items()):
            for line, metric in enumerate(("violations", "return")):
                groups = [
                    [
                        row.metrics[metric]
                        for row in rows
                        if (row.settings["world"], row.settings["episodes"], row.arm) == (world, some, arm)
                    ]
                    for some in episodes
                ]
                mean = [float(np.mean(group)) for group in groups]
                error = [float(np.std(group) / max(1, len(group) - 1) ** 0.5) for group in groups]
                spot = np.arange(len(episodes)) + (k - (len(SAFETY_COLORS) - 1) / 2) * wide
                if line == 0:
                    axes[0, column].bar(spot, mean, wide * 0.92, yerr=error, color=color, label=arm, capsize=2)
                else:
                    axes[1, column].errorbar(spot, mean, error, fmt="o", color=color, ms=6, capsize=2)
        axes[0, column].axhline(nominal, color=TRUTH, lw=1.2, ls="--", label="allowed")
        axes[0, column].set_title(world)
        for ax in axes[:, column]:
            ax.set_xticks(np.arange(len(episodes)), [f"{some} episodes" for some in episodes])
        axes[0, column].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes[0, 0].set_ylabel("plans that left the safe set")
    axes[1, 0].set_ylabel("return")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return _tidy(figure)


def paths(found: Mapping[str, Any], *, radius: float, goal: tuple[float, float]) -> Figure:
    """Paths (repeats, h, 2) of one plan, carried out many times, round a round obstacle; those that hit it in red."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(found), figsize=(4.4 * len(found), 2.9), layout="constrained")
    every = np.concatenate([states.reshape(-1, 2) for states in found.values()])
    low = np.minimum(every.min(0), -radius) - 0.1
    high = np.maximum(every.max(0), goal) + 0.1
    for ax, (arm, states) in zip(axes, found.items(), strict=True):
        hits = (np.linalg.norm(states, axis=-1) <= radius).any(1)
        ax.add_patch(plt.Circle((0, 0), radius, color=FAINT, lw=0))
        for one, hit in zip(states[:60], hits, strict=False):
            ax.plot(*one.T, color=WRONG if hit else RIGHT, lw=0.8, alpha=0.5)
        ax.plot(*states[0, 0], "o", color=TRUTH, ms=6)
        ax.plot(*goal, "*", color=TRUTH, ms=12)
        ax.set(title=f"{arm}: {100 * hits.mean():.0f} % hit", aspect="equal", xticks=[], yticks=[])
        ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        ax.spines[["left", "bottom"]].set_visible(False)
    return _tidy(figure)


def _curve(rows: Sequence[Row], metric: str) -> tuple[list[float], list[float], list[float]]:
    """Amounts of data, and the mean and standard error over seeds at each."""
    by_amount: dict[float, list[float]] = {}
    for row in rows:
        by_amount.setdefault(row.settings["rows_per_state_and_action"], []).append(row.metrics[metric])
    amounts = sorted(by_amount)
    mean = [float(np.mean(by_amount[x])) for x in amounts]
    error = [float(np.std(by_amount[x]) / max(1, len(by_amount[x]) - 1) ** 0.5) for x in amounts]
    return amounts, mean, error


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _tidy(figure: Figure) -> Figure:
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure

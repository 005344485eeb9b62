"""Figures of the safety experiment: how often plans broke their promise, and the paths they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from calibrl.plots import AFTER, BEFORE, FAINT, TRUTH, tidy
from calibrl.runs.engine import Found
from calibrl.runs.rows import Row
from calibrl.runs.store import save_figures
from calibrl.safety.experiment import EXAMPLE, LEVEL
from calibrl.safety.problems import PointMass

COLORS = {
    "over-confident": BEFORE,
    "calibrated": AFTER,
    "calibrated on plans": "#6bb5a8",
    "conformal": "#4a6fa5",
    "truth": TRUTH,
}


def save(out: Path, found: Found) -> None:
    """Write the figures of a finished run."""
    drawn = {
        "safety-rates": violations(found.rows, nominal=1 - LEVEL),
        "safety-paths": paths(found.arrays(EXAMPLE), radius=PointMass.radius, goal=PointMass.goal),
    }
    save_figures(drawn, out, dpi=120)


def violations(rows: Sequence[Row], *, nominal: float) -> Figure:
    """How often plans held to be safe were not, and what they earned, by world, amount of data and arm."""
    worlds = list(dict.fromkeys(row.settings["world"] for row in rows))
    episodes = sorted({row.settings["episodes"] for row in rows})
    figure, axes = plt.subplots(2, len(worlds), figsize=(5.4 * len(worlds), 6), layout="constrained", squeeze=False)
    wide = 0.8 / len(COLORS)
    for column, world in enumerate(worlds):
        for k, (arm, color) in enumerate(COLORS.items()):
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
                spot = np.arange(len(episodes)) + (k - (len(COLORS) - 1) / 2) * wide
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
    return tidy(figure)


def paths(found: Mapping[str, NDArray[np.float32]], *, radius: float, goal: tuple[float, float]) -> Figure:
    """Paths (repeats, h, 2) of one plan, carried out many times, round a round obstacle; those that hit it in red."""
    figure, axes = plt.subplots(1, len(found), figsize=(4.4 * len(found), 2.9), layout="constrained")
    every = np.concatenate([states.reshape(-1, 2) for states in found.values()])
    low = np.minimum(every.min(0), -radius) - 0.1
    high = np.maximum(every.max(0), goal) + 0.1
    for ax, (arm, states) in zip(axes, found.items(), strict=True):
        hits = (np.linalg.norm(states, axis=-1) <= radius).any(1)
        ax.add_patch(Circle((0, 0), radius, color=FAINT, lw=0))
        for one, hit in zip(states[:60], hits, strict=False):
            ax.plot(*one.T, color=BEFORE if hit else AFTER, lw=0.8, alpha=0.5)
        ax.plot(*states[0, 0], "o", color=TRUTH, ms=6)
        ax.plot(*goal, "*", color=TRUTH, ms=12)
        ax.set(title=f"{arm}: {100 * hits.mean():.0f} % hit", aspect="equal", xticks=[], yticks=[])
        ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        ax.spines[["left", "bottom"]].set_visible(False)
    return tidy(figure)

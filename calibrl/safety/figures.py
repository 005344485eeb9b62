"""Figures of the safety experiment: how often plans broke their promise, and the paths they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from calibrl.plots import AFTER, BEFORE, FAINT, TRUTH
from calibrl.runs.engine import Found
from calibrl.runs.rows import Row, mean_and_error
from calibrl.runs.store import save_figures
from calibrl.safety.problems import ARMS, EXAMPLE, LEVEL, PointMass
from calibrl.text import for_plot

COLORS = dict(zip(ARMS, (BEFORE, AFTER, "#6bb5a8", "#4a6fa5", TRUTH), strict=True))


def save(out: Path, found: Found) -> None:
    """Write the figures of a finished run."""
    save_figures({"safety-rates": violations(found.rows), "safety-paths": paths(found.arrays(EXAMPLE))}, out, dpi=120)


def violations(rows: Sequence[Row]) -> Figure:
    """How often plans held to be safe were not, and what they earned, by world, amount of data and arm."""
    worlds = list(dict.fromkeys(row.settings["world"] for row in rows))
    episodes = sorted({row.settings["episodes"] for row in rows})
    figure, axes = plt.subplots(2, len(worlds), figsize=(5.4 * len(worlds), 6), layout="constrained", squeeze=False)
    wide = 0.8 / len(COLORS)
    for world, (rates, returns) in zip(worlds, axes.T, strict=True):
        for k, (arm, color) in enumerate(COLORS.items()):
            own = [row for row in rows if (row.settings["world"], row.arm) == (world, arm)]
            groups = [[row.metrics for row in own if row.settings["episodes"] == some] for some in episodes]
            spot = np.arange(len(episodes)) + (k - (len(COLORS) - 1) / 2) * wide
            mean, error = zip(*(mean_and_error([one["violations"] for one in group]) for group in groups), strict=True)
            rates.bar(spot, mean, wide * 0.92, yerr=error, color=color, label=for_plot(arm), capsize=2)
            mean, error = zip(*(mean_and_error([one["return"] for one in group]) for group in groups), strict=True)
            returns.errorbar(spot, mean, error, fmt="o", color=color, ms=6, capsize=2)
        rates.axhline(1 - LEVEL, color=TRUTH, lw=1.2, ls="--", label="allowed")
        rates.set_title(for_plot(world))
        rates.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        for ax in (rates, returns):
            ax.set_xticks(np.arange(len(episodes)), [f"{some} episodes" for some in episodes])
    axes[0, 0].set_ylabel("plans that left the safe set")
    axes[1, 0].set_ylabel("return")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def paths(found: Mapping[str, NDArray[np.float32]]) -> Figure:
    """Paths (repeats, h, 2) of one plan, carried out many times, round a round obstacle; those that hit it in red."""
    figure, axes = plt.subplots(1, len(found), figsize=(4.4 * len(found), 2.9), layout="constrained")
    radius, goal = PointMass.radius, PointMass.goal
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
    return figure

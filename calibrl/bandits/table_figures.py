"""Figures of a bandit run, drawn from what its trials kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibrl.bandits import figures
from calibrl.bandits.experiment import CURVES, Line, job_name, summarise
from calibrl.bandits.problems import Stream
from calibrl.bandits.round import Trial
from calibrl.runs.engine import Found
from calibrl.runs.figures import save as save_figures
from calibrl.runs.paper import TABLE_1
from calibrl.runs.store import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(folder: Path, found: Found) -> None:
    """The table as a picture; for each problem learning curves, reliability, and what two policies believed."""
    drawn = {"table": table_figure(summarise(found.rows))}
    jobs: dict[str, list[str]] = {}
    for row in found.rows:
        name = job_name(row.problem, row.seed)
        if name not in jobs.setdefault(row.problem, []):
            jobs[row.problem].append(name)
    for problem, names in jobs.items():
        first = found.kept(names[0])
        curves = [policy for policy in CURVES if f"{policy}, reward" in first]
        if curves:
            drawn[f"learning-{problem}"] = _learning(problem, found, names, curves)
        pair = _pair(first)
        if pair and len(figures.differing(*pair)):
            drawn[f"beliefs-{problem}"] = figures.beliefs(*pair)
    save_figures(drawn, folder)


def _learning(problem: str, found: Found, names: Sequence[str], policies: Sequence[str]) -> Figure:
    import matplotlib.pyplot as plt

    from calibrl import plots

    figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.0), layout="constrained", width_ratios=(1.35, 1, 1))
    kept = [found.kept(name) for name in names]
    rewards = {policy: np.array([trial[f"{policy}, reward"] for trial in kept], float) for policy in policies}
    figures.learning_curves(rewards, axes[0])
    axes[0].set_title(f"{problem}: reward", fontsize=11, loc="left")
    for ax, (title, what) in zip(axes[1:], (("chosen arms", "chosen"), ("all arms", "all")), strict=True):
        for policy in policies:
            pits = np.concatenate([trial[f"{policy}, {what}"] for trial in kept])
            plots.reliability(pits, ax, color=figures.COLORS[policy], band=False)
        ax.set_title(f"reliability, {title}", fontsize=11, loc="left")
    return figure


def table_figure(lines: Sequence[Line]) -> Figure:
    """Every line's share of the optimal reward, beside the paper's where it printed one."""
    reward: dict[str, dict[str, tuple[float, float]]] = {}
    for line in lines:
        reward.setdefault(line.problem, {})[line.policy] = (line.reward / line.optimal, line.error / line.optimal)
    means = {name: {arm: cell["reward"].mean for arm, cell in TABLE_1.about(name).items()} for name in reward}
    printed = {
        name: {policy: arms[policy] / arms["optimal"] for policy in ("linucb", "callinucb")}
        for name, arms in means.items()
        if arms
    }
    return figures.shares(reward, printed, {line.problem: line.rounds for line in lines})


def _pair(kept: Arrays) -> tuple[Trial, Trial] | None:
    """What is drawn of LinUCB's and CalLinUCB's first trial, if it was kept."""
    if "stream, reward" not in kept:
        return None
    none = np.empty((0, 0))
    stream = Stream(none, kept["stream, reward"], kept["stream, expected"])
    bare, calibrated = (
        Trial(stream, kept[f"{policy}, arms"], none, kept[f"{policy}, quantiles"], none)
        for policy in ("linucb", "callinucb")
    )
    return bare, calibrated

"""Figures of a bandit run, drawn from the trials as they go by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits import figures
from calibrl.bandits.presets import TABLE_1
from calibrl.bandits.round import Trial
from calibrl.experiments.bandits import Line, Pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

CURVES = ("linucb", "callinucb", "conformal-linucb", "greedy")
"""Policies whose learning curves and reliability are drawn."""


class Gallery:
    """Keeps what the figures need of each trial; `save` draws them into a folder."""

    def __init__(self) -> None:
        self._reward: dict[str, dict[str, list[Floats]]] = {}
        self._chosen: dict[str, dict[str, list[Floats]]] = {}
        self._all: dict[str, dict[str, list[Floats]]] = {}
        self._first: dict[str, Pair] = {}

    def watch(self, problem: str, trials: Pair) -> None:
        """See one paired trial."""
        self._first.setdefault(problem, trials)
        for policy, trial in trials.items():
            if policy in CURVES:
                self._reward.setdefault(problem, {}).setdefault(policy, []).append(trial.reward)
                self._chosen.setdefault(problem, {}).setdefault(policy, []).append(trial.chosen_pit)
                self._all.setdefault(problem, {}).setdefault(policy, []).append(trial.pit.reshape(-1))

    def save(self, folder: Path, lines: Sequence[Line]) -> list[Path]:
        """Draw everything; returns the files."""
        import matplotlib.pyplot as plt

        drawn = {"table": table_figure(lines)}
        for problem, trials in self._first.items():
            if problem in self._reward:
                drawn[f"learning-{problem}"] = self._learning(problem)
            pair = _pair(trials)
            if pair and len(figures.differing(*pair)):
                drawn[f"beliefs-{problem}"] = figures.beliefs(*pair)
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, figure in drawn.items():
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1], dpi=130)
            plt.close(figure)
        return files

    def _learning(self, problem: str) -> Figure:
        import matplotlib.pyplot as plt

        from calibrl import plots

        figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.0), layout="constrained", width_ratios=(1.35, 1, 1))
        rewards = {policy: np.array(earned) for policy, earned in self._reward[problem].items()}
        figures.learning_curves(rewards, axes[0])
        axes[0].set_title(f"{problem}: reward", fontsize=11, loc="left")
        kinds = {"reliability, chosen arms": self._chosen, "reliability, all arms": self._all}
        for ax, (title, kept) in zip(axes[1:], kinds.items(), strict=True):
            for policy, pits in kept[problem].items():
                plots.reliability(np.concatenate(pits), ax, color=figures.COLORS[policy], band=False)
            ax.set_title(title, fontsize=11, loc="left")
        return figure


def table_figure(lines: Sequence[Line]) -> Figure:
    """Every line's share of the optimal reward, beside the paper's where it printed one."""
    reward: dict[str, dict[str, tuple[float, float]]] = {}
    for line in lines:
        reward.setdefault(line.problem, {})[line.policy] = (line.reward / line.optimal, line.error / line.optimal)
    printed = {
        name: {"linucb": row.linucb / row.optimal, "callinucb": row.callinucb / row.optimal}
        for name, row in TABLE_1.items()
        if name in reward
    }
    return figures.shares(reward, printed)


def _pair(trials: Pair) -> tuple[Trial, Trial] | None:
    bare, calibrated = trials.get("linucb"), trials.get("callinucb")
    return (bare, calibrated) if bare and calibrated else None

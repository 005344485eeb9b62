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
        self._pit: dict[str, dict[str, list[Floats]]] = {}
        self._first: dict[str, Pair] = {}

    def watch(self, problem: str, trials: Pair) -> None:
        """See one paired trial."""
        self._first.setdefault(problem, trials)
        for policy, trial in trials.items():
            self._reward.setdefault(problem, {}).setdefault(policy, []).append(trial.reward)
            self._pit.setdefault(problem, {}).setdefault(policy, []).append(trial.chosen_pit)

    def save(self, folder: Path, lines: Sequence[Line]) -> list[Path]:
        """Draw everything; returns the files."""
        import matplotlib.pyplot as plt

        drawn = {"table": table_figure(lines)}
        for problem, trials in self._first.items():
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

        figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained", width_ratios=(1.3, 1))
        seen = [policy for policy in CURVES if policy in self._reward[problem]] or list(self._reward[problem])
        figures.learning_curves({policy: np.array(self._reward[problem][policy]) for policy in seen}, left)
        for policy in seen:
            pit = np.concatenate(self._pit[problem][policy])
            plots.reliability(pit, right, color=figures.COLORS[policy], band=False)
        left.set_title(f"{problem}: reward", fontsize=11, loc="left")
        right.set_title("reliability on the chosen arms", fontsize=11, loc="left")
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

"""The bandit's figures: learning curves, the table as a picture, and what two policies believed when they differed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits.experiment import CURVES, Line, job_name, summarise
from calibrl.bandits.loop import HIGH, LOW, MEDIAN, Trial
from calibrl.bandits.policy import POLICIES
from calibrl.bandits.presets import PAPER
from calibrl.bandits.problems import Stream
from calibrl.runs.engine import Found
from calibrl.runs.paper import TABLE_1
from calibrl.runs.store import Arrays, save_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


def learning_curves(rewards: dict[str, Floats], ax: Axes) -> Axes:
    """Mean reward per round so far, with a band of one standard error over trials. rewards: (trials, t) per policy."""
    for policy, earned in rewards.items():
        rounds = np.arange(1, earned.shape[1] + 1)
        average = np.cumsum(earned, axis=1) / rounds
        middle, error = average.mean(0), average.std(0) / len(average) ** 0.5
        seen = slice(20, None)  # the first rounds jump about and would set the scale
        ax.plot(rounds[seen], middle[seen], color=POLICIES[policy].color, lw=2, label=POLICIES[policy].label)
        ax.fill_between(
            rounds[seen], (middle - error)[seen], (middle + error)[seen], color=POLICIES[policy].color, alpha=0.2, lw=0
        )
    ax.set(xlabel="round", ylabel="mean reward per round so far")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9)
    return ax


def shares(
    reward: dict[str, dict[str, tuple[float, float]]], printed: dict[str, dict[str, float]], rounds: dict[str, int]
) -> Figure:
    """Table 1 as a picture: each policy's share of the optimal reward, problem by problem, beside the paper's.

    reward: share of the optimum and its standard error, by problem and policy; printed: the paper's shares; rounds: by
    problem, those of a trial.
    """
    import matplotlib.pyplot as plt

    problems = list(reward)
    figure, axes = plt.subplots(
        1, len(problems), figsize=(2.1 * len(problems) + 1.2, 3.6), sharey=True, layout="constrained"
    )
    for ax, name in zip(np.atleast_1d(axes), problems, strict=True):
        policies = list(reward[name])[::-1]
        for height, policy in enumerate(policies):
            share, error = reward[name][policy]
            ax.errorbar(share, height, xerr=error, fmt="o", color=POLICIES[policy].color, ms=6, capsize=2)
            if policy in printed.get(name, {}):
                ax.plot(printed[name][policy], height, "D", mfc="none", mec="#2b2d42", ms=8, zorder=1)
        ax.set_yticks(range(len(policies)), [POLICIES[policy].label for policy in policies])
        ax.set_title(name, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="x", color="#e6e7ec", lw=0.8)
        ax.set_axisbelow(True)
        ax.margins(x=0.15, y=0.1)
        ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        ax.locator_params(axis="x", nbins=4)
    hollow = ""
    if printed:
        apart = ", ".join(f"{name} {rounds[name]}" for name in printed if rounds[name] != PAPER.rounds)
        hollow = f" Hollow diamonds: the paper, after {PAPER.rounds} rounds{f' (here {apart})' if apart else ''}."
    figure.supxlabel(f"reward, as a share of the optimum.{hollow}", fontsize=10)
    return figure


def differing(bare: Trial, calibrated: Trial) -> NDArray[np.int64]:
    """Rounds where the calibrated policy took the best arm and the bare one did not."""
    best = bare.stream.best
    found: NDArray[np.int64] = np.flatnonzero((calibrated.chosen == best) & (bare.chosen != best))
    return found


def beliefs(bare: Trial, calibrated: Trial, *, most: int = 24) -> Figure:
    """What both policies expected of two arms, with 90 % intervals, in rounds where only the calibrated one was right.

    Top: the best arm. Bottom: the arm LinUCB took instead. Rounds are spread evenly over the trial.
    """
    import matplotlib.pyplot as plt

    rounds = differing(bare, calibrated)
    shown = rounds[np.linspace(0, len(rounds) - 1, min(most, len(rounds))).astype(int)] if len(rounds) else rounds
    stream = bare.stream
    arms = {"the best arm": stream.best, "the arm LinUCB took": bare.chosen}
    figure, axes = plt.subplots(2, 1, figsize=(9, 5.6), sharex=True, layout="constrained")
    place = np.arange(len(shown))
    for ax, (title, arm) in zip(axes, arms.items(), strict=True):
        ends = []
        for trial, policy, aside in ((bare, "linucb", -0.16), (calibrated, "callinucb", 0.16)):
            quantile = trial.quantile[shown, arm[shown]]
            ends.append(quantile[:, [LOW, HIGH]])
            at = place + aside
            ax.vlines(at, quantile[:, LOW], quantile[:, HIGH], color=POLICIES[policy].color, alpha=0.5, lw=3)
            ax.plot(at, quantile[:, MEDIAN], ".", color=POLICIES[policy].color, ms=6, label=POLICIES[policy].label)
        ax.plot(place, stream.reward[shown, arm[shown]], "_", color="#2b2d42", ms=12, mew=1.6, label="reward")
        # A few intervals of the first rounds are so wide that nothing else could be seen: they run off the edge.
        low, high = np.quantile(np.concatenate(ends), [0.08, 0.92], axis=0)
        reward = stream.reward[shown, arm[shown]]
        reach = 0.1 * (high[1] - low[0])
        ax.set_ylim(min(low[0], reward.min()) - reach, max(high[1], reward.max()) + reach)
        ax.set_ylabel("predicted reward")
        ax.set_title(title, fontsize=10, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes[1].set_xticks(place, [str(t + 1) for t in shown], fontsize=8, rotation=90)
    axes[1].set_xlabel(f"round ({len(shown)} of the {len(rounds)} in which only CalLinUCB chose the best arm)")
    return figure


def draw(folder: Path, found: Found) -> None:
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
        if pair and len(differing(*pair)):
            drawn[f"beliefs-{problem}"] = beliefs(*pair)
    save_figures(drawn, folder)


def _learning(problem: str, found: Found, names: Sequence[str], policies: Sequence[str]) -> Figure:
    import matplotlib.pyplot as plt

    from calibrl import plots

    figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.0), layout="constrained", width_ratios=(1.35, 1, 1))
    kept = [found.kept(name) for name in names]
    rewards = {policy: np.array([trial[f"{policy}, reward"] for trial in kept], float) for policy in policies}
    learning_curves(rewards, axes[0])
    axes[0].set_title(f"{problem}: reward", fontsize=11, loc="left")
    for ax, (title, what) in zip(axes[1:], (("chosen arms", "chosen"), ("all arms", "all")), strict=True):
        for policy in policies:
            pits = np.concatenate([trial[f"{policy}, {what}"] for trial in kept])
            plots.reliability(pits, ax, color=POLICIES[policy].color, band=False)
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
    return shares(reward, printed, {line.problem: line.rounds for line in lines})


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

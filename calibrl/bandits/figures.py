"""What a run came to: the table, printed and drawn, learning curves, and what two policies believed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits.loop import CURVES, HIGH, LOW, MEDIAN, Trial, job_name
from calibrl.bandits.policy import POLICIES
from calibrl.bandits.problems import PROBLEMS, Stream
from calibrl.errors import check_known
from calibrl.runs.engine import Found
from calibrl.runs.experiment import Printed
from calibrl.runs.rows import Cell, Row, table
from calibrl.runs.store import NamedArrays, save_figures
from calibrl.text import for_plot, for_rich

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

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
    _tell_apart(ax.lines)
    ax.set(xlabel="round", ylabel="mean reward per round so far")
    ax.legend(frameon=False, fontsize=9)
    return ax


def table_figure(lines: Sequence[Line], paper: Printed) -> Figure:
    """Table 1 as a picture: each policy's share of the optimal reward, problem by problem, beside the paper's."""
    import matplotlib.pyplot as plt

    problems: dict[str, list[Line]] = {}
    lengths = {(line.problem, line.rounds) for line in lines}
    for line in lines:
        several = sum(problem == line.problem for problem, _ in lengths) > 1
        problems.setdefault(f"{line.problem}, {line.rounds}" if several else line.problem, []).append(line)
    figure, axes = plt.subplots(
        1, len(problems), figsize=(2.1 * len(problems) + 1.2, 3.6), sharey=True, layout="constrained"
    )
    for ax, (name, of) in zip(np.atleast_1d(axes), problems.items(), strict=True):
        best = paper.at(name, "optimal", "reward")
        for height, line in enumerate(of[::-1]):
            color = POLICIES[line.policy].color
            share, error = line.reward.mean / line.optimal, line.reward.error / line.optimal
            ax.errorbar(share, height, xerr=error, fmt="o", color=color, ms=6, capsize=2)
            printed = paper.at(name, line.policy, "reward")
            if printed and best:
                ax.plot(printed.mean / best.mean, height, "D", mfc="none", mec="#2b2d42", ms=8, zorder=1)
        ax.set_yticks(range(len(of)), [POLICIES[line.policy].label for line in of[::-1]])
        ax.set_title(for_plot(name), fontsize=10)
        ax.grid(axis="x", color="#e6e7ec", lw=0.8)
        ax.set_axisbelow(True)
        ax.margins(x=0.15, y=0.1)
        ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        ax.locator_params(axis="x", nbins=4)
    hollow = ""
    rounds = {name: of[-1].rounds for name, of in problems.items() if paper.about(name)}
    if rounds:
        apart = ", ".join(f"{name} {played}" for name, played in rounds.items() if played != paper.step)
        hollow = f" Hollow diamonds: the paper, after {paper.step} rounds{f' (here {apart})' if apart else ''}."
    figure.supxlabel(f"reward, as a share of the optimum.{hollow}", fontsize=10)
    return figure


def regret_figure(rows: Sequence[Row]) -> Figure | None:
    """Regret against rounds, on logarithmic axes: what grows with the rounds is steep, their logarithm is flat."""
    import matplotlib.pyplot as plt

    curves: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        for name, value in row.metrics.items():
            if name.startswith("regret_"):
                curves.setdefault(row.arm, {}).setdefault(int(name.removeprefix("regret_")), []).append(value)
    if not curves:
        return None
    figure, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for (arm, curve), mark in zip(curves.items(), "osD^v<>", strict=False):
        at = sorted(curve)
        middle = np.array([np.mean(curve[t]) for t in at])
        error = np.array([np.std(curve[t]) / len(curve[t]) ** 0.5 for t in at])
        made = POLICIES[arm]
        ax.plot(at, middle, f"{mark}-", color=made.color, lw=2, ms=6, label=made.label)
        ax.fill_between(at, middle - error, middle + error, color=made.color, alpha=0.2, lw=0)
    ax.set(xscale="log", yscale="log", xlabel="round", ylabel="regret so far")
    ax.grid(color="#e6e7ec", lw=0.8)
    ax.legend(frameon=False, fontsize=9)
    return figure


def save_table(folder: Path, lines: Sequence[Line], paper: Printed) -> None:
    """Write the table as a picture, and say where it is."""
    lines = [line for line in lines if math.isfinite(line.optimal)]
    if not lines:
        return
    (file,) = save_figures({"table": table_figure(lines, paper)}, folder)
    print(f"The table as a figure is {file}")


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
    axes[0].legend(frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes[1].set_xticks(place, [str(t + 1) for t in shown], fontsize=8, rotation=90)
    axes[1].set_xlabel(f"round ({len(shown)} of the {len(rounds)} in which only CalLinUCB chose the best arm)")
    return figure


def save(folder: Path, found: Found, paper: Printed) -> None:
    """The table as a picture; for each problem learning curves, reliability, and what two policies believed."""
    lines = [line for line in summarise(found.rows) if math.isfinite(line.optimal)]
    if not lines:
        return
    # Written one by one: a run of many problems would hold dozens of figures open.
    save_figures({"table": table_figure(lines, paper)}, folder)
    for problem in dict.fromkeys(row.problem for row in found.rows):
        rows = [row for row in found.rows if row.problem == problem]
        lost = regret_figure(rows)
        if lost is not None:
            save_figures({f"regret-{problem}": lost}, folder)
        names = list(dict.fromkeys(job_name(problem, row.seed) for row in rows))
        first = found.arrays(names[0])
        curves = [policy for policy in CURVES if f"{policy}, reward" in first]
        if curves:
            save_figures({f"learning-{problem}": _learning(problem, found, names, curves)}, folder)
        pair = _pair(first)
        if pair and len(differing(*pair)):
            save_figures({f"beliefs-{problem}": beliefs(*pair)}, folder)


def _learning(problem: str, found: Found, names: Sequence[str], policies: Sequence[str]) -> Figure:
    import matplotlib.pyplot as plt

    from calibrl import plots

    figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.0), layout="constrained", width_ratios=(1.35, 1, 1))
    kept = [found.arrays(name) for name in names]
    rewards = {policy: np.array([trial[f"{policy}, reward"] for trial in kept], float) for policy in policies}
    learning_curves(rewards, axes[0])
    axes[0].set_title(for_plot(f"{problem}: reward"), fontsize=11, loc="left")
    for ax, (title, what) in zip(axes[1:], (("chosen arms", "chosen"), ("all arms", "all")), strict=True):
        for policy in policies:
            pits = np.concatenate([trial[f"{policy}, {what}"] for trial in kept])
            plots.reliability(pits, ax, color=POLICIES[policy].color, band=False)
        _tell_apart([line for line in ax.lines if line.get_linewidth() > 1])
        ax.set_title(for_plot(f"reliability, {title}"), fontsize=11, loc="left")
    return figure


def _tell_apart(lines: Sequence[Line2D]) -> None:
    """Dash curves from the second on, each in its own way: where they coincide, those below show through the gaps."""
    for line, dashes in zip(lines[1:], cycle(((6, 3), (2, 3), (9, 3, 2, 3), (4, 6))), strict=False):
        line.set_dashes(dashes)


def _pair(kept: NamedArrays) -> tuple[Trial, Trial] | None:
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


# What a run came to, as a table.


@dataclass(frozen=True)
class Line:
    """One policy on one problem: its reward, and the change to LinUCB's, paired trial by trial; means of the rest."""

    problem: str
    policy: str
    rounds: int
    reward: Cell
    optimal: float
    coverage: float
    note: str
    interval: str = ""

    @property
    def relative_gain(self) -> float:
        """Gain over LinUCB, as a part of LinUCB's reward."""
        base = self.reward.mean - self.reward.difference
        return self.reward.difference / abs(base) if base else float("nan")


def summarise(rows: Iterable[Row], *, trials: int | None = None) -> list[Line]:
    """One line per problem, number of rounds and policy; `trials` keeps only that many of the lowest seeds."""
    found: dict[tuple[str, int], dict[str, dict[int, Row]]] = {}
    for row in rows:
        if row.experiment == "bandits":
            arm = check_known("policy", row.arm, POLICIES)
            found.setdefault((row.problem, row.step), {}).setdefault(arm, {})[row.seed] = row
    at = {problem: place for place, problem in enumerate(PROBLEMS)}  # files come last
    lines = []
    for (problem, rounds), arms in sorted(found.items(), key=lambda of: (at.get(of[0][0], len(at)), of[0][1])):
        kept = {arm: [by_seed[seed] for seed in sorted(by_seed)[:trials]] for arm, by_seed in arms.items()}
        every = [row for group in kept.values() for row in group]
        reward, optimal, covered = (
            table(every, name, "linucb").get(problem, {}) for name in ("reward", "optimal", "coverage")
        )
        for arm in filter(reward.__contains__, kept):
            best, covers = (cells[arm].mean if arm in cells else math.nan for cells in (optimal, covered))
            note, metrics = str(kept[arm][0].settings.get("note", "")), kept[arm][0].metrics
            # The 95 % interval that a row of a log has.
            ends = "{reward_low:.4g} … {reward_high:.4g}".format(**metrics) if "reward_low" in metrics else ""
            lines.append(Line(problem, arm, rounds, reward[arm], best, covers, note, ends))
    return lines


def _pm(mean: float, error: float, form: str = ".1f") -> str:
    """Mean ± standard error; one trial has no error."""
    return f"{mean:{form}}" + (f" ± {error:.1f}" if math.isfinite(error) else "")


def print_lines(lines: Sequence[Line], paper: Printed) -> None:
    """Every policy on every problem, with the paper's numbers where it gives them."""
    from calibrl.runs.console import plain_table, table_console

    shown = plain_table("", "reward", "vs LinUCB", "", "covers", "paper", collapse_padding=True)
    before = ""
    for line in lines:
        if (here := f"{line.problem}, {line.rounds}") != before:
            shown.add_section()
            shown.add_row(for_rich(f"{line.problem}, {line.rounds} × {line.reward.seeds}", "bold"))
            optimal = paper.at(line.problem, "optimal", "reward")
            most = "" if math.isnan(line.optimal) else f"{line.optimal:.1f}"
            shown.add_row("  optimum", most, "", "", "", f"{optimal.mean:.1f}" if optimal else "")
        before = here
        printed = paper.at(line.problem, line.policy, "reward")
        form = "+.4g" if line.interval else "+.1f"
        compared = line.policy != "linucb" and not math.isnan(line.reward.difference)
        shown.add_row(
            f"  {POLICIES[line.policy].label}",
            f"{line.reward.mean:.4g}, {line.interval}" if line.interval else _pm(line.reward.mean, line.reward.error),
            _pm(line.reward.difference, line.reward.difference_error, form) if compared else "",
            f"{100 * line.relative_gain:+.1f} %" if compared else "",
            "" if math.isnan(line.coverage) else f"{100 * line.coverage:.1f} %",
            f"{printed.mean:.1f}" if printed else "",
        )
    notes = [f"{line.problem}: {line.note}." for line in lines if line.note and line.policy == lines[0].policy]
    console = table_console()
    console.print(shown)
    about = (
        "Mean reward a decision and its 95 % interval, doubly robust, of policies that have learnt the first half of "
        "the log, judged by the decisions of its second half."
    )
    if not any(line.interval for line in lines):
        about = (
            "Cumulative reward over rounds × paired trials, ± standard error; differences are paired by trial. covers: "
            "share of the chosen arms' rewards below their 84.1 % quantile. paper: Malik et al. (2019), 1200 rounds."
        )
    console.print(about, *notes, highlight=False)

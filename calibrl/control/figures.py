"""What a control run came to: figures, videos, and what `calibrl run control` prints, with `--rows` of earlier runs."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from calibrl.control import checkpoint, video
from calibrl.control.arms import ARMS
from calibrl.control.loop import EXPERIMENT, Record, job_name
from calibrl.control.policy import Member, fleets
from calibrl.control.problems import Task, task, task_of
from calibrl.control.scoring import (
    ENDPOINTS,
    HORIZONS,
    PAIRS,
    STARTS,
    Claim,
    Floats,
    Samples,
    claim,
    decimals,
    endpoint,
)
from calibrl.control.settings import PUBLISHED, TASKS, ControlSettings
from calibrl.diagnostics import noise_floor
from calibrl.errors import CalibrlError
from calibrl.files import explain_os_error
from calibrl.runs.console import plain_table, table_console
from calibrl.runs.engine import Found
from calibrl.runs.rows import RELIABILITY_NAMES, RELIABILITY_PERCENT, Row, by_run, mean_and_error, read
from calibrl.runs.settings import identity
from calibrl.runs.store import save_figures
from calibrl.text import for_plot, for_rich, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "calibrated": "#1b7f79",
    "uncalibrated": "#c8553d",
    "uncalibrated-all": "#e0a458",
    "uncalibrated-limited": "#b5179e",
    "calibrated-paper": "#7b5ea7",
    "calibrated-fresh": "#3d6fb6",
    "calibrated-wary": "#222831",
    "calibrated-trajectory": "#0a9d3f",
    "released": "#a4133c",
    "released-control": "#f28482",
    "width-0.5": "#8fa6c4",
    "width-1.4": "#8d6e63",
    "sac": "#6c757d",
}
"""Arms in every figure."""
FAINT = "#b8bcc8"


def curve(rows: Sequence[Row], arm: str, metric: str) -> tuple[Floats, Floats, Floats]:
    """Steps (n,), and at each the mean over seeds and its standard error (0 for one seed)."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.arm == arm and metric in row.metrics:
            found.setdefault(row.step, []).append(row.metrics[metric])
    parts = [_over_seeds(found[step]) for step in sorted(found)]
    mean, error = np.array(parts).reshape(-1, 2).T
    return np.array(sorted(found), float), mean, error


def _over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, 0 for one value."""
    mean, error = mean_and_error(values)
    return mean, error if len(values) > 1 else 0.0


def arms_of(rows: Sequence[Row]) -> list[str]:
    """Arms in the order of the legend."""
    present = {row.arm for row in rows}
    return [arm for arm in COLORS if arm in present] + sorted(present - set(COLORS))


def learning(rows: Sequence[Row], *, solved: float | None = None) -> Figure:
    """Return by environment steps, raw and the best so far: mean over seeds ± its standard error."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for ax, metric, title in zip(axes, ("return", "best"), ("each trial", "best so far"), strict=True):
        for arm in arms_of(rows):
            _line(ax, rows, arm, metric, label=_label(rows, arm))
        if solved is not None:
            _level(ax, solved, "known to be reached", va="bottom")
        ax.set_title(title, fontsize=11, loc="left")
        ax.set(xlabel="environment steps")
    axes[0].set_ylabel("return")
    axes[1].legend(frameon=False, fontsize=9, loc="lower right")
    figure.suptitle(for_plot(_title(rows)), fontsize=12)
    return figure


def paper_figure(rows: Sequence[Row], known: Mapping[str, tuple[float, str]]) -> Figure:
    """The paper's figure of control tasks and more, a column for each preset: returns, best so far, calibration loss.

    known: {preset: (return, who published it)}, drawn as a line. Steps are shown as far as the model-based agents went;
    where SAC went further, the legend says what it came to.
    """
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row.preset for row in rows))
    size = (4.6 * len(names), 8.4)
    figure, grid = plt.subplots(3, len(names), figsize=size, layout="constrained", squeeze=False, sharex="col")
    titles = ("return of each trial", "best so far", "calibration loss on new trajectories")
    for column, name in zip(grid.T, names, strict=True):
        mine = [row for row in rows if row.preset == name]
        arms = arms_of(mine)
        reach = max(row.step for row in mine if row.arm != "sac" or arms == ["sac"])
        shown = [row for row in mine if row.step <= reach]
        for ax, metric, title in zip(column, ("return", "best", "calibration_loss"), titles, strict=True):
            for arm in arms:
                _line(ax, shown, arm, metric, label=_label(mine, arm) + _beyond(mine, arm, reach))
            ax.set_title(for_plot(f"{name}: {title}"), fontsize=10, loc="left")
        if name in known:
            level, who = known[name]
            # Below the line: above it is the title.
            _level(column[0], level, who, xytext=(0, -2), textcoords="offset points", va="top")
            _level(column[1], level)
        column[2].set_yscale("log")
        column[2].set_xlabel("environment steps")
        column[1].legend(frameon=False, fontsize=8, loc="best")
    return figure


def best_figure(pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]]) -> Figure:
    """Returns with our own recipe beside those with published settings, dotted, as far as ours went: a column a task.

    pairs: rows of ours and published ones, task by task.
    """
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(1, len(pairs), figsize=(4.6 * len(pairs), 5.2), layout="constrained", squeeze=False)
    for ax, (ours, published) in zip(grid[0], pairs, strict=True):
        reach = max(row.step for row in ours)
        shown = [row for row in published if row.step <= reach]
        for rows, whose in ((ours, "our own"), (shown, "published")):
            for arm in arms_of(rows):
                words = _label(rows, arm) if arm == "sac" else f"{whose}, {_label(rows, arm)}"
                _line(ax, rows, arm, "return", label=words, dashed=rows is shown)
        ax.set_title(for_plot(f"{_title(ours)}: return of each trial"), fontsize=10, loc="left")
        ax.set_xlabel("environment steps")
        ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14))  # below: curves cross
    return figure


def calibration(rows: Sequence[Row]) -> Figure:
    """How honest one-step forecasts were on each new trajectory, before it was trained on."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained", width_ratios=(1.2, 1.2, 1))
    scored = [row for row in rows if "calibration_loss" in row.metrics]
    arms = arms_of(scored)
    for arm in arms:
        for ending in ("", "_bare") if _has_map(arm) else ("",):
            label = for_plot(f"{arm}, without its map" if ending else arm)
            for ax, metric in zip(axes, ("calibration_loss", "coverage_90"), strict=False):
                _line(ax, scored, arm, metric + ending, label=label, dashed=bool(ending))
            _reliability(axes[2], scored, arm, ending)
    axes[0].set_yscale("log")
    axes[0].set(ylabel="calibration loss", xlabel="environment steps")
    axes[0].set_title("calibration loss", fontsize=11, loc="left")
    axes[0].legend(frameon=False, fontsize=8)
    _level(axes[1], 0.9)
    axes[1].set(ylabel="share of outcomes inside", xlabel="environment steps", ylim=(None, 1.005))
    axes[1].set_title("90 % intervals hold", fontsize=11, loc="left")
    axes[2].plot([0, 1], [0, 1], color=FAINT, lw=1, ls="--", zorder=0)
    axes[2].set(xlabel="predicted probability", ylabel="observed share", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes[2].set_title("reliability, all trials", fontsize=11, loc="left")
    figure.suptitle(for_plot(f"{_title(rows)}: one-step forecasts of trajectories not yet trained on"), fontsize=12)
    return figure


def by_horizon(rows: Sequence[Row]) -> Figure:
    """Calibration loss of what arms imagined h steps ahead, mean over trials; dashed without their maps."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    rows = [row for row in rows if "calibration_loss_ahead_1" in row.metrics]
    seeds = sorted({row.seed for row in rows})
    steps = [step for step in HORIZONS if f"calibration_loss_ahead_{step}" in rows[0].metrics]
    for arm in arms_of(rows):
        for ending in ("", "_bare") if _has_map(arm) else ("",):
            names = [f"calibration_loss_ahead_{step}{ending}" for step in steps]
            mine = [row for row in rows if row.arm == arm]
            losses = [[[row.metrics[name] for name in names] for row in mine if row.seed == seed] for seed in seeds]
            means = [np.mean(trials, 0).tolist() for trials in losses if trials]
            mean, error = zip(*(_over_seeds(each) for each in zip(*means, strict=True)), strict=True)
            words, style = (" without its map", "--") if ending else ("", "-")
            ax.errorbar(steps, mean, error, color=COLORS.get(arm), ls=style, marker="o", label=for_plot(arm + words))
    _level(ax, noise_floor(STARTS), "chance alone, were starts independent", at=0.99, ha="right", va="bottom")
    ax.set(xscale="log", xlabel="steps ahead", ylabel="calibration loss")
    ax.set_xticks(steps, [str(step) for step in steps])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize=9)
    ax.set_title("Imagined rollouts against real trajectories", fontsize=11, loc="left")
    return figure


def predictions(forecasts: Mapping[str, Mapping[int, Floats]], *, dimension: int, name: str) -> Figure:
    """One-step forecasts along trajectories the models had not seen: 90 % intervals and what happened.

    forecasts: {arm: {trial: (T, d, 4)}}: outcome, 5 %, 50 % and 95 % quantile. A column for each trial.
    """
    import matplotlib.pyplot as plt

    arms = [arm for arm in COLORS if forecasts.get(arm)]
    trials = sorted(set.intersection(*(set(forecasts[arm]) for arm in arms)))[:4]
    size = (3.6 * len(trials), 2.4 * len(arms))
    figure, grid = plt.subplots(
        len(arms), len(trials), figsize=size, layout="constrained", squeeze=False, sharey="col", sharex=True
    )
    for line, arm in zip(grid, arms, strict=True):
        for ax, trial in zip(line, trials, strict=True):
            outcome, low, middle, high = np.moveaxis(np.asarray(forecasts[arm][trial])[:, dimension], -1, 0)
            steps = np.arange(len(outcome))
            inside = ((outcome >= low) & (outcome <= high)).mean()
            ax.fill_between(steps, low, high, color=COLORS[arm], alpha=0.3, lw=0)
            ax.plot(steps, middle, color=COLORS[arm], lw=1)
            ax.plot(steps, outcome, ".", color="#2b2d42", ms=2)
            ax.set_title(f"{arm}, trial {trial}: {100 * inside:.0f} % inside", fontsize=9, loc="left")
    for ax in grid[-1]:
        ax.set_xlabel("step")
    for line in grid:
        line[0].set_ylabel(name)
    return figure


def _has_map(arm: str) -> bool:
    return arm in ARMS and ARMS[arm].calibrated


def _level(ax: Axes, level: float, words: str = "", *, at: float = 0.01, **options: Any) -> None:
    """A dashed line at a level, with words on it."""
    ax.axhline(level, color=FAINT, lw=1, ls="--", zorder=0)
    ax.annotate(words, (at, level), xycoords=("axes fraction", "data"), fontsize=8, color="#6c757d", **options)


def _line(ax: Axes, rows: Sequence[Row], arm: str, metric: str, *, label: str, dashed: bool = False) -> None:
    steps, mean, error = curve(rows, arm, metric)
    if not len(steps):
        return
    color = COLORS.get(arm, "#2b2d42")
    ax.plot(steps, mean, color=color, lw=1.4 if dashed else 2, ls=":" if dashed else "-", label=label)
    if not dashed:
        ax.fill_between(steps, mean - error, mean + error, color=color, alpha=0.18, lw=0)


def _reliability(ax: Axes, rows: Sequence[Row], arm: str, ending: str) -> None:
    names = [name + ending for name in RELIABILITY_NAMES]
    shares = [[row.metrics[name] for name in names] for row in rows if row.arm == arm and names[0] in row.metrics]
    if shares:
        style = ":" if ending else "-"
        levels = [0, *(percent / 100 for percent in RELIABILITY_PERCENT), 1]
        ax.plot(levels, [0, *np.mean(shares, 0), 1], color=COLORS.get(arm), lw=1.4 if ending else 2, ls=style)


def _label(rows: Sequence[Row], arm: str) -> str:
    seeds = len({row.seed for row in rows if row.arm == arm})
    return for_plot(f"{arm} ({seeds} seed{'s' if seeds > 1 else ''})")


def _last(rows: Sequence[Row], arm: str) -> list[Row]:
    """The last row of each seed of an arm."""
    return list({row.seed: row for row in sorted(rows, key=lambda row: row.step) if row.arm == arm}.values())


def _beyond(rows: Sequence[Row], arm: str, reach: int) -> str:
    """What an arm came to where it went on beyond what is shown: the mean of its seeds' last returns."""
    last = _last(rows, arm)
    if not any(row.step > reach for row in last):
        return ""
    came_to = np.mean([row.metrics.get("return", np.nan) for row in last])
    return f": {came_to:,.0f} by {max(row.step for row in last):,} steps"


def _title(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row.preset or row.problem for row in rows))


def draw(out: Path, settings: ControlSettings, found: Found) -> None:
    """All figures of the rows in a folder, and of a whole run the videos, where the environment can be drawn."""
    what, records = task_of(settings), records_of(out, settings, found)
    rows = [row for row in read(out / "rows.jsonl") if row.experiment == EXPERIMENT and row.preset == settings.name]
    figures = {"control-learning": learning(rows, solved=what.solved)}
    if any("calibration_loss" in row.metrics for row in rows):
        figures["control-calibration"] = calibration(rows)
    if any("calibration_loss_ahead_1" in row.metrics for row in rows):
        figures["control-horizon"] = by_horizon(rows)
    forecasts = {
        member.arm.name: {trial: part.numpy().astype(float) for trial, part in record.forecasts.items()}
        for member, record in records.items()
        if record.forecasts
    }
    if forecasts:
        figures["control-predictions"] = predictions(forecasts, dimension=0, name="first number")
    save_figures(figures, out)
    if settings.video and found.finished:
        videos(out, what, {member: record for member, record in records.items() if member.seed == settings.seed})


def records_of(out: Path, settings: ControlSettings, found: Found) -> dict[Member, Record]:
    """What is kept of each agent: by the run, or where it was stopped by the agent's own file; SAC keeps nothing."""
    records = {}
    seeds = range(settings.seed, settings.seed + settings.seeds)
    for member in chain(*fleets(settings.arms, seeds)) if settings.agent == "model" else ():
        arrays = found.arrays(job_name(settings, member))
        ((done, _),) = checkpoint.together(out / "checkpoint", [member])
        if arrays:
            records[member] = Record.from_arrays(arrays)
        elif done is not None:
            state = checkpoint.load(out / "checkpoint", member, done, identity(settings))
            records[member] = Record.from_state(state["record"])
    return records


def videos(out: Path, what: Task, records: Mapping[Member, Record]) -> None:
    """The best trial of each arm, as it was: its actions, repeated from the same start."""
    for member, record in records.items():
        best = record.best
        try:
            frames, pace = video.replay(what, best["actions"], seed=best["seed"], earned=best["earned"])
        except CalibrlError as problem:
            typer.echo(f"No video: {problem}", err=True)
            return
        with explain_os_error(out):
            video.save(frames, out / f"control-{member.arm.name}.gif", fps=pace)


WIDE = 1000
"""A width that no table needs."""
FEWEST = 5
"""Trials from which there is a curve to draw."""
LONGEST = 80
"""Characters of a preset, and what was changed about it, in a file's name."""


def print_outcome(rows: Sequence[Row]) -> None:
    """By arm: what was earned at the end and at best, and how honest the model was."""
    names = ("", "seeds", "steps", "last", "best", "cal. loss", "90 % holds")
    table = plain_table(*names)
    lines = summary(rows)
    for line in lines:
        table.add_row(*map(for_rich, line))
    console = table_console()
    if console.measure(table, options=console.options.update(max_width=WIDE)).maximum <= console.width:
        console.print(table)
    else:
        # No number is ever cut: on a narrow terminal an arm is a sentence.
        for arm, *numbers in lines:
            parts = [f"{name} {number}" for name, number in zip(names[1:], numbers, strict=True) if number]
            console.print(for_rich(f"{arm}: {', '.join(parts)}"))
    console.print(
        "last, best: return, mean over seeds ± standard error. cal. loss, 90 % holds: of one-step forecasts of "
        "trajectories not yet trained on, over all trials; in brackets without the map.",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


SCORES = {name + end for name in ("calibration_loss", "coverage_90") for end in ("", "_bare")}
"""What a row says of forecasts, with the map and without."""


def summary(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each arm: seeds, steps, last and best return, calibration loss and coverage over all trials."""
    lines = []
    for arm in arms_of(rows):
        mine = [row for row in rows if row.arm == arm]
        last = _last(mine, arm)
        scored = [row for row in mine if row.metrics.keys() >= SCORES]
        honest = ["", ""] if not scored else []
        for name, form in (("calibration_loss", ".3f"), ("coverage_90", ".0%")) if scored else ():
            with_map, bare = (np.mean([row.metrics[name + end] for row in scored]) for end in ("", "_bare"))
            honest.append(f"{with_map:{form}}" + (f" ({bare:{form}})" if _has_map(arm) else ""))
        steps = max(row.step for row in mine)
        earned = []
        for metric in ("return", "best"):
            values = [row.metrics[metric] for row in last]
            earned.append(_with_error(values, f".{max(1, decimals(max(map(abs, values))))}f"))
        lines.append((arm, str(len(last)), str(steps), *earned, *honest))
    return lines


def show_rows(rows: Sequence[Row], out: Path | None) -> None:
    """Print a summary of each preset and what calibrating saved; where `out` is given, draw the figures there."""
    groups = {what: mine for (_, what), mine in by_run(rows).items()}
    for name, mine in groups.items():
        say(f"\n{name}")
        print_outcome(mine)
        found = claim(mine)
        if found is not None:
            say(in_words(found))
        for line in endpoints_in_words(mine):
            say(line)
    if out is not None:
        files = _draw(groups, out)
        say(f"Figures: {', '.join(str(file) for file in files)}")


def in_words(found: Claim) -> str:
    """The claim's numbers as sentences."""
    many, digits = f"{found.seeds} paired seed{'s' if found.seeds > 1 else ''}", decimals(found.way)
    gain = _with_error(found.gain.tolist(), f"+.{digits + 1}f")
    lines = [f"calibrated − uncalibrated, {many}, trials 1 to {found.trials}: {gain} a trial"]
    lines += [_to_a_level(samples, digits) for samples in found.samples]
    if not found.samples:
        lines.append("uncalibrated never earned more than at random: there are no samples to count")
    return "\n".join(lines)


def endpoints_in_words(rows: Sequence[Row]) -> list[str]:
    """The steps to the return that was fixed for a task, one arm's over another's: a line for each pair that was run.

    Nothing for sizes that it was not fixed for.
    """
    level = ENDPOINTS.get(rows[0].problem)
    if level is None or not any(one.name == rows[0].preset for one in PUBLISHED):
        return []
    lines = []
    for arm, other in PAIRS:
        found = endpoint(rows, level, arm, other)
        if found is None:
            continue
        (ratio, low, high), (mine, theirs) = found.ratio, found.reached
        got = f"{mine} and {theirs} of {len(found.arm)} seeds got there"
        times = "" if math.isnan(ratio) else f": {ratio:.2f} × the steps, 95 % interval {low:.2f} to {high:.2f}"
        lines.append(f"Endpoint, steps to {level:.0f}, {arm} over {other} ({got}){times}")
    return lines


def _to_a_level(samples: Samples, digits: int) -> str:
    """Who got there, so that no arm gains by the seeds on which it did not; and after how many steps where both did."""
    both, (one, other) = samples.both, samples.reached
    level = f"a return of {samples.level:.{digits}f} (on {one} of {len(both)} seeds calibrated, {other} uncalibrated)"
    if not both.any():
        return f"{level}: not by both arms of any seed"
    mine, theirs = samples.arm[both].mean(), samples.other[both].mean()
    where = "" if both.all() else f" on the {both.sum()} of both"
    saved = f"saved {_with_error(samples.saved.tolist(), '.0f')}, {samples.ratio_of_sums:.2f} × the samples"
    return f"{level}: after {mine:.0f} steps calibrated, {theirs:.0f} uncalibrated{where}; {saved}"


def _with_error(values: Sequence[float], form: str) -> str:
    """The mean ± its standard error; of one value, the value."""
    mean, error = mean_and_error(values)
    return f"{mean:{form}} ± {error:{form.lstrip('+')}}" if len(values) > 1 else f"{mean:{form}}"


def _file_name(words: str) -> str:
    """Words as part of a file's name: readable, and different where a long name had to be cut."""
    plain = re.sub(r"[^\w.=]+", "-", words)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"


def _trials(rows: Sequence[Row]) -> int:
    return len({row.step for row in rows if row.arm != "sac"})


def _draw(groups: Mapping[str, Sequence[Row]], out: Path) -> list[Path]:
    figures = {f"control-{_file_name(name)}": learning(mine) for name, mine in groups.items()}
    full = [row for one in PUBLISHED if _trials(mine := groups.get(one.name, [])) >= FEWEST for row in mine]
    if full:
        tasks = [task(name) for name in TASKS]
        known = {one.name: (one.solved, one.solved_by) for one in tasks if one.solved is not None}
        figures["control-paper"] = paper_figure(full, known)
    pairs = [(groups.get(f"{one.name}-best", ()), groups.get(one.name, ())) for one in PUBLISHED]
    if any(ours for ours, _ in pairs):
        figures["control-best"] = best_figure([pair for pair in pairs if pair[0]])
    return save_figures(figures, out)

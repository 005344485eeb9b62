"""What `calibrl run control` prints: what a run came to, and with `--rows` what earlier runs found."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import typer
from rich import box
from rich.table import Table

from calibrl.control.claim import Claim, Floats, Samples, claim, decimals
from calibrl.control.figures import arms_of, learning, paper_figure
from calibrl.control.problems import task
from calibrl.control.settings import PUBLISHED, TASKS
from calibrl.runs.console import table_console
from calibrl.runs.rows import Row
from calibrl.runs.statistics import by_run, mean_and_error
from calibrl.runs.store import save_figures

WIDE = 1000
"""A width that no table needs."""
FEWEST = 5
"""Trials from which there is a curve to draw."""
LONGEST = 80
"""Characters of a preset, and what was changed about it, in a file's name."""


def print_outcome(rows: Sequence[Row]) -> None:
    """By arm: what was earned at the end and at best, and how honest the model was."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    names = ("", "seeds", "steps", "last", "best", "cal. loss", "90 % holds")
    for name in names:
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    lines = summary(rows)
    for line in lines:
        table.add_row(*line)
    console = table_console()
    if console.measure(table, options=console.options.update(max_width=WIDE)).maximum <= console.width:
        console.print(table)
    else:
        # No number is ever cut: on a narrow terminal an arm is a sentence.
        for arm, *numbers in lines:
            parts = [f"{name} {number}" for name, number in zip(names[1:], numbers, strict=True) if number]
            console.print(f"{arm}: {', '.join(parts)}", highlight=False, markup=False)
    console.print(
        "last, best: return, mean over seeds ± standard error. cal. loss, 90 % holds: of one-step forecasts of "
        "trajectories not yet trained on, over all trials; in brackets without the map.",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def summary(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each arm: seeds, steps, last and best return, calibration loss and coverage over all trials."""
    lines = []
    for arm in arms_of(rows):
        mine = [row for row in rows if row.arm == arm]
        final = {row.seed: row for row in sorted(mine, key=lambda row: row.step)}
        last = [row.metrics["return"] for row in final.values()]
        best = [row.metrics["best"] for row in final.values()]
        scored = [row for row in mine if "calibration_loss" in row.metrics]
        honest = ["", ""]
        for i, (name, form) in enumerate((("calibration_loss", ".3f"), ("coverage_90", ".0%"))):
            if scored:
                with_map, bare = (np.mean([row.metrics[name + end] for row in scored]) for end in ("", "_bare"))
                differs = arm.startswith("calibrated")
                honest[i] = f"{with_map:{form}} ({bare:{form}})" if differs else f"{with_map:{form}}"
        steps = max(row.step for row in mine)
        lines.append((arm, str(len(final)), str(steps), _mean_and_error(last), _mean_and_error(best), *honest))
    return lines


def _mean_and_error(values: Sequence[float]) -> str:
    mean, error = mean_and_error(values)
    digits = max(1, decimals(max(map(abs, values))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


def show_rows(rows: Sequence[Row], out: Path | None) -> None:
    """Print a summary of each preset and what calibrating saved; where `out` is given, draw the figures there."""
    groups = {what: mine for (_, what), mine in by_run(rows).items()}
    for name, mine in groups.items():
        typer.echo(f"\n{name}")
        print_outcome(mine)
        found = claim(mine)
        if found is not None:
            typer.echo(in_words(found))
    if out is not None:
        files = _draw(groups, out)
        typer.echo(f"Figures: {', '.join(str(file) for file in files)}")


def in_words(found: Claim) -> str:
    """The claim's numbers as sentences."""
    many, digits = f"{found.seeds} paired seed{'s' if found.seeds > 1 else ''}", decimals(found.way)
    gain = _with_error(found.gain, f"+.{digits + 1}f")
    lines = [f"calibrated − uncalibrated, {many}, trials 1 to {found.trials}: {gain} a trial"]
    lines += [_to_a_level(samples, digits) for samples in found.samples]
    if not found.samples:
        lines.append("uncalibrated never earned more than at random: there are no samples to count")
    return "\n".join(lines)


def _to_a_level(samples: Samples, digits: int) -> str:
    """Who got there, so that no arm gains by the seeds on which it did not; and after how many steps where both did."""
    both, (one, other) = samples.reached, samples.counts
    level = f"a return of {samples.level:.{digits}f} (on {one} of {len(both)} seeds calibrated, {other} uncalibrated)"
    if not both.any():
        return f"{level}: not by both arms of any seed"
    mine, theirs = samples.calibrated[both].mean(), samples.uncalibrated[both].mean()
    where = "" if both.all() else f" on the {both.sum()} of both"
    saved = f"saved {_with_error(samples.saved, '.0f')}, {samples.ratio:.2f} × the samples"
    return f"{level}: after {mine:.0f} steps calibrated, {theirs:.0f} uncalibrated{where}; {saved}"


def _with_error(values: Floats, form: str) -> str:
    """The mean ± its standard error; of one value, the value."""
    mean, error = mean_and_error(values.tolist())
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
    return save_figures(figures, out)

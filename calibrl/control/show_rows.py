"""`calibrl run control --rows`: what earlier runs found, as tables and figures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from calibrl.control.claim import Claim, Floats, Samples
    from calibrl.runs.rows import Row

WHO = {
    "cartpole": "PETS, published",
    "pusher": "published, at 15 000 steps",
    "halfcheetah": "SAC, published, at 1 M steps",
}
"""Whose returns the tasks' `solved` are."""
FEWEST = 5
"""Trials from which there is a curve to draw."""
LONGEST = 80
"""Characters of a preset, and what was changed about it, in a file's name."""


def show_rows(path: Path, out: Path | None) -> None:
    """A summary of each preset, what calibrating saved, and where `out` is given the figures."""
    from calibrl.control.claim import claim
    from calibrl.control.commands import print_outcome
    from calibrl.runs.rows import read_experiment
    from calibrl.runs.statistics import by_run

    groups = {what: rows for (_, what), rows in by_run(read_experiment(path, "control")).items()}
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
    from calibrl.control.claim import decimals

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
    from calibrl.runs.statistics import mean_and_error

    mean, error = mean_and_error(values.tolist())
    return f"{mean:{form}} ± {error:{form.lstrip('+')}}" if len(values) > 1 else f"{mean:{form}}"


def _file_name(words: str) -> str:
    """Words as part of a file's name: readable, and different where a long name had to be cut."""
    plain = re.sub(r"[^\w.=]+", "-", words)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"


def _trials(rows: Sequence[Row]) -> int:
    return len({row.step for row in rows if row.arm != "sac"})


def _draw(groups: Mapping[str, Sequence[Row]], out: Path) -> list[Path]:
    from calibrl.control import figures as control_figures
    from calibrl.control.problems import task
    from calibrl.control.settings import PUBLISHED
    from calibrl.runs.store import save_figures

    figures = {f"control-{_file_name(name)}": control_figures.learning(mine) for name, mine in groups.items()}
    full = [row for one in PUBLISHED if _trials(mine := groups.get(one.name, [])) >= FEWEST for row in mine]
    if full:
        known = {name: (level, who) for name, who in WHO.items() if (level := task(name).solved) is not None}
        figures["control-paper"] = control_figures.paper_figure(full, known)
    return save_figures(figures, out)

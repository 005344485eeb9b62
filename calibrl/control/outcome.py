"""What a control run ends with: figures, a video of each arm's best trial, and numbers by horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from calibrl.control import figures as control_figures
from calibrl.control import horizon
from calibrl.control.arms import Member
from calibrl.control.claim import decimals
from calibrl.control.experiment import Outcome, Record
from calibrl.control.scoring import horizons_of
from calibrl.control.settings import Preset
from calibrl.diagnostics import calibration_loss, noise_floor
from calibrl.files import said_if_not_written
from calibrl.runs.figures import save
from calibrl.runs.rows import Row, read
from calibrl.runs.statistics import mean_and_error

Losses = dict[str, tuple[Sequence[int], Sequence[float], Sequence[float]]]


def draw(out: Path, outcome: Outcome, preset: Preset, *, others: Sequence[Row] = ()) -> list[Path]:
    """All figures, and the videos where the environment can be drawn; `others` are rows to show beside the run's."""
    rows = [*outcome.rows, *others]
    figures = {"control-learning": control_figures.learning(rows, solved=outcome.task.solved)}
    if any("calibration_loss" in row.metrics for row in rows):
        figures["control-calibration"] = control_figures.calibration(rows)
    losses, count = losses_by_horizon(outcome.records, horizons_of(preset))
    if losses:
        figures["control-horizon"] = control_figures.by_horizon(losses, floor=noise_floor(count))
    forecasts = {
        member.arm.name: {trial: part.numpy().astype(float) for trial, part in record.forecasts.items()}
        for member, record in outcome.records.items()
        if record.forecasts
    }
    if forecasts:
        figures["control-predictions"] = control_figures.predictions(forecasts, dimension=0, name="first number")
    return save(figures, out)


def losses_by_horizon(records: Mapping[Member, Record], horizons: Sequence[int]) -> tuple[Losses, int]:
    """Calibration loss by horizon over agents that fit a map, and how many outcomes of each agent it is from.

    Mean and standard error over agents, of trials from the second on, where a map per horizon has evidence.
    """
    found: dict[str, list[list[float]]] = {}
    count = 0
    for member, record in records.items():
        if member.arm.evidence == "none" or len(record.pits) < 2:
            continue
        mapped, bare = ([part[i].double() for part in record.pits] for i in (0, 1))
        sets = {
            "without a map": bare[1:],
            "one map for one step": mapped[1:],
            "and a map for each horizon": horizon.corrected_by_earlier(mapped),
        }
        for name, parts in sets.items():
            together = torch.cat(parts, 1)
            count = together.shape[1]
            found.setdefault(name, []).append([calibration_loss(part) for part in together])
    losses: Losses = {}
    for name, values in found.items():
        table = np.array(values)
        error = table.std(0, ddof=1) / len(table) ** 0.5 if len(table) > 1 else np.zeros(len(horizons))
        losses[name] = (list(horizons), table.mean(0).tolist(), error.tolist())
    return losses, count


def videos(out: Path, outcome: Outcome) -> list[Path]:
    """The best trial of the first seed of every arm, as it was: its actions, repeated from the same start."""
    from calibrl.control import video

    first = min(member.seed for member in outcome.records)
    files = []
    for member, record in outcome.records.items():
        if member.seed == first and record.best:
            best, earned = record.best, record.rows[-1]["metrics"]["best"]
            frames, pace = video.replay(outcome.task, best["actions"], seed=best["seed"], earned=earned)
            with said_if_not_written(out):
                files.append(video.save(frames, out / f"control-{member.arm.name}.gif", fps=pace))
    return files


def other_rows(out: Path, outcome: Outcome) -> list[Row]:
    """Rows in the folder that are not this run's, SAC's for instance."""
    file = out / "rows.jsonl"
    own = {(member.arm.name, member.seed) for member in outcome.records}
    return [row for row in read(file) if (row.arm, row.seed) not in own] if file.exists() else []


def summary(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each arm: seeds, steps, last and best return, calibration loss and coverage over all trials."""
    lines = []
    for arm in control_figures.arms_of(rows):
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

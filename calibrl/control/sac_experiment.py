"""SAC on exactly the tasks of the model-based agents, into the same folder and the same figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from calibrl.control import figures as control_figures
from calibrl.control.checkpoint import alone_in
from calibrl.control.experiment import EXPERIMENT, Moment, Watch
from calibrl.control.presets import overrides
from calibrl.control.rows import append_missing, clear
from calibrl.control.settings import Preset
from calibrl.control.task_named import task_of
from calibrl.control.tasks import Task
from calibrl.errors import CalibrlError
from calibrl.runs.figures import save
from calibrl.runs.rows import Row, origin, read

ARM = "sac"


def run_sac(
    out: Path,
    preset: Preset,
    *,
    seed: int = 0,
    device: str = "cpu",
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
) -> list[Path]:
    """As many environment steps as the preset's agents make, seed after seed; rows and the figure of all rows there.

    With `resume` it goes on with what is there, with `force` it replaces it.
    """
    watch = watch or Watch()
    what, file = task_of(preset), out / "rows.jsonl"
    with alone_in(out):
        if force:
            clear(out, lambda row: row.arm == ARM, agents="*.sac")
        if not resume and file.exists() and any(row.arm == ARM for row in read(file)):
            raise CalibrlError(
                f"{out} already holds a run of SAC; --resume to go on with it, --force to replace it, or another --out"
            )
        for number in range(seed, seed + preset.seeds):
            for row in seed_rows(out, what, preset, number, device=device, resume=resume, watch=watch):
                append_missing(file, [row])
                watch.trial([row])
    rows = [row for row in read(file) if row.experiment == EXPERIMENT and row.preset == preset.name]
    return save({"control-learning": control_figures.learning(rows, solved=what.solved)}, out)


def seed_rows(
    out: Path, what: Task, preset: Preset, seed: int, *, device: str, resume: bool, watch: Watch
) -> Iterator[Row]:
    """One row for each episode of one learner."""
    from calibrl.control.sac import settings_for, train

    name, earned = f"{ARM}-{seed}", [0.0]
    file = out / "rows.jsonl"
    known = sum(row.arm == ARM and row.seed == seed for row in read(file)) if file.exists() else 0

    def progress(step: int) -> None:
        trial, within = divmod(step - 1, preset.steps)
        watch.step(Moment(trial, preset.trials, within + 1, preset.steps, {name: earned[-1]}))

    episodes = train(
        what,
        steps=(preset.trials + 1) * preset.steps,
        seed=seed,
        device=device,
        checkpoint=out / "checkpoint" / f"{name}.sac",
        resume=resume,
        every=max(1, preset.trials // 20),
        progress=progress,
    )
    for count, episode in enumerate(episodes):
        earned.append(episode.earned)
        yield Row(
            experiment=EXPERIMENT,
            preset=preset.name,
            problem=what.name,
            arm=ARM,
            seed=seed,
            step=episode.step,
            metrics={"trial": float(count), "return": episode.earned, "best": max(earned[1:])},
            settings=asdict(settings_for(what)) if count == 0 else {},
            overrides=overrides(preset),
            origin=origin() if count == known else {},
        )

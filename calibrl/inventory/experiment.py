"""Table 2 of the paper: perishable goods ordered with and without calibration, and the controls it lacks."""

from __future__ import annotations

from pathlib import Path

from calibrl.inventory.arms import play_model
from calibrl.inventory.presets import ARMS, PRESETS, InventorySettings
from calibrl.inventory.problems import dataset
from calibrl.runs.engine import Found, Plan
from calibrl.runs.workers import Job
from calibrl.threads import check_device


def job_name(preset: InventorySettings, model: str, seed: int) -> str:
    """What the job of a model and seed is called."""
    return f"{preset.data}, {preset.period}, {model or 'oracle'}, seed {seed}"


def plan(preset: InventorySettings, *, device: str = "cpu") -> Plan:
    """One job for each model and seed; its arms are paired, and so are seeds between models."""
    preset.check()
    check_device(device)
    # Read once here: files that are missing are missed before any work is begun.
    dataset(preset.data, preset.period, preset.series, preset.days)
    models = dict.fromkeys(ARMS[name].model for name in preset.arms)
    jobs = tuple(
        Job(job_name(preset, model, seed), play_model, (preset, model, seed), {"device": device})
        for seed in range(preset.seed, preset.seed + preset.seeds)
        for model in models
    )
    base = PRESETS.get(preset.name, preset)
    names = ("arms", "shelf_lives", "data", "period", "paths", "trajectories", "series", "days")
    overrides = {name: getattr(preset, name) for name in names if getattr(preset, name) != getattr(base, name)}
    return Plan("inventory", jobs, preset=preset.name, overrides=overrides, draw=_draw, file="inventory.jsonl")


def _draw(out: Path, found: Found) -> None:
    from calibrl.inventory import figures as inventory_figures

    inventory_figures.save(out, found)

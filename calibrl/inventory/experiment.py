"""Table 2 of the paper: perishable goods ordered with calibrated and uncalibrated forecasts, and the controls it lacks.

Seeds are paired: with one seed every arm of a model meets the same network, the same ranks of demand paths, the same
random trajectories and the same draws of which units are sold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrl.diagnostics import calibration_error, calibration_loss, coverage, crps
from calibrl.inventory.arms import Forecasts, Mapped, expected, true_paths, with_map
from calibrl.inventory.loop import Season, play, tune
from calibrl.inventory.policy import Planner, RandomTrajectories
from calibrl.inventory.presets import ARMS, MODELS, PRESETS, Arm, InventorySettings
from calibrl.inventory.problems import Dataset, dataset
from calibrl.kernels import normal
from calibrl.maps import IDENTITY
from calibrl.runs.engine import Found, Kept, Plan
from calibrl.runs.rows import Row, reliability_metrics
from calibrl.runs.workers import Job
from calibrl.threads import check_device

EXPERIMENT = "inventory"
TUNING_DAYS = 28
"""Rules of thumb are tuned on so many days before the test."""
REPORTED = ("uncalibrated", "calibrated", "best, uncalibrated", "best")
"""Arms whose PITs are kept for figures."""


def planner_for(
    arm: Arm, base: Forecasts | None, where: Dataset, preset: InventorySettings, *, shelf_life: int, seed: int
) -> Planner:
    """The arm's planner; where it is to be tuned, the one that did best on the calibration period."""
    if not arm.tuned:
        if isinstance(arm.planner, RandomTrajectories):
            return replace(arm.planner, trajectories=preset.trajectories)
        return arm.planner
    assert base is not None
    bare = Mapped(base, dict.fromkeys(range(where.calibrate - 1, where.last), IDENTITY))
    begin = max(where.calibrate, where.first - TUNING_DAYS)
    past = bare.paths(begin, where.first - 1)[..., :1]
    demand = np.nan_to_num(where.sales.demand[:, begin : where.first])
    return tune(arm.tuned, past, demand, shelf_life=shelf_life, seed=seed)


def metrics(season: Season) -> dict[str, float]:
    """The columns of Table 2. Shares are of the units shipped."""
    shipped, wasted, unmet = (int(part.sum()) for part in (season.shipped, season.wasted, season.unmet))
    return {
        "shipped": shipped,
        "wasted": wasted,
        "stockouts": unmet,
        "waste_share": wasted / max(1, shipped),
        "stockout_share": unmet / max(1, shipped),
        "reward": -(wasted + unmet),
    }


def honesty(arm: Mapped, where: Dataset) -> dict[str, float]:
    """How honest an arm's forecasts were on the test days: per lead day, per series, and how sharp."""
    z = arm.record(where.first, where.last)
    pit = normal.cdf(z)
    at, forecasts = arm.on(where.first, where.last)
    rows = arm.base.rows[np.concatenate(at)]
    outcome = rows.units.split([len(some) for some in at])
    score = [crps(one, y) * int((~y.isnan()).sum()) for one, y in zip(forecasts, outcome, strict=True)]
    found = {
        "calibration_loss": calibration_loss(pit),
        "coverage_80": coverage(pit, 0.8),
        "crps": sum(score) / max(1, int((~torch.cat(outcome).isnan()).sum())),
    }
    for lead in range(pit.shape[1]):
        found[f"calibration_loss_day_{lead + 1}"] = calibration_loss(pit[:, lead])
    for percent in (10, 50, 90):
        seen = pit[:, 0][~pit[:, 0].isnan()]
        found[f"below_{percent}_day_1"] = float((seen <= percent / 100).double().mean())
    # By series: the mean distance between nominal and observed shares, over all levels and leads.
    each = [calibration_error(pit[rows.series == i]) for i in np.unique(rows.series)]
    found |= {"series_error_median": float(np.median(each)), "series_error_p90": float(np.quantile(each, 0.9))}
    return found | reliability_metrics(pit)


def play_model(preset: InventorySettings, model: str, seed: int, *, device: str = "cpu") -> Iterator[Row | Kept]:
    """Train a model and play all its arms, for each shelf life; without a model, the arms that need none."""
    where = dataset(preset.data, preset.period, preset.series, preset.days)
    base = expected(where, MODELS[model], preset, seed=seed, device=device) if model else None
    kept: dict[str, NDArray[Any]] = {"series": np.array(where.sales.series), "demand": where.demand.astype(np.float32)}
    for name in preset.arms:
        arm = ARMS[name]
        if arm.model != model:
            continue
        forecasts = with_map(base, arm, where) if base is not None else None
        ahead = forecasts.paths(where.first, where.last) if forecasts is not None else true_paths(where)
        judged = honesty(forecasts, where) if forecasts is not None else {}
        if forecasts is not None and name in REPORTED:
            kept[f"{name}, pit"] = normal.cdf(forecasts.record(where.first, where.last)).numpy().astype(np.float32)
            kept[f"{name}, quantiles"] = _quantiles(forecasts, where)
        for shelf_life in preset.shelf_lives:
            planner = planner_for(arm, base, where, preset, shelf_life=shelf_life, seed=seed)
            season = play(planner, ahead, where.demand, shelf_life=shelf_life, seed=seed, device=device)
            kept[f"{name}, {shelf_life}, reward"] = season.reward
            numbers = metrics(season) | judged | _choice(planner, arm)
            yield Row(
                EXPERIMENT,
                problem_name(preset, shelf_life),
                name,
                seed,
                {key: float(f"{value:.7g}") for key, value in numbers.items()},
                settings=_settings(preset, where, shelf_life),
            )
    yield Kept(kept)


def saving(base: NDArray[Any], other: NDArray[Any], *, draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """How much less `other` costs than `base`, as a share: the mean, and a 95 % interval over series drawn again.

    base, other: rewards (seeds, s) of two arms, as a run keeps them. Series are what there would be others of; seeds
    are averaged first.
    """
    costs = -np.stack([base, other]).astype(np.float64).mean(1)
    picks = np.random.default_rng(seed).integers(costs.shape[1], size=(draws, costs.shape[1]))
    shares = 1 - np.divide(*costs[::-1, picks].sum(-1))
    low, high = np.quantile(shares, [0.025, 0.975])
    return float(1 - costs[1].sum() / costs[0].sum()), float(low), float(high)


def problem_name(preset: InventorySettings, shelf_life: int) -> str:
    """What a shelf life of a problem is called in rows."""
    period = "" if preset.period == "test" else f", {preset.period}"
    return f"{preset.data}{period}, {shelf_life} days"


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
    return Plan(EXPERIMENT, jobs, preset=preset.name, overrides=overrides, draw=_draw, file="inventory.jsonl")


def _draw(out: Path, found: Found) -> None:
    from calibrl.inventory import figures as inventory_figures

    inventory_figures.save(out, found)


def _choice(planner: Planner, arm: Arm) -> dict[str, float]:
    """What was chosen, where the planner was tuned."""
    if not arm.tuned:
        return {}
    return {"tuned_to": float(getattr(planner, "factor", None) or getattr(planner, "quantile", None) or 0.0)}


def _settings(preset: InventorySettings, where: Dataset, shelf_life: int) -> dict[str, Any]:
    dates = where.sales.dates
    found: dict[str, Any] = {
        "data": preset.data,
        "period": preset.period,
        "shelf_life": shelf_life,
        "series": len(where.sales.series),
        "days": where.last - where.first + 1,
        "test": f"{dates[where.first]} to {dates[where.last]}",
    }
    return found | ({"note": where.sales.note} if where.sales.note else {})


def _quantiles(arm: Mapped, where: Dataset) -> NDArray[np.float32]:
    """The 5, 25, 50, 75 and 95 % quantiles one day ahead, (s, d, 5), for pictures."""
    levels_ = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    _, forecasts = arm.on(where.first, where.last)
    found = [one.icdf(levels_[:, None, None].expand(-1, *one.batch_shape))[..., 0].T for one in forecasts]
    return torch.stack(found, 1).clamp(min=0).numpy().astype(np.float32)

"""The arms of a model: train it, learn a season evening by evening as Algorithm 1 has it, and play it.

Seeds are paired: with one seed every arm of a model meets the same network, the same ranks of demand paths, the same
random trajectories and the same draws of which units are sold.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrl.algorithm import Calibrated, Forecaster, learn
from calibrl.diagnostics import calibration_error, calibration_loss, coverage, crps
from calibrl.errors import CalibrlError
from calibrl.evidence import Newest
from calibrl.forecasters.densenet import BayesianDenseNet, DropoutTraining
from calibrl.forecasters.seasonal import SeasonalNaive
from calibrl.inventory.demand import LEADS, Forecasts, features, levels
from calibrl.inventory.loop import Expected, Season, collect_season, demand_paths, play, tune
from calibrl.inventory.policy import PLANNERS, Planner, RandomTrajectories
from calibrl.inventory.problems import Costs, Dataset, Floats, Rules, cut_out, dataset
from calibrl.kernels import normal
from calibrl.maps import fit_named
from calibrl.runs.engine import Arrays
from calibrl.runs.rows import Row, reliability_metrics

if TYPE_CHECKING:
    from calibrl.inventory.experiment import Arm, InventorySettings, Model

TUNING_DAYS = 28
"""Rules of thumb are tuned on so many days before the test."""
REPORTED = ("uncalibrated", "calibrated", "best, uncalibrated", "best")
"""Arms whose PITs are saved for figures."""


def play_model(
    settings: InventorySettings, model: Model | None, arms: Mapping[str, Arm], seed: int
) -> Iterator[Row | Arrays]:
    """Train a model and play its arms, for each shelf life; without a model, arms that need none."""
    where, goods = world(settings)
    base = train(where, model, settings, seed=seed) if model else None
    arrays: dict[str, NDArray[Any]] = {
        "series": np.array(where.sales.series),
        "demand": where.demand.astype(np.float32),
    }
    for name, arm in arms.items():
        test = learn_season(base, arm, where)[where.first - where.calibrate :] if base is not None else []
        ahead = demand_paths(test) if test else true_paths(where)
        quality = forecast_quality(test) if test else {}
        if test and name in REPORTED:
            z = torch.cat([evening.z for evening in test])
            arrays[f"{name}, pit"] = normal.cdf(z).numpy().astype(np.float32)
            arrays[f"{name}, quantiles"] = _quantiles(test)
        for keeps, kinds in goods.items():
            seasons, rewards, tuned = [], np.zeros(len(where.sales.series)), []
            for kind in kinds:
                at = kind.series
                planner = planner_for(arm, base, where, settings, kind=kind, seed=seed)
                season = play(
                    planner, ahead[at], where.demand[at], shelf_life=kind.shelf_life, seed=seed, device=settings.device
                )
                rewards[at] = -kind.costs.waste * season.wasted.sum(1) - kind.costs.unmet * season.unmet.sum(1)
                seasons.append(season)
                tuned += [float(getattr(planner, arm.tuned[0]) or 0.0)] if arm.tuned else []
            arrays[f"{name}, {keeps}, reward"] = rewards
            numbers = metrics(seasons, float(rewards.sum())) | quality
            if tuned:
                numbers["tuned_to"] = float(np.mean(tuned))
            yield Row(
                "inventory",
                problem_name(settings, keeps),
                name,
                seed,
                {key: float(f"{value:.7g}") for key, value in numbers.items()},
                settings=_about(settings, where, keeps),
            )
    yield Arrays(arrays)


@dataclass(frozen=True)
class Goods:
    """Series that keep as long, cost as much and are delivered alike: their indices (k,), and days, costs, rules."""

    series: NDArray[np.int64]
    shelf_life: int
    costs: Costs = field(default_factory=Costs)
    rules: Rules = field(default_factory=Rules)


@functools.lru_cache(maxsize=2)
def world(settings: InventorySettings) -> tuple[Dataset, dict[int | str, list[Goods]]]:
    """The sales of a run; and its kinds of goods by how long they keep, in days, or "items" where a file says."""
    if settings.sales is None:
        where = dataset(settings.data, settings.period, settings.series, settings.days)
    else:
        from calibrl.inventory.files import own_problem
        from calibrl.inventory.tills import Reading
        from calibrl.tables.reader import parse_columns

        reading = Reading(parse_columns(settings.columns), settings.date_format, country=settings.country or "")
        problem, keys = own_problem(settings.sales, reading, period=settings.period)
        where = cut_out(problem, settings.period, settings.series, settings.days)
        if settings.items is not None:
            return where, {"items": _goods(settings.items, keys, where, settings.sales)}
    return where, {days: [Goods(np.arange(len(where.sales.series)), days)] for days in settings.shelf_lives}


def _goods(items: str, keys: Mapping[str, tuple[str, str]], where: Dataset, sales: str) -> list[Goods]:
    """The kinds of goods in an item file. keys: the item and store of each series of the sales file, by name."""
    from calibrl.inventory.files import DAILY, Item, read_items

    rules = dict(zip(keys, read_items(items, tuple(keys.values()), sales=sales).rules, strict=True))
    kinds: dict[Item, list[int]] = {}
    for k, name in enumerate(where.sales.series):
        kinds.setdefault(replace(rules[name], delivery_days=DAILY), []).append(k)
    late = next((item.lead_days for item in kinds if item.lead_days > LEADS), None)
    if late is not None:
        raise CalibrlError(
            f"{items}: lead_days {late} is more than the {LEADS} days that are forecast here; leave such items out, or "
            "order them with calibrl order"
        )
    return [
        Goods(
            np.array(of_kind),
            item.shelf_life,
            Costs(item.cost_of_waste, item.cost_of_lost_sale),
            Rules(item.pack_size, item.minimum_order, item.lead_days),
        )
        for item, of_kind in kinds.items()
    ]


def train(where: Dataset, model: Model, settings: InventorySettings, *, seed: int) -> Forecasts:
    """Train a model on the days before the calibration period and ask it about all evenings after."""
    rows = features(where.sales, model.recipe, LEADS, scale=levels(where.sales, where.sales.dates[where.first]))
    forecaster: Forecaster = SeasonalNaive()
    if model.is_network:
        training = DropoutTraining(**asdict(settings.training), gap=len(where.sales.series) * LEADS)
        forecaster = BayesianDenseNet(
            passes=settings.n_paths, noise=model.noise, training=training, seed=seed, device=settings.device
        )
    forecaster.update(rows.targets_within(where.begin, where.calibrate - 1).data)
    return Forecasts.of(forecaster, rows.decided_for(where.calibrate, where.last), n_paths=settings.n_paths, seed=seed)


def learn_season(base: Forecasts, arm: Arm, where: Dataset) -> list[Expected]:
    """What an arm expected on the evening before each day of the calibration period and the test.

    Demand does not depend on orders: a season is learnt once, and then played with any planner and shelf life.
    """
    days = where.last - where.calibrate + 1
    model: Forecaster = base
    if arm.mapping:
        # The first map is learnt on the evening before the test, and if `every` is None it is the last.
        warm_up = where.first - where.calibrate - 1
        evidence = Newest(arm.window, refit_every=arm.every or days, warm_up=warm_up, taught=True)
        model = Calibrated(base, evidence=evidence, fit_map=fit_named(arm.mapping), judge=base.judge)
    return list(learn(collect_season(base, first=where.calibrate), model, rounds=days))


def planner_for(
    arm: Arm, base: Forecasts | None, where: Dataset, settings: InventorySettings, *, kind: Goods, seed: int
) -> Planner:
    """The arm's planner; where it is to be tuned, the one that did best on the last days before the test."""
    planner = replace(PLANNERS[arm.planner], costs=kind.costs, rules=kind.rules)
    if not arm.tuned or base is None:
        if isinstance(planner, RandomTrajectories):
            return replace(planner, trajectories=settings.trajectories)
        return planner
    name, values = arm.tuned
    begin = max(where.calibrate, where.first - TUNING_DAYS)
    evenings = learn_season(base, replace(arm, mapping=""), where)
    past = demand_paths(evenings[begin - where.calibrate : where.first - where.calibrate])[kind.series]
    past, demand = past[..., : kind.rules.lead_days], where.asked(begin, where.first - 1)[kind.series]
    planners = [replace(planner, **dict[str, Any]({name: value})) for value in values]
    return tune(planners, past, demand, shelf_life=kind.shelf_life, seed=seed)


def true_paths(where: Dataset) -> Floats:
    """What the oracle knows: (s, d, 1, leads)."""
    days = len(where.sales.dates)
    ahead = np.pad(where.asked(0, days - 1), ((0, 0), (0, LEADS)))
    columns = np.arange(where.first, where.last + 1)[:, None] + np.arange(LEADS)
    return ahead[:, np.minimum(columns, days + LEADS - 1)][:, :, None, :]


def metrics(seasons: Sequence[Season], reward: float) -> dict[str, float]:
    """The columns of Table 2, over all kinds of goods. Shares are of the units shipped."""
    shipped, wasted, unmet = (
        sum(int(getattr(season, name).sum()) for season in seasons) for name in ("shipped", "wasted", "unmet")
    )
    return {
        "shipped": shipped,
        "wasted": wasted,
        "stockouts": unmet,
        "waste_share": wasted / max(1, shipped),
        "stockout_share": unmet / max(1, shipped),
        "reward": reward,
    }


def forecast_quality(evenings: Sequence[Expected]) -> dict[str, float]:
    """How well calibrated forecasts were: per lead day, per series, and how sharp."""
    pit = normal.cdf(torch.cat([one.z for one in evenings]))
    series = np.concatenate([one.rows.series for one in evenings])
    outcome = [one.rows.units for one in evenings]
    score = [crps(one.forecast, y) * int((~y.isnan()).sum()) for one, y in zip(evenings, outcome, strict=True)]
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
    each = [calibration_error(pit[series == i]) for i in np.unique(series)]
    found |= {"series_error_median": float(np.median(each)), "series_error_p90": float(np.quantile(each, 0.9))}
    return found | reliability_metrics(pit)


def saving(base: NDArray[Any], other: NDArray[Any], *, draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """How much less `other` costs than `base`, as a share: the mean, and a 95 % interval over series drawn again.

    base, other: rewards (seeds, s) of two arms, as a run saves them. Series are what there would be others of; seeds
    are averaged first.
    """
    costs = -np.stack([base, other]).astype(np.float64).mean(1)
    picks = np.random.default_rng(seed).integers(costs.shape[1], size=(draws, costs.shape[1]))
    shares = 1 - np.divide(*costs[::-1, picks].sum(-1))
    low, high = np.quantile(shares, [0.025, 0.975])
    return float(1 - costs[1].sum() / costs[0].sum()), float(low), float(high)


def problem_name(settings: InventorySettings, keeps: int | str) -> str:
    """What a shelf life of a problem is called in rows."""
    period = "" if settings.period == "test" else f", {settings.period}"
    return f"{settings.source}{period}, {keeps if isinstance(keeps, str) else f'{keeps} days'}"


def _about(settings: InventorySettings, where: Dataset, shelf_life: int | str) -> dict[str, Any]:
    dates = where.sales.dates
    found: dict[str, Any] = {
        "data": settings.source,
        "period": settings.period,
        "shelf_life": shelf_life,
        "series": len(where.sales.series),
        "days": where.last - where.first + 1,
        "test": f"{dates[where.first]} to {dates[where.last]}",
    }
    if settings.sales is not None:
        found |= {"sales": settings.fingerprint} | ({"items": Path(settings.items).name} if settings.items else {})
    return found | ({"note": where.sales.note} if where.sales.note else {})


def _quantiles(evenings: Sequence[Expected]) -> NDArray[np.float32]:
    """The 5, 25, 50, 75 and 95 % quantiles one day ahead, (s, d, 5), for pictures."""
    at = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)[:, None, None]
    found = [one.forecast.icdf(at.expand(-1, *one.forecast.batch_shape))[..., 0].T for one in evenings]
    return torch.stack(found, 1).clamp(min=0).numpy().astype(np.float32)

"""How honest agents' models were on a trajectory they have not yet seen: one step ahead, and many."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calibrl.control import calibration, horizon, luck
from calibrl.control.fleet import Fleet
from calibrl.control.loop import Trial
from calibrl.control.settings import SHARED_OUT, ControlSettings
from calibrl.diagnostics import calibration_loss
from calibrl.maps import Map

Z_95 = 1.6448536269514722


@dataclass(frozen=True, eq=False)
class Score:
    """One agent's score for one trial; all empty where there was no model yet.

    pits: (2, horizons, starts, o) float32, by horizon, under R∘T and under the bare T; None also where no episode was
    long enough. forecast: (n, d, 4) float32, outcomes with the 5 %, 50 % and 95 % quantiles of their forecasts, in the
    environment's units.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    pits: Tensor | None = None
    forecast: Tensor | None = None


@torch.no_grad()
def score_trial(fleet: Fleet, trial: Trial, x: Tensor, y: Tensor, number: int) -> list[Score]:
    """Every agent's score for trial `number`, with its rows x (g, n, k), y (g, n, d), before they are learnt."""
    z, sd = fleet.judge(x, y)
    ahead = pits_by_horizon(fleet, trial, number)
    found = []
    for agent, mapping in enumerate(fleet.maps):
        # Where networks are judged one by one, each row has as many z-scores as there are networks.
        outcome = y[agent].double().cpu().repeat_interleave(z.shape[1] // y.shape[1], 0)
        metrics = calibration.score(z[agent], sd[agent], outcome, mapping)
        pits = ahead[agent]
        if pits is not None:
            for ending, both in zip(("", "_bare"), pits, strict=True):
                for steps, part in zip(horizons_of(fleet.settings), both, strict=True):
                    metrics[f"calibration_loss_ahead_{steps}{ending}"] = calibration_loss(part)
        forecast = quantiles(z[agent], sd[agent], outcome, mapping) * fleet.view.units.cpu()[:, None]
        found.append(Score(metrics, None if pits is None else pits.float(), forecast))
    return found


def quantiles(z: Tensor, sd: Tensor, y: Tensor, mapping: Map) -> Tensor:
    """Outcomes with the 5 %, 50 % and 95 % quantiles of their calibrated forecasts: (n, d, 4) float32."""
    mean = y - z * sd
    levels = [mapping.inverse_z(torch.full_like(z, at)) for at in (-Z_95, 0.0, Z_95)]
    return torch.stack([y, *(mean + sd * level for level in levels)], -1).float()


def horizons_of(preset: ControlSettings) -> tuple[int, ...]:
    """How far ahead forecasts are judged: about as far as plans reach, in trials long enough."""
    return tuple(h for h in horizon.HORIZONS if h <= min(preset.planner.horizon + 5, preset.steps // 2))


def pits_by_horizon(fleet: Fleet, trial: Trial, number: int) -> list[Tensor | None]:
    """Each agent's PITs (2, horizons, starts, o) of what it imagined under the actions taken: under R∘T and under T.

    An agent starts where its own episodes leave room for the furthest horizon: None if none does.
    """
    ahead = horizons_of(fleet.settings)
    own = [horizon.starting_steps(last, max(ahead)) for last in trial.last] if ahead else []
    if not any(len(part) for part in own):
        return [None] * len(fleet)
    # As many starts as if no episode had ended: the luck of an agent is then the same in whatever company. What an
    # agent lacks is filled up with the first step, and left out of the answer.
    starts = torch.zeros(len(own), min(horizon.STARTS, fleet.settings.steps - max(ahead) + 1), dtype=torch.long)
    for row, part in zip(starts, own, strict=True):
        row[: len(part)] = part
    view, device, planner = fleet.view, fleet.device, fleet.settings.planner
    imagined = view.before(trial.observation.to(device))
    following = view.after(trial.next_observation.to(device), trial.reward.to(device), trial.terminated.to(device))
    members = fleet.settings.ensemble.members
    spare = horizon.PARTICLES % members if planner.propagation in SHARED_OUT else 0
    found = [
        horizon.pits_ahead(
            fleet.ensemble.nets,
            view.world,
            imagined,
            trial.action.to(device),
            following,
            starts,
            horizons=ahead,
            propagation=planner.propagation,
            tables=tables,
            generator=torch.Generator().manual_seed(luck.number(0, "horizon", number)),
            particles=horizon.PARTICLES - spare,
        )
        for tables in (fleet.tables(), None)
    ]
    both = torch.stack(found, 1)
    return [pits[:, :, : len(part)] if len(part) else None for pits, part in zip(both, own, strict=True)]

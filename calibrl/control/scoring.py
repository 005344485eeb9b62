"""How honest agents' models were on a trajectory they have not yet seen: one step ahead, and many.

From many moments of a real trajectory the model imagines particles under the actions that were really taken. The
rank of the real observation among the particles is its PIT at that horizon, dimension by dimension. A map of
one-step forecasts cannot promise anything about ten steps; this measures whether it keeps its promise there too.

`claim` is the paper's about control, from rows: does a calibrated agent earn as much with fewer samples? They are
counted to levels between what acting at random earns and the best that the uncalibrated arm reached: with
a level of a half, the environment steps until half of that way was made. Seeds are paired, as arms of one start alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.arrays import off_mps
from calibrl.control.policy import Fleet, stream_seed
from calibrl.control.settings import SHARED_OUT, ControlSettings
from calibrl.control.trials import Trial
from calibrl.data import Data
from calibrl.diagnostics import LEVELS, calibration_loss, coverage, reliability_curve
from calibrl.errors import CalibrlError
from calibrl.evidence import Expected
from calibrl.kernels import normal
from calibrl.maps import IDENTITY, Map, gaussian_law
from calibrl.planning.rollout import Errors, Model, World, imagine, noise_shape
from calibrl.runs.rows import Row

HORIZONS = (1, 2, 5, 10, 20, 30)
STARTS, PARTICLES = 20, 100
REMEMBERED_TRIALS = (1, 2, 3, 5, 10, 15)
"""Trials whose one-step forecasts are kept for the figure of predictions."""
Z_95 = 1.6448536269514722
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Score:
    """One agent's score for one trial; empty where there was no model yet.

    forecast: (n, d, 4) float32, outcomes with the 5 %, 50 % and 95 % quantiles of their forecasts, in the
    environment's units; of the first seed, in `REMEMBERED_TRIALS`.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    forecast: Tensor | None = None


@torch.no_grad()
def score_trial(fleet: Fleet, trial: Trial, data: Data, number: int) -> list[Score]:
    """Every agent's score for trial `number`, with its rows x (g, n, k), y (g, n, d), before they are learnt."""
    z, sd = fleet.forecaster.zscores(data)
    ahead = pits_by_horizon(fleet, trial, number, z)
    found = []
    for agent, mapping in enumerate(fleet.maps):
        # Where networks are judged one by one, each row has as many z-scores as there are networks.
        outcome = data.y[agent].cpu().double().repeat_interleave(z.shape[1] // len(data), 0)
        metrics = score_one_step(z[agent], sd[agent], outcome, mapping)
        both = ahead[agent]
        for ending, found_ahead in () if both is None else zip(("", "_bare"), both, strict=True):
            metrics |= {name + ending: value for name, value in score_ahead(found_ahead, fleet.settings).items()}
        forecast = None
        if number in REMEMBERED_TRIALS and fleet.members[agent].seed == fleet.settings.seed:
            forecast = quantiles(z[agent], sd[agent], outcome, mapping) * fleet.view.units.cpu()[:, None]
        found.append(Score(metrics, forecast))
    return found


def quantiles(z: Tensor, sd: Tensor, y: Tensor, mapping: Map) -> Tensor:
    """Outcomes with the 5 %, 50 % and 95 % quantiles of their calibrated forecasts: (n, d, 4) float32."""
    mean = y - z * sd
    levels = [mapping.inverse_z(torch.full_like(z, at)) for at in (-Z_95, 0.0, Z_95)]
    return torch.stack([y, *(mean + sd * level for level in levels)], -1).float()


def score_one_step(z: Tensor, sd: Tensor, y: Tensor, mapping: Map) -> dict[str, float]:
    """How honest R∘T was on rows it had never seen, beside the bare T: numbers ending in _bare.

    z, sd: (n, d) of the bare forecast; y: (n, d). CRPS is in units of each dimension's own standard deviation.
    """
    scale = y.double().std(0)
    scale = torch.where(scale > 0, scale, 1.0)
    found: dict[str, float] = {}
    for ending, one in (("", mapping), ("_bare", IDENTITY)):
        if ending and one is mapping:
            return found | {name + ending: value for name, value in found.items()}
        moved = one.forward_z(z)
        pits = normal.cdf(moved)
        crps = sd * gaussian_law(one, z.device).crps(z, moved) / scale
        observed = reliability_curve(pits).observed.mean(1)
        found[f"calibration_loss{ending}"] = calibration_loss(pits)
        found[f"coverage_90{ending}"] = coverage(pits, 0.9)
        found[f"crps{ending}"] = float(crps.mean())
        for level, share in zip(LEVELS, observed.tolist(), strict=True):
            found[f"reliability_{round(100 * level):02d}{ending}"] = share
    return found


# Many steps ahead.


def horizons_of(preset: ControlSettings) -> tuple[int, ...]:
    """How far ahead forecasts are judged: about as far as plans reach, in trials long enough."""
    return tuple(h for h in HORIZONS if h <= min(preset.planner.horizon + 5, preset.steps // 2))


class Ahead(NamedTuple):
    """What was imagined under the actions taken, h steps after each of m starts, beside what happened.

    pits: (…, horizons, m, o), of observations. return_pits, imagined, realised: (…, horizons, m), of the summed reward
    until then: its PITs, its imagined mean, and what it was.
    """

    pits: Tensor
    return_pits: Tensor
    imagined: Tensor
    realised: Tensor


def score_ahead(ahead: Ahead, settings: ControlSettings) -> dict[str, float]:
    """How honest one agent's rollouts were, by horizon; and of returns, as far ahead as plans reach."""
    found: dict[str, float] = {}
    horizons = horizons_of(settings)
    # `calibration_loss` of each horizon, from one curve: asked one by one, they would take most of the time of scoring.
    curve = reliability_curve(ahead.pits.movedim(0, 1).flatten(1))
    losses = (curve.observed - curve.level[:, None]).square().sum(0).unflatten(0, (len(horizons), -1)).mean(1)
    for steps, part, loss in zip(horizons, ahead.pits, losses.tolist(), strict=True):
        found[f"calibration_loss_ahead_{steps}"] = loss
        found[f"coverage_90_ahead_{steps}"] = coverage(part.flatten(), 0.9)
    last = sum(steps <= settings.planner.horizon for steps in horizons) - 1
    found["return_coverage_90"] = coverage(ahead.return_pits[last], 0.9)
    found["return_imagined"], found["return_realised"] = (
        float(part[last].mean()) for part in (ahead.imagined, ahead.realised)
    )
    return found


def pits_by_horizon(fleet: Fleet, trial: Trial, number: int, z: Tensor) -> list[tuple[Ahead, Ahead] | None]:
    """What each agent imagined under the actions taken, beside what happened: under R∘T and under T.

    An agent starts where its own episodes leave room for the furthest horizon: None if none does. z: z-scores of the
    trial's steps, (g, T, d) or (g, T · e, d).
    """
    ahead = horizons_of(fleet.settings)
    own = [starting_steps(last, max(ahead)) for last in trial.last] if ahead else []
    if not any(len(part) for part in own):
        return [None] * len(fleet)
    # As many starts as if no episode had ended: what an agent draws is then the same whoever is beside it. What an
    # agent lacks is filled up with the first step, and left out of the answer.
    starts = torch.zeros(len(own), min(STARTS, fleet.settings.steps - max(ahead) + 1), dtype=torch.long)
    for row, part in zip(starts, own, strict=True):
        row[: len(part)] = part
    view, device, planner = fleet.view, fleet.device, fleet.settings.planner
    imagined = view.before(trial.observation.to(device))
    following = view.after(trial.next_observation.to(device), trial.reward.to(device), trial.terminated.to(device))
    members = fleet.settings.ensemble.members
    spare = PARTICLES % members if planner.propagation in SHARED_OUT else 0
    particles, errors = PARTICLES - spare, None
    if fleet.following is not None:
        # Imagined errors go on from those seen until then, as when plans were made.
        whole = fleet.following.along(z, trial.last)
        expected = Expected(*(part[torch.arange(len(starts))[:, None], starts] for part in whole))
        errors = fleet.following.ahead(expected, max(ahead), particles)
    ways = ((fleet.tables(), errors), (None, None))
    mapped, bare = (
        pits_ahead(
            fleet.ensemble.nets,
            view.world,
            imagined,
            trial.action.to(device),
            following,
            starts,
            horizons=ahead,
            propagation=planner.propagation,
            tables=tables,
            errors=errors,
            generator=torch.Generator().manual_seed(stream_seed(0, "horizon", number)),
            particles=particles,
        )
        for tables, errors in ways
    )

    def of(ahead: Ahead, agent: int) -> Ahead:
        return Ahead(*(part[agent, :, : len(own[agent])] for part in ahead))

    return [(of(mapped, agent), of(bare, agent)) if len(part) else None for agent, part in enumerate(own)]


def starting_steps(last: Tensor, ahead: int, starts: int = STARTS) -> Tensor:
    """At most `starts` steps, evenly spread, from which `ahead` steps of one episode follow: (m,).

    last: (T,), where an episode ends.
    """
    steps = len(last)
    end = torch.full((steps,), steps)
    for at in reversed(last.nonzero()[:, 0].tolist()):
        end[: at + 1] = at + 1
    able = (torch.arange(steps) + ahead <= end).nonzero()[:, 0]
    if len(able) <= starts:
        return able
    return able[torch.linspace(0, len(able) - 1, starts).round().long()]


def pits_ahead(
    nets: Model,
    world: World,
    imagined: Tensor,
    action: Tensor,
    following: Tensor,
    start: Tensor,
    *,
    horizons: Sequence[int],
    propagation: str,
    tables: Tensor | None,
    generator: torch.Generator,
    particles: int = PARTICLES,
    errors: Errors | None = None,
) -> Ahead:
    """What was imagined of h steps after each of m starts, and what happened: (g, horizons, m, …).

    imagined, following: (g, T, o), observations before and after each step, as the world imagines them; action:
    (g, T, a); start: (g, m), or (m,), the same for all agents. Ranks are randomised between their neighbours, so that a
    calibrated forecast's PITs are uniform whatever the number of particles.
    """
    furthest = max(horizons)
    if int(start.max()) + furthest > imagined.shape[1]:
        raise CalibrlError(f"{furthest} steps from step {int(start.max())} go beyond the {imagined.shape[1]} recorded")
    start = start.expand(len(imagined), -1)
    agent, window = torch.arange(len(imagined))[:, None], start[:, :, None] + torch.arange(furthest)
    plans, real = action[agent[:, None], window], following[agent[:, None], window]
    g, m = plans.shape[:2]
    d = int(world.target(imagined[0, :1], imagined[0, :1]).shape[-1])
    shape = noise_shape(propagation, agents=1, horizon=furthest, plans=m, particles=particles, outputs=d)
    # The same draws for every agent: arms are compared under them.
    noise = torch.randn(shape, generator=generator).to(imagined.device).expand(g, *shape[1:])
    sizes = (real.shape[-1], 1)
    jitter = torch.cat([torch.rand(len(horizons), m, k, generator=generator, dtype=torch.float64) for k in sizes], -1)
    found: list[tuple[Tensor, ...]] = []
    reward = world.reward
    assert reward is not None
    before = imagined[agent[:, None], window]
    realised = off_mps(reward(before, plans, real)).double().cumsum(2).cpu()
    earned = plans.new_zeros(g, m, 1)  # as many as there are particles from the first step on
    steps = imagine(
        nets,
        world,
        imagined[agent, start],
        plans,
        propagation=propagation,
        particles=particles,
        noise=noise,
        tables=tables,
        errors=errors,
    )
    for ahead, step in enumerate(steps, start=1):
        earned = earned + reward(*step)
        if ahead in horizons:
            came, value = real[:, :, ahead - 1], realised[:, :, ahead - 1]
            drawn = off_mps(torch.cat([step.after, earned[..., None]], -1)).double()
            outcome = torch.cat([came.to(drawn), value[..., None].to(drawn)], -1)[:, :, None]
            below, level = ((drawn < outcome).double().sum(2).cpu(), (drawn == outcome).double().sum(2).cpu())
            pits = (below + jitter[len(found)] * (level + 1)) / (drawn.shape[2] + 1)
            found.append((pits[..., :-1], pits[..., -1], drawn[..., -1].mean(2).cpu(), value))
    return Ahead(*(torch.stack(part, 1) for part in zip(*found, strict=True)))


WAYS = (0.5, 0.75, 0.95)
"""Levels, as shares of the way from random to the uncalibrated arm's best."""


@dataclass(frozen=True)
class Samples:
    """Environment steps until the best return so far is at a level: of paired seeds, in two arms.

    arm, other: (n,), NaN where never. last: the last step that all seeds made.
    """

    level: float
    arm: Floats
    other: Floats
    last: int

    @property
    def both(self) -> NDArray[np.bool_]:
        """Seeds of which both arms got there."""
        return np.isfinite(self.arm) & np.isfinite(self.other)

    @property
    def reached(self) -> tuple[int, int]:
        """How many seeds of each arm got there."""
        return int(np.isfinite(self.arm).sum()), int(np.isfinite(self.other).sum())

    @property
    def saved(self) -> Floats:
        """Steps that the first arm saved, for each seed of which both got there."""
        return (self.other - self.arm)[self.both]

    @property
    def ratio_of_sums(self) -> float:
        """Steps the first arm needed for each of the other's, over seeds of which both got there."""
        both = self.both
        return float(self.arm[both].sum() / self.other[both].sum()) if both.any() else float("nan")

    @property
    def log_ratio(self) -> Floats:
        """Of each seed of which at least one arm got there: the logarithm of the first arm's steps over the other's.

        An arm that did not get there counts as if it had at its last step, which can only bring the ratio nearer to 1.
        """
        either = np.isfinite(self.arm) | np.isfinite(self.other)
        mine, theirs = (np.where(np.isfinite(part), part, self.last)[either] for part in (self.arm, self.other))
        return np.log(mine / theirs)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The geometric mean of those ratios, and its 95 % interval by Student's t; NaN for fewer than two."""
        logs, count = self.log_ratio, len(self.log_ratio)
        if not count:
            return math.nan, math.nan, math.nan
        from scipy.special import stdtrit

        mean = float(logs.mean())
        reach = float(stdtrit(count - 1, 0.975) * logs.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
        return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


@dataclass(frozen=True)
class Claim:
    """Two arms of one preset on the trials that all their common seeds have made.

    seeds, trials: how many (the random one not counted); gain: calibrated − uncalibrated return, averaged over those
    trials, for each seed (n,); way: from what acting at random earns to the uncalibrated arm's best; samples: to each
    level, none where there was no way to go.
    """

    seeds: int
    trials: int
    gain: Floats
    way: float
    samples: tuple[Samples, ...]


def claim(rows: Sequence[Row], ways: Sequence[float] = WAYS) -> Claim | None:
    """Compare the two arms of one preset; None where they share no seed that has learnt anything."""
    arm, other = "calibrated", "uncalibrated"
    found = _paired(rows, arm, other)
    if found is None:
        return None
    steps, both = found
    curves = dict(zip((arm, other), both, strict=True))
    random = curves[other][:, 0].mean()
    whole = float(curves[other].max(1).mean() - random)
    levels = [random + way * whole for way in ways] if whole > 0 else []
    samples = tuple(_samples(level, found) for level in levels)
    return Claim(len(both[0]), len(steps) - 1, (curves[arm] - curves[other])[:, 1:].mean(1), whole, samples)


ENDPOINTS = {"halfcheetah": 3000.0, "cartpole": 150.0, "pusher": -90.0, "reacher": -300.0}
"""Returns, by task, to which samples are counted: fixed before the rows that are judged by them were made."""
PAIRS = (("released", "released-control"), ("calibrated", "uncalibrated"), ("calibrated-trajectory", "uncalibrated"))
"""Arms that are compared so."""


def endpoint(rows: Sequence[Row], level: float, arm: str, other: str) -> Samples | None:
    """Compare two arms on the trials that all their common seeds have made; None where they share none.

    Parameters
    ----------
    rows : sequence of Row
        Of one preset.
    level : float
        The return.
    arm, other : str
        The ratio is arm's steps over the other's: below 1, arm needs fewer.

    Returns
    -------
    Samples or None
    """
    found = _paired(rows, arm, other)
    return None if found is None else _samples(level, found)


def _samples(level: float, paired: tuple[list[int], tuple[Floats, Floats]]) -> Samples:
    steps, curves = paired
    mine, theirs = (_first(curve, level, np.array(steps, float)) for curve in curves)
    return Samples(level, mine, theirs, steps[-1])


def _paired(rows: Sequence[Row], arm: str, other: str) -> tuple[list[int], tuple[Floats, Floats]] | None:
    """Steps that all common seeds of two arms have made (T,), and their returns (n, T) of each arm."""
    returns = {name: _returns(rows, name) for name in (arm, other)}
    seeds = sorted(set(returns[arm]) & set(returns[other]))
    steps = sorted(set.intersection(*(set(returns[name][seed]) for name in returns for seed in seeds))) if seeds else []
    if len(steps) < 2:
        return None
    mine, theirs = (np.array([[returns[name][seed][at] for at in steps] for seed in seeds]) for name in (arm, other))
    return steps, (mine, theirs)


def decimals(size: float) -> int:
    """Digits after the point with which numbers of this size show three digits."""
    return max(0, 2 - math.floor(math.log10(size))) if 0 < size < math.inf else 0


def _returns(rows: Sequence[Row], arm: str) -> dict[int, dict[int, float]]:
    """{seed: {step: return}}."""
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        if row.arm == arm and "return" in row.metrics:
            found.setdefault(row.seed, {})[row.step] = row.metrics["return"]
    return found


def _first(curves: Floats, level: float, at: Floats) -> Floats:
    """The step at which each curve (n, T) is first at the level: (n,)."""
    there = curves >= level
    return np.where(there.any(1), at[there.argmax(1)], np.nan)

"""The paper's "Extensions to Safety": is a 90 % that a planner relies on kept nine times in ten?

An agent learns a world's dynamics from a few random episodes, plans a path that its model holds to be safe
with 90 %, and carries it out without looking again. Arms differ in whose 90 % they believe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from calibrl.planning.search import CEM
from calibrl.runs.experiment import Axis, Experiment, Job, Metric
from calibrl.runs.settings import setting

if TYPE_CHECKING:
    from calibrl.runs.engine import Found

SEARCH = CEM(population_size=64, elites=8, iterations=3, keep_best=True)


@dataclass(frozen=True)
class SafetySettings:
    """How much to run: random episodes to learn from (each as long as a plan), practice plans, plans to judge."""

    name: str
    seeds: int = setting(help="paired seeds", least=1, decides_rows=False)
    episodes: tuple[int, ...] = setting((9,), help="random episodes to learn from, each as long as a plan")
    practice: int = setting(30, help="plans executed beforehand, on which the 90 % is corrected", least=1)
    plans: int = setting(10, help="plans to test, per arm", least=1)
    repeats: int = setting(200, help="executions of each plan, to see how often it fails", least=1)
    particles: int = setting(64, help="imagined futures per plan", least=2)
    search: CEM = setting(SEARCH, help="how plans are searched for")
    seed: int = setting(0, help="the first seed", least=0, decides_rows=False)


def _jobs(settings: SafetySettings) -> Sequence[Job]:
    """One job for each world, amount of experience and seed; its arms are paired. And one for the figure of paths."""
    from calibrl.safety.problems import EXAMPLE, WORLDS, example_job, seed_job

    triples = product(range(settings.seed, settings.seed + settings.seeds), WORLDS, settings.episodes)
    jobs = (
        Job(f"{world}, {episodes} episodes, seed {seed}", seed_job, (world, settings, episodes, seed))
        for seed, world, episodes in triples
    )
    return [*jobs, Job(EXAMPLE, example_job, (settings, settings.seed))]


def _draw(out: Path, _: SafetySettings, found: Found) -> None:
    from calibrl.safety import figures

    figures.save(out, found)


def _worlds() -> Mapping[str, str]:
    from calibrl.safety.problems import WORLDS

    return {name: (type(world).__doc__ or "").splitlines()[0].rstrip(".") for name, world in WORLDS.items()}


QUICK, FULL = SafetySettings("quick", seeds=5), SafetySettings("full", seeds=20, episodes=(6, 9, 12))
TINY = SafetySettings(
    "tiny",
    seeds=2,
    practice=10,
    plans=2,
    repeats=30,
    particles=20,
    search=CEM(population_size=20, elites=4, iterations=2, keep_best=True),
)

EXPERIMENT = Experiment(
    name="safety",
    title="Safety: does 90 % safe mean safe nine times in ten?",
    question=(
        "An agent plans a path that is safe with 90 % probability according to its model, and executes it. How "
        "often does it leave the safe set? The over-confident arm trusts its uncalibrated model, the calibrated "
        "arm R∘T; two more correct R∘T on practice plans, with a map or with conformal ranks; the truth arm knows "
        "the real dynamics."
    ),
    baseline="over-confident",
    metrics={
        "violations": Metric(
            "left the safe set",
            ".1%",
            "lower",
            "the share of executed plans that broke the constraint; at most 10 % was asked for",
        ),
        "expected_violations": Metric(
            "the model expected", ".1%", help="the share that the model itself expected to break it"
        ),
        "return": Metric("return", ".3f", "higher", "the mean return of the executed plans"),
    },
    along=Axis("episodes", "episodes of experience", ("world",)),
    subject="conformal",
    live=("safety-rates",),
    figures={
        "safety-rates": (
            "How often plans left the safe set, and what they earned, by amount of experience: mean over seeds and "
            "its standard error"
        ),
        "safety-paths": (
            "One plan under each model, executed many times from the dot to the star; paths that hit the disc are "
            "red. A plan is allowed to hit it in 10 % of its paths"
        ),
    },
    presets={preset.name: preset for preset in (QUICK, FULL, TINY)},
    default="quick",
    small=QUICK,
    full=FULL,
    jobs=_jobs,
    draw=_draw,
    names={"worlds": ("of calibrl run safety", _worlds)},
)

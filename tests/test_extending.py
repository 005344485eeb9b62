"""One of each, added from outside as `docs/design.md` shows it: a map, a planner, a policy, a task, an experiment."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calibrl import maps
from calibrl.bandits.loop import paired_trials
from calibrl.bandits.policy import POLICIES, RidgePolicy
from calibrl.cli import app
from calibrl.control import Agent
from calibrl.control import settings as control_settings
from calibrl.control.problems import task
from calibrl.control.settings import PlannerSettings
from calibrl.maps import Affine, fit_named
from calibrl.planning import search
from calibrl.planning.quantile import Exploration
from calibrl.planning.search import Bounds, Found, Search
from calibrl.runs import experiment as registry
from calibrl.runs.experiment import Experiment, Job, Metric
from calibrl.runs.rows import Row, read
from calibrl.runs.settings import setting


def shell(*words):
    found = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, words)))
    assert found.exit_code == 0, found.output
    return found.output


def fit_median(pit=None, *, weight=None, z=None):
    """Move the median only."""
    scores = torch.special.ndtri(torch.as_tensor(pit)) if z is None else torch.as_tensor(z)
    return Affine(shift=-scores.nanmedian())


def test_a_map(monkeypatch, tmp_path):
    monkeypatch.setitem(maps.MAPS, "median", fit_median)
    assert fit_named("median") is fit_median
    assert control_settings.CalibrationSettings(map="median").map == "median"
    rng = np.random.default_rng(0)
    rows = "\n".join(f"{y:.6f},0,1" for y in rng.normal(1.0, 1.0, 300))
    (tmp_path / "past.csv").write_text(f"y,mean,std\n{rows}\n", encoding="utf-8")
    shell("fit", tmp_path / "past.csv", "--method", "median", "--out", tmp_path / "map.json")
    saved = json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))
    assert saved["method"] == "median"


@dataclass(frozen=True, kw_only=True)
class Still(Search):
    """The plan to begin with: it does not search at all."""

    name: ClassVar[str] = "still"
    uniform: ClassVar[bool] = True

    def _search(self, task):
        return Found(task.start, task.shifted(task.start), task.elites)


def test_a_planner(monkeypatch):
    monkeypatch.setitem(search.SEARCHES, "still", Still)
    bounds = Bounds(torch.tensor([-1.0]), torch.tensor([3.0]), horizon=2)
    assert Still().search(lambda plans: plans.sum((1, 2)), bounds).plan.tolist() == [[1.0], [1.0]]
    assert isinstance(PlannerSettings(method="still").search, Still)


def test_a_policy():
    try:

        class Cautious(RidgePolicy, name="cautious", color="#444444"):
            """The arm whose pessimistic quantile is highest."""

            def __init__(self, arms, dim, *, seed=0, **settings):
                super().__init__(arms, dim, Exploration(level=-1.0), seed=seed, **settings)

        assert isinstance(Cautious(3, 2), RidgePolicy)
        trial = paired_trials("linear", 0, rounds=50, policies=["cautious", "linucb"])["cautious"]
        assert trial.reward.shape == (50,)
        assert "cautious" in json.loads(shell("list", "policies", "--json"))["policies"]
    finally:
        POLICIES.pop("cautious", None)


def test_a_task(monkeypatch):
    """Cartpole with trials half as long, as a task of its own: an entry among the tasks, and its line."""
    from calibrl.control import envs as tasks

    short = replace(tasks.CARTPOLE, name="short-cartpole", steps=100, solved=None)
    monkeypatch.setitem(tasks.MUJOCO_TASKS, "short-cartpole", short)
    monkeypatch.setitem(control_settings.TASKS, "short-cartpole", "swing up in half the time")
    task.cache_clear()
    try:
        agent = Agent(task("short-cartpole"))
        assert agent.task.steps == 100
        assert agent.act(np.zeros(agent.task.observation_size)).shape == (agent.task.action_size,)
        assert "short-cartpole" in json.loads(shell("list", "tasks", "--json"))["tasks"]
    finally:
        task.cache_clear()


@dataclass(frozen=True)
class CoinSettings:
    """How often coins are flipped."""

    name: str
    flips: int = setting(20, help="how often a coin is flipped")
    seeds: int = setting(2, help="how many coins", decides_rows=False)


def flip(seed, flips):
    for arm, chance in (("fair", 0.5), ("bent", 0.8)):
        heads = np.random.default_rng(seed).random(flips) < chance
        yield Row("coins", "coin", arm, seed, {"heads": float(heads.mean())})


def coin_jobs(settings):
    return [Job(f"coin {seed}", flip, (seed, settings.flips)) for seed in range(settings.seeds)]


SMALL = CoinSettings("small")
EXPERIMENT = Experiment(
    name="coins",
    title="Coins",
    question="Are they fair?",
    baseline="fair",
    metrics={"heads": Metric("heads", ".0%")},
    presets={"small": SMALL, "large": replace(SMALL, name="large", flips=1000)},
    default="small",
    small=SMALL,
    jobs=coin_jobs,
)


@pytest.fixture
def coins(monkeypatch):
    monkeypatch.setitem(registry.EXPERIMENTS, "coins", f"{__name__}:EXPERIMENT")


@pytest.mark.usefixtures("coins")
def test_an_experiment(tmp_path):
    output = shell("run", "coins", "--flips", 50, "--seeds", 3, "--out", tmp_path)
    assert "heads" in output
    rows = read(tmp_path)
    assert len(rows) == 6
    assert {row.overrides["flips"] for row in rows} == {50}
    assert "how often a coin is flipped" in shell("run", "coins", "--help").lower()
    assert "Coins" in shell("list", "experiments")
    assert "coins/large" in shell("list", "presets")
    assert "1000" in shell("show", "coins/large")
    assert "Coins" in shell("summary", tmp_path)
    shell("report", tmp_path)
    assert "Are they fair?" in next(tmp_path.glob("*.html")).read_text(encoding="utf-8")

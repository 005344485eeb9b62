"""The control command: presets, one field changed, any environment, bad input, figures."""

import itertools
import re
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from typer.testing import CliRunner

from calibrl.cli import app
from calibrl.control.experiment import EXPERIMENT
from calibrl.control.figures import curve, print_outcome
from calibrl.control.loop import jobs
from calibrl.control.problems import task_of
from calibrl.control.settings import PRESETS, PUBLISHED, preset_for_env
from calibrl.control.trials import run_trial
from calibrl.errors import CalibrlError
from calibrl.runs.engine import run
from calibrl.runs.rows import Row, read
from calibrl.runs.settings import changed as with_changes
from calibrl.runs.settings import parse_changes

SMALL = ["--set", "steps=14", "--trials", "2", "--no-video"]
overrides, preset = EXPERIMENT.overrides, EXPERIMENT.preset


def changed(settings, words):
    return with_changes(settings, parse_changes(settings, words))


class Short(gymnasium.Env):
    """Ends when a point leaves ±1; pays 1 a step: the reward must be learnt, and so must the end."""

    observation_space = Box(-np.inf, np.inf, (1,))
    action_space = Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-0.1, 0.1, 1).astype(np.float32)
        return self.x, {}

    def step(self, action):
        self.x = (self.x + 0.3 * np.asarray(action)).astype(np.float32)
        return self.x, 1.0, bool(abs(self.x[0]) > 1), False, {}


class Broken(Short):
    def step(self, action):
        return np.full(1, np.nan, np.float32), 0.0, False, False, {}


class Five(Short):
    """Over after five steps."""

    def reset(self, *, seed=None, options=None):
        self.left = 5
        return super().reset(seed=seed)

    def step(self, action):
        self.left -= 1
        return (*super().step(action)[:2], self.left == 0, False, {})


gymnasium.register("calibrl-tests/Five-v0", Five, max_episode_steps=50)
gymnasium.register("calibrl-tests/Short-v0", Short, max_episode_steps=50)
gymnasium.register("calibrl-tests/Broken-v0", Broken, max_episode_steps=50)


def call(*words):
    return CliRunner().invoke(app, ["run", "control", *map(str, words)])


def test_force_keeps_the_run_if_the_new_one_cannot_begin(tmp_path):
    out = tmp_path / "run"
    assert call("--preset", "tiny", *SMALL, "--out", out).exit_code == 0
    before = (out / "rows.jsonl").read_bytes()
    assert call("--env", "calibrl-tests/Broken-v0", *SMALL, "--out", out, "--force").exit_code == 1
    assert (out / "rows.jsonl").read_bytes() == before
    assert list((out / "checkpoint").glob("*.pt"))


def test_a_run_that_is_stopped_says_what_is_kept(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrl.control.loop.collect", stop)
    stopped = call("--preset", "tiny", *SMALL, "--out", tmp_path)
    assert stopped.exit_code == 130
    assert "the same command with --resume goes on" in stopped.output


def test_the_command_runs_resumes_and_draws(tmp_path):
    out = tmp_path / "run"
    first = call("--preset", "tiny", *SMALL, "--out", out, "--arms", "calibrated,uncalibrated,uncalibrated-all")
    assert first.exit_code == 0, first.output
    assert "uncalibrated-all" in first.output
    rows = read(out / "rows.jsonl")
    assert len(rows) == 9
    drawn = {path.name: path.stat().st_size for path in out.glob("*.png")}
    assert set(drawn) == {
        "control-learning.png",
        "control-calibration.png",
        "control-horizon.png",
        "control-predictions.png",
    }
    again = call("--preset", "tiny", *SMALL, "--out", out, "--resume", "--arms", "calibrated,uncalibrated")
    assert again.exit_code == 0, again.output
    assert len(read(out / "rows.jsonl")) == 9
    refused = call("--preset", "tiny", *SMALL, "--out", out)
    assert isinstance(refused.exception, CalibrlError)
    assert "holds rows of this run already; --resume to go on" in str(refused.exception)


def test_times_are_exact_however_long_the_machine_has_been_up(tmp_path, monkeypatch):
    ticks = itertools.count()
    clock = types.SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: 1e7 + 0.25 * next(ticks) ** 2)
    monkeypatch.setattr("calibrl.control.loop.time", clock)
    words = ["steps=4", "trials=1", "arms=calibrated", "video=false"]
    rows = run(EXPERIMENT, changed(preset("tiny"), words), tmp_path).rows
    times = [[row.metrics[name] for name in ("acting_s", "scoring_s", "training_s")] for row in rows]
    assert times == [[0.25, 0.75, 1.25], [2.25, 2.75, 3.25]]


def test_a_video_of_the_best_trial(tmp_path):
    from PIL import Image

    done = call("--preset", "tiny", "--set", "steps=8", "--trials", 1, "--out", tmp_path, "--arms", "calibrated")
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "control-calibrated.gif") as animation:
        assert animation.n_frames >= 3


@pytest.mark.usefixtures("blank_figures")
def test_any_environment_with_a_learnt_reward_and_an_end(tmp_path):
    small = ["--set", "ensemble.epochs=1", "--set", "planner.horizon=3", "--set", "planner.population_size=8"]
    done = call("--env", "calibrl-tests/Short-v0", *SMALL, *small, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    rows = read(tmp_path / "rows.jsonl")
    assert {row.problem for row in rows} == {"calibrl-tests/Short-v0"}
    # A trial has as many rows as any other, however often it begins anew.
    assert [row.step for row in rows if row.arm == "calibrated"] == [14, 28, 42]
    assert all(row.metrics["return"] > 0 for row in rows)


def test_episodes_that_end_begin_again_and_returns_are_by_episode():
    class Always:
        begun = 0

        def begin(self, agents):
            self.begun += len(agents)

        def act(self, observation):
            return torch.ones(len(observation), 1)

    env, actor = Short(), Always()
    trial = run_trial(actor, [env], steps=10, seeds=[0])
    # It takes 3 or 4 steps of 0.3 to leave ±1 from within ±0.1.
    assert trial.terminated.sum() in (2, 3)
    assert actor.begun == trial.terminated.sum() + (not bool(trial.terminated[0, -1]))
    assert 3 <= trial.returns[0] <= 4
    assert bool(trial.last[0, -1])
    lengths = [part.stop - part.start for part in trial.episodes(0)]
    assert sum(lengths) == 10


def test_diverging_physics_is_named(tmp_path):
    refused = call("--env", "calibrl-tests/Broken-v0", *SMALL, "--out", tmp_path)
    assert isinstance(refused.exception, CalibrlError)
    assert "nan" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "cartpol"], r"preset 'cartpol' is unknown; known: cartpole, halfcheetah"),
        (["--env", "Nowhere-v0"], r"environment 'Nowhere-v0' is unknown"),
        (["--env", "FrozenLake-v1"], r"observes one of 16 choices"),
        (
            ["--preset", "tiny", "--set", "ensemble.member=3"],
            r"no such field; write one of steps, trials.*ensemble\.members",
        ),
        (["--preset", "tiny", "--set", "ensemble.members=many"], r"is not a whole number"),
        (["--preset", "tiny", "--set", "ensemble.members=0"], r"use 1 or more"),
        (["--preset", "tiny", "--set", "calibration.block=30"], r"all or nothing of a trial of 30 steps; use less"),
        (["--preset", "tiny", "--set", "planner.method=cma"], r"known: cem, icem, mppi, random"),
        (["--preset", "tiny", "--map", "linear"], r"map 'linear' is unknown; use one of auto, smooth"),
        (["--preset", "tiny", "--arms", "calibrated,other"], r"arm 'other' is unknown; known: "),
        (["--preset", "tiny", "--agent", "dqn"], r"--agent 'dqn' is unknown; use model or sac"),
        (["--preset", "tiny", "--env", "Pendulum-v1"], r"--preset tiny and --env Pendulum-v1 are two things; give one"),
        (["--preset", "tiny", "--reward", "nothing"], r"is not module:function"),
        (["--preset", "tiny", "--reward", "math:nothing"], r"has no function nothing"),
        (["--preset", "tiny", "--reward", "torch:add"], r"the reward function (failed|gave)"),
        (["--preset", "tiny", "--device", "tpu"], r"device 'tpu' is unknown; use cpu, cuda"),
        (["--preset", "tiny", "--set", "steps=1"], r"steps 1 leaves no row to hold out; use 2 or more"),
        (["--preset", "tiny", "--set", "steps=1", "--backend", "serial"], r"steps 1 leaves no row"),
        (["--preset", "tiny", "--set", "arms="], r"no arm was named; give one or more, like arms=calibrated"),
        (["--preset", "tiny", "--set", "planner.propagation=TS1"], r"3 cannot be shared out evenly among 2 networks"),
        (["--preset", "tiny", "--set", "planner.momentum=1"], r"planner\.momentum 1\.0 is not in"),
        (["--preset", "tiny", "--set", "planner.iterations=0"], r"planner\.iterations 0 is too few"),
        (["--preset", "tiny", "--set", "planner.temperature=nan"], r"planner\.temperature nan is not above 0"),
        (["--preset", "tiny", "--set", "planner.temperature=inf"], r"planner\.temperature inf is not above 0"),
        (
            ["--preset", "tiny", "--set", "planner.noise_exponent=nan"],
            r"planner\.noise_exponent nan is not",
        ),
        (["--preset", "tiny", "--set", "planner.min_variance=-1"], r"min_variance -1\.0 is not"),
        (["--preset", "tiny", "--set", "ensemble.lr=nan"], r"ensemble\.lr nan is not above 0"),
        (
            ["--preset", "tiny", "--set", "ensemble.weight_decay=-1"],
            r"ensemble\.weight_decay -1\.0 is not 0 or",
        ),
        (["--preset", "tiny", "--backend", "serial", "--reward", "math:nothing"], r"has no function nothing"),
        (["--preset", "tiny", "--resume", "--force"], r"goes on with a run and --force replaces it"),
        (["--preset", "tiny", "--agent", "sac", "--light"], r"--light is for agents that plan; leave it out"),
        (["--preset", "tiny", "--agent", "sac", "--reward", "math:sin"], r"--reward math:sin judges plans, and SAC"),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, message):
    refused = call(*words, "--out", tmp_path / "out")
    assert refused.exit_code
    assert isinstance(refused.exception, CalibrlError)
    text = str(refused.exception)
    assert "\n" not in text
    assert __import__("re").search(message, text), text
    assert not (tmp_path / "out").exists()


def test_published_settings():
    work = {}
    for one in PUBLISHED:
        assert len(one.ensemble.weight_decay) == len(one.ensemble.hidden) + 1
        assert (one.ensemble.members, one.ensemble.epochs, one.ensemble.batch_size) == (5, 5, 32)
        assert (one.planner.iterations, one.planner.particles, one.planner.propagation) == (5, 20, "DS")
        work[one.name] = (one.steps, one.trials, one.planner.horizon, one.planner.population_size, one.planner.elites)
    assert work == {
        "cartpole": (200, 50, 25, 400, 40),
        "halfcheetah": (1000, 300, 30, 500, 50),
        "pusher": (150, 100, 25, 500, 50),
        "reacher": (150, 100, 25, 400, 40),
    }
    assert preset("reacher").ensemble.lr == 7.5e-4
    assert {f"{one.name}-small" for one in PUBLISHED} <= set(PRESETS)


def test_one_field_changes_and_nothing_else():
    base = preset("tiny")
    assert changed(base, ["ensemble.hidden=8,4", "ensemble.weight_decay=0.1,0.2,0.3"]).ensemble.hidden == (8, 4)
    assert changed(base, ["ensemble.probabilistic=false"]).ensemble.probabilistic is False
    assert changed(base, ["planner.momentum=0.2"]).planner.momentum == 0.2
    assert changed(base, ["trials=2"]) == base
    assert overrides(changed(base, ["trials=9", "ensemble.members=7"])) == {"ensemble.members": 7}
    assert overrides(changed(base, ["planner.method=mppi"])) == {"planner.method": "mppi"}
    assert overrides(changed(base, ["planner.method=cem", "planner.temperature=0.1"])) == {}
    # Fields that must fit each other, in whatever order.
    together = ["planner.propagation=TS1", "planner.particles=6", "ensemble.members=3", "planner.elites=20"]
    assert changed(base, [*together, "planner.population_size=30"]).planner.population_size == 30
    with pytest.raises(CalibrlError, match="3 weight decays for 2 layers"):
        changed(base, ["ensemble.weight_decay=1,2,3"])


def test_curves_are_means_and_standard_errors_over_seeds():
    rows = [Row("control", "p", "calibrated", seed, {"return": value}, step=10) for seed, value in enumerate((1, 2, 6))]
    steps, mean, error = curve(rows, "calibrated", "return")
    assert steps.tolist() == [10]
    assert mean[0] == pytest.approx(3)
    assert error[0] == pytest.approx(np.std([1, 2, 6], ddof=1) / 3**0.5)


@pytest.mark.usefixtures("blank_figures")
def test_sac_joins_the_same_folder_and_figure(tmp_path):
    done = call("--preset", "tiny", "--agent", "sac", *SMALL, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert call("--preset", "tiny", *SMALL, "--out", tmp_path, "--resume").exit_code == 0
    rows = read(tmp_path / "rows.jsonl")
    assert {row.arm: row.step for row in rows} == {"sac": 42, "calibrated": 42, "uncalibrated": 42}
    refused = call("--preset", "tiny", "--agent", "sac", *SMALL, "--out", tmp_path)
    assert "holds rows of this run already; --resume to go on" in str(refused.exception)


def test_what_was_changed_about_an_environment_of_ones_own():
    base = preset_for_env("calibrl-tests/Short-v0", 50)
    assert overrides(base) == {}
    assert overrides(changed(base, ["trials=3", "seeds=2", "arms=calibrated"])) == {}
    found = changed(base, ["steps=20", "planner.method=cem", "ensemble.members=2"])
    assert overrides(found) == {"steps": 20, "ensemble.members": 2, "planner.method": "cem"}


@pytest.mark.usefixtures("blank_figures")
def test_particles_are_shared_out_among_any_number_of_networks(tmp_path):
    words = ["ensemble.members=3", "planner.propagation=TSinf", "steps=20"]
    done = call("--preset", "tiny", "--trials", 1, "--no-video", "--out", tmp_path, *(f"--set={w}" for w in words))
    assert done.exit_code == 0, done.exception
    assert "calibration_loss_ahead_5" in read(tmp_path / "rows.jsonl")[-1].metrics


MINE = """
import gymnasium

def near(observation, action, following):
    return -following[..., 0].square()

def far(observation, action, following):
    return following[..., 0].square()

def make(**options):
    return gymnasium.make("calibrl-tests/Short-v0", **options)

gymnasium.register("Mine-v0", lambda: make().unwrapped, max_episode_steps=14)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module of one's own, in the current folder alone."""
    (tmp_path / "mine_here.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "mine_here"
    sys.modules.pop("mine_here", None)
    gymnasium.registry.pop("Mine-v0", None)


QUICK = [
    "--set=ensemble.epochs=1",
    "--set=planner.horizon=3",
    "--set=planner.population_size=8",
    "--trials=1",
    "--no-video",
]


def test_the_current_folder_is_looked_in_last_and_only_for_what_is_named(mine):
    before = list(sys.path)
    task_of(replace(PRESETS["tiny"]))
    assert sys.path == before
    for named in ({"reward": f"{mine}:near"}, {"task": f"{mine}:Mine-v0"}):
        sys.path[:] = before
        found = task_of(replace(PRESETS["tiny"], steps=14, **named))
        assert found.steps == 14
        assert sys.path == [*before, str(Path.cwd())]


@pytest.mark.usefixtures("blank_figures")
def test_environments_and_rewards_are_found_in_the_current_folder(mine):
    done = call("--env", f"{mine}:Mine-v0", "--reward", f"{mine}:near", *QUICK, "--out", "out")
    assert done.exit_code == 0, done.exception
    rows = read("out/rows.jsonl")
    assert {row.overrides["reward"] for row in rows} == {f"{mine}:near"}
    assert rows[0].settings["reward"] == f"{mine}:near"


@pytest.mark.usefixtures("blank_figures")
def test_another_reward_is_another_run(mine):
    words = ["--env", "calibrl-tests/Short-v0", *QUICK, "--set=steps=14"]
    assert call(*words, "--reward", f"{mine}:near", "--out", "out").exit_code == 0
    for other in (["--reward", f"{mine}:far"], []):
        refused = call(*words, *other, "--out", "out", "--resume", "--trials", 2)
        assert "holds rows of another run (control calibrl-tests/Short-v0 steps=14" in str(refused.exception)
        assert f"reward={mine}:near)" in str(refused.exception)
    # By jobs, too.
    assert call(*words, "--reward", f"{mine}:near", "--backend", "serial", "--out", "jobs").exit_code == 0
    numbers = [{row.key: row.metrics["return"] for row in read(f"{out}/rows.jsonl")} for out in ("out", "jobs")]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-4)
    refused = call(*words, "--reward", f"{mine}:far", "--backend", "serial", "--out", "jobs", "--resume")
    assert "holds rows of another run" in str(refused.exception)


@pytest.mark.usefixtures("blank_figures")
def test_a_replaced_run_does_not_come_back(tmp_path):
    words = ["--preset", "tiny", *SMALL, "--arms", "calibrated", "--out", tmp_path]
    assert call(*words, "--agent", "sac").exit_code == 0
    assert call(*words, "--resume").exit_code == 0
    other = [*words, "--set", "planner.horizon=3"]
    refused = call(*other)
    assert "--force to replace them" in str(refused.exception)
    assert call(*other, "--force").exit_code == 0
    rows = read(tmp_path / "rows.jsonl")
    assert sum(row.arm == "sac" for row in rows) == 3, "SAC is another run"
    changes = {"steps": 14, "planner.horizon": 3}
    assert [row.overrides for row in rows if row.arm == "calibrated"] == [changes] * 3
    assert call(*words, "--agent", "sac", "--force").exit_code == 0
    assert len(read(tmp_path / "rows.jsonl")) == 6
    assert call(*other, "--force", "--backend", "serial", "--trials", 1).exit_code == 0
    rows = read(tmp_path / "rows.jsonl")
    assert {arm: sum(row.arm == arm for row in rows) for arm in ("sac", "calibrated")} == {"sac": 3, "calibrated": 2}
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == {"sac-0.sac", "calibrated-0.trial-1.pt"}


def test_rows_with_other_settings_are_told_apart_and_each_has_its_figure(tmp_path):
    words = ["--preset", "tiny", *SMALL, "--trials", 1, "--arms", "calibrated"]
    assert call(*words, "--backend", "serial", "--out", tmp_path / "cem").exit_code == 0
    icem = [*words, "--set", "planner.method=icem"]
    refused = call(*icem, "--out", tmp_path / "cem", "--resume")
    assert "holds rows of another run (control tiny steps=14), this one is" in str(refused.exception)
    assert call(*icem, "--out", tmp_path / "icem").exit_code == 0
    shown = call("--rows", tmp_path, "--out", tmp_path / "figures")
    assert shown.exit_code == 0, shown.exception
    for name in ("tiny, steps=14", "tiny, steps=14, planner.method=icem"):
        assert f"\n{name}\n" in shown.output
        assert (tmp_path / "figures" / f"control-{name.replace(', ', '-')}.png").is_file()


@pytest.mark.usefixtures("blank_figures")
def test_tensorboard_logs_of_agents_side_by_side(tmp_path):
    pytest.importorskip("tensorboard")
    done = call("--preset", "tiny", *SMALL, "--out", tmp_path / "out", "--tensorboard", tmp_path / "logs")
    assert done.exit_code == 0, done.exception
    assert len(list((tmp_path / "logs").rglob("events.*"))) == 2


LONG = [
    Row("control", "p", arm, seed, {"return": -123456.7 - seed, "best": -98765.4, "calibration_loss": 0.1234,
        "calibration_loss_bare": 1.25, "coverage_90": 0.9, "coverage_90_bare": 0.5}, step=1_000_000)
    for arm in ("calibrated-paper", "uncalibrated-all") for seed in range(10)
]  # fmt: skip


@pytest.mark.parametrize("terminal", [False, True])
def test_no_number_of_the_outcome_is_cut(terminal, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_outcome(LONG)
    shown = capsys.readouterr().out
    assert "…" not in shown
    words = " ".join(shown.split())
    for text in ("calibrated-paper", "1000000", "-123461.2 ± 1.0", "-98765.4 ± 0.0", "0.123 (1.250)", "90% (50%)"):
        assert text in words
    widest = max(len(line) for line in shown.splitlines())
    header = shown.splitlines()[1]
    assert widest <= 60 if terminal else all(name in header for name in ("seeds", "steps", "last", "90 % holds"))


@pytest.mark.usefixtures("blank_figures")
def test_sac_on_episodes_that_end_goes_on_for_more_trials(tmp_path):
    words = ["--env", "calibrl-tests/Five-v0", "--agent", "sac", "--set", "steps=14", "--out", tmp_path]
    first = call(*words, "--trials", 2)
    assert first.exit_code == 0, first.exception
    rows = read(tmp_path / "rows.jsonl")
    assert [row.step for row in rows] == [5, 10, 15, 20, 25, 30, 35, 40]
    told = [line for line in first.output.splitlines() if line.startswith("trial ")]
    assert len(told) == len(rows)
    assert {line.split(",")[0] for line in told} == {"trial 0/2", "trial 1/2", "trial 2/2"}
    assert not any(" -" in line.split(":")[0] for line in told), "time left is never negative"
    assert {tuple(row.overrides.items()) for row in rows} == {(("steps", 14),)}
    more = call(*words, "--trials", 3, "--resume")
    assert more.exit_code == 0, more.exception
    longer = read(tmp_path / "rows.jsonl")
    assert longer[: len(rows)] == rows
    assert longer[-1].step == 55
    assert [place for place, row in enumerate(longer) if row.origin] == [0, len(rows)], "each process says what it is"


def test_commands_of_the_replication_page_can_be_given(monkeypatch):
    """Whoever has a GPU can run what is missing: each command is understood, and agents can be made of it."""
    page = (Path(__file__).parents[2] / "docs" / "replication.md").read_text(encoding="utf-8")
    commands = re.findall(r"calibrl (run control --preset [^\n`]*)", page)
    assert len(commands) >= 11
    for words in commands:
        taken = []
        monkeypatch.setattr("calibrl.runs.commands._run", lambda _, settings, __, taken=taken: taken.append(settings))
        given = [word for word in words.replace("--device cuda", "").split() if word not in ("--light", "--no-video")]
        result = CliRunner().invoke(app, [*given, "--light", "--no-video", "--resume"])
        assert result.exit_code == 0, (words, result.output)
        (settings,) = taken
        (job, *_) = jobs(settings)
        assert len(job.parts) == settings.seeds * len(settings.arms) or settings.fleets != 1
    named = re.findall(r"`((?:cartpole|pusher|halfcheetah)-best)`", page)
    assert set(named) <= set(PRESETS)

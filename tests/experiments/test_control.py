"""The control command: presets, one field changed, any environment, bad input, figures."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from typer.testing import CliRunner

from calibrl.cli import app
from calibrl.control.presets import PRESETS, PUBLISHED, changed, overrides, preset
from calibrl.control.trial import run_trial
from calibrl.errors import CalibrlError
from calibrl.experiments.control_figures import curve
from calibrl.results import Row, read

SMALL = ["--set", "steps=14", "--trials", "2", "--no-video"]


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


gymnasium.register("calibrl-tests/Short-v0", Short, max_episode_steps=50)
gymnasium.register("calibrl-tests/Broken-v0", Broken, max_episode_steps=50)


def call(*words):
    return CliRunner().invoke(app, ["run", "control", *map(str, words)])


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
    assert "already holds a run" in str(refused.exception)


def test_a_video_of_the_best_trial(tmp_path):
    from PIL import Image

    done = call("--preset", "tiny", "--set", "steps=8", "--trials", 1, "--out", tmp_path, "--arms", "calibrated")
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "control-calibrated.gif") as animation:
        assert animation.n_frames >= 3


def test_any_environment_with_a_learnt_reward_and_an_end(tmp_path):
    small = ["--set", "ensemble.epochs=1", "--set", "planner.horizon=3", "--set", "planner.population=8"]
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
        (["--preset", "cartpol"], r"preset 'cartpol' is unknown; use one of cartpole, halfcheetah"),
        (["--env", "Nowhere-v0"], r"environment 'Nowhere-v0' is unknown"),
        (["--env", "CartPole-v1"], r"one of 2 choices"),
        (
            ["--preset", "tiny", "--set", "ensemble.member=3"],
            r"no such field; write one of steps, trials.*ensemble\.members",
        ),
        (["--preset", "tiny", "--set", "ensemble.members=many"], r"is not a whole number"),
        (["--preset", "tiny", "--set", "ensemble.members=0"], r"must be 1 or more"),
        (["--preset", "tiny", "--set", "calibration.block=30"], r"all or nothing of a trial of 30 steps; use less"),
        (["--preset", "tiny", "--set", "planner.method=cma"], r"use one of cem, icem, mppi, random"),
        (["--preset", "tiny", "--map", "linear"], r"map 'linear' is unknown; use one of smooth"),
        (["--preset", "tiny", "--arms", "calibrated,other"], r"arm 'other' is unknown; use one of"),
        (["--preset", "tiny", "--agent", "dqn"], r"--agent 'dqn' is unknown; use model or sac"),
        (["--preset", "tiny", "--env", "Pendulum-v1"], r"name two tasks"),
        (["--preset", "tiny", "--reward", "nothing"], r"is not module:function"),
        (["--preset", "tiny", "--reward", "math:nothing"], r"has no function nothing"),
        (["--preset", "tiny", "--reward", "torch:add"], r"the reward function (failed|gave)"),
        (["--preset", "tiny", "--device", "tpu"], r"device 'tpu' is unknown; use cpu or cuda"),
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
        assert len(one.ensemble.decay) == len(one.ensemble.hidden) + 1
        assert (one.ensemble.members, one.ensemble.epochs, one.ensemble.batch) == (5, 5, 32)
        assert (one.planner.sweeps, one.planner.particles, one.planner.propagation) == (5, 20, "DS")
        work[one.name] = (one.steps, one.trials, one.planner.horizon, one.planner.population, one.planner.elites)
    assert work == {
        "cartpole": (200, 50, 25, 400, 40),
        "halfcheetah": (1000, 300, 30, 500, 50),
        "pusher": (150, 100, 25, 500, 50),
        "reacher": (150, 100, 25, 400, 40),
    }
    assert preset("reacher").ensemble.rate == 7.5e-4
    assert {f"{one.name}-small" for one in PUBLISHED} <= set(PRESETS)


def test_one_field_changes_and_nothing_else():
    base = preset("tiny")
    assert changed(base, ["ensemble.hidden=8,4", "ensemble.decay=0.1,0.2,0.3"]).ensemble.hidden == (8, 4)
    assert changed(base, ["ensemble.probabilistic=false"]).ensemble.probabilistic is False
    assert changed(base, ["planner.inertia=0.2"]).planner.inertia == 0.2
    assert changed(base, ["trials=2"]) == base
    assert overrides(changed(base, ["trials=9", "ensemble.members=7"])) == {"ensemble.members": 7}
    assert overrides(changed(base, ["planner.method=mppi"])) == {"planner.method": "mppi"}
    assert overrides(changed(base, ["planner.method=cem", "planner.temperature=0.1"])) == {}
    with pytest.raises(CalibrlError, match="3 weight decays for 2 layers"):
        changed(base, ["ensemble.decay=1,2,3"])


def test_curves_are_means_and_standard_errors_over_seeds():
    rows = [Row("control", "p", "calibrated", seed, {"return": value}, step=10) for seed, value in enumerate((1, 2, 6))]
    steps, mean, error = curve(rows, "calibrated", "return")
    assert steps.tolist() == [10]
    assert mean[0] == pytest.approx(3)
    assert error[0] == pytest.approx(np.std([1, 2, 6], ddof=1) / 3**0.5)


def test_sac_joins_the_same_folder_and_figure(tmp_path):
    done = call("--preset", "tiny", "--agent", "sac", *SMALL, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert call("--preset", "tiny", *SMALL, "--out", tmp_path, "--resume").exit_code == 0
    rows = read(tmp_path / "rows.jsonl")
    assert {row.arm: row.step for row in rows} == {"sac": 42, "calibrated": 42, "uncalibrated": 42}
    refused = call("--preset", "tiny", "--agent", "sac", *SMALL, "--out", tmp_path)
    assert "already holds a run of SAC" in str(refused.exception)

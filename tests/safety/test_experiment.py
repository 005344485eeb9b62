"""The safety experiment: its worlds against independent physics, its learner, and a small run end to end."""

import numpy as np
import pytest
import torch
import typer.testing

from calibrl.cli import app
from calibrl.distributions import pit
from calibrl.errors import CalibrlError
from calibrl.runs.rows import read
from calibrl.safety.experiment import EXPERIMENT, TINY
from calibrl.safety.problems import ARMS, WORLDS, CartPole, PointMass, agents, learnt_models


def test_cart_pole_is_gymnasiums():
    """Two steps of Gymnasium's own CartPole under its full force, from the same state."""
    cartpole = pytest.importorskip("gymnasium.envs.classic_control.cartpole")
    env = cartpole.CartPoleEnv()
    env.reset(seed=0)
    for action, start in ((1, [0.1, -0.2, 0.05, 0.3]), (0, [-0.4, 0.5, -0.1, -0.2])):
        env.state = np.array(start)
        env.steps_beyond_terminated = None
        env.step(action)
        expected, *_ = env.step(action)
        push = torch.tensor([1.0 if action else -1.0])
        found = CartPole().drift(torch.tensor(start), push)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_point_mass_position_follows_its_velocity():
    world = PointMass()
    generator = torch.Generator().manual_seed(0)
    start = world.start(50, generator)
    after = world.step(start, torch.zeros(50, 2), generator)
    torch.testing.assert_close(after[:, :2], start[:, :2] + 0.2 * after[:, 2:])
    assert world.margin(torch.tensor([0.5, 0.0, 0.0, 0.0])).item() == pytest.approx(0.1)


@pytest.mark.parametrize("name", list(WORLDS))
def test_noise_has_the_spread_it_says(name):
    world = WORLDS[name]
    generator = torch.Generator().manual_seed(1)
    start = world.start(1, generator).expand(20_000, -1)
    action = torch.zeros(20_000, len(world.bounds.low))
    noise = world.step(start, action, generator) - world.drift(start, action)
    for k, spread in enumerate(world.noise):
        if spread:
            assert noise[:, k].std().item() == pytest.approx(spread, rel=0.03)


@pytest.mark.parametrize("name", list(WORLDS))
def test_the_bare_model_is_over_confident_and_calibration_mends_one_step(name):
    world = WORLDS[name]
    bare, calibrated = learnt_models(world, 12, 0)
    generator = torch.Generator().manual_seed(2)
    start = world.start(400, generator)
    action = world.bounds.low + torch.rand(400, len(world.bounds.low), generator=generator) * (
        world.bounds.high - world.bounds.low
    )
    change = world.step(start, action, generator) - start
    x = torch.cat([start, action], -1)

    def coverage(model):
        p = pit(model(x), change)
        return ((p > 0.05) & (p < 0.95)).double().mean(0).min().item()

    assert coverage(bare) < 0.8
    assert coverage(calibrated) > coverage(bare) + 0.05


def test_arms_share_the_trained_model():
    found = agents(WORLDS["point mass"], TINY, 6, 0)
    assert tuple(found) == ARMS
    assert found["over-confident"].model is found["calibrated"].model.forecaster
    assert found["conformal"].model is found["calibrated"].model


def test_tiny_run_writes_rows_and_figures(tmp_path):
    command = ["run", "safety", "--preset", "tiny", "--seed", "1", "--out", str(tmp_path)]
    found = typer.testing.CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "safety-rates.png" in found.output
    rows = read(tmp_path / "rows.jsonl")
    assert len(rows) == 2 * len(WORLDS) * len(ARMS)
    assert all(0 <= row.metrics["violations"] <= 1 for row in rows)
    for name in ("safety-rates", "safety-paths"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_unknown_presets_are_refused():
    with pytest.raises(CalibrlError, match="'huge' is unknown; known: quick"):
        EXPERIMENT.preset("huge")

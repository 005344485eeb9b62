import subprocess
import sys
import types
import warnings

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from scipy.integrate import solve_ivp

from calibrl.control import TASKS, register, task, task_from_env
from calibrl.control.envs import Pusher, WithCliff
from calibrl.errors import CalibrlError

IDS = [task(name).env_id for name in TASKS]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes its warnings to a file where it runs."""
    monkeypatch.chdir(tmp_path)


def rollout(env, seed, steps=30):
    generator = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)[0]]
    rewards = []
    for _ in range(steps):
        action = generator.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
        observation, reward, *_ = env.step(action)
        seen.append(observation)
        rewards.append(reward)
    return np.array(seen), np.array(rewards)


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_approves(env_id):
    # Two recommendations that the published tasks do not follow: bounded observations, actions of size 1.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*observation space (minimum|maximum) value is -?infinity.*")
        warnings.filterwarnings("ignore", message=".*we recommend using a symmetric and normalized space.*")
        check_env(gymnasium.make(env_id, render_mode="rgb_array", renderer="sketch").unwrapped)


@pytest.mark.parametrize("env_id", IDS)
def test_seeded_and_never_over_before_the_limit(env_id):
    env = gymnasium.make(env_id)
    first, pays = rollout(env, 3)
    again, pays_again = rollout(env, 3)
    other, _ = rollout(env, 4)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(pays, pays_again)
    assert not np.array_equal(first[0], other[0])
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(env.spec.max_episode_steps)]
    assert not any(terminated for terminated, _ in ends)
    assert [truncated for _, truncated in ends].index(True) == env.spec.max_episode_steps - 1


def test_limits_and_spaces():
    expected = {"Cartpole": (200, 4, 3), "HalfCheetah": (1000, 18, 1), "Pusher": (150, 20, 2), "Reacher": (150, 17, 20)}
    for name, (steps, size, limit) in expected.items():
        env = gymnasium.make(f"calibrl/{name}-v0")
        assert env.spec.max_episode_steps == steps
        assert env.observation_space.shape == (size,)
        np.testing.assert_array_equal(env.action_space.high, limit)
        np.testing.assert_array_equal(env.action_space.low, -limit)
    assert [gymnasium.make(i).unwrapped.dt for i in IDS[:4]] == pytest.approx([0.04, 0.05, 0.04, 0.02])


@pytest.mark.parametrize(
    "lines", ["import calibrl.control, gymnasium", "import gymnasium, calibrl.control", "import gymnasium"]
)
def test_gymnasium_makes_them_where_calibrl_was_imported(lines):
    """Gymnasium reads no entry points (none since 1.0): `module:id` imports what registers them."""
    env_id = "calibrl/Cartpole-v0" if "calibrl" in lines else "calibrl.control:calibrl/Cartpole-v0"
    program = f"{lines}, sys\nassert 'mujoco' not in sys.modules\n"
    program += f"env = gymnasium.make('{env_id}')\nenv.reset(seed=0)\nprint(env.spec.max_episode_steps)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "200\n"


def test_the_world_of_a_task_comes_with_its_id():
    for module in ("", "calibrl.control:", "calibrl.control.envs:"):
        assert task_from_env(f"{module}calibrl/Reacher-v0") == task("reacher")


def test_registering_twice_changes_nothing():
    before = {i: gymnasium.registry[i] for i in IDS}
    register()
    assert all(gymnasium.registry[i] is spec for i, spec in before.items())


# Physics against an independent source.


def cartpole_ode(push):
    """Lagrange's equations of a cart and a hanging capsule, with damping 1 on both joints. State: x, θ, ẋ, θ̇."""
    density, g = 1000, 9.81
    cart = density * (np.pi * 0.1**2 * 0.2 + 4 / 3 * np.pi * 0.1**3)
    radius, length = 0.049, 0.6
    tube, caps = density * np.pi * radius**2 * length, density * 4 / 3 * np.pi * radius**3
    mass, arm = tube + caps, length / 2
    inertia = tube * (3 * radius**2 + length**2) / 12 + caps * (
        2 / 5 * radius**2 + length**2 / 4 + 3 / 8 * length * radius
    )

    def rates(_, state):
        _, angle, speed, spin = state
        matrix = [[cart + mass, -mass * arm * np.cos(angle)], [-mass * arm * np.cos(angle), inertia + mass * arm**2]]
        force = [
            100 * push - speed - mass * arm * np.sin(angle) * spin**2,
            -spin - mass * g * arm * np.sin(angle),
        ]
        return [speed, spin, *np.linalg.solve(matrix, force)]

    return rates


def test_cartpole_moves_as_mechanics_says():
    env = gymnasium.make("calibrl/Cartpole-v0").unwrapped
    state, _ = env.reset(seed=0)
    for push in (2.0, -3.0, 1.0, -1.0, 3.0, -2.0):
        exact = solve_ivp(cartpole_ode(push), (0, 0.04), state, rtol=1e-10, atol=1e-12).y[:, -1]
        state = env.step(np.array([push]))[0]
        np.testing.assert_allclose(state, exact, atol=2e-4)


def test_wind_lasts_for_an_episode_is_not_seen_and_blows_from_either_side():
    windy, calm = (task(name).make().unwrapped for name in ("cartpole-wind", "cartpole"))
    pushed = []
    for seed in range(8):
        (seen, _), (same, _) = windy.reset(seed=seed), calm.reset(seed=seed)
        np.testing.assert_array_equal(seen, same)
        first = windy.data.qfrc_applied[0]
        after, still = (one.step(np.zeros(1))[0] for one in (windy, calm))
        for _ in range(5):
            windy.step(np.zeros(1))
        assert windy.data.qfrc_applied[0] == first
        assert after.shape == still.shape
        assert np.sign(after[2] - still[2]) == np.sign(first)
        pushed.append(first)
    assert min(pushed) < 0 < max(pushed)
    assert max(map(abs, pushed)) < 100


@pytest.mark.parametrize("name", ["cartpole-rail", "cartpole-wind", "halfcheetah-fall"])
def test_a_step_beyond_the_cliff_costs_in_the_world_and_in_imagination(name):
    """The safe set is what the environment charges for: the same step in the task without a cliff earns more."""
    cliff = task(name)
    env = cliff.make().unwrapped
    env.reset(seed=0)
    costs = set()
    for step in range(300):
        seen = torch.from_numpy(env._observe())
        action = env.action_space.high
        if name == "halfcheetah-fall" and step == 20:
            env.data.qpos[2] = np.pi
        after, paid, *_ = env.step(action)
        plain = super(WithCliff, env)._reward(seen.numpy(), action.astype(float))
        inside = bool(cliff.world.safe(torch.from_numpy(after)) >= 0)
        costs.add((inside, round(plain - paid, 9)))
        imagined = cliff.world.reward(seen, torch.from_numpy(action).double(), torch.from_numpy(after))
        assert float(imagined) == pytest.approx(paid, abs=1e-6)
    assert costs == {(True, 0.0), (False, type(env).cost)}


def test_cartpole_starts_hanging_and_stays_on_its_rail():
    env = gymnasium.make("calibrl/Cartpole-v0").unwrapped
    starts = np.array([env.reset(seed=seed)[0] for seed in range(300)])
    np.testing.assert_allclose(starts.std(0), 0.1, rtol=0.15)
    np.testing.assert_allclose(starts.mean(0), 0, atol=0.02)
    far = [env.step(np.array([3.0]))[0][0] for _ in range(60)]
    assert 2.4 < max(far) < 2.8


def gymnasium_halfcheetah(monkeypatch):
    # Gymnasium's module for windows needs packages that physics does not.
    for name in ("imageio", "glfw"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or types.ModuleType(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make("HalfCheetah-v5").unwrapped


def test_halfcheetah_moves_and_pays_as_gymnasiums(monkeypatch, capfd):
    ours, theirs = gymnasium.make("calibrl/HalfCheetah-v0").unwrapped, gymnasium_halfcheetah(monkeypatch)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    theirs.set_state(ours.data.qpos, ours.data.qvel)
    generator = np.random.default_rng(0)
    for _ in range(60):
        action = generator.uniform(-1, 1, 6)
        x = theirs.data.qpos[0]
        seen, reward, *_ = ours.step(action)
        seen_theirs, reward_theirs, *_ = theirs.step(action)
        np.testing.assert_allclose(seen[1:], seen_theirs, atol=1e-9)
        assert seen[0] == pytest.approx((theirs.data.qpos[0] - x) / 0.05)
        assert reward == pytest.approx(reward_theirs)
    capfd.readouterr()


def test_halfcheetah_starts_at_rest(capfd):
    env = gymnasium.make("calibrl/HalfCheetah-v0")
    starts = np.array([env.reset(seed=seed)[0] for seed in range(200)])
    assert (starts[:, 0] == 0).all()
    np.testing.assert_allclose(starts[:, 1:].std(0), 0.001, rtol=0.25)
    # MuJoCo's complaint about the file that Gymnasium has is not passed on to users.
    assert "WARNING" not in "".join(capfd.readouterr())


def push(env):
    """Lay the object beside the hand and turn the shoulder: how far the object moves."""
    env.reset(seed=0)
    down = np.arcsin(0.275 / 0.721)
    env.data.qpos[:] = 0
    env.data.qpos[1] = down
    mujoco.mj_forward(env.model, env.data)
    wrist = env.data.body("r_wrist_roll_link").xpos
    # 3 cm between the finger's capsule and the object's side, in the direction the arm will turn.
    env.data.qpos[-4:-2] = (wrist[1] + 0.2 + 0.05, wrist[0] + 0.05 - 0.45)
    env.data.qvel[:] = 0
    mujoco.mj_forward(env.model, env.data)
    before = env.data.body("object").xpos.copy()
    action = np.zeros(7)
    action[0] = 2.0
    for _ in range(25):
        seen = env.step(action)[0]
    np.testing.assert_array_equal(seen[17:], env.data.body("object").xpos)
    return float(np.linalg.norm(seen[17:] - before))


def test_pushers_object_is_moved_by_a_push(monkeypatch):
    assert push(Pusher()) > 0.08
    # The object of the original model, for which the same push is a ghost's.
    monkeypatch.setattr("calibrl.control.envs.OBJECT_DENSITY", 0.00001)
    assert push(Pusher()) < 0.001


def test_pushers_model_and_start():
    env = gymnasium.make("calibrl/Pusher-v0").unwrapped
    starts = np.array([env.reset(seed=seed)[0] for seed in range(300)])
    # The object slides from (0.45, -0.05): 0.15 along x and -0.25 along y on average.
    np.testing.assert_allclose(starts[:, 17:].mean(0), (0.6, -0.3, -0.275), atol=0.005)
    np.testing.assert_allclose(starts[:, 17:19].std(0), 0.025, rtol=0.15)
    assert np.abs(starts[:, 7:14]).max() <= 0.005
    assert 0.0008 < env.model.body("object").mass[0] < 0.009
    np.testing.assert_allclose(env.model.joint("r_shoulder_pan_joint").range, (-2.2854, 2.0))
    # The tip is the middle of the two fingertips.
    tips = [env.data.geom(name).xpos for name in ("tip_arml", "tip_armr")]
    np.testing.assert_allclose(starts[-1, 14:17], np.mean(tips, 0))


def test_reachers_goal_stands_where_it_is_seen():
    env = gymnasium.make("calibrl/Reacher-v0").unwrapped
    starts = np.array([env.reset(seed=seed)[0] for seed in range(300)])
    np.testing.assert_allclose(starts[:, 7:10].mean(0), (0, 0.25, 0), atol=0.02)
    np.testing.assert_allclose(starts[:, 7:10].std(0), 0.1, rtol=0.15)
    seen, _ = rollout(env, 1)
    np.testing.assert_array_equal(seen[:, 7:10], np.broadcast_to(env.data.geom("goal").xpos, (31, 3)))


# Bad input.


@pytest.mark.parametrize("env_id", IDS)
def test_diverging_physics_is_an_error(env_id, capfd):
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    env.step(np.zeros(env.model.nu))
    env.data.qvel[0] = 1e13
    with pytest.raises(CalibrlError, match=f"{env_id} diverged at step 2"):
        env.step(np.zeros(env.model.nu))
    capfd.readouterr()


def test_bad_actions_and_modes():
    env = gymnasium.make("calibrl/Cartpole-v0").unwrapped
    env.reset(seed=0)
    for wrong in (np.zeros(2), np.array([np.nan])):
        with pytest.raises(CalibrlError, match="is not 1 finite numbers"):
            env.step(wrong)
    with pytest.raises(CalibrlError, match="render_mode 'human'"):
        type(env)(render_mode="human")
    assert env.render() is None

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from calibrl.control import TASKS, task, task_from_env
from calibrl.control.envs import GOAL, tip_position
from calibrl.control.envs import halfcheetah_reward as speed
from calibrl.control.problems import reward_named
from calibrl.control.settings import PRESETS
from calibrl.control.trials import view_of
from calibrl.errors import CalibrlError, MissingExtra


def experience(chosen, steps=60, seed=0):
    """Observations, actions, next observations and rewards of one random episode, in float64."""
    env = chosen.make()
    generator = np.random.default_rng(seed)
    seen, _ = env.reset(seed=seed)
    rows = []
    for _ in range(steps):
        action = generator.uniform(chosen.low, chosen.high).astype(np.float32)
        following, reward, *_ = env.step(action)
        rows.append((seen, action, following, reward))
        seen = following
    return [torch.from_numpy(np.array(column, np.float64)) for column in zip(*rows, strict=True)]


# Worlds.


@pytest.mark.parametrize("name", TASKS)
def test_rewards_are_those_of_the_environment(name):
    chosen = task(name)
    seen, action, following, reward = experience(chosen)
    torch.testing.assert_close(chosen.world.reward(seen, action, following), reward, rtol=1e-9, atol=1e-9)
    single = chosen.world.reward(seen.float(), action.float(), following.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), reward, rtol=1e-4, atol=1e-4)


def test_plans_of_the_references_pusher_are_judged_by_what_the_environment_pays_a_step_later():
    seen, action, following, reward = experience(task("pusher"))
    judged = reward_named(PRESETS["pusher-reference"].reward)(seen, action, following)
    effort = 0.1 * action.square().sum(-1)
    torch.testing.assert_close((judged + effort)[:-1], (reward + effort)[1:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TASKS)
def test_what_is_forecast_leads_to_the_next_observation(name):
    chosen = task(name)
    seen, _, following, _ = experience(chosen)
    target = chosen.world.target(seen, following)
    assert target.shape[-1] == chosen.target_size
    torch.testing.assert_close(chosen.world.next_observation(seen, target), following, rtol=0, atol=1e-12)


def test_sizes_are_the_published_ones():
    sizes = {name: (task(name).input_size, task(name).target_size) for name in TASKS}
    published = {"cartpole": (6, 4), "halfcheetah": (24, 18), "pusher": (27, 20), "reacher": (24, 17)}
    # A variant is the same but for what it pays.
    assert sizes == {name: published[name.partition("-")[0]] for name in TASKS}
    assert published.keys() <= set(TASKS)
    for name in TASKS:
        chosen, env = task(name), task(name).make()
        assert env.observation_space.shape == (chosen.observation_size,)
        np.testing.assert_array_equal(env.action_space.low, chosen.low)
        np.testing.assert_array_equal(env.action_space.high, chosen.high)
        assert gymnasium.spec(chosen.env_id).max_episode_steps == chosen.steps


def test_what_the_models_see():
    seen = torch.tensor([0.3, 0.7, -1.0, 2.0])
    expected = torch.tensor([np.sin(0.7), np.cos(0.7), 0.3, -1.0, 2.0], dtype=torch.float32)
    torch.testing.assert_close(task("cartpole").world.model_input(seen), expected)
    seen = torch.arange(18.0)
    expected = torch.cat([torch.tensor([1.0]), seen[2].sin()[None], seen[2].cos()[None], seen[3:]])
    torch.testing.assert_close(task("halfcheetah").world.model_input(seen), expected)
    # The first number is not in what the model sees, and is forecast as it is.
    moved = seen + 1
    torch.testing.assert_close(task("halfcheetah").world.target(seen, moved), torch.ones(18))


@pytest.mark.parametrize("name", TASKS)
def test_worlds_take_any_leading_dimensions_and_read_nothing_back(name):
    chosen = task(name)
    world = chosen.world
    # A meta tensor has no numbers: whatever reads one back, as no CUDA graph can, fails on it.
    seen = torch.empty(2, 3, 5, chosen.observation_size, device="meta")
    action = torch.empty(2, 3, 5, chosen.action_size, device="meta")
    target = world.target(seen, seen)
    assert target.shape == (2, 3, 5, chosen.target_size)
    assert world.next_observation(seen, target).shape == seen.shape
    assert world.reward(seen, action, seen).shape == (2, 3, 5)
    assert world.model_input(seen).shape == (2, 3, 5, chosen.input_size - chosen.action_size)
    real = torch.randn(4, 3, chosen.observation_size, generator=torch.Generator().manual_seed(0))
    act = torch.randn(4, 3, chosen.action_size, generator=torch.Generator().manual_seed(1))
    whole = world.reward(real, act, real.flip(0))
    parts = torch.stack([world.reward(a, b, c) for a, b, c in zip(real, act, real.flip(0), strict=True)])
    torch.testing.assert_close(whole, parts)


@given(st.lists(st.floats(-4, 4), min_size=7, max_size=7))
def test_reachers_tip_is_where_mujoco_puts_it(angles):
    import mujoco

    env = _reacher()
    env.data.qpos[:] = angles
    mujoco.mj_kinematics(env.model, env.data)
    tip = tip_position(torch.tensor(angles, dtype=torch.float64))
    np.testing.assert_allclose(tip, env.data.site("tip").xpos, atol=1e-12)


_MADE = {}


def _reacher():
    return _MADE.setdefault("reacher", task("reacher").make().unwrapped)


def test_the_best_state_of_each_task_earns_the_most():
    upright = torch.tensor([0.0, np.pi, 0.0, 0.0])
    assert float(task("cartpole").world.reward(upright, torch.zeros(1), upright)) == pytest.approx(1)
    there = torch.zeros(20)
    there[14:17] = there[17:20] = torch.tensor(GOAL)
    assert float(task("pusher").world.reward(there, torch.zeros(7), there)) == pytest.approx(0)
    angles = torch.tensor([0.1, 0.2, -0.3, -0.4, 0.5, -0.6, 0.7])
    reached = torch.cat([angles, tip_position(angles), torch.zeros(7)])
    assert float(task("reacher").world.reward(reached, torch.zeros(7), reached)) == pytest.approx(0)


# Any environment.


class Walk(gymnasium.Env):
    """A walker that is over beyond 1; other spaces, for tests of what is refused."""

    def __init__(self, observes=None, acts=None):
        self.observation_space = observes or Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = acts or Box(-0.5, 0.5, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = np.array([self.np_random.normal(0, 0.1), 0.0], np.float32)
        return self.at.copy(), {}

    def step(self, action):
        self.at = self.at + np.array([action[0], 1], np.float32)
        return self.at.copy(), -abs(float(action[0])), bool(abs(self.at[0]) > 1), False, {}


@pytest.fixture
def register_walk():
    made = []

    def register(name, **options):
        env_id = f"calibrl-tests/{name}-v0"
        gymnasium.register(env_id, entry_point=Walk, kwargs=options)
        made.append(env_id)
        return env_id

    yield register
    for env_id in made:
        del gymnasium.registry[env_id]


def test_any_box_environment_is_a_task():
    chosen = task_from_env("Pendulum-v1")
    assert (chosen.observation_size, chosen.action_size, chosen.target_size, chosen.steps) == (3, 1, 3, 200)
    assert chosen.world.reward is None
    assert chosen.terminates is None
    assert (float(chosen.low), float(chosen.high)) == (-2, 2)
    seen, _, following, _ = experience(chosen)
    assert torch.equal(chosen.world.model_input(seen), seen)
    target = chosen.world.target(seen, following)
    torch.testing.assert_close(target, following - seen)
    torch.testing.assert_close(chosen.world.next_observation(seen, target), following)


@pytest.mark.parametrize(("options", "ends"), [({}, False), ({"max_episode_steps": 7}, True)])
def test_episodes_are_cut_off_only_where_that_is_asked_for(options, ends):
    env = task_from_env("Pendulum-v1").make(**options)
    env.reset(seed=0)
    cut = [env.step(np.zeros(1, dtype=np.float32))[3] for _ in range(7)]
    assert cut == [False] * 6 + [ends]


def test_ones_own_environment_and_reward(register_walk):
    env_id = register_walk("Own")
    chosen = task_from_env(env_id, reward=lambda seen, action, following: -action.abs().sum(-1), steps=7)
    assert chosen.steps == 7
    assert task_from_env(env_id).steps == 200
    seen, action, following, reward = experience(chosen, steps=3)
    torch.testing.assert_close(chosen.world.reward(seen, action, following), reward)
    assert chosen.with_reward(speed).world.reward is speed


def test_the_mujoco_tasks_are_found_by_id():
    assert task_from_env("calibrl/Pusher-v0") is task("pusher")
    changed = task_from_env("calibrl/HalfCheetah-v0", reward=lambda seen, action, following: seen[..., 0], steps=9)
    assert (changed.steps, changed.input_size) == (9, 24)
    assert float(changed.world.reward(torch.ones(18), torch.ones(6), torch.zeros(18))) == 1


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("Pendulum-v9", "did you mean Pendulum-v1"),
        ("pendlum", "did you mean Pendulum-v1"),
        ("cartpole", "did you mean calibrl/Cartpole-v0"),
        ("Cartpole-v0", "CartPole-v0"),
        ("zzzz", "is unknown"),
        ("nowhere/Thing-v0", "is unknown"),
        ("no_such_module:Thing-v0", "needs the module no_such_module"),
        ("FrozenLake-v1", "observes one of 16 choices"),
    ],
)
def test_environments_that_cannot_be_tasks(env_id, says):
    with pytest.raises(CalibrlError, match=says) as caught:
        task_from_env(env_id)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"observes": Box(0, 255, (8, 8, 3), np.uint8)}, r"observes images of shape \(8, 8, 3\)"),
        ({"observes": Box(-1, 1, (2, 2), np.float32)}, r"observes arrays of shape \(2, 2\).*FlattenObservation"),
        ({"observes": Dict({"a": Box(-1, 1, (2,), np.float32)})}, r"observes several things by name \(Dict\)"),
        ({"acts": Dict({"a": Discrete(3)})}, "takes several things by name .* gymnasium.wrappers.TransformAction"),
        ({"acts": Discrete(1)}, "leaves one action no choice"),
        ({"acts": Box(-np.inf, np.inf, (1,), np.float32)}, "sets no bounds on its actions"),
        ({"acts": Box(-3.4e38, 3.4e38, (1,), np.float32)}, "sets no bounds on its actions"),
        ({"acts": Box(-3, 3, (1,), np.int64)}, "takes whole numbers as actions"),
        ({"acts": Box(np.array([-1, 0.5]), np.array([1, 0.5]), dtype=np.float64)}, "action number 1 no choice"),
        ({"acts": Box(-1, 1, (2, 2), np.float32)}, r"actions of shape \(2, 2\)"),
        ({"wrong": 1}, "cannot be made .TypeError"),
    ],
)
def test_spaces_that_cannot_be_planned_in(register_walk, options, says):
    with pytest.raises(CalibrlError, match=says):
        task_from_env(register_walk("Bad", **options))


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float16, np.float64])
def test_a_vector_of_any_kind_of_numbers_is_observed(register_walk, kind):
    chosen = task_from_env(register_walk("Kind", observes=Box(0, 200, (2,), kind)))
    assert (chosen.observation_size, chosen.target_size) == (2, 2)


def test_no_action_is_beyond_bounds_that_float32_does_not_hold(register_walk):
    space = Box(np.array([-0.1, 0.1, -1.0]), np.array([0.1, 0.7, 1.0]), dtype=np.float64)
    chosen = task_from_env(register_walk("Fine", acts=space))
    assert space.contains(chosen.low.numpy())
    assert space.contains(chosen.high.numpy())
    assert (chosen.low[2], chosen.high[2]) == (-1, 1)
    torch.testing.assert_close(chosen.high, torch.tensor([0.1, 0.7, 1.0]))


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (lambda seen, action, following: following, r"gave shape \(3, 5, 3\)"),
        (lambda seen, action, following: following.sum(), r"gave shape \(\)"),
        (lambda seen, action, following: 1.0, "gave float"),
        (lambda seen, action, following: following[..., 0] / 0, "gave (-?inf|nan) for the step from"),
        (lambda seen, action, following: (following[..., 0] - 5).log(), "gave nan for the step from"),
        (lambda seen, action: seen[..., 0], "failed on observations"),
        (lambda seen, action, following: seen @ action, "failed on observations"),
    ],
)
def test_rewards_of_the_wrong_shape(reward, says):
    with pytest.raises(CalibrlError, match=says) as caught:
        task_from_env("Pendulum-v1", reward=reward)
    assert "\n" not in str(caught.value)


def test_bad_names_and_steps():
    with pytest.raises(CalibrlError, match="task 'ant' is unknown; known: cartpole, halfcheetah, pusher, reacher"):
        task("ant")
    for steps in (0, 2.5, float("nan"), "9"):
        with pytest.raises(CalibrlError, match=f"{steps} steps are no trial"):
            task_from_env("Pendulum-v1", steps=steps)
    with pytest.raises(CalibrlError, match="None is no environment; give an id"):
        task_from_env(None)


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"pip install 'calibrl\[control\]'"):
        task_from_env("Pendulum-v1")


# Environments that are there, and choices.


def test_an_environment_an_id_with_options_and_what_makes_one_are_tasks():
    mine = gymnasium.make("Pendulum-v1", g=3.0)
    mine.reset(seed=0)
    mine.unwrapped.mass = 7.0
    for env, options in (
        (mine, {}),
        ("Pendulum-v1", {"g": 3.0}),
        (lambda g=3.0: gymnasium.make("Pendulum-v1", g=g), {}),
    ):
        chosen = task_from_env(env, **options)
        made = chosen.make()
        assert made.unwrapped.g == 3.0
        assert made is not mine
        assert chosen.observation_size == 3
    assert task_from_env(mine).make().unwrapped.mass == 7.0, "a copy of it as it is"
    assert task_from_env(Walk).make().observation_space.shape == (2,)
    assert task_from_env(Walk(), steps=9).steps == 9


class Held(Walk):
    """An environment that cannot be copied, as one with a window cannot."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle window")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: task_from_env(Held()), "Held cannot be copied .*window.*give a function that makes one"),
        (lambda: task_from_env(Walk(), observes=1), "options .'observes'. come too late"),
        (lambda: task_from_env(lambda: 3), "made int, which is no environment"),
        (lambda: task_from_env(lambda: 1 / 0), "cannot be made .ZeroDivisionError"),
        (lambda: task_from_env(gymnasium.make_vec("Pendulum-v1", 3)), r"learn\(environments=3\)"),
        (lambda: task_from_env(Walk, terminated=lambda seen: seen), "one truth a step"),
        (lambda: task_from_env(Walk, terminated=lambda seen: seen[..., 0] > 9), "says False of the observation"),
    ],
)
def test_environments_that_are_no_tasks(make, says):
    with pytest.raises(CalibrlError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("space", "action", "numbers"),
    [
        (Discrete(3), 2, [0, 0, 1]),
        (Discrete(3, start=-1), -1, [1, 0, 0]),
        (MultiDiscrete([2, 3]), [1, 2], [0, 1, 0, 0, 1]),
        (MultiBinary(2), [0, 1], [1, 0, 0, 1]),
    ],
    ids=str,
)
def test_choices_are_numbers_for_models_and_choices_for_the_environment(space, action, numbers):
    class Chooser(Walk):
        def step(self, given):
            assert space.contains(given), given
            self.taken = np.asarray(given).tolist()
            return super().step([0.1])

    chosen = task_from_env(lambda: Chooser(acts=space))
    assert chosen.action_size == len(numbers)
    assert chosen.choice.encode(action).tolist() == numbers
    assert chosen.choice.encode([action, action]).tolist() == [numbers, numbers]
    assert np.asarray(chosen.choice.decode(np.array(numbers) * 0.7)).tolist() == action
    env = chosen.make()
    env.reset(seed=0)
    for taken in (np.array(numbers, np.float32), chosen.choice.decode(np.array(numbers))):
        env.step(taken)
        assert env.unwrapped.taken == action
    with pytest.raises(CalibrlError, match="is none of the choices"):
        chosen.choice.encode(np.asarray(action) + 9)


def test_a_known_end_stops_imagined_episodes():
    known = task_from_env(Walk, terminated=lambda seen: seen[..., 0].abs() > 1)
    view = view_of(known)
    before = view.before(torch.tensor([[0.0, 0.0], [0.9, 0.0]]))
    forecast = torch.tensor([[0.2, 0.0, 0.0, 0.9], [0.2, 0.0, 0.0, 0.1]]) / view.units
    after = view.world.next_observation(before, forecast)
    assert after[:, -1].tolist() == [1.0, 0.0], "whatever the networks say of it"

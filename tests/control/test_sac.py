import importlib
import math
import random
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import SAC

from calibrl.control import sac, task, task_from_env
from calibrl.control.checkpoint import keep, unpack
from calibrl.control.policy import episode_seed
from calibrl.control.sac import Episode, Sac, SacSettings, train
from calibrl.errors import CalibrlError, MissingExtra

TINY = SacSettings(learning_starts=20, hidden=(16, 16), batch_size=16)


@pytest.fixture
def short():
    return replace(task("cartpole"), steps=20)


def test_the_algorithm_is_stable_baselines_own(short):
    """Episode by episode here, in one go there: the same returns."""

    class Seeded(gymnasium.Wrapper):
        count = 0

        def reset(self, **options):
            self.count += 1
            return self.env.reset(seed=episode_seed(4, self.count - 1))

    env = Seeded(TimeLimit(short.make(), 20))
    theirs = SAC(
        "MlpPolicy", env, seed=4, learning_starts=20, batch_size=16, buffer_size=80, device="cpu",
        policy_kwargs={"net_arch": [16, 16]},
    )  # fmt: skip
    theirs.learn(80)
    expected = [episode["r"] for episode in theirs.ep_info_buffer]
    found = list(train(short, steps=80, seed=4, settings=TINY))
    assert [episode.step for episode in found] == [20, 40, 60, 80]
    np.testing.assert_allclose([episode.earned for episode in found], expected, atol=1e-6)


@pytest.mark.parametrize(("batch", "threads"), [(16, 1), (200_000, 2)])
def test_a_small_learner_computes_in_one_thread_and_leaves_the_others_to_you(short, batch, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = []
    try:
        learner = Sac(short, seed=0, steps=20, settings=replace(TINY, batch_size=batch))
        learner.learn_episode(lambda _: seen.append(torch.get_num_threads()))
        learner._model.predict = lambda *_, **__: (seen.append(torch.get_num_threads()) or np.zeros(1), None)
        learner.act(np.zeros(5))
        learner.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {threads}


def test_defaults_are_the_published_ones():
    theirs = SAC("MlpPolicy", task("cartpole").make(), device="cpu", buffer_size=10)
    ours = sac.settings_for(task("cartpole"))
    assert (ours.lr, ours.learning_starts, ours.batch_size) == (
        theirs.learning_rate,
        theirs.learning_starts,
        theirs.batch_size,
    )
    assert (ours.tau, ours.gamma) == (theirs.tau, theirs.gamma)
    assert theirs.actor.latent_pi[0].out_features == ours.hidden[0]
    assert sac.settings_for(task("halfcheetah")).learning_starts == 10_000


def test_resumed_runs_end_with_the_same_episodes(short, tmp_path):
    whole = list(train(short, steps=100, seed=1, settings=TINY))
    file = tmp_path / "sac.pt"
    stopped = train(short, steps=100, seed=1, settings=TINY, checkpoint=file)
    assert [next(stopped), next(stopped)] == whole[:2]
    stopped.close()
    torch.manual_seed(99)
    np.random.default_rng(99)
    assert list(train(short, steps=100, seed=1, settings=TINY, checkpoint=file)) == whole
    # Finished: nothing is left to do.
    assert list(train(short, steps=100, seed=1, settings=TINY, checkpoint=file)) == whole
    assert [p.name for p in tmp_path.iterdir()] == ["sac.pt"]
    assert whole != list(train(short, steps=100, seed=2, settings=TINY))


def test_a_finished_run_goes_on_for_more_steps(short, tmp_path):
    file = tmp_path / "sac.pt"
    for steps in (60, 100):
        found = list(train(short, steps=steps, seed=1, settings=TINY, checkpoint=file))
    assert found == list(train(short, steps=100, seed=1, settings=TINY))
    with pytest.raises(CalibrlError, match="has made 100 steps, more than 60; ask for as many"):
        list(train(short, steps=60, seed=1, settings=TINY, checkpoint=file))


def test_resume_without_a_file_starts_afresh(short, tmp_path):
    fresh = list(train(short, steps=20, seed=0, settings=TINY, checkpoint=tmp_path / "a.pt"))
    assert len(fresh) == 1


def test_global_chance_is_left_alone(short):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(1))  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    learning = train(short, steps=60, seed=0, settings=TINY)
    first = next(learning)
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected  # noqa: NPY002
    # And what others draw meanwhile changes nothing here.
    assert [first, *learning] == list(train(short, steps=60, seed=0, settings=TINY))


def test_progress_hears_every_step_and_a_cut_episode_is_none(short):
    heard = []
    found = list(train(short, steps=30, seed=0, settings=TINY, progress=heard.append))
    assert heard == list(range(1, 31))
    assert [episode.step for episode in found] == [20]


def test_the_policy_acts_within_bounds(short):
    learner = Sac(short, seed=0, steps=20, settings=TINY)
    assert isinstance(learner.learn_episode(), Episode)
    action = learner.act(np.zeros(4))
    assert action.shape == (1,)
    assert abs(float(action[0])) <= 3
    learner.close()


class Ends(gymnasium.Env):
    """Over after seven steps."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, nan=False):
        self.nan = nan

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        seen = np.full(1, np.nan if self.nan and self.steps == 5 else 0.1, np.float32)
        return seen, np.array([1.0]), np.array([self.steps == 7]), False, {}


@pytest.mark.parametrize("nan", [False, True])
def test_episodes_that_terminate_and_physics_that_diverges(nan):
    env_id = f"calibrl-tests/SacEnds{nan}-v0"
    gymnasium.register(env_id, entry_point=Ends, kwargs={"nan": nan})
    try:
        learning = train(task_from_env(env_id), steps=22, seed=0, settings=TINY)
        if nan:
            with pytest.raises(CalibrlError, match=r"observed \[nan\] .* at step 5 of episode 1, which is not finite"):
                list(learning)
        else:
            assert list(learning) == [(7, 7.0), (14, 7.0), (21, 7.0)]
    finally:
        del gymnasium.registry[env_id]


def test_checkpoints_that_do_not_fit(short, tmp_path):
    file = tmp_path / "sac.pt"
    list(train(short, steps=20, seed=0, settings=TINY, checkpoint=file))
    before = file.read_bytes()

    def resume(chosen, **changes):
        return list(train(chosen, **{"steps": 20, "seed": 0, "settings": TINY, **changes}, checkpoint=file))

    with pytest.raises(CalibrlError, match="made with seed 0, this run has 1"):
        resume(short, seed=1)
    with pytest.raises(CalibrlError, match="made with env_id 'calibrl/Cartpole-v0'"):
        resume(task("reacher"))
    with pytest.raises(CalibrlError, match="made with episode 20, this run has 10"):
        resume(replace(short, steps=10))
    with pytest.raises(CalibrlError, match="made with batch_size 16"):
        resume(short, settings=replace(TINY, batch_size=8))
    assert file.read_bytes() == before
    keep(file, {"format": "other"})
    with pytest.raises(CalibrlError, match="has format 'other'"):
        resume(short)
    file.write_bytes(before[:1000])
    with pytest.warns(UserWarning, match=r"sac.pt is damaged \(.*\): what it held is done again"):
        assert resume(short)
    assert file.stat().st_size == len(before)
    with pytest.raises(CalibrlError, match="steps 0 teach nothing"):
        list(train(short, steps=0, seed=0))


@pytest.mark.parametrize("part", ["step", "identity", "memory", "networks", "entropy", "episodes", "streams", "space"])
def test_parts_that_no_learner_has_are_refused_in_one_line(short, tmp_path, part):
    learner, file = Sac(short, steps=20, seed=0, settings=TINY), tmp_path / "sac.pt"
    learner.save(file)
    keep(file, {**unpack(file), part: "x"})
    with pytest.raises(CalibrlError, match=r"sac.pt cannot be read \(.*\); remove it to start afresh"):
        learner.load(file)


def test_networks_that_are_not_finite_are_refused(short, tmp_path):
    learner, file = Sac(short, steps=20, seed=0, settings=TINY), tmp_path / "sac.pt"
    learner.save(file)
    state = unpack(file)
    next(iter(state["networks"]["policy"].values())).fill_(math.nan)
    keep(file, state)
    with pytest.raises(CalibrlError, match="a number in it is not finite"):
        learner.load(file)


def test_without_stable_baselines_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "calibrl.control.sac")
    with pytest.raises(MissingExtra, match=r"stable-baselines3 is not installed; run: pip install 'calibrl\[sac\]'"):
        importlib.import_module("calibrl.control.sac")

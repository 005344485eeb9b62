"""Tasks: tables that are Gymnasium's own, mazes that can be solved, rows that follow the truth."""

import builtins

import numpy as np
import pytest
import torch

from calibrl.data import Data
from calibrl.errors import CalibrlError, MissingExtra
from calibrl.forecasters.linear import SoftmaxTransitions, TabularTransitions
from calibrl.mdp import check_reachable, maze
from calibrl.mdp.problems import GYM_TASKS, gym_task
from calibrl.planning.value_iteration import policy_value, value_iteration


@pytest.mark.parametrize("name", GYM_TASKS)
def test_gym_tables_value_a_policy_as_the_environment_itself_does(name):
    """The evenly random policy's value, against backups over the environment's own table."""
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    assert gymnasium
    make = {
        "frozen-lake": lambda: FrozenLakeEnv(map_name="8x8"),
        "cliff-walking": lambda: CliffWalkingEnv(is_slippery=True),
        "taxi": lambda: TaxiEnv(is_rainy=True),
    }
    env = make[name]()
    task = gym_task(name, discount=0.9)
    check_reachable(task.mdp(), task.start)
    value = np.zeros(len(env.P))
    for _ in range(250):
        value = np.array(
            [
                np.mean(
                    [sum(p * (r + 0.9 * (not over) * value[to]) for p, to, r, over in env.P[s][a]) for a in env.P[s]]
                )
                for s in env.P
            ]
        )
    found = task.start @ policy_value(task.mdp(), np.full((task.states, task.actions), 1 / task.actions))
    assert found == pytest.approx(env.initial_state_distrib @ value, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_mazes_can_be_solved_and_hold_no_lost_states(seed):
    task = maze(9, generator=np.random.default_rng(seed))
    check_reachable(task.mdp(), task.start)
    best = task.start @ value_iteration(task.mdp()).value
    even = task.start @ policy_value(task.mdp(), np.full((task.states, 4), 0.25))
    assert best > max(even, 0) + 0.01


def test_rows_follow_the_truth_and_a_table_learns_it():
    task = maze(4, generator=np.random.default_rng(0))
    rows = task.sample(60_000, np.random.default_rng(1))
    table = TabularTransitions(task.states, task.actions, task.effects)
    table.update(rows)
    believed = task.imagine(table)
    # All but the end, of which there are no rows.
    gap = np.abs(believed.to_dense() - task.mdp().to_dense())[:-1]
    assert gap.max() < 0.06
    assert value_iteration(believed).value @ task.start == pytest.approx(
        value_iteration(task.mdp()).value @ task.start, abs=0.05
    )


def test_coarse_features_cannot_see_everything():
    task = maze(8, generator=np.random.default_rng(2))
    model = SoftmaxTransitions(task.coarse, task.actions, task.effects)
    model.update(task.sample(2000, np.random.default_rng(3)))
    gap = np.abs(task.imagine(model).to_dense() - task.mdp().to_dense())[:-1]
    assert 0.05 < gap.max() < 1


def test_samples_repeat_with_the_seed():
    task = maze(5, generator=np.random.default_rng(0))
    one, two = (task.sample(50, np.random.default_rng(7)) for _ in range(2))
    assert isinstance(one, Data)
    torch.testing.assert_close(one.y, two.y)


def test_unknown_tasks_and_small_mazes_are_refused():
    with pytest.raises(CalibrlError, match="'lake' is unknown; known: frozen-lake"):
        gym_task("lake")
    with pytest.raises(CalibrlError, match="size 2 leaves no room"):
        maze(2, generator=np.random.default_rng(0))


def test_without_gymnasium_the_cure_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("gymnasium"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"calibrl\[control\]"):
        gym_task("taxi")

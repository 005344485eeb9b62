import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrl import CalibrlError
from calibrl.inventory.loop import BatchedTrajectories, batched_costs
from calibrl.inventory.policy import RandomTrajectories
from calibrl.inventory.store import Rules
from calibrl.kernels.stock import RANDOM, open_loop_reference


@given(seed=st.integers(0, 1000), life=st.integers(1, 6), days=st.integers(1, 6))
def test_costs_are_those_of_the_reference(seed, life, days):
    generator = np.random.default_rng(seed)
    demand, orders = generator.poisson(9, (2, 15, days)), generator.integers(0, 25, (2, 20, days))
    stock = generator.integers(0, 9, (2, life))
    given_, plans, shelf = (torch.from_numpy(part).double() for part in (demand, orders, stock))
    found = batched_costs(plans, given_, shelf, waste=1.5, unmet=2.0)
    for i in range(2):
        wanted = open_loop_reference(orders[i], demand[i], stock[i], waste=1.5, unmet=2.0, issuing=RANDOM)
        np.testing.assert_allclose(found[i], wanted, rtol=1e-9, atol=1e-9)


def test_the_fleet_searches_as_one_planner_does():
    generator = np.random.default_rng(1)
    paths = np.round(generator.normal(100, 15, (4, 200, 3)).clip(min=0))
    stock = np.tile(np.array([10, 20, 0]), (4, 1))
    planner = RandomTrajectories(trajectories=4000)
    fleet = BatchedTrajectories(planner, device="cpu", seed=3)
    np.testing.assert_array_equal(fleet(paths, stock, 5), fleet(paths, stock, 5))
    orders = np.array([fleet(paths, stock, evening) for evening in range(10)])
    alone = np.array([[planner(paths[i], stock[i], rng=np.random.default_rng(k)) for i in range(4)] for k in range(10)])
    assert orders.std() > 0
    assert orders.mean() == pytest.approx(alone.mean(), rel=0.06)


def test_rules_it_cannot_plan_for_are_refused():
    with pytest.raises(CalibrlError, match="use device cpu"):
        BatchedTrajectories(RandomTrajectories(rules=Rules(pack=6)), device="cpu", seed=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_finds_what_the_cpu_finds():
    generator = np.random.default_rng(1)
    demand, orders = generator.poisson(50, (3, 300, 5)), generator.integers(0, 100, (3, 500, 5))
    stock = generator.integers(0, 20, (3, 3))
    parts = [torch.from_numpy(part).float() for part in (orders, demand, stock)]
    here = batched_costs(*parts, waste=1.0, unmet=1.0)
    fleet = BatchedTrajectories(RandomTrajectories(), device="cuda", seed=0)
    there = fleet._costs(*(part.cuda() for part in parts))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-3)

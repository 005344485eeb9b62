"""A season learnt evening by evening for many series, and the paper's planner for all of them on a GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from calibrl import Calibrated, CalibrlError, Data, learn
from calibrl.evidence import Newest
from calibrl.inventory.demand import Features, Forecasts
from calibrl.inventory.loop import BatchedTrajectories, batched_costs, collect_season
from calibrl.inventory.policy import RandomTrajectories
from calibrl.inventory.problems import Rules
from calibrl.kernels.stock import RANDOM
from calibrl.maps import IDENTITY, fit_smooth
from tests.kernels.references import open_loop_reference

# A season, evening by evening.


def memory(days=80, series=20):
    """Forecasts that are right for 50 days; then demand rises by two of their standard deviations."""
    day = np.repeat(np.arange(days), series)
    shift = torch.from_numpy(np.where(day[:, None] + np.arange(1, 4) > 50, 2.0, 0.0))
    z = torch.randn(len(day), 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64) + shift
    rows = Features(Data(torch.zeros(len(day), 1), 10 + z), np.tile(np.arange(series), days), day, np.ones(series), ())
    margins = Normal(torch.full_like(z, 10.0), torch.ones_like(z))
    return Forecasts(rows, margins, torch.zeros(len(day), 3, 2, dtype=torch.int64), z)


def season(memory, rounds, **evidence):
    """The maps in force on the evening before each day, from day 1 on."""
    model = Calibrated(memory, evidence=Newest(taught=True, **evidence), fit_map=fit_smooth, judge=memory.judge)
    return [one.forecast.mapping for one in learn(collect_season(memory, first=1), model, rounds=rounds)]


def test_a_map_knows_only_days_that_have_ended():
    made = memory()
    spoilt = memory()
    spoilt.z[torch.from_numpy(made.rows.day[:, None] + np.arange(1, 4)) > 60] = 99.0
    p = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)[:, None].expand(-1, 3)
    for evidence in ({"warm_up": 59}, {"updates": 28, "refit_every": 7, "warm_up": 59}):
        # The map of the evening of day 60 is that before day 61.
        honest, wrong = (season(one, 61, **evidence)[60] for one in (made, spoilt))
        torch.testing.assert_close(honest(p), wrong(p))


def test_a_map_is_that_of_the_days_it_is_learnt_from():
    made = memory()
    found = season(made, 61, updates=28, warm_up=59)[60]
    target = torch.from_numpy(made.rows.day[:, None] + np.arange(1, 4))
    wanted = fit_smooth(z=torch.where((target <= 60) & (target > 60 - 28), made.z, torch.nan))
    p = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)[:, None].expand(-1, 3)
    torch.testing.assert_close(found(p), wanted(p))


def test_a_map_that_is_learnt_again_follows_drift():
    made = memory()
    once, weekly = season(made, 76, refit_every=99, warm_up=44), season(made, 76, updates=14, refit_every=7, warm_up=44)
    assert once[44] == weekly[44] == IDENTITY
    assert once[45] is once[75]
    assert weekly[45] is weekly[51]
    assert weekly[45] is not weekly[52]
    half = torch.full((1, 3), 0.5, dtype=torch.float64)
    assert float(once[75](half).mean()) == pytest.approx(0.5, abs=0.1)
    # Half of the outcomes used to lie below the forecast's median; now a fortieth do.
    assert float(weekly[75](half).mean()) < 0.1


def test_a_season_ends_where_nothing_was_forecast():
    with pytest.raises(CalibrlError, match="before day 81"):
        list(learn(collect_season(memory(), first=1), memory(), rounds=81))


# The paper's planner for all series at once.


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

"""Planning one action for several agents: whose chance a plan needs, what is remembered, what a CUDA graph needs."""

import numpy as np
import pytest
import torch

from calibrl.control.problems import task
from calibrl.control.settings import PRESETS
from calibrl.errors import CalibrlError
from calibrl.forecasters.nets import Nets, Shape
from calibrl.maps import fit_smooth
from calibrl.planning.candidates import refuse_lost_plans
from calibrl.planning.graph import CapturedPlanner, PlanInputs, Planner, for_device
from calibrl.planning.rollout import stacked_tables
from calibrl.planning.search import CEM, ICEM, MPPI, Bounds, RandomShooting

LOW, HIGH, H, G = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), 4, 3
BOUNDS = Bounds(LOW, HIGH, horizon=H)
TARGETS = 0.5 * torch.randn(G, H, 2, generator=torch.Generator().manual_seed(9))
SIZE = {"population_size": 24, "iterations": 3}
SEARCHES = {
    "cem": CEM(elites=5, **SIZE),
    "icem": ICEM(elites=5, keep_elites=0.4, population_decay=1.0, **SIZE),
    "mppi": MPPI(temperature=0.1, **SIZE),
    "random": RandomShooting(**SIZE),
}
EVERY = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def inputs_for(search, *, agents=G, device="cpu"):
    sizes = {"agents": agents, "observation_size": 2, "outputs": 1}
    return PlanInputs.empty(search, propagation="DS", particles=2, start=BOUNDS.middle.to(device), tables=None, **sizes)


def generators(agents=range(G)):
    return [torch.Generator().manual_seed(agent) for agent in agents]


def near(targets):
    """The nearer to an agent's target the better, and a little chance: what an iteration's particles say."""

    def value(plans, noise):
        luck = noise.sum((1, 3)).unflatten(1, (plans.shape[1], -1)).mean(2)
        return -(plans - targets[:, None]).square().sum((2, 3)) + 0.01 * luck

    return value


def planned(inputs, value, low=LOW, high=HIGH):
    given = {"start": inputs.start, "elites": inputs.elites, "noise": inputs.search_noise}
    return inputs.search.search_batch(lambda plans, i: value(plans, inputs.particle_noise[i]), low, high, **given)


def acts(search, agents, *, begins=()):
    """The plans of three actions in a row, for agents that may begin again before some of them."""
    inputs, luck, plans = inputs_for(search, agents=len(agents)), generators(agents), []
    for action in range(3):
        again = [place for place, agent in enumerate(agents) if (action, agent) in begins]
        inputs.begin(again, BOUNDS.middle)
        inputs.draw(luck)
        found = planned(inputs, near(TARGETS[list(agents)]))
        inputs.go_on(found)
        plans.append(refuse_lost_plans(found.plan))
    return torch.stack(plans, 1)


@EVERY
def test_an_agent_plans_alone_as_beside_others(search):
    """Also when others begin anew, or it does itself, in the middle of theirs."""
    begins = {(1, 0), (2, 2)}
    together = acts(search, range(G), begins=begins)
    for agent in range(G):
        torch.testing.assert_close(together[agent : agent + 1], acts(search, [agent], begins=begins))
    assert not torch.equal(together[0, 0], together[1, 0])


@EVERY
def test_plans_stay_within_bounds_and_come_near_the_best(search):
    plans = acts(search, range(G))
    assert bool(((plans >= LOW) & (plans <= HIGH)).all())
    away = (plans[:, -1] - TARGETS).square().sum((1, 2))
    drawn = LOW + torch.rand(1000, 1, H, 2, generator=torch.Generator().manual_seed(0)) * (HIGH - LOW)
    assert bool((away < (drawn - TARGETS).square().sum((2, 3)).quantile(0.05, 0)).all())


def test_random_takes_the_best_plan_of_all_iterations():
    inputs = inputs_for(SEARCHES["random"])
    inputs.draw(generators())
    inputs.particle_noise.zero_()
    found = planned(inputs, near(TARGETS))
    for agent in range(G):
        tried = (LOW + inputs.search_noise[:, agent].flatten(0, 1) * (HIGH - LOW)).numpy()
        distance = ((tried - TARGETS[agent].numpy()) ** 2).sum((1, 2))
        np.testing.assert_allclose(found.plan[agent], tried[distance.argmin()])


def test_icem_remembers_its_elites_until_an_episode_begins():
    inputs, seen = inputs_for(SEARCHES["icem"]), []

    def value(plans, noise):
        seen.append(plans)
        return near(TARGETS)(plans, noise)

    assert inputs.elites.shape == (G, 2, H, 2)
    for _ in range(2):
        inputs.draw(generators())
        seen.clear()
        known = inputs.elites.clone()
        inputs.go_on(planned(inputs, value))
        assert [len(plans[0]) for plans in seen] == [24, 24, 24]
    assert torch.equal(seen[0][:, -2:, :-1], known[:, :, :-1])
    inputs.begin([1], BOUNDS.middle)
    assert inputs.elites.isnan().flatten(1).all(1).tolist() == [False, True, False]


@EVERY
def test_a_search_reads_no_number_back(search):
    """On tensors without numbers anything that looks at one fails; so does a shape that depends on one."""
    inputs = inputs_for(search, device="meta")
    found = planned(inputs, near(TARGETS.to("meta")), LOW.to("meta"), HIGH.to("meta"))
    assert found.plan.shape == found.start.shape == inputs.start.shape
    assert found.elites.shape == inputs.elites.shape


@EVERY
def test_an_objective_that_is_not_finite_is_refused_by_name(search):
    inputs = inputs_for(search)
    inputs.draw(generators())
    whole = planned(inputs, near(TARGETS)).plan

    def broken(plans, noise):
        value = near(TARGETS)(plans, noise)
        value[1, 3] = torch.inf
        return value

    plans = planned(inputs, broken).plan
    torch.testing.assert_close(plans[[0, 2]], whole[[0, 2]])
    with pytest.raises(CalibrlError, match="the objective of agent 1 was not finite"):
        refuse_lost_plans(plans)


def planner_of(nets, inputs, where, **options):
    return Planner(nets, where.world, inputs, low=where.low, high=where.high, **options)


def cartpole(search, hidden=(8,)):
    where = task("cartpole")
    shape = Shape(where.input_size, where.target_size, hidden=hidden, members=2)
    nets = [Nets.fresh(shape, [torch.Generator().manual_seed(seed)]) for seed in (0, 1)]
    start = torch.zeros(4, where.action_size)
    sizes = {"agents": 1, "observation_size": where.observation_size, "outputs": where.target_size}
    inputs = PlanInputs.empty(search, propagation="DS", particles=2, start=start, tables=None, **sizes)
    inputs.draw([torch.Generator().manual_seed(2)])
    return where, inputs, *nets


def test_plans_are_of_the_networks_last_shown():
    where, inputs, nets, others = cartpole(CEM(population_size=12, elites=3, iterations=2))
    plan = for_device(planner_of(nets, inputs, where))
    before, after = plan().plan, planner_of(others, inputs, where)().plan
    assert not torch.equal(before, after)
    for part, new in zip(nets.tensors(), others.tensors(), strict=True):
        part.copy_(new)
    plan.networks_changed()
    assert torch.equal(plan().plan, after)


def test_a_shrinking_population_is_judged_by_the_first_particles():
    where, inputs, nets, _ = cartpole(ICEM(population_size=12, elites=2, population_decay=2.0))
    found = planner_of(nets, inputs, where)().plan
    # 12, 6 and 4 plans of 2 particles.
    for iteration, plans in enumerate((12, 6, 4)):
        inputs.particle_noise[iteration, :, :, 2 * plans :] = torch.nan
    assert torch.equal(planner_of(nets, inputs, where)().plan, found)
    assert found.isfinite().all()


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
@pytest.mark.parametrize("method", SEARCHES)
@torch.no_grad()
def test_a_captured_search_finds_what_the_plain_one_finds(method):
    nets, inputs, where = _on_gpu(method)
    plain = planner_of(nets, inputs, where, fused=False)
    captured = CapturedPlanner(plain)
    for seed in range(3):
        inputs.draw([torch.Generator("cuda").manual_seed(10 * seed + agent) for agent in range(2)])
        want = plain().plan.clone()
        torch.testing.assert_close(captured().plan, want, rtol=1e-3, atol=1e-3)


@on_gpu
@pytest.mark.filterwarnings("default")  # compilers have warnings of their own
@pytest.mark.parametrize("method", SEARCHES)
@torch.no_grad()
def test_a_search_with_fused_kernels_finds_plans_within_the_bounds(method):
    nets, inputs, where = _on_gpu(method)
    fused = for_device(planner_of(nets, inputs, where))
    for seed in range(3):
        inputs.draw([torch.Generator("cuda").manual_seed(10 * seed + agent) for agent in range(2)])
        plan = fused().plan
        assert plan.isfinite().all()
        assert ((plan >= where.low) & (plan <= where.high)).all()


def _on_gpu(method):
    from dataclasses import replace

    planner, where = replace(PRESETS["cartpole-small"].planner, method=method), task("cartpole")
    where = replace(where, low=where.low.cuda(), high=where.high.cuda())
    shape = Shape(where.input_size, where.target_size, (60, 60, 60), 5)
    nets = Nets.fresh(shape, [torch.Generator().manual_seed(seed) for seed in range(2)]).to("cuda")
    nets.weights[-1].mul_(0.01)
    mapping = fit_smooth(z=1.5 * torch.randn(500, shape.outputs, generator=torch.Generator().manual_seed(0)))
    inputs = PlanInputs.empty(
        planner.search,
        propagation="DS",
        particles=planner.particles,
        agents=2,
        observation_size=where.observation_size,
        outputs=shape.outputs,
        start=((where.low + where.high) / 2).expand(planner.horizon, -1),
        tables=stacked_tables([mapping] * 2, shape.outputs, device="cuda"),
    )
    return nets, inputs, where

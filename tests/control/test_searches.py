"""Every planner a preset can name: what it finds, whose luck it needs, what it remembers, what it refuses."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrl.control import task
from calibrl.control.agent import Agent
from calibrl.control.plan import PlanInputs, plan_fleet
from calibrl.control.searches import METHODS
from calibrl.control.settings import METHODS as NAMES
from calibrl.control.settings import EnsembleSettings, PlannerSettings
from calibrl.errors import CalibrlError
from calibrl.planning.path_integral import PathIntegral, path_integral
from calibrl.planning.search import Bounds, CrossEntropy
from calibrl.planning.side_by_side import cross_entropy_fleet, refuse_lost_plans

LOW, HIGH, H, G = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), 4, 3
BOUNDS = Bounds(LOW, HIGH, horizon=H)
TARGETS = 0.5 * torch.randn(G, H, 2, generator=torch.Generator().manual_seed(9))
SETTINGS = PlannerSettings(horizon=H, population=24, elites=5, sweeps=3, particles=2, kept=0.4, temperature=0.1)
EVERY = pytest.mark.parametrize("method", METHODS)


def named(method):
    return replace(SETTINGS, method=method)


def inputs_for(settings, *, agents=G, device="cpu"):
    start = BOUNDS.middle.to(device)
    return PlanInputs.empty(settings, agents=agents, observation_size=2, outputs=1, start=start, tables=None)


def generators(agents=range(G)):
    return [torch.Generator().manual_seed(agent) for agent in agents]


def returns_of(targets):
    """The nearer to an agent's target the better, and a little chance: what a sweep's particles say."""

    def returns(plans, noise):
        luck = noise.sum((1, 3)).unflatten(1, (plans.shape[1], -1)).mean(2)
        return -(plans - targets[:, None]).square().sum((2, 3)) + 0.01 * luck

    return returns


def acts(settings, agents, *, begins=()):
    """The plans of three actions in a row, for agents that may begin again before some of them."""
    inputs, luck, plans = inputs_for(settings, agents=len(agents)), generators(agents), []
    for action in range(3):
        again = [place for place, agent in enumerate(agents) if (action, agent) in begins]
        inputs.begin(again, BOUNDS.middle)
        inputs.draw(luck)
        found = plan_fleet(returns_of(TARGETS[list(agents)]), inputs, settings, LOW, HIGH)
        inputs.go_on(found)
        plans.append(refuse_lost_plans(found.plan))
    return torch.stack(plans, 1)


def test_every_name_has_a_search():
    assert tuple(METHODS) == NAMES


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(CalibrlError, match=r"planner\.method 'cma' is unknown; use one of cem, icem, mppi, random"):
        PlannerSettings(method="cma")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": -1.0}, r"planner\.colour -1\.0 must be at least 0"),
        ({"spread": 0.0}, r"planner\.spread 0\.0 and planner\.temperature 0\.1 above 0"),
        ({"temperature": 0.0}, r"planner\.temperature 0\.0 above 0"),
        ({"kept": 1.0}, r"planner\.kept 1\.0 is not a share in \[0, 1\)"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    with pytest.raises(CalibrlError, match=message):
        PlannerSettings(**change)


@EVERY
def test_an_agent_plans_alone_as_in_company(method):
    """Also when others begin anew, or it does itself, in the middle of theirs."""
    begins = {(1, 0), (2, 2)}
    together = acts(named(method), range(G), begins=begins)
    for agent in range(G):
        torch.testing.assert_close(together[agent : agent + 1], acts(named(method), [agent], begins=begins))
    assert not torch.equal(together[0, 0], together[1, 0])


@EVERY
def test_plans_stay_within_bounds_and_come_near_the_best(method):
    plans = acts(named(method), range(G))
    assert bool(((plans >= LOW) & (plans <= HIGH)).all())
    away = (plans[:, -1] - TARGETS).square().sum((1, 2))
    drawn = LOW + torch.rand(1000, 1, H, 2, generator=torch.Generator().manual_seed(0)) * (HIGH - LOW)
    assert bool((away < (drawn - TARGETS).square().sum((2, 3)).quantile(0.05, 0)).all())


def test_cem_is_the_cross_entropy_method_bit_for_bit():
    settings = named("cem")
    inputs = inputs_for(settings)
    how = CrossEntropy(population=24, elites=5, sweeps=3)
    start = BOUNDS.middle.expand(G, H, 2)
    luck = generators()
    for _ in range(3):
        inputs.draw(luck)
        particles = iter(inputs.particles)
        returns = returns_of(TARGETS)
        wanted = cross_entropy_fleet(
            lambda plans, r=returns, p=particles: r(plans, next(p)), LOW, HIGH, how, start, inputs.search
        )
        found = plan_fleet(returns, inputs, settings, LOW, HIGH)
        assert torch.equal(found.plan, wanted)
        inputs.go_on(found)
        start = torch.cat([wanted[:, 1:], BOUNDS.middle[-1:].expand(G, 1, 2)], 1)
        assert torch.equal(inputs.start, start)


def test_mppi_is_the_path_integral_of_each_agent():
    inputs = inputs_for(named("mppi"))
    inputs.particles.zero_()
    for agent, generator in enumerate(generators()):
        noise = torch.randn(3, 24, H, 2, generator=generator)
        inputs.search[:, agent] = noise
        sweeps = iter(noise)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randn", lambda *_, sweeps=sweeps, **__: next(sweeps))
            wanted = path_integral(
                lambda plans, agent=agent: -(plans - TARGETS[agent]).square().sum((1, 2)),
                BOUNDS,
                settings=PathIntegral(population=24, sweeps=3, temperature=0.1, spread=0.5),
            )
        found = plan_fleet(returns_of(TARGETS), inputs, named("mppi"), LOW, HIGH)
        torch.testing.assert_close(found.plan[agent], wanted)


def test_random_takes_the_best_plan_of_all_sweeps():
    settings = named("random")
    inputs = inputs_for(settings)
    inputs.draw(generators())
    inputs.particles.zero_()
    found = plan_fleet(returns_of(TARGETS), inputs, settings, LOW, HIGH)
    for agent in range(G):
        tried = (LOW + inputs.search[:, agent].flatten(0, 1) * (HIGH - LOW)).numpy()
        distance = ((tried - TARGETS[agent].numpy()) ** 2).sum((1, 2))
        np.testing.assert_allclose(found.plan[agent], tried[distance.argmin()])


def test_icem_remembers_its_elites_until_an_episode_begins():
    settings = named("icem")
    inputs, seen = inputs_for(settings), []

    def returns(plans, noise):
        seen.append(plans)
        return returns_of(TARGETS)(plans, noise)

    assert inputs.elites.shape == (G, 2, H, 2)
    for _ in range(2):
        inputs.draw(generators())
        seen.clear()
        known = inputs.elites.clone()
        inputs.go_on(plan_fleet(returns, inputs, settings, LOW, HIGH))
        assert [len(plans[0]) for plans in seen] == [24, 24, 24]
    assert torch.equal(seen[0][:, -2:, :-1], known[:, :, 1:])
    inputs.begin([1], BOUNDS.middle)
    assert inputs.elites.isnan().flatten(1).all(1).tolist() == [False, True, False]


@EVERY
def test_a_search_reads_no_number_back(method):
    """On tensors without numbers anything that looks at one fails; so does a shape that depends on one."""
    settings = named(method)
    inputs = inputs_for(settings, device="meta")
    found = plan_fleet(returns_of(TARGETS.to("meta")), inputs, settings, LOW.to("meta"), HIGH.to("meta"))
    assert found.plan.shape == found.start.shape == inputs.start.shape
    assert found.elites.shape == inputs.elites.shape


@EVERY
def test_an_objective_that_is_not_finite_is_refused_by_name(method):
    settings = named(method)
    inputs = inputs_for(settings)
    inputs.draw(generators())
    whole = plan_fleet(returns_of(TARGETS), inputs, settings, LOW, HIGH).plan

    def broken(plans, noise):
        value = returns_of(TARGETS)(plans, noise)
        value[1, 3] = torch.inf
        return value

    plans = plan_fleet(broken, inputs, settings, LOW, HIGH).plan
    torch.testing.assert_close(plans[[0, 2]], whole[[0, 2]])
    with pytest.raises(CalibrlError, match="the objective of agent 1 was not finite"):
        refuse_lost_plans(plans)


@EVERY
def test_an_agent_goes_on_from_a_file_in_the_middle_of_an_episode(method, tmp_path):
    def agent():
        return Agent(
            task("cartpole"),
            ensemble=EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=1),
            planner=PlannerSettings(horizon=3, population=8, elites=4, sweeps=2, particles=2, method=method),
        )

    first, rows = agent(), np.random.default_rng(0).normal(size=(11, 4))
    for before, after in itertools.pairwise(rows):
        first.observe(before, np.array([0.5]), after, 1.0)
    first.update()
    first.begin()
    for place in rows[:3]:
        first.act(place)
    first.save(tmp_path / "agent.pt")
    second = agent().load(tmp_path / "agent.pt")
    for place in rows[3:6]:
        np.testing.assert_array_equal(second.act(place), first.act(place))

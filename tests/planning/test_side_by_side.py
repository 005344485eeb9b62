"""A fleet's searches are its agents' searches, one by one."""

import pytest
import torch

from calibrl.errors import CalibrlError
from calibrl.planning.improved import Improved, ImprovedCrossEntropy, colouring, improved_cross_entropy
from calibrl.planning.path_integral import PathIntegral, path_integral
from calibrl.planning.search import Bounds, CrossEntropy, cross_entropy, random_shooting
from calibrl.planning.side_by_side import (
    cross_entropy_fleet,
    improved_cross_entropy_fleet,
    path_integral_fleet,
    random_shooting_fleet,
    refuse_lost_plans,
)

LOW, HIGH, H, G = torch.tensor([-1.0, -2.0]).double(), torch.tensor([1.0, 2.0]).double(), 3, 4
BOUNDS = Bounds(LOW, HIGH, horizon=H)
TARGETS = torch.randn(G, H, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def fleet_objective(plans):
    return -(plans - TARGETS[: len(plans), None]).square().sum((2, 3))


def objective(agent):
    return lambda plans: -(plans - TARGETS[agent]).square().sum((1, 2))


def generators():
    return [torch.Generator().manual_seed(i) for i in range(G)]


def drawn(draw, sweeps, *shape):
    """(sweeps, g, *shape): each agent's chance, sweep after sweep from its own generator."""
    per_agent = [
        torch.stack([draw(shape, generator=generator, dtype=torch.float64) for _ in range(sweeps)])
        for generator in generators()
    ]
    return torch.stack(per_agent, 1)


@pytest.mark.parametrize(
    "settings",
    [
        CrossEntropy(population=50, elites=5),
        CrossEntropy(population=50, elites=5, sweeps=12, smallest_variance=0.05),
        CrossEntropy(population=30, elites=3, sweeps=8, smallest_variance=0.02, keep_best=True),
    ],
    ids=["published", "some stop early", "keep best"],
)
def test_cross_entropy(settings):
    start = torch.randn(G, H, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = drawn(torch.rand, settings.sweeps, settings.population, H, 2)
    found = cross_entropy_fleet(fleet_objective, LOW, HIGH, settings, start, noise)
    for agent, generator in enumerate(generators()):
        alone = cross_entropy(objective(agent), BOUNDS, settings=settings, start=start[agent], generator=generator)
        torch.testing.assert_close(found[agent], alone)


def test_small_actions_are_searched():
    settings = CrossEntropy(population=50, elites=5, sweeps=3)
    low, high, noise = 1e-3 * LOW, 1e-3 * HIGH, drawn(torch.rand, 3, 50, H, 2)
    found = cross_entropy_fleet(
        lambda plans: plans.sum((2, 3)), low, high, settings, torch.zeros(G, H, 2).double(), noise
    )
    for agent, generator in enumerate(generators()):
        alone = cross_entropy(
            lambda plans: plans.sum((1, 2)),
            Bounds(low, high, H),
            settings=settings,
            start=torch.zeros(H, 2).double(),
            generator=generator,
        )
        torch.testing.assert_close(found[agent], alone)
    assert (found.mean((1, 2)) > 0.2 * high.mean()).all()


def test_an_agent_that_has_narrowed_stays_as_it_is():
    """Fewer sweeps of chance for everyone: who had stopped by then has the same plan."""
    settings = CrossEntropy(population=40, elites=4, sweeps=30, smallest_variance=0.05)
    noise = drawn(torch.rand, 30, 40, H, 2)
    start = BOUNDS.middle.expand(G, H, 2)
    long = cross_entropy_fleet(fleet_objective, LOW, HIGH, settings, start, noise)
    noise[25:] = torch.rand(5, G, 40, H, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    torch.testing.assert_close(cross_entropy_fleet(fleet_objective, LOW, HIGH, settings, start, noise), long)


def test_random_shooting():
    noise = drawn(torch.rand, 1, 60, H, 2)[0]
    found = random_shooting_fleet(fleet_objective, LOW, HIGH, noise)
    for agent, generator in enumerate(generators()):
        torch.testing.assert_close(
            found[agent], random_shooting(objective(agent), BOUNDS, plans=60, generator=generator)
        )


def test_path_integral():
    settings = PathIntegral(population=40, sweeps=3, temperature=0.5, control_cost=0.1)
    start = torch.randn(G, H, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = path_integral_fleet(fleet_objective, LOW, HIGH, settings, start, drawn(torch.randn, 3, 40, H, 2))
    for agent, generator in enumerate(generators()):
        alone = path_integral(objective(agent), BOUNDS, settings=settings, start=start[agent], generator=generator)
        torch.testing.assert_close(found[agent], alone)


def nothing_found(carried):
    """What a fleet begins from: the middle of the bounds, and elites nobody knows yet."""
    middle = BOUNDS.middle.expand(G, H, 2)
    return Improved(middle, middle, torch.full((G, carried, H, 2), torch.nan, dtype=torch.float64))


def test_improved_cross_entropy_over_time():
    settings = ImprovedCrossEntropy(population=30, elites=5, sweeps=3, kept=0.4)
    luck, own, alone = generators(), generators(), [None] * G
    last = nothing_found(carried=0)
    for step in range(3):
        # A plain search draws new plans, and for each old elite one more; the rest of a sweep's room is not looked at.
        drawn = [settings.drawn(0) + 2 * (step > 0), settings.drawn(1), settings.drawn(2)]
        noise = _by_agent([(G, n, H, 2) for n in drawn], luck)
        padded = [_with_room(part, room) for part, room in zip(noise, (0, 2, 3), strict=True)]
        last = improved_cross_entropy_fleet(fleet_objective, LOW, HIGH, settings, last, padded)
        for agent in range(G):
            alone[agent] = improved_cross_entropy(
                objective(agent), BOUNDS, settings=settings, last=alone[agent], generator=own[agent]
            )
            torch.testing.assert_close(last.plan[agent], alone[agent].plan)
            torch.testing.assert_close(last.mean[agent], alone[agent].mean)


def _with_room(noise, room):
    return torch.cat([noise, torch.full_like(noise[:, :1], torch.nan).expand(-1, room, -1, -1)], 1)


def test_elites_that_are_not_known_are_drawn():
    """An agent that begins among others that go on: in the room of its elites it tries new plans."""
    settings = ImprovedCrossEntropy(population=30, elites=5, sweeps=3, kept=0.4)
    noise = drawn(torch.randn, 3, 30, H, 2)
    first = nothing_found(settings.carried)
    seen = []

    def watched(plans):
        seen.append(plans)
        return fleet_objective(plans)

    found = improved_cross_entropy_fleet(watched, LOW, HIGH, settings, first, noise)
    spread = settings.spread * (HIGH - LOW) / 2
    coloured = torch.einsum("ts,gnsa->gnta", colouring(H, settings.colour), noise[0])
    torch.testing.assert_close(seen[0], (spread * coloured).clamp(LOW, HIGH))
    elites = found.elites[:, : settings.carried].clone()
    elites[1] = torch.nan
    mean = torch.where(torch.arange(G)[:, None, None] == 1, first.mean, found.mean)
    seen.clear()
    again = improved_cross_entropy_fleet(watched, LOW, HIGH, settings, Improved(mean, mean, elites), noise)
    torch.testing.assert_close(again.plan[1], found.plan[1])
    assert torch.equal(seen[0][[0, 2, 3], -2:, :-1], elites[[0, 2, 3], :, 1:])
    assert all(plans.shape == (G, 30, H, 2) for plans in seen)


def _by_agent(shapes, luck):
    """Noise for each sweep, each agent's from its own generator in the order that a single search draws it."""
    each = [
        [torch.randn(shape[1:], generator=generator, dtype=torch.float64) for shape in shapes] for generator in luck
    ]
    return [torch.stack(parts) for parts in zip(*each, strict=True)]


def test_a_lost_agent_is_named_and_the_others_are_not_harmed():
    settings = CrossEntropy(population=20, elites=2)
    noise, start = drawn(torch.rand, 5, 20, H, 2), BOUNDS.middle.expand(G, H, 2)

    def broken(plans):
        value = fleet_objective(plans)
        value[2, 3] = torch.nan
        return value

    plans = cross_entropy_fleet(broken, LOW, HIGH, settings, start, noise)
    whole = cross_entropy_fleet(fleet_objective, LOW, HIGH, settings, start, noise)
    others = [0, 1, 3]
    torch.testing.assert_close(plans[others], whole[others])
    assert plans[2].isnan().all()
    with pytest.raises(CalibrlError, match="the objective of agent 2 was not finite"):
        refuse_lost_plans(plans)
    assert refuse_lost_plans(whole) is whole


def test_wrong_shapes_are_refused():
    settings, start = CrossEntropy(population=20, elites=2), BOUNDS.middle.expand(G, H, 2)
    with pytest.raises(CalibrlError, match="does not fit the search; expected"):
        cross_entropy_fleet(fleet_objective, LOW, HIGH, settings, start, torch.rand(4, G, 20, H, 2))
    with pytest.raises(CalibrlError, match=r"gave shape \(4,\) for 4 agents of 20 plans"):
        cross_entropy_fleet(
            lambda plans: plans.sum((1, 2, 3)), LOW, HIGH, settings, start, drawn(torch.rand, 5, 20, H, 2)
        )

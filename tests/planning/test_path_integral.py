"""MPPI redone plan by plan."""

import math

import pytest
import torch

from calibrl.errors import CalibrlError
from calibrl.planning.path_integral import PathIntegral, path_integral
from calibrl.planning.search import Bounds, shifted

BOUNDS = Bounds(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), horizon=3)
TARGET = torch.tensor([[0.5, -1.0], [0.0, 1.5], [-0.6, 0.3]])


def closeness(plans):
    return -(plans - TARGET).square().sum((1, 2))


def test_published_update_redone_plan_by_plan():
    """Williams et al., equation by equation: cost, control cost, weights of exponentials, weighted noise."""
    seen = []

    def objective(plans):
        seen.append(plans)
        return closeness(plans)

    settings = PathIntegral(population=40, sweeps=2, temperature=0.7, spread=0.3, control_cost=0.2)
    start = torch.tensor([[0.3, 0.4], [0.0, -0.5], [0.1, 0.0]])
    found = path_integral(objective, BOUNDS, settings=settings, start=start, generator=torch.Generator().manual_seed(0))
    plan = start
    for plans in seen:
        cost = []
        for tried in plans:
            noise = tried - plan
            steering = sum(plan[t, i] * noise[t, i] / (0.3 * [1, 2][i]) ** 2 for t in range(3) for i in range(2))
            cost.append(-closeness(tried[None])[0] + 0.7 * 0.2 * steering)
        least = min(cost)
        weight = [math.exp(-(each - least) / 0.7) for each in cost]
        change = sum(w * (tried - plan) for w, tried in zip(weight, plans, strict=True)) / sum(weight)
        plan = plan + change
    torch.testing.assert_close(found, plan)


def test_comes_near_the_top_of_a_hill_over_time():
    generator = torch.Generator().manual_seed(1)
    flat = TARGET[:1].expand(3, 2)
    plan = None
    for _ in range(15):
        plan = path_integral(
            lambda plans: -(plans - flat).square().sum((1, 2)),
            BOUNDS,
            settings=PathIntegral(temperature=0.05),
            start=None if plan is None else shifted(plan, BOUNDS),
            generator=generator,
        )
    assert (plan[:2] - flat[:2]).abs().max() < 0.25


def test_a_colder_search_follows_the_best_plan():
    seen = []

    def objective(plans):
        seen.append(plans)
        return closeness(plans)

    found = path_integral(
        objective, BOUNDS, settings=PathIntegral(temperature=1e-4), generator=torch.Generator().manual_seed(2)
    )
    torch.testing.assert_close(found, seen[0][closeness(seen[0]).argmax()])
    assert ((seen[0] >= BOUNDS.low) & (seen[0] <= BOUNDS.high)).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PathIntegral(population=0), "population 0"),
        (lambda: PathIntegral(temperature=0), "temperature 0"),
        (lambda: path_integral(lambda p: p.sum((1, 2)) * math.nan, BOUNDS), "the objective is nan"),
        (lambda: path_integral(closeness, BOUNDS, start=torch.zeros(2, 2)), r"start of shape \(2, 2\)"),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

"""Searches find known optima, stay within bounds, and refuse nonsense."""

import pytest
import torch
from scipy import stats

from calibrl.errors import CalibrlError
from calibrl.planning.search import Bounds, CrossEntropy, cross_entropy, random_shooting, shifted

BOUNDS = Bounds(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), horizon=3)
TARGET = torch.tensor([[0.5, -1.0], [0.0, 1.9], [-0.9, 0.3]])


def closeness(plans):
    return -(plans - TARGET).square().sum((1, 2))


def test_cross_entropy_finds_the_top_of_a_hill():
    found = cross_entropy(
        closeness, BOUNDS, settings=CrossEntropy(sweeps=20), generator=torch.Generator().manual_seed(0)
    )
    assert (found - TARGET).abs().max() < 0.1


def test_published_update_step_for_step():
    """One sweep redone with SciPy's truncated normal moments: mean of the elites, population variance, inertia."""
    seen = []

    def objective(plans):
        seen.append(plans)
        return closeness(plans)

    settings = CrossEntropy(population=50, elites=5, sweeps=2)
    found = cross_entropy(objective, BOUNDS, settings=settings, generator=torch.Generator().manual_seed(1))
    mean, variance = torch.zeros(3, 2), torch.tensor([4.0, 16.0]).expand(3, 2) / 16
    for plans in seen:
        room = torch.minimum(mean - BOUNDS.low, BOUNDS.high - mean) / 2
        width = torch.minimum(room**2, variance).sqrt()
        assert ((plans - mean).abs() <= 2 * width + 1e-6).all()
        order = closeness(plans).argsort(descending=True)[:5]
        elite = plans[order]
        mean = 0.1 * mean + 0.9 * elite.mean(0)
        variance = 0.1 * variance + 0.9 * ((elite - elite.mean(0)) ** 2).mean(0)
    torch.testing.assert_close(found, mean)


def test_draws_follow_the_cut_normal():
    seen = []

    def objective(plans):
        seen.append(plans)
        return plans.sum((1, 2))

    bounds = Bounds(torch.tensor([-1.0], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64), horizon=1)
    cross_entropy(
        objective,
        bounds,
        settings=CrossEntropy(population=4000, sweeps=1),
        generator=torch.Generator().manual_seed(2),
    )
    # The start: mean 0, standard deviation ½, both from the bounds.
    assert stats.kstest(seen[0].flatten().numpy(), stats.truncnorm(-2, 2, scale=0.5).cdf).pvalue > 0.01


def test_never_leaves_the_bounds_and_warm_starts_are_clamped():
    seen = []

    def objective(plans):
        seen.append(plans)
        return plans.sum((1, 2))

    start = torch.full((3, 2), 9.0)
    cross_entropy(objective, BOUNDS, start=start, generator=torch.Generator().manual_seed(3))
    plans = torch.cat(seen)
    assert (plans >= BOUNDS.low).all()
    assert (plans <= BOUNDS.high).all()


def test_a_warm_start_goes_on_in_the_middle_of_the_bounds():
    torch.testing.assert_close(shifted(TARGET, BOUNDS), torch.cat([TARGET[1:], BOUNDS.middle[:1]]))
    # Bounds that do not hold zero, or end there: the last action is searched for like the others.
    for low in (0.0, 0.5):
        bounds = Bounds(torch.tensor([low]), torch.tensor([2.0]), horizon=3)
        start = shifted(torch.ones(3, 1), bounds)
        luck = torch.Generator().manual_seed(0)
        found = cross_entropy(lambda plans: -(plans - 1.5).square().sum((1, 2)), bounds, start=start, generator=luck)
        torch.testing.assert_close(found, torch.full((3, 1), 1.5), atol=0.05, rtol=0)


def test_keep_best_returns_the_best_plan_evaluated():
    seen = []

    def objective(plans):
        seen.append(plans)
        return closeness(plans)

    settings = CrossEntropy(population=30, elites=3, keep_best=True)
    found = cross_entropy(objective, BOUNDS, settings=settings, generator=torch.Generator().manual_seed(4))
    every = torch.cat(seen)
    torch.testing.assert_close(found, every[closeness(every).argmax()])


def test_stops_when_the_search_has_narrowed():
    calls = []

    def objective(plans):
        calls.append(1)
        return closeness(plans)

    settings = CrossEntropy(sweeps=500, smallest_variance=0.01)
    cross_entropy(objective, BOUNDS, settings=settings, generator=torch.Generator().manual_seed(5))
    assert len(calls) < 50


def test_small_actions_are_searched_as_large_ones_are():
    settings = CrossEntropy(population=50, elites=5, sweeps=4, smallest_variance=0.01)

    def found(unit):
        half = unit * torch.tensor([0.5])
        plan = cross_entropy(
            lambda plans: -(plans / unit - 0.3).square().sum((1, 2)),
            Bounds(-half, half, horizon=3),
            settings=settings,
            generator=torch.Generator().manual_seed(0),
        )
        return plan / unit

    torch.testing.assert_close(found(1e-3), found(1.0))
    assert (found(1e-3) > 0.1).all()


def test_random_shooting_returns_the_best_draw_and_repeats():
    one = random_shooting(closeness, BOUNDS, plans=500, generator=torch.Generator().manual_seed(6))
    two = random_shooting(closeness, BOUNDS, plans=500, generator=torch.Generator().manual_seed(6))
    torch.testing.assert_close(one, two)
    assert closeness(one[None]) > -3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: random_shooting(lambda p: p.sum((1, 2)) / 0, BOUNDS, plans=5), "the objective is -?inf for plan"),
        (lambda: cross_entropy(lambda p: p.sum((1, 2)) * float("nan"), BOUNDS), "the objective is nan for plan 0"),
        (lambda: cross_entropy(lambda p: p.sum(), BOUNDS), r"gave shape \(\) for 400 plans"),
        (lambda: random_shooting(closeness, BOUNDS, plans=0), "plans 0 is not"),
        (lambda: CrossEntropy(population=5, elites=6), "6 elites of 5 plans"),
        (lambda: CrossEntropy(sweeps=0), "sweeps 0"),
        (lambda: CrossEntropy(inertia=1.0), "inertia 1.0 is outside"),
        (lambda: Bounds(torch.tensor([1.0]), torch.tensor([0.0]), 3), "expected low < high"),
        (lambda: Bounds(torch.tensor([0.0]), torch.tensor([1.0]), 0), "horizon 0"),
        (lambda: cross_entropy(closeness, BOUNDS, start=torch.zeros(2, 2)), r"start of shape \(2, 2\)"),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

"""Chance constraints: the right probabilities, the right order, and a promise that is kept."""

import numpy as np
import pytest
import torch
from scipy import stats

from calibrl.errors import CalibrlError
from calibrl.maps import fit_smooth
from calibrl.planning.chance import ChanceConstraint, Imagined
from calibrl.planning.search import CEM, Bounds, RandomShooting

WALL = 1.0


def margin(states):
    return WALL - states[..., 0]


def walk(spread, particles=4000):
    """A one-step walk of the planned length with Gaussian error: going far is good, crossing the wall is not."""

    def imagine(plans):
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(particles, 1, 1, 1, generator=generator, dtype=torch.float64)
        states = plans[None] + spread * noise
        return Imagined(plans[:, 0, 0], states)

    return imagine


def test_probability_is_the_share_of_particles_that_stay_safe_all_along():
    states = torch.tensor([[[[0.0], [2.0]], [[0.0], [0.5]]], [[[0.0], [0.9]], [[3.0], [0.5]]]])
    found = ChanceConstraint(margin).probability(states)
    torch.testing.assert_close(found, torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_sets_may_be_true_and_false():
    states = torch.tensor([[[[0.0]], [[2.0]]]])
    found = ChanceConstraint(lambda s: s[..., 0] < WALL).probability(states)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert ChanceConstraint(margin).probability(torch.full((1, 1, 1, 1), WALL)).item() == 0  # on the wall is not safe


@pytest.mark.parametrize("search", ["shooting", "cross-entropy"])
def test_the_plan_found_goes_as_far_as_the_level_allows(search):
    """The farthest plan with P(x + 0.2 ε < 1) ≥ 0.9 is 1 - 0.2 Φ⁻¹(0.9)."""
    bounds = Bounds(torch.tensor([0.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64), horizon=1)
    objective = ChanceConstraint(margin, level=0.9)(walk(0.2))
    generator = torch.Generator().manual_seed(1)
    if search == "shooting":
        found = RandomShooting(population_size=3000).search(objective, bounds, generator=generator).plan
    else:
        found = CEM(iterations=10, keep_best=True).search(objective, bounds, generator=generator).plan
    assert found.item() == pytest.approx(1 - 0.2 * stats.norm.ppf(0.9), abs=0.02)


def test_safe_plans_come_first_then_the_safest():
    plans = torch.tensor([0.2, 0.6, 0.9, 1.0, 1.5], dtype=torch.float64).reshape(-1, 1, 1)
    score = ChanceConstraint(margin, level=0.9)(walk(0.2))(plans)
    assert score.argsort(descending=True).tolist() == [1, 0, 2, 3, 4]
    # However little a safe plan pays, and however much an unsafe one.
    states, values = walk(0.2)(plans).states, torch.tensor([-1e9, -1e3, 1e9, 1e3, 0.0], dtype=torch.float64)
    score = ChanceConstraint(margin, level=0.9)(lambda _: Imagined(values, states))(plans)
    assert score.argsort(descending=True).tolist() == [1, 0, 2, 3, 4]
    assert bool((score.abs() < 2).all())


def test_where_nothing_is_safe_the_safest_plan_is_taken():
    bounds = Bounds(torch.tensor([1.2], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64), horizon=1)
    objective = ChanceConstraint(margin, level=0.9)(walk(0.2))
    search = RandomShooting(population_size=500)
    found = search.search(objective, bounds, generator=torch.Generator().manual_seed(2)).plan
    assert found.item() < 1.25


def test_non_finite_values_stay_visible_to_the_planner():
    def imagine(plans):
        value, states = walk(0.2)(plans)
        return Imagined(value * float("inf"), states)

    bounds = Bounds(torch.tensor([0.0]), torch.tensor([2.0]), horizon=1)
    with pytest.raises(CalibrlError, match="finite"):
        RandomShooting(population_size=10).search(ChanceConstraint(margin)(imagine), bounds)


def realised(constraint, *, true_spread, model_spread, trials=4000):
    bounds = Bounds(torch.tensor([0.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64), horizon=1)
    search, generator = RandomShooting(population_size=2000), torch.Generator().manual_seed(3)
    plan = search.search(constraint(walk(model_spread)), bounds, generator=generator).plan
    noise = torch.randn(trials, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return ((plan.item() + true_spread * noise) >= WALL).double().mean().item()


def evidence(constraint, *, true_spread, model_spread, count=400):
    """Scores of plans carried out in a world with more noise than the model thinks."""
    generator = torch.Generator().manual_seed(5)
    plans = torch.rand(count, 1, 1, generator=generator, dtype=torch.float64)
    imagined = walk(model_spread)(plans).states
    happened = plans + true_spread * torch.randn(count, 1, 1, generator=generator, dtype=torch.float64)
    return constraint.score(imagined, happened)


def test_an_over_confident_ninety_percent_is_broken_far_more_often_and_the_map_mends_it():
    plain = ChanceConstraint(margin, level=0.9)
    # A third of the spread: 1.28 of the model's sigmas are 0.43 true ones, and Φ(-0.43) = 0.335.
    assert realised(plain, true_spread=0.3, model_spread=0.1) == pytest.approx(0.335, abs=0.03)
    z = evidence(plain, true_spread=0.3, model_spread=0.1)
    mended = ChanceConstraint(margin, level=0.9, mapping=fit_smooth(z=z))
    assert realised(mended, true_spread=0.3, model_spread=0.1) == pytest.approx(0.1, abs=0.03)
    promised = ChanceConstraint(margin, level=0.9, mapping=fit_smooth(z=z), guarantee="conformal")
    assert 0.05 < realised(promised, true_spread=0.3, model_spread=0.1) <= 0.13  # no more careful than promised


def test_conformal_bound_is_the_rank_the_theorem_names():
    z = torch.linspace(-2, 2, 99, dtype=torch.float64)
    constraint = ChanceConstraint(margin, level=0.9, mapping=fit_smooth(z=z), guarantee="conformal")
    # ⌊(99 + 1) · 0.1⌋ = 10th smallest score.
    edge = z[9].item()
    states = torch.randn(2000, 1, 1, 1, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    states = (states - states.mean()) / states.std(correction=0)
    for shift, safe in [(-0.01, True), (0.01, False), (1e4, False)]:
        # Margins with mean -3 edge - shift and spread 3: the bound is -shift.
        moved = 3 * states + WALL + 3 * edge + shift
        shortfall = constraint.shortfall(moved).item()
        assert (shortfall <= 0) is safe
        assert abs(shortfall) < 1


def test_a_tolerance_bound_keeps_the_level_with_the_confidence_it_says():
    """Over many sets of past plans, at most one in twenty gives a bound that breaks too often."""
    generator = torch.Generator().manual_seed(9)
    broken = []
    for _ in range(200):
        mapping = fit_smooth(z=3 * torch.randn(60, generator=generator, dtype=torch.float64))
        for guarantee in ("conformal", "tolerance"):
            lowest = ChanceConstraint(margin, level=0.9, mapping=mapping, guarantee=guarantee)._lowest_z()
            broken.append(stats.norm.cdf(float(lowest) / 3) > 0.1)
    assert np.mean(broken[::2]) > 0.3  # right on average is too bold in nearly half of all cases
    assert np.mean(broken[1::2]) <= 0.05


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: ChanceConstraint(margin, mapping=fit_smooth(z=torch.zeros(28)), guarantee="tolerance"),
            "too few plans to promise level 0.9; a tolerance guarantee needs 29 scores",
        ),
        (lambda: ChanceConstraint(margin, confidence=0.0), "confidence 0.0 is not between"),
        (lambda: ChanceConstraint(margin, level=1.0), "level 1.0 is not between"),
        (lambda: ChanceConstraint(margin, guarantee="conformal"), "needs a map fitted"),
        (lambda: ChanceConstraint(margin, guarantee="sure"), "guarantee 'sure' is unknown"),
        (
            lambda: ChanceConstraint(margin, mapping=fit_smooth(z=torch.zeros(5)), guarantee="conformal"),
            "too few plans to promise level 0.9; a conformal guarantee needs 9 scores",
        ),
        (lambda: ChanceConstraint(lambda s: s).margin(torch.zeros(3, 2)), "expected a margin for each"),
        (lambda: ChanceConstraint(lambda s: s[..., 0].numpy()).margin(torch.zeros(3, 2)), "gave a ndarray .* a tensor"),
        # One outcome for three plans would be scored three times.
        (lambda: ChanceConstraint(margin).score(torch.zeros(9, 3, 4, 2), torch.zeros(4, 2)), r"expected \(3, 4, 2\)"),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

"""iCEM redone step by step, and its coloured noise by its spectrum."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrl.errors import CalibrlError
from calibrl.planning.improved import ImprovedCrossEntropy, colouring, improved_cross_entropy
from calibrl.planning.search import Bounds

BOUNDS = Bounds(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), horizon=4)
TARGET = torch.tensor([[0.5, -1.0], [0.4, -0.8], [0.2, 0.3], [0.0, 0.9]])


def closeness(plans):
    return -(plans - TARGET).square().sum((1, 2))


@given(horizon=st.integers(1, 40), colour=st.floats(0, 4))
def test_coloured_noise_has_variance_one_at_every_step(horizon, colour):
    covariance = colouring(horizon, colour) @ colouring(horizon, colour).T
    torch.testing.assert_close(covariance.diag(), torch.ones(horizon, dtype=torch.float64))


def test_white_noise_stays_white():
    for horizon in (7, 12):
        matrix = colouring(horizon, 0.0)
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(horizon, dtype=torch.float64))


@pytest.mark.parametrize("colour", [1.0, 2.5])
def test_power_falls_with_frequency_as_it_should(colour):
    """NumPy's periodogram of many draws: the slope of log power in log frequency is the colour."""
    white = torch.randn(64, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    power = (np.abs(np.fft.rfft((colouring(64, colour) @ white).numpy(), axis=0)) ** 2).mean(1)
    inner = slice(1, -1)
    slope = np.polyfit(np.log(np.fft.rfftfreq(64)[inner]), np.log(power[inner]), 1)[0]
    assert slope == pytest.approx(-colour, abs=0.05)


def test_published_steps_redone_by_hand():
    """Two searches in a row, the second one warm: who took part in each sweep, and what they end with."""
    settings = ImprovedCrossEntropy(population=30, elites=5, sweeps=3, kept=0.4, shrink=1.5)
    generator, same = (torch.Generator().manual_seed(0) for _ in range(2))
    seen = []

    def objective(plans):
        seen.append(plans)
        return closeness(plans)

    found = None
    mean = BOUNDS.middle
    for step in range(2):
        old, seen[:] = found, []
        found = improved_cross_entropy(objective, BOUNDS, settings=settings, last=old, generator=generator)
        if old is not None:
            mean = torch.cat([old.mean[1:], old.mean[-1:]])
        # 30, 20, 13 new plans; 2 of 5 elites carried over; the mean joins the last sweep.
        assert [len(plans) for plans in seen] == [30 + 2 * step, 20 + 2, 13 + 2 + 1]
        if old is not None:
            assert torch.equal(seen[0][30:, :-1], old.elites[:2, 1:])
        elites, spread = None, torch.tensor([0.5, 1.0])
        for sweep, plans in enumerate(seen):
            new = [30, 20, 13][sweep]
            white = torch.randn(new + (2 * step if sweep == 0 else 0), 4, 2, generator=same)
            noise = torch.einsum("ts,nsa->nta", colouring(4, 2.0).float(), white)
            torch.testing.assert_close(plans[:new], (mean + spread * noise)[:new].clamp(BOUNDS.low, BOUNDS.high))
            if elites is not None:
                assert torch.equal(plans[new:][:2], elites[:2])
            if sweep == 2:
                torch.testing.assert_close(plans[-1], mean)
            elites = plans[closeness(plans).argsort(descending=True)[:5]]
            mean = 0.1 * mean + 0.9 * elites.mean(0)
            spread = 0.1 * spread + 0.9 * ((elites - elites.mean(0)) ** 2).mean(0).sqrt()
        torch.testing.assert_close(found.mean, mean)
        assert torch.equal(found.elites, elites)
        assert torch.equal(found.plan, elites[0])


def test_finds_the_top_of_a_hill_and_gets_nearer_over_time():
    generator = torch.Generator().manual_seed(1)
    flat = TARGET[:1].expand(4, 2)

    def objective(plans):
        return -(plans - flat).square().sum((1, 2))

    found, values = None, []
    for _ in range(6):
        found = improved_cross_entropy(objective, BOUNDS, last=found, generator=generator)
        values.append(float(objective(found.plan[None])))
    assert values[-1] > values[0]
    assert (found.plan - flat).abs().max() < 0.25


def test_plans_stay_within_the_bounds():
    seen = []

    def objective(plans):
        seen.append(plans)
        return plans.sum((1, 2))

    improved_cross_entropy(objective, BOUNDS, generator=torch.Generator().manual_seed(2))
    plans = torch.cat(seen)
    assert ((plans >= BOUNDS.low) & (plans <= BOUNDS.high)).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ImprovedCrossEntropy(elites=200), "200 elites of 120"),
        (lambda: ImprovedCrossEntropy(sweeps=0), "sweeps 0"),
        (lambda: ImprovedCrossEntropy(shrink=0.5), "shrink 0.5"),
        (lambda: ImprovedCrossEntropy(kept=1.5), "kept 1.5"),
        (lambda: improved_cross_entropy(lambda p: p.sum((1, 2)) / 0, BOUNDS), "the objective is"),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

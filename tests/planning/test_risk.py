"""Risk: what particles' returns make of a plan, against NumPy, and plans that change with it."""

import numpy as np
import pytest
import torch

from calibrl.control.settings import PlannerSettings
from calibrl.errors import CalibrlError
from calibrl.planning.risk import DIVERGED, Risk
from calibrl.planning.rollout import World, imagined_returns


@pytest.mark.parametrize(("share", "count"), [(1.0, 10), (0.5, 5), (0.2, 2), (0.01, 1)])
def test_the_worst_share_counts(share, count, generator):
    returns = torch.randn(2, 3, 10, generator=generator)
    wanted = np.sort(returns.numpy(), -1)[..., :count].mean(-1)
    np.testing.assert_allclose(Risk(cvar=share)(returns), wanted, rtol=1e-5)


def test_optimism_is_about_what_networks_disagree_on_not_about_noise(generator):
    noise = torch.randn(1, 1, 5, 400, generator=generator)
    apart = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 5, 1)
    agree, disagree = (Risk(optimism=1.0)((2 + part).flatten(2), networks=5) for part in (noise, noise + apart - 2))
    assert float(agree) == pytest.approx(2, abs=0.15)
    assert float(disagree) == pytest.approx(2 + np.std([0, 1, 2, 3, 4]), abs=0.15)


def test_safe_plans_come_first_and_then_the_safest(generator):
    returns = 100 * torch.randn(1, 4, 10, generator=generator)
    broken = torch.arange(10) < torch.tensor([0, 1, 2, 9])[:, None]
    value = Risk(safety=0.9)(returns, broken[None])[0]
    means = returns.mean(-1)[0]
    torch.testing.assert_close(value[:2], means[:2])
    assert float(value[:2].min()) > float(value[2]) > float(value[3])
    torch.testing.assert_close(Risk()(returns, broken[None])[0], means)


def test_where_nothing_is_safe_the_best_of_those_about_as_safe_as_the_safest_is_taken(generator):
    """Ten particles of each plan; at 90 % one may leave, and plans with 5 and 6 that do are equals, 7 are too many."""
    returns = torch.tensor([1.0, 3.0, 2.0, 9.0])[:, None] + 0.01 * torch.randn(4, 10, generator=generator)
    broken = torch.arange(10) < torch.tensor([5, 6, 6, 7])[:, None]
    risk = Risk(safety=0.9)
    assert risk(returns, broken).argsort(descending=True).tolist() == [1, 2, 0, 3]
    assert float(risk(returns, broken).max()) < DIVERGED < float(risk(returns - 1e5, torch.zeros_like(broken)).min())
    everywhere = risk(returns, torch.ones_like(broken))
    assert everywhere.argsort(descending=True).tolist() == [3, 1, 2, 0]
    assert bool(risk(torch.zeros(3, 10), torch.ones(3, 10, dtype=torch.bool)).isfinite().all())


def test_a_lost_particle_is_a_bad_one():
    assert float(Risk(cvar=0.5)(torch.tensor([1.0, torch.nan]))) == DIVERGED


class Walk:
    """One network that says: a step goes where the action says, with a spread of 1."""

    members = 1

    def moments(self, x):
        mean = x[..., 1:][:, None]
        return mean, torch.ones_like(mean)


def test_the_chance_of_leaving_the_safe_set_is_the_share_of_particles_that_do(generator):
    """One step of mean a and spread 1 must stay below 2: safe with 90 % where a ≤ 2 - 1.28."""
    world = World(
        lambda seen: seen,
        lambda _, after: after,
        lambda _, target: target,
        lambda _before, action, _after: action[..., 0],
        safe=lambda seen: 2 - seen[..., 0],
    )
    plans = torch.tensor([0.5, 0.65, 0.8, 1.5]).reshape(1, 4, 1, 1)
    noise = torch.randn(1, 1, 4 * 20_000, 1, generator=generator)
    given = {"propagation": "DS", "particles": 20_000, "noise": noise, "risk": Risk(safety=0.9)}
    value = imagined_returns(Walk(), world, torch.zeros(1, 1), plans, **given)[0]
    assert value[:2].tolist() == pytest.approx([0.5, 0.65])
    assert float(value[2]) < float(DIVERGED) < 0
    assert float(value[3]) < float(value[2])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cvar": 0.0}, r"planner.cvar 0.0 is not in \(0, 1\]"),
        ({"safety": 1.0}, r"planner.safety 1.0 is not in \[0, 1\)"),
        ({"optimism": float("nan"), "propagation": "TSinf"}, "planner.optimism nan is not"),
        ({"optimism": 1.0}, "DS does not tell them apart; set planner.propagation=TSinf"),
    ],
)
def test_what_cannot_be_asked_for(options, says):
    with pytest.raises(CalibrlError, match=says):
        PlannerSettings(**options)


def test_exploration_pays_for_what_networks_do_not_agree_about():
    """Doublings of the distance between networks' mean states, written out; noise within a network counts as little."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(4, 6, 3, generator=generator, dtype=torch.float64)
    units = torch.tensor([0.5, 2.0, torch.inf], dtype=torch.float64)
    found = Risk(exploration=0.7).novelty(states, units, networks=3)
    means = np.stack([states.numpy()[:, 2 * k : 2 * k + 2].mean(1) for k in range(3)])
    apart = means.std(0)[:, :2] / np.array([0.5, 2.0])
    np.testing.assert_allclose(found[:, 0].numpy(), 0.7 * np.log2(1 + apart).mean(1))
    same = states[:, :2].repeat(1, 3, 1)
    assert float(Risk(exploration=1.0).novelty(same, None, networks=3).abs().max()) < 1e-6
    with pytest.raises(CalibrlError, match="exploration -1 is not 0 or more"):
        Risk(exploration=-1)

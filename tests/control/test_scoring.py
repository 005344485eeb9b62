"""Scores of one step, against scipy, and of many: honest for who knows the world, dishonest for who is too sure."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from calibrl.control import scoring
from calibrl.control.settings import PRESETS
from calibrl.diagnostics import calibration_loss, coverage, noise_floor
from calibrl.errors import CalibrlError
from calibrl.evidence import Lasting
from calibrl.maps import IDENTITY, fit_named
from calibrl.planning.rollout import Errors, World
from calibrl.runs.rows import Row

STEPS = 400
DRIFT, NOISE = 0.9, 0.5


class Linear:
    """Networks that know x′ = 0.9 x + a + 0.5 ε, or believe in another noise."""

    members = 1

    def __init__(self, noise):
        self.noise = noise

    def moments(self, x):
        mean = (DRIFT * x[..., :1] + x[..., 1:])[:, None]
        return mean, torch.full_like(mean, self.noise**2)


WORLD = World(
    model_input=lambda seen: seen,
    target=lambda _, following: following,
    next_observation=lambda _, target: target,
    reward=lambda _before, _action, following: following[..., 0],
)


@pytest.fixture
def trajectory(generator):
    """A real trajectory of the linear world: before (1, T, 1), action (1, T, 1), after (1, T, 1)."""
    action = torch.rand(STEPS, generator=generator) - 0.5
    state, seen = torch.zeros(()), []
    for push in action:
        seen.append(state)
        state = DRIFT * state + push + NOISE * torch.randn((), generator=generator)
    before = torch.stack([*seen, state])[None, :, None]
    return before[:, :-1], action[None, :, None], before[:, 1:]


def ahead(trajectory, noise, horizons=(1, 3, 10), particles=100, errors=None):
    start = torch.arange(0, STEPS - 10, 2)
    return scoring.pits_ahead(
        Linear(noise),
        WORLD,
        *trajectory,
        start,
        horizons=horizons,
        propagation="DS",
        tables=None,
        generator=torch.Generator().manual_seed(1),
        particles=particles,
        errors=errors,
    )


def pits(trajectory, noise, **options):
    return ahead(trajectory, noise, **options).pits


def test_imagined_returns_are_calibrated_for_who_knows_the_world(trajectory):
    following = trajectory[2]
    found = ahead(trajectory, NOISE)
    paid = following[0, :, 0].double()
    windows = torch.stack([paid[start : start + 10].sum() for start in range(0, STEPS - 10, 2)])
    torch.testing.assert_close(found.realised[0, 2], windows, rtol=1e-5, atol=1e-5)
    assert float((found.imagined - found.realised).mean().abs()) < 0.5
    for pits_of_return in found.return_pits[0]:
        assert calibration_loss(pits_of_return[:, None]) < 15 * noise_floor(195)


def test_noise_that_lasts_is_wider_many_steps_ahead_and_not_one(trajectory):
    slow = Lasting(torch.tensor([[0.9]]), torch.tensor([[1.0]]), torch.tensor([(1 - 0.9**2) ** 0.5]))
    unknown = slow.unknown()
    anywhere = torch.tensor(torch.inf)
    errors = Errors(unknown.mean[None, None, None], slow.ahead(unknown.doubt, 10)[None, None], -anywhere, anywhere)
    fresh, lasting = (ahead(trajectory, NOISE, errors=kept) for kept in (None, errors))
    torch.testing.assert_close(fresh.pits[:, 0], lasting.pits[:, 0])
    far = [torch.special.ndtri(part.pits[0, 2].clamp(0.01, 0.99)).std() for part in (fresh, lasting)]
    assert far[1] < 0.7 * far[0]


@pytest.mark.parametrize("particles", [3, 100])
def test_who_knows_the_world_is_calibrated_at_every_horizon(trajectory, particles):
    found = pits(trajectory, NOISE, particles=particles)
    assert found.shape == (1, 3, 195, 1)
    assert bool(((found >= 0) & (found <= 1)).all())
    # One step ahead rows are independent; further ahead they overlap, so that only gross errors would show.
    assert stats.kstest(found[0, 0, :, 0].numpy(), "uniform").pvalue > 0.01
    for part in found[0]:
        assert calibration_loss(part) < 15 * noise_floor(195)


def test_who_is_too_sure_is_found_out(trajectory):
    honest, sure = pits(trajectory, NOISE), pits(trajectory, NOISE / 3)
    for ahead in range(3):
        assert calibration_loss(sure[0, ahead]) > 4 * calibration_loss(honest[0, ahead])


def test_starts_leave_room_within_their_episode():
    last = torch.zeros(60, dtype=torch.bool)
    last[[19, 59]] = True
    found = scoring.starting_steps(last, 15, starts=100).tolist()
    assert found == [*range(6), *range(20, 46)]
    assert len(scoring.starting_steps(last, 15, starts=5)) == 5
    assert len(scoring.starting_steps(last, 41)) == 0


def test_beyond_the_record_is_refused(trajectory):
    with pytest.raises(CalibrlError, match="go beyond the 400 recorded"):
        scoring.pits_ahead(
            Linear(NOISE),
            WORLD,
            *trajectory,
            torch.tensor([395]),
            horizons=(10,),
            propagation="DS",
            tables=None,
            generator=torch.Generator(),
        )


def test_scores_of_a_bare_gaussian_agree_with_scipy(generator):
    z = 1.4 * torch.randn(400, 2, generator=generator, dtype=torch.float64) + 0.2
    sd = torch.rand(400, 2, generator=generator, dtype=torch.float64) + 0.5
    y = z * sd + 3.0
    found = scoring.score_one_step(z, sd, y, IDENTITY)
    pits = stats.norm.cdf(z.numpy())
    levels = np.arange(1, 20) / 20
    observed = (pits[:, :, None] <= levels).mean(0)
    assert found["calibration_loss"] == pytest.approx(((observed - levels) ** 2).sum(1).mean())
    assert found["coverage_90"] == pytest.approx(((pits >= 0.05) & (pits <= 0.95)).mean())
    assert found["reliability_25"] == pytest.approx(observed[:, 4].mean())
    closed = sd.numpy() * (z.numpy() * (2 * pits - 1) + 2 * stats.norm.pdf(z.numpy()) - 1 / math.sqrt(math.pi))
    assert found["crps"] == pytest.approx((closed / y.numpy().std(0, ddof=1)).mean(), rel=1e-6)
    assert all(found[name] == found[f"{name}_bare"] for name in ("calibration_loss", "coverage_90", "crps"))


@pytest.mark.parametrize("name", ["smooth", "affine", "isotonic", "auto"])
def test_a_map_repairs_what_it_was_fitted_for(name, generator):
    z = 2.0 * torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    mapping = fit_named(name)(z=z[:2000])
    found = scoring.score_one_step(z[2000:], torch.ones(2000, 3), z[2000:], mapping)
    assert found["calibration_loss"] < 20 * noise_floor(2000)
    assert found["calibration_loss_bare"] > 0.1
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.02)
    assert found["crps"] < found["crps_bare"]


def test_horizons_are_scored_as_each_would_be_by_itself(generator):
    settings = PRESETS["cartpole"]
    steps = scoring.horizons_of(settings)
    pits = torch.rand(len(steps), 20, 4, generator=generator, dtype=torch.float64)
    returns = torch.rand(3, len(steps), 20, generator=generator, dtype=torch.float64)
    found = scoring.score_ahead(scoring.Ahead(pits, *returns), settings)
    for h, part in zip(steps, pits, strict=True):
        assert found[f"calibration_loss_ahead_{h}"] == pytest.approx(calibration_loss(part), rel=1e-12)
        assert found[f"coverage_90_ahead_{h}"] == coverage(part, 0.9)


def test_rows_without_a_return_are_no_pairs():
    rows = [
        Row("control", "cartpole", arm, 0, {"best": 1.0}, step=k)
        for arm in ("calibrated", "uncalibrated")
        for k in range(3)
    ]
    assert scoring.claim(rows) is None

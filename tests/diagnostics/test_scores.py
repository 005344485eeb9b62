"""Scores against scipy, scikit-learn and numerical integration."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.metrics import brier_score_loss, log_loss, mean_pinball_loss
from torch import distributions as td

import calibrl as cal
from calibrl.diagnostics import crps_each, nll_each, pinball_each
from calibrl.distributions import zscore
from calibrl.kernels import normal

D = torch.float64
MAP = cal.fit_smooth(z=1.5 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=D) + 0.2)


def one(forecast):
    return forecast


@pytest.mark.parametrize(
    "base",
    [
        td.Normal(torch.tensor([1.0], dtype=D), torch.tensor([2.0], dtype=D)),
        td.LogNormal(torch.tensor([0.5], dtype=D), torch.tensor([0.4], dtype=D)),
        td.Gumbel(torch.tensor([0.5], dtype=D), torch.tensor([1.4], dtype=D)),
        cal.Quantiles([[-1.0], [0.5], [3.0]], [0.1, 0.5, 0.9]),
        cal.Mixture([td.Normal(torch.zeros(1, dtype=D), 1.0), td.Normal(torch.full((1,), 4.0, dtype=D), 0.5)]),
    ],
    ids=lambda base: type(base).__name__,
)
@pytest.mark.parametrize("wrap", [one, lambda base: cal.Recalibrated(base, MAP)], ids=["bare", "recalibrated"])
@pytest.mark.parametrize("y", [0.3, 1.7, 9.0])
def test_crps_is_the_integral_it_is_defined_as(base, wrap, y):
    forecast = wrap(base)

    def squared(x):
        return float(normal.cdf(zscore(forecast, torch.tensor([x], dtype=D)))) ** 2

    def survived(x):
        return (1 - float(normal.cdf(zscore(forecast, torch.tensor([x], dtype=D))))) ** 2

    low = {td.LogNormal: 1e-9, td.Gumbel: -12.0}.get(type(base), -60.0)
    middle = [p for p in (-3.0, 0.0, 2.0, 4.0, 8.0) if low < p]
    below = sum(
        integrate.quad(squared, a, b, limit=200)[0]
        for a, b in zip([low, *[m for m in middle if m < y]], [*[m for m in middle if m < y], y], strict=True)
    )
    above = sum(
        integrate.quad(survived, a, b, limit=200)[0]
        for a, b in zip([y, *[m for m in middle if m > y]], [*[m for m in middle if m > y], 120.0], strict=True)
    )
    found = float(crps_each(forecast, torch.tensor([y], dtype=D)))
    assert found == pytest.approx(below + above, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("fit", [cal.fit_smooth, cal.fit_isotonic, cal.fit_affine])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_crps_sees_every_bend_of_a_map(generator, fit, columns):
    mapping = fit(z=1.5 * torch.randn(300, *columns, generator=generator, dtype=D).pow(3))
    y = torch.tensor([-9.0, -2.0, 0.9, 1.0, 1.7, 14.0], dtype=D).reshape(-1, *columns)
    plain = td.Normal(torch.ones_like(y), 2.0)
    same = td.TransformedDistribution(td.Normal(torch.zeros_like(y), 1.0), td.AffineTransform(1.0, 2.0))
    found, closed = (crps_each(cal.Recalibrated(base, mapping), y) for base in (same, plain))
    torch.testing.assert_close(found, closed, rtol=4e-5, atol=0)


def test_crps_of_many_samples_is_close_to_the_energy_form(generator):
    samples = torch.randn(1000, 4, generator=generator, dtype=D)
    y = torch.tensor([0.0, 1.0, -2.0, 5.0], dtype=D)
    apart = (samples[:, None] - samples[None]).abs().mean((0, 1)) / 2
    found = crps_each(cal.Empirical(samples), y)
    torch.testing.assert_close(found, (samples - y).abs().mean(0) - apart, rtol=0, atol=4e-3)


@pytest.mark.parametrize("outcomes", [30, 50])
def test_one_forecast_of_many_outcomes_is_the_same_for_each(generator, outcomes):
    samples, y = torch.randn(30, generator=generator, dtype=D), torch.randn(outcomes, generator=generator, dtype=D)
    for whole in (
        cal.Empirical(samples),
        td.Normal(torch.tensor(0.3, dtype=D), 1.0),
        cal.Quantiles([0.0, 1.0], [0.2, 0.9]),
    ):
        each = whole.expand((outcomes,))
        torch.testing.assert_close(crps_each(whole, y), crps_each(each, y))
        assert cal.summary(whole, y).crps == pytest.approx(cal.summary(each, y).crps)


@pytest.mark.parametrize("rate", [0.3, 6.0, 500.0])
@pytest.mark.parametrize("y", [-3.0, 0.0, 9.0, 700.0])
def test_crps_of_counts_is_a_sum(rate, y):
    k = np.arange(-10, 1000)
    expected = np.sum((stats.poisson(rate).cdf(k) - (k >= y)) ** 2)
    forecast = td.Poisson(torch.tensor([rate, 20.0], dtype=D))
    found = crps_each(forecast, torch.tensor([y, np.nan], dtype=D))
    assert float(found[0]) == pytest.approx(expected, rel=1e-9)
    assert found[1].isnan()


def test_a_large_count_costs_no_more_than_a_small_one():
    forecast = cal.Rounded(td.Normal(torch.full((1000,), 1e8, dtype=D), 20.0))
    expected = cal.crps(td.Normal(torch.tensor([0.0], dtype=D), 20.0), torch.tensor([30.0], dtype=D))
    assert cal.crps(forecast, torch.full((1000,), 1e8 + 30, dtype=D)) == pytest.approx(expected, abs=0.01)
    assert cal.crps(forecast, torch.full((1000,), 1e12, dtype=D)) == pytest.approx(1e12 - 1e8, rel=1e-9)


@pytest.mark.parametrize(
    ("forecast", "y", "expected"),
    [
        (td.Exponential(torch.ones(1, dtype=D)), -3.0, 3 + 1 / 2),
        (td.Uniform(torch.zeros(1, dtype=D), 2.0), 7.0, 5 + 2 / 3),
        (cal.Mixture([td.Exponential(torch.ones(1, dtype=D))] * 2), -3.0, 3 + 1 / 2),
    ],
    ids=["Exponential", "Uniform", "Mixture"],
)
def test_crps_of_an_impossible_outcome_is_how_far_off_it_is(forecast, y, expected):
    assert cal.crps(forecast, torch.tensor([y], dtype=D)) == pytest.approx(expected, abs=1e-4)
    wide = cal.Recalibrated(forecast, cal.maps.Affine(scale=torch.tensor(3.0, dtype=D)))
    edge = torch.tensor([0.0 if y < 0 else 2.0], dtype=D)
    further = cal.crps(wide, torch.tensor([y], dtype=D)) - cal.crps(wide, edge)
    assert further == pytest.approx(abs(y - float(edge)), abs=1e-4)


def test_pinball_nll_sharpness_and_width_agree_with_peers(generator):
    mean, scale = torch.randn(300, generator=generator, dtype=D), torch.rand(300, generator=generator, dtype=D) + 0.5
    y = torch.randn(300, generator=generator, dtype=D)
    forecast = td.Normal(mean, scale)
    levels = [0.1, 0.5, 0.8]
    expected = np.mean([mean_pinball_loss(y, stats.norm(mean, scale).ppf(level), alpha=level) for level in levels])
    assert cal.diagnostics.pinball(forecast, y, levels) == pytest.approx(expected)
    assert cal.diagnostics.nll(forecast, y) == pytest.approx(-stats.norm(mean, scale).logpdf(y).mean())
    assert cal.diagnostics.sharpness(forecast) == pytest.approx(np.sqrt(np.mean(scale.numpy() ** 2)))
    assert cal.diagnostics.width(forecast, 0.9) == pytest.approx(float(scale.mean()) * 2 * stats.norm.ppf(0.95))
    assert cal.crps(forecast, np.asarray(y)) == pytest.approx(cal.crps(forecast, y))


def test_scores_of_each_row(generator):
    y = torch.randn(50, generator=generator, dtype=D).numpy()
    y[3] = np.nan
    forecast = td.Normal(torch.zeros(50, dtype=D), 2.0)
    np.testing.assert_allclose(nll_each(forecast, y), -stats.norm(0, 2).logpdf(y))
    error, q = y[:, None] - stats.norm(0, 2).ppf([0.1, 0.7]), np.array([0.1, 0.7])
    np.testing.assert_allclose(
        pinball_each(forecast, y, [0.1, 0.7]), np.maximum(q * error, (q - 1) * error).mean(1), atol=1e-12
    )


def test_unseen_outcomes_do_not_count(generator):
    forecast = td.Normal(torch.zeros(4, dtype=D), torch.ones(4, dtype=D))
    y = torch.tensor([0.5, torch.nan, -1.0, 2.0], dtype=D)
    seen = ~y.isnan()
    part = td.Normal(torch.zeros(3, dtype=D), torch.ones(3, dtype=D))
    for score in (cal.crps, cal.diagnostics.nll, cal.diagnostics.pinball):
        assert score(forecast, y) == pytest.approx(score(part, y[seen]))


def test_brier_parts_add_up_and_agree_with_scikit_learn(generator):
    p = torch.rand(800, generator=generator, dtype=D)
    y = torch.bernoulli(p**2, generator=generator)
    parts = cal.diagnostics.brier(p, y)
    assert parts.score == pytest.approx(brier_score_loss(y, p))
    assert parts.score == pytest.approx(parts.calibration + parts.sharpness, abs=1e-12)
    assert parts.sharpness == pytest.approx(parts.uncertainty - parts.resolution, abs=1e-12)
    assert parts.uncertainty == pytest.approx(float(y.mean() * (1 - y.mean())))
    assert parts.calibration > 0.01
    honest = cal.diagnostics.brier(p**2, y)
    assert honest.calibration < 0.01
    many = torch.softmax(torch.randn(500, 4, generator=generator, dtype=D), -1)
    label = torch.multinomial(many, 1, generator=generator)[:, 0]
    parts = cal.diagnostics.brier(many, label)
    expected = (many - torch.nn.functional.one_hot(label, 4)).square().sum(-1).mean()
    assert parts.score == pytest.approx(float(expected))
    assert parts.score == pytest.approx(parts.calibration + parts.sharpness, abs=1e-12)


def test_ece_of_an_event_counts_what_is_certain_too():
    p, y = [0.0, 0.03, 0.5, 0.97, 1.0, 1.0], [0, 1, 1, 1, 1, 0]
    # Two rows below a quarter, one above a half, three above three quarters: gaps 0.485, 0.5 and 0.99 - 2/3.
    assert cal.ece(p, y, bins=4) == pytest.approx((2 * 0.485 + 0.5 + 3 * 0.99 - 2) / 6)
    with pytest.raises(cal.CalibrlError, match="bins 0 is not"):
        cal.ece(p, y, bins=0)


def test_ece_is_the_weighted_gap(generator):
    probs = torch.softmax(2 * torch.randn(400, 3, generator=generator, dtype=D), -1)
    # Honest, so that gaps have both signs: had they one, any bins would give the same.
    label = torch.multinomial(probs, 1, generator=generator)[:, 0]
    confidence, hit = probs.amax(-1).numpy(), (probs.argmax(-1) == label).numpy()
    total = 0.0
    for low in np.arange(10) / 10:
        inside = (confidence >= low) & (confidence < low + 0.1)
        if inside.any():
            total += inside.sum() / 400 * abs(confidence[inside].mean() - hit[inside].mean())
    assert cal.ece(probs, label, bins=10) == pytest.approx(total)
    found = cal.class_summary(probs, label)
    assert found.nll == pytest.approx(log_loss(label, probs.numpy(), labels=[0, 1, 2]))
    assert found.accuracy == pytest.approx(hit.mean())


@pytest.mark.parametrize(
    ("forecast", "impossible"),
    [
        (td.LogNormal(torch.zeros(3), 1.0), 0.0),
        (td.Poisson(torch.ones(3)), -1.0),
        (td.Poisson(torch.ones(3)), 1.5),
        (td.Binomial(10, torch.full((3,), 0.5)), 11.0),
    ],
)
def test_an_impossible_outcome_is_infinitely_unlikely(forecast, impossible):
    y = torch.tensor([1.0, 1.0, torch.nan])
    assert np.isfinite(cal.diagnostics.nll(forecast, y))
    y[0] = impossible
    assert cal.diagnostics.nll(forecast, y) == np.inf
    assert cal.summary(forecast, y, generator=torch.Generator().manual_seed(0)).nll == np.inf

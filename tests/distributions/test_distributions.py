"""Each distribution against closed forms and scipy, and how each refuses bad input."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import distributions as td

import calibrl as cal
from calibrl.diagnostics import crps_each
from calibrl.distributions import from_zscore, zscore
from calibrl.maps.gaussian import nodes

D = torch.float64


def t(*values):
    return torch.tensor(values, dtype=D)


def test_the_identity_changes_nothing():
    base = td.Normal(torch.zeros(4), torch.ones(4))
    same = cal.Recalibrated(base, cal.maps.IDENTITY)
    y = torch.tensor([-2.0, 0.0, 1.0, 3.0])
    torch.testing.assert_close(same.cdf(y), base.cdf(y))
    torch.testing.assert_close(same.log_prob(y), base.log_prob(y))
    torch.testing.assert_close(same.icdf(torch.full((4,), 0.3)), base.icdf(torch.full((4,), 0.3)))
    torch.testing.assert_close(same.mean, base.mean)
    torch.testing.assert_close(same.variance, base.variance)


def test_an_affine_map_of_a_gaussian_is_a_gaussian():
    mapping = cal.maps.Affine(shift=torch.tensor(0.5, dtype=D), scale=torch.tensor(2.0, dtype=D))
    honest = cal.Recalibrated(td.Normal(torch.tensor([1.0], dtype=D), torch.tensor([3.0], dtype=D)), mapping)
    truth = td.Normal(torch.tensor([2.5], dtype=D), torch.tensor([6.0], dtype=D))
    y = torch.linspace(-20, 25, 50, dtype=D)[:, None]
    torch.testing.assert_close(honest.cdf(y), truth.cdf(y))
    torch.testing.assert_close(honest.log_prob(y), truth.log_prob(y))
    torch.testing.assert_close(honest.mean, truth.mean)
    torch.testing.assert_close(honest.variance, truth.variance)
    assert cal.crps(honest, torch.tensor([4.0], dtype=D)) == pytest.approx(
        cal.crps(truth, torch.tensor([4.0], dtype=D))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_the_dtype_of_the_base(dtype):
    base = td.Normal(torch.zeros(5, dtype=dtype), torch.ones(5, dtype=dtype))
    honest = cal.Recalibrated(base, cal.fit_smooth(torch.rand(100, dtype=D)))
    y = torch.zeros(5, dtype=dtype)
    for value in (
        honest.cdf(y),
        honest.icdf(y + 0.5),
        honest.sample(),
        honest.mean,
        honest.variance,
        honest.log_prob(y),
    ):
        assert value.dtype == dtype


@pytest.mark.parametrize("kind", ["smooth", "isotonic", "platt", "beta", "affine"])
def test_gradients_reach_the_base(kind):
    mapping = getattr(cal, f"fit_{kind}")(z=1.5 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=D))
    mu = torch.tensor([0.3, -0.2], dtype=D, requires_grad=True)
    sigma = torch.tensor([1.0, 2.0], dtype=D, requires_grad=True)
    y = torch.tensor([0.5, 1.5], dtype=D)

    def at(function):
        return lambda m, s: function(cal.Recalibrated(td.Normal(m, s), mapping))

    assert torch.autograd.gradcheck(at(lambda f: f.cdf(y)), (mu, sigma))
    assert torch.autograd.gradcheck(at(lambda f: f.log_prob(y)), (mu, sigma), atol=1e-4)
    assert torch.autograd.gradcheck(at(lambda f: f.icdf(torch.tensor([0.2, 0.9], dtype=D))), (mu, sigma))
    assert torch.autograd.gradcheck(at(lambda f: f.mean + f.variance), (mu, sigma))
    epsilon = torch.tensor([0.7, -1.1], dtype=D)
    assert torch.autograd.gradcheck(at(lambda f: f.push(epsilon)), (mu, sigma))
    cal.Recalibrated(td.Normal(mu, sigma), mapping).rsample((10,)).sum().backward()
    assert float(mu.grad.sum()) == pytest.approx(20)


def test_fast_draws_follow_the_exact_quantile_function():
    mapping = cal.fit_smooth(z=torch.randn(500, 3, generator=torch.Generator().manual_seed(1), dtype=D) * 2 + 0.5)
    honest = cal.Recalibrated(td.Normal(torch.zeros(3, dtype=D), torch.ones(3, dtype=D)), mapping)
    epsilon = torch.randn(5000, 3, generator=torch.Generator().manual_seed(2), dtype=D)
    exact = mapping.inverse_z(epsilon)
    assert float((honest.push(epsilon) - exact).abs().max()) < 0.01
    assert float((honest.push(epsilon) - exact).abs().mean()) < 1e-5


def test_quantiles_stay_finite_however_wrong_the_forecast():
    z = 200 * torch.randn(500, generator=torch.Generator().manual_seed(3), dtype=D)
    honest = cal.Recalibrated(td.Normal(torch.zeros(1), torch.ones(1)), cal.fit_smooth(z=z))
    q = honest.icdf(torch.tensor([[1e-44], [1e-30], [0.001], [0.999], [1 - 1e-7]]))
    assert bool(q.isfinite().all())
    assert bool((q.diff(dim=0) >= 0).all())
    assert bool(honest.sample((100_000,)).isfinite().all())


def test_numpy_in_numpy_out():
    honest = cal.Recalibrated(td.Normal(torch.zeros(3), torch.ones(3)), cal.maps.IDENTITY)
    assert isinstance(honest.cdf(np.zeros(3)), np.ndarray)
    assert isinstance(honest.icdf([0.1, 0.5, 0.9]), np.ndarray)
    assert isinstance(honest.cdf(torch.zeros(3)), torch.Tensor)


def test_conformal_interval_of_a_forecast():
    y = torch.randn(99, generator=torch.Generator().manual_seed(4), dtype=D)
    forecast = td.Normal(torch.zeros(99, dtype=D), torch.full((99,), 0.3, dtype=D))
    mapping = cal.fit_smooth(z=cal.pit_z(forecast, y))
    low, high = cal.Recalibrated(td.Normal(torch.zeros(2, dtype=D), 0.3), mapping).interval(0.9, guarantee="conformal")
    ordered = y.sort().values
    assert float(low[0]) == pytest.approx(float(ordered[4]))  # the 5th of 99, ⌊100 · 0.05⌋
    assert float(high[0]) == pytest.approx(float(ordered[94]))
    plain = cal.Recalibrated(td.Normal(torch.zeros(2, dtype=D), 0.3), mapping).interval(0.9)
    assert float(plain[0][0]) == pytest.approx(float(low[0]), abs=0.5)
    with pytest.raises(cal.CalibrlError, match="between 0 and 1"):
        cal.Recalibrated(forecast, mapping).interval(90)
    with pytest.raises(cal.CalibrlError, match="keeps no ranks"):
        cal.Recalibrated(forecast, cal.maps.IDENTITY).interval(0.9, guarantee="conformal")


def test_counts_agree_with_scipy():
    k = torch.arange(0, 30, dtype=D)[:, None]
    for forecast, peer in [
        (td.Poisson(torch.tensor([4.0], dtype=D)), stats.poisson(4)),
        (td.Binomial(29, torch.tensor([0.3], dtype=D)), stats.binom(29, 0.3)),
        (td.Geometric(torch.tensor([0.2], dtype=D)), stats.geom(0.2, loc=-1)),
        (td.NegativeBinomial(torch.tensor([3.0], dtype=D), torch.tensor([0.4], dtype=D)), stats.nbinom(3, 0.6)),
    ]:
        np.testing.assert_allclose(torch.special.ndtr(zscore(forecast, k))[:, 0], peer.cdf(k[:, 0].numpy()), atol=1e-10)
        far = torch.tensor([[-7.0], [-2.0], [0.0], [2.0], [6.0]], dtype=D)
        expected = peer.ppf(stats.norm.cdf(far[:, 0].numpy()))
        np.testing.assert_array_equal(from_zscore(forecast, far)[:, 0], np.maximum(expected, 0))


def test_gamma_has_no_inverse_in_torch_and_gets_one():
    forecast = td.Gamma(torch.tensor([0.5, 4.0], dtype=D), torch.tensor([1.0, 2.0], dtype=D))
    u = torch.tensor([[0.001], [0.5], [0.999]], dtype=D).expand(-1, 2)
    found = from_zscore(forecast, torch.special.ndtri(u))
    expected = np.stack([stats.gamma(0.5).ppf(u[:, 0]), stats.gamma(4, scale=0.5).ppf(u[:, 0])], -1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_mixture_agrees_with_torch():
    mean, scale, weight = torch.tensor([-1.0, 2.0], dtype=D), torch.tensor([0.5, 1.5], dtype=D), [0.25, 0.75]
    ours = cal.Mixture([td.Normal(mean[j : j + 1], scale[j : j + 1]) for j in range(2)], weight)
    peer = td.MixtureSameFamily(td.Categorical(torch.tensor(weight, dtype=D)), td.Normal(mean, scale))
    y = torch.linspace(-5, 8, 40, dtype=D)
    torch.testing.assert_close(ours.cdf(y[:, None])[:, 0], peer.cdf(y))
    torch.testing.assert_close(ours.log_prob(y[:, None])[:, 0], peer.log_prob(y))
    torch.testing.assert_close(ours.mean[0], peer.mean)
    torch.testing.assert_close(ours.variance[0], peer.variance)


@pytest.mark.parametrize("peer", [False, True])
@pytest.mark.parametrize("apart", [3.0, 100.0])
def test_moments_of_recalibrated_mixtures_see_every_peak(peer, apart):
    mean, scale, weight = torch.tensor([0.0, apart], dtype=D), torch.tensor([0.1, 0.5], dtype=D), [0.3, 0.7]
    if peer:
        base = td.MixtureSameFamily(td.Categorical(torch.tensor(weight, dtype=D)), td.Normal(mean, scale)).expand((1,))
    else:
        base = cal.Mixture([td.Normal(mean[i : i + 1], scale[i : i + 1]) for i in range(2)], weight)
    mapping = cal.maps.Platt(a=torch.tensor(0.8, dtype=D), b=torch.tensor(0.3, dtype=D))
    x = np.concatenate(
        [np.linspace(-2, 2, 40_001), np.linspace(2.001, apart - 6, 11), np.linspace(-6, 6, 40_001) + apart]
    )
    x = np.unique(x)
    share = 0.3 * stats.norm.cdf(x / 0.1) + 0.7 * stats.norm.cdf((x - apart) / 0.5)
    upper = 0.3 * stats.norm.sf(x / 0.1) + 0.7 * stats.norm.sf((x - apart) / 0.5)
    above = 1 / (1 + np.exp(0.3) * (share / upper.clip(1e-300)) ** 0.8)  # 1 - R(F)
    first, second = np.trapezoid(above, x) + x[0], 2 * np.trapezoid(above * x, x) + x[0] ** 2
    honest = cal.Recalibrated(base, mapping)
    assert float(honest.mean) == pytest.approx(first, rel=1e-5)
    assert float(honest.variance) == pytest.approx(second - first**2, rel=1e-4)


def test_moments_of_recalibrated_mixtures_are_integrals_over_the_density(generator):
    centres, widths = 3 * torch.randn(5, 300, generator=generator, dtype=D), torch.linspace(0.1, 1.5, 5, dtype=D)
    mixture = cal.Mixture([td.Normal(at, width) for at, width in zip(centres, widths, strict=True)])
    mapping = cal.fit_smooth(z=1.4 * torch.randn(400, generator=generator, dtype=D) + 0.3)
    honest = cal.Recalibrated(mixture, mapping)
    mean, variance = honest.mean, honest.variance
    shares = td.Categorical(torch.ones(300, 5, dtype=D))
    same = td.MixtureSameFamily(shares, td.Normal(centres.T, widths.expand(300, 5)))
    torch.testing.assert_close(cal.Recalibrated(same, mapping).variance, variance, rtol=1e-6, atol=0)
    for row in (0, 299):
        y = torch.linspace(-40, 40, 200_001, dtype=D)
        density = honest[[row]].log_prob(y[:, None]).exp()[:, 0]
        first = integrate.simpson(y * density, y)
        second = integrate.simpson((y - first) ** 2 * density, y)
        assert float(mean[row]) == pytest.approx(first, rel=1e-3, abs=1e-3)
        assert float(variance[row]) == pytest.approx(second, rel=1e-3)


@pytest.mark.parametrize(
    ("forecast", "same"),
    [
        (td.StudentT(t(3.0), t(1.0), t(2.0)), stats.t(3, 1, 2)),
        (td.Beta(t(2.0), t(0.5)), stats.beta(2, 0.5)),
    ],
)
def test_families_that_torch_has_no_cdf_of(forecast, same):
    honest = cal.Recalibrated(forecast, cal.maps.IDENTITY)
    levels = t(1e-30, 1e-9, 0.01, 0.4, 0.9, 0.99999)[:, None]
    np.testing.assert_allclose(honest.icdf(levels), same.ppf(levels), rtol=1e-10)
    np.testing.assert_allclose(honest.cdf(honest.icdf(levels)), levels, rtol=1e-9)
    y = torch.tensor([0.7], dtype=D, requires_grad=True)
    np.testing.assert_allclose(cal.pit(forecast, y.detach()), same.cdf([0.7]))
    (slope,) = torch.autograd.grad(honest.cdf(y).sum(), y)
    np.testing.assert_allclose(slope, same.pdf(0.7))
    shape = torch.tensor([2.0], dtype=D, requires_grad=True)
    with pytest.raises(cal.CalibrlError, match="gradients with respect to the shape"):
        cal.pit(type(forecast)(shape, t(1.0)), t(0.5))


def test_two_quantiles_make_a_gaussian():
    forecast = cal.Quantiles([[-1.2815515655446004], [1.2815515655446004]], [0.1, 0.9])
    y = torch.linspace(-4, 4, 30, dtype=D)[:, None]
    np.testing.assert_allclose(forecast.cdf(y), stats.norm.cdf(y))
    assert float(forecast.mean) == pytest.approx(0, abs=1e-9)
    assert float(forecast.variance) == pytest.approx(1)


def test_empirical_gives_no_outcome_probability_zero():
    forecast = cal.Empirical(torch.linspace(0, 1, 21, dtype=D)[:, None])
    z = zscore(forecast, torch.tensor([[-3.0], [4.0]], dtype=D))
    assert bool(z.isfinite().all())
    assert float(z[0]) < -5
    assert float(forecast.cdf(torch.tensor([0.5], dtype=D))) == pytest.approx(0.5)


@pytest.mark.parametrize("members", [5, 20])
def test_a_perfect_ensemble_is_called_calibrated(members, generator):
    denied = 0
    for _ in range(20):
        draws = torch.randn(members + 1, 500, generator=generator, dtype=D)
        alarms = cal.summary(cal.Empirical(draws[1:]), draws[0]).verdict()[0]
        denied += not alarms.startswith("Calibrated")
    assert denied <= 3


def test_samples_have_one_law(generator):
    forecast = cal.Empirical(torch.randn(5, 2, generator=generator, dtype=D).abs())
    draws = cal.draw(forecast, generator, (200_000,))
    np.testing.assert_allclose(forecast.mean, draws.mean(0), atol=0.01)
    np.testing.assert_allclose(forecast.variance, draws.var(0), rtol=0.02)
    y = torch.tensor([0.3, 4.0], dtype=D)
    energy = (draws - y).abs().mean(0) - (draws[1:] - draws[:-1]).abs().mean(0) / 2
    np.testing.assert_allclose(crps_each(forecast, y), energy, atol=0.01)


def test_samples_that_are_not_negative_stay_so(generator):
    amounts = torch.randn(8, 50, generator=generator, dtype=D).abs()
    forecast = cal.Empirical(amounts)
    mapped = cal.Recalibrated(forecast, cal.fit_affine(z=3 * torch.randn(200, generator=generator, dtype=D)))
    for one in (forecast, forecast[:3], forecast.expand((2, 50)), mapped):
        assert float(cal.draw(one, generator, (500,)).min()) >= 0
        assert float(one.icdf(torch.zeros(one.batch_shape, dtype=D)).min()) >= 0
    # No more than what lay below was put on zero, and that is no surprise.
    free = cal.Empirical(amounts, lowest=-np.inf)
    zero = torch.zeros(50, dtype=D)
    np.testing.assert_allclose(forecast.cdf(zero), free.cdf(zero), atol=0.02)
    far = 100 + cal.Empirical(amounts).samples
    np.testing.assert_allclose(cal.Empirical(far).icdf(0.001), cal.Empirical(far, lowest=-np.inf).icdf(0.001))
    with pytest.raises(cal.CalibrlError, match="below lowest=1; expected none"):
        cal.Empirical(amounts, lowest=1.0)


def test_atoms_need_a_generator():
    closed_days = cal.Empirical(torch.tensor([0.0] * 5 + [3.0, 4.0, 5.0, 6.0, 8.0], dtype=D)[:, None].expand(-1, 2))
    with pytest.raises(cal.CalibrlError, match="generator"):
        cal.pit(closed_days, torch.tensor([0.0, 4.5], dtype=D))
    many = closed_days.expand((4000, 2))
    p = cal.pit(many, torch.zeros(4000, 2, dtype=D), generator=torch.Generator().manual_seed(0))
    assert float(p.min()) < 0.06
    assert float(p.max()) == pytest.approx(5 / 11, abs=0.02)
    assert float(p.mean()) == pytest.approx(2.5 / 11, abs=0.01)
    with pytest.raises(cal.CalibrlError, match="generator"):
        cal.pit(td.Poisson(torch.ones(2, dtype=D)), torch.tensor([0.0, 1.0], dtype=D))
    half = cal.Mixture([closed_days, td.Normal(torch.full((2,), 100.0, dtype=D), 1.0)]).expand((4000, 2))
    p = cal.pit(half, torch.zeros(4000, 2, dtype=D), generator=torch.Generator().manual_seed(0))
    assert float(p.mean()) == pytest.approx(1.25 / 11, abs=0.005)


def test_common_random_numbers():
    base = td.Normal(torch.zeros(1000, dtype=D), torch.ones(1000, dtype=D))
    honest = cal.Recalibrated(base, cal.fit_affine(z=1.3 * torch.randn(400, dtype=D)))
    plain = cal.draw(base, torch.Generator().manual_seed(5))
    calibrated = cal.draw(honest, torch.Generator().manual_seed(5))
    assert float(np.corrcoef(plain, calibrated)[0, 1]) > 0.999


def test_classes_draw_in_proportion():
    many = td.Categorical(torch.tensor([[0.2, 0.5, 0.3]]).expand(20_000, 3))
    drawn = cal.draw(many, torch.Generator().manual_seed(6))
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.2, 0.5, 0.3], atol=0.012)
    coins = cal.draw(td.Bernoulli(torch.full((20_000,), 0.3)), torch.Generator().manual_seed(6))
    assert float(coins.mean()) == pytest.approx(0.3, abs=0.012)


def normal(*shape):
    return td.Normal(torch.zeros(*shape), torch.ones(*shape))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: cal.Recalibrated(normal(5, 2), cal.fit_smooth(torch.rand(9, 3))), "3 columns"),
        (lambda: cal.Recalibrated(td.Categorical(torch.ones(3)), cal.maps.IDENTITY), "classes"),
        (
            lambda: cal.Recalibrated(td.MultivariateNormal(torch.zeros(2), torch.eye(2)), cal.maps.IDENTITY),
            "event shape",
        ),
        (lambda: cal.Recalibrated(normal(3), cal.maps.IDENTITY).icdf(torch.tensor([0.1, 2.0, 0.3])), "outside"),
        (lambda: cal.pit(normal(4), torch.zeros(3)), "do not fit"),
        (lambda: cal.pit(normal(4, 2), torch.zeros(4)), "do not fit"),
        (lambda: cal.pit(normal(1, 1), torch.zeros(4)), "do not fit"),
        (lambda: cal.crps(normal(1, 1), torch.zeros(4)), "do not fit"),
        (lambda: cal.pit(td.VonMises(torch.zeros(3), 1.0), torch.zeros(3)), "has no cdf"),
        (lambda: cal.pit(td.Exponential(torch.ones(2)), torch.tensor([1.0, -1.0])), "impossible"),
        (lambda: cal.pit(td.Normal(torch.tensor([math.nan]), 1.0, validate_args=False), torch.zeros(1)), "is NaN"),
        (lambda: cal.Empirical(torch.zeros(1, 3)), "s ≥ 2"),
        (lambda: cal.Empirical(torch.tensor([[1.0], [math.nan]])), "NaN"),
        (lambda: cal.Quantiles(torch.tensor([[0.0], [1.0]]), [0.1, 1.0]), "strictly between"),
        (lambda: cal.Quantiles(torch.tensor([[0.0], [1.0]]), [0.1, 0.5, 0.9]), "do not fit"),
        (lambda: cal.Quantiles(torch.tensor(1.0), [0.1, 0.9]), "do not fit"),
        (lambda: cal.Mixture([]), "no components"),
        (lambda: cal.Mixture([normal(2), normal(3)]), "different batch shapes"),
        (lambda: cal.Mixture([normal(2)], [-1.0]), "weights"),
        (lambda: cal.Mixture([normal(2)], [np.nan]), "weights"),
        (lambda: cal.Rounded(td.Poisson(torch.ones(2))), "no continuous"),
    ],
)
def test_bad_input_is_refused_in_words(attempt, words):
    with pytest.raises(cal.CalibrlError, match=words):
        attempt()


def test_crossed_quantiles_are_sorted_and_counted():
    with pytest.warns(UserWarning, match=r"quantiles of 0\.25 of all forecasts cross"):
        forecast = cal.Quantiles(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]]), [0.1, 0.9])
    assert forecast.icdf(torch.tensor(0.9)).tolist() == pytest.approx([1.0] * 4)


def test_tails_of_quantiles_go_on_with_the_slope_from_the_median():
    # The last two levels lie close: their slope would give an upper tail a tenth as wide.
    values, levels = (
        torch.tensor([[-2.0], [-1.0], [1.0], [2.0], [2.01]], dtype=torch.float64),
        [0.05, 0.25, 0.6, 0.9, 0.95],
    )
    forecast, z = cal.Quantiles(values, levels), stats.norm.ppf([0.001, 0.999])
    median = np.interp(0, stats.norm.ppf(levels), values[:, 0])
    slopes = (median + 2) / -stats.norm.ppf(0.05), (2.01 - median) / stats.norm.ppf(0.95)
    expected = -2 + slopes[0] * (z[0] - stats.norm.ppf(0.05)), 2.01 + slopes[1] * (z[1] - stats.norm.ppf(0.95))
    assert forecast.icdf(torch.tensor([[0.001], [0.999]], dtype=torch.float64))[:, 0].tolist() == pytest.approx(
        expected
    )


def test_a_column_of_outcomes_does_not_broadcast_to_a_square():
    y = torch.randn(6, 1)
    assert cal.pit(normal(6), y).shape == (6,)
    torch.testing.assert_close(cal.pit(normal(6), y), cal.pit(normal(6), y[:, 0]))


def test_pits_of_an_array_are_an_array():
    forecast = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    outcome = np.array([-1.0, 0.0, 2.0])
    found = cal.pit(forecast, outcome)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, stats.norm.cdf(outcome))


def test_mixtures_and_counts_are_exact_far_below():
    normal = torch.distributions.Normal(torch.zeros(2, dtype=torch.float64), 1.0)
    np.testing.assert_allclose(cal.pit_z(cal.Mixture([normal, normal]), [-9.0, 12.0]), [-9.0, 12.0], rtol=1e-9)
    rounded = cal.Rounded(torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0))
    want = np.log(stats.norm.sf(8.5) - stats.norm.sf(9.5))
    assert float(rounded.log_prob(torch.tensor(9.0))) == pytest.approx(want, rel=1e-9)
    assert str(rounded.icdf(0.5).item()) == "0.0"  # no minus zero, which prints as -0


def test_independent_columns_are_judged_column_by_column():
    columns = torch.distributions.Normal(torch.zeros(5, 2, dtype=torch.float64), 2.0)
    y = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = torch.distributions.Independent(columns, 1)
    assert torch.equal(cal.pit_z(together, y), cal.pit_z(columns, y))
    assert cal.crps(together, y) == cal.crps(columns, y)
    assert cal.summary(together, y).coverage == cal.summary(columns, y).coverage
    assert cal.diagnostics.width(together, 0.9) == cal.diagnostics.width(columns, 0.9)


def test_half_normal_forecasts_have_a_score():
    forecast = torch.distributions.HalfNormal(torch.ones(2, dtype=torch.float64))
    x = np.linspace(0, 12, 200_001)
    wanted = [np.trapezoid((stats.halfnorm.cdf(x) - (x >= y)) ** 2, x) for y in (0.3, 0.7)]
    assert cal.crps(forecast, [0.3, 0.7]) == pytest.approx(np.mean(wanted), abs=1e-4)


def test_negative_binomials_are_scored_by_the_thousand():
    """A table of every count's probability took a minute for these."""
    total, probs = torch.linspace(0.5, 9, 5000, dtype=D), torch.linspace(0.1, 0.9, 5000, dtype=D)
    forecast = td.NegativeBinomial(total, probs)
    law = stats.nbinom(total.numpy(), 1 - probs.numpy())
    y = torch.from_numpy(law.rvs(random_state=0).astype(float))
    np.testing.assert_allclose(torch.special.ndtr(zscore(forecast, y)), law.cdf(y.numpy()), rtol=1e-9)
    quantile = cal.Recalibrated(forecast, cal.maps.IDENTITY).icdf(torch.full((5000,), 0.9, dtype=D))
    np.testing.assert_array_equal(quantile, law.ppf(0.9))
    p = cal.pit(forecast, y, generator=torch.Generator().manual_seed(0))
    assert stats.kstest(p.numpy(), "uniform").pvalue > 0.01


def test_moments_of_thousands_of_samples_are_those_of_few(generator, monkeypatch):
    """Of 500 knots each has a factor; beyond that nodes are summed, in memory that does not grow with the square."""
    mapping = cal.maps.fit_smooth(torch.rand(300, generator=generator) ** 1.3)
    many = cal.Recalibrated(
        cal.Empirical(torch.randn(2000, 3, generator=generator, dtype=torch.float64) * 3 + 7), mapping
    )
    epsilon, weight = nodes(many.breaks)
    mean, variance = many.base.moments_at(mapping.inverse_z(epsilon), weight)
    torch.testing.assert_close(many.mean, mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(many.variance, variance, rtol=1e-10, atol=0)
    monkeypatch.setattr(cal.Empirical, "moments_at", None)
    assert many.stddev.isfinite().all()

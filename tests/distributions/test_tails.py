"""Far out, at the ends of supports, and for forecasts of kinds that cannot be recalibrated."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import calibrl as cal
from calibrl.maps import Affine, Platt

D = torch.float64


def t(*values):
    return torch.tensor(values, dtype=D)


def times(scale):
    """The map for forecasts so many times too sure in z."""
    return Affine(shift=t(0.0)[0], scale=t(float(scale))[0])


FAR = {
    "Laplace": (td.Laplace(t(1.0), t(2.0)), stats.laplace(1, 2), (-150.0, 200.0)),
    "Exponential": (td.Exponential(t(2.0)), stats.expon(scale=0.5), (1e-30, 60.0)),
    "Gamma": (td.Gamma(t(2.5), t(2.0)), stats.gamma(2.5, scale=0.5), (1e-30, 60.0)),
    "Gumbel": (td.Gumbel(t(1.0), t(2.0)), stats.gumbel_r(1, 2), (-8.0, 200.0)),
    "Weibull": (td.Weibull(t(2.0), t(1.5)), stats.weibull_min(1.5, scale=2), (1e-30, 50.0)),
    "InverseGamma": (td.InverseGamma(t(3.0), t(2.0)), stats.invgamma(3, scale=2), (0.02, 1e15)),
    "squashed": (
        td.TransformedDistribution(td.Normal(t(0.0), t(0.05)), td.TanhTransform()),
        None,
        (np.tanh(-0.6), np.tanh(0.6)),
    ),
}


@pytest.mark.parametrize("family", FAR)
def test_scores_are_exact_in_both_tails(family):
    forecast, peer, ends = FAR[family]
    low, high = (float(cal.pit_z(forecast, t(y))) for y in ends)
    if peer is None:
        assert (low, high) == pytest.approx((-12, 12), rel=1e-9)
    else:
        assert low == pytest.approx(stats.norm.ppf(peer.cdf(ends[0])), rel=1e-9)
        assert high == pytest.approx(-stats.norm.ppf(peer.sf(ends[1])), rel=1e-9)
    again = cal.Recalibrated(forecast, times(1)).from_zscore(t(low, high)[:, None])[:, 0]
    assert again.tolist() == pytest.approx(list(ends), rel=1e-6)


def test_a_symmetric_forecast_far_too_sure_is_made_wide_on_both_sides(generator):
    y = torch.from_numpy(stats.laplace.rvs(scale=16, size=2000, random_state=0))
    mapping = cal.fit_smooth(z=cal.pit_z(td.Laplace(torch.zeros_like(y), torch.ones_like(y)), y))
    honest = cal.Recalibrated(td.Laplace(t(0.0), t(1.0)), mapping)
    ends = honest.icdf(t(0.01, 0.99)[:, None])[:, 0]
    assert ends.tolist() == pytest.approx(stats.laplace.ppf([0.01, 0.99], scale=16), rel=0.15)


@pytest.mark.parametrize("scale", [1, 8, 15])
@pytest.mark.parametrize(
    "base",
    [
        td.Poisson(t(20.0, 3.0)),
        td.Binomial(t(9.0, 30.0), t(0.3, 0.6)),
        cal.Rounded(td.Normal(t(20.0, 3.0), t(2.0, 3.0))),
    ],
    ids=lambda base: type(base).__name__,
)
def test_no_map_brings_mass_where_none_can_be(base, scale):
    honest = cal.Recalibrated(base, times(scale))
    assert honest.cdf(t(-1.0, -1.0)).tolist() == [0, 0]
    counts = torch.arange(0, 2000, dtype=D)[:, None].expand(-1, 2)
    mass = honest.log_prob(counts).exp()
    torch.testing.assert_close(mass.sum(0), torch.ones(2, dtype=D))
    mean = (counts * mass).sum(0)
    torch.testing.assert_close(honest.mean, mean, rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(honest.variance, ((counts - mean).square() * mass).sum(0), rtol=2e-3, atol=1e-9)


def test_counts_with_a_far_peak_are_summed_to_it():
    forecast, peer = td.NegativeBinomial(t(3.0, 1e4), t(0.5, 0.5)), (stats.nbinom(3, 0.5), stats.nbinom(1e4, 0.5))
    p = t(0.01, 0.4, 0.99)[:, None].expand(-1, 2)
    found = cal.Recalibrated(forecast, times(1)).icdf(p)
    np.testing.assert_array_equal(found, np.stack([one.ppf(p[:, 0]) for one in peer], -1))


@pytest.mark.parametrize("mean", [50.0, 1e6, 1e9])
def test_large_counts_cost_and_lose_nothing(mean):
    many = cal.Rounded(td.Normal(torch.full((1000,), mean, dtype=D), 3.0))
    torch.testing.assert_close(many.mean, torch.full((1000,), mean, dtype=D), rtol=0, atol=1e-6)
    # Sheppard's correction: rounding adds the variance of a uniform error.
    torch.testing.assert_close(many.variance, torch.full((1000,), 9 + 1 / 12, dtype=D), rtol=0, atol=1e-6)
    levels = t(0.01, 0.5, 0.9)
    expected = mean + np.ceil(stats.norm(0, 3).ppf(levels) - 0.5)
    assert many.icdf(levels[:, None])[:, 0].tolist() == expected.tolist()


OUTSIDE = {
    "Gamma": (td.Gamma(t(2.0, 2.0), t(1.0, 1.0)), (-3.0, -1e-9), (0, 0)),
    "Exponential": (td.Exponential(t(1.0, 1.0)), (-3.0, -1e-9), (0, 0)),
    "LogNormal": (td.LogNormal(t(0.0, 0.0), t(1.0, 1.0)), (-3.0, -1e-9), (0, 0)),
    "Uniform": (td.Uniform(t(0.0, 0.0), t(2.0, 2.0)), (-3.0, 7.0), (0, 1)),
    "Mixture": (cal.Mixture([td.Exponential(t(1.0, 1.0)), td.Gamma(t(2.0, 2.0), t(1.0, 1.0))]), (-3.0, -1.0), (0, 0)),
}


@pytest.mark.parametrize(
    "mapping", [times(1), times(8), Platt(a=t(0.5)[0], b=t(0.3)[0])], ids=["as is", "wide", "Platt"]
)
@pytest.mark.parametrize("family", OUTSIDE)
def test_outside_the_support_there_is_nothing(family, mapping):
    base, outcome, level = OUTSIDE[family]
    honest = cal.Recalibrated(base, mapping)
    y = t(*outcome)
    assert honest.cdf(y).tolist() == list(level)
    assert honest.log_prob(y).tolist() == [-np.inf, -np.inf]
    with pytest.raises(cal.CalibrlError, match="outcome -3 is impossible under its"):
        cal.pit_z(honest, y)


def test_components_of_a_mixture_may_differ_in_what_they_call_possible():
    parts = [td.Exponential(t(1.0)), td.Normal(t(0.0), t(1.0))]
    y = t(-2.0, -0.1, 0.5, 3.0)[:, None]
    expected = 0.5 * stats.expon.cdf(y) + 0.5 * stats.norm.cdf(y)
    for mixture in (cal.Mixture(parts), cal.Mixture(parts[::-1])):
        np.testing.assert_allclose(mixture.cdf(y), expected)
        np.testing.assert_allclose(mixture.icdf(expected), y)
        density = 0.5 * stats.expon.pdf(y) + 0.5 * stats.norm.pdf(y)
        assert cal.diagnostics.nll(mixture.expand((4, 1)), y) == pytest.approx(-np.log(density).mean())


def test_a_count_that_fell_far_out_has_its_likelihood():
    forecast = cal.Rounded(td.Normal(t(200.0, 20.0), t(5.0, 5.0)))
    expected = [stats.norm.logcdf(0.5, 200, 5), np.log(stats.norm.cdf(20.5, 20, 5) - stats.norm.cdf(19.5, 20, 5))]
    assert forecast.log_prob(t(0.0, 20.0)).tolist() == pytest.approx(expected)
    assert cal.diagnostics.nll(forecast, t(0.0, 20.0)) == pytest.approx(-np.mean(expected))
    assert forecast.log_prob(t(-1.0, 2.5)).tolist() == [-np.inf, -np.inf]


def test_mixtures_of_torch_take_any_component():
    mixture = td.MixtureSameFamily(
        td.Categorical(t(0.3, 0.7).expand(2, 2)), td.LogNormal(torch.zeros(2, 2, dtype=D), t(0.5, 1.0).expand(2, 2))
    )
    honest = cal.Recalibrated(mixture, times(1))
    levels = t(0.01, 0.5, 0.99)[:, None].expand(-1, 2)
    torch.testing.assert_close(mixture.cdf(honest.icdf(levels)), levels)


def test_independent_columns_are_drawn_as_columns(generator):
    loc, scale = torch.zeros(3, 2), torch.ones(3, 2)
    columns = cal.draw(td.Independent(td.Normal(loc, scale), 1), torch.Generator().manual_seed(1), (5,))
    assert torch.equal(columns, cal.draw(td.Normal(loc, scale), torch.Generator().manual_seed(1), (5,)))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (2, 1, 3)])
@pytest.mark.parametrize(
    "make",
    [
        lambda one: td.Gamma(one, one),
        lambda one: td.Poisson(one),
        lambda one: td.NegativeBinomial(one, one / 2),
        lambda one: td.Binomial(3, one / 2),
        lambda one: cal.Quantiles(torch.stack([one, 2 * one, 4 * one]), [0.1, 0.5, 0.9]),
        lambda one: cal.Rounded(td.Normal(one, one)),
        lambda one: cal.Mixture([td.Normal(one, one), td.Gamma(one, one)]),
    ],
    ids=["Gamma", "Poisson", "NegativeBinomial", "Binomial", "Quantiles", "Rounded", "Mixture"],
)
def test_every_batch_shape_is_answered_in_kind(make, shape):
    one = torch.ones(shape)
    base = make(one)
    honest = cal.Recalibrated(base, times(2))
    for answer in (
        honest.mean,
        honest.variance,
        honest.sample(),
        honest.cdf(one),
        honest.log_prob(one),
        honest.icdf(one / 2),
        base.sample(),
        cal.draw(base),
    ):
        assert answer.shape == shape


@pytest.mark.parametrize(
    ("forecast", "words"),
    [
        (stats.norm(0, 1), "rv_continuous_frozen is no distribution of torch; .*ppf"),
        (td.MultivariateNormal(torch.zeros(3, 2), torch.eye(2)), r"MultivariateNormal has event shape \(2,\)"),
        (td.VonMises(torch.zeros(3), 5.0), "VonMises has no cdf; draw samples"),
    ],
)
def test_other_kinds_are_refused_with_a_cure(forecast, words):
    for attempt in (
        lambda: cal.pit_z(forecast, torch.zeros(3)),
        lambda: cal.Recalibrated(forecast, times(2)).sample(),
        lambda: cal.draw(forecast),
        lambda: cal.crps(forecast, torch.zeros(3)),
    ):
        with pytest.raises(cal.CalibrlError, match=words):
            attempt()


def test_a_single_number_is_compared_in_its_own_digits():
    forecast = td.Normal(torch.full((2,), 2.0**24), torch.ones(2))
    one_more = torch.tensor(2.0**24 + 1, dtype=D)
    honest = cal.Recalibrated(forecast, times(1))
    assert honest.cdf(one_more).tolist() == pytest.approx([stats.norm.cdf(1)] * 2)
    assert honest.log_prob(one_more).tolist() == pytest.approx([stats.norm.logpdf(1)] * 2)


def test_one_level_serves_every_forecast():
    concentration = t(1.0, 2.0, 5.0)
    expected = np.rint(stats.gamma(concentration).ppf(0.9))
    assert cal.Rounded(td.Gamma(concentration, torch.ones(3, dtype=D))).icdf(0.9).tolist() == expected.tolist()


def test_outcomes_nobody_saw_need_no_mean():
    squashed = td.TransformedDistribution(td.Normal(torch.zeros(2, dtype=D), 1.0), td.TanhTransform())
    assert cal.pit(squashed, t(torch.nan, 0.0)).isnan().tolist() == [True, False]


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_tails_of_samples_and_quantiles_have_the_scale_of_their_values(scale):
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(50, 20, generator=generator, dtype=torch.float64)
    mapping = cal.fit_smooth(z=torch.randn(300, generator=generator, dtype=torch.float64))
    levels = torch.tensor([0.1, 0.5, 0.9])
    values = samples.quantile(levels.double(), 0)
    for make in (cal.Empirical, lambda knots: cal.Quantiles(knots, levels)):
        given = samples if make is cal.Empirical else values
        one, other = (cal.Recalibrated(make(unit * given), mapping) for unit in (1.0, scale))
        torch.testing.assert_close(other.stddev / scale, one.stddev)


def test_a_mixture_answers_in_its_components_dtype():
    mixture = cal.Mixture([td.Normal(torch.zeros(2), torch.ones(2)), td.Normal(torch.ones(2), torch.ones(2))])
    honest = cal.Recalibrated(mixture, times(2))
    for forecast in (mixture, honest):
        assert {cal.draw(forecast).dtype, forecast.sample().dtype, forecast.mean.dtype} == {torch.float32}


def test_a_mixture_is_drawn_on_its_atoms(generator):
    closed = cal.Empirical(torch.tensor([[0.0], [0.0], [0.0], [5.0]], dtype=D))
    mixture = cal.Mixture([closed, td.Normal(t(3.0), t(1.0))])
    assert mixture.icdf(t(0.1, 0.2, 0.3)[:, None])[:, 0].tolist() == [0, 0, 0]
    mass = float(mixture.cdf(t(0.0)) - torch.special.ndtr(mixture.zscore_left(t(0.0))))
    assert float((cal.draw(mixture, generator, (4000,)) == 0).double().mean()) == pytest.approx(mass, abs=0.03)


def test_quantiles_found_by_search_are_right_at_every_size():
    apart = cal.Mixture([td.Normal(t(0.0), t(1.0)), td.Normal(t(1e30), t(1.0))])
    assert float(apart.icdf(t(0.2))) == pytest.approx(stats.norm.ppf(0.4), rel=1e-12)
    levels = t(1e-12, 0.01, 0.5)
    found = cal.Recalibrated(td.Gamma(t(0.3), t(1.0)), times(1)).icdf(levels[:, None])[:, 0]
    np.testing.assert_allclose(found, stats.gamma(0.3).ppf(levels), rtol=1e-9)


MAPS = [cal.fit_affine, cal.fit_smooth, cal.fit_isotonic, cal.fit_platt, cal.fit_beta]


@pytest.mark.parametrize(
    ("base", "low", "high"),
    [
        (td.Normal(t(0.0, 5.0), t(1.0, 2.0)), -np.inf, np.inf),
        (td.Laplace(t(0.0, 5.0), t(1.0, 2.0)), -np.inf, np.inf),
        (td.Gumbel(t(0.0, 5.0), t(1.0, 2.0)), -np.inf, np.inf),
        (td.Gamma(t(2.0, 3.0), t(1.0, 1.0)), 0.0, np.inf),
        (td.LogNormal(t(0.0, 1.0), t(1.0, 1.0)), 0.0, np.inf),
        (td.Uniform(t(-1.0, -1.0), t(3.0, 3.0)), -1.0, 3.0),
        (td.Poisson(t(3.0, 4.0)), 0.0, np.inf),
        (td.Binomial(7, t(0.3, 0.4)), 0.0, 7.0),
        (cal.Empirical([[-1.0, -1.0], [0.0, 2.0], [3.0, 3.0]]), -np.inf, np.inf),
        (cal.Empirical([[1.0, 1.0], [0.0, 2.0], [3.0, 3.0]]), 0.0, np.inf),
        (cal.Quantiles([[-1.0, -1.0], [0.0, 2.0], [3.0, 3.0]], [0.1, 0.5, 0.9]), -np.inf, np.inf),
        (cal.Mixture([td.Uniform(t(0.0, 0.0), t(1.0, 1.0)), td.Uniform(t(4.0, 4.0), t(5.0, 5.0))]), 0.0, 5.0),
        (cal.Rounded(td.Normal(t(0.0, 5.0), t(1.0, 2.0))), 0.0, np.inf),
        (td.MixtureSameFamily(td.Categorical(torch.ones(2, 2)), td.Uniform(t(0.0, 2.0), t(1.0, 9.0))), 0.0, 9.0),
        (td.TransformedDistribution(td.Uniform(t(0.0), t(1.0)), td.AffineTransform(t(8.0, 8.0), -2)), 6.0, 8.0),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, td.Distribution) else "",
)
def test_the_quantiles_at_0_and_1_are_the_ends_of_what_is_possible_whatever_the_map(base, low, high):
    base = base.expand((2,))
    for fit in MAPS:
        honest = cal.Recalibrated(base, fit(z=1.5 * torch.randn(50, generator=torch.Generator().manual_seed(0))))
        ends = honest.icdf(t(0.0, 0.5, 1.0)[:, None])
        assert ends[0].tolist() == [low, low]
        assert ends[2].tolist() == [high, high]
        assert bool(ends[1].isfinite().all())


@pytest.mark.parametrize("size", [1e-300, 1e200])
def test_forecasts_of_any_size_are_judged_and_calibrated_as_those_of_size_one(size):
    noise = torch.randn(60, 200, generator=torch.Generator().manual_seed(0), dtype=D)
    y = 1.5 * noise[-1]
    ordered = noise[:-1].sort(0).values

    def told(scale):
        forecasts = [
            td.Normal(torch.zeros(200, dtype=D), torch.full((200,), scale, dtype=D)),
            cal.Empirical(scale * noise[:-1]),
            cal.Quantiles(scale * ordered[[5, 29, 53]], [0.1, 0.5, 0.9]),
        ]
        for base in forecasts:
            honest = cal.Recalibrated(base, cal.fit_smooth(z=cal.pit_z(base, scale * y)))
            yield honest.icdf(t(0.001, 0.9)[:, None]) / scale
            yield honest.cdf(scale * y)
            yield honest.log_prob(scale * y) + np.log(scale)
            yield honest.mean / scale
            yield torch.stack(honest.interval(0.8, "conformal")) / scale
            yield t(cal.crps(base, scale * y) / scale)
        yield cal.recalibrate(forecasts[0], times(2)).stddev / scale
        yield t(cal.diagnostics.sharpness(forecasts[0]) / scale)

    for found, expected in zip(told(size), told(1.0), strict=True):
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_forecasts_are_worked_with_in_double(dtype):
    generator = torch.Generator().manual_seed(0)
    samples = (1000 + 300 * torch.randn(50, 100, generator=generator)).to(dtype)
    y = (1000 + 300 * torch.randn(100, generator=generator)).to(dtype)
    wide = samples.double()
    at = wide.sort(0).values[[5, 25, 45]].to(dtype)
    for base, same in [
        (cal.Empirical(samples), cal.Empirical(wide)),
        (cal.Quantiles(at, [0.1, 0.5, 0.9]), cal.Quantiles(at.double(), [0.1, 0.5, 0.9])),
        (td.Normal(at[1], at[2] - at[1]), td.Normal(at[1].double(), (at[2] - at[1]).double())),
    ]:
        honest, expected = cal.Recalibrated(base, times(2)), cal.Recalibrated(same, times(2))
        assert np.allclose(honest.quantiles([0.1, 0.9]), expected.quantiles([0.1, 0.9]), rtol=0.01)
        assert honest.icdf(0.9).dtype == honest.mean.dtype == honest.sample((3,)).dtype == dtype
        assert torch.allclose(honest.stddev.double(), expected.stddev, rtol=0.01)
        assert bool(honest.sample((100,)).isfinite().all())
        told, right = (
            cal.check(lambda _, by=by: by, (np.zeros((100, 1)), y), generator=torch.Generator().manual_seed(1))
            for by in (base, same)
        )
        assert told.coverage == pytest.approx(right.coverage, abs=0.011)
        assert told.crps == pytest.approx(right.crps, rel=0.01)
        assert told.nll == pytest.approx(right.nll, rel=0.01)

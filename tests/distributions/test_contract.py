"""What must hold of every forecast, ours and torch's, bare and recalibrated."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import calibrl as cal
from calibrl.diagnostics import crps_each
from calibrl.distributions import from_zscore, zscore
from calibrl.distributions.families import Grouped
from calibrl.distributions.kinds import Scored

D = torch.float64


def pair(a, b):
    return torch.tensor([a, b], dtype=D)


CONTINUOUS = {
    "Normal": td.Normal(pair(0.0, 3.0), pair(1.0, 0.5)),
    "LogNormal": td.LogNormal(pair(0.0, 1.0), pair(0.5, 0.3)),
    "Laplace": td.Laplace(pair(0.0, 1.0), pair(1.0, 2.0)),
    "Exponential": td.Exponential(pair(1.0, 3.0)),
    "Gamma": td.Gamma(pair(2.0, 5.0), pair(1.0, 2.0)),
    "Uniform": td.Uniform(pair(0.0, -1.0), pair(2.0, 1.0)),
    "Gumbel": td.Gumbel(pair(0.0, 1.0), pair(1.0, 2.0)),
    "StudentT": td.StudentT(pair(5.0, 30.0), pair(0.0, 1.0), pair(1.0, 2.0)),
    "Beta": td.Beta(pair(2.0, 0.8), pair(3.0, 5.0)),
    "Empirical": cal.Empirical(torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=D)),
    "Quantiles": cal.Quantiles(torch.tensor([[-1.0, 0.0], [0.0, 1.0], [3.0, 1.5]], dtype=D), [0.1, 0.5, 0.9]),
    "Mixture": cal.Mixture([td.Normal(pair(0.0, 1.0), 1.0), td.Normal(pair(3.0, 1.0), 0.5)], [0.3, 0.7]),
}
COUNTS = {
    "Poisson": td.Poisson(pair(0.7, 12.0)),
    "Binomial": td.Binomial(10, pair(0.2, 0.7)),
    "Geometric": td.Geometric(pair(0.3, 0.6)),
    "NegativeBinomial": td.NegativeBinomial(pair(3.0, 5.0), pair(0.3, 0.6)),
    "Rounded": cal.Rounded(td.Normal(pair(0.3, 7.0), pair(1.0, 2.0))),
}
z = torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=D)
MAPS = {
    "smooth": cal.fit_smooth(z=1.4 * z + 0.3),
    "isotonic": cal.fit_isotonic(z=0.7 * z),
    "platt": cal.fit_platt(z=1.4 * z),
    "beta": cal.fit_beta(z=z.abs()),
    "columns": cal.fit_smooth(z=torch.stack([1.5 * z, 0.6 * z - 0.5], -1)),
}


def forecasts(bases):
    return list(_forecasts(bases))


def _forecasts(bases):
    for name, base in bases.items():
        yield pytest.param(base, id=name)
        for label, mapping in MAPS.items():
            yield pytest.param(cal.Recalibrated(base, mapping), id=f"{name}, {label}")
        twice = cal.Recalibrated(cal.Recalibrated(base, MAPS["smooth"]), MAPS["platt"])
        yield pytest.param(twice, id=f"{name}, twice")


every_continuous = pytest.mark.parametrize("forecast", forecasts(CONTINUOUS))
every_count = pytest.mark.parametrize("forecast", forecasts(COUNTS))
ours_continuous = pytest.mark.parametrize(
    "forecast", [p for p in forecasts(CONTINUOUS) if "," in p.id or p.id in ("Empirical", "Quantiles", "Mixture")]
)


@ours_continuous
def test_quantiles_invert_the_cdf(forecast):
    u = torch.linspace(0.001, 0.999, 101, dtype=D)[:, None].expand(-1, 2)
    y = forecast.icdf(u)
    assert bool((y.diff(dim=0) >= 0).all())
    torch.testing.assert_close(forecast.cdf(y), u, rtol=0, atol=1e-9)


OURS = [p for p in forecasts(CONTINUOUS | COUNTS) if isinstance(p.values[0], Scored)]


@pytest.mark.parametrize("forecast", OURS)
def test_there_is_no_quantile_beyond_all(forecast):
    for wrong in (-0.01, 1.01):
        with pytest.raises(cal.CalibrlError, match=rf"{wrong} is outside \[0, 1\]; ask for"):
            forecast.icdf(torch.tensor([0.5, wrong], dtype=D))


@pytest.mark.parametrize("values", [torch.float32, D])
@pytest.mark.parametrize("held", [torch.float32, D])
def test_answers_keep_the_digits_of_the_question(held, values):
    numbers = torch.tensor([[0.0], [1.0], [3.0]], dtype=held)
    bare = td.Normal(numbers[0], numbers[1])
    ours = [
        cal.Empirical(numbers),
        cal.Quantiles(numbers, [0.1, 0.5, 0.9]),
        cal.Mixture([bare, bare]),
        cal.Rounded(bare),
        cal.Recalibrated(bare, MAPS["smooth"]),
        Grouped([(torch.tensor([0]), bare)]),
    ]
    value = torch.tensor([0.5], dtype=values)
    for forecast in ours:
        for ask in (forecast.cdf, forecast.icdf, forecast.log_prob):
            assert ask(value).dtype == torch.promote_types(held, values)


@ours_continuous
def test_density_is_the_slope_of_the_cdf(forecast):
    # At a piece's middle: a piecewise straight forecast's density jumps at its knots.
    y = forecast.icdf(torch.tensor([0.23, 0.41, 0.77], dtype=D)[:, None].expand(-1, 2))
    step = 1e-8
    numeric = (forecast.cdf(y + step) - forecast.cdf(y - step)) / (2 * step)
    torch.testing.assert_close(forecast.log_prob(y).exp(), numeric, rtol=2e-4, atol=1e-6)


@every_continuous
def test_moments_are_those_of_the_quantile_function(forecast):
    # Independent: twenty thousand nodes over the quantile function, wherever it may bend.
    x, w = np.polynomial.legendre.leggauss(4)
    edges = np.linspace(-8.6, 8.6, 5001)
    at = ((edges[1:] + edges[:-1])[:, None] / 2 + np.diff(edges)[:, None] / 2 * x).ravel()
    weight = ((np.diff(edges)[:, None] / 2 * w).ravel() * stats.norm.pdf(at))[:, None]
    quantile = from_zscore(forecast, torch.from_numpy(at)[:, None].expand(-1, 2)).numpy()
    mean = (quantile * weight).sum(0)
    variance = ((quantile - mean) ** 2 * weight).sum(0)
    # Near u = 1 torch's own inverses step in units of 1e-16 of u: a far tail cannot be told more precisely.
    # A map's bends are found between a mixture's outcomes by interpolation.
    rough = isinstance(getattr(forecast, "base", None), (cal.Recalibrated, cal.Mixture))
    tolerance = 5e-6 if rough else 1e-6
    np.testing.assert_allclose(forecast.variance, variance, rtol=tolerance)
    assert bool((np.abs(forecast.mean.numpy() - mean) < tolerance * np.sqrt(variance)).all())


@every_continuous
def test_samples_follow_the_forecast(forecast, generator):
    drawn = cal.draw(forecast, generator, (4000,))
    u = torch.special.ndtr(zscore(forecast, drawn)).sort(0).values
    grid = (torch.arange(4000, dtype=D) + 0.5) / 4000
    # Kolmogorov-Smirnov: beyond 1.95/√n once in a thousand.
    assert float((u - grid[:, None]).abs().max()) < 1.95 / 4000**0.5
    assert forecast.sample((3,)).shape == (3, 2)


@every_count
def test_counts_add_up(forecast):
    k = torch.arange(0, 400, dtype=D)
    if "Binomial" in repr(getattr(forecast, "base", forecast)) and "Negative" not in repr(forecast):
        k = k[:11]
    mass = forecast.log_prob(k[:, None].expand(-1, 2)).exp()
    torch.testing.assert_close(mass.sum(0), torch.ones(2, dtype=D), rtol=0, atol=1e-9)
    mean = (k[:, None] * mass).sum(0)
    torch.testing.assert_close(forecast.mean, mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(forecast.variance, ((k[:, None] - mean).square() * mass).sum(0), rtol=1e-6, atol=1e-9)
    cumulative = torch.special.ndtr(zscore(forecast, k[:, None].expand(-1, 2)))
    torch.testing.assert_close(cumulative, mass.cumsum(0), rtol=0, atol=1e-9)


@every_count
def test_count_draws_follow_the_forecast(forecast, generator):
    drawn = cal.draw(forecast, generator, (20_000,))
    assert bool((drawn == drawn.round()).all())
    error = (forecast.variance / 20_000).sqrt()
    assert bool(((drawn.mean(0) - forecast.mean).abs() < 4 * error).all())


@pytest.mark.parametrize("forecast", [*forecasts(CONTINUOUS), *forecasts(COUNTS)])
def test_nobody_saw_it(forecast, generator):
    y = torch.tensor([torch.nan, 1.0], dtype=D)
    p = cal.pit(forecast, y, generator=generator)
    assert bool(p[0].isnan())
    assert 0 <= float(p[1]) <= 1
    assert crps_each(forecast, y).isnan().tolist() == [True, False]
    assert from_zscore(forecast, y).isnan().tolist() == [True, False]


@pytest.mark.parametrize("forecast", [*forecasts(CONTINUOUS), *forecasts(COUNTS)])
def test_repeats_with_the_same_generator_and_expands(forecast):
    first, second = (cal.draw(forecast, torch.Generator().manual_seed(7), (5,)) for _ in range(2))
    assert torch.equal(first, second)
    wide = forecast.expand((3, 2))
    assert wide.batch_shape == (3, 2)
    torch.testing.assert_close(wide.mean, forecast.mean.expand(3, 2))


@every_continuous
def test_pits_of_its_own_draws_are_uniform(forecast, generator):
    y = cal.draw(forecast, generator, (2000,))
    p = torch.special.ndtr(zscore(forecast, y))
    assert abs(float(p.mean()) - 0.5) < 0.03


@every_count
def test_randomised_pits_of_its_own_draws_are_uniform(forecast, generator):
    y = cal.draw(forecast, generator, (500,))
    p = cal.pit(forecast.expand((500, 2)), y, generator=generator)
    u = p.sort(0).values
    grid = (torch.arange(500, dtype=D) + 0.5) / 500
    assert float((u - grid[:, None]).abs().max()) < 1.95 / 500**0.5


@pytest.mark.parametrize("forecast", OURS)
def test_quantiles_at_each_level_and_the_median(forecast):
    levels = [0.1, 0.5, 0.9]
    found = forecast.quantiles(levels)
    assert isinstance(found, np.ndarray)
    assert found.shape == (3, 2)
    for row, level in zip(found, levels, strict=True):
        np.testing.assert_allclose(row, forecast.icdf(torch.full((2,), level, dtype=D)).numpy(), rtol=1e-9)
    np.testing.assert_allclose(forecast.median.numpy(), found[1], rtol=1e-9)
    with pytest.raises(cal.CalibrlError, match=r"shape \(3,\) do not fit .* quantiles\(levels\)"):
        forecast.icdf(levels)


@pytest.mark.parametrize("forecast", [p for p in OURS if "columns" not in p.id])
def test_forecasts_are_picked_by_row(forecast):
    u = torch.tensor([[0.2], [0.7]], dtype=D)
    whole = forecast.icdf(u.expand(-1, 2))
    for rows in (slice(1, 2), torch.tensor([False, True]), [1], np.array([1])):
        some = forecast[rows]
        assert len(some) == 1
        assert some.batch_shape == (1,)
        torch.testing.assert_close(some.icdf(u), whole[:, 1:])
    assert len(repr(forecast)) < 120
    with pytest.raises(cal.CalibrlError, match="picked by row"):
        forecast[0, 0]


def test_of_columns_rows_are_picked_and_single_ones():
    forecast = cal.Recalibrated(td.Normal(torch.arange(6.0, dtype=D).reshape(3, 2), 1.0), MAPS["columns"])
    torch.testing.assert_close(forecast[2].median, forecast.median[2])
    torch.testing.assert_close(forecast[1:].stddev, forecast.stddev[1:])
    parts = [
        (torch.tensor([2, 0]), td.Normal(pair(2.0, 0.0), 1.0)),
        (torch.tensor([1]), td.Normal(pair(1.0, 1.0), 1.0)),
    ]
    parts[1] = (parts[1][0], cal.distributions.kinds.take_rows(parts[1][1], slice(1)))
    torch.testing.assert_close(Grouped(parts)[[2, 1]].mean, pair(2.0, 1.0))


def test_numbers_of_python_do_not_widen_a_forecast():
    forecast = cal.Recalibrated(td.Normal(torch.zeros(3), torch.ones(3)), MAPS["smooth"])
    asked = (forecast.icdf(0.9), forecast.cdf([0.0, 1.0, 2.0]), forecast.median, *forecast.interval(0.9), forecast.mean)
    for answer in (*asked, forecast.quantiles([0.1, 0.9])):
        assert str(answer.dtype).endswith("float32")

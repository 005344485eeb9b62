"""CRPS of every kind of continuous forecast after every kind of map, against integrals of its own CDF."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import distributions as td

import calibrl as cal
from calibrl.diagnostics import crps_each
from calibrl.distributions import from_zscore, zscore
from calibrl.distributions.zscores import breaks
from calibrl.maps import Chain

D = torch.float64


def pair(a, b):
    return torch.tensor([a, b], dtype=D)


drawn = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=D)
NORMALS = [td.Normal(pair(0.0, 1.0), 1.0), td.Normal(pair(3.0, 1.0), 0.5)]
APART = [td.Normal(pair(0.0, 1.0), 0.1), td.Normal(pair(30.0, 100.0), 0.5)]
FORECASTS = {
    "LogNormal": td.LogNormal(pair(0.0, 1.0), pair(0.5, 0.3)),
    "Laplace": td.Laplace(pair(0.0, 1.0), pair(1.0, 2.0)),
    "Gumbel": td.Gumbel(pair(0.0, 1.0), pair(1.0, 2.0)),
    "Uniform": td.Uniform(pair(0.0, -1.0), pair(2.0, 1.0)),
    "Empirical": cal.Empirical(drawn),
    "atoms": cal.Empirical((2 * drawn).round()),
    "Quantiles": cal.Quantiles(drawn[:9].sort(0).values, np.arange(1, 10) / 10),
    "Mixture": cal.Mixture(NORMALS, [0.3, 0.7]),
    "far apart": cal.Mixture(APART, [0.3, 0.7]),
    "of atoms": cal.Mixture([cal.Empirical((2 * drawn).round()), cal.Empirical(drawn.round()), NORMALS[0]]),
    "of quantiles": cal.Mixture([cal.Quantiles(drawn[:3].sort(0).values, [0.1, 0.5, 0.9]), NORMALS[0]]),
}
z = torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=D)
MAPS = {
    "smooth": cal.fit_smooth(z=1.4 * z + 0.3),
    "isotonic": cal.fit_isotonic(z=0.7 * z),
    "few": cal.fit_isotonic(z=2 * z[:20]),
    "beta": cal.fit_beta(z=z.abs()),
    "sigmoid": cal.maps.fit_sigmoid(torch.special.ndtr(z)),
    "columns": cal.fit_smooth(z=torch.stack([1.5 * z, 0.6 * z - 0.5], -1)),
}


def by_hand(forecast, y, *, components=(), reach=8.5, cuts=171):
    """∫ F² dx below y and ∫ (1 - F)² dx above it, with ten nodes between all places where F bends. y: (k, 2)."""

    def wide(values):
        return values.reshape(len(values), *values.shape[1:] or (1,)).expand(-1, 2)

    def quantiles(one, *at):
        return from_zscore(one, torch.cat([wide(part) for part in at]).clamp(-reach, reach))

    even = torch.linspace(-reach, reach, cuts, dtype=D)
    parts = [quantiles(forecast, even, breaks(forecast)), *(quantiles(one, even, breaks(one)) for one in components)]
    ends = quantiles(forecast, even[[0, -1]])
    parts.append(torch.lerp(*ends, wide((even / reach + 1) / 2)))
    edges = torch.cat(parts).clamp(ends[0], ends[1]).sort(0).values
    nodes, weights = np.polynomial.legendre.leggauss(10)
    total = torch.zeros_like(y)
    for i, outcome in enumerate(y):
        own = torch.cat([edges, outcome[None]]).sort(0).values
        half, middle = own.diff(dim=0) / 2, (own[1:] + own[:-1]) / 2
        for node, weight in zip(nodes, weights, strict=True):
            at = middle + half * node
            p = torch.special.ndtr(zscore(forecast, at) * torch.where(at < outcome, 1.0, -1.0))
            total[i] += (weight * half * p.square()).sum(0)
    return total


@pytest.mark.parametrize("mapping", ["none", *MAPS])
@pytest.mark.parametrize("name", FORECASTS)
def test_crps_is_the_integral_of_the_squared_cdf(name, mapping):
    base = FORECASTS[name]
    forecast = base if mapping == "none" else cal.Recalibrated(base, MAPS[mapping])
    y = from_zscore(forecast, torch.tensor([-2.2, 0.03, 1.1], dtype=D)[:, None].expand(-1, 2))
    expected = by_hand(forecast, y, components=getattr(base, "components", ()))
    torch.testing.assert_close(crps_each(forecast.expand((3, 2)), y), expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("fit", [cal.fit_smooth, cal.fit_isotonic, cal.fit_beta])
@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("rows", [30, 100])
def test_a_gaussian_keeps_its_digits_however_a_map_bends(fit, columns, rows):
    cubes = 1.5 * z.pow(3)
    mapping = fit(z=torch.stack([cubes[:rows], cubes[-rows:]], -1) if columns else cubes[:rows])
    forecast = cal.Recalibrated(td.Normal(pair(1e9, -3.0), pair(1.0, 2.0)), mapping)
    unit = cal.Recalibrated(td.Normal(pair(0.0, 0.0), 1.0), mapping)
    at = from_zscore(unit, torch.tensor([-8.4, -2.2, 0.03, 1.1], dtype=D)[:, None].expand(-1, 2))
    found = crps_each(forecast.expand((4, 2)), pair(1e9, -3.0) + pair(1.0, 2.0) * at)
    torch.testing.assert_close(found, pair(1.0, 2.0) * by_hand(unit, at, cuts=2001), rtol=2e-7, atol=0)


def test_crps_of_quantiles_has_a_closed_form():
    levels, values = np.array([0.05, 0.2, 0.5, 0.8, 0.95]), np.array([-1.0, -0.2, 0.0, 0.1, 4.0])
    knots = stats.norm.ppf(levels)
    slopes = np.diff(values) / np.diff(knots)
    tails = values[[0, -1]] / knots[[0, -1]]  # the median is 0: straight from there to the ends
    outcomes = np.array([-9.0, -0.6, 0.05, 2.0, 30.0])

    def squared(t):  # ∫ Φ² up to t
        return (
            t * stats.norm.cdf(t) ** 2
            + 2 * stats.norm.pdf(t) * stats.norm.cdf(t)
            - stats.norm.cdf(np.sqrt(2) * t) / np.sqrt(np.pi)
        )

    def expected(y):
        at = np.concatenate([[values[0] + tails[0] * -40], values, [values[-1] + tails[-1] * 40]])
        z_at = np.concatenate([[knots[0] - 40], knots, [knots[-1] + 40]])
        own = np.interp(y, at, z_at)
        total = 0.0
        for low, high, slope in zip(z_at[:-1], z_at[1:], [tails[0], *slopes, tails[-1]], strict=True):
            cut = np.clip(own, low, high)
            total += slope * (squared(cut) - squared(low) + squared(-cut) - squared(-high))
        return total

    forecast = cal.Quantiles(np.tile(values[:, None], (1, 5)), levels)
    np.testing.assert_allclose(crps_each(forecast, outcomes), [expected(y) for y in outcomes], rtol=1e-7)


def test_maps_one_after_the_other_are_one_map():
    first, second = MAPS["isotonic"], MAPS["smooth"]
    base, y = FORECASTS["Gumbel"], pair(0.3, 2.0)
    twice = cal.Recalibrated(cal.Recalibrated(base, first), second)
    once = cal.Recalibrated(base, Chain(before=first, after=second))
    torch.testing.assert_close(crps_each(twice, y), crps_each(once, y))


def test_torch_mixtures_are_followed_between_their_components():
    mean, scale = torch.tensor([0.0, 100.0], dtype=D), torch.tensor([0.1, 0.5], dtype=D)
    peer = td.MixtureSameFamily(td.Categorical(pair(0.3, 0.7)), td.Normal(mean, scale)).expand((3,))
    ours = cal.Mixture([td.Normal(mean[i].expand(3), scale[i]) for i in range(2)], [0.3, 0.7])
    y = torch.tensor([0.05, 50.0, 100.3], dtype=D)
    torch.testing.assert_close(crps_each(peer, y), crps_each(ours, y))


def test_heavy_tails_keep_their_digits_and_endless_ones_are_infinite():
    def cauchy(y):
        below = integrate.quad(lambda x: stats.cauchy.cdf(x) ** 2, -np.inf, y, limit=500)[0]
        return below + integrate.quad(lambda x: stats.cauchy.sf(x) ** 2, y, np.inf, limit=500)[0]

    found = crps_each(td.Cauchy(torch.zeros(2, dtype=D), 1.0), [1.0, 2.0])
    np.testing.assert_allclose(found, [cauchy(1.0), cauchy(2.0)], rtol=1e-5)
    endless = cal.Recalibrated(td.LogNormal(torch.zeros(2, dtype=D), 1.0), cal.fit_smooth(z=200 * z))
    np.testing.assert_array_equal(crps_each(endless, [1.0, np.nan]), [np.inf, np.nan])
    np.testing.assert_array_equal(crps_each(td.Gumbel(torch.zeros(2, dtype=D), 1.0), [-np.inf, np.inf]), [np.inf] * 2)


@pytest.mark.parametrize("mapping", ["none", "smooth", "isotonic"])
@pytest.mark.parametrize(
    "make",
    [
        lambda m, s: td.Gumbel(m, s),
        lambda m, s: cal.Mixture([td.Normal(m, s), td.Normal(m + 20, 2 * s)]),
        lambda m, s: td.MixtureSameFamily(
            td.Categorical(pair(0.3, 0.7)), td.Normal(torch.stack([m, m + 2], -1), torch.stack([s, s], -1))
        ),
    ],
    ids=["Gumbel", "Mixture", "torch's mixture"],
)
def test_gradients_are_those_of_finite_differences(make, mapping):
    def total(m, s, y):
        base = make(m, s)
        return crps_each(base if mapping == "none" else cal.Recalibrated(base, MAPS[mapping]), y).sum()

    at = [pair(0.0, 1.0), pair(1.0, 2.0), pair(0.7, 21.0)]
    free = [part.clone().requires_grad_() for part in at]
    found = torch.autograd.grad(total(*free), free)
    for i, gradient in enumerate(found):
        for j in range(2):
            step = torch.zeros(2, dtype=D)
            step[j] = 1e-4
            ahead, behind = (
                total(*(part + side * step if k == i else part for k, part in enumerate(at))) for side in (1, -1)
            )
            assert float(gradient[j]) == pytest.approx(float(ahead - behind) / 2e-4, rel=1e-3, abs=1e-4)

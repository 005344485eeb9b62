"""Each fitting function against closed forms, scikit-learn and published values."""

import math
import time

import numpy as np
import pytest
import torch
from scipy import stats

import calibrl as cal
from calibrl import maps
from calibrl.maps.base import WeightedRanks

D = torch.float64
LEVELS = torch.linspace(0.05, 0.95, 19, dtype=D)

# What outcomes do, in units of the forecast N(0, 1).
TRUTHS = {
    "sigma too small by 4": stats.norm(0, 4),
    "sigma too small by 2": stats.norm(0, 2),
    "sigma too large by 2": stats.norm(0, 0.5),
    "sigma too large by 4": stats.norm(0, 0.25),
    "biased": stats.norm(0.7),
    "skewed": stats.expon(-1),
    "heavy-tailed": stats.t(2),
}


def fresh_loss(mapping, truth, rows):
    """Expected calibration loss on `rows` fresh outcomes, exactly: squared error of R plus sampling noise."""
    z = torch.special.ndtri(LEVELS)
    z = z[:, None].expand(-1, *mapping.columns) if mapping.columns else z[:, None]
    share = torch.from_numpy(truth.cdf(mapping.inverse_z(z).numpy()))
    return ((share - LEVELS[:, None]).square() + share * (1 - share) / rows).sum(0)


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_default_map_comes_within_twice_a_perfect_forecaster(truth):
    z = truth.rvs(size=(1000, 400), random_state=np.random.default_rng(1))
    perfect = float((LEVELS * (1 - LEVELS)).sum() / 1000)
    assert float(fresh_loss(cal.fit_smooth(z=z), truth, 1000).mean()) < 2.05 * perfect


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_twenty_outcomes_do_no_harm(truth):
    z = truth.rvs(size=(20, 400), random_state=np.random.default_rng(2))
    before, after = excess(cal.maps.IDENTITY, truth), excess(cal.fit_smooth(z=z), truth)
    assert float(after.mean()) < 1.05 * float(before)  # four hundred draws tell means to within a few percent


def excess(mapping, truth):
    """CRPS beyond the truth's own, ∫ (R(Φ(x)) - F(x))² dx, of each column."""
    x = torch.linspace(-30, 30, 3001, dtype=D)[:, None]
    gap = torch.special.ndtr(mapping.forward_z(x.expand(-1, *mapping.columns or (1,))))
    return torch.trapezoid((gap - torch.from_numpy(truth.cdf(x.numpy()))).square(), x[:, 0], dim=0)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_handful_of_rows_moves_one_calibrated_forecast_in_a_hundred(n):
    z = torch.randn(n, 2000, generator=torch.Generator().manual_seed(n), dtype=D)
    at = torch.linspace(-2, 2, 9, dtype=D)[:, None].expand(-1, 2000)
    moved = ((cal.fit_smooth(z=z).forward_z(at) - at).abs() > 1e-6).any(0)
    assert float(moved.double().mean()) <= 0.01


def test_two_equal_outcomes_do_not_make_a_forecast_certain():
    low, high = cal.fit_smooth(z=torch.tensor([3.0, 3.0], dtype=D)).inverse_z(torch.tensor([-1.645, 1.645], dtype=D))
    assert float(high - low) > 2


HEAVY = {
    "t(2)": stats.t(2),
    "t(2.5), twice as wide": stats.t(2.5, scale=2),
    "skewed t": stats.jf_skew_t(4, 2),
    "log-normal": stats.lognorm(0.8, loc=-1.2),
}


@pytest.mark.parametrize("truth", HEAVY.values(), ids=HEAVY)
def test_with_many_rows_intervals_reach_as_far_as_tails_do(truth):
    z = truth.rvs(size=(10_000, 20), random_state=np.random.default_rng(3))
    mapping = cal.fit_smooth(z=z)
    for level in (0.99, 0.999):
        ends = torch.special.ndtri(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=D))
        low, high = mapping.inverse_z(ends[:, None].expand(-1, 20)).numpy()
        missed = truth.cdf(low) + truth.sf(high)
        assert missed.mean() < 1.3 * (1 - level)


def test_a_twentieth_of_wild_outcomes_is_seen():
    z = np.append(np.random.default_rng(4).normal(size=200), np.tile([-50.0, 50.0], 5))
    high = cal.fit_smooth(z=z).inverse_z(torch.tensor([stats.norm.ppf(0.99)], dtype=D))
    assert float(high) > 20


BODY = {"bias": stats.norm(0.5), "two widths": stats.skewnorm(2.5, loc=-0.6, scale=1.2), "wide": stats.norm(0, 1.6)}


@pytest.mark.parametrize("truth", BODY.values(), ids=BODY)
def test_a_hundred_rows_repair_as_much_as_the_best_plain_map(truth):
    z = truth.rvs(size=(100, 150), random_state=np.random.default_rng(5))
    ours, isotonic, affine = (
        excess(fit(z=z), truth).mean() for fit in (cal.fit_smooth, cal.fit_isotonic, cal.fit_affine)
    )
    assert float(ours) < 1.5 * float(min(isotonic, affine))


@pytest.mark.parametrize("name", ["affine", "platt", "beta"])
@pytest.mark.parametrize(("n", "wild"), [(200, [-200.0, 200.0]), (20, [1e6]), (30, [1e3, 1e6])])
def test_two_wild_outcomes_do_not_bend_a_map_of_few_numbers(name, n, wild):
    z = np.append(np.random.default_rng(6).normal(size=n), wild)
    low, high = _fit(name)(z=z).inverse_z(torch.special.ndtri(torch.tensor([0.25, 0.75], dtype=D)))
    assert 0.4 < float(high) < 2
    assert -1 < float(low) < -0.2


@pytest.mark.parametrize("n", [10, 100, 1000, 10_000, 100_000, 1_000_000])
def test_a_calibrated_forecast_is_left_alone(n):
    columns = 20 if n <= 10_000 else 1
    pit = torch.rand(n, columns, generator=torch.Generator().manual_seed(n), dtype=D)
    moved = (cal.fit_smooth(pit)(LEVELS[:, None].expand(-1, columns)) - LEVELS[:, None]).abs()
    # Kolmogorov: the empirical CDF of n uniforms strays by more than 1.63/√n once in a hundred.
    assert float(moved.max()) < 1.63 / math.sqrt(n)
    assert float(moved.mean()) < 0.5 * 0.313 / math.sqrt(n)


def test_no_evidence_is_the_identity():
    p = torch.linspace(0, 1, 101, dtype=D)
    for fit in (cal.fit_smooth, cal.fit_isotonic, cal.fit_platt, cal.fit_beta, cal.fit_affine, cal.fit_auto):
        torch.testing.assert_close(fit(torch.zeros(0, dtype=D))(p), p, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("n", "most"), [(100, 0.25), (300, 0.04)])
def test_few_wide_outcomes_give_the_density_its_tails(n, most):
    rng, columns = np.random.default_rng(3), 40
    wide = rng.random((n, columns)) < 0.04
    mapping = cal.fit_smooth(z=rng.standard_normal((n, columns)) * np.where(wide, 6.0, 1.0))
    x = np.linspace(-40, 40, 8001)
    truth = 0.96 * stats.norm.pdf(x) + 0.04 * stats.norm.pdf(x, scale=6)
    at = torch.from_numpy(x)[:, None].expand(-1, columns)
    s = mapping.forward_z(at).numpy()
    log_density = mapping.log_slope_z(at).numpy() + stats.norm.logpdf(s)
    lost = np.trapezoid(truth * (np.log(truth) - log_density.T), x, axis=1)
    assert lost.mean() < most


def test_smooth_is_consistent_for_any_shape():
    truth = stats.skewnorm(6, -0.78, 1)
    z = truth.rvs(size=100_000, random_state=np.random.default_rng(3))
    mapping = cal.fit_smooth(z=z)
    at = torch.linspace(-1.5, 3, 60, dtype=D)
    np.testing.assert_allclose(mapping(torch.special.ndtr(at)), truth.cdf(at.numpy()), atol=0.006)


def test_smooth_density_integrates_to_one_and_matches_the_truth():
    truth = stats.norm(0.4, 1.6)
    z = torch.from_numpy(truth.rvs(size=20_000, random_state=np.random.default_rng(4)))
    honest = cal.Recalibrated(
        torch.distributions.Normal(torch.zeros(1, dtype=D), torch.ones(1, dtype=D)), cal.fit_smooth(z=z)
    )
    y = torch.linspace(-15, 15, 30_001, dtype=D)[:, None]
    density = honest.log_prob(y).exp()[:, 0]
    assert float(torch.trapezoid(density, y[:, 0])) == pytest.approx(1, abs=1e-5)
    gap = torch.trapezoid((density - torch.from_numpy(truth.pdf(y[:, 0].numpy()))).abs(), y[:, 0])
    assert float(gap) < 0.03


@pytest.mark.parametrize("n", [1, 2, 5, 50, 400])
def test_isotonic_passes_through_the_shrunk_empirical_cdf(n):
    pit = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=D).sort().values
    expected = (n * torch.arange(1, n + 1, dtype=D) / (n + 1) + 10 * pit) / (n + 10)
    torch.testing.assert_close(cal.fit_isotonic(pit)(pit), expected, rtol=0, atol=1e-9)


def test_equal_outcomes_share_the_middle_of_their_ranks():
    mapping = cal.fit_isotonic(z=torch.tensor([0.0, 0.0, 0.0, 1.0, 1.5], dtype=D))
    # Ranks 1 to 3 of 5, beside 10 pseudo-rows that say one half.
    assert float(mapping(torch.tensor(0.5, dtype=D))) == pytest.approx((5 * 2 / 6 + 10 * 0.5) / 15)


def test_affine_has_the_closed_form():
    z = torch.randn(90, generator=torch.Generator().manual_seed(5), dtype=D) * 2 + 0.5
    mapping = cal.fit_affine(z=z)
    shift = z.sum() / 100
    torch.testing.assert_close(mapping.shift, shift)
    torch.testing.assert_close(mapping.scale, ((z.square().sum() + 10) / 100 - shift**2).sqrt())


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.5, 0.4), (2.0, -0.7)])
def test_platt_recovers_its_own_parameters(a, b):
    u = torch.rand(50_000, generator=torch.Generator().manual_seed(6), dtype=D)
    pit = torch.sigmoid((torch.logit(u) - b) / a)
    mapping = cal.fit_platt(pit)
    assert float(mapping.a) == pytest.approx(a, rel=0.03)
    assert float(mapping.b) == pytest.approx(b, abs=0.03)


def test_beta_recovers_its_own_parameters():
    u = torch.rand(50_000, generator=torch.Generator().manual_seed(7), dtype=D)
    truth = maps.Beta(a=torch.tensor(0.7, dtype=D), b=torch.tensor(1.6, dtype=D), c=torch.tensor(0.3, dtype=D))
    found = cal.fit_beta(truth.inverse(u))
    assert float(found.a) == pytest.approx(0.7, rel=0.05)
    assert float(found.b) == pytest.approx(1.6, rel=0.05)
    assert float(found.c) == pytest.approx(0.3, abs=0.05)


def test_the_papers_sigmoid_is_as_wide_and_as_stuck_as_published():
    # On a perfectly calibrated Gaussian: samples 1.91 times too wide, 13.8 % of them at the ±4.75 σ clip.
    pit = (torch.arange(100_000, dtype=D) + 0.5) / 100_000
    mapping = cal.maps.fit_sigmoid(pit)
    drawn = mapping.inverse_z(torch.randn(200_000, generator=torch.Generator().manual_seed(9), dtype=D))
    assert float(drawn.std()) == pytest.approx(1.91, abs=0.02)
    assert float((drawn.abs() > 4.75).double().mean()) == pytest.approx(0.138, abs=0.003)


def test_over_confidence_far_beyond_what_a_pit_can_hold():
    z = 50 * torch.randn(2000, generator=torch.Generator().manual_seed(10), dtype=D)
    for fit in (cal.fit_smooth, cal.fit_isotonic, cal.fit_affine):
        high = float(fit(z=z).inverse_z(torch.tensor(1.2816, dtype=D)))
        assert high == pytest.approx(64, rel=0.1)  # the 90 % quantile lies at 64 forecast deviations


def test_one_wild_outcome_does_not_widen_every_forecast():
    z = torch.randn(200, generator=torch.Generator().manual_seed(11), dtype=D)
    z[0] = 5000.0
    law = maps.gaussian_law(cal.fit_smooth(z=z), torch.device("cpu"))
    assert float(law.variance) ** 0.5 < 1.5


def test_auto_keeps_the_identity_without_evidence_and_changes_with_it():
    calibrated = torch.rand(40, generator=torch.Generator().manual_seed(12), dtype=D)
    assert "identity" in cal.fit_auto(calibrated).note
    over_confident = torch.special.ndtr(3 * torch.randn(40, generator=torch.Generator().manual_seed(13), dtype=D))
    assert "identity" not in cal.fit_auto(over_confident).note
    both = cal.fit_auto(torch.stack([calibrated, over_confident], -1))
    assert both.note.split(": ")[1].split(", ")[0] == "identity"


@pytest.mark.parametrize("n", [19, 40, 2000])
def test_conformal_intervals_cover_as_the_theorem_says(n):
    generator = torch.Generator().manual_seed(n)
    columns = 3000
    z = torch.randn(n, columns, generator=generator, dtype=D)
    ranks = cal.fit_affine(z=z).ranks
    low, high = ranks.bounds_z(0.05, 0.05)
    share = torch.from_numpy(stats.norm.cdf(high) - stats.norm.cdf(low)).mean()
    # Exact for uniforms: (u - l)/(n + 1) on average over calibration sets, rounded outwards where thinned.
    rank = math.floor((n + 1) * 0.05 + 1e-9)
    exact = (n + 1 - 2 * rank) / (n + 1)
    assert float(share) >= 0.9 - 0.002
    assert float(share) == pytest.approx(exact, abs=0.006)


def test_equal_weights_change_no_interval():
    z = torch.randn(100, generator=torch.Generator().manual_seed(6), dtype=D)
    plain = cal.fit_affine(z=z).ranks.bounds_z(0.05, 0.05)
    assert cal.fit_affine(z=z, weight=torch.full_like(z, 0.1)).ranks.bounds_z(0.05, 0.05) == plain


def test_weighted_ranks_keep_their_promise_where_the_weights_are_right():
    """Covariate shift: half of the calibration rows are of a kind that new rows are nine times likelier to be."""
    generator = torch.Generator().manual_seed(8)
    columns, n = 3000, 60
    often = torch.rand(n, columns, generator=generator, dtype=D) < 0.5
    z = torch.randn(n, columns, generator=generator, dtype=D) * torch.where(often, 2.0, 1.0)
    ranks = cal.fit_affine(z=z, weight=torch.where(often, 9.0, 1.0)).ranks
    assert isinstance(ranks, WeightedRanks)

    def covered(low, high):
        shares = [stats.norm.cdf(high / s) - stats.norm.cdf(low / s) for s in (2.0, 1.0)]
        return float((0.9 * shares[0] + 0.1 * shares[1]).mean())

    assert 0.9 <= covered(*ranks.bounds_z(0.05, 0.05)) < 0.95
    assert covered(*cal.fit_affine(z=z).ranks.bounds_z(0.05, 0.05)) < 0.87
    with pytest.raises(cal.CalibrlError, match="no tolerance bound is known"):
        ranks.bounds_z(0.05, 0.05, confidence=0.95)


@pytest.mark.parametrize(("n", "level", "confidence"), [(59, 0.95, 0.95), (100, 0.9, 0.95), (400, 0.8, 0.99)])
def test_tolerance_bounds_hold_as_often_as_they_say(n, level, confidence):
    """Against the exact law of an order statistic's share, a Beta."""
    z = torch.randn(n, 3000, generator=torch.Generator().manual_seed(n), dtype=D)
    ranks = cal.fit_affine(z=z).ranks
    for tails in ((1 - level, 0.0), (0.0, 1 - level), ((1 - level) / 2, (1 - level) / 2)):
        low, high = ranks.bounds_z(*tails, confidence)
        held = torch.from_numpy(stats.norm.cdf(high) - stats.norm.cdf(low)) >= level
        sides = sum(tail > 0 for tail in tails)
        given = max(r for r in range(sides * n) if stats.binom.cdf(r - 1, n, 1 - level) <= 1 - confidence)
        given -= given % sides
        exact = stats.beta.sf(level, n + 1 - given, given) if given else 1.0
        assert exact >= confidence
        assert float(held.double().mean()) == pytest.approx(exact, abs=0.02)


def test_one_sided_bounds_are_the_ranks_the_theorem_names():
    z = torch.randn(99, generator=torch.Generator().manual_seed(1), dtype=D)
    forecast = cal.Recalibrated(torch.distributions.Normal(torch.zeros(1, dtype=D), 2.0), cal.fit_smooth(z=z))
    assert float(forecast.lower_bound(0.9, "conformal")) == pytest.approx(2 * float(z.sort().values[9]))
    assert float(forecast.upper_bound(0.9, "conformal")) == pytest.approx(2 * float(z.sort().values[89]))
    assert float(forecast.lower_bound(0.9)) == pytest.approx(float(forecast.icdf(0.1)))
    assert float(forecast.upper_bound(0.999, "conformal")) == math.inf
    assert float(forecast.lower_bound(0.9, "tolerance")) < float(forecast.lower_bound(0.9, "conformal"))
    assert "90 % of outcomes" in forecast.promise(0.9)
    assert "95 % confidence" in forecast.promise(0.9, "tolerance", side="lower")


def test_too_few_rows_promise_nothing():
    low, high = cal.fit_smooth(torch.rand(18, dtype=D)).ranks.bounds_z(0.05, 0.05)
    assert float(low) == -math.inf
    assert float(high) == math.inf


@pytest.mark.filterwarnings("ignore:.*PITs are 0 or 1")
@pytest.mark.parametrize(
    ("forecast", "fit_on_pits"),
    [
        (lambda n: torch.distributions.Normal(torch.zeros(n, dtype=D), 1e-9), False),
        (lambda n: torch.distributions.Normal(torch.zeros(n, dtype=D), 0.02), True),
        (lambda n: torch.distributions.Laplace(torch.zeros(n, dtype=D), 0.005), False),
        (lambda n: cal.Mixture([torch.distributions.Normal(torch.zeros(n, dtype=D), 0.005)] * 2), False),
    ],
    ids=["z beyond a million", "PITs of 0 and 1", "Laplace", "mixture"],
)
def test_no_conformal_interval_ends_where_digits_end(forecast, fit_on_pits):
    y = torch.randn(400, generator=torch.Generator().manual_seed(7), dtype=D)
    scores = cal.pit_z(forecast(199), y[:199])
    mapping = cal.fit_affine(torch.special.ndtr(scores)) if fit_on_pits else cal.fit_affine(z=scores)
    low, high = cal.Recalibrated(forecast(201), mapping).interval(0.9, guarantee="conformal")
    assert float(((y[199:] >= low) & (y[199:] <= high)).double().mean()) > 0.85


@pytest.mark.parametrize("factor", [5, 15, 20, 60])
@pytest.mark.parametrize("name", ["platt", "beta", "affine", "smooth"])
def test_forecasts_far_too_sure_are_widened_and_stay_centred(name, factor):
    z = factor * np.random.default_rng(3).normal(size=400)
    honest = cal.Recalibrated(torch.distributions.Normal(torch.zeros(1, dtype=torch.float64), 1.0), _fit(name)(z=z))
    low, middle, high = (float(honest.icdf(torch.tensor([p], dtype=torch.float64))) for p in (0.05, 0.5, 0.95))
    assert abs(middle) < 0.35 * factor
    fresh = factor * np.random.default_rng(4).normal(size=4000)
    assert 0.75 < np.mean((fresh > low) & (fresh < high)) < 0.95


@pytest.mark.parametrize("name", ["smooth", "isotonic"])
@pytest.mark.parametrize(("spread", "slope"), [(3.0, 1 / 3), (0.3, 1.0)])
def test_beyond_the_evidence_tails_are_stretched_as_the_body_is_and_never_shrunk(name, spread, slope):
    z = torch.from_numpy(spread * stats.norm.ppf((np.arange(2000) + 0.5) / 2000))
    mapping = getattr(cal.maps, f"fit_{name}")(z=z)
    far = torch.tensor([[-60.0, -50.0], [50.0, 60.0]], dtype=D)
    assert (mapping.forward_z(far).diff() / 10)[:, 0].tolist() == pytest.approx([slope, slope], rel=0.02)


@pytest.mark.parametrize("name", ["affine", "beta", "smooth"])
@pytest.mark.filterwarnings("ignore:.*PITs are 0 or 1")
def test_pits_that_round_to_one_do_not_look_like_a_bias(name):
    z = 5 * np.random.default_rng(3).normal(size=400)
    honest = cal.Recalibrated(
        torch.distributions.Normal(torch.zeros(1, dtype=torch.float64), 1.0), _fit(name)(stats.norm.cdf(z))
    )
    assert abs(float(honest.icdf(torch.tensor([0.5], dtype=torch.float64)))) < 0.5


def test_pits_that_lost_their_tails_are_named_with_the_cure():
    with pytest.warns(UserWarning, match=r"40 of 400 PITs .* z=calibrl\.pit_z"):
        cal.fit_smooth(np.concatenate([np.linspace(0.01, 0.99, 360), np.zeros(20), np.ones(20)]))


@pytest.mark.parametrize("name", ["auto", "smooth", "affine", "isotonic", "platt", "beta"])
@pytest.mark.parametrize("wild", [1e10, 1e300, -1e300])
def test_one_wild_outcome_does_not_break_a_fit(name, wild):
    z = np.append(np.random.default_rng(0).normal(size=40), wild)
    honest = cal.Recalibrated(torch.distributions.Normal(torch.zeros(1, dtype=torch.float64), 1.0), _fit(name)(z=z))
    assert bool(honest.mean.isfinite().all())
    assert abs(float(honest.icdf(torch.tensor([0.5], dtype=torch.float64)))) < 1


@pytest.mark.parametrize(
    ("a", "b", "c"), [(1, 1, 0), (0.001, 50, 30), (50, 0.001, -30), (0.02, 0.05, 0), (300, 200, 5), (850, 16, 0)]
)
def test_the_inverse_of_a_beta_map_is_found_however_it_bends(a, b, c):
    mapping = maps.Beta(**{name: torch.tensor(float(v), dtype=D) for name, v in {"a": a, "b": b, "c": c}.items()})
    s = torch.linspace(-30, 30, 601, dtype=D)
    torch.testing.assert_close(mapping.forward_z(mapping.inverse_z(s)), s, rtol=1e-12, atol=1e-12)
    assert mapping.inverse_z(torch.tensor([torch.nan, 1.0], dtype=D)).isnan().tolist() == [True, False]


def _fit(name):
    return getattr(cal.maps, f"fit_{name}")


def test_every_map_that_can_be_fitted_has_a_name():
    assert {fit.__name__ for fit in maps.MAPS.values()} == {
        name for name in vars(maps) if name.startswith("fit_") and name != "fit_named"
    }
    assert maps.fit_named("smooth") is maps.fit_smooth
    with pytest.raises(cal.CalibrlError, match="map 'magic' is unknown; use one of auto, smooth"):
        maps.fit_named("magic")


def test_a_group_of_few_rows_keeps_the_map_of_all_and_one_of_many_its_own():
    rng = np.random.default_rng(8)
    pooled = cal.fit_smooth(z=2 * rng.normal(size=2000))
    fit, s = maps.fit.shrunk_to(pooled, cal.fit_smooth), torch.linspace(-2, 2, 9, dtype=D)
    few = [fit(z=2 * rng.normal(size=3)).inverse_z(s) for _ in range(200)]
    kept = [torch.allclose(each, pooled.inverse_z(s)) for each in few]
    assert np.mean(kept) >= 0.98
    own = fit(z=1 + 0.5 * rng.normal(size=2000))
    np.testing.assert_allclose(own.inverse_z(s), 1 + 0.5 * s.numpy(), atol=0.12)
    low, high = own.ranks.bounds_z(0.05, 0.05)  # of the group's own rows
    assert (float(low), float(high)) == pytest.approx((1 - 0.82, 1 + 0.82), abs=0.1)


@pytest.mark.parametrize("fit", [cal.fit_affine, cal.fit_smooth, cal.fit_isotonic, cal.fit_platt, cal.fit_auto])
def test_only_the_ratios_of_weights_count_however_large_they_are(fit):
    generator = torch.Generator().manual_seed(0)
    z = 1.5 * torch.randn(60, generator=generator, dtype=torch.float64)
    weight = torch.rand(60, generator=generator, dtype=torch.float64) + 0.5
    at = torch.linspace(-4, 4, 9, dtype=torch.float64)
    expected = fit(z=z, weight=weight).forward_z(at)
    for scale in (1e-200, 1e200, 1e300):
        assert torch.allclose(fit(z=z, weight=scale * weight).forward_z(at), expected, rtol=1e-9)


def test_fits_of_many_columns_take_time_in_proportion():
    def seconds(columns):
        z = torch.randn(20, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        began = time.process_time()
        cal.fit_smooth(z=z)
        return time.process_time() - began

    seconds(10)
    assert seconds(2000) < 10 * 4 * seconds(200)  # a quadratic one would take 100 times as long

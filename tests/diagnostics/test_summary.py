"""The summary, its words, and the warning when rows are reused."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import optimize, signal, special, stats
from torch import distributions as td

import calibrl as cal

D = torch.float64


def forecast_of(n, scale=1.0, shift=0.0):
    return td.Normal(torch.full((n,), shift, dtype=D), torch.full((n,), scale, dtype=D))


@pytest.mark.parametrize(
    ("scale", "shift", "word"),
    [(1.0, 0.0, "Calibrated"), (0.4, 0.0, "Over-confident"), (3.0, 0.0, "Under-confident"), (1.0, -1.0, "Biased")],
)
def test_the_verdict_names_what_is_wrong(generator, scale, shift, word):
    y = torch.randn(2000, generator=generator, dtype=D)
    found = cal.summary(forecast_of(2000, scale, shift), y)
    assert found.verdict()[0].startswith(word)
    assert word in str(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_wrong_shape_is_told_from_a_wrong_width(generator):
    y = torch.where(torch.rand(3000, generator=generator) < 0.5, 1.0, -1.0).double()
    found = cal.summary(forecast_of(3000), y + 0.1 * torch.randn(3000, generator=generator, dtype=D))
    assert found.verdict()[0].startswith("Wrong in shape")


def test_tails_alone_give_a_forecast_away():
    """Seven outcomes in a hundred beyond either end of the 90 % interval: too few to show in the calibration loss."""
    low, middle = np.linspace(0, 0.05, 72)[1:-1], np.linspace(0.05, 0.95, 860)
    p = torch.from_numpy(np.sort(np.concatenate([low, middle, 1 - low])))
    found = cal.summary(forecast_of(1000), torch.special.ndtri(p))
    assert found.calibration_loss < 3 * found.noise_floor
    assert found.verdict()[0].startswith("Wrong in shape")


def test_coverage_alone_does_not_make_a_forecast_calibrated():
    """The 90 % interval holds nine outcomes in ten, all of them in its lower half."""
    low, middle = np.linspace(0, 0.05, 52)[1:-1], np.linspace(0.051, 0.5, 900)
    found = cal.summary(
        forecast_of(1000), torch.special.ndtri(torch.from_numpy(np.concatenate([low, middle, 1 - low])))
    )
    assert found.coverage[0.9] == 0.9
    assert found.verdict()[0].startswith("Biased: outcomes are lower")


def test_columns_are_pooled_and_a_perfect_forecast_scores_noise(generator):
    y = torch.randn(3000, 5, generator=generator, dtype=D)
    found = cal.summary(td.Normal(torch.zeros(3000, 5, dtype=D), torch.ones(3000, 5, dtype=D)), y)
    assert found.n == 15_000
    assert found.calibration_loss < 3 * found.noise_floor
    assert found.spread == pytest.approx(1, abs=0.03)


def test_columns_seen_unequally_often_have_the_floor_that_chance_gives(generator):
    forecast = td.Normal(torch.zeros(400, 2, dtype=D), torch.ones(400, 2, dtype=D))
    found = []
    for _ in range(200):
        y = torch.randn(400, 2, generator=generator, dtype=D)
        y[10:, 1] = torch.nan
        found.append(cal.summary(forecast, y))
    assert np.mean([one.calibration_loss for one in found]) == pytest.approx(found[0].noise_floor, rel=0.15)
    assert np.mean(["Calibrated" in one.verdict()[0] for one in found]) > 0.9


def test_recalibration_shows_in_every_number(generator):
    y = torch.randn(4000, generator=generator, dtype=D)
    forecast = forecast_of(2000, 0.3)
    mapping = cal.fit_smooth(cal.pit(forecast, y[:2000]))
    before, after = cal.summary(forecast, y[2000:]), cal.summary(cal.Recalibrated(forecast, mapping), y[2000:])
    assert after.calibration_loss < before.calibration_loss / 50
    assert after.crps < before.crps
    assert after.nll < before.nll
    assert after.pinball < before.pinball
    assert after.coverage[0.9] == pytest.approx(0.9, abs=0.03)
    assert after.width[0.9] > before.width[0.9]


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("n", [100, 3000])
def test_judging_the_rows_a_map_was_fitted_on_warns(generator, columns, n):
    y = torch.randn(n, *columns, generator=generator, dtype=D)
    forecast = td.Normal(torch.zeros(n, *columns, dtype=D), torch.full((n, *columns), 0.5, dtype=D))
    honest = cal.Recalibrated(forecast, cal.fit_smooth(cal.pit(forecast, y)))
    with pytest.warns(cal.ReusedRows, match="never seen"):
        cal.summary(honest, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cal.summary(honest, torch.randn(n, *columns, generator=generator, dtype=D))


def test_check_knows_which_rows_a_model_has_seen(generator):
    class Zero:
        def update(self, data):
            pass

        def __call__(self, x):
            return td.Normal(torch.zeros(len(x), dtype=D), torch.ones(len(x), dtype=D))

    model = cal.Calibrated(Zero(), evidence=cal.HeldOut(cal.random_split(0.5, generator)))
    rows = cal.Data(torch.randn(60, 2, generator=generator, dtype=D), torch.randn(60, generator=generator, dtype=D))
    model.update(rows[:40])
    with pytest.warns(cal.ReusedRows, match="67%"):
        cal.check(model, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cal.check(model, rows[40:]).n == 20


@pytest.mark.parametrize("classes", [2, 3])
def test_the_floor_of_the_expected_calibration_error_is_what_chance_gives(generator, classes):
    found = []
    for _ in range(100):
        p = torch.softmax(2 * torch.randn(600, classes, generator=generator, dtype=D), -1)
        y = torch.multinomial(p, 1, generator=generator)[:, 0]
        found.append(cal.diagnostics.class_reliability(p[:, 1] if classes == 2 else p, y))
    assert np.mean([one.gap for one in found]) == pytest.approx(np.mean([one.noise_floor for one in found]), rel=0.06)


def test_class_verdicts(generator):
    p = torch.rand(3000, generator=generator, dtype=D)
    honest = cal.class_summary(p, torch.bernoulli(p, generator=generator))
    assert honest.verdict()[0].startswith("Calibrated")
    bold = cal.class_summary(p, torch.bernoulli(torch.sigmoid(0.3 * torch.logit(p)), generator=generator))
    assert bold.verdict()[0].startswith("Over-confident")
    meek = cal.class_summary(p, torch.bernoulli(torch.sigmoid(4 * torch.logit(p)), generator=generator))
    assert meek.verdict()[0].startswith("Under-confident")
    assert str(meek) == "\n".join(meek.verdict())
    json.dumps(bold.to_dict(), allow_nan=False)


def test_refuses_what_it_cannot_summarise():
    with pytest.raises(cal.CalibrlError, match="class_summary"):
        cal.summary(td.Categorical(torch.ones(2, 3)), torch.zeros(2))
    with pytest.raises(cal.CalibrlError, match="every y is NaN"):
        cal.summary(forecast_of(2), torch.full((2,), torch.nan))


def test_the_coverage_of_counts_is_that_of_their_intervals(generator):
    """Of a Poisson with mean 3 the interval from the 5 % to the 95 % quantile, 1 to 6, holds 91.7 %."""
    rate = torch.full((4000,), 3.0, dtype=D)
    y = torch.poisson(rate, generator=generator)
    found = cal.summary(td.Poisson(rate), y, generator=generator)
    low, high = stats.poisson.ppf([0.05, 0.95], 3.0)
    assert found.coverage[0.9] == pytest.approx(float(((y >= low) & (y <= high)).double().mean()))
    assert found.expected[0.9] == pytest.approx(stats.poisson.cdf(high, 3.0) - stats.poisson.cdf(low - 1, 3.0))
    assert found.verdict()[0].startswith("Calibrated")
    assert "of whole numbers they should hold 91.7%" in found.verdict()[1]


def test_rounded_rows_that_meet_again_by_chance_raise_no_alarm():
    """Whole outcomes under forecasts to one decimal: of 300 new rows half have been seen before."""
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            mean = torch.from_numpy(rng.normal(10, 1, 600).round(1))
            y = torch.from_numpy(rng.normal(10, 2, 600).round())
            forecast = td.Normal(mean, 1.0)
            mapping = cal.fit_smooth(z=cal.pit_z(forecast, y)[:300])
            cal.summary(cal.Recalibrated(td.Normal(mean[300:], 1.0), mapping), y[300:])
            model = cal.Calibrated(Whole(), evidence=cal.HeldOut())
            model.update(cal.Data(mean[:300, None], y[:300]))
            cal.check(model, cal.Data(mean[300:, None], y[300:]))


class Whole:
    def update(self, data):
        pass

    def __call__(self, x):
        return td.Normal(x[:, 0], 1.0)


def drawn(probs, rng):
    return (rng.random((len(probs), 1)) > probs.cumsum(1)[:, :-1]).sum(1)


def verdicts(make, repeats, seed=0):
    """How often class probabilities and outcomes that `make` draws are called miscalibrated."""
    rng = np.random.default_rng(seed)
    found = [cal.class_summary(*make(rng)) for _ in range(repeats)]
    return np.mean([not one.verdict()[0].startswith("Calibrated") for one in found]), found[-1]


def softmax(rng, n, k, factor=1.0):
    logits = 1.5 * rng.normal(size=(n, k))
    return (special.softmax(part, axis=1) for part in (factor * logits, logits))


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: (p := rng.random(20), (rng.random(20) < p).astype(int)),
        lambda rng: (p := rng.beta(0.2, 10, 200), (rng.random(200) < p).astype(int)),
        lambda rng: (p := np.tile([0.6, 0.1, 0.3], (300, 1)), drawn(p, rng)),
        lambda rng: (p := next(softmax(rng, 100, 8)), drawn(p, rng)),
    ],
    ids=["20 rows", "rare", "constant", "8 classes"],
)
def test_calibrated_classes_are_called_so(make):
    share, _ = verdicts(make, 300, seed=1)
    assert share <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize(
    ("make", "least", "words"),
    [
        (lambda rng: (rng.random(50), rng.integers(0, 2, 50)), 0.95, ""),
        (lambda rng: (p := np.full(500, 0.6), (rng.random(500) < p - 0.08).astype(int)), 0.9, "Over-confident"),
        (
            lambda rng: (np.tile([0.6, 0.1, 0.3], (500, 1)), drawn(np.tile([0.6, 0.3, 0.1], (500, 1)), rng)),
            1.0,
            "Miscalibrated by class",
        ),
        (lambda rng: ((pair := list(softmax(rng, 300, 3, 1.5)))[0], drawn(pair[1], rng)), 0.92, "Over-confident"),
    ],
    ids=["coin flips", "8 points", "two classes swapped", "temperature 1.5"],
)
def test_miscalibrated_classes_are_found_as_often_as_by_the_best_test(make, least, words):
    share, last = verdicts(make, 40)
    assert share >= least
    assert last.verdict()[0].startswith(words)


def test_a_base_rate_met_to_the_digit_hides_no_fault():
    """200 rows of 20 and 80 %, of which 34 and 66 % came true: 100 in all, as forecast."""
    p = np.repeat([0.2, 0.8], 100)
    y = np.concatenate([np.arange(100) < 34, np.arange(100) < 66]).astype(int)
    found = cal.diagnostics.class_test(p, y)
    assert found.rates == pytest.approx(1.0)
    assert found.p_value < 0.005
    many = cal.diagnostics.class_test(np.tile(p, 50), np.tile(y, 50))  # more rows than are drawn for
    assert many.p_value < 1e-9


def test_the_score_of_spiegelhalter_is_his():
    rng = np.random.default_rng(0)
    p = rng.random(400)
    y = (rng.random(400) < p**1.3).astype(int)
    z = ((y - p) * (1 - 2 * p)).sum() / np.sqrt(((1 - 2 * p) ** 2 * p * (1 - p)).sum())
    found = cal.diagnostics.class_test(p, y)
    assert found.spiegelhalter == pytest.approx(2 * stats.norm.sf(abs(z)))
    bias = (y - p).sum() / np.sqrt((p * (1 - p)).sum())
    assert found.rates == pytest.approx(2 * stats.norm.sf(abs(bias)))


def test_a_summary_inverts_a_map_once_a_level(monkeypatch):
    """Not once a row: of 10⁶ rows that took longer than all the rest."""
    asked = []
    inverse = cal.maps.Spline._inverse
    monkeypatch.setattr(cal.maps.Spline, "_inverse", lambda self, z: asked.append(z.numel()) or inverse(self, z))
    y = torch.randn(5100, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mapping = cal.fit_smooth(z=1.5 * y[:100])
    asked.clear()
    cal.summary(cal.Recalibrated(forecast_of(5000), mapping), y[100:])
    assert asked
    assert 5000 not in asked


def test_classes_meek_and_shifted_are_found_as_often_as_by_a_fitted_map():
    """Score tests see forecasts that are too meek too seldom; likelihood ratios do not."""
    rng, ours, theirs = np.random.default_rng(5), 0, 0
    for _ in range(60):
        x = 1.5 * rng.normal(size=60)
        said, y = special.expit(0.55 * x), rng.random(60) < special.expit(x + 0.6)

        def loss(at, x=0.55 * x, y=y):
            return np.logaddexp(0, at[0] * x + at[1]).sum() - (at[0] * x + at[1])[y].sum()

        ratio = 2 * (loss((1.0, 0.0)) - optimize.minimize(loss, (1.0, 0.0)).fun)
        theirs += ratio > stats.chi2.isf(0.05, 2)
        ours += cal.diagnostics.class_test(said, y.astype(float)).p_value <= 0.05
    assert theirs > 25
    assert ours > theirs - 6


@pytest.mark.parametrize(
    ("back", "repeats"), [([1, *[0] * 6, -0.8], 40), ([1, -0.5, -0.4], 40)], ids=["season of 7", "two lags"]
)
def test_rows_alike_at_a_period_or_in_slow_waves_are_not_called_wrong(back, repeats):
    """Neighbours say nothing of a season, and little of what lasts."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(repeats):
        noise = signal.lfilter([1], back, rng.normal(size=1000))[600:]
        z = torch.from_numpy(noise / np.sqrt((signal.lfilter([1], back, np.append(1, np.zeros(3000))) ** 2).sum()))
        wrong += not cal.summary(forecast_of(400), z).verdict()[0].startswith("Calibrated")
    assert wrong <= 5


def test_weak_resemblance_that_lasts_is_seen():
    """A tenth of neighbours' likeness is chance's, but not of the sums of fifty."""
    rng = np.random.default_rng(0)
    level = np.repeat(rng.normal(size=20), 50)
    pits = special.ndtr(0.3 * level + math.sqrt(1 - 0.09) * rng.normal(size=1000))
    assert cal.diagnostics.effective_rows(pits).rows < 500
    assert cal.diagnostics.effective_rows(rng.permutation(pits)).rows > 800

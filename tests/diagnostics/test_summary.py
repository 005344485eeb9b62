"""The summary, its words, and the warning when rows are reused."""

import json
import warnings

import numpy as np
import pytest
import torch
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
        found.append(cal.class_summary(p[:, 1] if classes == 2 else p, y))
    assert np.mean([one.ece for one in found]) == pytest.approx(np.mean([one.noise_floor for one in found]), rel=0.06)


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

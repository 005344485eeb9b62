from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, QuantileRegressor, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from torch.distributions import Normal

import calibrl as cal
from calibrl import CalibrlError, Data
from tests import contracts

ROWS, FRESH = contracts.toy_rows(50, seed=1, columns=2), contracts.toy_rows(20, seed=2, columns=2)


def test_standard_deviations_are_the_estimators_own():
    model = cal.SklearnForecaster(BayesianRidge())
    model.update(ROWS[:20])
    model.update(ROWS[20:])
    forecast = model(FRESH.x)
    for j in range(2):
        peer = BayesianRidge().fit(ROWS.x.numpy(), ROWS.y[:, j].numpy())
        mean, std = peer.predict(FRESH.x.numpy(), return_std=True)
        np.testing.assert_allclose(forecast.mean[:, j], mean)
        np.testing.assert_allclose(forecast.stddev[:, j], std)


def test_each_column_learns_from_the_rows_where_it_was_seen():
    y = ROWS.y.clone()
    y[:30, 1] = torch.nan
    model = cal.SklearnForecaster(BayesianRidge())
    model.update(Data(ROWS.x, y))
    forecast = model(FRESH.x)
    for j, start in ((0, 0), (1, 30)):
        peer = BayesianRidge().fit(ROWS.x[start:].numpy(), ROWS.y[start:, j].numpy())
        np.testing.assert_allclose(forecast.mean[:, j], peer.predict(FRESH.x.numpy()))


def test_a_pipeline_and_inputs_of_any_shape_and_dtype():
    pipeline = make_pipeline(StandardScaler(), PolynomialFeatures(2), BayesianRidge())
    model = cal.SklearnForecaster(pipeline)
    model.update(Data(ROWS.x.float().reshape(50, 1, 2), ROWS.y[:, 0].float()))
    forecast = model(FRESH.x.float().reshape(20, 1, 2))
    assert isinstance(forecast, Normal)
    assert forecast.batch_shape == (20,)
    assert forecast.mean.dtype == torch.float32
    assert not hasattr(pipeline[-1], "coef_")  # the user's own object is left alone


def test_quantiles_are_the_regressors_own_in_order():
    levels = (0.1, 0.5, 0.9)
    model = cal.SklearnQuantiles(lambda q: QuantileRegressor(quantile=q, alpha=0), levels=levels)
    model.update(ROWS)
    forecast = model(FRESH.x)
    x = FRESH.x.numpy()
    peers = [QuantileRegressor(quantile=q, alpha=0).fit(ROWS.x.numpy(), ROWS.y[:, 1].numpy()) for q in levels]
    np.testing.assert_allclose(forecast.values[:, :, 1], np.sort([peer.predict(x) for peer in peers], axis=0))


def test_crossing_quantiles_are_sorted():
    model = cal.SklearnQuantiles(lambda q: QuantileRegressor(quantile=1 - q, alpha=0), levels=(0.1, 0.5, 0.9))
    model.update(ROWS)
    assert bool((model(FRESH.x).values.diff(dim=0) >= 0).all())


def test_probabilities_are_the_classifiers_own_and_a_missing_class_gets_none():
    rows = contracts.toy_labels(80, seed=1)
    two = rows[rows.y != 1]
    model = cal.SklearnClassifier(LogisticRegression(), classes=3)
    model.update(two)
    peer = LogisticRegression().fit(two.x.numpy(), two.y.numpy())
    probs = model(FRESH.x).probs
    np.testing.assert_allclose(probs[:, [0, 2]], peer.predict_proba(FRESH.x.numpy()))
    assert bool((probs[:, 1] == 0).all())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: cal.SklearnForecaster(LinearRegression()), "LinearRegression.predict has no return_std"),
        (lambda: cal.SklearnForecaster(make_pipeline(StandardScaler(), RandomForestRegressor())), "no return_std"),
        (lambda: cal.SklearnForecaster(LogisticRegression()), "is a classifier; use SklearnClassifier"),
        (lambda: cal.SklearnForecaster(RidgeClassifier()), "is a classifier"),
        (lambda: cal.SklearnForecaster(BayesianRidge), "pass an instance"),
        (lambda: cal.SklearnForecaster("ridge"), "no fit and predict"),
        (lambda: cal.SklearnClassifier(LinearRegression(), classes=2), "no predict_proba"),
        (lambda: cal.SklearnClassifier(LogisticRegression(), classes=1), "2 or more"),
        (lambda: cal.SklearnQuantiles(lambda _: LogisticRegression()), "is a classifier"),
        (lambda: cal.SklearnQuantiles(lambda q: QuantileRegressor(quantile=q), levels=(0.9, 0.1)), "must be"),
        (lambda: cal.SklearnQuantiles(lambda q: QuantileRegressor(quantile=q), levels=(0.5,)), "must be"),
        (lambda: cal.SklearnForecaster(BayesianRidge())(ROWS.x), "has learnt no rows yet"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(build, words):
    with pytest.raises(CalibrlError, match=words) as raised:
        build()
    assert "\n" not in str(raised.value)


def test_no_spread_is_refused():
    model = cal.SklearnForecaster(GaussianProcessRegressor(optimizer=None))
    model.update(Data(ROWS.x, ROWS.y[:, 0]))
    model._fitted[0].predict = lambda _, return_std: (np.zeros(2), np.array([1.0, 0.0]))
    with pytest.raises(CalibrlError, match="standard deviation of 0 for row 1"):
        model(FRESH.x[:2])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (Data(ROWS.x, torch.full((50, 2), torch.nan)), "holds no outcome"),
        (Data(ROWS.x[:, :1], ROWS.y), "keep the columns the same"),
    ],
)
def test_rows_that_teach_nothing_or_do_not_fit_are_refused(rows, words):
    model = cal.SklearnForecaster(BayesianRidge())
    if "same" in words:
        model.update(ROWS)
    with pytest.raises(CalibrlError, match=words):
        model.update(rows)


@pytest.mark.parametrize(("label", "words"), [(3.0, "label 3 is none"), (0.5, "label 0.5"), (-1.0, "label -1")])
def test_labels_outside_the_classes_are_refused(label, words):
    with pytest.raises(CalibrlError, match=words):
        cal.SklearnClassifier(LogisticRegression(), classes=3).update(Data(ROWS.x[:2], torch.tensor([0.0, label])))


def test_a_classifier_has_one_label_per_row():
    with pytest.raises(CalibrlError, match="one label per row"):
        cal.SklearnClassifier(LogisticRegression(), classes=3).update(ROWS)


def test_arrays_are_welcome_where_a_model_is_asked():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x @ [1.0, -1.0] + rng.normal(size=60)
    wrapped = cal.CrossFitted(lambda: cal.SklearnForecaster(BayesianRidge()))
    wrapped.update(Data(torch.from_numpy(x), torch.from_numpy(y)))
    torch.testing.assert_close(wrapped(x[:5]).mean, wrapped(torch.from_numpy(x[:5])).mean)
    alone = cal.SklearnForecaster(BayesianRidge())
    alone.update(Data(torch.from_numpy(x), torch.from_numpy(y)))
    torch.testing.assert_close(alone(x[:5].tolist()).mean, alone(torch.from_numpy(x[:5])).mean)

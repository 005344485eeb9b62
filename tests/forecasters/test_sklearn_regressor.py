"""CalibratedRegressor behaves as scikit-learn's own regressors do, and its intervals hold what they say."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import calibrl as cal
from calibrl.forecasters.sklearn import neg_crps

rng = np.random.default_rng(1)
X = rng.uniform(-1, 1, size=(2000, 2))
Y = X[:, 0] - 2 * X[:, 1] ** 2 + 0.3 * rng.gamma(2.0, size=2000)
OLD, NEW = slice(600), slice(600, None)
CURVE = make_pipeline(PolynomialFeatures(2), Ridge())


def inside(model, level, **options):
    low, high = model.predict_interval(X[NEW], level, **options)
    return np.mean((low <= Y[NEW]) & (Y[NEW] <= high))


@pytest.mark.filterwarnings("ignore:Skipping check check_array_api_input")
def test_scikit_learn_takes_it_for_one_of_its_own():
    check_estimator(cal.CalibratedRegressor(Ridge(), cv=2))


@pytest.mark.parametrize("cv", [5, ShuffleSplit(1, test_size=0.4, random_state=0)], ids=["folds", "one split"])
@pytest.mark.parametrize("estimator", [CURVE, make_pipeline(PolynomialFeatures(2), BayesianRidge())], ids=str)
def test_intervals_hold_what_they_say(estimator, cv):
    model = cal.CalibratedRegressor(estimator, cv=cv).fit(X[OLD], Y[OLD])
    for level in (0.5, 0.9):
        assert inside(model, level) == pytest.approx(level, abs=0.06)
    assert model.predict_quantiles(X[NEW], [0.1, 0.5, 0.9]).shape == (1400, 3)
    assert model.score(X[NEW], Y[NEW]) > 0.7
    assert model.forecast(X[NEW]).batch_shape == (1400,)


def test_guarantees_are_those_of_the_split():
    split = cal.CalibratedRegressor(CURVE, cv=ShuffleSplit(1, test_size=0.5, random_state=0)).fit(X[OLD], Y[OLD])
    assert inside(split, 0.9, guarantee="conformal") > 0.87
    assert "exchangeable" in split.forecast(X[NEW]).promise(0.9)
    folds = cal.CalibratedRegressor(CURVE, cv=5).fit(X[OLD], Y[OLD])
    assert inside(folds, 0.9, guarantee="conformal") > 0.87
    assert "CV+" in folds.forecast(X[NEW]).promise(0.9)


def test_cross_validated_bounds_are_those_of_barber_and_others():
    """CV+ of a point forecast, written out: order statistics of what each row's own fold says of the new row."""
    model = cal.CalibratedRegressor(CURVE, cv=KFold(4)).fit(X[:100], Y[:100])
    low, high = model.predict_interval(X[NEW][:20], 0.8, guarantee="conformal")
    some_low, _ = model.forecast(X[NEW][:20])[5:8].interval(0.8, guarantee="conformal")
    np.testing.assert_allclose(some_low.numpy(), low[5:8])
    said = []
    for train, held in KFold(4).split(X[:100]):
        part = clone(CURVE).fit(X[train], Y[train])
        error = Y[held] - part.predict(X[held])
        said.append(part.predict(X[NEW][:20])[:, None] + error)
    said = np.sort(np.concatenate(said, 1), 1)
    k = int(np.floor(101 * 0.1))
    np.testing.assert_allclose(low, said[:, k - 1], atol=1e-6)
    np.testing.assert_allclose(high, said[:, 100 - k], atol=1e-6)


def test_one_that_is_fitted_stays_as_it_is():
    line = make_pipeline(StandardScaler(), CURVE).fit(X[:300], Y[:300])
    model = cal.CalibratedRegressor(line, cv="prefit").fit(X[300:600], Y[300:600])
    assert model.estimator_ is line
    honest = cal.calibrate(line, X[300:600], Y[300:600])
    np.testing.assert_allclose(model.predict(X[NEW]), honest.predict(X[NEW]))


def test_searches_and_pipelines_take_it():
    inner = make_pipeline(PolynomialFeatures(), Ridge())
    grid = {"calibratedregressor__estimator__polynomialfeatures__degree": [1, 2]}
    whole = make_pipeline(StandardScaler(), cal.CalibratedRegressor(inner, cv=2))
    search = GridSearchCV(whole, grid, cv=2).fit(X[OLD], Y[OLD])
    assert next(iter(search.best_params_.values())) == 2
    by_crps = cross_val_score(cal.CalibratedRegressor(CURVE, cv=2), X[OLD], Y[OLD], scoring=neg_crps, cv=2)
    worse = cross_val_score(cal.CalibratedRegressor(LinearRegression(), cv=2), X[OLD], Y[OLD], scoring=neg_crps, cv=2)
    assert worse.mean() < by_crps.mean() < 0


def test_columns_of_outcomes_and_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = cal.CalibratedRegressor(CURVE).fit(frame[OLD], np.stack([Y[OLD], -Y[OLD]], 1))
    assert list(model.feature_names_in_) == ["a", "b"]
    low, _ = model.predict_interval(frame[NEW])
    assert low.shape == (1400, 2)


def test_a_gaussian_process_is_asked_for_its_own_spread():
    kernel = RBF() + WhiteKernel(0.1)
    model = cal.CalibratedRegressor(GaussianProcessRegressor(kernel, optimizer=None), cv=2).fit(X[:100], Y[:100])
    far = model.forecast([[9.0, 9.0]]).stddev
    assert float(far) > 2 * float(model.forecast(X[:1]).stddev)

"""Models that are trained already, and forecasts as people have them, become honest in one line."""

import pickle

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, QuantileRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from torch.distributions import Categorical, Normal

import calibrl as cal
from calibrl.distributions.given import Fitted
from calibrl.errors import CalibrlError
from calibrl.forecasters import CalibratedModel

rng = np.random.default_rng(0)
N = 900
X = rng.uniform(-1, 1, size=(3 * N, 2))
Y = 3 * X[:, 0] + rng.gamma(2.0, size=3 * N)  # skewed: no Gaussian forecast of it is honest
TRAIN, HELD, NEW = slice(N), slice(N, 2 * N), slice(2 * N, None)
LEVELS = [0.1, 0.3, 0.5, 0.7, 0.9]
MEAN, STD = 3 * X[:, 0] + 1, np.full(3 * N, 0.5)


def near(share, wanted):
    """Within three standard errors of as many calibration and test rows."""
    return abs(share - wanted) < 3 * np.sqrt(2 * wanted * (1 - wanted) / N)


def by_level(make):
    return {level: make(level).fit(X[TRAIN], Y[TRAIN]) for level in (0.2, 0.5, 0.8)}


class Module(torch.nn.Module):
    """A network that answers as it is told to, and would answer otherwise while it trains."""

    def __init__(self, answer):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([3.0, 0.0]))
        self.answer = answer

    def forward(self, x):
        assert x.dtype == torch.float32
        assert not self.training
        return self.answer(x @ self.weight)


def models():
    yield "point", LinearRegression().fit(X[TRAIN], Y[TRAIN]), {}
    yield "boosting", GradientBoostingRegressor(n_estimators=10).fit(X[TRAIN], Y[TRAIN]), {}
    pipeline = make_pipeline(StandardScaler(), BayesianRidge())
    yield "return_std", pipeline.fit(X[TRAIN], Y[TRAIN]), {}
    search = GridSearchCV(BayesianRidge(), {"tol": [1e-3, 1e-2]}, cv=2)
    yield "search", search.fit(X[TRAIN], Y[TRAIN]), {}
    yield "quantile models", by_level(lambda q: QuantileRegressor(quantile=q, alpha=0)), {}
    yield "module, a number", Module(lambda mean: mean[:, None]), {}
    yield "module, (mean, std)", Module(lambda mean: (mean, torch.full_like(mean, 0.5))), {"kind": "std"}
    yield "module, log-variance", Module(lambda mean: (mean, torch.full_like(mean, -1.0))), {"kind": "log_variance"}
    yield "module, a distribution", Module(lambda mean: Normal(mean, 0.5)), {}
    levels = torch.tensor(LEVELS)
    yield "module, quantiles", Module(lambda mean: mean[:, None] + Normal(0, 1).icdf(levels)), {"levels": LEVELS}
    yield "function", (lambda x: scipy.stats.norm(3 * x[:, 0], 0.5)), {}
    yield "function, any law", (lambda x: scipy.stats.t(5, 3 * x[:, 0], 0.5)), {}
    yield "spread by row", LinearRegression().fit(X[TRAIN], Y[TRAIN]), {"spread": lambda x: 1 + x[:, 0] ** 2}


@pytest.mark.parametrize(("model", "options"), [pytest.param(m, o, id=name) for name, m, o in models()])
def test_a_fitted_model_becomes_honest(model, options):
    honest = cal.calibrate(model, X[HELD], Y[HELD], **options)
    for level in (0.5, 0.9):
        low, high = honest.predict_interval(X[NEW], level)
        assert isinstance(low, np.ndarray)
        assert low.shape == (N,)
        assert near(np.mean((low <= Y[NEW]) & (Y[NEW] <= high)), level)
    quantiles = honest.predict_quantiles(X[NEW], LEVELS)
    assert quantiles.shape == (N, 5)
    for share, level in zip((Y[NEW, None] <= quantiles).mean(0), LEVELS, strict=True):
        assert near(share, level)
    assert honest.predict(X[NEW]).shape == (N,)
    assert cal.check(honest, (X[NEW], Y[NEW])).calibration_error < 0.03
    with pytest.warns(cal.ReusedRows):
        cal.check(honest, (X[HELD], Y[HELD]))


def forecasts():
    """Each form of the same over-confident, biased forecasts, of some rows."""
    draws = scipy.stats.norm.ppf(np.arange(0.5, 40) / 40)
    yield "mean, std", (lambda rows: (MEAN[rows], STD[rows])), {}
    yield "distribution", (lambda rows: Normal(torch.tensor(MEAN[rows]), torch.tensor(STD[rows]))), {}
    yield "scipy", (lambda rows: scipy.stats.norm(MEAN[rows], STD[rows])), {}
    z = scipy.stats.norm.ppf(LEVELS)
    yield "quantiles", (lambda rows: MEAN[rows, None] + STD[rows, None] * z), {"levels": LEVELS}
    by = dict(zip(LEVELS, z, strict=True))
    yield "by level", (lambda rows: {level: MEAN[rows] + STD[rows] * at for level, at in by.items()}), {}
    yield "samples", (lambda rows: MEAN[rows, None] + STD[rows, None] * draws), {"kind": "samples"}
    yield "points", (lambda rows: MEAN[rows]), {}


@pytest.mark.parametrize(("make", "options"), [pytest.param(m, o, id=name) for name, m, o in forecasts()])
def test_forecasts_become_honest_in_any_form(make, options):
    honest = cal.calibrate(make(HELD), Y[HELD], **options)
    low, high = honest(make(NEW)).interval(0.8)
    assert near(np.mean((low.numpy() <= Y[NEW]) & (Y[NEW] <= high.numpy())), 0.8)


def test_the_guarantee_does_not_depend_on_the_spread_that_was_learnt():
    """Split conformal around a point forecast, written out: the k-th smallest and largest errors."""
    model = LinearRegression().fit(X[TRAIN], Y[TRAIN])
    low, high = cal.calibrate(model, X[HELD], Y[HELD]).predict_interval(X[NEW], 0.9, guarantee="conformal")
    error, point = np.sort(Y[HELD] - model.predict(X[HELD])), model.predict(X[NEW])
    k = int(np.floor((N + 1) * 0.05))
    np.testing.assert_allclose(low, point + error[k - 1], atol=1e-6)
    np.testing.assert_allclose(high, point + error[N - k], atol=1e-6)


def test_classes_keep_their_names():
    label = np.where(np.median(Y) < Y, "high", np.where(Y < 0, "below", "low"))
    model = LogisticRegression(C=100).fit(X[:60], label[:60])
    honest = cal.calibrate(model, X[HELD], label[HELD])
    probs = honest.predict_proba(X[NEW])
    assert probs.shape == (N, 3)
    assert set(honest.predict(X[NEW])) <= {"high", "low", "below"}
    assert honest.classes == list(model.classes_)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert cal.check(honest, (X[NEW], label[NEW])).ece < 0.06
    arrays = cal.calibrate(model.predict_proba(X[HELD]), label[HELD], classes=model.classes_)
    np.testing.assert_allclose(arrays.predict_proba(model.predict_proba(X[NEW])), probs)
    event = cal.calibrate(model.predict_proba(X[HELD])[:, 0], label[HELD] == "below", kind="classes")
    assert event.predict_proba(np.array([0.2, 0.4])).shape == (2,)
    with pytest.raises(CalibrlError, match="'odd' is none of the model's classes"):
        honest.update((X[:2], ["odd", "low"]))
    logits = torch.tensor(X[HELD])
    found = cal.calibrate(logits, (rng.uniform(size=N) < 0.5).astype(int), kind="logits")
    assert isinstance(found(logits), Categorical)


def test_data_frames_reach_the_model_as_they_are():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"shop": ["a", "b"] * N, "x": X[: 2 * N, 0]})

    def model(rows):
        assert rows.columns == ["shop", "x"]
        return (3 * rows["x"] + (rows["shop"] == "b"), np.full(len(rows), 0.1))

    honest = cal.calibrate(model, frame[:N], Y[:N])
    assert near(float((honest(frame[N:]).median.numpy() >= Y[N : 2 * N]).mean()), 0.5)
    assert cal.check(honest, (frame[N:], Y[N : 2 * N])).n == N


def test_statsmodels_results_are_asked_for_outcomes_not_for_means():
    sm = pytest.importorskip("statsmodels.api")
    design = sm.add_constant(X)
    line = sm.OLS(Y[TRAIN], design[TRAIN]).fit()
    honest = cal.calibrate(line, design[HELD], Y[HELD])
    low, high = honest.predict_interval(design[NEW], 0.8)
    assert near(np.mean((low <= Y[NEW]) & (Y[NEW] <= high)), 0.8)
    count = rng.poisson(np.exp(X[:, 0]))
    counts = sm.GLM(count[TRAIN], design[TRAIN], family=sm.families.Poisson()).fit()
    honest = cal.calibrate(counts, design[HELD], count[HELD])
    assert near(np.mean(count[NEW] <= honest.predict_quantiles(design[NEW], [0.99])[:, 0]), 0.99)
    with pytest.raises(CalibrlError, match="is of a mean"):
        cal.calibrate(counts.get_prediction(design[HELD]), count[HELD])
    walk = sm.tsa.SARIMAX(Y[:200], order=(1, 0, 0)).fit(disp=0)
    with pytest.raises(CalibrlError, match="get_prediction"):
        cal.calibrate(walk, X[HELD], Y[HELD])
    ahead = walk.append(Y[200:300]).get_prediction(start=200)
    assert cal.calibrate(ahead, Y[200:300]).rows == 100


def test_exponential_smoothing_is_as_wide_as_its_own_intervals():
    pandas, ets = pytest.importorskip("pandas"), pytest.importorskip("statsmodels.tsa.exponential_smoothing.ets")
    series = pandas.Series(Y, pandas.date_range("2020-01-01", periods=len(Y), freq="D"))
    ahead = ets.ETSModel(series[:200]).fit(disp=0).get_prediction(start=200, end=299)
    frame = ahead.summary_frame(alpha=0.2)
    low, high = Fitted(None).forecast(ahead).icdf(torch.tensor([[0.1], [0.9]], dtype=torch.float64))
    np.testing.assert_allclose(low, frame["pi_lower"])
    np.testing.assert_allclose(high, frame["pi_upper"])
    assert cal.calibrate(ahead, series[200:300]).rows == 100


def test_what_can_be_calibrated_can_be_checked_in_the_same_words():
    model = BayesianRidge().fit(X[TRAIN], Y[TRAIN])
    found = cal.check(model, X[NEW], Y[NEW])
    assert found == cal.check(model, (X[NEW], Y[NEW])) == cal.check(model, cal.Data(X[NEW], Y[NEW]))
    assert found == cal.check(model.predict(X[NEW], return_std=True), Y[NEW])
    bands = scipy.stats.norm.ppf(LEVELS) * STD[:, None] + MEAN[:, None]
    assert cal.check(bands, Y, levels=LEVELS) == cal.check(dict(zip(LEVELS, bands.T, strict=True)), Y)
    models = [LinearRegression().fit(X[TRAIN], Y[TRAIN] + shift) for shift in (-1, 0, 1)]
    listed = cal.calibrate(models, X[HELD], Y[HELD], levels=[0.1, 0.5, 0.9])
    named = cal.calibrate(dict(zip((0.1, 0.5, 0.9), models, strict=True)), (X[HELD], Y[HELD]))
    np.testing.assert_array_equal(listed.predict(X[NEW]), named.predict(X[NEW]))


@pytest.mark.parametrize("missing", [0, 7])
def test_outcomes_may_be_missing_however_their_package_says_so(missing):
    some = np.arange(len(Y)) < missing
    ways = [
        np.where(some, np.nan, Y),
        np.ma.masked_array(Y, some),
        [None if no else y for no, y in zip(some, Y, strict=True)],
    ]
    for y in ways:
        assert cal.calibrate((MEAN, STD), y).rows == len(Y) - missing


def test_a_map_is_shown_in_a_line():
    for made in (*cal.maps.MAPS.values(), None):
        shown = repr(cal.calibrate((MEAN, STD), Y, fit_map=made).mapping)
        assert len(shown) < 300
        assert "\n" not in shown


def test_lightgbm_is_asked_like_any_other():
    lightgbm = pytest.importorskip("lightgbm")
    options = {"objective": "quantile", "n_estimators": 30, "verbose": -1, "n_jobs": 1}
    fitted = {q: lightgbm.LGBMRegressor(alpha=q, **options).fit(X[TRAIN], Y[TRAIN]) for q in LEVELS}
    low, high = cal.calibrate(fitted, X[HELD], Y[HELD]).predict_interval(X[NEW], 0.9)
    assert near(np.mean((low <= Y[NEW]) & (Y[NEW] <= high)), 0.9)


def test_a_forecaster_of_ours_stays_what_it_is():
    model = cal.SklearnForecaster(BayesianRidge())
    model.update(cal.Data.of(X[TRAIN], Y[TRAIN]))
    honest = cal.calibrate(model, X[HELD], Y[HELD])
    np.testing.assert_allclose(honest(X[NEW]).base.mean.numpy(), model(X[NEW]).mean.numpy())


def test_more_rows_refine_the_map_and_leave_the_model():
    model = LinearRegression().fit(X[TRAIN], Y[TRAIN])
    honest = cal.calibrate(model, X[N : N + 100], Y[N : N + 100])
    spread = honest.fitted.spread.clone()
    honest.update((X[N + 100 : 2 * N], Y[N + 100 : 2 * N]))
    assert honest.rows == N
    torch.testing.assert_close(honest.fitted.spread, spread)
    whole = cal.calibrate(model, X[HELD], Y[HELD], spread=float(spread))
    torch.testing.assert_close(honest(X[NEW]).median, whole(X[NEW]).median)


def test_it_is_pickled_and_says_what_it_is():
    honest = cal.calibrate(LinearRegression().fit(X[TRAIN], Y[TRAIN]), X[HELD], Y[HELD])
    again = pickle.loads(pickle.dumps(honest))
    np.testing.assert_array_equal(again.predict(X[NEW]), honest.predict(X[NEW]))
    assert repr(honest) == "CalibratedModel(LinearRegression, spline on 900 rows)"


def test_two_columns_of_outcomes_have_two_maps():
    wide = np.stack([Y, -2 * Y], 1)
    model = LinearRegression().fit(X[TRAIN], wide[TRAIN])
    honest = cal.calibrate(model, X[HELD], wide[HELD])
    low, high = honest.predict_interval(X[NEW], 0.8)
    for share in ((low <= wide[NEW]) & (wide[NEW] <= high)).mean(0):
        assert near(share, 0.8)
    assert honest.predict_quantiles(X[NEW], LEVELS).shape == (N, 2, 5)


def test_a_classifier_without_probabilities_is_calibrated_by_its_scores():
    label = np.where(np.median(Y) < Y, "above", "below")
    honest = cal.calibrate(LinearSVC().fit(X[TRAIN], label[TRAIN]), X[HELD], label[HELD])
    chance = honest.predict_proba(X[NEW])
    assert chance.shape == (len(X[NEW]), 2)
    assert isinstance(cal.check(honest, (X[NEW], label[NEW])), cal.diagnostics.ClassSummary)
    assert (honest.predict(X[NEW]) == label[NEW]).mean() > 0.6


def columns_of_one():
    """Each form of forecasts (n, 1) of outcomes (n,), as networks and models of a column of outcomes give them."""
    z = scipy.stats.norm.ppf(LEVELS)
    wide = MEAN[:, None]
    yield "mean, std", (lambda rows: (wide[rows], STD[rows, None])), {}
    yield "two columns", (lambda rows: np.stack([MEAN, STD**2], 1)[rows]), {"kind": "variance"}
    yield "distribution", (lambda rows: Normal(torch.tensor(wide[rows]), 0.5)), {}
    yield "scipy", (lambda rows: scipy.stats.t(9, wide[rows], 0.5)), {}
    yield "by level", (lambda rows: {level: wide[rows] + at for level, at in zip(LEVELS, 0.5 * z, strict=True)}), {}
    yield "quantiles", (lambda rows: wide[rows, :, None] + 0.5 * z), {"levels": LEVELS}
    yield "samples", (lambda rows: wide[rows, :, None] + 0.5 * z[:, None]), {"kind": "samples"}
    yield "one of SciPy each", (lambda rows: [scipy.stats.norm(mean, 0.5) for mean in MEAN[rows]]), {}


@pytest.mark.parametrize(("make", "options"), [pytest.param(m, o, id=name) for name, m, o in columns_of_one()])
def test_a_column_of_forecasts_is_not_spread_over_the_rows(make, options):
    honest = cal.calibrate(make(HELD), Y[HELD], **options)
    low, high = honest.predict_interval(make(NEW), 0.8)
    assert low.shape == (N,)
    assert near(np.mean((low <= Y[NEW]) & (Y[NEW] <= high)), 0.8)


def test_quantiles_are_read_by_their_level_in_any_order():
    pandas = pytest.importorskip("pandas")
    low, middle, high = (MEAN + 0.5 * at for at in scipy.stats.norm.ppf([0.1, 0.5, 0.9]))
    frame = pandas.DataFrame({"0.5": middle, "0.1": low, "0.9": high})
    expected = cal.check({0.1: low, 0.5: middle, 0.9: high}, Y)
    assert cal.check(frame, Y) == expected
    assert cal.check((middle, high, low), Y, levels=[0.5, 0.9, 0.1]) == expected
    assert cal.check(np.stack([high, low, middle], 1), Y, levels=[0.9, 0.1, 0.5]) == expected
    with pytest.raises(CalibrlError, match="give a column for each"):
        cal.check(np.stack([low, middle, high]), Y, levels=[0.1, 0.5, 0.9])


def test_the_ends_of_an_interval_are_no_mean_and_standard_deviation():
    low, high = np.full(3 * N, 0.1), np.full(3 * N, 9.0)
    positive = 1 + np.abs(Y)
    for judge in (cal.calibrate, cal.check):
        with pytest.raises(CalibrlError, match=r"levels=\[0.05, 0.95\]"):
            judge((low, high), positive)
        judge((low, high), positive, kind="std")
        judge((low, high), positive, levels=[0.05, 0.95])


class Told:
    """A model that answers as it is told to, with what others have beside `predict`."""

    def __init__(self, answer, **others):
        self.answer = answer
        vars(self).update(others)

    def predict(self, x):
        return self.answer(x)


def test_two_answers_of_a_model_are_named_not_guessed():
    pairs = [
        Told(lambda x: (3 * x[:, :1], np.full((len(x), 1), 0.25))),  # GPy
        Told(lambda x: [3 * x[:, :1], np.full((len(x), 1), 0.25)]),  # Keras
        Module(lambda mean: [mean[:, None], torch.full_like(mean[:, None], 0.25)]),
    ]
    for model in pairs:
        with pytest.raises(CalibrlError, match='kind="std", "variance"'):
            cal.calibrate(model, X[HELD], Y[HELD])
        base = cal.calibrate(model, X[HELD], Y[HELD], kind="variance")(X[NEW]).base
        np.testing.assert_allclose(base.stddev, 0.5)
        assert base.mean.shape == (N,)
    catboost = Told(lambda x: np.stack([3 * x[:, 0], np.full(len(x), 0.25)], 1), classes_=[])
    np.testing.assert_allclose(cal.calibrate(catboost, X[HELD], Y[HELD], kind="variance")(X).base.stddev, 0.5)


def test_probabilities_of_yes_are_asked_for():
    event = (np.median(Y) < Y).astype(int)
    chance = 1 / (1 + np.exp(-3 * X[:, 0]))
    with pytest.raises(CalibrlError, match='kind="classes"'):
        cal.calibrate(chance[HELD], event[HELD])
    assert cal.calibrate(chance[HELD], event[HELD], spread=1.0).classes is None
    found = cal.calibrate(chance[HELD], event[HELD], kind="classes").predict_proba(chance[NEW])
    column = cal.calibrate(chance[HELD, None], event[HELD] > 0, kind="classes").predict_proba(chance[NEW, None])
    np.testing.assert_allclose(found, column)
    assert cal.calibrate(GradientBoostingRegressor(n_estimators=5).fit(X[TRAIN], event[TRAIN]), X[HELD], event[HELD])


def test_what_looks_like_probabilities_of_classes_is_counted():
    label = np.digitize(Y, [1, 3])
    pairs = SVC(decision_function_shape="ovo").fit(X[TRAIN], label[TRAIN])
    with pytest.raises(CalibrlError, match="'ovr'"):
        cal.calibrate(pairs, X[HELD], label[HELD])
    pairs.decision_function_shape = "ovr"
    honest = cal.calibrate(pairs, X[HELD], label[HELD])
    probs = honest.predict_proba(X[HELD])
    assert probs.shape == (N, 3)
    for call, says in [
        (lambda: cal.calibrate(probs, np.eye(3)[label[HELD]]), "argmax"),
        (lambda: cal.calibrate(pairs, X[HELD], np.eye(3, dtype=int)[label[HELD]]), "argmax"),
        (lambda: cal.calibrate(probs, label[HELD], classes=[0, 1, 2, 3]), "3 probabilities for 4 classes"),
        (lambda: Fitted(Told(None, classes_=[np.arange(2), np.arange(2)])), "2 labels a row"),
    ]:
        with pytest.raises(CalibrlError, match=says):
            call()


def test_rows_in_another_order_are_noticed():
    pandas = pytest.importorskip("pandas")
    mean, y = pandas.Series(MEAN), pandas.Series(Y)
    mixed = y.sample(frac=1, random_state=0)
    for given in ((mean, STD), mean):
        with pytest.raises(CalibrlError, match=r"y.loc\[x.index\]"):
            cal.calibrate(given, mixed)
    assert cal.calibrate((mean, STD), mixed.loc[mean.index]) is not None
    assert cal.calibrate((mean, STD), y.set_axis(y.index + 7)) is not None  # labels of something else


def test_models_of_other_manners():
    """NGBoost's distributions, a dummy, an embedding, half precision, gradients, classes of statsmodels."""

    class Given(scipy.stats._distn_infrastructure.rv_continuous_frozen):
        def predict(self):
            return self.mean()

    given = Given(scipy.stats.norm, MEAN, STD)
    assert cal.calibrate(given, Y).fitted.forecast(given).mean.shape == (3 * N,)
    assert cal.calibrate(DummyRegressor().fit(X, Y), X[HELD], Y[HELD]).predict(X[NEW]).shape == (N,)
    words = torch.arange(N)[:, None] % 5
    net = torch.nn.Sequential(torch.nn.Embedding(5, 1), torch.nn.Flatten())
    assert cal.calibrate(net, words, Y[HELD]).predict(words).shape == (N,)
    half = torch.nn.Linear(2, 1).to(torch.bfloat16)
    assert cal.calibrate(half, X[HELD], Y[HELD]).predict(X[NEW]).dtype == np.float32
    learnt = torch.tensor(MEAN, requires_grad=True)
    assert cal.calibrate((learnt, learnt.exp()), Y).rows == 3 * N
    sm = pytest.importorskip("statsmodels.api")
    label = np.digitize(Y, [1, 3])
    logit = sm.MNLogit(label[TRAIN], sm.add_constant(X[TRAIN])).fit(disp=0)
    honest = cal.calibrate(logit, sm.add_constant(X[HELD]), label[HELD])
    assert honest.predict_proba(sm.add_constant(X[NEW])).shape == (N, 3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cal.calibrate(X[HELD], Y[HELD]), "say what they are"),
        (lambda: cal.calibrate(LinearRegression, X, Y), "LinearRegression is a class"),
        (lambda: cal.calibrate((MEAN, -STD), Y), "std -0.5 of"),
        (lambda: cal.calibrate((MEAN, STD), Y[:10]), "10 outcomes y"),
        (lambda: cal.calibrate((MEAN[:1], STD[:1]), Y[:1]), "too few"),
        (lambda: cal.calibrate(Module(lambda mean: (mean, mean)), X, Y), 'kind="std", "variance"'),
        (lambda: cal.calibrate((MEAN, STD[:3]), Y), r"std \(3,\) do not fit"),
        (lambda: cal.calibrate(LinearRegression().fit(X, Y), X, Y[:10]), f"10 outcomes y and {len(X)} rows"),
        (lambda: cal.calibrate(LinearRegression().fit(X, Y), X, Y[:, None]), r"give y\[:, 0\]"),
        (lambda: cal.calibrate(LinearRegression().fit(X, Y), X, np.nan * Y), "0 outcomes are too few"),
        (lambda: cal.calibrate(LinearRegression().fit(X, Y), X), "its rows x, then y"),
        (lambda: cal.calibrate(None, X, Y), "its rows x, then y"),
        (lambda: cal.calibrate(MEAN), "is a model, x and y"),
        (lambda: cal.calibrate({"a": MEAN}, Y), "name quantiles by level"),
        (lambda: cal.calibrate(X, Y, kind="odd"), "kind 'odd' is unknown"),
        (lambda: cal.calibrate(object(), X, Y), "has no predict"),
        (lambda: cal.check(LinearRegression().fit(X, Y), (X, Y)), "numbers without uncertainty"),
        (lambda: cal.calibrate((MEAN, STD), Y).predict_proba((MEAN, STD)), "are of numbers"),
        (lambda: cal.calibrate(X, Y > 0, kind="classes"), "are no probabilities"),
        (lambda: cal.calibrate(np.full((N, 3), 0.6), np.zeros(N), kind="classes"), "sum to 1.8, not to 1"),
        (lambda: cal.calibrate((MEAN, STD), np.full(len(Y), "1,5")), r"holds '1,5'\); give some.*classes="),
        (lambda: cal.calibrate((MEAN, STD), Y + 0j), "not an array of numbers"),
        (lambda: cal.calibrate((MEAN, STD * np.nan), Y), "std nan of"),
        (lambda: cal.calibrate([LinearRegression(), LinearRegression()], X, Y), "levels="),
        (lambda: cal.calibrate(lambda x: None, X, Y), "not an array of numbers"),
        (lambda: cal.check(LinearRegression().fit(X, Y), Y), "its rows x, then y"),
        (lambda: cal.CalibratedRegressor(LinearSVC()).fit(X, (Y > 0) * 1), "LinearSVC is a classifier"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(call, says):
    with pytest.raises(CalibrlError, match=says) as problem:
        call()
    assert "\n" not in str(problem.value)


# Quantiles that models of single levels learnt one by one: each with an error of its own.


def noisy_quantiles(rng, n, noise):
    """Outcomes (n,) of a skewed law, and its quantiles (n, 5) with errors, in ascending order."""
    centre, width = rng.normal(size=n), rng.uniform(0.5, 2, size=n)
    y = centre + width * (rng.exponential(size=n) - 1)
    right = centre[:, None] + width[:, None] * (-np.log(1 - np.array(LEVELS)) - 1)
    return y, np.sort(right + noise * width[:, None] * rng.normal(size=right.shape), axis=1)


def interval_score(honest, quantiles, y):
    low, high = honest.predict_interval(quantiles, 0.9)
    return float((high - low + 20 * (np.maximum(low - y, 0) + np.maximum(y - high, 0))).mean())


@pytest.mark.parametrize(("noise", "at_most"), [(0.0, 1.005), (0.5, 0.97)])
def test_quantiles_lend_each_other_their_shape(noise, at_most):
    """Of noisy quantiles, intervals are better for it than those of the quantiles as they are; exact ones stay."""
    rng = np.random.default_rng(4)
    y, quantiles = noisy_quantiles(rng, 4000, noise)
    shaped = cal.calibrate(quantiles[:300], y[:300], levels=LEVELS)
    as_given = CalibratedModel(Fitted(None, levels=LEVELS))
    as_given.learn(
        [(as_given.fitted, quantiles[a : a + 150], y[a : a + 150]) for a in (0, 150)]
    )  # folds learn no shape
    assert as_given.fitted.shared is None
    assert shaped.fitted.shared is not None
    ratio = interval_score(shaped, quantiles[300:], y[300:]) / interval_score(as_given, quantiles[300:], y[300:])
    assert ratio < at_most


def test_rows_that_taught_a_shape_vouch_for_no_guarantee():
    """Split conformal coverage is exact given the third that taught the shape: over repeats, 0.9 within its error."""
    inside = []
    for seed in range(150):
        y, quantiles = noisy_quantiles(np.random.default_rng(1000 + seed), 360, 0.5)
        honest = cal.calibrate(quantiles[:60], y[:60], levels=LEVELS)
        assert int(honest.mapping.ranks.count) == 40
        low, high = honest.predict_interval(quantiles[60:], 0.9, guarantee="conformal")
        inside.append(((low <= y[60:]) & (y[60:] <= high)).mean())
    # 40 rows: the interval leaves out 2 of 41 ranks on each side.
    assert np.mean(inside) == pytest.approx(1 - 4 / 41, abs=4 * np.std(inside) / len(inside) ** 0.5)
    assert np.mean(inside) > 0.89


def test_later_rows_vouch_for_a_guarantee_and_leave_the_shape():
    y, quantiles = noisy_quantiles(np.random.default_rng(5), 200, 0.5)
    honest = cal.calibrate(quantiles[:90], y[:90], levels=LEVELS)
    shared = honest.fitted.shared
    honest.update((quantiles[90:], y[90:]))
    assert honest.fitted.shared is shared
    assert int(honest.mapping.ranks.count) == 60 + 110
    few = cal.calibrate(quantiles[:29], y[:29], levels=LEVELS)
    assert few.fitted.shared is None
    assert int(few.mapping.ranks.count) == 29


def test_statsmodels_of_events_and_of_single_quantiles():
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    x = sm.add_constant(rng.normal(size=(900, 1)))
    y = x[:, 1] + rng.normal(size=900)
    event = (y > 0).astype(int)
    binomial = sm.GLM(event[:300], x[:300], family=sm.families.Binomial()).fit()
    for model in (sm.Logit(event[:300], x[:300]).fit(disp=0), binomial):
        chance = cal.calibrate(model, x[300:600], event[300:600]).predict_proba(x[600:])
        assert np.mean((chance > 0.5) == event[600:]) > 0.7
        assert chance.mean() == pytest.approx(event[600:].mean(), abs=0.07)
    models = {level: sm.QuantReg(y[:300], x[:300]).fit(q=level, max_iter=5000) for level in (0.05, 0.5, 0.95)}
    low, high = cal.calibrate(models, x[300:600], y[300:600]).predict_interval(x[600:], 0.9)
    assert np.mean((low <= y[600:]) & (y[600:] <= high)) == pytest.approx(0.9, abs=0.06)

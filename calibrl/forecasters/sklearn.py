"""Scikit-learn's estimators as forecasters, and `CalibratedRegressor`, an estimator with honest intervals."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from calibrl.arrays import Array, as_rows
from calibrl.data import Data, Remembered
from calibrl.diagnostics import crps
from calibrl.distributions import Quantiles, Recalibrated
from calibrl.distributions.given import LEVELS, Answers, Fitted, Kind, Rows
from calibrl.errors import CalibrlError, check_count
from calibrl.forecasters.fitted import CalibratedModel
from calibrl.guarantees import ByFolds
from calibrl.maps import Map, fit_named

Estimator: TypeAlias = Any
"""Anything with scikit-learn's `fit` and `predict`; it is cloned, never changed."""


class SklearnForecaster:
    """A scikit-learn regressor whose `predict(X, return_std=True)` gives a standard deviation, as Gaussian forecasts.

    x of shape (n, …) is flattened to (n, features); each column of y gets its own estimator, fitted on the rows where
    it was observed.

    Parameters
    ----------
    estimator : regressor
        GaussianProcessRegressor, BayesianRidge, ARDRegression and the like, or a pipeline that ends in one. It is
        cloned, never changed.

    Examples
    --------
    >>> import numpy as np, calibrl as cal
    >>> from sklearn.linear_model import BayesianRidge
    >>> model = cal.SklearnForecaster(BayesianRidge())
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> model.update(cal.Data(x, 3 * x[:, 0] + 0.1 * np.cos(50 * x[:, 0])))
    >>> round(model(np.array([[0.5]])).mean.item(), 1)
    1.5
    """

    def __init__(self, estimator: Estimator) -> None:
        refuse_classifier(estimator)
        # A pipeline hands return_std on to its last step.
        last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
        if "return_std" not in inspect.signature(last.predict).parameters:
            raise CalibrlError(
                f"{type(last).__name__}.predict has no return_std, so it states no uncertainty; use "
                "GaussianProcessRegressor or BayesianRidge, or SklearnQuantiles"
            )
        self.estimator = estimator
        self._remembered = Remembered()
        self._fitted: list[Estimator] = []

    def update(self, data: Data) -> None:
        """Fit again on all rows so far."""
        rows = self._remembered.with_new(data)
        self._fitted = [fit_clone(self.estimator, x, y) for x, y in seen_columns(rows)]
        self._remembered.keep(rows)

    def __call__(self, x: Array) -> Normal:
        """Gaussian forecasts for x (n, …): batch shape (n,) or (n, d), as y had."""
        x = as_rows(x)
        y = self._remembered.outcomes()
        answers = [fitted.predict(features(x), return_std=True) for fitted in self._fitted]
        mean, std = (as_columns([answer[i] for answer in answers], like=y, x=x) for i in (0, 1))
        if not bool((std > 0).all()):
            row = int((std <= 0).reshape(len(std), -1).any(-1).nonzero()[0])
            raise CalibrlError(
                f"{type(self.estimator).__name__} gave a standard deviation of 0 for row {row}; a forecast needs some "
                "spread: let the model learn noise (a WhiteKernel, a larger alpha)"
            )
        return Normal(mean, std, validate_args=False)


class SklearnQuantiles:
    """One scikit-learn quantile regressor per level, as `calibrl.Quantiles`.

    They are trained separately, so quantiles may cross: they are sorted.

    Parameters
    ----------
    make : callable
        Builds the regressor of one level: `lambda q: QuantileRegressor(quantile=q, alpha=0)`, or gradient boosting with
        a quantile loss.
    levels : sequence of float
        Two or more, ascending in (0, 1).
    """

    def __init__(self, make: Callable[[float], Estimator], *, levels: Sequence[float] = LEVELS) -> None:
        if len(levels) < 2 or list(levels) != sorted(set(levels)) or not 0 < levels[0] < levels[-1] < 1:
            raise CalibrlError(f"levels {list(levels)} must be two or more, rise, and lie strictly between 0 and 1")
        refuse_classifier(make(levels[0]))
        self.make = make
        self.levels = tuple(levels)
        self._remembered = Remembered()
        self._fitted: list[list[Estimator]] = []

    def update(self, data: Data) -> None:
        """Fit again on all rows so far."""
        rows = self._remembered.with_new(data)
        columns = seen_columns(rows)
        self._fitted = [[self.make(level).fit(x, y) for x, y in columns] for level in self.levels]
        self._remembered.keep(rows)

    def __call__(self, x: Array) -> Quantiles:
        """Quantile forecasts for x (n, …): batch shape (n,) or (n, d), as y had."""
        x = as_rows(x)
        y = self._remembered.outcomes()
        given = features(x)
        values = [as_columns([f.predict(given) for f in level], like=y, x=x) for level in self._fitted]
        return Quantiles(torch.stack(values).sort(0).values, torch.tensor(self.levels, dtype=torch.float64))


class SklearnClassifier:
    """A scikit-learn classifier's `predict_proba`, as `Categorical` over the classes 0 … k-1.

    Parameters
    ----------
    estimator : classifier
        It is cloned, never changed.
    classes : int
        k: a class that is missing from the training rows gets probability 0.
    """

    def __init__(self, estimator: Estimator, *, classes: int) -> None:
        if not hasattr(estimator, "predict_proba"):
            raise CalibrlError(f"{type(estimator).__name__} has no predict_proba; use a classifier that has it")
        self.estimator = estimator
        self.classes = check_count("classes", classes, "leaves nothing to forecast", least=2)
        self._remembered = Remembered()
        self._fitted: Estimator = None

    def update(self, data: Data) -> None:
        """Fit again on all rows so far. y: (n,) or (n, 1), whole numbers 0 … k-1."""
        rows = self._remembered.with_new(data)
        columns = seen_columns(rows)
        if len(columns) != 1:
            raise CalibrlError(f"y has {len(columns)} columns; a classifier forecasts one label per row")
        x, y = columns[0]
        wrong = y[(y != np.round(y)) | (y < 0) | (y >= self.classes)]
        if len(wrong):
            raise CalibrlError(f"label {wrong[0]:g} is none of the classes 0 … {self.classes - 1}; number them from 0")
        self._fitted = fit_clone(self.estimator, x, y.astype(np.int64))
        self._remembered.keep(rows)

    def __call__(self, x: Array) -> Categorical:
        """Class probabilities for x (n, …): batch shape (n,)."""
        x = as_rows(x)
        y = self._remembered.outcomes()
        found = torch.as_tensor(self._fitted.predict_proba(features(x)), dtype=torch.float64)
        probs = torch.zeros(len(found), self.classes, dtype=torch.float64)
        probs[:, torch.as_tensor(self._fitted.classes_)] = found
        return Categorical(probs=probs.to(x.device, y.dtype))


def refuse_classifier(estimator: Estimator) -> None:
    """An error for estimators that forecast classes, or are none."""
    if not hasattr(estimator, "fit") or not hasattr(estimator, "predict"):
        raise CalibrlError(f"{estimator!r} has no fit and predict; pass a scikit-learn regressor (an instance)")
    if isinstance(estimator, type):
        raise CalibrlError(f"{estimator.__name__} is a class; pass an instance: {estimator.__name__}()")
    if hasattr(estimator, "predict_proba") or (isinstance(estimator, BaseEstimator) and is_classifier(estimator)):
        raise CalibrlError(f"{type(estimator).__name__} is a classifier; use SklearnClassifier(estimator, classes=k)")


def fit_clone(estimator: Estimator, x: NDArray[Any], y: NDArray[Any]) -> Estimator:
    """A fresh copy of the estimator, fitted."""
    return clone(estimator).fit(x, y)


def features(x: Tensor) -> NDArray[Any]:
    """X (n, …) as scikit-learn wants it: (n, features)."""
    array: NDArray[Any] = x.detach().cpu()[:, None].flatten(1).numpy()
    return array


def seen_columns(rows: Data) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """For each column of y, the x and y of the rows where it was seen."""
    x, y = features(rows.x), features(rows.y)
    seen = ~np.isnan(y)
    for j in range(y.shape[1]):
        if not seen[:, j].any():
            raise CalibrlError(f"column {j} of y holds no outcome (all NaN); there is nothing to learn yet")
    return [(x[seen[:, j]], y[seen[:, j], j]) for j in range(y.shape[1])]


def as_columns(columns: list[NDArray[Any]], *, like: Tensor, x: Tensor) -> Tensor:
    """Predictions per column as one (n,) or (n, d) tensor: as many dimensions and the dtype of `like`, x's device."""
    wide = torch.as_tensor(np.stack(columns, -1), dtype=like.dtype, device=x.device)
    return wide.reshape(-1, *like.shape[1:])


class CalibratedRegressor(MetaEstimatorMixin, RegressorMixin, Answers, BaseEstimator):  # type: ignore[misc]
    """Any regressor, with intervals and quantiles that are calibrated by cross-validation.

    With folds, the regressor is fitted once more on all rows, and R on what each fold's model says of the rows it was
    not fitted on; intervals are guaranteed by CV+. With one split, such as `ShuffleSplit(1, test_size=0.3)`, the model
    is the one fitted on the training side, and the guarantee that of split conformal prediction.

    Parameters
    ----------
    estimator : regressor
        Any with scikit-learn's interface. If its `predict` takes `return_std` or `quantiles`, its own uncertainty is
        calibrated; otherwise one is learnt from its errors. It is cloned, never changed.
    cv : int, splitter or "prefit"
        Folds, a splitter of scikit-learn (`GroupKFold` and the like excepted), or "prefit": the estimator is fitted
        already, on other rows than those `fit` is given.
    map : str
        Which map, by its name in `calibrl.maps.MAPS`.
    levels, kind
        What the estimator predicts, if not single numbers: as in `calibrl.calibrate`.

    Attributes
    ----------
    model_ : CalibratedModel
        R∘T.

    Examples
    --------
    >>> import calibrl as cal
    >>> from sklearn.datasets import make_regression
    >>> from sklearn.linear_model import Ridge
    >>> x, y = make_regression(300, 3, noise=10.0, random_state=0)
    >>> model = cal.CalibratedRegressor(Ridge()).fit(x, y)
    >>> low, high = model.predict_interval(x, 0.9)
    >>> bool(30 < (high - low).mean() < 36)  # 2 × 1.645 × 10
    True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        cv: Any = 5,
        map: str = "smooth",
        levels: Sequence[float] | None = None,
        kind: Kind | None = None,
    ) -> None:
        self.estimator = estimator
        self.cv = cv
        self.map = map
        self.levels = levels
        self.kind = kind

    def fit(self, X: Rows, y: Any) -> Self:
        """Fit the estimator and R.

        Parameters
        ----------
        X : array or data frame (n, features)
        y : array (n,) or (n, d)

        Returns
        -------
        CalibratedRegressor
            Itself.
        """
        fit_map = fit_named(self.map)
        if is_classifier(self.estimator):
            raise CalibrlError(f"{type(self.estimator).__name__} is a classifier; fit it, then use calibrl.calibrate")
        validate_data(self, X, skip_check_array=True)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        y = check_array(y, ensure_2d=False, input_name="y", dtype=(np.float64, np.float32))
        y = y if y.ndim == 2 and y.shape[1] > 1 else column_or_1d(y, warn=True)
        X, y = indexable(X, y)
        if self.cv == "prefit":
            check_is_fitted(self.estimator)
            whole, judged = self.estimator, [(self._asked(self.estimator), X, y)]
            folds = 1
        else:
            splits = list(check_cv(self.cv).split(X, y))
            folds = len(splits)
            judged = []
            for train, held in splits:
                part = clone(self.estimator).fit(_safe_indexing(X, train), y[train])
                judged.append((self._asked(part), _safe_indexing(X, held), y[held]))
            whole = clone(self.estimator).fit(X, y) if folds > 1 else part
        fitted = self._asked(whole)
        self.model_ = CalibratedModel(fitted, fit_map=fit_map)
        self.model_.learn(judged)
        self.folds_: list[tuple[Fitted, Tensor]] = []
        if folds > 1 and isinstance(self.model_.mapping, Map):
            self.model_.mapping = self.model_.mapping.unpromised(ByFolds.BARE)
            scores = [torch.as_tensor(one).reshape(len(one), -1).sort(0).values for one in self.model_.scores]
            self.folds_ = [(model, z) for (model, _, _), z in zip(judged, scores, strict=True)]
        self.estimator_ = whole
        return self

    def forecast(self, X: Rows) -> Recalibrated:
        """The calibrated forecast of each row.

        Parameters
        ----------
        X : array or data frame (n, features)

        Returns
        -------
        Recalibrated of batch shape (n,) or (n, d)
        """
        check_is_fitted(self)
        if getattr(X, "ndim", 2) == 1:
            raise ValueError("X is one row of numbers, expected (n, features). Reshape your data: X.reshape(1, -1)")
        validate_data(self, X, reset=False, skip_check_array=True)
        found = self.model_.forecast(X)
        if not isinstance(found, Recalibrated):
            raise CalibrlError(f"{type(self.estimator).__name__} forecasts classes; use calibrl.calibrate for them")
        if not self.folds_:
            return found
        # Rows by their numbers: forecasts may be picked by row, and X may be a data frame.
        asked = [(partial(_forecast_some, model, X), z) for model, z in self.folds_]
        return Recalibrated(found.base, found.mapping, ByFolds(asked, torch.arange(len(found))))

    def _asked(self, model: Any) -> Fitted:
        return Fitted(model, levels=self.levels, kind=self.kind)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = replace(inner.input_tags)
        tags.target_tags.multi_output = inner.target_tags.multi_output
        return tags


def _forecast_some(model: Fitted, X: Rows, rows: Tensor) -> Distribution:
    return model.forecast(_safe_indexing(X, rows.numpy()))


def neg_crps(model: Answers, X: Rows, y: Any) -> float:
    """Minus the mean CRPS: `scoring` of searches that are to choose by the whole forecast, not by its mean.

    Parameters
    ----------
    model : CalibratedRegressor or CalibratedModel
    X, y
        Rows it was not fitted on.

    Returns
    -------
    float
        In y's units; higher is better.
    """
    return -crps(model.forecast(X), model.outcomes(y))

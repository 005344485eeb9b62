"""Forecasters from scikit-learn: standard deviations, quantiles, or class probabilities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Normal

from calibrl.arrays import Array, as_rows
from calibrl.data import Data, Remembered
from calibrl.distributions import Quantiles
from calibrl.errors import CalibrlError, check_count

Estimator: TypeAlias = Any
"""Anything with scikit-learn's `fit` and `predict`; it is cloned, never changed."""

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


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
            raise CalibrlError(
                f"{type(estimator).__name__} has no predict_proba; use a classifier that states probabilities"
            )
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
            raise CalibrlError(
                f"label {wrong[0]:g} is not one of the classes 0 … {self.classes - 1}; number them from 0"
            )
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
    from sklearn.base import BaseEstimator, is_classifier

    if not hasattr(estimator, "fit") or not hasattr(estimator, "predict"):
        raise CalibrlError(f"{estimator!r} has no fit and predict; pass a scikit-learn regressor (an instance)")
    if isinstance(estimator, type):
        raise CalibrlError(f"{estimator.__name__} is a class; pass an instance: {estimator.__name__}()")
    if hasattr(estimator, "predict_proba") or (isinstance(estimator, BaseEstimator) and is_classifier(estimator)):
        raise CalibrlError(f"{type(estimator).__name__} is a classifier; use SklearnClassifier(estimator, classes=k)")


def fit_clone(estimator: Estimator, x: NDArray[Any], y: NDArray[Any]) -> Estimator:
    """A fresh copy of the estimator, fitted."""
    from sklearn.base import clone

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
    """Answers per column as one (n,) or (n, d) tensor: as many dimensions and the dtype of `like`, x's device."""
    wide = torch.as_tensor(np.stack(columns, -1), dtype=like.dtype, device=x.device)
    return wide.reshape(-1, *like.shape[1:])

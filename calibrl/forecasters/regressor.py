"""A regressor of scikit-learn with honest intervals: for pipelines, searches and whatever else takes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
from torch import Tensor
from torch.distributions import Distribution

from calibrl.diagnostics import crps
from calibrl.distributions import Recalibrated
from calibrl.distributions.given import Answers, Fitted, Kind, Rows
from calibrl.errors import CalibrlError
from calibrl.forecasters.fitted import CalibratedModel
from calibrl.guarantees import ByFolds
from calibrl.maps import Map, fit_named


class CalibratedRegressor(MetaEstimatorMixin, RegressorMixin, Answers, BaseEstimator):  # type: ignore[misc]
    """Any regressor, with intervals and quantiles that are calibrated by cross-validation.

    With folds, the regressor is fitted once more on all rows, and R on what each fold's model says of the rows it was
    not fitted on; intervals are guaranteed by CV+. With one split, such as `ShuffleSplit(1, test_size=0.3)`, the model
    is the one fitted on the training side, and the guarantee that of split conformal prediction.

    Parameters
    ----------
    estimator : regressor
        scikit-learn's manners; with `return_std` or `quantiles` in its `predict` its own uncertainty is calibrated,
        otherwise one is learnt from its errors. It is cloned, never changed.
    cv : int, splitter or "prefit"
        Folds, a splitter of scikit-learn (`GroupKFold` and the like excepted), or "prefit": the estimator is fitted
        already, on other rows than those `fit` is given.
    map : str
        Which map, by its name in `calibrl.maps.MAPS`.
    levels, kind
        What the estimator's answers are, where they are not single numbers: as in `calibrl.calibrate`.

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

"""Calibrate what is there: a model that is trained already, or forecasts that were made somewhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from calibrl.algorithm import honest, judge
from calibrl.arrays import Array, as_numpy
from calibrl.data import Data, SeenRows, numeric_rows
from calibrl.distributions import Recalibrated
from calibrl.distributions.empirical import Quantiles, SharedShape
from calibrl.distributions.given import Answers, Fitted, Kind, Rows, model_and_rows
from calibrl.errors import CalibrlError
from calibrl.evidence import Scores, fit_to
from calibrl.maps import IDENTITY, FitMap, Map
from calibrl.maps.classes import ClassMap, FitClassMap
from calibrl.maps.columns import columns_of, ranks_of

FEWEST = 2
"""Rows a map can be fitted on."""

ENOUGH = 30
"""Rows of which a third says something about the shape of quantile forecasts."""


class CalibratedModel(Answers):
    """R∘T of a model T that is trained already: what `calibrl.calibrate` returns.

    `forecast(x)`, or the object itself called with x, gives distributions; `predict`, `predict_interval`,
    `predict_quantiles` and `predict_proba` give arrays. `update((x, y))` fits R again with more rows; T stays as it is.

    Parameters
    ----------
    fitted : Fitted
        T.
    fit_map : function, optional
        Fits R: any `fit_*`.

    Attributes
    ----------
    mapping : Map or ClassMap
        R.
    rows : int
        How many rows it was fitted on.
    scores : list
        What those rows said of their forecasts, a tensor for each time it learnt some.
    """

    def __init__(self, fitted: Fitted, *, fit_map: FitMap | FitClassMap | None = None) -> None:
        self.fitted, self.fit_map = fitted, fit_map
        self.classes = fitted.classes
        self.mapping: Map | ClassMap = IDENTITY
        self.rows = 0
        self.seen = SeenRows()
        self.scores: list[Scores] = []
        self._generator = torch.Generator().manual_seed(0)
        self._shapers: Tensor | None = None

    def update(self, data: Data | tuple[Rows, Array]) -> None:
        """Fit R with more rows (x, y) that T was not trained on."""
        x, y = (data.x, data.y) if isinstance(data, Data) else data
        self.learn([(self.fitted, x, y)])

    def learn(self, judged: Sequence[tuple[Fitted, Rows, Array]]) -> None:
        """Fit R with what models like T say of rows (x, y) they were not trained on: T itself, or T without a fold.

        Parameters
        ----------
        judged : sequence of (Fitted, x, y)
        """
        rows = [(model, x, self.outcomes(y)) for model, x, y in judged]
        known = self.rows + sum(int((~y.isnan()).sum()) for *_, y in rows)
        if known < FEWEST:
            raise CalibrlError(f"{known} outcomes are too few to calibrate on; give {FEWEST} or more, better 100")
        for model, _, y in rows:
            model.columns = self.fitted.columns = tuple(y.shape[1:])
        self._learn_spread(rows)
        self._learn_shape(rows)
        scores = []
        for model, x, y in rows:
            model.spread = self.fitted.spread
            forecast = model.forecast(x)
            if forecast.batch_shape[:1] != y.shape[:1]:
                shape = tuple(forecast.batch_shape)
                raise CalibrlError(f"{len(y)} outcomes y and forecasts of shape {shape}; give a row of each, (n, k)")
            model.refuse_ends(x, y)
            scores.append(judge(forecast, y, self._generator))
        self.mapping = fit_to([*self.scores, *scores], self.fit_map)
        self.scores += scores
        if self._shapers is not None and isinstance(self.mapping, Map):
            # Rows that had a say in the forecasts themselves are no witnesses for a guarantee.
            told = torch.cat([one for one in self.scores if isinstance(one, Tensor)])
            told[: len(self._shapers)][self._shapers] = torch.nan
            self.mapping = replace(self.mapping, ranks=ranks_of(*columns_of(None, None, told)))
        self.rows = known
        for _, x, y in rows:
            numeric = numeric_rows(x, y)
            if numeric is not None:
                self.seen.add(numeric)

    def _learn_spread(self, rows: Sequence[tuple[Fitted, Rows, Tensor]]) -> None:
        """Where T answers with single numbers: one spread for all rows; R then learns the shape of the errors.

        The median absolute error, so that a few large ones do not count. Conformal intervals do not depend on it.
        """
        if self.fitted.spread is not None:
            return
        errors = []
        for model, x, y in rows:
            found = model.answer(x)
            if isinstance(found, Distribution):
                return
            if len(found) != len(y):
                raise CalibrlError(f"{len(y)} outcomes y and {len(found)} rows; give one row of each")
            if y.shape == (*found.shape, 1):
                raise CalibrlError(f"y {tuple(y.shape)} for answers {tuple(found.shape)}; give y[:, 0]")
            if found.shape != y.shape:
                raise CalibrlError(
                    f"{self.fitted.name} answers with numbers of shape {tuple(found.shape)} for outcomes of shape "
                    f'{tuple(y.shape)}; say what they are: levels=[…] for quantiles, kind="samples", "classes", '
                    '"logits" or, for a mean and its spread, "std" or "variance"; or give (mean, std)'
                )
            event = set(y.nan_to_num(0).unique().tolist()) == {0, 1} and 0 <= found.min() <= found.max() <= 1
            if event and not hasattr(model.model, "get_params"):  # what is called a regressor forecasts numbers
                raise CalibrlError('outcomes 0 and 1, answers between: kind="classes" for probabilities or spread=1.0')
            errors.append((y - found.to(y.device)).abs().double())
        error = torch.cat(errors)
        widest = error.nan_to_num(0).amax(0)
        floor = 1e-9 * torch.where(widest > 0, widest, 1.0)
        self.fitted.spread = torch.maximum(error.nanmedian(0).values / 0.6745, floor)

    def _learn_shape(self, rows: Sequence[tuple[Fitted, Rows, Tensor]]) -> None:
        """Where T answers with quantiles: the shape they share, on a third of the first rows.

        Not from folds: CV+ holds only if each forecaster knows nothing of the rows it is judged on.
        """
        model, x, y = rows[0]
        found = model.answer(x) if len(rows) == 1 and not self.scores and len(y) >= ENOUGH else None
        if (
            not isinstance(found, Quantiles)
            or found.batch_shape != y.shape
            or not found.levels[0] < 0.5 < found.levels[-1]
        ):
            return
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: len(y) // 3]
        self.fitted.shared = SharedShape.learn(Quantiles(found.values[:, chosen], found.levels), y[chosen])
        self._shapers = torch.zeros(len(y), dtype=torch.bool).index_fill_(0, chosen, True)

    def forecast(self, x: Rows) -> Recalibrated | Categorical | Bernoulli:
        """The calibrated forecast of each row.

        Parameters
        ----------
        x : array or data frame of n rows
            As T takes them; where forecasts were calibrated, new ones of the same form.

        Returns
        -------
        Recalibrated, Categorical or Bernoulli of batch shape (n,) or (n, d)
        """
        return honest(self.fitted.forecast(x), self.mapping)

    __call__ = forecast

    def predict_proba(self, x: Rows) -> NDArray[Any]:
        """The probability of each class.

        Parameters
        ----------
        x : array or data frame of n rows

        Returns
        -------
        array (n, k), or (n,) of an event
        """
        forecast = self.forecast(x)
        if not isinstance(forecast, (Categorical, Bernoulli)):
            raise CalibrlError("these forecasts are of numbers, not of classes; use predict_interval")
        return as_numpy(forecast.probs)

    def outcomes(self, y: Array) -> Tensor:
        """Outcomes as numbers: of classes, which one each is."""
        return self.fitted.outcomes(y)

    def __repr__(self) -> str:
        return f"CalibratedModel({self.fitted.name}, {self.mapping.kind} on {self.rows} rows)"


def calibrate(
    model: Any,
    *rows: Any,
    levels: Sequence[float] | None = None,
    kind: Kind | None = None,
    classes: Sequence[Any] | None = None,
    spread: Any = None,
    fit_map: FitMap | FitClassMap | None = None,
) -> CalibratedModel:
    """Calibrate a fitted model, or forecasts that were made elsewhere.

    Parameters
    ----------
    model
        A fitted model: of scikit-learn or with its interface (XGBoost, LightGBM, NGBoost, quantile forests), {level: a
        model of that quantile} or a list of them beside `levels`, a `torch.nn.Module`, results of statsmodels, a
        function of x. Or forecasts: (mean, std), quantiles by level in a dictionary or data frame, class probabilities
        (n, k), a distribution of torch or SciPy, or an array that `levels` or `kind` says how to read. If a model
        predicts single numbers, their errors are learnt.
    *rows
        x and y, or (x, y): rows the model was *not* trained on, and what happened. Beside forecasts y alone.
    levels : sequence of float, optional
        What the model predicts, the array (n, k) or the tuple of k arrays are quantiles at these levels.
    kind : {"samples", "classes", "logits", "std", "variance", "log_variance"}, optional
        What the array has: draws (n, s), class probabilities, scores of classes; of a pair, what comes with the mean.
    classes : sequence, optional
        Labels of the classes, where the model does not know them and y does not number them from 0.
    spread : function of x, optional
        How far off a model of single numbers tends to be: (n,), in any unit. By default it is the same for all rows.
    fit_map : function, optional
        Fits R: any `fit_*`; by default `fit_smooth`, for classes `fit_temperature`.

    Returns
    -------
    CalibratedModel
        Called with x, or with new forecasts of the same form, it answers with calibrated forecasts.

    Examples
    --------
    >>> import numpy as np, calibrl as cal
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=(900, 1))
    >>> y = x[:, 0] + rng.exponential(size=900)
    >>> model = RandomForestRegressor(20, random_state=0).fit(x[:300], y[:300])
    >>> low, high = cal.calibrate(model, x[300:600], y[300:600]).predict_interval(x[600:], 0.8)
    >>> float(np.mean((low <= y[600:]) & (y[600:] <= high)).round(1))
    0.8

    Forecasts somebody else made, far too sure of themselves:

    >>> calibrated = cal.calibrate((np.zeros(900), np.full(900, 0.1)), y - 1)
    >>> calibrated((np.zeros(2), np.full(2, 0.1))).interval(0.8)[1].numpy().round(0)
    array([2., 2.])
    """
    model, x, y = model_and_rows(model, rows)
    fitted = Fitted(model, levels=levels, kind=kind, classes=classes, spread=spread)
    found = CalibratedModel(fitted, fit_map=fit_map)
    found.update((x, y))
    return found

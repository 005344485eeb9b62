"""Forecasts as people have them, arrays and fitted models of other packages, as distributions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, Poisson

from calibrl.arrays import Array, as_numpy, as_rows, as_tensor
from calibrl.data import Data
from calibrl.distributions.empirical import Empirical, Quantiles, SharedShape
from calibrl.distributions.kinds import answer_off_mps, by_column, take_rows
from calibrl.distributions.recalibrated import Promise, Recalibrated
from calibrl.errors import CalibrlError
from calibrl.maps import IDENTITY

Kind: TypeAlias = Literal["samples", "classes", "logits", "std", "variance", "log_variance"]
"""What an array of forecasts (n, k) holds, or the second of a pair beside the mean, where nothing else says so."""
Rows: TypeAlias = Any
"""What a model is asked about: an array, or whatever else it takes, such as a data frame with text."""

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Quantiles asked of a model that answers for any level."""
PAIRS = ("std", "variance", "log_variance")
"""What may stand beside a mean."""
MANY = np.arange(0.5, 200) / 200
"""Levels at which a distribution of another package is read off."""


def forecast_of(
    given: Any, *, levels: Sequence[float] | None = None, kind: Kind | None = None
) -> Distribution | Tensor:
    """Forecasts of n outcomes as a distribution; as a tensor (n,) or (n, d) where they are single numbers.

    Parameters
    ----------
    given
        A distribution of torch or SciPy, or n of SciPy; a tuple of arrays, mean and standard deviation; quantiles (n,)
        by level, in a dictionary or a data frame; class probabilities (n, k); a prediction of statsmodels; or an array
        that `levels` or `kind` says how to read.
    levels : sequence of float, optional
        The array holds quantiles at these k levels, a column each: (n, k); or a tuple does, k arrays (n,). Crossing
        ones are sorted.
    kind : {"samples", "classes", "logits", "std", "variance", "log_variance"}, optional
        The array holds draws (n, s), class probabilities (n, k) or those of an event (n,), or logits (n, k). Of a pair,
        or of two columns (n, 2), what stands beside the mean: "std" (the default), "variance" or "log_variance".

    Returns
    -------
    Distribution or Tensor
    """
    if isinstance(given, Distribution):
        return by_column(given)
    if hasattr(given, "ppf"):
        return _of_scipy(given)
    if hasattr(given, "predicted_mean"):
        return _of_statsmodels(given)
    if isinstance(given, list) and given and hasattr(given[0], "ppf"):  # of SciPy, one for each row
        return _quantiles([one.ppf(MANY) for one in given], MANY)
    if kind is None and levels is None and (named := _by_level(given)):
        given, levels = tuple(named.values()), list(named)
    if isinstance(given, Mapping):
        raise CalibrlError(f"forecasts by {list(given)[:4]} are unknown; name quantiles by level, or give (mean, std)")
    if isinstance(given, tuple) and levels is not None:
        given = as_tensor([as_numpy(as_tensor(part)) for part in given], "quantiles").movedim(0, -1)
    if kind in PAIRS and not isinstance(given, tuple):
        given = tuple(as_tensor(given, "forecast").unbind(-1))
    if isinstance(given, tuple):
        if len(given) != 2:
            raise CalibrlError(f"a tuple of {len(given)} is not a forecast; give (mean, std), or quantiles by level")
        mean, std = (as_tensor(part, name) for part, name in zip(given, ("mean", kind or "std"), strict=True))
        if kind in ("variance", "log_variance"):
            std = std.sqrt() if kind == "variance" else (std / 2).exp()
        if std.numel() > 1 and std.shape != mean.shape:
            raise CalibrlError(f"mean {tuple(mean.shape)} and std {tuple(std.shape)} do not fit; give one for each row")
        if bool((wrong := (std <= 0) | ~std.isfinite()).any()):
            raise CalibrlError(f"std {std[wrong][0]:g} of (mean, std) is not above 0 and finite; ends need levels=[…]")
        return Normal(mean, std.to(mean.device), validate_args=False)
    if levels is not None:
        return _quantiles(given, levels)
    if kind == "samples":
        return Empirical(_table(given, "samples").movedim(1, 0))
    if kind in ("classes", "logits"):
        return _classes(as_tensor(given, "probabilities"), kind)
    if kind is not None:
        raise CalibrlError(f'kind {kind!r} is unknown; use "samples", "classes" or "logits", or levels=[…]')
    values = as_tensor(given, f"{type(given).__name__}, neither (mean, std) nor quantiles by level nor a distribution,")
    shares = values.dim() == 2 and values.shape[1] > 1 and bool(((values.sum(1) - 1).abs() < 1e-4).all())
    return _classes(values, "classes") if shares and bool((values >= 0).all()) else values


def model_and_rows(model: Any, rows: Sequence[Any]) -> tuple[Any, Rows, Array]:
    """A model with x and y, given as (x, y) or one after the other; or None, forecasts in the place of x, and y."""
    if len(rows) == 1 and isinstance(rows[0], Data):
        rows = (rows[0].x, rows[0].y)
    elif len(rows) == 1 and isinstance(rows[0], tuple) and len(rows[0]) == 2 and not np.isscalar(rows[0][0]):
        rows = rows[0]
    asks = hasattr(model, "predict") and not hasattr(model, "ppf")  # NGBoost's distributions predict, too
    if len(rows) not in (1, 2) or (model is None if len(rows) == 2 else asks or isinstance(model, nn.Module)):
        raise CalibrlError("what is needed is a model, x and y, or forecasts and y; give a model its rows x, then y")
    model, x, y = (model, *rows) if len(rows) == 2 else (None, model, rows[0])
    labels: list[Any] = [getattr(part, "index", None) for part in (x[0] if isinstance(x, tuple) and x else x, y)]
    differ = all(hasattr(one, "equals") for one in labels) and not labels[0].equals(labels[1])
    if differ and labels[0].sort_values().equals(labels[1].sort_values()):
        raise CalibrlError("y has the labels of the rows in another order; give y.loc[x.index]")
    return model, x, y


class Answers(ABC):
    """What answers rows with forecasts, in the manner of scikit-learn: arrays in, arrays out."""

    classes: Sequence[Any] | None = None
    """Labels of the classes it forecasts, in the order of their probabilities."""

    @abstractmethod
    def forecast(self, x: Rows) -> Distribution:
        """The forecast of each of n rows, as a distribution of batch shape (n,) or (n, d)."""

    def outcomes(self, y: Array) -> Tensor:
        """Outcomes (n,) or (n, d) as numbers: of classes, which one each is, counted from 0."""
        if self.classes is None:
            try:
                return as_tensor(y, "y")
            except CalibrlError as problem:
                raise CalibrlError(f"{problem}, or say which class each probability is of: classes=[…]") from None
        places = {label: k for k, label in enumerate(np.asarray(self.classes).tolist())}
        labels = np.asarray(y).reshape(-1).tolist()
        unknown = [label for label in labels if label not in places]
        if unknown:
            raise CalibrlError(f"label {unknown[0]!r} is none of the model's classes {list(places)[:8]}; leave it out")
        return torch.tensor([places[label] for label in labels], dtype=torch.float64).reshape(len(y), -1).squeeze(-1)

    def predict(self, x: Rows) -> NDArray[Any]:
        """The expected outcome of each row, or its most probable class.

        Parameters
        ----------
        x : array or data frame of n rows
            As the model takes them.

        Returns
        -------
        array (n,) or (n, d)
        """
        forecast = self.forecast(x)
        if isinstance(forecast, Bernoulli):
            best: Any = (forecast.probs > 0.5).long().numpy()
        elif isinstance(forecast, Categorical):
            best = forecast.probs.argmax(-1).numpy()
        else:
            return as_numpy(forecast.mean)
        return best if self.classes is None else np.asarray(self.classes)[best]

    def predict_interval(
        self, x: Rows, level: float = 0.9, guarantee: Promise | None = None, *, confidence: float = 0.95
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The central interval that should hold each row's outcome with probability `level`.

        Parameters
        ----------
        x : array or data frame of n rows
        level : float
            In (0, 1).
        guarantee, confidence
            As in `Recalibrated.interval`.

        Returns
        -------
        low, high : array (n,) or (n, d)
        """
        low, high = self._numbers(x).interval(level, guarantee, confidence=confidence)
        return as_numpy(low), as_numpy(high)

    def predict_quantiles(self, x: Rows, levels: Sequence[float] = LEVELS) -> NDArray[Any]:
        """Quantiles of each row's outcome.

        Parameters
        ----------
        x : array or data frame of n rows
        levels : sequence of k floats
            In (0, 1).

        Returns
        -------
        array (n, k) or (n, d, k)
        """
        return np.moveaxis(as_numpy(self._numbers(x).quantiles(torch.as_tensor(levels))), 0, -1)

    def _numbers(self, x: Rows) -> Recalibrated:
        forecast = self.forecast(x)
        if isinstance(forecast, (Categorical, Bernoulli)):
            raise CalibrlError("these forecasts are of classes, which have no quantiles; use predict_proba")
        return forecast if isinstance(forecast, Recalibrated) else Recalibrated(forecast, IDENTITY)


class Fitted(Answers):
    """A model that is trained already, or none where forecasts themselves are given, asked as its package has it.

    Parameters
    ----------
    model
        scikit-learn's manners (`predict`, with `return_std` or `quantiles` where it has them, `predict_proba`), {level:
        such a model}, a `torch.nn.Module`, results of statsmodels, or a function of x. None: x is the forecast.
    levels, kind
        What its answers are, as in `forecast_of`.
    classes : sequence, optional
        Labels, if the model does not know them.
    spread : float, Tensor (d,) or function of x, optional
        Standard deviation of outcomes around a model that answers with single numbers.
    """

    def __init__(
        self,
        model: Any,
        *,
        levels: Sequence[float] | None = None,
        kind: Kind | None = None,
        classes: Sequence[Any] | None = None,
        spread: Any = None,
    ) -> None:
        if isinstance(model, type):
            raise CalibrlError(f"{model.__name__} is a class; pass a fitted instance of it")
        if isinstance(model, (list, tuple)) and len(levels or ()) == len(model):  # a model for each level
            model, levels = dict(zip(levels or (), model, strict=True)), None
        if isinstance(model, (list, tuple)):
            raise CalibrlError(f"{len(model)} models without a level for each; give levels=[0.1, 0.5, …], or one model")
        self.model = getattr(model, "best_estimator_", model)  # a search keeps its model there
        self.levels, self.kind, self.spread = levels, kind, spread
        found = getattr(self.model, "classes_", ())  # CatBoost's regressors have none
        if isinstance(found, list) and found and np.ndim(found[0]):
            raise CalibrlError(f"{self.name} gives {len(found)} labels a row; calibrate predict_proba(x)[0] by y[:, 0]")
        self.classes = list(classes) if classes is not None else np.asarray(found).tolist() if len(found) else None
        self.columns: tuple[int, ...] | None = None
        """Shape of one outcome, once some were seen: answers (n, 1) are taken for (n,) where outcomes are."""
        self.shared: SharedShape | None = None
        """What quantile forecasts are drawn towards, once rows told."""

    def forecast(self, x: Rows) -> Distribution:
        """The forecast of each row, as the model states it."""
        found = self.answer(x)
        if isinstance(found, Distribution):
            return found
        if self.spread is None:
            raise CalibrlError(
                f"the answer {tuple(found.shape)} of {self.name} is numbers without uncertainty; calibrl.calibrate"
                "(model, x, y) learns it from rows the model was not trained on, or say what the numbers are: "
                'levels=[…], kind="samples" or kind="classes"'
            )
        given = self.spread(x) if callable(self.spread) else self.spread
        spread = as_tensor(given, "spread").to(found.device, found.dtype)
        return Normal(*torch.broadcast_tensors(found, spread.reshape(found.shape) if callable(self.spread) else spread))

    @property
    def name(self) -> str:
        """What the model is called in messages."""
        return "the forecast" if self.model is None else type(self.model).__name__

    def answer(self, x: Rows) -> Distribution | Tensor:
        """What the model says of each row; a tensor where it says one number for each outcome."""
        with torch.no_grad():
            found = forecast_of(self._asked(x), levels=self.levels, kind=self.kind)
        if self.columns == () and (found.shape if isinstance(found, Tensor) else found.batch_shape)[1:] == (1,):
            found = found[:, 0] if isinstance(found, Tensor) else take_rows(found, (slice(None), 0))
        if isinstance(found, Categorical) and self.classes and len(self.classes) != found.probs.shape[-1]:
            raise CalibrlError(f"{found.probs.shape[-1]} probabilities for {len(self.classes)} classes; give as many")
        return self.shared(found) if isinstance(found, Quantiles) and self.shared is not None else found

    def refuse_ends(self, x: Rows, y: Tensor) -> None:
        """An error where two arrays, read as mean and standard deviation, look like the ends of an interval."""
        if self.model is None and isinstance(x, tuple) and len(x) == 2 and self.kind is None and self.levels is None:
            low, high = (as_tensor(part).to(y.device) for part in x)
            if bool((low < high).all()) and float(((low < y) & (y < high)).double().mean()) > 0.6:
                raise CalibrlError(
                    "most outcomes lie between the two of (mean, std), as if they were the ends of an interval; give "
                    'levels=[0.05, 0.95] for one of 90 %, or kind="std" if the second is a standard deviation'
                )

    def _asked(self, x: Rows) -> Any:
        model = self.model
        if model is None:
            return x
        if isinstance(model, Answers):
            return model.forecast(x)
        if isinstance(model, nn.Module):
            return self._heads(_ask_module(model, x))
        if isinstance(x, Tensor) and not callable(model):
            x = as_numpy(x)
        if isinstance(model, Mapping):
            return {
                at: np.asarray((getattr(one, "predict", None) or Fitted(one).answer)(x)) for at, one in model.items()
            }
        if hasattr(model, "get_prediction"):  # statsmodels
            if "start" in inspect.signature(model.get_prediction).parameters:
                raise CalibrlError(
                    "a time series model of statsmodels forecasts times, not rows; give what it forecast of rows it "
                    "was not fitted to: calibrl.calibrate(results.get_prediction(start), y)"
                )
            if np.ndim(found := np.asarray(model.predict(x))) > 1:  # of several classes
                return found
            return model.get_distribution(exog=x) if hasattr(model, "get_distribution") else model.get_prediction(x)
        if hasattr(model, "predict_proba"):
            found = model.predict_proba(x)
            return found if hasattr(found, "ppf") else _classes(as_tensor(found, "probabilities"), "classes")
        if hasattr(model, "pred_dist"):  # NGBoost
            return model.pred_dist(x)
        if hasattr(model, "decision_function") and self.classes is not None:  # a classifier without probabilities
            if getattr(_last(model), "decision_function_shape", "") == "ovo" and len(self.classes) > 2:
                raise CalibrlError("scores of pairs of classes; set decision_function_shape='ovr' of the model")
            scores = as_tensor(model.decision_function(x), "scores")
            return Categorical(logits=scores if scores.dim() > 1 else torch.stack([0 * scores, scores], 1))
        if hasattr(model, "predict"):
            return self._predicted(model, x)
        if callable(model):
            return model(as_rows(x) if hasattr(model, "update") else x)
        raise CalibrlError(f"{self.name} has no predict and cannot be called; pass a fitted model, or (mean, std)")

    def _predicted(self, model: Any, x: Rows) -> Any:
        takes = inspect.signature(_last(model).predict).parameters
        if "return_std" in takes:
            mean, std = model.predict(x, return_std=True)
            return (mean, std) if np.any(std) else mean  # a dummy's is 0
        if "quantiles" in takes:
            at = self.levels or LEVELS
            return _quantiles(model.predict(x, quantiles=list(at)), at)
        return self._heads(model.predict(x))

    def _heads(self, found: Any) -> Any:
        """What a network or `predict` says, of which two arrays may mean anything."""
        several = isinstance(found, (tuple, list)) and bool(getattr(found[0], "ndim", 0))
        if several and len(found) == 2 and self.kind is None and self.levels is None:
            raise CalibrlError(
                f"{self.name} answers with a pair, and models mean different things by it; say which: "
                'kind="std", "variance" or "log_variance" beside the mean, or levels=[…]'
            )
        return tuple(found) if several and len(found) in (2, len(self.levels or ())) else found


def _last(model: Any) -> Any:
    """The last step of a pipeline, which hands options on to it; any other model itself."""
    return model.steps[-1][1] if hasattr(model, "steps") else model


def _by_level(given: Any) -> dict[float, Any]:
    """Quantiles by level, where all keys of a dictionary, or names of a data frame's columns, are levels."""
    try:
        found = {float(name): given[name] for name in (given if isinstance(given, Mapping) else given.columns)}
    except (AttributeError, TypeError, ValueError):
        return {}
    return found if all(0 < level < 1 for level in found) else {}


def _ask_module(module: nn.Module, x: Rows) -> Any:
    """What a network says of rows, in its own dtype and on its device, with dropout and the like at rest."""
    like = next(module.parameters(), None)
    rows = as_rows(x)
    if like is not None:  # whole numbers of torch stay what they are, for an embedding
        rows = rows.to(like.device, like.dtype if like.is_floating_point() and rows.is_floating_point() else None)
    training = module.training
    module.eval()
    try:
        return answer_off_mps(module(rows))
    finally:
        module.train(training)


def _of_scipy(given: Any) -> Distribution:
    name = getattr(getattr(given, "dist", None), "name", "")
    if name in ("norm", "poisson"):
        mean, std = (torch.as_tensor(np.asarray(part)) for part in (given.mean(), given.std()))
        return Normal(mean, std) if name == "norm" else Poisson(mean)
    if name in ("bernoulli", "binom") and np.all(np.asarray(given.support()[1]) == 1):  # one event each
        return _classes(torch.as_tensor(np.asarray(given.mean())), "classes")
    return _quantiles(np.stack([np.asarray(given.ppf(level)) for level in MANY], -1), MANY)


def _of_statsmodels(given: Any) -> Distribution:
    """Predictions of statsmodels; their mean's own error says nothing of outcomes but for time series."""
    spread = getattr(given, "se_obs", None)
    if spread is None and type(given).__module__.startswith("statsmodels.tsa."):
        spread = np.sqrt(given.forecast_variance) if hasattr(given, "forecast_variance") else given.se_mean
    if spread is None:
        raise CalibrlError("this prediction of statsmodels is of a mean, not of outcomes; give get_distribution()")
    found = forecast_of((np.asarray(given.predicted_mean), np.asarray(spread)))
    assert isinstance(found, Distribution)
    return found


def _table(given: Array, name: str) -> Tensor:
    values = as_tensor(given, name)
    if values.dim() < 2:
        raise CalibrlError(f"{name} of shape {tuple(values.shape)} are not a row for each forecast; expected (n, k)")
    return values


def _quantiles(given: Array, levels: Sequence[float] | NDArray[Any]) -> Quantiles:
    """Quantiles (…, k), a column for each level; crossing ones sorted, as isotonic regression would."""
    values, at = _table(given, "quantiles"), torch.as_tensor(np.asarray(levels, dtype=np.float64).reshape(-1))
    if values.shape[-1] != len(at):
        raise CalibrlError(f"quantiles {tuple(values.shape)} at {len(at)} levels; give a column for each, (n, k)")
    return Quantiles(values[..., at.argsort()].movedim(-1, 0).sort(0).values, at.sort().values)


def _classes(values: Tensor, kind: str) -> Categorical | Bernoulli:
    values = values[:, 0] if values.shape[1:] == (1,) else values  # the probability of yes, as a column
    make: Callable[..., Categorical | Bernoulli] = Categorical if values.dim() > 1 else Bernoulli
    if kind == "logits":
        return make(logits=values)
    if not bool(((values >= 0) & (values <= 1 + 1e-6)).all()):
        raise CalibrlError(f'{values.min():g} … {values.max():g} are no probabilities; kind="logits" takes scores')
    off = ((total := values.sum(-1)) - 1).abs() > min(0.005 * values.shape[-1], 0.1) + 1e-6
    if values.dim() > 1 and bool(off.any()):  # as many digits as tables may have
        raise CalibrlError(f"probabilities of a row sum to {total[off][0]:g}, not to 1; divide each row by its sum")
    return make(probs=values if values.dim() > 1 else values.clamp(max=1.0))

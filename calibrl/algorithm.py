"""Algorithm 1 of the paper: wrap any forecaster so that it plans with R∘T instead of T."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from calibrl.arrays import Array, as_rows
from calibrl.data import Data, SeenRows, Split
from calibrl.distributions import Recalibrated, pit_z
from calibrl.distributions.kinds import by_column, class_rows
from calibrl.errors import CalibrlError
from calibrl.maps import IDENTITY, FitMap, Identity, Map, fit_smooth
from calibrl.maps.classes import ClassMap, FitClassMap, Unchanged, fit_temperature, recalibrate_classes

Outcome = TypeVar("Outcome")
Model = TypeVar("Model", bound="Forecaster")

Honest: TypeAlias = Recalibrated | Any
"""R∘T: a `Recalibrated`, before the first map too; for classes again a `Categorical` or a `Bernoulli`."""

FADED = 1e-6
"""Rows of less weight, beside the newest, are forgotten for good."""


@runtime_checkable
class Forecaster(Protocol):
    """T: learns from new rows, and answers a query with a distribution."""

    def update(self, data: Data) -> None:
        """Learn from rows not seen before."""

    def __call__(self, x: Tensor) -> Distribution:
        """The forecast for each row of x, of batch shape (n, d) or (n,)."""


def learn(collect: Callable[[Model], tuple[Data, Outcome]], model: Model, *, rounds: int) -> Iterator[Outcome]:
    """Algorithm 1: in each round plan, act and record; then split, train T, train R (all inside `update`).

    `collect(model)` runs the agent once with the current model and returns the new rows and whatever
    the caller wants to see of the round. Yields that after each update.
    """
    if rounds < 1:
        raise CalibrlError(f"rounds {rounds} is not a number of rounds; use 1 or more")
    for _ in range(rounds):
        data, outcome = collect(model)
        model.update(data)
        yield outcome


class Calibrated:
    """A forecaster with a calibration map on top, learnt from rows held out of its training.

    `update` splits the new rows once and for all (step 2), trains the forecaster on one side (3), computes the PITs
    of all rows held out so far under the forecaster as it is now, and refits the map on those (4).
    Calling it gives R∘T (5). Classes (`Categorical`, `Bernoulli`) are recalibrated by a class map, everything else by a
    map of the CDF; counts get randomised PITs from `generator`.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        *,
        split: Split,
        fit_map: FitMap | FitClassMap | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.forecaster = check_forecaster(forecaster)
        self.split = split
        self.fit_map = fit_map
        self.generator = generator or torch.Generator().manual_seed(0)
        self.mapping: Map | ClassMap = IDENTITY
        self.held_out: Data | None = None
        self.seen = SeenRows()

    def update(self, data: Data) -> None:
        """Steps 2 to 4 of Algorithm 1 for new rows."""
        self.seen.add(data)
        train, held = self.split(data)
        if len(train):
            self.forecaster.update(train)
        if self.held_out is not None:
            held = self.held_out + held
        if len(held):
            with torch.no_grad():
                forecast = self.forecaster(held.x)
            evidence = judge(forecast, held.y, self.generator)
            self.mapping = fit_to([evidence], self.fit_map)
            # Kept once they could be judged: rows without a forecast must not spoil every later update.
            self.held_out = held

    def __call__(self, x: Array) -> Honest:
        """R∘T at each row of x."""
        return honest(self.forecaster(as_rows(x)), self.mapping)


class CrossFitted:
    """A forecaster whose map is learnt from K-fold PITs, so that no row is lost to calibration.

    `make` builds a fresh forecaster. One learns from every row; K others each leave out one fold and are tested on it.
    Folds take turns, from update to update too, and a row stays in its fold. `block` consecutive rows share a fold: set
    it to a trajectory's length, or leaks between neighbours will make the forecasts look better than they are.
    """

    def __init__(
        self,
        make: Callable[[], Forecaster],
        *,
        folds: int = 5,
        fit_map: FitMap | FitClassMap | None = None,
        generator: torch.Generator | None = None,
        block: int = 1,
    ) -> None:
        if folds < 2:
            raise CalibrlError(f"folds {folds} cannot hold anything out; use 2 or more")
        if block < 1:
            raise CalibrlError(f"block {block} is not a number of rows; use 1 or more")
        self.forecaster = check_forecaster(make())
        self.judges = [make() for _ in range(folds)]
        if len({id(model) for model in (self.forecaster, *self.judges)}) <= folds:
            raise CalibrlError(
                "make() gave the same forecaster twice, which would judge rows it has learnt; build a new one each time"
            )
        self.fit_map = fit_map
        self.generator = generator or torch.Generator().manual_seed(0)
        self.block = block
        self.mapping: Map | ClassMap = IDENTITY
        self.seen = SeenRows()
        self._folds: list[Data | None] = [None] * folds
        self._blocks = 0

    def update(self, data: Data) -> None:
        """Train all forecasters on their share of the new rows and refit the map on out-of-fold PITs."""
        if not len(data):
            return
        self.seen.add(data)
        folds = len(self.judges)
        blocks = -(-len(data) // self.block)
        pick = (torch.randperm(blocks, generator=self.generator) + self._blocks) % folds
        fold = pick.repeat_interleave(self.block)[: len(data)].to(data.y.device)
        self.forecaster.update(data)
        held = list(self._folds)
        for k, forecaster in enumerate(self.judges):
            if bool((fold != k).any()):
                forecaster.update(data[fold != k])
            if bool((fold == k).any()):
                seen = held[k]
                held[k] = data[fold == k] if seen is None else seen + data[fold == k]
        pairs = [(forecaster, rows) for forecaster, rows in zip(self.judges, held, strict=True) if rows is not None]
        # A single fold is everything there is: whoever leaves it out has learnt nothing.
        if len(pairs) > 1:
            with torch.no_grad():
                evidence = [judge(forecaster(rows.x), rows.y, self.generator) for forecaster, rows in pairs]
            self.mapping = fit_to(evidence, self.fit_map)
        # Kept once they could be judged, as in `Calibrated`.
        self._folds, self._blocks = held, self._blocks + blocks

    def __call__(self, x: Array) -> Honest:
        """R∘T at each row of x."""
        return honest(self.forecaster(as_rows(x)), self.mapping)


class Prequential:
    """A forecaster that is tested on each row before it learns from it: for streams, and for data that drift.

    `forget` in (0, 1] is the factor by which a row's weight shrinks with each newer row: 0.99 looks back about 100
    rows, 1 (the default) weighs all alike. `window` keeps only that many rows. The map is refitted every `refit_every`
    updates.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        *,
        fit_map: FitMap | None = None,
        forget: float = 1.0,
        window: int | None = None,
        refit_every: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0 < forget <= 1:
            raise CalibrlError(f"forget {forget} is not in (0, 1]; 0.99 trusts about the last 100 rows")
        if window is not None and window < 1:
            raise CalibrlError(f"window {window} keeps no rows; use 1 or more, or None for all")
        if refit_every < 1:
            raise CalibrlError(f"refit_every {refit_every} is not a number of updates; use 1 or more")
        self.forecaster = check_forecaster(forecaster)
        self.fit_map: FitMap = fit_map or fit_smooth
        self.forget = forget
        self.window = window
        self.refit_every = refit_every
        self.generator = generator or torch.Generator().manual_seed(0)
        self.mapping: Map = IDENTITY
        self._scores: Tensor | None = None
        self._updates = 0

    def update(self, data: Data) -> None:
        """Test the new rows with the current forecaster, then learn from them, then refit the map."""
        if not len(data):
            return
        with torch.no_grad():
            new = pit_z(check_forecast(self.forecaster(data.x)), data.y, generator=self.generator)
        self.forecaster.update(data)
        scores = new if self._scores is None else torch.cat([self._scores, new])
        self._scores = self._remembered(scores)
        self._updates += 1
        if self._updates % self.refit_every == 0:
            self.mapping = self.fit_map(z=self._scores, weight=self._weights(self._scores))

    def __call__(self, x: Array) -> Honest:
        """R∘T at each row of x."""
        return honest(self.forecaster(as_rows(x)), self.mapping)

    def _remembered(self, scores: Tensor) -> Tensor:
        """The rows in the window, without those that have faded away."""
        scores = scores if self.window is None else scores[-self.window :]
        weight = self._weights(scores)
        if weight is None:
            return scores
        counts = (weight > FADED) & ~scores.isnan()
        return scores[counts.reshape(len(scores), -1).any(-1)]

    def _weights(self, scores: Tensor) -> Tensor | None:
        if self.forget == 1:
            return None
        # Only rows that were seen count as newer: an arm nobody pulls does not fade.
        newer = (~scores.isnan()).double().flip(0).cumsum(0).flip(0) - 1
        return self.forget ** newer.clamp(min=0)


def check_forecaster(model: Forecaster) -> Forecaster:
    """The same, or an error if it cannot learn and answer."""
    if not isinstance(model, Forecaster):
        raise CalibrlError(f"{type(model).__name__} is no forecaster; it must have update(data) and be called with x")
    return model


def check_forecast(forecast: Distribution) -> Distribution:
    """The same, or an error if a forecaster answered with something else than a distribution."""
    if not isinstance(forecast, Distribution):
        raise CalibrlError(
            f"the forecaster answered with {type(forecast).__name__}, not with a distribution; return one of "
            "torch.distributions, for instance Normal(mean, sd)"
        )
    return forecast


def recalibrate(forecast: Distribution, mapping: Map | ClassMap) -> Distribution:
    """R∘F for a CDF, or recalibrated probabilities for classes; the forecast itself under `IDENTITY`."""
    check_forecast(forecast)
    if isinstance(mapping, ClassMap):
        classes = by_column(forecast)
        if not isinstance(classes, (Categorical, Bernoulli)):
            raise CalibrlError(f"a class map cannot recalibrate {type(forecast).__name__}; fit a map on its PITs")
        return recalibrate_classes(classes, mapping)
    # A copied or unpickled IDENTITY is another object.
    if isinstance(mapping, Identity):
        return forecast
    return Recalibrated(forecast, mapping)


def honest(forecast: Distribution, mapping: Map | ClassMap) -> Honest:
    """The same, as a `Recalibrated` under `IDENTITY` too: a wrapper can always be asked for an interval."""
    found = recalibrate(forecast, mapping)
    classes = isinstance(by_column(found), (Categorical, Bernoulli))
    return found if classes or isinstance(found, Recalibrated) else Recalibrated(found, IDENTITY)


Evidence: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""What outcomes said of their forecasts: z-scores (n, …), or class probabilities (n, k) and labels (n,)."""


def judge(forecast: Distribution, y: Tensor, generator: torch.Generator) -> Evidence:
    """What the outcomes y say of the forecast."""
    forecast = by_column(check_forecast(forecast))
    if isinstance(forecast, (Categorical, Bernoulli)):
        return class_rows(forecast, y)
    return pit_z(forecast, y, generator=generator)


def fit_to(evidence: Sequence[Evidence], fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
    """The map learnt from all the evidence; `fit_smooth`, or `fit_temperature` for classes, if none is named."""
    if isinstance(evidence[0], tuple):
        probs = torch.cat([part[0] for part in evidence])
        label = torch.cat([part[1] for part in evidence])
        if int((~label.isnan()).sum()) < 2:
            return Unchanged(note="fewer than two outcomes: left unchanged")
        fit_classes = cast(FitClassMap, fit_map or fit_temperature)
        return fit_classes(probs, label)
    fit = cast(FitMap, fit_map or fit_smooth)
    return fit(z=torch.cat([part for part in evidence if isinstance(part, Tensor)]))

"""Algorithm 1 of the paper: wrap any forecaster so that it plans with R∘T instead of T."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from calibrl.arrays import Array, as_rows
from calibrl.data import Data, SeenRows, random_split
from calibrl.distributions import Recalibrated, pit_z
from calibrl.distributions.kinds import by_column, class_rows
from calibrl.distributions.recalibrated import Guarantee
from calibrl.errors import CalibrlError, check_count
from calibrl.evidence import Evidence, HeldOut, Judged, Scores, fit_to
from calibrl.guarantees import ByFolds, ByMisses
from calibrl.maps import IDENTITY, FitMap, Identity, Map
from calibrl.maps.classes import ClassMap, FitClassMap, recalibrate_classes

Outcome = TypeVar("Outcome")
Model = TypeVar("Model", bound="Learner")


class Learner(Protocol):
    """What `learn` needs of a model."""

    def update(self, data: Data, /) -> None:
        """Learn from rows not seen before."""


@runtime_checkable
class Forecaster(Protocol):
    """T: learns from new rows, and forecasts a distribution for each query."""

    def update(self, data: Data) -> None:
        """Learn from rows not seen before."""

    def __call__(self, x: Tensor) -> Distribution:
        """The forecast for each row of x, of batch shape (n, d) or (n,)."""


@runtime_checkable
class Retrainable(Protocol):
    """A forecaster that can be told which rows to train on, as `Resplit` evidence needs."""

    def retrain(self, data: Data) -> None:
        """Train on these rows, and on none of those of earlier updates that are not among them."""


@runtime_checkable
class Rescaled(Protocol):
    """A forecaster that looks at the held-out rows' inputs before it is judged on them: see control's `released`."""

    def rescale(self, held: Data) -> None:
        """Take the scale of inputs from these rows, until the next training."""


Judge: TypeAlias = Callable[[Forecaster, Data, torch.Generator], Scores]
"""(T, rows, generator of randomised PITs) → what the rows say of T's forecasts, with T's agent axis if it has one."""


def learn(collect: Callable[[Model], tuple[Data, Outcome]], model: Model, *, rounds: int) -> Iterator[Outcome]:
    """Algorithm 1: in each round plan, act and record; then split, train T, train R (all inside `update`).

    Parameters
    ----------
    collect : function of the model
        Runs the agent once with the current model; returns the new rows, and whatever is to be seen of the round.
    model : Forecaster
        Calibrated or not.
    rounds : int
        How often.

    Yields
    ------
    What `collect` had to show, after each update.

    Examples
    --------
    >>> class Mean:
    ...     mean = torch.zeros(1)
    ...
    ...     def update(self, data):
    ...         self.mean = data.y.mean(0)
    ...
    ...     def __call__(self, x):
    ...         return torch.distributions.Normal(self.mean.expand(len(x), 1), 1.0)
    >>> def collect(model):
    ...     expected = round(abs(float(model(torch.zeros(1, 1)).mean)), 1)
    ...     return Data(torch.zeros(20, 1), 3 * torch.ones(20, 1)), expected
    >>> list(learn(collect, Calibrated(Mean()), rounds=2))
    [0.0, 3.0]
    """
    for _ in range(check_count("rounds", rounds)):
        data, outcome = collect(model)
        model.update(data)
        yield outcome


def judge_rows(forecaster: Forecaster, data: Data, generator: torch.Generator) -> Scores:
    """What rows say of T's forecasts: the `judge` of `Calibrated`, unless it is given another."""
    with torch.no_grad():
        return judge(forecaster(data.x), data.y, generator)


class Calibrated:
    """A forecaster with a calibration map on top: R∘T, learnt as Algorithm 1 has it.

    Classes (`Categorical`, `Bernoulli`) are recalibrated by a class map, everything else by a map of the CDF.

    Parameters
    ----------
    forecaster : Forecaster
        T. With an agent axis (rows of `Data` with one) it is g forecasters side by side, each with an R of its own.
    evidence : Evidence, or one for each agent
        What R is fitted on: `HeldOut` rows (the default: a random fifth of each update's), `Rolling` ones, …
    fit_map : function, or one for each agent
        Fits R: any `fit_*`; by default `fit_smooth`, for classes `fit_temperature`.
    judge : function, optional
        What rows say of T's forecasts, if not their PITs.
    generator : torch.Generator, optional
        Draws the randomised PITs of counts.
    remember : bool
        Keep the rows T trains on too, in `rows`.

    Attributes
    ----------
    maps, mapping : list of Map or ClassMap; the first of them
        R of each agent, the identity before there is evidence.
    rows, held, came : Data, Tensor (n,) bool, Tensor (n,) int64, or with an agent axis (g, n)
        The rows that are kept, which of them are held out, and in which update each came, counted from 0.
    updates : int
        How often it has learnt.

    Examples
    --------
    >>> from calibrl.evidence import Rolling
    >>> class Half:  # a forecaster of half the spread
    ...     def update(self, data): ...
    ...
    ...     def __call__(self, x):
    ...         return torch.distributions.Normal(torch.zeros(len(x)), 0.5)
    >>> y = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    >>> for evidence in (HeldOut(random_split(0.5, torch.Generator())), Rolling(window=1000)):
    ...     model = Calibrated(Half(), evidence=evidence)
    ...     model.update(Data(torch.zeros(2000, 1), y))
    ...     print(round(float(model(torch.zeros(1, 1)).stddev), 1))
    1.0
    1.0
    """

    def __init__(
        self,
        forecaster: Forecaster,
        *,
        evidence: Evidence | Sequence[Evidence] | None = None,
        fit_map: FitMap | FitClassMap | Sequence[FitMap] | None = None,
        judge: Judge = judge_rows,
        generator: torch.Generator | None = None,
        remember: bool = False,
    ) -> None:
        self.forecaster = check_forecaster(forecaster)
        evidence = evidence or HeldOut(random_split(0.2, torch.Generator().manual_seed(0)))
        self.evidence = (evidence,) if isinstance(evidence, Evidence) else tuple(evidence)
        self.fit_map = tuple(fit_map) if isinstance(fit_map, Sequence) else (fit_map,) * len(self.evidence)
        self.judge = judge
        self.generator = generator or torch.Generator().manual_seed(0)
        self.remember = remember or any(one.redraws for one in self.evidence)
        self.maps: list[Map | ClassMap] = [IDENTITY] * len(self.evidence)
        self.rows: Data | None = None
        self.held = self.came = torch.zeros(0)
        self.updates = 0
        self.seen = SeenRows()

    def update(self, data: Data) -> None:
        """Steps 2 to 4 of Algorithm 1 for new rows: split, train T, train R."""
        if not len(data):
            return
        agents = data.by_agent()
        if len(agents) != len(self.evidence):
            raise CalibrlError(f"rows of {len(agents)} agents for evidence of {len(self.evidence)}; give one for each")
        judges_held = any(one.judges_held for one in self.evidence)
        if judges_held:
            self.seen.add(data)

        # Some evidence is what T said of the new rows before it learnt them.
        asked = [one.judges_new(self.updates) for one in self.evidence]
        new = self._judge(data) if any(asked) else [None] * len(agents)

        # 2. Split: which rows T goes without.
        sides = [one.split(rows) for one, rows in zip(self.evidence, agents, strict=True)]
        held = sides[0] if data.agents is None else torch.stack(sides)
        rows, all_held, came = self._with(data, held)

        # 3. Train T.
        if any(one.redraws for one in self.evidence):
            self._retrain(rows[~all_held])
        elif not bool(held.all()):
            self.forecaster.update(data[~held])

        # 4. Train R on what the rows say of T.
        kept, age = rows[all_held], self.updates - _masked(came, all_held)
        if isinstance(self.forecaster, Rescaled) and len(kept):
            self.forecaster.rescale(kept)
        told = self._judge(kept) if judges_held and len(kept) else [None] * len(agents)
        ages, ends = [age] if data.agents is None else age, [one.last for one in agents]
        said = zip(asked, new, told, kept.by_agent(), ages, ends, strict=True)
        judged = [Judged(early if wanted else None, *rest) for wanted, early, *rest in said]
        parts = zip(self.evidence, judged, self.maps, self.fit_map, strict=True)
        self.maps = [one.fit(rows_said, mapping, fit) for one, rows_said, mapping, fit in parts]
        # Kept once they could be judged: rows without a forecast must not spoil every later update.
        if self.remember or judges_held:
            self.rows, self.held, self.came = rows, all_held, came
        self.updates += 1

    def __call__(self, x: Array) -> Recalibrated | Categorical | Bernoulli:
        """R∘T at each row of x (n, …): a `Recalibrated`, before the first map too; for classes of their own kind."""
        if len(self.maps) > 1:
            raise CalibrlError(f"{len(self.maps)} agents give no single forecast; recalibrate(forecast, maps[agent])")
        record = self.evidence[0].adaptive
        return honest(self.forecaster(as_rows(x)), self.mapping, None if record is None else ByMisses(record))

    @property
    def mapping(self) -> Map | ClassMap:
        """R, of the first agent if there are several."""
        return self.maps[0]

    @property
    def held_out(self) -> Data | None:
        """All rows that T has not trained on; None if there are none."""
        return None if self.rows is None else self.rows[self.held]

    def _with(self, data: Data, held: Tensor) -> tuple[Data, Tensor, Tensor]:
        """The rows kept so far and the new ones, which of them are held out, and in which update each came."""
        came = torch.full(held.shape, self.updates)
        if not self.remember:
            data, came, held = data[held], _masked(came, held), _masked(held, held)
        if self.rows is not None:
            data = self.rows + data
            held, came = torch.cat([self.held, held], -1), torch.cat([self.came, came], -1)
        if self.remember:
            sides = [
                one.redraw(own) for one, own in zip(self.evidence, held.reshape(len(self.evidence), -1), strict=True)
            ]
            held = torch.stack(sides).reshape(held.shape)
        return data, held, came

    def _retrain(self, data: Data) -> None:
        if not isinstance(self.forecaster, Retrainable):
            raise CalibrlError(
                f"{type(self.forecaster).__name__} cannot train on rows that change sides; give it a method "
                "retrain(data), or hold rows out once and for all: evidence=HeldOut(…)"
            )
        self.forecaster.retrain(data)

    def _judge(self, data: Data) -> Sequence[Scores | None]:
        """What rows say of each agent's forecasts: one question to T for all agents."""
        scores = self.judge(self.forecaster, data, self.generator)
        if data.agents is None:
            return [scores]
        if not isinstance(scores, Tensor):
            raise CalibrlError("agents side by side cannot forecast classes; wrap each in a Calibrated of its own")
        return scores.unbind(0)


class CrossFitted:
    """A forecaster whose map is learnt from K-fold PITs, so that no row is lost to calibration.

    One forecaster learns from every row; K others each leave out one fold and are tested on it. Folds take turns, from
    update to update too, and a row stays in its fold.

    Parameters
    ----------
    make : function of no arguments
        Builds a fresh forecaster.
    folds : int
        K, 2 or more.
    fit_map : function, optional
        Fits R: any `fit_*`; by default `fit_smooth`, for classes `fit_temperature`.
    generator : torch.Generator, optional
        Deals rows to folds and draws the randomised PITs of counts.
    block : int
        So many consecutive rows share a fold: set it to a trajectory's length, or leaks between neighbours will make
        the forecasts look better than they are.

    Attributes
    ----------
    mapping : Map or ClassMap
        R, the identity before there are two folds.
    forecaster, judges : Forecaster, list of Forecaster
        The one that has learnt every row, and the K that have not.

    Examples
    --------
    >>> class Half:  # a forecaster of half the spread
    ...     def update(self, data): ...
    ...
    ...     def __call__(self, x):
    ...         return torch.distributions.Normal(torch.zeros(len(x)), 0.5)
    >>> model = CrossFitted(Half, folds=5)
    >>> y = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    >>> model.update(Data(torch.zeros(2000, 1), y))
    >>> round(float(model(torch.zeros(1, 1)).stddev), 1)
    1.0
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
        self.forecaster = check_forecaster(make())
        self.judges = [make() for _ in range(check_count("folds", folds, "cannot hold anything out", least=2))]
        if len({id(model) for model in (self.forecaster, *self.judges)}) <= folds:
            raise CalibrlError(
                "make() gave the same forecaster twice, which would judge rows it has learnt; build a new one each time"
            )
        self.fit_map = fit_map
        self.generator = generator or torch.Generator().manual_seed(0)
        self.block = check_count("block", block)
        self.mapping: Map | ClassMap = IDENTITY
        self.seen = SeenRows()
        self._folds: list[Data | None] = [None] * folds
        self._judged: list[tuple[Forecaster, Tensor]] = []
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
            scores = [judge_rows(*pair, self.generator) for pair in pairs]
            mapping = fit_to(scores, self.fit_map)
            self.mapping = mapping.unpromised(ByFolds.BARE) if isinstance(mapping, Map) else mapping
            self._judged = [
                (forecaster, score.reshape(len(score), -1).sort(0).values)
                for (forecaster, _), score in zip(pairs, scores, strict=True)
                if isinstance(score, Tensor)
            ]
        # Kept once they could be judged, as in `Calibrated`.
        self._folds, self._blocks = held, self._blocks + blocks

    def __call__(self, x: Array) -> Recalibrated | Categorical | Bernoulli:
        """R∘T at each row of x (n, …): a `Recalibrated`, before the first map too; for classes of their own kind."""
        rows = as_rows(x)
        known = self._blocks
        by_folds = ByFolds(self._judged, rows, lambda: self._blocks != known)
        return honest(self.forecaster(rows), self.mapping, by_folds)


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
    """Correct a forecast by a map: R∘F for a CDF, recalibrated probabilities for classes.

    Parameters
    ----------
    forecast : Distribution of batch shape (…, *columns)
        What T says.
    mapping : Map or ClassMap
        R, of as many columns as the forecast, or one for all.

    Returns
    -------
    Distribution
        A `Recalibrated`, a `Categorical` or a `Bernoulli`; the forecast itself under `IDENTITY`.
    """
    check_forecast(forecast)
    if isinstance(mapping, ClassMap):
        classes = by_column(forecast)
        if not isinstance(classes, (Categorical, Bernoulli)):
            raise CalibrlError(f"a class map cannot recalibrate {type(forecast).__name__}; fit a map on its PITs")
        return recalibrate_classes(classes, mapping)
    if not isinstance(mapping, Map):
        raise CalibrlError(f"{type(mapping).__name__} is no map; fit one first, like fit_smooth(cal.pit(forecast, y))")
    # A copied or unpickled IDENTITY is another object.
    if isinstance(mapping, Identity):
        return forecast
    return Recalibrated(forecast, mapping)


def honest(
    forecast: Distribution, mapping: Map | ClassMap, guarantee: Guarantee | None = None
) -> Recalibrated | Categorical | Bernoulli:
    """R∘T as a `Recalibrated` under `IDENTITY` too, so that a wrapper can always be asked for an interval."""
    found = recalibrate(forecast, mapping)
    classes = by_column(found)
    if isinstance(classes, (Categorical, Bernoulli)):
        return classes
    return Recalibrated(forecast, mapping if isinstance(mapping, Map) else IDENTITY, guarantee)


def judge(forecast: Distribution, y: Tensor, generator: torch.Generator) -> Scores:
    """What outcomes say of their forecasts.

    Parameters
    ----------
    forecast : Distribution of batch shape (n, d) or (n,)
        One forecast for each row.
    y : Tensor (n, d) or (n,)
        The outcomes, NaN where not observed.
    generator : torch.Generator
        Places the outcomes of counts within their mass.

    Returns
    -------
    Scores
        Z-scores Φ⁻¹(F(y)) of the shape of y; for classes their probabilities (n, k) and labels (n,).
    """
    forecast = by_column(check_forecast(forecast))
    if isinstance(forecast, (Categorical, Bernoulli)):
        return class_rows(forecast, y)
    return pit_z(forecast, y, generator=generator)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    """Values (n,) where the mask says so; of agents, (g, n), as many for each: (g, m)."""
    return values[mask].reshape(*mask.shape[:-1], -1 if mask.dim() == 1 else int(mask[0].sum()))

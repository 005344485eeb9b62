"""What the map R of Algorithm 1 is fitted on: rows that T never trains on, or rows judged before it does.

A kind of evidence answers three questions for `calibrl.Calibrated`: which new rows T may not train on (`split`), when
forecasts are judged (`judges_new`: before T learns the new rows; `judges_held`: held-out rows, by T as it is now),
and which map follows from what the outcomes said (`fit`).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.data import Data, Split
from calibrl.errors import CalibrlError, check_count, check_within
from calibrl.kernels import adaptive, normal
from calibrl.maps import Affine, Chain, FitMap, Map, fit_smooth
from calibrl.maps.base import WeightedRanks, percent
from calibrl.maps.classes import ClassMap, FitClassMap, Unchanged, fit_temperature
from calibrl.maps.columns import with_belief

Floats: TypeAlias = NDArray[np.float64]

Scores: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""What outcomes say of their forecasts: z-scores (n, …), or class probabilities (n, k) and labels (n,)."""

FOLLOWED = 100_000
"""Rows whose misses are remembered; then half are forgotten, so that a service does not grow for ever."""

FADED = 1e-6
"""Rows of less weight, beside the newest, are forgotten for good."""


@dataclass(frozen=True, eq=False)
class Judged:
    """What rows said of the forecasts of T, when R is to be fitted.

    new: of the new rows, judged before T learnt them; held: of the rows held out so far, judged by T as it is now;
    rows, age: those rows, and (m,) how many updates ago each came; last: after which new rows another trajectory begins
    (`Data.last`). None where nobody asked, or there are none.
    """

    new: Scores | None = None
    held: Scores | None = None
    rows: Data | None = None
    age: Tensor | None = None
    last: Tensor | None = None


class Adaptive:
    """The guarantee of forecasts that come one after another: adaptive conformal inference, whatever the outcomes do.

    Each row's z-score under R∘T as it was forecast is kept, batch after batch. A bound lies where following the misses
    of all those before it leads: `calibrl.kernels.adaptive`.
    """

    def __init__(self) -> None:
        self._batches: list[Floats] = []
        self._followed: dict[tuple[float, bool, int], tuple[int, Floats]] = {}

    def add(self, z: Tensor) -> None:
        """Remember what a batch of outcomes said, z-scores (n, …) under R∘T as it was when they were forecast."""
        self._batches.append(z.detach().cpu().double().numpy().reshape(len(z), -1))
        # Of small batches only now and then: counting the rows takes longer than following them.
        if (len(z) > 99 or len(self._batches) % 100 == 0) and sum(map(len, self._batches)) > FOLLOWED:
            gone = len(self._batches) // 2
            self._batches = self._batches[gone:]
            # Bounds that followed the misses that are forgotten go on from there.
            self._followed = {of: (done - gone, at) for of, (done, at) in self._followed.items() if done >= gone}

    def bounds_z(self, low: float, high: float, confidence: float | None = None) -> tuple[Tensor, Tensor]:
        """Calibrated z-scores, (d,) each, to bound the next outcomes by: in the long run those tails lie beyond."""
        self._refuse(confidence)
        columns = self._batches[-1].shape[1] if self._batches else 1
        ends = [[self._bound(tail, upper, k) for k in range(columns)] for tail, upper in ((low, False), (high, True))]
        lowest, highest = (torch.tensor(end, dtype=torch.float64) for end in ends)
        return torch.minimum(-lowest, highest), torch.maximum(-lowest, highest)

    def promise(self, low: float, high: float, confidence: float | None = None) -> str:
        """What is promised, in words."""
        self._refuse(confidence)
        return (
            f"In the long run such intervals hold {percent(1 - low - high)} of outcomes, whatever these do, drift "
            "included, if each is asked for before its update and updates bring about as many rows (adaptive conformal "
            "inference). Nothing is promised of the next one, nor of a short stretch."
        )

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, as tensors."""
        return {"batches": [torch.from_numpy(batch) for batch in self._batches]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember what another did."""
        self._batches, self._followed = [batch.numpy() for batch in state["batches"]], {}

    def _bound(self, tail: float, upper: bool, column: int) -> float:
        if tail == 0:
            return math.inf
        done, state = self._followed.get((tail, upper, column), (0, adaptive.start(tail)))
        if done < len(self._batches):
            new = [batch[:, column][~np.isnan(batch[:, column])] for batch in self._batches[done:]]
            z, ends = np.concatenate(new), np.cumsum([len(batch) for batch in new])
            state = adaptive.follow(z if upper else -z, ends, tail, state)
            self._followed[tail, upper, column] = len(self._batches), state
        return adaptive.bound_now(state)

    def _refuse(self, confidence: float | None) -> None:
        if confidence is not None:
            raise CalibrlError("rows that follow one another have no tolerance bound; hold some out: HeldOut(…)")


class Expected(NamedTuple):
    """What of the next error is expected, in k parts, (…, k, d), and their covariance given all seen, (…, k, k, d)."""

    mean: Tensor
    doubt: Tensor


@dataclass(frozen=True, eq=False)
class Lasting:
    """How errors go on along a trajectory, column by column, in recalibrated z-scores.

    An error is the sum of what was expected, in k parts, and something new: z = Σ mᵢ + σ ε. Some of both is expected at
    the next step: mᵢ' = ρᵢ (mᵢ + Kᵢ σ ε). A part with ρ near 1 stays wrong for a whole episode, like a wind that nobody
    sees; one with a smaller ρ passes. This is a Kalman filter. What came before an episode is not known, which makes
    forecasts of its first steps wider.

    Parameters
    ----------
    kept, gain : Tensor (…, k, d)
        ρ in [0, 1) and K in [0, 1] of each part.
    spread : Tensor (…, d)
        σ. Where every K is 0 and σ is 1, errors are independent, N(0, 1).
    """

    kept: Tensor
    gain: Tensor
    spread: Tensor

    def unknown(self) -> Expected:
        """What is expected where nothing was seen."""
        carried = self.kept * self.gain * self.spread[..., None, :]
        return Expected(torch.zeros_like(self.kept), _pairs(carried) / (1 - _pairs(self.kept)))

    def seen(self, before: Expected, z: Tensor) -> Expected:
        """What is expected once an error z (…, d) was seen; where it is NaN, what was expected before."""
        share, doubt = self._learnt(before.doubt)
        mean = self.kept * (before.mean + share * (z - before.mean.sum(-2))[..., None, :])
        nothing = z.isnan()[..., None, :]
        return Expected(before.mean.where(nothing, mean), before.doubt.where(nothing[..., None, :], doubt))

    def ahead(self, doubt: Tensor, steps: int, *, answered: bool = False) -> Tensor:
        """How to draw errors of so many steps from N(0, 1), where the first one's doubt (…, k, k, d) is known.

        Parameters
        ----------
        doubt, steps
            Of the first error, and how many.
        answered : bool
            Whether somebody sees each error and answers it, so that nothing new goes on, only what is expected now:
            what a plan is worth to those who plan again at every step. Without, what comes of actions fixed beforehand.

        Returns
        -------
        Tensor (…, steps, 1 + 2 k, d), answered (…, steps, 1 + k, d)
            Of each step a, then bᵢ, then cᵢ: the error is Σ mᵢ + a ε, and mᵢ' = bᵢ ε + cᵢ mᵢ. Answered: a, then what
            is left of each part: the error is Σ cᵢ mᵢ + a ε, where mᵢ stays what it was at first.
        """
        found, left = [], torch.ones_like(self.kept)
        for _ in range(steps):
            spread, share, doubt = self.next(doubt)
            rest = [left] if answered else [self.kept * share * spread, self.kept]
            found.append(torch.cat([spread, *(part.expand_as(share) for part in rest)], -2))
            left = left * self.kept
        return torch.stack(found, -3)

    def next(self, doubt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How wide an error of a doubt (…, k, k, d) is, (…, 1, d); the share kept, (…, k, d); the next doubt."""
        spread = (doubt.sum((-3, -2)) + self.spread.square()).sqrt()[..., None, :]
        return spread, *self._learnt(doubt)

    def _learnt(self, doubt: Tensor) -> tuple[Tensor, Tensor]:
        """The share of a surprise that is expected to go on in each part, and the doubt of the next step."""
        new, with_error = self.spread.square()[..., None, :], doubt.sum(-2)
        surprise = with_error.sum(-2, keepdim=True) + new
        share = (with_error + self.gain * new) / surprise
        left = doubt + _pairs(self.gain) * new[..., None, :] - _pairs(share) * surprise[..., None, :]
        return share, _pairs(self.kept) * left


class Outlook:
    """What `Lasting.ahead` gives, answered, for one step of a trajectory after another.

    Doubt does not depend on what is seen. What came second for one step comes first for the next, so that only the
    last is worked out anew.

    Parameters
    ----------
    lasting, steps
        How errors go on, and how many steps to look ahead.
    """

    def __init__(self, lasting: Lasting, steps: int) -> None:
        self.lasting, self.steps = lasting, steps
        self._known: deque[tuple[Tensor, Tensor, Tensor]] = deque()
        powers = itertools.accumulate([lasting.kept] * (steps - 1), torch.mul, initial=torch.ones_like(lasting.kept))
        self._left = torch.stack(list(powers), -3)

    def __call__(self, doubt: Tensor) -> Tensor:
        """Where the first error's doubt (…, k, k, d) is known: (…, steps, 1 + k, d)."""
        known = self._known
        while known and not torch.equal(known[0][0], doubt):
            known.popleft()
        while len(known) < self.steps:
            now = known[-1][2] if known else doubt.clone()  # what is given may be a buffer that will be written over
            spread, _, after = self.lasting.next(now)
            known.append((now, spread, after))
        spreads = torch.stack([spread for _, spread, _ in known], -3)
        return torch.cat([spreads, self._left.expand(*spreads.shape[:-2], -1, -1)], -2)


def _pairs(parts: Tensor) -> Tensor:
    """Products (…, k, k, d) of each two of k parts (…, k, d)."""
    return parts[..., :, None, :] * parts[..., None, :, :]


class Evidence(ABC):
    """What R is fitted on. One object serves one forecaster: it may remember what it saw."""

    judges_held = False
    """Whether rows held out are judged after T was trained."""
    redraws = False
    """Whether rows change sides: T is then trained anew on all rows of its side."""
    lasting: Lasting | None = None
    """How errors go on along a trajectory: see `Trajectory`. None: they are independent."""
    adaptive: Adaptive | None = None
    """What is promised of forecasts that come one after another, of evidence that is judged so."""
    _split: Split | None = None

    def judges_new(self, updates: int) -> bool:
        """Whether new rows are judged before T learns them, after so many updates."""
        return False

    def split(self, data: Data) -> Tensor:
        """Step 2 of Algorithm 1: which of n new rows T may not train on, (n,) bool.

        Where it was not told how to split: all if held-out rows are judged, otherwise none.
        """
        return torch.full((len(data),), self.judges_held) if self._split is None else self._split(data)

    def redraw(self, held: Tensor) -> Tensor:
        """Which of all rows so far, held out as (n,) bool says, are held out from now on."""
        return held

    @abstractmethod
    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        """Step 4: the new map, where `mapping` was the one before."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers beside the rows, as tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember what another of its kind did."""


class Uncalibrated(Evidence):
    """No evidence: R stays the identity. For comparisons in which T trains on what it would if there were a map.

    Parameters
    ----------
    split : Split, optional
        Rows that T goes without all the same. By default it trains on all.
    """

    def __init__(self, split: Split | None = None) -> None:
        self._split = split

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        return mapping


class HeldOut(Evidence):
    """Rows that T never trains on: each new row picks its side once and for all, as Algorithm 1 has it.

    All rows held out so far are judged again by T as it is now, and R is fitted on those.

    Parameters
    ----------
    split : Split, optional
        Which new rows are held out: `random_split`, `last_split` or `exact_split`. Without one all are: for a T that
        has been trained already.
    forget : float
        The factor in (0, 1] by which a row's weight shrinks with each later update; 1 weighs all alike.
    """

    judges_held = True

    def __init__(self, split: Split | None = None, *, forget: float = 1.0) -> None:
        self._split = split
        self.forget = _check_forget(forget, "updates")

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        if judged.held is None or judged.age is None:
            return mapping
        return fit_to([judged.held], fit_map, weight=_faded(self.forget, judged.age, judged.held))


class Resplit(Evidence):
    """Held-out rows that change places after every update, as the code released with the paper has it.

    The same share of rows is held out, but T has seen most of them before: the forecasts look better than they are.
    For replication. T must be able to train anew on rows of our choice: see `calibrl.algorithm.Retrainable`.

    Parameters
    ----------
    split : Split
        Which new rows are held out at first.
    generator : torch.Generator
        Deals the places anew.
    """

    judges_held = True
    redraws = True

    def __init__(self, split: Split, *, generator: torch.Generator) -> None:
        self._split = split
        self.generator = generator

    def redraw(self, held: Tensor) -> Tensor:
        return held[torch.randperm(len(held), generator=self.generator)]

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        if judged.held is None:
            return mapping
        return _unpromised(
            fit_to([judged.held], fit_map),
            "rows changed sides, so the forecaster has trained on rows of the map: no interval is guaranteed; "
            "hold rows out once and for all: evidence=HeldOut(…)",
        )


class _InTurn(Evidence, ABC):
    """Rows that are judged before T learns them, update after update; T trains on all rows."""

    scores: Any
    """What is remembered of past rows."""

    def __init__(self, forget: float, refit_every: int) -> None:
        self.forget = forget
        self.refit_every = check_count("refit_every", refit_every)
        self.adaptive = self._record = Adaptive()
        self._updates = 0

    def judges_new(self, updates: int) -> bool:
        return True

    def _follow(self, mapping: Map | ClassMap, scores: Scores) -> None:
        """Count an update, and what its rows said of the forecasts as they were; classes have no intervals."""
        if isinstance(mapping, Map) and isinstance(scores, Tensor):
            self._record.add(mapping.forward_z(scores))
        self._updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self.scores, "updates": self._updates, "adaptive": self._record.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores, self._updates = state["scores"], state["updates"]
        self._record.load_state_dict(state.get("adaptive", {"batches": []}))  # earlier checkpoints have none


class Rolling(_InTurn):
    """Each row is judged before T learns it (prequential): for streams, and for data that drift. T trains on all rows.

    T must be able to forecast from the start: train it on something first.

    Parameters
    ----------
    window : int, optional
        Keeps only the evidence of so many rows.
    forget : float
        The factor in (0, 1] by which a row's weight shrinks with each newer row of the same column: 0.99 looks back
        about 100 rows, 1 weighs all alike.
    refit_every : int
        R is fitted again after so many updates.
    """

    def __init__(self, window: int | None = None, *, forget: float = 1.0, refit_every: int = 1) -> None:
        super().__init__(_check_forget(forget, "rows"), refit_every)
        self.window = None if window is None else check_count("window", window, "keeps no rows")
        self.scores: Scores | None = None

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        assert judged.new is not None
        self._follow(mapping, judged.new)
        self.scores = self._remembered(judged.new if self.scores is None else _joined([self.scores, judged.new]))
        if self._updates % self.refit_every:
            return mapping
        return _unpromised(fit_to([self.scores], fit_map, weight=self.weights(self.scores)), IN_TURN)

    def weights(self, scores: Scores) -> Tensor | None:
        """The weight of each z-score, of the shape of `scores`, or of each label; None if all weigh alike."""
        if self.forget == 1:
            return None
        # Only rows that were seen count as newer: an arm nobody pulls does not fade.
        newer = (~outcomes_of(scores).isnan()).double().flip(0).cumsum(0).flip(0) - 1
        return self.forget ** newer.clamp(min=0)

    def _remembered(self, scores: Scores) -> Scores:
        """The rows in the window, without those that have faded away."""
        if self.window is not None:
            scores = take(scores, slice(-self.window, None))
        weight = self.weights(scores)
        if weight is None:
            return scores
        counts = ((weight > FADED) & ~outcomes_of(scores).isnan()).reshape(len(weight), -1).any(-1)
        return take(scores, counts)


class Newest(_InTurn):
    """The rows of the last updates, each judged before T learnt it. T trains on all rows.

    Like `Rolling`, but counted in updates (trials, evenings) instead of rows.

    Parameters
    ----------
    updates : int, optional
        Keeps the evidence of so many updates; None keeps all.
    forget : float
        The factor in (0, 1] by which a row's weight shrinks with each later update.
    refit_every : int
        R is fitted again after so many updates.
    warm_up : int
        So many updates give evidence before the one at which R is fitted for the first time.
    taught : bool
        Whether T can forecast before its first update. Otherwise the rows of the first update are not judged.
    """

    def __init__(
        self,
        updates: int | None = None,
        *,
        forget: float = 1.0,
        refit_every: int = 1,
        warm_up: int = 0,
        taught: bool = False,
    ) -> None:
        super().__init__(_check_forget(forget, "updates"), refit_every)
        self.updates = None if updates is None else check_count("updates", updates, "keeps no rows")
        self.warm_up, self.taught = warm_up, taught
        self.scores: list[Scores] = []

    def judges_new(self, updates: int) -> bool:
        return self.taught or updates > 0

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        if judged.new is None:
            return mapping
        self._follow(mapping, judged.new)
        self.scores = [*self.scores, judged.new][-(self.updates or 0) :]
        due = self._updates - 1 - self.warm_up
        if due < 0 or due % self.refit_every:
            return mapping
        newest_first = self.scores[::-1]
        age = torch.cat([torch.full((len(outcomes_of(part)),), age) for age, part in enumerate(newest_first)])
        scores = _joined(newest_first)
        return _unpromised(fit_to([scores], fit_map, weight=_faded(self.forget, age, scores)), IN_TURN)


class _Around(Evidence, ABC):
    """What adds something to another kind of evidence, and leaves to it what R is fitted on."""

    def __init__(self, evidence: Evidence, forget: float) -> None:
        self.evidence = evidence
        self.forget = _check_forget(forget, "updates")
        self.judges_held, self.redraws = evidence.judges_held, evidence.redraws

    def judges_new(self, updates: int) -> bool:
        return updates > 0 or self.evidence.judges_new(updates)

    def split(self, data: Data) -> Tensor:
        return self.evidence.split(data)

    def redraw(self, held: Tensor) -> Tensor:
        return self.evidence.redraw(held)


class Wary(_Around):
    """Widens forecasts where new rows lay further out than another kind of evidence had promised.

    For agents that go where their model is worse than on the rows it holds out. Each update's new rows are judged
    before T learns them. Their surprise is the mean square of what should be N(0, 1), so it should be 1. Where past
    surprises average more, newer ones weighing more, R is widened by the root of that average, and never narrowed.
    Columns that R knows nothing of are left alone.

    Parameters
    ----------
    evidence : Evidence
        What R is fitted on in the first place.
    forget : float
        The factor in (0, 1] by which a surprise's weight shrinks with each later one.
    """

    def __init__(self, evidence: Evidence, *, forget: float = 1.0) -> None:
        super().__init__(evidence, forget)
        self.surprises = torch.zeros(0, dtype=torch.float64)

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        if judged.new is not None:
            found = surprise(_cdf_map(mapping), _continuous(judged.new), self.allowance)
            self.surprises = torch.cat([self.surprises, found[None]])
        return widened(_cdf_map(self.evidence.fit(judged, mapping, fit_map)), self.allowance).unpromised(
            "forecasts are widened when new rows lie further out than held-out ones promised: no interval is "
            "guaranteed; hold rows out without Wary: evidence=HeldOut(…)"
        )

    @property
    def allowance(self) -> Tensor:
        """By how much forecasts are widened, at least 1."""
        if not len(self.surprises):
            return torch.ones((), dtype=torch.float64)
        weight = self.forget ** torch.arange(len(self.surprises)).flip(0).double()
        mean = weight @ self.surprises / weight.sum()
        return torch.where(mean > 1, mean.sqrt(), 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"surprises": self.surprises, "evidence": self.evidence.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.surprises = state["surprises"]
        self.evidence.load_state_dict(state["evidence"])


def _ways() -> Lasting:
    """Ways in which errors may go on, (c, 1, 2, 1): in a part that lasts and one that passes; the first, not at all."""
    grid = ([0.0, 0.05, 0.1, 0.2], [0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98], [0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    slow, kept, gain = torch.cartesian_prod(*(torch.tensor(part).double() for part in grid)).unbind(1)
    both = [(torch.full_like(kept, 0.99), kept), (slow, (1 - slow) * gain)]
    kept, gain = (torch.stack(parts, 1)[:, None, :, None] for parts in both)
    return Lasting(kept, gain, torch.ones(1).double())


class Trajectory(_Around):
    """Also learns how errors go on from step to step: for forecasts many steps ahead, each made from the one before.

    Steps that are calibrated one by one do not add up to a calibrated future, if real errors go on in one direction
    while imagined ones are drawn afresh. Here imagined errors go on as real ones do, starting from those just seen: see
    `Lasting`. They have two parts, one that lasts (ρ = 0.99) and one that passes.

    The rows of an update are in order of time: one trajectory, or several, whose last rows `Data.last` names. They are
    judged before T learns them. Their recalibrated z-scores, cut off at ±6, say which ρ and K would have forecast them
    best, column by column, averaged with what is best for all; σ is how large the rest was. Newer trajectories weigh
    more, and `PRIOR_ROWS` rows speak for a single part with ρ = ½.

    Where several networks are judged one by one, because each imagines futures of its own, these are apart without any
    noise, by as much as the networks disagree. σ is then what all futures together lack of the error of the networks'
    mean: σ² = v - D, where v is the mean square of that error, as far as it was not expected, and D the variance among
    networks. (As wide as its own error, v + D, each network alone would be honest, and all together too wide.) At least
    `LEAST` of v + D is left.

    Parameters
    ----------
    evidence : Evidence
        What R is fitted on.
    forget : float
        The factor in (0, 1] by which the weight of an update's trajectories shrinks with each later update.
    events : int
        So many of the last columns are 0 or 1, in whose forecasts nothing is an error that could go on.

    Examples
    --------
    >>> evidence = Trajectory(HeldOut())
    >>> z = torch.randn(2000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> for t in range(1, 2000):
    ...     z[t] = 0.8 * z[t - 1] + 0.6 * z[t]
    >>> mapping = evidence.fit(Judged(new=z, held=z, age=torch.zeros(2000)), Affine(), None)
    >>> found = evidence.lasting
    >>> [[round(value, 2) for value in part.flatten().tolist()] for part in (found.kept, found.gain, found.spread)]
    [[0.99, 0.8], [0.0, 1.0], [0.6]]
    """

    PRIOR_ROWS, FURTHEST, LEAST = 20.0, 6.0, 0.05
    WAYS = _ways()

    def __init__(self, evidence: Evidence, *, forget: float = 1.0, events: int = 0) -> None:
        super().__init__(evidence, forget)
        self.events = events
        self.squares: Tensor | None = None
        self.rows = torch.zeros(1, dtype=torch.float64)

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        seen = judged.held if judged.new is None else judged.new
        if seen is not None:
            z = _cdf_map(mapping).forward_z(_continuous(seen)).clamp(-self.FURTHEST, self.FURTHEST)
            # A row that several networks were judged on, one after the other, is one step of several series.
            z = z.reshape(len(z) // _times(judged), _times(judged), -1)
            z[..., z.shape[-1] - self.events :] = torch.nan
            if self.squares is None:
                self.squares = torch.zeros(2, len(self.WAYS.kept), z.shape[-1], dtype=torch.float64)
            if judged.new is not None:
                self.squares = self.forget * self.squares + _unforeseen(z, judged.last, self.WAYS)
                self.rows = self.forget * self.rows + (~z.isnan()).double().mean(1).sum(0)
            self.lasting = self._best(self.squares)
        return self.evidence.fit(judged, mapping, fit_map)

    def _best(self, squares: Tensor) -> Lasting:
        """What fits squares (2, candidates, d) of what could not be forecast best: see `_unforeseen`."""
        squares, common = squares + self.PRIOR_ROWS * _unforeseen_of_half(self.WAYS)[:, None]
        share = squares / squares[0]
        seen = self.rows > 0 if bool(self.rows.any()) else slice(None)
        best = (share + share[:, seen].mean(1, keepdim=True)).argmin(0)
        # squares are v + D, and common v: what is lacking is v - D.
        lacking = torch.maximum(2 * common - squares, self.LEAST * squares)
        left = lacking.gather(0, best[None])[0] / (self.rows + self.PRIOR_ROWS)
        goes_on = torch.arange(len(best)) < len(best) - self.events
        gain = self.WAYS.gain[best, 0, :, 0].T * goes_on
        return Lasting(self.WAYS.kept[best, 0, :, 0].T, gain, left.sqrt().where(goes_on, 1))

    def state_dict(self) -> dict[str, Any]:
        return {"squares": self.squares, "rows": self.rows, "evidence": self.evidence.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.squares, self.rows = state["squares"], state["rows"]
        self.lasting = None if self.squares is None else self._best(self.squares)
        self.evidence.load_state_dict(state["evidence"])


class Censored(Evidence):
    """Held-out rows of which some outcomes are only known to be y or more (`Data.censored`), by Kaplan and Meier.

    A censored outcome's share of the evidence goes to the outcomes that lay further up. Where a column has censored
    outcomes, some that the forecast expects stand beside the real ones, so that no single row inherits the share of all
    that were cut short below it. An outcome that was cut short above every other is placed where the forecast would
    have it, given that it was at least there. Where everything is censored, R changes nothing.

    Parameters
    ----------
    split : Split, optional
        Which new rows are held out; without one all are, for a T that has been trained already.
    rng : numpy Generator
        Places outcomes that were cut short above every other.
    belief : float
        How many outcomes the forecast's own word is worth where some were censored.
    shares : int
        In how many shares it is given.

    Attributes
    ----------
    z, weight : arrays (m, d), (m + shares, d)
        Z-scores of the held-out rows at the last fit, and the weights of those and of the forecast's own word.
    """

    judges_held = True

    def __init__(
        self, split: Split | None = None, *, rng: np.random.Generator, belief: float = 20.0, shares: int = 200
    ) -> None:
        self._split, self.rng, self.belief, self.shares = split, rng, belief, shares
        self.z: Floats = np.zeros((0, 0))
        self.weight: Floats = np.zeros((0, 0))

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:
        if judged.held is None or judged.rows is None:
            return mapping
        z = _continuous(judged.held).numpy()
        cut = np.zeros(z.shape, dtype=bool) if judged.rows.censored is None else judged.rows.censored.numpy()
        shown, weight = with_belief(z, cut, self.rng, belief=self.belief, shares=self.shares)
        self.z, self.weight = z, weight
        shown = np.where(weight > 0, shown, np.nan)
        return _unpromised(
            fit_to([torch.from_numpy(shown)], fit_map, weight=torch.from_numpy(weight)),
            "some outcomes are only known to be y or more: no interval is guaranteed; ask for one without a guarantee",
        )


def fit_to(
    evidence: Sequence[Scores], fit_map: FitMap | FitClassMap | None, *, weight: Tensor | None = None
) -> Map | ClassMap:
    """The map learnt from what outcomes said; `fit_smooth`, or `fit_temperature` for classes, if none is named.

    Parameters
    ----------
    evidence : sequence of Scores
        Z-scores (n, …), or class probabilities (n, k) and labels (n,); all parts together teach one map.
    fit_map : FitMap or FitClassMap, optional
        Any `fit_*` function for that kind of evidence.
    weight : Tensor (n,) or of the shape of the z-scores, optional
        How much each counts.
    """
    scores = _joined(evidence)
    if isinstance(scores, Tensor):
        return cast(FitMap, fit_map or fit_smooth)(z=scores, weight=weight)
    probs, label = scores
    if int((~label.isnan()).sum()) < 2:
        return Unchanged(note="fewer than two outcomes: left unchanged")
    fit = cast(FitClassMap, fit_map or fit_temperature)
    return fit(probs, label) if weight is None else fit(probs, label, weight=weight)


def surprise(mapping: Map, z: Tensor, allowance: Tensor) -> Tensor:
    """How far out new rows z (n, d) lay, in units of what held-out rows had promised: 1 if they were right.

    The mean square of what should be N(0, 1), without columns that `mapping` knows nothing of. allowance: by how much
    `mapping` widens beyond what held-out rows say.
    """
    found = (allowance * mapping.forward_z(z)).masked_fill(_unknown(mapping), torch.nan)
    # Cut off, lest a single wild row make all forecasts boundless.
    return found.clamp(-normal.HIGHEST_Z, normal.HIGHEST_Z).square().nanmean(0).nanmean()


def widened(mapping: Map, allowance: Tensor) -> Map:
    """The map whose calibrated forecasts are `allowance` times as wide, but for columns it knows nothing of."""
    if bool((allowance == 1).all()):
        return mapping
    scale = torch.where(_unknown(mapping), 1.0, allowance)
    return Chain(before=mapping, after=Affine(shift=torch.zeros_like(scale), scale=scale))


def _times(judged: Judged) -> int:
    """How often each row was judged."""
    if judged.held is None or judged.age is None:
        return 1
    return max(len(outcomes_of(judged.held)) // max(len(judged.age), 1), 1)


def _unforeseen(z: Tensor, last: Tensor | None, ways: Lasting) -> Tensor:
    """Sums of squares (2, c, d) of what c ways do not forecast in z (n, series, d).

    First averaged over series, then of the series' mean: the rest is what they differ by. last: (n,) bool, after which
    rows nothing is expected.
    """
    mean, doubt = unknown = ways.unknown()
    each, common = z.new_zeros(len(mean), *z.shape[1:]), z.new_zeros(len(mean), z.shape[-1])
    for now, ended in zip(z, [False] * len(z) if last is None else last, strict=True):
        surprise = (now - mean.sum(-2)).nan_to_num(0)
        each += surprise.square()
        common += surprise.mean(1).square()
        share, doubt = ways._learnt(doubt)
        mean = ways.kept * (mean + share * surprise[..., None, :])
        if ended:
            mean, doubt = unknown
    return torch.stack([each.mean(1), common])


def _unforeseen_of_half(ways: Lasting) -> Tensor:
    """The mean square (c,) of what c ways do not forecast, at last, where errors are N(0, 1) and half of each lasts."""
    kept, gain = ways.kept[:, 0], ways.gain[:, 0]
    # One step of both parts and the error; its covariance is the sum over all steps, doubled again and again.
    step = torch.cat(
        [kept * torch.cat([torch.eye(2) - gain, gain], 2), torch.tensor([0, 0, 0.5]).expand(len(kept), 1, 3)], 1
    )
    covariance = torch.diag(torch.tensor([0, 0, 0.75]).double())
    for _ in range(12):
        covariance, step = covariance + step @ covariance @ step.mT, step @ step
    return torch.einsum("i,cij,j->c", *(sign := torch.tensor([-1.0, -1, 1]).double(), covariance, sign))


def _faded(forget: float, age: Tensor, scores: Scores) -> Tensor | None:
    """Weights forget^age of rows of age (n,), each of which may have been judged several times in a row."""
    if forget == 1:
        return None
    weight: Tensor = forget ** age.double()
    return weight.repeat_interleave(_times(Judged(held=scores, age=age)))


IN_TURN = (
    "the map was fitted on rows that came one after another, so its ranks promise nothing; ask the forecast of the "
    "Calibrated itself, whose intervals follow their misses"
)


def _unpromised(mapping: Map | ClassMap, why: str) -> Map | ClassMap:
    return mapping.unpromised(why) if isinstance(mapping, Map) else mapping


def _joined(parts: Sequence[Scores]) -> Scores:
    """What outcomes said, part after part."""
    if isinstance(parts[0], tuple):
        pairs = [part for part in parts if isinstance(part, tuple)]
        return torch.cat([probs for probs, _ in pairs]), torch.cat([label for _, label in pairs])
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


def take(scores: Scores, rows: Tensor | slice) -> Scores:
    """What some rows said, by their numbers, a (n,) mask or a slice."""
    return scores[rows] if isinstance(scores, Tensor) else (scores[0][rows], scores[1][rows])


def outcomes_of(scores: Scores) -> Tensor:
    """One number for each outcome, NaN where none was seen: its z-score, or its label."""
    return scores if isinstance(scores, Tensor) else scores[1]


def _continuous(scores: Scores) -> Tensor:
    """Z-scores, or an error for classes."""
    if isinstance(scores, Tensor):
        return scores
    raise CalibrlError("classes have no z-scores to weigh; hold rows out: evidence=HeldOut(random_split(…))")


def _cdf_map(mapping: Map | ClassMap) -> Map:
    if isinstance(mapping, Map):
        return mapping
    raise CalibrlError("a class map cannot be widened; use HeldOut without Wary for classes")


def _unknown(mapping: Map) -> Tensor:
    """Columns (d,) of whose outcomes the map was shown none; a single False for a map that was fitted on nothing."""
    known = mapping.before if isinstance(mapping, Chain) else mapping
    ranks = known.ranks
    # Weighted evidence has never told columns apart here, and published arms rest on that.
    return torch.tensor(False) if ranks is None or isinstance(ranks, WeightedRanks) else ranks.count == 0


def _check_forget(forget: float, unit: str) -> float:
    return check_within("forget", forget, "(0, 1]", f"0.99 trusts about the last 100 {unit}")

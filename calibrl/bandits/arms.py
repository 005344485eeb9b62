"""The arms of a policy, by name and by position, and what a policy asks of its forecaster: a forecast for each."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from calibrl.algorithm import Forecaster, check_forecast, check_forecaster
from calibrl.arrays import Array
from calibrl.data import Data
from calibrl.distributions import from_zscore, zscore, zscore_left
from calibrl.distributions.kinds import Scored
from calibrl.errors import CalibrlError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Arm: TypeAlias = str | int
"""What an arm is called: an article's id, a treatment's name, a class number."""
Among: TypeAlias = Iterable[Arm] | Array
"""The arms a decision may take: their names, or a mask, True or False for every arm."""

REMEMBERED = 10_000
"""How many names of removed arms are kept, so that a year of them does not fill the memory."""


@dataclass(frozen=True)
class Arms:
    """The arms on offer, each at its position, and those removed last, in that order."""

    names: tuple[Arm, ...] = ()
    removed: tuple[Arm, ...] = ()

    @cached_property
    def position(self) -> dict[Arm, int]:
        """Where each arm is."""
        return {name: position for position, name in enumerate(self.names)}

    @cached_property
    def everyone(self) -> Ints:
        """The positions of all arms."""
        return np.arange(len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def plus(self, new: Sequence[Arm]) -> Arms:
        """With more arms at the end."""
        back = set(new)
        return Arms((*self.names, *new), tuple(name for name in self.removed if name not in back))

    def minus(self, gone: Arm) -> Arms:
        """Without an arm; those behind it move up."""
        names = tuple(name for name in self.names if name != gone)
        return Arms(names, (*self.removed, gone)[-REMEMBERED:])

    def at(self, arm: Any) -> int:
        """The position of an arm, or an error that says why it has none."""
        try:
            return self.position[arm]
        except (KeyError, TypeError):
            gone = isinstance(arm, (str, int, np.integer)) and arm in self.removed
            why = "was removed: leave it out" if gone else "was never offered: add it with add_arm"
            shown = ", ".join(map(repr, self.names[:8])) + (" …" if len(self) > 8 else "")
            raise CalibrlError(f"arm {arm!r} {why}; arms on offer: {shown}") from None

    def offered(self, among: Among) -> Ints:
        """The positions (n,) of the arms that a decision may take: in the order of names, or of all arms for a mask."""
        if isinstance(among, str) or not np.iterable(among):
            raise CalibrlError(f"among {among!r} is not a list; pass names such as ['news', 'music'], or a mask")
        values = among.tolist() if isinstance(among, (np.ndarray, Tensor)) else list(among)
        if values and all(isinstance(value, (bool, np.bool_)) for value in values):
            if len(values) != len(self):
                raise CalibrlError(f"among is a mask of {len(values)} for {len(self)} arms; pass a value for each")
            found = np.flatnonzero(values)
        else:
            found = np.array([self.at(name) for name in values], np.int64)
        if not len(found):
            raise CalibrlError("among leaves no arm to take; pass at least one, or do not ask for a decision")
        once, times = np.unique(found, return_counts=True)
        if len(once) < len(found):
            raise CalibrlError(f"among has arm {self.names[once[times.argmax()]]!r} twice; name each arm once")
        # A set has another order in every process: the same seed would take other arms.
        return once if isinstance(among, Set) else found

    def check_new(self, arms: Sequence[Arm]) -> list[Arm]:
        """Names that can be added, as plain strings and integers, or an error that says what is wrong."""
        if isinstance(arms, str):
            raise CalibrlError(f"arms {arms!r} is a word and no list; pass [{arms!r}]")
        for name in arms:
            if isinstance(name, bool) or not isinstance(name, (str, int, np.integer)):
                raise CalibrlError(f"arm {name!r} is not a name; use strings or integers")
        plain: list[Arm] = [str(name) if isinstance(name, str) else int(name) for name in arms]
        taken = set(self.names)
        for name in plain:
            if name in taken:
                raise CalibrlError(f"arm {name!r} is there already; arms need different names")
            taken.add(name)
        return plain

    def check_leaving(self, arm: Arm) -> Arm:
        """The name of an arm that can be removed, as it was added, or an error that says what is wrong."""
        name = self.names[self.at(arm)]
        if len(self) == 1:
            raise CalibrlError(f"arm {name!r} is the last one; a policy needs at least one arm")
        return name


def first_names(arms: int | Iterable[Arm]) -> list[Arm]:
    """The names of a new policy's arms: those given, or 0, 1, 2 … for a number of them."""
    # A word would be taken for the names of its letters.
    if isinstance(arms, (bool, str)) or not (isinstance(arms, (int, np.integer)) or np.iterable(arms)):
        raise CalibrlError(
            f"arms {arms!r} is neither a number of arms nor a list of names; pass 2 or ['news', 'music']"
        )
    names: list[Arm] = list(range(arms) if isinstance(arms, (int, np.integer)) else arms)
    if not names:
        raise CalibrlError("a policy needs at least one arm; pass a number of arms or their names")
    return names


class Rows(NamedTuple):
    """Rewards to learn: x (n, …), arm (n,) positions, reward (n,); and what `judge` says of each, (n,)."""

    x: Floats
    arm: Ints
    reward: Floats
    z: Floats
    error: Floats
    moved: Floats


class ArmModel(ABC):
    """A forecast for each of k arms, known by their positions 0 … k-1."""

    pulls: Ints
    """How many rewards each arm has had: (k,)."""
    row_shape: tuple[int, ...] | None = None
    """The shape of one row of x to learn from, None for any."""
    shared: bool = False
    """Whether a decision's x has a row of features for each arm on offer."""

    @abstractmethod
    def request(self, x: Array, offered: Ints) -> Floats:
        """A decision's context as the model wants it, or an error that says what is wrong with it."""

    @abstractmethod
    def quantiles(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantile (k,) at its level (k,), a z-score."""

    @abstractmethod
    def curves(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantiles (k, n) at the same levels (n,), z-scores."""

    @abstractmethod
    def forecast(self, x: Floats, offered: Ints) -> Distribution:
        """What the arms at these positions (n,) are expected to pay: batch shape (n,)."""

    @abstractmethod
    def learn(self, rows: Rows) -> None:
        """Learn rows, each judged by the forecast as it stood before any of them; or an error, and nothing changes."""


class AnyForecaster(ArmModel):
    """Any forecaster with one column per arm: x (n, …) in, forecasts of batch shape (n, k) out.

    Parameters
    ----------
    forecaster
        `update(data)` gets rows y (n, k), NaN for the arms that were not pulled.
    arms
        k, how many arms there are.
    warm_up
        Rewards that every arm gets before the forecaster learns and is asked; until then arms that lack some are
        tried first. 0 for a forecaster that can answer before it has learnt.
    """

    def __init__(self, forecaster: Forecaster, arms: int, *, warm_up: int = 0) -> None:
        self.forecaster = check_forecaster(forecaster)
        self.warm_up = warm_up
        self.pulls = np.zeros(arms, np.int64)
        self._waiting: list[Data] = []

    def request(self, x: Array, offered: Ints) -> Floats:  # noqa: ARG002 (asked for by shared features only)
        """The context as one row (1, …)."""
        rows = as_floats(x, "context")[None]
        check_finite(rows, "context")
        return rows

    def quantiles(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantile (k,) at its level (k,); while warming up 1 for arms that lack rewards, 0 for others."""
        if self._warming:
            return (self.pulls < self.warm_up).astype(np.float64)
        return self._curves(x, torch.from_numpy(level)[None])[0]

    def curves(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantiles (k, n) at the same levels (n,), z-scores."""
        if self._warming:
            return np.repeat(self.quantiles(x, level)[:, None], len(level), axis=1)
        return self._curves(x, torch.from_numpy(level)[:, None, None].expand(-1, 1, len(self.pulls)))[:, 0].T

    def forecast(self, x: Floats, offered: Ints) -> Distribution:
        """What the arms at these positions (n,) are expected to pay: batch shape (n,)."""
        return Columns(self._answer(x), torch.from_numpy(offered))

    def learn(self, rows: Rows) -> None:
        """Learn rows, through the forecaster's own `update`; kept for later while some arm is warming up."""
        check_finite(rows.x, "context")
        check_finite(rows.reward, "reward")
        y = torch.full((len(rows.arm), len(self.pulls)), torch.nan, dtype=torch.float64)
        y[torch.arange(len(rows.arm)), torch.from_numpy(rows.arm)] = torch.from_numpy(rows.reward)
        data = Data(torch.from_numpy(rows.x), y)
        pulls = self.pulls + np.bincount(rows.arm, minlength=len(self.pulls))
        waiting = [*self._waiting, data]
        if (pulls >= self.warm_up).all():
            self.forecaster.update(sum(waiting[1:], waiting[0]))
            waiting = []
        self.pulls, self._waiting = pulls, waiting

    @property
    def _warming(self) -> bool:
        return bool((self.pulls < self.warm_up).any())

    def _curves(self, x: Floats, level: Tensor) -> Floats:
        with torch.no_grad():
            found = from_zscore(self._answer(x), level)
        if not bool(found.isfinite().all()):
            raise CalibrlError("an arm's quantile is NaN or infinite; the forecast is broken, repair the forecaster")
        return np.asarray(found.double().cpu().numpy(), np.float64)

    def _answer(self, x: Floats) -> Distribution:
        forecast = check_forecast(self.forecaster(torch.from_numpy(x)))
        if forecast.batch_shape != (1, len(self.pulls)):
            raise CalibrlError(
                f"the forecaster answers a context with batch shape {tuple(forecast.batch_shape)}; expected "
                f"(1, {len(self.pulls)}): one column per arm"
            )
        return forecast


class Columns(Scored):
    """Some columns of a forecast of one row. base: batch shape (1, k); column: (n,) positions."""

    def __init__(self, base: Distribution, column: Tensor) -> None:
        self.base, self.column = base, column
        super().__init__(torch.Size([len(column)]), validate_args=False)

    def zscore(self, y: Tensor) -> Tensor:
        """Each outcome's z-score, its own column's."""
        return self._each(zscore, y)

    def zscore_left(self, y: Tensor) -> Tensor:
        """The z-score of what is lower than each outcome, its own column's."""
        return self._each(zscore_left, y)

    def from_zscore(self, z: Tensor) -> Tensor:
        """The quantiles at these z-scores, each of its own column."""
        return self._each(from_zscore, z)

    def log_prob(self, value: Tensor) -> Tensor:
        """Each outcome's log density in its own column."""
        return self._each(type(self.base).log_prob, value)

    @property
    def mean(self) -> Tensor:
        """Each column's mean."""
        return self.base.mean[0, self.column]

    @property
    def variance(self) -> Tensor:
        """Each column's variance."""
        return self.base.variance[0, self.column]

    def _each(self, of: Callable[[Distribution, Tensor], Tensor], value: Tensor) -> Tensor:
        wide = torch.zeros(*value.shape[:-1], *self.base.batch_shape, dtype=value.dtype)
        wide[..., 0, self.column] = value
        return of(self.base, wide)[..., 0, self.column]


def as_floats(value: Array, what: str) -> Floats:
    """Numbers as float64, laid out as the kernels want them."""
    # Features may come from a network that is being trained, on a GPU, in half precision.
    given = value.detach().double().cpu() if isinstance(value, torch.Tensor) else value
    try:
        return np.asarray(given, np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        shown = " ".join(reprlib.repr(given).split())
        raise CalibrlError(f"{what} {shown} is not made of numbers; pass an array of numbers") from None


def check_finite(values: Floats, what: str) -> None:
    """Refuse NaN and infinity."""
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise CalibrlError(f"a {what} holds {wrong}; repair or drop that row: nothing was learnt from the call")

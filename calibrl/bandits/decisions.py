"""Decisions: those that wait for their reward, by id, and logs of those made.

A log has what was known, the arm taken and with which probability, and what it paid. While a decision waits its context
is kept: late rewards join, repeats do not count twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits.arms import Arm, as_floats
from calibrl.errors import CalibrlError

Context: TypeAlias = list[float] | dict[str, float | str]
"""A context as it is kept: numbers, or a dict of numbers and text."""
MOST = 10_000
"""How many decisions wait for a reward, and how many ids are remembered after it came; the oldest are dropped."""


class _Taken(NamedTuple):
    arm: Arm
    probability: float


class Decision(_Taken):
    """The arm taken and the probability with which it was: what an off-policy evaluation needs in the log.

    A pair, `arm, probability = policy.decide(x)`, that also has an id.

    Parameters
    ----------
    arm
        Its name.
    probability
        In (0, 1].
    id
        By which its reward will be reported, None if it will come with its context and arm.
    """

    id: str | None

    def __new__(cls, arm: Arm, probability: float, id: str | None = None) -> Self:
        """A pair with an id."""
        made = super().__new__(cls, arm, probability)
        made.id = id
        return made


class Waiting(NamedTuple):
    """A decision that waits for its reward: the context, or the features of the arm taken, as it was given."""

    x: Context
    arm: Arm
    probability: float


class Decisions:
    """Decisions that wait for a reward, and the ids of those that have had it."""

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.done: dict[str, None] = {}

    def new_id(self, wanted: str | bool) -> str:
        """The id wanted, or one made up for True; or an error that says why it cannot be used."""
        if wanted is True:
            return uuid.uuid4().hex
        if not isinstance(wanted, str) or not wanted:
            raise CalibrlError(f"id {wanted!r} is not an id; use text, such as the request's number, or True for one")
        if wanted in self.done:
            raise CalibrlError(f"decision {wanted!r} has had its reward; use another id for another decision")
        return wanted

    def add(self, id: str, x: Context, arm: Arm, probability: float) -> Decision:
        """Have a decision wait."""
        _put(self.waiting, id, Waiting(x, arm, probability))
        return Decision(arm, probability, id)

    def find(self, id: str) -> Waiting | None:
        """The decision that waits under this id, None if it has had its reward; or an error."""
        if isinstance(id, str) and id in self.done:
            return None
        try:
            return self.waiting[id]
        except (KeyError, TypeError):
            raise CalibrlError(
                f"decision {id!r} is unknown: it was never made with this id, or is older than the last {MOST}; report "
                "its reward with its context and arm, through update"
            ) from None

    def close(self, id: str) -> None:
        """A decision's reward has come."""
        del self.waiting[id]
        _put(self.done, id, None)

    def to_plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"waiting": {id: list(one) for id, one in list(self.waiting.items())}, "done": list(self.done)}

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> Decisions:
        """What `to_plain` described."""
        made = cls()
        made.waiting = {id: Waiting(*one) for id, one in saved["waiting"].items()}
        made.done = dict.fromkeys(saved["done"])
        return made


def _put(kept: dict[str, Any], id: str, value: Any) -> None:
    kept[id] = value
    if len(kept) > MOST:
        del kept[next(iter(kept))]


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Log:
    """Logged decisions, oldest first.

    Parameters
    ----------
    x
        Contexts (n, d), or features of each arm in each decision (n, k, d), in the order of `arms`.
    arm
        The names of the n arms that were taken.
    reward
        What they paid, (n,).
    propensity
        The probability in (0, 1] with which each was taken, (n,).
    first
        The number of the first row, in the log that this is a part of.
    among
        For each decision the names of the arms it could take, or None for all; empty if every decision could take all.
    names
        The k arms, in the order of the features in x; needed only where x has features of each arm.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrl.bandits import LinUCB
    >>> from calibrl.bandits.evaluation import Log, doubly_robust
    >>> generator = np.random.default_rng(0)
    >>> x, arm = generator.standard_normal((1000, 2)), generator.integers(2, size=1000)
    >>> log = Log(x, arm, np.where(arm == 0, x[:, 0], x[:, 1]), np.full(1000, 0.5))
    >>> found = doubly_robust(LinUCB(2, 2), log)  # it knows nothing yet, and takes any arm
    >>> low, high = found.interval()
    >>> bool(low < 0 < high)
    True
    """

    x: Floats
    arm: tuple[Arm, ...]
    reward: Floats
    propensity: Floats
    first: int = 1
    among: Sequence[Collection[Arm] | None] = ()
    names: tuple[Arm, ...] = ()

    def __post_init__(self) -> None:
        for name in ("x", "reward", "propensity"):
            object.__setattr__(self, name, as_floats(getattr(self, name), name))
        object.__setattr__(self, "arm", tuple(np.asarray(self.arm, object).tolist()))
        n = len(self.arm)
        object.__setattr__(self, "names", tuple(np.asarray(self.names, object).tolist()))
        if self.x.ndim == 3 and (len(self.names) != self.x.shape[1] or not set(self.arm) <= set(self.names)):
            raise CalibrlError(
                f"features of {self.x.shape[1]} arms in each decision need their names, those of the arms taken among "
                f"them; got names {list(self.names)}: pass names=[…], in the order of the features"
            )
        fits = self.x.ndim in (2, 3) and self.x.shape[:1] == self.reward.shape == self.propensity.shape == (n,)
        if not fits or not n:
            raise CalibrlError(
                f"contexts {self.x.shape}, {n} arms, rewards {self.reward.shape} and propensities "
                f"{self.propensity.shape} make no log; expected (n, d), n, (n,) and (n,), n ≥ 1"
            )
        for name, values in (("context", self.x), ("reward", self.reward), ("propensity", self.propensity)):
            broken = ~np.isfinite(values).reshape(n, -1).all(1)
            if broken.any():
                raise CalibrlError(
                    f"log row {self.first + int(broken.argmax())} has no {name}; drop or repair that row"
                )
        outside = (self.propensity <= 0) | (self.propensity > 1)
        if outside.any():
            row = int(outside.argmax())
            raise CalibrlError(
                f"log row {self.first + row} has propensity {self.propensity[row]:g}; expected the probability in "
                "(0, 1] with which the logged arm was taken"
            )
        lists = tuple(self.among) or (None,) * n
        if len(lists) != n:
            raise CalibrlError(f"among has {len(lists)} rows and the log {n}; give names, or None, for each")
        object.__setattr__(self, "among", tuple(map(self._on_offer, range(n), self.arm, lists)))

    def _on_offer(self, row: int, taken: Arm, names: Any) -> tuple[Arm, ...] | None:
        """The arms that a decision could take, as plain names, None for all."""
        if names is None:
            return None
        plain = names.tolist() if isinstance(names, np.ndarray) else names
        if isinstance(plain, str) or not isinstance(plain, Collection) or not all(map(_is_name, plain)):
            raise CalibrlError(
                f"log row {self.first + row} has {names!r} for the arms it could take; use a list of names, in a CSV "
                'file as JSON: ["news", "music"]'
            )
        if taken not in plain:
            raise CalibrlError(
                f"log row {self.first + row} took arm {taken!r}, which is not among those it could take, "
                f"{list(plain)}; repair or drop that row"
            )
        return tuple(plain)

    def __len__(self) -> int:
        return len(self.arm)

    def __getitem__(self, rows: slice) -> Log:
        if not isinstance(rows, slice):
            raise CalibrlError(f"log[{rows!r}] is no part of a log; give a range of rows, such as log[:500]")
        parts = {name: getattr(self, name)[rows] for name in ("x", "arm", "reward", "propensity", "among")}
        return replace(self, first=self.first + rows.indices(len(self))[0], **parts)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that were taken or could be, in order."""
        if self.names:
            return self.names
        known = set(self.arm).union(*{names for names in self.among if names is not None})
        return tuple(sorted(known, key=lambda arm: (isinstance(arm, str), arm)))

    def features(self, row: int, arms: Sequence[Arm] | None = None) -> Floats:
        """What a decision was about: the context (d,), or the features (n, d) of these arms, all if not given."""
        x: Floats = self.x[row]
        if x.ndim == 1:
            return x
        return x if arms is None else x[[self.names.index(arm) for arm in arms]]

    def taken(self, row: int) -> Floats:
        """What is learnt from a row: the context (d,), or the features (d,) of the arm that was taken."""
        x: Floats = self.x[row]
        return x if x.ndim == 1 else x[self.names.index(self.arm[row])]

    def offered(self, arms: int) -> Floats:
        """How many arms each decision could choose from (n,), where all are `arms`."""
        return np.array([arms if names is None else len(names) for names in self.among], np.float64)


def read_log(
    path: str | Path,
    *,
    context: Sequence[str] | None = None,
    arm: str = "arm",
    reward: str = "reward",
    propensity: str | None = "propensity",
    uniform: bool = False,
    among: str = "among",
    without: Collection[str] = (),
    id: str = "id",
) -> Log:
    """Read a log from a CSV or Parquet file with a column each for arm, reward and propensity.

    Parameters
    ----------
    path
        The file.
    context
        The columns of the context; all others if not named.
    arm, reward, propensity
        The columns of the arm, its reward, and the probability with which it was taken.
    uniform
        Every arm was as likely, whatever the column of propensities says, if there is one; so with propensity None.
    among
        The column, if there is one, of the arms that each decision could choose from: lists, or their JSON in a CSV
        file, and nothing for all arms.
    without
        Columns that are no context.
    id
        The column, if there is one, of the decisions' ids. Of rows with the same id the last counts.

    Returns
    -------
    Log
    """
    frame = log_table(path, "" if id in (context or ()) else id)
    if propensity is None:
        propensity, uniform = "propensity", True
    roles = {arm: "arm", reward: "reward", propensity: "propensity", among: "list of arms on offer"}
    columns = list(context) if context else [name for name in frame.columns if name not in {*roles, *without}]
    named = [arm, reward] if uniform else [arm, reward, propensity]
    for name in [*named, *columns]:
        if name not in frame.columns:
            raise CalibrlError(f"{path} has no column {name!r}; it has {', '.join(frame.columns)}")
    for name in columns:
        if name in roles:
            raise CalibrlError(f"{path}: column {name!r} is the {roles[name]} and no context; name other columns")
    if not columns:
        raise CalibrlError(f"{path} has no context columns beside {', '.join(named)}; add the features as columns")
    leave = "encode it as numbers, or leave it out by naming the columns of the context (--context)"
    x = np.stack([_numbers(frame[name], path, leave) for name in columns], 1)
    if not context:
        _check_no_clock(x, columns, path)
    names = _names(frame[arm], path)
    given = np.ones(len(names)) if uniform else _numbers(frame[propensity], path)
    lists = [_decoded(cell) for cell in frame[among].to_list()] if among in frame.columns else ()
    log = Log(x, names, _numbers(frame[reward], path), given, among=lists)
    return replace(log, propensity=1 / log.offered(len(log.arms))) if uniform else log


def log_table(path: str | Path, id: str = "id") -> Any:
    """A log's table without the column of ids, if there is one: of rows with the same id the last."""
    from calibrl.tables import read_table

    frame = read_table(path)
    if id not in frame.columns:
        return frame
    return frame.filter(frame[id].is_null() | frame[id].is_last_distinct()).drop(id)


def _names(column: Any, path: str | Path) -> tuple[Arm, ...]:
    names = tuple(column.to_list())
    for row, name in enumerate(names, start=1):
        if not _is_name(name):
            what = "no arm" if name is None else f"arm {name!r}"
            raise CalibrlError(f"{path}: log row {row} has {what} in column {column.name!r}; use whole numbers or text")
    return names


def _is_name(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _decoded(cell: Any) -> Any:
    """A list of arms from a table's cell; text that is no JSON stays as it is."""
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except ValueError:
        return cell


def _check_no_clock(x: Floats, columns: Sequence[str], path: str | Path) -> None:
    """Refuse a column that only ever goes up, unless it was asked for: it tells rows apart, not visitors."""
    for name, values in zip(columns, x.T, strict=True):
        steps = np.diff(values)
        if (steps >= 0).all() and np.count_nonzero(steps) >= 10:
            others = [f"--context {other}" for other in columns if other != name] or ["--context …"]
            raise CalibrlError(
                f"{path}: column {name!r} only goes up, like a time or a row's number; name the columns of the "
                f"context, without it or with it: {' '.join(others[:8])}"
            )


def _numbers(column: Any, path: str | Path, cure: str = "expected numbers") -> Floats:
    if not column.dtype.is_numeric() and str(column.dtype) != "Boolean":
        what = "text" if str(column.dtype) == "String" else f"{column.dtype}"
        raise CalibrlError(f"{path}: column {column.name!r} holds {what}; {cure}")
    return np.array(column.cast(float).to_numpy(), np.float64)

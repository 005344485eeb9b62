"""What was known and what happened, and ways to hold some of it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.arrays import Array, as_tensor
from calibrl.errors import CalibrlError, check_count, check_within

_NEVER = torch.tensor(False)


@dataclass(frozen=True, eq=False)
class Data:
    """Rows of experience, of one forecaster or of g agents side by side.

    Parameters
    ----------
    x : Tensor (n, …), or (g, n, …) with an agent axis
        What was known, a row per outcome.
    y : Tensor (n,) or (n, d), or (g, n, d) with an agent axis
        What happened, NaN where it was not observed. Three dimensions mean g agents with n rows each.
    censored : bool Tensor of the shape of y, optional
        Outcomes of which is only known that they were y or more, such as the demand of a day that sold out.
    last : bool Tensor (n,), or (g, n) with an agent axis, optional
        Rows after which something else begins: the last of an episode, or of one series of several.

    Examples
    --------
    >>> data = Data.of([[1.0], [2.0], [3.0]], [0.1, 0.2, 0.3])
    >>> len(data), len(data[:2] + data)
    (3, 5)
    """

    x: Tensor
    y: Tensor
    censored: Tensor | None = None
    last: Tensor = _NEVER

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", as_tensor(self.x, "x"))
        object.__setattr__(self, "y", as_tensor(self.y, "y"))
        axes = 2 if self.y.dim() == 3 else 1
        if self.x.dim() < axes or self.y.dim() == 0 or self.x.shape[:axes] != self.y.shape[:axes]:
            raise CalibrlError(
                f"x has shape {tuple(self.x.shape)} and y {tuple(self.y.shape)}; expected one row of each per outcome"
            )
        if self.censored is not None and self.censored.shape != self.y.shape:
            raise CalibrlError(
                f"censored has shape {tuple(self.censored.shape)} and y {tuple(self.y.shape)}; expected the same"
            )
        if not self.last.dim():
            object.__setattr__(self, "last", torch.zeros(self.y.shape[:axes], dtype=torch.bool, device=self.y.device))
        if self.last.shape != self.y.shape[:axes]:
            raise CalibrlError(
                f"last has shape {tuple(self.last.shape)} and y {tuple(self.y.shape)}; expected one for each row"
            )

    @classmethod
    def of(cls, x: Array, y: Array) -> Data:
        """Rows from arrays of any kind: x (n, …), y (n,) or (n, d)."""
        return cls(as_tensor(x, "x"), as_tensor(y, "y"))

    @property
    def agents(self) -> int | None:
        """The number g of agents; None without an agent axis."""
        return len(self.y) if self.y.dim() == 3 else None

    def by_agent(self) -> list[Data]:
        """The rows of each agent; without an agent axis these rows alone."""
        if self.agents is None:
            return [self]
        return [self._each(itemgetter(agent)) for agent in range(self.agents)]

    def __len__(self) -> int:
        return self.y.shape[0 if self.agents is None else 1]

    def __getitem__(self, rows: Tensor | slice) -> Data:
        """Some of the rows: a slice, numbers or a mask (n,); of agents a slice, or a mask (g, n), as many of each.

        A mask that leaves none out gives the rows themselves, not a copy; so does adding no rows to some.
        """
        is_mask = isinstance(rows, Tensor) and rows.dtype == torch.bool and rows.shape == self.y.shape[: rows.dim()]
        if is_mask and bool(cast(Tensor, rows).all()):
            return self
        if self.agents is None:
            return self._each(itemgetter(rows))
        if isinstance(rows, slice):
            return self._each(itemgetter((slice(None), rows)))
        count = int(rows[0].sum())
        return self._each(lambda part: part[rows].reshape(len(rows), count, *part.shape[2:]))

    def __add__(self, other: Data) -> Data:
        if not len(self) or not len(other):
            return self if len(self) else other
        axis = 0 if self.agents is None else 1
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("x", "y", "last"))
        x, y, last = (torch.cat(pair, axis) for pair in pairs)
        censored = None
        if self.censored is not None or other.censored is not None:
            flags = [torch.zeros_like(one.y).bool() if one.censored is None else one.censored for one in (self, other)]
            censored = torch.cat(flags, axis)
        return Data(x, y, censored, last)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Data:
        """The same with each part that there is changed."""
        censored = None if self.censored is None else change(self.censored)
        return Data(change(self.x), change(self.y), censored, change(self.last))


def numeric_rows(x: Any, y: Tensor) -> Data | None:
    """Rows of which fingerprints can be taken; None where x is not an array of numbers, a row for each of y."""
    try:
        return Data.of(x if isinstance(x, Tensor) else np.asarray(x), y)
    except (CalibrlError, RuntimeError, TypeError, ValueError):
        return None


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows told apart by name. names: of the g groups; of: (n,) int64, whose row each is, counted from 0."""

    names: tuple[str, ...]
    of: Tensor

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """For each group that has some of `rows`, (m,) of their numbers: its places among them, ascending."""
        owner = self.of[rows]
        order = owner.argsort(stable=True)
        present, count = owner[order].unique_consecutive(return_counts=True)
        parts = order.split(count.tolist())
        return {self.names[k]: places for k, places in zip(present.tolist(), parts, strict=True)}


class SeenRows:
    """Fingerprints of rows a model has learnt from, so that a later check can tell if it meets them again."""

    def __init__(self) -> None:
        self._known: list[NDArray[np.uint64]] = []

    def add(self, data: Data) -> None:
        """Remember these rows: 8 bytes each."""
        self._known.append(fingerprints(data))

    def overlap(self, data: Data) -> float:
        """The share of these rows that were seen before; 0 where chance explains it.

        Rounded rows meet again by chance: no more of them count as known than rows of one set are like each other.
        """
        if not len(data) or not self._known:
            return 0.0
        marks, known = fingerprints(data), np.concatenate(self._known)
        met = float(np.isin(marks, known).mean())
        distinct = min(len(np.unique(some)) / len(some) for some in (marks, known))
        return met if met > 2 * (1 - distinct) else 0.0


def fingerprints(data: Data) -> NDArray[np.uint64]:
    """One 64-bit hash per row of x and y: (n,), agents' rows one after another."""
    last = 0 if data.agents is None else 1
    x, y = (part.detach().flatten(0, last)[:, None].flatten(1) for part in (data.x, data.y))
    total = np.zeros(len(y), dtype=np.uint64)
    # Multiply, shift and mix column by column (splitmix64's constants); overflow wraps, as it should. Few rows at a
    # time: they stay in the processor's cache, and the rows are never copied all at once.
    for begin in range(0, len(y), 512):
        some = slice(begin, begin + 512)
        mixed = total[some]
        columns = torch.cat([x[some].double(), y[some].double()], 1).cpu().T.contiguous().numpy()
        for column in columns.view(np.uint64):
            mixed ^= column
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(31)
            mixed *= np.uint64(0x94D049BB133111EB)
    return total


Split: TypeAlias = Callable[[Data], Tensor]
"""New rows → which of them are held out: (n,) bool."""


def random_split(fraction: float, generator: torch.Generator, *, block: int = 1) -> Split:
    """Hold out a random `fraction` of the rows.

    Parameters
    ----------
    fraction : float
        The share of rows held out, between 0 and 1; of a few rows at least one stays on either side.
    generator : torch.Generator
        Draws which rows.
    block : int
        So many consecutive rows stay together. Where neighbouring rows resemble each other, set it to the length of a
        trajectory, or to a week of days; otherwise held-out rows are nearly copies of training rows.

    Returns
    -------
    Split

    Examples
    --------
    >>> split = random_split(0.2, torch.Generator().manual_seed(0))
    >>> int(split(Data.of(torch.zeros(10, 1), torch.zeros(10))).sum())
    2
    """
    return _RandomSplit(fraction, generator, block)


def exact_split(fraction: float, generator: torch.Generator, *, block: int = 1) -> Split:
    """Hold out random rows, always the same number of as many: what agents that learn side by side need.

    Parameters
    ----------
    fraction : float
        The share of rows held out, between 0 and 1, rounded to whole blocks.
    generator : torch.Generator
        Draws which blocks.
    block : int
        So many consecutive rows stay together. A last block that is shorter is never held out.

    Returns
    -------
    Split
    """
    return _ExactSplit(fraction, generator, block)


def last_split(fraction: float) -> Split:
    """Hold out the last rows: for rows in chronological order.

    Parameters
    ----------
    fraction : float
        The share of rows held out, between 0 and 1; of two rows or more at least one stays on either side.

    Returns
    -------
    Split
    """
    return _LastSplit(fraction)


# Objects instead of inner functions, so that models that hold them can be pickled and copied.


@dataclass(frozen=True)
class _LastSplit:
    fraction: float

    def __post_init__(self) -> None:
        check_within("fraction", self.fraction, "(0, 1)", "0.2 holds out a fifth of the rows")

    def __call__(self, data: Data) -> Tensor:
        count = round(self.fraction * len(data))
        if len(data) >= 2:
            count = min(max(count, 1), len(data) - 1)
        return torch.arange(len(data)) >= len(data) - count


@dataclass(frozen=True)
class _RandomSplit(_LastSplit):
    generator: torch.Generator
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("block", self.block)

    def __call__(self, data: Data) -> Tensor:
        blocks = -(-len(data) // self.block)
        # At least one block on each side as soon as there are two; a single row leans by lot.
        wanted = self.fraction * blocks
        count = int(wanted) + int(torch.rand((), generator=self.generator).item() < wanted - int(wanted))
        if blocks >= 2:
            count = min(max(count, 1), blocks - 1)
        return self._held(torch.randperm(blocks, generator=self.generator)[:count], len(data))

    def _held(self, picked: Tensor, rows: int) -> Tensor:
        """(rows,) bool: the rows of the picked blocks."""
        held = torch.zeros(-(-rows // self.block), dtype=torch.bool)
        held[picked] = True
        return held.repeat_interleave(self.block)[:rows]


class _ExactSplit(_RandomSplit):
    def __call__(self, data: Data) -> Tensor:
        rows = len(data)
        blocks = -(-rows // self.block)
        count = min(max(round(self.fraction * blocks), 1), blocks - 1) if blocks > 1 else 0
        # The last block may be short, and must not be: agents of a fleet hold out equally many rows.
        whole = blocks - (rows % self.block != 0)
        return self._held(torch.randperm(whole, generator=self.generator)[:count], rows)


class Remembered:
    """Every row a forecaster was given. `update` brings new rows only; batch learners learn them all again.

    Rows are kept once they have been learnt: rows that a model refuses must not spoil every later update.
    """

    def __init__(self) -> None:
        self._rows: Data | None = None

    def with_new(self, data: Data) -> Data:
        """All rows, the new ones last; they are not kept yet."""
        known = self._rows
        if known is not None and (known.x.shape[1:] != data.x.shape[1:] or known.y.shape[1:] != data.y.shape[1:]):
            raise CalibrlError(
                f"new rows have x {tuple(data.x.shape)} and y {tuple(data.y.shape)}, earlier ones x "
                f"{tuple(known.x.shape)} and y {tuple(known.y.shape)}; keep the columns the same"
            )
        return data if known is None else known + data

    def keep(self, rows: Data) -> None:
        """Remember what `with_new` gave, now that it has been learnt."""
        self._rows = rows

    def add(self, data: Data) -> Data:
        """All rows, the new ones last, kept at once."""
        self.keep(self.with_new(data))
        assert self._rows is not None
        return self._rows

    def outcomes(self) -> Tensor:
        """The outcomes y learnt so far, or an error when there are none."""
        if self._rows is None:
            raise CalibrlError("this forecaster has learnt no rows yet; call update(data), also before Rolling has it")
        return self._rows.y

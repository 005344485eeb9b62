"""What was known and what happened, and ways to hold some of it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.arrays import Array, as_tensor
from calibrl.errors import CalibrlError


@dataclass(frozen=True, eq=False)
class Data:
    """Rows of experience: x (n, …) what was known, y (n, d) or (n,) what happened, NaN where it was not observed."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", as_tensor(self.x, "x"))
        object.__setattr__(self, "y", as_tensor(self.y, "y"))
        if self.x.dim() == 0 or self.y.dim() == 0 or len(self.x) != len(self.y):
            raise CalibrlError(
                f"x has shape {tuple(self.x.shape)} and y {tuple(self.y.shape)}; expected one row of each per outcome"
            )

    @classmethod
    def of(cls, x: Array, y: Array) -> Data:
        """Rows from arrays of any kind."""
        return cls(as_tensor(x, "x"), as_tensor(y, "y"))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor | slice) -> Data:
        return Data(self.x[rows], self.y[rows])

    def __add__(self, other: Data) -> Data:
        return Data(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]))


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
        self._known: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def add(self, data: Data) -> None:
        """Remember these rows: 8 bytes each."""
        self._known = np.union1d(self._known, fingerprints(data))

    def overlap(self, data: Data) -> float:
        """The share of these rows that were seen before."""
        return float(np.isin(fingerprints(data), self._known).mean()) if len(data) else 0.0


def fingerprints(data: Data) -> NDArray[np.uint64]:
    """One 64-bit hash per row of x and y: (n,)."""
    parts = [part.detach().cpu().double()[:, None].flatten(1).numpy() for part in (data.x, data.y)]
    bits = np.ascontiguousarray(np.concatenate(parts, axis=1)).view(np.uint64)
    total = np.zeros(len(data), dtype=np.uint64)
    # Multiply, shift and mix column by column (splitmix64's constants); overflow wraps, as it should.
    for column in bits.T:
        total = (total ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
    return total


Split: TypeAlias = Callable[[Data], tuple[Data, Data]]
"""Rows → (to train on, held out)."""


def random_split(fraction: float, generator: torch.Generator, *, block: int = 1) -> Split:
    """Hold out a random `fraction` of the rows.

    `block` consecutive rows stay together. Where neighbouring rows resemble each other, set it to the length of a
    trajectory, or to a week of days; otherwise held-out rows are nearly copies of training rows.
    """
    _check_fraction(fraction)
    if block < 1:
        raise CalibrlError(f"block {block} is not a number of rows; use 1 or more")
    return _RandomSplit(fraction, generator, block)


def last_split(fraction: float) -> Split:
    """Hold out the last `fraction` of the rows: for rows in chronological order."""
    _check_fraction(fraction)
    return _LastSplit(fraction)


# Objects instead of inner functions, so that models that hold them can be pickled and copied.


@dataclass(frozen=True)
class _RandomSplit:
    fraction: float
    generator: torch.Generator
    block: int

    def __call__(self, data: Data) -> tuple[Data, Data]:
        blocks = -(-len(data) // self.block)
        # At least one block on each side as soon as there are two; a single row leans by lot.
        wanted = self.fraction * blocks
        count = int(wanted) + int(torch.rand((), generator=self.generator).item() < wanted - int(wanted))
        if blocks >= 2:
            count = min(max(count, 1), blocks - 1)
        held = torch.zeros(blocks, dtype=torch.bool)
        held[torch.randperm(blocks, generator=self.generator)[:count]] = True
        rows = held.repeat_interleave(self.block)[: len(data)].to(data.y.device)
        return data[~rows], data[rows]


@dataclass(frozen=True)
class _LastSplit:
    fraction: float

    def __call__(self, data: Data) -> tuple[Data, Data]:
        count = round(self.fraction * len(data))
        if len(data) >= 2:
            count = min(max(count, 1), len(data) - 1)
        return data[: len(data) - count], data[len(data) - count :]


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise CalibrlError(f"fraction {fraction} is not between 0 and 1; 0.2 holds out a fifth of the rows")


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
            raise CalibrlError(
                "this forecaster has learnt no rows yet; call its update(data) first, also before Prequential wraps it"
            )
        return self._rows.y

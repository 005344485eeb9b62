"""Rows of a table as contexts, encoded with nothing but the rows already shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int16]


@dataclass(frozen=True)
class Features:
    """A table before encoding.

    numeric: (n, p) numbers; codes: (n, c) integers 0 … naming a category in each of c columns; sizes: (c,) how
    many categories each of those columns has room for.
    """

    numeric: Floats
    codes: Codes
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numeric)

    def __getitem__(self, rows: Ints) -> Features:
        return Features(self.numeric[rows], self.codes[rows], self.sizes)

    @property
    def dim(self) -> int:
        """Length of an encoded context: a constant, the numbers, and a column per category."""
        return 1 + self.numeric.shape[1] + sum(self.sizes)


def encode(rows: Features, *, standardised: bool = True) -> Floats:
    """Contexts (n, dim) of rows in the order they are shown: a constant 1, the numbers, the categories one-hot.

    Where standardised, indicators too are: row t with the mean and standard deviation of rows 0 … t. A category
    takes the next free column of its block when it first appears. Columns that still wait for theirs are zero,
    and a zero column changes no forecast: nothing is known of rows to come.
    """
    n = len(rows)
    parts = [rows.numeric]
    for j, size in enumerate(rows.sizes):
        block = np.zeros((n, size))
        block[np.arange(n), _by_first_sight(rows.codes[:, j])] = 1.0
        parts.append(block)
    columns = np.concatenate(parts, axis=1)
    return np.concatenate([np.ones((n, 1)), _standardise(columns) if standardised else columns], axis=1)


def _standardise(values: Floats) -> Floats:
    """(v - mean) / sd, both over the rows up to v's own; 0 while a column has not varied."""
    if not len(values):
        return values
    count = np.arange(1, len(values) + 1)[:, None]
    # Squares are summed about the first row: about zero they would cancel.
    shifted = values - values[0]
    mean = np.cumsum(shifted, axis=0) / count
    variance = np.cumsum(shifted**2, axis=0) / count - mean**2
    scale = np.sqrt(np.maximum(variance, 0.0))
    varied = scale > 1e-9 * np.maximum.accumulate(np.abs(shifted), axis=0)
    result: Floats = np.where(varied, (shifted - mean) / np.where(varied, scale, 1.0), 0.0)
    return result


def _by_first_sight(codes: Codes) -> Ints:
    """Codes renamed 0, 1, 2 … in the order they first appear."""
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]

"""A small memory of many rows: enough to tell whether others are among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.data import Data, fingerprints

KEPT = 1024
"""Fingerprints kept: up to so many rows the memory is complete, beyond it is a sample."""


@dataclass(frozen=True)
class Sketch:
    """The smallest fingerprints of a set of rows (a bottom-k min-hash).

    rows: how many there were; distinct: how many different ones; smallest: the least `KEPT` of their 53-bit
    fingerprints, ascending. Which fingerprints are small is chance, so those kept are a fair sample of rows,
    and the same rows of another file leave the same sample.
    """

    rows: int
    distinct: int
    smallest: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor, y: Tensor) -> Sketch:
        """The sketch of forecasts (n, k) with outcomes (n,)."""
        marks = _marks(values, y)
        return cls(rows=len(y), distinct=len(marks), smallest=tuple(marks[:KEPT].tolist()))

    def share(self, values: Tensor, y: Tensor) -> float:
        """The estimated share of the rows, forecasts (n, k) with outcomes (n,), that are among those remembered.

        Exact up to `KEPT` remembered rows; beyond, from the rows whose fingerprints are as small as those
        kept. Where no more rows are met again than rows of one file are like another of it (rounded forecasts of
        few outcomes), chance explains it: they count as never seen.
        """
        marks = _marks(values, y)
        known = np.array(self.smallest, dtype=np.int64)
        complete = len(known) == self.distinct
        comparable = marks if complete else marks[marks <= known[-1]]
        met = float(np.isin(comparable, known).mean()) if len(comparable) else 0.0
        # Of two rows that are alike, one is not distinct.
        alike = 2 * (1 - min(self.distinct / max(self.rows, 1), len(marks) / max(len(y), 1)))
        return met if met > alike else 0.0


def _marks(values: Tensor, y: Tensor) -> NDArray[np.int64]:
    """Distinct fingerprints, ascending; of single precision, so that a file's number format does not matter."""
    # Adding zero turns -0 into 0. 53 bits are what every JSON reader keeps of a whole number.
    rows = Data((values.to(torch.float32) + 0.0).double(), (y.to(torch.float32) + 0.0).double())
    marks = np.sort((fingerprints(rows) >> np.uint64(11)).astype(np.int64))
    return marks[np.diff(marks, prepend=-1) > 0]

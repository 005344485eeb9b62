"""What each kind of forecast demands of its numbers; a bad one is named with its file, row and column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError, some

SUM_TOLERANCE = 1e-3
"""Probabilities may always miss a sum of one by this much."""

LOST = 0.1
"""Where rounding took more than this from a sum of one, too little is left to share out anew."""


@dataclass(frozen=True)
class Where:
    """Names the place of a bad value."""

    source: str
    number: NDArray[np.int64]
    columns: tuple[str, ...]

    def refuse(self, wrong: NDArray[np.bool_], values: NDArray[np.float64], why: str) -> None:
        """Raise an error for the first cell of `wrong` (n, k) that is true."""
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            self.complain(row, self.columns[column], f"{_plain(values[row, column])} {why}")

    def complain(self, row: int, column: str, problem: str) -> None:
        """Raise an error about the value in `row`, counted from 0, and `column`."""
        raise CalibrlError(f"{self.source}, row {self.number[row]}, column {column}: {problem}")


# What each kind demands of its numbers (n, k).


def _check_normal(values: NDArray[np.float64], where: Where) -> None:
    wrong = np.zeros(values.shape, dtype=bool)
    wrong[:, 1] = values[:, 1] <= 0
    where.refuse(wrong, values, "is not a standard deviation; expected more than 0: repair it or drop the row")


def _check_quantiles(values: NDArray[np.float64], where: Where) -> None:
    levels = [float(name[1:]) for name in where.columns]
    for name, level in zip(where.columns, levels, strict=True):
        if not 0 < level < 1:
            raise CalibrlError(
                f"{where.source}, column {name}: level {level:g} is not between 0 and 1; "
                "name the 5 % quantile q0.05, or rename the column if it is no quantile"
            )
    if len(set(levels)) < max(2, len(levels)):
        raise CalibrlError(
            f"{where.source}: quantile columns {some(where.columns)}; expected two or more different levels"
        )
    crossing = np.diff(values, axis=1) < 0
    if crossing.any():
        row, column = (int(i) for i in np.argwhere(crossing)[0])
        low, high = where.columns[column], where.columns[column + 1]
        where.complain(
            row,
            high,
            f"{_plain(values[row, column + 1])} is below {low} = {_plain(values[row, column])}; "
            "quantiles must not cross: sort each row's values",
        )


def _check_samples(values: NDArray[np.float64], where: Where) -> None:
    if values.shape[1] < 2:
        raise CalibrlError(f"{where.source}: {where.columns[0]} is the only sample; expected two or more per forecast")


def _check_classes(values: NDArray[np.float64], where: Where) -> None:
    expected = tuple(f"p{k}" for k in range(len(where.columns)))
    if where.columns != expected or len(expected) < 2:
        raise CalibrlError(
            f"{where.source}: class columns {some(where.columns)}; expected p0, p1, … without a gap, two or more "
            "(for yes or no, p0 is 1 - p1)"
        )
    where.refuse(
        (values < 0) | (values > 1), values, "is not a probability; expected 0 to 1: repair it or drop the row"
    )
    total = values.sum(1)
    wrong = np.abs(total - 1) > _rounded_away(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        where.complain(
            row,
            f"{expected[0]} … {expected[-1]}",
            f"the probabilities sum to {_plain(total[row])}, not 1; normalise them",
        )
    values /= total[:, None]


def _rounded_away(probs: NDArray[np.float64]) -> float:
    """How far the sum of a row of `probs` (n, k) may be from one: half a unit of the last digit for each of k.

    Only where every number of the table has no more than two, three, … digits, so that a table with all its
    digits is held to a sum of one.
    """
    for digits in (2, 3, 4):
        whole = probs * 10**digits
        if np.abs(whole - np.round(whole)).max() < 1e-3:  # numbers may be single precision
            share = 0.5 * probs.shape[1] * 10**-digits
            return float(np.clip(share, SUM_TOLERANCE, LOST)) + 1e-9  # the sum itself is rounded
    return SUM_TOLERANCE


CHECKS: dict[str, Callable[[NDArray[np.float64], Where], None]] = {
    "normal": _check_normal,
    "quantiles": _check_quantiles,
    "samples": _check_samples,
    "classes": _check_classes,
}


def _plain(value: float) -> str:
    return f"{value:.6g}"

"""What a row of a table forecasts.

A forecast is spelt by the names of its columns:

    mean, std      a Gaussian
    q0.05 q0.5 …   quantiles at those levels
    s0 s1 …        samples
    p0 p1 …        probabilities of the classes 0, 1, …

with the outcome in `y`, empty where nobody saw it. Columns that spell no forecast are carried along untouched.
Rows are counted from 1, below the header.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from calibrl.data import Groups
from calibrl.distributions import Empirical, Quantiles
from calibrl.errors import CalibrlError, cut, some
from calibrl.tables.reader import cure, parse_numbers, read_table

ACCEPTED = {
    "normal": "mean,std",
    "quantiles": "q0.05 q0.5 … (two levels or more)",
    "samples": "s0 s1 … (two samples or more)",
    "classes": "p0 p1 … (one per class)",
}
"""Kinds of forecast, and the columns that spell them."""


@dataclass(frozen=True, eq=False)
class Forecasts:
    """The forecasts of a table.

    Parameters
    ----------
    source : str
        The file, as errors call it.
    kind : str
        A key of `ACCEPTED`.
    columns : tuple of str
        The k that spell the forecast.
    values : Tensor
        (n, k) float64.
    y : Tensor or None
        (n,) float64 outcomes, NaN where unseen; None without a column y.
    frame : polars.DataFrame
        The table.
    number : ndarray
        (n,), the row of the file each came from.
    """

    source: str
    kind: str
    columns: tuple[str, ...]
    values: Tensor
    y: Tensor | None
    frame: pl.DataFrame
    number: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def carried(self) -> list[str]:
        """Columns that spell no forecast of any kind, y among them."""
        spelt = {name for columns in _spelt(self.frame.columns).values() for name in columns}
        return [name for name in self.frame.columns if name not in spelt]

    @property
    def signature(self) -> tuple[str, ...]:
        """The columns under the names we would give them: q.5 is q0.5."""
        return tuple(quantile_column(level) for level in self.levels) if self.kind == "quantiles" else self.columns

    @property
    def levels(self) -> list[float]:
        """The levels of quantile columns."""
        return [float(name[1:]) for name in self.columns]

    def distribution(self, rows: Tensor) -> Distribution:
        """The forecasts of `rows`, (m,) of their numbers from 0, as one torch distribution of batch shape (m,)."""
        values = self.values[rows]
        if self.kind == "normal":
            return Normal(values[:, 0], values[:, 1], validate_args=False)
        if self.kind == "quantiles":
            return Quantiles(values.T, self.levels)
        if self.kind == "samples":
            return Empirical(values.T)
        return Categorical(probs=values, validate_args=False)

    def seen(self) -> tuple[Tensor, Tensor]:
        """The rows with an outcome, (m,) of their numbers, and all outcomes, (n,); an error if there are none."""
        if self.y is None:
            raise CalibrlError(
                f"{self.source}: no column y among {some(self.frame.columns)}; add the outcomes as a column y"
            )
        seen = (~self.y.isnan()).nonzero()[:, 0]
        if len(seen) < 2:
            raise CalibrlError(
                f"{self.source}, column y: outcomes in {len(seen)} of {len(self)} rows; expected at least 2 to judge by"
            )
        return seen, self.y

    def groups(self, column: str) -> Groups:
        """The groups that the text in `column` tells apart, in alphabetical order."""
        if column not in self.carried or column == "y":
            others = [name for name in self.carried if name != "y"]
            raise CalibrlError(
                f"{self.source}: {column!r} is not a column to group by; "
                + (f"the file offers {some(others)}" if others else "the file holds forecasts and outcomes only")
            )
        try:
            names = self.frame[column].cast(pl.String, strict=False)
        except pl.exceptions.PolarsError:
            raise CalibrlError(
                f"{self.source}, column {column}: holds {self.frame.schema[column]}, which names no groups; "
                "group by a column of text or numbers"
            ) from None
        if names.null_count():
            row = self.number[int(names.is_null().arg_true()[0])]
            raise CalibrlError(f"{self.source}, row {row}, column {column}: no group; fill it in or drop the row")
        kinds = names.unique().sort()
        place = names.cast(pl.Enum(kinds)).to_physical().to_numpy()
        return Groups(tuple(kinds), torch.from_numpy(place.astype(np.int64)))


def quantile_column(level: float) -> str:
    """The name of the column of a quantile, with all digits: different levels never share one.

    Parameters
    ----------
    level : float
        In (0, 1).

    Returns
    -------
    str
        Such as q0.05.
    """
    return f"q{float(level)!r}"


def read_forecasts(path: str | Path, *, kind: str | None = None) -> Forecasts:
    """The forecasts of a file, every number checked.

    Parameters
    ----------
    path : str or Path
        A CSV, TSV or Parquet file.
    kind : str, optional
        Which forecast to take where the file holds several: a key of `ACCEPTED`.

    Returns
    -------
    Forecasts
        One row for each of the file that is not empty.
    """
    frame = read_table(path, as_text=True)
    return parse_forecasts(frame, source=str(path), kind=kind)


def parse_forecasts(frame: pl.DataFrame, *, source: str, kind: str | None = None) -> Forecasts:
    """The forecasts of a data frame, every number checked.

    Parameters
    ----------
    frame : polars.DataFrame
        Columns as at the head of this module.
    source : str
        What errors call it.
    kind : str, optional
        Which forecast to take where it holds several.

    Returns
    -------
    Forecasts
        One row for each that is not empty.
    """
    number = np.arange(1, len(frame) + 1)
    blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()
    if blank.any():  # a line left empty is no forecast
        frame, number = frame.filter(~blank), number[~blank]
        if not len(frame):
            raise CalibrlError(f"{source}: every row is empty; expected one forecast per row")
    kind, columns = _recognise(frame.columns, source, kind)
    values = np.stack([_numbers(frame, name, source, number) for name in columns], 1)
    where = Where(source, number, columns)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        name = columns[column]
        where.complain(row, name, f"{_fault(frame[name][row])}; repair the forecast or drop the row")
    _CHECKS[kind](values, where)
    label = f"the number of the class, 0 to {len(columns) - 1}," if kind == "classes" else "a number"
    y = _numbers(frame, "y", source, number, expected=label) if "y" in frame.columns else None
    if y is not None:
        outcome = Where(source, number, ("y",))
        outcome.refuse(np.isinf(y)[:, None], y[:, None], "is not finite; leave the cell empty if nobody saw it")
        if kind == "classes":
            wrong = ~np.isnan(y) & ((y != np.round(y)) | (y < 0) | (y >= len(columns)))
            last = len(columns) - 1
            outcome.refuse(wrong[:, None], y[:, None], f"is not a class; expected a whole number from 0 to {last}")
    return Forecasts(
        source=source,
        kind=kind,
        columns=columns,
        values=torch.from_numpy(values),
        y=None if y is None else torch.from_numpy(y),
        frame=frame,
        number=number,
    )


def _spelt(names: list[str]) -> dict[str, tuple[str, ...]]:
    """Every kind of forecast among the columns, and the columns of each in order."""
    found: dict[str, tuple[str, ...]] = {}
    if {"mean", "std"} <= set(names):
        found["normal"] = ("mean", "std")
    for each, pattern in {
        "quantiles": r"q[-+]?(\d+\.?\d*|\.\d+)(e-?\d+)?",
        "samples": r"s\d+",
        "classes": r"p\d+",
    }.items():
        columns = [name for name in names if re.fullmatch(pattern, name)]
        if columns:
            found[each] = tuple(sorted(columns, key=lambda name: float(name[1:])))
    return found


def _recognise(names: list[str], source: str, kind: str | None) -> tuple[str, tuple[str, ...]]:
    """The kind of forecast to read, and its columns in order."""
    found = _spelt(names)
    accepted = "; ".join(ACCEPTED.values())
    if kind is not None and kind not in ACCEPTED:
        raise CalibrlError(f"kind {kind!r} is unknown; known: {', '.join(ACCEPTED)}")
    if not found or (kind is not None and kind not in found):
        wanted = accepted if kind is None else f"{ACCEPTED[kind]} for {kind}"
        raise CalibrlError(f"{source}: no forecast among the columns {some(names)}; expected {wanted}")
    if kind is None:
        # A mean and std beside quantiles say the same once more, as `calibrl apply` writes them.
        several = [each for each in found if not (each == "normal" and "quantiles" in found)]
        if len(several) > 1:
            both = " and ".join(f"{each} ({found[each][0]} …)" for each in several)
            raise CalibrlError(f"{source}: holds {both} at once; keep one, or choose with --kind {several[0]}")
        kind = several[0]
    return kind, found[kind]


def _fault(cell: object) -> str:
    """What is wrong with a cell that should hold a finite number."""
    written = "" if cell is None else str(cell).strip()
    return f"{written} is not a finite number" if written else "the cell is empty; expected a finite number"


def _numbers(
    frame: pl.DataFrame, name: str, source: str, number: NDArray[np.int64], *, expected: str = "a number"
) -> NDArray[np.float64]:
    """One column as float64, missing as NaN, or an error that names the first cell that is no number."""
    column = frame[name]
    if column.dtype == pl.String:
        parsed, odd = parse_numbers(column)
        if odd is not None:
            found = column[odd]
            raise CalibrlError(
                f"{source}, row {number[odd]}, column {name}: {cut(found)!r} is not a number; "
                + cure(found, expected=f"{expected} or an empty cell")
            )
        column = parsed
    elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
        raise CalibrlError(f"{source}, column {name}: holds {column.dtype}, not numbers; convert the column first")
    # A copy, because polars' memory is read-only.
    return np.array(column.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)


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


_CHECKS: dict[str, Callable[[NDArray[np.float64], Where], None]] = {
    "normal": _check_normal,
    "quantiles": _check_quantiles,
    "samples": _check_samples,
    "classes": _check_classes,
}


def _plain(value: float) -> str:
    return f"{value:.6g}"

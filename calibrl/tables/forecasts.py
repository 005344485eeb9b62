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
from collections.abc import Callable, Sequence
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
from calibrl.errors import CalibrlError, some
from calibrl.tables.reader import Cells, Flags, Floats, read_table

ACCEPTED = {
    "normal": "mean,std",
    "quantiles": "q0.05 q0.5 … (two levels or more)",
    "samples": "s0 s1 … (two samples or more)",
    "classes": "p0 p1 … (one per class)",
}
"""Kinds of forecast, and the columns that spell them."""

TIMES = ("date", "day", "time", "timestamp", "datetime", "ds", "when")
"""What a column of text is called that says when a row came."""


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

    def dates(self) -> tuple[str, NDArray[np.int64]] | None:
        """The column that says when rows came, and their places in time, (n,); None if there is none that can be read.

        A column of dates or times, or one that is called so and whose text can be read as dates.
        """
        for name in self.carried:
            column = self.frame[name]
            if column.dtype == pl.String and name.strip().lower() in TIMES:
                # Of ISO dates and times the text itself is in order; of others the day is known.
                text = column.str.strip_chars()
                if not text.str.contains(r"^\d{4}-\d\d-\d\d").all():
                    try:
                        text = pl.Series(Cells(self.source, self.frame, self.number, "row").dates(name))
                    except CalibrlError:
                        continue
                column = text
            elif not isinstance(column.dtype, pl.Date | pl.Datetime):
                continue
            if not column.null_count() and column.n_unique() > 1:
                return name, column.rank("dense").to_numpy().astype(np.int64)
        return None

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
    return parse_forecasts(read_table(path, as_text=True), source=str(path), kind=kind)


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
    cells = Cells(source, frame, np.arange(1, len(frame) + 1), "row").without_blanks()
    if not len(cells):
        raise CalibrlError(f"{source}: every row is empty; expected one forecast per row")
    frame = cells.frame
    kind, columns = _recognise(frame.columns, source, kind)
    values = np.stack([cells.floats(name) for name in columns], 1)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        written = str(frame[columns[column]][row] or "").strip()
        fault = f"{written} is not a finite number" if written else "the cell is empty; expected a finite number"
        cells.complain(row, columns[column], f"{fault}; repair the forecast or drop the row")
    _CHECKS[kind](values, columns, cells)
    y, last = None, len(columns) - 1
    if cells.has("y"):
        label = f"the number of the class, 0 to {last}," if kind == "classes" else "a number"
        y = cells.floats("y", expected=label)
        _refuse(cells, ["y"], y[:, None], np.isinf(y), "is not finite; leave the cell empty if nobody saw it")
        if kind == "classes":
            wrong = ~np.isnan(y) & ((y != np.round(y)) | (y < 0) | (y > last))
            _refuse(cells, ["y"], y[:, None], wrong, f"is not a class; expected a whole number from 0 to {last}")
    return Forecasts(
        source=source,
        kind=kind,
        columns=columns,
        values=torch.from_numpy(values),
        y=None if y is None else torch.from_numpy(y),
        frame=frame,
        number=cells.line,
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


SUM_TOLERANCE = 1e-3
"""Probabilities may always miss a sum of one by this much."""

LOST = 0.1
"""Where rounding took more than this from a sum of one, too little is left to share out anew."""


def _refuse(cells: Cells, columns: Sequence[str], values: Floats, wrong: Flags, why: str) -> None:
    """Raise an error for the first cell of the columns' values (n, k) that is `wrong`."""
    found = np.argwhere(wrong.reshape(values.shape))
    if len(found):
        row, column = found[0].tolist()
        cells.complain(row, columns[column], f"{_plain(values[row, column])} {why}")


# What each kind demands of its numbers (n, k).


def _check_normal(values: Floats, columns: tuple[str, ...], cells: Cells) -> None:
    wrong = np.zeros(values.shape, dtype=bool)
    wrong[:, 1] = values[:, 1] <= 0
    _refuse(
        cells, columns, values, wrong, "is not a standard deviation; expected more than 0: repair it or drop the row"
    )


def _check_quantiles(values: Floats, columns: tuple[str, ...], cells: Cells) -> None:
    levels = [float(name[1:]) for name in columns]
    for name, level in zip(columns, levels, strict=True):
        if not 0 < level < 1:
            raise CalibrlError(
                f"{cells.source}, column {name}: level {level:g} is not between 0 and 1; "
                "name the 5 % quantile q0.05, or rename the column if it is no quantile"
            )
    if len(set(levels)) < max(2, len(levels)):
        raise CalibrlError(f"{cells.source}: quantile columns {some(columns)}; expected two or more different levels")
    crossing = np.diff(values, axis=1) < 0
    if crossing.any():
        row, column = np.argwhere(crossing)[0].tolist()
        low, high = columns[column], columns[column + 1]
        cells.complain(
            row,
            high,
            f"{_plain(values[row, column + 1])} is below {low} = {_plain(values[row, column])}; "
            "quantiles must not cross: sort each row's values",
        )


def _check_samples(values: Floats, columns: tuple[str, ...], cells: Cells) -> None:
    if values.shape[1] < 2:
        raise CalibrlError(f"{cells.source}: {columns[0]} is the only sample; expected two or more per forecast")


def _check_classes(values: Floats, columns: tuple[str, ...], cells: Cells) -> None:
    expected = tuple(f"p{k}" for k in range(len(columns)))
    if columns != expected or len(expected) < 2:
        raise CalibrlError(
            f"{cells.source}: class columns {some(columns)}; expected p0, p1, … without a gap, two or more "
            "(for yes or no, p0 is 1 - p1)"
        )
    wrong = (values < 0) | (values > 1)
    _refuse(cells, columns, values, wrong, "is not a probability; expected 0 to 1: repair it or drop the row")
    total = values.sum(1)
    cells.refuse(
        np.abs(total - 1) > _rounded_away(values),
        f"{expected[0]} … {expected[-1]}",
        lambda row: f"the probabilities sum to {_plain(total[row])}, not 1; normalise them",
    )
    values /= total[:, None]


def _rounded_away(probs: Floats) -> float:
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


_CHECKS: dict[str, Callable[[Floats, tuple[str, ...], Cells], None]] = {
    "normal": _check_normal,
    "quantiles": _check_quantiles,
    "samples": _check_samples,
    "classes": _check_classes,
}


def _plain(value: float) -> str:
    return f"{value:.6g}"

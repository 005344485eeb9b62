"""Numbers as people and programs write them into tables.

Tables as files: CSV and Parquet, read with clear errors and written whole.

What each kind of forecast demands of its numbers; a bad one is named with its file, row and column.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.errors import CalibrlError, cut, first_line, some
from calibrl.files import replacing, said_if_no_place

UNSEEN = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
"""How programs write that a value is missing."""

DECIMAL_COMMA = r"^[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0|\d{4,}),\d+)$"
"""A number whose comma cannot stand between thousands."""


def parse_numbers(text: pl.Series) -> tuple[pl.Series, int | None]:
    """Text as float64, null where it says that a value is missing; and the first row that holds no number.

    Decimals have a point, or a comma throughout the column.
    """
    text = text.str.strip_chars()
    commas = text.str.contains(DECIMAL_COMMA).any() and not text.str.contains(".", literal=True).any()
    parsed = (text.str.replace(",", ".", literal=True) if commas else text).cast(pl.Float64, strict=False)
    odd = parsed.is_null() & text.is_not_null() & ~text.is_in(UNSEEN)
    return parsed, int(odd.arg_true()[0]) if odd.any() else None


def cure(text: str, *, expected: str = "a number or an empty cell") -> str:
    """What to do about a text that is no number, where something else was expected."""
    if re.fullmatch(r"[-+]?\d{1,3}(?:([,.' \u00a0\u202f])\d{3})(?:\1\d{3})*(?:[.,]\d+)?", text.strip()):
        return "drop the thousands separator"
    return "write decimals with a point" if "," in text else f"expected {expected}"


def read_table(path: str | Path, *, as_text: bool = False) -> pl.DataFrame:
    """A CSV, TSV or Parquet file as a data frame.

    Column types are inferred from all rows; with `as_text` every cell of a text file stays as it was written
    (an id of 007 stays 007). Commas, semicolons and tabs are told apart by the header line.
    """
    file = Path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise CalibrlError(f"{file}: {what}; give the path of a CSV or Parquet file")
    suffix = _suffix(file)
    if not file.stat().st_size:
        raise CalibrlError(f"{file}: the file is empty; expected a header line and rows below it")
    try:
        if suffix == ".parquet":
            frame = pl.read_parquet(file)
            names = frame.columns
        else:
            separator, names = _header(file)
            # None: look at every row before settling a column's type.
            frame = pl.read_csv(file, separator=separator, infer_schema=not as_text, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, csv.Error) as problem:
        raise CalibrlError(
            f"{file}: cannot be read as {'Parquet' if suffix == '.parquet' else 'CSV'} ({_reason(problem)}); "
            "expected UTF-8 text with as many cells in every row as in the header, or a whole Parquet file"
        ) from None
    _refuse_twins([name.strip() for name in names], file)
    frame = frame.rename({name: name.strip() or name for name in frame.columns})
    if not len(frame):
        raise CalibrlError(f"{file}: no rows below the header {some(frame.columns)}; expected at least one")
    return frame


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a data frame as CSV, TSV or Parquet, by the suffix of `path`: the whole file or none of it."""
    file = Path(path)
    suffix = _suffix(file)
    try:
        with said_if_no_place(file), replacing(file) as temporary:
            if suffix == ".parquet":
                frame.write_parquet(temporary)
            else:
                frame.write_csv(temporary, separator="\t" if suffix == ".tsv" else ",")
    except pl.exceptions.PolarsError as problem:
        odd = [name for name, dtype in frame.schema.items() if dtype.is_nested() or dtype in (pl.Binary, pl.Object)]
        raise CalibrlError(
            f"{file}: cannot be written ({_reason(problem)}); write .parquet, or leave out {some(odd or frame.columns)}"
        ) from None


def _suffix(file: Path) -> str:
    suffix = file.suffix.lower()
    if suffix not in {".csv", ".tsv", ".parquet"}:
        cure = "save the sheet as CSV" if suffix in {".xlsx", ".xls", ".ods"} else "rename the file to what it holds"
        raise CalibrlError(f"{file}: suffix {suffix!r} is not .csv, .tsv or .parquet; {cure}")
    return suffix


def _header(file: Path) -> tuple[str, list[str]]:
    """What separates the cells of a text file, and the names in its first line that is not empty."""
    with file.open(encoding="utf-8-sig") as text:
        lines = (line for line in text if line.strip())
        first = next(lines, "")
        if text.newlines == "\r":
            raise CalibrlError(f"{file}: lines end in a carriage return alone; save it with line feeds (\\n or \\r\\n)")
        separator = max(",;\t", key=first.count)
        return separator, next(csv.reader(itertools.chain([first], lines), delimiter=separator), [])


def _refuse_twins(names: list[str], file: Path) -> None:
    """Refuse a name that two columns share: nobody could say which of them is meant."""
    twin = next((name for place, name in enumerate(names) if name and name in names[:place]), None)
    if twin is not None:
        raise CalibrlError(f"{file}: {names.count(twin)} columns are named {cut(twin)}; give each a name of its own")


def _reason(problem: Exception) -> str:
    """What another library said, cut to fit a line."""
    return cut(first_line(problem), 160)


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

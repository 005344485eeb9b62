"""Tables as files: CSV, TSV and Parquet, read with clear errors and written whole; numbers as people write them."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path

import polars as pl

from calibrl.errors import CalibrlError, cut, first_line, some
from calibrl.files import replacing, writable

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

    Commas, semicolons and tabs are told apart by the header line.

    Parameters
    ----------
    path : str or Path
        The file.
    as_text : bool
        Whether every cell of a text file stays as it was written (an id of 007 stays 007); otherwise column types are
        inferred from all rows.

    Returns
    -------
    polars.DataFrame
        At least one row; no two columns of one name.
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
    """Write a data frame as CSV, TSV or Parquet: the whole file or none of it.

    Parameters
    ----------
    frame : polars.DataFrame
        What to write.
    path : str or Path
        Its suffix says how.
    """
    file = Path(path)
    suffix = _suffix(file)
    try:
        with writable(file), replacing(file) as temporary:
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

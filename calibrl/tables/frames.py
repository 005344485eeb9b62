"""Tables as files: CSV and Parquet, read with clear errors and written whole."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import polars as pl

from calibrl.errors import CalibrlError, cut, first_line, some
from calibrl.files import replacing, said_if_no_place


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

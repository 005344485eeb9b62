"""Tables as files: CSV, TSV and Parquet, read with errors that name file, line, column and cure, and written whole."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.errors import CalibrlError, cut, first_line, some
from calibrl.files import replacing, writable

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Days: TypeAlias = NDArray[np.datetime64]

UNSEEN = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
"""How programs write that a value is missing."""

DECIMAL_COMMA = r"^[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0|\d{4,}),\d+)$"
"""A number whose comma cannot stand between thousands."""

YES, NO = ["1", "1.0", "true", "yes", "y"], ["0", "0.0", "false", "no", "n"]

DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y")
"""Ways to write a date that cannot be mistaken; 03/04/2018 can, and is refused."""

TIME = r"[T ] *(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)? *(?:Z|[+-]\d\d(?::?\d\d)?)?$"
"""What may follow a date: the time of day, and how far the clock is from UTC."""

MIDNIGHT = r"[T ] *0?0:00(?::00(?:[.,]0+)?)? *Z$"

THOUSANDS = r"^[-+]?[1-9]\d{0,2}\.\d{3}$"
"""A number whose point may stand between thousands."""

EARLIEST, LATEST = np.datetime64("1950-01-01"), np.datetime64("2150-01-01")
"""A date outside is a slip of the pen."""


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
    frame = _read(Path(path), as_text=as_text)
    if not len(frame):
        raise CalibrlError(f"{path}: no rows below the header {some(frame.columns)}; expected at least one")
    return frame


def _read(file: Path, *, as_text: bool) -> pl.DataFrame:
    """The rows of a file, perhaps none."""
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
    return frame.rename({name: name.strip() or name for name in frame.columns})


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


@dataclass(frozen=True)
class Cells:
    """A table whose columns are asked for one by one; a bad cell is an error that says where it is.

    A column left out reads as one whose cells are all empty.

    Parameters
    ----------
    source : str
        The file.
    frame : polars DataFrame
        Its n rows.
    line : array (n,)
        The line of the file each row stands on; of a Parquet file, its row.
    place : str
        What errors call that: "line" or "row".
    unknown : tuple of str
        Columns that nobody will ask for.
    """

    source: str
    frame: pl.DataFrame
    line: NDArray[np.int64]
    place: str = "line"
    unknown: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.frame)

    def without_blanks(self) -> Cells:
        """The rows that are not empty throughout."""
        kept = self.frame.select(~pl.all_horizontal(pl.all().is_null())).to_series().to_numpy().astype(bool)
        return replace(self, frame=self.frame.filter(kept), line=self.line[kept])

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.frame.columns

    def complain(self, row: int, column: str, problem: str) -> NoReturn:
        """Raise an error about the cell in `row`, counted from 0, and `column`."""
        raise CalibrlError(f"{self.source}, {self.where(row)}, column {column}: {problem}")

    def refuse(self, wrong: Flags | pl.Series, column: str, problem: Callable[[int], str]) -> None:
        """Raise an error about the first cell of `column` that is `wrong` (n,). problem: what to say of its row."""
        if wrong.any():
            row = int(np.argmax(wrong))
            self.complain(row, column, problem(row))

    def where(self, row: int) -> str:
        """The place of a row, in words."""
        return f"{self.place} {self.line[row]}"

    def texts(self, name: str, *, needed: bool = True) -> list[str]:
        """A column of names; one left empty is an error if they are `needed`, else the empty text."""
        text = self._text(name).fill_null("")
        if needed:
            self.refuse(text == "", name, lambda _: "is empty; every row needs one")
        return text.to_list()

    def floats(self, name: str, *, expected: str = "a number") -> Floats:
        """A column as float64, NaN where the cell is empty. Decimals have a point, or a comma throughout the column."""
        column = self._column(name)
        if column.dtype == pl.String:
            text = column.str.strip_chars()
            commas = text.str.contains(DECIMAL_COMMA).any() and not text.str.contains(".", literal=True).any()
            parsed = (text.str.replace(",", ".", literal=True) if commas else text).cast(pl.Float64, strict=False)
            odd = parsed.is_null() & text.is_not_null() & ~text.is_in(UNSEEN)
            self.refuse(odd, name, lambda row: f"{cut(column[row])!r} is not a number; {_cure(text[row], expected)}")
            column = parsed
        elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
            raise CalibrlError(f"{self.source}, column {name}: holds {column.dtype}, not numbers; convert it first")
        # A copy, because polars' memory is read-only.
        return np.array(column.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)

    def numbers(self, name: str) -> Floats:
        """A column of finite numbers whose points stand before decimals, NaN where the cell is empty."""
        values, column = self.floats(name), self._column(name)
        if column.dtype == pl.String:
            self.refuse(
                _thousands(column.str.strip_chars()),
                name,
                lambda row: f"{cut(column[row])!r} may be a thousand times that; drop the thousands separator",
            )
        self.refuse(np.isinf(values), name, lambda _: "is infinite; expected a finite number")
        return values

    def at_least(
        self, name: str, least: float, what: str, *, most: float = np.inf, whole: bool = False, cure: str = ""
    ) -> Floats:
        """A column of numbers of `least` or more, up to `most` (`whole`: and without decimals), NaN where empty.

        what: what such a number is; cure: what to do about another, said after what was expected.
        """
        values = self.numbers(name)
        self.refuse(
            values < least, name, lambda row: f"{values[row]:g} is not {what}; expected {least:g} or more{cure}"
        )
        if whole:
            broken = (values != np.floor(values)) & ~np.isnan(values)
            self.refuse(broken, name, lambda row: f"{values[row]:g} is not {what}; expected a whole number{cure}")
        self.refuse(values > most, name, lambda row: f"{values[row]:.0f} is not {what}; expected {most:g} at most")
        return values

    def flags(self, name: str, *, default: bool) -> Flags:
        """A column of yes and no; an empty cell means `default`."""
        text = self._text(name).str.to_lowercase()
        known = text.is_in([*YES, *NO, *(word.lower() for word in UNSEEN)]) | text.is_null()
        self.refuse(~known, name, lambda row: f"{cut(text[row])!r} is neither yes nor no; write 1 or 0")
        said = text.is_in(YES) if not default else ~text.is_in(NO)
        return said.fill_null(default).to_numpy().astype(bool)

    def dates(self, name: str, *, needed: bool = True) -> Days:
        """A column of dates as datetime64[D]; NaT where empty, which is an error if they are `needed`."""
        column = self._column(name)
        if isinstance(column.dtype, pl.Date | pl.Datetime):
            parsed = column.dt.date()  # the day where the clock stands, not in UTC
            text = column.cast(pl.String)
            if getattr(column.dtype, "time_zone", None) in ("UTC", "Etc/UTC"):
                text = text.str.replace("+00:00", "Z", literal=True)
        else:
            text = self._text(name)
            parsed = _first_format(text.str.replace(TIME, ""))
        self.refuse(
            (text.str.contains("Z$") & ~text.str.contains(MIDNIGHT)).fill_null(False),
            name,
            lambda row: (
                f"{cut(text[row])!r} is a time in UTC, perhaps of another day where the shop is; write the shop's own "
                "day, like 2018-05-31"
            ),
        )
        odd = parsed.is_null() & text.is_not_null() & ~text.is_in(UNSEEN)
        self.refuse(odd, name, lambda row: f"{cut(text[row])!r} is not a date; write it like 2018-05-31")
        if needed:
            self.refuse(parsed.is_null(), name, lambda _: "is empty; write a date like 2018-05-31")
        days: Days = parsed.to_numpy().astype("datetime64[D]")
        outside = (days < EARLIEST) | (days > LATEST)
        self.refuse(outside, name, lambda row: f"{days[row]} is not a date of our time; check the year")
        return days

    def _column(self, name: str) -> pl.Series:
        """A column; one left out is empty throughout."""
        return self.frame[name] if self.has(name) else pl.repeat(None, len(self), dtype=pl.String, eager=True)

    def _text(self, name: str) -> pl.Series:
        column = self._column(name)
        if column.dtype.is_float():  # ids that a program stored as 7.0
            whole = column.cast(pl.Int64, strict=False)
            if (whole.cast(pl.Float64) == column).fill_null(True).all():
                column = whole
        return column.cast(pl.String, strict=False).str.strip_chars()


def read_cells(path: str | Path, *, needed: Sequence[str], optional: Sequence[str], what: str) -> Cells:
    """The rows of a CSV or Parquet file that has the columns it needs.

    Names are matched without regard to case, spaces and underscores ("Shelf Life" is shelf_life); columns that
    are neither needed nor optional are left alone. Empty lines are skipped.

    Parameters
    ----------
    path : path
        The file. One with a header and no rows is no error.
    needed, optional : sequences of str
        Columns.
    what : str
        What errors call such a file.
    """
    file = Path(path)
    frame = _read(file, as_text=True)
    frame = frame.rename(_proper_names(frame.columns, [*needed, *optional], str(file)))
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        found = ", ".join(frame.columns[:12]) + (", …" if len(frame.columns) > 12 else "")
        raise CalibrlError(
            f"{file}: no column {' and no column '.join(missing)} among {found}; {what} needs {', '.join(needed)}"
        )
    parquet = file.suffix.lower() == ".parquet"
    line = np.arange(len(frame)) + (1 if parquet else 2)
    unknown = tuple(name for name in frame.columns if name not in (*needed, *optional))
    return Cells(str(file), frame, line, "row" if parquet else "line", unknown).without_blanks()


def _proper_names(found: list[str], known: list[str], source: str) -> dict[str, str]:
    """From the file's spelling to ours. A column we do not know must not end up under a name we do."""
    ours = {_plain(name): name for name in known}
    renamed: dict[str, str] = {}
    for name in found:
        proper = ours.get(_plain(name), name)
        if proper in known and proper in renamed.values():
            raise CalibrlError(f"{source}: two columns are called {proper}; keep one")
        renamed[name] = proper
    return renamed


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "").replace("_", "").replace("-", "")


def _first_format(text: pl.Series) -> pl.Series:
    """Dates in the first way of writing that fits all of them, or the one that fits most."""
    tried: list[pl.Series] = []
    for form in DATE_FORMATS:
        tried.append(text.str.to_date(form, strict=False))
        if tried[-1].null_count() == text.null_count():
            break
    return min(tried, key=pl.Series.null_count)


def _thousands(text: pl.Series) -> pl.Series:
    """Rows of a column whose points seem to stand between thousands: 1.200 beside 950."""
    pointed = text.str.contains(".", literal=True).fill_null(False)
    if not pointed.any() or not text.filter(pointed).str.contains(THOUSANDS).all():
        return pointed & False
    return pointed & bool(text.str.contains(r"^[1-9]\d{0,2}$").any())


def _cure(text: str, expected: str) -> str:
    """What to do about a text that is no number."""
    if re.fullmatch(r"[-+]?\d{1,3}(?:([,.' \u00a0\u202f])\d{3})(?:\1\d{3})*(?:[.,]\d+)?", text):
        return "drop the thousands separator"
    return "write decimals with a point" if "," in text else f"expected {expected} or an empty cell"

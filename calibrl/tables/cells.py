"""Columns of the files people keep, read with errors that name the file, the line, the column and the cure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.tables.reader import UNSEEN, cure, parse_numbers, read_table

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Days: TypeAlias = NDArray[np.datetime64]

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


@dataclass(frozen=True)
class Cells:
    """A table whose columns are asked for one by one; a bad cell is an error that says where it is.

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
    """

    source: str
    frame: pl.DataFrame
    line: NDArray[np.int64]
    place: str = "line"

    def __len__(self) -> int:
        return len(self.frame)

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

    def numbers(self, name: str) -> Floats:
        """A column of numbers, NaN where the cell is empty."""
        column = self.frame[name]
        if column.dtype == pl.String:
            parsed, odd = parse_numbers(column)
            if odd is not None:
                self.complain(odd, name, f"{_short(column[odd])} is not a number; {cure(column[odd])}")
            self.refuse(
                _thousands(column.str.strip_chars()),
                name,
                lambda row: f"{_short(column[row])} may be a thousand times that; drop the thousands separator",
            )
        elif column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
            parsed = column
        else:
            raise CalibrlError(f"{self.source}, column {name}: holds {column.dtype}, not numbers; convert it first")
        values = np.array(parsed.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)
        self.refuse(np.isinf(values), name, lambda _: "is infinite; expected a finite number")
        return values

    def at_least(self, name: str, least: float, what: str, *, whole: bool = False, cure: str = "") -> Floats:
        """A column of numbers of `least` or more (`whole`: and without decimals), NaN where empty.

        what: what such a number is; cure: what to do about another, said after what was expected.
        """
        values = self.numbers(name)
        self.refuse(
            values < least, name, lambda row: f"{values[row]:g} is not {what}; expected {least:g} or more{cure}"
        )
        if whole:
            broken = (values != np.floor(values)) & ~np.isnan(values)
            self.refuse(broken, name, lambda row: f"{values[row]:g} is not {what}; expected a whole number{cure}")
        return values

    def flags(self, name: str, *, default: bool) -> Flags:
        """A column of yes and no; an empty cell means `default`."""
        text = self._text(name).str.to_lowercase()
        known = text.is_in([*YES, *NO, *(word.lower() for word in UNSEEN)]) | text.is_null()
        self.refuse(~known, name, lambda row: f"{_short(text[row])} is neither yes nor no; write 1 or 0")
        said = text.is_in(YES) if not default else ~text.is_in(NO)
        return said.fill_null(default).to_numpy().astype(bool)

    def dates(self, name: str, *, needed: bool = True) -> Days:
        """A column of dates as datetime64[D]; NaT where empty, which is an error if they are `needed`."""
        column = self.frame[name]
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
                f"{_short(text[row])} is a time in UTC, perhaps of another day where the shop is; write the shop's own "
                "day, like 2018-05-31"
            ),
        )
        odd = parsed.is_null() & text.is_not_null() & ~text.is_in(UNSEEN)
        self.refuse(odd, name, lambda row: f"{_short(text[row])} is not a date; write it like 2018-05-31")
        if needed:
            self.refuse(parsed.is_null(), name, lambda _: "is empty; write a date like 2018-05-31")
        days: Days = parsed.to_numpy().astype("datetime64[D]")
        outside = (days < EARLIEST) | (days > LATEST)
        self.refuse(outside, name, lambda row: f"{days[row]} is not a date of our time; check the year")
        return days

    def _text(self, name: str) -> pl.Series:
        column = self.frame[name]
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
    header = _only_line(file)
    frame = read_table(file, as_text=True) if header is None else _no_rows(header)
    frame = frame.rename(_proper_names(frame.columns, [*needed, *optional], str(file)))
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        found = ", ".join(frame.columns[:12]) + (", …" if len(frame.columns) > 12 else "")
        raise CalibrlError(
            f"{file}: no column {' and no column '.join(missing)} among {found}; {what} needs {', '.join(needed)}"
        )
    parquet = file.suffix.lower() == ".parquet"
    line = np.arange(1, len(frame) + 1) + (0 if parquet else 1)
    blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy().astype(bool)
    if blank.any():
        frame, line = frame.filter(~blank), line[~blank]
    return Cells(str(file), frame, line, "row" if parquet else "line")


def _only_line(file: Path) -> str | None:
    """The header of a text file without any other line: a history that has yet to begin is not an error."""
    if file.suffix.lower() not in {".csv", ".tsv"} or not file.is_file() or file.stat().st_size > 4096:
        return None
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        return None
    alone = bool(lines) and bool(lines[0].strip()) and not any(line.strip() for line in lines[1:])
    return lines[0] if alone else None


def _no_rows(header: str) -> pl.DataFrame:
    names = [name.strip().strip('"') for name in header.split(max(",;\t", key=header.count))]
    return pl.DataFrame(schema=dict.fromkeys(names, pl.String))


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


def _short(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:39] + "…")

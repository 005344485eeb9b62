"""Columns of the files people keep, read with errors that name the file, the line and the cure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.errors import CalibrlError
from calibrl.tables import read_table
from calibrl.tables.reader import UNSEEN, cure, parse_numbers

Floats: TypeAlias = NDArray[np.float64]
Days: TypeAlias = NDArray[np.datetime64]

YES, NO = ["1", "1.0", "true", "yes", "y"], ["0", "0.0", "false", "no", "n"]

DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y")
"""Ways to write a date that cannot be mistaken; 03/04/2018 can, and is refused."""

TIME = r"[T ] *(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)? *(?:Z|[+-]\d\d(?::?\d\d)?)?$"
"""What may follow a date: the time of day, and how far the clock is from UTC."""

MIDNIGHT = r"[T ] *0?0:00(?::00(?:[.,]0+)?)? *Z$"

THOUSANDS = r"^[-+]?[1-9]\d{0,2}\.\d{3}$"
"""A number whose point can."""

EARLIEST, LATEST = np.datetime64("1950-01-01"), np.datetime64("2150-01-01")
"""A date outside is a slip of the pen."""


@dataclass(frozen=True)
class Cells:
    """A table whose columns are asked for one by one.

    source: the file; frame: its rows; line: (n,) the line of the file each row stands on (for Parquet, its row);
    place: what errors call that, line or row.
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
        raise CalibrlError(f"{self.source}, {self.place} {self.line[row]}, column {column}: {problem}")

    def where(self, row: int) -> str:
        """The place of a row, in words."""
        return f"{self.place} {self.line[row]}"

    def texts(self, name: str, *, needed: bool = True) -> list[str]:
        """A column of names; one left empty is an error if they are `needed`, else the empty text."""
        text = self._text(name).fill_null("")
        missing = text == ""
        if needed and missing.any():
            self.complain(int(missing.arg_true()[0]), name, "is empty; every row needs one")
        return text.to_list()

    def numbers(self, name: str) -> Floats:
        """A column of numbers, NaN where the cell is empty."""
        column = self.frame[name]
        if column.dtype == pl.String:
            parsed, odd = parse_numbers(column)
            if odd is not None:
                self.complain(odd, name, f"{_short(column[odd])} is not a number; {cure(column[odd])}")
            unclear = _thousands(column.str.strip_chars())
            if unclear is not None:
                shown = _short(column[unclear])
                self.complain(unclear, name, f"{shown} may be a thousand times that; drop the thousands separator")
            column = parsed
        elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
            raise CalibrlError(f"{self.source}, column {name}: holds {column.dtype}, not numbers; convert it first")
        values = np.array(column.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)
        infinite = np.isinf(values)
        if infinite.any():
            self.complain(int(infinite.argmax()), name, "is infinite; expected a finite number")
        return values

    def at_least(self, name: str, least: float, what: str, *, whole: bool = False, cure: str = "") -> Floats:
        """A column of numbers of `least` or more (`whole`: and without decimals), NaN where empty.

        cure: what to do about another, said after what was expected.
        """
        values = self.numbers(name)
        wrong = values < least
        if wrong.any():
            row = int(wrong.argmax())
            self.complain(row, name, f"{values[row]:g} is not {what}; expected {least:g} or more{cure}")
        broken = whole & (values != np.floor(values)) & ~np.isnan(values)
        if broken.any():
            row = int(broken.argmax())
            self.complain(row, name, f"{values[row]:g} is not {what}; expected a whole number{cure}")
        return values

    def flags(self, name: str, *, default: bool) -> NDArray[np.bool_]:
        """A column of yes and no; an empty cell means `default`."""
        text = self._text(name).str.to_lowercase()
        known = text.is_in([*YES, *NO, *(word.lower() for word in UNSEEN)]) | text.is_null()
        if not known.all():
            row = int((~known).arg_true()[0])
            self.complain(row, name, f"{_short(text[row])} is neither yes nor no; write 1 or 0")
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
        abroad = (text.str.contains("Z$") & ~text.str.contains(MIDNIGHT)).fill_null(False)
        if abroad.any():
            row = int(abroad.arg_true()[0])
            self.complain(
                row,
                name,
                f"{_short(text[row])} is a time in UTC, perhaps of another day where the shop is; write the shop's own "
                "day, like 2018-05-31",
            )
        odd = parsed.is_null() & text.is_not_null() & ~text.is_in(UNSEEN)
        if odd.any():
            row = int(odd.arg_true()[0])
            self.complain(row, name, f"{_short(text[row])} is not a date; write it like 2018-05-31")
        if needed and parsed.null_count():
            self.complain(int(parsed.is_null().arg_true()[0]), name, "is empty; write a date like 2018-05-31")
        days: Days = parsed.to_numpy().astype("datetime64[D]")
        outside = (days < EARLIEST) | (days > LATEST)
        if outside.any():
            row = int(outside.argmax())
            self.complain(row, name, f"{days[row]} is not a date of our time; check the year")
        return days

    def _text(self, name: str) -> pl.Series:
        column = self.frame[name]
        if column.dtype.is_float():  # ids that a program stored as 7.0
            whole = column.cast(pl.Int64, strict=False)
            if (whole.cast(pl.Float64) == column).fill_null(True).all():
                column = whole
        return column.cast(pl.String, strict=False).str.strip_chars()


def read_cells(path: str | Path, *, needed: Sequence[str], optional: Sequence[str], what: str) -> Cells:
    """The rows of a CSV or Parquet file that has the `needed` columns.

    Names are matched without regard to case, spaces and underscores ("Shelf Life" is shelf_life); columns that
    are neither needed nor optional are left alone. Empty lines are skipped.
    """
    file = Path(path)
    frame = _header_only(file) if _has_only_a_header(file) else read_table(file, as_text=True)
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


def _has_only_a_header(file: Path) -> bool:
    """Whether a text file has one line: a history that has yet to begin is not an error."""
    if file.suffix.lower() not in {".csv", ".tsv"} or not file.is_file() or file.stat().st_size > 4096:
        return False
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        return False
    return bool(lines) and bool(lines[0].strip()) and not any(line.strip() for line in lines[1:])


def _header_only(file: Path) -> pl.DataFrame:
    header = file.read_text(encoding="utf-8-sig").splitlines()[0]
    names = [name.strip().strip('"') for name in header.split(max(",;\t", key=header.count))]
    return pl.DataFrame({name: [] for name in dict.fromkeys(names)}, schema_overrides=dict.fromkeys(names, pl.String))


def _proper_names(found: list[str], known: list[str], source: str) -> dict[str, str]:
    """From the file's spelling to ours."""
    ours = {_plain(name): name for name in known}
    renamed: dict[str, str] = {}
    for name in found:
        proper = ours.get(_plain(name))
        if proper is None:
            continue
        if proper in renamed.values():
            raise CalibrlError(f"{source}: two columns are called {proper}; keep one")
        renamed[name] = proper
    # A column we do not know must not end up under a name we do.
    return {name: renamed.get(name, name) for name in found}


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "").replace("_", "").replace("-", "")


def _first_format(text: pl.Series) -> pl.Series:
    """Dates in the first way of writing that fits all of them, or the one that fits most."""
    best: pl.Series | None = None
    for form in DATE_FORMATS:
        parsed = text.str.to_date(form, strict=False)
        if best is None or parsed.null_count() < best.null_count():
            best = parsed
        if best.null_count() == text.null_count():
            break
    assert best is not None
    return best


def _thousands(text: pl.Series) -> int | None:
    """The first row of a column whose points seem to stand between thousands: 1.200 beside 950."""
    pointed = text.str.contains(".", literal=True).fill_null(False)
    if not pointed.any() or not text.filter(pointed).str.contains(THOUSANDS).all():
        return None
    plain = text.str.contains(r"^[1-9]\d{0,2}$").any()
    return int(pointed.arg_true()[0]) if plain else None


def _short(value: str) -> str:
    shown = value if len(value) <= 40 else value[:39] + "…"
    return repr(shown)

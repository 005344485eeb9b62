"""Tables read cell by cell: columns found by any of their names, numbers and dates as people write them.

Errors name file, line, column and cure. `read_cells` is the reader of every command that takes a table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.errors import CalibrlError, cut, some
from calibrl.tables.formats import Source, load

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Days: TypeAlias = NDArray[np.datetime64]

UNSEEN = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", ".", "<NA>", "#N/A", "#NV"]
"""How programs write that a value is missing; of numbers some write "missing", too."""

DECIMAL_COMMA = r"^[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0|\d{4,}),\d+)$"
"""A number whose comma cannot stand between thousands."""

YES = ["1", "1.0", "true", "yes", "y", "ja", "wahr", "oui", "vrai", "sí", "si", "sì"]
NO = ["0", "0.0", "false", "no", "n", "nein", "falsch", "non", "faux", "não", "nee", "nej", "nei", "nie", "ne", "nem"]

DATE_FORMATS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
    *("%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y"),
)
"""Ways to write a date. 03/04/2018 may be one of two: where a whole column leaves that open, it is refused."""

DATE_WORDS = {"day-first": ("%d/%m/%Y", "%d-%m-%Y"), "month-first": ("%m/%d/%Y", "%m-%d-%Y")}
"""What `date_format` may be instead of a format."""

DAY_NAME = (
    r"(?i)^(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?|mo|di|mi|do|fr|sa|so|"
    r"(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche)[.,]* +"
)
"""A weekday, which may stand before a date."""

SHORT_YEAR = r"^(\d{1,2})([./-]| )(\d{1,2}|[A-Za-z]{3,9})([./-]| )(\d\d)$"
"""A date whose year has two digits."""

TIME = r"[T ,]+(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)? *(?:[AaPp]\.?[Mm]\.?)? *(?:Z|[+-]\d\d(?::?\d\d)?)?$"
"""What may follow a date: the time of day, and how far the clock is from UTC."""

MIDNIGHT = r"[T ] *0?0:00(?::00(?:[.,]0+)?)? *Z$"

THOUSANDS = r"^[-+]?[1-9]\d{0,2}\.\d{3}$"
"""A number whose point may stand between thousands."""

BOTH_MARKS = {".": r"^[-+]?\d{1,3}(?:,\d{3})+\.\d+$", ",": r"^[-+]?\d{1,3}(?:\.\d{3})+,\d+$"}
"""Numbers with marks between thousands and before decimals, by the latter: such a cell settles its column."""

SPACED = r"^[-+]?\d{1,3}(?:[ '’\u00a0\u202f]\d{3})+(?:[.,]\d+)?$"
"""A number with something between thousands that is no decimal mark."""

CURRENCY = r"^([-+]?)[$€£¥][ \u00a0\u202f]?|[ \u00a0\u202f]?[$€£¥]$"
PERCENT = r"[ \u00a0\u202f]?%$"

SERIAL_ZERO = np.datetime64("1899-12-30")
"""The day that spreadsheets count from."""

EARLIEST, LATEST = np.datetime64("1950-01-01"), np.datetime64("2150-01-01")
"""A date outside is a slip of the pen."""


def read_table(path: str | Path, *, as_text: bool = False, sheet: str | None = None) -> pl.DataFrame:
    """A file of text (.csv, .tsv, .txt, each also .gz), Parquet, Feather or Excel as a data frame.

    Of text, separator (comma, semicolon, tab, bar, space) and encoding (UTF-8, UTF-16, Latin-1) are found out.

    Parameters
    ----------
    path : str or Path
        The file; its name is taken literally, never as a pattern.
    as_text : bool
        Whether every cell of a text file stays as it was written (an id of 007 stays 007); otherwise column types are
        inferred from all rows.
    sheet : str, optional
        Which sheet of an Excel file, if it has several.

    Returns
    -------
    polars.DataFrame
        At least one row; no two columns of one name.
    """
    frame = expect_rows(*load(path, as_text=as_text, sheet=sheet))
    return frame if as_text else frame.with_columns(map(_with_decimals, frame.get_columns()))


def _with_decimals(column: pl.Series) -> pl.Series:
    """A column of numbers with decimal commas as numbers; any other as it is."""
    if column.dtype != pl.String or not column.str.contains(DECIMAL_COMMA).any():
        return column
    parsed = _numbers(column.str.strip_chars())
    return parsed if parsed.null_count() == column.null_count() else column


def expect_rows(frame: pl.DataFrame, source: Source) -> pl.DataFrame:
    """The frame, if there is anything below its header."""
    if not len(frame):
        raise CalibrlError(f"{source.name}: no rows below the header {some(frame.columns)}; expected at least one")
    return frame


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
    called : dict of str to str
        What the file calls a column, where that is another name than ours.
    how : tuple of str
        How the file was read, as far as that is worth telling.
    date_format : str, optional
        How dates are written: a format of strftime, "day-first" or "month-first".
    """

    source: str
    frame: pl.DataFrame
    line: NDArray[np.int64]
    place: str = "line"
    unknown: tuple[str, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    how: tuple[str, ...] = ()
    date_format: str | None = None

    def __len__(self) -> int:
        return len(self.frame)

    def without_blanks(self) -> Cells:
        """The rows that are not empty throughout."""
        kept = self.frame.select(~pl.all_horizontal(pl.all().is_null())).to_series().to_numpy().astype(bool)
        return replace(self, frame=self.frame.filter(kept), line=self.line[kept])

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self._known

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.frame.columns)  # which polars would list anew for each of thousands

    def complain(self, row: int, column: str, problem: str) -> NoReturn:
        """Raise an error about the cell in `row`, counted from 0, and `column`."""
        raise CalibrlError(f"{self.source}, {self.where(row)}, column {self.name_of(column)}: {problem}")

    def name_of(self, column: str) -> str:
        """What the file calls a column, fit for a line."""
        return cut(self.called.get(column, column))

    def refuse(self, wrong: Flags | pl.Series, column: str, problem: Callable[[int], str]) -> None:
        """Raise an error about the first cell of `column` that is `wrong` (n,). problem: what to say of its row."""
        if wrong.any():
            row = int(np.argmax(wrong))
            self.complain(row, column, problem(row))

    def where(self, row: int) -> str:
        """The place of a row, in words."""
        return f"{self.place} {self.line[row]}"

    def names(self, name: str, *, needed: bool = True) -> pl.Series:
        """A column of names; one left empty is an error if they are `needed`, else the empty text."""
        text = self._text(name).fill_null("")
        if needed:
            self.refuse(text == "", name, lambda _: "is empty; every row needs one")
        return text

    def texts(self, name: str, *, needed: bool = True) -> list[str]:
        """The `names` in a list."""
        return self.names(name, needed=needed).to_list()

    def labels(self, name: str) -> pl.Series:
        """A column as text, null where the cell is empty, whole numbers without decimals."""
        text = self._text(name)
        text = text.set(text.is_in(UNSEEN).fill_null(False), None)
        if text.str.contains(r"^-?\d+\.0*$").any():
            text = text.str.replace(r"^(-?\d+)\.0*$", "$1")
        return text

    def some_labels(self, name: str, most: int = 1000) -> list[str]:
        """The different texts of a column, sorted; none if one of them is a number, or yes or no."""
        first = self._column(name).head(most)
        if first.dtype == pl.String and first.cast(pl.Float64, strict=False).is_finite().any():
            return []  # without telling millions of numbers apart as texts
        text = self.labels(name).drop_nulls().unique()
        lower = text.str.to_lowercase()
        if text.cast(pl.Float64, strict=False).is_not_null().any() or lower.is_in([*YES, *NO]).any():
            return []
        return text.sort().to_list() if len(text) <= most else []

    def floats(self, name: str, *, expected: str = "a number") -> Floats:
        """A column as float64, NaN where the cell is empty. Decimals have a point, or a comma throughout the column."""
        column = self._column(name)
        if column.dtype == pl.String:
            parsed = column.cast(pl.Float64, strict=False)
            if parsed.null_count() > column.null_count():
                text = column.str.strip_chars()
                parsed = _numbers(text)
                odd = parsed.is_null() & text.is_not_null() & ~text.is_in([*UNSEEN, "missing"])
                self.refuse(
                    odd, name, lambda row: f"{cut(column[row])!r} is not a number; {_cure(text[row], expected)}"
                )
            column = parsed
        elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
            raise CalibrlError(
                f"{self.source}, column {self.name_of(name)}: holds {column.dtype}, not numbers; convert it first"
            )
        # A copy, because polars' memory is read-only.
        return np.array(column.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)

    def percent(self, name: str) -> bool:
        """Whether a column is written in percent."""
        column = self._column(name)
        return column.dtype == pl.String and bool(column.str.contains(r"%\s*$").any())

    def numbers(self, name: str) -> Floats:
        """A column of finite numbers whose points stand before decimals, NaN where the cell is empty."""
        values, column = self.floats(name), self._column(name)
        if column.dtype == pl.String:
            self.refuse(
                _thousands(column.str.strip_chars().str.replace(CURRENCY, "$1")),
                name,
                lambda row: f"{cut(column[row])!r} may be a thousand times that; drop the thousands separator",
            )
            self.refuse(
                column.str.contains(r"%\s*$").fill_null(False), name, lambda row: f"{cut(column[row])!r} is a share"
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
        """A column of dates as datetime64[D]; NaT where empty, which is an error if they are `needed`.

        Dates are ISO, written out, day-first or month-first, or the serial numbers of a spreadsheet.
        """
        column = self._column(name)
        if isinstance(column.dtype, pl.Date | pl.Datetime):
            parsed = column.dt.date()  # the day where the clock stands, not in UTC
            text = column.cast(pl.String)
            if getattr(column.dtype, "time_zone", None) in ("UTC", "Etc/UTC"):
                text = text.str.replace("+00:00", "Z", literal=True)
        else:
            text = self._text(name)
            parsed = self._parse_dates(text, name)
            if not self.date_format and parsed.dt.year().n_unique() > 3 * parsed.dt.day().n_unique():
                self.refuse(
                    text.str.contains(SHORT_YEAR).fill_null(False),
                    name,
                    lambda row: f"{cut(text[row])!r} seems to begin with the year; say --date-format %y-%m-%d",
                )
        self.refuse(
            (text.str.contains("Z$") & ~text.str.contains(MIDNIGHT)).fill_null(False),
            name,
            lambda row: (
                f"{cut(text[row])!r} is a time in UTC, perhaps of another day where the shop is; write the shop's own "
                "day, like 2018-05-31, or tell order with --time-zone Europe/Berlin"
            ),
        )
        odd = parsed.is_null() & text.is_not_null() & ~text.is_in(UNSEEN)
        like = self.date_format or "2018-05-31"
        self.refuse(
            odd,
            name,
            lambda row: f"{cut(text[row])!r} is not a date; write it like {like}, or say how with --date-format",
        )
        if needed:
            self.refuse(parsed.is_null(), name, lambda _: "is empty; write a date like 2018-05-31")
        days: Days = parsed.to_numpy().astype("datetime64[D]")
        outside = (days < EARLIEST) | (days > LATEST)
        self.refuse(outside, name, lambda row: f"{days[row]} is not a date of our time; check the year")
        return days

    def _parse_dates(self, text: pl.Series, name: str) -> pl.Series:
        """Dates in the way of writing that fits all of them, or the one that fits most; an error if two fit."""
        day = text.str.replace(TIME, "") if self.date_format else day_alone(text)
        day = day.set(text.is_in(UNSEEN).fill_null(False), None)
        if self.date_format is None:
            serial = day.cast(pl.Float64, strict=False).floor().cast(pl.Int32, strict=False)
            if serial.null_count() == day.null_count() and serial.is_between(18264, 91313).all():  # 1950 to 2149
                return (serial + int(SERIAL_ZERO.astype(np.int64))).cast(pl.Date)
            formats: Sequence[str] = DATE_FORMATS
        else:
            formats = DATE_WORDS.get(self.date_format, (self.date_format,))
        tried: dict[str, pl.Series] = {}
        for form in formats:
            # The format must take the whole cell: a year of four digits is not two and a rest.
            tried[form] = day.str.to_date(form, strict=False, exact=True)
            if tried[form].null_count() == day.null_count() and not re.match(r"%[dm][/-]%[dm]", form):
                return tried[form]
        fits = [form for form in tried if tried[form].null_count() == day.null_count()]
        rivals = [form for form in fits if not tried[form].equals(tried[fits[0]])]
        if rivals:
            one, other = tried[fits[0]], tried[rivals[0]]
            row = int((one != other).fill_null(False).arg_max() or 0)
            self.complain(
                row,
                name,
                f"{cut(text[row])!r} may be {one[row]} or {other[row]}; say which with --date-format day-first or "
                "--date-format month-first",
            )
        if fits and self.date_format is None:
            form = fits[0]  # and with day and month the other way round
            self._refuse_mixed(text, name, tried[form], tried.get(form[3:5] + form[2] + form[:2] + form[5:]))
        return tried[fits[0]] if fits else min(tried.values(), key=pl.Series.null_count)

    def _refuse_mixed(self, text: pl.Series, name: str, day: pl.Series, swapped: pl.Series | None) -> None:
        """An error if days that can be read in two ways lie far from those that cannot, unless read the other way."""
        one, other = ((day if part is None else part).to_numpy().astype("datetime64[D]") for part in (day, swapped))
        sure = one[np.isnat(other) & ~np.isnat(one)]
        if not len(sure):  # there is no other way, or each can be read in both
            return
        near, instead = ((part > sure.min() - 32) & (part < sure.max() + 32) for part in (one, other))
        self.refuse(
            ~near & instead & (2 * (~near & instead).sum() > (~np.isnat(other)).sum()),
            name,
            lambda row: f"{cut(text[row])!r} would be {one[row]}, far from others; are days and months in one order?",
        )

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


def read_cells(
    path: str | Path,
    *,
    needed: Sequence[str],
    optional: Sequence[str],
    what: str,
    aliases: Mapping[str, Sequence[str]] | None = None,
    columns: Mapping[str, str] | None = None,
    date_format: str | None = None,
    sheet: str | None = None,
) -> Cells:
    """The rows of a file, of any kind that `read_table` takes, that has the columns it needs.

    Names are matched without regard to case, spaces, points, dashes and underscores ("Shelf Life" is shelf_life); what
    is not found so is looked for by its other names. Columns that are neither needed nor optional are left alone, and
    empty lines skipped.

    Parameters
    ----------
    path : path
        The file. One with a header and no rows is no error.
    needed, optional : sequences of str
        Columns.
    what : str
        What errors call such a file.
    aliases : mapping of str to sequence of str, optional
        Other names of a column; where two columns of the file bear one, the user is asked.
    columns : mapping of str to str, optional
        What the file calls a column, as the user says (`parse_columns`): settles what names leave open.
    date_format : str, optional
        How dates are written: a format of strftime, "day-first" or "month-first".
    sheet : str, optional
        Which sheet of an Excel file.

    Returns
    -------
    Cells
        Its columns under our names; `called` says what the file calls them.
    """
    frame, source = load(path, as_text=True, sheet=sheet)
    known = [*needed, *optional]
    called = find_columns(frame.columns, known, aliases or {}, columns or {}, source.name)
    expect_columns(frame.columns, needed, called, source.name, what=what)
    return cells_of(frame, source, called, date_format=date_format)


def expect_columns(
    found: Sequence[str], needed: Sequence[str], called: Mapping[str, str], source: str, *, what: str
) -> None:
    """An error if a file does not have all columns that it needs."""
    missing = [name for name in needed if name not in called]
    if missing:
        among = ", ".join(map(cut, found[:12])) + (", …" if len(found) > 12 else "")
        raise CalibrlError(
            f"{source}: no column {' and no column '.join(missing)} among {among}; {what} needs "
            f"{', '.join(needed)}: say which it is with --columns {missing[0]}=NAME"
        )


def cells_of(
    frame: pl.DataFrame, source: Source, called: Mapping[str, str], *, date_format: str | None = None
) -> Cells:
    """A table as cells under our names, `called` being what the file calls each; without rows that are empty."""
    ours = {theirs: name for name, theirs in called.items()}
    # A column we do not know must not end up under a name we do.
    others = {name: f"{name} (other)" for name in frame.columns if name in called and name not in ours}
    renamed = frame.rename({**ours, **others})
    differ = {name: theirs for name, theirs in called.items() if name != theirs}
    line = np.arange(len(frame)) + source.first
    unknown = tuple(name for name in renamed.columns if name not in called)
    return Cells(source.name, renamed, line, source.place, unknown, differ, source.how, date_format).without_blanks()


def find_columns(
    found: Sequence[str],
    known: Sequence[str],
    aliases: Mapping[str, Sequence[str]],
    columns: Mapping[str, str],
    source: str,
) -> dict[str, str]:
    """What the file calls each of the `known` columns: as the user says, by our name, or by another; else left out."""
    spelt: dict[str, list[str]] = {}
    for name in found:
        spelt.setdefault(plain(name), []).append(name)
    for name, theirs in columns.items():
        if name not in known:
            raise CalibrlError(f"--columns {name}={theirs}: {name} is none of ours; expected {some(known)}")
        if theirs not in found:
            raise CalibrlError(f"{source}: --columns {name}={cut(theirs)}: no such column among {some(found)}")
    called = dict(columns)
    taken = set(called.values())
    for own in (True, False):  # our own names first: who writes y means y
        for name in known:
            if name in called:
                continue
            words = [name] if own else aliases.get(name, ())
            fits = [theirs for word in words for theirs in spelt.get(plain(word), []) if theirs not in taken]
            if len(dict.fromkeys(fits)) > 1:
                raise CalibrlError(
                    f"{source}: {some(list(dict.fromkeys(fits)))} may each be the column {name}; keep one, or say "
                    f"which with --columns {name}={cut(fits[0])}"
                )
            if fits:
                called[name] = fits[0]
                taken.add(fits[0])
    return called


def parse_columns(text: Sequence[str] | str | None) -> dict[str, str]:
    """What the user says the file calls our columns.

    Parameters
    ----------
    text : str, or sequence of str, optional
        Such as "mean=mu,std=sigma", or several of them; "samples=a,b" and "classes=a,b" are lists.

    Returns
    -------
    dict of str to str
        From our name to the file's.

    Examples
    --------
    >>> parse_columns("mean=mu, std=sigma")
    {'mean': 'mu', 'std': 'sigma'}
    >>> parse_columns("samples=a,b")
    {'s0': 'a', 's1': 'b'}
    """
    said: dict[str, str] = {}
    for part in [text] if isinstance(text, str) else text or ():
        listed = ""
        for pair in next(csv.reader([part], skipinitialspace=True), []):
            name, mark, theirs = (word.strip() for word in pair.partition("="))
            listed = listed if not mark else name if name in ("samples", "classes") else ""
            if listed:
                theirs = theirs if mark else name
                name, mark = f"s{len(said)}" if listed == "samples" else f"p_{theirs}", "="
            if not (name and mark and theirs):
                raise CalibrlError(
                    f"--columns {cut(part)!r}: {cut(pair)!r} says nothing; write OURS=THEIRS, like mean=mu"
                )
            if name in said:
                raise CalibrlError(f"--columns {cut(part)!r}: {cut(name)} is said twice; keep one")
            said[name] = theirs
    return said


def day_alone(text: pl.Series) -> pl.Series:
    """Dates without weekday and time, with four digits of the year."""
    return text.str.replace(TIME, "").str.replace(DAY_NAME, "").str.replace(SHORT_YEAR, "$1$2$3${4}20$5")


def plain(name: str) -> str:
    """A name without what spellings differ in: case, spaces, points, dashes and underscores."""
    return re.sub(r"[\s_.\-]+", "", name).lower()


def _numbers(text: pl.Series) -> pl.Series:
    """Numbers, null where a cell is none; which mark stands before decimals is settled for the whole column."""
    values = text.cast(pl.Float64, strict=False)
    if values.null_count() == text.null_count():
        return values
    said = text.filter(~text.is_in([*UNSEEN, "missing"]).fill_null(True))
    if len(said) and said.str.contains(PERCENT).all():
        return _numbers(text.str.replace(PERCENT, "")) / 100
    if len(said) and said.str.contains(CURRENCY).all():
        return _numbers(text.str.replace(CURRENCY, "$1"))
    if said.str.contains(SPACED).any():
        joined = text.str.replace_all(r"[ '’\u00a0\u202f]", "")
        text = pl.select(pl.when(text.str.contains(SPACED)).then(joined).otherwise(text)).to_series()
        values = text.cast(pl.Float64, strict=False)
    if not said.str.contains(",", literal=True).any():
        return values
    for mark, form in BOTH_MARKS.items():
        if text.str.contains(form).any():
            other = "," if mark == "." else "."
            fits = text.str.contains(rf"{form}|^[-+]?\d+(?:[{mark}]\d*)?$|^[-+]?\d{{1,3}}(?:[{other}]\d{{3}})+$")
            joined = text.str.replace_all(other, "", literal=True).str.replace(mark, ".", literal=True)
            return joined.cast(pl.Float64, strict=False).set(~fits.fill_null(True), None)
    if text.str.contains(DECIMAL_COMMA).any() and not said.str.contains(".", literal=True).any():
        return text.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)
    return values


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

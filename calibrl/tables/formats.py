"""Files as data frames and back: delimited text of any program, Parquet, Feather and Excel.

How a text file is written (encoding, separator, whether compressed) is found out from its beginning; what was found is
said in words, so that it can be printed. How much memory a table would ask for is found out before it is read: a small
file may unpack to anything.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import os
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import polars as pl

from calibrl.errors import CalibrlError, MissingExtra, cut, first_line, some
from calibrl.files import replacing, writable
from calibrl.text import FORMULA, LATER_FORMULA, for_sheet

TEXT, COLUMNAR = (".csv", ".tsv", ".txt"), (".parquet", ".feather")
SHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")
SYNONYMS = {".pq": ".parquet", ".arrow": ".feather", ".ipc": ".feather", ".tab": ".tsv", ".dat": ".txt"}
READABLE = (*TEXT, *(f"{suffix}.gz" for suffix in TEXT), *COLUMNAR, *SHEETS)
WRITABLE = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".xlsx")

HEAD = 1 << 20
"""Bytes that are looked at to find out how a text file is written."""

LONGEST_NAME = 1000
"""Letters in the name of a column. To look for a level or a word in one takes time by the square of its length."""

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}

SHEET_ROWS, SHEET_COLUMNS = 1_048_575, 16_384
"""What fits on a sheet of Excel, below a header."""


UNREADABLE = (
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException, csv.Error, zlib.error, zipfile.BadZipFile),
    *(OSError, UnicodeError, EOFError, NotImplementedError),
)
"""What libraries raise over a file that is damaged, or another than its name says."""


@dataclass(frozen=True)
class Source:
    """How a file was read.

    Parameters
    ----------
    name : str
        The file.
    how : tuple of str
        What is worth telling: the separator unless it is a comma, the encoding unless it is UTF-8, the sheet.
    place : str
        What errors call a row: "line" of a text file, else "row".
    first : int
        The number of the first row below the header.
    """

    name: str
    how: tuple[str, ...] = ()
    place: str = "row"
    first: int = 1


def suffix_of(path: str | Path) -> str:
    """What a file's name says it is: one of `READABLE`, such as ".csv.gz", or whatever it ends in."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    last = "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])
    return SYNONYMS.get(last, last)


def load(path: str | Path, *, as_text: bool, sheet: str | None = None) -> tuple[pl.DataFrame, Source]:
    """The rows of a file, perhaps none, and how it was read. The arguments are those of `read_table`."""
    file = Path(path)
    suffix = _expect_file(file)
    if sheet is not None and suffix not in SHEETS:
        raise CalibrlError(f"{file}: has no sheets, but --sheet {cut(sheet)} was given; leave it out")
    try:
        if suffix in SHEETS:
            frame, source = _read_sheet(file, sheet)
        elif suffix in COLUMNAR:
            frame, source = _read_columnar(file, suffix), Source(str(file))
        else:
            frame, source = _read_text(file, as_text=as_text)
    except UNREADABLE as problem:
        kind = {".parquet": "Parquet", ".feather": "Feather"}.get(suffix, "Excel" if suffix in SHEETS else "CSV")
        raise CalibrlError(
            f"{file}: cannot be read as {kind} ({reason(problem)}); expected text with as many cells in every row as "
            "in the header, or a whole Parquet, Feather or Excel file"
        ) from None
    _expect_names([name.strip() for name in frame.columns], file)
    return frame.rename({name: name.strip() or name for name in frame.columns}), source


def _expect_file(file: Path) -> str:
    """The suffix of a file that is there, is a file, is not empty, and is of a kind that can be read."""
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "is a pipe or a device" if file.exists() else "does not exist"
        raise CalibrlError(f"{file}: {what}; give the path of a CSV, Parquet, Feather or Excel file")
    suffix = suffix_of(file)
    if suffix not in READABLE:
        raise CalibrlError(
            f"{file}: suffix {cut(suffix)!r} is none of .csv, .tsv, .txt (or with .gz), .parquet, .feather, .xlsx, "
            ".xls, .ods; rename the file to what it holds, or save it as one of these"
        )
    if not file.stat().st_size:
        raise CalibrlError(f"{file}: the file is empty; expected a header line and rows below it")
    return suffix


def _expect_names(names: list[str], file: Path) -> None:
    """Refuse a name that is none, or that two columns share: nobody could say which of them is meant."""
    if long := next((name for name in names if len(name) > LONGEST_NAME), ""):
        raise CalibrlError(
            f"{file}: the name of a column has {len(long)} letters ({cut(long)}); give it one of {LONGEST_NAME} at most"
        )
    twin, count = max(Counter(filter(None, names)).items(), key=lambda pair: pair[1], default=("", 0))
    if count > 1:
        raise CalibrlError(f"{file}: {count} columns are named {cut(twin)}; give each a name of its own")


def reason(problem: BaseException) -> str:
    """What another library said, cut to fit a line."""
    return cut(first_line(problem), 160)


# Text.


def _read_text(file: Path, *, as_text: bool) -> tuple[pl.DataFrame, Source]:
    packed = file.suffix.lower() == ".gz"
    with gzip.open(file) if packed else file.open("rb") as stream:
        head = cast(BinaryIO, stream).read(HEAD)
        encoding = _encoding(head, file)
        content: bytes | None = None
        if packed or encoding != "utf-8":
            content = _decoded(head + _rest(cast(BinaryIO, stream), file), encoding, file)
    expect_room(file.stat().st_size if content is None else len(content), file, "the text")
    try:
        return _parse(file, content, encoding, as_text=as_text)
    except (pl.exceptions.PolarsError, UnicodeError):
        # Letters beyond ASCII may come late; what is no UTF-8 then is read as what Windows writes.
        data = file.read_bytes() if content is None else content
        if encoding != "utf-8" or _is_utf8(data):
            raise
        return _parse(file, _decoded(data, "cp1252", file), "cp1252", as_text=as_text)


def _encoding(head: bytes, file: Path) -> str:
    """The encoding of a text that begins like this."""
    for mark, name in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if head.startswith(mark):
            return name
    if b"\0" in head:
        # Plain letters in UTF-16 have a zero for every other byte.
        zeros = [head[at::2].count(0) for at in (0, 1)]
        if max(zeros) < 0.4 * len(head):
            raise CalibrlError(f"{file}: is not text (it holds zero bytes); rename the file to what it holds")
        return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    return "utf-8" if _is_utf8(head, final=False) else "cp1252"


def _is_utf8(data: bytes, *, final: bool = True) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final)
    except UnicodeDecodeError:
        return False
    return True


def _rest(stream: BinaryIO, file: Path) -> bytes:
    """All that is left of a stream; compressed, it may be far more than the file."""
    parts, size = [], 0
    while part := stream.read(1 << 24):
        size += len(part)
        expect_room(size, file, f"more than {size / 1e9:.2g} GB of text")
        parts.append(part)
    return b"".join(parts)


def _decoded(data: bytes, encoding: str, file: Path) -> bytes:
    """The same text in UTF-8; bytes that Windows' Latin-1 leaves open stand for themselves."""
    if encoding == "utf-8":
        return data
    expect_room(2 * len(data), file, "the text")
    if encoding == "cp1252":
        try:
            return data.decode("cp1252").encode()
        except UnicodeDecodeError:
            return data.decode("latin-1").encode()
    return data.decode(encoding).encode()


def _parse(file: Path, content: bytes | None, encoding: str, *, as_text: bool) -> tuple[pl.DataFrame, Source]:
    """The table in a file, or in its `content` where that had to be decoded."""
    with file.open("rb") if content is None else io.BytesIO(content) as stream:
        head = stream.read(HEAD)
        # Whole lines: the names alone may take more.
        head += stream.readline() if len(head) == HEAD else b""
    text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    layout = _layout(text, file, whole=len(head) < HEAD)
    if layout.padded:
        content = file.read_bytes() if content is None else content
        content = re.sub(rb"(?m)^ | $", b"", re.sub(rb"[ \t]+", b" ", content))
    # None: look at every row before settling a column's type.
    with file.open("rb") if content is None else io.BytesIO(content) as stream:
        frame = pl.read_csv(
            stream,
            separator=layout.separator,
            skip_rows=layout.skip,
            infer_schema=not as_text,
            infer_schema_length=None,
            has_header=layout.headed,
            new_columns=None if layout.headed else layout.names,
        )
    _expect_names([name.strip() for name in layout.names], file)
    how = [] if layout.separator == "," else [f"separated by {SEPARATORS.get(layout.separator, layout.separator)}"]
    if encoding != "utf-8":
        how.append({"cp1252": "Latin-1 (Windows)"}.get(encoding, "UTF-16"))
    if layout.above:
        how.append(f"without {layout.above} line{'s' * (layout.above > 1)} above the header")
    return frame, Source(str(file), tuple(how), "line", layout.first)


@dataclass(frozen=True)
class _Layout:
    """How a text is laid out.

    separator; names: of the columns; first: the line of the first row; skip: lines to pass over; headed: whether the
    next one holds the names; above: lines of words above the header; padded: by spaces, so that columns stand in line.
    """

    separator: str
    names: list[str]
    first: int
    skip: int
    headed: bool
    above: int
    padded: bool


def _layout(head: str, file: Path, *, whole: bool) -> _Layout:
    """How a text is laid out that begins like `head`; `whole`: that is all of it."""
    breaks = re.search(r"\r\n|\n|\r", head)
    if breaks and breaks[0] == "\r":
        raise CalibrlError(f"{file}: lines end in a carriage return alone; save it with line feeds (\\n or \\r\\n)")
    said = re.match(r"\s*\"?sep=(.)\"?\r?\n", head)  # Excel's own word for it
    above = _lines_above(head)
    head = "".join(head.splitlines(keepends=True)[above:])
    commented = head.startswith("#")
    head = head.lstrip("# ") if commented else head
    padded = not said and not re.search(r"[,;\t|]", head[:1000]) and bool(re.search(r"\S {2,}\S", head[:1000]))
    if padded:
        # Runs first: looked for at a line's end, a long one would be read again from each of its spaces.
        head = re.sub(r"(?m)^ | $", "", re.sub(r"[ \t]+", " ", head))
    tried: dict[str, tuple[float, int]] = {}
    for separator in said[1] if said else SEPARATORS:
        rows, _ = _rows(head, separator, whole)
        if rows and len(rows[0]) > 1:
            fits = [len(row) in (len(rows[0]), len(rows[0]) + 1) for row in rows[1:]]
            share = sum(fits) / len(fits) if fits else 1.0
            # Spaces stand in names, too: only where nothing else separates, and in every row.
            if separator != " " or (not tried and share == 1):
                tried[separator] = share, len(rows[0])
    separator = max(tried, key=tried.__getitem__, default=said[1] if said else ",")
    rows, lines = _rows(head, separator, whole)
    names = rows[0] if rows else []
    # R writes a name in front of each row, most often its number, and none above them.
    below = rows[1:]
    row_names = len(names) > 1 and len(below) > 1 and all(len(row) == len(names) + 1 for row in below)
    firsts = [row[0] for row in below]
    row_names = row_names and (
        firsts == [str(number) for number in range(1, len(firsts) + 1)]
        or (len(set(firsts)) == len(firsts) and not any(re.match(r"[-+.\d]", first) for first in firsts))
    )
    return _Layout(
        separator,
        names=["", *names] if row_names else names,
        first=above + lines + 1,
        skip=above + lines if row_names or commented else above,
        headed=not row_names and not commented,
        above=max(0, above - bool(said)),
        padded=padded and separator == " ",
    )


def _lines_above(head: str, most: int = 100) -> int:
    """How many lines stand above the names of the columns: a title alone in its line, remarks after #, blank ones."""
    lines = head.splitlines()[:most]
    marks = r"[,;\t|]" if any(re.search(r"[,;\t|]", line) for line in lines) else r"\s+"
    cells = [[cell for cell in re.split(marks, line.lstrip("# ")) if cell.strip(' "')] for line in lines]
    at = 0
    numbers = [sum(bool(re.match(r"[-+.\d]", cell.strip(' "'))) for cell in row) for row in cells]
    # A line of numbers above one of more names is a heading, too.
    while (
        at + 1 < len(lines)
        and lines[at].count('"') % 2 == 0
        and (
            lines[at].startswith("#")
            or len(cells[at]) < 2
            or (numbers[at] > 0 == numbers[at + 1] and len(cells[at]) < len(cells[at + 1]))
        )
    ):
        at += 1
    if at and lines[at - 1].startswith("#") and len(cells[at - 1]) == len(cells[at]):
        return at - 1  # as numpy writes them
    words = [cell for cell in cells[at : at + 1][0] if not re.match(r"[-+.\d]", cell.strip(' "'))] if lines else []
    return at if len(words) > 1 or (words and len(cells[at]) > 1) else 0


def _rows(head: str, separator: str, whole: bool, most: int = 50) -> tuple[list[list[str]], int]:
    """The first rows that are not blank, without one that may be cut short; and how many lines the header takes."""
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
    rows, lines = [], 0
    try:
        for row in itertools.islice((row for row in reader if any(map(str.strip, row))), most):
            rows.append(row)
            lines = lines or reader.line_num
    except csv.Error:
        pass  # a cell longer than any that we know of: polars will say
    return (rows if whole or len(rows) == most else rows[: max(1, len(rows) - 1)]), lines


# Columns and sheets.


@contextmanager
def _quietly() -> Iterator[None]:
    """Drop what a library writes to stderr, past Python, about a damaged file: the error says it better."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _read_columnar(file: Path, suffix: str) -> pl.DataFrame:
    with _quietly(), file.open("rb") as stream:
        try:
            size = parquet_size(stream) if suffix == ".parquet" else feather_size(stream)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError, struct.error):
            raise OSError("it is damaged") from None
        expect_room(size, file, "its columns")
        stream.seek(0)
        return pl.read_parquet(stream) if suffix == ".parquet" else pl.read_ipc(stream)


def _read_sheet(file: Path, sheet: str | None) -> tuple[pl.DataFrame, Source]:
    try:
        import fastexcel
    except ImportError:
        raise MissingExtra("fastexcel, which reads Excel,", "excel") from None
    expect_room(sheet_size(file), file, "the sheets")
    try:
        book = fastexcel.read_excel(file)
        if sheet is not None and sheet not in book.sheet_names:
            raise CalibrlError(f"{file}: has no sheet {cut(sheet)!r}; it has {some(book.sheet_names)}")
        wanted = book.sheet_names if sheet is None else [sheet]
        loaded = {name: _below_titles(book, name) for name in wanted}
        full = [name for name, each in loaded.items() if each.width]
        if len(full) > 1:
            raise CalibrlError(f"{file}: has {len(full)} sheets, {some(full)}; choose one with --sheet {cut(full[0])}")
        if not full:
            raise CalibrlError(f"{file}: the sheet is empty; expected a header line and rows below it")
        frame = loaded[full[0]]
    except fastexcel.FastExcelError as problem:
        raise CalibrlError(f"{file}: cannot be read as Excel ({reason(problem)}); save the sheet as CSV") from None
    named = () if len(book.sheet_names) == 1 else (f"sheet {full[0]}",)
    return frame, Source(str(file), named, "row", 2)


def _below_titles(book: Any, name: str, most: int = 20) -> pl.DataFrame:
    """A sheet from its header on: the first row with several filled cells, and not fewer than as many names below."""
    top = book.load_sheet(name, header_row=None, n_rows=most, dtypes="string").to_polars().rows()
    rows = [[cell for cell in row if cell] for row in top] + [[]]
    words = [not any(re.match(r"[-+.\d]", cell) for cell in row) for row in rows]
    likely = (k for k in range(len(top)) if len(rows[k]) > 1 and (len(rows[k]) >= len(rows[k + 1]) or not words[k + 1]))
    at = next(likely, 0)
    frame = book.load_sheet(name, header_row=at, schema_sample_rows=None).to_polars()
    dates = {f"__UNNAMED__{k}": cell for k, cell in enumerate(top[at] if top else ()) if cell}  # numbers, too
    return frame.rename({old: new for old, new in dates.items() if old in frame.columns and new not in frame.columns})


# Writing.


def write_table(frame: pl.DataFrame, path: str | Path, *, at: Path | None = None) -> None:
    """Write a data frame as text, Parquet, Feather or Excel: the whole file or none of it.

    Cells of text that a spreadsheet would take for a formula get an apostrophe in front in text files; on a sheet they
    are text anyway.

    Parameters
    ----------
    frame : polars.DataFrame
        What to write.
    path : str or Path
        Its suffix says how: .csv, .tsv (or with .gz), .parquet, .feather or .xlsx.
    at : Path, optional
        Where to write what belongs at `path`, for a caller that puts it in place together with other files.
    """
    file = Path(path)
    suffix = expect_writable(file)
    try:
        # polars itself opens no file whose name is not UTF-8.
        with writable(file), nullcontext(at) if at else replacing(file) as temporary, temporary.open("wb") as stream:
            if suffix == ".parquet":
                frame.write_parquet(stream)
            elif suffix == ".feather":
                frame.write_ipc(stream, compression="lz4")
            elif suffix == ".xlsx":
                stream.write(_sheet(frame, file))
            else:
                harmless = frame.with_columns(
                    _harmless(name) for name, dtype in frame.schema.items() if dtype == pl.String
                ).rename(for_sheet)
                separator = "\t" if suffix.startswith(".tsv") else ","
                if suffix.endswith(".gz"):
                    stream.write(gzip.compress(harmless.write_csv(separator=separator).encode(), 6, mtime=0))
                else:
                    harmless.write_csv(stream, separator=separator)
    except pl.exceptions.PolarsError as problem:
        if "os error" in str(problem):  # of a disk that is full, in some formats' words
            raise CalibrlError(f"{file}: cannot be written ({reason(problem)}); make room on the disk") from None
        odd = [name for name, dtype in frame.schema.items() if dtype.is_nested() or dtype in (pl.Binary, pl.Object)]
        raise CalibrlError(
            f"{file}: cannot be written ({reason(problem)}); write .parquet, or leave out {some(odd or frame.columns)}"
        ) from None


def expect_writable(path: str | Path) -> str:
    """The suffix of a table that is to be written, or an error before any work is done for it."""
    suffix = suffix_of(path)
    if suffix not in WRITABLE:
        raise CalibrlError(f"{path}: suffix {cut(suffix)!r} cannot be written; use {', '.join(WRITABLE)}")
    if suffix == ".xlsx":
        _xlsxwriter()
    return suffix


def _harmless(name: str) -> pl.Expr:
    column = pl.col(name)
    whole = pl.when(column.str.contains(FORMULA)).then("'" + column).otherwise(column)
    return whole.str.replace_all(LATER_FORMULA, "${1}'${2}").alias(name)


def _xlsxwriter() -> Any:
    try:
        import xlsxwriter
    except ImportError:
        raise MissingExtra("xlsxwriter, which writes Excel,", "excel") from None
    return xlsxwriter


def _sheet(frame: pl.DataFrame, file: Path) -> bytes:
    if len(frame) > SHEET_ROWS or frame.width > SHEET_COLUMNS:
        raise CalibrlError(
            f"{file}: {len(frame)} rows of {frame.width} columns do not fit on a sheet of Excel, which holds "
            f"{SHEET_ROWS} of {SHEET_COLUMNS}; write .csv or .parquet"
        )
    content = io.BytesIO()
    plain = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True, "in_memory": True}
    with _xlsxwriter().Workbook(content, plain) as book:
        frame.write_excel(book, autofilter=False)
    return content.getvalue()


CELL = 32
"""Bytes of a sheet's cell in memory, empty or not."""


def memory_left() -> int:
    """Bytes of memory that this process could still have: of the machine, or of its container if that is less."""
    found = []
    try:
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        found[0] = max(found[0], 1024 * int(meminfo.split("MemAvailable:")[1].split()[0]))
        most, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        found.append(int(most) - int(used))
    except (OSError, ValueError, IndexError, AttributeError):
        pass  # other systems say it elsewhere
    return min(found, default=1 << 33)


def expect_room(size: float, file: Path, what: str) -> None:
    """Refuse a file before memory is asked for that is not there. A diagnosis needs about as much again."""
    room = memory_left()
    if 2 * size > room:
        raise CalibrlError(
            f"{file}: {what} would take {size / 1e9:.1f} GB to read, of {room / 1e9:.1f} GB of memory left; split the "
            "file, or keep only the columns that are needed"
        )


# Parquet: pages, each with a head in Thrift's compact protocol, which says how much it unpacks to.


def parquet_size(stream: BinaryIO) -> int:
    """Bytes that the columns of a Parquet file take, lists and texts included; ValueError if it is damaged.

    A page is counted as what it unpacks to, and as 8 bytes for each of its values, whichever is more: thousands of
    equal values are written as one. The pages are asked and not the foot of the file, which could say less.
    """
    end = stream.seek(-8, os.SEEK_END)
    length, mark = struct.unpack("<I4s", stream.read(8))
    if mark != b"PAR1" or length > end:
        raise ValueError("it does not end like a Parquet file")
    stream.seek(end - length)
    size = 0
    for group in _struct(stream).get(4, ()):
        for column in group[1]:
            about = column[3]
            at = min(about[field] for field in (9, 11) if about.get(field))
            last = at + about[7]
            while at < last:
                stream.seek(at)
                page = _struct(stream)
                if page[3] < 0:
                    raise ValueError("a page ends before it begins")
                values = next((page[field][1] for field in (5, 8) if field in page), 0)
                size += max(page[2], 8 * values)
                at = stream.tell() + page[3]
    return size


def _struct(data: BinaryIO) -> dict[int, Any]:
    """The fields of a Thrift structure by number: whole numbers, bytes, lists and structures."""
    found, field = {}, 0
    while head := _byte(data):
        field = field + (head >> 4) if head >> 4 else _zigzag(data)
        found[field] = _value(data, head & 15)
    return found


def _value(data: BinaryIO, kind: int) -> Any:
    if kind in (1, 2):
        return kind == 1
    if kind in (3, 4, 5, 6):
        return _byte(data) if kind == 3 else _zigzag(data)
    if kind in (7, 8):
        return data.read(8 if kind == 7 else min(_varint(data), 1 << 24))
    if kind in (9, 10):
        head = _byte(data)
        count = head >> 4 if head >> 4 < 15 else _varint(data)
        # Of yes and no a list has a byte each.
        return [_value(data, 3 if head & 15 in (1, 2) else head & 15) for _ in range(count)]
    if kind == 12:
        return _struct(data)
    raise ValueError(f"it has a field of kind {kind}")


def _byte(data: BinaryIO) -> int:
    return data.read(1)[0]


def _varint(data: BinaryIO, most: int | None = None) -> int:
    """A whole number of 7 bits a byte, up to one without the mark that another follows, or so many bytes."""
    found = 0
    for k in itertools.count() if most is None else range(most):
        byte = _byte(data)
        found |= (byte & 127) << 7 * k
        if byte < 128:
            break
    return found


def _zigzag(data: BinaryIO) -> int:
    found = _varint(data)
    return found >> 1 ^ -(found & 1)


def feather_size(stream: BinaryIO) -> int:
    """Bytes that the columns of a Feather file take.

    In front of the mark that zstd and lz4 begin with, each compressed buffer says what it unpacks to.
    """
    unpacked, size, before = 0, 0, b""
    while part := stream.read(1 << 24):
        whole = before + part
        for mark in _PACKED.finditer(whole, 8):
            unpacked += max(0, *struct.unpack_from("<q", whole, mark.start() - 8))
        size += len(part)
        before = whole[-11:]
    return max(size, unpacked)


_PACKED = re.compile(rb"[\x1e-\x28]\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18|\x04\x22\x4d\x18")
"""How a buffer begins that zstd, of any version, or lz4 packed, or one that has to be skipped before it."""


def sheet_size(file: Path) -> int:
    """Bytes that the widest sheet of a workbook takes: readers make room for every cell up to the last one."""
    if not zipfile.is_zipfile(file):  # of Excel before 2007, whose sheets are small
        return 0
    with file.open("rb") as stream, zipfile.ZipFile(stream) as packed:
        parts = packed.infolist()
        unpacked = 4 * sum(part.file_size for part in parts)
        expect_room(unpacked, file, "the sheets")
        count = _binary_cells if suffix_of(file) == ".xlsb" else _cells
        return max(unpacked, CELL * max((count(_unpacked(stream, part), part.filename) for part in parts), default=0))


def _unpacked(stream: BinaryIO, part: zipfile.ZipInfo) -> bytes:
    """A part of a workbook, which must unpack to as much as it says: other readers go on to its end."""
    stream.seek(max(0, part.header_offset))
    head = stream.read(30).ljust(30)
    stream.seek(sum(struct.unpack("<26xHH", head)), os.SEEK_CUR)
    found = stream.read(part.compress_size)
    if part.compress_type == zipfile.ZIP_DEFLATED:
        found = zlib.decompressobj(-15).decompress(found, part.file_size + 1)
    if len(found) != part.file_size:
        raise zipfile.BadZipFile("a part of it is not as large as it says")
    return found


def _binary_cells(data: bytes, _: str) -> int:
    """As `_cells`, of a sheet in records: a kind and a length of 7 bits a byte, then a row's or a cell's number."""
    height = width = count = 0
    stream = io.BytesIO(data)
    with suppress(IndexError, struct.error):
        while True:
            kind, length = _varint(stream, 2), _varint(stream, 4)
            if kind == 0:
                height = max(height, 1 + struct.unpack_from("<I", data, stream.tell())[0])
            elif kind < 12:
                width = max(width, 1 + struct.unpack_from("<I", data, stream.tell())[0])
            elif kind == 159:  # how many texts there are
                count = max(count, *struct.unpack_from("<II", data, stream.tell()))
            stream.seek(length, os.SEEK_CUR)
    return max(height * width, count)


def _cells(text: bytes, name: str) -> int:
    """Cells from the first to the last that a sheet, as XML, writes something into, or as many texts as it claims."""
    if name == "content.xml":
        return _repeated_cells(text)
    counts = re.findall(rb"ount\s*=\s*[\"'](\d+)[\"']", text)
    rows = re.findall(rb"\sr\s*=\s*[\"'][A-Za-z]*(\d+)[\"']", text)
    names = set(re.findall(rb"\sr\s*=\s*[\"']([A-Za-z]+)\d+[\"']", text))
    columns = (sum((letter - 64) * 26**i for i, letter in enumerate(reversed(each.upper()))) for each in names)
    return max(max(map(int, rows), default=0) * max(columns, default=0), *map(int, counts), 0)


def _repeated_cells(text: bytes) -> int:
    """As `_cells`, of an OpenDocument sheet: there a cell or a row may stand for many."""
    height = widest = skipped = 0
    for row in re.finditer(rb"(?s)<table:table-row\b([^>]*)>(.*?)</table:table-row>", text):
        times = _repeats(row[1], b"rows")
        width, ahead = 0, 0
        for cell in re.finditer(rb"<table:(?:covered-)?table-cell\b([^>]*)>", row[2]):
            ahead += _repeats(cell[1], b"columns")
            if b"value" in cell[1]:
                width = ahead
        height, skipped = (height + skipped + times, 0) if width else (height, skipped + times)
        widest = max(widest, width)
    return height * widest


def _repeats(attributes: bytes, what: bytes) -> int:
    found = re.search(rb"number-" + what + rb"-repeated\s*=\s*[\"'](\d+)", attributes)
    return int(found[1]) if found else 1

"""How much memory a table would ask for, found out before it is read: a small file may unpack to anything."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from calibrl.errors import CalibrlError

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


def _varint(data: BinaryIO) -> int:
    found = shift = 0
    while (byte := _byte(data)) & 128:
        found |= (byte & 127) << shift
        shift += 7
    return found | byte << shift


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
        for mark in (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"):
            at = whole.find(mark, 8)
            while at >= 0:
                unpacked += max(0, *struct.unpack_from("<q", whole, at - 8))
                at = whole.find(mark, at + 1)
        size += len(part)
        before = whole[-11:]
    return max(size, unpacked)


def sheet_size(file: Path) -> int:
    """Bytes that the widest sheet of a workbook takes: readers make room for every cell up to the last one."""
    if not zipfile.is_zipfile(file):  # of Excel before 2007, whose sheets are small
        return 0
    with zipfile.ZipFile(file) as packed:
        parts = packed.infolist()
        unpacked = 4 * sum(part.file_size for part in parts)
        expect_room(unpacked, file, "the sheets")
        cells = [_cells(packed.read(part), part.filename) for part in parts if part.filename.endswith(".xml")]
        return max(unpacked, CELL * max(cells, default=0))


def _cells(text: bytes, name: str) -> int:
    """Cells from the first to the last that a sheet, as XML, writes something into."""
    if name == "content.xml":
        return _repeated_cells(text)
    rows = re.findall(rb"\sr\s*=\s*[\"'][A-Za-z]*(\d+)[\"']", text)
    names = set(re.findall(rb"\sr\s*=\s*[\"']([A-Za-z]+)\d+[\"']", text))
    columns = (sum((letter - 64) * 26**i for i, letter in enumerate(reversed(each.upper()))) for each in names)
    return max(map(int, rows), default=0) * max(columns, default=0)


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

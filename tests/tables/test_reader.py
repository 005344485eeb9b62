"""Files of any program as tables, and their numbers and dates as people write them."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
import zipfile
from datetime import date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks import fuzz
from calibrl import CalibrlError
from calibrl.errors import MissingExtra
from calibrl.tables import formats, parse_forecasts, read_forecasts, read_table, write_table
from calibrl.tables.reader import Cells, find_columns, parse_columns, read_cells

FRAME = pl.DataFrame({"größe": ["é", "ü"], "x": [1.5, -2.25], "n": [1, 2]})


# Formats.


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("packed", [False, True])
def test_text_is_read_however_it_is_written(tmp_path: Path, separator: str, encoding: str, packed: bool) -> None:
    text = FRAME.write_csv(separator=separator, line_terminator="\r\n").encode(encoding)
    path = tmp_path / ("a.csv.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert read_table(path).equals(FRAME)


def test_letters_that_come_late_do_not_lose_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"name,x\n" + b"a,1\n" * 400_000 + "é,2\n".encode("latin-1"))
    assert read_table(path)["name"][-1] == "é"


@pytest.mark.parametrize("name", ["a.csv.gz", "a.tsv.gz", "a.feather", "a.xlsx", "a.parquet"])
def test_a_table_comes_back_in_every_format(tmp_path: Path, name: str) -> None:
    write_table(FRAME, tmp_path / name)
    assert read_table(tmp_path / name).cast({"n": pl.Int64}).equals(FRAME)  # a sheet knows only one kind of number
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_excel_and_r_put_around_a_table_is_seen_through(tmp_path: Path) -> None:
    for text in ("sep=;\r\ny;x\r\n1;2\r\n3;4\r\n", '"y" "x"\n"1" 1 2\n"2" 3 4\n', "y\tx\nanna\t1\t2\nbert\t3\t4\n"):
        (tmp_path / "a.csv").write_text(text, newline="")
        assert read_table(tmp_path / "a.csv").select("y", "x").rows() == [(1, 2), (3, 4)]


def test_decimal_commas_are_numbers_where_types_are_inferred(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arm;reward;note\n1;0,5;1,5 or so\n2;;x\n3;1.234,25;y\n")
    frame = read_table(tmp_path / "a.csv")
    assert frame["reward"].to_list() == [0.5, None, 1234.25]
    assert frame["note"][0] == "1,5 or so"


def test_a_name_is_never_a_pattern(tmp_path: Path) -> None:
    for suffix in ("csv", "parquet", "feather"):
        for name, x in (("week[1]", 1), ("week1", 2), ("a?", 3), ("ab", 4), ("*", 5)):
            write_table(pl.DataFrame({"x": [x]}), tmp_path / f"{name}.{suffix}")
        for name, x in (("week[1]", 1), ("a?", 3), ("*", 5)):
            assert read_table(tmp_path / f"{name}.{suffix}")["x"].to_list() == [x]
        with pytest.raises(CalibrlError, match="does not exist"):
            read_table(tmp_path / f"week[12].{suffix}")


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    (tmp_path / "b.csv").symlink_to("/dev/zero")
    for name in ("a.csv", "b.csv"):
        with pytest.raises(CalibrlError, match="is a pipe or a device"):
            read_table(tmp_path / name)


def ods(path: Path, rows: str) -> None:
    """A sheet of OpenDocument whose rows are these."""
    spaces = " ".join(f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"' for n in ("office", "table", "text"))
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        packed.writestr("META-INF/manifest.xml", "<manifest/>")
        packed.writestr(
            "content.xml",
            f"<office:document-content {spaces}><office:body><office:spreadsheet><table:table table:name='a'>{rows}"
            "</table:table></office:spreadsheet></office:body></office:document-content>",
        )


NUMBER = '<table:table-cell office:value-type="float" office:value="1" {}/>'
MANY_ROWS, MANY_COLUMNS = (f'table:number-{what}-repeated="{n}"' for what, n in (("rows", 99_999), ("columns", 9_999)))


def small_files_that_ask_for_everything(folder: Path) -> dict[str, str]:
    """Files of less than 120 kB that would take far more than 4 MB, and what is said of each."""
    zeros = pl.DataFrame({"x": np.zeros(600_000)})
    lists = pl.DataFrame({"x": [1.0], "y": pl.Series([np.zeros(600_000)], dtype=pl.List(pl.Float64))})
    text = pl.DataFrame({"x": [1.0], "y": ["-" * 5_000_000]})
    said = {}
    for name, frame in (("zeros", zeros), ("lists", lists), ("text", text)):
        frame.write_parquet(folder / f"{name}.parquet")
        frame.write_ipc(folder / f"{name}.feather", compression="zstd")
        said |= {f"{name}.parquet": "its columns would take", f"{name}.feather": "its columns would take"}
    (folder / "a.csv.gz").write_bytes(gzip.compress(b"x\n" + b"0\n" * 20_000_000))
    write_table(pl.DataFrame({"x": np.zeros(20_000)}), folder / "long.xlsx")
    with pytest.importorskip("xlsxwriter").Workbook(folder / "sparse.xlsx") as book:
        book.add_worksheet().write("XFD1048576", 1)
    row = f"<table:table-row>{NUMBER.format('')}</table:table-row>"
    empty = f"<table:table-row {MANY_ROWS}><table:table-cell {MANY_COLUMNS}/></table:table-row>"
    wide = f"<table:table-row>{NUMBER.format(MANY_COLUMNS)}</table:table-row>"
    ods(folder / "repeated.ods", wide + f"<table:table-row {MANY_ROWS}>{NUMBER.format('')}</table:table-row>")
    ods(folder / "sparse.ods", wide + empty + row)
    return (
        said
        | {"a.csv.gz": "GB of text"}
        | dict.fromkeys(("long.xlsx", "sparse.xlsx", "repeated.ods", "sparse.ods"), "the sheets")
    )


def test_a_small_file_that_asks_for_everything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = small_files_that_ask_for_everything(tmp_path)
    assert max((tmp_path / name).stat().st_size for name in found) < 120_000
    monkeypatch.setattr(formats, "memory_left", lambda: 4_000_000)
    for name, what in found.items():
        with pytest.raises(CalibrlError, match=what) as caught:
            read_table(tmp_path / name)
        assert "keep only the columns" in str(caught.value)


@pytest.mark.parametrize("make", [fuzz._hidden_corner, fuzz._claim, fuzz._lie, fuzz._records])
def test_a_workbook_that_hides_what_it_asks_for_is_refused(tmp_path, monkeypatch, make) -> None:
    """A sheet in a part of another name, texts that are only claimed, a part larger than it says, and records."""
    path = make(tmp_path, 30_000_000)
    assert path.stat().st_size < 200_000
    monkeypatch.setattr(formats, "memory_left", lambda: 1 << 26)
    with pytest.raises(CalibrlError, match=r"the sheets would take|a part of it is not as large as it says"):
        read_table(path)


def test_a_workbook_whose_parts_begin_nowhere_is_refused(tmp_path: Path) -> None:
    write_table(FRAME, tmp_path / "a.xlsx")
    whole = bytearray((tmp_path / "a.xlsx").read_bytes())
    at = whole.index(b"PK\1\2") + 42  # where the directory says that the first part is
    for start in (len(whole) - 3, 2**31):
        whole[at : at + 4] = start.to_bytes(4, "little")
        (tmp_path / "b.xlsx").write_bytes(whole)
        with pytest.raises(CalibrlError, match="cannot be read as Excel"):
            read_table(tmp_path / "b.xlsx")


def test_a_workbook_of_records_is_read(tmp_path: Path) -> None:
    assert fuzz._records(tmp_path, 60).exists()
    assert read_table(tmp_path / "records.xlsb").columns[0] == "x"


def test_buffers_behind_one_that_is_skipped_are_counted() -> None:
    for mark in map(bytes.fromhex, ("28b52ffd", "27b52ffd", "502a4d18", "5f2a4d18", "04224d18")):
        assert formats.feather_size(io.BytesIO(b"ARROW1" + (10**12).to_bytes(8, "little") + mark + bytes(9))) == 10**12


@pytest.mark.timeout(60)
def test_runs_of_spaces_and_long_names_take_no_time(tmp_path: Path) -> None:
    """They were gone over again from each of their letters: hours."""
    (tmp_path / "a.csv").write_text("a  b\n" + f"1{' ' * 400_000}2 \n" * 2)
    assert read_table(tmp_path / "a.csv").to_dict(as_series=False) == {"a": [1, 1], "b": [2, 2]}
    (tmp_path / "b.csv").write_text(f"y,mean,std,q_{'0' * 400_000}x\n1,1,1,1\n")
    with pytest.raises(CalibrlError, match="the name of a column has 400003 letters"):
        read_table(tmp_path / "b.csv")


def test_names_of_columns_may_fill_more_than_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "HEAD", 1000)
    names = [f"s{i}" for i in range(1000)]
    (tmp_path / "a.csv").write_text("\n".join([",".join(names), *[",".join("1" for _ in names)] * 3]))
    assert read_table(tmp_path / "a.csv").columns == names


def test_files_that_take_what_they_hold_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0).standard_normal(20_000)
    frame = pl.DataFrame({"x": random, "y": [f"{value}" for value in random], "z": [[1.0, 2.0]] * len(random)})
    monkeypatch.setattr(formats, "memory_left", lambda: 4 * frame.estimated_size())
    for compression in ("zstd", "lz4", "uncompressed"):
        frame.write_parquet(tmp_path / "a.parquet", compression=compression, data_page_size=9_999, row_group_size=7_777)
        frame.write_ipc(tmp_path / "a.feather", compression=compression)
        assert read_table(tmp_path / "a.parquet").equals(frame)
        assert read_table(tmp_path / "a.feather").equals(frame)
    # What LibreOffice writes: empty rows and columns as far as a sheet goes.
    row = f"<table:table-row>{NUMBER.format('')}<table:table-cell {MANY_COLUMNS}/></table:table-row>"
    ods(
        tmp_path / "a.ods",
        row * 3 + f"<table:table-row {MANY_ROWS}><table:table-cell {MANY_COLUMNS}/></table:table-row>",
    )
    pytest.importorskip("fastexcel")
    assert len(read_table(tmp_path / "a.ods")) == 2


def test_sheets_need_no_room_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    write_table(FRAME, tmp_path / "a.xlsx")
    assert read_table(tmp_path / "a.xlsx").equals(FRAME)


def test_memory_is_measured() -> None:
    assert 1 << 20 < formats.memory_left() < 1 << 50


def test_one_of_several_sheets_is_asked_for(tmp_path: Path) -> None:
    xlsxwriter = pytest.importorskip("xlsxwriter")
    with xlsxwriter.Workbook(tmp_path / "a.xlsx") as book:
        FRAME.write_excel(book, worksheet="May")
        FRAME.head(1).write_excel(book, worksheet="June")
        book.add_worksheet("notes")
    with pytest.raises(CalibrlError, match="has 2 sheets, May, June; choose one with --sheet May"):
        read_table(tmp_path / "a.xlsx")
    assert len(read_table(tmp_path / "a.xlsx", sheet="June")) == 1
    with pytest.raises(CalibrlError, match="no sheet 'July'; it has May, June, notes"):
        read_table(tmp_path / "a.xlsx", sheet="July")
    write_table(FRAME, tmp_path / "a.csv")
    with pytest.raises(CalibrlError, match="has no sheets"):
        read_table(tmp_path / "a.csv", sheet="May")


def test_without_the_extra_excel_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(FRAME, tmp_path / "a.xlsx")
    for package in ("fastexcel", "xlsxwriter"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"fastexcel.*pip install 'calibrl\[excel\]'"):
        read_table(tmp_path / "a.xlsx")
    with pytest.raises(MissingExtra, match=r"xlsxwriter.*pip install 'calibrl\[excel\]'"):
        write_table(FRAME, tmp_path / "b.xlsx")


def test_a_full_disk_is_told_whatever_the_format(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet", "a.feather", "a.xlsx", "a.csv.gz"):
        with pytest.raises(CalibrlError, match=r"No space left on device.*; (choose a folder|make room)"):
            write_table(FRAME, tmp_path / name, at=Path("/dev/full"))


def test_formulas_in_a_header_do_not_reach_a_spreadsheet_either(tmp_path: Path) -> None:
    write_table(pl.DataFrame({"=HYPERLINK(1)": [1.0], "＝1+1": ["＠x"], "plain": ["\n=1"]}), tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "'=HYPERLINK(1),'＝1+1,plain\n1.0,'＠x,\"'\n'=1\"\n"


def test_names_of_columns_are_not_listed_anew_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 40 000 columns that took minutes."""
    counted, columns = 0, pl.DataFrame.columns.fget

    def count(frame: pl.DataFrame) -> list[str]:
        nonlocal counted
        counted += frame.width > 1
        return columns(frame)

    wide = pl.DataFrame({"y": [1.0, 2.0]} | {f"sample_{i}": [0.5, 1.0 + i] for i in range(200)})
    monkeypatch.setattr(pl.DataFrame, "columns", property(count))
    monkeypatch.delattr(pl.DataFrame, "drop_in_place")  # after which a table looks through all its names
    parse_forecasts(wide, source="wide.csv")
    assert counted < 50


def test_formulas_do_not_reach_a_spreadsheet(tmp_path: Path) -> None:
    names = ["=HYPERLINK(1)", "@SUM(A1)", "-cmd|' /C calc'!A0", "+x", "-3.5", "plain", "\t=1", None]
    names += ["a;=1", "b;-2;\n=x"]  # where a semicolon ends a cell, quotes that do not begin one hold nothing together
    frame = pl.DataFrame({"name": names, "x": range(len(names))})
    write_table(frame, tmp_path / "a.csv")
    read = pl.read_csv(tmp_path / "a.csv")["name"].to_list()
    plain = ["'=HYPERLINK(1)", "'@SUM(A1)", "'-cmd|' /C calc'!A0", "'+x", "-3.5", "plain", "'\t'=1", None]
    assert read == [*plain, "a;'=1", "b;-2;\n'=x"]
    write_table(frame, tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet")["name"].to_list() == names
    write_table(frame, tmp_path / "a.xlsx")
    assert read_table(tmp_path / "a.xlsx")["name"].to_list()[:4] == names[:4]  # as text: no formula has a value


def test_damaged_files_are_refused_or_read_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Bytes changed, cut, put in and taken out: an error of one line, or a table; never a traceback or a panic."""
    rng = np.random.default_rng(0)
    numbers = {name: rng.uniform(1, 2, 20) for name in ("y", "mu", "sigma")}
    frame, kept = pl.DataFrame({"id": [f"a{k}é" for k in range(20)], **numbers}), {}
    for name in ("a.csv", "a.csv.gz", "a.parquet", "a.feather", "a.xlsx"):
        write_table(frame, tmp_path / name)
        kept[name] = (tmp_path / name).read_bytes()
    kept["a.txt"] = frame.write_csv(separator=";").encode("utf-16")
    odd = [b",", b";", b'"', b"\n", b"\r", b"nan", b"1e999", b"\0", b"q0.5", b"\xff\xfe"]
    refused = 0
    for _ in range(1200):
        name = list(kept)[rng.integers(len(kept))]
        content = bytearray(kept[name])
        for _ in range(rng.integers(1, 5)):
            at = int(rng.integers(len(content) + 1))
            match rng.integers(4):
                case 0:
                    content[at : at + 1] = rng.bytes(1)
                case 1:
                    del content[at:]
                case 2:
                    content[at:at] = odd[rng.integers(len(odd))]
                case _:
                    del content[at : at + int(rng.integers(1, 8))]
        (tmp_path / name).write_bytes(content)
        try:
            read_forecasts(tmp_path / name)
        except CalibrlError as problem:
            assert "\n" not in str(problem)  # noqa: PT017
            refused += 1
    assert 600 < refused < 1200
    assert capfd.readouterr().err == ""


# Columns.


def test_columns_are_found_by_any_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Order Date;ART-NR;qty;units (old)\n2025-01-02;7;3;4\n")
    cells = read_cells(
        tmp_path / "a.csv",
        needed=("order_date", "item", "units"),
        optional=("store",),
        what="a sales file",
        aliases={"item": ("art_nr", "sku"), "units": ("qty", "quantity")},
    )
    assert cells.called == {"order_date": "Order Date", "item": "ART-NR", "units": "qty"}
    assert cells.how == ("separated by semicolons",)
    assert cells.texts("item") == ["7"]
    assert not cells.has("store")
    with pytest.raises(CalibrlError, match="line 2, column qty: no"):
        cells.complain(0, "units", "no")


def test_what_the_user_says_settles_columns() -> None:
    found, known = ["a", "b", "y"], ["y", "x"]
    assert find_columns(found, known, {}, {"y": "a", "x": "y"}, "f") == {"y": "a", "x": "y"}
    with pytest.raises(CalibrlError, match="a, b may each be the column x; keep one, or say which with --columns x=a"):
        find_columns(found, known, {"x": ("a", "b")}, {}, "f")
    with pytest.raises(CalibrlError, match="no such column among a, b, y"):
        find_columns(found, known, {}, {"y": "z"}, "f")
    with pytest.raises(CalibrlError, match="z is none of ours; expected y, x"):
        find_columns(found, known, {}, {"z": "a"}, "f")
    assert parse_columns(["mean=mu,std=my std", "y=a"]) == {"mean": "mu", "std": "my std", "y": "a"}
    for text in ("mean", "mean=", "=mu", "mean=a,mean=b"):
        with pytest.raises(CalibrlError, match="--columns"):
            parse_columns(text)


def test_a_column_of_ours_that_means_another_is_no_twin(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,x\n1,2\n")
    cells = read_cells(tmp_path / "a.csv", needed=("y",), optional=(), what="a file", columns={"y": "x"})
    assert cells.floats("y").tolist() == [2.0]


# Cells.


def cells_of(values: list[object], date_format: str | None = None) -> Cells:
    frame = pl.DataFrame({"x": values})
    return Cells("f", frame, np.arange(1, len(frame) + 1), "row", date_format=date_format)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (["1,5", "2"], [1.5, 2]),
        (["1.234,5", "7", "12,25", "3.000"], [1234.5, 7, 12.25, 3000]),
        (["1,234.5", "7", "12.25", "3,000"], [1234.5, 7, 12.25, 3000]),
        (["-1.234.567,5", "1e3"], None),
        (["1.234,5", "1,234.5"], None),
        (["1,234"], None),
        (["1.5", "1,5"], None),
    ],
)
def test_decimal_marks_are_settled_by_the_column(text: list[object], numbers: list[float] | None) -> None:
    if numbers is None:
        with pytest.raises(CalibrlError, match="is not a number"):
            cells_of(text).floats("x")
    else:
        assert cells_of(text).floats("x").tolist() == numbers


@pytest.mark.parametrize(
    ("text", "form", "first"),
    [
        (["2018-05-31", "2018-04-03 12:30"], None, "2018-05-31"),
        (["31.05.2018", ""], None, "2018-05-31"),
        (["3/4/2018", "31/05/2018"], None, "2018-04-03"),
        (["3/4/2018 2:05 PM", "05/31/2018"], None, "2018-03-04"),
        (["03/04/2018"], "day-first", "2018-04-03"),
        (["03-04-2018"], "month-first", "2018-03-04"),
        (["03/04/18"], "%m/%d/%y", "2018-03-04"),
        (["04/04/2018"], None, "2018-04-04"),
        (["31 May 2018", "1 June 2018"], None, "2018-05-31"),
        (["2018-05-31", "soon"], None, None),
        (["31-May-2018"], None, "2018-05-31"),
        (["May 31, 2018"], None, "2018-05-31"),
        (["20180531"], None, "2018-05-31"),
        ([20180531], None, "2018-05-31"),
        ([43251.0, 43252.5], None, "2018-05-31"),
        (["43251", "NA"], None, "2018-05-31"),
        ([date(2018, 5, 31)], None, "2018-05-31"),
        ([datetime(2018, 5, 31, 12)], None, "2018-05-31"),
    ],
)
def test_dates_are_read_as_people_and_spreadsheets_write_them(
    text: list[object], form: str | None, first: str | None
) -> None:
    if first is None:
        with pytest.raises(CalibrlError, match="is not a date; write it like 2018-05-31, or say how with --date-form"):
            cells_of(text, form).dates("x", needed=False)
    else:
        assert cells_of(text, form).dates("x", needed=False)[0] == np.datetime64(first)


def test_a_date_that_may_be_two_is_asked_for() -> None:
    with pytest.raises(CalibrlError, match=r"row 2.*'03/04/2018' may be 2018-04-03 or 2018-03-04.*--date-format day-f"):
        cells_of(["05/05/2018", "03/04/2018"]).dates("x")

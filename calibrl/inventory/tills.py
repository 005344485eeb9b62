"""Sales files as tills write them, made into one plain table: a row for each item and day, or receipt.

Tills name columns in their own words, print titles above and totals below, spread items or days over columns, name an
item once for all of its days, write a return as a line of its own kind and leave in what was cancelled. Whatever is
done about that is said, in phrases, beside the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from calibrl.errors import CalibrlError, some
from calibrl.inventory.history import counted
from calibrl.tables import reader
from calibrl.tables.formats import load
from calibrl.tables.reader import DECIMAL_COMMA, Cells, find_columns

LINE = "line of the file"
NEEDED = ("date", "item", "units")
KNOWN = (*NEEDED, "store", "in_stock", "price", "promotion", "holiday", "closed")

NAMES: list[dict[str, list[str]]] = json.loads((Path(__file__).parent / "data" / "columns.json").read_text("utf-8"))
"""What tills call the columns of a sales file: the first names that fit count."""

SAID: dict[str, list[str]] = json.loads((Path(__file__).parent / "data" / "words.json").read_text("utf-8"))
"""What tills say, in many languages; a star stands for any end of a word."""

WORDS, OTHERWISE = {ours: set(SAID[ours]) for ours in NEEDED}, set(SAID["otherwise"])
"""Words by which other names are found, unless one of the second stands beside them."""

TOTAL = rf"(?i)^\W*(?:(?:{'|'.join(SAID['total of'])})\W*)?(?:{'|'.join(SAID['total'])})\b"
ALONE = TOTAL + r"\W*$"
"""How a line begins that adds up others, and the same with nothing behind it."""

KIND, STATUS, VOIDED, RETURNS = (set(SAID[name]) for name in ("kind", "status", "voided", "returns"))
"""Words in the name of a column that says what kind of line it is, what became of it, whether it was undone, and how
much came back."""

SOLD_OUT = ({"sold", "out"}, {"out", "of", "stock"}, {"stockout"}, {"ausverkauft"}, {"agotado"}, {"uitverkocht"})
"""Words of which the name of a column consists that is 1 where `in_stock` is 0."""

LINES, ITEMS, MEASURE, NO_ITEM = (set(SAID[name]) for name in ("lines", "items", "measure", "no_item"))
"""Words in the name of a column that says what each line is about, and what it says where that is something sold; in
the name of one that says what is counted, and of one that holds no item, nor what was sold of one."""

YEAR_MONTH_DAY = tuple(set(SAID[name]) for name in ("year", "month", "day"))

REPEATED = 30
"""Different lines, each there twice, that are no chance."""

FEW = 12
"""Different texts up to which a column may say what became of its lines."""


def _saying(name: str) -> str:
    """A pattern for what is said under a name. Scripts without spaces between words are searched anywhere."""
    ends = {one: "" if one.endswith("*") else r"(?:\W|_|$)" for one in SAID[name]}
    whole = [r"(?:^|\W|_)" + re.escape(one.rstrip("*")) + end for one, end in ends.items() if one < "\u0e00"]
    return "|".join([*whole, *(re.escape(one) for one in ends if one >= "\u0e00")])


VOID, UNMADE, RETURN, DRAFT = (_saying(name) for name in ("void", "unmade", "return", "unmade_status"))
"""What a line says that was undone, never came to anything, or brings something back; and one in a status."""


@dataclass(frozen=True)
class Reading:
    """How a sales file is to be read, where it cannot tell.

    Parameters
    ----------
    columns : dict of str to str
        What the file calls our columns.
    date_format : str, optional
        How dates are written: a format of strftime, "day-first" or "month-first".
    sheet : str, optional
        Which sheet of an Excel file.
    regressors : tuple of str
        More columns of numbers to learn from, such as the temperature.
    country : str
        Whose public holidays count: DE, or a part of it, DE-BW.
    time_zone : str
        Where the shop's clock stands, like Europe/Berlin: the day of a time in UTC is the day there.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    date_format: str | None = None
    sheet: str | None = None
    regressors: tuple[str, ...] = ()
    country: str = ""
    time_zone: str = ""


def sales_cells(path: str | Path, reading: Reading) -> tuple[Cells, list[str]]:
    """The rows of a sales file under our names, and what was done to make them so, in phrases."""
    frame, source = load(path, as_text=True, sheet=reading.sheet)
    frame = frame.drop(
        name for name in frame.columns if not reader.plain(name) and frame[name].null_count() == len(frame)
    )
    called = dict(reading.columns)
    for names in NAMES:
        called = find_columns(frame.columns, KNOWN, names, called, source.name)
    out = [name for name in frame.columns if _words(name) in SOLD_OUT]
    done = [f"{out[0]} taken as the contrary of in_stock"] if len(out) == 1 and "in_stock" not in called else []
    if done:
        # A time of day, or any other word, says that it was.
        said = frame[out[0]].cast(pl.String).str.strip_chars().str.to_lowercase().fill_null("")
        frame = frame.with_columns(in_stock=said.is_in([*reader.NO, "", "-"])).drop(out)
        called["in_stock"] = "in_stock"
    parts = [[name for name in frame.columns if name.strip().lower() in words] for words in YEAR_MONTH_DAY]
    if all(len(found) == 1 and _whole(frame[found[0]]) for found in parts) and called.get("date") in (None, *parts[2]):
        whole = pl.concat_str([pl.col(found[0]).cast(pl.String).str.zfill(2) for found in parts], separator="-")
        frame = frame.with_columns(whole.alias(called.setdefault("date", parts[2][0]))).drop(parts[0] + parts[1])
    dated = [name for name in frame.columns if _all_days(frame[name], reading.date_format)]
    if "date" not in called and len(dated) == 1:
        called["date"] = dated[0]
    frame = frame.with_columns(pl.Series(LINE, np.arange(len(frame)) + source.first))
    if "date" in called:  # exports put one below the other, each with its header
        frame = frame.filter(pl.col(called["date"]).cast(pl.String).ne_missing(called["date"]))
    frame, left_out = _sales_alone(frame, called, reading.date_format)
    frame, called, spread = _made_long(frame, called, reading)
    found = [name for name in frame.columns if name != LINE]
    if not spread:
        called = find_columns(found, KNOWN, _by_words(found), called, source.name)
    done += left_out + spread
    if "item" not in called and "units" in called and "date" in called:
        called |= _unnamed_item(frame, called, source.name)
    if "item" not in called and "units" in called and "date" in called:
        name = Path(path).name.split(".")[0]
        frame, called = frame.with_columns(item=pl.lit(name)), {**called, "item": "item"}
        done.append(f"no column item: all is {name}")
    misread = ", read as Latin-1 (save it as UTF-8 if names look wrong)" * ("Latin-1 (Windows)" in source.how)
    reader.expect_columns(found, NEEDED, called, source.name + misread, what="a sales file")
    odd = next((name for name in reading.regressors if name not in found), None)
    if odd is not None:
        raise CalibrlError(f"{source.name}: --regressor {odd}: no such column among {some(found)}")
    for ours in ("item", "date"):
        frame, filled = _filled_down(frame, called[ours])
        done += filled
    frame = frame.with_columns(_in_numbers(frame[called["date"]]))
    if "units" not in reading.columns and not _words(called["units"]) & WORDS["units"]:
        _refuse_money(frame[called["units"]], source.name)
    for name in [one for one in frame.columns if one not in called.values() and _words(one) & MEASURE]:
        _refuse_measures(frame.select(called["item"], name), source.name)
    if reading.time_zone:
        frame = frame.with_columns(_local(frame[called["date"]], reading.time_zone))
    semicolons = "separated by semicolons" in source.how
    for name in {called["units"], called.get("price", called["units"])}:
        frame = frame.with_columns(_plain_numbers(frame[name], frame, semicolons=semicolons))
    frame, read, undone = _undone(frame, called, semicolons=semicolons)
    _refuse_doubled(frame, called, source.name)
    cells = reader.cells_of(frame.drop(LINE), replace(source, first=0), called, date_format=reading.date_format)
    unknown = tuple(_described(frame[name]) for name in cells.unknown if name not in {*reading.regressors, *read})
    return replace(cells, line=frame[LINE].to_numpy()[cells.line], unknown=unknown), done + undone


def _by_words(names: Sequence[str]) -> dict[str, list[str]]:
    """Names by the words in them."""
    return {
        ours: [name for name in names if _words(name) & theirs and not _words(name) & OTHERWISE]
        for ours, theirs in WORDS.items()
    }


def _words(name: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))


def _sales_alone(
    frame: pl.DataFrame, called: Mapping[str, str], date_format: str | None
) -> tuple[pl.DataFrame, list[str]]:
    """The lines that are no totals of others, nor remarks below the table: one cell that is no date."""
    date = frame[called["date"]].cast(pl.String).str.strip_chars().fill_null("") if "date" in called else None
    nothing = pl.repeat(False, len(frame), eager=True)
    undated = nothing if date is None else date == ""
    totals, filled = nothing, np.zeros(len(frame))
    for column in frame.drop(LINE).iter_columns():
        filled += ~column.is_null().to_numpy()
        if column.dtype == pl.String:  # the different texts of a column are few
            texts = column.unique().drop_nulls()
            dates = date is not None and column.name == date.name
            begin = texts.filter(texts.str.contains(TOTAL.replace(r"^\W*", r"\b") if dates else TOTAL))
            whole = begin if dates else begin.filter(begin.str.contains(ALONE))
            if len(begin):  # an item may have the word in its name
                said, meant = (column.is_in(words.implode()).fill_null(False) for words in (begin, whole))
                totals |= meant | (undated & said)
    remark = pl.Series(filled == 1) & ~totals if frame.width > 3 else nothing
    if date is not None and remark.any():
        remark &= undated | ~pl.Series(_are_days(date, date_format))
    done = [
        f"{counted(int(some.sum()), 'line')} of {what} left out"
        for some, what in ((totals, "totals"), (remark, "remarks"))
        if some.any()
    ]
    return frame.filter(~(totals | remark)), done


def _made_long(
    frame: pl.DataFrame, called: dict[str, str], reading: Reading
) -> tuple[pl.DataFrame, dict[str, str], list[str]]:
    """A table with a column for each item, or for each day, as rows; any other as it is."""
    left = [name for name in frame.columns if name not in {*called.values(), *reading.regressors, LINE}]
    others = [name for name in left if not re.search(ALONE, name) and not _words(name) & NO_ITEM]
    index: dict[str, str] = {ours: called[ours] for ours in ("date", "item", "store") if ours in called}
    spread, what = [], ""
    if "units" not in called and set(index) - {"store"} == {"date"}:
        # A day that stands in several rows has its items in them, under a name that we do not know.
        spread, what = [name for name in others if _numeric(frame[name])], "item"
        if len(spread) < len(others) and frame.select(*index.values()).is_duplicated().any():
            spread = []
    elif "units" not in called and set(index) - {"store"} == {"item"}:
        days = _are_days(pl.Series("", others, pl.String), reading.date_format)
        spread, what = [name for name, fits in zip(others, days, strict=True) if fits], "date"
    if not spread:
        return frame, called, []
    texts = [pl.col(name).cast(pl.String) for name in spread]
    long = frame.select(*index.values(), LINE, *texts).unpivot(
        on=spread, index=[*index.values(), LINE], variable_name=what, value_name="units"
    )
    done = [f"a column for each {'item' if what == 'item' else 'day'} ({len(spread):,}) made into rows"]
    unused = [name for name in left if name not in spread]
    done += [f"{', '.join(unused)} not used"] if unused else []
    return long, {**index, what: what, "units": "units"}, done


def _unnamed_item(frame: pl.DataFrame, called: Mapping[str, str], source: str) -> dict[str, str]:
    """The one column of names that tells a day's rows apart; none if there is none; refused if there are several."""
    days = [called[ours] for ours in ("date", "store") if ours in called]
    texts = [
        name
        for name in frame.columns
        if name not in {*called.values(), LINE}
        and frame[name].dtype == pl.String
        and frame[name].n_unique() > 1
        and not _numeric(frame[name])
        and not _words(name) & (NO_ITEM | OTHERWISE | KIND | STATUS | VOIDED)
        and not frame[name].str.contains(r"^\d?\d:\d\d").any()
    ]
    if not texts or not frame.select(days).is_duplicated().any():
        return {}
    if len(texts) > 1:
        raise CalibrlError(f"{source}: no column item; which of {some(texts)} is it? Say --columns item={texts[0]}")
    return {"item": texts[0]}


def _refuse_money(units: pl.Series, source: str) -> None:
    """An error if a column that should count units has a currency in it."""
    paid = units.filter(units.cast(pl.String).str.contains(r"[€$£¥]|\b(?:EUR|USD|GBP|CHF|PLN|SEK)\b").fill_null(False))
    if len(paid):
        raise CalibrlError(
            f"{source}: column {units.name} holds money ({paid[0]}), not units; say which column counts them with "
            "--columns units=NAME"
        )


def _refuse_measures(table: pl.DataFrame, source: str) -> None:
    """An error if an item is counted in several measures."""
    item, measure = table.columns
    several = table.drop_nulls().unique(maintain_order=True).group_by(item, maintain_order=True).agg(measure)
    for name, kinds in several.filter(pl.col(measure).list.len() > 1).rows():
        raise CalibrlError(f"{source}: {name} is counted in {some(kinds)} (column {measure}); turn all into one")


def _refuse_doubled(frame: pl.DataFrame, called: Mapping[str, str], source: str) -> None:
    """An error if every line of some days on end is there twice, in more lines than chance repeats."""
    lines = pl.DataFrame({"day": frame[called["date"]].cast(pl.String), "line": frame.drop(LINE).hash_rows()})
    if lines["line"].n_unique() == len(lines):
        return
    lines = lines.group_by("day", "line", maintain_order=True).len()
    days = lines.group_by("day", maintain_order=True).agg(twice=(pl.col("len") % 2 == 0).all(), lines=pl.len())
    runs = days.with_columns(run=pl.col("twice").rle_id()).filter("twice").group_by("run", maintain_order=True)
    found = runs.agg(first=pl.col("day").first(), last=pl.col("day").last(), lines=pl.col("lines").sum())
    for _, first, last, _ in found.filter(pl.col("lines") >= REPEATED).rows():
        raise CalibrlError(f"{source}: every line from {first} to {last} is there twice; keep one, if exported twice")


def _described(column: pl.Series) -> str:
    """The name of a column that is not used, with what it says if that may concern what a line is worth."""
    telling = _may_say(column, _words(column.name)) and not _numeric(column)
    texts = column.drop_nulls().unique().sort().to_list() if telling else []
    return column.name + (f" ({some(texts)})" if 2 <= len(texts) <= 5 else "")


def _in_numbers(column: pl.Series) -> pl.Series:
    """Dates with the month in words, of several languages, or with points behind a year; any other cell as it is."""
    if column.dtype != pl.String:
        return column
    years = column.str.extract(r"(?:^|\D)(2[45]\d\d)(?:\D|$)")
    if years.null_count() == column.null_count() < len(column):  # counted from the Buddha, as in Thailand
        column = column.str.replace_many({year: str(int(year) - 543) for year in years.drop_nulls().unique()})
    found = {}
    for text in column.unique().drop_nulls():
        day = re.match(r"\s*(\d{1,2})(?:\.|er|º)?[ -]*(?:de )?([^\W\d_]{3,})\.?[ -]*(?:del? )?(\d{4})\s*$", text)
        month = [
            k for k, begins in enumerate(SAID["months"], 1) if day and day[2].lower().startswith(tuple(begins.split()))
        ]
        if day and month:
            found[text] = f"{day[3]}-{month[-1]:02d}-{int(day[1]):02d}"
        elif points := re.match(r"\s*(\d{4})[.年년] ?(\d\d?)[.月월] ?(\d\d?)[.日일]?\s*$", text):
            found[text] = "-".join(part.zfill(2) for part in points.groups())
    return column.replace(found) if found else column


def _numeric(column: pl.Series) -> bool:
    """Whether some cells are filled, and all that are begin like a number."""
    if column.dtype != pl.String:
        return column.dtype.is_numeric()
    filled = column.drop_nulls().str.strip_chars()
    return len(filled) > 0 and bool(filled.str.contains(r"^[-+]?\d[\d.,]*$|^$").all())


def _all_days(column: pl.Series, date_format: str | None) -> bool:
    """Whether some cells are filled, and all that are look like days: written as such, not as bare numbers."""
    if column.dtype != pl.String:
        return column.dtype.is_temporal()
    texts = column.drop_nulls().str.strip_chars().unique()
    texts = texts.filter(~texts.str.contains(TOTAL) & (texts != ""))
    return len(texts) > 0 and not texts.str.contains(r"^\d*$").any() and all(_are_days(_in_numbers(texts), date_format))


def _whole(column: pl.Series) -> bool:
    """Whether some cells are filled, and all that are hold whole numbers."""
    filled = column.drop_nulls().cast(pl.String).str.strip_chars()
    return len(filled) > 0 and bool(filled.str.contains(r"^[-+]?\d+$").all())


def _are_days(text: pl.Series, date_format: str | None) -> list[bool]:
    formats = [date_format] if date_format and "%" in date_format else reader.DATE_FORMATS
    text = reader.day_alone(text)
    found = [text.str.to_date(form, strict=False, exact=True).is_not_null() for form in formats]
    return pl.DataFrame({str(k): one for k, one in enumerate(found)}).max_horizontal().to_list() if len(text) else []


def _filled_down(frame: pl.DataFrame, name: str) -> tuple[pl.DataFrame, list[str]]:
    """A column whose names stand above all rows that they are about, each once, with a name in every row."""
    column = frame[name]
    if column.dtype == pl.String:
        column = column.set((column.str.strip_chars() == "").fill_null(False), None)
    there = column.drop_nulls()
    once = 0 < 2 * len(there) < len(column) and column[0] is not None and there.n_unique() == len(there)
    if not once:
        return frame, []
    return frame.with_columns(column.fill_null(strategy="forward")), [f"{name} carried down to the rows below it"]


def _local(column: pl.Series, zone: str) -> pl.Series:
    """A column of times with their distance from UTC as days where the shop is; any other cell as it is."""
    try:
        ZoneInfo(zone)
    except (LookupError, ValueError, OSError):
        raise CalibrlError(f"--time-zone {zone!r} is unknown; write it like Europe/Berlin") from None
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone:
        return column.dt.convert_time_zone(zone).dt.date()
    text = column.cast(pl.String).str.strip_chars().str.replace(r"(\d)T(\d)", "$1 $2")
    text = text.str.replace(r"(\d:\d\d)(:\d\d)?[.,]?\d* *(Z|UTC|[+-]\d\d:?\d\d)$", "$1$2 $3")
    text = text.str.replace(r" (?:Z|UTC)$", " +0000").str.replace(r"( \d?\d:\d\d) ([+-])", "$1:00 $2")
    time = text.str.replace(r"([+-]\d\d):(\d\d)$", "$1$2").str.to_datetime("%Y-%m-%d %H:%M:%S %z", strict=False)
    day = time.dt.convert_time_zone(zone).dt.strftime("%Y-%m-%d")
    return _where(day.is_not_null(), day, column.cast(pl.String)).alias(column.name)


def _undone(
    frame: pl.DataFrame, called: Mapping[str, str], *, semicolons: bool
) -> tuple[pl.DataFrame, list[str], list[str]]:
    """The lines that were not cancelled, those of returns with their sign; columns that say so; and what was done.

    Of an order that was refunded nothing is left: its line goes, too, as no other takes it back.
    """
    read: list[str] = []
    gone, taken = (pl.repeat(False, len(frame), eager=True) for _ in range(2))
    sold = called["units"]
    for name in frame.columns:
        words = _words(name)
        kinds, states, flags = words & KIND, words & STATUS, words & VOIDED
        named = kinds or states or flags or words & RETURNS
        if name in called.values() or name == LINE or not (named or _may_say(frame[name], words)):
            continue
        text = frame[name].cast(pl.String, strict=False).str.strip_chars().str.to_lowercase().fill_null("")
        texts, undone = text.unique().to_list(), VOID
        undone += f"|{UNMADE}" * bool(kinds or states) + f"|{RETURN}|{DRAFT}" * bool(states)
        void = [one for one in texts if re.search(undone, one) and "part" not in one]
        if words & LINES and any(_words(one) & ITEMS for one in texts):  # a receipt, what is on it, how it was paid
            void = [one for one in texts if not _words(one) & ITEMS]
        back = [one for one in texts if re.search(RETURN, one) and not (states or one in void or "customer" in one)]
        if words & RETURNS and not words & WORDS["units"] and {*texts} <= {*reader.YES, *reader.NO, ""}:
            # Whether the line is a return, or was brought back by another. As 1 and 0 it may be how many were.
            noun = words & {"is", "was"} or (words & {"return", "refund"} and "1" not in texts)
            yes = [one for one in texts if one in reader.YES]
            back, void = (yes, []) if noun else ([], yes if "1" not in texts else [])
        elif flags and not words & WORDS["units"]:
            void = [one for one in texts if one not in reader.NO and not re.fullmatch(r"[-0.,]*", one)]
            if any(re.match(r"\d+(?:[.,]\d*)?$", one) and one not in reader.YES for one in void):
                void = []  # how many or how much of it was
        if void or back:
            read.append(name)
            gone |= text.is_in(void)
            taken |= text.is_in(back)
    counts = [name for name in frame.columns if _words(name) & RETURNS and name != sold and _whole(frame[name])]
    counts = [name for name in counts if not _words(name) & (OTHERWISE | KIND | STATUS) and name not in read]
    done = [f"{counted(int(gone.sum()), 'cancelled line')} left out ({', '.join(read)})"] if gone.any() else []
    if len(counts) == 1 and not _words(sold) & {"net", "netto"} and _whole(frame[sold]):
        done.append(f"{counts[0]} taken off {sold}")
        read += counts
        less = frame[counts[0]].cast(pl.Float64).fill_null(0).abs()
        frame = frame.with_columns((frame[sold].cast(pl.Float64) - less).cast(pl.String))
    units = frame[sold].cast(pl.String).str.strip_chars()
    for name in [one for one in frame.columns if one not in {*called.values(), *read, LINE}]:
        paid = _paid_back(frame, name, called, semicolons=semicolons) & ~gone
        read += [name] * bool(paid.any())
        taken |= paid
    minus = taken & units.str.contains(r"^[\d.,]*[1-9]").fill_null(False)
    if minus.any():
        done.append(f"{counted(int(minus.sum()), 'line')} of returns counted as such ({', '.join(read)})")
        frame = frame.with_columns(_where(minus, "-" + units, units).alias(sold))
    return frame.filter(~gone), read, done


def _may_say(column: pl.Series, words: set[str]) -> bool:
    """Whether a column of any other name may say what became of a line: one of few texts, not about anything else."""
    if column.dtype != pl.String or words & (OTHERWISE | NO_ITEM) or column.head(10_000).n_unique() > FEW:
        return False
    return column.n_unique() <= FEW


def _paid_back(frame: pl.DataFrame, name: str, called: Mapping[str, str], *, semicolons: bool) -> pl.Series:
    """Lines with an amount below zero for units above it, at prices the item was sold at, too: returns without a sign.

    A discount is below zero on sales, and a profit of any size.
    """
    column, nothing = frame[name], pl.repeat(False, len(frame), eager=True)
    if column.dtype == pl.String and not column.str.contains(r"^\W*[-\u2212(]|[-\u2212]\s*$").any():
        return nothing
    amount = _plain_numbers(column, frame, semicolons=semicolons).cast(pl.Float64, strict=False).fill_null(0)
    units = frame[called["units"]].cast(pl.Float64, strict=False).fill_null(0)
    each = pl.DataFrame({"item": frame[called["item"]], "price": (amount / units).round(2)})
    back, forth = (amount < 0) & (units > 0), (amount > 0) & (units > 0)
    prices = each.filter(forth).unique()
    known = each.filter(back).with_columns(-pl.col("price")).join(prices, on=["item", "price"], how="semi")
    less, more = int(back.sum()), int(forth.sum())
    sure = 0 < less < more / 2 and len(known) >= 0.9 * less and 5 * len(prices) <= more
    return back if sure else nothing


def _plain_numbers(column: pl.Series, frame: pl.DataFrame, *, semicolons: bool) -> pl.Series:
    """A column of numbers as people write them in words that a program reads; a cell that is none stays as it is.

    Currencies, one unit behind all numbers (kg), signs behind, brackets and marks between thousands are taken away.
    Whether a comma stands before decimals or between thousands is settled by the column, or by the rest of the file.
    """
    if column.dtype != pl.String:
        return column
    text = column.str.strip_chars().str.replace_all("\u2212", "-", literal=True)
    if (
        text.cast(pl.Float64, strict=False).null_count() == text.null_count()
        and not text.str.contains(reader.THOUSANDS).any()
    ):
        return column
    bare = text.str.replace_all(r"R\$|[€$£¥₹₺₽₩₪₫฿\s\u00a0\u202f']|\b(?:EUR|USD|GBP|CHF)\b", "")
    bare = bare.str.replace(r"^\((.+)\)$", "-$1").str.replace(r"^(\d[\d.,]*)-$", "-$1")
    unit = bare.str.extract(r"^[-+]?\d[\d.,]*([^\W\d_]+)\.?$").drop_nulls().unique()
    if len(unit) == 1:
        bare = bare.str.replace(rf"{unit[0]}\.?$", "")
    marked = bare.filter(bare.str.contains("[.,]").fill_null(False))
    whole = bare.filter(bare.str.contains(r"^[-+]?\d+$").fill_null(False))
    comma = bool(bare.str.contains(DECIMAL_COMMA).any())
    if not comma and marked.str.contains(r"^[-+]?[1-9]\d{0,2}[.,]\d{3}$").all():
        zeros = marked.str.ends_with(",000").all() and not len(whole)
        texts = (one for one in frame.iter_columns() if one.dtype == pl.String)
        comma = zeros or any(one.str.contains(DECIMAL_COMMA).any() for one in texts)
        comma |= semicolons and bool(marked.str.contains(",", literal=True).all())
    if comma and marked.str.contains(r"^[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d*)?$").all():
        bare = bare.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    else:  # between thousands for certain, or beside numbers that need no mark
        threes = marked.str.contains(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^[-+]?\d{1,3}\.\d+$").all()
        certain = marked.str.contains(r",\d{3}[.,]").any() or (len(whole) and not whole.str.contains(r"\d{4}").any())
        bare = bare.str.replace_all(",", "", literal=True) if threes and certain else bare
    read = bare.cast(pl.Float64, strict=False).is_not_null()
    return _where(read, bare, column).alias(column.name)


def _where(condition: pl.Series, yes: pl.Series, no: pl.Series) -> pl.Series:
    return pl.select(pl.when(condition).then(yes).otherwise(no)).to_series()

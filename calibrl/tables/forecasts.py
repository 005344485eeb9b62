"""What a row of a table forecasts.

A forecast is spelt by the names of its columns, ours or others' (`names`):

    mean, std      a Gaussian
    q0.05 q0.5 …   quantiles at those levels
    s0 s1 …        samples
    p0 p1 …        probabilities of the classes 0, 1, …

with the outcome in `y`, empty where nobody saw it. Columns that spell no forecast are carried along untouched.
Rows are counted from 1, below the header.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from calibrl.data import Groups
from calibrl.distributions import Empirical, Quantiles
from calibrl.errors import CalibrlError, check_known, cut, some
from calibrl.tables.formats import Source, load
from calibrl.tables.names import Names, Spelling
from calibrl.tables.names import quantile_column as quantile_column
from calibrl.tables.reader import NO, YES, Cells, Flags, Floats, expect_rows, parse_columns, plain

ACCEPTED = {
    "normal": "mean,std",
    "quantiles": "q0.05 q0.5 … (two levels or more), or lower,upper with --level",
    "samples": "s0 s1 … (two samples or more)",
    "classes": "p0 p1 … (one per class), or p alone",
}
"""Kinds of forecast, and the columns that spell them."""

LONG = {"quantile", "quantiles", "quantilelevel", "outputtypeid"}
ONE_ROW = "expected one row per forecast: give each level a column of its own, like q0.05 and q0.5"
"""What columns are called that say which quantile a row is, and what to do about such a file."""

TIMES = ("date", "day", "time", "timestamp", "datetime", "ds", "when")
"""What a column of text is called that says when a row came."""


@dataclass(frozen=True, eq=False)
class Forecasts:
    """The forecasts of a table.

    Parameters
    ----------
    source : str
        The file, as errors call it.
    spelling : Spelling
        The columns that spell the forecast, and how.
    values : Tensor
        (n, k) float64.
    y : Tensor or None
        (n,) float64 outcomes, NaN where unseen; None without a column of them.
    outcome : str
        What the file calls that column.
    frame : polars.DataFrame
        Its columns that spell no forecast of any kind, the outcomes among them.
    names : tuple of str
        All columns of the file.
    number : ndarray
        (n,), the row of the file each came from.
    how : tuple of str
        How the file was read, as far as that is worth telling.
    notes : tuple of str
        What was done to the forecasts.
    date_format : str, optional
        How the file writes dates: as in `Cells`.
    """

    source: str
    spelling: Spelling
    values: Tensor
    y: Tensor | None
    outcome: str
    frame: pl.DataFrame
    names: tuple[str, ...]
    number: NDArray[np.int64]
    how: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    date_format: str | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def kind(self) -> str:
        """A key of `ACCEPTED`."""
        return self.spelling.kind

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that spell the forecast, as the file calls them."""
        return self.spelling.columns

    @property
    def signature(self) -> tuple[str, ...]:
        """The columns under the names we would give them: q.5 is q0.5."""
        return self.spelling.signature

    @property
    def levels(self) -> list[float]:
        """The levels of quantile columns."""
        return list(self.spelling.levels)

    def distribution(self, rows: Tensor) -> Distribution:
        """The forecasts of `rows`, (m,) of their numbers from 0, as one torch distribution of batch shape (m,)."""
        every = len(rows) == len(self) and bool((rows[1:] > rows[:-1]).all())
        values = self.values if every else self.values[rows]  # no second copy of millions
        if self.kind == "normal":
            return Normal(values[:, 0], values[:, 1], validate_args=False)
        if self.kind == "quantiles":
            return Quantiles(values.T, self.levels)
        if self.kind == "samples":
            return Empirical(values.T)
        return Categorical(probs=values, validate_args=False)

    def seen(self) -> tuple[Tensor, Tensor]:
        """The rows with an outcome, (m,) of their numbers, and all outcomes, (n,); an error if there are none."""
        if self.y is None:
            raise CalibrlError(
                f"{self.source}: no column y among {some(self.names)}; add the outcomes as a column y, or say which it "
                "is with --y NAME"
            )
        seen = (~self.y.isnan()).nonzero()[:, 0]
        if len(seen) < 2:
            raise CalibrlError(
                f"{self.source}, column {cut(self.outcome)}: outcomes in {len(seen)} of {len(self)} rows; expected at "
                "least 2 to judge by"
            )
        return seen, self.y

    def dates(self) -> tuple[str, NDArray[np.int64]] | None:
        """The column that says when rows came, and their places in time, (n,); None if there is none that can be read.

        A column of dates or times, or one that is called so and whose text can be read as dates. Where that would mean
        one of two days it is an error, and so is one that is not written as `date_format` says.
        """
        for name in self.frame.columns:
            column = self.frame[name]
            if column.dtype == pl.String and name.strip().lower() in TIMES:
                # Of ISO dates and times the text itself is in order; of others the day is known.
                text = column.str.strip_chars()
                if not text.str.contains(r"^\d{4}-\d\d-\d\d").all():
                    cells = Cells(self.source, self.frame, self.number, "row", date_format=self.date_format)
                    try:
                        text = pl.Series(cells.dates(name))
                    except CalibrlError as problem:
                        if self.date_format is None and " may be " not in str(problem):
                            continue  # no dates at all
                        raise
                column = text
            elif not isinstance(column.dtype, pl.Date | pl.Datetime):
                continue
            if not column.null_count() and column.n_unique() > 1:
                return name, column.rank("dense").to_numpy().astype(np.int64)
        return None

    def groups(self, column: str) -> Groups:
        """The groups that the text in `column` tells apart, in alphabetical order."""
        others = [name for name in self.frame.columns if name != self.outcome]
        if column not in others:
            raise CalibrlError(
                f"{self.source}: {column!r} is not a column to group by; "
                + (f"the file offers {some(others)}" if others else "the file holds forecasts and outcomes only")
            )
        try:
            names = self.frame[column].cast(pl.String, strict=False)
        except pl.exceptions.PolarsError:
            raise CalibrlError(
                f"{self.source}, column {column}: holds {self.frame.schema[column]}, which names no groups; "
                "group by a column of text or numbers"
            ) from None
        if names.null_count():
            row = self.number[int(names.is_null().arg_true()[0])]
            raise CalibrlError(f"{self.source}, row {row}, column {column}: no group; fill it in or drop the row")
        kinds = names.unique().sort()
        place = names.cast(pl.Enum(kinds)).to_physical().to_numpy()
        return Groups(tuple(kinds), torch.from_numpy(place.astype(np.int64)))


def read_forecasts(
    path: str | Path,
    *,
    kind: str | None = None,
    y: str | None = None,
    columns: Mapping[str, str] | Sequence[str] | str | None = None,
    level: float | None = None,
    sheet: str | None = None,
    date_format: str | None = None,
    like: Sequence[str] = (),
) -> Forecasts:
    """The forecasts of a file, every number checked.

    Parameters
    ----------
    path : str or Path
        A file of text (.csv, .tsv, .txt, each also .gz), Parquet, Feather or Excel.
    kind : str, optional
        Which forecast to take where the file holds several: a key of `ACCEPTED`.
    y : str, optional
        The column of outcomes, where its name does not tell.
    columns : mapping of str to str, or str, optional
        What the file calls our columns, {"mean": "mu"} or "mean=mu", where their names do not tell.
    level : float, optional
        The probability of the interval in the columns lower and upper.
    sheet : str, optional
        Which sheet of an Excel file.
    date_format : str, optional
        How it writes dates: "day-first", "month-first" or like "%d.%m.%y".
    like : sequence of str
        The `signature` of other forecasts: what the names leave open is as it was there.

    Returns
    -------
    Forecasts
        One row for each of the file that is not empty.
    """
    frame, source = load(path, as_text=True, sheet=sheet)
    rows = [expect_rows(frame, source)]
    del frame  # so that `parse_forecasts` can let go of it
    found = parse_forecasts(rows.pop(), source=source, kind=kind, y=y, columns=columns, level=level, like=like)
    return replace(found, date_format=date_format)


def parse_forecasts(
    frame: pl.DataFrame,
    *,
    source: str | Source,
    kind: str | None = None,
    y: str | None = None,
    columns: Mapping[str, str] | Sequence[str] | str | None = None,
    level: float | None = None,
    like: Sequence[str] = (),
) -> Forecasts:
    """The forecasts of a data frame, every number checked.

    Parameters
    ----------
    frame : polars.DataFrame
        Columns as at the head of this module.
    source : str
        What errors call it.
    kind, y, columns, level, like
        As in `read_forecasts`.

    Returns
    -------
    Forecasts
        One row for each that is not empty.
    """
    source = Source(source) if isinstance(source, str) else source
    cells = Cells(source.name, frame, np.arange(1, len(frame) + 1), "row").without_blanks()
    if not len(cells):
        raise CalibrlError(f"{source.name}: every row is empty; expected one forecast per row")
    columns_found = tuple(frame.columns)
    del frame  # texts are let go as soon as they are numbers
    said = dict(columns) if isinstance(columns, Mapping) else parse_columns(columns)
    names = Names.of(columns_found, said if y is None else {**said, "y": y}, source.name)
    if "value" in map(plain, columns_found) and LONG & set(map(plain, columns_found)):
        raise CalibrlError(f"{source.name}: each row is one quantile of a forecast; {ONE_ROW}")
    called = names.outcome()
    outcome = None if called is None else names.theirs[called]
    spelling, spelt = _recognise(names, cells, outcome, kind, level, like)
    told = spelling.columns if outcome is None or spelling.kind == "classes" else (*spelling.columns, outcome)
    percent = [name for name in told if cells.percent(name)]
    if 0 < len(percent) < len(told):
        other = next(name for name in told if name not in percent)
        raise CalibrlError(f"{source.name}: {cut(percent[0])} is in percent and {cut(other)} is not; write both alike")
    waiting = cells.frame.select(spelling.columns).get_columns()[::-1]
    cells = replace(cells, frame=cells.frame.drop(spelling.columns))
    values = _take_numbers(waiting, cells)
    values, notes = _CHECKS[spelling.kind](values, spelling, cells)
    seen = None
    if outcome is not None:
        seen = _labels(cells, outcome, spelling) if spelling.kind == "classes" else _outcomes(cells, outcome)
    return Forecasts(
        source=source.name,
        spelling=spelling,
        values=torch.from_numpy(values),
        y=None if seen is None else torch.from_numpy(seen),
        outcome=outcome or "y",
        frame=cells.frame.select(name for name in cells.frame.columns if name not in spelt),
        names=columns_found,
        number=cells.line,
        how=source.how,
        notes=notes,
    )


def _take_numbers(waiting: list[pl.Series], cells: Cells) -> Floats:
    """(n, k): the numbers of k columns of `cells`, the last first, every one finite; each is taken out of the list.

    Each is a table of its own: one of thousands of columns looks through all of their names when one was taken out.
    """
    values = np.empty((len(cells.line), len(waiting)))
    for k in range(len(waiting)):
        text = waiting.pop()  # of millions of rows it is larger than its numbers
        alone = replace(cells, frame=text.to_frame())
        values[:, k] = alone.floats(text.name)
        alone.refuse(~np.isfinite(values[:, k]), text.name, partial(_not_finite, text))
    return values


def _not_finite(text: pl.Series, row: int) -> str:
    said = str(text[row] or "").strip()
    fault = f"{said} is not a finite number" if said else "the cell is empty; expected a finite number"
    return f"{fault}; repair the forecast or drop the row"


def _outcomes(cells: Cells, name: str) -> Floats:
    y = cells.floats(name)
    _refuse(cells, [name], y[:, None], np.isinf(y), "is not finite; leave the cell empty if nobody saw it")
    return y


def _labels(cells: Cells, name: str, spelling: Spelling) -> Floats:
    """(n,): the number of the class of each outcome, NaN where nobody saw it."""
    classes, last = spelling.classes, len(spelling.classes) - 1
    text = cells.labels(name)
    if classes == ("0", "1"):  # yes and no
        truth = {**dict.fromkeys(YES, "1"), **dict.fromkeys(NO, "0")}
        text = text.str.to_lowercase().replace(truth)
    place = {label: float(k) for k, label in enumerate(classes)}
    alike = text
    if len({label.lower() for label in classes}) == len(classes):  # case tells none of them apart
        place, alike = {label.lower(): k for label, k in place.items()}, text.str.to_lowercase()
    found = alike.replace_strict(place, default=None, return_dtype=pl.Float64)
    odd = (found.is_null() & text.is_not_null()).to_numpy()
    if all(label.isdecimal() for label in classes):
        if classes == tuple(map(str, range(len(classes)))) and odd.any():
            y = cells.floats(name, expected=f"the number of the class, 0 to {last},")
            why = f"is not a class; expected a whole number from 0 to {last}"
            _refuse(cells, [name], y[:, None], ~np.isnan(y) & odd, why)
        among = f"{classes[0]} to {classes[-1]}"
    else:
        among = some(classes)
    cells.refuse(
        odd,
        name,
        lambda row: (
            f"{cut(text[row])!r} is none of the classes {among}; expected one of them, or say whose probability a "
            f"column is with --columns p_{cut(text[row])}=NAME"
        ),
    )
    return np.array(found.fill_null(np.nan).to_numpy(), dtype=np.float64)


def _recognise(
    names: Names, cells: Cells, outcome: str | None, kind: str | None, level: float | None, like: Sequence[str]
) -> tuple[Spelling, set[str]]:
    """The forecast to read, and the columns that spell any forecast at all."""
    if kind is not None:
        check_known("kind", kind, ACCEPTED)
    labels = [] if outcome is None else cells.some_labels(outcome)
    found = names.kinds(level=level, forced=kind)
    numbered = names.numbered()
    if len(numbered) > 1 and "quantiles" not in found:
        spelling = _numbered(numbered, cells, kind)
        found[spelling.kind] = spelling
    spelt = {column for spelling in found.values() for column in spelling.columns} | set(numbered.values())
    spelt |= {end for pair in names.intervals() for end in pair} if found else set()
    if (not found or kind == "classes") and "classes" not in found:
        events = outcome is not None and set(cells.labels(outcome).drop_nulls().str.to_lowercase()) <= {*YES, *NO}
        if other := _classes_by_label(names, cells, outcome, like) or names.single(labels, yes_or_no=events):
            found["classes"] = other
            spelt |= set(other.columns)
    elif "classes" in found:
        named = {name.lower() for name in found["classes"].classes}
        foreign = {label.lower() for label in _known_labels(cells, outcome, like)} - named
        # P_BAD0 and P_BAD1 are of 0 and 1 where outcomes say so.
        if foreign and (other := _classes_by_label(names, cells, outcome, like)):
            found["classes"] = other
    if not found and kind is None and like:
        kind = {"q": "quantiles", "s": "samples"}.get(like[0][0])
        found = names.kinds(level=level, forced=kind)
        spelt |= {column for spelling in found.values() for column in spelling.columns}
    if not found or (kind is not None and kind not in found):
        raise CalibrlError(_asked(names, cells, kind, numbered))
    if kind is None:
        # A mean and std beside quantiles say the same once more, as `calibrl apply` writes them; but more than the ends
        # of an interval do.
        spare = "quantiles" if "quantiles" in found and found["quantiles"].ends else "normal"
        several = [each for each in found if not (each == spare and {"normal", "quantiles"} <= found.keys())]
        if len(several) > 1:
            both = " and ".join(f"{each} ({found[each].columns[0]} …)" for each in several)
            raise CalibrlError(f"{cells.source}: holds {both} at once; keep one, or choose with --kind {several[0]}")
        kind = several[0]
    spelling = found[kind]
    if spelling.single and spelling.classes == ("0", "1") and len(labels) == 2:
        raise CalibrlError(
            f"{cells.source}: {spelling.columns[0]} may be the probability of {labels[0]} or of {labels[1]}; say which "
            f"with --columns p_{labels[0]}={spelling.columns[0]}"
        )
    return spelling, spelt


def _numbered(columns: Mapping[int, str], cells: Cells, kind: str | None) -> Spelling:
    """What p0, p1 … or p10, p50 … are: classes or percentiles; asked for where they may be either."""
    numbers = list(columns)
    gapless = numbers == list(range(len(numbers))) or numbers == list(range(1, len(numbers) + 1))
    classes = Spelling("classes", tuple(columns.values()), classes=tuple(map(str, numbers)))
    percentiles = Spelling("quantiles", tuple(columns.values()), levels=tuple(round(k / 100, 12) for k in numbers))
    if kind is not None:
        return percentiles if kind == "quantiles" else classes
    if numbers[0] == 0 or not 0 < numbers[-1] < 100:
        return classes
    summing = _summing(columns.values(), cells)
    if gapless and summing:
        return classes
    if not gapless and not summing:
        return percentiles
    raise CalibrlError(
        f"{cells.source}: columns {some(list(columns.values()))} may be classes or percentiles; say which with "
        "--kind classes or --kind quantiles"
    )


def _known_labels(cells: Cells, outcome: str | None, like: Sequence[str]) -> list[str]:
    """The classes of forecasts `like` these, or else those among the outcomes, in order."""
    known = [name[1:].removeprefix("_") for name in like if name.startswith("p")]
    seen = [] if outcome is None else cells.labels(outcome).drop_nulls().unique().to_list()
    return known or sorted(seen, key=lambda label: (len(label.lstrip("0")) if label.isdecimal() else 0, label))


def _classes_by_label(names: Names, cells: Cells, outcome: str | None, like: Sequence[str]) -> Spelling | None:
    """Columns called by their classes, such as pandas' 0, 1, 2, where each row of them sums to one."""
    labels = _known_labels(cells, outcome, like)
    if not 0 < len(labels) <= 1000:
        return None
    found = [spelling for spelling in names.around(labels) if len(spelling.columns) > 1]
    summing = (spelling for spelling in found if _summing(spelling.columns, cells))
    # Names of classes are no accident, whatever the numbers below them are.
    return next(summing, None if all(map(str.isdecimal, labels)) else next(iter(found), None))


def _summing(columns: Iterable[str], cells: Cells) -> bool:
    """Whether the numbers of each row sum to one, as probabilities do."""
    try:
        values = np.stack([cells.floats(name) for name in columns], 1)
    except CalibrlError:
        return False
    likely = values[np.isfinite(values).all(1)]
    return bool(len(likely)) and bool((np.abs(likely.sum(1) - 1) <= _rounded_away(likely)).all())


def _asked(names: Names, cells: Cells, kind: str | None, numbered: Mapping[int, str]) -> str:
    """What to say where no forecast was found: what is missing, and the option that settles it."""
    columns, family = cells.frame.columns, list(names.family())
    pairs = names.intervals()
    start = f"{cells.source}: no forecast among the columns {some(columns)}; "
    if len(numbered) == 1:
        only = next(iter(numbered.values()))
        return f"{start}{only} is the only class: expected p0, p1, … without a gap, or p for the probability of yes"
    if pairs and kind in (None, "quantiles"):
        low, high = pairs[0]
        if len(pairs) == 1:
            return f"{start}{cut(low)} and {cut(high)} are an interval: say its probability with --level 0.9"
        return f"{start}say which interval, with --columns lower={cut(low)},upper={cut(high)} and --level 0.95"
    if family and kind is None:
        return (
            f"{start}say what {cut(family[0])} … {cut(family[-1])} are with --kind quantiles, --kind samples or "
            "--kind classes"
        )
    if kind is None and {plain(name) for name in columns} & {*LONG, "level", "tau"}:
        return start + ONE_ROW
    mean = names.role("mean", names.rest())
    if mean is not None and kind in (None, "normal"):
        start += f"{cut(names.theirs[mean])} is a mean: say what its standard deviation is with --columns std=NAME"
        return f"{start}, or which column is a probability with --columns p=NAME"
    wanted = "; ".join(ACCEPTED.values()) if kind is None else f"{ACCEPTED[kind]} for {kind}"
    ways = {"samples": "samples=NAME,NAME,…", "quantiles": "q0.05=NAME,q0.95=NAME", "classes": "classes=NAME,NAME,…"}
    anything = "mean=NAME,std=NAME, or --columns lower=NAME,upper=NAME with --level 0.9, or --columns p=NAME"
    told = "" if names.outcome() else ", and --y NAME if there are outcomes"
    return f"{start}expected {wanted}; say which with --columns {ways.get(kind or '', anything)}{told}"


SUM_TOLERANCE = 1e-3
"""Probabilities may always miss a sum of one by this much."""

LOST = 0.1
"""Where rounding took more than this from a sum of one, too little is left to share out anew."""


def _refuse(cells: Cells, columns: Sequence[str], values: Floats, wrong: Flags, why: str) -> None:
    """Raise an error for the first cell of the columns' values (n, k) that is `wrong`."""
    found = np.argwhere(wrong.reshape(values.shape))
    if len(found):
        row, column = found[0].tolist()
        cells.complain(row, columns[column], f"{_plain(values[row, column])} {why}")


# What each kind demands of its numbers (n, k): they come back as they are used, with notes on what was done to them.

Checked = tuple[Floats, tuple[str, ...]]


def _check_normal(values: Floats, spelling: Spelling, cells: Cells) -> Checked:
    wrong = np.zeros(values.shape, dtype=bool)
    wrong[:, 1] = values[:, 1] <= 0
    what = "variance" if spelling.squared else "standard deviation"
    why = f"is not a {what}; expected more than 0: repair it or drop the row"
    _refuse(cells, spelling.columns, values, wrong, why)
    if spelling.squared:
        values[:, 1] = np.sqrt(values[:, 1])
    return values, ()


def _check_quantiles(values: Floats, spelling: Spelling, cells: Cells) -> Checked:
    columns, levels = spelling.columns, spelling.levels
    for name, level in zip(columns, levels, strict=True):
        if not 0 < level < 1:
            raise CalibrlError(
                f"{cells.source}, column {name}: level {level:g} is not between 0 and 1; "
                f"say which it is with --columns q0.975={cut(name)},…, or rename the column if it is no quantile"
            )
    if len(set(levels)) < max(2, len(levels)):
        raise CalibrlError(f"{cells.source}: quantile columns {some(columns)}; expected two or more different levels")
    crossing = (np.diff(values, axis=1) < 0).any(1)
    if not crossing.any():
        return values, ()
    row = int(cells.line[crossing.argmax()])
    share = f"{int(crossing.sum())} of {len(values)} rows ({crossing.mean():.1%}"
    note = f"quantiles cross in {share}; the first is row {row}) and were sorted"
    return np.sort(values, 1), (note,)


def _check_samples(values: Floats, spelling: Spelling, cells: Cells) -> Checked:
    if values.shape[1] < 2:
        only = spelling.columns[0]
        raise CalibrlError(f"{cells.source}: {only} is the only sample; expected two or more per forecast")
    return values, ()


def _check_classes(values: Floats, spelling: Spelling, cells: Cells) -> Checked:
    columns = spelling.columns
    if all(re.fullmatch(r"[pP]_?\d+", name) for name in columns) and not spelling.single:
        numbers = [int(label) for label in spelling.classes]
        if numbers not in (list(range(len(columns))), list(range(1, len(columns) + 1))):
            raise CalibrlError(
                f"{cells.source}: class columns {some(columns)}; expected p0, p1, … without a gap, two or more "
                "(for yes or no, p alone is enough)"
            )
    wrong = (values < 0) | (values > 1)
    percent = "divide percentages by 100" if values.max() > 2 and values.max() <= 100 else "repair it or drop the row"
    _refuse(cells, columns, values, wrong, f"is not a probability; expected 0 to 1: {percent}")
    if spelling.single:
        return np.concatenate([1 - values, values], 1), ()
    total = values.sum(1)
    cells.refuse(
        np.abs(total - 1) > _rounded_away(values),
        f"{columns[0]} … {columns[-1]}",
        lambda row: f"the probabilities sum to {_plain(total[row])}, not 1; normalise them, or name all classes",
    )
    values /= total[:, None]
    return values, ()


def _rounded_away(probs: Floats) -> float:
    """How far the sum of a row of `probs` (n, k) may be from one: half a unit of the last digit for each of k.

    Only where every number of the table has no more than two, three, … digits, so that a table with all its
    digits is held to a sum of one.
    """
    for digits in (2, 3, 4):
        whole = probs * 10**digits
        if np.abs(whole - np.round(whole)).max() < 1e-3:  # numbers may be single precision
            share = 0.5 * probs.shape[1] * 10**-digits
            return float(np.clip(share, SUM_TOLERANCE, LOST)) + 1e-9  # the sum itself is rounded
    return SUM_TOLERANCE


_CHECKS: dict[str, Callable[[Floats, Spelling, Cells], Checked]] = {
    "normal": _check_normal,
    "quantiles": _check_quantiles,
    "samples": _check_samples,
    "classes": _check_classes,
}


def _plain(value: float) -> str:
    return f"{value:.6g}"

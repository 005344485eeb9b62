"""Bandit problems: streams of contexts with the reward every arm would have paid.

Simulated ones (`simulated.py`), and classification data (classes are arms): sets inside scikit-learn, UCI's from a
folder or the network, and any table; all encoded with nothing but the rows already shown.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits.simulated import SIMULATED, Problem, Stream
from calibrl.errors import CalibrlError
from calibrl.files import fingerprint, replacing
from calibrl.tables import read_table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int16]


@dataclass(frozen=True)
class Features:
    """A table before encoding.

    numeric: (n, p) numbers; codes: (n, c) integers 0 … naming a category in each of c columns; sizes: (c,) how
    many categories each of those columns has room for.
    """

    numeric: Floats
    codes: Codes
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numeric)

    def __getitem__(self, rows: Ints) -> Features:
        return Features(self.numeric[rows], self.codes[rows], self.sizes)

    @property
    def dim(self) -> int:
        """Length of an encoded context: a constant, the numbers, and a column per category."""
        return 1 + self.numeric.shape[1] + sum(self.sizes)


def encode(rows: Features, *, standardised: bool = True) -> Floats:
    """Contexts (n, dim) of rows in the order they are shown: a constant 1, the numbers, the categories one-hot.

    Where standardised, indicators too are: row t with the mean and standard deviation of rows 0 … t. A category
    takes the next free column of its block when it first appears. Columns that still wait for theirs are zero,
    and a zero column changes no forecast: nothing is known of rows to come.
    """
    n = len(rows)
    parts = [rows.numeric]
    for j, size in enumerate(rows.sizes):
        block = np.zeros((n, size))
        block[np.arange(n), _by_first_sight(rows.codes[:, j])] = 1.0
        parts.append(block)
    columns = np.concatenate(parts, axis=1)
    return np.concatenate([np.ones((n, 1)), _standardise(columns) if standardised else columns], axis=1)


def _standardise(values: Floats) -> Floats:
    """(v - mean) / sd, both over the rows up to v's own; 0 while a column has not varied."""
    if not len(values):
        return values
    count = np.arange(1, len(values) + 1)[:, None]
    # Squares are summed about the first row: about zero they would cancel.
    shifted = values - values[0]
    mean = np.cumsum(shifted, axis=0) / count
    variance = np.cumsum(shifted**2, axis=0) / count - mean**2
    scale = np.sqrt(np.maximum(variance, 0.0))
    varied = scale > 1e-9 * np.maximum.accumulate(np.abs(shifted), axis=0)
    result: Floats = np.where(varied, (shifted - mean) / np.where(varied, scale, 1.0), 0.0)
    return result


def _by_first_sight(codes: Codes) -> Ints:
    """Codes renamed 0, 1, 2 … in the order they first appear."""
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def classification(name: str, features: Features, label: Ints, *, note: str = "") -> Problem:
    """Classes as arms: the right one pays 1, the others nothing. Rows come in random order, each once.

    Every column is standardised, as in the benchmark of Riquelme et al. (2018).
    """
    arms = int(label.max()) + 1

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        rows = generator.permutation(len(label))[:rounds]
        reward = np.eye(arms)[label[rows]]
        return Stream(encode(features[rows]), reward, reward)

    return Problem(name, arms, stream, note)


def mushroom(features: Features, poisonous: Ints) -> Problem:
    """Eat (arm 0) or leave (arm 1): a safe one pays 5, a poisonous one 5 or -35 by the toss of a coin, leaving 0.

    Contexts are plain one-hot indicators, as in the benchmark of Riquelme et al. (2018).
    """

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        rows = generator.permutation(len(poisonous))[:rounds]
        bad = poisonous[rows] == 1
        sick = generator.random(len(rows)) < 0.5
        eat = np.where(bad & sick, -35.0, 5.0)
        expected = np.where(bad, -15.0, 5.0)
        nothing = np.zeros(len(rows))
        x = encode(features[rows], standardised=False)
        return Stream(x, np.stack([eat, nothing], 1), np.stack([expected, nothing], 1))

    return Problem("mushroom", 2, stream)


UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"


@dataclass(frozen=True)
class Source:
    """A file of UCI's repository (CC BY 4.0): its name, where it is, and the SHA-256 of what it unpacks to."""

    name: str
    url: str
    sha256: str


COVERTYPE = Source(
    "covtype.data",
    f"{UCI}/covtype/covtype.data.gz",
    "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
)
MUSHROOM = Source(
    "agaricus-lepiota.data",
    f"{UCI}/mushroom/agaricus-lepiota.data",
    "e65d082030501a3ebcbcd7c9f7c71aa9d28fdfff463bf4cf4716a3fe13ac360e",
)
ADULT = Source(
    "adult.data",
    f"{UCI}/adult/adult.data",
    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
)
CENSUS = Source(
    "USCensus1990.data.txt",
    f"{UCI}/census1990-mld/USCensus1990.data.txt",
    "38e99f50855ddc03167b715b36519ef40b77295ae4e85dfef0c6429ac79ed799",
)
CENSUS_HEAD = "USCensus1990.first1000.csv"


def problem(name: str) -> Problem:
    """The problem of this name; UCI's data are read from `CALIBRL_DATA`, else fetched once and kept."""
    if name.startswith(FILE):
        path, _, label = name.removeprefix(FILE).rpartition(":")
        return table(path, label)
    if name not in PROBLEMS:
        raise CalibrlError(f"problem {name!r} is unknown; known: {', '.join(PROBLEMS)}")
    return PROBLEMS[name][1]()


FILE = "file:"
"""How the names of problems begin that are tables in files: file:PATH:LABEL; rows have the fingerprint for PATH."""
MOST_CLASSES = 1000


def table(path: str | Path, label: str) -> Problem:
    """Any classification table as a problem: its classes are the arms, its other columns the context.

    Parameters
    ----------
    path
        A CSV, Parquet or Excel file. Columns of numbers are standardised with the rows shown so far, others are
        categories.
    label
        The column of the class.

    Returns
    -------
    Problem
    """
    frame = read_table(path)
    if label not in frame.columns:
        raise CalibrlError(f"{path} has no column {label!r}; it has {', '.join(frame.columns)}: name one with --label")
    empty = [column.name for column in frame.get_columns() if column.null_count()]
    if empty:
        raise CalibrlError(
            f"{path}: column {empty[0]!r} has empty cells; fill them in, or drop those rows or the column"
        )
    classes = _codes(frame[label])
    if not 2 <= int(classes.max()) + 1 <= MOST_CLASSES:
        raise CalibrlError(
            f"{path}: column {label!r} has {int(classes.max()) + 1} classes; a bandit needs 2 to {MOST_CLASSES}: name "
            "another column with --label"
        )
    columns = frame.drop(label).get_columns()
    numeric = [column for column in columns if column.dtype.is_numeric()]
    numbers = np.array([column.cast(float).to_numpy() for column in numeric]).T.reshape(len(frame), len(numeric))
    features = _categories(numbers, [column for column in columns if not column.dtype.is_numeric()])
    return classification(f"{FILE}{fingerprint(path)}:{label}", features, classes)


# Inside scikit-learn: nothing to fetch.


def _embedded(name: str) -> Problem:
    from sklearn import datasets

    bunch: Any = getattr(datasets, f"load_{name.replace('-', '_')}")()
    return classification(name, _numbers(bunch.data), bunch.target.astype(np.int64))


# UCI's repository.


def _covertype() -> Problem:
    table = _frame(find(COVERTYPE), header=False).to_numpy()
    # All 54 columns are numbers in this file, 44 of them indicators.
    return classification("covertype", _numbers(table[:, :54]), table[:, 54].astype(np.int64) - 1)


def _mushroom() -> Problem:
    frame = _frame(find(MUSHROOM), header=False)
    edible, *rest = frame.get_columns()
    return mushroom(_categories(np.empty((len(frame), 0)), rest), (edible == "p").to_numpy().astype(np.int64))


def _adult() -> Problem:
    """Occupation is the class; rows that do not name one are left out."""
    frame = _frame(find(ADULT), header=False).drop_nulls()
    columns = [column.cast(str).str.strip_chars() for column in frame.get_columns()]
    numeric, occupation = [0, 2, 4, 10, 11, 12], columns[6]
    numbers = np.stack([columns[j].cast(float).to_numpy() for j in numeric], 1)
    features = _categories(numbers, [columns[j] for j in range(15) if j not in (*numeric, 6)])
    named = (occupation != "?").to_numpy()
    return classification("adult", features[np.flatnonzero(named)], _codes(occupation.filter(occupation != "?")))


def _census() -> Problem:
    """Occupation class (dOccup) of the 1990 census: the first 1000 rows where only they are at hand."""
    head = _in_folder(CENSUS_HEAD)
    path = head if head and not _in_folder(CENSUS.name) else find(CENSUS)
    frame = _frame(path, header=True)
    label = frame["dOccup"].to_numpy().astype(np.int64)
    features = _categories(np.empty((len(frame), 0)), frame.drop("caseid", "dOccup").get_columns())
    note = f"first {len(frame)} rows of the file" if path == head else ""
    return classification("census", features, label, note=note)


PROBLEMS: dict[str, tuple[str, Callable[[], Problem]]] = {
    **SIMULATED,
    "digits": ("scikit-learn's handwritten digits: 10 arms", partial(_embedded, "digits")),
    "wine": ("scikit-learn's wines: 3 arms", partial(_embedded, "wine")),
    "breast-cancer": ("scikit-learn's tumours: 2 arms", partial(_embedded, "breast-cancer")),
    "mushroom": ("UCI: eat a mushroom or leave it; a poisonous one may cost 35: 2 arms", _mushroom),
    "covertype": ("UCI: the forest type of 581 012 patches of land: 7 arms", _covertype),
    "adult": ("UCI: the occupation of a person: 14 arms", _adult),
    "census": ("UCI: the occupation class of a person in the 1990 census: 9 arms", _census),
}
"""Every problem by name: what it is in a line, and a function that makes it."""


# Files.


def find(source: Source) -> Path:
    """Where a file is: in `CALIBRL_DATA`, in the cache, or in the cache after fetching it."""
    here = _in_folder(source.name)
    if here is not None:
        return here
    kept = _cache() / f"{source.name}.gz"
    if not kept.is_file():
        _fetch(source, kept)
    return kept


def _in_folder(name: str) -> Path | None:
    folder = os.environ.get("CALIBRL_DATA")
    places = [Path(folder) / "uci" / f"{name}{end}" for end in ("", ".gz")] if folder else []
    return next((place for place in places if place.is_file()), None)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibrl" / "uci"


def _fetch(source: Source, target: Path) -> None:
    """Download, check, pack and keep; a progress bar on the way."""
    from rich.progress import Progress

    digest = hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(source.url, timeout=30) as answer,
            replacing(target) as temporary,
            gzip.open(temporary, "wb", compresslevel=6) as packed,
            Progress(transient=True) as progress,
        ):
            size = int(answer.headers.get("Content-Length") or 0) or None
            bar = progress.add_task(f"fetching {source.name}", total=size)
            unpack = zlib.decompressobj(wbits=31) if source.url.endswith(".gz") else None
            while chunk := answer.read(1 << 18):
                plain = unpack.decompress(chunk) if unpack else chunk
                digest.update(plain)
                packed.write(plain)
                progress.advance(bar, len(chunk))
            if digest.hexdigest() != source.sha256:
                raise CalibrlError(
                    f"{source.url} has SHA-256 {digest.hexdigest()[:12]}…, expected {source.sha256[:12]}…: the "
                    "download is damaged or the file has changed; try again, or set CALIBRL_DATA to a folder with "
                    f"uci/{source.name}"
                )
    except (urllib.error.URLError, TimeoutError, ConnectionError, zlib.error) as problem:
        reason = getattr(problem, "reason", problem)
        raise CalibrlError(
            f"{source.url} cannot be reached ({reason}); go online once, or set CALIBRL_DATA to a folder with "
            f"uci/{source.name} or uci/{source.name}.gz"
        ) from None


def _frame(path: Path, *, header: bool) -> Any:
    import polars as pl

    raw = path.read_bytes()
    plain = gzip.decompress(raw) if path.suffix == ".gz" else raw
    try:
        return pl.read_csv(io.BytesIO(plain), has_header=header, infer_schema_length=2000)
    except pl.exceptions.PolarsError as problem:
        raise CalibrlError(f"{path} cannot be read as CSV ({str(problem).splitlines()[0]}); fetch it again") from None


def _numbers(table: NDArray[Any]) -> Features:
    return Features(np.asarray(table, np.float64), np.empty((len(table), 0), np.int16), ())


def _categories(numbers: NDArray[np.float64], columns: list[Any]) -> Features:
    # Two bytes a cell: the whole census has 2.4 million rows of 67 categories.
    codes = np.empty((len(numbers), len(columns)), np.int16)
    for j, column in enumerate(columns):
        codes[:, j] = _codes(column)
    return Features(numbers, codes, tuple(int(size) + 1 for size in codes.max(0, initial=-1)))


def _codes(column: Any) -> Ints:
    found: Ints = np.unique(column.to_numpy(), return_inverse=True)[1]
    return found

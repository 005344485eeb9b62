"""Classification data as bandit problems: sets inside scikit-learn, and UCI's from a folder or the network."""

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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits.encoding import Features
from calibrl.bandits.problems import Problem, beta, classification, linear, mushroom
from calibrl.errors import CalibrlError
from calibrl.files import replacing

Ints = NDArray[np.int64]
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
    if name not in PROBLEMS:
        raise CalibrlError(f"problem {name!r} is unknown; known: {', '.join(PROBLEMS)}")
    return PROBLEMS[name]()


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


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "linear": linear,
    "beta": beta,
    "digits": lambda: _embedded("digits"),
    "wine": lambda: _embedded("wine"),
    "breast-cancer": lambda: _embedded("breast-cancer"),
    "mushroom": _mushroom,
    "covertype": _covertype,
    "adult": _adult,
    "census": _census,
}
"""Every problem by name."""


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
    return Features(numbers, codes, tuple(int(size) + 1 for size in codes.max(0)))


def _codes(column: Any) -> Ints:
    found: Ints = np.unique(column.to_numpy(), return_inverse=True)[1]
    return found

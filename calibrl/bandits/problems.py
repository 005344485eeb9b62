"""Bandit problems: streams of contexts with the reward every arm would have paid.

Simulated ones, whose truth is known: Table 1's two, and long and noisy ones that a service meets. The paper has none of
the latter. They are the reason for `CalibratedUCB`: clicks are rare, noise differs between arms, the world changes, and
nobody knows the unit of rewards beforehand.

Classification data, whose classes are arms: sets inside scikit-learn, UCI's from a folder or the network, any table;
all encoded with nothing but the rows already shown.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calibrl.errors import CalibrlError, check_known
from calibrl.files import fingerprint, replacing
from calibrl.tables import read_table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int16]

DIM, NOISE = 10, 0.1


@dataclass(frozen=True)
class Stream:
    """One trial's contexts and rewards: x (t, d), reward (t, k), expected (t, k) without the noise.

    A policy sees the reward of the arm it takes; the others are there to pair trials and to measure.
    """

    x: Floats
    reward: Floats
    expected: Floats

    @property
    def best(self) -> Ints:
        """The arm of the highest expected reward in each round: (t,)."""
        return self.expected.argmax(-1)


@dataclass(frozen=True)
class Problem:
    """A named problem: `stream(rounds, generator)` gives a trial, of fewer rounds where data run out."""

    name: str
    arms: int
    stream: Callable[[int, np.random.Generator], Stream]
    note: str = ""


def linear() -> Problem:
    """Rewards xᵀθ_a + N(0, 0.1²) of 4 arms: x is 10 standard normal numbers, θ_a a random unit vector.

    xᵀθ_a is standard normal, so the best of 4 arms pays 1.03 a round on average.

    Returns
    -------
    Problem
    """
    return Problem("linear", 4, lambda rounds, generator: _synthetic(rounds, generator, generator.standard_normal))


def beta() -> Problem:
    """As `linear`, but the noise is skewed: Beta(½, 2), shifted and scaled to mean 0 and sd 0.1.

    The mean is linear still; the Gaussian forecast's shape is what is wrong.
    """

    def noise(generator: np.random.Generator) -> Callable[[tuple[int, int]], Floats]:
        return lambda shape: (generator.beta(0.5, 2.0, shape) - 0.2) / np.sqrt(0.5 * 2.0 / (2.5**2 * 3.5))

    return Problem("beta", 4, lambda rounds, generator: _synthetic(rounds, generator, noise(generator)))


def _synthetic(rounds: int, generator: np.random.Generator, noise: Callable[[tuple[int, int]], Floats]) -> Stream:
    theta = directions(4, DIM, generator)
    x = generator.standard_normal((rounds, DIM))
    expected = x @ theta.T
    return Stream(x, expected + NOISE * noise(expected.shape), expected)


def directions(arms: int, dim: int, generator: np.random.Generator) -> Floats:
    """Random unit vectors (arms, dim)."""
    theta = generator.standard_normal((arms, dim))
    found: Floats = theta / np.linalg.norm(theta, axis=1, keepdims=True)
    return found


def clicks(name: str, rates: tuple[float, ...], *, swapped: bool = False) -> Problem:
    """Arms without context that pay 1 with these probabilities, else 0; swapped: in reverse order from halfway on."""

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        expected = np.tile(rates, (rounds, 1))
        if swapped:
            expected[rounds // 2 :] = expected[rounds // 2 :, ::-1]
        return Stream(np.ones((rounds, 1)), (generator.random(expected.shape) < expected).astype(float), expected)

    return Problem(name, len(rates), stream)


def visitors() -> Problem:
    """Those of `examples/bandit_service.py`: they like the first of 2 arms if x[0] > 0, the second in 40 % of cases."""

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        x = np.concatenate([generator.standard_normal((rounds, 2)), np.ones((rounds, 1))], 1)
        expected = np.stack([x[:, 0] > 0, np.full(rounds, 0.4)], 1).astype(float)
        return Stream(x, (generator.random(expected.shape) < expected).astype(float), expected)

    return Problem("visitors", 2, stream)


def logistic(name: str, log_odds: float) -> Problem:
    """4 arms that pay 1 with probability logistic(log_odds + 1.5 xᵀθ_a), else 0; x has a constant and 10 numbers."""

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        theta = 1.5 * directions(4, DIM, generator)
        x = generator.standard_normal((rounds, DIM))
        expected = expit(log_odds + x @ theta.T)
        reward = (generator.random(expected.shape) < expected).astype(float)
        return Stream(np.concatenate([np.ones((rounds, 1)), x], 1), reward, expected)

    return Problem(name, 4, stream)


def gaussian(
    name: str, noise: tuple[float, ...], *, unit: float = 1.0, turn: float = 0.0, swap: bool = False
) -> Problem:
    """As `linear`, with noise of these sds, one per arm, and rewards times `unit`.

    turn: every θ_a turns by this angle on the way to another direction, steadily; swap: arms trade places halfway.
    """

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        arms = len(noise)
        theta, other = directions(arms, DIM, generator), directions(arms, DIM, generator)
        x = generator.standard_normal((rounds, DIM))
        angle = np.linspace(0, turn, rounds)[:, None]
        expected = np.cos(angle) * (x @ theta.T) + np.sin(angle) * (x @ other.T)
        if swap:
            expected[rounds // 2 :] = np.roll(expected[rounds // 2 :], 1, axis=1)
        reward = expected + np.array(noise) * generator.standard_normal(expected.shape)
        return Stream(x, unit * reward, unit * expected)

    return Problem(name, len(noise), stream)


def quiet() -> Problem:
    """The best of 4 arms without context pays 0.5 ± 0.05, the others 0.4 ± 1."""
    mean, noise = np.array([0.5, 0.4, 0.4, 0.4]), np.array([0.05, 1.0, 1.0, 1.0])

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        expected = np.tile(mean, (rounds, 1))
        return Stream(np.ones((rounds, 1)), expected + noise * generator.standard_normal(expected.shape), expected)

    return Problem("quiet", 4, stream)


def classes(name: str, arms: int, dim: int) -> Problem:
    """Equally frequent classes, each a Gaussian cloud of sd 0.5 around a point at distance 2: the right arm pays 1."""

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        centre = 2.0 * directions(arms, dim, generator)
        label = generator.integers(arms, size=rounds)
        x = (centre[label] + 0.5 * generator.standard_normal((rounds, dim))) * dim**0.5 / 2.0
        reward = np.eye(arms)[label]
        return Stream(np.concatenate([np.ones((rounds, 1)), x], 1), reward, reward)

    return Problem(name, arms, stream)


_SMALL = (NOISE,) * 4
SIMULATED: dict[str, tuple[str, Callable[[], Problem]]] = {
    "linear": ("4 arms, rewards linear in 10 numbers, Gaussian noise", linear),
    "beta": ("like linear, with skewed noise", beta),
    "bernoulli": (
        "2 arms without context that pay 1 in 5 and 10 % of cases",
        partial(clicks, "bernoulli", (0.05, 0.10)),
    ),
    "clicks": (
        "4 arms without context that pay 1 in 2, 3, 5 and 8 % of cases",
        partial(clicks, "clicks", (0.02, 0.03, 0.05, 0.08)),
    ),
    "visitors": ("the example service's own visitors: 2 arms, one liked by half of them", visitors),
    "logistic": ("4 arms that pay 1 with a probability logistic in 10 numbers", partial(logistic, "logistic", 0.0)),
    "rare": ("like logistic, with few 1s", partial(logistic, "rare", -3.0)),
    "heteroscedastic": (
        "like linear, with noise of sd 0.1, 0.3, 1 and 2",
        partial(gaussian, "heteroscedastic", (0.1, 0.3, 1.0, 2.0)),
    ),
    "quiet": ("4 arms without context, of which the best pays nearly the same every time", quiet),
    "classes": ("26 classes of clouds in 16 dimensions: 26 arms", partial(classes, "classes", 26, 16)),
    "gaussian": ("like linear, with noise of sd 1", partial(gaussian, "gaussian", (1.0,) * 4)),
    "drift": ("like linear, while every arm turns by 90°", partial(gaussian, "drift", _SMALL, turn=np.pi / 2)),
    "swap": ("like linear, and halfway arms trade places", partial(gaussian, "swap", _SMALL, swap=True)),
    "swapped-clicks": (
        "2 arms that pay 1 in 10 and 30 % of cases, and halfway trade places",
        partial(clicks, "swapped-clicks", (0.1, 0.3), swapped=True),
    ),
    "small": ("like linear, rewards times 0.01", partial(gaussian, "small", _SMALL, unit=0.01)),
    "large": ("like linear, rewards times 100", partial(gaussian, "large", _SMALL, unit=100.0)),
}
"""Every simulated problem by name: what it is in a line, and a function that makes it."""


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
    "covtype.data", f"{UCI}/covtype/covtype.data.gz", "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945"
)
MUSHROOM = Source(
    "agaricus-lepiota.data",
    f"{UCI}/mushroom/agaricus-lepiota.data",
    "e65d082030501a3ebcbcd7c9f7c71aa9d28fdfff463bf4cf4716a3fe13ac360e",
)
ADULT = Source(
    "adult.data", f"{UCI}/adult/adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
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
    return PROBLEMS[check_known("problem", name, PROBLEMS)][1]()


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
    features = _features(numbers, [column for column in columns if not column.dtype.is_numeric()])
    return classification(f"{FILE}{fingerprint(path)}:{label}", features, classes)


# Inside scikit-learn: nothing to fetch.


def _embedded(name: str) -> Problem:
    from sklearn import datasets

    bunch: Any = getattr(datasets, f"load_{name.replace('-', '_')}")()
    return classification(name, _features(bunch.data), bunch.target.astype(np.int64))


# UCI's repository.


def _covertype() -> Problem:
    table = _frame(find(COVERTYPE), header=False).to_numpy()
    # All 54 columns are numbers in this file, 44 of them indicators.
    return classification("covertype", _features(table[:, :54]), table[:, 54].astype(np.int64) - 1)


def _mushroom() -> Problem:
    frame = _frame(find(MUSHROOM), header=False)
    edible, *rest = frame.get_columns()
    return mushroom(_features(np.empty((len(frame), 0)), rest), (edible == "p").to_numpy().astype(np.int64))


def _adult() -> Problem:
    """Occupation is the class; rows that do not name one are left out."""
    frame = _frame(find(ADULT), header=False).drop_nulls()
    columns = [column.cast(str).str.strip_chars() for column in frame.get_columns()]
    numeric, occupation = [0, 2, 4, 10, 11, 12], columns[6]
    numbers = np.stack([columns[j].cast(float).to_numpy() for j in numeric], 1)
    features = _features(numbers, [columns[j] for j in range(15) if j not in (*numeric, 6)])
    named = (occupation != "?").to_numpy()
    return classification("adult", features[np.flatnonzero(named)], _codes(occupation.filter(occupation != "?")))


def _census() -> Problem:
    """Occupation class (dOccup) of the 1990 census: the first 1000 rows where only they are at hand."""
    head = _in_folder(CENSUS_HEAD)
    path = head if head and not _in_folder(CENSUS.name) else find(CENSUS)
    frame = _frame(path, header=True)
    label = frame["dOccup"].to_numpy().astype(np.int64)
    features = _features(np.empty((len(frame), 0)), frame.drop("caseid", "dOccup").get_columns())
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


def _features(numbers: NDArray[Any], columns: Sequence[Any] = ()) -> Features:
    # Two bytes a cell: the whole census has 2.4 million rows of 67 categories.
    codes = np.empty((len(numbers), len(columns)), np.int16)
    for j, column in enumerate(columns):
        codes[:, j] = _codes(column)
    return Features(np.asarray(numbers, np.float64), codes, tuple(int(size) + 1 for size in codes.max(0, initial=-1)))


def _codes(column: Any) -> Ints:
    found: Ints = np.unique(column.to_numpy(), return_inverse=True)[1]
    return found

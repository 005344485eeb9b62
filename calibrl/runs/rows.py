"""Rows of results: typed, append-only, and whole after a crash; and what they say: means, and differences by seed.

One JSON object per line. A run appends rows as it goes and flushes each to disk; a line that a crash cut short, or
whose checksum does not fit, is reported and skipped when the file is read, and the others stand. Whole lines that are
missing are noticed where the run that wrote them said how many there were, in `finished.log`.

`schema` is the number of the layout. 1 (no number in the file): no overrides, seconds or job. 2: no checksum. Such
rows still read.

How well forecasts were calibrated is carried by rows as numbers, so that any page can draw the curves again: a row
that has `reliability_05 … reliability_95` says which share of the outcomes fell at or below the level
5 %, 10 %, … 95 % of their forecasts: the reliability curve. Differences of neighbours are the PIT histogram in
twenty bins.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrl import __version__
from calibrl.errors import CalibrlError
from calibrl.files import check_regular, hidden, seal, unseal
from calibrl.runs.experiment import describe

if TYPE_CHECKING:
    from calibrl.arrays import Array


SCHEMA, UNSEALED = 3, 2
"""The layout of rows, and the last one without a checksum."""
FINISHED = "finished.log"
"""Beside the rows of a run: a line for each job that ended, with the number of its rows."""
LONGEST = 1 << 24
"""Bytes of the longest line that is read."""
TOLD = 5
"""Damaged rows of a file that are told of one by one; how many more there are is said at the end."""
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "gymnasium", "mujoco")


@dataclass(frozen=True)
class Row:
    """One measurement: which experiment, problem and arm, which seed and step, and the numbers.

    Parameters
    ----------
    experiment, problem, arm : str
        What was measured; arms of a problem are compared.
    seed, step : int
        Arms with the same seed are paired; a row of each step makes a learning curve.
    metrics : dict of str to float
        The numbers.
    preset, overrides
        What was run, and what was changed about it.
    settings : dict
        What else tells rows apart.
    seconds : float
        How long the row took to compute.
    job : str
        The piece of the run that gave it.
    origin : dict
        Command, code and package versions, machine; on the first row of a job, and on the first after a resume.
    """

    experiment: str
    problem: str
    arm: str
    seed: int
    metrics: dict[str, float]
    step: int = 0
    preset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    job: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, int, int]:
        """What makes the row the one it is, whatever its numbers."""
        return (self.experiment, self.preset, self.problem, self.arm, self.seed, self.step)


def command() -> str:
    """The command that this process was given, as a shell takes it."""
    script, words = sys.argv[0], sys.argv[1:]
    ours = not script.endswith(".py") or Path(script).name == "__main__.py"
    return shlex.join(["calibrl", *words] if ours else ["python", script, *words])


def origin(words: str | None = None) -> dict[str, Any]:
    """Where rows come from: command (this process's own if not given), code and package versions, machine, time."""
    return {
        "command": words or command(),
        **_versions(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
    }


def line(row: Row) -> str:
    """A row as a line of a file. What is not a finite number becomes null: JSON knows no other way to say it."""
    metrics = {name: value if math.isfinite(value) else None for name, value in row.metrics.items()}
    content = {"schema": SCHEMA, **asdict(row), "metrics": metrics}
    try:
        return seal(json.dumps(content, ensure_ascii=False, allow_nan=False)) + "\n"
    except UnicodeEncodeError:  # a file's name in the command need not be text
        return seal(json.dumps(content, allow_nan=False)) + "\n"


def append(path: str | Path, rows: Iterable[Row]) -> None:
    """Add rows to a file and see them onto the disk."""
    target = Path(path)
    make_folder(target.parent)
    append_text(target, "".join(line(row) for row in rows))


def append_text(path: Path, text: str) -> None:
    """Add whole lines to a file and see them onto the disk; a line that a crash cut short stays a line of its own."""
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        whole = file.read() in (b"", b"\n")
        file.write(("" if whole else "\n").encode() + text.encode())
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """A folder for rows, if it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise CalibrlError(f"{folder} is a file, but rows go into a folder; choose another --out") from None


def read(path: str | Path) -> list[Row]:
    """All rows of a file, or of every .jsonl file under a folder; what is damaged or missing is reported.

    Parameters
    ----------
    path : str or Path
        A .jsonl file, or a folder.

    Returns
    -------
    list of Row
    """
    return [row for rows in read_files(path).values() for row in rows]


def read_files(path: str | Path) -> dict[Path, list[Row]]:
    """The rows of a file, or of every .jsonl file under a folder that is not hidden, by file."""
    root = Path(path)

    def closed(problem: OSError) -> None:
        if not hidden(Path(problem.filename), root):
            warnings.warn(f"{problem.filename}: {problem.strerror}; rows in it are left out", stacklevel=2)

    files = [root]
    if root.is_dir():
        # Not rglob, which passes by what it may not look into.
        walked = (Path(place, name) for place, _, names in os.walk(root, onerror=closed) for name in names)
        files = sorted(file for file in walked if file.suffix == ".jsonl" and not hidden(file, root))
    found = {}
    damaged: dict[Path, int] = {}
    for file in files:
        found[file], damaged[file.parent] = _read_file(file, damaged.get(file.parent, 0))
    for folder in dict.fromkeys(file.parent for file in files):
        beside = [file for file in folder.glob("*.jsonl") if not hidden(file, folder)]
        # Where only one of several files is read, nobody knows which of them a job's rows should be in.
        if (folder / FINISHED).is_file() and all(file in found for file in beside):
            _report_missing(folder, [row for file in beside for row in found[file]], damaged[folder])
    return found


def _report_missing(folder: Path, rows: Iterable[Row], damaged: int) -> None:
    """Warn where fewer rows of a job are here than when it ended, and not because so many were damaged."""
    keys: dict[str, set[Any]] = {}
    for row in rows:
        keys.setdefault(row.job, set()).add(row.key)
    counts = {job: count - len(keys.get(job, ())) for job, count, _ in marks(folder / FINISHED)}
    missing = {job: count for job, count in counts.items() if count > 0}
    if (lost := sum(missing.values())) > damaged:
        what = f"{next(iter(missing))!r}" + (f" and {len(missing) - 1} other jobs" if len(missing) > 1 else "")
        warnings.warn(f"{folder}: {lost} rows of {what} are missing; --resume computes them again", stacklevel=4)


def mark(job: str, rows: int, arrays: str) -> str:
    """The line of `finished.log` for a job that ended with so many rows; arrays: their fingerprint, or ""."""
    return seal(json.dumps({"job": job, "rows": rows, "arrays": arrays})) + "\n"


def marks(log: Path) -> list[tuple[str, int, str]]:
    """The whole lines of `finished.log`, the last of each job: its name, number of rows and arrays' fingerprint."""
    found = {}
    for text in log.read_bytes().splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a job without its line is run again
            values, _ = unseal(text)
            if values.keys() == {"job", "rows", "arrays"}:
                found[str(values["job"])] = (int(values["rows"]), str(values["arrays"] or ""))
    return [(job, *rest) for job, rest in found.items()]


def read_experiment(path: str | Path, experiment: str) -> list[Row]:
    """Rows of one experiment in a .jsonl file or a folder of them, or an error that says how to get some."""
    if not Path(path).exists():
        raise CalibrlError(f"{path} does not exist; give a .jsonl file or a folder of them")
    found = [row for row in read(path) if row.experiment == experiment]
    if not found:
        raise CalibrlError(f"{path} holds no rows of {experiment}; run: calibrl run {experiment} --out {path}")
    return found


def _read_file(file: Path, damaged: int) -> tuple[list[Row], int]:
    """The rows of a file, and `damaged` and how many more lines of it are no rows."""
    check_regular(file, "give a .jsonl file, or a folder of them")
    rows, wrong = [], list[str]()
    for number, text in enumerate(_lines(file), start=1):
        if not text.strip():
            continue
        try:
            rows.append(_parse(text))
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as problem:
            wrong.append(f"line {number}: damaged row skipped" + isinstance(problem, CalibrlError) * f" ({problem})")
    more = [f"{len(wrong) - TOLD} more damaged rows skipped"] if len(wrong) > TOLD else []
    for what in [*wrong[:TOLD], *more]:
        warnings.warn(f"{file}, {what}", stacklevel=4)
    return rows, damaged + len(wrong)


def _lines(file: Path) -> Iterator[bytes]:
    """The lines of a file; of one that is longer than any row only the beginning."""
    # Bytes: a crash may leave anything behind, even in the middle of a letter.
    with file.open("rb") as lines:
        while text := lines.readline(LONGEST):
            yield text
            while len(text) == LONGEST and not text.endswith(b"\n"):
                text = lines.readline(LONGEST)


def _parse(text: bytes) -> Row:
    values, sealed = unseal(text)
    schema = values.pop("schema", 1)
    if schema > SCHEMA:
        raise CalibrlError(f"schema {schema} is newer than {SCHEMA}: update calibrl")
    if schema > UNSEALED and not sealed:
        raise ValueError("its checksum is missing")
    metrics = values["metrics"].items()
    values["metrics"] = {name: math.nan if value is None else _number(value) for name, value in metrics}
    row = Row(**values)
    wrong = any(not isinstance(getattr(row, name), kind) for name, kind in _KINDS.items())
    if wrong or isinstance(row.seed, bool) or isinstance(row.step, bool):
        raise TypeError
    _number(row.seconds)
    _expect_plain([row.settings, row.overrides, row.origin])
    if not isinstance(row.origin.get("packages", {}), dict):
        raise TypeError
    return row


def _expect_plain(value: Any) -> None:
    """Refuse numbers that no row was written with, and could not be written again: infinite ones."""
    if isinstance(value, int | float):
        _number(float(value))
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _expect_plain(part)


def _number(value: Any) -> float:
    """A finite number as it is, or an error."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return value


_KINDS: dict[str, Any] = {
    each.name: {"str": str, "int": int, "float": int | float}.get(str(each.type), dict) for each in fields(Row)
}
"""What each field of a row must be."""


@functools.cache
def _versions() -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {"version": __version__, "commit": _commit(), "python": platform.python_version(), "packages": versions}


def _commit() -> str:
    # A machine may have the files without their history; who sent them knows which commit they are.
    if "CALIBRL_COMMIT" in os.environ:
        return os.environ["CALIBRL_COMMIT"]
    try:
        asked = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.check_output(asked, cwd=Path(__file__).parent, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


RELIABILITY_PERCENT = tuple(range(5, 100, 5))
RELIABILITY_NAMES = tuple(f"reliability_{percent:02d}" for percent in RELIABILITY_PERCENT)
"""`reliability_05`, `reliability_10`, … `reliability_95`."""


def reliability_metrics(pit: Array) -> dict[str, float]:
    """The reliability curve of PITs (n,) or (n, d) as metrics of a row; columns are averaged."""
    # Imported here: who only reads rows should not wait for torch.
    from calibrl.diagnostics import reliability_curve

    observed = reliability_curve(pit, [percent / 100 for percent in RELIABILITY_PERCENT]).observed
    shares = observed if observed.ndim == 1 else observed.mean(1)
    return {name: round(float(share), 6) for name, share in zip(RELIABILITY_NAMES, shares, strict=True)}


ENOUGH_SEEDS = 5
"""With fewer pairs than this no interval is printed: Student's calls chance a difference in up to half of all cases."""


@dataclass(frozen=True)
class Cell:
    """One number of a table: the mean over seeds, its standard error, and how many seeds there were.

    difference, difference_error: to the baseline arm on the same `pairs` seeds, its mean and standard error.
    """

    mean: float
    error: float
    seeds: int
    difference: float = math.nan
    difference_error: float = math.nan
    pairs: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true difference lies with 95 %, by Student's t; NaN for fewer than `ENOUGH_SEEDS` pairs."""
        from scipy.special import stdtrit

        reach = (
            float(stdtrit(self.pairs - 1, 0.975)) * self.difference_error if self.pairs >= ENOUGH_SEEDS else math.nan
        )
        return self.difference - reach, self.difference + reach


def latest(rows: Sequence[Row]) -> list[Row]:
    """One row per key and overrides: where a run was repeated, the last one counts."""
    return list({(row.key, str(row.overrides)): row for row in rows}.values())


def by_run(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows that may be compared, by their experiment and by the preset and what was changed about it, in words."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        picks = describe(row.experiment).picks
        changes = [f"{name}={value}" for name, value in row.overrides.items() if name not in picks]
        found.setdefault((row.experiment, ", ".join(filter(None, [row.preset, *changes]))), []).append(row)
    return found


def table(rows: Sequence[Row], metric: str, baseline: str) -> dict[str, dict[str, Cell]]:
    """Metric by problem, then arm; each in the order of first appearance, at each seed's last step.

    A seed whose last number is none (NaN) does not count.
    """
    final: dict[tuple[str, str, int], tuple[int, float]] = {}
    for row in rows:
        if metric in row.metrics:
            key = (row.problem, row.arm, row.seed)
            if key not in final or row.step >= final[key][0]:
                final[key] = (row.step, row.metrics[metric])
    found: dict[str, dict[str, dict[int, float]]] = {}
    for (problem, arm, seed), (_, value) in final.items():
        seeds = found.setdefault(problem, {}).setdefault(arm, {})
        if math.isfinite(value):
            seeds[seed] = value
    return {
        problem: {arm: _cell(values, arms.get(baseline, {}), arm == baseline) for arm, values in arms.items()}
        for problem, arms in found.items()
    }


def stops(rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    """The last steps of arms by problem, in words ("1800–2400" where seeds differ), if arms or seeds stopped apart."""
    last: dict[str, dict[str, dict[int, int]]] = {}
    for row in rows:
        seeds = last.setdefault(row.problem, {}).setdefault(row.arm, {})
        seeds[row.seed] = max(row.step, seeds.get(row.seed, row.step))
    return {
        problem: {
            arm: "–".join(dict.fromkeys((f"{min(steps.values())}", f"{max(steps.values())}")))
            for arm, steps in arms.items()
        }
        for problem, arms in last.items()
        if len({step for steps in arms.values() for step in steps.values()}) > 1
    }


def stops_in_words(found: dict[str, dict[str, str]], step: str) -> str:
    """One sentence of where arms stopped; nothing if they all stopped together."""
    told = "; ".join(
        f"{problem}: {', '.join(f'{arm} {at}' for arm, at in arms.items())}" for problem, arms in found.items()
    )
    return f"Not after equal experience. Last {step}s: {told}." if told else ""


def alike(rows: Sequence[Row], metrics: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """Problems grouped by which of the metrics they measure, so that each group fills a table without holes."""
    measured: dict[str, set[str]] = {}
    for row in rows:
        measured.setdefault(row.problem, set()).update(row.metrics)
    groups: dict[tuple[str, ...], list[str]] = {}
    names = tuple(metrics)
    for problem, found in measured.items():
        groups.setdefault(tuple(name for name in names if name in found), []).append(problem)
    return groups


def _cell(values: dict[int, float], base: dict[int, float], is_base: bool) -> Cell:
    mean, error = mean_and_error(list(values.values()))
    if is_base or not base:
        return Cell(mean, error, len(values))
    paired = [values[seed] - base[seed] for seed in values if seed in base]
    return Cell(mean, error, len(values), *mean_and_error(paired), len(paired))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error: NaN both without a value, the error for one."""
    if not len(values):
        return math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error

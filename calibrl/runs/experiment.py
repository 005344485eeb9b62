"""An experiment as one value, off which flags, `calibrl list | show | summary | report` and `run all` are read.

And how to read rows by name: those of experiments, and those of benchmarks, which are described here.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from calibrl.errors import check_known
from calibrl.runs.settings import leaves

if TYPE_CHECKING:
    from calibrl.runs.engine import Found
    from calibrl.runs.rows import Row

EXPERIMENTS: dict[str, str] = {
    "core": "calibrl.core.experiment:EXPERIMENT",
    "bandits": "calibrl.bandits.experiment:EXPERIMENT",
    "inventory": "calibrl.inventory.experiment:EXPERIMENT",
    "control": "calibrl.control.experiment:EXPERIMENT",
    "mdp": "calibrl.mdp.experiment:EXPERIMENT",
    "safety": "calibrl.safety.experiment:EXPERIMENT",
}
"""Where each experiment is, by name, in the order of `calibrl run all`; loaded when it is needed."""


class Settings(Protocol):
    """Settings are frozen dataclasses with a name: that of their preset."""

    @property
    def name(self) -> str:
        """The preset that they are, or were made of."""


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Metric:
    """One column of a table: a heading, how to print a number, which way is better, and what it means.

    Parameters
    ----------
    heading : str
    form : str
        As Python formats numbers: ".4g", ".1%".
    better : str
        "lower", "higher", or "" where neither is.
    help : str
        What it means, in a few words.
    limits : (float, float), optional
        The smallest and largest value there can be; shares (printed in %) lie between 0 and 1 unless told.
    """

    heading: str
    form: str = ".4g"
    better: str = ""
    help: str = ""
    limits: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest value there can be; infinite where there is no limit."""
        return self.limits or ((0.0, 1.0) if self.form.endswith("%") else (-math.inf, math.inf))


LOSS = "the sum over levels of (promised − observed share)²; 0 is honest"
CRPS = "how far forecasts were from outcomes, spread included, in the outcome's units"
AT_LEAST_0 = (0.0, math.inf)
"""Meanings and limits that several experiments' metrics share."""


@dataclass(frozen=True)
class Axis:
    """A setting that rows were varied along, such as the amount of data: its name in `settings` and in words.

    `within` are the settings that stay the same along one curve.
    """

    setting: str
    heading: str
    within: tuple[str, ...]


ANY = "*"


@dataclass(frozen=True)
class Number:
    """A number printed in the paper; `error` is its standard error, NaN where none is printed."""

    mean: float
    error: float = math.nan


@dataclass(frozen=True)
class Printed:
    """A table of the paper: where it stands, and its numbers by problem, arm and metric, named as in our rows.

    A problem named ANY stands for whichever problem the rows are about: the paper used data nobody else can have.
    step: the round after which its numbers are, where that matters: sums over fewer rounds do not compare.
    """

    source: str
    numbers: Mapping[str, Mapping[str, Mapping[str, Number]]] = field(default_factory=dict)
    step: int | None = None

    def at(self, problem: str, arm: str, metric: str) -> Number | None:
        """The printed number for that place of a table, if there is one."""
        return self.about(problem).get(arm, {}).get(metric)

    def about(self, problem: str) -> Mapping[str, Mapping[str, Number]]:
        """What is printed about a problem: by arm, then metric."""
        return self.numbers.get(problem, self.numbers.get(ANY, {}))


@dataclass(frozen=True, kw_only=True)
class Description:
    """How to read rows: all that tables and pages need to know of an experiment or a benchmark.

    Parameters
    ----------
    title, question : str
        A heading, and the question in a sentence or two.
    baseline : str
        The arm that others are compared with; "" for none.
    metrics : mapping of str to Metric
        What to show, in this order.
    paper : Printed, optional
        What the paper printed about it.
    thin : tuple of str
        Metrics m whose companions `m_200`, `m_400`, … in the same row say what m was after that many steps.
    along : Axis, optional
        Draw metrics against this setting.
    step : str
        What a step is, for the axis of learning curves.
    subject : str
        The arm that the experiment is about, for the verdict; "" for the first that is not the baseline.
    figures : mapping of str to str
        Captions, by the start of a figure file's name; the first is the one to start with.
    live : tuple of str
        Those figures, by the same starts, whose content the report draws as live charts.
    picks : tuple of str
        Settings that say which problems and arms were run and change nothing about any of them.
    """

    title: str
    question: str
    baseline: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    paper: Printed | None = None
    thin: tuple[str, ...] = ()
    along: Axis | None = None
    step: str = "step"
    subject: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)
    live: tuple[str, ...] = ()
    picks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """What `calibrl run NAME` was asked for, beside the settings.

    changes: values given for fields of the settings, by path ("trials", "planner.horizon").
    """

    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    out: Path | None = None
    backend: str | None = None
    workers: int | None = None
    address: str | None = None
    resume: bool = False
    force: bool = False
    minutes: float | None = None
    tensorboard: Path | None = None

    @property
    def parallel(self) -> bool:
        """Whether jobs were asked to run beside each other, or on a backend by name."""
        return (self.backend, self.workers, self.address) != (None, None, None)

    @property
    def chosen_backend(self) -> str:
        """The backend asked for, or the one that the other options imply."""
        if self.backend is not None:
            return self.backend
        return "ray" if self.address else "processes" if self.workers else "serial"


@dataclass(frozen=True)
class Custom(Generic[S]):
    """Settings for what has no preset: `calibrl run control --env ID`.

    Parameters
    ----------
    flag, help : str
        The option.
    settings : callable
        From the option's value to settings that bear it as their name.
    """

    flag: str
    help: str
    settings: Callable[[str], S]


@dataclass(frozen=True)
class Job:
    """One independent piece of work: `function(*arguments, **options)`, with a name that is unique in the run.

    Everything must be picklable: a function of a module, plain arguments. A function that returns an iterator (a
    generator) is reported item by item; its result is the list of them. The same job must always give the same items.

    Parameters
    ----------
    name : str
        Unique in the run.
    function : callable
        A function of a module.
    arguments, options
        What it is called with.
    parts : tuple of str
        In an experiment: the pieces of work that this job does together, if there are several (agents of a fleet).
        Each is finished by itself: rows and arrays name theirs, and `function` gets a keyword `parts` with those that
        are not finished. Default: the job is one piece.
    checkpoint : str
        In an experiment: a job that can go on where it was stopped, by files of this pattern ("*.pt") in the run's
        `checkpoint/`. `function` gets a keyword `checkpoint`, that folder. It saves there *before* it yields a step's
        rows, and begins by yielding all rows it had saved again, as one list: those that are on the disk are not
        written twice. It also gets a keyword `report`, to be called with a `Status` now and then.
    until : int
        A part whose last row has a smaller step is not finished, whatever was said: more trials go on from a
        checkpoint.
    beside : bool
        In an experiment: it has a device of its own, and runs beside other such jobs unless somebody says who works.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    checkpoint: str = ""
    until: int = 0
    beside: bool = False

    @property
    def pieces(self) -> tuple[str, ...]:
        """What can be finished by itself: the parts, or the job."""
        return self.parts or (self.name,)


@dataclass(frozen=True)
class Status:
    """Where a job is: words, and the share of the job that is done; of a job of several parts, summed over them.

    line: whether it is worth a line of its own where there is no live display.
    """

    text: str
    done: float
    line: bool = False


Report = Callable[[Status], None]
"""How a long job says where it is."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Description, Generic[S]):
    """An experiment: what it asks, what can be set, which jobs it consists of, and how to read and draw its rows.

    Parameters
    ----------
    name : str
        What rows call it, and `calibrl run NAME`.
    presets : mapping of str to settings
        Frozen dataclasses, by their field `name`.
    default : str
        The preset that `calibrl run NAME` starts from.
    small, full : settings, optional
        What `calibrl run all --small` and `calibrl run all` run.
    jobs : callable
        From settings to jobs. It refuses what cannot be run before anything is written, and imports what is heavy.
    draw : callable, optional
        `draw(out, settings, found)` writes the figures, from the folder's content alone.
    partial : bool
        Whether `draw` can also draw a run that `--minutes` stopped.
    show : callable, optional
        `show(rows, settings)` prints what a run came to. Default: the table of its metrics.
    show_rows : callable, optional
        `show_rows(rows, options)` is `--rows`: prints rows of earlier runs, and may draw them into `options.out`.
        Default: `show`.
    prepare : callable, optional
        `prepare(settings, options)` has the last word on settings before they are run.
    custom : Custom, optional
        Settings for what has no preset.
    apart : callable, optional
        `apart(settings, row)`: whether a row in the folder is of a run beside this one, to be left as it is.
    names : mapping of str to (str, callable)
        What else has a name, for `calibrl list`: kind → (where it is used, function that gives {name: one line}).
    needs : (str, str), optional
        A package that it cannot do without, and the extra that has it.
    file : str
        The file of its rows.
    folder : str
        Where rows go without `--out`; {preset} stands for the preset. Default: `out/NAME`.
    """

    name: str
    presets: Mapping[str, S]
    default: str
    jobs: Callable[[S], Sequence[Job]]
    small: S | None = None
    full: S | None = None
    draw: Callable[[Path, S, Found], None] | None = None
    partial: bool = False
    show: Callable[[Sequence[Row], S], None] | None = None
    show_rows: Callable[[Sequence[Row], Options], None] | None = None
    prepare: Callable[[S, Options], S] | None = None
    custom: Custom[S] | None = None
    apart: Callable[[S, Row], bool] | None = None
    names: Mapping[str, tuple[str, Callable[[], Mapping[str, str]]]] = field(default_factory=dict)
    needs: tuple[str, str] | None = None
    file: str = "rows.jsonl"
    folder: str = ""

    def preset(self, name: str) -> S:
        """The preset of that name, or an error that lists the known ones."""
        return self.presets[check_known("preset", name, self.presets)]

    def base_of(self, settings: S) -> S:
        """The preset that settings were made of: the one of the same name, or what `custom` gives for it."""
        if settings.name not in self.presets and self.custom is not None:
            return self.custom.settings(settings.name)
        return self.presets.get(settings.name, settings)

    def overrides(self, settings: S) -> dict[str, Any]:
        """What was changed about the preset and decides what rows say, as JSON has it: {"planner.horizon": 30}."""
        before = {leaf.path: leaf.value for leaf in leaves(self.base_of(settings))}
        changed = {
            leaf.path: leaf.value
            for leaf in leaves(settings)
            if leaf.about.decides_rows and (leaf.path not in before or leaf.value != before[leaf.path])
        }
        return dict(json.loads(json.dumps(changed)))


def experiment(name: str) -> Experiment[Any]:
    """The experiment of that name, or an error that lists the known ones."""
    module, _, value = EXPERIMENTS[check_known("experiment", name, EXPERIMENTS)].partition(":")
    found: Experiment[Any] = getattr(importlib.import_module(module), value)
    return found


def describe(name: str, *, baseline: str = "") -> Description:
    """How to read the rows of an experiment or benchmark; of one that is unknown, only its name and `baseline`."""
    if name in EXPERIMENTS:
        return experiment(name)
    return BENCHMARKS.get(name, Description(title=name, question="", baseline=baseline))


def _described(about: dict[str, Any]) -> Description:
    columns = {name: Metric(*how) for name, how in about["metrics"].items()}
    return Description(**about | {"metrics": columns})


BENCHMARKS: dict[str, Description] = {
    name: _described(about)
    for name, about in json.loads(Path(__file__).with_name("benchmarks.json").read_text("utf-8")).items()
}
"""How to read rows of benchmarks, by name."""

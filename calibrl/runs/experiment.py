"""An experiment as one value, off which flags, `calibrl list | show | summary | report` and `run all` are read.

Settings are frozen dataclasses, one inside another where that helps; each field says with `setting` what it is for.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from calibrl.errors import CalibrlError

if TYPE_CHECKING:
    from calibrl.runs.engine import Found
    from calibrl.runs.jobs import Job
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

PAPER, REFERENCE, OURS = "paper", "reference code", "ours"
"""Sources of a value: printed by Malik et al. (2019); read in the authors' code, which builds on PETS'; chosen here."""


class Settings(Protocol):
    """Settings are frozen dataclasses with a name: that of their preset."""

    @property
    def name(self) -> str:
        """The preset that they are, or were made of."""


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What a field of settings says about itself: see `setting`."""

    help: str = ""
    source: str | Mapping[str, str] = OURS
    flag: str | None = None
    decides_rows: bool = True
    fixed: bool = False
    least: float | None = None


def setting(
    default: Any = MISSING,
    *,
    help: str,
    source: str | Mapping[str, str] = OURS,
    flag: str | None = None,
    decides_rows: bool = True,
    fixed: bool = False,
    least: float | None = None,
    default_factory: Any = MISSING,
) -> Any:
    """Declare a field of a frozen settings dataclass, with its help text and where its value comes from.

    Parameters
    ----------
    default, default_factory
        As for `dataclasses.field`.
    help : str
        What the field is for: the text of the option and of `calibrl show`.
    source : str or mapping of str to str
        Where the value comes from: "paper", "reference code" or "ours"; or by the name of the preset ("ours" for those
        not named).
    flag : str, optional
        The option of `calibrl run NAME`. Default: for a field of the settings themselves its own name with dashes, for
        a field inside another dataclass none. "" is none: only `--set field=value` changes it. A tuple whose flag is
        another word than the field's (`problems`, "--problem") is given one at a time, otherwise with commas.
    decides_rows : bool
        False for what says which jobs there are (seeds, trials) or how they are shown, never what a row says. Such
        changes are not written into rows, and a run may be continued with others.
    fixed : bool
        Whether neither an option nor `--set` may change it.
    least : float, optional
        The smallest number that may be given.

    Returns
    -------
    dataclasses.Field
    """
    metadata = {"setting": Setting(help, source, flag, decides_rows, fixed, least)}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Metric:
    """One column of a table: a heading, how to print a number, which way is better, and what it means.

    limits: the smallest and largest value there can be; shares (printed in %) lie between 0 and 1 unless told.
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
    baseline: str
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
        if name not in self.presets:
            raise CalibrlError(f"preset {name!r} is unknown; known: {', '.join(self.presets)}")
        return self.presets[name]

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
    if name not in EXPERIMENTS:
        raise CalibrlError(f"experiment {name!r} is unknown; known: {', '.join(EXPERIMENTS)}")
    module, _, value = EXPERIMENTS[name].partition(":")
    found: Experiment[Any] = getattr(importlib.import_module(module), value)
    return found


@dataclass(frozen=True)
class Leaf:
    """One field of settings that is no dataclass itself: its path, value, type, and what it says about itself."""

    path: str
    value: Any
    type: Any
    about: Setting

    @property
    def nested(self) -> bool:
        """Whether it is a field of settings inside others."""
        return "." in self.path

    @property
    def settable(self) -> bool:
        """Whether `--set` may change it."""
        return not self.about.fixed and self.path != "name"

    @property
    def flag(self) -> str:
        """Its option, or "" if it has none."""
        if not self.settable:
            return ""
        if self.about.flag is not None:
            return self.about.flag
        return "" if self.nested else "--" + self.path.replace("_", "-")

    @property
    def repeatable(self) -> bool:
        """Whether its option is given once for each value: `--problem a --problem b`, and not `--arms a,b`."""
        return typing.get_origin(self.type) is tuple and self.flag != "--" + self.path.replace("_", "-")


def leaves(settings: Any, prefix: str = "", *, decides_rows: bool = True, fixed: bool = False) -> Iterator[Leaf]:
    """All fields of settings in order, those of dataclasses inside with dots: `planner.horizon`."""
    kinds = typing.get_type_hints(type(settings))
    for each in fields(settings):
        # Settings of lower layers say in `help` what they are for.
        about = each.metadata.get("setting", Setting(each.metadata.get("help", "")))
        value = getattr(settings, each.name)
        about = dataclasses.replace(about, decides_rows=about.decides_rows and decides_rows, fixed=about.fixed or fixed)
        if is_dataclass(value):
            inside = f"{prefix}{each.name}."
            yield from leaves(value, inside, decides_rows=about.decides_rows, fixed=about.fixed)
        else:
            yield Leaf(prefix + each.name, value, _plain_type(kinds[each.name]), about)


def identity(settings: Any) -> dict[str, Any]:
    """What decides what rows say, as JSON has it and nested as the settings are; what is None is left out."""
    found: dict[str, Any] = {}
    for leaf in leaves(settings):
        if leaf.about.decides_rows and leaf.value is not None and leaf.path != "name":
            *parts, last = leaf.path.split(".")
            place = found
            for part in parts:
                place = place.setdefault(part, {})
            place[last] = leaf.value
    return dict(json.loads(json.dumps(found)))


def changed(settings: T, changes: Mapping[str, Any]) -> T:
    """Settings with the fields at some paths changed, all at once: those that must fit each other come in any order."""
    own = {path: value for path, value in changes.items() if "." not in path}
    parts = {path.partition(".")[0] for path in changes if "." in path}
    for part in parts:
        start = f"{part}."
        inside = {path.removeprefix(start): value for path, value in changes.items() if path.startswith(start)}
        own[part] = changed(getattr(settings, part), inside)
    found: T = dataclasses.replace(settings, **own)  # type: ignore[type-var]
    return found


def parse_changes(settings: Any, words: Iterable[str]) -> dict[str, Any]:
    """Values by path from words as `--set` takes them: "planner.horizon=30"; lists are written "64,64"."""
    known = {leaf.path: leaf for leaf in leaves(settings) if leaf.settable}
    found = {}
    for change in words:
        path, equals, text = change.partition("=")
        if not equals or path not in known:
            raise CalibrlError(f"--set {change!r}: no such field; write one of {', '.join(known)} and =VALUE")
        found[path] = parsed(known[path], text, f"--set {path}={text!r}")
    return found


def parsed(leaf: Leaf, text: str, said: str) -> Any:
    """The text as a value of the field's type; `said` is how somebody put it, for the error."""
    if typing.get_origin(leaf.type) is tuple:
        one = dataclasses.replace(leaf, type=typing.get_args(leaf.type)[0])
        return tuple(parsed(one, part.strip(), said) for part in text.split(",") if part)
    if leaf.type is bool:
        if text.lower() not in ("true", "false"):
            raise CalibrlError(f"{said} is not yes or no; write true or false")
        return text.lower() == "true"
    try:
        value = leaf.type(text)
    except ValueError:
        what = {int: "a whole number", float: "a number"}.get(leaf.type, leaf.type.__name__)
        raise CalibrlError(f"{said} is not {what}; the preset has {leaf.value}") from None
    if leaf.about.least is not None and value < leaf.about.least:
        raise CalibrlError(f"{said} is too small; use {leaf.about.least:g} or more")
    return value


def source_of(leaf: Leaf, preset: str) -> str:
    """Where a preset's value comes from."""
    source = leaf.about.source
    return source if isinstance(source, str) else source.get(preset, OURS)


def _plain_type(kind: Any) -> Any:
    """A field's type without None: `int | None` → int."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        (kind,) = [part for part in typing.get_args(kind) if part is not type(None)] or [str]
    return kind

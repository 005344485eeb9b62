"""Settings: frozen dataclasses, one inside another where that helps, whose fields say what they are for (`setting`).

Options of `calibrl run`, `--set path=value`, `calibrl show` and what rows remember of a run are read off them.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from calibrl.errors import CalibrlError

T = TypeVar("T")

PAPER, REFERENCE, OURS = "paper", "reference code", "ours"
"""Sources of a value: printed by Malik et al. (2019); read in the authors' code, which builds on PETS'; chosen here."""


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

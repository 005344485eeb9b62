"""Control runs by name: the published ones, versions a laptop can run, and ways to change one field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from typing import Any

from calibrl.control.settings import CalibrationSettings, EnsembleSettings, PlannerSettings, Preset, plain
from calibrl.errors import CalibrlError

_CARTPOLE = Preset(
    "cartpole",
    "cartpole",
    steps=200,
    trials=50,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(500, 500, 500), decay=(1e-4, 2.5e-4, 2.5e-4, 5e-4)),
    planner=PlannerSettings(horizon=25, population=400, elites=40),
)
_HALFCHEETAH = Preset(
    "halfcheetah",
    "halfcheetah",
    steps=1000,
    trials=300,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(200,) * 4, decay=(2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)),
    planner=PlannerSettings(horizon=30, population=500, elites=50),
)
_PUSHER = Preset(
    "pusher",
    "pusher",
    steps=150,
    trials=100,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(200,) * 3, decay=(2.5e-4, 5e-4, 5e-4, 7.5e-4)),
    planner=PlannerSettings(horizon=25, population=500, elites=50),
)
_REACHER = Preset(
    "reacher",
    "reacher",
    steps=150,
    trials=100,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(200,) * 4, decay=(2.5e-4, 5e-4, 5e-4, 5e-4, 7.5e-4), rate=7.5e-4),
    planner=PlannerSettings(horizon=25, population=400, elites=40),
)
PUBLISHED = (_CARTPOLE, _HALFCHEETAH, _PUSHER, _REACHER)
"""The settings of PETS (Chua et al., 2018), which the paper took over."""

_SMALL_ENSEMBLE = EnsembleSettings(members=3, hidden=(64, 64), decay=(1e-4,), epochs=100)
_SMALL_PLANNER = PlannerSettings(horizon=20, population=64, elites=8, sweeps=3, particles=4)


def _small(published: Preset) -> Preset:
    """The same task for a laptop: smaller networks trained for longer, fewer plans and particles."""
    return replace(
        published,
        name=f"{published.name}-small",
        seeds=1,
        trials=10,
        ensemble=_SMALL_ENSEMBLE,
        planner=_SMALL_PLANNER,
    )


_TINY = Preset(
    "tiny",
    "cartpole",
    steps=30,
    trials=2,
    ensemble=EnsembleSettings(members=2, hidden=(16,), decay=(1e-4,), epochs=2),
    planner=PlannerSettings(horizon=4, population=12, elites=3, sweeps=2, particles=3),
)
_CARTPOLE_SMALL = _small(_CARTPOLE)
_DEMO = replace(_CARTPOLE_SMALL, name="cartpole-demo", trials=4)

PRESETS = {
    preset.name: preset
    for preset in (
        *PUBLISHED,
        _CARTPOLE_SMALL,
        _small(_HALFCHEETAH),
        _small(_PUSHER),
        _small(_REACHER),
        _DEMO,
        _TINY,
    )
}


def with_defaults(decides_rows: Mapping[str, Any]) -> dict[str, Any]:
    """What `what_decides_rows` said in an earlier version, with the fields that it did not have yet.

    A new field's default is therefore what was done before there was a choice.
    """
    parts = {"ensemble": EnsembleSettings, "planner": PlannerSettings, "calibration": CalibrationSettings}
    filled = {
        name: {**plain(asdict(part())), **decides_rows[name]} for name, part in parts.items() if name in decides_rows
    }
    return {**decides_rows, **filled}


def preset(name: str) -> Preset:
    """The preset of that name, or an error that lists the known ones."""
    if name not in PRESETS:
        raise CalibrlError(f"preset {name!r} is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def overrides(changed_preset: Preset) -> dict[str, Any]:
    """What differs from the preset that it was made of, as far as rows depend on it: {"ensemble.members": 7}."""
    before = dict(_leaves(base_of(changed_preset)))
    decisive = ("steps", "reward", "ensemble.", "planner.", "calibration.")
    return {
        name: plain(value)
        for name, value in _leaves(changed_preset)
        if name.startswith(decisive) and value != before[name]
    }


def base_of(changed_preset: Preset) -> Preset:
    """The preset of the same name, or what any other environment begins with."""
    known = PRESETS.get(changed_preset.name)
    return known or preset_for_env(changed_preset.task, _own_steps(changed_preset.task))


@cache
def _own_steps(name: str) -> int:
    """Steps of a trial of a task, or of an environment, that nobody has changed."""
    from calibrl.control.tasks import TASKS, task, task_from_env

    return (task(name) if name in TASKS else task_from_env(name)).steps


def preset_for_env(env_id: str, steps: int) -> Preset:
    """Settings for any other environment: those of the small presets, with plans that look further ahead."""
    planner = replace(_SMALL_PLANNER, horizon=30)
    return Preset(env_id, env_id, steps=steps, trials=10, ensemble=_SMALL_ENSEMBLE, planner=planner)


def changed(base: Preset, changes: Iterable[str]) -> Preset:
    """The preset with fields changed as in "ensemble.members=7"; lists are written "64,64"."""
    known = {name: value for name, value in _leaves(base) if name not in ("name", "task", "reward")}
    found: dict[str, dict[str, Any]] = {}
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or path not in known:
            raise CalibrlError(f"--set {change!r}: no such field; write one of {', '.join(known)} and =VALUE")
        part, _, leaf = path.rpartition(".")
        found.setdefault(part, {})[leaf] = _parsed(path, text, known[path])
    # All at once: fields that must fit each other may be changed in any order.
    own = found.pop("", {})
    return replace(base, **own, **{part: replace(getattr(base, part), **values) for part, values in found.items()})


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for part in fields(value):
        inner = getattr(value, part.name)
        if is_dataclass(inner):
            yield from _leaves(inner, f"{prefix}{part.name}.")
        else:
            yield prefix + part.name, inner


def _parsed(path: str, text: str, like: Any) -> Any:
    """The text as a value of the same type as the field's."""
    if isinstance(like, tuple):
        return tuple(_parsed(path, part, like[0]) for part in text.split(",") if part)
    if isinstance(like, bool):
        if text.lower() not in ("true", "false"):
            raise CalibrlError(f"--set {path}={text!r} is not yes or no; write true or false")
        return text.lower() == "true"
    kind = type(like)
    try:
        return kind(text)
    except ValueError:
        what = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise CalibrlError(f"--set {path}={text!r} is not {what}; the preset has {like}") from None

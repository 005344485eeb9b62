"""What can be set about a control run (networks, planner, calibration, how long it is), and the runs by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from calibrl.errors import CalibrlError
from calibrl.planning.search import SEARCHES, Search

TASKS = {
    "cartpole": "swing a pole up on a cart and keep it there",
    "halfcheetah": "run with two legs in a plane",
    "pusher": "push an object to a goal with an arm of 7 joints",
    "reacher": "reach a goal with the tip of an arm of 7 joints",
}
"""Every MuJoCo task: `calibrl.control.envs` has a module of the same name."""

PROPAGATIONS = ("DS", "TS1", "TSinf", "E", "MM")
SHARED_OUT = ("TS1", "TSinf")
"""Propagations that share particles out among the networks, to each equally many, and draw from single networks, whose
forecasts are then what must be calibrated."""


@dataclass(frozen=True)
class EnsembleSettings:
    """Networks: how many, how large, and how they are trained after every trial.

    weight_decay: weight decay of each layer, hidden layers first, or one number for all. Every trial trains for
    `epochs` passes over all training rows, from where weights and Adam stand.
    """

    members: int = 5
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    weight_decay: tuple[float, ...] = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    lr: float = 1e-3
    batch_size: int = 32
    epochs: int = 5
    probabilistic: bool = True

    def __post_init__(self) -> None:
        if self.members < 1 or self.batch_size < 1 or self.epochs < 1 or not self.hidden or min(self.hidden) < 1:
            raise CalibrlError(
                f"{self.members} members of layers {self.hidden}, batches of {self.batch_size}, {self.epochs} epochs: "
                "all must be 1 or more"
            )
        if len(self.weight_decay) not in (1, len(self.hidden) + 1):
            raise CalibrlError(
                f"{len(self.weight_decay)} weight decays for {len(self.hidden) + 1} layers; set "
                "ensemble.weight_decay to one number for all, or one for each hidden layer and one for the last"
            )
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise CalibrlError(f"ensemble.lr {self.lr} is not a step size; use a number above 0, like 0.001")
        if not all(0 <= one < math.inf for one in self.weight_decay):
            raise CalibrlError(
                f"ensemble.weight_decay {self.weight_decay} must be finite numbers of 0 or more; 0 decays nothing"
            )

    @property
    def weight_decay_by_layer(self) -> tuple[float, ...]:
        """One weight decay for each layer."""
        return self.weight_decay if len(self.weight_decay) > 1 else self.weight_decay * (len(self.hidden) + 1)


@dataclass(frozen=True)
class PlannerSettings:
    """A search for plans of `horizon` steps, and how they are judged: `particles` of each, rolled by `propagation`.

    method: cem, icem, mppi or random. The other fields are those of the searches in `calibrl.planning.search`; all try
    `population_size` plans in each of `iterations`, and each method uses of the rest what it has.
    """

    horizon: int = 25
    population_size: int = 400
    elites: int = 40
    iterations: int = 5
    momentum: float = 0.1
    min_variance: float = 0.001
    particles: int = 20
    propagation: str = "DS"
    method: str = "cem"
    noise_exponent: float = 2.0
    keep_elites: float = 0.3
    noise_std: float = 0.5
    temperature: float = 0.1
    population_decay: float = 1.0
    keep_best: bool = False
    control_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.method not in SEARCHES:
            raise CalibrlError(f"planner.method {self.method!r} is unknown; use one of {', '.join(SEARCHES)}")
        if self.propagation not in PROPAGATIONS:
            raise CalibrlError(f"propagation {self.propagation!r} is unknown; use one of {', '.join(PROPAGATIONS)}")
        if self.horizon < 1 or self.particles < 1:
            raise CalibrlError(
                f"planner.horizon {self.horizon} and planner.particles {self.particles} must both be 1 or more"
            )
        # Every search refuses what it cannot do, also those that are not used: nonsense is nobody's wish.
        for kind in SEARCHES.values():
            try:
                self._search(kind)
            except CalibrlError as error:
                raise CalibrlError(f"planner.{error}") from None

    @property
    def search(self) -> Search:
        """The search that `method` names, with these settings."""
        return self._search(SEARCHES[self.method])

    def _search(self, kind: type[Search]) -> Search:
        return kind(**{each.name: getattr(self, each.name) for each in fields(kind)})


@dataclass(frozen=True)
class CalibrationSettings:
    """Which map R is fitted, on which rows.

    `held_out` is the share of every trial's rows that is kept from the networks; `block` consecutive rows share a
    side. `forget` is the weight that a row keeps for each newer trial: where the agent goes next is like where it
    has just been. 1 forgets nothing.
    """

    map: str = "smooth"
    held_out: float = 0.2
    block: int = 1
    forget: float = 0.5

    def __post_init__(self) -> None:
        if self.map != CalibrationSettings.map:
            from calibrl.maps import fit_named  # PyTorch comes with it

            fit_named(self.map)
        if not 0 < self.held_out < 1:
            raise CalibrlError(f"calibration.held_out {self.held_out} is not between 0 and 1; 0.2 keeps a fifth")
        if self.block < 1:
            raise CalibrlError(f"calibration.block {self.block} is not a number of rows; use 1 or more")
        if not 0 < self.forget <= 1:
            raise CalibrlError(
                f"calibration.forget {self.forget} is not in (0, 1]; 0.5 halves a row's weight each trial"
            )


ARMS_OF_THE_PAPER = ("calibrated", "uncalibrated")


@dataclass(frozen=True)
class ControlSettings:
    """One task and everything that decides how agents learn it: a random rollout, then `trials` trials of `steps`.

    seeds, arms: how many agents of which kinds run side by side. reward: "module:function" of what plans are judged by
    in the place of the task's own.
    """

    name: str
    task: str
    steps: int
    trials: int
    seeds: int = 1
    arms: tuple[str, ...] = ARMS_OF_THE_PAPER
    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    reward: str | None = None

    def __post_init__(self) -> None:
        if not self.arms:
            raise CalibrlError(f"no arm was named; give one or more, like arms={','.join(ARMS_OF_THE_PAPER)}")
        if self.steps < 1 or self.trials < 1 or self.seeds < 1:
            raise CalibrlError(
                f"{self.trials} trials of {self.steps} steps with {self.seeds} seeds: use 1 or more each"
            )
        if self.calibration.block >= self.steps > 1:
            raise CalibrlError(
                f"calibration.block {self.calibration.block} holds out all or nothing of a trial of {self.steps} "
                f"steps; use less than {self.steps}"
            )
        particles, members = self.planner.particles, self.ensemble.members
        if self.planner.propagation in SHARED_OUT and particles % members:
            raise CalibrlError(
                f"planner.particles {particles} cannot be shared out evenly among {members} networks, as "
                f"{self.planner.propagation} does; use a multiple of {members}"
            )

    def identity(self) -> dict[str, Any]:
        """The settings that an agent's rows depend on: not who runs beside it, nor for how long."""
        whole = plain(asdict(self))
        found = {name: whole[name] for name in ("task", "steps", "ensemble", "planner", "calibration")}
        return found if self.reward is None else {**found, "reward": self.reward}


def plain(value: Any) -> Any:
    """Settings as JSON has them: tuples as lists."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


_CARTPOLE = ControlSettings(
    "cartpole",
    "cartpole",
    steps=200,
    trials=50,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(500, 500, 500), weight_decay=(1e-4, 2.5e-4, 2.5e-4, 5e-4)),
    planner=PlannerSettings(horizon=25, population_size=400, elites=40),
)
_HALFCHEETAH = ControlSettings(
    "halfcheetah",
    "halfcheetah",
    steps=1000,
    trials=300,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(200,) * 4, weight_decay=(2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)),
    planner=PlannerSettings(horizon=30, population_size=500, elites=50),
)
_PUSHER = ControlSettings(
    "pusher",
    "pusher",
    steps=150,
    trials=100,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(200,) * 3, weight_decay=(2.5e-4, 5e-4, 5e-4, 7.5e-4)),
    planner=PlannerSettings(horizon=25, population_size=500, elites=50),
)
_REACHER = ControlSettings(
    "reacher",
    "reacher",
    steps=150,
    trials=100,
    seeds=10,
    ensemble=EnsembleSettings(hidden=(200,) * 4, weight_decay=(2.5e-4, 5e-4, 5e-4, 5e-4, 7.5e-4), lr=7.5e-4),
    planner=PlannerSettings(horizon=25, population_size=400, elites=40),
)
PUBLISHED = (_CARTPOLE, _HALFCHEETAH, _PUSHER, _REACHER)
"""The settings of PETS (Chua et al., 2018), which the paper took over."""

_SMALL_ENSEMBLE = EnsembleSettings(members=3, hidden=(64, 64), weight_decay=(1e-4,), epochs=100)
_SMALL_PLANNER = PlannerSettings(horizon=20, population_size=64, elites=8, iterations=3, particles=4)


def _small(published: ControlSettings) -> ControlSettings:
    """The same task for a laptop: smaller networks trained for longer, fewer plans and particles."""
    return replace(
        published,
        name=f"{published.name}-small",
        seeds=1,
        trials=10,
        ensemble=_SMALL_ENSEMBLE,
        planner=_SMALL_PLANNER,
    )


_TINY = ControlSettings(
    "tiny",
    "cartpole",
    steps=30,
    trials=2,
    ensemble=EnsembleSettings(members=2, hidden=(16,), weight_decay=(1e-4,), epochs=2),
    planner=PlannerSettings(horizon=4, population_size=12, elites=3, iterations=2, particles=3),
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
    """What `identity` said in an earlier version, with the fields that it did not have yet.

    A new field's default is therefore what was done before there was a choice.
    """
    parts = {"ensemble": EnsembleSettings, "planner": PlannerSettings, "calibration": CalibrationSettings}
    filled = {
        name: {**plain(asdict(part())), **decides_rows[name]} for name, part in parts.items() if name in decides_rows
    }
    return {**decides_rows, **filled}


def preset(name: str) -> ControlSettings:
    """The preset of that name, or an error that lists the known ones."""
    if name not in PRESETS:
        raise CalibrlError(f"preset {name!r} is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def preset_for_env(env_id: str, steps: int) -> ControlSettings:
    """Settings for any other environment: those of the small presets, with plans that look further ahead."""
    planner = replace(_SMALL_PLANNER, horizon=30)
    return ControlSettings(env_id, env_id, steps=steps, trials=10, ensemble=_SMALL_ENSEMBLE, planner=planner)


def changed(base: ControlSettings, changes: Iterable[str]) -> ControlSettings:
    """The preset with fields changed as in "ensemble.members=7"; lists are written "64,64"."""
    known = {name: value for name, value in leaves(base) if name not in ("name", "task", "reward")}
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


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its name, like `planner.horizon`."""
    for part in fields(value):
        inner = getattr(value, part.name)
        if is_dataclass(inner):
            yield from leaves(inner, f"{prefix}{part.name}.")
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


MANY_NUMBERS = 2_000_000
"""Activations of one layer at one step from which several threads gain anything."""


def threads_worth(numbers: int) -> AbstractContextManager[None]:
    """One thread while a layer computes few numbers at a time: more would wait for each other longer than they work."""
    from calibrl.threads import one_thread

    return one_thread() if numbers < MANY_NUMBERS else nullcontext()


def threads_for(preset: ControlSettings) -> AbstractContextManager[None]:
    """What the networks and plans of a preset are worth, at one imagined step."""
    planner, ensemble = preset.planner, preset.ensemble
    return threads_worth(planner.population_size * planner.particles * ensemble.members * max(ensemble.hidden))

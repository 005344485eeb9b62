"""What can be set about a control run (networks, planner, calibration, how long it is), and the runs by name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

from calibrl.errors import CalibrlError, check_count, check_known, check_within
from calibrl.planning.risk import Risk
from calibrl.planning.search import SEARCHES, CategoricalCEM, Search
from calibrl.runs.settings import OURS, PAPER, REFERENCE, setting

TASKS = {
    "cartpole": "swing a pole up on a cart and keep it there",
    "halfcheetah": "run with two legs in a plane",
    "pusher": "push an object to a goal with an arm of 7 joints",
    "reacher": "reach a goal with the tip of an arm of 7 joints",
    "cartpole-rail": "cartpole, and leaving the middle 0.8 m of the rail costs",
    "cartpole-wind": "cartpole in a wind that lasts and is not seen, and leaving the middle 1.2 m of the rail costs",
    "cartpole-effort": "cartpole, and pushing costs ten times as much",
    "halfcheetah-fall": "half cheetah, and lying on its back costs",
    "reacher-near": "reacher, and only being near the goal pays",
}
"""Every MuJoCo task: see `calibrl.control.envs`."""

ENVIRONMENTS = {
    **dict.fromkeys(("Cartpole", "CartpoleRail", "CartpoleWind", "CartpoleEffort"), 200),
    **dict.fromkeys(("HalfCheetah", "HalfCheetahFall"), 1000),
    **dict.fromkeys(("Pusher", "Reacher", "ReacherNear"), 150),
}
"""The classes of their environments, calibrl/Cartpole-v0 and so on in Gymnasium, and the steps of an episode."""

_PETS = dict.fromkeys(("cartpole", "halfcheetah", "pusher", "reacher", "pusher-reference"), REFERENCE)
_PAPERS_TASKS = dict.fromkeys(("cartpole", "halfcheetah", "pusher"), PAPER)
"""Presets with published settings: of PETS, whose settings the paper took over, and of the paper."""

PROPAGATIONS = ("DS", "TS1", "TSinf", "E", "MM")
SHARED_OUT = ("TS1", "TSinf")
"""Propagations that share particles out among the networks, to each equally many, and draw from single networks, whose
forecasts are then what must be calibrated."""


@dataclass(frozen=True)
class EnsembleSettings:
    """Networks: how many, how large, and how they are trained after every trial, from where weights and Adam stand.

    Parameters
    ----------
    members, hidden : int, tuple of int
        Networks in the ensemble, and widths of their hidden layers.
    weight_decay : tuple of float
        Of each layer, hidden layers first; or one number for all.
    lr, batch_size, epochs : float, int, int
        Adam's learning rate, rows per training step, and passes over all training rows after each trial.
    min_steps : int
        Training steps after each trial, at least: with few rows there are more passes.
    probabilistic : bool
        Whether networks forecast a variance too.
    """

    members: int = setting(5, help="networks in the ensemble", source=_PETS)
    hidden: tuple[int, ...] = setting((200, 200, 200, 200), help="widths of the hidden layers", source=_PETS)
    weight_decay: tuple[float, ...] = setting(
        (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4), help="weight decay, layer by layer", source=_PETS
    )
    lr: float = setting(1e-3, help="Adam's learning rate", source=_PETS)
    batch_size: int = setting(32, help="rows per training step", source=_PETS)
    epochs: int = setting(5, help="passes over all rows after each trial", source=_PETS)
    probabilistic: bool = setting(True, help="whether networks predict a variance", source=_PETS)
    min_steps: int = setting(0, help="training steps after each trial, at least: more passes while rows are few")

    def __post_init__(self) -> None:
        for name in ("members", "batch_size", "epochs"):
            check_count(f"ensemble.{name}", getattr(self, name))
        check_count("ensemble.min_steps", self.min_steps, least=0)
        check_count("ensemble.hidden", min(self.hidden, default=0), "is no width of a layer")
        if len(self.weight_decay) not in (1, len(self.hidden) + 1):
            raise CalibrlError(
                f"{len(self.weight_decay)} weight decays for {len(self.hidden) + 1} layers; set "
                "ensemble.weight_decay to one number for all, or one for each hidden layer and one for the last"
            )
        check_within("ensemble.lr", self.lr, "(0, inf)", "0.001 is usual")
        for one in self.weight_decay:
            check_within("ensemble.weight_decay", one, "[0, inf)", "0 decays nothing")

    @property
    def weight_decay_by_layer(self) -> tuple[float, ...]:
        """One weight decay for each layer."""
        return self.weight_decay if len(self.weight_decay) > 1 else self.weight_decay * (len(self.hidden) + 1)


def _of_searches(name: str, default: Any = None, *, source: str | Mapping[str, str] = OURS) -> Any:
    """A field of the searches, with the help and, unless another is given, the default of the first that has it."""
    found = {kind.name: each for kind in SEARCHES.values() for each in fields(kind) if each.name == name}
    first, *_ = found.values()
    who = "" if len(found) == len(SEARCHES) else f"{', '.join(found)}: "
    chosen = first.default if default is None else default
    return setting(chosen, help=who + first.metadata["help"], source=source)


@dataclass(frozen=True)
class PlannerSettings:
    """A search for plans, and how they are judged. Fields that a method does not have, it does not use.

    Parameters
    ----------
    horizon : int
        Steps planned ahead.
    population_size, elites, iterations, momentum, min_variance, noise_exponent, keep_elites, noise_std, temperature, \
population_decay, keep_best, control_cost
        Of the searches: see `calibrl.planning.search`.
    particles : int
        Imagined futures of each plan.
    propagation : str
        How they pass through the networks: DS, TS1, TSinf, E or MM.
    method : str
        cem, icem, mppi or random.
    cvar, optimism, exploration, safety : float
        What a plan's imagined futures make of it: see `calibrl.planning.risk.Risk`.
    surprise : float
        The share, in (0, 1], of what is new at each imagined step that plans are judged by. Nobody answers it in
        imagination; an agent that plans again at every step will.
    """

    horizon: int = setting(25, help="steps planned ahead", source=_PETS)
    population_size: int = _of_searches("population_size", source=_PETS)
    elites: int = _of_searches("elites", source=_PETS)
    iterations: int = _of_searches("iterations", source=_PETS)
    momentum: float = _of_searches("momentum", source=_PETS)
    min_variance: float = _of_searches("min_variance", source=_PETS)
    particles: int = setting(20, help="imagined futures per plan", source=_PETS)
    propagation: str = setting("DS", help="how they pass through the networks: DS, TS1, TSinf, E or MM", source=_PETS)
    method: str = setting("cem", help="how plans are searched for: cem, icem, mppi or random", source=_PETS)
    noise_exponent: float = _of_searches("noise_exponent")
    keep_elites: float = _of_searches("keep_elites")
    noise_std: float = _of_searches("noise_std")
    temperature: float = _of_searches("temperature", 0.1)
    population_decay: float = _of_searches("population_decay", 1.0)
    keep_best: bool = _of_searches("keep_best")
    control_cost: float = _of_searches("control_cost")
    cvar: float = setting(1.0, help="share of the worst imagined futures whose mean counts; 1 is the mean of all")
    optimism: float = setting(0.0, help="bonus, in standard deviations of what single networks imagine; needs TSinf")
    exploration: float = setting(0.0, help="reward for a doubling of what single networks disagree about; needs TSinf")
    safety: float = setting(0.0, help="probability with which plans must stay in the task's safe set; 0 asks nothing")
    surprise: float = setting(1.0, help="share of new errors that plans count; less trusts in planning again")

    def __post_init__(self) -> None:
        check_known("propagation", self.propagation, PROPAGATIONS)
        for name in ("horizon", "particles"):
            check_count(f"planner.{name}", getattr(self, name))
        for name in ("optimism", "exploration"):
            if getattr(self, name) and self.propagation != "TSinf":
                raise CalibrlError(
                    f"planner.{name} {getattr(self, name)} is about what single networks imagine, and "
                    f"{self.propagation} does not tell them apart; set planner.propagation=TSinf"
                )
        check_within("planner.surprise", self.surprise, "(0, 1]", "0.5 counts half of each new error")
        _ = self.risk

    @property
    def risk(self) -> Risk:
        """What a plan's imagined futures make of it, or an error that says what cannot be."""
        try:
            return Risk(self.cvar, self.optimism, self.safety, self.exploration)
        except CalibrlError as error:
            raise CalibrlError(f"planner.{error}") from None

    @property
    def search(self) -> Search:
        """The search that `method` names, with these settings, or an error that says which of them cannot be."""
        check_known("planner.method", self.method, SEARCHES)
        # Every search refuses what it cannot do, also those that are not used: nonsense is nobody's wish.
        found = {}
        for name, kind in SEARCHES.items():
            try:
                found[name] = kind(**{each.name: getattr(self, each.name) for each in fields(kind)})
            except CalibrlError as error:
                raise CalibrlError(f"planner.{error}") from None
        return found[self.method]

    def search_among(self, choices: tuple[int, ...]) -> Search:
        """The search over choices, n₁ things of a first kind and so on, with these settings; without any, `search`."""
        if not choices:
            return self.search
        shared = {name: getattr(self, name) for name in ("population_size", "elites", "iterations", "momentum")}
        return CategoricalCEM(choices=choices, **shared)


@dataclass(frozen=True)
class CalibrationSettings:
    """Which map R is fitted, on which rows.

    Parameters
    ----------
    map : str
        Of smooth, affine, isotonic, platt, beta, auto, sigmoid.
    held_out : float
        The share of every trial's rows that is kept from the networks.
    block : int
        So many consecutive rows share a side of the split.
    forget : float
        The weight that a row keeps for each newer trial: where the agent goes next is like where it has just been. 1
        forgets nothing.
    """

    map: str = setting("smooth", help="which map R the calibrated arms fit; sigmoid is the paper's", flag="--map")
    held_out: float = setting(0.2, help="share of the rows held out to fit R", source=_PETS)
    block: int = setting(1, help="consecutive rows on the same side of the split")
    forget: float = setting(0.5, help="factor on a row's weight for each newer trial; 1 forgets nothing")

    def __post_init__(self) -> None:
        if self.map != CalibrationSettings.map:
            from calibrl.maps import fit_named  # PyTorch comes with it

            fit_named(self.map)
        check_within("calibration.held_out", self.held_out, "(0, 1)", "0.2 keeps a fifth")
        check_count("calibration.block", self.block)
        check_within("calibration.forget", self.forget, "(0, 1]", "0.5 halves a row's weight each trial")


ARMS_OF_THE_PAPER = ("calibrated", "uncalibrated")


@dataclass(frozen=True)
class ControlSettings:
    """One task and all that says how agents learn it: a random rollout, then `trials` trials of `steps` steps.

    Parameters
    ----------
    name, task : str
        Of the preset, and of the task or the Gymnasium environment.
    steps, trials : int
        Steps of a trial, and trials after the random one.
    seeds, seed : int
        How many paired seeds, and the first.
    arms : tuple of str
        Which agents run side by side: see `calibrl.control.arms.ARMS`.
    ensemble, planner, calibration
        Their settings.
    reward : str, optional
        "module:function" of what plans are judged by, in the place of the task's own.
    agent : str
        "model", agents that plan; "sac", the model-free baseline.
    device : str
        "cpu", "cuda", "mps" or "auto".
    light : bool
        Save agents without their networks, which are trained again when a run goes on.
    video : bool
        Make a video of each arm's best trial.
    fleets : int
        In how many batches agents learn, each a job of its own, at least one on every GPU; 0: each agent by itself.
    """

    name: str
    task: str = setting(help="the task, by name", source=_PETS, fixed=True)
    steps: int = setting(help="steps per trial", source=_PETS)
    trials: int = setting(help="trials after the random one", source=_PETS, least=1, decides_rows=False)
    seeds: int = setting(1, help="how many paired seeds", source=_PAPERS_TASKS, least=1, decides_rows=False)
    seed: int = setting(0, help="the first seed", least=0, decides_rows=False)
    arms: tuple[str, ...] = setting(
        ARMS_OF_THE_PAPER,
        help="which agents, by name: calibrated and uncalibrated are the paper's, calibrated-trajectory Agent's",
        source=_PAPERS_TASKS,
        decides_rows=False,
    )
    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    reward: str | None = setting(
        None, help="what scores plans, as module:function, if not the task's own or a learnt one", source=_PETS
    )
    agent: str = setting("model", help="who acts: model, or sac for the model-free baseline", decides_rows=False)
    device: str = setting("cpu", help="where agents plan and learn: cpu, cuda, mps or auto", decides_rows=False)
    light: bool = setting(False, help="save agents without their networks; --resume retrains them", decides_rows=False)
    video: bool = setting(True, help="make a video of each arm's best trial", decides_rows=False)
    fleets: int = setting(
        1, help="batches in which agents learn, each a job; 0: each agent by itself", fixed=True, decides_rows=False
    )

    def __post_init__(self) -> None:
        if not self.arms:
            raise CalibrlError(f"no arm was named; give one or more, like arms={','.join(ARMS_OF_THE_PAPER)}")
        for name in ("steps", "trials", "seeds"):
            check_count(name, getattr(self, name))
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


def _published(
    task: str,
    steps: int,
    trials: int,
    hidden: tuple[int, ...],
    weight_decay: tuple[float, ...],
    *,
    lr: float = 1e-3,
    horizon: int = 25,
    population_size: int = 500,
) -> ControlSettings:
    ensemble = EnsembleSettings(hidden=hidden, weight_decay=weight_decay, lr=lr)
    planner = PlannerSettings(horizon=horizon, population_size=population_size, elites=population_size // 10)
    return ControlSettings(task, task, steps=steps, trials=trials, seeds=10, ensemble=ensemble, planner=planner)


PUBLISHED = (
    _published("cartpole", 200, 50, (500,) * 3, (1e-4, 2.5e-4, 2.5e-4, 5e-4), population_size=400),
    _published("halfcheetah", 1000, 300, (200,) * 4, (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4), horizon=30),
    _published("pusher", 150, 100, (200,) * 3, (2.5e-4, 5e-4, 5e-4, 7.5e-4)),
    _published("reacher", 150, 100, (200,) * 4, (2.5e-4, 5e-4, 5e-4, 5e-4, 7.5e-4), lr=7.5e-4, population_size=400),
)
"""The settings of PETS (Chua et al., 2018), which the paper took over."""

_SMALL_ENSEMBLE = EnsembleSettings(members=3, hidden=(64, 64), weight_decay=(1e-4,), epochs=100)
_SMALL_PLANNER = PlannerSettings(horizon=20, population_size=64, elites=8, iterations=3, particles=4)


def _small(published: ControlSettings) -> ControlSettings:
    """The same task for a laptop: smaller networks trained for longer, fewer plans and particles."""
    small = replace(published, ensemble=_SMALL_ENSEMBLE, planner=_SMALL_PLANNER)
    return replace(small, name=f"{published.name}-small", seeds=1, trials=10)


_TINY = ControlSettings(
    "tiny",
    "cartpole",
    steps=30,
    trials=2,
    ensemble=EnsembleSettings(members=2, hidden=(16,), weight_decay=(1e-4,), epochs=2),
    planner=PlannerSettings(horizon=4, population_size=12, elites=3, iterations=2, particles=3),
)
_DEMO = replace(_small(PUBLISHED[0]), name="cartpole-demo", trials=4)

_PUSHER_REFERENCE = replace(PUBLISHED[2], name="pusher-reference", reward="calibrl.control.envs:pusher_next_reward")
"""Pusher with plans judged as the reference judges them; a preset of its own, so that rows are not mixed."""

_VARIANTS = tuple(
    replace(one, name=name, task=name) for one in PUBLISHED for name in TASKS if name.startswith(f"{one.task}-")
)
_LARGE = (*PUBLISHED, *_VARIANTS)


_UPRIGHT = "calibrl.control.envs:halfcheetah_upright_reward"


def _best(
    one: ControlSettings, *, noise_exponent: float = 2.0, min_steps: int = 0, reward: str | None = None, **planner: Any
) -> ControlSettings:
    """The recipe of our own: iCEM as published (rougher noise where legs run), errors that go on, and what is given."""
    planning = replace(one.planner, method="icem", noise_exponent=noise_exponent, **planner)
    ensemble = replace(one.ensemble, min_steps=min_steps)
    best: dict[str, Any] = {"planner": planning, "ensemble": ensemble, "reward": reward}
    name = one.name.replace(one.task, f"{one.task}-best")
    return replace(one, name=name, arms=("calibrated-trajectory", "uncalibrated"), **best)


_SMALL = tuple(map(_small, _LARGE))
_BEST = (
    _best(PUBLISHED[0], propagation="TSinf", min_steps=2_000),
    _best(PUBLISHED[1], propagation="TSinf", particles=10, noise_exponent=0.25, reward=_UPRIGHT),
    _best(PUBLISHED[2], propagation="TSinf"),
    _best(_SMALL[0]),
    _best(_SMALL[1], noise_exponent=0.25, reward=_UPRIGHT),
    _best(_SMALL[2]),
)

PRESETS = {preset.name: preset for preset in (*_LARGE, _PUSHER_REFERENCE, *_SMALL, *_BEST, _DEMO, _TINY)}


def preset_for_env(env_id: str, steps: int) -> ControlSettings:
    """Settings for any other environment: those of the small presets, iCEM, and plans that look further ahead."""
    planner = replace(_SMALL_PLANNER, horizon=30, method="icem")
    return ControlSettings(env_id, env_id, steps=steps, trials=10, ensemble=_SMALL_ENSEMBLE, planner=planner)


MANY_NUMBERS = 2_000_000
"""Activations of one layer at one step from which several threads gain anything."""


def threads_worth(numbers: int) -> AbstractContextManager[None]:
    """One thread while a layer computes few numbers at a time: more would wait for each other longer than they work."""
    from calibrl.arrays import threads

    return threads(1) if numbers < MANY_NUMBERS else nullcontext()


def threads_for(settings: ControlSettings, *, within_a_job: bool = False) -> AbstractContextManager[None]:
    """As many threads as one imagined step is worth; one where a GPU imagines, and only small things are left to do.

    within_a_job: jobs are given one thread each; a fleet that has the process to itself takes all where that pays.
    """
    from calibrl.arrays import cores, device_named, threads

    planner, ensemble = settings.planner, settings.ensemble
    # Runs side by side on one GPU took thirty times as long for their maps and scores, each with all threads.
    numbers = planner.population_size * planner.particles * ensemble.members * max(ensemble.hidden)
    numbers = numbers if device_named(settings.device) == "cpu" else 0
    if within_a_job and settings.fleets == 1 and numbers >= MANY_NUMBERS:
        return threads(cores())
    return threads_worth(numbers)

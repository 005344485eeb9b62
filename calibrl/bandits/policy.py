"""A contextual bandit for a service: choose an arm, learn its reward when it comes, know how sure it is.

A policy is a forecaster and a planner. The policies by name share the forecaster, ridge regressions in compiled code,
and the planner, the highest quantile; what differs are two choices.

| | level of the quantile | forecast |
|---|---|---|
| CalibratedUCB | 84 % | calibrated for the mean, with the noise as learnt |
| CalibratedThompson | drawn for every arm | the same |
| LinUCB, CalLinUCB | Φ(1) = 84 % | bare, the paper's: calibrated for single rewards |
| ConformalLinUCB | 84 %, held to its coverage | calibrated, with the rewards' noise |
| Thompson, CalThompson | drawn for every arm | bare, calibrated |
| Greedy, EpsilonGreedy | 50 % | bare |

Calibrated for single rewards means: the same forecaster with one empirical map per arm, learnt from where the arm's
rewards fell in forecasts made before they were learnt. Each takes a random arm with probability `explore`, so that
other policies can be evaluated from its log; by default only EpsilonGreedy does.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from calibrl.arrays import Array
from calibrl.bandits import storage
from calibrl.bandits.arms import (
    SAVED,
    Among,
    Arm,
    ArmModel,
    Arms,
    CompiledRidge,
    Floats,
    Forecast,
    Ints,
    RidgeOptions,
    RidgeSettings,
    Rows,
    as_floats,
    check_sizes,
    first_names,
)
from calibrl.bandits.decisions import Decision, Decisions
from calibrl.bandits.features import Features, plain_rows
from calibrl.errors import CalibrlError, first_line
from calibrl.files import writable
from calibrl.kernels import ridge_policy
from calibrl.planning.quantile import Exploration

if TYPE_CHECKING:
    from torch.distributions import Distribution

    from calibrl.algorithm import Forecaster

FORMAT = "calibrl bandit 1"
PARTS = ["format", "policy", "options", "arms", "removed", "generator", "decisions", "features"]
"""What a saved policy holds beside what was learnt."""
GREEDY = Exploration()


class Taken(NamedTuple):
    """An update before it is learnt: rows as the model sees them, what is known of features then, and rows unscaled."""

    rows: Rows
    features: Features | None
    given: Floats


class Policy:
    """A forecaster of what every arm pays, and a planner that says which arm to take.

    Build one by name, `LinUCB`, `CalLinUCB`, `Thompson` …, or of any forecaster with one column per arm. Arms can be
    added and removed, and a policy faded, inherited or saved, if its forecaster is a `CompiledRidge`, as that of all
    policies by name is. Not safe to share between threads without a lock. Every random choice comes from `seed`.

    Parameters
    ----------
    forecaster
        Forecasts what every arm pays, in batch shape (1, k), for a context x (1, …). Learns from rows `Data` with
        y (n, k), NaN for the arms that were not pulled: a `CompiledRidge`, a `Calibrated`, a scikit-learn model …
    planner
        How arms are scored: see `Exploration`.
    arms
        The k arms: their names (strings or integers), or a number for 0 … k-1.
    seed
        Of the policy's random choices, 0 or more.
    warm_up
        Rewards every arm gets before the forecaster learns and is asked, for one that cannot forecast before it has
        learnt something of every arm, such as scikit-learn's. A `CompiledRidge` can, and takes none.

    Examples
    --------
    >>> from calibrl.bandits import Exploration, Policy
    >>> from calibrl.forecasters import RidgeArms
    >>> policy = Policy(RidgeArms(2, 3), Exploration(level=1.0), arms=["news", "music"])
    >>> policy.update([1.0, 0.5, 0.0], "music", 1.0)
    >>> policy.choose([1.0, 0.5, 0.0])
    'music'
    """

    name: ClassVar[str] = ""
    """What the command line calls a policy of this class."""

    def __init__(
        self,
        forecaster: Forecaster,
        planner: Exploration,
        arms: int | Iterable[Arm],
        *,
        seed: int = 0,
        warm_up: int = 0,
    ) -> None:
        names = Arms().check_new(first_names(arms))
        try:
            self.generator = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise CalibrlError(f"seed {seed!r} is not a seed; use a whole number, 0 or more") from None
        self.planner = planner
        self.forecaster = forecaster
        self.offer = Arms().plus(names)
        self.decisions = Decisions()
        self.features: Features | None = None
        if isinstance(forecaster, CompiledRidge):
            self.model: ArmModel = forecaster
            self.features = Features(forecaster.settings.dim, forecaster.settings.scale)
            if len(forecaster.pulls) != len(names) or warm_up:
                raise CalibrlError(
                    f"a CompiledRidge of {len(forecaster.pulls)} arms cannot serve {len(names)} arms with warm_up "
                    f"{warm_up}; build it with {len(names)} arms, and leave warm_up at 0"
                )
        else:
            from calibrl.bandits.any_forecaster import AnyForecaster

            self.model = AnyForecaster(forecaster, len(names), warm_up=warm_up)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms on offer."""
        return self.offer.names

    @property
    def removed(self) -> tuple[Arm, ...]:
        """Arms that were on offer once."""
        return self.offer.removed

    @property
    def pulls(self) -> dict[Arm, int]:
        """How many rewards each arm has had."""
        return dict(zip(self.arms, self.model.pulls.tolist(), strict=True))

    @property
    def ridge(self) -> CompiledRidge:
        """The forecaster, for what only a `CompiledRidge` can do."""
        if not isinstance(self.model, CompiledRidge):
            raise CalibrlError(
                f"only policies by name, such as LinUCB, can change their arms, be faded, inherited or saved; this one "
                f"has a {type(self.forecaster).__name__}: keep arms out of a decision with among, and save the "
                "forecaster by its own means"
            )
        return self.model

    # Decisions.

    def choose(self, x: Array = None, *, among: Among | None = None) -> Arm:
        """Choose an arm.

        Parameters
        ----------
        x
            The context (dim,), a sparse row or a dict; with `shared`, (n, dim) holds the features of each arm on offer.
            None for arms without context.
        among
            The arms this decision may take, if not all: their names, or a mask (k,) of True and False. With `shared` x
            has a row for each of them, in the order of the names, or of `arms` for a mask or a set.

        Returns
        -------
        Arm
            The name of the arm to take.
        """
        rows, offered = self._request(x, among)
        return self.arms[offered[self._pick(self._scores(rows, offered))]]

    def decide(self, x: Array = None, *, among: Among | None = None, id: str | bool | None = None) -> Decision:
        """Choose, and say with which probability, for a log that will be evaluated later.

        Parameters
        ----------
        x, among
            As of `choose`.
        id
            Keep the decision under this id, until `reward` reports what came of it; True makes an id up. Asked again
            with the id of a decision that waits, this gives the same decision.

        Returns
        -------
        Decision
            Arm, probability and id.
        """
        name = None if id is None else self.decisions.new_id(id)
        if name in self.decisions.waiting:
            _, arm, probability = self.decisions.waiting[name]
            return Decision(arm, probability, name)
        rows, offered = self._request(x, among)
        score = self._scores(rows, offered)
        # Levels that are not drawn are the same again: many arms are not scored twice.
        chances = self._probabilities(rows, offered, None if self.planner.spread else score)
        place = self._pick(score)
        arm, probability = self.arms[offered[place]], float(chances[place])
        if name is None:
            return Decision(arm, probability)
        if self.features:  # kept unscaled, and by name: both may change before the reward comes
            rows = np.atleast_2d(as_floats(self.features.numbers(x)[0], "context"))
        given = plain_rows(x, rows)
        return self.decisions.add(name, given[place if self.model.shared else 0], arm, probability)

    def reward(self, id: str, reward: float) -> bool:
        """Learn the reward of a decision that was made with an id.

        Parameters
        ----------
        id
            The decision's.
        reward
            What its arm paid.

        Returns
        -------
        bool
            Whether it was learnt: False if the decision has had its reward before.
        """
        waiting = self.decisions.find(id)
        if waiting is None:
            return False
        self.update(waiting.x, waiting.arm, reward)
        self.decisions.close(id)
        return True

    def probabilities(self, x: Array = None, *, among: Among | None = None) -> dict[Arm, float]:
        """Give the probability of each arm being chosen at x: 0 for those that may not be; arguments as `choose`."""
        rows, offered = self._request(x, among)
        chance = np.zeros(len(self.offer))
        chance[offered] = self._probabilities(rows, offered)
        return dict(zip(self.arms, chance.tolist(), strict=True))

    def forecast(self, x: Array = None, *, among: Among | None = None) -> Distribution | Forecast:
        """Forecast what each arm on offer pays at x: batch shape (n,), in the order of `among`, or of `arms`.

        `CalibratedUCB` and `CalibratedThompson` tell two distributions apart, a `Forecast` with `mean`, what an arm
        pays on average, and `outcome`, what it pays next time. The others have one, of the mean but for
        `ConformalLinUCB` and policies of other forecasters, whose is of outcomes.
        """
        rows, offered = self._request(x, among)
        return self.model.forecast(rows, offered)

    def _request(self, x: Array, among: Among | None) -> tuple[Floats, Ints]:
        """What a decision is about: contexts as the model wants them, and the positions (n,) of the arms on offer."""
        offered = self.offer.everyone if among is None else self.offer.offered(among)
        # Arrays without scales take the short way: microseconds count here.
        if self.features is None or (isinstance(x, np.ndarray) and not self.features.scale):
            return self.model.request(x, offered), offered
        rows = as_floats(self.features.numbers(x)[0], "context")
        if hasattr(x, "toarray") and not self.model.shared and len(rows) == 1:
            rows = rows[0]
        return self.model.request(self.features.scaled(rows), offered), offered

    def predict(self, x: Array) -> NDArray[Any]:
        """Give the arm that pays most on average, as far as is known, at each of n contexts; nothing is tried out.

        Parameters
        ----------
        x
            Contexts (n, dim), sparse rows or n dicts; with `shared`, (n, arms, dim).

        Returns
        -------
        NDArray
            The names (n,) of the arms.
        """
        rows = x if isinstance(x, (list, tuple)) else as_floats(x, "contexts")
        if not np.iterable(rows) or (isinstance(rows, np.ndarray) and rows.ndim < 2):
            raise CalibrlError("predict takes contexts (n, dim); for one context use choose, or put it in a list")
        best = [int(self.model.means(self._request(row, None)[0]).argmax()) for row in rows]
        return np.array(self.arms)[best] if len({*map(type, self.arms)}) == 1 else np.array(self.arms, object)[best]

    def _scores(self, rows: Floats, offered: Ints) -> Floats:
        """The quantiles (n,) by which the arms in `offered` are judged, at levels drawn if the planner draws them."""
        return self.model.quantiles(rows, self.planner.levels(len(self.offer), self.generator))[offered]

    def _pick(self, score: Floats) -> int:
        """The place of the arm to take among those with these scores (n,)."""
        planner = self.planner
        if planner.explore and (forced := int(planner.forced((), len(score), self.generator))) >= 0:
            return forced
        return ridge_policy.best_arm(score, self.generator.random())

    def _probabilities(self, rows: Floats, offered: Ints, score: Floats | None = None) -> Floats:
        """The probabilities (n,) of the arms in `offered`; `score` are theirs, where known and not drawn."""
        planner = self.planner
        if planner.spread:
            curves = self.model.curves(rows, planner.level + planner.spread * ridge_policy.NODES)
            best = ridge_policy.chances(curves[offered], ridge_policy.NODES)
        else:
            found = self._scores(rows, offered) if score is None else score
            leading = found == found.max()
            best = leading / np.count_nonzero(leading)
        return (1 - planner.explore) * best + planner.explore / len(offered)

    # Learning.

    def update(self, x: Array, arm: Arm | Sequence[Arm], reward: Array) -> None:
        """Learn what arms paid, as late and in as large batches as rewards come. Nothing changes if a row is refused.

        Parameters
        ----------
        x
            The context (dim,) of one decision, or (n, dim) of n, a sparse matrix or dicts; with `shared`, features of
            the arms that were taken.
        arm
            The arm that was taken, or n of them.
        reward
            What it paid, or (n,).
        """
        taken = self.take(x, arm, reward)
        self.model.learn(taken.rows)
        self.features = taken.features

    def fit(self, x: Array, arm: Sequence[Arm], reward: Array) -> Self:
        """Learn a log from the beginning, row by row; what was learnt before is forgotten, unless a row is refused.

        Parameters
        ----------
        x
            Contexts (n, dim), a sparse matrix or n dicts; with `shared`, features of the arms that were taken.
        arm
            The n arms that were taken.
        reward
            What they paid, (n,).

        Returns
        -------
        Policy
            This one.
        """
        settings = self.ridge.settings
        taken = self.take(x, arm, reward, Features(settings.dim, settings.scale))
        model = CompiledRidge(len(self.arms), settings)
        for i in range(len(taken.rows.arm)):
            try:
                model.learn(Rows._make(part[i : i + 1] for part in taken.rows))
            except CalibrlError as problem:
                raise CalibrlError(f"row {i} of the log: {problem}") from None
        self.forecaster = self.model = model
        self.features = taken.features
        return self

    def take(self, x: Array, arm: Arm | Sequence[Arm], reward: Array, known: Features | None = None) -> Taken:
        """The rows of an update and what they teach of features, of which `known` is known if not the policy's own."""
        rewards, features = as_floats(reward, "reward"), known or self.features
        used = None if features is None or (isinstance(x, np.ndarray) and not features.scale) else features
        numbers, columns = used.numbers(x) if used else (x, ())
        rows = np.ones((*rewards.shape, 1)) if x is None else as_floats(numbers, "context")
        if used and hasattr(x, "toarray") and not rewards.ndim and len(rows) == 1:
            rows = rows[0]
        if rewards.ndim:
            names = list(np.asarray(arm, object).reshape(-1))
        else:
            names, rows, rewards = [arm], rows[None], rewards[None]
        shape = self.model.row_shape or rows.shape[1:]
        if rows.shape != (len(names), *shape) or rewards.shape != (len(names),):
            wanted = ", ".join(map(str, ("n", *shape)))
            raise CalibrlError(
                f"contexts of shape {rows.shape}, {len(names)} arms and rewards of shape {rewards.shape} do not fit; "
                f"expected ({wanted}), n and (n,)"
            )
        positions = np.array([self.offer.at(name) for name in names], np.int64)
        given = rows
        if used:
            rows, features = used.learnt(rows, columns)
        return Taken(Rows(rows, positions, rewards, *np.empty((3, len(names)))), features, given)

    def absorb(self, taken: Taken) -> None:
        """Learn rows that the forecaster has judged."""
        self.ridge.absorb(taken.rows)
        self.features = taken.features

    def fade(self, keep: float) -> None:
        """Let what was learnt so far count `keep` times as much from now on, in (0, 1]: for a world that changes.

        Means follow new rewards sooner, and forecasts are wider. Arms' records of z-scores stay as they are: they are
        of the last `window` rewards anyway.
        """
        self.ridge.fade(check_keep(keep))

    def inherit(self, other: Policy) -> Policy:
        """Take over what another policy has learnt of the arms that both have; returns this one.

        For other settings, or for contexts with more columns at the end: what was learnt stays as if they had been 0,
        but for the watch for changes, which goes on from what surprised the other policy.
        """
        arms = [arm for arm in self.arms if arm in other.offer.position]
        here, there = ([some.offer.at(arm) for arm in arms] for some in (self, other))
        self.ridge.inherit(other.ridge, here, there)
        self.features = replace(other.features, dim=self.ridge.settings.dim) if other.features else None
        return self

    def record(self, arm: Arm) -> Floats:
        """Give the z-scores an arm's forecasts met, oldest first: at most the last `window`.

        Of `CalibratedUCB` and `CalibratedThompson` they are those of single rewards, noise included.
        """
        return self.ridge.record(self.offer.at(arm))

    # A changing set of arms.

    def add_arm(self, arm: Arm) -> None:
        """Offer one more arm, of which nothing is known yet."""
        self.add_arms([arm])

    def add_arms(self, arms: Sequence[Arm]) -> None:
        """Offer more arms, of which nothing is known yet."""
        plain = self.offer.check_new(arms)
        self.ridge.add(len(plain))
        self.offer = self.offer.plus(plain)

    def remove_arm(self, arm: Arm) -> None:
        """Offer this arm no more, and forget what is known of it alone."""
        name = self.offer.check_leaving(arm)
        self.ridge.remove(self.offer.at(name))
        self.offer = self.offer.minus(name)

    # Keeping it.

    def save(self, path: str | Path) -> None:
        """Write everything to a JSON file, whole or not at all. A policy loaded from it behaves the same."""
        self.ridge.settle()
        with writable(path):
            storage.write(self.to_plain(), path)

    @staticmethod
    def load(path: str | Path) -> Policy:
        """Load a policy, of the class it had.

        Parameters
        ----------
        path
            A file that `save` wrote, a snapshot of a `Durable`, or a `Durable`'s whole folder, even one in use.
        """
        file = Path(path)
        if file.is_dir():
            return storage.restore(file, from_plain)[0]
        saved = storage.read(file)
        return from_plain(saved["policy"] if isinstance(saved, dict) and saved.keys() == {"line", "policy"} else saved)

    @property
    def settings(self) -> dict[str, Any]:
        """All that was chosen when the policy was built, by name."""
        return {**asdict(self.planner), **asdict(self.ridge.settings)}

    def to_plain(self) -> dict[str, Any]:
        """All of a policy that is settled, as plain values that `from_plain` makes a policy of."""
        return {
            "format": FORMAT,
            "policy": self.name,
            "options": {**asdict(self.ridge.settings), "plan": asdict(self.planner)},
            "arms": list(self.arms),
            "removed": list(self.removed),
            "generator": self.generator.bit_generator.state,
            "decisions": self.decisions.to_plain(),
            "features": self.features.to_plain() if self.features else {},
            **self.ridge.to_plain(),
        }


def check_keep(keep: float) -> float:
    """How much to keep as a plain number, or an error that says what is wrong."""
    share = as_floats(keep, "keep")
    if share.ndim or not 0 < share <= 1:
        raise CalibrlError(f"keep {keep!r} is not a share; use a number above 0, and 1 or less: 0.5 keeps half")
    return float(share)


def from_plain(saved: dict[str, Any]) -> Policy:
    """The policy that `to_plain` described."""
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        found = saved.get("format") if isinstance(saved, dict) else type(saved).__name__
        raise CalibrlError(f"a saved policy of format {found!r} cannot be read; expected {FORMAT!r}")
    try:
        if unknown := saved.keys() - {*PARTS, *SAVED}:
            raise ValueError(f"it holds {', '.join(map(repr, sorted(unknown)))}")
        options = dict(saved["options"])
        planner = Exploration(**options.pop("plan"))
        if not all(isinstance(options[name], bool) for name in ("calibrated", "shared", "noisy")):
            raise ValueError("an option that is on or off is neither")
        settings = RidgeSettings(**options)
        check_sizes(saved, settings)
        made = POLICIES.get(saved["policy"], Policy)
        policy = made.__new__(made)
        Policy.__init__(policy, CompiledRidge(len(saved["arms"]), settings), planner, saved["arms"])
        policy.offer = Arms(policy.arms, tuple(saved["removed"]))
        policy.generator.bit_generator.state = saved["generator"]
        policy.ridge.put_plain(saved, policy.arms)
        policy.decisions = Decisions.from_plain(saved["decisions"])
        policy.features = Features.from_plain(saved["features"], settings.dim, scale=settings.scale)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as problem:
        what = first_line(problem)
        raise CalibrlError(f"the saved policy is damaged ({what}); restore the file from a backup") from None
    return policy


# The policies by name: a planner, and whether the forecast is calibrated.


class RidgePolicy(Policy):
    """A policy whose forecaster is a `CompiledRidge`: what all policies by name are.

    A class that is given a `name` enters itself in `POLICIES`; `label` and `color` are what figures and tables use.
    """

    label: ClassVar[str] = ""
    """What text and figures call it."""
    color: ClassVar[str] = "#2b2d42"
    """Its colour, the same in every figure."""
    calibrated: ClassVar[bool] = False
    """Whether each arm's quantiles come from the arm's own record."""
    noisy: ClassVar[bool] = False
    """Whether single rewards are forecast, with their noise, instead of expected ones."""
    learnt: ClassVar[bool] = False
    """Whether widths follow each arm's noise, as learnt."""

    def __init_subclass__(cls, *, name: str = "", label: str = "", color: str = "") -> None:
        """Enter a class that has a name of its own in `POLICIES`."""
        if name:
            cls.name, cls.label, cls.color = name, label or cls.__name__, color or cls.color
            POLICIES[name] = cls

    def __init__(
        self,
        arms: int | Iterable[Arm],
        dim: int,
        planner: Exploration = GREEDY,
        *,
        seed: int = 0,
        step: float = 0.0,
        **settings: Any,
    ) -> None:
        names = Arms().check_new(first_names(arms))
        target = planner.level if step else 1.0
        known = {field.name for field in fields(RidgeSettings)}
        if wrong := [option for option in settings if option not in known]:
            raise _unknown(type(self), wrong[0])
        chosen = RidgeSettings(
            dim, calibrated=self.calibrated, noisy=self.noisy, learnt=self.learnt, step=step, target=target, **settings
        )
        super().__init__(CompiledRidge(len(names), chosen), planner, names, seed=seed)


def _unknown(kind: type, option: str) -> CalibrlError:
    """The error for an option that a policy does not have, with the one that was probably meant."""
    known = [name for name in inspect.signature(kind).parameters if name not in ("arms", "dim", "settings")]
    known += [name for name in RidgeOptions.__annotations__ if name not in known]
    close = difflib.get_close_matches(option, known, 1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return CalibrlError(f"{kind.__name__} has no option {option!r}; {meant}it has {', '.join(known)}")


POLICIES: dict[str, type[RidgePolicy]] = {}
"""Every policy by the name the command line knows."""


class _UpperBound(RidgePolicy):
    """The highest quantile at a fixed level."""

    def __init__(
        self,
        arms: int | Iterable[Arm],
        dim: int,
        *,
        level: float = 1.0,
        explore: float = 0.0,
        seed: int = 0,
        **settings: Unpack[RidgeOptions],
    ) -> None:
        super().__init__(arms, dim, Exploration(level, explore=explore), seed=seed, **settings)


class LinUCB(_UpperBound, name="linucb", color="#c8553d"):
    """The arm whose mean + level · sd is highest (Li et al., 2010).

    Parameters
    ----------
    arms
        Their names (strings or integers), or a number for 0 … k-1.
    dim
        Length of a context, or of an arm's features if `shared`.
    level
        Of the quantile, as a z-score: 1 is the 84 % quantile.
    explore
        The probability of an arm at random.
    seed
        Of the policy's random choices, 0 or more.
    ridge, shared, min_rewards, window, scale
        See `RidgeSettings`.

    Examples
    --------
    >>> from calibrl.bandits import LinUCB
    >>> policy = LinUCB(["news", "music"], dim=2)
    >>> policy.update([[1.0, 0.0], [1.0, 1.0]], ["news", "music"], [1.0, 0.0])
    >>> policy.choose([1.0, 0.0])
    'news'
    >>> policy.pulls
    {'news': 1, 'music': 1}
    """


class CalibratedUCB(RidgePolicy, name="calibrated-ucb", color="#0b5d8a"):
    """The arm whose mean has the highest calibrated quantile: the one to use.

    The bonus says how far an arm's *mean* may be from what is known of it. It is scaled by the arm's own noise, as
    learnt, with some of it pooled over the arms; it shrinks as rewards come, and does not depend on their unit. Arms
    that had far less than their share are tried again. `calibrl.kernels.arm_noise` has the formulas.

    Parameters
    ----------
    arms
        Their names (strings or integers), or a number for 0 … k-1.
    dim
        Length of a context, or of an arm's features if `shared`; leave it out for arms without context.
    level
        Of the quantile, as a z-score: 1 is the 84 % quantile.
    link
        "linear", or "logistic" for rewards of 0 and 1 whose probability depends on the context.
    fade
        How much of what is known of an arm is left after one more reward of it, in (0, 1]: for a world that drifts.
    watch
        Look for abrupt changes, and forget most of what was learnt when there is one.
    explore
        The probability of an arm at random.
    seed
        Of the policy's random choices, 0 or more.
    ridge, shared, min_rewards, window, scale
        See `RidgeSettings`.

    Examples
    --------
    >>> from calibrl.bandits import CalibratedUCB
    >>> policy = CalibratedUCB(["news", "music"], dim=2)
    >>> policy.update([[1.0, 0.0], [1.0, 1.0]], ["news", "music"], [1.0, 0.0])
    >>> policy.choose([1.0, 0.0])
    'news'
    >>> forecast = policy.forecast([1.0, 0.0])
    >>> [round(float(p), 2) for p in forecast.mean.mean]
    [0.5, 0.0]
    >>> forecast.outcome  # all rewards were 0 or 1 so far
    Bernoulli(probs: torch.Size([2]))
    """

    learnt = True

    def __init__(
        self,
        arms: int | Iterable[Arm],
        dim: int = 1,
        *,
        level: float = 1.0,
        link: str = "linear",
        fade: float = 1.0,
        watch: bool = True,
        explore: float = 0.0,
        seed: int = 0,
        **settings: Unpack[RidgeOptions],
    ) -> None:
        planner = Exploration(level, explore=explore)
        super().__init__(arms, dim, planner, seed=seed, link=link, keep=fade, watch=watch, **settings)


class CalibratedThompson(RidgePolicy, name="calibrated-thompson", color="#6ba3c4"):
    """Thompson sampling on the posterior of `CalibratedUCB`: the arm with the highest sample of its mean.

    Parameters
    ----------
    spread
        How wide samples are drawn, in widths of the bonus.
    arms, dim, link, fade, watch, explore, seed, ridge, shared, min_rewards, window, scale
        As of `CalibratedUCB`.
    """

    learnt = True

    def __init__(
        self,
        arms: int | Iterable[Arm],
        dim: int = 1,
        *,
        spread: float = 1.0,
        link: str = "linear",
        fade: float = 1.0,
        watch: bool = True,
        explore: float = 0.0,
        seed: int = 0,
        **settings: Unpack[RidgeOptions],
    ) -> None:
        planner = Exploration(spread=spread, explore=explore)
        super().__init__(arms, dim, planner, seed=seed, link=link, keep=fade, watch=watch, **settings)


class CalLinUCB(_UpperBound, name="callinucb", color="#1b7f79"):
    """LinUCB on calibrated forecasts, the paper's recipe: the same quantile, calibrated with each arm's own record.

    For replication. Its quantiles become those of single rewards, which do not shrink: where rewards are noisy it earns
    less than LinUCB, the more so the longer it runs. Use `CalibratedUCB`.

    Parameters
    ----------
    arms, dim, level, explore, seed, ridge, shared, min_rewards, window, scale
        As of `LinUCB`.
    """

    calibrated = True


class ConformalLinUCB(RidgePolicy, name="conformal-linucb", color="#5b3f9e"):
    """CalLinUCB with an adjusted level: an arm whose quantile covers too often aims lower, and vice versa.

    Forecasts are of single rewards, noise included, and each reward moves its arm's levels by step · (promised -
    covered), as in adaptive conformal inference (Gibbs and Candès, 2021): in the long run the quantile covers the
    rewards of the arms that were chosen, whatever chose them.

    Parameters
    ----------
    step
        How far a reward moves its arm's levels, as z-scores.
    arms, dim, level, explore, seed, ridge, shared, min_rewards, window, scale
        As of `LinUCB`.
    """

    calibrated = noisy = True

    def __init__(
        self,
        arms: int | Iterable[Arm],
        dim: int,
        *,
        level: float = 1.0,
        step: float = 0.03,
        explore: float = 0.0,
        seed: int = 0,
        **settings: Unpack[RidgeOptions],
    ) -> None:
        super().__init__(arms, dim, Exploration(level, explore=explore), step=step, seed=seed, **settings)


class Greedy(RidgePolicy, name="greedy", label="greedy", color="#8a8d99"):
    """The arm with the highest mean: the control that every exploring policy has to beat.

    Parameters
    ----------
    arms, dim, seed, ridge, shared, min_rewards, window, scale
        As of `LinUCB`.
    """

    def __init__(self, arms: int | Iterable[Arm], dim: int, *, seed: int = 0, **settings: Unpack[RidgeOptions]) -> None:
        super().__init__(arms, dim, GREEDY, seed=seed, **settings)


class _Sampled(RidgePolicy):
    """The highest of samples, one from each arm's forecast."""

    def __init__(
        self,
        arms: int | Iterable[Arm],
        dim: int,
        *,
        spread: float = 1.0,
        explore: float = 0.0,
        seed: int = 0,
        **settings: Unpack[RidgeOptions],
    ) -> None:
        super().__init__(arms, dim, Exploration(spread=spread, explore=explore), seed=seed, **settings)


class Thompson(_Sampled, name="thompson", color="#e09f3e"):
    """The arm with the highest sample from its forecast.

    Parameters
    ----------
    spread
        How wide samples are drawn, in sds of the forecast.
    arms, dim, explore, seed, ridge, shared, min_rewards, window, scale
        As of `LinUCB`.
    """


class CalThompson(_Sampled, name="calthompson", color="#3d7ea6"):
    """Thompson sampling from calibrated forecasts.

    Parameters
    ----------
    arms, dim, spread, explore, seed, ridge, shared, min_rewards, window, scale
        As of `Thompson`.
    """

    calibrated = True


class EpsilonGreedy(RidgePolicy, name="epsilon-greedy", label="ε-greedy", color="#b8bcc8"):
    """Greedy, but with probability `explore` a random arm.

    Parameters
    ----------
    arms, dim, explore, seed, ridge, shared, min_rewards, window, scale
        As of `LinUCB`.
    """

    def __init__(
        self,
        arms: int | Iterable[Arm],
        dim: int,
        *,
        explore: float = 0.05,
        seed: int = 0,
        **settings: Unpack[RidgeOptions],
    ) -> None:
        super().__init__(arms, dim, Exploration(explore=explore), seed=seed, **settings)

"""A contextual bandit for a service: choose an arm, learn its reward when it comes, know how sure it is.

The policies by name are one planner, one model, and two choices to make.

| | level of the quantile | forecast |
|---|---|---|
| LinUCB, CalLinUCB | Φ(1) = 84 % | bare, calibrated |
| ConformalLinUCB | 84 %, held to its coverage | calibrated, with the rewards' noise |
| Thompson, CalThompson | drawn for every arm | bare, calibrated |
| Greedy, EpsilonGreedy | 50 % | bare |

Calibrated means: the same forecaster on `Rolling` evidence with one empirical map per arm. Each takes a
random arm with probability `explore`, so that other policies can be evaluated from its log; by default only
EpsilonGreedy does.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributions import Distribution, Normal

from calibrl.algorithm import recalibrate
from calibrl.arrays import Array
from calibrl.bandits.arms import Among, Arm, Arms, Ints, first_names
from calibrl.errors import CalibrlError
from calibrl.kernels import highest, ridge, ridge_policy
from calibrl.kernels.ridge_policy import Rules, State
from calibrl.maps.ecdf import Ecdf, ecdf_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Exploration:
    """Each arm is scored by its quantile at the z-score level + spread · ε; the best is taken, or a random one.

    level 1 is LinUCB (the 84 % quantile), level 0 is greedy (the median), spread 1 is Thompson sampling (ε is
    standard normal, afresh for every arm and decision), and `explore` is the probability of an arm at random.
    """

    level: float = 0.0
    spread: float = 0.0
    explore: float = 0.0

    def __post_init__(self) -> None:
        plain_fields(self, "a number", "level", "spread", "explore")
        if not math.isfinite(self.level) or not math.isfinite(self.spread) or self.spread < 0:
            raise CalibrlError(f"level {self.level} and spread {self.spread} must be finite, the spread 0 or more")
        if not 0 <= self.explore <= 1:
            raise CalibrlError(f"explore {self.explore} is not a probability; use a number from 0 to 1")

    def levels(self, shape: int | tuple[int, ...], generator: np.random.Generator) -> Floats:
        """Levels for decisions of this shape, (k,) or (t, k), as z-scores."""
        fixed = np.full(shape, self.level)
        return fixed + self.spread * generator.standard_normal(shape) if self.spread else fixed

    def forced(self, shape: int | tuple[int, ...], arms: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """For each decision an arm to take whatever the forecast, or -1."""
        if not self.explore:
            return np.full(shape, -1)
        lot = generator.random(shape) < self.explore
        return np.where(lot, generator.integers(arms, size=shape), -1)


def plain_fields(of: object, kind: str, *names: str) -> None:
    """Make fields of a frozen dataclass Python's own numbers: NumPy's could not be saved as JSON."""
    for name in names:
        value = getattr(of, name)
        try:
            object.__setattr__(of, name, _PLAIN[kind](value))
        except (TypeError, ValueError):
            raise CalibrlError(f"{name} {value!r} is not {kind}, and has to be") from None


_PLAIN: dict[str, Callable[[Any], Any]] = {"a number": float, "a whole number": operator.index, "True or False": bool}


@dataclass(frozen=True)
class Options:
    """What a policy is, apart from what it has learnt.

    dim: length of a context (or of an arm's features if `shared`); plan: how it explores; calibrated: whether
    each arm's quantiles come from the arm's own record; ridge: the prior's strength, in rows; shared: one model
    of arm features for all arms instead of one model of contexts per arm; least: rewards before an arm's record
    counts; window: how many of its last rewards the record holds; noisy: forecast single rewards, with their noise,
    instead of expected ones; step: how far a reward moves its arm's levels, as z-scores, to keep coverage (0: never).
    """

    dim: int
    plan: Exploration
    calibrated: bool = False
    ridge: float = 1.0
    shared: bool = False
    least: int = 10
    window: int = 1024
    noisy: bool = False
    step: float = 0.0

    def __post_init__(self) -> None:
        plain_fields(self, "a whole number", "dim", "least", "window")
        plain_fields(self, "a number", "ridge", "step")
        plain_fields(self, "True or False", "calibrated", "shared", "noisy")
        if self.dim < 1:
            raise CalibrlError(f"dim {self.dim} is not a number of features; use 1 or more")
        if not 1e-9 <= self.ridge < math.inf:
            raise CalibrlError(f"ridge {self.ridge} leaves the regression singular; use a number above 0, such as 1")
        if self.least < 2 or self.window < self.least:
            raise CalibrlError(f"least {self.least} and window {self.window} make no record; use 2 ≤ least ≤ window")
        if not 0 <= self.step < math.inf:
            raise CalibrlError(f"step {self.step} is not a step; use 0 for never, or a small number such as 0.03")

    @property
    def rules(self) -> Rules:
        """The same, as the kernels want it."""
        # Below `least` pulls an arm's own record does not count; uncalibrated, it never does.
        least = self.least if self.calibrated else np.iinfo(np.int64).max
        edge = ridge.edges(self.window)
        return Rules(float(self.ridge), self.noisy, least, edge, float(self.plan.level), float(self.step))


def generator_of(seed: int) -> np.random.Generator:
    """The generator of a policy's random choices."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise CalibrlError(f"seed {seed!r} is not a seed; use a whole number, 0 or more") from None


def floats(value: Array, what: str) -> Floats:
    """Numbers as float64, laid out as the kernels want them."""
    # Features may come from a network that is being trained, on a GPU, in half precision.
    given = value.detach().double().cpu() if isinstance(value, torch.Tensor) else value
    try:
        return np.asarray(given, np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        shown = " ".join(reprlib.repr(given).split())
        raise CalibrlError(f"{what} {shown} is not made of numbers; pass an array of numbers") from None


def check_finite(values: Floats, what: str) -> None:
    """Refuse NaN and infinity."""
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise CalibrlError(f"a {what} holds {wrong}; repair or drop that row: nothing was learnt from the call")


class Decision(NamedTuple):
    """The arm taken and the probability with which it was: what an off-policy evaluation needs in the log."""

    arm: Arm
    probability: float


class Rows(NamedTuple):
    """Rewards that were checked and can be learnt: x (n, dim), arm (n,) positions, and what `judge` says of each."""

    x: Floats
    arm: NDArray[np.int64]
    reward: Floats
    z: Floats
    error: Floats
    moved: Floats


class Policy:
    """A policy and what it has learnt. Build one by name: `LinUCB`, `CalLinUCB`, `Thompson`, `Greedy` …

    Not safe to share between threads without a lock. Every random choice comes from `seed`.
    """

    def __init__(self, arms: int | Iterable[Arm], options: Options, *, seed: int = 0) -> None:
        names = first_names(arms)
        self.options = options
        self.generator = generator_of(seed)
        self.offer = Arms()
        models = 1 if options.shared else 0
        self.state = ridge_policy.blank(models, 0, options.dim, ridge_=options.ridge, window=options.window)
        self._rules = options.rules
        self.add_arms(names)

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
        return dict(zip(self.arms, self.state.pulls.tolist(), strict=True))

    # Decisions.

    def choose(self, x: Array, *, among: Among | None = None) -> Arm:
        """The arm to take at a context x (dim,); with `shared`, x (n, dim) holds the features of each arm on offer.

        among: the arms this decision may take, if not all: their names, or a mask (k,) of True and False. With
        `shared` x has a row for each of them, in the order of the names, or of `arms` for a mask or a set.
        """
        rows, offered = self._request(x, among)
        return self.arms[offered[self._choose(rows, offered)]]

    def decide(self, x: Array, *, among: Among | None = None) -> Decision:
        """Choose, and say with which probability: `choose` for a log that will be evaluated later."""
        rows, offered = self._request(x, among)
        probability = self._probabilities(rows, offered)
        place = self._choose(rows, offered)
        return Decision(self.arms[offered[place]], float(probability[place]))

    def probabilities(self, x: Array, *, among: Among | None = None) -> dict[Arm, float]:
        """The probability of each arm being chosen at x: 0 for those that may not be."""
        rows, offered = self._request(x, among)
        chance = np.zeros(len(self.offer))
        chance[offered] = self._probabilities(rows, offered)
        return dict(zip(self.arms, chance.tolist(), strict=True))

    def forecast(self, x: Array, *, among: Among | None = None) -> Distribution:
        """What each arm on offer is expected to pay at x: batch shape (n,), in the order of `among`, or of `arms`."""
        rows, offered = self._request(x, among)
        mean, sd, _ = self._scores(rows, np.zeros(len(self.offer)))
        bare = Normal(torch.from_numpy(mean[offered]), torch.from_numpy(sd[offered]), validate_args=False)
        return recalibrate(bare, self._map(offered)) if self.options.calibrated else bare

    # Learning.

    def update(self, x: Array, arm: Arm | Sequence[Arm], reward: Array) -> None:
        """Learn what arms paid, as late and in as large batches as rewards come.

        x (dim,), arm and reward of one decision, or x (n, dim), n arms and reward (n,) of n decisions; with `shared`,
        x holds the features of the arms that were taken. Nothing changes if a row is refused.
        """
        rows = self._rows(x, arm, reward)
        self._refuse(rows, ridge_policy.learn(self.state, self._rules, *rows))

    def check(self, x: Array, arm: Arm | Sequence[Arm], reward: Array) -> Rows:
        """The rows of an update, each judged by the forecast it met, or an error that says what is wrong."""
        rows = self._rows(x, arm, reward)
        self._refuse(rows, ridge_policy.judge(self.state, self._rules, *rows))
        return rows

    def learn(self, rows: Rows) -> None:
        """Learn rows that `check` has passed."""
        ridge_policy.absorb(self.state, self._rules, *rows)

    def fade(self, keep: float) -> None:
        """From now on what was learnt so far counts `keep` times as much, in (0, 1]: for a world that changes.

        Means follow new rewards sooner, and forecasts are wider. Arms' records of z-scores stay as they are: they are
        of the last `window` rewards anyway.
        """
        share = self.check_keep(keep)
        for sums in (self.state.gram, self.state.moment):
            sums *= share
        self.settle()

    def check_keep(self, keep: float) -> float:
        """How much to keep as a plain number, or an error that says what is wrong."""
        share = floats(keep, "keep")
        if share.ndim or not 0 < share <= 1:
            raise CalibrlError(f"keep {keep!r} is not a share; use a number above 0, and 1 or less: 0.5 keeps half")
        return float(share)

    def inherit(self, other: Policy) -> Policy:
        """Take over what another policy has learnt of the arms that both have; returns this one.

        For other settings, or for contexts with more columns at the end: what was learnt stays as if they had been 0.
        """
        pass

        take_over(self, other)
        return self

    # A changing set of arms.

    def add_arm(self, arm: Arm) -> None:
        """Offer one more arm, of which nothing is known yet."""
        self.add_arms([arm])

    def add_arms(self, arms: Sequence[Arm]) -> None:
        """Offer more arms, of which nothing is known yet."""
        plain = self.offer.check_new(arms)
        options = self.options
        models = 0 if options.shared else len(plain)
        new = ridge_policy.blank(models, len(plain), options.dim, ridge_=options.ridge, window=options.window)
        self.state = State(*(np.concatenate(pair) for pair in zip(self.state, new, strict=True)))
        self.offer = self.offer.plus(plain)

    def remove_arm(self, arm: Arm) -> None:
        """Offer this arm no more, and forget what is known of it alone."""
        name = self.offer.check_leaving(arm)
        position = self.offer.at(name)
        kept = {"theta", "moment", "inverse", "gram", "rows"} if self.options.shared else set()
        parts = self.state._asdict()
        parts = {key: part if key in kept else np.delete(part, position, axis=0) for key, part in parts.items()}
        self.state = State(**parts)
        self.offer = self.offer.minus(name)

    # Keeping it.

    def save(self, path: str | Path) -> None:
        """Write everything to a JSON file, whole or not at all. A policy loaded from it behaves the same."""
        from calibrl.bandits import storage

        storage.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Policy:
        """The policy that `save` wrote."""
        from calibrl.bandits import storage

        return storage.load(path)

    def settle(self) -> None:
        """Invert every model afresh, so that one rebuilt from its sums behaves the same to the last bit."""
        s = self.state
        for m in range(len(s.theta)):
            ridge.refactor(s.theta[m], s.inverse[m], s.gram[m], s.moment[m], self.options.ridge)

    def _rows(self, x: Array, arm: Arm | Sequence[Arm], reward: Array) -> Rows:
        """The rows of an update in the shape the kernels want, not judged yet."""
        rewards = floats(reward, "reward")
        rows = floats(x, "context")
        if rewards.ndim:
            names = list(np.asarray(arm, object).reshape(-1))
        else:
            names, rows, rewards = [arm], rows[None], rewards[None]
        if rows.shape != (len(names), self.options.dim) or rewards.shape != (len(names),):
            raise CalibrlError(
                f"contexts of shape {rows.shape}, {len(names)} arms and rewards of shape {rewards.shape} do not fit; "
                f"expected (n, {self.options.dim}), n and (n,)"
            )
        positions = np.array([self.offer.at(name) for name in names], np.int64)
        return Rows(rows, positions, rewards, *np.empty((3, len(names))))

    def _refuse(self, rows: Rows, wrong: int) -> None:
        """Say what is wrong with row `wrong`, if one is."""
        if wrong < 0:
            return
        check_finite(rows.x, "context")
        check_finite(rows.reward, "reward")
        if abs(rows.reward[wrong]) > ridge_policy.LARGEST_REWARD:
            raise CalibrlError(
                f"reward {rows.reward[wrong]:.3g} (row {wrong}) is beyond ±{ridge_policy.LARGEST_REWARD:g}: sums of "
                "squares would overflow; repair or drop that row, or give rewards in a larger unit"
            )
        raise CalibrlError(
            f"context {wrong} with numbers up to {np.abs(rows.x[wrong]).max():.3g} (reward {rows.reward[wrong]:.3g}) "
            f"is too large for ridge {self.options.ridge:g}: the regression would be singular; standardise the features"
        )

    def _choose(self, rows: Floats, offered: Ints) -> int:
        """The place in `offered` of the arm to take."""
        plan = self.options.plan
        _, _, score = self._scores(rows, plan.levels(len(self.offer), self.generator))
        if plan.explore and (forced := int(plan.forced((), len(offered), self.generator))) >= 0:
            return forced
        return ridge_policy.best_arm(score[offered], self.generator.random())

    def _scores(self, rows: Floats, level: Floats) -> tuple[Floats, Floats, Floats]:
        mean, sd, score = np.empty((3, len(level)))
        fine = ridge_policy.score_arms(self.state, self._rules, rows, level, mean, sd, score)
        if not fine:
            check_finite(rows, "context")
            raise CalibrlError(
                f"context with numbers up to {np.abs(rows).max():.3g} overflows; standardise the features"
            )
        return mean, sd, score

    def _probabilities(self, rows: Floats, offered: Ints) -> Floats:
        """The probabilities (n,) of the arms in `offered`."""
        plan = self.options.plan
        mean, sd, score = self._scores(rows, np.full(len(self.offer), plan.level))
        if plan.spread:
            level = plan.level + plan.spread * highest.NODES
            quantile = ridge_policy.quantiles(self.state, self._rules, mean, sd, level)
            best = highest.chances(quantile[offered], highest.NODES)
        else:
            leading = score[offered] == score[offered].max()
            best = leading / np.count_nonzero(leading)
        return (1 - plan.explore) * best + plan.explore / len(offered)

    def _map(self, offered: Ints) -> Ecdf:
        columns = [self.record(self.arms[position]) for position in offered]
        kept = [column if len(column) >= self.options.least else column[:0] for column in columns]
        return ecdf_of(kept, (len(kept),), shift=self.state.shift[offered])

    def record(self, arm: Arm) -> Floats:
        """The z-scores an arm's forecasts met, oldest first: at most the last `window`."""
        position = self.offer.at(arm)
        seen, window = int(self.state.pulls[position]), self.options.window
        ring = self.state.arrived[position]
        return np.roll(ring, -(seen % window)) if seen > window else ring[:seen].copy()

    def put_record(self, position: int, record: Floats) -> None:
        """Give the arm there a record, oldest first: a z-score for each reward it has had, or for the last `window`."""
        n, seen = len(record), int(self.state.pulls[position])
        self.state.ordered[position, :n] = np.sort(record)
        # In a full ring the next one goes where the oldest stands.
        self.state.arrived[position, :n] = np.roll(record, seen % max(n, 1))

    def _request(self, x: Array, among: Among | None) -> tuple[Floats, Ints]:
        """What a decision is about: contexts as the kernels want them, and the positions (n,) of the arms on offer."""
        offered = self.offer.everyone if among is None else self.offer.offered(among)
        rows = floats(x, "context")
        options = self.options
        wanted = (len(offered), options.dim) if options.shared else (options.dim,)
        if rows.shape != wanted:
            what = "features of shape (arms on offer, dim)" if options.shared else "a context of shape (dim,)"
            raise CalibrlError(f"context has shape {rows.shape}; expected {wanted}: {what}")
        if not options.shared:
            return rows[None], offered
        # Every arm is scored; the score of one that is not on offer is never looked at.
        features = np.zeros((len(self.offer), options.dim))
        features[offered] = rows
        return features, offered


def take_over(policy: Policy, other: Policy) -> None:
    """Make `policy` know what `other` does of the arms that both have, as if the columns it has more had been 0."""
    _check(policy, other)
    arms = [arm for arm in policy.arms if arm in other.offer.position]
    here, there = ([some.offer.at(arm) for arm in arms] for some in (policy, other))
    mine, theirs = policy.state, other.state
    models = ([0], [0]) if policy.options.shared else (here, there)
    for name in ("moment", "gram"):
        # Packed row after row, the triangle of a smaller matrix is the beginning of a larger one's.
        known, space = getattr(theirs, name)[models[1]], getattr(mine, name)
        space[models[0]] = np.pad(known, ((0, 0), (0, space.shape[1] - known.shape[1])))
    mine.rows[models[0]] = theirs.rows[models[1]]
    for name in ("pulls", "error", "shift"):
        getattr(mine, name)[here] = getattr(theirs, name)[there]
    for arm, position in zip(arms, here, strict=True):
        policy.put_record(position, other.record(arm)[-policy.options.window :])
    policy.settle()


def _check(policy: Policy, other: Policy) -> None:
    ours, theirs = policy.options, other.options
    if ours.shared != theirs.shared:
        raise CalibrlError(f"one policy has shared={ours.shared}, the other {theirs.shared}; build both alike")
    if ours.noisy != theirs.noisy:
        raise CalibrlError(
            "ConformalLinUCB forecasts single rewards and the others expected ones, so they cannot use each other's "
            "records; inherit from a policy of the same kind"
        )
    if ours.dim < theirs.dim:
        raise CalibrlError(
            f"contexts of {ours.dim} columns are shorter than the {theirs.dim} that were learnt; columns can only be "
            "added, at the end: give 0 for one that is gone"
        )
    if ours.window > theirs.window:
        raise CalibrlError(
            f"window {ours.window} is longer than the {theirs.window} rewards that were kept; use {theirs.window}"
        )


class Settings(TypedDict, total=False):
    """What every policy can be told: see `Options`."""

    ridge: float
    shared: bool
    least: int
    window: int


def LinUCB(  # noqa: N802 (the algorithm's name)
    arms: int | Iterable[Arm],
    dim: int,
    *,
    level: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """The arm whose mean + level · sd is highest (Li et al., 2010)."""
    return Policy(arms, Options(dim, Exploration(level, explore=explore), **settings), seed=seed)


def CalLinUCB(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    level: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """LinUCB on calibrated forecasts: the same quantile, calibrated with each arm's own record."""
    return Policy(arms, Options(dim, Exploration(level, explore=explore), calibrated=True, **settings), seed=seed)


def ConformalLinUCB(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    level: float = 1.0,
    step: float = 0.03,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """CalLinUCB with an adjusted level: an arm whose quantile covers too often aims lower, and vice versa.

    Forecasts are of single rewards, noise included, and each reward moves its arm's levels by step · (promised -
    covered), as in adaptive conformal inference (Gibbs and Candès, 2021): in the long run the quantile covers the
    rewards of the arms that were chosen, whatever chose them.
    """
    options = Options(dim, Exploration(level, explore=explore), calibrated=True, noisy=True, step=step, **settings)
    return Policy(arms, options, seed=seed)


def Thompson(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    spread: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """The arm with the highest sample from its forecast."""
    return Policy(arms, Options(dim, Exploration(spread=spread, explore=explore), **settings), seed=seed)


def CalThompson(  # noqa: N802
    arms: int | Iterable[Arm],
    dim: int,
    *,
    spread: float = 1.0,
    explore: float = 0.0,
    seed: int = 0,
    **settings: Unpack[Settings],
) -> Policy:
    """Thompson sampling from calibrated forecasts."""
    return Policy(
        arms, Options(dim, Exploration(spread=spread, explore=explore), calibrated=True, **settings), seed=seed
    )


def Greedy(  # noqa: N802
    arms: int | Iterable[Arm], dim: int, *, seed: int = 0, **settings: Unpack[Settings]
) -> Policy:
    """The arm with the highest mean: the control that every exploring policy has to beat."""
    return Policy(arms, Options(dim, Exploration(), **settings), seed=seed)


def EpsilonGreedy(  # noqa: N802
    arms: int | Iterable[Arm], dim: int, *, explore: float = 0.05, seed: int = 0, **settings: Unpack[Settings]
) -> Policy:
    """Greedy, but with probability `explore` a random arm."""
    return Policy(arms, Options(dim, Exploration(explore=explore), **settings), seed=seed)


POLICIES: dict[str, Callable[..., Policy]] = {
    "linucb": LinUCB,
    "callinucb": CalLinUCB,
    "conformal-linucb": ConformalLinUCB,
    "greedy": Greedy,
    "thompson": Thompson,
    "calthompson": CalThompson,
    "epsilon-greedy": EpsilonGreedy,
}
"""Every policy by the name the command line knows."""

"""A contextual bandit for a service: choose an arm, learn its reward when it comes, know how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributions import Distribution, Normal

from calibrl.algorithm import recalibrate
from calibrl.arrays import Array
from calibrl.bandits.ecdf import Ecdf, ecdf_of
from calibrl.bandits.options import Options
from calibrl.errors import CalibrlError
from calibrl.kernels import highest, ridge, ridge_policy
from calibrl.kernels.ridge_policy import State

Floats = NDArray[np.float64]
Arm: TypeAlias = str | int
"""What an arm is called: an article's id, a treatment's name, a class number."""


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
        names = _names(arms)
        self.options = options
        self.generator = _generator(seed)
        self._names: list[Arm] = []
        self._position: dict[Arm, int] = {}
        self.removed: set[Arm] = set()
        models = 1 if options.shared else 0
        self.state = ridge_policy.blank(models, 0, options.dim, ridge_=options.ridge, window=options.window)
        self._rules = options.rules
        self.add_arms(names)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms on offer."""
        return tuple(self._names)

    @property
    def pulls(self) -> dict[Arm, int]:
        """How many rewards each arm has had."""
        return dict(zip(self._names, self.state.pulls.tolist(), strict=True))

    # Decisions.

    def choose(self, x: Array) -> Arm:
        """The arm to take at a context x (dim,); with `shared`, x (k, dim) holds the features of each arm on offer."""
        return self._names[self._choose(self._contexts(x))]

    def decide(self, x: Array) -> Decision:
        """Choose, and say with which probability: `choose` for a log that will be evaluated later."""
        rows = self._contexts(x)
        probability = self._probabilities(rows)
        position = self._choose(rows)
        return Decision(self._names[position], float(probability[position]))

    def probabilities(self, x: Array) -> dict[Arm, float]:
        """The probability of each arm being chosen at x."""
        return dict(zip(self._names, self._probabilities(self._contexts(x)).tolist(), strict=True))

    def forecast(self, x: Array) -> Distribution:
        """What each arm is expected to pay at x: a distribution of batch shape (k,), in the order of `arms`."""
        rows = self._contexts(x)
        mean, sd, _ = self._scores(rows, np.zeros(len(self._names)))
        bare = Normal(torch.from_numpy(mean), torch.from_numpy(sd), validate_args=False)
        return recalibrate(bare, self._map()) if self.options.calibrated else bare

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

    # A changing set of arms.

    def add_arm(self, arm: Arm) -> None:
        """Offer one more arm, of which nothing is known yet."""
        self.add_arms([arm])

    def add_arms(self, arms: Sequence[Arm]) -> None:
        """Offer more arms, of which nothing is known yet."""
        plain = self.check_new(arms)
        options = self.options
        models = 0 if options.shared else len(plain)
        new = ridge_policy.blank(models, len(plain), options.dim, ridge_=options.ridge, window=options.window)
        self.state = State(*(np.concatenate(pair) for pair in zip(self.state, new, strict=True)))
        self._rename([*self._names, *plain])

    def check_new(self, arms: Sequence[Arm]) -> list[Arm]:
        """Names that can be added, as plain strings and integers, or an error that says what is wrong."""
        for name in arms:
            if isinstance(name, bool) or not isinstance(name, (str, int, np.integer)):
                raise CalibrlError(f"arm {name!r} is not a name; use strings or integers")
        plain: list[Arm] = [str(name) if isinstance(name, str) else int(name) for name in arms]
        taken = set(self._names)
        for name in plain:
            if name in taken:
                raise CalibrlError(f"arm {name!r} is there already; arms need different names")
            taken.add(name)
        return plain

    def remove_arm(self, arm: Arm) -> None:
        """Offer this arm no more, and forget what is known of it alone."""
        name = self.check_leaving(arm)
        position = self._position[name]
        kept = {"theta", "moment", "inverse", "gram", "rows"} if self.options.shared else set()
        parts = self.state._asdict()
        parts = {key: part if key in kept else np.delete(part, position, axis=0) for key, part in parts.items()}
        self.state = State(**parts)
        self._rename([other for other in self._names if other != name])
        self.removed.add(name)

    def check_leaving(self, arm: Arm) -> Arm:
        """The name of an arm that can be removed, as it was added, or an error that says what is wrong."""
        name = self._names[self._at(arm)]
        if len(self._names) == 1:
            raise CalibrlError(f"arm {name!r} is the last one; a policy needs at least one arm")
        return name

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
        rewards = _floats(reward, "reward")
        rows = _floats(x, "context")
        if rewards.ndim:
            names = list(np.asarray(arm, object).reshape(-1))
        else:
            names, rows, rewards = [arm], rows[None], rewards[None]
        if rows.shape != (len(names), self.options.dim) or rewards.shape != (len(names),):
            raise CalibrlError(
                f"contexts of shape {rows.shape}, {len(names)} arms and rewards of shape {rewards.shape} do not fit; "
                f"expected (n, {self.options.dim}), n and (n,)"
            )
        positions = np.array([self._at(name) for name in names], np.int64)
        return Rows(rows, positions, rewards, *np.empty((3, len(names))))

    def _refuse(self, rows: Rows, wrong: int) -> None:
        """Say what is wrong with row `wrong`, if one is."""
        if wrong < 0:
            return
        _finite(rows.x, "context")
        _finite(rows.reward, "reward")
        if abs(rows.reward[wrong]) > ridge_policy.LARGEST_REWARD:
            raise CalibrlError(
                f"reward {rows.reward[wrong]:.3g} (row {wrong}) is beyond ±{ridge_policy.LARGEST_REWARD:g}: sums of "
                "squares would overflow; repair or drop that row, or give rewards in a larger unit"
            )
        raise CalibrlError(
            f"context {wrong} with numbers up to {np.abs(rows.x[wrong]).max():.3g} (reward {rows.reward[wrong]:.3g}) "
            f"is too large for ridge {self.options.ridge:g}: the regression would be singular; standardise the features"
        )

    def _choose(self, rows: Floats) -> int:
        arms = len(self._names)
        plan = self.options.plan
        _, _, score = self._scores(rows, plan.levels(arms, self.generator))
        if plan.explore and (forced := int(plan.forced((), arms, self.generator))) >= 0:
            return forced
        return ridge_policy.best_arm(score, self.generator.random())

    def _scores(self, rows: Floats, level: Floats) -> tuple[Floats, Floats, Floats]:
        mean, sd, score = np.empty((3, len(level)))
        fine = ridge_policy.score_arms(self.state, self._rules, rows, level, mean, sd, score)
        if not fine:
            _finite(rows, "context")
            raise CalibrlError(
                f"context with numbers up to {np.abs(rows).max():.3g} overflows; standardise the features"
            )
        return mean, sd, score

    def _probabilities(self, rows: Floats) -> Floats:
        plan = self.options.plan
        mean, sd, score = self._scores(rows, np.full(len(self._names), plan.level))
        if plan.spread:
            level = plan.level + plan.spread * highest.NODES
            best = highest.chances(ridge_policy.quantiles(self.state, self._rules, mean, sd, level), highest.NODES)
        else:
            best = (score == score.max()) / np.count_nonzero(score == score.max())
        return (1 - plan.explore) * best + plan.explore / len(score)

    def _map(self) -> Ecdf:
        columns = [self.record(name) for name in self._names]
        kept = [column if len(column) >= self.options.least else column[:0] for column in columns]
        return ecdf_of(kept, (len(kept),), shift=self.state.shift)

    def record(self, arm: Arm) -> Floats:
        """The z-scores an arm's forecasts met, oldest first: at most the last `window`."""
        position = self._at(arm)
        seen, window = int(self.state.pulls[position]), self.options.window
        ring = self.state.arrived[position]
        return np.roll(ring, -(seen % window)) if seen > window else ring[:seen].copy()

    def _contexts(self, x: Array) -> Floats:
        rows = _floats(x, "context")
        options = self.options
        wanted = (len(self._names), options.dim) if options.shared else (options.dim,)
        if rows.shape != wanted:
            what = "features of shape (arms, dim)" if options.shared else "a context of shape (dim,)"
            raise CalibrlError(f"context has shape {rows.shape}; expected {wanted}: {what}")
        return rows if options.shared else rows[None]

    def _at(self, arm: Any) -> int:
        try:
            return self._position[arm]
        except (KeyError, TypeError):
            gone = isinstance(arm, (str, int, np.integer)) and arm in self.removed
            why = "was removed: drop its late rewards" if gone else "was never offered: add it with add_arm"
            shown = ", ".join(map(repr, self._names[:8])) + (" …" if len(self._names) > 8 else "")
            raise CalibrlError(f"arm {arm!r} {why}; arms on offer: {shown}") from None

    def _rename(self, names: list[Arm]) -> None:
        self._names = names
        self._position = {name: position for position, name in enumerate(names)}
        self.removed -= set(names)


def _names(arms: int | Iterable[Arm]) -> list[Arm]:
    # A word would be taken for the names of its letters.
    if isinstance(arms, (bool, str)) or not (isinstance(arms, (int, np.integer)) or np.iterable(arms)):
        raise CalibrlError(
            f"arms {arms!r} is neither a number of arms nor a list of names; pass 2 or ['news', 'music']"
        )
    names: list[Arm] = list(range(arms) if isinstance(arms, (int, np.integer)) else arms)
    if not names:
        raise CalibrlError("a policy needs at least one arm; pass a number of arms or their names")
    return names


def _generator(seed: int) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise CalibrlError(f"seed {seed!r} is not a seed; use a whole number, 0 or more") from None


def _floats(value: Array, what: str) -> Floats:
    try:
        return np.asarray(value, np.float64, order="C")
    except (TypeError, ValueError):
        raise CalibrlError(f"{what} {value!r} is not made of numbers; pass an array of numbers") from None


def _finite(values: Floats, what: str) -> None:
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise CalibrlError(f"a {what} holds {wrong}; repair or drop that row: nothing was learnt from the call")

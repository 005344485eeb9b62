"""A contextual bandit for a service: choose an arm, learn its reward when it comes, know how sure it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributions import Distribution, Normal

from calibrl.algorithm import recalibrate
from calibrl.arrays import Array
from calibrl.bandits.arms import Among, Arm, Arms, Ints, first_names
from calibrl.bandits.inputs import check_finite, floats, generator_of
from calibrl.bandits.options import Options
from calibrl.errors import CalibrlError
from calibrl.kernels import highest, ridge, ridge_policy
from calibrl.kernels.ridge_policy import State
from calibrl.maps.ecdf import Ecdf, ecdf_of

Floats = NDArray[np.float64]


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
        from calibrl.bandits import inheritance

        inheritance.inherit(self, other)
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

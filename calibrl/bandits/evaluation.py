"""What a policy would have earned, estimated from a log of another policy's decisions.

With π(a|x) the policy's probabilities, w = π(a_t|x_t) / propensity the weight of a row, and q(x, a) a reward model
fitted on other rows, a row says

| estimator | of a row | right on average if |
|---|---|---|
| `ips`: inverse propensities | w r | the propensities are right |
| `snips`: the same over the mean weight | w r / mean of w | they are, and rows are many |
| `direct_method` | Σ_a π(a|x) q(x, a) | the reward model is right |
| `doubly_robust` | Σ_a π(a|x) q(x, a) + w (r - q(x, a_t)) | either is |
| `switch_dr`: the same, without the second part where w is large | | either is; less noise for some bias |

`benchmarks/offpolicy.py` simulates how often their intervals hold the truth (docs/bandits.md has the table). The direct
method and replay have none: what is wrong with a model, and which way learning went, a log does not tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from calibrl.arrays import Array
from calibrl.bandits.arms import Arm, as_floats
from calibrl.bandits.decisions import Log, log_table, read_log
from calibrl.bandits.policy import Policy
from calibrl.errors import CalibrlError, check_within

__all__ = [
    "Diagnostics",
    "Estimate",
    "Log",
    "diagnose",
    "direct_method",
    "doubly_robust",
    "ips",
    "learn_from",
    "mean_reward",
    "read_log",
    "replay_evaluation",
    "snips",
    "switch_dr",
]

Floats = NDArray[np.float64]
Target = Policy | Array
"""What is judged: a policy, or its probabilities (n, k), a row per decision and a column per arm of `log.arms`."""

FOLDS, BLOCK = 5, 64
UNSUPPORTED = 0.1
"""How much of what a policy does may be without support in the log, beyond what chance explains."""
UNSEEN = 0.01
"""How much of it may be arms the log never took."""
UNEVEN = 0.03
"""How much of the weight a row may have before `switch_dr` trusts the reward model instead."""
LACKING = 0.4
"""How much of what weights lack to an average of 1 counts as an error, times how far off rewards are."""
BOUNDED = 2.0
"""How many times less likely than by lot an arm may have been for intervals by weights alone: elsewhere they hold the
truth too rarely, most of all where large weights are possible and none was seen."""
THIN = 0.1
"""A replay that keeps less of the log says so."""


@dataclass(frozen=True)
class Estimate:
    """What a policy earns, estimated.

    Parameters
    ----------
    value, error
        The mean reward per decision, and its standard error: NaN where none is known.
    rows
        How many logged rows it rests on.
    note
        What to know about it.
    effective
        How many rows of equal weight it is worth; all of them if not given.
    """

    value: float
    error: float
    rows: int
    note: str = ""
    effective: float = math.nan

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The confidence interval for the mean reward: Student's, with as many degrees of freedom as rows are worth."""
        check_within("level", level, "(0, 1)", "0.95 is the default")
        if math.isnan(self.error):
            why = self.note or "its error does not follow from one log"
            raise CalibrlError(
                f"this estimate has no honest interval: {why}; use doubly_robust, or repeat it on several logs"
            )
        worth = self.rows if math.isnan(self.effective) else self.effective
        reach = float(student.ppf((1 + level) / 2, max(worth - 1, 1))) * self.error
        return self.value - reach, self.value + reach


def replay_evaluation(policy: Policy, log: Log, *, seed: int = 0) -> Estimate:
    """Estimate what a policy earns while it learns (Li et al., 2011), from rows where it would do as the log did.

    Logged rows are first thinned so that every arm is as likely, by keeping a row with probability
    (smallest propensity) / (its propensity); of those, the policy sees the ones it agrees with, and learns them.

    Parameters
    ----------
    policy
        A fresh policy; it is changed.
    log
        Decisions in which every arm on offer could be taken.
    seed
        Of the thinning.

    Returns
    -------
    Estimate
        Without an interval: an error from one replay would be far too small (docs/bandits.md).
    """
    among = _offers(policy, log)
    if not _has_room(policy.arms, log):
        raise CalibrlError(f"{_room(policy.arms, log)}: replay needs a log in which every arm could be taken; {_CURE}")
    least = int(log.propensity.argmin())
    keep = np.random.default_rng(seed).random(len(log)) < log.propensity[least] / log.propensity
    earned = []
    for t in np.flatnonzero(keep).tolist():
        if policy.choose(_features(policy, log, t, among[t]), among=among[t]) == log.arm[t]:
            policy.update(log.taken(t), log.arm[t], log.reward[t])
            earned.append(log.reward[t])
    thinned = (
        f"replay keeps {keep.sum()} of {len(log)} rows, because log row {log.first + least} has propensity "
        f"{log.propensity[least]:.3g} and all others are thinned to it"
    )
    if len(earned) < 2:
        raise CalibrlError(
            f"{thinned}; the policy would have done the same in {len(earned)}, and an estimate needs 2: check that "
            "propensity, or log more decisions"
        )
    # Which way it learnt is one of many: rows of one replay do not tell how far another would be off.
    return Estimate(float(np.mean(earned)), math.nan, len(earned), thinned if keep.mean() < THIN else "")


def ips(target: Target, log: Log) -> Estimate:
    """Estimate what a policy would earn as it stands by inverse propensities: the mean of w r.

    Parameters
    ----------
    target
        A policy, which is not changed, or its probabilities (n, k) in each row of the log, columns as `log.arms`.
    log
        Decisions that the policy has not learnt from.

    Returns
    -------
    Estimate
    """
    rows = _Rows(target, log)
    return rows.by_weight(log.reward)


def snips(target: Target, log: Log) -> Estimate:
    """Estimate what a policy would earn as it stands by self-normalised inverse propensities; arguments as of `ips`."""
    rows = _Rows(target, log)
    mean = rows.weight.mean()
    value = float((rows.weight * log.reward).mean() / mean)
    return rows.by_weight(log.reward - value, mean, value)


def direct_method(target: Target, log: Log, *, folds: int = FOLDS, ridge: float = 1.0) -> Estimate:
    """Estimate what a policy would earn as it stands by a reward model alone; without an interval.

    Parameters
    ----------
    target, log
        As of `ips`.
    folds, ridge
        As of `doubly_robust`.

    Returns
    -------
    Estimate
    """
    rows = _Rows(target, log, folds=folds, ridge=ridge)
    return Estimate(float(rows.direct.mean()), math.nan, len(log), rows.note, rows.effective)


def doubly_robust(target: Target, log: Log, *, folds: int = FOLDS, ridge: float = 1.0) -> Estimate:
    """Estimate what a policy would earn as it stands (Dudík et al., 2011), from every row of a log.

    Each row says Σ_a π(a|x) q(x, a) + π(a_t|x) / propensity · (r_t - q(x, a_t)). It is right on average if either the
    propensities or the reward model q is right; q is a ridge regression per arm, fitted on the other folds, so
    that no row helps to predict itself. The weights π / propensity average to 1 if the log could have taken every
    arm that the policy takes; if they do not, nothing in the log says what those arms pay, and it is refused.
    Arms that the policy does not have are ones it never takes.

    Parameters
    ----------
    target
        A policy, which is not changed, or its probabilities (n, k) in each row of the log, columns as `log.arms`.
    log
        Decisions that the policy has not learnt from.
    folds
        Of the reward model, 2 or more.
    ridge
        The prior's strength of the reward model, in rows.

    Returns
    -------
    Estimate
    """
    rows = _Rows(target, log, folds=folds, ridge=ridge)
    off = log.reward - rows.fitted
    return rows.estimate(rows.direct + rows.weight * off, off)


def switch_dr(
    target: Target, log: Log, *, most: float | None = None, folds: int = FOLDS, ridge: float = 1.0
) -> Estimate:
    """Estimate as `doubly_robust` does, but trust the reward model alone in rows of large weight (Wang et al., 2017).

    Parameters
    ----------
    most
        The largest weight that counts; by default 3 % of all weights together. What rows beyond it would have added
        is part of the error, which is never less than that of `doubly_robust`.
    target, log, folds, ridge
        As of `doubly_robust`.

    Returns
    -------
    Estimate
    """
    rows = _Rows(target, log, folds=folds, ridge=ridge)
    # A limit that looked at rewards would choose whichever bias hides best.
    kept = rows.weight <= (UNEVEN * rows.weight.sum() if most is None else most)
    off = log.reward - rows.fitted
    robust = rows.estimate(rows.direct + rows.weight * off, off)
    left_out = float(np.where(kept, 0.0, rows.weight * off).mean())
    # What is left out is known only as well as by the doubly robust estimate, which holds it.
    return replace(robust, value=robust.value - left_out, error=math.hypot(robust.error, left_out))


@dataclass(frozen=True)
class Diagnostics:
    """How far a log can tell what a policy would earn.

    Parameters
    ----------
    rows, effective
        Rows of the log, and how many rows of equal weight they are worth to this policy: (Σ w)² / Σ w².
    mean_weight, largest_share
        The mean of the weights, 1 if the log could do all that the policy does; and the largest one's share of all.
    unsupported
        The share of the policy's decisions that go to arms the log never took.
    propensities
        For each arm of the log the mean of 1 / propensity over rows that took it, per row that could, and its standard
        error: 1 if propensities are right.
    """

    rows: int
    effective: float
    mean_weight: float
    largest_share: float
    unsupported: float
    propensities: dict[Arm, tuple[float, float]]

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is wrong with the log for this policy, in words; empty if nothing is."""
        found = []
        if self.effective < FEW:
            found.append(f"the log is worth only {self.effective:.0f} rows to this policy")
        for arm, (mean, error) in self.propensities.items():
            if abs(mean - 1) > 0.02 + 4 * error:
                found.append(f"propensities of arm {arm!r} are off: 1 / propensity averages {mean:.3g} instead of 1")
        return tuple(found)


FEW = 30
"""Rows that an interval rests on by the central limit theorem."""


def diagnose(target: Target, log: Log) -> Diagnostics:
    """Say how far a log can tell what a policy would earn.

    Parameters
    ----------
    target, log
        As in `ips`.

    Returns
    -------
    Diagnostics
        Rows, what they weigh, and how often each arm was taken against how often the log says it should have been.
    """
    rows = _Rows(target, log, support=False)
    seen = set(log.arm)
    taken = np.array([log.arms.index(arm) for arm in log.arm])
    propensities = {}
    for a, arm in enumerate(log.arms):
        could = np.array([names is None or arm in names for names in log.among])
        if arm in seen:
            each = ((taken == a) / log.propensity)[could]
            propensities[arm] = float(each.mean()), float(each.std() / len(each) ** 0.5)
    unseen = sum(part for arm, part in zip(rows.arms, rows.share.tolist(), strict=True) if arm not in seen)
    weight = rows.weight
    total = float(weight.sum())
    largest = float(weight.max()) / total if total else math.nan
    return Diagnostics(len(log), rows.effective, float(weight.mean()), largest, float(unseen), propensities)


class _Rows:
    """What every row of a log says of a target: weight, direct and fitted, (n,) each, and share (k,) of the arms."""

    def __init__(self, target: Target, log: Log, *, folds: int = 0, ridge: float = 1.0, support: bool = True) -> None:
        if folds and (folds < 2 or len(log) < folds):
            raise CalibrlError(f"{len(log)} rows do not make {folds} folds to judge by; log more decisions")
        if not 0 < ridge < np.inf:
            raise CalibrlError(f"ridge {ridge} leaves the reward model singular; use a number above 0, such as 1")
        given = None if isinstance(target, Policy) else _probabilities(target, log)
        self.arms = target.arms if isinstance(target, Policy) else log.arms
        among = _offers(target, log) if isinstance(target, Policy) else []
        place = {arm: position for position, arm in enumerate(self.arms)}
        taken = np.array([place.get(arm, -1) for arm in log.arm])
        n, k = len(log), len(self.arms)
        theta = self._models(log, taken, folds, ridge) if folds else None
        self.share, self.weight = np.zeros(k), np.empty(n)
        self.direct, self.fitted = np.empty(n), np.empty(n)
        # Block by block: chances and forecasts of every row and arm would not fit into memory.
        for rows in np.split(np.arange(n), range(BLOCK, n, BLOCK)):
            if given is None:
                assert isinstance(target, Policy)
                chance = np.stack([_asked(target, log, t, among[t]) for t in rows.tolist()])
            else:
                chance = given[rows]
            self.share += chance.sum(0) / n
            at = np.arange(len(rows)), taken[rows]
            self.weight[rows] = np.where(taken[rows] >= 0, chance[at], 0.0) / log.propensity[rows]
            if theta is not None:
                expected = self._expected(log, rows, theta)
                self.direct[rows], self.fitted[rows] = (chance * expected).sum(1), expected[at]
        total = float((self.weight**2).sum())
        self.effective = float(self.weight.sum()) ** 2 / total if total else 0.0
        if support:
            _check_support(self.arms, log, self.share, self.weight)
        self.note = self._note(log)
        self.room = float((1 / (log.propensity * _offered(self.arms, log))).max())

    def _models(self, log: Log, taken: NDArray[np.int64], folds: int, ridge: float) -> Floats:
        if log.x.ndim == 2:
            x = np.concatenate([log.x, np.ones((len(log), 1))], 1)
            return _cross_fitted(x, taken, log.reward, len(self.arms), folds=folds, ridge=ridge)
        x = np.stack([np.append(log.taken(t), 1.0) for t in range(len(log))])
        return _cross_fitted(x, np.zeros(len(log), np.int64), log.reward, 1, folds=folds, ridge=ridge)

    def _expected(self, log: Log, rows: NDArray[np.int64], theta: Floats) -> Floats:
        """What each arm is expected to pay in these rows (n,), by coefficients (folds, k, d): (n, k)."""
        found = np.zeros((len(rows), len(self.arms)))
        known = [arm for arm in log.names if arm in self.arms]
        place, column = ([names.index(arm) for arm in known] for names in (self.arms, log.names))
        for fold, model in enumerate(theta):
            own = rows % len(theta) == fold
            x = log.x[rows[own]]
            if x.ndim == 2:
                found[own] = x @ model[:, :-1].T + model[:, -1]
            else:
                found[np.ix_(own, place)] = x[:, column] @ model[0, :-1] + model[0, -1]
        return found

    def _note(self, log: Log) -> str:
        notes = []
        heavy = int(self.weight.argmax())
        if self.weight[heavy] > self.weight.sum() / 2:
            notes.append(
                f"log row {log.first + heavy}, of propensity {log.propensity[heavy]:.3g}, has "
                f"{self.weight[heavy] / self.weight.sum():.0%} of the weight, so the interval cannot be relied on: "
                "check that propensity"
            )
        elif self.effective < FEW:
            notes.append(f"the log is worth only {self.effective:.0f} rows to this policy, too few for its interval")
        if not _has_room(self.arms, log):
            notes.append(f"{_room(self.arms, log)}: only policies that act much like the logged one can be judged")
        return "; ".join(notes)

    def estimate(self, values: Floats, off: Floats) -> Estimate:
        """The mean of what rows say; off (n,): what their weights multiply, here or in other logs.

        Where weights are uneven, most of the error is in rows that a log has once or not yet: the row that is farthest
        off might have come twice, and where weights average less than 1, rows of large weight have not come.
        """
        made = _estimate(values, note=self.note)
        farthest = np.abs(values - made.value).max() / len(values)
        lacking = max(1 - float(self.weight.mean()), 0.0) * float(np.average(off**2, weights=self.weight)) ** 0.5
        # Not left out where few rows have weight: it would be in the logs that have shown how far off they may be.
        error = math.hypot(made.error, farthest, LACKING * lacking)
        return replace(made, error=error, effective=self.effective)

    def by_weight(self, off: Floats, scale: float = 1.0, value: float = 0.0) -> Estimate:
        """The mean of what rows say, with an interval only where no weight can be large, seen or not."""
        made = self.estimate(value + self.weight * off / scale, off)
        if self.room <= BOUNDED:
            return made
        why = "propensities are too uneven for an interval by weights alone: use doubly robust"
        return replace(made, error=math.nan, note="; ".join(filter(None, (made.note, why))))


def _probabilities(target: Array, log: Log) -> Floats:
    """A target given as probabilities (n, k), checked."""
    given = as_floats(target, "target's probabilities")
    wanted = (len(log), len(log.arms))
    if given.shape != wanted:
        raise CalibrlError(
            f"the target's probabilities have shape {given.shape}; expected {wanted}: a row per decision, "
            f"a column for each of {', '.join(map(repr, log.arms[:8]))}"
        )
    wrong = ~((given >= 0).all(1) & (np.abs(given.sum(1) - 1) < 1e-6))
    if wrong.any():
        row = int(wrong.argmax())
        raise CalibrlError(
            f"log row {log.first + row} has target probabilities {given[row].tolist()}; expected numbers "
            "from 0 to 1 with sum 1"
        )
    return given


def _features(policy: Policy, log: Log, row: int, among: Sequence[Arm] | None) -> Floats:
    """What a policy is asked about in a row of a log."""
    return log.features(row, policy.arms if among is None else among)


def _asked(policy: Policy, log: Log, row: int, among: Sequence[Arm] | None) -> Floats:
    """A policy's probabilities (k,) in a row of a log."""
    return np.array([*policy.probabilities(_features(policy, log, row, among), among=among).values()])


ESTIMATORS: dict[str, Callable[[Target, Log], Estimate]] = {
    "inverse propensities": ips,
    "self-normalised": snips,
    "direct method": direct_method,
    "doubly robust": doubly_robust,
    "switch": switch_dr,
}
"""Every estimate of a policy as it stands, by what it is called in tables."""


def target_of(log: Log, path: str | Path, prefix: str) -> Floats:
    """A target's probabilities (n, k) from the columns of a log's file that begin with `prefix` and end with an arm."""
    frame = log_table(path)
    for arm in log.arms:
        if f"{prefix}{arm}" not in frame.columns:
            raise CalibrlError(f"{path} has no column '{prefix}{arm}', the target's probability of arm {arm!r}; add it")
    return np.stack([frame[f"{prefix}{arm}"].cast(float).to_numpy() for arm in log.arms], 1)


def mean_reward(log: Log) -> Estimate:
    """Estimate what the logging policy itself earned: the mean reward of a log."""
    return _estimate(log.reward)


def learn_from(policy: Policy, log: Log) -> Policy:
    """Learn every row of the log in order, each judged before it is learnt; returns the policy."""
    for row, (arm, reward) in enumerate(zip(log.arm, log.reward, strict=True)):
        policy.update(log.taken(row), arm, reward)
    return policy


def _cross_fitted(
    x: Floats, taken: NDArray[np.int64], reward: Floats, arms: int, *, folds: int, ridge: float
) -> Floats:
    """Coefficients (folds, k, d) of a ridge regression on each arm's rows (n, d) of the other folds."""
    prior = ridge * np.eye(x.shape[1])
    theta = np.empty((folds, arms, x.shape[1]))
    for a in range(arms):
        rows = np.flatnonzero(taken == a)
        for k in range(folds):
            others = rows[rows % folds != k]
            seen = x[others]
            theta[k, a] = np.linalg.solve(prior + seen.T @ seen, seen.T @ reward[others])
    return theta


def _offers(policy: Policy, log: Log) -> list[tuple[Arm, ...] | None]:
    """The arms that the policy can choose from in each row of the log, None for all; or why it cannot be judged."""
    if policy.model.shared != (log.x.ndim == 3):
        have, needs = ("features of each arm", "contexts") if log.x.ndim == 3 else ("contexts", "features of each arm")
        raise CalibrlError(
            f"the log has {have} and the policy needs {needs}; log what the policy is to be asked about, or build it "
            f"with shared={log.x.ndim == 3}"
        )
    wanted = policy.model.row_shape
    if wanted is not None and log.x.shape[-1:] != wanted:
        raise CalibrlError(f"the log has {log.x.shape[-1]} context columns, the policy expects {wanted[0]}")
    known = policy.offer.position
    if not any(arm in known for arm in log.arm):
        raise CalibrlError(
            f"the log took arm {log.arm[0]!r} and the policy offers {policy.arms[0]!r}, and they have none in common; "
            "name arms alike in both, numbers as numbers and text as text"
        )
    among = [None if names is None else tuple(name for name in names if name in known) for names in log.among]
    if () in among:
        raise CalibrlError(
            f"log row {log.first + among.index(())} could take none of the policy's arms, so it has nothing to decide "
            "there; drop that row"
        )
    return among


def _check_support(arms: Sequence[Arm], log: Log, share: Floats, weight: Floats) -> None:
    """Refuse to judge what the log says nothing about. share (k,): how often the policy takes each arm."""
    seen = set(log.arm)
    unseen = {arm: part for arm, part in zip(arms, share.tolist(), strict=True) if arm not in seen}
    if sum(unseen.values()) > UNSEEN:
        most = max(unseen, key=lambda arm: unseen[arm])
        raise CalibrlError(
            f"the policy takes arm {most!r} in {unseen[most]:.1%} of its decisions ({sum(unseen.values()):.1%} with "
            f"other such arms), and the log never took it, so nobody knows what it pays; remove_arm it before judging, "
            "or log decisions that try it"
        )
    if not _near(weight):
        raise CalibrlError(
            f"the weights of the policy's decisions average {weight.mean():.3g} instead of 1, and "
            f"{_room(arms, log)}: the log does not show what this policy's decisions pay; {_CURE}"
        )


_CURE = (
    "check that propensities are those of the arms taken, list the arms on offer (among) where not all were, and log "
    "with a policy that takes any arm now and then, such as CalibratedUCB(arms, dim, explore=0.1)"
)


def _has_room(arms: Sequence[Arm], log: Log) -> bool:
    """Whether the log could take every arm that was on offer."""
    # Given x, 1 / propensity is on average the number of arms that had any chance.
    return _near(1 / (log.propensity * _offered(arms, log)))


def _room(arms: Sequence[Arm], log: Log) -> str:
    mean, count = np.mean(1 / log.propensity), _offered(arms, log).mean()
    return f"the mean of 1 / propensity, the number of arms that could be taken, is {mean:.3g} for {count:.4g} arms"


def _offered(arms: Sequence[Arm], log: Log) -> Floats:
    """How many arms each row could take (n,): those listed, or all that anyone knows of."""
    return log.offered(len({*log.arms, *arms}))


def _near(values: Floats) -> bool:
    """Whether the mean may be 1: within the tolerance and three standard errors."""
    error = values.std() / len(values) ** 0.5
    return bool(abs(values.mean() - 1) <= UNSUPPORTED + 3 * error)


def _estimate(values: Floats, *, note: str = "") -> Estimate:
    if len(values) < 2:
        raise CalibrlError(
            f"{len(values)} rows of the log can be used; an estimate needs at least 2: log more decisions"
        )
    return Estimate(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5), len(values), note)

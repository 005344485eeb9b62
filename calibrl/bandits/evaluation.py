"""What a policy would have earned, estimated from a log of another policy's decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from calibrl.bandits.arms import Arm
from calibrl.bandits.logs import Log
from calibrl.bandits.policy import Policy
from calibrl.errors import CalibrlError

Floats = NDArray[np.float64]

FOLDS = 5
UNSUPPORTED = 0.1
"""How much of what a policy does may be without support in the log, beyond what chance explains."""
UNSEEN = 0.01
"""How much of it may be arms the log never took."""
THIN = 0.1
"""A replay that keeps less of the log says so."""


@dataclass(frozen=True)
class Estimate:
    """Mean reward per decision, its standard error, how many logged rows it rests on, and what to know about it."""

    value: float
    error: float
    rows: int
    note: str = ""

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The confidence interval for the mean reward, by the central limit theorem."""
        if not 0 < level < 1:
            raise CalibrlError(f"level {level} is not between 0 and 1; 0.95 is the default")
        reach = float(ndtri((1 + level) / 2)) * self.error
        return self.value - reach, self.value + reach


def replay(policy: Policy, log: Log, *, seed: int = 0) -> Estimate:
    """What the policy earns while it learns (Li et al., 2011): rows where it would have done as the log did.

    Logged rows are first thinned so that every arm is as likely, by keeping a row with probability
    (smallest propensity) / (its propensity); of those, the policy sees the ones it agrees with, and learns them.
    The policy is changed.
    """
    among = _offers(policy, log)
    if not _has_room(policy, log):
        raise CalibrlError(f"{_room(policy, log)}: replay needs a log in which every arm could be taken; {_CURE}")
    least = int(log.propensity.argmin())
    keep = np.random.default_rng(seed).random(len(log)) < log.propensity[least] / log.propensity
    earned = []
    for t in np.flatnonzero(keep).tolist():
        if policy.choose(log.x[t], among=among[t]) == log.arm[t]:
            policy.update(log.x[t], log.arm[t], log.reward[t])
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
    return _estimate(np.array(earned), note=thinned if keep.mean() < THIN else "")


def doubly_robust(policy: Policy, log: Log, *, folds: int = FOLDS, ridge: float = 1.0) -> Estimate:
    """What the policy would earn as it stands (Dudík et al., 2011), from every row of the log.

    Each row says Σ_a π(a|x) q(x, a) + π(a_t|x) / propensity · (r_t - q(x, a_t)). It is right on average if either the
    propensities or the reward model q is right; q is a ridge regression per arm, fitted on the other folds, so
    that no row helps to predict itself. The weights π / propensity average to 1 if the log could have taken every
    arm that the policy takes; if they do not, nothing in the log says what those arms pay, and it is refused.
    Arms that the policy does not have are ones it never takes.
    """
    among = _offers(policy, log)
    if folds < 2 or len(log) < folds:
        raise CalibrlError(f"{len(log)} rows do not make {folds} folds to judge by; log more decisions")
    if not 0 < ridge < np.inf:
        raise CalibrlError(f"ridge {ridge} leaves the reward model singular; use a number above 0, such as 1")
    arms = len(policy.arms)
    taken = np.array([policy.offer.position.get(arm, -1) for arm in log.arm])
    x = np.concatenate([log.x, np.ones((len(log), 1))], 1)
    theta = _cross_fitted(x, taken, log.reward, arms, folds=folds, ridge=ridge)
    share, weight, values = np.zeros(arms), np.empty(len(log)), np.empty(len(log))
    # Row by row: chances and forecasts of every row and arm would not fit into memory.
    for t, a in enumerate(taken):
        chance = np.fromiter(policy.probabilities(log.x[t], among=among[t]).values(), np.float64)
        expected = theta[t % folds] @ x[t]
        share += chance / len(log)
        weight[t] = chance[a] / log.propensity[t] if a >= 0 else 0.0
        values[t] = chance @ expected + weight[t] * (log.reward[t] - expected[a])
    _check_support(policy, log, share, weight)
    notes = []
    heavy = int(weight.argmax())
    if weight[heavy] > weight.sum() / 2:
        notes.append(
            f"log row {log.first + heavy}, of propensity {log.propensity[heavy]:.3g}, has "
            f"{weight[heavy] / weight.sum():.0%} of the weight, so the interval cannot be relied on: check that "
            "propensity"
        )
    if not _has_room(policy, log):
        notes.append(f"{_room(policy, log)}: only policies that act much like the logged one can be judged")
    return _estimate(values, note="; ".join(notes))


def mean_reward(log: Log) -> Estimate:
    """What the logging policy itself earned."""
    return _estimate(log.reward)


def learn_from(policy: Policy, log: Log) -> Policy:
    """Learn every row of the log in order, each judged before it is learnt; returns the policy."""
    for x, arm, reward in zip(log.x, log.arm, log.reward, strict=True):
        policy.update(x, arm, reward)
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
    if policy.options.shared:
        raise CalibrlError("a policy of shared arm features cannot be judged from a log of contexts; use disjoint arms")
    if log.x.shape[1] != policy.options.dim:
        raise CalibrlError(f"the log has {log.x.shape[1]} context columns, the policy expects {policy.options.dim}")
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


def _check_support(policy: Policy, log: Log, share: Floats, weight: Floats) -> None:
    """Refuse to judge what the log says nothing about. share (k,): how often the policy takes each arm."""
    seen = set(log.arm)
    unseen = {arm: part for arm, part in zip(policy.arms, share.tolist(), strict=True) if arm not in seen}
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
            f"{_room(policy, log)}: the log does not show what this policy's decisions pay; {_CURE}"
        )


_CURE = (
    "check that propensities are those of the arms taken, list the arms on offer (among) where not all were, and log "
    "with a policy that takes any arm now and then, such as CalLinUCB(arms, dim, explore=0.1)"
)


def _has_room(policy: Policy, log: Log) -> bool:
    """Whether the log could take every arm that was on offer."""
    # Given x, 1 / propensity is on average the number of arms that had any chance.
    return _near(1 / (log.propensity * _offered(policy, log)))


def _room(policy: Policy, log: Log) -> str:
    mean, arms = np.mean(1 / log.propensity), _offered(policy, log).mean()
    return f"the mean of 1 / propensity, the number of arms that could be taken, is {mean:.3g} for {arms:.4g} arms"


def _offered(policy: Policy, log: Log) -> Floats:
    """How many arms each row could take (n,): those listed, or all that anyone knows of."""
    return log.offered(len({*log.arms, *policy.arms}))


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

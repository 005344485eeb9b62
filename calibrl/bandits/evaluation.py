"""What a policy would have earned, judged from decisions another policy took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from calibrl.bandits.logs import Log
from calibrl.bandits.policy import Policy
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.forecasters.linear import RidgeArms

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Mean reward per decision, its standard error, and how many logged rows it rests on."""

    value: float
    error: float
    rows: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The confidence interval for the mean reward, by the central limit theorem."""
        reach = float(ndtri((1 + level) / 2)) * self.error
        return self.value - reach, self.value + reach


def replay(policy: Policy, log: Log, *, seed: int = 0) -> Estimate:
    """What the policy earns while it learns (Li et al., 2011): rows where it would have done as the log did.

    Logged rows are first thinned so that every arm is as likely, by keeping a row with probability
    (smallest propensity) / (its propensity); of those, the policy sees the ones it agrees with, and learns them.
    The policy is changed.
    """
    _check(policy, log)
    keep = np.random.default_rng(seed).random(len(log)) < log.propensity.min() / log.propensity
    earned = []
    for t in np.flatnonzero(keep):
        if policy.choose(log.x[t]) == log.arm[t]:
            policy.update(log.x[t], log.arm[t], log.reward[t])
            earned.append(log.reward[t])
    return _estimate(np.array(earned))


def doubly_robust(policy: Policy, log: Log, *, folds: int = 5, ridge: float = 1.0) -> Estimate:
    """What the policy would earn as it stands (Dudík et al., 2011), from every row of the log.

    Each row says Σ_a π(a|x) q(x, a) + π(a_t|x) / propensity · (r_t - q(x, a_t)). It is right on average if either the
    propensities or the reward model q is right; q is a ridge regression per arm, fitted on the other folds, so
    that no row helps to predict itself.
    """
    _check(policy, log)
    if folds < 2 or len(log) < folds:
        raise CalibrlError(f"{len(log)} rows do not make {folds} folds; use at least 2 folds and a row for each")
    position = {arm: a for a, arm in enumerate(policy.arms)}
    taken = np.array([position[arm] for arm in log.arm])
    chance = np.array([list(policy.probabilities(x).values()) for x in log.x])
    expected = _cross_fitted(log, taken, len(position), folds=folds, ridge=ridge)
    row = np.arange(len(log))
    weight = chance[row, taken] / log.propensity
    return _estimate((chance * expected).sum(1) + weight * (log.reward - expected[row, taken]))


def mean_reward(log: Log) -> Estimate:
    """What the logging policy itself earned."""
    return _estimate(log.reward)


def learn_from(policy: Policy, log: Log) -> Policy:
    """Learn every row of the log in order, each judged before it is learnt; returns the policy."""
    for x, arm, reward in zip(log.x, log.arm, log.reward, strict=True):
        policy.update(x, arm, reward)
    return policy


def _cross_fitted(log: Log, taken: NDArray[np.int64], arms: int, *, folds: int, ridge: float) -> Floats:
    """Expected rewards (n, k), each from rows of other folds."""
    x = torch.from_numpy(np.concatenate([log.x, np.ones((len(log), 1))], 1))
    y = torch.full((len(log), arms), torch.nan, dtype=torch.float64)
    y[torch.arange(len(log)), torch.from_numpy(taken)] = torch.from_numpy(log.reward)
    fold = torch.arange(len(log)) % folds
    expected = torch.empty_like(y)
    for k in range(folds):
        model = RidgeArms(arms, x.shape[1], ridge=ridge)
        model.update(Data(x[fold != k], y[fold != k]))
        expected[fold == k] = model(x[fold == k]).mean
    return expected.numpy()


def _check(policy: Policy, log: Log) -> None:
    if policy.options.shared:
        raise CalibrlError("a policy of shared arm features cannot be judged from a log of contexts; use disjoint arms")
    if log.x.shape[1] != policy.options.dim:
        raise CalibrlError(f"the log has {log.x.shape[1]} context columns, the policy expects {policy.options.dim}")
    unknown = set(log.arm) - set(policy.arms)
    if unknown:
        raise CalibrlError(f"the log has arm {min(map(repr, unknown))}, which the policy does not offer; add it first")


def _estimate(values: Floats) -> Estimate:
    if len(values) < 2:
        raise CalibrlError(
            f"{len(values)} rows of the log can be used; an estimate needs at least 2: log more decisions"
        )
    return Estimate(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5), len(values))

"""What a policy would have earned, estimated from a log of another policy's decisions."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from calibrl.arrays import as_tensor
from calibrl.bandits.arms import Arm
from calibrl.bandits.policy import Policy
from calibrl.errors import CalibrlError
from calibrl.tables import read_table

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Log:
    """Logged decisions, oldest first.

    Parameters
    ----------
    x
        Contexts (n, d).
    arm
        The names of the n arms that were taken.
    reward
        What they paid, (n,).
    propensity
        The probability in (0, 1] with which each was taken, (n,).
    first
        The number of the first row, in the log that this is a part of.
    among
        For each decision the names of the arms it could take, or None for all; empty if every decision could take all.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrl.bandits import LinUCB
    >>> from calibrl.bandits.evaluation import Log, doubly_robust
    >>> generator = np.random.default_rng(0)
    >>> x, arm = generator.standard_normal((1000, 2)), generator.integers(2, size=1000)
    >>> log = Log(x, arm, np.where(arm == 0, x[:, 0], x[:, 1]), np.full(1000, 0.5))
    >>> found = doubly_robust(LinUCB(2, 2), log)  # it knows nothing yet, and takes any arm
    >>> low, high = found.interval()
    >>> bool(low < 0 < high)
    True
    """

    x: Floats
    arm: tuple[Arm, ...]
    reward: Floats
    propensity: Floats
    first: int = 1
    among: Sequence[Collection[Arm] | None] = ()

    def __post_init__(self) -> None:
        for name in ("x", "reward", "propensity"):
            object.__setattr__(self, name, as_tensor(getattr(self, name), name).double().numpy())
        object.__setattr__(self, "arm", tuple(np.asarray(self.arm, object).tolist()))
        n = len(self.arm)
        if self.x.ndim != 2 or len(self.x) != n or self.reward.shape != (n,) or self.propensity.shape != (n,) or not n:
            raise CalibrlError(
                f"contexts {self.x.shape}, {n} arms, rewards {self.reward.shape} and propensities "
                f"{self.propensity.shape} make no log; expected (n, d), n, (n,) and (n,), n ≥ 1"
            )
        for name, values in (("context", self.x), ("reward", self.reward), ("propensity", self.propensity)):
            broken = ~np.isfinite(values).reshape(n, -1).all(1)
            if broken.any():
                raise CalibrlError(
                    f"log row {self.first + int(broken.argmax())} has no {name}; drop or repair that row"
                )
        outside = (self.propensity <= 0) | (self.propensity > 1)
        if outside.any():
            row = int(outside.argmax())
            raise CalibrlError(
                f"log row {self.first + row} has propensity {self.propensity[row]:g}; expected the probability in "
                "(0, 1] with which the logged arm was taken"
            )
        lists = tuple(self.among) or (None,) * n
        if len(lists) != n:
            raise CalibrlError(f"among has {len(lists)} rows and the log {n}; give names, or None, for each")
        object.__setattr__(self, "among", tuple(map(self._on_offer, range(n), self.arm, lists)))

    def _on_offer(self, row: int, taken: Arm, names: Any) -> tuple[Arm, ...] | None:
        """The arms that a decision could take, as plain names, None for all."""
        if names is None:
            return None
        plain = names.tolist() if isinstance(names, np.ndarray) else names
        if isinstance(plain, str) or not isinstance(plain, Collection) or not all(map(_is_name, plain)):
            raise CalibrlError(
                f"log row {self.first + row} has {names!r} for the arms it could take; use a list of names, in a CSV "
                'file as JSON: ["news", "music"]'
            )
        if taken not in plain:
            raise CalibrlError(
                f"log row {self.first + row} took arm {taken!r}, which is not among those it could take, "
                f"{list(plain)}; repair or drop that row"
            )
        return tuple(plain)

    def __len__(self) -> int:
        return len(self.arm)

    def __getitem__(self, rows: slice) -> Log:
        if not isinstance(rows, slice):
            raise CalibrlError(f"log[{rows!r}] is no part of a log; give a range of rows, such as log[:500]")
        first = self.first + rows.indices(len(self))[0]
        return Log(self.x[rows], self.arm[rows], self.reward[rows], self.propensity[rows], first, self.among[rows])

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that were taken or could be, in order."""
        known = set(self.arm).union(*{names for names in self.among if names is not None})
        return tuple(sorted(known, key=lambda arm: (isinstance(arm, str), arm)))

    def offered(self, arms: int) -> Floats:
        """How many arms each decision could choose from (n,), where all are `arms`."""
        return np.array([arms if names is None else len(names) for names in self.among], np.float64)


def read_log(
    path: str | Path,
    *,
    context: Sequence[str] | None = None,
    arm: str = "arm",
    reward: str = "reward",
    propensity: str | None = "propensity",
    uniform: bool = False,
    among: str = "among",
    id: str = "id",
) -> Log:
    """Read a log from a CSV or Parquet file with a column each for arm, reward and propensity.

    Parameters
    ----------
    path
        The file.
    context
        The columns of the context; all others if not named.
    arm, reward, propensity
        The columns of the arm, its reward, and the probability with which it was taken.
    uniform
        Every arm was as likely, whatever the column of propensities says, if there is one; so with propensity None.
    among
        The column, if there is one, of the arms that each decision could choose from: lists, or their JSON in a CSV
        file, and nothing for all arms.
    id
        The column, if there is one, of the decisions' ids. Of rows with the same id the last counts.

    Returns
    -------
    Log
    """
    frame = read_table(path)
    if id in frame.columns and id not in (context or ()):
        frame = frame.filter(frame[id].is_null() | frame[id].is_last_distinct()).drop(id)
    if propensity is None:
        propensity, uniform = "propensity", True
    roles = {arm: "arm", reward: "reward", propensity: "propensity", among: "list of arms on offer"}
    columns = list(context) if context else [name for name in frame.columns if name not in roles]
    named = [arm, reward] if uniform else [arm, reward, propensity]
    for name in [*named, *columns]:
        if name not in frame.columns:
            raise CalibrlError(f"{path} has no column {name!r}; it has {', '.join(frame.columns)}")
    for name in columns:
        if name in roles:
            raise CalibrlError(f"{path}: column {name!r} is the {roles[name]} and no context; name other columns")
    if not columns:
        raise CalibrlError(f"{path} has no context columns beside {', '.join(named)}; add the features as columns")
    leave = "encode it as numbers, or leave it out by naming the columns of the context (--context)"
    x = np.stack([_numbers(frame[name], path, leave) for name in columns], 1)
    if not context:
        _check_no_clock(x, columns, path)
    names = _names(frame[arm], path)
    log = Log(
        x,
        names,
        _numbers(frame[reward], path),
        np.ones(len(names)) if uniform else _numbers(frame[propensity], path),
        among=[_decoded(cell) for cell in frame[among].to_list()] if among in frame.columns else (),
    )
    return replace(log, propensity=1 / log.offered(len(log.arms))) if uniform else log


def _names(column: Any, path: str | Path) -> tuple[Arm, ...]:
    names = tuple(column.to_list())
    for row, name in enumerate(names, start=1):
        if not _is_name(name):
            what = "no arm" if name is None else f"arm {name!r}"
            raise CalibrlError(f"{path}: log row {row} has {what} in column {column.name!r}; use whole numbers or text")
    return names


def _is_name(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _decoded(cell: Any) -> Any:
    """A list of arms from a table's cell; text that is no JSON stays as it is."""
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except ValueError:
        return cell


def _check_no_clock(x: Floats, columns: Sequence[str], path: str | Path) -> None:
    """Refuse a column that only ever goes up, unless it was asked for: it tells rows apart, not visitors."""
    for name, values in zip(columns, x.T, strict=True):
        steps = np.diff(values)
        if (steps >= 0).all() and np.count_nonzero(steps) >= 10:
            others = [f"--context {other}" for other in columns if other != name] or ["--context …"]
            raise CalibrlError(
                f"{path}: column {name!r} only goes up, like a time or a row's number; name the columns of the "
                f"context, without it or with it: {' '.join(others[:8])}"
            )


def _numbers(column: Any, path: str | Path, cure: str = "expected numbers") -> Floats:
    if not column.dtype.is_numeric() and str(column.dtype) != "Boolean":
        what = "text" if str(column.dtype) == "String" else f"{column.dtype}"
        raise CalibrlError(f"{path}: column {column.name!r} holds {what}; {cure}")
    return np.array(column.cast(float).to_numpy(), np.float64)


FOLDS = 5
UNSUPPORTED = 0.1
"""How much of what a policy does may be without support in the log, beyond what chance explains."""
UNSEEN = 0.01
"""How much of it may be arms the log never took."""
THIN = 0.1
"""A replay that keeps less of the log says so."""


@dataclass(frozen=True)
class Estimate:
    """What a policy earns, estimated.

    Parameters
    ----------
    value, error
        The mean reward per decision, and its standard error.
    rows
        How many logged rows it rests on.
    note
        What to know about it.
    """

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
    """Estimate what a policy would earn as it stands (Dudík et al., 2011), from every row of a log.

    Each row says Σ_a π(a|x) q(x, a) + π(a_t|x) / propensity · (r_t - q(x, a_t)). It is right on average if either the
    propensities or the reward model q is right; q is a ridge regression per arm, fitted on the other folds, so
    that no row helps to predict itself. The weights π / propensity average to 1 if the log could have taken every
    arm that the policy takes; if they do not, nothing in the log says what those arms pay, and it is refused.
    Arms that the policy does not have are ones it never takes.

    Parameters
    ----------
    policy
        It is not changed.
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
    """Estimate what the logging policy itself earned: the mean reward of a log."""
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
    if policy.model.shared:
        raise CalibrlError("a policy of shared arm features cannot be judged from a log of contexts; use disjoint arms")
    wanted = policy.model.row_shape
    if wanted is not None and log.x.shape[1:] != wanted:
        raise CalibrlError(f"the log has {log.x.shape[1]} context columns, the policy expects {wanted[0]}")
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

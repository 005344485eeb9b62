"""What one policy has learnt, taken over by another with other settings, more columns or other arms."""

from __future__ import annotations

import numpy as np

from calibrl.bandits.policy import Policy
from calibrl.errors import CalibrlError


def inherit(policy: Policy, other: Policy) -> None:
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

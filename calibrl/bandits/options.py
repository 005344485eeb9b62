"""What a policy is, apart from what it has learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrl.bandits.plan import Plan, plain_fields
from calibrl.errors import CalibrlError
from calibrl.kernels import ridge_evidence
from calibrl.kernels.ridge_policy import Rules


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
    plan: Plan
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
        edge = ridge_evidence.edges(self.window)
        return Rules(float(self.ridge), self.noisy, least, edge, float(self.plan.level), float(self.step))

"""Contextual bandits: decide under uncertainty, learn from what the chosen arm paid."""

from calibrl.bandits.arms import Among, Arm
from calibrl.bandits.durable import Durable
from calibrl.bandits.ecdf import Ecdf, fit_ecdf
from calibrl.bandits.journal import NotKept
from calibrl.bandits.options import Options
from calibrl.bandits.plan import Plan
from calibrl.bandits.policies import (
    POLICIES,
    CalLinUCB,
    CalThompson,
    ConformalLinUCB,
    EpsilonGreedy,
    Greedy,
    LinUCB,
    Thompson,
)
from calibrl.bandits.policy import Decision, Policy

__all__ = [
    "POLICIES",
    "Among",
    "Arm",
    "CalLinUCB",
    "CalThompson",
    "ConformalLinUCB",
    "Decision",
    "Durable",
    "Ecdf",
    "EpsilonGreedy",
    "Greedy",
    "LinUCB",
    "NotKept",
    "Options",
    "Plan",
    "Policy",
    "Thompson",
    "fit_ecdf",
]

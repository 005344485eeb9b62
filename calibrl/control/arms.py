"""The arms of the experiment: what an agent trains on, and what its map R is fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrl.errors import CalibrlError


@dataclass(frozen=True)
class Arm:
    """One way to use the rows of experience.

    evidence: which rows R is fitted on. "none": R is the identity. "held-out": rows that picked their side once, on
    arrival, and that the networks never see; newer ones weigh more. "re-split": the same share, but every row
    draws its side anew after every trial, as the paper's released code does. "fresh": each trial's rows, judged
    before they are trained on.
    holds_out: whether the networks go without the held-out rows. map: a map by name, if not the preset's. wary: whether
    forecasts are widened as much as new trajectories lay further out than the held-out rows had promised.
    """

    name: str
    evidence: str
    holds_out: bool
    map: str | None = None
    wary: bool = False


ARMS = {
    arm.name: arm
    for arm in (
        Arm("calibrated", "held-out", holds_out=True),
        Arm("uncalibrated", "none", holds_out=True),
        Arm("uncalibrated-all", "none", holds_out=False),
        Arm("calibrated-paper", "re-split", holds_out=True, map="sigmoid"),
        Arm("calibrated-fresh", "fresh", holds_out=False),
        Arm("calibrated-wary", "held-out", holds_out=True, wary=True),
    )
}


def arm(name: str) -> Arm:
    """The arm of that name, or an error that lists the known ones."""
    if name not in ARMS:
        raise CalibrlError(f"arm {name!r} is unknown; use one of {', '.join(ARMS)}")
    return ARMS[name]


@dataclass(frozen=True)
class Member:
    """One agent of a fleet: its arm and its seed. Arms of one seed share all luck."""

    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """As files and messages call it."""
        return f"{self.arm.name}-{self.seed}"


def fleets(arms: Sequence[str], seeds: Sequence[int]) -> list[list[Member]]:
    """Agents grouped so that those of a group have equally many training rows and can share a batch."""
    chosen = [arm(name) for name in dict.fromkeys(arms)]
    groups = ([one for one in chosen if one.holds_out], [one for one in chosen if not one.holds_out])
    return [[Member(one, seed) for seed in seeds for one in group] for group in groups if group]

"""Decisions by id, each with its context, until its reward comes: late rewards join, repeats do not count twice."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple, Self, TypeAlias

from calibrl.bandits.arms import Arm
from calibrl.errors import CalibrlError

Context: TypeAlias = list[float] | dict[str, float | str]
"""A context as it is kept: numbers, or a dict of numbers and text."""
MOST = 10_000
"""How many decisions wait for a reward, and how many ids are remembered after it came; the oldest are dropped."""


class _Taken(NamedTuple):
    arm: Arm
    probability: float


class Decision(_Taken):
    """The arm taken and the probability with which it was: what an off-policy evaluation needs in the log.

    A pair, `arm, probability = policy.decide(x)`, that also has an id.

    Parameters
    ----------
    arm
        Its name.
    probability
        In (0, 1].
    id
        By which its reward will be reported, None if it will come with its context and arm.
    """

    id: str | None

    def __new__(cls, arm: Arm, probability: float, id: str | None = None) -> Self:
        """A pair with an id."""
        made = super().__new__(cls, arm, probability)
        made.id = id
        return made


class Waiting(NamedTuple):
    """A decision that waits for its reward: the context, or the features of the arm taken, as it was given."""

    x: Context
    arm: Arm
    probability: float


class Decisions:
    """Decisions that wait for a reward, and the ids of those that have had it."""

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.done: dict[str, None] = {}

    def new_id(self, wanted: str | bool) -> str:
        """The id wanted, or one made up for True; or an error that says why it cannot be used."""
        if wanted is True:
            return uuid.uuid4().hex
        if not isinstance(wanted, str) or not wanted:
            raise CalibrlError(f"id {wanted!r} is not an id; use text, such as the request's number, or True for one")
        if wanted in self.done:
            raise CalibrlError(f"decision {wanted!r} has had its reward; use another id for another decision")
        return wanted

    def add(self, id: str, x: Context, arm: Arm, probability: float) -> Decision:
        """Have a decision wait."""
        _put(self.waiting, id, Waiting(x, arm, probability))
        return Decision(arm, probability, id)

    def find(self, id: str) -> Waiting | None:
        """The decision that waits under this id, None if it has had its reward; or an error."""
        if isinstance(id, str) and id in self.done:
            return None
        try:
            return self.waiting[id]
        except (KeyError, TypeError):
            raise CalibrlError(
                f"decision {id!r} is unknown: it was never made with this id, or is older than the last {MOST}; report "
                "its reward with its context and arm, through update"
            ) from None

    def close(self, id: str) -> None:
        """A decision's reward has come."""
        del self.waiting[id]
        _put(self.done, id, None)

    def to_plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"waiting": {id: list(one) for id, one in list(self.waiting.items())}, "done": list(self.done)}

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> Decisions:
        """What `to_plain` described."""
        made = cls()
        made.waiting = {id: Waiting(*one) for id, one in saved["waiting"].items()}
        made.done = dict.fromkeys(saved["done"])
        return made


def _put(kept: dict[str, Any], id: str, value: Any) -> None:
    kept[id] = value
    if len(kept) > MOST:
        del kept[next(iter(kept))]

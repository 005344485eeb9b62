"""The arms a policy has, by name: which there are, which are gone, and which a decision may take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrl.arrays import Array
from calibrl.errors import CalibrlError

Ints = NDArray[np.int64]
Arm: TypeAlias = str | int
"""What an arm is called: an article's id, a treatment's name, a class number."""
Among: TypeAlias = Iterable[Arm] | Array
"""The arms a decision may take: their names, or a mask, True or False for every arm."""

REMEMBERED = 10_000
"""How many names of removed arms are kept, so that a year of them does not fill the memory."""


@dataclass(frozen=True)
class Arms:
    """The arms on offer, each at its position, and those removed last, in that order."""

    names: tuple[Arm, ...] = ()
    removed: tuple[Arm, ...] = ()

    @cached_property
    def position(self) -> dict[Arm, int]:
        """Where each arm is."""
        return {name: position for position, name in enumerate(self.names)}

    @cached_property
    def everyone(self) -> Ints:
        """The positions of all arms."""
        return np.arange(len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def plus(self, new: Sequence[Arm]) -> Arms:
        """With more arms at the end."""
        back = set(new)
        return Arms((*self.names, *new), tuple(name for name in self.removed if name not in back))

    def minus(self, gone: Arm) -> Arms:
        """Without an arm; those behind it move up."""
        names = tuple(name for name in self.names if name != gone)
        return Arms(names, (*self.removed, gone)[-REMEMBERED:])

    def at(self, arm: Any) -> int:
        """The position of an arm, or an error that says why it has none."""
        try:
            return self.position[arm]
        except (KeyError, TypeError):
            gone = isinstance(arm, (str, int, np.integer)) and arm in self.removed
            why = "was removed: leave it out" if gone else "was never offered: add it with add_arm"
            shown = ", ".join(map(repr, self.names[:8])) + (" …" if len(self) > 8 else "")
            raise CalibrlError(f"arm {arm!r} {why}; arms on offer: {shown}") from None

    def offered(self, among: Among) -> Ints:
        """The positions (n,) of the arms that a decision may take: in the order of names, or of all arms for a mask."""
        if isinstance(among, str) or not np.iterable(among):
            raise CalibrlError(f"among {among!r} is not a list; pass names such as ['news', 'music'], or a mask")
        values = among.tolist() if hasattr(among, "tolist") else list(among)
        if values and all(isinstance(value, (bool, np.bool_)) for value in values):
            if len(values) != len(self):
                raise CalibrlError(f"among is a mask of {len(values)} for {len(self)} arms; pass a value for each")
            found = np.flatnonzero(values)
        else:
            found = np.array([self.at(name) for name in values], np.int64)
        if not len(found):
            raise CalibrlError("among leaves no arm to take; pass at least one, or do not ask for a decision")
        once, times = np.unique(found, return_counts=True)
        if len(once) < len(found):
            raise CalibrlError(f"among has arm {self.names[once[times.argmax()]]!r} twice; name each arm once")
        # A set has another order in every process: the same seed would take other arms.
        return once if isinstance(among, Set) else found

    def check_new(self, arms: Sequence[Arm]) -> list[Arm]:
        """Names that can be added, as plain strings and integers, or an error that says what is wrong."""
        if isinstance(arms, str):
            raise CalibrlError(f"arms {arms!r} is a word and no list; pass [{arms!r}]")
        for name in arms:
            if isinstance(name, bool) or not isinstance(name, (str, int, np.integer)):
                raise CalibrlError(f"arm {name!r} is not a name; use strings or integers")
        plain: list[Arm] = [str(name) if isinstance(name, str) else int(name) for name in arms]
        taken = set(self.names)
        for name in plain:
            if name in taken:
                raise CalibrlError(f"arm {name!r} is there already; arms need different names")
            taken.add(name)
        return plain

    def check_leaving(self, arm: Arm) -> Arm:
        """The name of an arm that can be removed, as it was added, or an error that says what is wrong."""
        name = self.names[self.at(arm)]
        if len(self) == 1:
            raise CalibrlError(f"arm {name!r} is the last one; a policy needs at least one arm")
        return name


def first_names(arms: int | Iterable[Arm]) -> list[Arm]:
    """The names of a new policy's arms: those given, or 0, 1, 2 … for a number of them."""
    # A word would be taken for the names of its letters.
    if isinstance(arms, (bool, str)) or not (isinstance(arms, (int, np.integer)) or np.iterable(arms)):
        raise CalibrlError(
            f"arms {arms!r} is neither a number of arms nor a list of names; pass 2 or ['news', 'music']"
        )
    names: list[Arm] = list(range(arms) if isinstance(arms, (int, np.integer)) else arms)
    if not names:
        raise CalibrlError("a policy needs at least one arm; pass a number of arms or their names")
    return names

"""Actions that are choices (`Discrete`, `MultiDiscrete`, `MultiBinary`), as numbers for models and planners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError


@dataclass(frozen=True)
class Choices:
    """Actions that are choices: of each of k kinds, one thing of n₁, of n₂ and so on.

    Models and planners take 1 for each thing chosen and 0 for the rest, (a,), a = n₁ + n₂ + ….

    Parameters
    ----------
    sizes, first : tuple of int
        n₁, n₂, …, and the number of each kind's first thing.
    single : bool
        Whether the environment takes one number, not an array of k.
    """

    sizes: tuple[int, ...]
    first: tuple[int, ...]
    single: bool

    def encode(self, action: Any) -> NDArray[np.float32]:
        """What an environment takes, (…, k) or for one kind (…), as numbers for a model: (…, a)."""
        given = np.asarray(action)[..., None] if self.single else np.asarray(action)
        places = given - np.array(self.first)
        inside = given.dtype.kind in "iub" and given.shape[-1:] == (len(self.sizes),)
        if not inside or bool(((places < 0) | (places >= np.array(self.sizes))).any()):
            raise CalibrlError(f"action {np.asarray(action).tolist()} is none of the choices, {self.sizes} by kind")
        parts = [np.eye(n, dtype=np.float32)[places[..., k]] for k, n in enumerate(self.sizes)]
        return np.concatenate(parts, -1)

    def decode(self, numbers: NDArray[Any]) -> Any:
        """What the environment takes, of numbers (a,): the largest of each kind is chosen."""
        parts = np.split(numbers, np.cumsum(self.sizes)[:-1])
        found = np.array([int(part.argmax()) + first for part, first in zip(parts, self.first, strict=True)])
        return found[0] if self.single else found


class ChoiceEnvironment:
    """An environment of choices that takes them as numbers: see `Choices`. What its owner gives it, it takes, too."""

    def __init__(self, env: Any, choices: Choices) -> None:
        from gymnasium.spaces import Box

        self.env, self.choices = env, choices
        self.action_space = Box(0.0, 1.0, (sum(choices.sizes),), np.float32)

    def __getattr__(self, name: str) -> Any:
        if name in ("env", "__deepcopy__", "__getstate__", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        """Gymnasium's step."""
        numbers = np.shape(action) == self.action_space.shape and np.asarray(action).dtype.kind == "f"
        return self.env.step(self.choices.decode(np.asarray(action)) if numbers else action)


def choices_of(name: str, space: Any) -> Choices | None:
    """What there is to choose; None where actions are numbers."""
    from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

    if isinstance(space, Discrete):
        found = Choices((int(space.n),), (int(space.start),), single=True)
    elif isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        found = Choices(tuple(map(int, space.nvec)), tuple(map(int, space.start)), single=False)
    elif isinstance(space, MultiBinary) and len(space.shape) == 1:
        found = Choices((2,) * space.shape[0], (0,) * space.shape[0], single=False)
    else:
        return None
    if min(found.sizes) < 2:
        raise CalibrlError(
            f"environment {name!r} leaves one action no choice ({space}); leave it out, and set it inside"
        )
    return found

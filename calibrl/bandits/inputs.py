"""What callers hand to a policy, made plain, or an error that says what to pass."""

from __future__ import annotations

import reprlib

import numpy as np
import torch
from numpy.typing import NDArray

from calibrl.arrays import Array
from calibrl.errors import CalibrlError

Floats = NDArray[np.float64]


def generator_of(seed: int) -> np.random.Generator:
    """The generator of a policy's random choices."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise CalibrlError(f"seed {seed!r} is not a seed; use a whole number, 0 or more") from None


def floats(value: Array, what: str) -> Floats:
    """Numbers as float64, laid out as the kernels want them."""
    # Features may come from a network that is being trained, on a GPU, in half precision.
    given = value.detach().double().cpu() if isinstance(value, torch.Tensor) else value
    try:
        return np.asarray(given, np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        shown = " ".join(reprlib.repr(given).split())
        raise CalibrlError(f"{what} {shown} is not made of numbers; pass an array of numbers") from None


def check_finite(values: Floats, what: str) -> None:
    """Refuse NaN and infinity."""
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise CalibrlError(f"a {what} holds {wrong}; repair or drop that row: nothing was learnt from the call")

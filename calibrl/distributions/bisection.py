"""Bisection over the floating-point numbers themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SIGN = torch.iinfo(torch.int64).min
"""The bits of a float64 of which only the sign is set."""


@torch.no_grad()
def least(reached: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The least float64 from low to high that `reached` holds of, and high if it holds of none. All of one shape.

    What is halved is how many numbers lie between, not their distance: 64 steps end at the last digit of numbers of any
    size, and at zero itself.
    """
    before, after = _place(low) - 1, _place(high)
    while bool((before + 1 < after).any()):
        middle = (before >> 1) + (after >> 1) + (before & after & 1)
        enough = reached(_number(middle))
        before, after = torch.where(enough, before, middle), torch.where(enough, middle, after)
    return _number(after)


def _place(number: Tensor) -> Tensor:
    """Where a float64 stands among all of them: neighbours differ by one, and zero is 0."""
    bits = number.view(torch.int64)
    return torch.where(bits < 0, _SIGN - bits, bits)


def _number(place: Tensor) -> Tensor:
    """The float64 that stands there."""
    return torch.where(place < 0, _SIGN - place, place).view(torch.float64)

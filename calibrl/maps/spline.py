"""Maps through many points: a monotone spline in z with straight tails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from calibrl.maps.base import Map, pick, rank

_NO_KNOTS = torch.tensor([-1.0, 1.0], dtype=torch.float64)
_UNIT_SLOPES = torch.ones(2, dtype=torch.float64)


class _Bin(NamedTuple):
    """The spline piece each value falls in; every field has the values' shape."""

    z: Tensor
    s: Tensor
    width: Tensor
    height: Tensor
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Spline(Map):
    """A monotone rational-quadratic spline through (z_k, s_k) with slopes d_k, straight beyond its ends.

    One formula gives value, inverse and slope exactly (Gregory & Delbourgo, 1982), the density it implies
    is continuous, and beyond the evidence the base forecast's own tail goes on, shifted and stretched:
    a straight line in z.

    Parameters
    ----------
    z, s : Tensor (*columns, k)
        Knots, strictly ascending: z-scores before and after.
    d : Tensor (*columns, k)
        Slopes at the knots, positive.
    """

    kind: ClassVar[str] = "spline"
    STRICT: ClassVar[tuple[str, ...]] = ("z", "s")
    POSITIVE: ClassVar[tuple[str, ...]] = ("d",)
    LIKE: ClassVar[tuple[str, ...]] = ("z", "s", "d")
    AXES: ClassVar[int] = 1
    z: Tensor = _NO_KNOTS
    s: Tensor = _NO_KNOTS
    d: Tensor = _UNIT_SLOPES

    def check(self) -> None:
        """Raise a ValueError for knots that no fit gives."""
        super().check()
        if self.z.shape[-1] < 2:
            raise ValueError("it has one knot, and needs two")

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(self.z.shape[:-1])

    @property
    def breaks(self) -> Tensor:
        return self.s.movedim(-1, 0)

    def _forward(self, z: Tensor) -> Tensor:
        piece = self._bin(z, self.z)
        inside = z.clamp(self.z[..., 0], self.z[..., -1])
        t = ((inside - piece.z) / piece.width).clamp(0, 1)
        chord = piece.height / piece.width
        bend = t * (1 - t)
        numerator = piece.height * (chord * t.square() + piece.left * bend)
        s = piece.s + numerator / (chord + (piece.left + piece.right - 2 * chord) * bend)
        return s + self._beyond(z, self.z, self.d)

    def _inverse(self, z: Tensor) -> Tensor:
        piece = self._bin(z, self.s)
        inside = z.clamp(self.s[..., 0], self.s[..., -1])
        rise = inside - piece.s
        chord = piece.height / piece.width
        bend = rise * (piece.left + piece.right - 2 * chord)
        a = piece.height * (chord - piece.left) + bend
        b = piece.height * piece.left - bend
        c = -chord * rise
        # The root of a t² + b t + c in the form that does not cancel. The discriminant is ≥ 0 on a
        # monotone piece; rounding may leave it a hair below.
        root = torch.sqrt((b.square() - 4 * a * c).clamp(min=0))
        t = (2 * c / (-b - root)).clamp(0, 1)
        return piece.z + t * piece.width + self._beyond(z, self.s, 1 / self.d)

    def _log_slope(self, z: Tensor) -> Tensor:
        piece = self._bin(z, self.z)
        t = ((z.clamp(self.z[..., 0], self.z[..., -1]) - piece.z) / piece.width).clamp(0, 1)
        chord = piece.height / piece.width
        bend = t * (1 - t)
        numerator = piece.right * t.square() + 2 * chord * bend + piece.left * (1 - t).square()
        denominator = chord + (piece.left + piece.right - 2 * chord) * bend
        return 2 * torch.log(chord) + torch.log(numerator) - 2 * torch.log(denominator)

    def _bin(self, value: Tensor, knots: Tensor) -> _Bin:
        """The piece of the spline whose `knots` enclose each value; ends serve the tails."""
        index = rank(knots, value.detach()).sub_(1).clamp_(0, knots.shape[-1] - 2)
        z, s, left = pick(self.z, index), pick(self.s, index), pick(self.d, index)
        after = index + 1
        return _Bin(z, s, pick(self.z, after) - z, pick(self.s, after) - s, left, pick(self.d, after))

    @staticmethod
    def _beyond(value: Tensor, knots: Tensor, slope: Tensor) -> Tensor:
        """The straight tails: how far a value lies outside the knots, times the end's slope."""
        # Not clamp: on an end itself its slope would count beside the spline's own.
        low = (knots[..., 0] - value).relu() * slope[..., 0]
        high = (value - knots[..., -1]).relu() * slope[..., -1]
        return high - low


# Making one from what was fitted.

Knots = tuple[Tensor, Tensor, Tensor]
"""z, s and slopes of one column's spline, (k,) each."""


def stacked(found: list[Knots], shape: tuple[int, ...]) -> Spline:
    """One spline for all columns, each with its own knots. shape: of the columns, () or (d,)."""
    most = max(len(knots[0]) for knots in found)
    padded = [_pad(knots, most) for knots in found]
    z, s, d = (torch.stack([knots[i] for knots in padded]) if shape else padded[0][i] for i in range(3))
    return Spline(z=z, s=s, d=d)


def with_tails(knots: Knots, low: float, high: float) -> Knots:
    """The knots that rise, their ends going on straight: a forecast's own tails, stretched by `low` and `high`."""
    if len(knots[0]) == 0:
        return no_knots()
    z, s, slope = rising(knots, gap=1e-9 * max(1.0, low, high))
    if len(z) == 1:
        return torch.cat([z, z + high]), torch.cat([s, s + 1]), torch.full((2,), 1 / high, dtype=torch.float64)
    slope = slope.clamp(1e-9, 1e9)
    slope[0], slope[-1] = 1 / low, 1 / high
    return z, s, slope


def rising(knots: Knots, *, gap: float) -> Knots:
    """The knots that rise above the one before: by more than a gap in z, and in s."""
    z, s, slope = knots
    if bool(((z.diff() > gap) & (s.diff() > 1e-9)).all()):
        return knots
    keep: list[int] = [0]
    at, height = z.tolist(), s.tolist()
    for i in range(1, len(at)):
        if at[i] - at[keep[-1]] > gap and height[i] - height[keep[-1]] > 1e-9:
            keep.append(i)
    return z[keep], s[keep], slope[keep]


def no_knots() -> Knots:
    """The identity's."""
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    return ends, ends, torch.ones_like(ends)


def _pad(knots: Knots, most: int) -> Knots:
    """More knots along the upper tail, so that columns stack; the map stays the same."""
    z, s, slope = knots
    further = torch.arange(1, most - len(z) + 1, dtype=torch.float64)
    end = slope[-1]
    return torch.cat([z, z[-1] + further]), torch.cat([s, s[-1] + end * further]), torch.cat([slope, end + 0 * further])

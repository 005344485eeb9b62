"""Maps of a few parameters (the identity, affine in z, Platt, beta, the paper's released sigmoid), and two in a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.kernels import normal
from calibrl.maps.base import Map

_ZERO, _ONE = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Identity(Map):
    """R(p) = p: the forecast is left as it is."""

    kind: ClassVar[str] = "identity"

    def _forward(self, z: Tensor) -> Tensor:
        return z

    def _inverse(self, z: Tensor) -> Tensor:
        return z

    def _log_slope(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)


@dataclass(frozen=True, eq=False)
class Affine(Map):
    """R(p) = Φ((Φ⁻¹(p) - shift) / scale): exactly right when a Gaussian's mean and width are off.

    Parameters
    ----------
    shift, scale : Tensor (*columns,)
        In z; scale above 0.
    """

    kind: ClassVar[str] = "affine"
    POSITIVE: ClassVar[tuple[str, ...]] = ("scale",)
    LIKE: ClassVar[tuple[str, ...]] = ("shift", "scale")
    shift: Tensor = _ZERO
    scale: Tensor = _ONE

    def _forward(self, z: Tensor) -> Tensor:
        return (z - self.shift) / self.scale

    def _inverse(self, z: Tensor) -> Tensor:
        return self.shift + self.scale * z

    def _log_slope(self, z: Tensor) -> Tensor:
        return -torch.log(self.scale).expand_as(z)


@dataclass(frozen=True, eq=False)
class Platt(Map):
    """R(p) = sigmoid(a · logit p + b): Platt scaling; a = 1, b = 0 is the identity.

    Parameters
    ----------
    a, b : Tensor (*columns,)
        Slope, above 0, and shift in logits.
    """

    kind: ClassVar[str] = "platt"
    POSITIVE: ClassVar[tuple[str, ...]] = ("a",)
    LIKE: ClassVar[tuple[str, ...]] = ("a", "b")
    a: Tensor = _ONE
    b: Tensor = _ZERO

    def _forward(self, z: Tensor) -> Tensor:
        return normal.z_of_logit(self.a * normal.logit_of(z) + self.b)

    def _inverse(self, z: Tensor) -> Tensor:
        return normal.z_of_logit((normal.logit_of(z) - self.b) / self.a)

    def _log_slope(self, z: Tensor) -> Tensor:
        return torch.log(self.a) + _log_logit_slope(z) - _log_logit_slope(self._forward(z))


@dataclass(frozen=True, eq=False)
class Beta(Map):
    """R(p) = sigmoid(a · log p - b · log(1 - p) + c): beta calibration (Kull et al., 2017).

    Bends the two tails separately; a = b = 1, c = 0 is the identity.

    Parameters
    ----------
    a, b, c : Tensor (*columns,)
        Slopes of the lower and of the upper tail, above 0, and shift.
    """

    kind: ClassVar[str] = "beta"
    POSITIVE: ClassVar[tuple[str, ...]] = ("a", "b")
    LIKE: ClassVar[tuple[str, ...]] = ("a", "b", "c")
    a: Tensor = _ONE
    b: Tensor = _ONE
    c: Tensor = _ZERO

    def _logit(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The logit of R(Φ(z)), and its slope in z."""
        log_p, log_q, log_density = torch.special.log_ndtr(z), torch.special.log_ndtr(-z), normal.log_density(z)
        slope = self.a * torch.exp(log_density - log_p) + self.b * torch.exp(log_density - log_q)
        return self.a * log_p - self.b * log_q + self.c, slope

    def _forward(self, z: Tensor) -> Tensor:
        return normal.z_of_logit(self._logit(z)[0])

    def _inverse(self, z: Tensor) -> Tensor:
        # The logit is within |a - b| log 2 of a Platt map's, of slope a below 0 and b above, and log Φ(-r) < -r²/2:
        # that says how far out the root can lie. Newton's method finds it in a few steps; where it would leave what is
        # left of that range, the range is halved. The last step carries the gradient.
        target = normal.logit_of(z)
        with torch.no_grad():
            least = torch.minimum(self.a, self.b)
            apart = (self.a - self.b).abs() * math.log(2)
            reach = torch.sqrt(2 * (target.abs() + self.c.abs() + apart + 1) / least) + 1
            low, high, root = -reach, reach, z
            for _ in range(60):
                value, slope = self._logit(root)
                below = value < target
                low, high = torch.where(below, root, low), torch.where(below, high, root)
                step = root + (target - value) / slope
                step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
                far = (step - root).abs() > 1e-7 * (1 + root.abs())  # the last step squares what is missing
                root = step
                if not bool(far.any()):
                    break
            slope = self._logit(root)[1]
        return root + (target - self._logit(root)[0]) / slope

    def _log_slope(self, z: Tensor) -> Tensor:
        logit, slope = self._logit(z)
        return torch.log(slope) - _log_logit_slope(normal.z_of_logit(logit))


@dataclass(frozen=True, eq=False)
class Sigmoid(Map):
    """R(p) = sigmoid(a · p + b), as the paper's released code has it. For replication only.

    It cannot be the identity and does not reach 0 or 1: fitted to a perfect Gaussian it gives samples 1.9
    times too wide, one in seven of them stuck at ±4.75 σ, where its inverse is clipped.

    Parameters
    ----------
    a, b : Tensor (*columns,)
        Slope, above 0, and shift.
    """

    kind: ClassVar[str] = "sigmoid"
    POSITIVE: ClassVar[tuple[str, ...]] = ("a",)
    LIKE: ClassVar[tuple[str, ...]] = ("a", "b")
    CLIP: ClassVar[float] = 1e-6

    a: Tensor = 4 * _ONE
    b: Tensor = -2 * _ONE

    @property
    def breaks(self) -> Tensor:
        return normal.z_of_logit(torch.stack([self.a * self.CLIP + self.b, self.a * (1 - self.CLIP) + self.b]))

    def _forward(self, z: Tensor) -> Tensor:
        return normal.z_of_logit(self.a * normal.cdf(z) + self.b)

    def _inverse(self, z: Tensor) -> Tensor:
        p = (normal.logit_of(z) - self.b) / self.a
        return normal.quantile(p.clamp(self.CLIP, 1 - self.CLIP))

    def _log_slope(self, z: Tensor) -> Tensor:
        return torch.log(self.a) + normal.log_density(z) - _log_logit_slope(self._forward(z))


def _log_logit_slope(z: Tensor) -> Tensor:
    """Log of d logit(Φ(z)) / dz."""
    return normal.log_density(z) - torch.special.log_ndtr(z) - torch.special.log_ndtr(-z)


IDENTITY = Identity()
"""The map that changes nothing."""


@dataclass(frozen=True, eq=False)
class Chain(Map):
    """R(p) = after(before(p)): what `before` left wrong, `after` puts right.

    Parameters
    ----------
    before, after : Map
        Of as many columns, or one of them for all.
    """

    kind: ClassVar[str] = "chain"
    before: Map = IDENTITY
    after: Map = IDENTITY

    def __post_init__(self) -> None:
        if self.before.columns and self.after.columns and self.before.columns != self.after.columns:
            raise CalibrlError(
                f"a map of {self.before.columns[0]} columns cannot be followed by one of {self.after.columns[0]}; "
                "fit both on PITs of one shape, or one of them for all columns"
            )

    @property
    def columns(self) -> tuple[int, ...]:
        return self.before.columns or self.after.columns

    @cached_property
    def dtype(self) -> torch.dtype:
        return self.before.dtype

    @property
    def breaks(self) -> Tensor:
        first, second = (_spread(part.breaks, self.columns) for part in (self.before, self.after))
        return torch.cat([self.after.forward_z(first), second])

    def _forward(self, z: Tensor) -> Tensor:
        return self.after.forward_z(self.before.forward_z(z))

    def _inverse(self, z: Tensor) -> Tensor:
        return self.before.inverse_z(self.after.inverse_z(z))

    def _log_slope(self, z: Tensor) -> Tensor:
        return self.before.log_slope_z(z) + self.after.log_slope_z(self.before.forward_z(z))


def _spread(breaks: Tensor, columns: tuple[int, ...]) -> Tensor:
    """Breaks (k, …) of a map for one column or all, for each of the columns: (k, *columns)."""
    return breaks.reshape(len(breaks), *breaks.shape[1:] or (1,) * len(columns)).expand(-1, *columns)

"""Maps of a few parameters: the identity, affine in z, Platt, beta, and the paper's released sigmoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrl.kernels import normal
from calibrl.maps.base import Map

_ZERO, _ONE = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Identity(Map):
    """R(p) = p: the forecast is left as it is."""

    kind: ClassVar[str] = "identity"

    @property
    def columns(self) -> tuple[int, ...]:
        return ()

    def _forward(self, z: Tensor) -> Tensor:
        return z

    def _inverse(self, z: Tensor) -> Tensor:
        return z

    def _log_slope(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)


@dataclass(frozen=True, eq=False)
class Affine(Map):
    """R(p) = Φ((Φ⁻¹(p) - shift) / scale): exactly right when a Gaussian's mean and width are off.

    shift, scale > 0: (*columns,).
    """

    kind: ClassVar[str] = "affine"
    shift: Tensor = _ZERO
    scale: Tensor = _ONE

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(self.scale.shape)

    def _forward(self, z: Tensor) -> Tensor:
        return (z - self.shift) / self.scale

    def _inverse(self, z: Tensor) -> Tensor:
        return self.shift + self.scale * z

    def _log_slope(self, z: Tensor) -> Tensor:
        return -torch.log(self.scale).expand_as(z)


@dataclass(frozen=True, eq=False)
class Platt(Map):
    """R(p) = sigmoid(a · logit p + b): Platt scaling; a = 1, b = 0 is the identity.

    a > 0, b: (*columns,).
    """

    kind: ClassVar[str] = "platt"
    a: Tensor = _ONE
    b: Tensor = _ZERO

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(self.a.shape)

    def _forward(self, z: Tensor) -> Tensor:
        return normal.z_of_logit(self.a * normal.logit_of(z) + self.b)

    def _inverse(self, z: Tensor) -> Tensor:
        return normal.z_of_logit((normal.logit_of(z) - self.b) / self.a)

    def _log_slope(self, z: Tensor) -> Tensor:
        return torch.log(self.a) + _log_logit_slope(z) - _log_logit_slope(self._forward(z))


@dataclass(frozen=True, eq=False)
class Beta(Map):
    """R(p) = sigmoid(a · log p - b · log(1 - p) + c): beta calibration (Kull et al., 2017).

    Bends the two tails separately; a = b = 1, c = 0 is the identity. a, b > 0, c: (*columns,).
    """

    kind: ClassVar[str] = "beta"
    a: Tensor = _ONE
    b: Tensor = _ONE
    c: Tensor = _ZERO

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(self.a.shape)

    def _logit(self, z: Tensor) -> Tensor:
        return self.a * torch.special.log_ndtr(z) - self.b * torch.special.log_ndtr(-z) + self.c

    def _forward(self, z: Tensor) -> Tensor:
        return normal.z_of_logit(self._logit(z))

    def _inverse(self, z: Tensor) -> Tensor:
        # The root of logit(x) = target lies between those of two Platt maps: bisect, then let one Newton
        # step polish and carry the gradient.
        target = normal.logit_of(z)
        with torch.no_grad():
            least = torch.minimum(self.a, self.b)
            reach = torch.sqrt(2 * (target.abs() + self.c.abs() + 1) / least) + 1
            low, high = -reach, reach
            for _ in range(60):
                middle = (low + high) / 2
                below = self._logit(middle) < target
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            root = (low + high) / 2
            slope = self._logit_slope(root)
        return root + (target - self._logit(root)) / slope

    def _logit_slope(self, z: Tensor) -> Tensor:
        """D logit / dz."""
        lower = torch.exp(normal.log_density(z) - torch.special.log_ndtr(z))
        upper = torch.exp(normal.log_density(z) - torch.special.log_ndtr(-z))
        return self.a * lower + self.b * upper

    def _log_slope(self, z: Tensor) -> Tensor:
        return torch.log(self._logit_slope(z)) - _log_logit_slope(self._forward(z))


@dataclass(frozen=True, eq=False)
class Sigmoid(Map):
    """R(p) = sigmoid(a · p + b), as the paper's released code has it. For replication only.

    It cannot be the identity and does not reach 0 or 1: fitted to a perfect Gaussian it gives samples 1.9
    times too wide, one in seven of them stuck at ±4.75 σ, where its inverse is clipped. a > 0, b: (*columns,).
    """

    kind: ClassVar[str] = "sigmoid"
    CLIP: ClassVar[float] = 1e-6

    a: Tensor = 4 * _ONE
    b: Tensor = -2 * _ONE

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(self.a.shape)

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

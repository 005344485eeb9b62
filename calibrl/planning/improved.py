"""iCEM: the cross-entropy method with coloured noise and remembered elites (Pinneri et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.planning.search import Bounds, Objective, evaluate


@dataclass(frozen=True)
class ImprovedCrossEntropy:
    """Settings of `improved_cross_entropy`, by default the published ones.

    colour: β of the noise, whose power at frequency f is f^-β: 0 is white, larger is smoother in time; published by
    task, from 0.25 (HalfCheetah) to 3.5. shrink: γ, by which each sweep draws fewer plans, never fewer than twice the
    elites. kept: the share of elites that enter the next sweep, and, shifted, the next step's first. spread: the first
    standard deviation, as a share of half the range. inertia: the share that the old mean and spread keep.
    """

    population: int = 120
    elites: int = 10
    sweeps: int = 3
    colour: float = 2.0
    shrink: float = 1.25
    kept: float = 0.3
    spread: float = 0.5
    inertia: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.elites <= self.population:
            raise CalibrlError(f"{self.elites} elites of {self.population} plans cannot be; use 1 … {self.population}")
        if self.sweeps < 1:
            raise CalibrlError(f"sweeps {self.sweeps} is not a number of sweeps; use 1 or more")
        if self.colour < 0 or self.shrink < 1 or self.spread <= 0:
            raise CalibrlError(
                f"colour {self.colour}, shrink {self.shrink} and spread {self.spread} must be at least 0, at least 1 "
                "and above 0"
            )
        if not (0 <= self.kept <= 1 and 0 <= self.inertia < 1):
            raise CalibrlError(f"kept {self.kept} and inertia {self.inertia} are shares; use 0 … 1, inertia below 1")

    @property
    def carried(self) -> int:
        """How many elites are carried over."""
        return int(self.kept * self.elites)

    def drawn(self, sweep: int) -> int:
        """How many new plans a sweep draws, counted from 0."""
        return max(int(self.population * self.shrink**-sweep), 2 * self.elites)


class Improved(NamedTuple):
    """What a search found: the best plan (h, a); for the next step's search the mean (h, a) and elites (k, h, a)."""

    plan: Tensor
    mean: Tensor
    elites: Tensor


def improved_cross_entropy(
    objective: Objective,
    bounds: Bounds,
    *,
    settings: ImprovedCrossEntropy | None = None,
    last: Improved | None = None,
    generator: torch.Generator | None = None,
) -> Improved:
    """The best plan evaluated in the last sweep, and what the next step's search begins from.

    Plans are drawn around the mean with noise that is correlated in time, and cut at the bounds. Elites of a sweep take
    part in the next one; those of `last`, shifted by a step and ended with a new action, in the first. The mean itself
    takes part in the last sweep.
    """
    settings = settings or ImprovedCrossEntropy()
    half = (bounds.high - bounds.low) / 2
    mean = bounds.middle if last is None else torch.cat([last.mean[1:], last.mean[-1:]])
    spread = (settings.spread * half).expand_as(mean)
    colour = colouring(bounds.horizon, settings.colour).to(mean)
    elites = mean.new_zeros(0, *mean.shape)
    for sweep in range(settings.sweeps):
        carried = elites[: settings.carried]
        if sweep == 0 and last is not None:
            carried = last.elites[: settings.carried]
        shape = (settings.drawn(sweep) + (len(carried) if sweep == 0 else 0), *mean.shape)
        white = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        plans = (mean + spread * (colour @ white)).clamp(bounds.low, bounds.high)
        if sweep == 0:
            # An old elite has lost its first step: its last one comes from a plan drawn for it.
            plans, ends = plans.split([settings.drawn(sweep), len(carried)])
            carried = torch.cat([carried[:, 1:], ends[:, -1:]], 1)
        plans = torch.cat([plans, carried, *([mean[None]] if sweep == settings.sweeps - 1 else [])])
        elites = plans[evaluate(objective, plans).topk(settings.elites).indices]
        kept = settings.inertia
        mean = kept * mean + (1 - kept) * elites.mean(0)
        spread = kept * spread + (1 - kept) * elites.std(0, correction=0)
    return Improved(elites[0], mean, elites)


def colouring(horizon: int, colour: float) -> Tensor:
    """The matrix (h, h) that makes white noise (h, …) one whose power at frequency f is f^-colour, of variance 1.

    White noise stands for the real and imaginary parts of the spectrum (Timmer and König, 1995); frequency 0 gets the
    power of the lowest one above it.
    """
    frequency = torch.fft.rfftfreq(horizon, dtype=torch.float64).clamp(min=1 / horizon)
    size = frequency ** (-colour / 2)
    # Frequency 0, and the highest one of an even number of steps, have a real part only, and all of the power in it.
    alone = torch.zeros(len(size), dtype=torch.bool)
    alone[0] = True
    alone[-1] |= horizon % 2 == 0
    real = torch.diag(torch.where(alone, size * math.sqrt(2), size)).to(torch.complex128)
    imaginary = 1j * torch.diag(size).to(torch.complex128)[~alone]
    waves = torch.fft.irfft(torch.cat([real, imaginary]), n=horizon)
    # Every step has the same variance, because sine and cosine of each frequency share its power.
    return (waves / waves.square().sum(0).sqrt()).T.contiguous()

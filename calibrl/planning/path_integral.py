"""MPPI: model predictive path integral control (Williams et al., 2017), a weighted mean of all plans tried."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.planning.search import Bounds, Objective, checked_start, evaluate


@dataclass(frozen=True)
class PathIntegral:
    """Settings of `path_integral`.

    temperature: λ, in units of the objective: of two plans one λ apart the better weighs e times as much. spread:
    the noise's standard deviation, as a share of half the range. control_cost: the share of λ that steering costs, the
    information-theoretic term λ · uᵀΣ⁻¹ε; 0 leaves the objective as it is. sweeps: published 1 for each step.
    """

    population: int = 500
    sweeps: int = 1
    temperature: float = 1.0
    spread: float = 0.5
    control_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.population < 1 or self.sweeps < 1:
            raise CalibrlError(f"population {self.population} and sweeps {self.sweeps} must both be 1 or more")
        if self.temperature <= 0 or self.spread <= 0 or self.control_cost < 0:
            raise CalibrlError(
                f"temperature {self.temperature} and spread {self.spread} must be above 0, control_cost "
                f"{self.control_cost} at least 0"
            )


def path_integral(
    objective: Objective,
    bounds: Bounds,
    *,
    settings: PathIntegral | None = None,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The mean of noisy plans, each weighted by e^{value / λ}: a plan (h, a).

    start: (h, a), the plan to begin from, such as `shifted(last plan, bounds)`; the middle of the bounds if not given.
    Plans are cut at the bounds.
    """
    settings = settings or PathIntegral()
    plan = bounds.middle if start is None else checked_start(start, bounds)
    spread = settings.spread * (bounds.high - bounds.low) / 2
    for _ in range(settings.sweeps):
        shape = (settings.population, *plan.shape)
        noise = torch.randn(shape, generator=generator, dtype=plan.dtype, device=plan.device)
        tried = (plan + spread * noise).clamp(bounds.low, bounds.high)
        value = evaluate(objective, tried) / settings.temperature
        value = value - settings.control_cost * (plan * (tried - plan) / spread.square()).sum((1, 2))
        plan = torch.tensordot(value.softmax(0), tried, 1)
    return plan

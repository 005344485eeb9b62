"""How likely each arm is to be drawn highest: the propensities of Thompson sampling."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributions import Distribution

from calibrl.bandits.plan import Plan
from calibrl.distributions import from_zscore, zscore, zscore_left
from calibrl.kernels import normal

NODES = 256
"""Points of the quadrature: probabilities are right to about 1e-3."""

CHUNK = 4_000_000
"""Numbers held at once."""


def probability_best(forecast: Distribution, plan: Plan) -> NDArray[np.float64]:
    """P(arm a's draw is the highest) for a forecast of batch shape (k,): (k,), summing to 1.

    With draws Q_a(level + spread · ε), that is the mean over ε of the product of P(draw of b ≤ draw of a) over
    the other arms b, taken at evenly spaced probabilities of ε; atoms count half.
    """
    arms = forecast.batch_shape[0]
    epsilon = normal.quantile((torch.arange(NODES, dtype=torch.float64) + 0.5) / NODES)
    level = plan.level + plan.spread * epsilon
    draw = from_zscore(forecast, level[:, None].expand(NODES, arms))
    found = torch.empty(arms, dtype=torch.float64)
    # A few arms at a time: with a thousand of them, all pairs at all nodes would fill the memory.
    for some in torch.arange(arms).split(max(1, CHUNK // (NODES * arms))):
        # (nodes, some, arms): how often each arm's draw stays below this draw of some arm.
        outcome = draw[:, some, None].expand(NODES, len(some), arms)
        low, high = zscore_left(forecast, outcome), zscore(forecast, outcome)
        below = (_spread_cdf(low, plan) + _spread_cdf(high, plan)) / 2
        below[:, torch.arange(len(some)), some] = 1.0
        found[some] = below.prod(-1).mean(0)
    result: NDArray[np.float64] = (found / found.sum()).numpy()
    return result


def _spread_cdf(z: torch.Tensor, plan: Plan) -> torch.Tensor:
    return normal.cdf((z - plan.level) / plan.spread)

"""Days that go together: demand paths with each day's own margin, joined by the ranks of correlated draws."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from calibrl.distributions import Recalibrated
from calibrl.distributions.zscores import from_zscore
from calibrl.inventory.sales import Flags
from calibrl.kernels import normal

Floats = NDArray[np.float64]


def correlation(z: Floats) -> Floats:
    """(d, d): correlation of columns with gaps, pulled towards none by 50 rows' worth of doubt, positive definite."""
    seen = ~np.isnan(z)
    tame = np.where(seen, np.clip(z, -4, 4), 0.0)
    both = seen.T.astype(np.float64) @ seen
    square = tame.T @ tame
    power = (tame**2).T @ seen
    rho = square / np.sqrt(np.maximum(power * power.T, 1e-12)) * both / (both + 50)
    np.fill_diagonal(rho, 1.0)
    value, vector = np.linalg.eigh(rho)
    fixed = (vector * np.maximum(value, 1e-3)) @ vector.T
    scale = np.sqrt(np.diag(fixed))
    return fixed / np.outer(scale, scale)


def ranks(rho: Floats, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count, d): the ranks of `count` joint draws with these correlations, each column a permutation."""
    draws = rng.standard_normal((count, len(rho))) @ np.linalg.cholesky(rho).T
    found: NDArray[np.int64] = draws.argsort(0).argsort(0)
    return found


def paths(forecast: Distribution, rank: NDArray[np.int64], *, new: Flags) -> Floats:
    """(s, m, leads) whole units: each day's m values are its forecast's even quantiles, joined by rank (m, leads).

    new: (s,) items without a record: how well one will sell is unknown for all its days alike, which move as one.
    """
    count, leads = rank.shape
    z = normal.quantile((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None].expand(count, leads)
    if isinstance(forecast, Recalibrated):
        # R is the same for all items: turned round once, not once for each.
        z = forecast.mapping.inverse_z(z)
        forecast = forecast.base
    joined = z.gather(0, torch.from_numpy(rank))
    drawn: Tensor = from_zscore(forecast, joined[:, None, :].expand(count, *forecast.batch_shape))
    found = np.ascontiguousarray(np.maximum(np.rint(drawn.numpy()), 0.0).transpose(1, 0, 2))
    found[new] = np.sort(found[new], 1)[:, rank[:, 0]]
    return found

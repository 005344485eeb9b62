"""Bayesian ridge regression as a forecaster: the model behind LinUCB."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Normal

from calibrl.data import Data
from calibrl.errors import CalibrlError

SMALLEST_SD = 1e-9
"""A forecast without any width would make every outcome impossible."""


class RidgeArms:
    """One ridge regression per arm: the reward of arm a at x is forecast as N(xᵀθ_a, xᵀP_a x + noise²).

    P_a = (ridge · I + Σ x xᵀ)⁻¹ and θ_a = P_a Σ x r over the rows where arm a was pulled: the posterior of a linear
    model with unit noise. Rows have x (n, d) and y (n, k), NaN for the other arms.

    Parameters
    ----------
    arms : int
        k.
    dim : int
        d, the features of a context.
    ridge : float
        Above 0.
    noise : float
        Standard deviation of a reward around its expectation. LinUCB's forecast is of the *expected* reward, so it is
        0; set it to forecast single rewards.
    """

    def __init__(self, arms: int, dim: int, *, ridge: float = 1.0, noise: float = 0.0) -> None:
        _check(arms, dim, ridge, noise)
        self.noise = noise
        self._gram = ridge * torch.eye(dim, dtype=torch.float64).repeat(arms, 1, 1)
        self._moment = torch.zeros(arms, dim, dtype=torch.float64)

    def update(self, data: Data) -> None:
        """Learn rows x (n, d), y (n, k)."""
        x, y = data.x.double(), data.y.double()
        _check_rows(x, y, self._moment.shape)
        seen = (~y.isnan()).double()
        self._gram = self._gram + torch.einsum("na,ni,nj->aij", seen, x, x)
        self._moment = self._moment + torch.einsum("na,ni->ai", y.nan_to_num(0.0), x)

    def __call__(self, x: Tensor) -> Normal:
        """Forecasts of batch shape (n, k) at contexts x (n, d)."""
        x = x.double()
        _check_contexts(x, self._moment.shape[1])
        theta = torch.linalg.solve(self._gram, self._moment)
        solved = torch.linalg.solve(self._gram, x.T.expand(len(self._gram), -1, -1))
        variance = torch.einsum("nd,adn->na", x, solved) + self.noise**2
        return Normal(x @ theta.T, variance.clamp(min=0).sqrt().clamp(min=SMALLEST_SD))


class RidgeShared:
    """One ridge regression for all arms, told apart by their features.

    An arm never pulled is forecast from what arms like it paid. Rows have x (n, k, d), a row of features per arm, and y
    (n, k), NaN for the arms not pulled.

    Parameters
    ----------
    dim : int
        d, the features of an arm.
    ridge : float
        Above 0.
    noise : float
        Standard deviation of a reward around its expectation.
    """

    def __init__(self, dim: int, *, ridge: float = 1.0, noise: float = 0.0) -> None:
        self._one = RidgeArms(1, dim, ridge=ridge, noise=noise)

    def update(self, data: Data) -> None:
        """Learn rows x (n, k, d), y (n, k)."""
        self._one.update(Data(data.x.flatten(0, 1), data.y.reshape(-1, 1)))

    def __call__(self, x: Tensor) -> Normal:
        """Forecasts of batch shape (n, k) at the arms' features x (n, k, d)."""
        flat = self._one(x.flatten(0, 1))
        return Normal(flat.loc.reshape(x.shape[:2]), flat.scale.reshape(x.shape[:2]))


def _check(arms: int, dim: int, ridge: float, noise: float) -> None:
    if arms < 1 or dim < 1:
        raise CalibrlError(f"{arms} arms and {dim} features make no model; use 1 or more of each")
    if not 0 < ridge < float("inf"):
        raise CalibrlError(f"ridge {ridge} leaves the regression singular; use a number above 0, such as 1")
    if not 0 <= noise < float("inf"):
        raise CalibrlError(f"noise {noise} is not a standard deviation; use 0 or more")


def _check_contexts(x: Tensor, dim: int) -> None:
    if x.dim() != 2 or x.shape[1] != dim:
        raise CalibrlError(f"contexts have shape {tuple(x.shape)}; expected (n, {dim})")
    if not bool(x.isfinite().all()):
        raise CalibrlError("a context holds NaN or infinite values; repair or drop that row")


def _check_rows(x: Tensor, y: Tensor, shape: torch.Size) -> None:
    _check_contexts(x, shape[1])
    if y.dim() != 2 or y.shape[1] != shape[0]:
        raise CalibrlError(f"rewards have shape {tuple(y.shape)}; expected (n, {shape[0]}), NaN where not pulled")
    if bool(y.isinf().any()):
        raise CalibrlError("a reward is infinite; repair or drop that row")

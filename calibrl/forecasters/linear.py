"""Linear models that learn from sums over rows: ridge regression, transition counts, and a softmax over features.

Ridge regression is the model behind LinUCB. Of discrete outcomes, a row of x is a state and an action, (n, 2), as
numbers, and y (n,) the number of the outcome: the next state, or which of a few effects the action had; the forecast
is a `Categorical` over the k outcomes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from torch import Tensor
from torch.distributions import Categorical, Normal

from calibrl.arrays import Array, as_rows, as_tensor
from calibrl.data import Data
from calibrl.errors import CalibrlError, check_within

Floats = NDArray[np.float64]

SMALLEST_SD = 1e-9
"""A forecast without any width would make every outcome impossible."""


class RidgeArms:
    """One ridge regression per arm: the reward of arm a at x is forecast as N(xᵀθ_a, xᵀP_a x + noise²).

    P_a = (ridge · I + Σ x xᵀ)⁻¹ and θ_a = P_a Σ x r over the rows where arm a was pulled: the posterior of a linear
    model with unit noise. Rows have x (n, d) and y (n, k), NaN for the other arms.

    Parameters
    ----------
    arms, dim : int
        k, and d, the features of a context.
    ridge : float
        Above 0.
    noise : float
        Standard deviation of a reward around its expectation. LinUCB's forecast is of the *expected* reward, so it is
        0; set it to forecast single rewards.
    """

    def __init__(self, arms: int, dim: int, *, ridge: float = 1.0, noise: float = 0.0) -> None:
        if arms < 1 or dim < 1:
            raise CalibrlError(f"{arms} arms and {dim} features make no model; use 1 or more of each")
        check_within("ridge", ridge, "(0, inf)", "the regression would be singular; 1 is the default")
        self.noise = check_within("noise", noise, "[0, inf)", "it is a standard deviation")
        self._gram = ridge * torch.eye(dim, dtype=torch.float64).repeat(arms, 1, 1)
        self._moment = torch.zeros(arms, dim, dtype=torch.float64)

    def update(self, data: Data) -> None:
        """Learn rows x (n, d), y (n, k)."""
        x, y, arms = self._checked(data.x), data.y.double(), len(self._moment)
        if y.dim() != 2 or y.shape[1] != arms:
            raise CalibrlError(f"rewards have shape {tuple(y.shape)}; expected (n, {arms}), NaN where not pulled")
        if bool(y.isinf().any()):
            raise CalibrlError("a reward is infinite; repair or drop that row")
        seen = (~y.isnan()).double()
        self._gram = self._gram + torch.einsum("na,ni,nj->aij", seen, x, x)
        self._moment = self._moment + torch.einsum("na,ni->ai", y.nan_to_num(0.0), x)

    def __call__(self, x: Tensor) -> Normal:
        """Forecasts of batch shape (n, k) at contexts x (n, d)."""
        x = self._checked(x)
        theta = torch.linalg.solve(self._gram, self._moment)
        solved = torch.linalg.solve(self._gram, x.T.expand(len(self._gram), -1, -1))
        variance = torch.einsum("nd,adn->na", x, solved) + self.noise**2
        return Normal(x @ theta.T, variance.clamp(min=0).sqrt().clamp(min=SMALLEST_SD))

    def _checked(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != (dim := self._moment.shape[1]):
            raise CalibrlError(f"contexts have shape {tuple(x.shape)}; expected (n, {dim})")
        if not bool(x.isfinite().all()):
            raise CalibrlError("a context holds NaN or infinite values; repair or drop that row")
        return x.double()


class RidgeShared:
    """One ridge regression for all arms, told apart by their features.

    An arm never pulled is forecast from what arms like it paid. Rows have x (n, k, d), a row of features per arm, and y
    (n, k), NaN for the arms not pulled.

    Parameters
    ----------
    dim : int
        d, the features of an arm.
    ridge, noise : float
        As in `RidgeArms`.
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


class TabularTransitions:
    """How often each outcome followed each state and action, as `Categorical` forecasts.

    A state and action never seen gets the even forecast. Rows have x (n, 2), the numbers of state and action, and y
    (n,), the number of the outcome.

    Parameters
    ----------
    states, actions, outcomes : int
        How many of each there are.
    prior : float
        Rows imagined beforehand, spread evenly over the outcomes; with 0 the forecast is the bare frequency, which
        after one row is certain of what it saw.
    classes : array, optional
        (S,) whole numbers: states with the same one share their counts.
    """

    def __init__(
        self, states: int, actions: int, outcomes: int, *, prior: float = 1.0, classes: Array | None = None
    ) -> None:
        check_sizes(states, actions, outcomes)
        self.shape = (states, actions, outcomes)
        self.prior = check_within("prior", prior, "[0, inf)", "use 0 for bare frequencies, 1 for one imagined row")
        self.classes = torch.arange(states) if classes is None else check_state_classes(classes, states)
        self.counts = torch.zeros(int(self.classes.max()) + 1, actions, outcomes, dtype=torch.float64)

    def update(self, data: Data) -> None:
        """Count the new rows; missing outcomes (NaN) do not count."""
        state, action = state_action(data.x, self.shape[0], self.shape[1])
        add_counts(self.counts, self.classes[state], action, data.y)

    def __call__(self, x: Array) -> Categorical:
        """The forecast for each row of x (n, 2): batch shape (n,), k outcomes."""
        state, action = state_action(x, self.shape[0], self.shape[1])
        count = self.counts[self.classes[state], action] + self.prior / self.shape[2]
        total = count.sum(-1, keepdim=True)
        even = torch.full_like(count, 1 / self.shape[2])
        return Categorical(probs=torch.where(total > 0, count / total.clamp(min=1e-300), even))


class SoftmaxTransitions:
    """A softmax over features of the state, one set of weights for each action: what a linear model can see.

    Fitted on all rows seen so far; outcomes never seen keep a finite (if small) chance. Rows are those of
    `TabularTransitions`.

    Parameters
    ----------
    features : array
        (S, f), a row for each state.
    actions, outcomes : int
        How many of each there are.
    ridge : float
        Factor of half the squared weights, above 0.
    max_iter : int
        The most steps of Newton's method.
    """

    def __init__(
        self, features: Array, actions: int, outcomes: int, *, ridge: float = 0.01, max_iter: int = 30
    ) -> None:
        given = as_tensor(features, "features").double()
        if given.dim() != 2 or not bool(given.isfinite().all()):
            raise CalibrlError(
                f"features of shape {tuple(given.shape)} are not finite numbers (states, features); give a row each"
            )
        check_sizes(len(given), actions, outcomes)
        self.features = torch.cat([given, torch.ones(len(given), 1, dtype=torch.float64)], 1)
        self.ridge = check_within("ridge", ridge, "(0, inf)", "0.01 is the default")
        self.max_iter = max_iter
        self.counts = torch.zeros(len(given), actions, outcomes, dtype=torch.float64)
        self.weights = torch.zeros(actions, self.features.shape[1], outcomes, dtype=torch.float64)

    def update(self, data: Data) -> None:
        """Learn from the new rows together with all before them."""
        states, actions, _ = self.counts.shape
        state, action = state_action(data.x, states, actions)
        add_counts(self.counts, state, action, data.y)
        for a in range(actions):
            given = (self.features.numpy(), self.counts[:, a].numpy(), self.weights[a].numpy())
            self.weights[a] = torch.from_numpy(_fit_softmax(*given, self.ridge, self.max_iter))

    def __call__(self, x: Array) -> Categorical:
        """The forecast for each row of x (n, 2): batch shape (n,), k outcomes."""
        states, actions, _ = self.counts.shape
        state, action = state_action(x, states, actions)
        return Categorical(logits=torch.einsum("nf,nfk->nk", self.features[state], self.weights[action]))


def check_sizes(states: int, actions: int, outcomes: int) -> None:
    """Refuse a table that nothing could be forecast from."""
    if min(states, actions) < 1 or outcomes < 2:
        raise CalibrlError(
            f"{states} states, {actions} actions and {outcomes} outcomes make no table; use 1, 1 and 2 or more"
        )


def state_action(x: Array, states: int, actions: int) -> tuple[Tensor, Tensor]:
    """The state and action numbers in x (n, 2), or an error."""
    x = as_rows(x)
    if x.dim() != 2 or x.shape[1] != 2:
        raise CalibrlError(f"x has shape {tuple(x.shape)}; expected a state and an action in each row, (n, 2)")
    whole = x.round().long()
    top = torch.tensor([states, actions])
    wrong = (whole != x) | (whole < 0) | (whole >= top)
    if bool(wrong.any()):
        row = x[wrong.any(1)][0].tolist()
        raise CalibrlError(
            f"state {row[0]:g} and action {row[1]:g} are not in the table; states go to {states - 1}, actions to "
            f"{actions - 1}"
        )
    return whole[:, 0], whole[:, 1]


def add_counts(counts: Tensor, state: Tensor, action: Tensor, y: Tensor) -> None:
    """Count outcomes y (n,) of states and actions into counts (S, A, k), in place; NaN means not observed."""
    if y.numel() != len(y):
        raise CalibrlError(f"outcomes have shape {tuple(y.shape)}; expected one number in each row, (n,)")
    flat = y.reshape(len(y))
    seen = ~flat.isnan()
    outcome, outcomes = flat[seen], counts.shape[2]
    wrong = (outcome != outcome.round()) | (outcome < 0) | (outcome >= outcomes)
    if bool(wrong.any()):
        raise CalibrlError(f"outcome {outcome[wrong][0].item():g} is not one of 0 … {outcomes - 1}; number them from 0")
    one = torch.ones((), dtype=torch.float64)
    counts.index_put_((state[seen], action[seen], outcome.long()), one, accumulate=True)


def check_state_classes(classes: Array, states: int) -> Tensor:
    """Class numbers (S,) for each state, every class with a state in it, or an error."""
    given = as_tensor(classes, "classes")
    if given.shape != (states,):
        raise CalibrlError(f"classes of shape {tuple(given.shape)} do not fit; give one for each of {states} states")
    number = given.round().long()
    if bool((number != given).any()) or bool((number < 0).any()):
        raise CalibrlError("state classes are not whole numbers from 0; number them 0, 1, 2 …")
    size = torch.bincount(number)
    if bool((size == 0).any()):
        empty = int((size == 0).nonzero()[0])
        raise CalibrlError(f"state class {empty} is empty; number the classes 0 … without gaps")
    return number


def _fit_softmax(features: Floats, counts: Floats, weights: Floats, ridge: float, max_iter: int) -> Floats:
    """Minimise the surprise of counts (S, k) under softmax(features @ weights) plus a ridge: weights (f, k).

    Newton's method, each step halved until it goes downhill. In NumPy: the matrices are too small for torch's threads.
    """
    rows = counts.sum(1) > 0
    x, n = features[rows], counts[rows]
    total = n.sum(1, keepdims=True)
    width, outcomes = weights.shape

    def loss(w: Floats) -> float:
        return float(-(n * log_softmax(x @ w, 1)).sum() + ridge / 2 * (w**2).sum())

    best = loss(weights)
    for _ in range(max_iter):
        p = softmax(x @ weights, 1)
        slope = x.T @ (total * p - n) + ridge * weights
        # Curvature between the weights of outcomes i and j: Σ total · p_i (1{i = j} - p_j) x xᵀ.
        bend = total[..., None] * (p[:, :, None] * np.eye(outcomes) - p[:, :, None] * p[:, None, :])
        curvature = np.einsum("sf,sij,sg->figj", x, bend, x, optimize=True).reshape(width * outcomes, -1)
        step = np.linalg.solve(curvature + ridge * np.eye(width * outcomes), slope.ravel()).reshape(weights.shape)
        scale = 1.0
        while (now := loss(weights - scale * step)) > best and scale > 1e-6:
            scale /= 2
        weights = weights - scale * step
        if best - now < 1e-9 * (1 + abs(best)):
            break
        best = now
    return weights

"""Distributions made of others: rounded to counts, put together by group, mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions.kinds import Scored, device_of, dtype_of, ends_of, is_discrete, take_rows
from calibrl.distributions.recalibrated import Promise, Recalibrated
from calibrl.distributions.zscores import (
    COMPONENT_CUTS,
    count_moments,
    from_zscore,
    least,
    log_mass,
    log_prob,
    searched,
    zscore,
    zscore_left,
)
from calibrl.errors import CalibrlError
from calibrl.kernels import normal
from calibrl.maps import IDENTITY


class Rounded(Scored):
    """Counts max(0, round(Y)) from a continuous forecast Y: mass F(k + ½) - F(k - ½) on k, all below ½ on 0.

    Parameters
    ----------
    base : Distribution
        Y: a continuous forecast, such as the Gaussian of units sold, of batch shape (*batch).
    """

    support = constraints.nonnegative_integer
    has_rsample = False

    def __init__(self, base: Distribution) -> None:
        if is_discrete(base) or base.event_shape:
            raise CalibrlError(f"{type(base).__name__} is no continuous forecast of single numbers; nothing to round")
        self.base = base
        super().__init__(base.batch_shape, validate_args=False)

    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(count ≤ y)) in float64; -inf below 0."""
        k = y.double().floor()
        z = zscore(self.base, k.clamp(min=0) + 0.5)
        return torch.where(k < 0, -torch.inf, z)

    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(count < y)) in float64."""
        return self.zscore(torch.ceil(y.double()) - 1)

    def from_zscore(self, z: Tensor) -> Tensor:
        """The least count k with P(count ≤ k) ≥ Φ(z)."""
        # A hair less than the quantile, so that rounding error does not ask for one unit more.
        y = from_zscore(self.base, z)
        return torch.ceil((y - 0.5 - 1e-9 - 1e-12 * y.abs()).clamp(min=0))

    @returns_what_was_given
    def log_prob(self, value: Array) -> Tensor:
        """log-mass of a count; -inf between the whole numbers. value: (…, *batch)."""
        value = as_tensor(value)
        return log_mass(self.zscore_left(value), self.zscore(value)).to(self._dtype_with(value))

    def sample(self, sample_shape: Any = Size()) -> Tensor:
        """Draws of shape (*sample_shape, *batch)."""
        with torch.no_grad():
            shape = self._extended_shape(Size(sample_shape))
            z = torch.randn(shape, dtype=torch.float64, device=device_of(self.base))
            return self.from_zscore(z).to(dtype_of(self.base))

    def _moments(self) -> tuple[Tensor, Tensor]:
        return count_moments(self)

    def _take(self, rows: Any) -> Rounded:
        return Rounded(take_rows(self.base, rows))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Rounded:
        """The same forecast, repeated to `batch_shape`."""
        return Rounded(self.base.expand(Size(batch_shape)))

    def _ends(self) -> tuple[Tensor, Tensor]:
        low, high = (end.round().clamp(min=0) for end in ends_of(self.base))
        return low, high


class Grouped(Scored):
    """n forecasts, put together from parts that were calibrated apart.

    Parameters
    ----------
    parts : sequence of (Tensor, Distribution)
        Rows, (m,) of their numbers from 0, and their forecasts, of batch shape (m,). Every row belongs to exactly one
        part.
    """

    support = constraints.real
    has_rsample = False

    def __init__(self, parts: Sequence[tuple[Tensor, Distribution]]) -> None:
        every = torch.cat([rows for rows, _ in parts])
        owners = torch.bincount(every, minlength=len(every))
        if bool((owners != 1).any()):
            row = int((owners != 1).nonzero()[0])
            raise CalibrlError(f"forecast {row} belongs to {int(owners[row])} groups; expected exactly 1")
        self.parts = tuple(parts)
        self._example = parts[0][1]  # whose dtype and device are those of all
        super().__init__(owners.shape, validate_args=False)

    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(F(y)) in float64. y: (…, n)."""
        return self._each(zscore, y)

    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(Y < y)) in float64. y: (…, n)."""
        return self._each(zscore_left, y)

    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(Φ(z)) in float64. z: (…, n)."""
        return self._each(from_zscore, z)

    @returns_what_was_given
    def log_prob(self, value: Array) -> Tensor:
        """log-density. value: (…, n)."""
        value = as_tensor(value)
        return self._each(log_prob, value).to(self._dtype_with(value))

    @property
    def mean(self) -> Tensor:
        """Expected outcomes: (n,)."""
        return self._gather([part.mean for _, part in self.parts])

    @property
    def variance(self) -> Tensor:
        """Variances of the outcomes: (n,)."""
        return self._gather([part.variance for _, part in self.parts])

    def sample(self, sample_shape: Any = Size()) -> Tensor:
        """Draws of shape (*sample_shape, n)."""
        with torch.no_grad():
            return self._gather([part.sample(Size(sample_shape)) for _, part in self.parts]).to(self._dtype)

    def interval(
        self, level: float, guarantee: Promise | None = None, *, confidence: float = 0.95
    ) -> tuple[Tensor, Tensor]:
        """The central interval of each row, by the map of its own group: what is guaranteed is so group by group.

        Parameters
        ----------
        level, guarantee, confidence
            As in `Recalibrated.interval`. Coverage within each group is known as Mondrian conformal prediction.

        Returns
        -------
        low, high : Tensor
            Its ends, (n,) each.
        """
        found = [_calibrated(part).interval(level, guarantee, confidence=confidence) for _, part in self.parts]
        low, high = (self._gather([ends[k] for ends in found]).to(self._dtype) for k in (0, 1))
        return low, high

    def promise(self, level: float, guarantee: Promise = "conformal", *, confidence: float = 0.95) -> str:
        """What a guaranteed interval promises of each group: see `Recalibrated.promise`."""
        told = [_calibrated(part).promise(level, guarantee, confidence=confidence) for _, part in self.parts]
        return f"In each group: {told[0][0].lower()}{told[0][1:]}"

    def _ends(self) -> tuple[Tensor, Tensor]:
        ends = [[end.expand(part.batch_shape) for end in ends_of(part)] for _, part in self.parts]
        return self._gather([low for low, _ in ends]), self._gather([high for _, high in ends])

    @property
    def stddev(self) -> Tensor:
        """Standard deviations of the outcomes: (n,)."""
        return self._gather([part.stddev for _, part in self.parts])

    def _take(self, rows: Any) -> Grouped:
        wanted = torch.arange(len(self))[rows].reshape(-1)
        parts, place = [], torch.full((len(self),), -1)
        for own, part in self.parts:
            inside = place.scatter(0, own, torch.arange(len(own)))[wanted]
            if bool((inside >= 0).any()):
                parts.append(((inside >= 0).nonzero()[:, 0], take_rows(part, inside[inside >= 0])))
        return Grouped(parts)

    def _each(self, function: Callable[[Distribution, Tensor], Tensor], value: Tensor) -> Tensor:
        value = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        return self._gather([function(part, value[..., rows]) for rows, part in self.parts])

    def _gather(self, pieces: list[Tensor]) -> Tensor:
        """One (…, rows of the part) tensor per part → (…, n)."""
        whole = torch.empty((*pieces[0].shape[:-1], *self.batch_shape), dtype=torch.float64, device=pieces[0].device)
        for (rows, _), piece in zip(self.parts, pieces, strict=True):
            whole[..., rows] = piece.double()
        return whole


def _calibrated(part: Distribution) -> Recalibrated:
    return part if isinstance(part, Recalibrated) else Recalibrated(part, IDENTITY)


class Mixture(Scored):
    """Several forecasts blended into one, Σ_k w_k F_k: ensembles, model averages.

    A mixture of calibrated forecasts is not calibrated: recalibrate the mixture, last.

    Parameters
    ----------
    components : sequence of Distribution
        Continuous forecasts, all of one batch shape (*batch).
    weights : array, optional
        (k,) numbers ≥ 0; equal if not given.

    Examples
    --------
    >>> from torch.distributions import Normal
    >>> import torch, calibrl as cal
    >>> blend = cal.Mixture([Normal(torch.tensor([-1.0]), 1.0), Normal(torch.tensor([1.0]), 1.0)])
    >>> blend.mean.item(), blend.variance.item()
    (0.0, 2.0)
    """

    has_rsample = False

    def __init__(self, components: Sequence[Distribution], weights: Array | None = None) -> None:
        if not components:
            raise CalibrlError("a mixture of no components; pass at least one forecast")
        shapes = {tuple(component.batch_shape) for component in components}
        if len(shapes) > 1:
            raise CalibrlError(f"components have different batch shapes {sorted(shapes)}; expand them to one")
        if any(is_discrete(component) for component in components):
            raise CalibrlError("a component forecasts counts; mixtures take continuous forecasts (or use Empirical)")
        share = torch.ones(len(components)) if weights is None else as_tensor(weights, "weights")
        share = share.double().to(device_of(components[0]))
        if share.shape != (len(components),) or bool((share < 0).any()) or not 0 < float(share.sum()) < torch.inf:
            raise CalibrlError(f"weights {share.tolist()} must be {len(components)} numbers ≥ 0, not all zero")
        self.components = tuple(components)
        self.weights = share / share.sum()
        super().__init__(components[0].batch_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """What outcomes are possible: those of the components if they agree, else all numbers."""
        first, *others = (component.support for component in self.components)
        return first if all(other is first for other in others) else constraints.real

    def _ends(self) -> tuple[Tensor, Tensor]:
        low, high = zip(*(ends_of(component) for component in self.components), strict=True)
        return reduce(torch.minimum, low), reduce(torch.maximum, high)

    @property
    @torch.no_grad()
    def breaks(self) -> Tensor:
        """z-scores of the components' own quantiles, where quadrature should stop: (k, *batch)."""
        cuts = COMPONENT_CUTS.to(self.weights.device)
        parts = [from_zscore(part, cut.expand(self.batch_shape)) for part in self.components for cut in cuts]
        return self.zscore(torch.stack(parts))

    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(F(y)) in float64, exact in both tails; infinite where no component can reach."""
        return self._score([zscore(component, y) for component in self.components])

    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(P(Y < y)) in float64: less than `zscore` on a component's atom."""
        return self._score([zscore_left(component, y) for component in self.components])

    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(Φ(z)) in float64, by bisection between the components' own quantiles."""
        z = z.double().expand(torch.broadcast_shapes(z.shape, self.batch_shape))
        with torch.no_grad():
            ends = torch.stack([from_zscore(component, z) for component in self.components])
            y = least(lambda y: self.zscore(y) >= z, ends.amin(0), ends.amax(0))
        return searched(self, y, z)

    @returns_what_was_given
    def log_prob(self, value: Array) -> Tensor:
        """log-density. value: (…, *batch)."""
        value = as_tensor(value)
        each = torch.stack([log_prob(component, value) for component in self.components])
        share = self.weights.log().reshape(-1, *(1 for _ in each.shape[1:]))
        return torch.logsumexp(each + share, 0).to(self._dtype_with(value))

    def sample(self, sample_shape: Any = Size()) -> Tensor:
        """Draws of shape (*sample_shape, *batch): a component, then a draw from it."""
        with torch.no_grad():
            shape = self._extended_shape(Size(sample_shape))
            draws = torch.stack([component.sample(Size(sample_shape)) for component in self.components])
            u = torch.rand(shape, dtype=torch.float64, device=self.weights.device)
            pick = torch.bucketize(u, self.weights.cumsum(0)[:-1], right=True)
            return draws.gather(0, pick[None])[0]

    @property
    def mean(self) -> Tensor:
        """Expected outcome: (*batch)."""
        return self._blend([component.mean for component in self.components]).to(self._dtype)

    @property
    def variance(self) -> Tensor:
        """Variance within components plus variance between their means: (*batch)."""
        mean = self._blend([component.mean for component in self.components])
        parts = [c.variance.double() + (c.mean.double() - mean).square() for c in self.components]
        return self._blend(parts).to(self._dtype)

    def _take(self, rows: Any) -> Mixture:
        return Mixture([take_rows(component, rows) for component in self.components], self.weights)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Mixture:
        """The same forecast, repeated to `batch_shape`."""
        return Mixture([component.expand(Size(batch_shape)) for component in self.components], self.weights)

    def _score(self, scores: list[Tensor]) -> Tensor:
        lower = self._blend([normal.cdf(z) for z in scores])
        upper = self._blend([normal.cdf(-z) for z in scores])
        z = normal.quantile_of(lower, upper).clamp(normal.LOWEST_Z, -normal.LOWEST_Z)
        lowest, highest = torch.stack(scores).aminmax(dim=0)
        return torch.where(highest == -torch.inf, highest, torch.where(lowest == torch.inf, lowest, z))

    def _blend(self, parts: list[Tensor]) -> Tensor:
        stacked = torch.stack(parts).double()
        return (self.weights.reshape(-1, *(1 for _ in stacked.shape[1:])) * stacked).sum(0)

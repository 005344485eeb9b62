"""R∘F: a forecast whose probabilities have been made honest."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Size, Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, OneHotCategorical

from calibrl.arrays import Array, as_tensor, returns_what_was_given
from calibrl.distributions.empirical import Interpolated
from calibrl.distributions.kinds import (
    Scored,
    by_column,
    device_of,
    dtype_of,
    ends_of,
    is_discrete,
    refuse_joint,
    take_rows,
)
from calibrl.distributions.zscores import (
    AT_ONCE,
    breaks,
    component_quantiles,
    count_moments,
    from_zscore,
    is_mixed,
    log_mass,
    log_prob,
    zscore,
    zscore_left,
)
from calibrl.errors import CalibrlError, check_known
from calibrl.kernels import normal
from calibrl.maps import Map, draw_table, gaussian_law
from calibrl.maps.gaussian import nodes

REACH, CELLS = 8.2, 64
"""How far in z the moments of mixtures are integrated, and in how many cells of each component."""

Promise: TypeAlias = Literal["conformal", "tolerance"]
"""What can be promised of an interval: on average over rows, or of the rows that were seen."""


class Guarantee(Protocol):
    """Bounds by a theorem other than that of ranks of held-out rows."""

    def bounds(
        self, forecast: Recalibrated, low: float, high: float, confidence: float | None
    ) -> tuple[Tensor, Tensor]:
        """Outcomes (*batch) beyond which those tails lie, infinite where 0 was asked for or nothing can be said."""

    def take(self, rows: Any) -> Guarantee:
        """The guarantee of some of the forecasts, picked by row."""

    def promise(self, low: float, high: float, confidence: float | None) -> str:
        """What is promised of them, under which conditions; an error where nothing is."""


HALVES = (torch.float16, torch.bfloat16)
"""Too coarse to count the cells of a table of draws."""


class ByRanks:
    """Split conformal prediction and tolerance bounds: by the ranks of rows that a map was fitted on.

    Parameters
    ----------
    mapping : Map
        Fitted on rows that the forecaster was not trained on.
    """

    def __init__(self, mapping: Map) -> None:
        if mapping.ranks is None:
            raise CalibrlError(
                f"this {mapping.kind} map keeps no ranks of rows (there were none yet, or it was built by hand or "
                "widened), so no interval is guaranteed; fit one with calibrl.fit_smooth(z=…) on held-out rows"
            )
        self.ranks = mapping.ranks

    def bounds(
        self, forecast: Recalibrated, low: float, high: float, confidence: float | None
    ) -> tuple[Tensor, Tensor]:
        """Order statistics of the rows' PITs, as outcomes (*batch) of this forecast."""
        ends = self.ranks.to(device_of(forecast.base)).bounds_z(low, high, confidence)
        lowest, highest = (forecast.at(end.expand(forecast.batch_shape), before=True) for end in ends)
        return lowest, highest

    def take(self, rows: Any) -> ByRanks:  # noqa: ARG002 (the same for every row)
        """The same: ranks hold for each row."""
        return self

    def promise(self, low: float, high: float, confidence: float | None) -> str:
        """What is promised, in words."""
        return self.ranks.promise(low, high, confidence)


def _tails(level: float, side: str) -> tuple[float, float]:
    """How much may lie below and above."""
    if not 0 < level < 1:
        raise CalibrlError(f"level {level} is not between 0 and 1; ask for 0.9 to get a 90 % interval")
    tail = 1 - level
    sides = {"both": (tail / 2, tail / 2), "lower": (tail, 0.0), "upper": (0.0, tail)}
    return sides[check_known("side", side, sides)]


def _confidence(guarantee: str, confidence: float) -> float | None:
    if guarantee != "tolerance":
        return None
    if not 0 < confidence < 1:
        raise CalibrlError(f"confidence {confidence} is not between 0 and 1; 0.95 is wrong once in twenty")
    return confidence


class Recalibrated(Scored):
    """The calibrated forecast: the distribution with CDF R∘F and quantile function F⁻¹∘R⁻¹.

    Everything a planner asks of a forecast works: samples, moments, density, gradients with respect to the base's
    parameters, on the base's device and in its dtype.

    Parameters
    ----------
    base : Distribution
        F: any distribution with a CDF, batch shape (n,) or (n, d), another `Recalibrated` too.
    mapping : Map
        R: one for all forecasts, or one per column, as `fit_smooth` and its siblings return it.
    guarantee : Guarantee, optional
        By which theorem intervals are guaranteed, if not by the ranks of the rows that R was fitted on. `Calibrated`
        and `CrossFitted` give the one that holds for them.

    Examples
    --------
    Forecasts half as wide as they should be, made honest:

    >>> import torch, calibrl as cal
    >>> y = 2 * torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> forecast = torch.distributions.Normal(torch.zeros_like(y), 1.0)
    >>> honest = cal.Recalibrated(forecast, cal.fit_affine(z=cal.pit_z(forecast, y)))
    >>> round(float(honest.stddev[0]), 1)
    2.0
    """

    def __init__(self, base: Distribution, mapping: Map, guarantee: Guarantee | None = None) -> None:
        base = by_column(base)
        if isinstance(base, (Categorical, Bernoulli, OneHotCategorical)):
            raise CalibrlError(
                f"{type(base).__name__} forecasts classes, which have no CDF; use calibrl.fit_temperature or "
                "another fit of calibrl.maps.classes, and calibrl.recalibrate(forecast, mapping)"
            )
        refuse_joint(base)
        if mapping.columns and base.batch_shape[-1:] != mapping.columns:
            raise CalibrlError(
                f"the map was fitted for {mapping.columns[0]} columns but the forecast has batch shape "
                f"{tuple(base.batch_shape)}; fit a map on PITs of this forecast's columns"
            )
        self.base = base
        self.mapping = mapping
        self.guarantee = guarantee
        self.has_rsample = not is_discrete(base)
        super().__init__(base.batch_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """What outcomes are possible: those of the base."""
        return self.base.support

    # Between outcomes and z-scores.

    def zscore(self, y: Tensor) -> Tensor:
        """Φ⁻¹(R(F(y))) in float64."""
        return self._moved(zscore(self.base, y))

    def zscore_left(self, y: Tensor) -> Tensor:
        """Φ⁻¹(R(P(Y < y))) in float64."""
        return self._moved(zscore_left(self.base, y))

    def from_zscore(self, z: Tensor) -> Tensor:
        """F⁻¹(R⁻¹(Φ(z))) in float64."""
        if z.dim() and z.numel() and not any(z.stride()):
            # One number for all forecasts, as a quantile's level is: the map is inverted once.
            inner = self.mapping.inverse_z(z[(0,) * (z.dim() - len(self.mapping.columns))])
            return from_zscore(self.base, inner.expand(z.shape))
        return from_zscore(self.base, self.mapping.inverse_z(z))

    def at(self, z: Tensor, *, before: bool = False) -> Tensor:
        """Outcomes (*batch) at z-scores of that shape, or at those `before` the map; infinite where they are."""
        finite = torch.where(z.isfinite(), z, 0.0) if bool(z.isinf().any()) else z
        inside = from_zscore(self.base, finite) if before else self.from_zscore(finite)
        return torch.where(z.isfinite(), inside, z).to(dtype_of(self.base))

    # The distribution.

    @returns_what_was_given
    def log_prob(self, value: Array) -> Tensor:
        """log-density, or log-mass where outcomes are counts. value: (…, *batch)."""
        value = as_tensor(value)
        if is_discrete(self.base):
            return log_mass(self.zscore_left(value), self.zscore(value)).to(self._dtype_with(value))
        # Outside the support the base's density is zero, whatever the map.
        z = zscore(self.base, value).nan_to_num(torch.nan, posinf=0.0, neginf=0.0)
        change = self.mapping.log_slope_z(z) + normal.log_density(self.mapping.forward_z(z)) - normal.log_density(z)
        return (log_prob(self.base, value) + change).to(self._dtype_with(value))

    def rsample(self, sample_shape: Any = Size()) -> Tensor:
        """Draws of shape (*sample_shape, *batch) that carry gradients to the base's parameters."""
        shape = self._extended_shape(Size(sample_shape))
        epsilon = torch.randn(shape, dtype=dtype_of(self.base), device=device_of(self.base))
        if not isinstance(self.base, Normal) or epsilon.dtype in HALVES or torch.is_grad_enabled():
            return self.push(epsilon)
        # Nobody will ask for a gradient or for ε again: the draws may take its place in memory.
        g = draw_table(self.mapping, epsilon.device, epsilon.dtype)(epsilon, reuse=True)
        return torch.addcmul(self.base.loc, self.base.scale, g, out=g)

    def push(self, epsilon: Tensor) -> Tensor:
        """Turn standard normal draws into draws of this forecast: F⁻¹(R⁻¹(Φ(ε))).

        Parameters
        ----------
        epsilon : Tensor
            Standard normal draws, (…, *batch).

        Returns
        -------
        Tensor
            Draws of epsilon's shape and dtype.
        """
        if isinstance(self.base, Normal) and epsilon.dtype not in HALVES:
            moved = draw_table(self.mapping, epsilon.device, epsilon.dtype)(epsilon)
            # A draw that carries no gradients can take the place of its noise.
            out = None if torch.is_grad_enabled() else moved
            return torch.addcmul(self.base.loc, self.base.scale, moved, out=out)
        return self.from_zscore(epsilon).to(epsilon.dtype)

    def interval(
        self, level: float, guarantee: Promise | None = None, *, confidence: float = 0.95
    ) -> tuple[Tensor, Tensor]:
        """The central interval that should hold the outcome with probability `level`.

        Parameters
        ----------
        level : float
            In (0, 1).
        guarantee : {"conformal", "tolerance"}, optional
            "conformal" takes the interval by the theorem that holds for this forecast, instead of from R: of n held-out
            rows, from the ⌊(n+1)α/2⌋-th to the ⌈(n+1)(1-α/2)⌉-th smallest PIT, α = 1 - level (split conformal); for
            `CrossFitted` CV+; for streams adaptive conformal inference. "tolerance" holds `level` of all outcomes to
            come with probability `confidence` over the n rows. `promise` says what is promised, and where an interval
            is infinite there are too few rows to promise anything finite.
        confidence : float
            Of a tolerance interval, in (0, 1).

        Returns
        -------
        low, high : Tensor
            Its ends, (*batch) each.
        """
        return self._bounds(*_tails(level, "both"), guarantee, confidence)

    def lower_bound(self, level: float, guarantee: Promise | None = None, *, confidence: float = 0.95) -> Tensor:
        """The bound above which the outcome lies with probability `level`.

        Parameters
        ----------
        level, guarantee, confidence
            As in `interval`.

        Returns
        -------
        Tensor
            (*batch).
        """
        return self._bounds(*_tails(level, "lower"), guarantee, confidence)[0]

    def upper_bound(self, level: float, guarantee: Promise | None = None, *, confidence: float = 0.95) -> Tensor:
        """The bound below which the outcome lies with probability `level`; as `lower_bound`."""
        return self._bounds(*_tails(level, "upper"), guarantee, confidence)[1]

    def promise(
        self,
        level: float,
        guarantee: Promise = "conformal",
        *,
        confidence: float = 0.95,
        side: Literal["both", "lower", "upper"] = "both",
    ) -> str:
        """What a guaranteed interval or bound promises, and under which conditions: a sentence to print beside it.

        Parameters
        ----------
        level, guarantee, confidence
            As in `interval`.
        side : {"both", "lower", "upper"}
            Of an interval or of a bound.

        Returns
        -------
        str
            An error that says why where nothing is promised.
        """
        return self._by(guarantee).promise(*_tails(level, side), _confidence(guarantee, confidence))

    def _take(self, rows: Any) -> Recalibrated:
        guarantee = None if self.guarantee is None else self.guarantee.take(rows)
        return Recalibrated(take_rows(self.base, rows), self.mapping, guarantee)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Recalibrated:
        """The same forecast, repeated to `batch_shape`."""
        return Recalibrated(self.base.expand(Size(batch_shape)), self.mapping, self.guarantee)

    def __repr__(self) -> str:
        inner = repr(self.base) if isinstance(self.base, Scored) else type(self.base).__name__
        return f"Recalibrated({inner}, {self.mapping.kind}, batch {tuple(self.batch_shape)})"

    # How.

    def _ends(self) -> tuple[Tensor, Tensor]:
        return ends_of(self.base)

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of the outcome: (*batch)."""
        if isinstance(self.base, Normal):  # its square may be beyond float64
            law = gaussian_law(self.mapping, self.base.loc.device)
            return (self.base.scale.double() * law.variance.sqrt()).to(self._dtype)
        return super().stddev

    def _moved(self, z: Tensor) -> Tensor:
        """S(z); what is impossible or certain before the map is so after it: R(0) = 0 and R(1) = 1."""
        sure = z.isinf()
        return torch.where(sure, z, self.mapping.forward_z(torch.where(sure, 0.0, z)))

    def _bounds(self, low: float, high: float, guarantee: Promise | None, confidence: float) -> tuple[Tensor, Tensor]:
        if guarantee is None:
            tails = torch.tensor([low, high], dtype=torch.float64, device=device_of(self.base))
            z = normal.quantile(tails)
            return self.at(z[0].expand(self.batch_shape)), self.at(-z[1].expand(self.batch_shape))
        return self._by(guarantee).bounds(self, low, high, _confidence(guarantee, confidence))

    def _by(self, guarantee: str) -> Guarantee:
        if guarantee not in ("conformal", "tolerance"):
            raise CalibrlError(f'guarantee {guarantee!r} is unknown; use "conformal", "tolerance" or None')
        return self.guarantee or ByRanks(self.mapping)

    def _moments(self) -> tuple[Tensor, Tensor]:
        if isinstance(self.base, Normal):
            law = gaussian_law(self.mapping, self.base.loc.device)
            return self.base.loc + self.base.scale * law.mean, self.base.scale.double().square() * law.variance
        # Of thousands of knots, factors would take more time and memory than the nodes themselves.
        if isinstance(self.base, Interpolated) and not self.mapping.columns and self.base._knots.shape[-1] <= 500:
            epsilon, weight = nodes(self.breaks)
            return self.base.moments_at(self.mapping.inverse_z(epsilon), weight)
        if is_discrete(self.base):
            return count_moments(self)
        bare: Distribution = self
        while isinstance(bare, Recalibrated):
            bare = bare.base
        return self._by_parts(bare) if is_mixed(bare) else self._quadrature()

    @property
    def breaks(self) -> Tensor:
        """z-scores where the quantile function bends: the map's own, and the base's seen through it."""
        inner = breaks(self.base)
        own = self.mapping.breaks.to(inner.device)
        shape = torch.broadcast_shapes(inner.shape[1:], own.shape[1:])
        inner, own = (
            part.reshape(len(part), *(1 for _ in shape[part.dim() - 1 :]), *part.shape[1:]).expand(-1, *shape)
            for part in (inner, own)
        )
        return torch.cat([self.mapping.forward_z(inner), own])

    def _by_parts(self, mixture: Distribution) -> tuple[Tensor, Tensor]:
        """E and Var from ∫ (1 - F) above a centre and ∫ F below it, between quantiles of the mixture's components.

        Their CDFs are known; quantiles of a mixture would have to be searched for.
        """
        with torch.no_grad():
            inner = torch.linspace(-REACH, REACH, CELLS + 1, dtype=torch.float64, device=device_of(self.base))
            inner = inner.reshape(-1, *(1 for _ in self.mapping.columns)).expand(-1, *self.mapping.columns)
            one: Distribution = self
            while isinstance(one, Recalibrated):
                inner, one = one.mapping.inverse_z(inner), one.base
            even = inner[0] + (inner[-1] - inner[0]) * torch.linspace(0, 1, CELLS + 1).to(inner).reshape(
                -1, *(1 for _ in inner.shape[1:])
            )
            edges = component_quantiles(mixture, torch.cat([inner, even]).sort(0).values)
            centre = mixture.mean.double().clamp(edges.amin(0), edges.amax(0))
            edges = torch.cat([edges, centre[None]]).sort(0).values
            for _ in range(2):  # first roughly, then between closer neighbours
                edges = torch.cat([edges, self._bends_between(edges)]).sort(0).values
        first, second = torch.zeros_like(centre), torch.zeros_like(centre)
        step = max(1, AT_ONCE // (4 * max(1, self.batch_shape.numel())))
        for i in range(0, len(edges) - 1, step):
            some = edges[i : i + step + 1]
            half, middle = some.diff(dim=0) / 2, (some[1:] + some[:-1]) / 2
            for node, weight in ((-(0.6**0.5), 5 / 9), (0.0, 8 / 9), (0.6**0.5, 5 / 9)):
                off = middle + node * half - centre
                side = torch.where(off < 0, -1.0, 1.0)
                beyond = weight * half * normal.cdf(-side * self.zscore(centre + off))
                first, second = first + (side * beyond).sum(0), second + (2 * off.abs() * beyond).sum(0)
        return centre + first, second - first.square()

    def _bends_between(self, edges: Tensor) -> Tensor:
        """About where the map's own bends lie among outcomes (m, *batch), ascending: (k, *batch)."""
        bends = self.mapping.inverse_z(self.mapping.breaks.to(edges))
        bends = bends.reshape(len(bends), *(1 for _ in edges.shape[bends.dim() :]), *bends.shape[1:])
        bends = bends.expand(-1, *edges.shape[1:]).movedim(0, -1).contiguous()
        z, y = (part.movedim(0, -1).contiguous() for part in (zscore(self.base, edges), edges))
        after = torch.searchsorted(z, bends).clamp(1, z.shape[-1] - 1)
        z0, z1, y0, y1 = (part.gather(-1, at) for part in (z, y) for at in (after - 1, after))
        return torch.lerp(y0, y1, ((bends - z0) / (z1 - z0).clamp(min=1e-300)).clamp(0, 1)).movedim(-1, 0)

    def _quadrature(self) -> tuple[Tensor, Tensor]:
        """E and Var of F⁻¹(R⁻¹(Φ(ε))) over ε ~ N(0, 1), a few nodes at a time."""
        epsilon, weight = nodes(self.breaks)
        # One set of nodes for all forecasts, or one per column: (m, …) against (m, *batch).
        flat = [1 for _ in self.batch_shape]
        epsilon, weight = (
            part.reshape(len(part), *flat[part.dim() - 1 :], *part.shape[1:]) for part in (epsilon, weight)
        )
        step = max(1, AT_ONCE // max(1, self.batch_shape.numel()))

        # Around the median, which is less than a standard deviation from the mean: no digits are lost.
        centre = self.from_zscore(torch.zeros(self.batch_shape, dtype=torch.float64, device=epsilon.device)).detach()
        first, second = torch.zeros_like(centre), torch.zeros_like(centre)
        for some, share in zip(epsilon.split(step), weight.split(step), strict=True):
            off = self.from_zscore(some.expand(-1, *self.batch_shape)) - centre
            first, second = first + (share * off).sum(0), second + (share * off.square()).sum(0)
        return centre + first, second - first.square()

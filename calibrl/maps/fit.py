"""Step 4 of Algorithm 1: learn R from what held-out outcomes said about their forecasts.

Every `fit_*` takes PIT values p_t = F_t(y_t) of shape (n,) for one map or (n, d) for one map per column,
NaN where the outcome was not observed. `weight` lets some rows count more; `z` gives the same evidence as
z-scores Φ⁻¹(p_t), which do not round to 0 or 1 when a forecast is very over-confident.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from calibrl.arrays import Array
from calibrl.kernels import normal
from calibrl.maps.base import Map
from calibrl.maps.columns import Column, columns_of, ranks_of, stack
from calibrl.maps.parametric import Affine, Beta, Platt, Sigmoid
from calibrl.maps.spline import Spline

SLACK = 1e-12
"""Two losses this close, relatively, are equal: near its minimum a loss is flat to the last digit, its slope is not."""


def logistic_fit(features: Tensor, target: Tensor, size: Tensor, *, start: Tensor, positive: int) -> Tensor:
    """Weighted cross-entropy of sigmoid(θ · features) against soft targets, by damped Newton steps: θ (…, k).

    features (…, k, m), target (…, m) in [0, 1], size (…, m) weights, start (k,) or (…, k); the first `positive`
    entries of θ stay above 1e-3 so that the map increases. The problem is convex: the minimum is the only one, and
    a start near it only saves steps. Far from it the sigmoid is flat and a Newton step means nothing: steps that do
    not help are damped until they do.
    """
    # All that the targets have to say: Σ size · target · features.
    pull = (features * (size * target)[..., None, :]).sum(-1)

    def predict(theta: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities (…, m), and the loss (…)."""
        t = (theta[..., None] * features).sum(-2)
        p = torch.sigmoid(t)
        softplus = t.clamp(min=0) - torch.maximum(p, 1 - p).log()
        return p, (size * softplus).sum(-1) - (theta * pull).sum(-1)

    k = features.shape[-2]
    lowest = torch.tensor([1e-3] * positive + [-torch.inf] * (k - positive), dtype=torch.float64)
    itself = torch.eye(k, dtype=torch.bool)
    theta = start.expand(features.shape[:-1])
    p, best = predict(theta)
    # Damping is measured against the curvature that each parameter could have at most: p (1 - p) is 1/4 there.
    most = (size[..., None, :] * features.square()).sum(-1) / 4 + 1e-9
    least = torch.full_like(best, 1e-12)
    damping, done = least, torch.zeros_like(best, dtype=torch.bool)
    for _ in range(200):
        pushed = features * (size * p)[..., None, :]
        gradient = pushed.sum(-1) - pull
        hessian = (pushed * (1 - p)[..., None, :]) @ features.mT + torch.diag_embed(damping[..., None] * most)
        # An entry that is held at its bound takes no part in the others' step.
        free = (theta > lowest) | (gradient < 0)
        hessian = torch.where((free[..., None] & free[..., None, :]) | itself, hessian, 0.0)
        candidate = torch.maximum(theta - torch.linalg.solve(hessian, gradient), lowest)
        moved = (candidate - theta).abs().amax(-1)
        reached, loss = predict(candidate)
        better = (loss <= best + SLACK * best.abs()) & ~done
        theta, p = (torch.where(better[..., None], new, old) for new, old in ((candidate, theta), (reached, p)))
        best = torch.where(better, loss, best)
        damping = torch.where(better, torch.maximum(damping / 100, least), (damping * 10).clamp(min=1e-4))
        # A Newton step squares what is missing.
        done |= (better & (moved < 1e-8)) | (damping > 1e6)
        if bool(done.all()):
            break
    return theta


PRIOR_POINTS = 10.0
"""How many outcomes the belief "the forecast is right" is worth: 10 rows move R half-way."""

Knots = tuple[Tensor, Tensor, Tensor]
M = TypeVar("M", bound=Map)
Learn: TypeAlias = Callable[[list[Column], tuple[int, ...]], M]


class FitMap(Protocol):
    """What `Calibrated` needs of a fitting function."""

    def __call__(self, pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:
        """The map R learnt from the evidence."""


def fit_smooth(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Spline:
    """The default map: the distribution of z smoothed with a kernel and shrunk to the identity by evidence.

    R(p) = M(Φ⁻¹(p)) with M(z) = w · Σ_i share_i Φ((z - z_i)/h) + (1 - w) · Φ((z - shift)/scale), held as a
    spline. Shift and scale leave the identity only as far as their own standard errors allow; the shape
    enters with w only as far as the z-scores still look unlike that Gaussian; h = 0.9 · spread · n^(-1/3).
    No rows give the identity, a few rows change it only when they insist, and with many rows the error
    goes to zero whatever the shape of the miscalibration. Between the rows the density stays smooth.

    Parameters
    ----------
    pit : array (n,) or (n, d), optional
        F(y) of each outcome, NaN where it was not observed: evidence for one map, or for one per column.
    weight : array (n,) or of the shape of the evidence, optional
        How much each outcome counts; all alike by default.
    z : array of the shape of `pit`, optional
        In the place of `pit`, the same as z-scores Φ⁻¹(pit), which do not round to 0 or 1.

    Returns
    -------
    Spline

    Examples
    --------
    >>> z = 2 * torch.randn(1000, generator=torch.Generator().manual_seed(0))  # twice as far out as forecast
    >>> R = fit_smooth(z=z)
    >>> round(float(R(torch.tensor(0.841))), 2)  # what the forecast calls its 84 % quantile holds 69 %
    0.69
    """
    return _fit(smooth, pit, weight, z)


def fit_isotonic(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Spline:
    """The empirical CDF of the PITs with ranks i/(n+1), shrunk to the identity with 10 pseudo-rows.

    Isotonic regression of PITs on their own empirical CDF, as in Kuleshov et al. (2018), *is* that CDF.
    Between the points R is a monotone spline, outside them the forecast's own tail goes on.

    Parameters
    ----------
    pit, weight, z
        As in `fit_smooth`.

    Returns
    -------
    Spline
    """
    return _fit(isotonic, pit, weight, z)


def fit_affine(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Affine:
    """Shift and scale in z, shrunk to the identity: best on few rows when mean or width is what is off.

    Parameters
    ----------
    pit, weight, z
        As in `fit_smooth`.

    Returns
    -------
    Affine
    """
    return _fit(affine, pit, weight, z)


def fit_platt(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Platt:
    """sigmoid(a · logit p + b) by cross-entropy against the empirical CDF, shrunk to the identity.

    Parameters
    ----------
    pit, weight, z
        As in `fit_smooth`.

    Returns
    -------
    Platt
    """
    return _fit(platt, pit, weight, z)


def fit_beta(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Beta:
    """sigmoid(a log p - b log(1-p) + c) by cross-entropy against the empirical CDF, shrunk to the identity.

    Parameters
    ----------
    pit, weight, z
        As in `fit_smooth`.

    Returns
    -------
    Beta
    """
    return _fit(beta, pit, weight, z)


def fit_sigmoid(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Sigmoid:
    """The paper's released map sigmoid(a · p + b), by cross-entropy. For replication: see `Sigmoid`.

    Parameters
    ----------
    pit, weight, z
        As in `fit_smooth`.

    Returns
    -------
    Sigmoid
    """
    return _fit(sigmoid, pit, weight, z)


def _fit(learn: Learn[M], pit: Array | None, weight: Array | None, z: Array | None) -> M:
    columns, shape = columns_of(pit, weight, z)
    return replace(learn(columns, shape), ranks=ranks_of(columns, shape))


# The same on sorted evidence: columns and their shape, () or (d,), to one map for all of them.


def smooth(columns: list[Column], shape: tuple[int, ...]) -> Spline:
    """`fit_smooth`."""
    return spline([_smooth(column) for column in columns], shape)


def isotonic(columns: list[Column], shape: tuple[int, ...]) -> Spline:
    """`fit_isotonic`."""
    return spline([_isotonic(column) for column in columns], shape)


def affine(columns: list[Column], shape: tuple[int, ...]) -> Affine:
    """`fit_affine`."""

    def moments(column: Column) -> Tensor:
        total = column.effective + PRIOR_POINTS
        z = column.tamed
        shift = column.effective * float((column.share * z).sum()) / total
        square = (column.effective * float((column.share * z.square()).sum()) + PRIOR_POINTS) / total
        return torch.tensor([shift, (square - shift**2) ** 0.5], dtype=torch.float64)

    parameters = stack([moments(column) for column in columns], shape)
    return Affine(shift=parameters[..., 0], scale=parameters[..., 1])


def platt(columns: list[Column], shape: tuple[int, ...]) -> Platt:
    """`fit_platt`."""
    z, target, size = _with_prior(columns)
    features = torch.stack([normal.logit_of(z), torch.ones_like(z)], -2)
    found = logistic_fit(features, target, size, start=torch.tensor([1.0, 0.0], dtype=torch.float64), positive=1)
    parameters = stack([*found], shape)
    return Platt(a=parameters[..., 0], b=parameters[..., 1])


def beta(columns: list[Column], shape: tuple[int, ...]) -> Beta:
    """`fit_beta`."""
    z, target, size = _with_prior(columns)
    features = torch.stack([torch.special.log_ndtr(z), -torch.special.log_ndtr(-z), torch.ones_like(z)], -2)
    found = logistic_fit(features, target, size, start=torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), positive=2)
    parameters = stack([*found], shape)
    return Beta(a=parameters[..., 0], b=parameters[..., 1], c=parameters[..., 2])


def sigmoid(columns: list[Column], shape: tuple[int, ...]) -> Sigmoid:
    """`fit_sigmoid`."""
    start = torch.tensor([4.0, -2.0], dtype=torch.float64)

    def curve(column: Column) -> Tensor:
        if column.count < 2:
            return start
        features = torch.stack([normal.cdf(column.z), torch.ones_like(column.z)])
        return logistic_fit(features, column.level, column.share * column.effective, start=start, positive=1)

    parameters = stack([curve(column) for column in columns], shape)
    return Sigmoid(a=parameters[..., 0], b=parameters[..., 1])


def _with_prior(columns: list[Column]) -> tuple[Tensor, Tensor, Tensor]:
    """The evidence and `PRIOR_POINTS` pseudo-rows that say "the forecast is right": z, target, weight, (d, m) each.

    Columns with less evidence than others are filled up with rows of no weight.
    """
    level = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    prior = normal.quantile(level), level, torch.full_like(level, PRIOR_POINTS / len(level))
    z, target, size = (
        pad_sequence([torch.cat([own, more]) for own in parts], batch_first=True)
        for parts, more in zip(
            zip(*((column.z, column.level, column.share * column.effective) for column in columns), strict=True),
            prior,
            strict=True,
        )
    )
    return z, target, size


# The two splines.


def spline(found: list[Knots], shape: tuple[int, ...]) -> Spline:
    """One spline for all columns, each with its own knots."""
    most = max(len(knots[0]) for knots in found)
    padded = [_pad(knots, most) for knots in found]
    z, s, d = (stack([knots[i] for knots in padded], shape) for i in range(3))
    return Spline(z=z, s=s, d=d)


def _smooth(column: Column) -> Knots:
    n = column.effective
    if n == 0:
        return _no_knots()
    # A kernel of no width would put an infinite density on repeated outcomes.
    width = max(0.9 * column.scale, 0.01) * n ** (-1 / 3)
    shift, scale = _believable_gaussian(column)
    trust = _trust_in_shape(column, shift, scale)
    points = _knot_positions(column, width, shift, scale)

    # M, 1 - M and M′ at the knots, each exact in its own tail.
    below, above, slope = _kernel_sums(points, column, width)
    plain = (points - shift) / scale
    lower = trust * below + (1 - trust) * normal.cdf(plain)
    upper = trust * above + (1 - trust) * normal.cdf(-plain)
    density = trust * slope + (1 - trust) * torch.exp(normal.log_density(plain)) / scale

    # The evidence ends where half an outcome is left; beyond, the straight tail takes over.
    inside = torch.minimum(lower, upper) > 0.5 / (n + PRIOR_POINTS)
    s = normal.quantile_of(lower, upper)
    slope = density / torch.exp(normal.log_density(s))
    return _with_tails(points[inside], s[inside], slope[inside], column)


def _kernel_sums(points: Tensor, column: Column, width: float) -> tuple[Tensor, Tensor, Tensor]:
    """Σ share · Φ(d), Σ share · Φ(-d) and Σ share · φ(d)/h at each point, d being its distance to z over h.

    In NumPy, because torch splits a matrix of this size over threads and waits for them longer than it computes.
    """
    distance = (points.numpy()[:, None] - column.tamed.numpy()) / width
    # Beyond 12 widths a kernel is all below or all above, to the last digit of any sum it enters.
    near = np.abs(distance) < 12
    close = distance[near]
    below, above, slope = (distance > 0).astype(float), (distance < 0).astype(float), np.zeros_like(distance)
    below[near], above[near] = ndtr(close), ndtr(-close)
    slope[near] = np.exp(-0.5 * close**2 - normal.LOG_SQRT_2PI) / width
    sums = (torch.from_numpy(np.einsum("ij,j->i", term, column.share.numpy())) for term in (below, above, slope))
    return next(sums), next(sums), next(sums)


def _believable_gaussian(column: Column) -> tuple[float, float]:
    """Shift and scale of z, each pulled to (0, 1) by a factor 1 - 9/t², t being its distance in standard errors.

    The factor is James and Stein's, with a threshold that lets about one calibrated forecast in four hundred move.
    """
    n = column.effective
    z, level, share = column.z, column.level, column.share
    # Three deviations from the median are far enough: one wild outcome must not widen every forecast.
    middle = float(np.interp(0.5, level.numpy(), z.numpy()))
    spread = 1.4826 * float((z - middle).abs().quantile(0.5)) + 1e-9
    z = z.clamp(middle - 3 * spread, middle + 3 * spread)
    scale = 1.0
    if n > 1.5:
        # Gini's mean difference: nearly as precise as the standard deviation, far less upset by tails.
        gini = 2 * float((share * z * (2 * level - 1)).sum()) * (n + 1) / (n - 1)
        log_scale = math.log(max(gini * math.sqrt(math.pi) / 2, 1e-9))
        scale = math.exp(_shrunk(log_scale, 0.75 / math.sqrt(n)))
    return _shrunk(float((share * z).sum()), scale / math.sqrt(n)), scale


def _shrunk(value: float, error: float) -> float:
    return value * max(0.0, 1 - 9 * (error / value) ** 2) if value else 0.0


def _trust_in_shape(column: Column, shift: float, scale: float) -> float:
    """How far to believe the kernel: n²/(n²+800), times 1 - (w₀/W²)², W² being Cramér and von Mises' statistic.

    When the Gaussian is right and only chance makes z look different, W² is 1/6 on average; w₀ = 2/6. A shape
    takes more rows to see than a shift or a scale: at 28 rows the first factor is a half.
    """
    n = column.effective
    middle = column.share.cumsum(0) - column.share / 2
    gap = normal.cdf((column.z - shift) / scale) - middle
    statistic = n * float((column.share * gap.square()).sum()) + 1 / (12 * n)
    return n**2 / (n**2 + 800) * max(0.0, 1 - (2 / (6 * statistic)) ** 2)


def _isotonic(column: Column) -> Knots:
    n = column.effective
    if n == 0:
        return _no_knots()
    # Equal z-scores share the middle of their ranks.
    points, group = torch.unique(column.tamed, return_inverse=True)
    size = torch.zeros_like(points).index_add_(0, group, torch.ones_like(column.z))
    level = torch.zeros_like(points).index_add_(0, group, column.level) / size
    lower = (n * level + PRIOR_POINTS * normal.cdf(points)) / (n + PRIOR_POINTS)
    upper = (n * (1 - level) + PRIOR_POINTS * normal.cdf(-points)) / (n + PRIOR_POINTS)
    s = normal.quantile_of(lower, upper)
    if len(points) < 3:
        return _with_tails(points, s, torch.ones_like(points), column)
    # Harmonic means of neighbouring chords keep every piece monotone and flat where the data are flat.
    chord = torch.diff(s) / torch.diff(points)
    inner = 2 / (1 / chord[1:] + 1 / chord[:-1])
    return _with_tails(points, s, torch.cat([chord[:1], inner, chord[-1:]]), column)


def _knot_positions(column: Column, width: float, shift: float, scale: float) -> Tensor:
    """Where to hold the smoothed map: at the evidence's quantiles, at the Gaussian's, and around the ends."""
    steps = torch.linspace(-5.5, 5.5, 133, dtype=torch.float64)
    levels = normal.cdf(steps[16:-16]).numpy()
    z = column.tamed
    from_data = torch.from_numpy(np.interp(levels, column.level.numpy(), z.numpy()))
    reach = width * torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0], dtype=torch.float64)
    parts = [from_data, from_data - width, from_data + width] if column.count < 100 else [from_data]
    return torch.cat([*parts, shift + scale * steps[::4], z[0] - reach, z[-1] + reach]).sort().values


def _with_tails(points: Tensor, s: Tensor, slope: Tensor, column: Column) -> Knots:
    """Keep knots that rise, and let the ends go on straight with the slope of the forecast's own tail."""
    if len(points) == 0:
        return _no_knots()
    points, s, slope = rising((points, s, slope), gap=1e-9 * max(1.0, column.scale))
    slope = slope.clamp(1e-9, 1e9)
    # An over-confident forecast's tail is stretched as its body is; never is a tail thinner than the forecast's.
    tail = 1 / max(1.0, column.scale)
    if len(points) == 1:
        return torch.cat([points, points + 1]), torch.cat([s, s + tail]), torch.full((2,), tail, dtype=torch.float64)
    slope[0] = slope[-1] = tail
    return points, s, slope


def rising(knots: Knots, *, gap: float) -> Knots:
    """The knots that rise above the one before: by more than a gap in z, and in s."""
    z, s, slope = knots
    if bool(((z.diff() > gap) & (s.diff() > 1e-9)).all()):
        return knots
    keep: list[int] = [0]
    at, height = z.tolist(), s.tolist()
    for i in range(1, len(at)):
        if at[i] - at[keep[-1]] > gap and height[i] - height[keep[-1]] > 1e-9:
            keep.append(i)
    return z[keep], s[keep], slope[keep]


def _no_knots() -> Knots:
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    return ends, ends, torch.ones_like(ends)


def _pad(knots: Knots, most: int) -> Knots:
    """More knots along the upper tail, so that columns stack; the map stays the same."""
    z, s, slope = knots
    further = torch.arange(1, most - len(z) + 1, dtype=torch.float64)
    end = slope[-1]
    return torch.cat([z, z[-1] + further]), torch.cat([s, s[-1] + end * further]), torch.cat([slope, end + 0 * further])

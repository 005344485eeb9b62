"""Step 4 of Algorithm 1: learn R from what held-out outcomes said about their forecasts.

Every `fit_*` takes PIT values p_t = F_t(y_t) of shape (n,) for one map or (n, d) for one map per column,
NaN where the outcome was not observed. `weight` lets some rows count more; `z` gives the same evidence as
z-scores Φ⁻¹(p_t), which do not round to 0 or 1 when a forecast is very over-confident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from calibrl.arrays import Array, as_tensor, threads
from calibrl.kernels import normal
from calibrl.maps.base import Map
from calibrl.maps.columns import FURTHEST, Column, Floats, column_of, columns_of, matrix, ranks_of, stack
from calibrl.maps.gaussian import rough_law
from calibrl.maps.parametric import IDENTITY, Affine, Beta, Chain, Platt, Sigmoid
from calibrl.maps.spline import Knots, Spline, no_knots, rising, smooth_knots, stacked, with_tails

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

M = TypeVar("M", bound=Map)
Learn: TypeAlias = Callable[[list[Column], tuple[int, ...]], M]


class FitMap(Protocol):
    """What `Calibrated` needs of a fitting function."""

    def __call__(self, pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:
        """The map R learnt from the evidence."""


def fit_smooth(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Spline:
    """The default map: the distribution of z smoothed with a kernel and shrunk to the identity by evidence.

    R(p) = M(Φ⁻¹(p)) with M(z) = w · Σ_i share_i Φ((z - z_i)/h_i) + (1 - w) · G((z - shift)/scale), held as a
    spline. Shift and scale leave the identity once the z-scores are, taken together, too far from N(0, 1) for
    chance; G is Φ, with a part of wider outcomes once their likelihood demands it, and the shape enters with w once
    they look unlike any Gaussian. No rows give the identity, a few rows change it only when they insist, and with
    many rows the error goes to zero whatever the shape of the miscalibration. Tails follow the outcomes as far out
    as three of them lie; between rows the density is smooth.

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


def shrunk_to(pooled: Map, fit: FitMap) -> FitMap:
    """`fit` for a group of few rows: what the map of all groups leaves wrong in this one, put on top of that map.

    With little evidence `fit` gives the identity, hence the group the map of all.

    Parameters
    ----------
    pooled : Map
        Fitted on all groups.
    fit : FitMap
        Any `fit_*`.

    Returns
    -------
    FitMap
        Gives a `Chain`, whose conformal intervals rest on the group's own rows.
    """

    def fit_group(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:
        values = normal.evidence_quantile(as_tensor(pit, "pit").double()) if z is None else as_tensor(z, "z").double()
        after = fit(z=pooled.forward_z(values), weight=weight)
        ranks = ranks_of(*columns_of(None, weight, values))
        return Chain(before=replace(pooled, ranks=None), after=replace(after, ranks=None), ranks=ranks)

    return fit_group


# The same on sorted evidence: columns and their shape, () or (d,), to one map for all of them.


def smooth(columns: list[Column], shape: tuple[int, ...]) -> Spline:
    """`fit_smooth`."""
    return stacked([smooth_knots(column) for column in columns], shape)


def isotonic(columns: list[Column], shape: tuple[int, ...]) -> Spline:
    """`fit_isotonic`."""
    return stacked([_isotonic(column) for column in columns], shape)


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
            zip(*((column.tamed, column.level, column.share * column.effective) for column in columns), strict=True),
            prior,
            strict=True,
        )
    )
    return z, target, size


def _isotonic(column: Column) -> Knots:
    n = column.effective
    if n == 0:
        return no_knots()
    # Equal z-scores share the middle of their ranks.
    points, group = torch.unique(column.supported, return_inverse=True)
    size = torch.zeros_like(points).index_add_(0, group, torch.ones_like(column.z))
    level = torch.zeros_like(points).index_add_(0, group, column.level) / size
    lower = (n * level + PRIOR_POINTS * normal.cdf(points)) / (n + PRIOR_POINTS)
    upper = (n * (1 - level) + PRIOR_POINTS * normal.cdf(-points)) / (n + PRIOR_POINTS)
    s = normal.quantile_of(lower, upper)
    # An over-confident forecast's tail is stretched as its body is; never is a tail thinner than the forecast's.
    tail = max(1.0, column.scale)
    if len(points) < 3:
        return with_tails((points, s, torch.ones_like(points)), tail, tail)
    # Harmonic means of neighbouring chords keep every piece monotone and flat where the data are flat.
    chord = torch.diff(s) / torch.diff(points)
    inner = 2 / (1 / chord[1:] + 1 / chord[:-1])
    return with_tails((points, s, torch.cat([chord[:1], inner, chord[-1:]])), tail, tail)


# Choosing a map by evidence: cross-validated score, with doing nothing as the standard to beat.

CANDIDATES: dict[str, Learn[Map]] = {
    "smooth": smooth,
    "affine": affine,
    "platt": platt,
    "beta": beta,
    "isotonic": isotonic,
}
FOLDS = 5
MOST_ROWS = 5_000
"""Rows the choice is made on; more would not change it. The chosen map is fitted on all."""

ROUNDING = 1e-9
"""What a score may be off by: gaining no more than that is gaining nothing."""


@threads(1)
def fit_auto(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:
    """The map with the best cross-validated CRPS, column by column, or the identity.

    A column keeps the identity unless the best candidate beats it by more than one standard error of the
    paired difference: too little evidence changes nothing. `note` says what was chosen.

    Parameters
    ----------
    pit, weight, z
        As in `fit_smooth`.

    Returns
    -------
    Map
        The chosen map; a `Spline` of all choices where there are several columns.
    """
    values, weights, _ = matrix(pit, weight, z)
    columns, shape = columns_of(pit, weight, z)
    names: list[str] = []
    maps: list[Map] = []
    for j, column in enumerate(columns):
        own = values[:, j], None if weights is None else weights[:, j]
        names.append(_best(*_shuffled(*own, is_z=z is not None)))
        learn = CANDIDATES.get(names[-1])
        maps.append(IDENTITY if learn is None else learn([column], ()))
    note = f"chosen by cross-validation: {', '.join(names)}"
    ranks = ranks_of(columns, shape)
    if not shape:
        return replace(maps[0], note=note, ranks=ranks)
    # Columns that chose differently stack as splines.
    return replace(stacked([_knots(mapping) for mapping in maps], shape), ranks=ranks, note=note)


def _shuffled(values: Floats, weight: Floats | None, *, is_z: bool) -> tuple[Floats, Floats | None]:
    """At most `MOST_ROWS` of the z-scores that were seen and count, in random order, with their weights."""
    rows = np.flatnonzero(~np.isnan(values) if weight is None else ~np.isnan(values) & (weight > 0))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:MOST_ROWS].numpy()
    some = torch.from_numpy(values[rows[order]])
    z = some.clamp(-FURTHEST, FURTHEST) if is_z else normal.evidence_quantile(some)
    return z.numpy(), None if weight is None else weight[rows[order]]


def _best(z: Floats, weight: Floats | None) -> str:
    """The name of the best candidate for one column's z-scores (n,), or "identity"."""
    if len(z) < FOLDS:
        return "identity"
    fold = np.arange(len(z)) % FOLDS
    # What each fold's maps learn from, sorted once for all candidates; each fold is a column of theirs.
    rest = [column_of(z[fold != k], None if weight is None else weight[fold != k], is_z=True) for k in range(FOLDS)]
    held, share = _by_fold(z), _by_fold(np.ones_like(z) if weight is None else weight)
    share = share / share.sum()
    plain = _crps(IDENTITY, held)

    def gain(name: str) -> Tensor:
        """What the map of the other folds saves on each row, weighted: (rows of a fold, folds)."""
        return share * (plain - _crps(CANDIDATES[name](rest, (FOLDS,)), held))

    gains = {name: gain(name) for name in CANDIDATES}
    name = max(gains, key=lambda candidate: float(gains[candidate].sum()))
    mean = gains[name].sum()
    error = torch.sqrt((gains[name] - share * mean).square().sum())
    return name if float(mean) > float(error) + ROUNDING else "identity"


def _by_fold(values: Floats) -> Tensor:
    """Values (n,) as (rows of a fold, folds), the last row filled up with zeros."""
    return torch.from_numpy(np.append(values, np.zeros(-len(values) % FOLDS)).reshape(-1, FOLDS))


def _crps(mapping: Map, z: Tensor) -> Tensor:
    """CRPS in units of the forecast's σ, were the forecast Gaussian."""
    return rough_law(mapping).crps(z, mapping.forward_z(z))


def _knots(mapping: Map) -> Knots:
    """Knots of a spline with the same values and slopes at even steps of the calibrated z."""
    s = torch.linspace(-6, 6, 241, dtype=torch.float64)
    z = mapping.inverse_z(s)
    # Where outcomes were as good as certain, and far from where expected, float64 has no room for all of them.
    return rising((z, s, torch.exp(mapping.log_slope_z(z))), gap=1e-9 * max(1.0, float(z.abs().max())))

"""Choosing a map by evidence: cross-validated score, with doing nothing as the standard to beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from calibrl.arrays import Array, one_thread
from calibrl.kernels import normal
from calibrl.maps import fit
from calibrl.maps.base import Map
from calibrl.maps.columns import FURTHEST, Floats, column_of, columns_of, matrix, ranks_of
from calibrl.maps.gaussian import rough_law
from calibrl.maps.parametric import IDENTITY
from calibrl.maps.spline import Knots, rising, stacked

CANDIDATES: dict[str, fit.Learn[Map]] = {
    "smooth": fit.smooth,
    "affine": fit.affine,
    "platt": fit.platt,
    "beta": fit.beta,
    "isotonic": fit.isotonic,
}
FOLDS = 5
MOST_ROWS = 5_000
"""Rows the choice is made on; more would not change it. The chosen map is fitted on all."""

ROUNDING = 1e-9
"""What a score may be off by: gaining no more than that is gaining nothing."""


@one_thread()
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

"""Choosing a map by evidence: cross-validated score, with doing nothing as the standard to beat."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from calibrl.arrays import Array
from calibrl.kernels import normal
from calibrl.maps.base import Map
from calibrl.maps.closed_form import IDENTITY
from calibrl.maps.evidence import FURTHEST, for_each_column, matrix, ranks_of, stack
from calibrl.maps.fit import FitMap, fit_affine, fit_beta, fit_isotonic, fit_platt, fit_smooth
from calibrl.maps.gaussian import gaussian_law
from calibrl.maps.spline import Spline

CANDIDATES: dict[str, FitMap] = {
    "smooth": fit_smooth,
    "affine": fit_affine,
    "platt": fit_platt,
    "beta": fit_beta,
    "isotonic": fit_isotonic,
}
FOLDS = 5
MOST_ROWS = 5_000
"""Rows the choice is made on; more would not change it. The chosen map is fitted on all."""


def fit_auto(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:
    """The map with the best cross-validated CRPS, column by column, or the identity.

    A column keeps the identity unless the best candidate beats it by more than one standard error of the
    paired difference: too little evidence changes nothing. `note` says what was chosen.
    """
    values, given_weights, shape = matrix(pit, weight, z)
    _, evidence, _ = for_each_column(pit, weight, z, lambda _: None)
    rows = torch.from_numpy(values)
    rows = rows.clamp(-FURTHEST, FURTHEST) if z is not None else normal.evidence_quantile(rows)
    weights = torch.ones_like(rows) if given_weights is None else torch.from_numpy(given_weights.copy())

    names: list[str] = []
    maps: list[Map] = []
    for j in range(rows.shape[1]):
        seen = ~rows[:, j].isnan() & (weights[:, j] > 0)
        column, column_weight = rows[seen, j], weights[seen, j]
        names.append(_best(column, column_weight))
        fit = CANDIDATES.get(names[-1])
        maps.append(IDENTITY if fit is None else fit(z=column, weight=column_weight))
    note = f"chosen by cross-validation: {', '.join(names)}"
    ranks = ranks_of(evidence, shape)
    if not shape:
        return replace(maps[0], note=note, ranks=ranks)
    # Columns that chose differently stack as splines.
    splines = [_as_spline(mapping) for mapping in maps]
    z_knots, s_knots, slope = (stack([part[i] for part in splines], shape) for i in range(3))
    return Spline(z=z_knots, s=s_knots, d=slope, ranks=ranks, note=note)


def _best(z: Tensor, weight: Tensor) -> str:
    """The name of the best candidate for one column's z-scores (n,), or "identity"."""
    if len(z) < FOLDS:
        return "identity"
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
    z, weight = z[order], weight[order]
    fold = torch.arange(len(z)) % FOLDS
    plain = _crps(IDENTITY, z)
    scores = {name: torch.empty_like(z) for name in CANDIDATES}
    for k in range(FOLDS):
        for name, fit in CANDIDATES.items():
            mapping = fit(z=z[fold != k], weight=weight[fold != k])
            scores[name][fold == k] = _crps(mapping, z[fold == k])
    share = weight / weight.sum()
    name = min(scores, key=lambda candidate: float((share * scores[candidate]).sum()))
    gain = plain - scores[name]
    mean = (share * gain).sum()
    error = torch.sqrt((share.square() * (gain - mean).square()).sum())
    return name if float(mean) > float(error) else "identity"


def _crps(mapping: Map, z: Tensor) -> Tensor:
    """CRPS in units of the forecast's σ, were the forecast Gaussian."""
    return gaussian_law(mapping, z.device).crps(z, mapping.forward_z(z))


def _as_spline(mapping: Map) -> tuple[Tensor, Tensor, Tensor]:
    """Knots (k,) of a spline with the same values and slopes at k even steps of the calibrated z."""
    s = torch.linspace(-6, 6, 241, dtype=torch.float64)
    z = mapping.inverse_z(s)
    return z, s, torch.exp(mapping.log_slope_z(z))

"""Fitting maps by name and by group, and what they are worth on rows they have not seen."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from calibrl.algorithm import Evidence, fit_to
from calibrl.classes import CLASS_FITS, ClassMap, FitClassMap, fit_auto_classes
from calibrl.errors import CalibrlError
from calibrl.maps import (
    FitMap,
    Map,
    fit_affine,
    fit_auto,
    fit_beta,
    fit_isotonic,
    fit_platt,
    fit_sigmoid,
    fit_smooth,
)

FOLDS = 5

_MAPS: dict[str, FitMap] = {
    "auto": fit_auto,
    "smooth": fit_smooth,
    "affine": fit_affine,
    "platt": fit_platt,
    "beta": fit_beta,
    "isotonic": fit_isotonic,
    "sigmoid": fit_sigmoid,
}
_CLASS_MAPS: dict[str, FitClassMap] = {"auto": fit_auto_classes, **CLASS_FITS}


def methods_for(kind: str) -> Mapping[str, FitMap] | Mapping[str, FitClassMap]:
    """The fitting functions for a kind of forecast, by name."""
    return _CLASS_MAPS if kind == "classes" else _MAPS


def fit_named(method: str, kind: str) -> FitMap | FitClassMap:
    """The fitting function called `method` for a kind of forecast, or an error that lists the known ones."""
    known = methods_for(kind)
    if method not in known:
        raise CalibrlError(f"method {method!r} is unknown for {kind}; known: {', '.join(known)}")
    return known[method]


def calibrate(evidence: Evidence, mapping: Map | ClassMap) -> Evidence:
    """What the outcomes say of the calibrated forecasts."""
    if isinstance(mapping, ClassMap):
        probs, label = evidence
        return mapping(probs), label
    if not isinstance(evidence, Tensor):
        raise CalibrlError(f"a {mapping.kind} map cannot calibrate class probabilities; fit a class map")
    return mapping.forward_z(evidence)


def cross_validate(
    evidence: Evidence, fit: FitMap | FitClassMap, *, folds: int = FOLDS
) -> list[tuple[Evidence, Evidence]]:
    """For each fold, its rows' evidence as forecast and after a map fitted on the other folds.

    Rows are dealt to the folds at random, seeded with 0, at least two to each: fewer than four rows give no
    folds. Losses are to be averaged over folds, not taken of all rows together: those share the maps' luck.
    """
    n = len(evidence) if isinstance(evidence, Tensor) else len(evidence[1])
    folds = min(folds, n // 2)
    if folds < 2:
        return []
    fold = torch.randperm(n, generator=torch.Generator().manual_seed(0)) % folds
    pairs = []
    for k in range(folds):
        held = take(evidence, fold == k)
        pairs.append((held, calibrate(held, fit_to([take(evidence, fold != k)], fit))))
    return pairs


def take(evidence: Evidence, rows: Tensor) -> Evidence:
    """The evidence of some rows, by their numbers or a (n,) mask."""
    return evidence[rows] if isinstance(evidence, Tensor) else (evidence[0][rows], evidence[1][rows])

"""Diagnostics of class probabilities: Brier score and its parts, expected calibration error, reliability."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from calibrl.arrays import Array, as_tensor
from calibrl.errors import CalibrlError
from calibrl.maps.classes import SMALLEST, check_classes


class BrierParts(NamedTuple):
    """score = calibration + sharpness, exactly; sharpness = uncertainty - resolution.

    calibration: what recalibration could win (0 is best). sharpness: what remains after it (0 is best).
    resolution: how far the forecasts tell cases apart. uncertainty: the score of always saying the base rate.
    """

    score: float
    calibration: float
    sharpness: float
    resolution: float
    uncertainty: float


def brier(probs: Array, outcome: Array) -> BrierParts:
    """The Brier score mean Σ_j (p_j - 1[y = j])² and its parts, found by isotonic regression, without bins.

    The parts are those of the CORP decomposition (Dimitriadis, Gneiting & Jordan, 2021).

    Parameters
    ----------
    probs : array
        (n,) probabilities of one event, whose score is (p - y)², or (n, k) of classes, summed over classes.
    outcome : array
        (n,) numbers of the classes that came true, or 0 and 1.

    Returns
    -------
    BrierParts
        The score, and what calibration could win of it.
    """
    wide, label = check_classes(probs, outcome)
    single = as_tensor(probs).dim() == 1
    parts = np.zeros(5)
    for j in range(1, 2) if single else range(wide.shape[1]):
        p, y = wide[:, j].numpy(), (label == j).double().numpy()
        honest = _pav(p, y)
        score, best, base = (float(np.mean((q - y) ** 2)) for q in (p, honest, np.full_like(y, y.mean())))
        parts += [score, score - best, best, base - best, base]
    return BrierParts(*parts.tolist())


class ClassReliability(NamedTuple):
    """Per bin: mean predicted probability, observed share, and number of rows; each (bins,), NaN where empty."""

    predicted: Tensor
    observed: Tensor
    rows: Tensor

    @property
    def gap(self) -> float:
        """The mean distance between predicted and observed, over rows."""
        full = self.rows > 0
        gap = (self.predicted[full] - self.observed[full]).abs()
        return float((gap * self.rows[full]).sum() / self.rows.sum())


def class_reliability(probs: Array, outcome: Array, *, bins: int = 15) -> ClassReliability:
    """How often events came true, by the probability they were given, in equal bins of it.

    Parameters
    ----------
    probs : array
        (n,) probabilities of one event, or (n, k) of classes, of which the most likely one is judged.
    outcome
        As in `brier`.
    bins : int
        How many.

    Returns
    -------
    ClassReliability
        Mean probability, observed share and number of rows of each bin.
    """
    if bins < 1:
        raise CalibrlError(f"bins {bins} is not a number of bins; use 1 or more")
    wide, label = check_classes(probs, outcome)
    single = as_tensor(probs).dim() == 1
    p = wide[:, 1] if single else wide.amax(-1)
    hit = (label == 1) if single else (wide.argmax(-1) == label)
    index = (p * bins).long().clamp(max=bins - 1)
    count = torch.bincount(index, minlength=bins).double()
    predicted = torch.bincount(index, weights=p, minlength=bins) / count
    observed = torch.bincount(index, weights=hit.double(), minlength=bins) / count
    return ClassReliability(predicted, observed, count)


def ece(probs: Array, outcome: Array, *, bins: int = 15) -> float:
    """Expected calibration error: the mean gap between predicted and observed share, bins weighted by rows.

    Parameters
    ----------
    probs, outcome, bins
        As in `class_reliability`.

    Returns
    -------
    float
        0 is best.
    """
    return class_reliability(probs, outcome, bins=bins).gap


@dataclass(frozen=True)
class ClassSummary:
    """What the outcomes say of class probabilities; `noise_floor` is the ECE that chance alone would give."""

    n: int
    classes: int
    accuracy: float
    confidence: float
    ece: float
    noise_floor: float
    brier: float
    brier_calibration: float
    brier_sharpness: float
    nll: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return asdict(self)

    def verdict(self) -> list[str]:
        """The verdict in plain sentences, the most important first."""
        sentences: list[str] = []
        gap = self.confidence - self.accuracy
        error = math.sqrt(max(self.accuracy * (1 - self.accuracy), 1e-9) / self.n)
        if self.ece < 2 * self.noise_floor:
            sentences.append(f"Calibrated as far as {self.n} outcomes can tell.")
        elif abs(gap) > 2 * error:
            sentences.append(
                f"{'Over' if gap > 0 else 'Under'}-confident: {self.confidence:.1%} sure on average, "
                f"right {self.accuracy:.1%} of the time."
            )
        else:
            sentences.append(
                "Miscalibrated: right on average, but high and low probabilities are off in different directions."
            )
        sentences.append(f"Expected calibration error {self.ece:.4g}; chance alone would give {self.noise_floor:.2g}.")
        sentences.append(
            f"Brier score {self.brier:.4g} = {self.brier_calibration:.2g} that calibration could win "
            f"+ {self.brier_sharpness:.4g} that only a better model can."
        )
        return sentences

    def __str__(self) -> str:
        return "\n".join(self.verdict())


def class_summary(probs: Array, outcome: Array) -> ClassSummary:
    """All diagnostics of class probabilities.

    Parameters
    ----------
    probs, outcome
        As in `brier`.

    Returns
    -------
    ClassSummary
        The numbers; printed, the verdict in sentences.
    """
    wide, label = check_classes(probs, outcome)
    parts = brier(probs, outcome)
    curve = class_reliability(probs, outcome)
    full = curve.rows > 0
    # Of a perfect forecaster, the share in a bin of m rows strays by √(2 p(1-p) / πm) on average.
    p, m = curve.predicted[full], curve.rows[full]
    stray = torch.sqrt(2 * p * (1 - p) / (torch.pi * m))
    return ClassSummary(
        n=len(wide),
        classes=wide.shape[1],
        accuracy=float((wide.argmax(-1) == label).double().mean()),
        confidence=float(wide.amax(-1).mean()),
        ece=curve.gap,
        noise_floor=float((stray * m).sum() / m.sum()),
        brier=parts.score,
        brier_calibration=parts.calibration,
        brier_sharpness=parts.sharpness,
        nll=float(-wide.gather(-1, label[:, None]).clamp(min=SMALLEST).log().mean()),
    )


def _pav(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The best increasing function of p as a forecast of y, at each row."""
    values, group, count = np.unique(p, return_inverse=True, return_counts=True)
    rate = np.bincount(group, weights=y, minlength=len(values)) / count
    return isotonic_regression(rate, weights=count).x[group]

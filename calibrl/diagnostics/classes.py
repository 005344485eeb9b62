"""Diagnostics of class probabilities: Brier score and its parts, expected calibration error, reliability."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from scipy.stats import cauchy as cauchy_law
from scipy.stats import chi2
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

    @property
    def noise_floor(self) -> float:
        """The gap of a perfect forecaster: in a bin of m rows the share strays by √(2 p(1-p) / πm) on average."""
        full = self.rows > 0
        p, m = self.predicted[full], self.rows[full]
        return float((torch.sqrt(2 * p * (1 - p) / (torch.pi * m)) * m).sum() / m.sum())


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


class ClassTest(NamedTuple):
    """How well chance explains the gap between class probabilities and outcomes: p-values, small where it does not.

    p_value: of all together, once in twenty below 0.05 for a calibrated forecaster. spiegelhalter: of the Brier score
    (Spiegelhalter, 1986). temperature, rates: against bolder or meeker probabilities, and against other base rates.
    by_class: (k,) against a logistic map of each class's own.
    """

    p_value: float
    spiegelhalter: float
    temperature: float
    rates: float
    by_class: Tensor


def class_test(probs: Array, outcome: Array) -> ClassTest:
    """Test whether class probabilities are calibrated.

    Score tests: as strong as likelihood ratios against fitted maps for small errors, without fitting any. They are put
    together by Cauchy's rule (Liu and Xie, 2020). Of few rows the law of the sum is simulated, with outcomes drawn from
    the probabilities themselves, so that it is exact; of many it is asymptotic.

    Parameters
    ----------
    probs, outcome
        As in `brier`.

    Returns
    -------
    ClassTest
    """
    wide, label = (part.numpy() for part in check_classes(probs, outcome))
    n, k = wide.shape
    log_p = np.log(wide.clip(SMALLEST))
    logit = log_p - np.log((1 - wide).clip(SMALLEST))
    draws = int(MOST_DRAWN // n)
    draws = min(draws, 999) if draws >= 199 else 0
    below = np.ascontiguousarray(wide.cumsum(1)[:, :-1].T)
    u = np.random.default_rng(0).random((draws, n))
    came = np.concatenate([label[None], sum((u > edge for edge in below), np.zeros((draws, n), dtype=np.int64))])

    # Of what came and of what might have come: the excess of each direction of error over what was expected, squared
    # and divided by its variance. Sharper (by Brier and by logarithm), likelier; and by class, likelier and bolder.
    row = np.arange(n)
    ones = [_scaled(values[row, came].sum(1), values, wide) for values in (wide, log_p)]
    owner = came + k * np.arange(len(came))[:, None]
    count = np.bincount(owner.ravel(), minlength=k * len(came)).reshape(-1, k) - wide.sum(0)
    bold = np.bincount(owner.ravel(), weights=logit[row, came].ravel(), minlength=k * len(came)).reshape(-1, k)
    bold = bold - (wide * logit).sum(0)
    likelier = np.diag(wide.sum(0)) - wide.T @ wide
    likely = np.einsum("da,ab,db->d", count, np.linalg.pinv(likelier, hermitian=True), count)
    spread = wide * (1 - wide)
    v11, v12, v22 = ((spread * logit**power).sum(0) for power in (0, 1, 2))
    # Of a class that hardly ever has a chance, only whether it came too often can be told.
    two = v11 * v22 - v12**2 > 1e-9 * (v11 * v22)
    two_sided = (v22 * count**2 - 2 * v12 * count * bold + v11 * bold**2) / np.where(two, v11 * v22 - v12**2, 1.0)
    own = np.where(two, chi2.sf(two_sided, 2), chi2.sf(count**2 / v11.clip(1e-300), 1))
    each = np.stack([*(chi2.sf(one, 1) for one in ones), chi2.sf(likely, max(k - 1, 1))], 1).clip(1e-300, 1 - 1e-12)
    weight = np.array([0.25, 0.3, 0.45]) if k == 2 else np.array([0.25, 0.3, 0.3])
    evidence = np.tan((0.5 - each) * np.pi) @ weight
    if k > 2:
        evidence += 0.15 * np.tan((0.5 - own.clip(1e-300, 1 - 1e-12)) * np.pi).mean(1)
    p_value = float(cauchy_law.sf(evidence[0]))
    if draws:
        p_value = float((1 + (evidence[1:] >= evidence[0]).sum()) / (draws + 1))
    spiegelhalter, temperature, rates = each[0].tolist()
    return ClassTest(p_value, spiegelhalter, temperature, rates, torch.from_numpy(own[0]))


def _scaled(total: np.ndarray, values: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """(Σ_i a_i(y_i) - its mean)² / its variance, of sums (d,) of values a (n, k) under probabilities (n, k)."""
    mean = (wide * values).sum(1)
    variance = float(((wide * values**2).sum(1) - mean**2).sum())
    return (total - mean.sum()) ** 2 / max(variance, 1e-300)


MOST_DRAWN = 2_000_000
"""Numbers drawn at most to simulate the law of a test."""


@dataclass(frozen=True)
class ClassSummary:
    """What the outcomes say of class probabilities.

    noise_floor: the ECE that chance alone would give. p_value, spiegelhalter, by_class: see `ClassTest`. said, came:
    (k,) the mean probability of each class and the share of rows in which it came true.
    """

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
    p_value: float
    spiegelhalter: float
    by_class: tuple[float, ...]
    said: tuple[float, ...]
    came: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return asdict(self)

    def verdict(self) -> list[str]:
        """The verdict in plain sentences, the most important first."""
        sentences: list[str] = []
        gap = self.confidence - self.accuracy
        error = math.sqrt(max(self.accuracy * (1 - self.accuracy), 1e-9) / self.n)
        worst = min(range(self.classes), key=lambda k: self.by_class[k])
        said, came = self.said[worst], self.came[worst]
        off = abs(said - came) > 2 * math.sqrt(said * (1 - said) / self.n)
        if self.p_value > SIGNIFICANT:
            sentences.append(f"Calibrated as far as {self.n} outcomes can tell.")
        elif abs(gap) > 2 * error:
            sentences.append(
                f"{'Over' if gap > 0 else 'Under'}-confident: {self.confidence:.1%} sure on average, "
                f"right {self.accuracy:.1%} of the time."
            )
        elif off:
            sentences.append(
                f"Miscalibrated by class: class {worst} came true in {came:.1%} of rows, with {said:.1%} forecast."
            )
        else:
            sentences.append(
                "Miscalibrated: right on average, but high and low probabilities are off in different directions."
            )
        sentences.append(f"Chance alone would look as bad in {_odds(self.p_value)} of cases.")
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
    parts, test = brier(probs, outcome), class_test(probs, outcome)
    curve = class_reliability(probs, outcome)
    return ClassSummary(
        n=len(wide),
        classes=wide.shape[1],
        accuracy=float((wide.argmax(-1) == label).double().mean()),
        confidence=float(wide.amax(-1).mean()),
        ece=curve.gap,
        noise_floor=curve.noise_floor,
        brier=parts.score,
        brier_calibration=parts.calibration,
        brier_sharpness=parts.sharpness,
        nll=float(-wide.gather(-1, label[:, None]).clamp(min=SMALLEST).log().mean()),
        p_value=test.p_value,
        spiegelhalter=test.spiegelhalter,
        by_class=tuple(test.by_class.tolist()),
        said=tuple(wide.mean(0).tolist()),
        came=tuple((torch.bincount(label, minlength=wide.shape[1]).double() / len(label)).tolist()),
    )


SIGNIFICANT = 0.05
"""A p-value below is taken for a fault of the forecast."""


def _odds(p_value: float) -> str:
    return f"{p_value:.2%}" if p_value >= 0.0005 else "less than 0.1%"


def _pav(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The best increasing function of p as a forecast of y, at each row."""
    values, group, count = np.unique(p, return_inverse=True, return_counts=True)
    rate = np.bincount(group, weights=y, minlength=len(values)) / count
    return isotonic_regression(rate, weights=count).x[group]

"""Diagnostics of class probabilities: Brier score and its parts, expected calibration error, reliability."""

from __future__ import annotations

import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from scipy.special import logsumexp
from scipy.stats import chi2
from torch import Tensor

from calibrl.arrays import Array, as_tensor
from calibrl.errors import check_count
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
    check_count("bins", bins, "is not a number of bins")
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

    Spiegelhalter's test, the likelihood ratio against the best temperature and base rates, and score tests of each
    class are put together as a mean of Bayes factors. Its law is simulated with outcomes drawn from the probabilities
    themselves: exact for up to 4000 rows; of more, 4000 are drawn.

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
    # Of the rows themselves, so that the same rows get the same answer, and others' do not err together.
    rng = np.random.default_rng([zlib.crc32(part.tobytes()) for part in (wide, label)])
    some = wide if n <= MOST_ROWS else wide[rng.choice(n, MOST_ROWS, replace=False)]
    edges = np.ascontiguousarray(some.cumsum(1)[:, :-1].T)
    found, evidence = _faults(wide, label[None])
    draws = int(np.clip(MOST_DRAWN // (len(some) * k), 199, 999))
    # So many that look as bad are too many to call the forecast wrong, whatever would follow: no need to draw on.
    enough = round(SIGNIFICANT * (draws + 1))
    done = worse = 0
    while done < draws and worse < enough:
        u = rng.random((min(100, draws - done), len(some)))
        came = sum((u > edge for edge in edges), np.zeros(u.shape, dtype=np.int64))
        as_bad = np.flatnonzero(_faults(some, came)[1] >= evidence - 1e-9)[: enough - worse]
        worse += len(as_bad)
        done += len(u) if worse < enough else int(as_bad[-1]) + 1
    p_value = worse / done if worse == enough else (1 + worse) / (draws + 1)
    if n > MOST_ROWS:
        # A mean of Bayes factors exceeds x once in x times at most: that reaches further than a few draws can.
        p_value = min(p_value, math.exp(-max(float(evidence[0]), 0.0)))
    (spiegelhalter, temperature, rates), by_class = np.split(found[0], [3])
    return ClassTest(p_value, float(spiegelhalter), float(temperature), float(rates), torch.from_numpy(by_class))


def _faults(wide: np.ndarray, came: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P-values (d, 3 + k) of each direction of error, and the log of the mean Bayes factor (d,), of outcomes (d, n).

    The excess of each direction over what was expected, squared and divided by its variance: sharper (by Brier and by
    logarithm), likelier; and by class, likelier and bolder.
    """
    n, k = wide.shape
    log_p = np.log(wide.clip(SMALLEST))
    logit = log_p - np.log((1 - wide).clip(SMALLEST))
    row = np.arange(n)
    brier, bolder = (_scaled(values[row, came].sum(1), values, wide) for values in (wide, log_p))
    owner = (came + k * np.arange(len(came))[:, None]).ravel()
    count, bold = (
        np.bincount(owner, weights=weights, minlength=k * len(came)).reshape(-1, k) - expected.sum(0)
        for weights, expected in ((None, wide), (logit[row, came].ravel(), wide * logit))
    )
    likelier = np.diag(wide.sum(0)) - wide.T @ wide
    likely = np.einsum("da,ab,db->d", count, np.linalg.pinv(likelier, hermitian=True), count)
    v11, v12, v22 = ((wide * (1 - wide) * logit**power).sum(0) for power in (0, 1, 2))
    # Of a class that hardly ever has a chance, only whether it came too often can be told.
    two = v11 * v22 - v12**2 > 1e-9 * (v11 * v22)
    both = (v22 * count**2 - 2 * v12 * count * bold + v11 * bold**2) / np.where(two, v11 * v22 - v12**2, 1.0)
    own = np.where(two, both, count**2 / v11.clip(1e-300))
    fitted, known = _likelihood_ratio(wide, log_p, log_p[row, came].sum(1), count)

    found = chi2.sf(np.stack([brier, bolder, likely, *own.T], 1), np.array([1, 1, max(k - 1, 1), *(1 + two)]))
    squares, freedom = np.stack([brier, fitted, *own.T], 1), np.array([1, known, *(1 + two)])
    # Two classes are one direction of error each: what is wrong with one is wrong with the other, and was fitted.
    weight = np.array([0.4, 0.6, 0, 0]) if k == 2 else np.array([0.45, 0.45, *(k * [0.1 / k])])
    # An error as large as can just be seen: freedom + 4 √freedom is what its square comes to.
    size = 4 / np.sqrt(freedom)
    factor = (squares * size / (1 + size) - freedom * np.log1p(size)) / 2
    return found, logsumexp(factor, axis=1, b=weight)


def _likelihood_ratio(
    wide: np.ndarray, log_p: np.ndarray, said: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, int]:
    """Twice the log-likelihood ratio (d,) of softmax(a log p + b) to p, and its degrees of freedom.

    Of outcomes whose log-probabilities sum to `said` (d,) and whose classes exceed expectation by `count` (d, k). The
    best of half, once and twice a Newton step is taken for the maximum, which costs up to a point of power.
    """
    n, k = wide.shape
    off = log_p - (wide * log_p).sum(1, keepdims=True)
    bold, both = (wide * off**2).sum().reshape(1, 1), (wide * off).sum(0)[None]
    information = np.block([[bold, both], [both.T, np.diag(wide.sum(0)) - wide.T @ wide]])
    unit = np.sqrt(np.diag(information).clip(1e-300))
    scaled = information / unit / unit[:, None]
    score = np.column_stack([said - (wide * log_p).sum(), count]) / unit
    step = score @ np.linalg.pinv(scaled, rtol=1e-9, hermitian=True)
    gain = (score * step).sum(1)
    step /= unit
    # What the likelihood is more or less than a parabola is told by some of the rows.
    some = np.unique(np.linspace(0, n - 1, min(n, max(2000 // k, 100))).astype(int))
    # Classes first: sums over them are quickest.
    p, off = (np.ascontiguousarray(part[some].T)[:, None] for part in (wide, off))
    best = np.full(len(count), -np.inf)
    for i in range(0, len(count), at_once := max(1, 500_000 // p.size)):
        part = slice(i, i + at_once)
        move = step[part, 0, None] * off + step[part, 1:].T[:, :, None]
        move -= (p * move).sum(0)
        curved = (p * move**2).sum(0) / 2
        likelier = np.exp(move.clip(-100, 100) / 2)
        for t in (0.5, 1.0, 2.0):
            rest = (np.log((p * likelier).sum(0)) - t**2 * curved).sum(1) * n / len(some)
            best[part] = np.maximum(best[part], (2 * t - t**2) * gain[part] - 2 * rest)
            likelier *= likelier
    return best, max(int(np.linalg.matrix_rank(scaled, rtol=1e-9, hermitian=True)), 1)


def _scaled(total: np.ndarray, values: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """(Σ_i a_i(y_i) - its mean)² / its variance, of sums (d,) of values a (n, k) under probabilities (n, k)."""
    mean = (wide * values).sum(1)
    variance = float(((wide * values**2).sum(1) - mean**2).sum())
    return (total - mean.sum()) ** 2 / max(variance, 1e-300)


MOST_DRAWN, MOST_ROWS = 8_000_000, 4_000
"""Numbers drawn at most to simulate the law of a test, for each class of each row, and rows they are drawn for."""


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

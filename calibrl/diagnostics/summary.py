"""All diagnostics at once, and what they mean in words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from calibrl.arrays import Array, as_tensor
from calibrl.data import SeenRows, numeric_rows
from calibrl.diagnostics.calibration import (
    calibration_error,
    calibration_loss,
    coverage,
    effective_rows,
    is_sorted,
    noise_floor,
)
from calibrl.diagnostics.classes import ClassSummary, class_summary
from calibrl.diagnostics.scores import crps, nll, pinball, sharpness, width
from calibrl.distributions import Recalibrated, from_zscore, is_discrete, outcomes_for, pit_z, zscore, zscore_left
from calibrl.distributions.given import Answers, Fitted, Kind, model_and_rows
from calibrl.distributions.kinds import by_column, class_rows
from calibrl.errors import CalibrlError, ReusedRows
from calibrl.kernels import normal

INTERVALS = (0.5, 0.8, 0.9, 0.95)

UNSURE, UNSURE_LEVELS = 2.5, 1.5
"""Over √(effective rows): how far the estimate of them may be off; of quantiles, whose test is at 1 %, less."""


@dataclass(frozen=True)
class Summary:
    """What the outcomes say of a forecast.

    n: outcomes seen. calibration_loss: Σ_j (p̂_j - p_j)² over 19 levels. calibration_error: mean |p̂_j - p_j|.
    noise_floor: the calibration loss chance alone gives a perfect forecaster. coverage, width: of central
    intervals, by level. sharpness: root-mean-square predictive deviation. crps, nll, pinball: proper scores,
    lower is better. bias: mean z-score of the outcomes (0 when the forecast is centred, + when outcomes are
    higher). spread: standard deviation of the z-scores (1 when the width is right, more when over-confident).
    expected: what the intervals would hold were the forecast right: their level, or more where outcomes are counts.
    pit_coverage: what the 90 % interval holds with outcomes of counts drawn within their mass, to be judged by.
    effective: of how many independent outcomes these say as much as, where rows or columns resemble each other.
    """

    n: int
    calibration_loss: float
    calibration_error: float
    noise_floor: float
    coverage: dict[float, float]
    width: dict[float, float]
    sharpness: float
    crps: float
    nll: float
    pinball: float
    bias: float
    spread: float
    expected: dict[float, float] = field(default_factory=lambda: {level: level for level in INTERVALS})
    pit_coverage: float | None = None
    effective: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON; infinite scores become None, which JSON can hold."""
        plain = asdict(self)
        for name in ("coverage", "width", "expected"):
            plain[name] = {f"{level:g}": value for level, value in plain[name].items()}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}

    def verdict(self) -> list[str]:
        """The verdict in plain sentences, the most important first."""
        ratio = self.calibration_loss / self.noise_floor
        effective = self.n if self.effective is None else max(self.effective, 1.0)
        inside = self.coverage[0.9] if self.pit_coverage is None else self.pit_coverage
        spread_error = 0.75 / math.sqrt(max(effective, 2))
        sentences: list[str] = []
        # A calibrated forecaster's ratio exceeds 3 once in twenty to fifty, its coverage strays this far once in a
        # thousand. How much rows resemble each other is an estimate too.
        most = 3 if effective == self.n else 3 * (1 + UNSURE / math.sqrt(effective))
        strays = abs(inside - 0.9) > 3.3 * math.sqrt(0.9 * 0.1 / effective)
        if ratio < most and not strays:
            sentences.append(f"Calibrated as far as {self.n} outcomes can tell{_as_many(self.n, effective)}.")
        else:
            log_spread = math.log(self.spread) if self.spread > 0 else -math.inf
            if log_spread > 3 * spread_error and inside < 0.9:
                sentences.append(f"Over-confident: outcomes spread {self.spread:.2g} times as wide as forecast.")
            elif log_spread < -3 * spread_error and inside > 0.9:
                sentences.append(f"Under-confident: outcomes spread only {self.spread:.2g} times as wide as forecast.")
            if abs(self.bias) > 3 * max(self.spread, 1e-9) / math.sqrt(effective) and abs(self.bias) > 0.05:
                side = "higher" if self.bias > 0 else "lower"
                sentences.append(
                    f"Biased: outcomes are {side} than forecast, by {abs(self.bias):.2g} forecast deviations."
                )
            if not sentences:
                sentences.append(
                    "Wrong in shape: neither centre nor width explains the misses (skew, tails or several peaks)."
                )
        should = ""
        if any(abs(self.expected[level] - level) > 0.005 for level in (0.9, 0.5)):
            should = f" (of whole numbers they should hold {self.expected[0.9]:.1%} and {self.expected[0.5]:.1%})"
        sentences.append(
            f"The 90 % interval holds {self.coverage[0.9]:.1%} of outcomes, the 50 % interval {self.coverage[0.5]:.1%}"
            f"{should}."
        )
        sentences.append(
            f"Calibration loss {self.calibration_loss:.4g}; chance alone would give {self.noise_floor:.2g} "
            f"({ratio:.3g} times that)."
        )
        return sentences

    def __str__(self) -> str:
        return "\n".join(self.verdict())


def _as_many(n: int, effective: float) -> str:
    return "" if effective > 0.9 * n else f", which say as much as {effective:.0f} independent ones"


def summary(
    forecast: Distribution, y: Array, *, generator: torch.Generator | None = None, block: int | None = None
) -> Summary:
    """Every diagnostic of a forecast against outcomes; columns are pooled.

    Warns with `ReusedRows` when the rows are those a map was fitted on.

    Parameters
    ----------
    forecast, y
        As in `crps`.
    generator : torch.Generator, optional
        Randomises the PITs of forecasts with atoms (counts), which need it.
    block : int, optional
        So many consecutive rows resemble each other (a trajectory's length); 1 where the order of rows means nothing.
        Without it the rows tell: see `effective_rows`.

    Returns
    -------
    Summary
        The numbers; printed, the verdict in sentences.

    Examples
    --------
    >>> import torch, calibrl as cal
    >>> y = 2 * torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> print(cal.summary(torch.distributions.Normal(torch.zeros_like(y), 1.0), y))  # doctest: +ELLIPSIS
    Over-confident: outcomes spread 2 times as wide as forecast.
    The 90 % interval holds 59...% of outcomes, the 50 % interval 2...%.
    Calibration loss 0.2...; chance alone would give 0.0033 (...times that).
    """
    forecast = by_column(forecast)
    outcome = outcomes_for(forecast, y)
    found = _summary(forecast, outcome, generator, block)
    _warn_if_reused(forecast, outcome, generator)
    return found


def _summary(forecast: Distribution, outcome: Tensor, generator: torch.Generator | None, block: int | None) -> Summary:
    z = pit_z(forecast, outcome, generator=generator)
    seen = z[~z.isnan()]
    if not seen.numel():
        raise CalibrlError("no outcome was seen: every y is NaN; nothing to summarise")
    p = normal.cdf(z)
    p = p if p.dim() in (1, 2) else p.reshape(-1)
    if block is None and is_sorted(outcome.reshape(len(outcome), -1).cpu().numpy() if outcome.dim() else p.numpy()):
        block = 1
    alike = effective_rows(p, block=block)
    covered, expected = _held(forecast, outcome, p)
    return Summary(
        n=seen.numel(),
        calibration_loss=calibration_loss(p),
        calibration_error=calibration_error(p),
        noise_floor=noise_floor((~p.isnan()).sum(0)) * alike.inflation,
        coverage=covered,
        width={level: width(forecast, level) for level in INTERVALS},
        sharpness=sharpness(forecast),
        crps=crps(forecast, outcome),
        nll=nll(forecast, outcome),
        pinball=pinball(forecast, outcome),
        bias=float(seen.mean()),
        spread=float(seen.std()) if seen.numel() > 1 else math.nan,
        expected=expected,
        pit_coverage=coverage(p, 0.9),
        effective=alike.rows,
    )


def _held(forecast: Distribution, outcome: Tensor, p: Tensor) -> tuple[dict[float, float], dict[float, float]]:
    """By level, the share of outcomes inside the interval, and the share that a right forecast's would hold.

    Quantiles of counts are whole numbers: the interval between two holds them and more than its level.
    """
    if not is_discrete(forecast):
        return {level: coverage(p, level) for level in INTERVALS}, {level: level for level in INTERVALS}
    held, expected = {}, {}
    seen = ~outcome.isnan()
    for level in INTERVALS:
        z = normal.quantile(torch.tensor((1 + level) / 2, dtype=torch.float64, device=outcome.device))
        low, high = (from_zscore(forecast, end.expand(outcome.shape)) for end in (-z, z))
        held[level] = float(((outcome >= low) & (outcome <= high))[seen].double().mean())
        mass = normal.cdf(zscore(forecast, high)) - normal.cdf(zscore_left(forecast, low))
        expected[level] = float(mass[seen].mean())
    return held, expected


def check(
    model: Any,
    *rows: Any,
    levels: Sequence[float] | None = None,
    kind: Kind | None = None,
    classes: Sequence[Any] | None = None,
    generator: torch.Generator | None = None,
    block: int | None = None,
) -> Summary | ClassSummary:
    """Judge a model, or forecasts, on rows; warns with `ReusedRows` if it was trained or calibrated on any of them.

    Parameters
    ----------
    model : Forecaster
        Answers x with a distribution; or a fitted model of another package that states its uncertainty, or forecasts,
        as in `calibrate`.
    *rows
        x and y, (x, y) or `Data`: rows it has never seen, x (n, …), y (n,) or (n, d). Beside forecasts y alone.
    levels, kind, classes
        What answers or forecasts are, as in `calibrate`.
    generator, block
        As in `summary`.

    Returns
    -------
    Summary or ClassSummary
        The latter for forecasts of classes.

    Examples
    --------
    >>> import torch, calibrl as cal
    >>> x = torch.linspace(-1, 1, 400, dtype=torch.float64)[:, None]
    >>> y = x[:, 0] + torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> found = cal.check(lambda x: torch.distributions.Normal(x[:, 0], 1.0), cal.Data(x, y))
    >>> print(str(found).splitlines()[0])
    Calibrated as far as 400 outcomes can tell.
    """
    model, x, given = model_and_rows(model, rows)
    asked = model if isinstance(model, Answers) else Fitted(model, levels=levels, kind=kind, classes=classes)
    y = asked.outcomes(given)
    seen: SeenRows | None = getattr(model, "seen", None)  # the wrappers of `algorithm` keep one
    numeric = numeric_rows(x, y) if seen is not None else None
    if seen is not None and numeric is not None and (overlap := seen.overlap(numeric)) > 0:
        warnings.warn(
            f"{overlap:.0%} of these rows were used to train or calibrate the model: it will look better than it is; "
            "check on rows it has never seen",
            ReusedRows,
            stacklevel=2,
        )
    with torch.no_grad():
        forecast = by_column(asked.forecast(x))
    if isinstance(asked, Fitted):
        asked.refuse_ends(x, y)
    if isinstance(forecast, (Categorical, Bernoulli)):
        return class_summary(*class_rows(forecast, y))
    return _summary(forecast, outcomes_for(forecast, y), generator, block)


def _warn_if_reused(forecast: Distribution, y: Tensor, generator: torch.Generator | None) -> None:
    """A map remembers order statistics of the z-scores it was fitted on: meeting them again gives it away."""
    if not isinstance(forecast, Recalibrated) or forecast.mapping.ranks is None:
        return
    if generator is not None:
        return  # randomised PITs differ from draw to draw
    old, new = (normal.cdf(z).cpu().numpy() for z in (forecast.mapping.ranks.z, pit_z(forecast.base, y)))
    columns = [(old, new.ravel())] if old.ndim == 1 else list(zip(old, new.reshape(-1, len(old)).T, strict=True))
    # Ten digits: more than chance ever repeats, fewer than a trip through the PIT loses. The ends may saturate.
    marks = [np.sort((now * 1e10).round()) for _, now in columns]
    before = [(a[(a > 1e-6) & (a < 1 - 1e-6)] * 1e10).round() for a, _ in columns]
    found = np.concatenate(
        [mark.take(mark.searchsorted(a), mode="clip") == a for a, mark in zip(before, marks, strict=True)]
    )
    # Rounded forecasts of rounded outcomes meet again by chance, as often as rows of one file are like each other.
    every = marks[0] if len(marks) == 1 else np.sort(np.concatenate(marks))
    alike = 2 * (1 - (1 + np.count_nonzero(np.diff(every))) / max(len(every), 1))
    if found.size and float(found.mean()) > max(0.5, alike + 0.2):
        warnings.warn(
            "these are rows the map was fitted on: it will look better than it is; summarise rows it has never seen",
            ReusedRows,
            stacklevel=3,
        )


# Forecasts known at a few levels only: what outcomes say of those, and nothing about levels in between.

ALPHA = 0.01
"""How often a calibrated forecaster is called wrong."""

FEW, DRAWS = 5.0, 9999
"""Where fewer outcomes than this are expected between two levels, chance is drawn so many times, not looked up."""


@dataclass(frozen=True)
class QuantileSummary:
    """What the outcomes say of quantiles at k levels.

    n: outcomes seen. levels: (k,). observed: the share of outcomes at or below each quantile. calibration_loss,
    calibration_error: Σ_j (p̂_j - p_j)² and mean |p̂_j - p_j| over the levels, an outcome that equals a quantile counted
    on the side that fits. noise_floor: the loss that chance alone gives a perfect forecaster. p_value: how often chance
    alone would spread outcomes over the levels at least this unevenly. coverage, width: of the central intervals whose
    two ends are among the levels. pinball: mean pinball loss over the levels, lower is better. effective: of how many
    independent outcomes these say as much as.
    """

    n: int
    levels: tuple[float, ...]
    observed: tuple[float, ...]
    calibration_loss: float
    calibration_error: float
    noise_floor: float
    p_value: float
    coverage: dict[float, float]
    width: dict[float, float]
    pinball: float
    effective: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        plain = asdict(self)
        for name in ("coverage", "width"):
            plain[name] = {f"{level:g}": value for level, value in plain[name].items()}
        return {**plain, "levels": list(self.levels), "observed": list(self.observed)}

    def verdict(self) -> list[str]:
        """The verdict in plain sentences, the most important first."""
        held = [f"the {100 * level:g} % interval {share:.1%}" for level, share in self.coverage.items()]
        sentences = [self._headline()]
        if held and not (len(held) == 1 and "interval holds" in sentences[0]):
            first, *others = held[::-1]
            holds = first.replace("interval", "interval holds") + " of outcomes"
            sentences.append(", ".join([holds, *others[:3]]).replace("the", "The", 1) + ".")
        ratio = self.calibration_loss / self.noise_floor
        sentences.append(
            f"Calibration loss at {len(self.levels)} levels {self.calibration_loss:.4g}; chance alone would give "
            f"{self.noise_floor:.2g} ({ratio:.3g} times that)."
        )
        return sentences

    def _headline(self) -> str:
        if self.p_value >= ALPHA:
            alike = _as_many(self.n, self.effective)
            return f"Calibrated as far as {self.n} outcomes can tell at {len(self.levels)} levels{alike}."
        for level, share in reversed(self.coverage.items()):
            if abs(share - level) > 3 * np.sqrt(level * (1 - level) / self.effective):
                word = "Over-confident" if share < level else "Under-confident"
                return f"{word}: the {100 * level:g} % interval holds {share:.1%} of outcomes."
        off = np.subtract(self.observed, self.levels)
        worst = int(np.abs(off / np.sqrt(np.multiply(self.levels, np.subtract(1, self.levels)))).argmax())
        told = f"{self.observed[worst]:.1%} of outcomes are at or below the {100 * self.levels[worst]:g} % quantile"
        if (off > 0).all() or (off < 0).all():
            return f"Biased: outcomes are {'lower' if off[worst] > 0 else 'higher'} than forecast, {told}."
        return f"Wrong in shape: {told}."

    def __str__(self) -> str:
        return "\n".join(self.verdict())


def quantile_summary(values: Array, levels: Array, y: Array, *, block: int | None = None) -> QuantileSummary:
    """What outcomes say of quantiles, at the levels that were forecast.

    Parameters
    ----------
    values : array
        (n, k) quantiles, each row ascending.
    levels : array
        (k,) ascending, in (0, 1).
    y : array
        (n,) outcomes, NaN where unseen.
    block
        As in `summary`.

    Returns
    -------
    QuantileSummary
        The numbers; printed, the verdict in sentences.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.random.default_rng(0).standard_normal(1000)
    >>> found = quantile_summary(np.tile([-1.2816, 1.2816], (1000, 1)), [0.1, 0.9], y)
    >>> print(found.verdict()[0])
    Calibrated as far as 1000 outcomes can tell at 2 levels.
    """
    quantiles, share, outcome = (as_tensor(part).detach().double().cpu().numpy() for part in (values, levels, y))
    if quantiles.ndim != 2 or share.shape != quantiles.shape[1:] or outcome.shape != quantiles.shape[:1]:
        raise CalibrlError(
            f"quantiles {quantiles.shape}, levels {share.shape} and outcomes {outcome.shape} do not belong together; "
            "expected (n, k), (k,) and (n,)"
        )
    seen = ~np.isnan(outcome)
    # The middle of the levels that an outcome fell between stands for its PIT.
    middle = (np.append(share, 1.0) + np.append(0.0, share)) / 2
    between = np.where(seen, middle[(outcome[:, None] > quantiles).sum(1)], np.nan)
    block = 1 if block is None and is_sorted(outcome) else block
    quantiles, outcome, n = quantiles[seen], outcome[seen, None], int(seen.sum())
    if not n:
        raise CalibrlError("no outcome was seen: every y is NaN; nothing to summarise")
    effective = effective_rows(between, block=block).rows
    below, at_most = (outcome < quantiles).sum(0), (outcome <= quantiles).sum(0)
    # Counts have outcomes on a quantile: the level is right if it lies between the two shares.
    fitting = np.clip(n * share, below, at_most)
    off = fitting / n - share
    miss = outcome - quantiles
    pairs = {}
    for low, level in enumerate(share):
        high = int(np.abs(share - (1 - level)).argmin())
        if low < high and abs(share[high] - (1 - level)) < 1e-9:
            pairs[round(float(share[high] - level), 10)] = low, high
    central = {level: pairs[level] for level in sorted(pairs)}
    return QuantileSummary(
        n=n,
        levels=tuple(share.tolist()),
        observed=tuple((at_most / n).tolist()),
        calibration_loss=float((off**2).sum()),
        calibration_error=float(np.abs(off).mean()),
        noise_floor=float((share * (1 - share)).sum() / effective),
        p_value=_uneven(fitting, share, n, effective),
        coverage={
            level: float(((quantiles[:, a] <= outcome[:, 0]) & (outcome[:, 0] <= quantiles[:, b])).mean())
            for level, (a, b) in central.items()
        },
        width={level: float((quantiles[:, b] - quantiles[:, a]).mean()) for level, (a, b) in central.items()},
        pinball=float(np.maximum(share * miss, (share - 1) * miss).mean()),
        effective=effective,
    )


def _uneven(at_most: np.ndarray, levels: np.ndarray, n: int, effective: float) -> float:
    """The p-value of Pearson's test of n outcomes over the k + 1 bins between levels. at_most: (k,) counts.

    Of outcomes that resemble each other the statistic is divided by how much (Rao and Scott, 1981), an estimate itself.
    """
    chance = np.diff(levels, prepend=0.0, append=1.0)
    counts = np.diff(at_most, prepend=0, append=n)
    alike = 1.0 if effective == n else n / effective * (1 + UNSURE_LEVELS / math.sqrt(effective))
    statistic = float(((counts - n * chance) ** 2 / (n * chance)).sum()) / alike
    n = max(round(n / alike), 1)
    if n * chance.min() >= FEW:
        return float(stats.chi2.sf(statistic, len(levels)))
    drawn = np.random.default_rng(0).multinomial(n, chance / chance.sum(), DRAWS)
    extreme = (((drawn - n * chance) ** 2 / (n * chance)).sum(1) >= statistic * (1 - 1e-12)).sum()
    return float((1 + extreme) / (1 + DRAWS))

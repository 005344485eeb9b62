"""Forecasts known at a few levels only: what outcomes say of those, and nothing about levels in between."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from calibrl.arrays import Array, as_tensor
from calibrl.errors import CalibrlError

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
    two ends are among the levels. pinball: mean pinball loss over the levels, lower is better.
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
            return f"Calibrated as far as {self.n} outcomes can tell at {len(self.levels)} levels."
        for level, share in reversed(self.coverage.items()):
            if abs(share - level) > 3 * np.sqrt(level * (1 - level) / self.n):
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


def quantile_summary(values: Array, levels: Array, y: Array) -> QuantileSummary:
    """What outcomes say of quantiles, at the levels that were forecast.

    Parameters
    ----------
    values : array
        (n, k) quantiles, each row ascending.
    levels : array
        (k,) ascending, in (0, 1).
    y : array
        (n,) outcomes, NaN where unseen.

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
    quantiles, outcome, n = quantiles[seen], outcome[seen, None], int(seen.sum())
    if not n:
        raise CalibrlError("no outcome was seen: every y is NaN; nothing to summarise")
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
        noise_floor=float((share * (1 - share)).sum() / n),
        p_value=_uneven(fitting, share, n),
        coverage={
            level: float(((quantiles[:, a] <= outcome[:, 0]) & (outcome[:, 0] <= quantiles[:, b])).mean())
            for level, (a, b) in central.items()
        },
        width={level: float((quantiles[:, b] - quantiles[:, a]).mean()) for level, (a, b) in central.items()},
        pinball=float(np.maximum(share * miss, (share - 1) * miss).mean()),
    )


def _uneven(at_most: np.ndarray, levels: np.ndarray, n: int) -> float:
    """The p-value of Pearson's test of n outcomes over the k + 1 bins between levels. at_most: (k,) counts."""
    chance = np.diff(levels, prepend=0.0, append=1.0)
    counts = np.diff(at_most, prepend=0, append=n)
    statistic = float(((counts - n * chance) ** 2 / (n * chance)).sum())
    if n * chance.min() >= FEW:
        return float(stats.chi2.sf(statistic, len(levels)))
    drawn = np.random.default_rng(0).multinomial(n, chance / chance.sum(), DRAWS)
    extreme = (((drawn - n * chance) ** 2 / (n * chance)).sum(1) >= statistic * (1 - 1e-12)).sum()
    return float((1 + extreme) / (1 + DRAWS))

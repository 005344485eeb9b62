"""How well each map repairs a forecast, by the number of rows it learns from.

    python benchmarks/quality.py [--out results/core/quality.jsonl] [--repeats 40]

The forecast is N(0, 1); the truth is something else. Excess CRPS = ∫ (R(Φ(x)) - F(x))² dx: 0 for the truth
itself, in units of the forecast's σ. Most of these truths had no part in choosing the default map's
constants, but a Gumbel much like this one did, and earlier versions of this table were read while they were chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor

import calibrl as cal
from calibrl.kernels import normal
from calibrl.maps import FitMap, Map
from calibrl.runs import rows as results

SIZES = (10, 20, 50, 100, 1000)
SLOW = 8
"""Choosing a map fits dozens: it is measured on one sample in eight, and its standard errors say so."""
GRID = torch.linspace(-30, 30, 6001, dtype=torch.float64)


class Contaminated:
    """Nine outcomes in ten as forecast, the tenth from a Gaussian three times as wide."""

    def rvs(self, size: tuple[int, int], random_state: np.random.Generator) -> np.ndarray:
        wide = random_state.random(size) < 0.1
        return random_state.normal(size=size) * np.where(wide, 3.0, 1.0)

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return 0.9 * stats.norm.cdf(x) + 0.1 * stats.norm.cdf(x / 3)


def standard(law: stats.rv_continuous, *shape: float) -> stats.rv_continuous:
    """The law shifted and stretched to mean 0 and variance 1."""
    plain = law(*shape)
    return law(*shape, loc=-plain.mean() / plain.std(), scale=1 / plain.std())


TRUTHS = {
    "calibrated": stats.norm(),
    "σ 1.5 × the forecast's": stats.norm(0, 1.5),
    "σ 0.6 × the forecast's": stats.norm(0, 0.6),
    "bias 0.4, σ 1.3 ×": stats.norm(0.4, 1.3),
    "logistic": standard(stats.logistic),
    "Gumbel": standard(stats.gumbel_r),
    "uniform": standard(stats.uniform),
    "contaminated 90/10": Contaminated(),
    "asymmetric Laplace": standard(stats.laplace_asymmetric, 1.5),
}
MAPS: dict[str, FitMap] = {
    "smooth": cal.fit_smooth,
    "isotonic": cal.fit_isotonic,
    "affine": cal.fit_affine,
    "platt": cal.fit_platt,
    "beta": cal.fit_beta,
    "auto": cal.fit_auto,
}
Law = Callable[[Tensor], Tensor]
"""x (k,) → the recalibrated CDF there, one column per repeat: (k, repeats)."""


def law_of(mapping: Map, repeats: int) -> Law:
    return lambda x: normal.cdf(mapping.forward_z(x[:, None].expand(-1, repeats)))


def isotonic_of_peers(z: np.ndarray) -> Law:
    """scikit-learn's isotonic regression on (PIT, i/n), read as a CDF with no mass outside the PITs it saw."""
    from sklearn.isotonic import IsotonicRegression

    def law(x: Tensor) -> Tensor:
        p, columns = stats.norm.cdf(x.numpy()), []
        for seen in np.sort(stats.norm.cdf(z), axis=0).T:
            fitted = IsotonicRegression(out_of_bounds="clip").fit(seen, np.arange(1, len(seen) + 1) / len(seen))
            columns.append(np.where(p < seen[0], 0.0, np.where(p >= seen[-1], 1.0, fitted.predict(p))))
        return torch.from_numpy(np.stack(columns, -1))

    return law


def excess(law: Law, truth: np.ndarray) -> np.ndarray:
    """1000 × ∫ (G - F)² dx of each repeat, by the trapezoid rule."""
    gap = (law(GRID) - torch.from_numpy(truth)[:, None]).square()
    return 1000 * torch.trapezoid(gap, GRID, dim=0).numpy()


def measure(name: str, n: int, repeats: int) -> dict[str, np.ndarray]:
    """Excess CRPS of each map on `repeats` samples of n rows."""
    seed = [list(TRUTHS).index(name), n]
    z = TRUTHS[name].rvs(size=(n, repeats), random_state=np.random.default_rng(seed))
    truth = TRUTHS[name].cdf(GRID.numpy())
    found = {"none": excess(lambda x: normal.cdf(x)[:, None].expand(-1, repeats), truth)}
    for label, fit in MAPS.items():
        some = z[:, : repeats // SLOW] if label == "auto" else z
        found[label] = excess(law_of(fit(z=some), some.shape[1]), truth)
    return found | {"isotonic, as peers fit it": excess(isotonic_of_peers(z), truth)}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    words.add_argument("--repeats", type=int, default=40, help="samples per truth and size")
    given = words.parse_args()
    torch.set_num_threads(1)
    origin = results.origin()
    table = Table(title="excess CRPS × 1000 ± standard error")
    for heading in ("truth", "rows", "none", *MAPS, "peers' isotonic"):
        table.add_column(heading)
    for name in TRUTHS:
        for n in SIZES:
            scores = measure(name, n, given.repeats)
            errors = {label: score.std(ddof=1) / len(score) ** 0.5 for label, score in scores.items()}
            cells = [f"{score.mean():.3g} ± {errors[label]:.1g}" for label, score in scores.items()]
            table.add_row(name, str(n), *cells)
            if given.out:
                rows = [
                    results.Row(
                        experiment="quality",
                        problem=name,
                        arm=label,
                        seed=0,
                        step=n,
                        metrics={"excess_crps_x1000": float(score.mean()), "standard_error": float(errors[label])},
                        settings={"repeats": len(score)},
                        origin=origin,
                    )
                    for label, score in scores.items()
                ]
                results.append(given.out, rows)
    Console(width=170).print(table)


if __name__ == "__main__":
    main()

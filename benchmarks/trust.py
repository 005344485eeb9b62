"""How often each guarantee holds and how often each verdict is right, on simulated truths.

    python benchmarks/trust.py [--out results/core/trust.jsonl] [--repeats 200] [--jobs 1]

Every number is a share over repeats, each with a seed of its own that nothing was tuned on: of outcomes inside
intervals that should hold 90 %, or of data sets that were called miscalibrated (of calibrated ones the size of the
verdict, of others its power).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import special, stats
from scipy.signal import lfilter
from torch.distributions import Normal

import calibrl as cal
from calibrl.runs import rows as results

FIRST_SEED = 50_000
D = torch.float64
Rng = np.random.Generator


class LeastSquares:
    """As sure as its residuals look."""

    rows: cal.Data | None = None

    def update(self, data: cal.Data) -> None:
        self.rows = data if self.rows is None else self.rows + data
        x, y = self.rows.x, self.rows.y
        self.beta = torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution[:, 0]
        self.scale = (y - x @ self.beta).std().clamp(min=1e-6)

    def __call__(self, x: torch.Tensor) -> Normal:
        return Normal(x @ self.beta, self.scale)


class Fixed:
    """N(0, 1), whatever it is taught."""

    def update(self, data: cal.Data) -> None:
        pass

    def __call__(self, x: torch.Tensor) -> Normal:
        return Normal(torch.zeros(len(x), dtype=D), 1.0)


def inside(ends: tuple[torch.Tensor, torch.Tensor], y: torch.Tensor) -> float:
    return float(((y >= ends[0]) & (y <= ends[1])).double().mean())


def regression(rng: Rng, *, features: int, wrapper: str) -> float:
    x = torch.from_numpy(rng.normal(size=(500, features)))
    y = x @ torch.from_numpy(rng.normal(size=features)) / features**0.5 + torch.from_numpy(rng.standard_t(4, size=500))
    model = (
        cal.CrossFitted(LeastSquares)
        if wrapper == "CV+"
        else cal.Calibrated(
            LeastSquares(),
            evidence=cal.HeldOut(cal.random_split(0.3, torch.Generator().manual_seed(int(rng.integers(1e9))))),
        )
    )
    model.update(cal.Data(x[:100], y[:100]))
    return inside(model(x[100:]).interval(0.9, guarantee="conformal"), y[100:])


def held_out(rng: Rng, *, n: int, guarantee: str) -> float:
    """Of a gamma law under a Gaussian forecast: its share inside, or whether that is at least 0.9."""
    law = stats.gamma(3)
    z = torch.from_numpy(law.rvs(size=n, random_state=rng))
    forecast = cal.Recalibrated(Normal(torch.zeros(1, dtype=D), 1.0), cal.fit_affine(z=z))
    low, high = (float(end) for end in forecast.interval(0.9, guarantee=guarantee))
    share = float(law.cdf(high) - law.cdf(low))
    return float(share >= 0.9) if guarantee == "tolerance" else share


def weighted(rng: Rng) -> float:
    """Rows of a kind that is wider become nine times likelier; weights say so."""
    wide = rng.random(150) < 0.5
    z = torch.from_numpy(rng.normal(size=150) * np.where(wide, 2.0, 1.0))
    low, high = cal.fit_affine(z=z, weight=torch.from_numpy(np.where(wide, 9.0, 1.0))).ranks.interval_z(0.9)
    shares = [float(special.ndtr(float(high) / s) - special.ndtr(float(low) / s)) for s in (2.0, 1.0)]
    return 0.9 * shares[0] + 0.1 * shares[1]


def stream(rng: Rng, *, path: str) -> float:
    t = np.arange(600)
    paths = {"steady": 0 * t + 1.0, "spread jumps 2.5 ×": np.where(t < 200, 1.0, 2.5), "wave": 1 + 0.7 * np.sin(t / 60)}
    y = torch.from_numpy(rng.normal(size=600) * paths.get(path, 1.0) + (0.01 * t if path == "bias drifts" else 0.0))
    model = cal.Calibrated(Fixed(), evidence=cal.Rolling(forget=0.98, refit_every=10), fit_map=cal.fit_affine)
    hits = []
    for now in y:
        hits.append(inside(model(torch.zeros(1, 1)).interval(0.9, guarantee="conformal"), now))
        model.update(cal.Data(torch.zeros(1, 1), now[None]))
    return float(np.mean(hits[200:]))


def alarm(found: cal.Summary) -> float:
    return float(not found.verdict()[0].startswith("Calibrated"))


def continuous(
    rng: Rng, *, n: int, phi: float = 0.0, columns: int = 1, together: float = 0.0, scale: float = 1.0
) -> float:
    noise = rng.normal(size=(n, columns)) * (1 - together) ** 0.5 + together**0.5 * rng.normal(size=(n, 1))
    noise[1:] *= (1 - phi**2) ** 0.5
    y = torch.from_numpy(scale * lfilter([1.0], [1.0, -phi], noise, axis=0))
    return alarm(cal.summary(Normal(torch.zeros_like(y), 1.0), y))


def levels(rng: Rng, *, n: int, phi: float, scale: float = 1.0) -> float:
    """Of quantiles at five levels."""
    at = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    noise = rng.normal(size=n)
    noise[1:] *= (1 - phi**2) ** 0.5
    found = cal.diagnostics.quantile_summary(
        np.tile(special.ndtri(at), (n, 1)), at, scale * lfilter([1.0], [1.0, -phi], noise)
    )
    return float(not found.verdict()[0].startswith("Calibrated"))


def classes(
    rng: Rng,
    *,
    n: int,
    k: int,
    bold: float = 1.0,
    gap: float = 0.0,
    coin: bool = False,
    swap: bool = False,
    likelier: float = 0.0,
) -> float:
    logits = 1.5 * rng.normal(size=(n, k))
    truth, said = special.softmax(logits, 1), special.softmax(bold * logits + likelier * (np.arange(k) == 0), 1)
    if gap:
        said = np.tile([0.4, 0.6], (n, 1))
        truth = said + np.array([gap, -gap])
    if coin:
        said = np.stack([1 - (p := rng.random(n)), p], 1)
        truth = np.full((n, 2), 0.5)
    if swap:
        said, truth = np.tile([0.6, 0.1, 0.3], (n, 1)), np.tile([0.6, 0.3, 0.1], (n, 1))
    label = (rng.random((n, 1)) > truth.cumsum(1)[:, :-1]).sum(1)
    return alarm(cal.class_summary(said, label))


def band(rng: Rng, *, n: int) -> float:
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    low, high = cal.diagnostics.reliability_band(rng.random(n), levels)
    return float(((low <= levels) & (levels <= high)).mean())


SCENARIOS: dict[tuple[str, str, int], Callable[[Rng], float]] = {
    **{
        ("split conformal", "gamma under a Gaussian", n): partial(held_out, n=n, guarantee="conformal")
        for n in (19, 100, 1000)
    },
    **{
        ("tolerance, 95 % sure", "gamma under a Gaussian", n): partial(held_out, n=n, guarantee="tolerance")
        for n in (50, 100, 1000)
    },
    ("weighted conformal", "wide rows 9 × likelier", 150): weighted,
    **{
        (wrapper, f"least squares, {p} features", 100): partial(regression, features=p, wrapper=wrapper)
        for wrapper in ("split conformal", "CV+")
        for p in (20, 95, 100)
    },
    **{
        ("adaptive", path, 400): partial(stream, path=path)
        for path in ("steady", "spread jumps 2.5 ×", "wave", "bias drifts")
    },
    **{("summary: size", "independent", n): partial(continuous, n=n) for n in (20, 100, 1000)},
    **{("summary: size", "autoregressive 0.8", n): partial(continuous, n=n, phi=0.8) for n in (100, 1000)},
    ("summary: size", "20 columns correlated 0.9", 200): partial(continuous, n=200, columns=20, together=0.9),
    **{("summary: power", "spread 1.3 ×", n): partial(continuous, n=n, scale=1.3) for n in (100, 300)},
    ("summary: power", "autoregressive 0.8, spread 1.5 ×", 1000): partial(continuous, n=1000, phi=0.8, scale=1.5),
    **{
        ("class summary: size", f"{k} classes", n): partial(classes, n=n, k=k)
        for k, n in ((2, 20), (2, 500), (10, 100))
    },
    ("class summary: power", "coin flips", 50): partial(classes, n=50, k=2, coin=True),
    ("class summary: power", "8 points off", 500): partial(classes, n=500, k=2, gap=0.08),
    ("class summary: power", "two of three classes swapped", 500): partial(classes, n=500, k=3, swap=True),
    ("class summary: power", "temperature 1.5, 3 classes", 300): partial(classes, n=300, k=3, bold=1.5),
    **{("reliability band", "five levels", n): partial(band, n=n) for n in (10, 100)},
    ("class summary: power", "one class of four too likely", 250): partial(classes, n=250, k=4, likelier=0.45),
    ("class summary: power", "temperature 0.72, 2 classes", 350): partial(classes, n=350, k=2, bold=0.72),
    **{
        ("quantile summary: size, of 0.01", "autoregressive 0.9", n): partial(levels, n=n, phi=0.9) for n in (100, 1000)
    },
    ("quantile summary: power", "autoregressive 0.9, spread 1.5 ×", 1000): partial(levels, n=1000, phi=0.9, scale=1.5),
}


def one(task: tuple[tuple[str, str, int], int]) -> float:
    torch.set_num_threads(1)
    name, seed = task
    return SCENARIOS[name](np.random.default_rng([FIRST_SEED + seed, list(SCENARIOS).index(name)]))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    words.add_argument("--repeats", type=int, default=200, help="per scenario")
    words.add_argument("--jobs", type=int, default=1, help="processes")
    given = words.parse_args()
    origin = results.origin()
    table = Table(title="shares ± standard error")
    for heading in ("what", "of", "rows", "share"):
        table.add_column(heading)
    with ProcessPoolExecutor(given.jobs) as pool:
        for name in SCENARIOS:
            repeats = given.repeats if name[0] != "adaptive" else max(2, given.repeats // 10)
            shares = np.array(list(pool.map(one, [(name, seed) for seed in range(repeats)], chunksize=4)))
            error = float(shares.std(ddof=1) / len(shares) ** 0.5)
            table.add_row(name[0], name[1], str(name[2]), f"{shares.mean():.3f} ± {error:.3f}")
            if given.out:
                row = results.Row(
                    experiment="trust",
                    problem=name[1],
                    arm=name[0],
                    seed=FIRST_SEED,
                    step=name[2],
                    metrics={"share": float(shares.mean()), "standard_error": error},
                    settings={"repeats": repeats},
                    origin=origin,
                )
                results.append(given.out, [row])
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

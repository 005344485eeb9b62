"""How often each guarantee holds and how often each verdict is right, on simulated truths.

    python benchmarks/trust.py [--out results/core/trust.jsonl] [--repeats 200] [--jobs 1] [--only words]
    python benchmarks/trust.py --bound [--out results/core/trust.jsonl]

Every number is a share over repeats, each with a seed of its own that nothing was tuned on: of outcomes inside
intervals that should hold 90 %, or of data sets that were called miscalibrated (of calibrated ones the size of the
verdict, of others its power). `class summary beside two tests` judges the same data by Spiegelhalter's test and by the
likelihood ratio against the best temperature and base rates, each at 5 %; `--bound` works out how many points of power
every test must fall behind the better of those two.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import optimize, special, stats
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
    low, high = cal.fit_affine(z=z, weight=torch.from_numpy(np.where(wide, 9.0, 1.0))).ranks.bounds_z(0.05, 0.05)
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


def spells(rng: Rng, n: int) -> np.ndarray:
    """Calm and wild spells of 30 rows, under a forecast that knows both and not which."""
    wild = np.logical_xor.accumulate(rng.random(n) < 1 / 30)
    y = rng.normal(size=n) * np.where(wild, 1.5, 0.5)
    return special.ndtri((special.ndtr(y / 1.5) + special.ndtr(y / 0.5)) / 2)


def repeated(rng: Rng, n: int) -> np.ndarray:
    """Each row is that before it, nine times in ten."""
    return rng.normal(size=n)[np.maximum.accumulate(np.where(rng.random(n) < 0.1, np.arange(n), 0))]


def fractional(rng: Rng, n: int, d: float) -> np.ndarray:
    k = np.arange(1, 4000)
    weight = np.append(1.0, np.cumprod((k - 1 + d) / k))
    return np.convolve(rng.normal(size=n + len(weight) - 1), weight, "valid") / (weight**2).sum() ** 0.5


def filtered(rng: Rng, n: int, ahead: list[float], back: list[float], columns: int = 1) -> np.ndarray:
    """An autoregressive moving average (n, columns), of variance 1."""
    sharp = lfilter(ahead, back, np.append(1.0, np.zeros(5000)))
    noise = rng.normal(size=(n + 1000, columns))
    return lfilter(ahead, back, noise, axis=0)[1000:] / (sharp**2).sum() ** 0.5


def season(period: int, kept: float) -> list[float]:
    return [1.0, *[0.0] * (period - 1), -kept]


DEPENDENT: dict[str, Callable[[Rng, int], np.ndarray]] = {
    "autoregressive moving average (0.85, -0.5)": lambda rng, n: filtered(rng, n, [1, -0.5], [1, -0.85]),
    "quarters, 0.85 of the year before": lambda rng, n: filtered(rng, n, [1], season(4, 0.85)),
    "weekly and autoregressive 0.6": lambda rng, n: (
        (filtered(rng, n, [1], season(7, 0.7)) + filtered(rng, n, [1], [1, -0.6])) / 2**0.5
    ),
    "calm and wild spells": spells,
    "each row repeated ten times on average": repeated,
    "eight stores one after another, autoregressive 0.7": lambda rng, n: filtered(
        rng, n // 8, [1], [1, -0.7], 8
    ).T.reshape(-1),
    "eight stores a day, days shared 0.4": lambda rng, n: (
        0.4**0.5 * filtered(rng, n // 8, [1], [1, -0.5]) + 0.6**0.5 * rng.normal(size=(n // 8, 8))
    ).reshape(-1),
    "autoregressive 0.99": lambda rng, n: filtered(rng, n, [1], [1, -0.99]),
    "long memory, d = 0.25": lambda rng, n: fractional(rng, n, 0.25),
}


def alike(rng: Rng, *, kind: str, n: int, scale: float = 1.0) -> float:
    """Rows that resemble each other."""
    y = torch.from_numpy(scale * DEPENDENT[kind](rng, n).reshape(-1))
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
    return alarm(cal.class_summary(said, drawn(rng, truth)))


def drawn(rng: Rng, truth: np.ndarray) -> np.ndarray:
    return (rng.random((len(truth), 1)) > truth.cumsum(1)[:, :-1]).sum(1)


def event(p: np.ndarray) -> np.ndarray:
    return np.stack([1 - p, p], 1)


def softmax(rng: Rng, n: int, k: int, spread: float = 1.5) -> np.ndarray:
    return special.softmax(spread * rng.normal(size=(n, k)), 1)


def several_networks(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of five noisy models' probabilities is too meek."""
    logits = 2 * rng.normal(size=(n, 3))
    return special.softmax(logits + 1.2 * rng.normal(size=(5, n, 3)), 2).mean(0), special.softmax(logits, 1)


def of_own_slope(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes, the first three of which are forecast too boldly and the others too meekly."""
    said = rng.dirichlet(np.full(10, 0.5), n).clip(1e-6)
    return said, special.softmax(np.log(said) * np.where(np.arange(10) < 3, 0.55, 1.15), 1)


def above_half(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    p = rng.random(n)
    return event(p), event(np.where(p > 0.5, 0.5 + 0.55 * (p - 0.5), p))


def confused(rng: Rng, n: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    said = softmax(rng, n, 4)
    truth = said.copy()
    truth[:, 1], truth[:, 2] = said[:, 1] + share * said[:, 2], (1 - share) * said[:, 2]
    return said, truth


def on_some_rows(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    truth = softmax(rng, n, 3)
    return special.softmax(np.log(truth) * np.where(rng.random(n) < 0.3, 2.2, 1.0)[:, None], 1), truth


ERRORS: dict[tuple[str, int], Callable[[Rng, int], tuple[np.ndarray, np.ndarray]]] = {
    ("events as p^1.35, p of Beta(2, 5)", 120): lambda rng, n: (event(p := rng.beta(2, 5, n)), event(p**1.35)),
    ("one label in twelve is noise, 4 classes", 150): lambda rng, n: (p := softmax(rng, n, 4), p * 11 / 12 + 1 / 48),
    ("two of four classes confused", 200): lambda rng, n: confused(rng, n, 0.3),
    ("base rates of 6 classes moved", 250): lambda rng, n: (
        p := softmax(rng, n, 6),
        special.softmax(np.log(p) + 0.3 * rng.normal(size=6), 1),
    ),
    ("probit forecasts of a logistic truth", 400): lambda rng, n: (
        event(special.ndtr(x := 1.5 * rng.normal(size=n))),
        event(special.expit(1.3 * x)),
    ),
    ("rounded up to tenths", 250): lambda rng, n: (event(np.ceil(10 * (p := rng.random(n))) / 10), event(p)),
    ("mean of five networks, 3 classes", 100): several_networks,
    ("events of 4 %, odds forecast 1.9 ×", 400): lambda rng, n: (
        event(special.expit((x := rng.normal(size=n) - 3.6) + np.log(1.9))),
        event(special.expit(x)),
    ),
    ("odds forecast 1/2.5, events of 8 %", 150): lambda rng, n: (
        event(special.expit((x := 1.2 * rng.normal(size=n) - 3) - np.log(2.5))),
        event(special.expit(x)),
    ),
    ("too bold on 30 % of rows, 3 classes", 250): on_some_rows,
    ("slopes of 10 classes differ", 300): of_own_slope,
    ("too bold above one half only", 200): above_half,
    ("meek and shifted events", 60): lambda rng, n: (
        event(special.expit(0.6 * (x := 1.4 * rng.normal(size=n)))),
        event(special.expit(x + 0.6)),
    ),
    ("bold and shifted, 5 classes", 120): lambda rng, n: (
        special.softmax(1.35 * np.log(p := softmax(rng, n, 5)) + 0.5 * (np.arange(5) == 2), 1),
        p,
    ),
}


def contest(rng: Rng, *, kind: str, n: int) -> tuple[float, float, float]:
    """Whether `class_summary`, Spiegelhalter's test and the likelihood ratio call one data set miscalibrated."""
    said, truth = ERRORS[kind, n](rng, n)
    label = drawn(rng, truth)
    spread = ((said**3).sum(1) - (said**2).sum(1) ** 2).sum()
    z = (said[np.arange(n), label].sum() - (said**2).sum()) / spread**0.5
    ratio, freedom = likelihood_ratio(said, label)
    two = float(abs(z) > stats.norm.isf(0.025)), float(ratio > stats.chi2.isf(0.05, freedom))
    return alarm(cal.class_summary(said, label)), *two


def likelihood_ratio(said: np.ndarray, label: np.ndarray) -> tuple[float, int]:
    """Twice the gain in log-likelihood of softmax(a log p + b), fitted, and its degrees of freedom."""
    log_p = np.log(said.clip(1e-12))
    one = (label[:, None] == np.arange(said.shape[1])).astype(float)

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        logits = at[0] * log_p + np.append(0.0, at[1:])
        off = special.softmax(logits, 1) - one
        value = special.logsumexp(logits, 1).sum() - (one * logits).sum()
        return value, np.append((off * log_p).sum(), off.sum(0)[1:])

    start = np.append(1.0, np.zeros(said.shape[1] - 1))
    found = optimize.minimize(loss, start, jac=True, method="BFGS", options={"maxiter": 200})
    return 2 * (loss(start)[0] - found.fun), len(start)


def least_behind(k: int, cell: float = 0.12) -> float:
    """How far behind the better of two tests, in the worst case, each test of size 5 % must fall: minimax, as a limit.

    Scores are Gaussian there: one along Spiegelhalter's direction, and k - 1 along the fitted map's others, of which
    only the length matters (Hunt and Stein). A test gives each cell of the two a chance to be called wrong; a linear
    program finds those that leave the least to wish for at 90 errors.
    """
    along, across = np.arange(cell / 2, 9.0, cell), np.arange(cell / 2, 9.0 + (k - 1) ** 0.5, cell)

    def mass(a: float, b: float) -> np.ndarray:
        first = sum(
            np.diff(stats.norm.cdf([along - cell / 2 - s * a, along + cell / 2 - s * a]), axis=0) for s in (-1, 1)
        )
        law = stats.ncx2(k - 1, b * b) if b > 0 else stats.chi2(k - 1)
        return np.outer(first, np.diff(law.cdf([(across - cell / 2) ** 2, (across + cell / 2) ** 2]), axis=0)).ravel()

    angles, lengths = np.meshgrid(np.linspace(0, np.pi / 2, 10), np.linspace(1, 5, 9))
    errors = np.stack([lengths * np.cos(angles), lengths * np.sin(angles)], -1).reshape(-1, 2).clip(0)
    critical = stats.norm.isf(0.025)
    spiegelhalter = stats.norm.sf(critical - errors[:, 0]) + stats.norm.cdf(-critical - errors[:, 0])
    ratio = stats.ncx2.sf(stats.chi2.isf(0.05, k), k, (errors**2).sum(1))
    found = np.array([mass(a, b) for a, b in errors])
    limits = np.vstack([np.append(mass(0, 0), 0), np.hstack([-found, -np.ones((len(found), 1))])])
    cost = np.append(np.zeros(found.shape[1]), 1.0)
    return float(
        optimize.linprog(
            cost,
            limits,
            np.append(0.05, -np.maximum(spiegelhalter, ratio)),
            bounds=[*[(0, 1)] * found.shape[1], (0, 1)],
        ).fun
    )


def band(rng: Rng, *, n: int) -> float:
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    low, high = cal.diagnostics.reliability_band(rng.random(n), levels)
    return float(((low <= levels) & (levels <= high)).mean())


SCENARIOS: dict[tuple[str, str, int], Callable[[Rng], float | tuple[float, float, float]]] = {
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
    **{("summary: size", kind, n): partial(alike, kind=kind, n=n) for kind in DEPENDENT for n in (200, 1000)},
    **{
        ("summary: power", f"{kind}, spread 1.5 ×", 1000): partial(alike, kind=kind, n=1000, scale=1.5)
        for kind in list(DEPENDENT)[:7]
    },
    **{("summary: power", "spread 1.3 ×", n): partial(continuous, n=n, scale=1.3) for n in (100, 300)},
    ("summary: power", "autoregressive 0.8, spread 1.5 ×", 1000): partial(continuous, n=1000, phi=0.8, scale=1.5),
    **{
        ("class summary: size", f"{k} classes", n): partial(classes, n=n, k=k)
        for k, n in ((2, 20), (2, 500), (4, 60), (10, 100))
    },
    **{("class summary beside two tests", kind, n): partial(contest, kind=kind, n=n) for kind, n in ERRORS},
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


def one(task: tuple[tuple[str, str, int], int]) -> float | tuple[float, float, float]:
    torch.set_num_threads(1)
    name, seed = task
    # Of its name: scenarios that come and go leave the others' draws as they are.
    return SCENARIOS[name](np.random.default_rng([FIRST_SEED + seed, zlib.crc32(repr(name).encode())]))


def measured(shares: np.ndarray) -> dict[str, float]:
    """Means of shares (r,), or of ours beside those of two others (r, 3), with standard errors."""
    ours = shares if shares.ndim == 1 else shares[:, 0]
    found = {"share": float(ours.mean()), "standard_error": float(ours.std(ddof=1) / len(ours) ** 0.5)}
    if shares.ndim == 1:
        return found
    behind = shares[:, 1:].T[int(shares[:, 2].mean() > shares[:, 1].mean())] - ours
    two = dict(zip(("spiegelhalter", "likelihood_ratio"), shares[:, 1:].mean(0).tolist(), strict=True))
    behind_error = float(behind.std(ddof=1) / len(behind) ** 0.5)
    return {**found, **two, "behind": float(behind.mean()), "behind_error": behind_error}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    words.add_argument("--repeats", type=int, default=200, help="per scenario")
    words.add_argument("--jobs", type=int, default=1, help="processes")
    words.add_argument("--only", default="", help="scenarios whose names begin with these words")
    words.add_argument("--bound", action="store_true", help="how far any test of classes must fall behind two")
    given = words.parse_args()
    origin = results.origin()
    table = Table(title="shares ± standard error")
    for heading in ("what", "of", "rows", "share"):
        table.add_column(heading)

    def keep(name: tuple[str, str, int], metrics: dict[str, float], settings: dict[str, int]) -> None:
        if given.out:
            what, of, rows = name
            row = results.Row(
                experiment="trust",
                problem=of,
                arm=what,
                seed=FIRST_SEED,
                step=rows,
                metrics=metrics,
                settings=settings,
                origin=origin,
            )
            results.append(given.out, [row])

    if given.bound:
        for k in (2, 3, 5, 10, 20):
            table.add_row(BOUND, f"{k} classes", "", f"{(least := least_behind(k)):.3f}")
            keep((BOUND, f"{k} classes", 0), {"behind": least}, {})
    with ProcessPoolExecutor(given.jobs) as pool:
        for name in [] if given.bound else [name for name in SCENARIOS if name[0].startswith(given.only)]:
            repeats = given.repeats if name[0] != "adaptive" else max(2, given.repeats // 10)
            found = measured(np.array(list(pool.map(one, [(name, seed) for seed in range(repeats)], chunksize=4))))
            told = f"{found['share']:.3f} ± {found['standard_error']:.3f}"
            if "behind" in found:
                told += f", {found['behind']:+.3f} ± {found['behind_error']:.3f} behind the better of "
                told += f"{found['spiegelhalter']:.3f} and {found['likelihood_ratio']:.3f}"
            table.add_row(name[0], name[1], str(name[2]), told)
            keep(name, found, {"repeats": repeats})
    Console(width=160).print(table)


BOUND = "any test beside two tests"


if __name__ == "__main__":
    main()

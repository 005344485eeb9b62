"""How well each map repairs a forecast, by the number of rows it learns from, and where its evidence ends.

    python benchmarks/quality.py [--fresh] [--out results/core/quality.jsonl] [--repeats 64] [--jobs 1]
    python benchmarks/quality.py --edges [--out results/core/edges.jsonl] [--jobs 1]
    python benchmarks/quality.py --frontier [--out results/core/frontier.jsonl] [--jobs 1]
    python benchmarks/quality.py --bound [--repeats 256] [--out results/core/bound.jsonl] [--jobs 1]

The forecast is N(0, 1); the truth is something else. Excess CRPS = ∫ (R(Φ(x)) - F(x))² dx: 0 for the truth itself, in
units of the forecast's σ; `harm` is the share of fits more than 0.1 % of the truth's CRPS worse than leaving the
forecast alone; `kl` the excess log-likelihood loss. No truth here had a part in choosing the default map's constants.
The first list was looked at before the map was last changed; `--fresh` takes another, written when the map was done,
and after which it was not changed.
`--edges`: how often 99 and 99.9 % intervals of heavy-tailed outcomes miss, as a multiple of what they say, and how
often a handful of rows moves a forecast that is calibrated.
`--frontier`: what the default would gain, and whom it would harm, were it to move sooner or later: with other values of
`calibrl.maps.spline.UNLIKELY`, on the same truths and samples, against the same peers.
`--bound`: what no map can beat that harms calibrated forecasts in at most 6 % of fits: see `least_ratio`.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor

import calibrl as cal
from calibrl.kernels import normal
from calibrl.maps import FitMap, Map, spline
from calibrl.runs import rows as results

SIZES = (10, 30, 100, 300, 1000)
THRESHOLDS = (0.5, 1.0, 2.0, 3.0, 4.75, 7.0)
"""Of the default map's evidence for a shift or a scale, in `--frontier`; 4.75 is the default."""
SLOW = 4
"""Choosing a map, or a mixture, fits dozens: measured on one sample in four, and their standard errors say so."""
HARM = 0.001
HARMED = (0.03, 0.06, 0.12)
"""Of `--bound`: the share of calibrated forecasts that a map may harm."""
GRID = torch.cat(
    [torch.linspace(-60, -8, 200)[:-1], torch.linspace(-8, 8, 1601), torch.linspace(8, 60, 200)[1:]]
).double()


class Mixed:
    """One of several laws, with given shares."""

    def __init__(self, *parts: tuple[float, object]) -> None:
        self.shares, self.laws = zip(*parts, strict=True)

    def rvs(self, size: tuple[int, int], random_state: np.random.Generator) -> np.ndarray:
        drawn = np.stack([law.rvs(size=size, random_state=random_state) for law in self.laws])
        pick = random_state.choice(len(self.laws), size=size, p=self.shares)
        return np.take_along_axis(drawn, pick[None], 0)[0]

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return sum(share * law.cdf(x) for share, law in zip(self.shares, self.laws, strict=True))

    def pdf(self, x: np.ndarray) -> np.ndarray:
        return sum(share * law.pdf(x) for share, law in zip(self.shares, self.laws, strict=True))


class Pit:
    """Outcomes whose PITs follow a law on [0, 1]."""

    def __init__(self, law: object) -> None:
        self.law = law

    def rvs(self, size: tuple[int, int], random_state: np.random.Generator) -> np.ndarray:
        return stats.norm.ppf(self.law.rvs(size=size, random_state=random_state))

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return self.law.cdf(stats.norm.cdf(x))

    def pdf(self, x: np.ndarray) -> np.ndarray:
        inside = np.abs(x) < 8
        return np.where(inside, self.law.pdf(stats.norm.cdf(np.where(inside, x, 0))) * stats.norm.pdf(x), 0)


def two_widths(below: float, above: float) -> Mixed:
    """A Gaussian of one width below its mode 0, of another above it."""
    share = below / (below + above)
    low, high = stats.halfnorm(scale=below), stats.halfnorm(scale=above)

    class Below:
        rvs = staticmethod(lambda size, random_state: -low.rvs(size=size, random_state=random_state))
        cdf = staticmethod(lambda x: low.sf(-x))
        pdf = staticmethod(lambda x: low.pdf(-x))

    return Mixed((share, Below()), (1 - share, high))


def standard(law: stats.rv_continuous, *shape: float) -> stats.rv_continuous:
    """The law shifted and stretched to mean 0 and variance 1."""
    plain = law(*shape)
    return law(*shape, loc=-plain.mean() / plain.std(), scale=1 / plain.std())


TRUTHS = {
    "calibrated": stats.norm(),
    "bias 0.35": stats.norm(-0.35),
    "bias 0.8": stats.norm(0.8),
    "σ 1.25 × the forecast's": stats.norm(0, 1.25),
    "σ 2.2 × the forecast's": stats.norm(0, 2.2),
    "σ 0.7 × the forecast's": stats.norm(0, 0.7),
    "bias 0.3, σ 0.8 ×": stats.norm(0.3, 0.8),
    "two widths, 0.7 and 1.6": two_widths(0.7, 1.6),
    "PIT Beta(2, 3.2)": Pit(stats.beta(2, 3.2)),
    "PIT Beta(1.7, 1.7)": Pit(stats.beta(1.7, 1.7)),
    "t(4)": stats.t(4),
    "hyperbolic secant": standard(stats.hypsecant),
    "skew normal": standard(stats.skewnorm, 4),
    "χ²(5)": standard(stats.chi2, 5),
    "triangular": standard(stats.triang, 0.5),
    "two peaks": Mixed((0.6, stats.norm(-0.9, 0.45)), (0.4, stats.norm(1.1, 0.5))),
    "5 % outliers, 5 ×": Mixed((0.95, stats.norm()), (0.05, stats.norm(0, 5))),
    "Johnson's S_U": standard(stats.johnsonsu, 1, 2),
}
FRESH = {
    "calibrated": stats.norm(),
    "bias 0.18": stats.norm(0.18),
    "bias -0.6": stats.norm(-0.6),
    "σ 1.4 × the forecast's": stats.norm(0, 1.4),
    "σ 4 × the forecast's": stats.norm(0, 4),
    "σ 0.85 × the forecast's": stats.norm(0, 0.85),
    "bias -0.45, σ 1.2 ×": stats.norm(-0.45, 1.2),
    "bias 0.25, σ 0.6 ×": stats.norm(0.25, 0.6),
    "two widths, 1.3 and 0.6": two_widths(1.3, 0.6),
    "two widths, 1 and 1.8": two_widths(1.0, 1.8),
    "PIT Beta(1.4, 0.8)": Pit(stats.beta(1.4, 0.8)),
    "PIT Beta(2.6, 2.6)": Pit(stats.beta(2.6, 2.6)),
    "t(5)": standard(stats.t, 5),
    "generalised normal, 1.5": standard(stats.gennorm, 1.5),
    "generalised normal, 4": standard(stats.gennorm, 4),
    "Γ(3)": standard(stats.gamma, 3),
    "Weibull(1.8)": standard(stats.weibull_min, 1.8),
    "normal and exponential": standard(stats.exponnorm, 1.5),
    "three peaks": Mixed((0.3, stats.norm(-1.4, 0.3)), (0.4, stats.norm(0, 0.35)), (0.3, stats.norm(1.3, 0.3))),
    "8 % shifted by 3": Mixed((0.92, stats.norm()), (0.08, stats.norm(3))),
    "2 % outliers, 10 ×": Mixed((0.98, stats.norm()), (0.02, stats.norm(0, 10))),
    "cosine": standard(stats.cosine),
}
LISTS = {"usual": (TRUTHS, 7), "fresh": (FRESH, 11)}
"""Truths, and what their samples are seeded with."""
HEAVY = {
    "t(1.2)": stats.t(1.2),
    "t(2.3)": stats.t(2.3),
    "t(4)": stats.t(4),
    "skewed t": stats.jf_skew_t(3, 1.5),
    "log-normal": stats.lognorm(0.7, loc=-1.2),
    "Johnson's S_U": stats.johnsonsu(1, 1.3),
    "extreme values": stats.genextreme(-0.25),
    "2 % outliers, 6 ×": Mixed((0.98, stats.norm()), (0.02, stats.norm(0, 6))),
    "double Weibull": stats.dweibull(0.7),
}
MAPS: dict[str, FitMap] = {
    "smooth": cal.fit_smooth,
    "isotonic": cal.fit_isotonic,
    "affine": cal.fit_affine,
    "platt": cal.fit_platt,
    "beta": cal.fit_beta,
    "auto": cal.fit_auto,
}
PEERS = ("shrunk kernel", "ECDF", "affine", "mixture")
"""What the default is held against: no peer fits them to PITs under these names, but each is what peers do."""
Law = tuple[Tensor, Tensor]
"""The recalibrated CDF and density on the grid, one column per repeat: (k, repeats) each."""


def law_of(mapping: Map, repeats: int) -> Law:
    x = GRID[:, None].expand(-1, repeats)
    s = mapping.forward_z(x)
    return normal.cdf(s), torch.exp(mapping.log_slope_z(x) + normal.log_density(s))


def each(z: np.ndarray, one: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Law:
    cdf, pdf = zip(*(one(column) for column in z.T), strict=True)
    return torch.from_numpy(np.stack(cdf, -1)), torch.from_numpy(np.stack(pdf, -1))


def kernel(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian kernels of width 0.9 · min(sd, IQR/1.349) · n^(-1/3), shrunk to the identity by n/(n + 10)."""
    n, x = len(z), GRID.numpy()
    width = 0.9 * min(z.std(), stats.iqr(z) / 1.349) * n ** (-1 / 3)
    distance, w = (x[:, None] - z) / width, n / (n + 10)
    return (
        w * stats.norm.cdf(distance).mean(1) + (1 - w) * stats.norm.cdf(x),
        w * stats.norm.pdf(distance).mean(1) / width + (1 - w) * stats.norm.pdf(x),
    )


def ecdf(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Straight between ranks i/(n + 1) of the PITs; its density is no density worth scoring."""
    n, p = len(z), stats.norm.cdf(GRID.numpy())
    found = np.interp(p, np.concatenate([[0], np.sort(stats.norm.cdf(z)), [1]]), np.arange(n + 2) / (n + 1))
    return found, np.full_like(found, np.nan)


def peers_isotonic(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's isotonic regression on (PIT, i/n), read as a CDF with no mass outside the PITs it saw."""
    from sklearn.isotonic import IsotonicRegression

    p, seen = stats.norm.cdf(GRID.numpy()), np.sort(stats.norm.cdf(z))
    fitted = IsotonicRegression(out_of_bounds="clip").fit(seen, np.arange(1, len(seen) + 1) / len(seen))
    found = np.where(p < seen[0], 0.0, np.where(p >= seen[-1], 1.0, fitted.predict(p)))
    return found, np.full_like(found, np.nan)


def mixture(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A mixture of up to four Gaussians, their number by BIC."""
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        most = min(4, max(1, len(z) // 5))
        fits = [GaussianMixture(k, random_state=0, reg_covar=1e-3).fit(z[:, None]) for k in range(1, most + 1)]
    best = min(fits, key=lambda fit: fit.bic(z[:, None]))
    scale = np.sqrt(best.covariances_[:, 0, 0])
    distance = (GRID.numpy()[:, None] - best.means_[:, 0]) / scale
    return stats.norm.cdf(distance) @ best.weights_, stats.norm.pdf(distance) / scale @ best.weights_


def scores(law: Law, truth: object, repeats: int) -> dict[str, np.ndarray]:
    """Excess CRPS × 1000 and excess log-likelihood loss of each repeat, by the trapezoid rule."""
    right, density = (
        torch.from_numpy(values)[:, None] for values in (truth.cdf(GRID.numpy()), truth.pdf(GRID.numpy()))
    )
    cdf, pdf = (part.expand(-1, repeats) for part in law)
    loss = torch.where(density > 1e-12, density * (density.clamp(1e-300).log() - pdf.clamp(1e-30).log()), 0.0)
    return {
        "excess": 1000 * torch.trapezoid((cdf - right).square(), GRID, dim=0).numpy(),
        "kl": torch.trapezoid(loss, GRID, dim=0).numpy(),
    }


def measure(job: tuple[str, str, int, int]) -> tuple[str, int, dict[str, dict[str, np.ndarray]], float]:
    """Scores of each map on `repeats` samples of n rows, and the truth's own CRPS × 1000."""
    torch.set_num_threads(1)
    which, name, n, repeats = job
    (truths, seed), few = LISTS[which], max(8, repeats // SLOW)
    truth = truths[name]
    z = truth.rvs(size=(n, repeats), random_state=np.random.default_rng([seed, list(truths).index(name), n]))
    laws = {"none": (normal.cdf(GRID)[:, None], torch.exp(normal.log_density(GRID))[:, None])}
    for label, fit in MAPS.items():
        some = z[:, :few] if label == "auto" else z
        laws[label] = law_of(fit(z=some), some.shape[1])
    laws["isotonic, as peers fit it"] = each(z, peers_isotonic)
    laws |= {"shrunk kernel": each(z, kernel), "ECDF": each(z, ecdf), "mixture": each(z[:, :few], mixture)}
    own = truth.cdf(GRID.numpy())
    repeats_of = {label: law[0].shape[1] if label != "none" else repeats for label, law in laws.items()}
    found = {label: scores(law, truth, repeats_of[label]) for label, law in laws.items()}
    return name, n, found, 1000 * float(np.trapezoid(own * (1 - own), GRID.numpy()))


def frontier(job: tuple[str, int, int]) -> tuple[str, int, dict[float, tuple[float, float]]]:
    """By threshold, the default map's excess CRPS over the best peer's, and the share of fits that do harm."""
    name, n, repeats = job
    truth, few = TRUTHS[name], max(8, repeats // SLOW)
    torch.set_num_threads(1)
    z = truth.rvs(size=(n, repeats), random_state=np.random.default_rng([7, list(TRUTHS).index(name), n]))
    laws = {"affine": law_of(cal.fit_affine(z=z), repeats), "shrunk kernel": each(z, kernel), "ECDF": each(z, ecdf)}
    laws["mixture"] = each(z[:, :few], mixture)
    best = min(scores(law, truth, law[0].shape[1])["excess"].mean() for law in laws.values())
    own, plain = truth.cdf(GRID.numpy()), (normal.cdf(GRID)[:, None], torch.exp(normal.log_density(GRID))[:, None])
    most = scores(plain, truth, 1)["excess"][0] + 1000 * HARM * float(np.trapezoid(own * (1 - own), GRID.numpy()))
    found, usual = {}, spline.UNLIKELY
    for spline.UNLIKELY in THRESHOLDS:
        excess = scores(law_of(cal.fit_smooth(z=z), repeats), truth, repeats)["excess"]
        found[spline.UNLIKELY] = float(excess.mean() / best), float((excess > most).mean())
    spline.UNLIKELY = usual
    return name, n, found


def frontier_rows(jobs: Iterator[tuple[str, int, dict[float, tuple[float, float]]]]) -> Iterator[results.Row]:
    origin, by = results.origin(), defaultdict(list)
    for _, n, found in jobs:
        for threshold, pair in found.items():
            by[threshold, n].append(pair)
    for (threshold, n), pairs in by.items():
        ratio, harm = np.array(pairs).T
        metrics = {"worst_ratio": ratio.max(), "mean_ratio": np.exp(np.log(ratio).mean()), "harm": harm.mean()}
        metrics = {name: float(value) for name, value in metrics.items()}
        settings = {"truths": len(pairs)}
        yield results.Row(
            "frontier", "all truths", f"{threshold:g}", 0, step=n, metrics=metrics, settings=settings, origin=origin
        )


def apart(mean: np.ndarray, scale: np.ndarray, of_mean: np.ndarray, of_scale: np.ndarray) -> np.ndarray:
    """∫ (F - G)² of Gaussians: E|X - Y| less half of E|X - X'| and of E|Y - Y'|."""
    both, off = np.hypot(scale, of_scale), mean - of_mean
    mixed = both * (2 / np.pi) ** 0.5 * np.exp(-((off / both) ** 2) / 2) + off * (1 - 2 * stats.norm.cdf(-off / both))
    return mixed - (scale + of_scale) / np.pi**0.5


def gaussians(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Biases and widths of the truths of `--bound`: 1¼ to 7 standard errors of n rows away from N(0, 1), all around."""
    far, angle = (part.ravel() for part in np.meshgrid([1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4.5, 5.5, 7], range(7)))
    angle = np.deg2rad(30 * angle - 90)
    bias, scale = far * np.cos(angle).round(12) / n**0.5, 1 + far * np.sin(angle) / (2 * n) ** 0.5
    return bias[scale > 0.3], scale[scale > 0.3]


def best_of_two(n: int, bias: float, scale: float, repeats: int = 4000) -> float:
    """The mean excess CRPS of an affine map shrunk as the peers' is, or of a Gaussian fitted: of the better."""
    z = np.random.default_rng([13, n]).normal(bias, scale, (repeats, n))
    mean, square = z.mean(1), (z**2).mean(1)
    shift, shrunk = n * mean / (n + 10), (n * square + 10) / (n + 10)
    fits = (shift, (shrunk - shift**2) ** 0.5), (mean, (square - mean**2) ** 0.5)
    return float(min(apart(*fit, bias, scale).mean() for fit in fits))


def least_ratio(n: int, harmed: float, rounds: int = 400, cell: float = 0.2) -> float:
    """What the worst ratio to the best peer's excess CRPS is at least, of any map that harms few calibrated forecasts.

    Of any that is told that outcomes are Gaussian, with an unknown bias and width; mean and standard deviation of the
    rows then say all that rows can say, cell by cell. Whatever weights the truths and the harm are given, the map that
    is best for them is known: one that may not harm stays within `HARM` of the identity; one that may takes the mean of
    the truths, weighted by their odds, which has the least excess, ∫ (G - F)² being quadratic in G. What that map
    achieves is a bound for all (duality). The weights are sought that make the bound highest.
    """
    bias, scale = gaussians(n)
    best = np.array([best_of_two(n, *truth) for truth in zip(bias, scale, strict=True)])
    # A bias upwards and one downwards are one truth: no map can favour either.
    bias, scale, best = np.append(bias, -bias), np.append(scale, scale), np.append(best, best)
    steps = np.arange(-11, 11 + cell, cell)

    def chances(b: float, s: float) -> np.ndarray:
        means, spreads = steps / n**0.5, np.maximum(1 + steps / (2 * n) ** 0.5, 0)
        at = np.diff(stats.norm.cdf(means, b, s / n**0.5)), np.diff(stats.chi2.cdf((n - 1) * (spreads / s) ** 2, n - 1))
        return np.outer(*at).ravel()

    chance, calm = np.stack([chances(*truth) for truth in zip(bias, scale, strict=True)], 1) / 2, chances(0.0, 1.0)
    some = chance.sum(1) + calm > 1e-12
    chance, calm = chance[some], calm[some]
    between, from_it = apart(bias[:, None], scale[:, None], bias, scale), apart(bias, scale, 0.0, 1.0)
    allowed, half = HARM / np.pi**0.5, len(best) // 2
    weight, price, highest = np.full(half, 1 / half), 2.0, 0.0
    for turn in range(1, rounds + 1):
        joint = chance * np.tile(weight, 2) / best
        total = joint.sum(1) + 1e-300
        odds = joint / total[:, None]
        to_each = odds @ between
        spread = (to_each * odds).sum(1) / 2
        way = np.maximum(odds @ from_it - spread, 0)
        stay = np.maximum(way**0.5 - allowed**0.5, 0) ** 2
        moves = total * stay > price * calm
        bound = (total * (spread + np.where(moves, 0, stay))).sum() + price * (calm[moves].sum() - harmed)
        highest = max(highest, float(bound))
        # Truths that this map serves worst weigh more in the next turn, and so does harm if it does too much.
        go = np.where(moves, 1, np.minimum((allowed / np.maximum(way, 1e-300)) ** 0.5, 1))[:, None]
        excess = (1 - go) * from_it + go * (to_each - spread[:, None]) - go * (1 - go) * way[:, None]
        ratio = ((chance * excess).sum(0) / best).reshape(2, half).sum(0)
        weight = weight * np.exp((ratio - ratio.max()) / (2 * turn**0.5))
        weight, price = weight / weight.sum(), price * np.exp(2 * (calm[moves].sum() - harmed) / turn**0.5)
    return highest


def bound(job: tuple[int, int]) -> tuple[int, dict[str, float]]:
    """The worst ratio that any map has at least, and that the default has, on Gaussian truths, and whom it harms."""
    torch.set_num_threads(1)
    n, repeats = job
    worst = []
    for k, (bias, scale) in enumerate(zip(*gaussians(n), strict=True)):
        z = np.random.default_rng([9, k, n]).normal(bias, scale, (n, repeats))
        excess = scores(law_of(cal.fit_smooth(z=z), repeats), stats.norm(bias, scale), repeats)["excess"].mean()
        worst.append(float(excess / best_of_two(n, bias, scale) / 1000))
    calm = np.random.default_rng([9, n]).normal(size=(n, 8 * repeats))
    excess = scores(law_of(cal.fit_smooth(z=calm), 8 * repeats), stats.norm(), 8 * repeats)["excess"]
    found = {f"least_ratio_{100 * harmed:g}": least_ratio(n, harmed) for harmed in HARMED}
    return n, found | {"ratio": max(worst), "harm": float((excess > 1000 * HARM / np.pi**0.5).mean())}


def edge(job: tuple[str, int]) -> tuple[str, int, dict[str, float]]:
    """How often intervals miss, over what they say, with n heavy-tailed rows; or how often n calibrated rows move R."""
    torch.set_num_threads(1)
    name, n = job
    if name == "calibrated":
        repeats = 4000
        z = torch.randn(n, repeats, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        at = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None].expand(-1, repeats)
        moved = ((cal.fit_smooth(z=z).forward_z(at) - at).abs() > 1e-6).any(0)
        return name, n, {"moved": float(moved.double().mean()), "repeats": repeats}
    truth, repeats = HEAVY[name], max(10, 400_000 // n)
    z = truth.rvs(size=(n, repeats), random_state=np.random.default_rng([8, list(HEAVY).index(name), n]))
    mapping, found = cal.fit_smooth(z=z), {"repeats": float(repeats)}
    for level in (0.99, 0.999):
        ends = torch.special.ndtri(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64))
        low, high = mapping.inverse_z(ends[:, None].expand(-1, repeats)).numpy()
        found[f"missed_{100 * level:g}"] = float(np.mean(truth.cdf(low) + 1 - truth.cdf(high)) / (1 - level))
    return name, n, found


def rows_of(jobs: Iterator[tuple[str, int, dict[str, dict[str, np.ndarray]], float]]) -> Iterator[results.Row]:
    origin = results.origin()
    for name, n, found, own in jobs:
        alone = float(found["none"]["excess"].mean())
        for label, score in found.items():
            count = len(score["excess"])
            metrics = {
                "excess_crps_x1000": float(score["excess"].mean()),
                "standard_error": float(score["excess"].std(ddof=1)) / count**0.5,
                "harm": float((score["excess"] > alone + HARM * own).mean()),
            }
            if not np.isnan(score["kl"]).any():
                metrics["kl"] = float(score["kl"].mean())
            settings = {"repeats": count}
            yield results.Row("quality", name, label, 0, step=n, metrics=metrics, settings=settings, origin=origin)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    words.add_argument("--repeats", type=int, default=64, help="samples per truth and size")
    words.add_argument("--jobs", type=int, default=1, help="processes")
    words.add_argument("--fresh", action="store_true", help="the list of truths written last")
    words.add_argument("--edges", action="store_true", help="heavy tails and a handful of rows")
    words.add_argument("--frontier", action="store_true", help="other thresholds of the default map")
    words.add_argument("--bound", action="store_true", help="what no map can beat")
    given = words.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        if given.edges:
            jobs = [("calibrated", n) for n in (2, 3, 5)] + [
                (name, n) for name in HEAVY for n in (1000, 10_000, 100_000)
            ]
            origin = results.origin()
            found = [
                results.Row("edges", name, "smooth", 0, step=n, metrics=metrics, origin=origin)
                for name, n, metrics in pool.map(edge, jobs)
            ]
        elif given.frontier:
            tasks = [(name, n, given.repeats) for name in TRUTHS for n in SIZES[:4]]
            found = list(frontier_rows(pool.map(frontier, tasks)))
        elif given.bound:
            origin = results.origin()
            found = [
                results.Row("bound", "Gaussian truths", "any map", 0, step=n, metrics=metrics, origin=origin)
                for n, metrics in pool.map(bound, [(n, given.repeats) for n in SIZES[:4]])
            ]
        else:
            which = "fresh" if given.fresh else "usual"
            tasks = [(which, name, n, given.repeats) for name in LISTS[which][0] for n in SIZES]
            found = list(rows_of(pool.map(measure, tasks)))
    if given.out:
        results.append(given.out, found)
    table = Table("truth", "rows", "map", "metrics")
    for row in found:
        table.add_row(row.problem, str(row.step), row.arm, ", ".join(f"{k} {v:.3g}" for k, v in row.metrics.items()))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()

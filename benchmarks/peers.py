"""The default map beside crepes, MAPIE and conformalized quantile regression, on models and data of scikit-learn.

    python benchmarks/peers.py [--out results/core/peers.jsonl] [--jobs 2] [--seeds 3] [--quick]

Needs the `bench` extra (crepes, mapie) and downloads nothing. Every pair of a model and a data set is trained once a
seed; then each way of calibrating gets the same 30, 100 and all held-out rows, and is judged on rows that nobody saw.
Nothing was chosen on these pairs and seeds.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn import datasets
from sklearn.base import RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import BayesianRidge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from timing import PEERS_NEED
from torch.distributions import Distribution, Normal

import calibrl as cal
from calibrl.runs import rows as results

Floats = NDArray[np.float64]
FIRST_SEED = 9100
ALPHA = 0.1
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
ROWS = {"30": 30, "100": 100, "all": 1000}
"""Rows to calibrate with; of diabetes, which is small, "all" are 132."""


def uneven(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Noise that grows fivefold along the first of three features."""
    x = rng.uniform(-1, 1, size=(n, 3))
    return x, np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + (0.6 + 0.4 * x[:, 0]) * rng.standard_normal(n)


def heavy(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Noise of Student's t with 2.5 degrees of freedom."""
    x = rng.uniform(-1, 1, size=(n, 4))
    return x, x[:, 0] - 2 * x[:, 1] * x[:, 2] + 0.5 * rng.standard_t(2.5, size=n)


def rows_of(name: str, seed: int) -> tuple[Floats, Floats]:
    """Shuffled x and y."""
    rng = np.random.default_rng([FIRST_SEED + seed, list(DATA).index(name)])
    x, y = DATA[name](rng)
    order = rng.permutation(len(y))
    return x[order], y[order]


SIZE = 300 + 1000 + 1000
DATA: dict[str, Callable[[np.random.Generator], tuple[Floats, Floats]]] = {
    "diabetes": lambda _: datasets.load_diabetes(return_X_y=True),
    "friedman1": lambda rng: datasets.make_friedman1(SIZE, noise=1, random_state=int(rng.integers(2**31))),
    "friedman2": lambda rng: datasets.make_friedman2(SIZE, noise=100, random_state=int(rng.integers(2**31))),
    "friedman3": lambda rng: datasets.make_friedman3(SIZE, noise=0.1, random_state=int(rng.integers(2**31))),
    "uneven noise": lambda rng: uneven(rng, SIZE),
    "heavy tails": lambda rng: heavy(rng, SIZE),
}


class Model:
    """A model of scikit-learn with a spread of its own: `point(x)` (n,), `spread(x)` (n,), `forecast(x)`."""

    def __init__(self, estimator: RegressorMixin, x: Floats, y: Floats) -> None:
        self.estimator = estimator.fit(x, y)
        self.least = 0.01 * float(y.std())
        self.residual = float(np.std(y - self.estimator.predict(x)))

    def point(self, x: Floats) -> Floats:
        return np.asarray(self.estimator.predict(x))

    def spread(self, x: Floats) -> Floats:
        return np.maximum(self._spread(x), self.least)

    def _spread(self, x: Floats) -> Floats:
        return np.full(len(x), self.residual)

    def forecast(self, x: Floats) -> Distribution:
        return self.gaussian(x)

    def gaussian(self, x: Floats) -> Distribution:
        return Normal(torch.as_tensor(self.point(x)), torch.as_tensor(self.spread(x)))


class Bayesian(Model):
    def _spread(self, x: Floats) -> Floats:
        return self.estimator.predict(x, return_std=True)[1]


class Trees(Model):
    def _spread(self, x: Floats) -> Floats:
        return np.std([tree.predict(x) for tree in self.estimator.estimators_], axis=0)


class Neighbours(Model):
    def __init__(self, estimator: RegressorMixin, x: Floats, y: Floats) -> None:
        super().__init__(estimator, x, y)
        self.outcomes = y

    def _spread(self, x: Floats) -> Floats:
        scaler, neighbours = (step for _, step in self.estimator.steps)
        return self.outcomes[neighbours.kneighbors(scaler.transform(x), return_distance=False)].std(1)


class Boosted(Model):
    """One boosted model per quantile; as point and spread the median and the width of the 90 % interval."""

    def __init__(self, seed: int, x: Floats, y: Floats) -> None:
        self.by_level = {
            level: GradientBoostingRegressor(loss="quantile", alpha=level, max_depth=3, random_state=seed).fit(x, y)
            for level in LEVELS
        }
        self.estimator, self.least = self.by_level[0.5], 0.01 * float(y.std())

    def _spread(self, x: Floats) -> Floats:
        return (self.by_level[0.95].predict(x) - self.by_level[0.05].predict(x)) / 3.29

    def forecast(self, x: Floats) -> Distribution:
        return cal.Quantiles(np.stack([model.predict(x) for model in self.by_level.values()]), list(LEVELS))


class Network(Model):
    """A small network on standardised features and outcomes, with the spread of its training residuals."""

    def __init__(self, seed: int, x: Floats, y: Floats) -> None:
        network = MLPRegressor(hidden_layer_sizes=(32,), alpha=0.1, max_iter=400, random_state=seed)
        estimator = TransformedTargetRegressor(make_pipeline(StandardScaler(), network), transformer=StandardScaler())
        super().__init__(estimator, x, y)


MODELS: dict[str, Callable[[int, Floats, Floats], Model]] = {
    "Bayesian ridge": lambda _, x, y: Bayesian(BayesianRidge(), x, y),
    "random forest": lambda seed, x, y: Trees(RandomForestRegressor(100, random_state=seed), x, y),
    "extra trees": lambda seed, x, y: Trees(ExtraTreesRegressor(100, min_samples_leaf=3, random_state=seed), x, y),
    "nearest neighbours": lambda _, x, y: Neighbours(make_pipeline(StandardScaler(), KNeighborsRegressor(15)), x, y),
    "network": Network,
    "boosted quantiles": Boosted,
}


def scores(low: Floats, high: Floats, y: Floats) -> dict[str, float]:
    """Interval score (Gneiting and Raftery, 2007), and how far the coverage is from 90 %."""
    missed = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    return {
        "interval_score": float((high - low + 2 / ALPHA * missed).mean()),
        "coverage_gap": abs(float((missed == 0).mean()) - (1 - ALPHA)),
    }


def judged(forecast: Any, y: Floats) -> dict[str, float]:
    """Scores of a torch distribution and of its central interval."""
    low, high = (
        forecast.icdf(torch.tensor(level, dtype=torch.float64)).numpy() for level in (ALPHA / 2, 1 - ALPHA / 2)
    )
    return {"crps": cal.crps(forecast, torch.as_tensor(y)), **scores(low, high, y)}


def ensemble_crps(members: Floats, y: Floats) -> float:
    """Mean CRPS of equally likely members (n, m), ascending, against y (n,)."""
    m = members.shape[1]
    between = (members * (2 * np.arange(1, m + 1) - m - 1)).sum(1) / m**2
    return float((np.abs(members - y[:, None]).mean(1) - between).mean())


def calibrated(model: Model, held: tuple[Floats, Floats], x: Floats, y: Floats) -> dict[str, dict[str, float]]:
    """Scores by way of calibrating."""
    from crepes import ConformalPredictiveSystem
    from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor

    def honest(forecast: Callable[[Floats], Distribution]) -> cal.Recalibrated:
        return cal.calibrate(forecast(held[0]), held[1])(forecast(x))

    ours = honest(model.forecast)
    found = {"raw": judged(model.forecast(x), y), "calibrl": judged(ours, y)}
    found["calibrl, guaranteed"] = scores(*(end.numpy() for end in ours.interval(0.9, guarantee="conformal")), y)

    system = ConformalPredictiveSystem().fit(held[1] - model.point(held[0]), sigmas=model.spread(held[0]))
    members = np.sort(system.predict_cpds(model.point(x), sigmas=model.spread(x)), axis=1)
    low, high = system.predict_int(model.point(x), sigmas=model.spread(x), confidence=1 - ALPHA).T
    found["crepes"] = {"crps": ensemble_crps(members, y), **scores(low, high, y)}

    split = SplitConformalRegressor(model.estimator, confidence_level=1 - ALPHA, prefit=True).conformalize(*held)
    found["MAPIE split"] = scores(*split.predict_interval(x)[1][:, :, 0].T, y)
    if isinstance(model, Boosted):
        found["calibrl, median and width"] = judged(honest(model.gaussian), y)
        three = [model.by_level[level] for level in (0.05, 0.95, 0.5)]
        cqr = ConformalizedQuantileRegressor(three, confidence_level=1 - ALPHA, prefit=True).conformalize(*held)
        found["CQR (MAPIE)"] = scores(*cqr.predict_interval(x)[1][:, :, 0].T, y)
    return found


def one(task: tuple[str, str, int]) -> list[tuple[str, str, str, int, dict[str, float]]]:
    """Scores of a model on a data set and a seed: (problem, arm, rows, how many they were, scores)."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # MAPIE tells of crossing quantiles
    warnings.filterwarnings("ignore")  # crossing quantiles, networks that could train longer
    name, data, seed = task
    x, y = rows_of(data, seed)
    train, held = (300, 1000) if len(y) == SIZE else (int(0.4 * len(y)), int(0.3 * len(y)))
    model = MODELS[name](seed, x[:train], y[:train])
    x_new, y_new = x[train + held :], y[train + held :]
    found = []
    for label, n in ROWS.items():
        n = min(n, held)
        evidence = x[train : train + n], y[train : train + n]
        for arm, metrics in calibrated(model, evidence, x_new, y_new).items():
            found.append((f"{name}, {data}", arm, label, n, metrics))
    return found


def table_of(means: dict[tuple[str, str, str], dict[str, float]]) -> Table:
    table = Table(title="over the raw model's, geometric mean over pairs; |coverage - 90 %| in points")
    for heading in ("pairs", "", *product(("CRPS", "interval score", "|coverage - 90 %|"), ROWS)):
        table.add_column(heading if isinstance(heading, str) else " ".join(heading))
    for quantiles in (False, True):
        chosen = {key: one for key, one in means.items() if key[0].startswith("boosted") == quantiles}
        pairs = {problem for problem, _, _ in chosen}
        for arm in dict.fromkeys(arm for _, arm, _ in chosen):
            cells = [f"{len(pairs)} of {'quantiles' if quantiles else 'mean and spread'}", arm]
            for metric, label in product(("crps", "interval_score", "coverage_gap"), ROWS):
                values = [(chosen[problem, arm, label], chosen[problem, "raw", label]) for problem in pairs]
                if metric == "coverage_gap":
                    cells.append(f"{100 * fmean(one[metric] for one, _ in values):.1f}")
                elif metric in values[0][0]:
                    cells.append(f"{geometric_mean(one[metric] / raw[metric] for one, raw in values):.3f}")
                else:
                    cells.append("")
            table.add_row(*cells)
    return table


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    words.add_argument("--seeds", type=int, default=3, help="per pair")
    words.add_argument("--jobs", type=int, default=1, help="processes")
    words.add_argument("--quick", action="store_true", help="two data sets only")
    words.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS), help="only these")
    given = words.parse_args()
    try:
        import crepes  # noqa: F401
        import mapie  # noqa: F401
    except ModuleNotFoundError as missing:
        raise SystemExit(f"{missing.name} is not installed; run: {PEERS_NEED}") from None

    tasks = list(product(given.models, list(DATA)[: 2 if given.quick else None], range(given.seeds)))
    collected: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
    counts: dict[tuple[str, str, str], int] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for found in pool.map(one, tasks):
            for problem, arm, label, n, metrics in found:
                collected[problem, arm, label].append(metrics)
                counts[problem, arm, label] = n
    means = {key: {name: fmean(run[name] for run in runs) for name in runs[0]} for key, runs in collected.items()}
    if given.out:
        origin, versions = results.origin(), {name: version(name) for name in ("crepes", "mapie")}
        rows = [
            results.Row(
                experiment="peers",
                problem=problem,
                arm=arm,
                seed=FIRST_SEED,
                step=counts[problem, arm, label],
                metrics=metrics,
                settings={"rows": label, "seeds": given.seeds, **versions},
                origin=origin,
            )
            for (problem, arm, label), metrics in means.items()
        ]
        results.append(given.out, rows)
    Console(width=160).print(table_of(means))


if __name__ == "__main__":
    main()

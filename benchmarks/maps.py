"""How fast the core is, each number beside a named peer in the same run.

    python benchmarks/maps.py [--out results/core/speed.jsonl] [--only fit,draw] [--quick]

Needs the `bench` extra (uncertainty-toolbox, netcal). Nothing is asserted: it prints what it saw. All on one thread, in
processor time, so that a busy machine counts for less.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from rich.console import Console
from timing import PEERS_NEED, Match, Timing, beside
from timing import side_by_side as in_turn
from torch import Tensor
from torch.distributions import Normal

import calibrl as cal
from calibrl.maps import FitMap
from calibrl.runs import rows as results

side_by_side = partial(in_turn, clock=time.process_time)


def over_confident(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Means, standard deviations and outcomes that lie 1.4 times farther out than they should."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    std = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return mean, std, mean + 1.4 * std * torch.randn(shape, generator=generator, dtype=torch.float64)


def metrics(quick: bool) -> Iterator[Match]:
    """All metrics of many forecasts; most of the peer's time goes into the worst groups, which we do not look for."""
    import uncertainty_toolbox as uct

    n = 10_000 if quick else 100_000
    mean, std, y = over_confident(n)
    means, stds, outcomes = mean.numpy(), std.numpy(), y.numpy()

    def everything() -> None:
        uct.metrics.get_all_metrics(means, stds, outcomes, verbose=False)

    def without_groups() -> None:
        uct.metrics.get_all_accuracy_metrics(means, outcomes, verbose=False)
        uct.metrics.get_all_average_calibration(means, stds, outcomes, num_bins=100, verbose=False)
        uct.metrics.get_all_sharpness_metrics(stds, verbose=False)
        uct.metrics.get_all_scoring_rule_metrics(means, stds, outcomes, resolution=99, scaled=True, verbose=False)

    peers = {"get_all_metrics": (everything, 200), "all but its worst groups": (without_groups, 10)}
    for label, (peer, at_least) in peers.items():
        ours, theirs = side_by_side(
            lambda: cal.summary(Normal(mean, std, validate_args=False), y), peer, repeats=9, their_repeats=1
        )
        yield Match(f"all metrics of {n:,} forecasts", f"uncertainty-toolbox {label}", ours, theirs, at_least)


def fit(quick: bool) -> Iterator[Match]:
    """One map from many PITs, against isotonic regression on (PIT, its ECDF), with that ECDF given for nothing."""
    from sklearn.isotonic import IsotonicRegression

    n = 100_000 if quick else 1_000_000
    mean, std, y = over_confident(n)
    pits = cal.pit(Normal(mean, std), y)
    x = pits.numpy()
    ecdf = (np.argsort(np.argsort(x)) + 1) / n
    fits: dict[str, FitMap] = {"fit_smooth": cal.fit_smooth, "fit_isotonic": cal.fit_isotonic}
    for label, fit_map in fits.items():
        ours, theirs = side_by_side(
            lambda fit_map=fit_map: fit_map(pits),
            lambda: IsotonicRegression(out_of_bounds="clip").fit(x, ecdf),
            repeats=9,
        )
        yield Match(f"{label} on {n:,} PITs", "scikit-learn IsotonicRegression", ours, theirs, 1)


def columns(quick: bool) -> Iterator[Match]:
    """One map per column. netcal works out the PITs itself: both ways of counting are shown."""
    from netcal.regression import IsotonicRegression

    n, d = (10_000 if quick else 100_000), 20
    mean, std, y = over_confident(n, d)
    pits = cal.pit(Normal(mean, std), y)
    forecasts, outcomes = (mean.numpy(), std.numpy()), y.numpy()

    def peer() -> None:
        IsotonicRegression().fit(forecasts, outcomes)

    jobs = {
        f"fit_smooth, {d} columns × {n:,} PITs": lambda: cal.fit_smooth(pits),
        f"fit_isotonic, {d} columns × {n:,} PITs": lambda: cal.fit_isotonic(pits),
        f"PITs and fit_smooth, {d} columns × {n:,}": lambda: cal.fit_smooth(cal.pit(Normal(mean, std), y)),
        f"z-scores and fit_smooth, {d} columns × {n:,}": lambda: cal.fit_smooth(z=cal.pit_z(Normal(mean, std), y)),
    }
    for label, job in jobs.items():
        ours, theirs = side_by_side(job, peer, repeats=5)
        yield Match(label, "netcal IsotonicRegression", ours, theirs, 3)


def draw(quick: bool) -> Iterator[Match]:
    """Samples of a planner's batch; the map's table is worked out before."""
    shape = (10_000, 18)
    mean, std, y = over_confident(*shape)
    base = Normal(mean.float(), std.float(), validate_args=False)
    honest = cal.Recalibrated(base, cal.fit_smooth(cal.pit(Normal(mean, std), y)[:1000]))
    what = f"{shape[0]:,} × {shape[1]} recalibrated draws, float32"
    # Alone in its turn a draw finds its table gone from the cache; in a row, as a planner draws, it does not.
    for turn, times in (("one a turn", 1), ("20 a turn", 20)):
        repeats = (100 if quick else 400) // times**0.5
        ours, theirs = side_by_side(honest.sample, base.sample, repeats=int(repeats), times=times)
        yield Match(f"{what}, {turn}", "torch Normal.sample, unchecked", ours, theirs, 1 / 1.3)


PARTS = {"metrics": metrics, "fit": fit, "columns": columns, "draw": draw}


def row(part: str, match: Match, quick: bool) -> results.Row:
    return results.Row(
        experiment="speed",
        problem=match.job,
        arm=f"calibrl against {match.peer}",
        seed=0,
        preset="quick" if quick else "full",
        metrics={
            "factor": match.factor,
            "at_least": match.at_least,
            **named("ours", match.ours),
            **named("theirs", match.theirs),
        },
        settings={"part": part, "threads": torch.get_num_threads()},
        origin=results.origin(),
    )


def named(who: str, timing: Timing) -> dict[str, float]:
    return {
        f"{who}_seconds": timing.median,
        f"{who}_low": timing.low,
        f"{who}_high": timing.high,
        f"{who}_runs": len(timing.seconds),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    words.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    words.add_argument("--quick", action="store_true", help="a tenth of the rows")
    given = words.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="netcal|pyro|gpytorch|uncertainty_toolbox")

    every: list[Match] = []
    for part in given.only.split(","):
        if part not in PARTS:
            words.error(f"no part {part!r}; choose from {', '.join(PARTS)}")
        try:
            matches = list(PARTS[part](given.quick))
        except ModuleNotFoundError as missing:
            raise SystemExit(f"{missing.name} is not installed; run: {PEERS_NEED}") from None
        every += matches
        if given.out:
            results.append(given.out, [row(part, match, given.quick) for match in matches])
    Console(width=160).print(beside(every))


if __name__ == "__main__":
    main()

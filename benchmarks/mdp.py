"""How fast discrete MDPs are solved, beside plain Python loops and pymdptoolbox in the same run.

    python benchmarks/mdp.py [--out results/mdp/speed.jsonl]

Needs the `bench` extra (pymdptoolbox). Nothing is asserted: it prints what it saw.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from timing import PEERS_NEED, Match, beside, side_by_side

from calibrl.mdp import random_mdp
from calibrl.planning.value_iteration import MDP, value_iteration
from calibrl.runs import rows as results

sys.path.append(str(Path(__file__).parents[1]))
from tests.kernels.references import reference_action_values


def python_value_iteration(mdp: MDP, tolerance: float) -> np.ndarray:
    """The same sweeps and the same stopping rule, state by state in Python."""
    value, reach = np.zeros(mdp.states), mdp.discount / (1 - mdp.discount)
    while True:
        q = reference_action_values(mdp.rows, mdp.successor, mdp.probability, mdp.reward, mdp.discount, value)
        change = q.max(1) - value
        value = q.max(1)
        if reach * np.ptp(change) / 2 <= tolerance:
            return value + reach * (change.max() + change.min()) / 2


def loops() -> Iterator[Match]:
    for states, actions, successors in ((100, 4, 5), (2000, 4, 10)):
        mdp = random_mdp(states, actions, successors, generator=np.random.default_rng(0))
        times = side_by_side(
            lambda mdp=mdp: value_iteration(mdp), lambda mdp=mdp: python_value_iteration(mdp, 1e-10), repeats=5
        )
        yield Match(f"value iteration, {states} states x {actions} x {successors}", "Python loops", *times, 10.0)


def toolbox() -> Iterator[Match]:
    from mdptoolbox import example, mdp

    np.random.seed(0)  # noqa: NPY002 (the peer's examples draw from the global generator)
    problems = {
        "forest, 3 states (its default)": example.forest(),
        "forest, 1000 states": example.forest(S=1000),
        "forest, 5000 states, sparse": example.forest(S=5000, is_sparse=True),
        "rand, 100 states x 5 actions": example.rand(100, 5),
        "rand, 1000 states x 5 actions": example.rand(1000, 5),
        "rand, 1000 states x 5 actions, sparse": example.rand(1000, 5, is_sparse=True),
    }
    for name, (p, r) in problems.items():

        def theirs(p=p, r=r) -> object:
            solver = mdp.ValueIteration(p, r, 0.96)
            solver.run()
            return solver

        # From the same matrices to a policy. The peer stops at an error of 0.01; so do we, then at 1e-10.
        small = 20 if "3 states" in name else 1
        for tolerance in (0.01, 1e-10):

            def ours(p=p, r=r, tolerance=tolerance) -> object:
                return value_iteration(MDP.by_action(p, r, discount=0.96), tolerance=tolerance)

            times = side_by_side(ours, theirs, repeats=7, times=small)
            yield Match(f"{name}, error {tolerance:g}", "pymdptoolbox, error 0.01", *times, 1.0)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", help="also append the rows to this .jsonl file")
    given = words.parse_args()
    warnings.filterwarnings("ignore", module="mdptoolbox")
    try:
        matches = [*loops(), *toolbox()]
    except ModuleNotFoundError as missing:
        raise SystemExit(f"{missing.name} is not installed; run: {PEERS_NEED}") from None
    if given.out:
        rows = [results.Row("mdp speed", one.job, one.peer, 0, one.metrics, origin=results.origin()) for one in matches]
        results.append(given.out, rows)
    Console(width=150).print(beside(matches))


if __name__ == "__main__":
    main()

"""Rows that may be compared are those of one run, whatever problems and arms it was asked for."""

from calibrl.runs.rows import Row
from calibrl.runs.statistics import by_run


def counts(rows):
    return {run: len(found) for run, found in by_run(rows).items()}


def test_rows_of_different_runs_are_kept_apart():
    rows = [
        Row("e", "p", "a", 0, {}, preset="x"),
        Row("e", "p", "a", 0, {}, preset="x", overrides={"rounds": 3}),
        Row("e", "p", "a", 1, {}, preset="x"),
        Row("e", "p", "a", 1, {}),
    ]
    assert counts(rows) == {("e", "x"): 2, ("e", "x, rounds=3"): 1, ("e", ""): 1}


def test_arms_that_were_asked_for_later_are_compared_with_the_first():
    rows = [
        Row("bandits", "wine", "linucb", 0, {}, preset="small"),
        Row("bandits", "wine", "greedy", 0, {}, preset="small", overrides={"policies": ["greedy"]}),
        Row("bandits", "wine", "greedy", 0, {}, preset="small", overrides={"policies": ["greedy"], "rounds": 200}),
    ]
    assert counts(rows) == {("bandits", "small"): 2, ("bandits", "small, rounds=200"): 1}

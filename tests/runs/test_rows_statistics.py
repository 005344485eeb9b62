"""Tables compare on paired seeds, and only rows of one run, whatever problems and arms it was asked for."""

import math

import numpy as np
import pytest
from scipy import stats

from calibrl.runs.rows import Row, alike, by_run, latest, stops, stops_in_words, table


def row(arm, seed, value, problem="p", step=0):
    return Row("e", problem, arm, seed, {"m": value}, step=step)


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


def test_a_repeated_run_replaces_its_rows():
    assert latest([row("a", 0, 1.0), row("b", 0, 5.0), row("a", 0, 2.0)])[0].metrics == {"m": 2.0}
    other = Row("e", "p", "a", 0, {"m": 3.0}, overrides={"planner.horizon": 5})
    assert len(latest([row("a", 0, 1.0), other])) == 2, "another run's row is not a repetition"


def test_differences_are_paired():
    noise = [0.0, 10.0, -7.0, 3.0]
    rows = [row("base", s, n) for s, n in enumerate(noise)] + [row("new", s, n + 1) for s, n in enumerate(noise)]
    cell = table(rows, "m", "base")["p"]["new"]
    assert cell.difference == pytest.approx(1)
    assert cell.difference_error == pytest.approx(0, abs=1e-12)
    assert cell.error > 3
    assert math.isnan(table(rows, "m", "base")["p"]["base"].difference)


def test_the_last_step_counts():
    rows = [row("a", 0, 1.0, step=1), row("a", 0, 9.0, step=2)]
    other = Row("e", "p", "a", 0, {"k": 4.0}, step=3)  # says nothing about m
    for order in (rows, rows[::-1], [*rows, other]):
        assert table(order, "m", "a")["p"]["a"].mean == 9
    # Of two rows of one step the later one counts, as in `latest`.
    assert table([*rows, row("a", 0, 8.0, step=2)], "m", "a")["p"]["a"].mean == 8


def test_arms_without_a_common_seed_have_no_difference():
    cell = table([row("base", 0, 1.0), row("new", 1, 3.0)], "m", "base")["p"]["new"]
    assert (cell.mean, cell.seeds, cell.pairs) == (3.0, 1, 0)
    assert all(map(math.isnan, (cell.error, cell.difference, cell.difference_error, *cell.interval)))


def test_problems_that_measure_alike_share_a_table():
    rows = [row("a", 0, 1.0, "one"), Row("e", "two", "a", 0, {"n": 1.0}), row("a", 0, 1.0, "three")]
    assert alike(rows, ["m", "n"]) == {("m",): ["one", "three"], ("n",): ["two"]}


def test_a_seed_without_a_number_at_its_end_does_not_count():
    rows = [
        row("base", 0, 1.0),
        row("base", 1, 3.0),
        row("new", 0, 5.0),
        row("new", 1, 4.0),
        row("new", 1, math.nan, step=1),
    ]
    cells = table(rows, "m", "base")["p"]
    assert (cells["new"].mean, cells["new"].seeds, cells["new"].difference, cells["new"].pairs) == (5.0, 1, 4.0, 1)
    assert cells["base"].mean == 2.0


def test_arms_that_stopped_apart_are_told():
    together = [row(arm, seed, 1.0, step=step) for arm in "ab" for seed in (0, 1) for step in (10, 20)]
    assert stops(together) == {}
    assert stops_in_words({}, "round") == ""
    assert stops([row("a", 0, 1.0, step=1), row("b", 0, 1.0, step=2)]) == {"p": {"a": "1", "b": "2"}}
    apart = [*together, row("c", 0, 1.0, step=90), row("c", 1, 1.0, step=70), row("a", 0, 1.0, "other", step=5)]
    assert stops(apart) == {"p": {"a": "20", "b": "20", "c": "70–90"}}
    assert stops_in_words(stops(apart), "round") == ("Not after equal experience. Last rounds: p: a 20, b 20, c 70–90.")


@pytest.mark.parametrize("seeds", [5, 7])
def test_intervals_are_those_of_a_paired_t_test(seeds):
    generator = np.random.default_rng(0)
    base, new = generator.normal(size=seeds), generator.normal(1, 2, size=seeds)
    rows = [row("base", s, v) for s, v in enumerate(base)] + [row("new", s, v) for s, v in enumerate(new)]
    cell = table(rows, "m", "base")["p"]["new"]
    expected = stats.ttest_rel(new, base).confidence_interval(0.95)
    assert cell.interval == pytest.approx((expected.low, expected.high))
    assert cell.pairs == seeds
    assert cell.error == pytest.approx(stats.sem(new))
    for few in (1, 2, 4):
        some = [row for row in rows if row.seed < few]
        assert all(map(math.isnan, table(some, "m", "base")["p"]["new"].interval)), "too few seeds for an interval"

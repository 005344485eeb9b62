"""Means, errors and paired intervals, against scipy."""

import re

import numpy as np
import pytest
from scipy import stats

from calibrl.report.tables import MANY, difference, mean, readable, studies
from calibrl.report.tables import table as table_of
from calibrl.runs.experiment import Description, Metric
from calibrl.runs.rows import ENOUGH_SEEDS, Row, table


def test_means_and_standard_errors_skip_what_was_not_measured():
    values = np.array([[1.0, 2.0, 4.0, np.nan], [3.0, np.nan, np.nan, np.nan], [np.nan] * 4])
    found = mean(values)
    np.testing.assert_allclose(found.mean, [7 / 3, 3, np.nan])
    np.testing.assert_allclose(found.error, [stats.sem([1.0, 2.0, 4.0]), np.nan, np.nan])
    assert found.seeds.tolist() == [3, 1, 0]


def test_paired_intervals_are_those_of_the_t_test():
    random = np.random.default_rng(0)
    base, other = random.standard_normal((2, 9))
    other += 0.7
    found = difference(other, base)
    expected = stats.ttest_rel(other, base).confidence_interval(0.95)
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high])
    assert bool(found.sure) == (stats.ttest_rel(other, base).pvalue < 0.05)


def test_pairs_are_seeds_both_arms_have():
    base = np.array([1.0, 2.0, 3.0, np.nan])
    other = np.array([2.0, 4.0, np.nan, 9.0])
    found = difference(other, base)
    assert found.mean == 1.5
    assert found.error == pytest.approx(stats.sem([1.0, 2.0]))
    assert np.isnan(found.low), "two seeds have no interval"
    assert not found.sure


def shapes(random, size):
    """Differences without a cause, of the shapes that rows have."""
    yield random.standard_normal(size)
    yield random.standard_t(2, size)
    yield random.choice([-1.0, 1.0], size) + 0.3 * random.standard_normal(size)
    yield random.choice([-1.0, 1.0], size)
    yield random.standard_normal(size).round()


@pytest.mark.parametrize("seeds", [ENOUGH_SEEDS, 6, 10, 20])
def test_chance_is_rarely_called_a_difference(seeds):
    """5 % of the time is what a 95 % interval promises; fewer seeds than these would break it for two-valued rows."""
    for values in shapes(np.random.default_rng(0), (8000, seeds)):
        assert difference(values, np.zeros_like(values)).sure.mean() < 0.075
    coins = np.random.default_rng(1).choice([-1.0, 1.0], (8000, 2))
    assert (np.abs(coins.mean(1)) > 12.7 * stats.sem(coins, axis=1)).mean() > 0.4, "what two seeds would say"


def test_intervals_of_shares_stay_inside_their_range():
    rows = [Row("e", "p", arm, s, {"m": v}) for arm in "ab" for s, v in enumerate([0.0, 0.0, 0.0, 0.0, 1.0])]
    (study,) = studies([*rows, *(Row("e", "p", "c", s, {"m": 1.0 - s % 2}) for s in range(5))], ["m"])
    about = Description(title="t", question="q", baseline="a", metrics={"m": Metric("share", ".0%")})
    text = table_of(study, about, dict(about.metrics), caption="c")
    spans = re.findall(r"\[(\S+), (\S+)\]", text)
    assert spans
    for low, high in spans:
        assert float(low.replace("−", "-")) >= -100
        assert float(high.replace("−", "-")) <= 100


def test_a_study_holds_the_last_step_of_each_seed():
    rows = [Row("e", "p", "a", seed, {"m": 10.0 * step + seed}, step=step) for step in (2, 1) for seed in (5, 3)]
    (study,) = studies(rows, ["m", "absent"])
    assert study.seeds == (3, 5)
    assert study.values["m"].tolist() == [[[23.0, 25.0]]]


def test_problems_that_measure_other_things_are_other_studies():
    rows = [Row("e", "p", "a", 0, {"m": 1.0}), Row("e", "q", "a", 0, {"n": 1.0}), Row("e", "r", "b", 0, {"m": 2.0})]
    first, second = studies(rows, ["m", "n"])
    assert first.problems == ("p", "r")
    assert second.problems == ("q",)
    assert [first.arms_of(p) for p in range(2)] == [[0], [1]]


def test_the_baseline_comes_first_and_the_others_as_they_appear():
    rows = [Row("e", "p", arm, 0, {"m": 1.0}) for arm in ("c", "a", "base", "b")]
    (study,) = studies(rows, ["m"], first="base")
    assert study.arms == ("base", "c", "a", "b")


def test_more_problems_than_anyone_reads_become_their_mean():
    rows = [Row("e", f"item {p}", arm, s, {"m": p + s}) for p in range(MANY + 1) for arm in "ab" for s in (0, 1)]
    found = readable(rows)
    assert [(row.problem, row.arm, row.seed) for row in found] == [
        ("mean of 301 problems", arm, seed) for arm in "ab" for seed in (0, 1)
    ]
    assert [row.metrics["m"] for row in found] == [150.0, 151.0, 150.0, 151.0]
    assert readable(rows[:8]) == rows[:8]


def test_the_page_and_the_terminal_agree():
    random = np.random.default_rng(1)
    rows = [
        Row("e", p, a, s, {"m": float(random.standard_normal())})
        for p in ("p", "q")
        for a in ("x", "y")
        for s in range(7)
    ]
    (study,) = studies(rows, ["m"])
    terminal = table(rows, "m", "x")
    found = mean(study.values["m"])
    change = difference(study.values["m"], study.values["m"][:, [0]])
    for p, problem in enumerate(study.problems):
        for a, arm in enumerate(study.arms):
            assert found.mean[p, a] == pytest.approx(terminal[problem][arm].mean)
            assert found.error[p, a] == pytest.approx(terminal[problem][arm].error)
        assert change.mean[p, 1] == pytest.approx(terminal[problem]["y"].difference)

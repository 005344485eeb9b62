"""The paper's tables, typed once more from the page."""

import pytest

from calibrl.bandits.experiment import TABLE_1
from calibrl.runs.paper import TABLE_2


@pytest.mark.parametrize(
    ("problem", "printed"),
    [
        ("linear", (1209.8, 1210.3, 1231.8)),
        ("beta", (1176.3, 1174.6, 1202.3)),
        ("mushroom", (1429.4, 1676.1, 3122.0)),
        ("covertype", (558.14, 677.8, 1200.0)),
        ("adult", (131.3, 198.9, 1200.0)),
        ("census", (207.6, 603.7, 1200.0)),
    ],
)
def test_table_1_is_the_printed_one(problem, printed):
    assert tuple(TABLE_1.at(problem, arm, "reward").mean for arm in ("linucb", "callinucb", "optimal")) == printed


@pytest.mark.parametrize("arm", ["calibrated", "uncalibrated", "heuristic"])
def test_table_2_adds_up(arm):
    found = TABLE_2.about("any shop")[arm]
    # The printed reward is -(wasted + stockouts) and the shares are of units shipped, as far as the paper rounds.
    assert found["reward"].mean == pytest.approx(-(found["wasted"].mean + found["stockouts"].mean), abs=1)
    assert found["waste_share"].mean == pytest.approx(found["wasted"].mean / found["shipped"].mean, abs=6e-4)
    assert found["stockout_share"].mean == pytest.approx(found["stockouts"].mean / found["shipped"].mean, abs=6e-4)


def test_what_is_not_printed_is_none():
    assert TABLE_1.at("linear", "greedy", "reward") is None
    assert TABLE_1.at("wine", "linucb", "reward") is None

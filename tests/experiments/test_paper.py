"""The paper's tables, typed once more from the page, agree with themselves."""

import pytest

from calibrl.bandits import presets
from calibrl.experiments.paper import TABLE_1, TABLE_2


@pytest.mark.parametrize("problem", presets.TABLE_1)
def test_table_1_is_the_one_figures_show(problem):
    printed = presets.TABLE_1[problem]
    for arm in ("linucb", "callinucb", "optimal"):
        assert TABLE_1.at(problem, arm, "reward").mean == getattr(printed, arm)


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

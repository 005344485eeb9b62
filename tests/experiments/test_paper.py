"""The paper's tables, typed once more from the page."""

import pytest

from calibrl.bandits.experiment import TABLE_1


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


def test_what_is_not_printed_is_none():
    assert TABLE_1.at("linear", "greedy", "reward") is None
    assert TABLE_1.at("wine", "linucb", "reward") is None

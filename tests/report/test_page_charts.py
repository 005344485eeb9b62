"""What charts draw is what rows say, seed by seed or as means when there is too much."""

import json
from dataclasses import replace

import numpy as np
import pytest

from calibrl.report.page import POINTS, charts
from calibrl.report.tables import studies
from calibrl.runs.experiment import Axis, Description, Metric, describe
from calibrl.runs.rows import Row
from tests.report.conftest import bandit_rows, core_rows, learning_rows

RETURN = {"return": Metric("return")}


def data(rows, about, metrics=None, each=True):
    metrics = metrics or about.metrics
    (study,) = studies(rows, [name for name in metrics if any(name in row.metrics for row in rows)])
    found = charts(rows, study, about, {name: metrics[name] for name in study.values}).data(each=each)
    json.dumps(found, allow_nan=False)
    return found


def test_rows_with_steps_are_learning_curves():
    found = data(
        learning_rows(arms=2, seeds=3, steps=5), Description(title="mine", question="", baseline="arm 0"), RETURN
    )
    (curve,) = found["curves"]
    assert curve["x"] == [0, 1, 2, 3, 4]
    assert curve["values"]["return"]["each"][1][3] == [6, 6.1, 6.2]
    assert found["finals"]["return"][0]["each"][0] == [4, 4.1, 4.2]


def test_long_curves_are_thinned_and_keep_both_ends():
    found = data(
        learning_rows(arms=1, seeds=1, steps=1000), Description(title="mine", question="", baseline="arm 0"), RETURN
    )
    (curve,) = found["curves"]
    assert len(curve["x"]) == POINTS
    assert curve["x"][0] == 0
    assert curve["x"][-1] == 999


def test_seeds_measured_at_different_steps_are_averaged():
    steps = {("sac", 0): (100, 230), ("sac", 1): (150, 310), ("other", 0): (200,)}
    rows = [
        Row("e", "p", arm, seed, {"return": float(x)}, step=x) for (arm, seed), found in steps.items() for x in found
    ]
    (curve,) = data(rows, Description(title="e", question="", baseline="sac"), RETURN)["curves"]
    assert curve["x"] == [100, 150, 200, 230, 310]
    sac, other = curve["values"]["return"]["each"]
    assert sac == [[100], [100, 150], [], [230, 150], [None, 310]]
    assert other == [[], [], [200], [], []]


def test_an_arm_with_few_steps_stays_on_a_long_curve():
    rows = [Row("e", "p", "long", 0, {"return": 1.0}, step=x) for x in range(1000)]
    rows += [Row("e", "p", "short", 0, {"return": float(x)}, step=x) for x in (3, 500)]
    (curve,) = data(rows, Description(title="e", question="", baseline="long"), RETURN)["curves"]
    short = dict(zip(curve["x"], curve["values"]["return"]["each"][1], strict=True))
    assert {x for x, value in short.items() if value} == {x for x in curve["x"] if 3 <= x <= 500}
    assert {tuple(value) for value in short.values()} <= {(), (3,), (500,)}


def test_thin_curves_come_from_companion_metrics():
    found = data(bandit_rows(), describe("bandits"))
    (curve,) = found["curves"]
    assert curve["x"] == [200, 400, 600, 1200]
    assert curve["heading"] == "round"
    assert list(curve["values"]) == ["reward"]
    assert curve["values"]["reward"]["each"][0][0] == [100, 102, 104, 106, 108]
    assert found["paper"] == {"reward": [[558.14, 677.8]]}


def test_curves_along_a_setting():
    rows = [
        Row("e", f"{task}, {n}", arm, 0, {"return": float(n)}, settings={"task": task, "n": n})
        for task in ("maze", "taxi")
        for n in (10, 1)
        for arm in ("a", "b")
    ]
    found = data(rows, Description(title="e", question="", baseline="a", along=Axis("n", "amount", ("task",))), RETURN)
    assert [curve["title"] for curve in found["curves"]] == ["maze", "taxi"]
    assert found["curves"][1]["problems"] == [2, 3]
    assert found["curves"][1]["values"]["return"]["each"] == [[[1], [10]], [[1], [10]]]


def test_reliability_curves_keep_their_seeds():
    found = data(core_rows(seeds=2), describe("core"))
    shares = np.array(found["reliability"][0]["each"])
    assert shares.shape == (3, 19, 2)
    np.testing.assert_allclose(shares[2, :, 0], np.linspace(0.05, 0.95, 19))


def test_numbers_about_other_data_are_not_drawn():
    rows = [Row("inventory", "bakery", arm, 0, {"reward": -1.0}) for arm in ("uncalibrated", "calibrated")]
    assert describe("inventory").paper.at("bakery", "calibrated", "reward").mean == -16793
    assert data(rows, describe("inventory"))["paper"] == {}


def test_sums_over_fewer_rounds_are_not_drawn():
    rows = [replace(row, step=200) for row in bandit_rows()]
    assert data(rows, describe("bandits"))["paper"] == {}


def test_too_many_numbers_travel_as_means():
    rows = learning_rows(arms=2, seeds=5, steps=5)
    found = data(rows, Description(title="mine", question="", baseline="arm 0"), RETURN, each=False)
    assert not found["each"]
    packed = found["finals"]["return"][0]
    assert packed["mean"] == [4.2, 8.2]
    assert packed["count"] == [5, 5]
    assert packed["error"][0] == pytest.approx(np.std([4, 4.1, 4.2, 4.3, 4.4], ddof=1) / 5**0.5, rel=1e-4)
    assert [part[1] for part in packed["difference"]] == [4, 4, 4]
    assert found["curves"][0]["values"]["return"]["difference"][0][1] == [0, 1, 2, 3, 4]

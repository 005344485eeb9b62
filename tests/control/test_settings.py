"""The planner's settings: one search by name, whose fields they have, and what they refuse."""

from dataclasses import fields

import pytest

from calibrl.control.settings import PlannerSettings
from calibrl.errors import CalibrlError
from calibrl.planning.search import SEARCHES


@pytest.mark.parametrize("method", SEARCHES)
def test_a_search_gets_what_is_set(method):
    values = {"population_size": 30, "elites": 4, "iterations": 2, "momentum": 0.2, "noise_exponent": 0.5}
    values |= {"noise_std": 0.7, "keep_elites": 0.6, "temperature": 0.3, "keep_best": True, "control_cost": 0.1}
    search = PlannerSettings(method=method, **values).search
    assert type(search) is SEARCHES[method]
    for each in fields(search):
        assert each.name not in values or getattr(search, each.name) == values[each.name]


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(CalibrlError, match=r"planner\.method 'cma' is unknown; known: cem, icem, mppi, random"):
        _ = PlannerSettings(method="cma").search


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_exponent": -1.0}, r"planner\.noise_exponent -1\.0 is not 0 or more"),
        ({"noise_std": 0.0}, r"planner\.noise_std 0\.0 is not above 0"),
        ({"temperature": 0.0}, r"planner\.temperature 0\.0 is not above 0"),
        ({"keep_elites": 1.1}, r"planner\.keep_elites 1\.1 is not"),
        ({"horizon": 0}, r"planner\.horizon 0 is too few"),
        ({"propagation": "TS"}, "propagation 'TS' is unknown"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    with pytest.raises(CalibrlError, match=message):
        _ = PlannerSettings(**change).search

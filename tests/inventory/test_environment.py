"""The store as a Gymnasium environment."""

import doctest
import importlib
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.inventory import Costs, Rules, environment
from calibrl.inventory.environment import PerishableStore
from calibrl.inventory.policy import Oracle

TABLE = np.random.default_rng(0).poisson(12, (3, 120))


@pytest.mark.parametrize(
    "store",
    [
        PerishableStore(TABLE),
        PerishableStore(TABLE, actions="share", issuing="fifo"),
        PerishableStore(TABLE[0], shelf_life=1, days=120, memory=0),
        PerishableStore(TABLE, rules=Rules(pack=6, minimum=12, lead_days=3)),
        PerishableStore(lambda rng, days: rng.poisson(5, days), most=40),
    ],
    ids=["packs", "share", "one series", "rules", "sampler"],
)
def test_gymnasium_finds_nothing_to_object_to(store):
    check_env(store, skip_render_check=True)


def test_an_episode_by_hand():
    store = PerishableStore([[3, 5, 0, 4]], shelf_life=2, days=4, memory=2, issuing="fifo", costs=Costs(unmet=2))
    seen, _ = store.reset(seed=0)
    np.testing.assert_array_equal(seen[4:], [0, 0, 0, 0])
    seen, reward, _, truncated, info = store.step(7)
    np.testing.assert_array_equal(seen[4:], [3, 0, 4, 0])
    assert (reward, info["sold"], truncated) == (0, 3, False)
    _, reward, *_ = store.step(0)
    assert reward == -2  # one unmet
    _, reward, *_ = store.step(2)
    assert reward == 0
    seen, reward, terminated, truncated, info = store.step(5)
    np.testing.assert_array_equal(seen[4:], [4, 0, 3, 0])
    assert (reward, terminated, truncated, info["sold"], info["wasted"]) == (0, False, True, 4, 0)


def test_orders_come_after_their_lead_time():
    store = PerishableStore(np.full((1, 10), 4), days=10, rules=Rules(lead_days=3, pack=4), memory=0)
    store.reset(seed=0)
    seen, *_, info = store.step(1)
    np.testing.assert_array_equal(seen[4:], [0, 0, 0, 0, 4])
    assert (info["order"], info["delivered"], info["unmet"]) == (4, 0, 4)
    *_, info = store.step(0)
    assert info["delivered"] == 0
    *_, info = store.step(0)
    assert (info["delivered"], info["sold"]) == (4, 4)


def test_weekday_and_day_of_year_are_those_of_the_date():
    store = PerishableStore(np.zeros((1, 400)), days=1, first_day="2018-12-31", memory=0)
    seen, _ = store.reset(seed=0, options={"start": 0})  # a Monday, the 365th day
    year = 2 * np.pi * 364 / 365.25
    np.testing.assert_allclose(seen[:4], [0, np.sin(year), 1, np.cos(year)], atol=1e-6)
    seen, _ = store.reset(options={"start": 2})  # Wednesday, 2 January
    week, year = 4 * np.pi / 7, 2 * np.pi / 365.25
    np.testing.assert_allclose(seen[:4], [np.sin(week), np.sin(year), np.cos(week), np.cos(year)], atol=1e-6)


def test_seeds_repeat_an_episode_and_the_oracle_loses_nothing():
    def play(seed):
        store = PerishableStore(TABLE, days=30)
        store.reset(seed=seed)
        demand = store._demand
        return [store.step(Oracle()(demand[None, t : t + 5], store._stock))[1:3] for t in range(26)], demand

    rewards, demand = play(5)
    np.testing.assert_array_equal(play(5)[1], demand)
    assert not np.array_equal(play(6)[1], demand)
    assert sum(reward for reward, _ in rewards) == 0


def test_a_missing_gymnasium_is_named_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "calibrl.inventory.environment")
    with pytest.raises(MissingExtra, match=r"calibrl\[control\]"):
        importlib.import_module("calibrl.inventory.environment")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PerishableStore(TABLE, shelf_life=0), "shelf life 0"),
        (lambda: PerishableStore(TABLE, days=200), "120 days is shorter"),
        (lambda: PerishableStore(TABLE, days=0), "0 days"),
        (lambda: PerishableStore(-TABLE), "demand -"),
        (lambda: PerishableStore(TABLE + 0.5), "demand .*5 is not"),
        (lambda: PerishableStore(np.full((1, 120), np.nan)), "demand nan"),
        (lambda: PerishableStore(np.zeros((2, 3, 120))), "no table"),
        (lambda: PerishableStore(TABLE, issuing="any"), "'any' is unknown"),
        (lambda: PerishableStore(TABLE, actions="units"), "'units' are unknown"),
        (lambda: PerishableStore(TABLE, most=3, rules=Rules(minimum=6)), "most 3"),
        (lambda: PerishableStore(lambda rng, days: rng.poisson(5, days)), "pass most"),
        (lambda: PerishableStore(lambda rng, days: [1], most=5).reset(seed=0), r"drew shape \(1,\)"),
        (lambda: PerishableStore(TABLE).reset(options={"series": 3}), "series 3"),
        (lambda: _step(-1), "action -1"),
        (lambda: PerishableStore(TABLE, shelf_life=1.5), "shelf_life 1.5 is not a number of days; use a whole number"),
        (lambda: PerishableStore(TABLE, days=7.0), "days 7.0 is not a number of days"),
        (lambda: PerishableStore(TABLE, first_day="31.12.2018"), "first_day '31.12.2018' is not a date; write it like"),
        (lambda: PerishableStore(TABLE, first_day="NaT"), "first_day 'NaT' is not a date"),
        (lambda: PerishableStore(TABLE).step(1), r"the episode has not begun; call reset\(\) before step\(\)"),
        (lambda: _step(1, 1, 1), r"the episode is over after 2 days; call reset\(\) before step\(\)"),
    ],
)
def test_bad_input_is_refused_with_its_cure(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()


def _step(*actions):
    store = PerishableStore(TABLE, days=2)
    store.reset(seed=0)
    for action in actions:
        store.step(action)


def test_the_example_runs():
    assert doctest.testmod(environment, extraglobs={"np": np}).failed == 0

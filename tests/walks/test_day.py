"""One day of one shop, followed through the code: evening forecast, paths, order, sales, what is learnt."""

import numpy as np
import pytest
import torch

from calibrl import Calibrated, CalibrlError, Data, Rolling, learn
from calibrl.distributions import pit_z
from calibrl.evidence import Newest
from calibrl.forecasters.seasonal import SeasonalNaive
from calibrl.inventory.demand import Forecasts, features, in_units, paths
from calibrl.inventory.loop import collect_from, collect_season, demand_paths, play
from calibrl.inventory.policy import Heuristic, Newsvendor, Oracle, OrderUpTo, RandomTrajectories
from calibrl.inventory.problems import bakery

SHELF_LIFE = 3


@pytest.fixture(scope="module")
def shop():
    """The evenings of one series: 200 to learn from, then 20 to play."""
    sales = bakery().select(np.array([0]))
    rows = features(sales, "history", leads=5)
    return rows[np.arange(0, 200)], rows[np.arange(205, 225)]


@pytest.fixture
def model(shop):
    past, _ = shop
    model = Calibrated(SeasonalNaive(), evidence=Rolling())
    # Judged on the second half before it learns it: from then on it is calibrated.
    model.forecaster.update(past.data[:100])
    model.update(past.data[100:])
    return model


def test_one_day_step_by_step(shop, model):
    _, evenings = shop
    planner = OrderUpTo()
    collect = collect_from(evenings, planner=planner, shelf_life=SHELF_LIFE, n_paths=100, seed=1)
    data, outcome = collect(model)

    # The evening: what is known → a forecast of five days in units → 100 paths → an order.
    forecast = in_units(model(evenings.data.x[:1]), evenings.level[:1])
    assert forecast.batch_shape == (1, 5)
    ahead = paths(forecast, 100, torch.Generator().manual_seed(1))[0]
    assert ahead.shape == (100, 5)
    assert outcome.order == planner(ahead, np.zeros(SHELF_LIFE, dtype=np.int64), rng=np.random.default_rng(1))

    # The day: every unit is sold, wasted or left, and every customer served or not.
    demand = int(evenings.units[0, 0])
    day = outcome.day
    assert day.sold + day.unmet == demand
    assert outcome.order == day.sold + day.wasted + day.stock.sum()

    # The record: nothing yet, because the first evening's fifth day has not come.
    assert len(data) == 0


def test_an_evening_is_learnt_when_its_last_day_has_ended(shop, model):
    _, evenings = shop
    collect = collect_from(evenings[np.arange(7)], planner=Newsvendor(), shelf_life=SHELF_LIFE, n_paths=20)
    seen = [collect(model)[0] for _ in range(7)]
    assert [len(data) for data in seen] == [0, 0, 0, 0, 1, 1, 1]
    for t, data in enumerate(seen[4:]):
        torch.testing.assert_close(data.y, evenings.data.y[t : t + 1])
    with pytest.raises(CalibrlError, match="all 7 evenings were played"):
        collect(model)


def test_a_fortnight_of_algorithm_1(shop, model):
    _, evenings = shop
    collect = collect_from(evenings, planner=OrderUpTo(), shelf_life=SHELF_LIFE, n_paths=50)
    before = model.mapping
    outcomes = list(learn(collect, model, rounds=14))
    assert model.mapping is not before
    shipped = sum(outcome.order for outcome in outcomes)
    sold, wasted = (sum(getattr(outcome.day, name) for outcome in outcomes) for name in ("sold", "wasted"))
    assert shipped == sold + wasted + outcomes[-1].day.stock.sum()


def test_many_series_share_their_luck():
    generator = np.random.default_rng(0)
    demand = generator.poisson(20, (3, 10)).astype(float)
    forecast = generator.poisson(20, (3, 10, 40, 5)).astype(float)
    for planner in (RandomTrajectories(trajectories=100), OrderUpTo(), Heuristic()):
        one, other = (play(planner, forecast, demand, shelf_life=2, seed=4) for _ in range(2))
        np.testing.assert_array_equal(one.shipped, other.shipped)
        np.testing.assert_array_equal(one.wasted, other.wasted)
        assert (one.reward == -(one.wasted + one.unmet).sum(1)).all()
    known = np.pad(demand, ((0, 0), (0, 5)))[:, np.arange(10)[:, None] + np.arange(5)][:, :, None]
    assert play(Oracle(), known, demand, shelf_life=2, seed=4).reward.sum() == 0


class Trained:
    """A forecaster that has learnt all it will."""

    def __init__(self, forecaster):
        self.forecaster = forecaster

    def update(self, data):
        pass

    def __call__(self, x):
        return self.forecaster(x)


def test_a_season_is_the_plain_days_one_after_the_other():
    rows = features(bakery().select(np.array([0])), "history", leads=1)
    forecaster, evenings = SeasonalNaive(), rows[np.arange(201, 231)]
    forecaster.update(rows[np.arange(0, 200)].data)
    planner = Newsvendor(0.8, issuing="fifo")

    plain = Calibrated(Trained(forecaster), evidence=Newest(taught=True))
    collect = collect_from(evenings, planner=planner, shelf_life=SHELF_LIFE, n_paths=100)
    days = list(learn(collect, plain, rounds=30))

    memory = Forecasts.of(forecaster, evenings, n_paths=100, seed=0)
    memory = Forecasts(memory.rows, memory.margins, memory.rank, pit_z(memory.margins, evenings.units))
    model = Calibrated(memory, evidence=Newest(taught=True), judge=memory.judge)
    expected = list(learn(collect_season(memory, first=int(evenings.day[0]) + 1), model, rounds=30))
    season = play(planner, demand_paths(expected), evenings.units.T.numpy(), shelf_life=SHELF_LIFE, seed=0)

    assert model.updates == plain.updates == 30
    np.testing.assert_array_equal(season.shipped[0], [one.order for one in days])
    for name in ("sold", "wasted", "unmet"):
        np.testing.assert_array_equal(getattr(season, name)[0], [getattr(one.day, name) for one in days])


def test_rows_of_the_walk_are_data(shop):
    past, _ = shop
    assert isinstance(past.data, Data)
    assert past.data.x.shape == (200, 56)

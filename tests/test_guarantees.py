"""Each wrapper's intervals hold by the theorem that is theirs, and where there is none they are refused."""

import numpy as np
import pytest
import torch
from torch import distributions as td

import calibrl as cal
from calibrl.distributions.families import Grouped

D = torch.float64


class LeastSquares:
    """As sure as its residuals look: with as many features as rows, far too sure."""

    rows = None

    def update(self, data):
        self.rows = data if self.rows is None else self.rows + data
        x, y = self.rows.x, self.rows.y
        self.beta = torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution[:, 0]
        self.scale = (y - x @ self.beta).std().clamp(min=1e-6)

    def __call__(self, x):
        return td.Normal(x @ self.beta, self.scale)


class Fixed:
    """N(0, 1), whatever it is taught."""

    def __init__(self, shape=()):
        self.shape = shape

    def update(self, data):
        pass

    def __call__(self, x):
        return td.Normal(torch.zeros(len(x), *self.shape, dtype=D), 1.0)


def regression(n, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator, dtype=D)
    beta = torch.randn(features, generator=generator, dtype=D) / features**0.5
    return cal.Data(x, x @ beta + torch.randn(n, generator=generator, dtype=D))


def covered(forecast, y, **kwargs):
    low, high = forecast.interval(0.9, guarantee="conformal", **kwargs)
    return float(((y >= low) & (y <= high)).double().mean())


@pytest.mark.parametrize("features", [20, 95, 100])
def test_cross_fitted_intervals_hold_where_rows_are_as_few_as_features(features):
    """The ranks of out-of-fold rows, used for the forecaster of all rows, cover 21 % of 100 features' outcomes."""
    shares = []
    for seed in range(8):
        data = regression(400, features, seed)
        model = cal.CrossFitted(LeastSquares)
        model.update(data[:100])
        shares.append(covered(model(data.x[100:]), data.y[100:]))
    assert sum(shares) / len(shares) > 0.87
    assert "(CV+: 1 - 2 × 10 %" in model(data.x[:1]).promise(0.9)


def test_leave_one_out_bounds_are_those_of_jackknife_plus():
    data = regression(25, 3, 0)
    model = cal.CrossFitted(LeastSquares, folds=24)
    model.update(data[:24])
    low, high = model(data.x[24:]).interval(0.8, guarantee="conformal")
    places = []
    for i in range(24):
        own = LeastSquares()
        own.update(data[:24][torch.arange(24) != i])
        z = cal.pit_z(own(data.x[i : i + 1]), data.y[i : i + 1])
        places.append(float(own(data.x[24:]).icdf(torch.special.ndtr(z))))
    places.sort()
    assert float(low) == pytest.approx(places[1])  # the 2nd of 24, ⌊25 · 0.1⌋
    assert float(high) == pytest.approx(places[22])
    assert "at least 60 %" in model(data.x[24:]).promise(0.8)  # one row in each fold leaves nothing open


def test_cross_fitted_counts_and_columns_with_rows_unseen():
    class Counts(Fixed):
        def __call__(self, x):
            return td.Poisson(torch.full((len(x), 2), 5.0, dtype=D))

    generator = torch.Generator().manual_seed(3)
    y = torch.poisson(torch.full((300, 2), 9.0, dtype=D), generator=generator)
    y[:40, 1] = torch.nan
    model = cal.CrossFitted(Counts)
    model.update(cal.Data(torch.zeros(300, 1), y))
    low, high = model(torch.zeros(4, 1)).interval(0.9, guarantee="conformal")
    assert low.shape == (4, 2)
    for column in (0, 1):
        seen = y[:, column][~y[:, column].isnan()]
        assert 0.9 <= float(((seen >= low[0, column]) & (seen <= high[0, column])).double().mean()) <= 0.97


@pytest.mark.parametrize(
    "make", [cal.Rolling, lambda: cal.Rolling(forget=0.98), lambda: cal.evidence.Newest(taught=True)]
)
def test_intervals_of_a_stream_follow_what_drifts(make):
    generator = torch.Generator().manual_seed(5)
    y = torch.randn(400, generator=generator, dtype=D) * torch.where(torch.arange(400) < 150, 1.0, 2.5)
    model = cal.Calibrated(Fixed(), evidence=make(), fit_map=cal.fit_affine)
    hits = []
    for t in range(400):
        hits.append(covered(model(torch.zeros(1, 1)), y[t]))
        model.update(cal.Data(torch.zeros(1, 1), y[t : t + 1]))
    assert sum(hits[150:]) / 250 > 0.86
    assert abs(sum(hits) / 400 - 0.9) < 0.03
    assert "In the long run" in model(torch.zeros(1, 1)).promise(0.9)


def test_a_stream_picked_up_again_goes_on_where_it_was():
    first, second = (cal.Calibrated(Fixed(), evidence=cal.Rolling()) for _ in range(2))
    for seed in range(30):
        z = torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=D)
        first.update(cal.Data(torch.zeros(4, 1), 3 * z))
    second.evidence[0].load_state_dict(first.evidence[0].state_dict())
    second.maps = first.maps
    ends = [model(torch.zeros(1, 1)).interval(0.9, guarantee="conformal") for model in (first, second)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (lambda: cal.Rolling(), "one after another"),
        (lambda: cal.evidence.Censored(rng=np.random.default_rng(0)), "only known to be y or more"),
        (lambda: cal.evidence.Wary(cal.HeldOut()), "keeps no ranks"),
        (lambda: cal.evidence.Wary(cal.HeldOut(), forget=0.5), "keeps no ranks"),
        (lambda: cal.evidence.Trajectory(cal.evidence.Wary(cal.HeldOut(forget=0.9))), "keeps no ranks"),
        (lambda: cal.evidence.Trajectory(cal.Rolling()), "one after another"),
        (lambda: cal.evidence.Uncalibrated(), "keeps no ranks"),
    ],
)
def test_a_map_without_a_theorem_says_why(evidence, words):
    model = cal.Calibrated(Fixed((1,)), evidence=evidence())
    for seed in range(3):
        y = 4 * torch.randn(60, 1, generator=torch.Generator().manual_seed(seed), dtype=D)
        model.update(cal.Data(torch.zeros(60, 1), y, y > 100))
    bare = cal.Recalibrated(td.Normal(torch.zeros(1, 1, dtype=D), 1.0), model.mapping)
    with pytest.raises(cal.CalibrlError, match=words):
        bare.interval(0.9, guarantee="conformal")


@pytest.mark.parametrize("make", [lambda: cal.HeldOut(), lambda: cal.HeldOut(forget=0.9)], ids=["plain", "weighted"])
def test_wary_forecasts_promise_nothing_even_where_nothing_surprised_them(make):
    for evidence in (cal.evidence.Wary(make()), cal.evidence.Trajectory(cal.evidence.Wary(make()))):
        model = cal.Calibrated(Fixed((1,)), evidence=evidence)
        for seed in range(3):
            y = 0.5 * torch.randn(60, 1, generator=torch.Generator().manual_seed(seed), dtype=D)
            model.update(cal.Data(torch.zeros(60, 1), y))
        for guarantee in ("conformal", "tolerance"):
            with pytest.raises(cal.CalibrlError, match="widened when new rows lie further out"):
                model(torch.zeros(1, 1)).interval(0.9, guarantee=guarantee)


def test_maps_of_cross_fitting_promise_nothing_by_themselves_nor_do_stale_forecasts():
    data = regression(60, 3, 1)
    model = cal.CrossFitted(LeastSquares)
    with pytest.raises(cal.CalibrlError, match="no row was judged"):
        cal.CrossFitted(Fixed)(data.x).interval(0.9, guarantee="conformal")
    model.update(data[:40])
    forecast = model(data.x[40:])
    with pytest.raises(cal.CalibrlError, match=r"other forecasters had not learnt.*CV\+"):
        cal.Recalibrated(forecast.base, model.mapping).interval(0.9, guarantee="conformal")
    with pytest.raises(cal.CalibrlError, match="no tolerance bound"):
        forecast.interval(0.9, guarantee="tolerance")
    model.update(data[40:])
    with pytest.raises(cal.CalibrlError, match="learnt other rows since"):
        forecast.interval(0.9, guarantee="conformal")


def test_groups_are_covered_each():
    """Mondrian: a common map covers one group too often and the other too seldom."""
    generator = torch.Generator().manual_seed(2)
    scales = (0.5, 3.0)
    parts, y = [], torch.empty(2000, dtype=D)
    for k, scale in enumerate(scales):
        mapping = cal.fit_smooth(z=scale * torch.randn(200, generator=generator, dtype=D))
        rows = torch.arange(k, 2000, 2)
        parts.append((rows, cal.Recalibrated(td.Normal(torch.zeros(1000, dtype=D), 1.0), mapping)))
        y[rows] = scale * torch.randn(1000, generator=generator, dtype=D)
    whole = Grouped(parts)
    low, high = whole.interval(0.9, guarantee="conformal")
    inside = ((y >= low) & (y <= high)).double()
    assert min(float(inside[k::2].mean()) for k in (0, 1)) > 0.85  # of 200 rows each, give or take two points
    assert whole.promise(0.9).startswith("In each group: it holds at least 90 %")
    torch.manual_seed(0)
    drawn = whole.sample((500,))
    assert drawn.shape == (500, 2000)
    assert [float(drawn[:, k::2].std()) for k in (0, 1)] == pytest.approx(scales, rel=0.15)


def test_what_few_outcomes_leave_open_is_counted_by_outcomes():
    """Theorem 4 of Barber et al. (2021), of the rows whose outcome was seen; and a side that is none is named."""

    class Seen(LeastSquares):
        def update(self, data):
            super().update(data[~data.y.isnan()])

    x, y = torch.randn(60, 1, dtype=D), torch.randn(60, dtype=D)
    y[20:] = torch.nan
    model = cal.CrossFitted(Seen, folds=3)
    model.update(cal.Data(x, y))
    forecast, n, k = model(x[:1]), 20, 3
    open_by = min(2 * (1 - 1 / k) / (n / k + 1), (1 - k / n) / (k + 1))
    assert f"for certain at least {100 * (1 - 2 * 0.1 - 2 * open_by):.1f} %" in forecast.promise(0.9)
    assert f"less what {n} rows in {k} folds leave open" in forecast.promise(0.9)
    with pytest.raises(cal.CalibrlError, match="side 'left' is unknown"):
        forecast.promise(0.9, side="left")


def test_what_is_forgotten_of_a_long_stream_moves_no_bound(monkeypatch):
    """Nor does a long stream take longer for each row."""
    z = torch.randn(700, 1, dtype=D, generator=torch.Generator().manual_seed(4)) * torch.linspace(1, 3, 700)[:, None]

    def bounds(sizes):
        record, found = cal.evidence.Adaptive(), []
        for batch in z.split(sizes):
            found.append(torch.cat(record.bounds_z(0.05, 0.2)))
            record.add(batch)
        return torch.stack(found), len(record.state_dict()["batches"])

    for sizes in ([1] * 700, [140] * 5):
        whole, count = bounds(sizes)
        with monkeypatch.context() as patch:
            patch.setattr(cal.evidence, "FOLLOWED", 150)
            short, kept = bounds(sizes)
        assert short.equal(whole)
        assert kept < count == len(sizes)

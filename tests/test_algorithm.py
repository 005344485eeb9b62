"""Algorithm 1: what each wrapper may and may not look at."""

import copy

import numpy as np
import pytest
import torch
from torch import distributions as td

import calibrl as cal
from calibrl import evidence

D = torch.float64


class Spy:
    """Forecasts N(0, 0.3²) and remembers the rows it was taught."""

    def __init__(self, scale=0.3):
        self.rows = torch.zeros(0, dtype=D)
        self.scale = scale

    def update(self, data):
        assert len(data), "there is nothing to learn"
        self.rows = torch.cat([self.rows, data.x[:, 0]])

    def __call__(self, x):
        return td.Normal(torch.zeros(len(x), dtype=D), torch.full((len(x),), self.scale, dtype=D))


ONE_SPY = Spy()


class Coin:
    """Says 99 % of an event that happens half the time."""

    def update(self, data):
        pass

    def __call__(self, x):
        return td.Categorical(torch.tensor([[0.01, 0.99]], dtype=D).expand(len(x), 2))


def rows(start, count, generator, scale=1.0):
    x = torch.arange(start, start + count, dtype=D)[:, None]
    return cal.Data(x, scale * torch.randn(count, generator=generator, dtype=D))


def held_share(model, generator):
    y = torch.randn(4000, generator=generator, dtype=D)
    low, high = (model(torch.zeros(4000, 1, dtype=D)).icdf(torch.full((4000,), q, dtype=D)) for q in (0.05, 0.95))
    return float(((y > low) & (y < high)).double().mean())


@pytest.mark.parametrize(("count", "fraction", "held"), [(10, 0.01, 1), (10, 0.99, 9), (2, 0.01, 1), (1000, 0.3, 300)])
def test_a_random_split_leaves_rows_on_either_side_and_picks_them_by_lot(generator, count, fraction, held):
    split = cal.random_split(fraction, generator)
    picked = [split(rows(0, count, generator)) for _ in range(20)]
    assert all(len(out) == count and int(out.sum()) == held for out in picked)
    assert len({tuple(out.tolist()) for out in picked}) > 1
    place = torch.cat([out.nonzero()[:, 0].double() for out in picked]).mean() / (count - 1)
    assert float(place) == pytest.approx(0.5, abs=2 / len(picked) ** 0.5 / held**0.5)


def test_a_single_row_is_held_out_as_often_as_said(generator):
    split = cal.random_split(0.2, generator)
    parts = [split(rows(0, 1, generator)) for _ in range(1000)]
    assert sum(int(held.sum()) for held in parts) == pytest.approx(200, abs=50)


@pytest.mark.parametrize(
    ("count", "fraction", "held"),
    [(10, 0.01, 1), (10, 0.99, 9), (2, 0.01, 1), (2, 0.99, 1), (1, 0.2, 0), (1, 0.8, 1), (0, 0.5, 0), (1000, 0.3, 300)],
)
def test_a_last_split_holds_out_the_latest_and_leaves_rows_on_either_side(generator, count, fraction, held):
    out = cal.last_split(fraction)(rows(0, count, generator))
    assert out.tolist() == [False] * (count - held) + [True] * held


def test_a_random_split_keeps_blocks_together(generator):
    out = cal.random_split(0.4, generator, block=10)(rows(0, 95, generator))
    blocks = out.nonzero()[:, 0] // 10
    assert all(int((blocks == block).sum()) == (5 if block == 9 else 10) for block in blocks.unique())
    assert len(blocks.unique()) == 4


@pytest.mark.parametrize("make_split", [lambda g: cal.random_split(0.4, g), lambda _: cal.last_split(0.4)])
def test_calibrated_keeps_both_sides_apart_for_ever(generator, make_split):
    model = cal.Calibrated(Spy(), evidence=cal.HeldOut(make_split(generator)))
    for start in range(0, 500, 100):
        model.update(rows(start, 100, generator))
        trained, held = set(model.forecaster.rows.tolist()), set(model.held_out.x[:, 0].tolist())
        assert not trained & held
        assert trained | held == set(range(start + 100))
    assert len(held) == 200
    assert held_share(model, generator) == pytest.approx(0.9, abs=0.05)
    assert held_share(model.forecaster, generator) < 0.5


def test_rows_are_as_old_as_the_updates_since(generator):
    seen = []

    class Watched(evidence.HeldOut):
        def fit(self, judged, mapping, fit_map):
            seen.append(judged.age.tolist())
            return super().fit(judged, mapping, fit_map)

    masks = iter(([True, False, True], [False, True], [True]))
    model = cal.Calibrated(Spy(), evidence=Watched(lambda _: torch.tensor(next(masks)), forget=0.5))
    for count in (3, 2, 1):
        model.update(rows(0, count, generator))
    assert seen[-1] == [2, 2, 1, 0]


def both_agents(count, generator):
    """Rows of two agents, the second with outcomes of three times the spread."""
    parts = [rows(0, count, generator, scale) for scale in (1.0, 3.0)]
    return cal.Data(torch.stack([part.x for part in parts]), torch.stack([part.y[:, None] for part in parts]))


class Pair:
    """Two agents that forecast N(0, 1), whatever they learn; rows and forecasts have an agent axis."""

    def __init__(self):
        self.rows, self.trained = 0, []

    def update(self, data):
        self.rows += len(data)
        self.trained.append(data.x[..., 0])

    def retrain(self, data):
        self.rows, self.trained = 0, []
        self.update(data)

    def __call__(self, x):
        return td.Normal(torch.zeros(*x.shape[:2], 1, dtype=D), 1.0)


def test_agents_side_by_side_have_maps_of_their_own(generator):
    held = [cal.data.exact_split(0.5, torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    model = cal.Calibrated(Pair(), evidence=[evidence.HeldOut(held[0]), evidence.Newest(3)], remember=True)
    with pytest.raises(cal.CalibrlError, match="rows of 1 agents for evidence of 2"):
        model.update(rows(0, 10, generator))
    # Agents train side by side on equally many rows.
    model = cal.Calibrated(Pair(), evidence=[evidence.HeldOut(one) for one in held])
    alone = [
        cal.Calibrated(
            Spy(1.0), evidence=evidence.HeldOut(cal.data.exact_split(0.5, torch.Generator().manual_seed(seed)))
        )
        for seed in (1, 2)
    ]
    for _ in range(2):
        data = both_agents(200, generator)
        model.update(data)
        for one, own in zip(alone, data.by_agent(), strict=True):
            one.update(cal.Data(own.x, own.y[:, 0]))
    z = torch.linspace(-2, 2, 9, dtype=D)
    for mapping, one in zip(model.maps, alone, strict=True):
        torch.testing.assert_close(mapping.forward_z(z[:, None])[:, 0], one.mapping.forward_z(z))
    assert model.held_out.x.shape == (2, 200, 1)
    with pytest.raises(cal.CalibrlError, match="2 agents give no single forecast"):
        model(data.x)


def test_rows_that_change_sides_are_trained_on_anew(generator):
    kinds = [
        evidence.Resplit(cal.data.exact_split(0.5, generator), generator=generator),
        evidence.HeldOut(cal.data.exact_split(0.5, generator)),
    ]
    model = cal.Calibrated(Pair(), evidence=kinds)
    sides = []
    for _ in range(2):
        model.update(both_agents(40, generator))
        sides.append(model.held[:, :40].clone())
        assert torch.equal(model.forecaster.trained[-1], model.rows[~model.held].x[..., 0])
        assert model.forecaster.rows == int((~model.held[0]).sum())
    assert not torch.equal(sides[0][0], sides[1][0])
    assert torch.equal(sides[0][1], sides[1][1])
    with pytest.raises(cal.CalibrlError, match="Spy cannot train on rows that change sides"):
        cal.Calibrated(Spy(), evidence=kinds[0]).update(rows(0, 10, generator))


def test_the_newest_rows_are_counted_in_updates(generator):
    model = cal.Calibrated(Spy(1.0), evidence=evidence.Newest(2, refit_every=2))
    maps = []
    for start in range(0, 300, 50):
        model.update(rows(start, 50, generator))
        maps.append(model.mapping)
    assert maps[0] is cal.maps.IDENTITY  # nothing was learnt before these rows came
    assert maps[1] is maps[2]
    assert maps[3] is maps[4]
    assert maps[3] is not maps[2]
    assert [len(part) for part in model.evidence[0].scores] == [50, 50]
    assert float(maps[3].ranks.count) == 100


def test_what_was_cut_short_counts_as_at_least_that(generator):
    """Demand N(0, 1) of which only what was in stock is seen: Kaplan and Meier's weights restore its spread."""
    y = torch.randn(4000, 1, generator=generator, dtype=D)
    stock = 0.5 + torch.rand(4000, 1, generator=generator, dtype=D)
    data = cal.Data(torch.zeros(4000, 1, dtype=D), torch.minimum(y, stock), censored=y > stock)

    class Column(Spy):
        def __call__(self, x):
            return td.Normal(torch.zeros(len(x), 1, dtype=D), 0.5)

    naive = cal.Calibrated(Column(), evidence=cal.HeldOut())
    honest = cal.Calibrated(Column(), evidence=evidence.Censored(rng=np.random.default_rng(0)))
    for model in (naive, honest):
        model.update(data)
        assert not len(model.forecaster.rows)
    tops = [float(model(torch.zeros(1, 1, dtype=D)).icdf(torch.tensor(0.9))) for model in (naive, honest)]
    assert tops[1] == pytest.approx(1.28, abs=0.15)
    assert tops[0] < tops[1] - 0.1
    assert honest.evidence[0].weight.shape == (4200, 1)


def test_cross_fitted_judges_every_row_with_someone_who_never_saw_it(generator):
    model = cal.CrossFitted(Spy, folds=4, generator=generator)
    model.update(rows(0, 90, generator))
    model.update(rows(90, 110, generator))
    assert set(model.forecaster.rows.tolist()) == set(range(200))
    judged = []
    for judge, fold in zip(model.judges, model._folds, strict=True):
        assert not set(judge.rows.tolist()) & set(fold.x[:, 0].tolist())
        assert len(judge.rows) + len(fold) == 200
        judged += fold.x[:, 0].tolist()
    assert sorted(judged) == list(range(200))
    assert held_share(model, generator) == pytest.approx(0.9, abs=0.06)


def test_cross_fitted_keeps_blocks_together(generator):
    model = cal.CrossFitted(Spy, folds=3, generator=generator, block=10)
    model.update(rows(0, 60, generator))
    for fold in model._folds:
        blocks = (fold.x[:, 0] // 10).long()
        assert all(int((blocks == block).sum()) == 10 for block in blocks.unique())


def test_cross_fitted_deals_rows_one_by_one_unless_told_otherwise(generator):
    model = cal.CrossFitted(Spy, generator=generator)
    model.update(rows(0, 5, generator))
    assert [len(fold) for fold in model._folds] == [1] * 5


@pytest.mark.parametrize(("block", "size"), [(1, 1), (10, 10), (10, 25)])
def test_cross_fitted_folds_fill_update_by_update(generator, block, size):
    """One row or one trajectory at a time, as they come: each is left out by one who has learnt the others."""
    model = cal.CrossFitted(Spy, folds=3, generator=generator, block=block)
    model.update(rows(0, size, generator))
    if block == size:
        assert model.mapping is cal.maps.IDENTITY  # nobody has learnt anything yet
    for start in range(size, 12 * size, size):
        model.update(rows(start, size, generator))
    assert [len(fold) for fold in model._folds] == pytest.approx([4 * size] * 3, rel=0.2)
    for judge, fold in zip(model.judges, model._folds, strict=True):
        assert len(judge.rows) + len(fold) == 12 * size
        assert not set(judge.rows.tolist()) & set(fold.x[:, 0].tolist())
    assert float(model.mapping.ranks.count) == 12 * size


def test_rolling_evidence_judges_before_it_learns(generator):
    class Memory(Spy):
        """Certain of everything it was taught."""

        def __call__(self, x):
            known = torch.isin(x[:, 0], self.rows)
            return td.Normal(torch.zeros(len(x), dtype=D), torch.where(known, 1e-6, 1.0))

    model = cal.Calibrated(Memory(), evidence=cal.Rolling())
    for start in range(0, 300, 20):
        model.update(rows(start, 20, generator))
    # Had it judged rows it already knew, every outcome would have been a million deviations away.
    law = cal.maps.gaussian_law(model.mapping, torch.device("cpu"))
    assert float(law.variance) == pytest.approx(1, abs=0.25)


def test_forgetting_follows_a_drift(generator):
    def after_drift(**options):
        model = cal.Calibrated(Spy(1.0), evidence=cal.Rolling(**options))
        model.update(rows(0, 600, generator, scale=1.0))
        model.update(rows(600, 120, generator, scale=4.0))
        return float(model(torch.zeros(1, 1, dtype=D)).stddev)

    assert after_drift(forget=0.97) == pytest.approx(4, rel=0.25)
    assert after_drift(window=120) == pytest.approx(4, rel=0.25)
    assert after_drift() < 3


def test_an_arm_nobody_pulls_does_not_fade():
    scores = torch.tensor([[1.0, 1.0], [torch.nan, 2.0], [torch.nan, 3.0]], dtype=D)
    weights = cal.Rolling(forget=0.5).weights(scores)
    assert weights[0].tolist() == [1.0, 0.25]


def test_refits_only_when_asked(generator):
    model = cal.Calibrated(Spy(), evidence=cal.Rolling(refit_every=3))
    for start in range(0, 40, 20):
        model.update(rows(start, 20, generator))
    assert model.mapping is cal.maps.IDENTITY
    model.update(rows(40, 20, generator))
    assert model.mapping is not cal.maps.IDENTITY


def test_a_wrapper_gives_intervals_from_the_first_question_on(generator):
    model = cal.Calibrated(Spy(), evidence=cal.Rolling(refit_every=5))
    model.update(rows(0, 20, generator))
    low, high = model(torch.zeros(3, 1, dtype=D)).interval(0.9)
    assert (high - low).tolist() == pytest.approx([2 * 1.6449 * 0.3] * 3, rel=1e-3)


def test_a_stream_keeps_only_what_counts(generator):
    model = cal.Calibrated(Spy(), evidence=cal.Rolling(forget=0.9))
    for start in range(0, 400, 20):
        model.update(rows(start, 20, generator))
    assert len(model.evidence[0].scores) == 132  # 0.9 to the power of 131 is the last above a millionth
    both = cal.Rolling(forget=0.5)
    kept = both._remembered(torch.cat([torch.tensor([[1.0, torch.nan]]), torch.tensor([[torch.nan, 2.0]] * 50)]))
    assert kept.isnan().sum(0).tolist() == [20, 1]  # the arm that nobody pulled lately is still known


@pytest.mark.parametrize("columns", [(), (1,)])
def test_an_event_may_have_a_column_of_its_own(generator, columns):
    class Event(Spy):
        def __call__(self, x):
            return td.Independent(td.Bernoulli(torch.full((len(x), *columns), 0.99, dtype=D)), len(columns))

    y = torch.bernoulli(torch.full((400, *columns), 0.5), generator=generator).double()
    model = copy.deepcopy(cal.Calibrated(Event(), evidence=cal.HeldOut(cal.random_split(0.5, generator))))
    assert model(torch.zeros(3, 1)).mean.flatten().tolist() == pytest.approx([0.99] * 3)
    model.update(cal.Data(torch.zeros(400, 1, dtype=D), y))
    assert model(torch.zeros(3, 1)).probs.flatten().tolist() == pytest.approx([0.5] * 3, abs=0.12)
    assert cal.check(model, cal.Data(torch.ones(400, 1, dtype=D), y)).n == 400


@pytest.mark.parametrize(
    "fit_map",
    [
        None,
        cal.maps.classes.fit_bias_corrected,
        cal.maps.classes.fit_platt_classes,
        cal.maps.classes.fit_isotonic_classes,
        cal.maps.classes.fit_auto_classes,
    ],
)
def test_classes_are_calibrated_too(generator, fit_map):
    y = torch.bernoulli(torch.full((400,), 0.5), generator=generator).double()
    model = cal.Calibrated(Coin(), evidence=cal.HeldOut(cal.random_split(0.5, generator)), fit_map=fit_map)
    model.update(cal.Data(torch.zeros(400, 1, dtype=D), y))
    honest = model(torch.zeros(3, 1, dtype=D))
    assert isinstance(honest, td.Categorical)
    assert float(honest.probs[0, 1]) == pytest.approx(0.5, abs=0.12)


def test_one_label_is_too_few_for_a_class_map(generator):
    model = cal.Calibrated(Coin(), evidence=cal.HeldOut(cal.last_split(0.5)))
    model.update(cal.Data(torch.zeros(4, 1, dtype=D), torch.tensor([1.0, 1.0, torch.nan, 1.0])))
    assert "fewer than two outcomes" in model.mapping.note
    assert torch.equal(model(torch.zeros(3, 1, dtype=D)).probs, Coin()(torch.zeros(3, 1)).probs)
    model.update(cal.Data(torch.zeros(2, 1, dtype=D), torch.zeros(2, dtype=D)))
    assert not model.mapping.note


def test_counts_are_calibrated_too(generator):
    class Poisson(Spy):
        def __call__(self, x):
            return td.Poisson(torch.full((len(x),), 4.0, dtype=D))

    y = torch.poisson(torch.full((1000,), 8.0), generator=generator).double()
    model = cal.Calibrated(Poisson(), evidence=cal.HeldOut(cal.random_split(0.5, generator)))
    model.update(cal.Data(torch.zeros(1000, 1, dtype=D), y))
    honest = model(torch.zeros(1, 1, dtype=D))
    assert float(honest.mean) == pytest.approx(8, rel=0.05)
    assert float(honest.sample((200,)).frac().abs().max()) == 0


class Plain:
    """Learns nothing and answers with a number where a distribution is due."""

    def update(self, data):
        pass

    def __call__(self, x):
        return torch.zeros(len(x), 1)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda make: cal.Calibrated(make(), evidence=cal.HeldOut(cal.random_split(0.5, torch.Generator()))),
        lambda make: cal.CrossFitted(make, folds=2),
        lambda make: cal.Calibrated(make(), evidence=cal.Rolling()),
    ],
)
def test_what_is_no_forecaster_is_refused(wrap):
    with pytest.raises(cal.CalibrlError, match="int is no forecaster; it must have update"):
        wrap(lambda: 3)
    model = wrap(Plain)
    data = cal.Data.of(torch.randn(8, 2), torch.randn(8, 1))
    for attempt in (lambda: model.update(data), lambda: model(data.x)):
        with pytest.raises(cal.CalibrlError, match="answered with Tensor, not with a distribution"):
            attempt()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda g: cal.Calibrated(Spy(), evidence=cal.HeldOut(cal.random_split(0.4, g))),
        lambda _: cal.Calibrated(Spy(), evidence=cal.HeldOut(cal.last_split(0.4))),
        lambda _: cal.CrossFitted(Spy),
        lambda _: cal.Calibrated(Spy(), evidence=cal.Rolling(forget=0.98)),
    ],
)
def test_no_new_rows_change_nothing(generator, wrap):
    model, data = wrap(generator), rows(0, 50, generator)
    model.update(data[:0])
    model.update(data)
    before = model(data.x).mean
    model.update(data[:0])
    assert torch.equal(model(data.x).mean, before)


def test_learn_is_algorithm_one(generator):
    seen = []

    def collect(model):
        seen.append(model.mapping)
        return rows(100 * len(seen), 100, generator), len(seen)

    model = cal.Calibrated(Spy(), evidence=cal.HeldOut(cal.random_split(0.5, generator)))
    assert list(cal.learn(collect, model, rounds=3)) == [1, 2, 3]
    assert seen[0] is cal.maps.IDENTITY
    assert seen[1] != seen[2]
    assert isinstance(model, cal.Forecaster)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: list(cal.learn(lambda m: None, Spy(), rounds=0)), "rounds"),
        (lambda: cal.CrossFitted(Spy, folds=1), "folds"),
        (lambda: cal.CrossFitted(Spy, block=0), "block"),
        (lambda: cal.CrossFitted(lambda: ONE_SPY), "same forecaster twice"),
        (lambda: cal.Calibrated(Spy(), evidence=cal.Rolling(forget=0)), "forget"),
        (lambda: cal.Calibrated(Spy(), evidence=cal.Rolling(window=0)), "window"),
        (lambda: cal.Calibrated(Spy(), evidence=cal.Rolling(refit_every=0)), "refit_every"),
        (lambda: cal.recalibrate(td.Normal(0.0, 1.0), cal.fit_temperature([0.2, 0.7, 0.6], [0, 1, 1])), "class map"),
        (lambda: cal.Data(torch.zeros(3), torch.zeros(2)), "one row of each"),
        (lambda: cal.random_split(1.5, torch.Generator()), "fraction"),
        (lambda: cal.random_split(0.5, torch.Generator(), block=0), "block"),
        (lambda: cal.last_split(0), "fraction"),
    ],
)
def test_bad_settings_are_refused(attempt, words):
    with pytest.raises(cal.CalibrlError, match=words):
        attempt()


@pytest.mark.parametrize(
    "evidence",
    [
        cal.Rolling(forget=0.97),
        cal.Rolling(window=60),
        cal.evidence.Newest(forget=0.5, taught=True),
        cal.evidence.Newest(3, taught=True),
        cal.HeldOut(forget=0.5),
    ],
    ids=["rolling, fading", "rolling window", "newest, fading", "newest updates", "held out, fading"],
)
def test_classes_come_in_turn_and_old_ones_fade(generator, evidence):
    """What came true half the time comes true once in ten: the forecast follows, where a memory of all is late."""
    model = cal.Calibrated(Coin(), evidence=evidence, fit_map=cal.maps.classes.fit_bias_corrected)
    late = cal.Calibrated(Coin(), evidence=cal.Rolling(), fit_map=cal.maps.classes.fit_bias_corrected)
    for rate in [0.5] * 20 + [0.1] * 5:
        y = torch.bernoulli(torch.full((30,), rate), generator=generator).double()
        y[0] = torch.nan
        for one in (model, late):
            one.update(cal.Data(torch.zeros(30, 1, dtype=D), y))
    x = torch.zeros(1, 1, dtype=D)
    assert float(model(x).probs[0, 1]) < 0.25
    assert float(late(x).probs[0, 1]) > 0.35


@pytest.mark.parametrize("no_map", [torch.zeros(3), None, "smooth", cal.fit_smooth])
def test_what_is_no_map_recalibrates_nothing(no_map):
    forecast = torch.distributions.Normal(torch.zeros(3), 1.0)
    with pytest.raises(cal.CalibrlError, match=f"^{type(no_map).__name__} is no map; fit one first"):
        cal.recalibrate(forecast, no_map)


def test_rows_keep_where_trajectories_end():
    x, ends = torch.arange(12.0)[:, None], torch.arange(12) % 4 == 3
    one = cal.Data(x, x[:, 0], last=ends)
    assert (one[:6] + cal.Data(x, x[:, 0])).last.nonzero()[:, 0].tolist() == [3]
    assert one[ends].last.all()
    two = cal.Data(x.expand(2, -1, -1), x.expand(2, -1, -1), last=torch.stack([ends, ~ends]))
    assert [agent.last.tolist() for agent in two.by_agent()] == [ends.tolist(), (~ends).tolist()]
    assert two[torch.stack([ends, ends])].last.tolist() == [[True] * 3, [False] * 3]
    assert two[2:4].last.tolist() == [[False, True], [True, False]]
    assert not cal.Data(two.x, two.y).last.any()
    with pytest.raises(cal.CalibrlError, match=r"last has shape \(3,\) and y \(12,\); expected one for each row"):
        cal.Data(x, x[:, 0], last=ends[:3])

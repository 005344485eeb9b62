"""Searches find known optima, stay within bounds, and refuse nonsense; side by side they are the same, one by one."""

import math
import subprocess
import sys

import pytest
import torch
from scipy import stats

from calibrl.errors import CalibrlError
from calibrl.planning.candidates import Task, coloring, refuse_lost_plans
from calibrl.planning.search import CEM, ICEM, MPPI, SEARCHES, Bounds, CategoricalCEM, RandomShooting

BOUNDS = Bounds(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), horizon=3)
TARGET = torch.tensor([[0.5, -1.0], [0.0, 1.9], [-0.9, 0.3]])


def closeness(plans):
    return -(plans - TARGET).square().sum((1, 2))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Watched:
    """An objective that remembers what it was asked."""

    def __init__(self, objective=closeness):
        self.objective, self.seen = objective, []

    def __call__(self, plans, *_):
        self.seen.append(plans)
        return self.objective(plans)


def test_names_are_those_of_the_classes_and_settings_need_no_torch():
    assert list(SEARCHES) == ["cem", "icem", "mppi", "random"]
    program = "import sys; from calibrl.planning.search import CEM; CEM(elites=3); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


class TestCEM:
    def test_finds_the_top_of_a_hill(self):
        found = CEM(iterations=20).search(closeness, BOUNDS, generator=seeded(0)).plan
        assert (found - TARGET).abs().max() < 0.1

    def test_published_update_step_for_step(self):
        """Two iterations redone: mean of the elites, population variance, momentum."""
        objective = Watched()
        search = CEM(population_size=50, elites=5, iterations=2)
        found = search.search(objective, BOUNDS, generator=seeded(1)).plan
        mean, variance = torch.zeros(3, 2), torch.tensor([4.0, 16.0]).expand(3, 2) / 16
        for plans in objective.seen:
            room = torch.minimum(mean - BOUNDS.low, BOUNDS.high - mean) / 2
            width = torch.minimum(room**2, variance).sqrt()
            assert ((plans - mean).abs() <= 2 * width + 1e-6).all()
            order = closeness(plans).argsort(descending=True)[:5]
            elite = plans[order]
            mean = 0.1 * mean + 0.9 * elite.mean(0)
            variance = 0.1 * variance + 0.9 * ((elite - elite.mean(0)) ** 2).mean(0)
        torch.testing.assert_close(found, mean)

    def test_draws_follow_the_cut_normal(self):
        objective = Watched(lambda plans: plans.sum((1, 2)))
        bounds = Bounds(torch.tensor([-1.0], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64), horizon=1)
        CEM(population_size=4000, iterations=1).search(objective, bounds, generator=seeded(2))
        # The start: mean 0, standard deviation ½, both from the bounds.
        drawn = objective.seen[0].flatten().numpy()
        assert stats.kstest(drawn, stats.truncnorm(-2, 2, scale=0.5).cdf).pvalue > 0.01

    def test_never_leaves_the_bounds_and_warm_starts_are_clamped(self):
        objective = Watched(lambda plans: plans.sum((1, 2)))
        CEM().search(objective, BOUNDS, start=torch.full((3, 2), 9.0), generator=seeded(3))
        plans = torch.cat(objective.seen)
        assert (plans >= BOUNDS.low).all()
        assert (plans <= BOUNDS.high).all()

    def test_the_next_search_goes_on_from_the_rest_of_the_plan_and_the_middle_of_the_bounds(self):
        found = CEM(iterations=2).search(closeness, BOUNDS, generator=seeded(3))
        torch.testing.assert_close(found.start, torch.cat([found.plan[1:], BOUNDS.middle[:1]]))
        # Bounds that do not hold zero, or end there: the last action is searched for like the others.
        for low in (0.0, 0.5):
            bounds, generator = Bounds(torch.tensor([low]), torch.tensor([2.0]), horizon=3), seeded(0)

            def objective(plans):
                return -(plans - 1.5).square().sum((1, 2))

            start = CEM().search(objective, bounds, generator=generator).start
            found = CEM().search(objective, bounds, start=start, generator=generator).plan
            torch.testing.assert_close(found, torch.full((3, 1), 1.5), atol=0.05, rtol=0)

    def test_keep_best_returns_the_best_plan_evaluated(self):
        objective = Watched()
        search = CEM(population_size=30, elites=3, keep_best=True)
        found = search.search(objective, BOUNDS, generator=seeded(4)).plan
        every = torch.cat(objective.seen)
        torch.testing.assert_close(found, every[closeness(every).argmax()])

    def test_of_equally_good_plans_the_first_is_the_best(self):
        """Objectives of chance constraints have few values: what a run repeats must not depend on the sort."""
        objective = Watched(lambda plans: torch.zeros(len(plans)))
        found = CEM(population_size=30, elites=3, keep_best=True).search(objective, BOUNDS, generator=seeded(4))
        assert torch.equal(found.plan, objective.seen[0][0])

    def test_stops_when_the_search_has_narrowed(self):
        objective = Watched()
        CEM(iterations=500, min_variance=0.01).search(objective, BOUNDS, generator=seeded(5))
        assert len(objective.seen) < 50

    def test_small_actions_are_searched_as_large_ones_are(self):
        search = CEM(population_size=50, elites=5, iterations=4, min_variance=0.01)

        def found(unit):
            half = unit * torch.tensor([0.5])

            def objective(plans):
                return -(plans / unit - 0.3).square().sum((1, 2))

            return search.search(objective, Bounds(-half, half, horizon=3), generator=seeded(0)).plan / unit

        torch.testing.assert_close(found(1e-3), found(1.0))
        assert (found(1e-3) > 0.1).all()


class TestRandomShooting:
    def test_returns_the_best_draw_and_repeats(self):
        search = RandomShooting(population_size=250, iterations=2)
        objective = Watched()
        one, two = (search.search(each, BOUNDS, generator=seeded(6)).plan for each in (objective, closeness))
        torch.testing.assert_close(one, two)
        every = torch.cat(objective.seen)
        assert torch.equal(one, every[closeness(every).argmax()])
        assert closeness(one[None]) > -3


class TestICEM:
    BOUNDS = Bounds(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), horizon=4)
    TARGET = torch.tensor([[0.5, -1.0], [0.4, -0.8], [0.2, 0.3], [0.0, 0.9]])

    def closeness(self, plans):
        return -(plans - self.TARGET).square().sum((1, 2))

    def test_published_steps_redone_by_hand(self):
        """Two searches in a row, the second one warm: who took part in each iteration, and what they end with."""
        search = ICEM(population_size=30, elites=5, iterations=3, keep_elites=0.4, population_decay=1.5)
        generator, same = seeded(0), seeded(0)
        low, high, found = self.BOUNDS.low, self.BOUNDS.high, None
        for step in range(2):
            old, objective = found, Watched(self.closeness)
            warm = {} if old is None else {"start": old.start, "elites": old.elites}
            found = search.search(objective, self.BOUNDS, **warm, generator=generator)
            seen, mean = objective.seen, self.BOUNDS.middle if old is None else old.start
            # 30, 20, 13 new plans; 2 of 5 elites carried over; the mean joins the last iteration.
            assert [len(plans) for plans in seen] == [30 + 2 * step, 20 + 2, 13 + 2 + 1]
            if old is not None:
                assert torch.equal(seen[0][30:, :-1], old.elites[:, :-1])
                assert old.elites[:, -1].isnan().all()
            elites, spread = None, torch.tensor([0.5, 1.0])
            for i, plans in enumerate(seen):
                new = [30, 20, 13][i]
                white = torch.randn(new + (2 * step if i == 0 else 0), 4, 2, generator=same)
                noise = torch.einsum("ts,nsa->nta", coloring(4, 2.0).float(), white)
                drawn = (mean + spread * noise).clamp(low, high)
                torch.testing.assert_close(plans[:new], drawn[:new])
                if elites is not None:
                    assert torch.equal(plans[new:][:2], elites[:2])
                elif old is not None:
                    torch.testing.assert_close(plans[new:, -1], drawn[new:, -1])
                if i == 2:
                    torch.testing.assert_close(plans[-1], mean)
                elites = plans[self.closeness(plans).argsort(descending=True)[:5]]
                mean = 0.1 * mean + 0.9 * elites.mean(0)
                spread = 0.1 * spread + 0.9 * ((elites - elites.mean(0)) ** 2).mean(0).sqrt()
            torch.testing.assert_close(found.start, torch.cat([mean[1:], mean[-1:]]))
            assert torch.equal(found.elites[:, :-1], elites[:2, 1:])
            assert torch.equal(found.plan, elites[0])

    def test_finds_the_top_of_a_hill_and_gets_nearer_over_time(self):
        generator, flat = seeded(1), self.TARGET[:1].expand(4, 2)

        def objective(plans):
            return -(plans - flat).square().sum((1, 2))

        warm, values = {}, []
        for _ in range(6):
            found = ICEM().search(objective, self.BOUNDS, **warm, generator=generator)
            warm = {"start": found.start, "elites": found.elites}
            values.append(float(objective(found.plan[None])))
        assert values[-1] > values[0]
        assert (found.plan - flat).abs().max() < 0.25

    def test_plans_stay_within_the_bounds(self):
        objective = Watched(lambda plans: plans.sum((1, 2)))
        ICEM().search(objective, BOUNDS, generator=seeded(2))
        plans = torch.cat(objective.seen)
        assert ((plans >= BOUNDS.low) & (plans <= BOUNDS.high)).all()


class TestMPPI:
    def test_published_update_redone_plan_by_plan(self):
        """Williams et al., equation by equation: cost, control cost, weights of exponentials, weighted noise."""
        objective = Watched()
        search = MPPI(population_size=40, iterations=2, temperature=0.7, noise_std=0.3, control_cost=0.2)
        start = torch.tensor([[0.3, 0.4], [0.0, -0.5], [0.1, 0.0]])
        found = search.search(objective, BOUNDS, start=start, generator=seeded(0)).plan
        plan = start
        for plans in objective.seen:
            cost = []
            for tried in plans:
                noise = tried - plan
                steering = sum(plan[t, i] * noise[t, i] / (0.3 * [1, 2][i]) ** 2 for t in range(3) for i in range(2))
                cost.append(-closeness(tried[None])[0] + 0.7 * 0.2 * steering)
            least = min(cost)
            weight = [math.exp(-(each - least) / 0.7) for each in cost]
            change = sum(w * (tried - plan) for w, tried in zip(weight, plans, strict=True)) / sum(weight)
            plan = plan + change
        torch.testing.assert_close(found, plan)

    def test_comes_near_the_top_of_a_hill_over_time(self):
        generator, flat, start = seeded(1), TARGET[:1].expand(3, 2), None
        for _ in range(15):
            found = MPPI(temperature=0.05).search(
                lambda plans: -(plans - flat).square().sum((1, 2)), BOUNDS, start=start, generator=generator
            )
            start = found.start
        assert (found.plan[:2] - flat[:2]).abs().max() < 0.25

    def test_a_colder_search_follows_the_best_plan(self):
        objective = Watched()
        found = MPPI(temperature=1e-4).search(objective, BOUNDS, generator=seeded(2)).plan
        (seen,) = objective.seen
        torch.testing.assert_close(found, seen[closeness(seen).argmax()])
        assert ((seen >= BOUNDS.low) & (seen <= BOUNDS.high)).all()

    def test_an_objective_in_double_precision_leaves_plans_as_they_are(self):
        found = MPPI().search(lambda plans: closeness(plans).double(), BOUNDS, generator=seeded(2)).plan
        assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RandomShooting().search(lambda p: p.sum((1, 2)) / 0, BOUNDS), "the objective is -?inf for plan"),
        (lambda: CEM().search(lambda p: p.sum((1, 2)) * math.nan, BOUNDS), "the objective is nan for plan 0"),
        (lambda: ICEM().search(lambda p: p.sum((1, 2)) / 0, BOUNDS), "the objective is"),
        (lambda: MPPI().search(lambda p: p.sum((1, 2)) * math.nan, BOUNDS), "the objective is nan"),
        (lambda: CEM().search(lambda p: p.sum(), BOUNDS), r"gave shape \(\) for 400 plans"),
        (lambda: RandomShooting(population_size=0), "population_size 0 is too few"),
        (lambda: CEM(population_size=5, elites=6), "elites 6 of 5 plans"),
        (lambda: CEM(iterations=0), "iterations 0"),
        (lambda: CEM(momentum=1.0), "momentum 1.0 is not"),
        (lambda: CEM(min_variance=-1.0), "min_variance -1.0 is not 0 or more"),
        (lambda: ICEM(elites=200), "elites 200 of 120"),
        (lambda: ICEM(population_decay=0.5), "population_decay 0.5"),
        (lambda: ICEM(noise_exponent=-1.0), "noise_exponent -1.0"),
        (lambda: ICEM(keep_elites=1.5), "keep_elites 1.5"),
        (lambda: ICEM(population_size=4, elites=4, keep_elites=1.0), "leaves no room for a new plan among 4"),
        (lambda: ICEM(noise_std=0.0), "noise_std 0.0 is not above 0"),
        (lambda: MPPI(population_size=0), "population_size 0"),
        (lambda: MPPI(temperature=0), "temperature 0"),
        (lambda: Bounds(torch.tensor([1.0]), torch.tensor([0.0]), 3), "expected low < high"),
        (lambda: Bounds(torch.tensor([0.0]), torch.tensor([1.0]), 0), "horizon 0"),
        (lambda: CEM().search(closeness, BOUNDS, start=torch.zeros(2, 2)), r"start of shape \(2, 2\)"),
        (lambda: MPPI().search(closeness, BOUNDS, start=torch.zeros(2, 2)), r"start of shape \(2, 2\)"),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()


# Side by side: what g agents find together, each finds alone.

LOW, HIGH, H, G = BOUNDS.low.double(), BOUNDS.high.double(), 3, 4
WIDE = Bounds(LOW, HIGH, horizon=H)
TARGETS = torch.randn(G, H, 2, generator=seeded(9), dtype=torch.float64)
STARTS = torch.randn(G, H, 2, generator=seeded(1), dtype=torch.float64).clamp(LOW, HIGH)
MIDDLE = WIDE.middle.expand(G, H, 2)


def together(plans, _iteration=0):
    return -(plans - TARGETS[: len(plans), None]).square().sum((2, 3))


def of(agent):
    return lambda plans: -(plans - TARGETS[agent]).square().sum((1, 2))


def drawn(search, *, agents=G):
    """(iterations, g, population_size, h, a): each agent's chance, iteration after iteration from its own generator."""
    shape, device = (search.population_size, H, 2), torch.device("cpu")
    per_agent = [
        torch.stack(
            [
                search.draw(shape, generator=generator, device=device, dtype=torch.float64)
                for _ in range(search.iterations)
            ]
        )
        for generator in map(seeded, range(agents))
    ]
    return torch.stack(per_agent, 1)


def batch(search, *, objective=together, start=STARTS, elites=None, noise=None):
    elites = torch.full((G, search.carried, H, 2), torch.nan, dtype=torch.float64) if elites is None else elites
    noise = drawn(search) if noise is None else noise
    return search.search_batch(objective, LOW, HIGH, start=start, elites=elites, noise=noise)


@pytest.mark.parametrize(
    "search",
    [
        CEM(population_size=50, elites=5),
        CEM(population_size=50, elites=5, iterations=12, min_variance=0.05),
        CEM(population_size=30, elites=3, iterations=8, min_variance=0.02, keep_best=True),
        RandomShooting(population_size=60, iterations=2),
        MPPI(population_size=40, iterations=3, temperature=0.5, control_cost=0.1),
    ],
    ids=["cem", "some stop early", "keep best", "random", "mppi"],
)
def test_agents_together_find_what_each_finds_alone(search):
    found = batch(search)
    for agent in range(G):
        alone = search.search(of(agent), WIDE, start=STARTS[agent], generator=seeded(agent))
        torch.testing.assert_close(found.plan[agent], alone.plan)
        torch.testing.assert_close(found.start[agent], alone.start)


def test_icem_finds_together_over_time_what_each_agent_finds_alone():
    """Alone, elites and mean come on top of the population; together they have its last places."""
    search = ICEM(population_size=30, elites=5, keep_elites=0.4)
    own, alone = [list(map(seeded, range(G))) for _ in range(2)], [{}] * G
    start, elites = MIDDLE, torch.empty(G, 0, H, 2, dtype=torch.float64)
    for _ in range(3):
        known = elites.shape[1]
        by_agent = zip(*(list(search._noise(WIDE.middle, known, generator)) for generator in own[0]), strict=True)
        noise = [torch.cat(parts) for parts in by_agent]
        plan, start, elites = search._search(Task(together, LOW, HIGH, start, elites, noise, alone=True))
        for agent in range(G):
            found = search.search(of(agent), WIDE, **alone[agent], generator=own[1][agent])
            alone[agent] = {"start": found.start, "elites": found.elites}
            torch.testing.assert_close(plan[agent], found.plan)
            torch.testing.assert_close(start[agent], found.start)


def test_small_actions_are_searched_together_too():
    search = CEM(population_size=50, elites=5, iterations=3)
    low, high, start = 1e-3 * LOW, 1e-3 * HIGH, torch.zeros(G, H, 2).double()
    given = {"start": start, "elites": start[:, None][:, :0], "noise": drawn(search)}
    found = search.search_batch(lambda plans, _: plans.sum((2, 3)), low, high, **given).plan
    for agent in range(G):
        bounds = Bounds(low, high, H)
        alone = search.search(lambda plans: plans.sum((1, 2)), bounds, start=start[agent], generator=seeded(agent))
        torch.testing.assert_close(found[agent], alone.plan)
    assert (found.mean((1, 2)) > 0.2 * high.mean()).all()


def test_an_agent_that_has_narrowed_stays_as_it_is():
    """Other chance in late iterations for everyone: who had stopped by then has the same plan."""
    search = CEM(population_size=40, elites=4, iterations=30, min_variance=0.05)
    noise = drawn(search)
    long = batch(search, start=MIDDLE, noise=noise).plan
    noise[25:] = torch.rand(5, G, 40, H, 2, generator=seeded(7), dtype=torch.float64)
    torch.testing.assert_close(batch(search, start=MIDDLE, noise=noise).plan, long)


def test_elites_that_are_not_known_are_drawn():
    """An agent that begins among others that go on: in the room of its elites it tries new plans."""
    search = ICEM(population_size=30, elites=5, keep_elites=0.4, population_decay=1.0)
    noise, objective = drawn(search), Watched(together)
    found = batch(search, objective=objective, start=MIDDLE, noise=noise)
    spread = search.noise_std * (HIGH - LOW) / 2
    colored = torch.einsum("ts,gnsa->gnta", coloring(H, search.noise_exponent), noise[0])
    torch.testing.assert_close(objective.seen[0], (spread * colored).clamp(LOW, HIGH))
    elites, objective.seen = found.elites.clone(), []
    elites[1] = torch.nan
    start = torch.where(torch.arange(G)[:, None, None] == 1, MIDDLE, found.start)
    again = batch(search, objective=objective, start=start, elites=elites, noise=noise)
    torch.testing.assert_close(again.plan[1], found.plan[1])
    assert torch.equal(objective.seen[0][[0, 2, 3], -2:, :-1], elites[[0, 2, 3], :, :-1])
    assert all(plans.shape == (G, 30, H, 2) for plans in objective.seen)


def test_a_population_that_shrinks_takes_the_first_of_the_chance():
    search = ICEM(population_size=30, elites=5, population_decay=1.5)
    objective, noise = Watched(together), drawn(search)
    found = batch(search, objective=objective, noise=noise)
    assert [plans.shape[1] for plans in objective.seen] == [30, 20, 13]
    noise[1, :, 20:], noise[2, :, 13:] = torch.nan, torch.nan
    assert torch.equal(batch(search, noise=noise).plan, found.plan)


def test_a_lost_agent_is_named_and_the_others_are_not_harmed():
    search = CEM(population_size=20, elites=2)

    def broken(plans, iteration):
        value = together(plans, iteration)
        value[2, 3] = torch.nan
        return value

    plans, whole = (batch(search, objective=each).plan for each in (broken, together))
    others = [0, 1, 3]
    torch.testing.assert_close(plans[others], whole[others])
    assert plans[2].isnan().all()
    with pytest.raises(CalibrlError, match="the objective of agent 2 was not finite"):
        refuse_lost_plans(plans)
    assert refuse_lost_plans(whole) is whole


def test_wrong_shapes_are_refused():
    search = CEM(population_size=20, elites=2)
    with pytest.raises(CalibrlError, match="does not fit the search; expected"):
        batch(search, noise=torch.rand(4, G, 20, H, 2))
    with pytest.raises(CalibrlError, match=r"gave shape \(4,\) for 4 agents of 20 plans"):
        batch(search, objective=lambda plans, _: plans.sum((1, 2, 3)))


def test_choices_are_searched_for_side_by_side_as_alone():
    """Two kinds, of three and of two things: the best of each step is found; whoever plans beside does not matter."""
    search = CategoricalCEM(choices=(3, 2), population_size=80, elites=10, iterations=6)
    best = torch.tensor([[2, 0], [1, 1], [0, 1]])
    low, high = torch.zeros(5), torch.ones(5)

    def value(plans, _iteration=0):
        kinds = torch.stack([part.argmax(-1) for part in plans.split((3, 2), -1)], -1)
        return (kinds == best).double().sum((-1, -2))

    start = torch.full((2, 3, 5), 0.5)
    noise = torch.rand(6, 2, 80, 3, 5, generator=torch.Generator().manual_seed(0))
    empty = torch.empty(2, 0, 3, 5)
    together = search.search_batch(value, low, high, start=start, elites=empty, noise=noise)
    alone = search.search_batch(value, low, high, start=start[:1], elites=empty[:1], noise=noise[:, :1])
    torch.testing.assert_close(together.plan[:1], alone.plan)
    for plan in together.plan:
        assert torch.stack([part.argmax(-1) for part in plan.split((3, 2), -1)], -1).tolist() == best.tolist()
        assert plan.sum(-1).tolist() == [2.0] * 3
    # What is left are probabilities of each kind, even for the step that is new.
    for part in together.start.split((3, 2), -1):
        torch.testing.assert_close(part.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(together.start[:, -1, :3], torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("wrong", [{"choices": ()}, {"choices": (3, 1)}, {"choices": (2,), "smoothing": 1.0}])
def test_choices_that_are_none(wrong):
    with pytest.raises(CalibrlError, match=r"choices|smoothing"):
        CategoricalCEM(population_size=80, **wrong)

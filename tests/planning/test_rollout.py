"""Imagined rollouts against particles carried one by one, under every propagation, calibrated and not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import calibrl as cal
from calibrl.errors import CalibrlError
from calibrl.forecasters.nets import Nets, Shape
from calibrl.maps import Affine
from calibrl.maps.gaussian import CELLS, gaussian_law
from calibrl.planning.risk import DIVERGED
from calibrl.planning.rollout import (
    PROPAGATIONS,
    World,
    calibrated_draws,
    expected_draw,
    imagine,
    imagined_returns,
    noise_shape,
    stacked_tables,
)

G, N, H, P, SIZE, A, D = 2, 3, 4, 6, 3, 2, 3


def model_input(observation):
    return torch.cat([observation.sin(), observation[..., :1]], -1)


def reward(observation, action, following):
    return following[..., 0] - observation[..., 1].square() - 0.1 * action.square().sum(-1)


WORLD = World(
    model_input=model_input,
    target=lambda before, after: after - before,
    next_observation=lambda before, target: before + target,
    reward=reward,
)


def nets(agents=G, members=3, **shape):
    made = Nets.fresh(
        Shape(inputs=SIZE + 1 + A, outputs=D, hidden=(8, 8), members=members, **shape),
        [torch.Generator().manual_seed(i) for i in range(agents)],
    )
    for i, bias in enumerate(made.biases):
        bias += 0.1 * torch.randn(bias.shape, generator=torch.Generator().manual_seed(i))
    return made


def maps():
    """A map per column for the first agent, none for the second."""
    scale, shift = torch.tensor([0.5, 1.0, 2.0]).double(), torch.tensor([0.1, 0.0, -0.3]).double()
    return [Affine(scale=scale, shift=shift), None]


def luck(propagation, generator, *, agents=G, plans=N, particles=P, horizon=H):
    shape = noise_shape(propagation, agents=agents, horizon=horizon, plans=plans, particles=particles, outputs=D)
    return torch.randn(shape, generator=generator)


def g_of(mapping, epsilon):
    """g(ε) of one agent, exactly, from its map: one number per column."""
    return epsilon if mapping is None else mapping.inverse_z(epsilon.double()).float()


def slow_returns(model, world, observation, plans, *, propagation, particles, noise, mappings):
    """Agent by agent, plan by plan, particle by particle, network by network."""
    answers = torch.zeros(plans.shape[:2])
    for a in range(len(plans)):
        alone, e = model.agent(a), model.members

        def ask(state, action, network, alone=alone):
            x = torch.cat([world.model_input(state), action])[None, None]
            mean, variance = (part[0, :, 0] for part in alone.moments(x))
            return mean[network], variance[network]

        for n, plan in enumerate(plans[a]):
            states, earned = [observation[a]] * particles, [0.0] * particles
            for t, action in enumerate(plan):
                chance = noise[a, t].view(len(plans[a]), particles, -1)[n]
                matched = []
                for state in states:
                    each = [ask(state, action, k) for k in range(e)]
                    mean = sum(m for m, _ in each) / e
                    matched.append((mean, sum(v + (m - mean) ** 2 for m, v in each) / e))
                if propagation == "MM":
                    mean = sum(m for m, _ in matched) / particles
                    matched = [(mean, sum(v + (m - mean) ** 2 for m, v in matched) / particles)] * particles
                if propagation in ("TS1", "TSinf"):
                    # Which network each particle goes through: equal shares, in TS1 by the rank of the last column.
                    # In the first step all particles are alike, and any share is as good as any other.
                    rank = list(range(particles))
                    if propagation == "TS1" and t:
                        rank = chance[:, -1].argsort().argsort().tolist()
                    matched = [ask(states[i], action, rank[i] * e // particles) for i in range(particles)]
                following = []
                for i, (mean, variance) in enumerate(matched):
                    if propagation == "E":
                        drawn = torch.zeros(D) if mappings[a] is None else expectation(mappings[a])
                    else:
                        drawn = g_of(mappings[a], chance[i, :D])
                    following.append(world.next_observation(states[i], mean + variance.sqrt() * drawn))
                    earned[i] = earned[i] + world.reward(states[i], action, following[i])
                states = following
            answers[a, n] = sum(earned) / particles
    return answers


def expectation(mapping):
    return gaussian_law(mapping, torch.device("cpu")).mean.float()


@pytest.mark.parametrize("calibrated", [False, True], ids=["bare", "calibrated"])
@pytest.mark.parametrize("propagation", list(PROPAGATIONS))
def test_every_propagation_carries_particles_as_one_would_by_hand(propagation, calibrated, generator):
    model, particles = nets(), 1 if propagation == "E" else P
    observation, plans = torch.randn(G, SIZE, generator=generator), torch.randn(G, N, H, A, generator=generator)
    noise = luck(propagation, generator)
    mappings = maps() if calibrated else [None, None]
    tables = stacked_tables(mappings, D) if calibrated else None
    found = imagined_returns(
        model, WORLD, observation, plans, propagation=propagation, particles=P, noise=noise, tables=tables
    )
    expected = slow_returns(
        model, WORLD, observation, plans, propagation=propagation, particles=particles, noise=noise, mappings=mappings
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("propagation", ["DS", "TSinf", "E"])
def test_networks_without_variances(propagation, generator):
    model = nets(probabilistic=False)
    observation, plans = torch.randn(G, SIZE, generator=generator), torch.randn(G, N, H, A, generator=generator)
    noise = luck(propagation, generator)
    settings = {"propagation": propagation, "noise": noise}
    found = imagined_returns(model, WORLD, observation, plans, particles=P, **settings)
    particles = 1 if propagation == "E" else P
    slow = slow_returns(model, WORLD, observation, plans, particles=particles, mappings=[None, None], **settings)
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("propagation", list(PROPAGATIONS))
def test_an_agents_returns_do_not_depend_on_the_fleet(propagation, generator):
    model, tables = nets(), stacked_tables(maps(), D)
    observation, plans = torch.randn(G, SIZE, generator=generator), torch.randn(G, N, H, A, generator=generator)
    noise = luck(propagation, generator)
    settings = {"propagation": propagation, "particles": P}
    both = imagined_returns(model, WORLD, observation, plans, noise=noise, tables=tables, **settings)
    for a in range(G):
        one = slice(a, a + 1)
        alone = imagined_returns(
            model.agent(a), WORLD, observation[one], plans[one], noise=noise[one], tables=tables[one], **settings
        )
        torch.testing.assert_close(both[one], alone, rtol=1e-4, atol=1e-4)


def test_plans_may_begin_in_places_of_their_own(generator):
    model, plans = nets(), torch.randn(G, N, H, A, generator=generator)
    starts, noise = torch.randn(G, N, SIZE, generator=generator), luck("DS", generator)
    settings = {"propagation": "DS", "particles": P}
    together = imagined_returns(model, WORLD, starts, plans, noise=noise, **settings)
    for n in range(N):
        mine = noise.view(G, H, N, P, D)[:, :, n]
        alone = imagined_returns(model, WORLD, starts[:, n], plans[:, n : n + 1], noise=mine, **settings)
        torch.testing.assert_close(together[:, n : n + 1], alone)


def test_draws_spread_as_the_recalibrated_forecast_does(generator):
    """One step of DS with many particles: mean and variance of `Recalibrated`, the core's own forecast."""
    model, mapping = nets(1), maps()[0]
    observation, plans = torch.randn(1, SIZE, generator=generator), torch.randn(1, 1, 1, A, generator=generator)
    noise = luck("DS", generator, agents=1, plans=1, particles=40_000, horizon=1)
    tables = stacked_tables([mapping], D)
    steps = imagine(model, WORLD, observation, plans, propagation="DS", particles=40_000, noise=noise, tables=tables)
    (step,) = steps
    target = WORLD.target(step.observation, step.after)[0, 0]
    mean, variance = model.moments(torch.cat([model_input(observation), plans[:, 0, 0]], -1)[:, None])
    matched = torch.distributions.Normal(
        mean[0, :, 0].mean(0), (variance + (mean - mean.mean(1)) ** 2)[0, :, 0].mean(0).sqrt()
    )
    forecast = cal.Recalibrated(matched, mapping)
    torch.testing.assert_close(target.mean(0).double(), forecast.mean.double(), rtol=0.05, atol=0.02)
    torch.testing.assert_close(target.var(0).double(), forecast.variance.double(), rtol=0.05, atol=0.01)


def test_identity_tables_leave_draws_as_they_are(generator):
    noise = luck("TS1", generator)
    torch.testing.assert_close(calibrated_draws(noise, stacked_tables([None, None], D)), noise)
    assert calibrated_draws(noise, None) is noise


def test_tables_read_the_maps_and_leave_noise_alone(generator):
    noise = luck("TS1", generator)
    before, tables = noise.clone(), stacked_tables(maps(), D)
    draws = calibrated_draws(noise, tables)
    assert torch.equal(noise, before)
    torch.testing.assert_close(draws[0, ..., :D], g_of(maps()[0], noise[0, ..., :D]), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(draws[1], noise[1])
    assert torch.equal(draws[..., D:], noise[..., D:])


@given(scale=st.floats(0.2, 3), shift=st.floats(-1, 1))
def test_expected_draw_is_the_laws_mean(scale, shift):
    mapping = Affine(scale=torch.tensor([scale], dtype=torch.float64), shift=torch.tensor([shift], dtype=torch.float64))
    tables = stacked_tables([mapping], 1, dtype=torch.float64)
    torch.testing.assert_close(
        expected_draw(tables)[0], gaussian_law(mapping, torch.device("cpu")).mean, atol=1e-4, rtol=1e-3
    )


def test_a_particle_that_leaves_the_numbers_counts_as_published(generator):
    """One particle of two is NaN, in the other plan one is infinite."""

    def broken(observation, action, following):
        value = torch.ones(following.shape[:-1])
        value[..., 0, 0], value[..., 1, 1] = math.nan, math.inf
        return value

    world = World(model_input, WORLD.target, WORLD.next_observation, broken)
    found = imagined_returns(
        nets(1),
        world,
        torch.zeros(1, SIZE),
        torch.zeros(1, 3, 2, A),
        propagation="DS",
        particles=2,
        noise=luck("DS", generator, agents=1, plans=3, particles=2, horizon=2),
    )
    assert found.tolist() == [[(DIVERGED + 2) / 2, (DIVERGED + 2) / 2, 2.0]]


@pytest.mark.parametrize("propagation", list(PROPAGATIONS))
def test_a_single_plan_of_a_single_agent(propagation, generator):
    model, plans = nets(1), torch.randn(1, 1, H, A, generator=generator)
    noise = luck(propagation, generator, agents=1, plans=1)
    found = imagined_returns(
        model, WORLD, torch.zeros(1, SIZE), plans, propagation=propagation, particles=P, noise=noise
    )
    slow = slow_returns(
        model,
        WORLD,
        torch.zeros(1, SIZE),
        plans,
        propagation=propagation,
        particles=1 if propagation == "E" else P,
        noise=noise,
        mappings=[None],
    )
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("propagation", list(PROPAGATIONS))
def test_gradients_reach_the_plan(propagation, generator):
    """The slope of the last observation in the first action, by differences."""
    model, noise = nets(1), luck(propagation, generator, agents=1, plans=1)

    def last(plans):
        *_, step = imagine(model, WORLD, torch.zeros(1, SIZE), plans, propagation=propagation, particles=P, noise=noise)
        return step.after.mean()

    plans = torch.randn(1, 1, H, A, generator=generator, requires_grad=True)
    last(plans).backward()
    nudge = torch.zeros(1, 1, H, A)
    nudge[0, 0, 0, 0] = 1e-2
    with torch.no_grad():
        slope = (last(plans + nudge) - last(plans - nudge)) / 2e-2
    assert plans.grad[0, 0, 0, 0].item() == pytest.approx(slope.item(), rel=0.05, abs=2e-3)


def test_returns_are_tensors_like_any_other(generator):
    found = imagined_returns(
        nets(),
        WORLD,
        torch.zeros(G, SIZE),
        torch.zeros(G, N, H, A),
        propagation="DS",
        particles=P,
        noise=luck("DS", generator),
    )
    assert not found.is_inference()
    found += 1


def ask(generator, **changes):
    settings = {"propagation": "DS", "particles": P, "noise": luck("DS", generator), "world": WORLD} | changes
    world = settings.pop("world")
    return imagined_returns(nets(), world, torch.zeros(G, SIZE), torch.zeros(G, N, H, A), **settings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"propagation": "DSS"}, "propagation 'DSS' is unknown; known: E, DS, MM, TS1, TSinf"),
        ({"noise": torch.zeros(G, H, N, D)}, r"expected \(2, 4, 18, …\)"),
        (
            {"propagation": "TSinf", "particles": 4, "noise": torch.zeros(G, H, N * 4, D)},
            "4 particles cannot be shared",
        ),
        ({"world": World(*(3 * [lambda *a: a[0]]), None)}, "no reward"),
        ({"world": World(*list(vars(WORLD).values())[:3], lambda o, a, f: f)}, "the reward has shape"),
    ],
)
def test_nonsense_is_refused(changes, words, generator):
    with pytest.raises(CalibrlError, match=words):
        ask(generator, **changes)


def test_tables_have_a_line_for_every_cell():
    assert stacked_tables([None], D).shape == (1, D, CELLS, 2)
    one_for_all = Affine(scale=torch.tensor(2.0, dtype=torch.float64))
    assert stacked_tables([one_for_all, None], D).shape == (2, D, CELLS, 2)


def test_rewards_asked_for_by_parts_add_up_to_the_same(generator, monkeypatch):
    model, plans = nets(), torch.randn(G, N, H, A, generator=generator)
    settings = {"propagation": "DS", "particles": P, "noise": luck("DS", generator)}
    whole = imagined_returns(model, WORLD, torch.zeros(G, SIZE), plans, **settings)
    for steps in (1, 3):
        monkeypatch.setattr("calibrl.planning.rollout.AT_ONCE", steps * G * N * P * SIZE)
        torch.testing.assert_close(imagined_returns(model, WORLD, torch.zeros(G, SIZE), plans, **settings), whole)

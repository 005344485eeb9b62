"""Arms: the paper's released recipe against PyTorch's own Adam, constant widths, and evidence of trajectories."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from calibrl.control import checkpoint
from calibrl.control.arms import ARMS, BATCH_SIZE, EPOCHS, LR, Released, arm_named
from calibrl.control.loop import rows_of
from calibrl.control.policy import Fleet, Member, fleets
from calibrl.control.problems import task
from calibrl.control.settings import PRESETS, CalibrationSettings
from calibrl.control.trials import run_trial, view_of
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.evidence import HeldOut, Judged, Lasting, Outlook, Trajectory
from calibrl.forecasters.ensemble import input_scale
from calibrl.maps import IDENTITY, Affine, Sigmoid
from calibrl.planning.rollout import Errors, imagine
from calibrl.planning.rollout import lasting as lasting_noise

TINY = PRESETS["tiny"]
ANYWHERE = (torch.tensor(-torch.inf), torch.tensor(torch.inf))


def rows(agents, generator, count=30):
    x, y = torch.randn(1, count, 6, generator=generator), torch.randn(1, count, 4, generator=generator)
    return Data(x.expand(agents, -1, -1), y.expand(agents, -1, -1))


def fleet_of(*arms, preset=TINY):
    what = task("cartpole")
    (members,) = fleets(arms, [0])
    return Fleet(view_of(what), members, preset, low=what.low, high=what.high)


def adam_by_torch(evidence, parts):
    """What `Released` should come to: PyTorch's Adam and cross-entropy, over the same batches."""
    first = evidence._rng(0).uniform(-0.05, 0.05, (2, parts[0].shape[1]))
    theta = torch.tensor(first, requires_grad=True)
    adam, steps = torch.optim.Adam([theta], lr=LR), 0
    for z in parts:
        p = torch.special.ndtr(z)
        target = (p[None] < p[:, None]).double().mean(1)
        rng = evidence._rng(1 + steps)
        for order in [rng.permutation(len(p)) for _ in range(EPOCHS)]:
            for batch in torch.from_numpy(order).split(BATCH_SIZE):
                adam.zero_grad()
                logit = theta[0] * p[batch] + theta[1]
                torch.nn.functional.binary_cross_entropy_with_logits(logit, target[batch]).backward()
                adam.step()
                steps += 1
    return theta.detach()


def test_the_released_map_is_where_adam_has_come_to(generator):
    evidence = Released(lambda data: torch.zeros(len(data)), generator=torch.Generator().manual_seed(3))
    parts = [2 * torch.randn(40, 3, generator=generator).double(), torch.randn(70, 3, generator=generator).double()]
    for z in parts:
        found = evidence.fit(Judged(held=z), IDENTITY, None)
    assert isinstance(found, Sigmoid)
    wanted = adam_by_torch(evidence, parts)
    torch.testing.assert_close(torch.stack([found.a, found.b]), wanted, rtol=1e-6, atol=1e-6)


def test_released_agents_are_split_alike_and_scaled_by_what_is_held_out(generator):
    fleet = fleet_of("released", "released-control", "calibrated-paper")
    for _ in range(2):
        fleet.update(rows(3, generator))
    held = fleet.model.held
    assert torch.equal(held[0], held[1])
    assert isinstance(fleet.maps[0], Sigmoid)
    assert fleet.maps[1] is IDENTITY
    everything, nets = fleet.model.rows.x, fleet.ensemble.nets
    for agent, by in ((0, held[0]), (1, ~held[1]), (2, ~held[2])):
        mean, std = input_scale(everything[agent, by][None])
        torch.testing.assert_close(nets.input_mean[agent], mean[0])
        torch.testing.assert_close(nets.input_std[agent], std[0])


def test_widths_are_constant(generator):
    fleet = fleet_of("width-0.5", "width-1.4", "uncalibrated")
    fleet.update(rows(3, generator))
    assert [float(one.scale[0]) if isinstance(one, Affine) else 1.0 for one in fleet.maps] == pytest.approx(
        [0.5, 1.4, 1]
    )
    draws = fleet.tables()[:, 0, :, 1].mean(-1)
    assert draws.tolist() == pytest.approx([0.5, 1.4, 1], abs=1e-5)


def test_plans_may_count_half_of_what_is_new(generator):
    """What bare networks with half of the noise plan is what half as wide forecasts plan."""
    half = replace(TINY, planner=replace(TINY.planner, surprise=0.5))
    found, wanted = (fleet_of(*given[:1], preset=given[1]) for given in (("uncalibrated", half), ("width-0.5", TINY)))
    data = rows(1, generator)
    for fleet in (found, wanted):
        fleet.update(data)
    start = torch.zeros(1, 4)
    torch.testing.assert_close(found.act(start), wanted.act(start), rtol=1e-3, atol=1e-3)
    with pytest.raises(CalibrlError, match=r"planner.surprise 0.0 .*0\.5 counts half"):
        replace(TINY.planner, surprise=0.0)


def test_errors_that_last_are_imagined_to_last(generator):
    """Outcomes far from what young networks forecast, all on one side: the next errors will be, too."""
    fleet = fleet_of("calibrated-trajectory", "calibrated-wary")
    fleet.update(rows(2, generator))
    lasting = fleet.following.lasting
    assert lasting.kept[0, 0, 1].tolist() == pytest.approx([0.5] * 4)
    assert lasting.gain[0, 0].tolist() == [[0.0] * 4, [1.0] * 4]
    assert lasting.spread[0, 0].tolist() == pytest.approx([0.75**0.5] * 4)
    data = rows(2, generator, count=60)
    fleet.update(Data(data.x, torch.where(torch.arange(4) < 2, data.y.abs() + 1, data.y)))
    lasting = fleet.following.lasting
    now = lasting.unknown()
    for _ in range(30):
        now = lasting.seen(now, torch.ones(2, 1, 4).double())
    ten_ahead = (now.mean * lasting.kept**10).sum(-2)[0, 0]
    assert float(ten_ahead[:2].min()) > max(0.5, float(ten_ahead[2:].max()))
    # Of an arm whose errors do not last noise is what it was.
    noise = torch.randn(2, 4, 3, 2, 4, generator=generator)
    assert torch.equal(lasting_noise(noise, fleet.following.here())[1], noise[1])


def test_what_stays_for_an_episode_is_told_from_what_passes(generator):
    """An offset for each episode, an error that passes and white noise: both parts are found, and last as they do."""
    passing, evidence = torch.zeros(1, 3).double(), Trajectory(HeldOut())
    for episode in range(4):
        z, offset = [], torch.tensor([2.0, -2, 2]).double() * (-1) ** episode
        for _ in range(200):
            passing = 0.7 * passing + 0.6 * torch.randn(1, 3, generator=generator).double()
            z.append(offset + passing + 0.3 * torch.randn(1, 3, generator=generator).double())
        evidence.fit(Judged(torch.cat(z), torch.cat(z), age=torch.zeros(200)), IDENTITY, None)
    found = evidence.lasting
    assert bool((found.gain[0] > 0).all())
    assert bool(((found.kept[1] >= 0.5) & (found.kept[1] <= 0.8)).all())
    now, wrong = found.unknown(), []
    for seen, later in zip(z, z[20:], strict=False):
        now = found.seen(now, seen[0])
        wrong.append((found.kept**19 * now.mean).sum(0) - later[0])
    # 20 steps ahead what passes is not known: 0.8. Without a part that lasts the offset would not be either: 4.8.
    assert float(torch.stack(wrong).square().mean()) < 1.6


@pytest.mark.parametrize("arm", ["calibrated-trajectory", "uncalibrated-limited"])
def test_no_future_goes_further_than_anything_seen_and_as_far_again(arm, generator):
    """However long an error lasts, and however unsure networks are where it leads."""
    fleet = fleet_of(arm, "uncalibrated")
    for _ in range(2):
        fleet.update(rows(2, generator))
    y = fleet.model.rows.y[0]
    width = y.amax(0) - y.amin(0)
    errors = fleet.following.here()
    torch.testing.assert_close(errors.low[0, 0, 0], y.amin(0) - width)
    torch.testing.assert_close(errors.high[0, 0, 0], y.amax(0) + width)
    assert errors.high[1].isinf().all()
    errors = errors._replace(start=torch.full_like(errors.start, 100.0))
    horizon = TINY.planner.horizon
    noise, plans = torch.zeros(2, horizon, 1, 4), torch.zeros(2, 1, horizon, 1)
    how = {"propagation": "DS", "particles": 1, "noise": noise, "errors": errors}
    world = fleet.view.world
    for step in imagine(fleet.ensemble.nets, world, torch.zeros(2, 4), plans, **how):
        moved = (step.after - step.observation)[0, 0, 0]
        assert bool((moved <= y.amax(0) + width + 1e-4).all())


def joint(lasting, steps):
    """The covariance of so many errors, from the matrix that makes them of what came before and white noise."""
    rho, gain, spread = lasting.kept[:, 0].numpy(), lasting.gain[:, 0].numpy(), float(lasting.spread)
    before = 3000  # steps, after which what came first has been forgotten
    made, expected = [], np.zeros((len(rho), before + steps))
    for t in range(before + steps):
        new = np.zeros(before + steps)
        new[t] = spread
        made.append(expected.sum(0) + new)
        expected = rho[:, None] * (expected + gain[:, None] * new)
    return np.array(made[before:]) @ np.array(made[before:]).T


@pytest.mark.parametrize(
    ("rho", "gain", "spread"),
    [((0.9,), (0.2,), 0.8), ((0.0,), (0.3,), 1.0), ((0.98, 0.5), (0.1, 0.6), 2.0), ((0.99, 0.8), (0.0, 1.0), 1.3)],
)
def test_what_is_expected_is_what_the_joint_normal_law_says(rho, gain, spread, generator):
    """Kalman's recursion beside conditioning a multivariate normal by its covariance, before and after five errors."""
    parts = (torch.tensor(part).double()[:, None] for part in (rho, gain))
    lasting = Lasting(*parts, torch.tensor([spread]).double())
    whole = joint(lasting, 12)
    z = torch.randn(5, 1, generator=generator).double()
    now = lasting.unknown()
    for error in z:
        now = lasting.seen(now, error)
    weight = np.linalg.solve(whole[:5, :5], whole[:5, 5:]).T
    for state, wanted_mean, wanted in (
        (lasting.unknown(), np.zeros(7), whole[:7, :7]),
        (now, weight @ z[:, 0].numpy(), whole[5:, 5:] - weight @ whole[:5, 5:]),
    ):
        errors = Errors(state.mean[None, None, None], lasting.ahead(state.doubt, 7)[None, None], *ANYWHERE)
        # Noise that is 1 at one step at a time gives the matrix that draws are made with.
        unit = torch.cat([torch.zeros(1, 7), torch.eye(7)]).double()[None, :, :, None, None].transpose(1, 2)
        drawn = lasting_noise(unit, errors)[0, :, :, 0, 0].numpy()
        made = drawn[:, 1:] - drawn[:, :1]
        np.testing.assert_allclose(drawn[:, 0], wanted_mean, atol=1e-12)
        np.testing.assert_allclose(made @ made.T, wanted, atol=1e-12)
    nothing = lasting.seen(now, torch.full((1,), torch.nan).double())
    assert all(torch.equal(*pair) for pair in zip(nothing, now, strict=True))


def test_plans_count_on_an_answer_to_what_is_new(generator):
    """What is expected goes on to the end of a plan; what is new widens its own step and no later one."""
    fleet = fleet_of("calibrated-trajectory", preset=replace(TINY, seed=3))
    for _ in range(2):
        fleet.update(rows(1, generator, count=40))
    following, horizon = fleet.following, TINY.planner.horizon
    expected = following.expected._replace(mean=torch.ones_like(following.expected.mean))
    plan = following.here()
    fixed = following.ahead(type(expected)(*(part[:, None] for part in expected)), horizon, 3)
    assert bool(fixed.steps[..., 1:3, :].sum(-2).all())
    # The same step by step, if what is new is left out there.
    unanswered = fixed._replace(steps=fixed.steps.clone())
    unanswered.steps[..., 1:3, :] = 0
    noise = torch.randn(1, horizon, 2, 3, 4, generator=generator)
    start = torch.randn(fixed.start.shape, generator=generator)
    drawn = [lasting_noise(noise, one._replace(start=start)) for one in (plan, unanswered)]
    torch.testing.assert_close(*drawn)
    noise = torch.zeros(1, horizon, 1, 1, 4)
    noise[:, 0] = 1
    later = [(lasting_noise(noise, one) - lasting_noise(0 * noise, one))[0, 1:].abs().sum() for one in (plan, fixed)]
    assert float(later[0]) == 0 < float(later[1])


def test_looking_ahead_from_step_to_step_is_looking_ahead_anew(generator):
    """Also when an agent of two begins again, and when an error is not seen."""
    kept, gain, spread = (
        torch.rand(shape, generator=generator).double() for shape in ((2, 1, 2, 3),) * 2 + ((2, 1, 3),)
    )
    lasting = Lasting(kept, gain, spread + 0.1)
    outlook, now, buffer = Outlook(lasting, 4), lasting.unknown(), lasting.unknown().doubt
    for step in range(12):
        buffer.copy_(now.doubt)  # as agents keep it
        assert torch.equal(outlook(buffer), lasting.ahead(now.doubt, 4, answered=True))
        z = torch.randn(2, 1, 3, generator=generator).double()
        if step == 5:
            z[0, 0, 1] = torch.nan
        now = lasting.seen(now, z)
        if step == 7:
            for part, unknown in zip(now, lasting.unknown(), strict=True):
                part[1] = unknown[1]


def test_errors_are_followed_while_acting_as_they_are_scored(generator):
    """What agents expect of the next error after a trial is what scoring says they did."""
    fleet = fleet_of("calibrated-trajectory", "uncalibrated", preset=replace(TINY, seed=3))
    for _ in range(2):
        fleet.update(rows(2, generator, count=40))
    what = task("cartpole")
    environments = [what.make() for _ in fleet.members]
    trial = run_trial(fleet, environments, steps=12, seeds=[5, 5])
    z, _ = fleet.forecaster.zscores(rows_of(fleet.view, trial))
    wanted = fleet.following.along(z, torch.zeros_like(trial.last))
    # The last outcome was not looked at: nobody asked for another action.
    for found, one in zip(fleet.following.expected, wanted, strict=True):
        torch.testing.assert_close(found, one[:, -1], rtol=1e-6, atol=1e-6)
    assert float(fleet.following.expected.mean[0].abs().max()) > 0.01
    assert float(fleet.following.expected.mean[1].abs().max()) == 0
    kept = fleet.memory()
    fleet.begin([0, 1])
    assert float(fleet.following.expected.mean.abs().max()) == 0
    fleet.recall(kept)
    torch.testing.assert_close(fleet.following.expected.mean, wanted.mean[:, -1], rtol=1e-6, atol=1e-6)


def test_without_a_map_limits_are_all_that_is_added(generator):
    """Where nothing reaches them, the control imagines what bare networks do."""
    fleet = fleet_of("uncalibrated-limited", "uncalibrated")
    for _ in range(2):
        fleet.update(rows(2, generator, count=40))
    assert fleet.maps == [IDENTITY, IDENTITY]
    errors = fleet.following.here()
    noise = torch.randn(2, TINY.planner.horizon, 1, 1, 4, generator=generator)
    torch.testing.assert_close(lasting_noise(noise, errors), noise)
    assert [bool(agent.isfinite().all()) for agent in errors.low] == [True, False]


def test_series_of_several_networks_are_told_apart(generator):
    """Networks judged on the same rows err alike; that does not last in time."""
    shared = torch.randn(300, 1, 2, generator=generator).double()
    z = shared.expand(-1, 3, -1).reshape(900, 2)
    found = []
    for rows, seen in ((300, z), (300, shared[:, 0])):
        evidence = Trajectory(HeldOut())
        evidence.fit(Judged(seen, seen, age=torch.zeros(rows)), IDENTITY, None)
        found.append(evidence.lasting)
    for name in ("kept", "gain", "spread"):
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name))
    assert float((found[0].kept * found[0].gain).sum(0).max()) < 0.3


@pytest.mark.parametrize("apart", [0.0, 0.4, 0.8])
def test_networks_that_disagree_are_honest_together(apart, generator):
    """Of futures from three networks, 90 % intervals of all hold 90 %, however far apart the networks are."""
    z = torch.randn(4000, 1, 1, generator=generator) + apart * torch.randn(4000, 3, 1, generator=generator)
    evidence = Trajectory(HeldOut())
    evidence.fit(Judged(z.double().flatten(0, 1), z.double().flatten(0, 1), age=torch.zeros(4000)), IDENTITY, None)
    spread = float(evidence.lasting.spread)
    assert spread**2 == pytest.approx(1 - apart**2 / 3, rel=0.1)  # 1 + apart² / 3 less the variance among three
    pit = Normal(0, spread).cdf(z[..., 0]).mean(1)  # of the mixture of three
    assert float(((pit > 0.05) & (pit < 0.95)).float().mean()) == pytest.approx(0.9, abs=0.02)


def test_networks_further_apart_than_they_are_wrong_still_draw(generator):
    z = torch.randn(300, 3, 1, generator=generator).double()
    z = (z - z.mean(1, keepdim=True) + 0.1 * torch.randn(300, 1, 1, generator=generator)).flatten(0, 1)
    evidence = Trajectory(HeldOut())
    evidence.fit(Judged(z, z, age=torch.zeros(300)), IDENTITY, None)
    assert 0.1 < float(evidence.lasting.spread) < 0.4


@pytest.mark.parametrize("propagation", ["TS1", "TSinf", "MM"])
def test_errors_are_followed_network_by_network(propagation, generator):
    planner = replace(TINY.planner, propagation=propagation, particles=4)
    fleet = fleet_of("calibrated-trajectory", preset=replace(TINY, planner=planner))
    for _ in range(2):
        fleet.update(rows(1, generator, count=40))
    for _ in range(3):
        assert bool(fleet.act(torch.zeros(1, 4)).isfinite().all())
    networks = 1 if propagation == "MM" else 2
    assert fleet.following.expected.mean.shape == (1, networks, 2, 4)
    assert fleet.inputs.errors.start.shape[2] == (4 if propagation == "TSinf" else 1)


@pytest.mark.parametrize("name", ARMS)
def test_what_an_arm_remembers_is_kept(name, generator):
    """Evidence that was saved and loaded goes on as if it had never stopped."""
    evidence = [arm_named(name).evidence(CalibrationSettings(), torch.Generator().manual_seed(0)) for _ in range(2)]
    first, second = torch.randn(2, 40, 3, generator=generator).double()
    fit = arm_named(name).fit

    def teach(one, z, mapping):
        return one.fit(Judged(new=z, held=z, age=torch.zeros(len(z))), mapping, fit)

    mapping = teach(evidence[0], first, IDENTITY)
    evidence[1].load_state_dict(evidence[0].state_dict())
    went_on, loaded = (teach(one, second, mapping) for one in evidence)
    assert went_on == loaded
    if evidence[0].lasting is not None:
        assert torch.equal(evidence[0].lasting.spread, evidence[1].lasting.spread)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_is_the_same_in_another_process(name):
    """Also one that is made of functions without a name: workers find the agents they were sent."""
    assert pickle.loads(pickle.dumps(Member(ARMS[name], 3))) == Member(ARMS[name], 3)


def test_arms_that_are_not_there():
    with pytest.raises(CalibrlError, match="arm 'width-3' is unknown; known: calibrated,"):
        fleet_of("width-3", preset=replace(TINY, seed=1))


def test_nothing_goes_on_from_one_trajectory_to_the_next(generator):
    """Five short episodes learnt at once are five episodes learnt one after another, wherever they lie."""
    z = torch.randn(5, 12, 2, generator=generator).double() + 3 * torch.randn(5, 1, 2, generator=generator).double()
    one_by_one, at_once, run_together = (Trajectory(HeldOut()) for _ in range(3))
    for episode in z:
        one_by_one.fit(Judged(episode, episode, age=torch.zeros(12)), IDENTITY, None)
    whole, ends = z.flatten(0, 1), torch.arange(60) % 12 == 11
    at_once.fit(Judged(whole, whole, age=torch.zeros(60), last=ends), IDENTITY, None)
    run_together.fit(Judged(whole, whole, age=torch.zeros(60)), IDENTITY, None)
    torch.testing.assert_close(at_once.squares, one_by_one.squares)
    assert float(at_once.lasting.gain[0].min()) > 0.1  # offsets last for an episode
    assert float((run_together.squares - at_once.squares).abs().max()) > 1


@pytest.mark.parametrize("events", [0, 1])
def test_columns_without_errors_have_no_say_in_how_those_of_others_last(events, generator):
    """Neither outcomes nobody saw, nor events, whose numbers keep their sign for long."""
    z = torch.randn(200, 2, generator=generator).double()
    other = torch.full((200, 1), 2.0 if events else torch.nan).double()
    alone, beside = Trajectory(HeldOut()), Trajectory(HeldOut(), events=events)
    alone.fit(Judged(z, z, age=torch.zeros(200)), IDENTITY, None)
    both = torch.cat([z, other], 1)
    beside.fit(Judged(both, both, age=torch.zeros(200)), IDENTITY, None)
    for name in ("kept", "gain", "spread"):
        torch.testing.assert_close(getattr(beside.lasting, name)[..., :2], getattr(alone.lasting, name))
    if events:
        assert beside.lasting.gain[:, 2].tolist() == [0, 0]
        assert float(beside.lasting.spread[2]) == 1


def test_a_step_that_nobody_saw_is_no_error_of_zero(generator):
    z = 1 + 0.1 * torch.randn(400, 1, generator=generator).double()
    seen, gaps = Trajectory(HeldOut()), Trajectory(HeldOut())
    seen.fit(Judged(z, z, age=torch.zeros(400)), IDENTITY, None)
    z = z.masked_fill(torch.arange(400)[:, None] % 3 == 0, torch.nan)
    gaps.fit(Judged(z, z, age=torch.zeros(400)), IDENTITY, None)
    assert float(gaps.lasting.spread) == pytest.approx(float(seen.lasting.spread), rel=0.3)


def test_where_episodes_ended_is_learnt_again(generator):
    """How errors last depends on it."""
    first, again = (fleet_of("calibrated-trajectory") for _ in range(2))
    for _ in range(2):
        data = rows(1, generator, count=40)
        first.update(Data(data.x, data.y, last=torch.rand(1, 40, generator=generator) < 0.2))
    checkpoint.relearn(again, [checkpoint.agent_state(first, 0, light=True)], lambda *_: None)
    assert torch.equal(first.model.evidence[0].squares, again.model.evidence[0].squares)
    whole = fleet_of("calibrated-trajectory")
    checkpoint.load_agents(whole, [checkpoint.agent_state(first, 0)])
    assert torch.equal(whole.model.rows.last, first.model.rows.last)

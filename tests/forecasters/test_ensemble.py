"""Training as published: losses, gradients and steps against slow, independent ones; fleets against single agents."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import calibrl as cal
from calibrl.errors import CalibrlError
from calibrl.forecasters.ensemble import BatchedEnsemble, Batches, EnsembleTraining, Learner, input_scale
from calibrl.forecasters.nets import Nets, QuickNets, Shape
from calibrl.planning.rollout import matched
from tests import contracts
from tests.forecasters.test_nets import seeds, some_nets

SHAPE = Shape(inputs=5, outputs=3, hidden=(8, 7), members=4)
TRAINING = EnsembleTraining(epochs=3, batch_size=8, lr=1e-2, weight_decay=(1e-2, 2e-2, 3e-2))


def rows(agents, n, *, generator):
    x = torch.randn(agents, n, 5, generator=generator)
    y = torch.stack([x[..., 0].sin(), x[..., 1] * x[..., 2], x[..., 3]], -1)
    return x, y + 0.1 * torch.randn(y.shape, generator=generator)


def losses(nets, x, y, *, events=None):
    """What each network pays for rows x (g, e, n, in) and y (g, e, n, d), (g, e): see `Learner`."""
    mean, logvar = nets.head(x)
    each = (mean - y).square()
    if logvar is None:
        return each.mean((-2, -1))
    likely = each * torch.exp(-logvar) + logvar
    if events is not None:
        likely = torch.where(events[:, None, None], each + each.detach() * torch.exp(-logvar) + logvar, likely)
    return likely.mean((-2, -1))


def penalties(nets, training):
    """Weight decay and the price of wide bounds, summed over all agents."""
    decays = training.decays(len(nets.weights))
    total = sum(decay / 2 * weight.square().sum() for decay, weight in zip(decays, nets.weights, strict=True))
    return total + training.bound_penalty * (nets.max_logvar.sum() - nets.min_logvar.sum())


def test_the_loss_is_twice_scipys_negative_log_likelihood(generator):
    nets = some_nets(generator=generator)
    x, y = torch.randn(2, 4, 6, 5, generator=generator), torch.randn(2, 4, 6, 3, generator=generator)
    mean, variance = nets.moments(x)
    likelihood = stats.norm.logpdf(y.numpy(), mean.numpy(), variance.sqrt().numpy())
    expected = -2 * likelihood.mean((2, 3)) - math.log(2 * math.pi)
    np.testing.assert_allclose(losses(nets, x, y).numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("events", [None, [[False, False, True], [False, True, True]]])
@pytest.mark.parametrize("probabilistic", [True, False])
def test_the_gradient_by_hand_is_autograds_of_every_network_alone(probabilistic, events, generator):
    nets = some_nets(probabilistic=probabilistic, generator=generator)
    learner = Learner(nets, TRAINING)
    x, y = torch.randn(2, 4, 8, 5, generator=generator), torch.randn(2, 4, 8, 3, generator=generator)
    weight = (torch.arange(8) < 6)[:, None] / (6 * 3)
    standard = (x - nets.input_mean) / nets.input_std
    which = None if events is None else torch.tensor(events)
    spread = None if which is None else which.repeat_interleave(4, 0)[:, None]
    learner.differentiate(standard.flatten(0, 1), y.flatten(0, 1), weight, events=spread)
    # One network at a time, on the six rows that count. The bounds' slopes add up over an agent's networks.
    for a in range(2):
        bounds = []
        for k in range(4):
            alone = nets.agent(a).clone()
            alone.weights = [part[:, k : k + 1].requires_grad_() for part in alone.weights]
            alone.biases = [part[:, k : k + 1].requires_grad_() for part in alone.biases]
            alone.max_logvar.requires_grad_()
            alone.min_logvar.requires_grad_()
            some = (x[a : a + 1, k : k + 1, :6], y[a : a + 1, k : k + 1, :6])
            total = losses(alone, *some, events=None if which is None else which[a : a + 1]).sum()
            for decay, part in zip(TRAINING.weight_decay, alone.weights, strict=True):
                total = total + decay * part.square().sum() / 2
            total.backward()
            found = learner._slopes
            for ours, theirs in zip([*found.weights, *found.biases], [*alone.weights, *alone.biases], strict=True):
                torch.testing.assert_close(ours[a, k], theirs.grad[0, 0], rtol=1e-4, atol=1e-6)
            bounds.append((alone.max_logvar.grad, alone.min_logvar.grad))
        if probabilistic:
            highest, lowest = (sum(parts) for parts in zip(*bounds, strict=True))
            torch.testing.assert_close(found.max_logvar[a], highest[0] + 0.01, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(found.min_logvar[a], lowest[0] - 0.01, rtol=1e-4, atol=1e-6)


def test_a_whole_training_is_torchs_adam_on_the_same_batches(generator):
    """Two updates, the second warm: every step redone with autograd, `losses`, `penalties` and a plain Adam."""
    ensemble = BatchedEnsemble(SHAPE, training=TRAINING, generators=seeds(2))
    slow = Nets.fresh(SHAPE, seeds(2))
    for part in slow.parameters():
        part.requires_grad_()
    adam = torch.optim.Adam(slow.parameters(), lr=TRAINING.lr)
    x, y = rows(2, 27, generator=generator)
    for until in (20, 27):
        since = ensemble.rows
        batches = ensemble.prepare(x[:, since:until], y[:, since:until])
        slow.input_mean, slow.input_std = (
            x[:, :until].mean(1)[:, None, None],
            x[:, :until].std(1, correction=0)[:, None, None],
        )
        room = len(batches.x) // 2
        for step in range(batches.steps):
            table = batches.table[step].view(2, 4, 8) - torch.arange(2)[:, None, None] * room
            size = 8 if (step + 1) % math.ceil(until / 8) else until - 8 * (until // 8)
            some = [torch.stack([part[a][table[a, :, :size]] for a in range(2)]) for part in (x, y)]
            adam.zero_grad()
            (losses(slow, *some).sum() + penalties(slow, TRAINING)).backward()
            adam.step()
            ensemble.learner.step(batches)
        ensemble.finish()
        for ours, theirs in zip(ensemble.nets.parameters(), slow.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-3, atol=1e-5)


def test_batches_bootstrap_once_and_shuffle_every_epoch(generator):
    nets = Nets.fresh(SHAPE, seeds(2))
    batches = Batches.room(nets, TRAINING, 40)
    x, y = rows(2, 21, generator=generator)
    batches.fill(x, y, members=4, training=TRAINING, generators=seeds(2))
    assert batches.steps == 3 * 3
    table = batches.table[: batches.steps].view(3, 3, 2, 4, 8).permute(2, 3, 0, 1, 4).flatten(3)
    assert table[1].min() >= 40
    met = table[..., :21].sort(-1).values
    assert (met == met[:, :, :1]).all(), "every epoch meets the same bootstrap sample"
    assert not torch.equal(table[:, :, 0], table[:, :, 1])
    assert not torch.equal(met[0, 0], met[0, 1]), "every network has a sample of its own"
    assert 5 < met[0, 0, 0].unique().numel() < 21
    torch.testing.assert_close(batches.weight[: batches.steps].sum(1), torch.full((9,), 1 / 3))


def test_few_rows_are_passed_through_more_often(generator):
    """As often as the least number of steps asks for; as many epochs as ever once there are rows enough."""
    training = EnsembleTraining(epochs=2, batch_size=8, min_steps=30)
    assert [training.passes(rows) for rows in (1, 8, 9, 80, 120, 121, 800)] == [30, 30, 15, 3, 2, 2, 2]
    nets = Nets.fresh(Shape(2, 1, (4,), 2), [torch.Generator().manual_seed(0)])
    batches = Batches.room(nets, training, 200)
    for rows, steps in ((9, 30), (64, 32), (150, 38)):
        x, y = torch.randn(1, rows, 2, generator=generator), torch.randn(1, rows, 1, generator=generator)
        batches.fill(x, y, members=2, training=training, generators=[generator])
        assert batches.steps == steps
        counted = batches.weight[:steps].sum()
        assert float(counted) == pytest.approx(steps)  # each step is the mean over its rows


def test_an_agent_learns_the_same_alone_as_in_a_fleet(generator):
    x, y = rows(3, 40, generator=generator)
    fleet = BatchedEnsemble(SHAPE, training=TRAINING, generators=seeds(3))
    alone = BatchedEnsemble(SHAPE, training=TRAINING, generators=torch.Generator().manual_seed(2))
    for part in (slice(0, 25), slice(25, 40)):
        fleet.update_fleet(x[:, part], y[:, part])
        alone.update_fleet(x[2:, part], y[2:, part])
    for ours, theirs in zip(fleet.nets.agent(2).tensors(), alone.nets.tensors(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_it_learns(generator):
    ensemble = BatchedEnsemble(
        replace(SHAPE, hidden=(32, 32)), training=replace(TRAINING, epochs=60, weight_decay=1e-4)
    )
    x, y = rows(1, 400, generator=generator)
    ensemble.update(cal.Data(x[0], y[0]))
    fresh, truth = rows(1, 200, generator=generator)
    forecast = ensemble(fresh[0])
    assert (forecast.mean - truth[0]).square().mean() < 0.15 * truth[0].var()
    assert 0.05 < forecast.stddev.median() < 0.5


def test_a_bfloat16_trunk_changes_forecasts_by_a_few_hundredths_of_their_spread(generator):
    """On a trained model, at the width from which it is used."""
    ensemble = BatchedEnsemble(
        replace(SHAPE, hidden=(128, 128)), training=EnsembleTraining(epochs=60, weight_decay=1e-4)
    )
    x, y = rows(1, 250, generator=generator)
    ensemble.update_fleet(x[:, :200], y[:, :200])
    (mean, variance), (found, found_variance) = (
        matched(*model.moments(x[:, 200:]))
        for model in (ensemble.nets, QuickNets.of(ensemble.nets, trunk=torch.bfloat16))
    )
    assert ((found - mean) / variance.sqrt()).abs().mean() < 0.03
    assert (found_variance / variance).log().abs().mean() < 0.03


def test_a_saved_ensemble_goes_on_as_if_nothing_had_happened(generator, tmp_path):
    x, y = rows(2, 60, generator=generator)
    ensemble = BatchedEnsemble(SHAPE, training=TRAINING, generators=seeds(2))
    ensemble.update_fleet(x[:, :30], y[:, :30])
    torch.save(ensemble.state_dict(), tmp_path / "state.pt")
    ensemble.update_fleet(x[:, 30:], y[:, 30:])
    again = BatchedEnsemble(SHAPE, training=TRAINING, generators=seeds(2))
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again.update_fleet(x[:, 30:], y[:, 30:])
    for ours, theirs in zip(again.nets.tensors(), ensemble.nets.tensors(), strict=True):
        assert torch.equal(ours, theirs)


def test_loading_moves_no_memory(generator):
    ensemble = BatchedEnsemble(SHAPE, training=TRAINING, generators=seeds(1))
    before = [part.data_ptr() for part in ensemble.nets.tensors()]
    ensemble.update_fleet(*rows(1, 20, generator=generator))
    ensemble.load_state_dict(ensemble.state_dict())
    assert [part.data_ptr() for part in ensemble.nets.tensors()] == before


def test_moving_keeps_everything(generator):
    x, y = rows(1, 40, generator=generator)
    stays, moves = (BatchedEnsemble(SHAPE, training=TRAINING, generators=seeds(1)) for _ in range(2))
    for ensemble in (stays, moves):
        ensemble.update_fleet(x[:, :20], y[:, :20])
    moves.to("cpu")
    for ensemble in (stays, moves):
        ensemble.update_fleet(x[:, 20:], y[:, 20:])
    assert torch.equal(moves.nets.weights[0], stays.nets.weights[0])


def test_the_chance_of_a_rare_event_is_learnt(generator):
    """One row in ten is an event, beside an outcome that is nearly certain."""
    x = torch.rand(2, 400, 1, generator=generator)
    y = torch.cat([x + 0.001 * torch.randn(x.shape, generator=generator), (x > 0.9).float()], -1)
    shape = Shape(inputs=1, outputs=2, hidden=(32, 32), members=2)
    training = EnsembleTraining(epochs=60, weight_decay=0.0)
    ensemble = BatchedEnsemble(shape, training=training, generators=seeds(2))
    # The second agent's mean is left to the likelihood.
    ensemble.update_fleet(x, y, events=torch.tensor([[False, True], [False, False]]))
    mean, _ = ensemble.nets.moments(torch.tensor([0.5, 1.0])[None, :, None].expand(2, -1, -1))
    learnt, left = mean.mean(1)[..., 1]
    assert abs(learnt[0]) < 0.2
    assert learnt[1] > 0.6
    assert left[1] < learnt[1] - 0.1
    # No event, no difference: bit for bit.
    plain, none = (
        BatchedEnsemble(shape, training=EnsembleTraining(epochs=2, weight_decay=0.0), generators=seeds(2))
        for _ in range(2)
    )
    plain.update_fleet(x, y)
    none.update_fleet(x, y, events=torch.zeros(2, 2, dtype=torch.bool))
    assert torch.equal(plain.learner.theta, none.learner.theta)
    # An agent's events are nobody else's business.
    other = BatchedEnsemble(shape, training=EnsembleTraining(epochs=2, weight_decay=0.0), generators=seeds(2))
    other.update_fleet(x, y, events=torch.tensor([[False, True], [False, False]]))
    torch.testing.assert_close(other.nets.agent(1).weights[0], plain.nets.agent(1).weights[0])
    assert not torch.equal(other.nets.agent(0).weights[0], plain.nets.agent(0).weights[0])


def test_unseen_outcomes_do_not_count(generator):
    """Rows of which no outcome was seen change nothing but the batches: the losses' slope in their outputs is 0."""
    learner = Learner(some_nets(generator=generator), TRAINING)
    x, y = torch.randn(8, 8, 5, generator=generator), torch.randn(8, 8, 3, generator=generator)
    batches = Batches.room(learner.nets, TRAINING, 8)
    weight = torch.full((8, 1), 1 / 24)
    hidden = y.clone()
    hidden[:, ::2, 1] = torch.nan
    seen = torch.where(hidden.isnan(), 0.0, weight)
    learner.differentiate(x, y, seen)
    expected = learner.gradient.clone()
    learner.differentiate(x, hidden.nan_to_num(5.0), seen)
    torch.testing.assert_close(learner.gradient, expected)
    batches.fill(torch.zeros(2, 8, 5), hidden[:2], members=4, training=TRAINING, generators=seeds(2))
    assert batches.gaps
    learner.step(batches)
    assert learner.theta.isfinite().all()


def test_points_forecast_the_error_they_leave():
    model = BatchedEnsemble(
        Shape(2, 2, hidden=(16,), members=3, probabilistic=False),
        training=EnsembleTraining(epochs=60, lr=1e-2, weight_decay=0.0),
    )
    data = contracts.toy_rows(500, seed=0, columns=2, noise=0.5)
    model.update(data)
    assert model(data.x).stddev.mean().item() == pytest.approx(0.5, rel=0.1)


def test_inputs_that_never_change_are_left_alone():
    mean, std = input_scale(torch.tensor([[[1.0, 7.0], [3.0, 7.0]]]))
    assert mean.flatten().tolist() == [2, 7]
    assert std.flatten().tolist() == [1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", [2_000, 8_280, 80_000])
def test_inputs_are_scaled_alike_in_whatever_company_on_a_gpu(rows):
    x = 5 + 3 * torch.randn(20, rows, 27, generator=torch.Generator().manual_seed(0)).cuda()
    for alone, together in zip(input_scale(x[:1]), input_scale(x), strict=True):
        assert torch.equal(alone, together[:1])


def a_fleet(n=2):
    return BatchedEnsemble(SHAPE, training=TRAINING, generators=seeds(n))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: a_fleet().update_fleet(torch.zeros(3, 4, 5), torch.zeros(3, 4, 3)), "for 2 agents"),
        (lambda: a_fleet().update_fleet(torch.zeros(2, 4, 5), torch.zeros(2, 5, 3)), "as many new rows"),
        (
            lambda: a_fleet().update_fleet(torch.zeros(2, 4, 6), torch.zeros(2, 4, 3)),
            "6 inputs and 3 outputs do not fit",
        ),
        (lambda: a_fleet().update_fleet(torch.full((2, 4, 5), torch.nan), torch.zeros(2, 4, 3)), "not finite"),
        (lambda: a_fleet()(torch.zeros(4, 5)), "no single forecaster"),
        (lambda: a_fleet(1).update(cal.Data(torch.zeros(4, 5), torch.zeros(4))), "a column of its own"),
        (lambda: a_fleet().load_state_dict(a_fleet(1).state_dict()), "build it as the saved one"),
        (
            lambda: BatchedEnsemble(SHAPE, training=EnsembleTraining(weight_decay=(1e-4,))),
            "1 weight decays for 3 layers",
        ),
        (lambda: EnsembleTraining(epochs=0), "epochs 0"),
        (
            lambda: BatchedEnsemble(SHAPE, training=replace(TRAINING, lr=1e30)).update_fleet(
                *rows(1, 40, generator=torch.Generator().manual_seed(0))
            ),
            "weights that are not finite",
        ),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()

"""Batched networks against networks one by one, and their quick version against them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from calibrl.errors import CalibrlError
from calibrl.forecasters.nets import Nets, QuickNets, Shape, bounded, quickest_trunk
from calibrl.kernels.ensemble_draw import BLOCK, PAIRS, ROWS


def seeds(agents):
    return [torch.Generator().manual_seed(i) for i in range(agents)]


def some_nets(agents=2, *, generator, **shape):
    """Networks whose every number differs, bounds and scale included."""
    nets = Nets.fresh(Shape(**({"inputs": 5, "outputs": 3, "hidden": (8, 7), "members": 4} | shape)), seeds(agents))
    for part in [*nets.biases, nets.max_logvar, nets.min_logvar, nets.input_mean]:
        part += 0.3 * torch.randn(part.shape, generator=generator)
    nets.input_std *= 0.5 + torch.rand(nets.input_std.shape, generator=generator)
    return nets


def one_by_one(nets, x):
    """Mean and variance of every network for its own rows x (g, e, n, in), as a list of plain modules would do it."""
    g, e = nets.agents, nets.members
    answers = []
    for a in range(g):
        for k in range(e):
            layers = []
            for weight, bias in zip(nets.weights, nets.biases, strict=True):
                linear = nn.Linear(*weight.shape[2:])
                linear.weight.data, linear.bias.data = weight[a, k].T, bias[a, k, 0]
                layers += [linear, nn.SiLU()]
            row = (x[a, k] - nets.input_mean[a, 0]) / nets.input_std[a, 0]
            output = nn.Sequential(*layers[:-1])(row).detach()
            if not nets.probabilistic:
                answers.append((output, torch.zeros_like(output)))
                continue
            mean, raw = output.chunk(2, -1)
            highest, lowest = nets.max_logvar[a, 0], nets.min_logvar[a, 0]
            logvar = highest - (1 + (highest - raw).exp()).log()
            logvar = lowest + (1 + (logvar - lowest).exp()).log()
            answers.append((mean, logvar.exp()))
    return [torch.stack(parts).unflatten(0, (g, e)) for parts in zip(*answers, strict=True)]


@pytest.mark.parametrize("probabilistic", [True, False])
@pytest.mark.parametrize("members", [1, 4])
def test_batched_networks_are_the_networks_one_by_one(members, probabilistic, generator):
    nets = some_nets(members=members, probabilistic=probabilistic, generator=generator)
    x = torch.randn(2, members, 6, 5, generator=generator)
    for ours, theirs in zip(nets.moments(x), one_by_one(nets, x), strict=True):
        torch.testing.assert_close(ours, theirs)
    shared = x[:, :1].expand(-1, members, -1, -1)
    for ours, theirs in zip(nets.moments(x[:, 0]), one_by_one(nets, shared), strict=True):
        torch.testing.assert_close(ours, theirs)


@given(raw=st.floats(-40, 40), highest=st.floats(-3, 3), lowest=st.floats(-15, -5))
def test_soft_bounds_hold_and_their_short_form_is_the_same(raw, highest, lowest):
    raw, highest, lowest = (torch.tensor(value, dtype=torch.float64) for value in (raw, highest, lowest))
    logvar = bounded(raw, highest, lowest)
    assert lowest <= logvar
    # The lower bound is applied last and lifts what is near it, by no more than log(1 + e^(lowest - highest)).
    assert logvar <= highest + torch.log1p((lowest - highest).exp()) + 1e-9
    short = lowest.exp() + highest.exp() * torch.sigmoid(raw - highest)
    torch.testing.assert_close(logvar.exp(), short)


@given(
    agents=st.integers(1, 3),
    members=st.integers(1, 4),
    hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    rows=st.integers(1, 9),
    probabilistic=st.booleans(),
    shared=st.booleans(),
)
def test_quick_networks_answer_the_same(agents, members, hidden, rows, probabilistic, shared):
    generator = torch.Generator().manual_seed(rows)
    shape = {"members": members, "hidden": tuple(hidden), "probabilistic": probabilistic}
    nets = some_nets(agents, generator=generator, **shape)
    x = torch.randn((agents, rows, 5) if shared else (agents, members, rows, 5), generator=generator)
    for ours, reference in zip(nets.ready().moments(x), nets.moments(x), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, ROWS, ROWS + 1, BLOCK, BLOCK + 1, 2 * BLOCK + 33])
def test_quick_networks_work_through_blocks(rows, generator):
    nets = some_nets(generator=generator)
    quick, x = QuickNets.of(nets), torch.randn(2, rows, 5, generator=generator)
    for ours, reference in zip(quick.moments(x), nets.moments(x), strict=True):
        torch.testing.assert_close(ours, reference)
    draws = torch.randn(2, rows, 3, generator=generator)
    mean, variance = nets.moments(x)
    spread = (variance.mean(1) + mean.var(1, correction=0)).sqrt()
    torch.testing.assert_close(quick.matched_draw(x, draws), mean.mean(1) + spread * draws)


def test_networks_in_double_precision_stay_as_they_are(generator):
    nets = some_nets(generator=generator)
    nets = nets.replaced([part.double() for part in nets.tensors()])
    assert nets.ready() is nets


def test_quick_networks_are_of_the_moment_they_are_made(generator):
    nets = some_nets(generator=generator)
    x = torch.randn(2, 4, 5, generator=generator)
    nets.ready()
    nets.weights[0] *= 2
    torch.testing.assert_close(nets.ready().moments(x)[0], nets.moments(x)[0])


def test_narrow_layers_are_computed_in_full():
    assert quickest_trunk(Shape(5, 3, hidden=(64, 64))) == torch.float32
    assert quickest_trunk(Shape(5, 3, hidden=(200,))) == torch.float32
    wide = torch.bfloat16 if PAIRS else torch.float32
    assert quickest_trunk(Shape(5, 3, hidden=(200, 200))) == wide


def test_fresh_weights_follow_the_published_law():
    nets = Nets.fresh(Shape(16, 2, hidden=(300,), members=3), seeds(1))
    scale = 1 / (2 * math.sqrt(16))
    law = stats.truncnorm(-2, 2, scale=scale)
    assert stats.kstest(nets.weights[0].flatten().numpy(), law.cdf).pvalue > 0.01
    assert not nets.biases[0].any()
    assert nets.max_logvar.unique().tolist() == [0.5]
    assert nets.min_logvar.unique().tolist() == [-10.0]


def test_an_agents_networks_do_not_depend_on_the_fleet():
    fleet, alone = Nets.fresh(Shape(5, 3), seeds(3)), Nets.fresh(Shape(5, 3), [torch.Generator().manual_seed(2)])
    for ours, theirs in zip(fleet.agent(2).tensors(), alone.tensors(), strict=True):
        assert torch.equal(ours, theirs)


def test_state_goes_round(generator):
    nets = some_nets(generator=generator)
    again = Nets.from_state(nets.clone().state_dict())
    assert again.shape == nets.shape
    x = torch.randn(2, 4, 5, generator=generator)
    assert torch.equal(again.moments(x)[1], nets.moments(x)[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": 0}, "inputs 0"),
        ({"members": 0}, "members 0"),
        ({"hidden": ()}, "hidden"),
        ({"hidden": (0,)}, "hidden"),
    ],
)
def test_nonsense_is_refused(change, words):
    with pytest.raises(CalibrlError, match=words):
        Shape(**({"inputs": 2, "outputs": 2} | change))

"""The compiled pass against networks in double precision, and its draw against a mixture worked out by hand."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from calibrl.kernels import ensemble_draw as module
from calibrl.kernels.ensemble_draw import PAIRS, PackedNets, ensemble_answers, ensemble_draw

TRUNKS = [torch.float32, *([torch.bfloat16] if PAIRS else [])]


def ensemble_draw_reference(mean, share, lowest, highest, draws):
    """The draw from answers (g, e, n, d) in plain torch: what correct means."""
    middle = mean.mean(1)
    variance = lowest[:, None, None] + highest[:, None, None] * share
    spread = (variance + (mean - middle.unsqueeze(1)).square()).mean(1)
    return middle + spread.sqrt() * draws


def some_numbers(widths, networks, generator):
    """Weights and biases of networks of those widths."""
    ends = list(itertools.pairwise(widths))
    weights = [torch.randn(networks, a, b, generator=generator) / a**0.5 for a, b in ends]
    return weights, [0.3 * torch.randn(networks, 1, b, generator=generator) for _, b in ends]


def plain_answers(weights, biases, x, d):
    """The head (g, e, n, 2d) in double precision: means, and sigmoids of the rest."""
    rows = x.double().unsqueeze(1) if x.dim() == 3 else x.double()
    for i, parts in enumerate(zip(weights, biases, strict=True)):
        weight, bias = (part.double().unflatten(0, (len(x), -1)) for part in parts)
        rows = rows @ weight + bias
        rows = functional.silu(rows) if i < len(weights) - 1 else rows
    return rows[..., :d], rows[..., d:].sigmoid()


@given(
    agents=st.integers(1, 2),
    members=st.integers(1, 3),
    inputs=st.integers(1, 30),
    outputs=st.integers(1, 20),
    hidden=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    rows=st.integers(1, 30),
    shared=st.booleans(),
    trunk=st.sampled_from(TRUNKS),
)
def test_any_shape_is_computed_as_in_double_precision(agents, members, inputs, outputs, hidden, rows, shared, trunk):
    generator = torch.Generator().manual_seed(rows)
    numbers = some_numbers([inputs, *hidden, 2 * outputs], agents * members, generator)
    bounds = torch.rand(2, agents, outputs, generator=generator)
    x = torch.randn((agents, rows, inputs) if shared else (agents, members, rows, inputs), generator=generator)
    nets = PackedNets.of(*numbers, *bounds, trunk=trunk)
    plain = plain_answers(*numbers, x, outputs)
    exact = trunk == torch.float32
    close = {"rtol": 1e-5, "atol": 1e-5} if exact else {"rtol": 0.05, "atol": 0.05}
    for ours, reference in zip(ensemble_answers(nets, x), plain, strict=True):
        torch.testing.assert_close(ours.double(), reference, **close)
    if shared:
        draws = torch.randn(agents, rows, outputs, generator=generator)
        expected = ensemble_draw_reference(*plain, *bounds.double(), draws.double())
        torch.testing.assert_close(ensemble_draw(nets, x, draws).double(), expected, **close)


def test_two_networks_by_hand():
    """Means 1 and 3, variances 0.5 + 2 · 0.25 and 0.5 + 2 · 0.75: mean 2, variance 1.5 + 1, a draw of 2."""
    weights = [torch.zeros(2, 1, 1), torch.zeros(2, 1, 2)]
    log_odds = torch.tensor([1 / 3, 3.0]).log()
    biases = [torch.zeros(2, 1, 1), torch.stack([torch.tensor([1.0, 3.0]), log_odds], -1).unsqueeze(1)]
    nets = PackedNets.of(weights, biases, torch.tensor([[0.5]]), torch.tensor([[2.0]]), trunk=torch.float32)
    mean, share = ensemble_answers(nets, torch.zeros(1, 1, 1))
    assert mean.flatten().tolist() == [1, 3]
    assert share.flatten().tolist() == pytest.approx([0.25, 0.75])
    assert ensemble_draw(nets, torch.zeros(1, 1, 1), torch.full((1, 1, 1), 2.0)).item() == pytest.approx(
        2 + 2 * 2.5**0.5
    )


@pytest.mark.parametrize("trunk", TRUNKS)
def test_threads_share_out_the_rows(trunk, generator, monkeypatch):
    numbers, bounds = some_numbers([4, 9, 9, 6], 4, generator), torch.rand(2, 2, 3, generator=generator)
    nets, x = PackedNets.of(*numbers, *bounds, trunk=trunk), torch.randn(2, 701, 4, generator=generator)
    draws = torch.randn(2, 701, 3, generator=generator)
    alone = ensemble_draw(nets, x, draws)
    monkeypatch.setattr(module, "WORTHWHILE", 1)
    torch.set_num_threads(3)
    assert torch.equal(ensemble_draw(nets, x, draws), alone)


# Tiles: activations to the last bits, and the same answers from what other processors would run.


def chain(layers, *, trunk=torch.float32):
    """A network that is swish after swish of its one input; its head: that number, and the sigmoid of it."""
    weights = [torch.ones(1, 1, 1) for _ in range(layers)] + [torch.ones(1, 1, 2)]
    biases = [torch.zeros(1, 1, weight.shape[2]) for weight in weights]
    return PackedNets.of(weights, biases, torch.zeros(1, 1), torch.ones(1, 1), trunk=trunk)


NUMBERS = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, -1e-6, 1e-30, 80.0, 88.0, 1e4, -80.0])])


def test_swish_and_sigmoid_to_the_last_bits():
    mean, share = ensemble_answers(chain(1), NUMBERS.view(1, -1, 1))
    exact = functional.silu(NUMBERS.double())
    torch.testing.assert_close(mean.flatten().double(), exact, rtol=3e-7, atol=1e-30)
    torch.testing.assert_close(share.flatten().double(), exact.sigmoid(), rtol=3e-7, atol=1e-30)


def test_far_below_zero_swish_is_nothing():
    mean, _ = ensemble_answers(chain(1), torch.tensor([-90.0, -1e4, -1e30]).view(1, 3, 1))
    assert mean.abs().max() < 1e-5


@pytest.mark.skipif(not PAIRS, reason="this processor has no products of bfloat16 numbers")
def test_activations_are_rounded_to_the_nearest_bfloat16():
    mean, _ = ensemble_answers(chain(1, trunk=torch.bfloat16), NUMBERS.view(1, -1, 1))
    rounded = functional.silu(NUMBERS.double()).bfloat16().double()
    # A number half way between two may go to either side.
    torch.testing.assert_close(mean.flatten().double(), rounded, rtol=2**-7, atol=1e-30)
    assert (mean.flatten().double() == rounded).double().mean() > 0.95


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("trunk", [torch.float32, *([torch.bfloat16] if PAIRS else [])])
def test_what_is_no_number_stays_none(layers, trunk):
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0]).view(1, 4, 1)
    mean, _ = ensemble_answers(chain(layers, trunk=trunk), x)
    assert mean.flatten().isfinite().tolist() == [False, False, False, True]


@pytest.mark.parametrize(("lanes", "features"), [(4, {}), (8, {"avx2": True})], ids=["plain", "avx2"])
def test_other_processors(lanes, features, tmp_path):
    """What processors with shorter vectors compile; in a process and a cache of its own."""
    program = f"""
import torch
from llvmlite import binding
known = type(binding.get_host_cpu_features())({features})
binding.get_host_cpu_features = lambda: known
from calibrl.forecasters.nets import Nets, Shape
from calibrl.kernels import ensemble_draw
assert (ensemble_draw.LANES, ensemble_draw.PAIRS) == ({lanes}, False), (ensemble_draw.LANES, ensemble_draw.PAIRS)
nets = Nets.fresh(Shape(5, 3, hidden=(130, 131), members=2), [torch.Generator().manual_seed(0)])
torch.manual_seed(0)
x, draws = torch.randn(1, 50, 5), torch.randn(1, 50, 3)
for ours, reference in zip(nets.ready().moments(x), nets.moments(x), strict=True):
    torch.testing.assert_close(ours, reference)
mean, variance = nets.moments(x)
spread = (variance.mean(1) + mean.var(1, correction=0)).sqrt()
torch.testing.assert_close(nets.ready().matched_draw(x, draws), mean.mean(1) + spread * draws)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)})

"""The activations of tiles to the last bits, and the same answers from what other processors would run."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from calibrl.kernels.ensemble_draw import PackedNets, ensemble_answers
from calibrl.kernels.tiles import PAIRS


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
from calibrl.kernels import tiles
assert (tiles.LANES, tiles.PAIRS) == ({lanes}, False), (tiles.LANES, tiles.PAIRS)
nets = Nets.fresh(Shape(5, 3, hidden=(130, 131), members=2), [torch.Generator().manual_seed(0)])
x, draws = torch.randn(1, 50, 5), torch.randn(1, 50, 3)
for ours, reference in zip(nets.ready().moments(x), nets.moments(x), strict=True):
    torch.testing.assert_close(ours, reference)
mean, variance = nets.moments(x)
spread = (variance.mean(1) + mean.var(1, correction=0)).sqrt()
torch.testing.assert_close(nets.ready().matched_draw(x, draws), mean.mean(1) + spread * draws)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)})

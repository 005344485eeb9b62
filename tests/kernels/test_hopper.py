"""The Gluon kernel: what is packed for it, that it compiles, and, on a GPU, that it answers as the networks do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calibrl.kernels.fused_nets import FusedNets, Sizes
from tests.kernels.interpreted import nets_of
from tests.kernels.test_fused_nets import SHAPES, agree, check_packing, exact, on_gpu

pytest.importorskip("triton.experimental.gluon")
from calibrl.kernels.hopper import RING_DEPTH, OnHopper


@pytest.mark.parametrize("name", SHAPES)
def test_packing_holds_every_number_of_the_networks(name):
    """Walk the packed numbers as the kernel does, in float64: the networks come out."""
    check_packing(OnHopper, SHAPES[name], _walked)


def _walked(packed: OnHopper, x):
    sizes, parts = packed.sizes, {name: part.double() for name, part in packed.packed.items()}
    g, e, width = sizes.agents, sizes.members, packed.width
    given = torch.ones(g, x.shape[1], sizes.input_columns, dtype=torch.float64)
    centre, spread = (parts[name][:, None, : sizes.inputs] for name in ("centre", "spread"))
    given[:, :, : sizes.inputs] = (x.double() - centre) * spread

    def bent(u):
        return u + u * torch.tanh(u)

    h = bent(given[:, None] @ parts["w_in"].mT)
    for layer in range(sizes.hidden - 1):
        h = bent(h @ _untiled(packed, parts["w_hidden"][:, :, layer]).mT)
    answers = []
    for name in ("w_mean", "w_log"):
        cuts = parts[name].split(RING_DEPTH * sizes.output_columns, -1)
        head = torch.cat([cut.unflatten(-1, (sizes.output_columns, -1)) for cut in cuts], -1)
        assert head.shape == (g, e, sizes.output_columns, width)
        answers.append((h @ head.mT)[..., : sizes.outputs])
    top, bottom = (parts[name][:, None, None, : sizes.outputs] for name in ("top", "bottom"))
    raw = top - torch.nn.functional.softplus(top - answers[1])
    return answers[0], (bottom + torch.nn.functional.softplus(raw - bottom)).exp()


def _untiled(packed: OnHopper, flat):
    width = packed.width
    return flat.unflatten(-1, (width // 128, width // 64, 128, 64)).transpose(3, 4).flatten(4, 5).flatten(2, 3)


@pytest.mark.filterwarnings("ignore::UserWarning:triton")
@pytest.mark.parametrize("name", ["halfcheetah", "cartpole"])
def test_the_kernel_compiles_and_uses_the_tensor_cores(name, tmp_path):
    """No GPU is needed to compile for one."""
    program = Path(__file__).with_name("compiled.py")
    shape = SHAPES[name]
    command = [sys.executable, str(program), str(shape.inputs), str(shape.outputs), *map(str, shape.hidden)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["products"] > 0
    assert report["shared"] <= 227 * 1024
    # Triton 3.6 needs no stack, 3.9 a little: a kernel that spilled in earnest would be no faster than the reference.
    assert report["stack"] < 1024


@on_gpu
@pytest.mark.parametrize("name", SHAPES)
def test_moments_agree_with_the_reference(name):
    """Narrow networks too: this is what runs where CUDA C++ cannot be compiled."""
    nets = nets_of(SHAPES[name], agents=2).to("cuda")
    x = torch.randn(2, 1000, nets.shape.inputs, device="cuda")
    agree(FusedNets(nets, OnHopper(Sizes.of(nets), torch.device("cuda"))).moments(x), exact(nets, x))

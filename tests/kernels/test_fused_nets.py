import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calibrl.forecasters.nets import Nets, Shape
from calibrl.kernels.fused_nets import FusedNets, fuse
from calibrl.kernels.packing import Sizes
from calibrl.kernels.tiled import OnHopper, Tiles
from tests.kernels.interpreted import nets_of

triton = pytest.importorskip("triton")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = {
    "cartpole": Shape(inputs=6, outputs=4, hidden=(500,) * 3),
    "halfcheetah": Shape(inputs=24, outputs=18, hidden=(200,) * 4),
    "pusher": Shape(inputs=27, outputs=20, hidden=(200,) * 3),
    "two layers": Shape(inputs=5, outputs=3, hidden=(64, 64), members=3),
    "not a multiple": Shape(inputs=11, outputs=7, hidden=(77,) * 3, members=2),
    "between": Shape(inputs=9, outputs=2, hidden=(256,) * 2, members=1),
}


@pytest.mark.parametrize("units", [1, 16, 17, 66, 202, 208, 254])
def test_tiles_are_powers_of_two_that_hold_the_units(units):
    tiles = Tiles.of(units)
    assert all(size & (size - 1) == 0 and 16 <= size <= 128 for size in tiles.sizes)
    assert units <= tiles.width < units + 16
    assert tiles.starts[-1] + tiles.sizes[-1] == tiles.width
    assert tiles.places[-1] + tiles.sizes[-1] ** 2 == tiles.width**2


def test_triton_kernels_agree_with_their_references_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.kernels.interpreted"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, error in json.loads(done.stdout).items():
        assert error < 2e-5, name


@pytest.mark.parametrize("name", SHAPES)
def test_packing_holds_every_number_of_the_networks(name):
    """Walk the packed numbers as the kernel does, in float64: the networks come out."""
    check_packing(OnHopper, SHAPES[name], _walked)


def check_packing(kernel, shape, walked):
    """Networks packed for a kernel answer like themselves when `walked` reads the packed numbers."""
    nets = nets_of(shape, agents=2)
    packed = kernel(Sizes.of(nets), torch.device("cpu"))
    packed.pack(nets)
    x = torch.randn(2, 50, shape.inputs)
    mean, variance = walked(packed, x)
    want_mean, want_variance = nets.moments(x)
    assert float((mean - want_mean).norm() / want_mean.norm()) < 5e-3
    assert float((variance.log() - want_variance.log()).abs().max()) < 2e-2


def _walked(packed: OnHopper, x):
    sizes, parts = packed.sizes, {name: part.double() for name, part in packed.packed.items()}
    g, e, width = sizes.agents, sizes.members, packed.tiles.width
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
        cuts = parts[name].split([size * sizes.output_columns for size in packed.tiles.sizes], -1)
        head = torch.cat([cut.unflatten(-1, (sizes.output_columns, -1)) for cut in cuts], -1)
        assert head.shape == (g, e, sizes.output_columns, width)
        answers.append((h @ head.mT)[..., : sizes.outputs])
    top, bottom = (parts[name][:, None, None, : sizes.outputs] for name in ("top", "bottom"))
    raw = top - torch.nn.functional.softplus(top - answers[1])
    return answers[0], (bottom + torch.nn.functional.softplus(raw - bottom)).exp()


def _untiled(packed: OnHopper, flat):
    width = packed.tiles.width
    if not packed.narrow:
        return flat.unflatten(-1, (width // 128, width // 64, 128, 64)).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    whole = flat.new_zeros(*flat.shape[:2], width, width)
    cuts = list(zip(packed.tiles.starts, packed.tiles.sizes, strict=True))
    pairs = [(j, i) for j in cuts for i in cuts]
    for place, ((row, units), (column, inputs)) in zip(packed.tiles.places, pairs, strict=True):
        tile = flat[..., place : place + units * inputs].unflatten(-1, (units, inputs))
        whole[:, :, row : row + units, column : column + inputs] = tile
    return whole


@pytest.mark.filterwarnings("ignore::UserWarning:triton")
@pytest.mark.parametrize("name", ["halfcheetah"])
def test_hopper_kernels_compile_and_use_the_tensor_cores(name, tmp_path):
    """No GPU is needed to compile for one."""
    pytest.importorskip("triton.experimental.gluon")
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


def test_networks_on_a_cpu_are_not_fused_and_it_is_said():
    with pytest.warns(UserWarning, match="without a fused kernel: the networks are on cpu"):
        assert fuse(nets_of(SHAPES["two layers"], agents=1)) is None


@on_gpu
@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("name", SHAPES)
def test_fused_moments_agree_with_the_reference(name, agents):
    nets = nets_of(SHAPES[name], agents).to("cuda")
    fused = fuse(nets)
    for rows in (1, 127, 1000):
        x = torch.randn(agents, rows, nets.shape.inputs, device="cuda")
        agree(fused.moments(x), exact(nets, x))
        own = torch.randn(agents, nets.members, rows, nets.shape.inputs, device="cuda")
        agree(fused.moments(own), exact(nets, own))


@on_gpu
@pytest.mark.parametrize("name", ["halfcheetah", "pusher"])
def test_narrow_networks_agree_in_triton_too_where_cuda_cannot_be_compiled(name):
    nets = nets_of(SHAPES[name], agents=2).to("cuda")
    x = torch.randn(2, 1000, nets.shape.inputs, device="cuda")
    agree(FusedNets(nets, OnHopper(Sizes.of(nets), torch.device("cuda"))).moments(x), exact(nets, x))


@on_gpu
def test_fused_moments_agree_on_trained_networks_and_after_more_training():
    from calibrl.forecasters.ensemble import BatchedEnsemble

    generator = torch.Generator().manual_seed(0)
    ensemble = BatchedEnsemble(SHAPES["cartpole"], device="cuda")
    fused = fuse(ensemble.nets)
    for _ in range(2):
        x = torch.randn(1, 800, 6, generator=generator)
        ensemble.update_fleet(x, torch.cat([x[..., :2].sin(), x[..., 2:4] * x[..., 4:]], -1))
        fused.refresh()
        asked = torch.randn(1, 500, 6, device="cuda")
        agree(fused.moments(asked), exact(ensemble.nets, asked))


@on_gpu
def test_an_agent_gets_the_same_answers_alone_and_in_a_fleet():
    nets = nets_of(SHAPES["halfcheetah"], agents=3).to("cuda")
    x = torch.randn(3, 400, 24, device="cuda")
    together = fuse(nets).moments(x)
    alone = fuse(nets.agent(1)).moments(x[1:2])
    for a, b in zip(together, alone, strict=True):
        assert torch.equal(a[1:2], b)


@on_gpu
def test_a_particle_that_is_no_number_stays_lost_and_harms_no_other():
    nets = nets_of(SHAPES["pusher"], agents=1).to("cuda")
    x = torch.randn(1, 300, 27, device="cuda")
    clean = fuse(nets).moments(x)[0]
    x[0, 7, 3] = torch.nan
    mean = fuse(nets).moments(x)[0]
    assert mean[0, :, 7].isnan().all()
    others = torch.arange(300) != 7
    assert torch.equal(mean[:, :, others], clean[:, :, others])


@on_gpu
def test_unsupported_networks_fall_back_and_say_why():
    for shape, why in (
        (Shape(inputs=5, outputs=3, hidden=(64,)), "one hidden layer"),
        (Shape(inputs=5, outputs=3, hidden=(64, 32)), "widths"),
        (Shape(inputs=5, outputs=3, hidden=(64, 64), probabilistic=False), "variances"),
    ):
        with pytest.warns(UserWarning, match=why):
            assert fuse(Nets.fresh(shape, [torch.Generator()]).to("cuda")) is None


def exact(nets, x):
    return nets._each(torch.Tensor.double).moments(x.double())


def agree(got, want):
    assert got[0].shape == want[0].shape
    assert float((got[0] - want[0]).norm() / want[0].norm()) < 6e-3
    assert float((got[1].log() - want[1].log()).norm() / want[1].log().norm()) < 6e-3

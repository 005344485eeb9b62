"""Fused kernels against the networks they compute, and which networks get one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calibrl.control.problems import task
from calibrl.control.settings import PRESETS
from calibrl.forecasters.nets import Nets, Shape
from calibrl.kernels.fused_nets import Sizes
from calibrl.maps import Affine
from calibrl.planning.graph import fuse, fused_returns
from calibrl.planning.risk import Risk
from calibrl.planning.rollout import Errors, imagined_returns, noise_shape, stacked_tables
from tests.kernels.interpreted import nets_of

triton = pytest.importorskip("triton")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# PyTorch's own compiler uses what PyTorch deprecates.
compiles = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
SHAPES = {
    "cartpole": Shape(inputs=6, outputs=4, hidden=(500,) * 3),
    "halfcheetah": Shape(inputs=24, outputs=18, hidden=(200,) * 4),
    "pusher": Shape(inputs=27, outputs=20, hidden=(200,) * 3),
    "two layers": Shape(inputs=5, outputs=3, hidden=(64, 64), members=3),
    "not a multiple": Shape(inputs=11, outputs=7, hidden=(77,) * 3, members=2),
    "between": Shape(inputs=9, outputs=2, hidden=(256,) * 2, members=1),
}


def test_triton_kernels_agree_with_their_references_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.kernels.interpreted"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, error in json.loads(done.stdout).items():
        assert error < 2e-5, name


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


@on_gpu
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_draws_of_rows_that_go_through_one_network_each_agree_with_the_reference(name, ordered):
    agents, generator = 2, torch.Generator("cuda").manual_seed(0)
    nets = nets_of(SHAPES[name], agents).to("cuda")
    e, d, fused = nets.members, nets.shape.outputs, fuse(nets)
    for rows in (1, 129, 2000):
        draws = torch.randn(agents * e, rows, d, generator=generator, device="cuda")
        x = torch.randn(agents * e, rows, nets.shape.inputs, generator=generator, device="cuda")
        place = torch.arange(e * rows, device="cuda").repeat(agents, 1)
        if ordered:
            place = torch.rand(agents, e * rows, generator=generator, device="cuda").argsort(1)
        order = place.view(agents * e, rows).to(torch.int32) if ordered else None
        taken = x.view(agents, e * rows, -1).gather(1, place[..., None].expand(-1, -1, x.shape[2]))
        mean, variance = exact(nets, taken.unflatten(1, (e, rows)))
        want = (mean + variance.sqrt() * draws.view_as(mean)).flatten(1, 2)
        got = fused.draw(x, draws, order).view(agents, e * rows, d)
        got = got.gather(1, place[..., None].expand_as(got))
        assert float((got - want).norm() / want.norm()) < 6e-3


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
@pytest.mark.parametrize("tables", [False, True])
def test_draws_on_a_gpu_are_those_of_the_reference(tables):
    from tests.kernels.interpreted import drawn

    assert drawn(5, tables=tables, device="cuda") < 2e-5


@on_gpu
@compiles
@pytest.mark.parametrize("propagation", ["DS", "TS1", "TSinf"])
@pytest.mark.parametrize("risk", [Risk(), Risk(cvar=0.5), Risk(safety=0.9)])
def test_a_fused_rollout_whose_noise_lasts_is_worth_what_the_plain_one_is(risk, propagation):
    nets = nets_of(SHAPES["cartpole"], agents=2).to("cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    world = task("cartpole-rail").world
    plans = torch.randn(2, 8, 5, 1, generator=generator, device="cuda")
    columns = 5 if propagation == "TS1" else 4
    noise = torch.randn(2, 5, 8 * 10, columns, generator=generator, device="cuda")
    start = torch.randn(2, 1, 1, 2, 4, generator=generator, device="cuda")
    low = -torch.rand(2, 1, 1, 4, generator=generator, device="cuda")
    errors = Errors(start, torch.rand(2, 1, 5, 3, 4, generator=generator, device="cuda"), low, 1 + low)
    lines = stacked_tables([Affine(scale=torch.tensor(0.5).double()), None], 4, device="cuda")
    given = {"particles": 10, "noise": noise, "tables": lines, "errors": errors, "risk": risk}
    seen = torch.zeros(2, 4, device="cuda")
    got = fused_returns(fuse(nets), world, seen, plans, propagation=propagation, **given)
    want = imagined_returns(nets, world, seen, plans, propagation=propagation, **given)
    assert float((got - want).norm() / want.norm()) < 2e-2


@on_gpu
@compiles
@pytest.mark.parametrize("propagation", ["DS", "TS1", "TSinf"])
@pytest.mark.parametrize("name", ["halfcheetah", "pusher"])
def test_a_fused_rollout_at_full_size_is_worth_what_the_plain_one_is(name, propagation):
    preset, what = PRESETS[name], task(name)
    nets = nets_of(SHAPES[name], agents=2).to("cuda")
    nets.weights[-1].mul_(0.01)
    generator = torch.Generator("cuda").manual_seed(0)
    g, n, h, p, a, d = 2, 100, 10, preset.planner.particles, len(what.low), nets.shape.outputs
    plans = 0.3 * torch.randn(g, n, h, a, generator=generator, device="cuda")
    shape = noise_shape(propagation, agents=g, horizon=h, plans=n, particles=p, outputs=d)
    noise = torch.randn(shape, generator=generator, device="cuda")
    lines = stacked_tables([Affine(scale=torch.tensor(0.5).double()), None], d, device="cuda")
    given = {"propagation": propagation, "particles": p, "noise": noise, "tables": lines}
    seen = torch.zeros(g, what.observation_size, device="cuda")
    got = fused_returns(fuse(nets), what.world, seen, plans, **given)
    want = imagined_returns(nets, what.world, seen, plans, **given)
    assert float((got - want).norm() / want.norm()) < 2e-2


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
    return nets.replaced([part.double() for part in nets.tensors()]).moments(x.double())


def agree(got, want):
    assert got[0].shape == want[0].shape
    assert float((got[0] - want[0]).norm() / want[0].norm()) < 6e-3
    assert float((got[1].log() - want[1].log()).norm() / want[1].log().norm()) < 6e-3

"""Whole rollouts in one kernel, against the plain ones."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch

from calibrl.control.envs import MUJOCO_TASKS
from calibrl.control.problems import task
from calibrl.forecasters.nets import Nets, Shape
from calibrl.kernels.fused_nets import SHARED_MEMORY, Sizes
from calibrl.kernels.resident import Layout
from calibrl.kernels.rollout import beside, source
from calibrl.maps import Affine
from calibrl.planning.graph import PlanInputs, Planner, fuse, fused_returns, whole_rollouts
from calibrl.planning.risk import Risk
from calibrl.planning.rollout import Errors, imagined_returns, noise_shape, stacked_tables
from calibrl.planning.search import CEM

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
HIDDEN = {"halfcheetah": 4, "reacher": 4}


def sizes_of(what, hidden):
    return Sizes(1, 5, what.input_size, what.target_size, 200, hidden)


@pytest.mark.parametrize("name", MUJOCO_TASKS)
def test_weights_and_particles_share_the_chip(name):
    sizes = sizes_of(task(name), HIDDEN.get(name, 3))
    layout = Layout.of(sizes, beside=beside(sizes))
    assert layout.shared + beside(sizes) <= SHARED_MEMORY
    assert layout.kept >= 5


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's compiler")
@pytest.mark.parametrize("name", ["halfcheetah", "pusher", "cartpole-rail"])
def test_the_kernel_compiles_without_spilling_or_waiting(name, tmp_path):
    """No GPU is needed to compile for one. A stack is what sines of huge angles need."""
    what = task(name)
    sizes = sizes_of(what, HIDDEN.get(name, 3))
    layout = Layout.of(sizes, beside=beside(sizes))
    text = tmp_path / "rollout.cu"
    text.write_text(source(sizes, layout, what.world, observed=what.observation_size))
    command = ["nvcc", "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-o", "out.cubin", text]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said)
    assert "serialized" not in said, "products that wait for one another"


def case(name, *, agents=2, n=60, h=12, p=10, hidden=None, risk=None, lasting=False, bare=False):
    """Networks of some agents, where they are, plans, and how futures are imagined."""
    what, generator = task(name), torch.Generator("cuda").manual_seed(0)
    shape = Shape(what.input_size, what.target_size, hidden or (200,) * HIDDEN.get(name, 3), 5)
    nets = Nets.fresh(shape, [torch.Generator().manual_seed(seed) for seed in range(agents)]).to("cuda")
    nets.weights[-1].mul_(0.1)
    nets.input_mean.normal_(std=0.1, generator=generator)
    a, d = len(what.low), shape.outputs
    plans = 0.3 * torch.randn(agents, n, h, a, generator=generator, device="cuda")
    noise = noise_shape("TSinf", agents=agents, horizon=h, plans=n, particles=p, outputs=d)
    maps = [Affine(scale=torch.tensor(0.5).double()), None, None][:agents]
    given = {
        "propagation": "TSinf",
        "particles": p,
        "noise": torch.randn(noise, generator=generator, device="cuda"),
        "tables": None if bare else stacked_tables(maps, d, device="cuda"),
        "risk": risk or Risk(),
    }
    if lasting:
        start = torch.randn(agents, 1, 5, 2, d, generator=generator, device="cuda").repeat_interleave(p // 5, 2)
        low = -0.2 * torch.rand(agents, 1, 1, d, generator=generator, device="cuda")
        steps = torch.rand(agents, 1, h, 3, d, generator=generator, device="cuda")
        given["errors"] = Errors(start, steps, low, 0.3 + low)
    seen = 0.1 * torch.randn(agents, what.observation_size, generator=generator, device="cuda")
    return nets, what.world, seen, plans, given


def both(nets, world, seen, plans, given):
    """What plans are worth by one kernel, and by plain tensors."""
    fused = fuse(nets)
    whole = whole_rollouts(fused, world, seen)
    assert whole is not None
    return fused_returns(fused, world, seen, plans, whole=whole, **given), imagined_returns(
        nets, world, seen, plans, **given
    )


@on_gpu
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("name", ["halfcheetah", "pusher", "reacher", "cartpole", "halfcheetah-fall"])
def test_a_whole_rollout_is_worth_what_the_plain_one_is(name, lasting):
    got, want = both(*case(name, lasting=lasting))
    assert float((got - want).norm() / want.norm()) < 2e-2


@on_gpu
@pytest.mark.parametrize("lasting", [False, True])
def test_networks_without_maps(lasting):
    got, want = both(*case("reacher", bare=True, lasting=lasting))
    assert float((got - want).norm() / want.norm()) < 2e-2


@on_gpu
def test_errors_that_go_on_as_they_please():
    """What is new goes on, too: no plan is imagined so, but trajectories are."""
    nets, world, seen, plans, given = case("halfcheetah", lasting=True)
    start, steps, *limits = given["errors"]
    given["errors"] = Errors(start, torch.rand(2, 1, steps.shape[2], 5, steps.shape[-1], device="cuda"), *limits)
    got, want = both(nets, world, seen, plans, given)
    assert float((got - want).norm() / want.norm()) < 2e-2


@on_gpu
@pytest.mark.parametrize("rows", [1, 13, 64, 200, 700])
@pytest.mark.parametrize("agents", [1, 3])
def test_any_number_of_plans_and_agents(rows, agents):
    got, want = both(*case("pusher", agents=agents, n=rows, h=5))
    assert float((got - want).norm() / want.norm()) < 2e-2


@on_gpu
def test_networks_of_other_widths_and_depths():
    for hidden in ((64, 64), (120,) * 3, (200,) * 2):
        got, want = both(*case("halfcheetah", hidden=hidden))
        assert float((got - want).norm() / want.norm()) < 2e-2


@on_gpu
@pytest.mark.parametrize("risk", [Risk(cvar=0.5), Risk(optimism=0.5), Risk(safety=0.6)])
def test_particles_are_told_apart_for_what_a_plan_is_worth(risk):
    got, want = both(*case("cartpole-rail", risk=risk, h=20))
    assert float((got - want).norm() / want.norm()) < 2e-2


@on_gpu
def test_a_lost_particle_stays_lost():
    nets, world, seen, plans, given = case("halfcheetah")
    seen[1, 3] = torch.nan
    fused = fuse(nets)
    got = fused_returns(fused, world, seen, plans, whole=whole_rollouts(fused, world, seen), **given)
    assert bool((got[1] == -1e6).all())
    assert bool((got[0] > -1e5).all())


@on_gpu
def test_an_agent_imagines_the_same_alone_and_beside_others():
    nets, world, seen, plans, given = case("halfcheetah", agents=3)
    together, _ = both(nets, world, seen, plans, given)
    alone = given | {"noise": given["noise"][1:2], "tables": given["tables"][1:2]}
    one, _ = both(nets.agent(1), world, seen[1:2], plans[1:2], alone)
    assert torch.equal(together[1:2], one)


@on_gpu
def test_a_world_that_cannot_be_written_is_imagined_step_by_step_and_it_is_said():
    nets, world, seen, _, _ = case("cartpole")
    odd = replace(world, reward=lambda observation, action, following: following.sort(-1).values[..., 0])
    with pytest.warns(UserWarning, match="not one kernel"):
        assert whole_rollouts(fuse(nets), odd, seen) is None


@on_gpu
def test_a_planner_takes_it_for_tsinf_only():
    what = task("cartpole")
    shape = Shape(what.input_size, what.target_size, (64, 64), 5)
    nets = Nets.fresh(shape, [torch.Generator().manual_seed(0)]).to("cuda")
    for propagation, taken in (("TSinf", True), ("DS", False), ("TS1", False)):
        inputs = PlanInputs.empty(
            CEM(population_size=20, elites=4, iterations=2),
            propagation=propagation,
            particles=5,
            agents=1,
            observation_size=what.observation_size,
            outputs=shape.outputs,
            start=torch.zeros(5, 1, device="cuda"),
            tables=None,
        )
        planner = Planner(nets, what.world, inputs, low=what.low.cuda(), high=what.high.cuda())
        assert (planner.whole is not None) == taken

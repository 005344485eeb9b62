"""On a GPU: a whole search in one CUDA graph finds what the plain search finds."""

from dataclasses import replace

import pytest
import torch

from calibrl.control.plan import Captured, Plainly, PlanInputs
from calibrl.control.problems import task
from calibrl.control.searches import METHODS
from calibrl.control.settings import PRESETS
from calibrl.forecasters.nets import Nets, Shape
from calibrl.maps import fit_smooth
from calibrl.planning.propagation import stacked_tables

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_a_captured_search_finds_what_the_plain_one_finds(method):
    parts = _prepared(method)
    plainly, captured = Plainly(*parts), Captured(*parts, fused=False)
    for seed in range(3):
        parts[2].draw([torch.Generator("cuda").manual_seed(10 * seed + agent) for agent in range(2)])
        want = plainly().plan.clone()
        torch.testing.assert_close(captured().plan, want, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("default")  # compilers have warnings of their own
@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_a_search_with_fused_kernels_finds_plans_within_the_bounds(method):
    parts = _prepared(method)
    inputs, low, high = parts[2], parts[4], parts[5]
    fused = Captured(*parts)
    for seed in range(3):
        inputs.draw([torch.Generator("cuda").manual_seed(10 * seed + agent) for agent in range(2)])
        plan = fused().plan
        assert plan.isfinite().all()
        assert ((plan >= low) & (plan <= high)).all()


def _prepared(method):
    preset, what = PRESETS["cartpole-small"], task("cartpole")
    planner = replace(preset.planner, method=method)
    seen = what.world.model_input(torch.zeros(what.observation_size)).shape[-1]
    shape = Shape(seen + what.action_size, what.target_size, (60, 60, 60), 5)
    nets = Nets.fresh(shape, [torch.Generator().manual_seed(seed) for seed in range(2)]).to("cuda")
    nets.weights[-1].mul_(0.01)
    low, high = what.low.cuda(), what.high.cuda()
    mapping = fit_smooth(z=1.5 * torch.randn(500, shape.outputs, generator=torch.Generator().manual_seed(0)))
    inputs = PlanInputs.empty(
        planner,
        agents=2,
        observation_size=what.observation_size,
        outputs=shape.outputs,
        start=((low + high) / 2).expand(planner.horizon, -1),
        tables=stacked_tables([mapping] * 2, shape.outputs, device="cuda"),
    )
    return nets, what.world, inputs, planner, low, high

"""Plans on a CPU follow the networks as they stand, whichever way those changed."""

import torch

from calibrl.control import task
from calibrl.control.plan import Plainly, PlanInputs
from calibrl.control.settings import PlannerSettings
from calibrl.forecasters.nets import Nets, Shape

SETTINGS = PlannerSettings(horizon=4, population=12, elites=3, sweeps=2, particles=2)


def test_plans_are_of_the_networks_last_shown():
    where = task("cartpole")
    shape = Shape(where.input_size, where.target_size, hidden=(8,), members=2)
    nets, others = (Nets.fresh(shape, [torch.Generator().manual_seed(seed)]) for seed in (0, 1))
    start = torch.zeros(SETTINGS.horizon, where.action_size)
    sizes = {"observation_size": where.observation_size, "outputs": where.target_size}
    inputs = PlanInputs.empty(SETTINGS, agents=1, start=start, tables=None, **sizes)
    inputs.draw([torch.Generator().manual_seed(2)])

    def planner(model):
        return Plainly(model, where.world, inputs, SETTINGS, where.low, where.high)

    plan, before, after = planner(nets), planner(nets)().plan, planner(others)().plan
    assert not torch.equal(before, after)
    for part, new in zip(nets.tensors(), others.tensors(), strict=True):
        part.copy_(new)
    plan.learnt()
    assert torch.equal(plan().plan, after)

"""Arms: the paper's released recipe against PyTorch's own Adam, constant widths, and evidence of trajectories."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrl.control.arms import ARMS, BATCH_SIZE, EPOCHS, LR, Released, arm_named
from calibrl.control.policy import Fleet, fleets
from calibrl.control.problems import task
from calibrl.control.settings import PRESETS, CalibrationSettings
from calibrl.control.world import view_of
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.evidence import HeldOut, Judged, Trajectory, Wary
from calibrl.forecasters.ensemble_training import input_scale
from calibrl.maps import IDENTITY, Affine, Sigmoid

TINY = PRESETS["tiny"]


def rows(agents, generator, count=30):
    x, y = torch.randn(1, count, 6, generator=generator), torch.randn(1, count, 4, generator=generator)
    return Data(x.expand(agents, -1, -1), y.expand(agents, -1, -1))


def fleet_of(*arms, preset=TINY):
    what = task("cartpole")
    (members,) = fleets(arms, [0])
    return Fleet(view_of(what), members, preset, low=what.low, high=what.high)


def adam_by_torch(evidence, parts):
    """What `Released` should come to: PyTorch's Adam and cross-entropy, over the same batches."""
    first = evidence._rng(0).uniform(-0.05, 0.05, (2, parts[0].shape[1]))
    theta = torch.tensor(first, requires_grad=True)
    adam, steps = torch.optim.Adam([theta], lr=LR), 0
    for z in parts:
        p = torch.special.ndtr(z)
        target = (p[None] < p[:, None]).double().mean(1)
        rng = evidence._rng(1 + steps)
        for order in [rng.permutation(len(p)) for _ in range(EPOCHS)]:
            for batch in torch.from_numpy(order).split(BATCH_SIZE):
                adam.zero_grad()
                logit = theta[0] * p[batch] + theta[1]
                torch.nn.functional.binary_cross_entropy_with_logits(logit, target[batch]).backward()
                adam.step()
                steps += 1
    return theta.detach()


def test_the_released_map_is_where_adam_has_come_to(generator):
    evidence = Released(lambda data: torch.zeros(len(data)), generator=torch.Generator().manual_seed(3))
    parts = [2 * torch.randn(40, 3, generator=generator).double(), torch.randn(70, 3, generator=generator).double()]
    for z in parts:
        found = evidence.fit(Judged(held=z), IDENTITY, None)
    assert isinstance(found, Sigmoid)
    wanted = adam_by_torch(evidence, parts)
    torch.testing.assert_close(torch.stack([found.a, found.b]), wanted, rtol=1e-6, atol=1e-6)


def test_released_agents_are_split_alike_and_scaled_by_what_is_held_out(generator):
    fleet = fleet_of("released", "released-control", "calibrated-paper")
    for _ in range(2):
        fleet.update(rows(3, generator))
    held = fleet.model.held
    assert torch.equal(held[0], held[1])
    assert isinstance(fleet.maps[0], Sigmoid)
    assert fleet.maps[1] is IDENTITY
    everything, nets = fleet.model.rows.x, fleet.ensemble.nets
    for agent, by in ((0, held[0]), (1, ~held[1]), (2, ~held[2])):
        mean, std = input_scale(everything[agent, by][None])
        torch.testing.assert_close(nets.input_mean[agent], mean[0])
        torch.testing.assert_close(nets.input_std[agent], std[0])


def test_widths_are_constant(generator):
    fleet = fleet_of("width-0.5", "width-1.4", "uncalibrated")
    fleet.update(rows(3, generator))
    assert [float(one.scale[0]) if isinstance(one, Affine) else 1.0 for one in fleet.maps] == pytest.approx(
        [0.5, 1.4, 1]
    )
    draws = fleet.tables()[:, 0, :, 1].mean(-1)
    assert draws.tolist() == pytest.approx([0.5, 1.4, 1], abs=1e-5)


def test_errors_that_last_are_imagined_to_last(generator):
    """Outcomes far from what young networks forecast, all on one side: the next errors will be, too."""
    fleet = fleet_of("calibrated-trajectory", "calibrated-wary")
    fleet.update(rows(2, generator))
    assert fleet.persistence()[0].tolist() == pytest.approx([0.5] * 4)
    data = rows(2, generator, count=60)
    fleet.update(Data(data.x, torch.where(torch.arange(4) < 2, data.y.abs() + 1, data.y)))
    kept = fleet.persistence()
    assert float(kept[0, :2].min()) > float(kept[0, 2:].max())
    assert float(kept[1].abs().max()) == 0
    assert torch.equal(fleet.inputs.persistence, kept)


def test_series_of_several_networks_are_told_apart(generator):
    """Networks judged on the same rows err alike; that is no persistence in time."""
    shared = torch.randn(300, 1, 2, generator=generator).double()
    z = shared.expand(-1, 3, -1).reshape(900, 2)
    found = []
    for rows, seen in ((300, z), (300, shared[:, 0])):
        evidence = Trajectory(HeldOut())
        evidence.fit(Judged(seen, seen, age=torch.zeros(rows)), IDENTITY, None)
        found.append(evidence.persistence)
    torch.testing.assert_close(found[0], found[1])
    assert float(found[0].max()) < 0.3


def test_each_column_is_widened_by_its_own_surprises_and_those_of_all(generator):
    held, new = torch.randn(2, 400, 3, generator=generator).double()
    held[:, 2] = torch.nan
    evidence = Wary(HeldOut(), by_column=True)
    mapping = evidence.fit(Judged(held=held, age=torch.zeros(400)), IDENTITY, None)
    wide = evidence.fit(Judged(new * torch.tensor([1.0, 3.0, 9.0]), held, age=torch.zeros(400)), mapping, None)
    own = mapping.forward_z(new * torch.tensor([1.0, 3.0, 9.0])).clamp(-8.2095, 8.2095).square().mean(0)[:2]
    wanted = ((own + own.mean()) / 2).sqrt()
    z = torch.ones(1, 3, dtype=torch.float64)
    found = (mapping.forward_z(z) / wide.forward_z(z))[0]
    torch.testing.assert_close(found[:2], wanted, rtol=1e-5, atol=0)
    assert found[2] == 1


@pytest.mark.parametrize("name", ARMS)
def test_what_an_arm_remembers_is_kept(name, generator):
    """Evidence that was saved and loaded goes on as if it had never stopped."""
    evidence = [arm_named(name).evidence(CalibrationSettings(), torch.Generator().manual_seed(0)) for _ in range(2)]
    first, second = torch.randn(2, 40, 3, generator=generator).double()
    fit = arm_named(name).fit

    def teach(one, z, mapping):
        return one.fit(Judged(new=z, held=z, age=torch.zeros(len(z))), mapping, fit)

    mapping = teach(evidence[0], first, IDENTITY)
    evidence[1].load_state_dict(evidence[0].state_dict())
    went_on, loaded = (teach(one, second, mapping) for one in evidence)
    assert went_on == loaded
    assert np.array_equal(evidence[0].persistence, evidence[1].persistence) or evidence[0].persistence is None


def test_arms_that_are_not_there():
    with pytest.raises(CalibrlError, match="arm 'width-3' is unknown; use one of calibrated,"):
        fleet_of("width-3", preset=replace(TINY, seed=1))

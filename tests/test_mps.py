"""Names of devices, and what works on Apple's GPU, which has no float64: shown with a stand-in that has none either."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

import calibrl as cal
from calibrl.arrays import device_named
from calibrl.control.agent import Agent
from calibrl.control.scoring import score_trial
from calibrl.control.settings import EnsembleSettings, PlannerSettings
from calibrl.errors import CalibrlError
from tests.fake_mps import OnMps, fake_mps


def test_a_device_is_taken_if_it_is_there(monkeypatch):
    for cuda, mps, best in ((False, False, "cpu"), (False, True, "mps"), (True, True, "cuda"), (True, False, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
        assert device_named("auto") == best
        assert device_named("auto", float64=True) == ("cuda" if cuda else "cpu")
        assert device_named(torch.device("cpu")) == "cpu"
        for name, there in (("cuda", cuda), ("cuda:1", cuda), ("mps", mps)):
            if there:
                assert device_named(name) == name
            else:
                with pytest.raises(CalibrlError, match=rf"device '{name}' is not there; use cpu or auto"):
                    device_named(name)
    with pytest.raises(CalibrlError, match="device 'tpu' is unknown; use cpu, cuda, mps or auto"):
        device_named("tpu")
    with pytest.raises(CalibrlError, match="Apple's GPU has no float64"):
        device_named("mps", float64=True)


def test_the_stand_in_refuses_what_apples_gpu_does(monkeypatch):
    with fake_mps(monkeypatch):
        there = torch.arange(3.0).to("mps")
        assert isinstance(2 * there, OnMps)
        assert (2 * there).device.type == "mps"
        with pytest.raises(TypeError, match="float64"):
            there.double()
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(2, dtype=torch.float64, device="mps")
        with pytest.raises(RuntimeError, match="same device"):
            _ = there + torch.ones(3)
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert there.cpu().double().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("env", "propagation"),
    [("Pendulum-v1", "DS"), ("CartPole-v1", "E"), ("calibrl.control.envs:calibrl/Cartpole-v0", "TSinf")],
)
def test_an_agent_learns_on_mps_what_it_learns_on_the_cpu(monkeypatch, env, propagation, tmp_path: Path):
    planner = PlannerSettings(
        horizon=2, population_size=4, elites=2, iterations=1, particles=2, propagation=propagation
    )

    def learn(device: str):
        small = EnsembleSettings(2, (8,), (1e-4,))
        agent = Agent(env, steps=20, ensemble=small, planner=planner, device=device)
        earned = [result.earned for result in agent.learn(trials=2)]
        seen = agent.task.make().reset(seed=0)[0]
        agent.save(tmp_path / device)
        found = agent.forecast(seen, 0 if agent.task.choices else np.zeros(agent.task.action_size))
        data, trial = agent._collect([agent.task.make()], agent.fleet)
        (score,) = score_trial(agent.fleet, trial, data, 3)
        metrics = [score.metrics[name] for name in sorted(score.metrics)]
        return agent, metrics, earned, found.mean, found.icdf(torch.full(found.batch_shape, 0.9, dtype=torch.float64))

    on_cpu = learn("cpu")
    with fake_mps(monkeypatch):
        agent, *found = learn("auto")
        assert agent.fleet.device.type == "mps"
        assert isinstance(agent.fleet.ensemble.nets.weights[0], OnMps)
    for one, other in zip(on_cpu[1:], found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


class Net(nn.Module):
    """(mean, log-variance), a distribution, or a mean alone."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer, self.net, self.drop = answer, nn.Linear(1, 2), nn.Dropout(0.5)

    def forward(self, x):
        mean, other = self.net(self.drop(x) if self.answer == "dropout" else x).unbind(-1)
        if self.answer == "distribution":
            return Normal(mean, other.exp())
        return mean if self.answer in ("mean", "dropout") else (mean, other)


def moved(module: nn.Module) -> nn.Module:
    for part in module.modules():
        for name, weight in list(part._parameters.items()):
            part._parameters[name] = weight.detach().to("mps").requires_grad_()
    return module


@pytest.mark.parametrize("answer", ["mean", "pair", "distribution"])
def test_a_network_on_mps_is_calibrated(monkeypatch, answer):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 1)).astype(np.float32)
    y = x[:, 0] + rng.normal(size=600)
    past, new = (x[:300], y[:300]), (x[300:], y[300:])
    net, kind = Net(answer), {"pair": "log_variance"}.get(answer)
    here = cal.calibrate(net, *past, kind=kind).predict_interval(new[0], 0.9)
    with fake_mps(monkeypatch):
        calibrated = cal.calibrate(moved(net), *past, kind=kind)
        there = calibrated.predict_interval(new[0], 0.9)
        assert cal.check(calibrated, new).n == 300
    np.testing.assert_allclose(here, there)


@pytest.mark.parametrize("answer", ["pair", "distribution", "dropout"])
def test_forecasters_train_and_answer_on_mps(monkeypatch, answer):
    data = cal.Data(torch.randn(64, 1), torch.randn(64))

    def learn(module: nn.Module):
        train = cal.forecasters.adam(epochs=2)
        if answer == "dropout":
            bare = cal.MCDropout(module, passes=20, train=train)
        else:
            bare = cal.TorchForecaster(module, train=train)
        model = cal.Calibrated(bare)
        model.update(data)
        return model(data.x)

    torch.manual_seed(0)
    here = learn(Net(answer))
    torch.manual_seed(0)
    module = Net(answer)
    with fake_mps(monkeypatch):
        there = learn(moved(module))
        assert next(module.parameters()).device.type == "mps"
    torch.testing.assert_close(there.mean, here.mean)

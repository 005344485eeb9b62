"""One control trial, followed from the command to the draws: what docs/control-results.md walks through."""

from dataclasses import replace

import torch

from calibrl.algorithm import recalibrate
from calibrl.control import task
from calibrl.control.experiment import EXPERIMENT
from calibrl.control.loop import rows_of
from calibrl.control.policy import Fleet, episode_seed, fleets
from calibrl.control.scoring import score_one_step
from calibrl.control.settings import PRESETS
from calibrl.control.trials import run_trial, view_of
from calibrl.diagnostics import calibration_loss, crps_each
from calibrl.distributions import Recalibrated, pit
from calibrl.forecasters import moment_matched
from calibrl.runs.engine import run

# A map that moves on four rows: the default one rightly does not.
TINY = replace(PRESETS["tiny"], steps=20, calibration=replace(PRESETS["tiny"].calibration, map="affine"))


def test_one_trial_by_hand():
    what = task("cartpole")
    view = view_of(what)
    (members,) = fleets(["calibrated", "uncalibrated"], [0])
    fleet = Fleet(view, members, TINY, low=what.low, high=what.high)
    environments = [what.make() for _ in members]

    # A random rollout, from which the first model is learnt.
    first = run_trial(fleet, environments, steps=20, seeds=[episode_seed(0, 0)] * 2)
    assert torch.equal(first.observation[0], first.observation[1])
    data = rows_of(view, first)
    assert data.x.shape == (2, 20, 6)
    torch.testing.assert_close(data.y[0], first.next_observation[0] - first.observation[0])
    fleet.update(data)
    assert fleet.ensemble.rows == 16
    assert fleet.model.held.sum(1).tolist() == [4, 4]

    # Steps 1: plan with R∘T and act; the arms now part ways.
    second = run_trial(fleet, environments, steps=20, seeds=[episode_seed(0, 1)] * 2)
    assert bool((second.action.abs() <= 3).all())
    assert not torch.equal(second.action[0], second.action[1])
    assert second.returns[0] != second.returns[1]

    # The trajectory is scored before it is learnt, as the core would score the same forecasts.
    data = rows_of(view, second)
    z, sd = fleet.forecaster.zscores(data)
    found = score_one_step(z[0], sd[0], data.y[0].double(), fleet.maps[0])
    mean, variance = fleet.ensemble.nets.moments(data.x)
    each = [
        torch.distributions.Normal(m.double(), v.double().sqrt()) for m, v in zip(mean[0], variance[0], strict=True)
    ]
    forecast = recalibrate(moment_matched(each), fleet.maps[0])
    assert isinstance(forecast, Recalibrated)
    outcome = data.y[0].double()
    assert abs(found["calibration_loss"] - calibration_loss(pit(forecast, outcome))) < 1e-9
    by_row = crps_each(forecast, outcome) / outcome.std(0)
    assert abs(found["crps"] - float(by_row.mean())) < 1e-6

    # Steps 2 to 4: split, train, fit.
    before = [weight.clone() for weight in fleet.ensemble.nets.weights]
    fleet.update(data)
    assert fleet.ensemble.rows == 32
    assert not torch.equal(before[0], fleet.ensemble.nets.weights[0])


def test_one_trial_by_the_experiment(tmp_path):
    outcome = run(EXPERIMENT, replace(TINY, trials=1, video=False), tmp_path)
    assert outcome.finished
    rows = outcome.rows
    assert [(row.arm, row.step) for row in rows] == [
        ("calibrated", 20),
        ("calibrated", 40),
        ("uncalibrated", 20),
        ("uncalibrated", 40),
    ]
    scored = rows[1].metrics
    assert {"return", "best", "calibration_loss", "calibration_loss_bare", "coverage_90", "crps"} <= scored.keys()
    assert {"reliability_05", "reliability_95", "calibration_loss_ahead_1"} <= scored.keys()
    assert rows[3].metrics["calibration_loss"] == rows[3].metrics["calibration_loss_bare"]
    assert rows[0].origin["version"]
    assert len(list((tmp_path / "checkpoint").glob("*.pt"))) == 2

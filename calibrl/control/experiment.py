"""The control experiment: agents that plan with a learnt model, calibrated or not, and a model-free baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from calibrl.control.settings import PRESETS, TASKS, ControlSettings, preset_for_env
from calibrl.errors import CalibrlError
from calibrl.planning.search import SEARCHES
from calibrl.runs.experiment import AT_LEAST_0, CRPS, LOSS, Custom, Experiment, Job, Metric, Options

if TYPE_CHECKING:
    from calibrl.runs.engine import Found
    from calibrl.runs.rows import Row

AGENTS = ("model", "sac")


def _prepare(settings: ControlSettings, options: Options) -> ControlSettings:
    """Refuse what does not go together; workers get an agent each, on a GPU a share of them."""
    from calibrl.arrays import device_named

    if settings.agent not in AGENTS:
        raise CalibrlError(f"--agent {settings.agent!r} is unknown; use {' or '.join(AGENTS)}")
    sac = settings.agent == "sac"
    if sac and settings.reward is not None:
        raise CalibrlError(
            f"--reward {settings.reward} judges plans, and SAC makes none: it learns what the environment pays"
        )
    if sac and settings.light:
        raise CalibrlError("--light is for agents that plan; leave it out: SAC has to keep its networks")
    if sac or (device_named("auto") if settings.device == "auto" else settings.device) == "cpu":
        return replace(settings, fleets=0 if options.parallel else 1)
    return replace(settings, fleets=options.workers or 1)


def _jobs(settings: ControlSettings) -> Sequence[Job]:
    """Agents that plan, or with `agent="sac"` a learner for each seed."""
    if settings.agent == "sac":
        from calibrl.control import sac

        return sac.jobs(settings)
    from calibrl.control import loop

    return loop.jobs(settings)


def _draw(out: Path, settings: ControlSettings, found: Found) -> None:
    from calibrl.control import figures

    figures.draw(out, settings, found)


def _show(rows: Sequence[Row], _: ControlSettings) -> None:
    from calibrl.control.figures import print_outcome

    print_outcome(rows)


def _show_rows(rows: Sequence[Row], options: Options) -> None:
    from calibrl.control.figures import show_rows

    show_rows(rows, options.out)


def _beside(settings: ControlSettings, row: Row) -> bool:
    """Whether a row is SAC's in a run of agents that plan, or theirs in a run of SAC."""
    return (row.arm == "sac") != (settings.agent == "sac")


def _settings_for_env(env_id: str) -> ControlSettings:
    """Settings for an environment of one's own, with as many steps a trial as it has itself."""
    from calibrl.control.problems import look_here, task_from_env

    look_here(env_id)
    return preset_for_env(env_id, task_from_env(env_id).steps)


def _searches() -> Mapping[str, str]:
    return {name: (kind.__doc__ or "").partition("\n")[0].rstrip(".") for name, kind in SEARCHES.items()}


EXPERIMENT = Experiment(
    name="control",
    title="Continuous control: planning with a learnt model",
    question=(
        "An agent trains networks to forecast its world and plans with them, trial after trial. The calibrated "
        "arm uses a held-out fifth of its rows to fit a map on top of the networks; the uncalibrated arm has the "
        "same networks and no map. Arms with the same seed share initial weights and random draws. Calibration is "
        "measured on every new trajectory before it is trained on."
    ),
    baseline="uncalibrated",
    metrics={
        "return": Metric("return of a trial", ".1f", "higher", "the sum of rewards of the last trial"),
        "best": Metric(
            "best return so far", ".1f", "higher", "the highest return of any trial so far: what the paper plots"
        ),
        "calibration_loss": Metric(
            "calibration loss", ".3f", "lower", LOSS + ", on a trajectory not yet trained on", AT_LEAST_0
        ),
        "coverage_90": Metric(
            "90 % interval holds",
            ".1%",
            help="the share of next states inside the forecast's 90 % interval; 90 % is honest",
        ),
        "crps": Metric("CRPS", ".4f", "lower", CRPS, AT_LEAST_0),
    },
    step="environment step",
    figures={
        "control-learning": "Return of each trial, and the best so far: mean over seeds and its standard error",
        "control-calibration": "Calibration of one-step forecasts on trajectories not yet trained on",
        "control-horizon": "Calibration of imagined rollouts, by number of steps ahead",
        "control-predictions": "One-step forecasts along new trajectories, with 90 % intervals",
    },
    subject="calibrated",
    live=("control-learning",),
    presets=PRESETS,
    default="cartpole-small",
    # Published sizes of the other tasks are for a GPU, as fleets.
    small=replace(PRESETS["cartpole-demo"], fleets=0, video=False),
    full=replace(PRESETS["cartpole-small"], seeds=10, fleets=0, video=False),
    needs=("mujoco", "control"),
    folder="out/control/{preset}",
    jobs=_jobs,
    draw=_draw,
    partial=True,
    show=_show,
    show_rows=_show_rows,
    prepare=_prepare,
    custom=Custom("--env", "instead of a preset, any Gymnasium id, such as Pendulum-v1", _settings_for_env),
    apart=_beside,
    names={
        "tasks": ("of continuous control, calibrl.control.task(NAME)", lambda: TASKS),
        "searches": ("calibrl run control --set planner.method=NAME", _searches),
    },
)

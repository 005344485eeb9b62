"""`calibrl run control`: agents that plan with a learnt model, calibrated or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrl.runs.execute import Address, Backend, Force, How, TensorBoard, Workers, execute

if TYPE_CHECKING:
    from calibrl.control.settings import ControlSettings
    from calibrl.runs.rows import Row

WIDE = 1000
"""Characters that no table needs."""


def control(
    preset: Annotated[
        str | None,
        typer.Option(
            help="cartpole, halfcheetah, pusher, reacher (as published), cartpole-small, …; see calibrl list."
        ),
    ] = None,
    env: Annotated[str | None, typer.Option(help="Or any Gymnasium id with Box observations and actions.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="module:function of (observation, action, next) tensors; default: learnt.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a setting, like ensemble.members=7.")] = None,
    arms: Annotated[
        str | None, typer.Option(help="Comma-separated arms, like calibrated,uncalibrated; see docs/control.md.")
    ] = None,
    map_: Annotated[str | None, typer.Option("--map", help="The map R of calibrated arms: smooth, sigmoid, …")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many paired seeds.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials per agent, after the random one.")] = None,
    agent: Annotated[str, typer.Option(help="model, or sac for the model-free baseline.")] = "model",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder for rows, figures and checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in that folder.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after the trial that passes this limit; continue with --resume.")
    ] = None,
    light: Annotated[
        bool, typer.Option("--light", help="Save agents without their networks; --resume retrains them.")
    ] = False,
    video: Annotated[bool, typer.Option(help="Make a video of each arm's best trial.")] = True,
    rows: Annotated[
        Path | None, typer.Option(help="Show rows of earlier runs instead of running; figures go to --out.")
    ] = None,
    backend: Backend = None,
    workers: Workers = None,
    address: Address = None,
    force: Force = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Learn to control a simulated robot by planning with a learnt model, calibrated and uncalibrated side by side.

    With --backend, --workers or --address each agent is a separate job; otherwise all agents learn in one batch.
    """
    from calibrl.errors import CalibrlError
    from calibrl.threads import check_device

    if rows is not None:
        from calibrl.control.show_rows import show_rows

        show_rows(rows, out)
        return
    chosen = _chosen(preset, env, set_ or [], arms=arms, map_=map_, seeds=seeds, trials=trials, reward=reward)
    if agent not in ("model", "sac"):
        raise CalibrlError(f"--agent {agent!r} is unknown; use model or sac")
    check_device(device)
    folder = out or Path("out/control") / chosen.name.replace("/", "-").replace(":", "-")
    if agent == "sac" and reward is not None:
        raise CalibrlError(f"--reward {reward} judges plans, and SAC makes none: it learns what the environment pays")
    if agent == "sac" and (minutes is not None or light):
        raise CalibrlError(
            f"{'--light' if minutes is None else '--minutes'} is for agents that plan; leave it out: SAC can be "
            "stopped and goes on by --resume"
        )
    if (backend, workers, address) != (None, None, None):
        if agent == "sac" or device != "cpu" or minutes is not None or light:
            raise CalibrlError(
                "--agent sac, --device, --minutes and --light are for runs in this process; leave them out, or "
                "--backend, --workers and --address"
            )
        _run_jobs(folder, chosen, How(backend, workers, address, resume, force, tensorboard), seed=seed)
        return
    if resume and force:
        raise CalibrlError("--resume goes on with a run and --force replaces it; give one of them")
    options: dict[str, Any] = {"seed": seed, "device": device, "resume": resume, "force": force}
    if agent == "sac":
        _run_sac(folder, chosen, tensorboard, **options)
    else:
        _run_model(folder, chosen, tensorboard, video=video, minutes=minutes, light=light, **options)


def _chosen(
    name: str | None,
    env: str | None,
    changes: Sequence[str],
    *,
    arms: str | None,
    map_: str | None,
    seeds: int | None,
    trials: int | None,
    reward: str | None,
) -> ControlSettings:
    """The preset that the options describe."""
    from dataclasses import replace

    from calibrl.control.environment import look_here
    from calibrl.control.policy import arm_named
    from calibrl.control.problems import task_from_env
    from calibrl.control.settings import changed, preset, preset_for_env
    from calibrl.errors import CalibrlError

    look_here()
    if env is not None and name is not None:
        raise CalibrlError(f"--preset {name} and --env {env} name two tasks; give one of them")
    base = preset(name or "cartpole-small") if env is None else preset_for_env(env, task_from_env(env).steps)
    asked = {"calibration.map": map_, "arms": arms, "seeds": seeds, "trials": trials}
    words = [*changes, *(f"{name}={value}" for name, value in asked.items() if value is not None)]
    found = replace(changed(base, words), reward=reward)
    for one in found.arms:
        arm_named(one)
    return found


def _run_model(folder: Path, preset: ControlSettings, tensorboard: Path | None, *, video: bool, **options: Any) -> None:
    from calibrl.control.experiment import run
    from calibrl.control.figures import draw, other_rows, videos
    from calibrl.control.line import watching
    from calibrl.errors import CalibrlError

    with stoppable(folder), watching(preset, tensorboard) as watch:
        outcome = run(folder, preset, watch=watch, **options)
    if not outcome.rows:
        raise CalibrlError(f"{folder}: no trial was finished; give it more --minutes")
    files = draw(folder, outcome, preset, others=other_rows(folder, outcome))
    if video and outcome.finished:
        try:
            files += videos(folder, outcome)
        except CalibrlError as problem:
            typer.echo(f"No video: {problem}", err=True)
    print_outcome(outcome.rows)
    if not outcome.finished:
        typer.echo("Stopped before the last trial; the same command with --resume goes on")
    typer.echo(f"Rows and {len(files)} figures are in {folder}; the figure to start with is {files[0]}")


def _run_jobs(folder: Path, preset: ControlSettings, how: How, *, seed: int) -> None:
    from calibrl.control.jobs import plan

    (found,) = execute({folder: plan(preset, seed=seed)}, how)
    print_outcome(found.rows)
    typer.echo(f"Rows and figures are in {folder}; the figure to start with is {folder / 'control-learning.png'}")


def _run_sac(folder: Path, preset: ControlSettings, tensorboard: Path | None, **options: Any) -> None:
    from calibrl.control.line import watching
    from calibrl.control.sac import run_sac

    with stoppable(folder), watching(preset, tensorboard) as watch:
        files = run_sac(folder, preset, watch=watch, **options)
    typer.echo(f"Rows are in {folder}; the figure, with what else was run there, is {files[0]}")


def print_outcome(rows: Sequence[Row]) -> None:
    """By arm: what was earned at the end and at best, and how honest the model was."""
    from rich import box
    from rich.table import Table

    from calibrl.control.figures import summary
    from calibrl.runs.console import table_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    names = ("", "seeds", "steps", "last", "best", "cal. loss", "90 % holds")
    for name in names:
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    lines = summary(rows)
    for line in lines:
        table.add_row(*line)
    console = table_console()
    if console.measure(table, options=console.options.update(max_width=WIDE)).maximum <= console.width:
        console.print(table)
    else:
        # No number is ever cut: on a narrow terminal an arm is a sentence.
        for arm, *numbers in lines:
            parts = [f"{name} {number}" for name, number in zip(names[1:], numbers, strict=True) if number]
            console.print(f"{arm}: {', '.join(parts)}", highlight=False, markup=False)
    console.print(
        "last, best: return, mean over seeds ± standard error. cal. loss, 90 % holds: of one-step forecasts of "
        "trajectories not yet trained on, over all trials; in brackets without the map.",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Say what is kept when somebody stops a run."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped: whole trials are kept in {folder}; the same command with --resume goes on", err=True)
        raise typer.Exit(130) from None

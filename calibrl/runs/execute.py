"""How `calibrl run` carries plans out: by which workers, with what progress, and what it says when it is stopped."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from calibrl.runs.engine import Found, Plan, Watcher

Backend = Annotated[
    str | None, typer.Option(help="Where jobs run: serial, processes (all cores) or ray.", show_default=False)
]
Workers = Annotated[int | None, typer.Option(min=1, help="How many jobs run at once; default: all cores.")]
Address = Annotated[str | None, typer.Option(help="Address of a running Ray cluster, like ray://head:10001 or auto.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped: do only what is missing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the rows of an earlier run.")]
Minutes = Annotated[
    float | None, typer.Option(min=0, help="Stop after the row that crosses this limit; continue with --resume.")
]
TensorBoard = Annotated[Path | None, typer.Option(help="Also write every metric to TensorBoard logs in this folder.")]


@dataclass(frozen=True)
class How:
    """The options that every experiment shares."""

    backend: str | None = None
    workers: int | None = None
    address: str | None = None
    resume: bool = False
    force: bool = False
    tensorboard: Path | None = None
    minutes: float | None = None

    @property
    def chosen(self) -> str:
        """The backend asked for, or the one that the other options imply."""
        if self.backend is not None:
            return self.backend
        return "ray" if self.address else "processes" if self.workers else "serial"


def execute(plans: dict[Path, Plan], how: How) -> list[Found]:
    """Carry plans out, each into its folder, and show how it goes."""
    from calibrl.runs.engine import Workers, carry_out_all
    from calibrl.runs.progress import Several, Shown

    name = ", ".join(plan.experiment for plan in plans.values()) if len(plans) == 1 else "all"
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(Shown(name))
        watchers: list[Watcher] = [shown]
        if how.tensorboard is not None:
            from calibrl.runs.progress import Boards

            watchers.append(stack.enter_context(Boards(how.tensorboard)))
        stack.enter_context(spoken_warnings())
        by = Workers(how.chosen, how.workers, how.address)
        try:
            watcher = Several(watchers)
            return carry_out_all(plans, by=by, resume=how.resume, force=how.force, minutes=how.minutes, watcher=watcher)
        except KeyboardInterrupt:
            stack.close()
            typer.echo(
                f"Stopped: {shown.done} of {shown.total} jobs are done and kept; the same command with --resume "
                "goes on from there",
                err=True,
            )
            raise typer.Exit(130) from None


@contextlib.contextmanager
def spoken_warnings() -> Iterator[None]:
    """Say our own warnings as one line each, like errors."""

    def say(message: Warning | str, *_: object, **__: object) -> None:
        typer.echo(f"calibrl: {message}", err=True)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.filterwarnings("always", category=UserWarning, module="calibrl")
        warnings.showwarning = say
        try:
            yield
        finally:
            warnings.showwarning = before

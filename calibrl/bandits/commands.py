"""`calibrl bandit evaluate`: what a policy would have earned, from a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrl.text import for_rich

if TYPE_CHECKING:
    from calibrl.bandits.evaluation import Estimate
    from calibrl.errors import CalibrlError

app = typer.Typer(help="Contextual bandits: evaluate a policy from logs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `evaluate` a command of its own."""


@app.command()
def evaluate(
    log: Annotated[Path, typer.Argument(help="CSV or Parquet: context columns, arm, reward, propensity.")],
    policy: Annotated[str, typer.Option(help="Which policy to evaluate.")] = "callinucb",
    load: Annotated[
        Path | None, typer.Option(help="Evaluate this saved policy instead: a file, or a Durable's folder.")
    ] = None,
    context: Annotated[
        list[str] | None, typer.Option(help="A context column; repeat for several. Default: all others.")
    ] = None,
    arm: Annotated[str, typer.Option(help="Column with the arm.")] = "arm",
    reward: Annotated[str, typer.Option(help="Column with the reward.")] = "reward",
    propensity: Annotated[str, typer.Option(help="Column with the probability of the logged arm.")] = "propensity",
    uniform: Annotated[bool, typer.Option(help="All arms were equally likely; ignore propensities.")] = False,
    train: Annotated[
        float, typer.Option(help="Share of the log to learn from before the doubly robust estimate.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Estimate what a policy would have earned, from a log of another policy's decisions."""
    from functools import partial

    from calibrl.bandits import POLICIES, Policy
    from calibrl.bandits.evaluation import FOLDS, doubly_robust, learn_from, mean_reward, read_log, replay_evaluation
    from calibrl.errors import CalibrlError

    if policy not in POLICIES:
        raise CalibrlError(f"policy {policy!r} is unknown; known: {', '.join(POLICIES)}")
    if not 0 < train < 1:
        raise CalibrlError(f"--train {train} is not between 0 and 1; 0.5 learns from the first half of the log")
    rows = read_log(log, context=context, arm=arm, reward=reward, propensity=propensity, uniform=uniform)
    cut = 0 if load else round(train * len(rows))
    if len(rows) <= FOLDS:
        raise CalibrlError(f"{log} has {len(rows)} rows; judging a policy needs more than {FOLDS}: log more decisions")
    if not load and not 1 <= cut <= len(rows) - FOLDS:
        raise CalibrlError(
            f"--train {train} of {len(rows)} rows leaves {cut} to learn from and {len(rows) - cut} to judge by; use a "
            f"share between {1 / len(rows):.2g} and {1 - FOLDS / len(rows):.2g}"
        )

    def fresh() -> Policy:
        return Policy.load(load) if load else POLICIES[policy](rows.arms, rows.x.shape[1], seed=seed)

    def stands() -> Estimate:
        return doubly_robust(fresh() if load else learn_from(fresh(), rows[:cut]), rows[cut:])

    judges: dict[str, Callable[[], Estimate]] = {
        "replay: the policy as it learns": partial(replay_evaluation, fresh(), rows, seed=seed),
        "doubly robust: the policy as it stands" if load else f"doubly robust: after {cut} rows": stands,
    }
    found: dict[str, Estimate | CalibrlError] = {"what the log earned": mean_reward(rows)}
    for name, judge in judges.items():
        try:
            found[name] = judge()
        except CalibrlError as problem:
            found[name] = problem
    if all(isinstance(found[name], CalibrlError) for name in judges):
        raise CalibrlError(str(found[name]))
    print_estimates(found, title=str(load) if load else policy)


def print_estimates(found: Mapping[str, Estimate | CalibrlError], *, title: str) -> None:
    """A line for each estimate, and below what has to be known about them."""
    from rich import box
    from rich.table import Table

    from calibrl.bandits.evaluation import Estimate
    from calibrl.runs.console import table_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column(title)
    for name in ("mean reward", "95 % interval", "rows"):
        table.add_column(name, justify="right")
    notes = {}
    for name, estimate in found.items():
        if isinstance(estimate, Estimate):
            low, high = estimate.interval()
            mark = " !" if estimate.note else ""
            table.add_row(
                for_rich(f"{name}{mark}"), f"{estimate.value:.4g}", f"{low:.4g} … {high:.4g}", str(estimate.rows)
            )
            notes[name] = estimate.note
        else:
            table.add_row(for_rich(f"{name} !"), "not known", "", "")
            notes[name] = str(estimate)
    console = table_console()
    console.print(table)
    for name, note in notes.items():
        if note:
            console.print(for_rich(f"! {name.split(':')[0]}: {note}."))

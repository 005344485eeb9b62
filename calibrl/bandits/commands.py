"""`calibrl bandit evaluate`: what a policy would have earned, from a log."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrl.errors import CalibrlError, check_known, check_within
from calibrl.text import for_rich

if TYPE_CHECKING:
    from calibrl.bandits.evaluation import Diagnostics, Estimate

app = typer.Typer(help="Evaluate a bandit policy from logs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `evaluate` a command of its own."""


@app.command()
def evaluate(
    log: Annotated[Path, typer.Argument(help="Log of decisions: arm, reward, propensity, context columns.")],
    policy: Annotated[str, typer.Option(help="Which policy; see calibrl list policies.")] = "calibrated-ucb",
    load: Annotated[
        Path | None, typer.Option(help="Evaluate this saved policy instead: a file, or a Durable's folder.")
    ] = None,
    context: Annotated[
        list[str] | None, typer.Option(help="A context column; repeat for several. Default: all others.")
    ] = None,
    arm: Annotated[str, typer.Option(help="Column with the arm.")] = "arm",
    reward: Annotated[str, typer.Option(help="Column with the reward.")] = "reward",
    propensity: Annotated[str, typer.Option(help="Column with the probability of the logged arm.")] = "propensity",
    uniform: Annotated[bool, typer.Option(help="All arms were equally likely: ignore propensities.")] = False,
    target: Annotated[
        str | None,
        typer.Option(help="Evaluate probabilities in the log instead: columns named this and an arm, such as new_a."),
    ] = None,
    train: Annotated[float, typer.Option(help="Share of the log to learn from before the policy is judged.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random decisions.")] = 0,
) -> None:
    """Estimate what a policy would have earned, from a log of another policy's decisions.

    Example: calibrl bandit evaluate log.csv --policy linucb
    """
    from calibrl.bandits import POLICIES, Policy, evaluation
    from calibrl.tables import read_table

    check_known("policy", policy, POLICIES)
    check_within("--train", train, "(0, 1)", "0.5 learns from the first half of the log")
    folds = evaluation.FOLDS
    skip = [name for name in read_table(log).columns if name.startswith(target)] if target else []
    rows = evaluation.read_log(
        log, context=context, arm=arm, reward=reward, propensity=propensity, uniform=uniform, without=skip
    )
    cut = 0 if load or target else round(train * len(rows))
    if len(rows) <= folds:
        raise CalibrlError(f"{log} has {len(rows)} rows; judging a policy needs more than {folds}: log more decisions")
    if not (load or target) and not 1 <= cut <= len(rows) - folds:
        raise CalibrlError(
            f"--train {train} of {len(rows)} rows leaves {cut} to learn from and {len(rows) - cut} to judge by; use a "
            f"share between {1 / len(rows):.2g} and {1 - folds / len(rows):.2g}"
        )

    def fresh() -> Policy:
        return Policy.load(load) if load else POLICIES[policy](rows.arms, rows.x.shape[1], seed=seed)

    found: dict[str, Estimate | CalibrlError] = {"what the log earned": evaluation.mean_reward(rows)}
    stands = "the policy as it stands" if load or target else f"after {cut} rows"
    judged: Any = None

    def judge(name: str, of: Callable[[], Estimate]) -> None:
        try:
            found[name] = of()
        except CalibrlError as problem:
            found[name] = problem

    if target:
        judged = evaluation.target_of(rows, log, target)
    else:
        judge("replay: the policy as it learns", lambda: evaluation.replay_evaluation(fresh(), rows, seed=seed))
        judged = fresh() if load else evaluation.learn_from(fresh(), rows[:cut])
    for name, method in evaluation.ESTIMATORS.items():
        judge(f"{name}: {stands}", lambda method=method: method(judged, rows[cut:]))  # type: ignore[misc]
    if all(isinstance(found[name], CalibrlError) for name in list(found)[1:]):
        raise CalibrlError(str(found[f"doubly robust: {stands}"]))
    print_estimates(found, title=target or (str(load) if load else policy))
    with contextlib.suppress(CalibrlError):
        print_diagnostics(evaluation.diagnose(judged, rows[cut:]))


def print_diagnostics(found: Diagnostics) -> None:
    """What the log is worth to the policy, in a line, and what is wrong with it."""
    from calibrl.runs.console import table_console

    console = table_console()
    console.print(
        f"Overlap: the {found.rows} rows are worth {found.effective:.0f} to this policy; weights average "
        f"{found.mean_weight:.3g}, and the largest has {found.largest_share:.1%} of them.",
        highlight=False,
    )
    for doubt in found.doubts:
        console.print(f"! {doubt}.", highlight=False, markup=False)


def print_estimates(found: Mapping[str, Estimate | CalibrlError], *, title: str) -> None:
    """A line for each estimate, and below what has to be known about them."""
    from calibrl.bandits.evaluation import Estimate
    from calibrl.runs.console import plain_table, table_console

    table = plain_table(title, "mean reward", "95 % interval", "rows")
    notes = {}
    for name, estimate in found.items():
        if isinstance(estimate, Estimate):
            mark = " !" if estimate.note else ""
            between = "none" if math.isnan(estimate.error) else "{:.4g} … {:.4g}".format(*estimate.interval())
            table.add_row(for_rich(f"{name}{mark}"), f"{estimate.value:.4g}", between, str(estimate.rows))
            notes[name] = estimate.note
        else:
            table.add_row(for_rich(f"{name} !"), "not known", "", "")
            notes[name] = str(estimate)
    console = table_console()
    console.print(table)
    for name, note in notes.items():
        if note:
            console.print(for_rich(f"! {name.split(':')[0]}: {note}."))

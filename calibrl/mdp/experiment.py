"""What calibration is worth: the paper's sections 3.2 and 4 and its appendix, on discrete MDPs.

Three parts: the two-state example; the lemma and the theorem over random MDPs and policies; planning with a
learnt model on FrozenLake, CliffWalking, Taxi and mazes, raw against recalibrated, on paired seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibrl.runs.experiment import AT_LEAST_0, Axis, Experiment, Job, Metric
from calibrl.runs.settings import setting

if TYPE_CHECKING:
    from calibrl.runs.engine import Found
    from calibrl.runs.rows import Row


@dataclass(frozen=True)
class MDPSettings:
    """How much to run: random MDPs, seeds, rows of experience for each state and action, and which tasks."""

    name: str
    problems: int = setting(help="random MDPs on which the theorem is tested", least=1)
    seeds: int = setting(help="paired seeds for planning with a learnt model", least=1, decides_rows=False)
    amounts: tuple[float, ...] = setting(help="rows of experience for each state and action")
    maze_size: int = setting(help="rows and columns of the maze", least=4)
    tables: tuple[str, ...] = setting(
        ("frozen-lake", "cliff-walking", "taxi"), help="Gymnasium's tabular environments to plan in"
    )
    seed: int = setting(0, help="the first seed", least=0, decides_rows=False)


def _jobs(settings: MDPSettings) -> Sequence[Job]:
    """All three parts. Planning is a job for each task and seed."""
    from calibrl.mdp.problems import MAZE, planning_job
    from calibrl.mdp.theorem import RANDOM, TWO_STATES, theory_job, two_state_rows

    return [
        Job(TWO_STATES, two_state_rows, (settings.seed,)),
        Job(RANDOM, theory_job, (settings.problems, settings.seed)),
        *(
            Job(f"{name}, seed {seed}", planning_job, (settings, name, seed))
            for seed in range(settings.seed, settings.seed + settings.seeds)
            for name in (*settings.tables, MAZE)
        ),
    ]


def _show(rows: Sequence[Row], settings: MDPSettings) -> None:
    """Print models of random MDPs, and planning at the second amount of data. The file has all rows."""
    from calibrl.mdp.theorem import RANDOM
    from calibrl.runs.console import print_table

    amount = settings.amounts[:2][-1]
    shown = [r for r in rows if r.problem == RANDOM or r.settings.get("rows_per_state_and_action") == amount]
    print_table(shown or rows)  # of a run with other amounts


def _draw(out: Path, _: MDPSettings, found: Found) -> None:
    from calibrl.mdp import figures

    figures.save(out, found)


QUICK = MDPSettings("quick", problems=2000, seeds=5, amounts=(1, 3, 10), maze_size=12)
FULL = MDPSettings("full", problems=5000, seeds=20, amounts=(1, 2, 3, 5, 10, 30), maze_size=16)
TINY = MDPSettings("tiny", problems=20, seeds=2, amounts=(1, 3), maze_size=5, tables=("frozen-lake",))

EXPERIMENT = Experiment(
    name="mdp",
    title="Discrete MDPs: what calibration is worth",
    question=(
        "To get the value of a policy right, does a model have to be sharp, or calibrated? On random MDPs both are "
        "known exactly. On FrozenLake, CliffWalking, Taxi and mazes a model is learnt from too few rows (table) or "
        "with features that are too coarse (coarse): what return does it promise for its plan, what does the plan "
        "deliver (0 is acting at random, 1 is optimal), and does recalibrating the model help?"
    ),
    baseline="raw",
    metrics={
        "calibration_error": Metric(
            "calibration error",
            ".3f",
            "lower",
            "how far the promised chances of the next state are from how often it came",
            (0, 1),
        ),
        "brier": Metric("Brier score", ".3f", "lower", "mean squared error of the promised chances", AT_LEAST_0),
        "value_error": Metric(
            "error in the policy's value",
            ".1e",
            "lower",
            "how wrong the model is about what a policy earns",
            AT_LEAST_0,
        ),
        "promise_error": Metric(
            "|promised - delivered|",
            ".3f",
            "lower",
            "the return that the plan promised against the one it had",
            AT_LEAST_0,
        ),
        "delivered": Metric("delivered return", ".3f", "higher", "what the plan earned in the true world"),
    },
    along=Axis("rows_per_state_and_action", "rows for each state and action", ("task", "learner")),
    subject="Platt",
    live=("mdp-planning",),
    figures={
        "mdp-theory": "Two states, and random MDPs: only miscalibrated models get values wrong",
        "mdp-planning-table": (
            "Planning with a table that has too few rows, by amount of data: mean over seeds and its standard error"
        ),
        "mdp-planning-coarse": (
            "Planning with features that are too coarse, by amount of data: mean over seeds and its standard error"
        ),
    },
    presets={preset.name: preset for preset in (QUICK, FULL, TINY)},
    default="quick",
    small=QUICK,
    full=FULL,
    jobs=_jobs,
    draw=_draw,
    show=_show,
    needs=("gymnasium", "control"),
)
